"""The record of a comparison: the events of its journal, and how it is read with its sides' runs.

Its steps are models; what their rounds, and what they come to, is recorded by model.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from iree_gauntlet.formatting import work_change
from iree_gauntlet.journal_events import ExperimentKind, MachineFacts, Opening, StepStart
from iree_gauntlet.journal_format import JOURNAL, ExperimentRecord, JournalRecord, JournalSchema, read_journal
from iree_gauntlet.recorded import FLAT, UNLESS_DEFAULT, UNRECORDED, Recorded, RecordError
from iree_gauntlet.results import DispatchChange, WorkPart  # noqa: TC001 - read by their types
from iree_gauntlet.steps import Command, Resources  # noqa: TC001 - read by their types

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


# Names of the sides.
SIDES = "AB"


def _require_sides(field_name: str, of_sides: Mapping[str, object]) -> None:
    """Refuses (ValueError) a field that does not have what both sides have."""
    if set(of_sides) != set(SIDES):
        raise RecordError(field_name, f"expected {' and '.join(SIDES)}, found {', '.join(of_sides) or 'nothing'}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedSide(Recorded):
    """A side: as the command line named it, the folder of its run, and its IREE once that is known."""

    asked: str
    folder: str
    toolchain: dict[str, str] = field(default_factory=dict, metadata=UNLESS_DEFAULT)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRules(Recorded):
    """By which a comparison is judged (α, the margins δ and ε, …).

    Attributes:
        looks: at how many blocks it is judged.
        allow: the slowdown below which `not slower` will do.
        least_work: the share from which on a difference in instructions of a dispatch counts.
        outside: the share, and the number of instructions, beyond which one outside of dispatches does.
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
class RecordedRounds(Recorded):
    """How rounds are taken; see `RoundSettings` of `engine/rounds/taken_rounds.py`."""

    repetitions: int
    min_time: float
    cpus: tuple[int, ...] = ()
    choose: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonOpening(Opening):
    """How a comparison begins; one that is resumed judges again.

    Attributes:
        sides: by name, as all else that both have.
        elsewhere: a cluster takes the rounds.
    """

    kind: ExperimentKind = ExperimentKind.COMPARE
    sides: dict[str, RecordedSide]
    rules: RecordedRules
    rounds: RecordedRounds
    elsewhere: bool = False

    def __post_init__(self) -> None:
        _require_sides("sides", self.sides)

    @property
    def metric(self) -> str:
        """What is compared."""
        return str(self.options.get("metric") or "time")


@dataclass(frozen=True, slots=True, kw_only=True)
class SideBenchmark(Recorded):
    """How a side benchmarks a model, for `explain --slower`, which benchmarks parts of it."""

    timeout: float
    command: Command
    resources: Resources


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedComparison(Recorded):
    """`prepared`: both sides have run up to their benchmarks.

    Attributes:
        left_out: models that cannot be measured, and why.
        benchmarks: by model and side, where times are compared.
    """

    sides: dict[str, RecordedSide]
    models: tuple[str, ...] = ()
    left_out: dict[str, str] = field(default_factory=dict)
    benchmarks: dict[str, dict[str, SideBenchmark]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _require_sides("sides", self.sides)


@dataclass(frozen=True, slots=True)
class RoundOfBlock(Recorded):
    """What evidence is of a round."""

    side: str
    times_ms: tuple[float, ...]
    peak_rss_bytes: int
    disturbed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BlockEvent(Recorded):
    """`block`: what evidence is of a block of rounds, in an order, pinned to CPUs (none for all)."""

    kind: str
    order: Any
    counted: bool
    rounds: tuple[RoundOfBlock, ...]
    cpus: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedFigures(Recorded):
    """The ratio B/A from so many blocks, and its interval, whose bounds are None where those are too few for one."""

    ratio: float
    low: float | None = None
    high: float | None = None
    confidence: float
    p_value: float
    looked_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SideTimes(Recorded):
    """Median over rounds of a side's fastest repetition, ms, and the spread from round to round as a share of it."""

    median: float
    spread: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedFigures(ComparedFigures):
    """What the blocks say of B against A."""

    time_ms: dict[str, SideTimes]

    def __post_init__(self) -> None:
        _require_sides("time_ms", self.time_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlVerdict(Recorded):
    """A against itself."""

    verdict: str
    figures: ComparedFigures = field(metadata=FLAT)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnWay(Recorded):
    """B against A in the spec's own way, and whether that rules out the verdict."""

    figures: ComparedFigures = field(metadata=FLAT)
    contradicts: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkVerdict(Recorded):
    """What the counts of instructions of one model say.

    Attributes:
        verdict: a `Work` of `measuring/instructions/work.py`.
        parts: what each part of a call says.
        cpu: what the modules were compiled for; empty for what the spec says.
        outside: the difference that is in no dispatch; None where the counter does not know dispatches.
        with_fma: the counts with fused multiply-adds; None where they were not taken.
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
        """Of A and B."""
        a, b = (self.instructions[side] for side in SIDES)
        return a, b

    @property
    def change(self) -> str:
        """`+0.3440 %`."""
        return work_change(*self.counts)

    @property
    def change_by_part(self) -> str:
        """`+0.3440 %: in dispatches +38 (+0.0088 %), …`."""
        return f"{self.change}: {'; '.join(part.description for part in self.parts)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedVerdict(Recorded):
    """What the times of one model say.

    Attributes:
        verdict: a `TimeVerdict` (`measuring/statistics/comparison_verdict.py`), or `error` where a process failed.
        marked_blocks: that count although they were disturbed.
        disturbance: that spoiled most rounds; empty where no block was replaced.
        cpus: that rounds were pinned to, none for all.
        tried: how far rounds of a block lay apart, by the CPUs that were tried.
        own_way: None where that is how it was measured.
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
    figures: TimedFigures | None = field(default=None, metadata=FLAT)
    control: ControlVerdict | None = field(default=None, metadata=UNLESS_DEFAULT)
    own_way: OwnWay | None = field(default=None, metadata=UNLESS_DEFAULT)
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
    """`summary`: how many models have each verdict, and their mean."""

    verdicts: dict[str, int]
    geometric_mean: MeanFigures | None = field(default=None, metadata=UNLESS_DEFAULT)


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherDispatches(Recorded):
    """The sum of the rows that are not listed; `outside` where what is in no dispatch is one of them."""

    a_count: int
    b_count: int
    a_ns: int
    b_ns: int
    outside: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredNs(Recorded):
    """What both sides take without the profiler."""

    a_ns: int
    b_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchDifference(Recorded):
    """What the dispatches of both sides take, in an invocation; `rows` are those that explain the difference."""

    measured: MeasuredNs | None = None
    a_ns: int
    b_ns: int
    rows: tuple[DispatchChange, ...]
    others: OtherDispatches
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedDispatches(Recorded):
    """What the dispatches of two sides explain, or the reason why they explain nothing.

    Attributes:
        commands: that profiled each side, as a person would type them; none of counts.
        unit: `ms` of a profile, whose figures are in ns, or `instructions`.
    """

    commands: dict[str, list[str]] | None = field(default=None, metadata=UNLESS_DEFAULT)
    seconds: float | None = field(default=None, metadata=UNLESS_DEFAULT)
    unit: str = field(default="ms", metadata=UNLESS_DEFAULT)
    reason: str = field(default="", metadata=UNLESS_DEFAULT)
    difference: DispatchDifference | None = field(default=None, metadata=FLAT)


@dataclass(frozen=True, slots=True)
class CompileChange(Recorded):
    """A figure of compiles that differs.

    Attributes:
        name: for people (`transient memory`); the place in the statistics where it has no name here.
        a, b: the figures; None where that side does not report it.
        unit: `bytes`, or empty for a count.
    """

    name: str
    a: float | None = None
    b: float | None = None
    unit: str = ""

    @property
    def ratio(self) -> float | None:
        """B over A; None where a side does not report it, or A is 0."""
        return None if self.b is None or not self.a else self.b / self.a

    def as_dict(self) -> dict[str, Any]:
        """With the ratio."""
        return {**Recorded.as_dict(self), "ratio": self.ratio}


@dataclass(frozen=True, slots=True, kw_only=True)
class WhereChanged(Recorded):
    """`where`: where a model is slower or faster; `work` has the instructions of its dispatches, for want of times."""

    dispatches: ComparedDispatches
    work: ComparedDispatches | None = field(default=None, metadata=UNLESS_DEFAULT)
    compile: tuple[CompileChange, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredElsewhere(Recorded):
    """`measured`: all that another machine has measured of a model, or the problem why there is nothing."""

    worker: str
    problem: str = ""
    notes: tuple[str, ...] = ()
    machine: MachineFacts = field(default_factory=MachineFacts)
    blocks: tuple[dict[str, Any], ...]
    where: WhereChanged | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedSide(RecordedSide):
    """A side with the record of its run; None where there is none."""

    name: str
    run: JournalRecord | None = field(metadata=UNRECORDED)

    @property
    def title(self) -> str:
        """`3.12.0 (3.12.0rc20260701)`: what was asked for, and what it was where that says more."""
        version = self.toolchain.get("compiler", "")
        return self.asked if version in ("", self.asked) else f"{self.asked} ({version})"


@dataclass(frozen=True, slots=True)
class ComparisonVerdict(Recorded):
    """`result`: what is said of a model, by its times or by its instructions."""

    times: RecordedVerdict | None = field(default=None, metadata=UNLESS_DEFAULT)
    work: WorkVerdict | None = field(default=None, metadata=UNLESS_DEFAULT)


COMPARISON = JournalSchema(
    (ExperimentKind.COMPARE,),
    ComparisonOpening,
    {"block": BlockEvent, "measured": MeasuredElsewhere, "result": ComparisonVerdict, "where": WhereChanged},
    {"prepared": PreparedComparison, "summary": ComparisonSummary},
)


class ComparisonRecord:
    """A comparison, whole or cut short; where it was resumed, as it was judged last.

    Attributes:
        first: the opening of its first part, which has the command that began it.
        prepared: without models where that was not reached.
        begun: how many blocks of each model were measured.
        verdicts, works: by times, or by instructions, of models that were reached.
        under_way: who measured a model when that was cut short.
        end: None for one that was killed or is under way.
    """

    def __init__(self, record: ExperimentRecord[ComparisonOpening]) -> None:
        self.opening, self.first = record.opening, record.openings[0]
        self.measured = record.collect(MeasuredElsewhere)
        self.begun = Counter(event.step for event in record.events if isinstance(event.content, BlockEvent))
        self.begun.update({model: len(found.blocks) for model, found in self.measured.items()})
        starts = record.collect(StepStart, record.latest)
        done = record.collect(MeasuredElsewhere, record.latest)
        self.under_way = {model: start.worker for model, start in starts.items() if model not in done}
        results = record.collect(ComparisonVerdict, record.latest)
        self.verdicts = {model: found.times for model, found in results.items() if found.times}
        self.works = {model: found.work for model, found in results.items() if found.work}
        self.summary = record.collect(ComparisonSummary, record.latest).get("")
        self.where = record.collect(WhereChanged, record.latest)
        with record.explain_unreadable():
            for model in self.where.keys() - results.keys():
                raise RecordError("where", f"{model} has no verdict")
        unprepared = PreparedComparison(sides=self.opening.sides)
        self.prepared = record.collect(PreparedComparison, record.latest).get("", unprepared)
        self.sides: list[ComparedSide] = []
        for name, side in self.prepared.sides.items():
            journal = record.path.parent / side.folder / JOURNAL
            run = read_journal(journal) if journal.is_file() else None
            self.sides.append(ComparedSide(**asdict(side), name=name, run=run))
        self.remarks, self.end = record.remarks, record.end

    def worker_of(self, model: str) -> str:
        """Who has measured a model; empty for this machine."""
        return self.measured[model].worker if model in self.measured else ""


def read_comparison(folder: Path) -> ComparisonRecord:
    """Reads a comparison's folder, with the runs of its sides; GauntletError where that cannot be."""
    return ComparisonRecord(COMPARISON.read(folder))
