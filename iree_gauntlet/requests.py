"""Requests: the options of commands, immutable and typed; each option is declared once, as a field.

A field has the option's name, under which journals keep it, and its texts for the command line and the docs.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from iree_gauntlet.device_kinds import TORCH_NAMES
from iree_gauntlet.errors import UsageError
from iree_gauntlet.stages import SPEC_STAGES, STAGES, Stage
from iree_gauntlet.targets import FAMILIES

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

    from iree_gauntlet.variants import FlagVariant


DEFAULT_SUITE = "suites/cpu.toml"
# The value of `takes` for an option that takes all the words after a task.
SEVERAL = "words"


@dataclass(frozen=True, slots=True)
class Option:
    """One option of the command line.

    Attributes:
        name: Python name; the command line adds `--` and has dashes for underscores.
        default: the default, which determines the type; a list for a repeatable option, None for a positional argument.
        short: a single letter.
        choices: valid values; empty for any.
        unit: unit of a positive number; empty for any number.
        most: the largest valid number; 0 for any.
        takes: name of the word after the task that becomes its value, such as `folder`; `SEVERAL` for the values of an
            option that may be repeated, one for each word.
    """

    name: str
    default: Any
    help: str
    short: str = ""
    choices: tuple[str, ...] = ()
    unit: str = ""
    takes: str = ""
    most: int = 0

    @property
    def repeats(self) -> bool:
        """True if it may be repeated."""
        return isinstance(self.default, list) or self.takes == SEVERAL


_TIMEOUTS = {
    stage: Option(f"timeout_{stage}", 0.0, f"{row.limits} (default {row.timeout:g}, or the spec's).", unit="seconds")
    for stage, row in STAGES.items()
    if row.limits
}
# The switches of a run that add a stage.
_ADDED_STAGES = {"instructions": Stage.COUNT, "memory": Stage.MEMORY}
# A resumed session keeps these options unless they are given again; its other options cannot change.
OVERRIDABLE_OPTIONS = ("force_recompile", *(option.name for option in _TIMEOUTS.values()))
_KEPT_EXECUTION = (
    *("batch", "baseline", "unapplied_goldens", "counter", "count_cpu", "rerun_failed", "flaky"),
    *OVERRIDABLE_OPTIONS,
)


def option(
    default: Any,
    text: str,
    *,
    short: str = "",
    choices: tuple[str, ...] = (),
    unit: str = "",
    takes: str = "",
    most: int = 0,
) -> Any:
    """Declare a field of a request as an option; arguments as for `Option`.

    An option whose default is a tuple may be repeated.
    """
    option_default = list(default) if isinstance(default, tuple) else default
    declaration = Option("", option_default, text, short, choices, unit, takes, most)
    return field(default=default, metadata={"options": {None: declaration}})


def list_options(request: type, *names: str) -> tuple[Option, ...]:
    """List the options of a request, or only those with the given names."""
    return tuple(item for _, _, item in _list_options(request) if not names or item.name in names)


def _list_options(request: Any) -> Iterator[tuple[str, Stage | None, Option]]:
    """Yield (field, key, option) of a request or its class; with a key, the value is that of a pair in the field."""
    for item in fields(request):
        for key, declaration in item.metadata.get("options", {}).items():
            yield item.name, key, replace(declaration, name=declaration.name or item.name)


def _collect_options(request: Any) -> dict[str, Any]:
    """Collect the values of a request's options, by name."""
    return {
        item.name: getattr(request, name) if key is None else dict(getattr(request, name)).get(key, item.default)
        for name, key, item in _list_options(request)
    }


def format_option(name: str) -> str:
    """Format the name of an option: `--spec-dir`."""
    return f"--{name.replace('_', '-')}"


def suggest_each(name: str, text: str, known: Container[str]) -> str:
    """Suggest the syntax for several names if a text is a list of known names with commas; otherwise empty."""
    words = [word.strip() for word in text.split(",")]
    if len(words) == 1 or not all(word in known for word in words):
        return ""
    return f"Give each one separately: {' '.join(f'{format_option(name)} {word}' for word in words)}"


_Request = TypeVar("_Request")


def parse_request(request: type[_Request], values: Mapping[str, Any]) -> _Request:
    """Create a request from the values of options; UsageError for an invalid value."""
    return request(**_parse_values(request, values))


def _parse_values(request: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Parse the values of a request's options, by field; errors as in `parse_request`."""
    arguments: dict[str, Any] = {}
    for name, key, item in _list_options(request):
        value = parse_value(item, values[item.name]) if item.name in values else None
        if key is None and item.name in values:
            arguments[name] = value
        elif key is not None and value:
            arguments[name] = (*arguments.get(name, ()), (key, value))
    return arguments


def parse_value(item: Option, value: Any) -> Any:
    """Parse the value of an option; errors as in `parse_request`."""
    if item.repeats:
        value = tuple(value)
    for word in (value if item.repeats else (value,)) if item.choices else ():
        if word not in item.choices:
            several = suggest_each(item.name, word, item.choices) if item.repeats else ""
            raise UsageError(
                f"{format_option(item.name)} {word}: unknown", several or f"Known: {', '.join(item.choices)}."
            )
    # 0 means that the option is omitted.
    if item.unit and (value or item.default) and not 0 < value < math.inf:
        hint = f"Leave it out for {item.default:g}." if item.default else "Leave it out for the default."
        raise UsageError(f"{format_option(item.name)} {value:g}: expected {item.unit} above 0", hint)
    if isinstance(value, float) and not math.isfinite(value):
        raise UsageError(f"{format_option(item.name)} {value:g}: expected a finite number", "Such as 2.5.")
    if item.most and value > item.most:
        raise UsageError(f"{format_option(item.name)} {value}: expected at most {item.most}")
    return value


@dataclass(frozen=True, slots=True)
class Defaults:
    """The default selection of a task without options and suite.

    Attributes:
        suite: the project's default suite; empty for none.
    """

    model: str = "*"
    targets: tuple[str, ...] = ("cpu",)
    sku: str = ""
    suite: str = ""

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Defaults:
        """Create the defaults from a journal."""
        return cls(**{**record, "targets": tuple(record["targets"])})


@dataclass(frozen=True, slots=True)
class SelectionRequest:
    """The selection of cases and specs, and their targets."""

    model: tuple[str, ...] = option((), "Models to select (glob over folder names; repeatable).")
    submodel: tuple[str, ...] = option((), "Submodels to select (glob; repeatable).")
    filename: tuple[str, ...] = option(
        (), "Spec files to select (glob over file stems, such as clip_rocm; repeatable)."
    )
    markers: str = option("", "Marker expression, such as 'cpu and not slow'.")
    suite: str = option("", "Suite: a file, or a name in suites/; the other options narrow it down.")
    spec_dir: tuple[str, ...] = option((), "Folder of specs, instead of specs/ or the suite's (repeatable).")
    external_file_directory: str = option(
        "", "Folder of the files that specs name without a URL (tuner files, pipelines)."
    )
    module_directory: str = option(
        "", "Folder of torch models' module definitions (default: that of the tests, or the one above it)."
    )
    config: tuple[str, ...] = option(
        (),
        "Config of an operator suite or of ONNX models, instead of all in its folder configs/ or the suite's "
        "(repeatable).",
    )
    model_root: str = option("", "Folder or URL to fetch the models of an onnx_models suite from, instead of its URLs.")
    target: tuple[str, ...] = option(
        (), f"Where to run: {', '.join(FAMILIES)}, or a chip such as gfx942, arm64 (repeatable)."
    )
    backend: str = option("", "The same as --target, as sharktank's benchmarks call it.")
    rocm_chip: str = option("", "Chip of ROCm targets (default gfx942).")
    sku: str = option("", "Machine whose golden times are checked, such as mi300.")
    device: str = option("", "IREE device instead of the specs', such as hip://1 or local-sync.")
    variant: tuple[str, ...] = option(
        (),
        "Change of the specs' flags: the name of a variant in gauntlet.toml or the suite, or NAME=FLAGS (repeatable).",
    )
    untrusted: bool = option(
        False,
        "The specs are not trusted: refuse flags that start programs, load code or write elsewhere, files outside of "
        "the project, and its gauntlet.toml.",
    )


@dataclass(frozen=True, slots=True)
class CacheRequest:
    """The folder of fetched files, installed IREEs and compiled modules."""

    cache_dir: str = option("", "Folder of downloads and modules (default: cache/ of the project).")


@dataclass(frozen=True, slots=True)
class ToolchainRequest(CacheRequest):
    """The selection of an IREE, and the folder of installed ones."""

    iree: str = option(
        "",
        "Which IREE: installed (the default, or $IREE_GAUNTLET_IREE), 3.12.0, '>=3.9,<3.12', nightly, wheels:DIR, "
        "venv:DIR, build:DIR, source:DIR, source:DIR@REF, commit:SHA, path.",
    )
    iree_compiler: str = option("", "The compiler, if it is not that of --iree.")
    iree_runtime: str = option("", "The runtime, if it is not that of --iree.")


@dataclass(frozen=True, slots=True)
class FormatRequest:
    """The output format."""

    format: str = option("text", "Output format: text or json.", choices=("text", "json"))

    @property
    def as_json(self) -> bool:
        """True for output to programs."""
        return self.format == "json"


@dataclass(frozen=True, slots=True)
class OutputRequest:
    """The verbosity."""

    quiet: bool = option(
        False, "No progress or notes, and only the result if all is as expected; warnings stay.", short="q"
    )
    verbose: bool = option(False, "Show each step's command, cache key and log, and every row of reports.", short="v")


@dataclass(frozen=True, slots=True)
class NetworkRequest:
    """The network options."""

    offline: bool = option(False, "Never use the network; each missing file is reported as an error.")
    timeout_stall: float = option(60.0, "Seconds without any data after which a download is abandoned.", unit="seconds")
    max_download: str = option(
        "",
        "Maximum size of one file, such as 20GB (default: the free disk space; half of that if the server states no "
        "length, or 1 GB if the file has no pinned hash either).",
    )


@dataclass(frozen=True, slots=True)
class ShardRequest:
    """The shard of a selection."""

    shard: str = option("", "Only one shard of the selection, for one of several machines: 3/8 is the third of eight.")
    shard_costs: str = option("", "How shards are balanced: by a file of `shard.costs`, or the folder of a run.")


@dataclass(frozen=True, slots=True)
class FolderRequest:
    """The folder of a run, and the continuation of an earlier one."""

    run_dir: str = option("", "Folder of this run (default: runs/<time>-<suite>).")
    resume: bool = option(
        False, "Continue the newest run (or --run-dir), with its own selection, from where it was killed."
    )
    last_failed: bool = option(False, "Only what failed in the newest run, by default with that run's selection.")


def _disturbed() -> Any:
    """Declare the option that all requests for rounds have."""
    return option(
        "replace",
        "What to do with rounds that other work on the machine disturbed: replace, or count (for machines that are "
        "never quiet).",
        choices=("replace", "count"),
    )


@dataclass(frozen=True, slots=True)
class ExecutionRequest:
    """The execution and judgement of steps."""

    jobs: int = option(
        0, "Steps to run at once before benchmarks (default: the cores of this machine).", short="j", unit="a number"
    )
    fail_fast: bool = option(False, "Stop at the first failure.")
    keep_going: bool = option(True, "Continue after failures (the default).")
    force_recompile: bool = option(False, "Recompile even what is in the cache, and compare.")
    lenient: bool = option(False, "An unexpected pass does not fail the run.")
    rerun_failed: int = option(
        0,
        "How often a step that failed is repeated (at most 100 times), in fresh processes; if it passes then, it is "
        "flaky.",
        unit="a number",
        most=100,
    )
    flaky: str = option(
        "fail", "Whether a flaky step fails the run: fail (exit code 1) or pass.", choices=("fail", "pass")
    )
    verdict: str = option(
        "confirm",
        "If a golden time is exceeded: confirm (more rounds decide) or strict (a failure, by the spec's plain rule).",
        choices=("confirm", "strict"),
    )
    unapplied_goldens: str = option(
        "warn",
        "What to do about a golden that is not applied because it is for another release: warn, or fail (exit code 4).",
        choices=("warn", "fail"),
    )
    baseline: str = option(
        "",
        "Earlier run that this one must match or improve on in dispatches, size and error: a folder, its name in "
        "runs/, or latest.",
    )
    confirm_seconds: float = option(300.0, "Maximum seconds to confirm one golden time.", unit="seconds")
    disturbed: str = _disturbed()
    timeouts: tuple[tuple[Stage, float], ...] = field(default=(), metadata={"options": _TIMEOUTS})
    counter: str = option(
        "auto",
        "What counts instructions: hardware (the CPU's own counter), valgrind, or auto: hardware if it can be read.",
        choices=("auto", "hardware", "valgrind"),
    )
    count_cpu: str = option(
        "",
        "CPU that modules are compiled for to count their instructions, with features to add or leave out "
        "(default under valgrind: x86-64-v3,-fma).",
    )
    batch: int = option(
        0,
        "Operator suites: compile this many cases as one module, for a quick answer (0: one at a time).",
        unit="a number of cases",
    )

    @property
    def replaces_disturbed(self) -> bool:
        """True if disturbed rounds are repeated."""
        return self.disturbed == "replace"

    @property
    def stops_early(self) -> bool:
        """True if the first failure ends the run."""
        return self.fail_fast or not self.keep_going


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A run of spec files.

    Attributes:
        defaults: the default selection.
        stages: selected stages; empty for the suite's choice.
        instructions, memory: True if the instructions of a call are counted, or its peak memory measured, as well.
        chains: selected chains; None means all chains.
        variants: the variants that `selection.variant` names; None to look them up.
    """

    selection: SelectionRequest = SelectionRequest()
    toolchain: ToolchainRequest = ToolchainRequest()
    network: NetworkRequest = NetworkRequest()
    shard: ShardRequest = ShardRequest()
    folder: FolderRequest = FolderRequest()
    execution: ExecutionRequest = ExecutionRequest()
    defaults: Defaults = Defaults()
    stages: tuple[Stage, ...] = option(
        (),
        f"Only these stages (repeatable): {', '.join(stage for stage in SPEC_STAGES if not stage.row.stays_local)}.",
        choices=SPEC_STAGES,
    )
    instructions: bool = option(
        False, "Also count the instructions of one call: exact, however busy the machine is (CPU only)."
    )
    memory: bool = option(
        False, "Also measure the peak memory of one call: exact for the device, however busy the machine is."
    )
    explain: bool = option(False, "Explain failures after the run, as `explain` does (except expected ones).")
    chains: frozenset[str] | None = None
    variants: tuple[FlagVariant, ...] | None = None

    @classmethod
    def of(cls, values: Mapping[str, Any], defaults: Defaults, stages: tuple[Stage, ...] = ()) -> RunRequest:
        """Create a request from a command line; a task's own `stages` have priority. Errors as in `parse_request`."""
        return cls(
            selection=parse_request(SelectionRequest, values),
            toolchain=parse_request(ToolchainRequest, values),
            network=parse_request(NetworkRequest, values),
            shard=parse_request(ShardRequest, values),
            folder=parse_request(FolderRequest, values),
            execution=parse_request(ExecutionRequest, values),
            defaults=defaults,
            stages=stages or tuple(map(Stage, _parse_values(cls, values).get("stages", ()))),
            instructions=bool(values.get("instructions")),
            memory=bool(values.get("memory")),
            explain=bool(values.get("explain")),
        )

    def choose_stages(self, default_stages: Sequence[Stage]) -> tuple[Stage, ...]:
        """Return the selected stages, or `default_stages`, which are the suite's or the toolkit's choice."""
        added_stages = (stage for name, stage in _ADDED_STAGES.items() if getattr(self, name))
        return tuple(dict.fromkeys((*(self.stages or default_stages), *added_stages)))

    @property
    def resume_options(self) -> dict[str, Any]:
        """The options that a resumed run keeps, by name."""
        toolchain = {name: value for name, value in asdict(self.toolchain).items() if name != "cache_dir"}
        options = self.execution_options
        execution = {name: options[name] for name in _KEPT_EXECUTION}
        switches = {name: getattr(self, name) for name in _ADDED_STAGES}
        return asdict(self.selection) | toolchain | asdict(self.shard) | execution | switches

    @property
    def execution_options(self) -> dict[str, Any]:
        """The options of execution, folder and network, by name."""
        parts = (self.execution, self.folder, self.network)
        return {name: value for part in parts for name, value in _collect_options(part).items()}

    def with_resumed_options(self, values: Mapping[str, Any]) -> RunRequest:
        """Return the request with a resumed run's options, except those that the new command line may override."""
        overrides = {
            name: value
            for name, value in collect_changed_options([self.execution]).items()
            if name in OVERRIDABLE_OPTIONS
        }
        values = {**values, **overrides}
        parts = {name: getattr(self, name) for name in ("selection", "toolchain", "shard", "execution")}
        resumed_parts = {
            name: parse_request(type(part), _collect_options(part) | values) for name, part in parts.items()
        }
        resumed_parts |= {name: getattr(self, name) or bool(values.get(name)) for name in _ADDED_STAGES}
        return replace(self, **resumed_parts)


def _sides() -> Any:
    """Declare the option for the two sides of a comparison."""
    return option(
        (),
        "A and B, as for --iree and each with variants (3.13.0+O3), if no words follow the task: --sides 3.12.0 "
        "--sides 3.13.0 with `inv`.",
        takes=SEVERAL,
    )


@dataclass(frozen=True, slots=True)
class CodeDiffRequest:
    """A comparison of generated code: the sides, the dispatches, and the form of their code."""

    sides: tuple[str, ...] = _sides()
    dispatch: str = option(
        "", "Dispatches that are shown in full, as a glob (default: of each module, the one that got worst)."
    )
    level: str = option(
        "asm",
        "What is shown: asm (assembly; for Vulkan SPIR-V), llvm (LLVM IR after optimisation) or config (how the "
        "dispatch is to be lowered).",
        choices=("asm", "llvm", "config"),
    )


@dataclass(frozen=True, slots=True)
class CompatRequest:
    """A test of the modules of several IREEs with the runtime of each: the IREEs, and the promise."""

    iree: tuple[str, ...] = option(
        (),
        "The IREEs, as for `run --iree`, if no words follow the task: --iree 3.12.0 --iree 3.13.0 with `inv`. Releases "
        "are put in order; otherwise give the oldest first.",
        takes=SEVERAL,
    )
    require_compatible: str = option(
        "", "Each IREE must run the modules of this many IREEs before it: a refusal fails. 0 drops it on --resume."
    )


@dataclass(frozen=True, slots=True)
class QualifyRequest:
    """A qualification of a new IREE against an old one: the sides, what is allowed, and the time for it."""

    sides: tuple[str, ...] = option(
        (),
        "OLD and NEW, as for `run --iree`, if no words follow the task: --sides 3.12.0 --sides 3.13.0 with `inv`.",
        takes=SEVERAL,
    )
    allow: float = option(
        1.0, "Sizes, memory, and instructions outside of dispatches may be this many per cent larger."
    )
    least_work: float = option(
        0.1, "Two counts of a dispatch's instructions within this many per cent are the same work.", unit="per cent"
    )
    budget: float = option(30.0, "Minutes for times, and as many for bundles and bisections of losses.", unit="minutes")
    no_times: bool = option(False, "Do not compare times.")
    no_bundles: bool = option(False, "Do not explain what newly fails.")
    among: tuple[str, ...] = option(
        (), "The IREEs between OLD and NEW for bisections, in order, in any form of --iree (repeatable)."
    )
    nightlies: bool = option(False, "Search for losses among nightlies (the default if OLD or NEW is one).")
    source: str = option("", "A checkout of IREE: follow losses to its commits, which are built.")
    packages: bool = option(False, "Use packages of IREE's CI for commits that have them, and build the others.")


@dataclass(frozen=True, slots=True)
class CompareRequest:
    """A comparison of two IREEs: the sides, the metric and the precision."""

    sides: tuple[str, ...] = _sides()
    metric: str = option(
        "time",
        "What is compared: time (of benchmarks), compile-time, or instructions (exact, however busy the machine is).",
        choices=("time", "compile-time", "instructions"),
    )
    least_work: float = option(
        0.001, "Two counts of a dispatch's instructions within this many per cent are the same work.", unit="per cent"
    )
    no_work: bool = option(False, "Do not count instructions in addition to the times.")
    least: float = option(1.0, "Minimum effect: the smallest difference that matters, in per cent.")
    band: float = option(3.0, "Equivalence margin: two times within this many per cent are the same.")
    allow: float = option(0.0, "A slowdown of this many per cent is allowed: `not slower` (default: --band).")
    budget: float = option(30.0, "Total minutes for the rounds of all models.", unit="minutes")
    repetitions: int = option(5, "Repetitions of a benchmark in each process.", unit="a number")
    min_time: float = option(0.05, "Minimum seconds per repetition.", unit="seconds")
    cpus: str = option("", "CPUs that rounds run on: 2, 4-7, or all (default: where each model is steadiest).")
    seed: int = option(1, "Seed of the random order of rounds.")


@dataclass(frozen=True, slots=True)
class BisectRequest:
    """A search for a change between two IREEs, or of one by its flags, by a metric."""

    good: str = option(
        "", "The good IREE: a release, a nightly, a commit with --source, or any form of --iree with --among."
    )
    bad: str = option("", "The bad IREE; it may be older than the good one.")
    metric: str = option(
        "",
        "What to look at: time, compile-time, instructions, instructions-outside, peak-memory, spills, size, "
        "dispatches, error, compiles or runs.",
    )
    bundle: str = option(
        "", "Instead of a metric and a model: a bundle written by `explain` (the archive or its folder)."
    )
    flags: str = option(
        "",
        "Instead of IREEs: a variant, as for --variant; which of its flags make the difference? Good is without them, "
        "bad with all.",
    )
    nightlies: bool = option(False, "Search among nightlies (the default if an end is one).")
    source: str = option("", "A checkout of IREE: good and bad are its commits, and each candidate is built.")
    packages: bool = option(False, "Use packages of IREE's CI for commits that have them, and build the others.")
    into: str = option("", "A checkout of IREE: when two releases are found, continue with the commits between them.")
    among: tuple[str, ...] = option((), "The candidates between them, in order, in any form of --iree (repeatable).")
    every: bool = option(False, "Try every candidate: also finds changes that come and go.")
    budget: float = option(0.0, "Minutes for the rounds of each candidate (default 30; times only).", unit="minutes")
    repetitions: int = option(0, "Repetitions of a benchmark in each process (default 5; times only).", unit="a number")
    min_time: float = option(0.0, "Minimum seconds per repetition (default 0.05; times only).", unit="seconds")
    cpus: str = option("", "CPUs that rounds run on: 2, 4-7, or all (default: the steadiest; times only).")


@dataclass(frozen=True, slots=True)
class ExplainRequest:
    """An explanation of selected failures of a run."""

    failures: tuple[str, ...] = option(
        (),
        "The run and the cases, if no words follow the task: --failures latest --failures 'dtln/*' with `inv` "
        "(default: all of the latest run).",
        takes=SEVERAL,
    )
    slower: bool = option(
        False, "Explain what a comparison found slower, instead of failures: the words name it and its models."
    )
    budget: float = option(5.0, "Minutes for the reduction of each program that does not compile.", unit="minutes")
    no_weights: bool = option(False, "Leave the model's own values out of bundles: inputs are made up.")


@dataclass(frozen=True, slots=True)
class MicroRequest:
    """A sweep of recipes over shapes."""

    config: str = option(
        "", "The YAML file: recipes, model types, shapes (torchao's dialect; docs/reference/micro.md)."
    )
    output: str = option("", "File for the results as records of the PyTorch OSS benchmark database.")
    list: bool = option(False, "List the recipes, model types and shape sets that a configuration can name.")
    plugin: tuple[str, ...] = option(
        (), "Python file with more recipes, architectures, activations or shape sets (repeatable)."
    )
    device: str = option(
        "", f"Where to run, instead of the configuration's: {TORCH_NAMES}, or IREE's own, such as hip://0."
    )
    target: str = option("", "Chip to compile for, such as gfx942 or sm_80.")
    dtype: str = option("", "Element type instead of the configuration's: float32, float16, bfloat16.")
    against: str = option(
        "torch",
        "What IREE is compared with, on a CPU: torch (eager and torch.compile), torch-eager, or none.",
        choices=("torch", "torch-eager", "none"),
    )
    disturbed: str = _disturbed()
    targets: str = option("", "JSON file of the metrics' target values, for the target_value of the records.")
    torch_python: str = option("", "Python that has torch and creates the models (default: this one).")
    resume: bool = option(False, "Continue the newest run of `micro` (or --run-dir) from where it was killed.")
    run_dir: str = option("", "With --resume: folder of the run to continue.")


def require_unchanged_options(
    kind: str, folder: object, changed_options: Mapping[str, Any], kept_options: Mapping[str, Any]
) -> None:
    """Require that options of the command line equal a resumed session's options, except `OVERRIDABLE_OPTIONS`.

    `kind` is `run` or `matrix`. `changed_options` are the command line's options that differ from their defaults.

    Raises:
        UsageError: an option has another value in the resumed session.
    """
    for name, value in changed_options.items():
        if name not in kept_options or name in OVERRIDABLE_OPTIONS:
            continue
        new_values, old_values = _list_values(value), _list_values(kept_options[name])
        if new_values != old_values:
            origin = f"with {' '.join(map(str, old_values))}" if old_values else "without it"
            message = f"{format_option(name)} {' '.join(map(str, new_values))}: {folder} was started {origin}"
            raise UsageError(message, f"Leave it out to resume that {kind}, or start a new one.")


def collect_changed_options(requests: Iterable[Any]) -> dict[str, Any]:
    """Collect the options of requests that differ from their defaults, by name."""
    pairs = ((_collect_options(request), _collect_options(type(request)())) for request in requests)
    return {name: value for values, defaults in pairs for name, value in values.items() if value != defaults[name]}


def _list_values(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [] if value in ("", None) else [value]


@dataclass(frozen=True, slots=True)
class TlsRequest:
    """The certificates for a cluster on a network."""

    tls_ca_file: str = option("", "Trusted certificates, if the address is tls:// (a PEM file).")
    tls_cert: str = option("", "Certificate of this side, if the address is tls:// (a PEM file).")
    tls_key: str = option("", "Key of that certificate (a PEM file).")


@dataclass(frozen=True, slots=True)
class ClusterRequest(TlsRequest):
    """The cluster that performs steps instead of this machine."""

    cluster: str = option(
        "", "Run the steps on the workers of this Dask scheduler: tcp://127.0.0.1:8786, or tls://HOST:8786."
    )


@dataclass(frozen=True, slots=True)
class StatusRequest(TlsRequest):
    """A cluster whose status is requested."""

    scheduler: str = option("", "The address, if no word follows the task.", takes="address")


@dataclass(frozen=True, slots=True)
class OfferRequest(ToolchainRequest):
    """The devices and cores that a worker offers."""

    device: tuple[str, ...] = option(
        (),
        "A device of this machine (repeatable): cpu, or NAME=URI[,sku=SKU] such as gpu0=hip://0,sku=mi300. Without a "
        "device the worker only compiles.",
    )
    jobs: int = option(0, "Steps to run at once (default: the cores of this machine).", short="j", unit="a number")
    name: str = option("", "Name of the worker in reports (default: the machine's name and a number).")


@dataclass(frozen=True, slots=True)
class WorkerRequest(TlsRequest):
    """A worker's connection to its scheduler."""

    scheduler: str = option("", "The address of the scheduler, if no word follows the task.", takes="address")
    probe: bool = option(False, "Show what the worker would offer, and exit.")
    port: int = option(0, "Port that the worker listens on (default: any), for tunnels.", unit="a number")
    nanny_port: int = option(0, "Port that its nanny listens on (default: any), for tunnels.", unit="a number")


@dataclass(frozen=True, slots=True)
class LocalRequest(OfferRequest):
    """A scheduler with workers on this machine."""

    count: int = option(2, "Number of workers, if no number follows the task.", unit="a number", takes="number")
    port: int = option(8786, "Port of the scheduler (0: any free port).")
    dashboard: bool = option(False, "Have the scheduler serve Dask's dashboard.")
