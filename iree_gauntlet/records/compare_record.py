"""The record of a comparison, `comparison.jsonl` in its folder: its events, and how it is read with its sides' runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.errors import GauntletError, UsageError
from iree_gauntlet.formatting import format_outside, work_change
from iree_gauntlet.journal_events import ExperimentEnd, ExperimentOpening, MachineFacts
from iree_gauntlet.journal_format import JOURNAL, JournalRecord, explain_unreadable, read_events, read_journal
from iree_gauntlet.recorded import FLAT, UNLESS_DEFAULT, UNRECORDED, Recorded, RecordError
from iree_gauntlet.records.run_folder import LATEST, newest_of
from iree_gauntlet.results import DispatchChange, WorkPart  # noqa: TC001 - read by their types
from iree_gauntlet.settings import find_runs_folder, shown
from iree_gauntlet.steps import Command, Resources  # noqa: TC001 - read by their types

if TYPE_CHECKING:
    from collections.abc import Mapping


COMPARISON_FILE = "comparison.jsonl"
# Names of the sides.
SIDES = "AB"
_HINT = "It was written by another version of this toolkit, or changed; start a new comparison."
# The texts that an event has to have.
_NEEDED = {
    **dict.fromkeys(("block", "verdict", "where", "measured"), ("chain",)),
    "begun": ("chain", "worker"),
    "remark": ("text",),
}


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
    """By which a comparison is judged (α, the margins δ and ε, …); None for what earlier versions did not have.

    Attributes:
        looks: at how many blocks it is judged.
        allow: the slowdown below which `not slower` will do.
        least_work: the share from which on a difference in instructions of a dispatch counts.
        outside: the share, and the number of instructions, beyond which one outside of dispatches does; None in
            records of earlier versions, which judged a call as a whole.
    """

    alpha: float
    looks: tuple[int, ...]
    least: float
    band: float
    allow: float | None = field(default=None, metadata=UNLESS_DEFAULT)
    budget_seconds: float
    seed: int
    least_work: float | None = field(default=None, metadata=UNLESS_DEFAULT)
    outside: tuple[float, int] | None = field(default=None, metadata=UNLESS_DEFAULT)

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
    choose: bool | None = field(default=None, metadata=UNLESS_DEFAULT)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonOpening(ExperimentOpening):
    """`comparison`: what is asked for; a resumed comparison appends another one, and judges again.

    Attributes:
        sides: by name, as all else that both have.
        options: those that a resumed comparison keeps.
        lock_folder: of the machine's locks, where they are not the user's own.
        elsewhere: a cluster takes the rounds.
    """

    resumed: bool = False
    sides: dict[str, RecordedSide]
    options: dict[str, Any]
    rules: RecordedRules
    rounds: RecordedRounds
    machine: MachineFacts = field(default_factory=MachineFacts)
    lock_folder: str = field(default="", metadata=UNLESS_DEFAULT)
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
    """`verdict`, or a part of that on times: what the counts of instructions of one model say.

    Attributes:
        verdict: a `Work` of `measuring/instructions/work.py`.
        parts: what each part of a call says; none in records of earlier versions, which judged it as a whole.
        cpu: what the modules were compiled for; empty for what the spec says.
        outside: the difference that is in no dispatch; None where the counter does not know dispatches.
        with_fma: the counts with fused multiply-adds; None where they were not taken.
    """

    chain: str | None = field(default=None, metadata=UNLESS_DEFAULT)
    reason: str | None = field(default=None, metadata=UNLESS_DEFAULT)
    verdict: str
    instructions: dict[str, int]
    ratio: float
    counter: str
    cpu: str
    outside: int | None = None
    parts: tuple[WorkPart, ...] = field(default=(), metadata=UNLESS_DEFAULT)
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
        """`+0.3440 %: in dispatches +38 (+0.0088 %), …`; of earlier versions `+0.3440 %, 98 % of it outside of …`."""
        a, b = self.counts
        if self.parts:
            return f"{self.change}: {'; '.join(part.description for part in self.parts)}"
        return f"{self.change}{format_outside(b - a, self.outside)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedVerdict(Recorded):
    """`verdict`: what the times of one model say.

    Attributes:
        verdict: a `TimeVerdict` (`measuring/statistics/comparison_verdict.py`), or `error` where a process failed.
        marked_blocks: that count although they were disturbed.
        disturbance: that spoiled most rounds; empty where no block was replaced.
        cpus: that rounds were pinned to, none for all; None in records of earlier versions.
        tried: how far rounds of a block lay apart, by the CPUs that were tried.
        own_way: None where that is how it was measured.
    """

    chain: str
    verdict: str
    reason: str
    blocks: int
    control_blocks: int
    replaced_blocks: int
    marked_blocks: int
    disturbance: str = ""
    peak_rss_bytes: dict[str, int] = field(default_factory=dict)
    cpus: tuple[int, ...] | None = field(default=None, metadata=UNLESS_DEFAULT)
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

    chain: str
    dispatches: ComparedDispatches
    work: ComparedDispatches | None = field(default=None, metadata=UNLESS_DEFAULT)
    compile: tuple[CompileChange, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredElsewhere(Recorded):
    """`measured`: all that another machine has measured of a model, or the problem why there is nothing."""

    chain: str
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


@dataclass(slots=True)
class ComparisonRecord:
    """A comparison, whole or cut short.

    Attributes:
        prepared: without models where that was not reached.
        begun: how many blocks of each model were measured.
        verdicts, works: by times, or by instructions, of models that were reached.
        under_way: who measured a model when that was cut short.
        end: None for one that was killed or is under way.
    """

    opening: ComparisonOpening
    prepared: PreparedComparison
    begun: Counter[str]
    measured: dict[str, MeasuredElsewhere]
    sides: list[ComparedSide] = field(default_factory=list)
    verdicts: dict[str, RecordedVerdict] = field(default_factory=dict)
    works: dict[str, WorkVerdict] = field(default_factory=dict)
    summary: ComparisonSummary | None = None
    where: dict[str, WhereChanged] = field(default_factory=dict)
    under_way: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    end: ExperimentEnd | None = None

    def worker_of(self, model: str) -> str:
        """Who has measured a model; empty for this machine."""
        return self.measured[model].worker if model in self.measured else ""

    def take(self, event: dict[str, Any]) -> None:
        """Reads an event that is no opening; one of a kind that is not known is passed over."""
        match event:
            case {"event": "prepared"}:
                self.prepared = PreparedComparison.from_dict(event)
            case {"event": "block", "chain": chain}:
                self.begun[chain] += 1
            case {"event": "verdict", "chain": chain, "instructions": _}:
                self.works[chain] = WorkVerdict.from_dict(event)
            case {"event": "verdict", "chain": chain}:
                self.verdicts[chain] = RecordedVerdict.from_dict(event)
            case {"event": "summary"}:
                self.summary = ComparisonSummary.from_dict(event)
            case {"event": "where", "chain": chain}:
                if chain not in self.verdicts and chain not in self.works:
                    raise RecordError("chain", f"{chain} has no verdict")
                self.where[chain] = WhereChanged.from_dict(event)
            case {"event": "end"}:
                self.end = ExperimentEnd.from_dict(event)
            case _:
                self._take_of_a_cluster(event)

    def _take_of_a_cluster(self, event: dict[str, Any]) -> None:
        match event:
            case {"event": "begun", "chain": chain, "worker": worker}:
                self.under_way[chain] = worker
            case {"event": "measured", "chain": chain}:
                self.under_way.pop(chain, None)
                self.measured[chain] = MeasuredElsewhere.from_dict(event)
                self.begun[chain] = len(self.measured[chain].blocks)
            case {"event": "remark", "text": text}:
                self.remarks.append(text)


def comparison_named(text: str) -> Path:
    """The folder of a comparison: a path, its name in runs/, or `latest`; UsageError where there is none."""
    if text == LATEST:
        return newest_of("compare", COMPARISON_FILE)
    for folder in (Path(text), find_runs_folder() / text):
        if (folder / COMPARISON_FILE).is_file():
            return folder
    raise UsageError(
        f"explain --slower {text}: there is no such comparison",
        f"Comparisons are folders with a {COMPARISON_FILE}, such as those below {shown(find_runs_folder())}/.",
    )


def read_comparison(folder: Path) -> ComparisonRecord:
    """Reads a comparison's folder; GauntletError where there is no record, or it cannot be read."""
    path = folder / COMPARISON_FILE
    record: ComparisonRecord | None = None
    for number, event in read_events(path, "comparison", _NEEDED).events:
        with explain_unreadable(f"{path}:{number}: the {event.get('event')} event", _HINT):
            if event.get("event") == "comparison":
                opening = ComparisonOpening.from_dict(event)
                # A resumed one judges again.
                begun, measured = (record.begun, record.measured) if record else (Counter[str](), {})
                record = ComparisonRecord(opening, PreparedComparison(sides=opening.sides), begun, measured)
            elif record is not None:
                record.take(event)
    if record is None:
        raise GauntletError(f"{path}: does not say what was compared", "Start a new comparison.")
    for name, side in record.prepared.sides.items():
        journal = folder / side.folder / JOURNAL
        run = read_journal(journal) if journal.is_file() else None
        record.sides.append(ComparedSide(**asdict(side), name=name, run=run))
    return record
