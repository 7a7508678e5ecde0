"""The options of the tasks, each defined once: name, default, help."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from invoke.tasks import Task, task

from iree_gauntlet.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = [
    "BATCH",
    "BATCH_NAMES",
    "CACHE",
    "FORMAT",
    "IREE",
    "IREE_NAMES",
    "RUNNING",
    "SELECTION",
    "SELECTION_NAMES",
    "TOOLCHAIN",
    "Option",
    "gauntlet_task",
    "replaces_disturbed",
    "with_defaults",
]


@dataclass(frozen=True, slots=True)
class Option:
    """One option of the command line.

    Attributes:
        name: Python name; `--` and dashes are the command line's.
        default: also gives the type; a list for an option that may be repeated.
        help: one or two lines.
        short: a single letter, empty for none.
    """

    name: str
    default: Any
    help: str
    short: str = ""


SELECTION = (
    Option("model", "", "Models to select (glob over folder names)."),
    Option("submodel", "", "Submodels to select (glob)."),
    Option("filename", "", "Spec files to select (glob over file stems, such as clip_rocm)."),
    Option("markers", "", "Marker expression, such as 'cpu and not slow'."),
    Option("suite", "", "Suite file; the options beside it narrow it down."),
    Option("spec_dir", [], "Folder of specs, in place of specs/ or the suite's (repeatable)."),
    Option(
        "external_file_directory",
        "",
        "Folder of the files that specs name without a URL (tuner files, pipelines).",
    ),
    Option(
        "module_directory",
        "",
        "Folder of torch models' module definitions (default: that of the tests, or the one above it).",
    ),
    Option(
        "config",
        [],
        "Config of an operator suite or of ONNX models, in place of all in its folder configs/ or the suite's "
        "(repeatable).",
    ),
    Option("model_root", "", "Folder or URL to fetch the models of an onnx_models suite from, in place of its URLs."),
    Option("target", [], "Where to run: cpu, rocm, cuda, vulkan, metal, vmvx, or a chip such as gfx942 (repeatable)."),
    Option("backend", "", "The same as --target, under the sharktank benchmarks' name."),
    Option("rocm_chip", "", "Chip of ROCm targets (default gfx942)."),
    Option("sku", "", "Machine whose golden times are checked, such as mi300."),
    Option("device", "", "IREE device in place of the specs', such as hip://1 or local-sync."),
)

SELECTION_NAMES = tuple(option.name for option in SELECTION)

CACHE = (Option("cache_dir", "", "Folder of downloads and modules (default: cache/ of the project)."),)

IREE = (
    Option(
        "iree",
        "",
        "Which IREE: installed (the default, or $IREE_GAUNTLET_IREE), 3.12.0, '>=3.9,<3.12', nightly, wheels:DIR, "
        "venv:DIR, build:DIR, path.",
    ),
    Option("iree_compiler", "", "The compiler, where it is not that of --iree."),
    Option("iree_runtime", "", "The runtime, where it is not that of --iree."),
)

IREE_NAMES = tuple(option.name for option in IREE)

TOOLCHAIN = (*CACHE, *IREE)

BATCH = (
    Option("batch", 0, "Operator suites: compile this many cases as one module, for a quick answer (0: one by one)."),
)

BATCH_NAMES = tuple(option.name for option in BATCH)

RUNNING = (
    Option("jobs", 0, "Steps at once before benchmarks (default: the cores of this machine).", short="j"),
    Option("fail_fast", False, "Stop at the first failure."),
    Option("keep_going", True, "Go on after failures (the default)."),
    Option("force_recompile", False, "Compile again even what is in the cache, and compare."),
    Option("resume", False, "Continue the newest run (or --run-dir), with its own selection, where it was killed."),
    Option(
        "last_failed", False, "Only what failed in the newest run; without a selection, of what that run had selected."
    ),
    Option("run_dir", "", "Folder of this run (default: runs/<time>-<suite>)."),
    Option("lenient", False, "An unexpected pass does not fail the run."),
    Option(
        "verdict",
        "confirm",
        "What a broken golden time is: confirm (more rounds decide) or strict (a failure, by the spec's plain rule).",
    ),
    Option("confirm_seconds", 300.0, "Seconds that one golden time may take to be confirmed."),
    Option(
        "disturbed",
        "replace",
        "What becomes of rounds that other work on the machine disturbed: replace, or count (for machines that are "
        "never quiet).",
    ),
    Option("offline", False, "Never touch the network; missing files are errors that name them."),
    Option("timeout_import", 0.0, "Seconds for an import (default 600, or the spec's)."),
    Option("timeout_parameters", 0.0, "Seconds for made-up weights (default 3600, or the spec's)."),
    Option("timeout_compile", 0.0, "Seconds for a compile (default 1800, or the spec's)."),
    Option("timeout_threshold", 0.0, "Seconds for a threshold run (default 600, or the spec's)."),
    Option("timeout_benchmark", 0.0, "Seconds for a benchmark (default 900, or the spec's)."),
    Option("timeout_stall", 60.0, "Seconds without a byte after which a download is given up."),
)

_DISTURBED = ("replace", "count")

FORMAT = Option("format", "text", "Output format: text or json.")


def replaces_disturbed(options: Mapping[str, Any]) -> bool:
    """Whether disturbed rounds are taken again, by `--disturbed`.

    Raises:
        UsageError: it is neither of the two.
    """
    if options["disturbed"] not in _DISTURBED:
        raise UsageError(f"--disturbed {options['disturbed']}: unknown", f"Known: {', '.join(_DISTURBED)}.")
    return bool(options["disturbed"] == _DISTURBED[0])


def with_defaults(options: tuple[Option, ...], **defaults: str) -> tuple[Option, ...]:
    """The options with the defaults of one task named in their help; they apply where no suite is given."""
    return tuple(
        Option(
            option.name,
            option.default,
            f"{option.help} Default without --suite: {defaults[option.name]}."
            if option.name in defaults
            else option.help,
            option.short,
        )
        for option in options
    )


def _help(option: Option) -> str:
    """The help of an option, with its default where that says something and the text does not."""
    if option.default in (None, "", 0) or isinstance(option.default, bool | list) or "default" in option.help:
        return option.help
    number = isinstance(option.default, int | float)
    return f"{option.help.removesuffix('.')} (default: {f'{option.default:g}' if number else option.default})."


class _GauntletTask(Task):  # type: ignore[type-arg]
    """A task whose short flags are those that its options name, and no others."""

    shorts: dict[str, str] = {}  # noqa: RUF012 - set for each task when it is made

    def arg_opts(self, name: str, default: Any, taken_names: set[str]) -> dict[str, Any]:
        opts = super().arg_opts(name, default, taken_names)
        opts["names"] = tuple(filter(None, (*opts["names"], self.shorts.get(name))))
        return opts


def gauntlet_task(
    name: str, options: tuple[Option, ...], *, positional: tuple[str, ...] = ()
) -> Callable[[Callable[..., None]], Task[Any]]:
    """Makes an Invoke task of a function `f(context, options: dict)`.

    Args:
        name: the task's name.
        options: its options; the function gets their values by Python name.
        positional: names of options that are given without `--`.
    """

    def decorate(function: Callable[..., None]) -> Task[Any]:
        def body(context: Any, **values: Any) -> None:
            function(context, values)

        parameters = [inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
        parameters += [
            inspect.Parameter(option.name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=option.default)
            for option in options
        ]
        body.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        body.__doc__ = function.__doc__
        body.__name__ = name.replace("-", "_")
        kind = type("_Task", (_GauntletTask,), {"shorts": {option.name: option.short for option in options}})
        made: Task[Any] = task(
            name=name,
            klass=kind,
            help={option.name: _help(option) for option in options},
            positional=list(positional),
            iterable=[option.name for option in options if isinstance(option.default, list)],
            auto_shortflags=False,
        )(body)
        return made

    return decorate
