"""The options of the benchmarks, each defined once, and the validated form that all frontends produce.

Names, short names and choices are those of PyBuda's `benchmark.py`; `on_iree` is an option's meaning on IREE. Both
frontends, argparse (exactly PyBuda's command line) and the Invoke task, are generated from `OPTIONS`.
"""

from __future__ import annotations

import argparse
import difflib
import re
import shlex
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, NoReturn

from iree_gauntlet.device_kinds import DEVICE_KINDS
from iree_gauntlet.errors import UsageError
from iree_gauntlet.requests import Option, ToolchainRequest, list_options
from iree_gauntlet.torch_models.formats import DataFormat

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


_LOOPS_PER_CHIP = 5
_MAX_DIGITS = 9
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PROGRAM = "python -m iree_gauntlet.bench"
# Help texts of the options that other commands have too.
_HELP = {option.name: option.help for option in list_options(ToolchainRequest)}
_CHIP_FLAGS = ", ".join(f"`{kind.chip_flags[0]}`" for kind in DEVICE_KINDS if kind.chip_flags)


@dataclass(frozen=True, slots=True)
class BenchOption(Option):
    """One option; `default` is a frontend's value if the option is not set: "", False for a switch, [] for a list.

    `default_text` is the option's default as text; empty for none.
    """

    on_iree: str = ""
    minimum: int | None = None
    default_text: str = ""


def _option(
    default: Any, text: str, on_iree: str, *, short: str = "", choices: tuple[str, ...] = (), least: int | None = None
) -> Any:
    unset = False if default is False else [] if text.endswith("(repeatable).") else ""
    default_text = "" if default in (None, "", False, ()) else str(getattr(default, "value", default))
    option = BenchOption("", unset, text, short, choices, on_iree=on_iree, minimum=least, default_text=default_text)
    return field(default=default, metadata={"option": option})


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """The validated options of a benchmark. None and empty fields are options that are not set.

    Attributes:
        env: variables and values, in order; a repeated name has its last value.
    """

    model: str = _option(
        "", "Model to benchmark (i.e. bert)", "A function of the models folder, compiled by IREE.", short="m"
    )
    config: str = _option(
        "",
        "Model configuration to benchmark (i.e. tiny, base, large)",
        "Passed to the model's function; required if the model has several.",
        short="c",
    )
    training: bool = _option(
        False,
        "Benchmark training",
        "Forward, loss and backward compiled as one program; gradients are checked.",
        short="t",
    )
    dataformat: DataFormat = _option(
        DataFormat.FP32,
        "Set data format",
        "Element type of weights and activations; block formats are emulated by rounding weights.",
        short="df",
        choices=tuple(form.value for form in DataFormat),
    )
    math_fidelity: str = _option(
        "HiFi4",
        "Set math fidelity",
        "Width of the inputs of f32 matrix products, through the compiler's demotion flags.",
        short="mf",
        choices=("LoFi", "HiFi2", "HiFi3", "HiFi4"),
    )
    backend_opt_level: int | None = _option(
        None,
        "Set backend optimization level",
        "`--iree-opt-level=O0` … `O3`; 4 is also O3, IREE's highest level. Default: the compiler's own.",
        short="opt",
        choices=("0", "1", "2", "3", "4"),
        least=0,
    )
    loop_count: int | None = _option(
        None,
        "Set the number of times to loop through the model. By default, it will be 5x the number of chips.",
        "Microbatches pushed and received in the measured time, all chips together.",
        least=1,
    )
    microbatch: int | None = _option(
        None,
        "Samples in one input of the model (default: the model's own).",
        "First dimension of the model's inputs, fixed when it is exported.",
        short="mb",
        least=1,
    )
    microbatch_count: int = _option(
        1,
        "Microbatches of each program; loop_count must be a multiple of it.",
        "Microbatches pushed before waiting for the first output; in training, one step sums their gradients.",
        least=1,
    )
    chips: int = _option(
        1,
        "Number of chips to run benchmark on. 0 to run on all available.",
        "Uses this number of the driver's devices in parallel; if it has fewer, this number of contexts on them.",
        least=0,
    )
    layers: int | None = _option(
        None,
        "Number of layers to run on models where this is applicable (i.e. nlp encoders/decoders)",
        "Passed to the model's function as `force_num_layers`.",
        least=1,
    )
    trace: str = _option(
        "none",
        "Performance trace to be generated during the run.",
        "A run after the measured one: light is a table of times by dispatch, verbose adds a file for Perfetto.",
        choices=("none", "light", "verbose"),
    )
    list: bool = _option(
        False, "List available models and configurations", "With parameter counts; nothing is built.", short="l"
    )
    env: tuple[tuple[str, str], ...] = _option(
        (),
        "Environment variables to run with, i.e. 'OMP_NUM_THREADS=1 IREE_X'; a name alone is set to 1.",
        "For building, compiling and measuring; part of the result's args.",
        short="e",
    )
    output: str = _option(
        "",
        "Output json file to write results to, optionally. If file already exists, results will be appended.",
        "Fields of PyBuda's document and of this toolkit; `.json` is added if missing.",
        short="o",
    )
    models_dir: tuple[str, ...] = _option(
        (),
        "Folder of model files, in place of specs/models (repeatable).",
        "Every Python file of the folder is imported; torch is needed once a model is built.",
    )
    against: tuple[str, ...] = _option(
        (),
        "Also measure torch or onnxruntime, alternating with IREE (repeatable).",
        "Gives IREE's ratio to it on this machine; `torch` is eager and `torch.compile`, `torch-eager` only eager.",
        choices=("torch", "torch-eager", "onnxruntime"),
    )
    sensitivity: bool = _option(
        False,
        "Check for every contraction of the model whether an error in it would be detected.",
        "Default: at most 64 contractions, fewer for large models.",
    )
    disturbed: str = _option(
        "replace",
        "How to treat rounds of --against that other work on the machine disturbed.",
        "As for `compare`.",
        choices=("replace", "count"),
    )
    device: str = _option(
        "",
        "IREE device, such as local-task (the default), local-sync, hip://0 or cuda://1.",
        "Names the compiler's target and the runtime's driver.",
    )
    target: str = _option(
        "",
        "Chip to compile for, such as gfx942 or sm_89, if --device is a GPU.",
        f"{_CHIP_FLAGS}. For a CPU, the code is compiled for this machine.",
    )
    torch_python: str = _option(
        "",
        "Python with torch installed, if the toolkit's own does not have it.",
        "Models are built in it; the toolkit itself never imports torch.",
    )
    iree: str = _option("", _HELP["iree"], "Compiler and runtime to measure.")
    iree_compiler: str = _option("", _HELP["iree_compiler"], "As for every other command.")
    iree_runtime: str = _option("", _HELP["iree_runtime"], "As for every other command.")
    cache_dir: str = _option("", _HELP["cache_dir"], "Built models and compiled modules are cached there.")

    def loops(self, chips: int) -> int:
        """Return the number of loops for a number of chips (`--chips 0` resolved): the option, or 5 for each chip.

        The default is rounded up to a multiple of the microbatch count, and is at least this count for each chip.
        """
        if self.loop_count is not None:
            return self.loop_count
        groups = max(chips, -(-_LOOPS_PER_CHIP * chips // self.microbatch_count))
        return groups * self.microbatch_count

    def as_args(self) -> dict[str, Any]:
        """Return the `args` of a result: every option by its name, in JSON's types."""
        values: dict[str, Any] = {option_field.name: getattr(self, option_field.name) for option_field in fields(self)}
        env = " ".join(shlex.quote(f"{name}={value}") for name, value in self.env)
        lists = {"models_dir": [*self.models_dir], "against": [*self.against]}
        return {**values, "dataformat": self.dataformat.value, "env": env, **lists}


OPTIONS: tuple[BenchOption, ...] = tuple(
    replace(option_field.metadata["option"], name=option_field.name) for option_field in fields(BenchOptions)
)


def read_options(values: Mapping[str, Any]) -> BenchOptions:
    """Validate a frontend's values by the options' names; other names are ignored.

    A value is a text, a bool for a switch, or a list of texts; a missing, None or empty value is not set.
    """
    checked_values = {option.name: _check_value(option, values.get(option.name)) for option in OPTIONS}
    options = BenchOptions(**{name: value for name, value in checked_values.items() if value is not None})
    if not options.list and not options.model:
        raise UsageError("--model: not given", "Name a model (-m bert), or list them with --list.")
    if options.loop_count is not None and options.loop_count % options.microbatch_count:
        raise UsageError(
            f"--loop_count {options.loop_count}: not a multiple of --microbatch_count {options.microbatch_count}",
            f"Use {options.microbatch_count}, {2 * options.microbatch_count}, …",
        )
    if options.training and "onnxruntime" in options.against:
        raise UsageError(
            "--against onnxruntime: cannot be combined with --training", "onnxruntime supports only inference."
        )
    return options


def expand_option_names(words: Sequence[str], *, dashes: bool) -> list[str]:
    """Return a command line with the full names of options; other arguments are unchanged.

    With full names, both frontends agree: Invoke reads `-df` as `-d -f`, and argparse accepts only declared names.

    Args:
        words: the command line without the program; words after `--` are unchanged.
        dashes: True for Invoke's form `--loop-count`; False for PyBuda's form `--loop_count`.
    """
    names: dict[str, str] = {}
    for option in OPTIONS:
        full = f"--{option.name.replace('_', '-') if dashes else option.name}"
        spellings = {f"--{option.name}", f"--{option.name.replace('_', '-')}"}
        spellings |= {f"-{option.short}", f"--{option.short}"} if option.short else set()
        names |= dict.fromkeys(spellings, full)
    arguments: list[str] = []
    remaining_words = iter(words)
    for word in remaining_words:
        if word == "--":
            return [*arguments, word, *remaining_words]
        head, equals, value = word.partition("=")
        arguments.append(f"{names.get(head, head)}{equals}{value}")
    return arguments


def find_closest_option(word: str) -> str:
    """Return the option that is closest to a mistyped one, with its dashes; empty if none is close."""
    typed = word.partition("=")[0]
    name_start = typed.strip("-").replace("-", "_")
    shorts = {option.short: f"-{option.short}" for option in OPTIONS if option.short}
    names = {option.name: f"--{option.name}" for option in OPTIONS}
    if not typed.startswith("--"):
        names = shorts | names if typed.startswith("-") else {}
    completions = [name for name in names if name_start and name.startswith(name_start)]
    return names.get(completions[0] if len(completions) == 1 else _find_closest(name_start, tuple(names)), "")


def _check_value(option: BenchOption, value: Any) -> Any:
    """Return the value for `BenchOptions`; None if the option is not set."""
    if isinstance(option.default, bool):
        return bool(value)
    if isinstance(option.default, list):
        return tuple(dict.fromkeys(_check_text(option, text) for text in value or ()))
    text = str(value or "") or option.default_text
    if not text:
        return None
    if option.name == "env":
        return _read_environment(text)
    text = _check_text(option, text)
    if option.minimum is None:
        return DataFormat(text) if option.name == "dataformat" else text
    # Accept only ASCII digits; int() alone would accept underscores, spaces and the digits of other scripts.
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS) or int(text) < option.minimum:
        raise UsageError(f"--{option.name} {text}: expected an integer of at least {option.minimum}", option.help)
    return int(text)


def _check_text(option: BenchOption, text: str) -> str:
    if not text.strip():
        raise UsageError(f"--{option.name}: empty", option.help)
    if option.choices and text not in option.choices:
        suggestion = _find_closest(text, option.choices)
        question = f"; did you mean {suggestion}?" if suggestion else ""
        raise UsageError(f"--{option.name} {text}: unknown{question}", f"Known: {', '.join(option.choices)}.")
    return text


def _read_environment(text: str) -> tuple[tuple[str, str], ...]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"--env {text}: {error}", "Write it like 'A=1 B=\"two words\"'.") from None
    variables: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not _VARIABLE_NAME.fullmatch(name):
            raise UsageError(
                f"--env {text}: {name!r} is not a valid variable name",
                "Use letters, digits and underscores, as in 'A=1 B=2'.",
            )
        variables[name] = value if equals else "1"
    return tuple(variables.items())


def _find_closest(word: str, valid_names: Sequence[str]) -> str:
    names_by_casefold = {name.casefold(): name for name in valid_names}
    matches = difflib.get_close_matches(word.casefold(), names_by_casefold, n=1, cutoff=0.5)
    return names_by_casefold[matches[0]] if matches else ""


class _Parser(argparse.ArgumentParser):
    """A parser that raises the toolkit's errors."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, f"See {self.prog} --help.")


def build_parser(prog: str = _PROGRAM) -> argparse.ArgumentParser:
    """Build the parser; values stay text, because `read_options` validates them for all frontends."""
    parser = _Parser(prog=prog, description="Benchmark a model on IREE", allow_abbrev=False)
    for option in OPTIONS:
        names = [f"-{option.short}"] * bool(option.short) + [f"--{option.name}"]
        if isinstance(option.default, bool):
            parser.add_argument(*names, dest=option.name, action="store_true", help=option.help)
        else:
            repeatable = isinstance(option.default, list)
            parser.add_argument(
                *names,
                dest=option.name,
                action="append" if repeatable else "store",
                metavar=f"{{{','.join(option.choices)}}}" if option.choices else option.name.upper(),
                help=option.help.replace("%", "%%"),
            )
    return parser


def parse(arguments: Sequence[str], prog: str = _PROGRAM) -> BenchOptions:
    """Read a command line; `--help` prints the help and exits with code 0."""
    namespace, unknown = build_parser(prog).parse_known_args(expand_option_names(arguments, dashes=False))
    if unknown:
        suggestion = find_closest_option(unknown[0])
        raise UsageError(
            f"{unknown[0]}: no such option{f'; did you mean {suggestion}?' if suggestion else ''}",
            f"See {prog} --help.",
        )
    return read_options(vars(namespace))
