"""What is checked, free of any spec dialect: immutable, hashable, and fit to be sent to another process.

URLs are absolute: dialects resolve relative paths before they build a case.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from iree_gauntlet.errors import ExitCode
from iree_gauntlet.figures import Figure, Statistic  # noqa: TC001 - read by their types
from iree_gauntlet.recorded import Recorded, RecordError
from iree_gauntlet.stages import FailureKind, Kind, Stage

if TYPE_CHECKING:
    from collections.abc import Iterable

    from iree_gauntlet.figures import GoldenField
    from iree_gauntlet.targets import Target


# Role of the module that a case is about, and of the steps of a stage that a chain always has.
MAIN = "main"
# Role of the compile of a main module whose instructions are counted.
COUNTED = "count"
# Role of a file that nothing reads but the comparison of a threshold step.
EXPECTED_OUTPUT = "expected_output"


class ArgumentOrder(StrEnum):
    """In which order the tools get a case's arguments: of a repeated flag, the last one counts."""

    DEVICE_FIRST = "device-first"
    MODULES_FIRST = "modules-first"


class Verdict(StrEnum):
    """The result of a step; what follows from it is a row of the table below."""

    PASSED = "passed"
    FAILED = "failed"
    ERROR = "error"
    SKIPPED = "skipped"
    XFAILED = "xfailed"
    XPASSED = "xpassed"
    INCONCLUSIVE = "inconclusive"

    @property
    def exit_code(self) -> ExitCode:
        """Of a run in which nothing came out worse."""
        return _MEANINGS[self].exit_code

    @property
    def past(self) -> str:
        """What became of a step, as the end of a sentence: `failed as expected`."""
        return _MEANINGS[self].past

    @property
    def noun(self) -> str:
        """One step with it: `unexpected pass`."""
        return _MEANINGS[self].noun or str(self)

    def format_count(self, number: int) -> str:
        """So many of them: `2 failed`, `1 unexpected pass`."""
        return f"{number} {self.noun if number == 1 else _MEANINGS[self].plural or self}"

    @property
    def is_bad(self) -> bool:
        """Whether somebody has to look at it: it is not as expected, or nobody knows."""
        return self.exit_code is not ExitCode.OK

    @property
    def is_error(self) -> bool:
        """Whether something else than what is tested kept it from being judged."""
        return self.exit_code is ExitCode.ERROR

    @property
    def is_doubtful(self) -> bool:
        """Whether it came to its end, and nobody knows all the same."""
        return self.exit_code is ExitCode.INCONCLUSIVE

    @property
    def counts_as_pass(self) -> bool:
        """Whether it did what it should, expected or not: what needs it can go on."""
        return self in (Verdict.PASSED, Verdict.XPASSED)

    @property
    def counts_as_failure(self) -> bool:
        """Whether what is tested failed, expected or not."""
        return self in (Verdict.FAILED, Verdict.XFAILED)

    @property
    def is_conclusive(self) -> bool:
        """Whether it says of what is tested that it works, or that it does not."""
        return self.counts_as_pass or self.counts_as_failure

    @property
    def blocks(self) -> bool:
        """Whether it is the cause that what needs it did not run: one that was skipped has a cause itself."""
        return not self.counts_as_pass and self is not Verdict.SKIPPED

    @property
    def stands(self) -> bool:
        """Whether a resumed run keeps it: what caused an error or a skip may be gone."""
        return not self.is_error and self is not Verdict.SKIPPED

    @staticmethod
    def worst(verdicts: Iterable[Verdict]) -> Verdict:
        """The one with the worst exit code; of several with the same, one that is a failure; skipped of none."""
        return min(verdicts, key=_RANKS.__getitem__, default=Verdict.SKIPPED)


@dataclass(frozen=True, slots=True)
class _Meaning:
    """What a verdict says; where no noun is given it is its own."""

    exit_code: ExitCode
    past: str
    noun: str = ""
    plural: str = ""


# What went wrong comes first, as in a line that counts them.
_MEANINGS = {
    Verdict.FAILED: _Meaning(ExitCode.FAILED, "failed"),
    Verdict.ERROR: _Meaning(ExitCode.ERROR, "ended in an error", "error", "errors"),
    Verdict.XPASSED: _Meaning(ExitCode.FAILED, "passed unexpectedly", "unexpected pass", "unexpected passes"),
    Verdict.INCONCLUSIVE: _Meaning(ExitCode.INCONCLUSIVE, "was inconclusive"),
    Verdict.PASSED: _Meaning(ExitCode.OK, "passed"),
    Verdict.XFAILED: _Meaning(ExitCode.OK, "failed as expected", "expected failure", "expected failures"),
    Verdict.SKIPPED: _Meaning(ExitCode.OK, "was skipped"),
}
VERDICTS = tuple(_MEANINGS)
_WORST_FIRST = sorted(VERDICTS, key=lambda verdict: (verdict.exit_code.rank, not verdict.counts_as_failure))
_RANKS = {verdict: rank for rank, verdict in enumerate(_WORST_FIRST)}


def exit_code_of(verdicts: Iterable[Verdict]) -> ExitCode:
    """The exit code of a run whose steps have these verdicts."""
    return ExitCode.worst([verdict.exit_code for verdict in verdicts])


@dataclass(frozen=True, slots=True, order=True)
class Origin(Recorded):
    """Where something was written: file as the user names it, and dotted field path."""

    file: str
    field: str = ""

    def __str__(self) -> str:
        return f"{self.file}: {self.field}" if self.field else self.file


@dataclass(frozen=True, slots=True)
class OnnxImport(Recorded):
    """How an ONNX program is prepared and imported.

    Attributes:
        opset: version to convert to; None keeps the file's.
        shapes: static shapes of inputs, by name.
        least_opset: version to convert to where the file's is lower.
    """

    opset: int | None = None
    shapes: tuple[tuple[str, tuple[int, ...]], ...] = ()
    least_opset: int | None = None


@dataclass(frozen=True, slots=True)
class Program:
    """The source of a module: an MLIR file (text or bytecode), or an ONNX file to import.

    Attributes:
        onnx: how it is imported; None where it is MLIR.
        name: of a local file that is compiled where it lies, its path from the case's working directory, which is
            what the compiler gets; empty where it gets the path of what was fetched.
    """

    url: str
    onnx: OnnxImport | None = None
    name: str = ""


@dataclass(frozen=True, slots=True)
class Module:
    """What becomes one .vmfb.

    Attributes:
        name: `<model>_<submodel>`, the name by which other specs refer to it.
        role: `main`, or `pipeline` for the second module of a submodel.
        flags: compile flags as the dialect means them, without input and output paths.
        splat: whether parameters are replaced by a splat archive made at compile time.
        file_flags: (flag, URL) of further flags, each with the fetched file of its URL as value.
        flags_origin: where its flags are written, if that is elsewhere.
    """

    name: str
    role: str
    target: Target
    program: Program
    flags: tuple[str, ...]
    origin: Origin
    splat: bool = False
    file_flags: tuple[tuple[str, str], ...] = ()
    flags_origin: Origin | None = None

    @property
    def id(self) -> str:
        """Unique in a plan: two modules of one id are one module."""
        return f"{self.name}.{self.role}@{self.target.name}"


@dataclass(frozen=True, slots=True)
class MadeValues:
    """Values for the parameters of one scope that a module's program names: seeded, or one value everywhere."""

    module: Module
    seed: int | None = None
    value: float | None = None

    @property
    def label(self) -> str:
        """`random-42` or `splat-0.5`: unique for a module and scope."""
        return f"splat-{self.value!r}" if self.seed is None else f"random-{self.seed}"


@dataclass(frozen=True, slots=True)
class Parameters:
    """An archive of parameters under a scope, empty for the anonymous one: fetched, or made.

    Attributes:
        splat_of: id of the module whose splat compile makes it.
    """

    scope: str
    url: str = ""
    splat_of: str = ""
    made: MadeValues | None = None


@dataclass(frozen=True, slots=True)
class Argument:
    """An input or expected output: `value`, `@file`, or `value=@file`."""

    value: str = ""
    url: str = ""


@dataclass(frozen=True, slots=True)
class Golden(Recorded):
    """An expected figure: measured ≤ value × factor.

    Attributes:
        value: in the metric's unit.
        statistic: of time only.
        release: the compiler release that the figure belongs to; empty for every release.
        origin: without a field, the run that has measured it.
    """

    metric: Figure
    value: float
    factor: float
    statistic: Statistic
    sku: str
    release: str
    origin: Origin

    @property
    def limit(self) -> float:
        """The largest figure that passes; whole for bytes and instructions."""
        limit = self.value * self.factor
        return float(math.floor(limit)) if self.field.whole else limit

    @property
    def field(self) -> GoldenField:
        """The terms that all goldens of its figure share."""
        return self.metric.golden

    def __post_init__(self) -> None:
        if self.metric.row.golden is None:
            raise RecordError("metric", f"no golden is of {self.metric}")


@dataclass(frozen=True, slots=True)
class Allclose(Recorded):
    """NumPy's `allclose`, for outputs that are compared by it: |actual - expected| ≤ atol + rtol * |expected|."""

    rtol: float
    atol: float
    equal_nan: bool


@dataclass(frozen=True, slots=True)
class Expectation:
    """A stage that is expected to fail, and why.

    Attributes:
        match: what its reason, or the tool's output, must have in it; empty for anything.
    """

    stage: Stage
    reason: str
    origin: Origin
    kinds: tuple[FailureKind, ...] = tuple(FailureKind)
    match: str = ""

    @property
    def possible_kinds(self) -> tuple[FailureKind, ...]:
        """Those that can come of its stage."""
        return tuple(kind for kind in self.stage.row.failures if kind in self.kinds)


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to check on one target.

    Attributes:
        stem: file name of the spec without its suffix (what `--filename` selects).
        modules: in load order; the last one holds the function that is called, unless `extra_modules`.
        parameters: archives in the order of their flags.
        function: exported function to call; empty for the module's only one.
        run_flags: further flags as written (threshold or benchmark flags).
        own_flags: those behind them that stand with the case itself, where many cases share `run_flags`: one that a
            tool does not know is an error of this case alone.
        order: of the tools' arguments; with `MODULES_FIRST`, device and function are among `run_flags`.
        compile_statistics: whether a benchmark holds its main module's statistics against goldens too.
        golden_keys: SKUs that the spec has golden times for, for a message where none fits.
        idle_goldens: counts and sizes that the spec has under keys of something else, and under none of this case's.
        timeouts: seconds by stage, where the spec sets them.
        skip_reason: why no step of it runs.
        blocked_reason: what is missing that it needs.
        blocked_field: of its spec, which names what is nowhere; empty for what may be in a folder of another machine.
        blocked_at: the stage that it keeps from running; None for each.
        working_directory: where relative paths in flags resolve; empty for the step's own folder.
        flags_origin: where its run flags are written, if that is elsewhere.
        skips: reasons of stages that do not run.
        allclose: how outputs are compared, where it is not by iree-run-module's own rule.
        notes: what is said of its spec with its results.
        reference: whether its inputs are generated and run by onnxruntime, with the main module's ONNX program.
    """

    dialect: str
    model: str
    submodel: str
    stem: str
    kind: Kind
    target: Target
    modules: tuple[Module, ...]
    origin: Origin
    extra_modules: tuple[Module, ...] = ()
    parameters: tuple[Parameters, ...] = ()
    inputs: tuple[Argument, ...] = ()
    expected_outputs: tuple[Argument, ...] = ()
    function: str = ""
    device: str = ""
    run_flags: tuple[str, ...] = ()
    own_flags: tuple[str, ...] = ()
    outputs: tuple[Argument, ...] = ()
    order: ArgumentOrder = ArgumentOrder.DEVICE_FIRST
    compile_statistics: bool = False
    goldens: tuple[Golden, ...] = ()
    golden_keys: tuple[str, ...] = ()
    idle_goldens: tuple[Golden, ...] = ()
    expectations: tuple[Expectation, ...] = ()
    markers: frozenset[str] = frozenset()
    timeouts: tuple[tuple[Stage, float], ...] = ()
    skip_reason: str = ""
    blocked_reason: str = ""
    blocked_field: str = ""
    blocked_at: Stage | None = None
    working_directory: str = ""
    flags_origin: Origin | None = None
    skips: tuple[tuple[Stage, str], ...] = ()
    allclose: Allclose | None = None
    notes: tuple[str, ...] = ()
    reference: bool = False

    def blocked(self, stage: Stage) -> str:
        """What keeps a stage from running; empty where nothing does."""
        return self.blocked_reason if self.blocked_at in (None, stage) else ""

    def list_goldens(self, stage: Stage) -> tuple[Golden, ...]:
        """Its goldens that a stage holds figures against."""
        return tuple(golden for golden in self.goldens if golden.field.stage is stage)

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """All that it checks."""
        return (self.kind, Kind.COMPSTAT) if self.compile_statistics else (self.kind,)

    @property
    def chain(self) -> str:
        """Id of the chain that it belongs to."""
        return f"{self.model}/{self.submodel}@{self.target.name}"

    @property
    def id(self) -> str:
        """Unique in a selection."""
        return f"{self.chain}:{self.kind}"
