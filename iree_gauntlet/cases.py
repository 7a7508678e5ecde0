"""Cases are the checks of a model, independent of the spec dialect. They are immutable, hashable and picklable.

URLs are absolute, because a dialect resolves relative paths before it builds a case.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from datetime import date
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from iree_gauntlet.errors import ExitCode
from iree_gauntlet.figures import Figure, Statistic  # noqa: TC001 - read by their types
from iree_gauntlet.recorded import UNLESS_DEFAULT, UNRECORDED, Recorded, RecordError
from iree_gauntlet.stages import FailureKind, Kind, Stage
from iree_gauntlet.targets import Target  # noqa: TC001 - read by its type
from iree_gauntlet.variants import has_tuning_flags

if TYPE_CHECKING:
    from collections.abc import Iterable

    from iree_gauntlet.figures import GoldenField


# The role of a case's own module, and of the steps that every chain has.
MAIN = "main"
# The role of the compile of a main module whose instructions are counted.
COUNTED = "count"
# The role of a file that only the comparison of a threshold step reads.
EXPECTED_OUTPUT = "expected_output"
_URL = re.compile(r"https?://[^\s/]+/\S+")


class ArgumentOrder(StrEnum):
    """The order of arguments on a tool's command line, which matters because the last of a repeated flag counts."""

    DEVICE_FIRST = "device-first"
    MODULES_FIRST = "modules-first"


class Verdict(StrEnum):
    """The result of a step; the table `_MEANINGS` has its consequences."""

    PASSED = "passed"
    FAILED = "failed"
    ERROR = "error"
    SKIPPED = "skipped"
    XFAILED = "xfailed"
    XPASSED = "xpassed"
    INCONCLUSIVE = "inconclusive"
    FLAKY = "flaky"
    QUARANTINED = "quarantined"

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of a run that has no worse verdict."""
        return _MEANINGS[self].exit_code

    @property
    def past_tense(self) -> str:
        """The end of a sentence about a step: `failed as expected`."""
        return _MEANINGS[self].past

    @property
    def noun(self) -> str:
        """The name of one step with this verdict: `unexpected pass`."""
        return _MEANINGS[self].noun or str(self)

    def format_count(self, number: int) -> str:
        """Format a number of steps: `2 failed`, `1 unexpected pass`."""
        return f"{number} {self.noun if number == 1 else _MEANINGS[self].plural or self}"

    @property
    def is_bad(self) -> bool:
        """True if the verdict is unexpected or undecided, so that somebody has to look at the step."""
        return self.exit_code is not ExitCode.OK

    @property
    def is_error(self) -> bool:
        """True if a cause outside of the tested program prevented a judgement."""
        return self.exit_code is ExitCode.ERROR

    @property
    def is_doubtful(self) -> bool:
        """True if the step ended and the result is undecided."""
        return self.exit_code is ExitCode.INCONCLUSIVE

    @property
    def ends_early(self) -> bool:
        """True if `--fail-fast` ends the run after such a step."""
        return self.is_bad and self not in (Verdict.FLAKY, Verdict.INCONCLUSIVE)

    @property
    def counts_as_pass(self) -> bool:
        """True if the step did its work, expected or not, so that dependent steps can run."""
        return self in (Verdict.PASSED, Verdict.XPASSED, Verdict.FLAKY)

    @property
    def counts_as_failure(self) -> bool:
        """True if the tested program failed, expected, excused, or neither."""
        return self in (Verdict.FAILED, Verdict.XFAILED, Verdict.QUARANTINED)

    @property
    def is_conclusive(self) -> bool:
        """True if the tested program is known to work, or known not to."""
        return self.counts_as_pass or self.counts_as_failure

    @property
    def blocks(self) -> bool:
        """True if the step is the root cause of skipped dependent steps; a skipped step is not, as it has a cause."""
        return not self.counts_as_pass and self is not Verdict.SKIPPED

    @property
    def is_kept_on_resume(self) -> bool:
        """True if a resumed run keeps the verdict; it repeats errors and skips, whose causes may be gone."""
        return not self.is_error and self is not Verdict.SKIPPED

    @staticmethod
    def worst(verdicts: Iterable[Verdict]) -> Verdict:
        """Return the verdict with the worst exit code, failures first; `SKIPPED` if there are none."""
        return min(verdicts, key=_RANKS.__getitem__, default=Verdict.SKIPPED)


@dataclass(frozen=True, slots=True)
class _Meaning:
    """The consequences of a verdict; an empty noun stands for the verdict's own name."""

    exit_code: ExitCode
    past: str
    noun: str = ""
    plural: str = ""


# A line that counts verdicts has this order, with bad verdicts first.
_MEANINGS = {
    Verdict.FAILED: _Meaning(ExitCode.FAILED, "failed"),
    Verdict.ERROR: _Meaning(ExitCode.ERROR, "ended in an error", "error", "errors"),
    Verdict.XPASSED: _Meaning(ExitCode.FAILED, "passed unexpectedly", "unexpected pass", "unexpected passes"),
    Verdict.FLAKY: _Meaning(ExitCode.FAILED, "was flaky"),
    Verdict.INCONCLUSIVE: _Meaning(ExitCode.INCONCLUSIVE, "was inconclusive"),
    Verdict.QUARANTINED: _Meaning(ExitCode.OK, "failed in quarantine"),
    Verdict.PASSED: _Meaning(ExitCode.OK, "passed"),
    Verdict.XFAILED: _Meaning(ExitCode.OK, "failed as expected", "expected failure", "expected failures"),
    Verdict.SKIPPED: _Meaning(ExitCode.OK, "was skipped"),
}
VERDICTS = tuple(_MEANINGS)
_WORST_FIRST = sorted(VERDICTS, key=lambda verdict: (verdict.exit_code.rank, not verdict.counts_as_failure))
_RANKS = {verdict: rank for rank, verdict in enumerate(_WORST_FIRST)}


def exit_code_of(verdicts: Iterable[Verdict], *, flaky_passes: bool = False) -> ExitCode:
    """Return the exit code of a run whose steps have these verdicts; flaky steps fail it unless `flaky_passes`."""
    return ExitCode.worst(
        [verdict.exit_code for verdict in verdicts if not (flaky_passes and verdict is Verdict.FLAKY)]
    )


# `Origin` has a field of the name `field`, which hides the function there.
_EMPTY_BY_DEFAULT = field(default="", metadata=UNLESS_DEFAULT)


@dataclass(frozen=True, slots=True, order=True)
class Origin(Recorded):
    """The location of a declaration: the file as the user names it, and the dotted path of the field.

    Attributes:
        variant: names of the variants that change the declared flags; empty without any.
    """

    file: str
    field: str = ""
    variant: str = _EMPTY_BY_DEFAULT

    def __str__(self) -> str:
        variant = f", with variant {self.variant}" if self.variant else ""
        return (f"{self.file}: {self.field}" if self.field else self.file) + variant


@dataclass(frozen=True, slots=True)
class OnnxImport(Recorded):
    """The preparation and import of an ONNX program.

    Attributes:
        opset: version to convert to; None keeps the file's version.
        shapes: static shapes of inputs, by name.
        least_opset: version to convert to if the file's version is lower.
    """

    opset: int | None = None
    shapes: tuple[tuple[str, tuple[int, ...]], ...] = ()
    least_opset: int | None = None


@dataclass(frozen=True, slots=True)
class Program:
    """The source of a module: an MLIR file (text or bytecode), or a file to import, of ONNX or TFLite.

    Attributes:
        onnx: the import of an ONNX file; None for others.
        local_file: path of a local file, relative to the case's working directory, that the compiler gets; empty if the
            compiler gets the path of the fetched file.
    """

    url: str
    onnx: OnnxImport | None = None
    local_file: str = ""

    @property
    def is_tflite(self) -> bool:
        """True if it is a file of TFLite."""
        return self.url.split("?")[0].endswith(".tflite")

    @property
    def kind(self) -> str:
        """Its kind, for people."""
        return "ONNX" if self.onnx is not None else "TFLite" if self.is_tflite else "MLIR"

    @property
    def is_imported(self) -> bool:
        """True if a step imports it first."""
        return self.onnx is not None or self.is_tflite


@dataclass(frozen=True, slots=True)
class Module:
    """The source and flags of one .vmfb file.

    Attributes:
        name: `<model>_<submodel>`, the name by which other specs refer to it.
        role: `main`, or `pipeline` for the second module of a submodel.
        flags: compile flags without input and output paths.
        splat: True if a splat archive, generated at compile time, replaces the parameters.
        file_flags: (flag, URL) pairs; the value of each flag is the fetched file of its URL.
        flags_origin: location of the flags, if it differs from `origin`.
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
        """The identifier in a plan: modules with the same id are the same module."""
        return f"{self.name}.{self.role}@{self.target.name}"

    @property
    def is_tuned(self) -> bool:
        """True if a tuning spec is for it; in an operator suite, most of the cases that share one do not match."""
        return not self.program.local_file and has_tuning_flags((*self.flags, *(flag for flag, _ in self.file_flags)))


@dataclass(frozen=True, slots=True)
class SyntheticParameters:
    """Generated values of the parameters in one scope of a module's program: seeded, or one value everywhere."""

    module: Module
    seed: int | None = None
    value: float | None = None

    @property
    def label(self) -> str:
        """The label `random-42` or `splat-0.5`, unique for a module and scope."""
        return f"splat-{self.value!r}" if self.seed is None else f"random-{self.seed}"


@dataclass(frozen=True, slots=True)
class Parameters:
    """A parameter archive, fetched or generated, and its scope.

    Attributes:
        scope: empty for the anonymous scope.
        splat_of: id of the module whose splat compile generates it.
        generated: generated values; None for an archive that is fetched.
    """

    scope: str
    url: str = ""
    splat_of: str = ""
    generated: SyntheticParameters | None = None


@dataclass(frozen=True, slots=True)
class Argument:
    """An input or expected output: `value`, `@file`, or `value=@file`; or a value of an earlier call.

    Attributes:
        value_of: an earlier call and its output or input, such as `0.1` or `0.input1`; empty for other arguments.
    """

    value: str = ""
    url: str = ""
    value_of: str = ""


@dataclass(frozen=True, slots=True)
class Call:
    """A call of an exported function of a case's last module.

    Attributes:
        function: empty for the module's only function.
        field: the prefix of the call's fields in its spec: `calls[0].`; empty if they are the spec's own.
        changes: the outputs of earlier calls that it may change in place, such as `0.1`.
        is_timed: True if the time of a benchmark contains its time; if no call is timed, the last one is.
    """

    function: str = ""
    inputs: tuple[Argument, ...] = ()
    expected_outputs: tuple[Argument, ...] = ()
    field: str = ""
    changes: tuple[str, ...] = ()
    is_timed: bool = False


@dataclass(frozen=True, slots=True)
class Golden(Recorded):
    """The expected value of a figure; it passes if measured ≤ value × factor, or if equal for a strict golden.

    Attributes:
        value: the expected value in the metric's unit.
        statistic: the statistic of a time; other figures have none.
        release: the compiler release that the golden belongs to; empty for every release.
        origin: the golden's location in a spec; an origin without a field names the run that measured the value.
        variant: the names of the variants that the golden is for; empty for the spec's own flags.
    """

    metric: Figure
    value: float
    factor: float
    statistic: Statistic
    sku: str
    release: str
    origin: Origin
    variant: str = field(default="", metadata=UNLESS_DEFAULT)

    @property
    def limit(self) -> float:
        """The largest value that passes; an integer for bytes and instructions."""
        limit = self.value * self.factor
        return float(math.floor(limit)) if self.field.is_integer else limit

    @property
    def field(self) -> GoldenField:
        """The properties that all goldens of the same figure share."""
        return self.metric.golden

    def is_kept(self, measured: float) -> bool:
        """Return whether a value passes."""
        return measured == self.value if self.field.is_strict else measured <= self.limit

    def __post_init__(self) -> None:
        if self.metric.row.golden is None:
            raise RecordError("metric", f"{self.metric} has no golden")


@dataclass(frozen=True, slots=True)
class Allclose(Recorded):
    """Tolerances of NumPy's `allclose`: |actual - expected| ≤ atol + rtol * |expected|."""

    rtol: float
    atol: float
    equal_nan: bool


@dataclass(frozen=True, slots=True)
class Expectation:
    """An expected failure of a stage, and its reason.

    Attributes:
        match: text that the failure's reason or the tool's output must contain; empty for any failure.
        cases: a suite's glob over `model/submodel`.
        targets: the targets on which it fails; none for all.
    """

    stage: Stage
    reason: str
    origin: Origin
    kinds: tuple[FailureKind, ...] = tuple(FailureKind)
    match: str = ""
    cases: str = ""
    targets: tuple[Target, ...] = ()

    def applies_to(self, case: Case) -> bool:
        """Return whether a suite's expected failure names a case, by its name and its target."""
        return _names_case(self, case)

    @property
    def possible_kinds(self) -> tuple[FailureKind, ...]:
        """The expected kinds of failure that are possible in the stage."""
        return tuple(kind for kind in self.stage.row.failures if kind in self.kinds)


@dataclass(frozen=True, slots=True)
class Quarantine(Recorded):
    """A suite's entry whose failures are reported and do not fail a run.

    Attributes:
        until: the first day on which failures count again, ISO 8601; or the URL of an issue, with which the entry stays
            until somebody removes it.
        cases, targets: as in `Expectation`.
        stage: the stage whose failures are excused; None for all.
    """

    reason: str
    until: str
    origin: Origin
    cases: str = field(default="", metadata=UNRECORDED)
    stage: Stage | None = field(default=None, metadata=UNRECORDED)
    targets: tuple[Target, ...] = field(default=(), metadata=UNRECORDED)

    def applies_to(self, case: Case) -> bool:
        """Return whether the entry names a case, by its name and its target."""
        return _names_case(self, case)

    @property
    def end_day(self) -> date | None:
        """The first day on which failures count again; None if only a person ends the quarantine."""
        return None if ":" in self.until else date.fromisoformat(self.until)

    def applies_on(self, day: date) -> bool:
        """Return whether failures are excused on a day."""
        return self.end_day is None or day < self.end_day


def read_quarantine_end(value: object) -> str:
    """Return the end of a quarantine as text, from a day (of TOML, or as text) or a URL; ValueError for others."""
    text = str(value)
    if _URL.fullmatch(text):
        return text
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError as error:
        raise ValueError("expected a day such as 2026-12-31, or the URL of an issue") from error


def _names_case(entry: Expectation | Quarantine, case: Case) -> bool:
    is_there = not entry.targets or any(target.covers(case.target) for target in entry.targets)
    return is_there and fnmatchcase(f"{case.model}/{case.submodel}", entry.cases)


@dataclass(frozen=True, slots=True)
class Case:
    """One check of a submodel on one target.

    Attributes:
        stem: file name of the spec without its suffix, which `--filename` selects.
        modules, pipeline_modules: in load order, the latter after all flags; the last of all has the called function.
        parameters: archives in the order of their flags.
        calls: the calls, in order, on one instance of the modules; most cases make one.
        run_flags: threshold or benchmark flags of the spec.
        own_flags: flags after `run_flags` that belong to this case, where many cases share `run_flags`; a flag that the
            tool rejects is an error of this case only.
        order: order of the tools' arguments; with `MODULES_FIRST`, `run_flags` include device and function.
        compile_statistics: True if a benchmark also compares its main module's statistics with goldens.
        golden_keys: SKUs of the spec's golden times, for the message that no SKU matches.
        idle_goldens: counts and sizes of the spec under keys that match no case.
        variant_goldens: goldens of the spec for variants, by the variant's name.
        timeouts: seconds by stage that the spec sets.
        skip_reason: reason to skip all steps of the case.
        blocked_reason: the missing requirement.
        blocked_field: field of the spec that names a file which exists nowhere; empty if another machine may have it.
        blocked_stage: the only stage that cannot run; None for all stages.
        working_directory: folder of relative paths in flags; empty for the step's own folder.
        flags_origin: location of the run flags, if it differs from `origin`.
        skips: (stage, reason) of stages that do not run.
        allclose: tolerances for outputs that NumPy's rule compares; None for the rule of iree-run-module.
        notes: notes on the spec, shown with the results.
        reference: True if onnxruntime computes the expected outputs from the main module's ONNX program.
    """

    dialect: str
    model: str
    submodel: str
    stem: str
    kind: Kind
    target: Target
    modules: tuple[Module, ...]
    origin: Origin
    pipeline_modules: tuple[Module, ...] = ()
    parameters: tuple[Parameters, ...] = ()
    calls: tuple[Call, ...] = (Call(),)
    device: str = ""
    run_flags: tuple[str, ...] = ()
    own_flags: tuple[str, ...] = ()
    outputs: tuple[Argument, ...] = ()
    order: ArgumentOrder = ArgumentOrder.DEVICE_FIRST
    compile_statistics: bool = False
    goldens: tuple[Golden, ...] = ()
    golden_keys: tuple[str, ...] = ()
    idle_goldens: tuple[Golden, ...] = ()
    variant_goldens: tuple[tuple[str, tuple[Golden, ...]], ...] = ()
    expectations: tuple[Expectation, ...] = ()
    quarantines: tuple[Quarantine, ...] = ()
    markers: frozenset[str] = frozenset()
    timeouts: tuple[tuple[Stage, float], ...] = ()
    skip_reason: str = ""
    blocked_reason: str = ""
    blocked_field: str = ""
    blocked_stage: Stage | None = None
    working_directory: str = ""
    flags_origin: Origin | None = None
    skips: tuple[tuple[Stage, str], ...] = ()
    allclose: Allclose | None = None
    notes: tuple[str, ...] = ()
    reference: bool = False

    @property
    def inputs(self) -> tuple[Argument, ...]:
        """The inputs of all calls, in order."""
        return tuple(argument for call in self.calls for argument in call.inputs)

    @property
    def expected_outputs(self) -> tuple[Argument, ...]:
        """The expected outputs of all calls, in order."""
        return tuple(argument for call in self.calls for argument in call.expected_outputs)

    def find_blocking_reason(self, stage: Stage) -> str:
        """Return the reason that blocks a stage; empty if it can run."""
        return self.blocked_reason if self.blocked_stage in (None, stage) else ""

    def explain_no_call(self, stage: Stage) -> str:
        """Return why a stage that accompanies the benchmark makes no call; empty if it makes one."""
        if stage is Stage.COUNT and not self.target.kind.is_cpu:
            return f"instructions are counted on CPUs, but {self.target.name} is not one"
        if stage.row.accompanies is Stage.BENCHMARK and len(self.calls) > 1:
            return f"only a benchmark of one call is measured in this way, and this one makes {len(self.calls)} calls"
        crashes = {FailureKind.CRASHES, FailureKind.DOES_NOT_RUN}
        expectations = (entry for entry in self.expectations if entry.stage is stage.row.accompanies)
        expectation = next((entry for entry in expectations if crashes.intersection(entry.kinds)), None)
        return f"its {expectation.stage} is expected to fail: {expectation.reason}" if expectation else ""

    def list_goldens(self, stage: Stage) -> tuple[Golden, ...]:
        """Return the goldens that a stage compares its figures with."""
        return tuple(golden for golden in self.goldens if golden.field.stage is stage)

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of all checks of the case; a tuning spec is checked with the main module's statistics."""
        has_statistics = self.compile_statistics or any(module.is_tuned for module in self.modules[-1:])
        return (self.kind, Kind.COMPSTAT) if has_statistics and self.kind is not Kind.COMPSTAT else (self.kind,)

    @property
    def checks_statistics(self) -> bool:
        """True if it compares its main module's statistics with goldens."""
        return self.compile_statistics or self.kind is Kind.COMPSTAT

    @property
    def makes_modules(self) -> bool:
        """True if it defines a module, which others may use."""
        return any(module.origin.file == self.origin.file for module in (*self.modules, *self.pipeline_modules))

    @property
    def makes_no_steps(self) -> bool:
        """True if it is skipped, and makes no module for others or has a reference."""
        return bool(self.skip_reason) and (self.reference or not self.makes_modules)

    @property
    def chain(self) -> str:
        """The id of the chain that the case belongs to."""
        return f"{self.model}/{self.submodel}@{self.target.name}"

    @property
    def id(self) -> str:
        """The identifier in a selection."""
        return f"{self.chain}:{self.kind}"
