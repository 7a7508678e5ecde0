"""The record of a comparison: the events of the journal, and a reader that also reads the sides' runs.

The journal's steps are models, because rounds and verdicts are recorded by model.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from iree_gauntlet.formatting import format_count_change
from iree_gauntlet.journal_events import ExperimentKind, MachineInfo, Opening, StepStart
from iree_gauntlet.journal_format import JOURNAL, ExperimentRecord, JournalRecord, JournalSchema, read_journal
from iree_gauntlet.recorded import FLAT, UNLESS_DEFAULT, UNRECORDED, Recorded, RecordError
from iree_gauntlet.results import DispatchChange, WorkPart  # noqa: TC001 - read by their types
from iree_gauntlet.steps import Command, Resources  # noqa: TC001 - read by their types

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


# Names of the sides.
SIDE_NAMES = "AB"


def _require_sides(field_name: str, values_by_side: Mapping[str, object]) -> None:
    """Raise RecordError (a ValueError) unless a field has a value for each side."""
    if set(values_by_side) != set(SIDE_NAMES):
        raise RecordError(
            field_name, f"expected {' and '.join(SIDE_NAMES)}, found {', '.join(values_by_side) or 'nothing'}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SideRecord(Recorded):
    """A side: its name on the command line, the folder of its run, and, once known, its IREE."""

    asked: str
    folder: str
    toolchain: dict[str, str] = field(default_factory=dict, metadata=UNLESS_DEFAULT)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRules(Recorded):
    """The rules of a comparison's judgement (α, the margins δ and ε, …).

    Attributes:
        looks: the numbers of blocks after which a model is judged.
        allow: the slowdown below which the verdict `not slower` suffices.
        least_work: the smallest fraction that counts as a difference in a dispatch's instructions.
        outside: the fraction and the number of instructions above which a difference outside of dispatches counts.
    """

    alpha: float
    looks: tuple[int, ...]
    least: float
    band: float
    allow: float
    budget_seconds: float
    seed: int
    least_work: float
    outside: tuple[float, int]

    def __post_init__(self) -> None:
        for name, margin in (("least", self.least), ("band", self.band)):
            if margin < 0:
                raise RecordError(name, f"expected a share of at least 0, found {margin:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRules(Recorded):
    """The settings of rounds; see `RoundSettings` of `engine/rounds/taken_rounds.py`."""

    repetitions: int
    min_time: float
    cpus: tuple[int, ...] = ()
    choose: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonOpening(Opening):
    """The opening of a comparison; a resumed comparison judges all models again.

    Attributes:
        sides: the sides by name (other fields with values of both sides have the same keys).
        elsewhere: True if a cluster measures the rounds.
    """

    kind: ExperimentKind = ExperimentKind.COMPARE
    sides: dict[str, SideRecord]
    rules: ComparisonRules
    rounds: RoundRules
    elsewhere: bool = False

    def __post_init__(self) -> None:
        _require_sides("sides", self.sides)

    @property
    def metric(self) -> str:
        """The compared metric."""
        return str(self.options.get("metric") or "time")


@dataclass(frozen=True, slots=True, kw_only=True)
class SideBenchmark(Recorded):
    """A side's benchmark of a model; `explain --slower` uses it to benchmark parts of the model."""

    timeout: float
    command: Command
    resources: Resources


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonPreparation(Recorded):
    """`prepared`: both sides have run up to their benchmarks.

    Attributes:
        left_out: models that cannot be measured, and the reasons.
        no_effect: models whose modules are the same bytes on both sides, which only variants distinguish.
        benchmarks: benchmarks by model and side, if times are compared.
    """

    sides: dict[str, SideRecord]
    models: tuple[str, ...] = ()
    left_out: dict[str, str] = field(default_factory=dict)
    no_effect: tuple[str, ...] = field(default=(), metadata=UNLESS_DEFAULT)
    benchmarks: dict[str, dict[str, SideBenchmark]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _require_sides("sides", self.sides)


@dataclass(frozen=True, slots=True)
class RoundOfBlock(Recorded):
    """The evidence from a round."""

    side: str
    times_ms: tuple[float, ...]
    peak_rss_bytes: int
    disturbed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BlockEvent(Recorded):
    """`block`: the evidence from a block of rounds, with their order and the CPUs they were pinned to (none: all)."""

    kind: str
    order: Any
    counted: bool
    rounds: tuple[RoundOfBlock, ...]
    cpus: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioFigures(Recorded):
    """The ratio B/A over `looked_at` blocks, and the ratio's interval; bounds are None if there are too few blocks."""

    ratio: float
    low: float | None = None
    high: float | None = None
    confidence: float
    p_value: float
    looked_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SideTimes(Recorded):
    """The median over rounds of a side's fastest repetition, in ms, and the spread between rounds as a fraction."""

    median: float
    spread: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeFigures(RatioFigures):
    """The ratio of B to A, and the times of both sides."""

    time_ms: dict[str, SideTimes]

    def __post_init__(self) -> None:
        _require_sides("time_ms", self.time_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlVerdict(Recorded):
    """The comparison of A against A (control)."""

    verdict: str
    figures: RatioFigures = field(metadata=FLAT)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecMethodResult(Recorded):
    """The comparison of B with A in the spec's own way, and whether this result contradicts the verdict."""

    figures: RatioFigures = field(metadata=FLAT)
    contradicts: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkVerdict(Recorded):
    """The verdict of one model by counts of instructions.

    Attributes:
        verdict: a `Work` of `measuring/instructions/work.py`.
        parts: the change of each part of a call.
        cpu: the CPU that the modules were compiled for; empty for the spec's CPU.
        outside: the difference outside of dispatches; None if the counter cannot separate dispatches.
        with_fma: the counts with fused multiply-adds; None if these were not counted.
    """

    reason: str | None = field(default=None, metadata=UNLESS_DEFAULT)
    verdict: str
    instructions: dict[str, int]
    ratio: float
    counter: str
    cpu: str
    outside: int | None = None
    parts: tuple[WorkPart, ...]
    with_fma: dict[str, int] | None = field(default=None, metadata=UNLESS_DEFAULT)

    def __post_init__(self) -> None:
        for name, counts in (("instructions", self.instructions), ("with_fma", self.with_fma)):
            if counts is not None:
                _require_sides(name, counts)
                if min(counts.values()) <= 0:
                    raise RecordError(name, "expected counts above 0")

    @property
    def counts(self) -> tuple[int, int]:
        """The counts of A and B."""
        a, b = (self.instructions[side] for side in SIDE_NAMES)
        return a, b

    @property
    def change(self) -> str:
        """The change from A to B: `+0.3440 %`."""
        return format_count_change(*self.counts)

    @property
    def change_by_part(self) -> str:
        """The change, then the change of each part: `+0.3440 %: in dispatches +38 (+0.0088 %), …`."""
        return f"{self.change}: {'; '.join(part.description for part in self.parts)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeVerdictRecord(Recorded):
    """The verdict of one model by times.

    Attributes:
        verdict: a `TimeVerdict` (`measuring/statistics/comparison_verdict.py`), or `error` if a process failed.
        marked_blocks: blocks that count although they were disturbed.
        disturbance: the disturbance of most rounds; empty if no block was replaced.
        cpus: the CPUs that rounds were pinned to; empty for all CPUs.
        tried: the spread of the rounds of a block, by the CPUs that were tried.
        own_way: the result in the spec's own way; None if the verdict itself was measured in that way.
    """

    verdict: str
    reason: str
    blocks: int
    control_blocks: int
    replaced_blocks: int
    marked_blocks: int
    disturbance: str = ""
    peak_rss_bytes: dict[str, int] = field(default_factory=dict)
    cpus: tuple[int, ...]
    tried: dict[str, float] | None = field(default=None, metadata=UNLESS_DEFAULT)
    figures: TimeFigures | None = field(default=None, metadata=FLAT)
    control: ControlVerdict | None = field(default=None, metadata=UNLESS_DEFAULT)
    own_way: SpecMethodResult | None = field(default=None, metadata=UNLESS_DEFAULT)
    work: WorkVerdict | None = field(default=None, metadata=UNLESS_DEFAULT)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanFigures(Recorded):
    """The geometric mean of the ratios over models."""

    ratio: float
    low: float | None = None
    high: float | None = None
    confidence: float
    models: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonSummary(Recorded):
    """`summary`: how many models have each verdict, and the mean of the ratios."""

    verdicts: dict[str, int]
    geometric_mean: MeanFigures | None = field(default=None, metadata=UNLESS_DEFAULT)


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherDispatches(Recorded):
    """The sum of the unlisted rows; `outside` is True if the sum includes work outside of dispatches."""

    a_count: int
    b_count: int
    a_ns: int
    b_ns: int
    outside: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class UnprofiledTimes(Recorded):
    """The time of each side without the profiler."""

    a_ns: int
    b_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchDifference(Recorded):
    """The times of both sides' dispatches in one invocation; `rows` has the dispatches that explain the difference."""

    measured: UnprofiledTimes | None = None
    a_ns: int
    b_ns: int
    rows: tuple[DispatchChange, ...]
    others: OtherDispatches
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchComparison(Recorded):
    """The comparison of two sides' dispatches, or the reason why the comparison explains nothing.

    Attributes:
        commands: the command that profiled each side, as a person would type it; None for counts.
        unit: `ms` for a profile (although its figures are in ns), or `instructions`.
    """

    commands: dict[str, list[str]] | None = field(default=None, metadata=UNLESS_DEFAULT)
    seconds: float | None = field(default=None, metadata=UNLESS_DEFAULT)
    unit: str = field(default="ms", metadata=UNLESS_DEFAULT)
    reason: str = field(default="", metadata=UNLESS_DEFAULT)
    difference: DispatchDifference | None = field(default=None, metadata=FLAT)


@dataclass(frozen=True, slots=True)
class CompileChange(Recorded):
    """A figure of a compile that differs between the sides.

    Attributes:
        name: the name for people (`transient memory`), or, without one, the path in the statistics.
        a, b: each side's value; None if the side does not report the figure.
        unit: `bytes`, or empty for a count.
    """

    name: str
    a: float | None = None
    b: float | None = None
    unit: str = ""

    @property
    def ratio(self) -> float | None:
        """B divided by A; None if a side does not report the figure, or if A is 0."""
        return None if self.b is None or not self.a else self.b / self.a

    def as_dict(self) -> dict[str, Any]:
        """Return the fields and the ratio."""
        return {**Recorded.as_dict(self), "ratio": self.ratio}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeLocation(Recorded):
    """`where`: the location of a slowdown or speedup; `work` has the dispatches' instructions if times are missing."""

    dispatches: DispatchComparison
    work: DispatchComparison | None = field(default=None, metadata=UNLESS_DEFAULT)
    compile: tuple[CompileChange, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteMeasurement(Recorded):
    """`measured`: all measurements of a model from another machine, or the problem that prevented them."""

    worker: str
    problem: str = ""
    notes: tuple[str, ...] = ()
    machine: MachineInfo = field(default_factory=MachineInfo)
    blocks: tuple[dict[str, Any], ...]
    where: ChangeLocation | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SideWithRun(SideRecord):
    """A side with the record of its run, which is None if there is no run."""

    name: str
    run: JournalRecord | None = field(metadata=UNRECORDED)

    @property
    def title(self) -> str:
        """The requested IREE, and its version if this is different: `3.12.0 (3.12.0rc20260701)`."""
        version = self.toolchain.get("compiler", "")
        return self.asked if version in ("", self.asked) else f"{self.asked} ({version})"


@dataclass(frozen=True, slots=True)
class ComparisonVerdict(Recorded):
    """`result`: the verdict of a model, by its times or by its instructions."""

    times: TimeVerdictRecord | None = field(default=None, metadata=UNLESS_DEFAULT)
    work: WorkVerdict | None = field(default=None, metadata=UNLESS_DEFAULT)


COMPARISON = JournalSchema(
    (ExperimentKind.COMPARE,),
    ComparisonOpening,
    {"block": BlockEvent, "measured": RemoteMeasurement, "result": ComparisonVerdict, "where": ChangeLocation},
    {"prepared": ComparisonPreparation, "summary": ComparisonSummary},
)


class ComparisonRecord:
    """A comparison, even an incomplete one; if it was resumed, the last judgement counts.

    Attributes:
        name: the name of the comparison's folder.
        first: the opening of the first part, with the command that started the comparison.
        prepared: the preparation; it has no models if the preparation was not reached.
        begun: the number of measured blocks of each model.
        verdicts, works: the verdicts by times and by instructions, of the models that were reached.
        under_way: the machine of each model whose measurement was cut short.
        end: None if the comparison was killed or is running.
    """

    def __init__(self, record: ExperimentRecord[ComparisonOpening]) -> None:
        self.name, self.opening, self.first = record.path.parent.name, record.opening, record.openings[0]
        self.measured = record.collect(RemoteMeasurement)
        self.block_counts = Counter(event.step for event in record.events if isinstance(event.content, BlockEvent))
        self.block_counts.update({model: len(measurement.blocks) for model, measurement in self.measured.items()})
        starts = record.collect(StepStart, record.latest)
        finished_models = record.collect(RemoteMeasurement, record.latest)
        self.interrupted_workers = {
            model: start.worker for model, start in starts.items() if model not in finished_models
        }
        results = record.collect(ComparisonVerdict, record.latest)
        self.verdicts = {model: result.times for model, result in results.items() if result.times}
        self.work_verdicts = {model: result.work for model, result in results.items() if result.work}
        self.summary = record.collect(ComparisonSummary, record.latest).get("")
        self.where = record.collect(ChangeLocation, record.latest)
        with record.explain_unreadable():
            for model in self.where.keys() - results.keys():
                raise RecordError("where", f"{model} has no verdict")
        empty_preparation = ComparisonPreparation(sides=self.opening.sides)
        self.prepared = record.collect(ComparisonPreparation, record.latest).get("", empty_preparation)
        self.sides: list[SideWithRun] = []
        for name, side in self.prepared.sides.items():
            journal = record.path.parent / side.folder / JOURNAL
            run = read_journal(journal) if journal.is_file() else None
            self.sides.append(SideWithRun(**asdict(side), name=name, run=run))
        self.remarks, self.end = record.remarks, record.end

    def get_worker(self, model: str) -> str:
        """Return the cluster worker that measured a model; empty for the machine that ran the comparison."""
        return self.measured[model].worker if model in self.measured else ""


def read_comparison(folder: Path) -> ComparisonRecord:
    """Read a comparison's folder and the runs of its sides; GauntletError if they cannot be read."""
    return ComparisonRecord(COMPARISON.read(folder))
