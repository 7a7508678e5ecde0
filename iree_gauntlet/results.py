"""What became of a step: types that performers construct, the journal keeps, and readers parse."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from iree_gauntlet.cases import Verdict  # noqa: TC001 - read by its type
from iree_gauntlet.figures import Figure, GoldenRule, Statistic
from iree_gauntlet.formatting import listed, work_change
from iree_gauntlet.recorded import UNLESS_DEFAULT, UNRECORDED, Recorded, RecordError, read_number
from iree_gauntlet.stages import FailureKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from iree_gauntlet.cases import Golden


# What people call a part of a call.
_PARTS = {
    "dispatches": "in dispatches",
    "own code": "in the module's own code",
    "outside": "outside of dispatches",
    "call": "of the whole call",
}
_MOST_NAMES = 3
# Google Benchmark's time units.
MS_PER_UNIT = {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3}
_LONGEST_REASON = 300
# Signals that come from a person, a job system or the kernel's want of memory, and say nothing of the tool.
SENT_SIGNALS = ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGXCPU")


@dataclass(frozen=True, slots=True)
class UnsupportedOperator(Recorded):
    """An operator of a model that a compiler has no lowering for.

    Attributes:
        domain: of ONNX, or the dialect of the importer; empty where several could be meant.
        version: of the domain's operators; None where there are none, or it is not known.
        count: how often it stands in the model; None where that is not known.
    """

    name: str
    domain: str
    version: int | None
    count: int | None

    @property
    def sentence(self) -> str:
        """`operator Det of ai.onnx, version 17, has no lowering in this IREE as it is used; the model has it once`."""
        version = "" if self.version is None else f", version {self.version},"
        often = "once" if self.count == 1 else f"{self.count} times"
        stands = f"; the model has it {often}" if self.count else ""
        domain = f" of {self.domain}" if self.domain else ""
        return f"operator {self.name}{domain}{version} has no lowering in this IREE as it is used{stands}"


@dataclass(frozen=True, slots=True)
class CacheUse(Recorded):
    """Whether a step's result came from a cache, and why or why not."""

    hit: bool
    key: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Check(Recorded):
    """A figure and what it was held against.

    Attributes:
        metric: a `Figure`'s key.
        measured: in `unit`; None where it is not available.
        limit: golden × factor; all three None where the figure was only measured.
        unit: `ms`, `dispatches` or `bytes`; empty for an error.
        statistic: of time only.
        release: the compiler's (dispatch count and size).
        passed: None where there is nothing to check against.
        note: where the golden is written (file: field), or why it was not checked.
    """

    metric: str
    measured: float | None = None
    golden: float | None = None
    factor: float | None = None
    limit: float | None = None
    unit: str = ""
    statistic: str = ""
    sku: str = ""
    release: str = ""
    passed: bool | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class OutputComparison(Recorded):
    """How one output compares with what was expected.

    Attributes:
        index: which output, from 0.
        type: shape and element type of the actual output (of the expected one where it is missing).
        mismatches: values that do not pass; None where the values were not compared.
        max_abs_error, max_rel_error, cosine_similarity: over the values that are finite on both sides; None where
            there are none, or for types without arithmetic.
        worst_index: of the value furthest outside its tolerance (or nearest to leaving it); None where all are equal.
        atol, rtol: the tolerance as written; 0 for exact comparison.
        actual_path, expected_path: empty for what was made in memory.
    """

    index: int
    type: str = ""
    passed: bool = field(kw_only=True)
    message: str = ""
    mismatches: int | None = None
    count: int = 0
    max_abs_error: float | None = None
    max_rel_error: float | None = None
    worst_index: tuple[int, ...] | None = None
    worst_actual: str = ""
    worst_expected: str = ""
    cosine_similarity: float | None = None
    actual_nans: int = 0
    expected_nans: int = 0
    actual_infs: int = 0
    expected_infs: int = 0
    atol: float = 0.0
    rtol: float = 0.0
    actual_path: str = ""
    expected_path: str = ""

    @property
    def allowed(self) -> str:
        """How far a value may be off: `0.0001 + 1e-05·|expected|`, `0.0001`; 0 where values must be equal."""
        parts = [f"{self.atol:.3g}"] if self.atol or not self.rtol else []
        parts += [f"{self.rtol:.3g}·|expected|"] if self.rtol else []
        return " + ".join(parts)


@dataclass(frozen=True, slots=True)
class Samples(Recorded):
    """The repetitions of one benchmark.

    Attributes:
        name: Google Benchmark's name without its suffixes, `BM_main/process_time/real_time`.
        real_time_ms, cpu_time_ms: of an iteration, a figure for each repetition; CPU time of the whole process.
        iterations: over how many iterations each figure is a mean.
        aggregated: the tool was asked to report aggregates only: the one figure is the mean of all.
    """

    name: str
    real_time_ms: tuple[float, ...]
    cpu_time_ms: tuple[float, ...]
    iterations: tuple[int, ...]
    aggregated: bool = False

    @property
    def mean_ms(self) -> float:
        """Arithmetic mean of the repetitions' wall time; NaN where there are none."""
        return statistics.fmean(self.real_time_ms) if self.real_time_ms else math.nan

    @property
    def min_ms(self) -> float | None:
        """Fastest repetition; None where it is not known: only the mean of all, or nothing."""
        return None if self.aggregated else min(self.real_time_ms, default=None)

    @property
    def stdev_ms(self) -> float | None:
        """Sample standard deviation (n − 1); None for a single repetition, and where one is no number."""
        known = len(self.real_time_ms) > 1 and all(map(math.isfinite, self.real_time_ms))
        return statistics.stdev(self.real_time_ms) if known else None

    @property
    def figures(self) -> dict[str, float | None]:
        """What follows from the repetitions, by the names of JSON and JUnit; None for what is not known."""
        most = max(self.real_time_ms, default=None)
        return {"mean_ms": self.mean_ms, "stdev_ms": self.stdev_ms, "min_ms": self.min_ms, "max_ms": most}


@dataclass(frozen=True, slots=True)
class Fetched(Recorded):
    """A file that is there.

    Attributes:
        seconds: how long it took, waiting for other runs included.
        notes: what was out of the ordinary, one line each; a step's record has them among its own.
    """

    url: str
    path: Path = Path()
    bytes: int = 0
    seconds: float = 0.0
    cached: bool = False
    sha256: str = field(default="", metadata=UNRECORDED)
    notes: tuple[str, ...] = field(default=(), metadata=UNRECORDED)


@dataclass(frozen=True, slots=True)
class CpuShares(Recorded):
    """Of the CPUs' time while a benchmark ran, 0 to 1: what other work took, and what other machines of the host."""

    busy_share: float = 0.0
    steal_share: float = 0.0


@dataclass(frozen=True, slots=True)
class Percentiles(Recorded):
    """Of latencies, in ms."""

    p50: float
    p90: float
    p99: float


@dataclass(frozen=True, slots=True)
class StepStatistics(Recorded):
    """What reports know of a result's statistics; None for what it has not.

    Attributes:
        counter, cpu: what has counted instructions, and for which CPU the modules were compiled.
        disturbed: what the machine did besides while times were taken.
        samples_per_sec, total_samples, total_s, tokens_per_sec, latency_ms: of a benchmark that pushes inputs again and
            again from the host.
    """

    counter: str = ""
    cpu: str = ""
    disturbed: tuple[str, ...] = ()
    machine: CpuShares = CpuShares()
    samples_per_sec: float | None = None
    total_samples: float | None = None
    total_s: float | None = None
    tokens_per_sec: float | None = None
    latency_ms: Percentiles | None = None


@dataclass(frozen=True, slots=True)
class Result(Recorded):
    """The journal's `result` event, without its name, time and step.

    Attributes:
        reason: why, in one line.
        command: as a person would type it.
        seconds, cpu_seconds, peak_rss_bytes: of all processes of the step; seconds include our own work.
        waited_seconds: for locks, before and while it was done; no part of `seconds`.
        worker: the machine of a cluster that did it.
        statistics: figures of a module or of the machine.
        log: path of the full output, relative to the run's folder.
        failure: how what is tested has failed, expected or not; None where it has not, or nothing is said of it.
        unsupported: the operator of the model that it did not compile for.
        said: what the tool wrote, where a text is looked for in it; not part of the record.
    """

    verdict: Verdict
    reason: str = ""
    command: str = ""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_rss_bytes: int = 0
    tool_seconds: float = 0.0
    exit_code: int | None = None
    signal: str = ""
    timed_out: bool = False
    cache: CacheUse | None = None
    checks: tuple[Check, ...] = ()
    outputs: tuple[OutputComparison, ...] = ()
    samples: Samples | None = None
    statistics: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    log: str = ""
    tail: tuple[str, ...] = ()
    fetched: tuple[Fetched, ...] = ()
    waited_seconds: float = field(default=0.0, metadata=UNLESS_DEFAULT)
    worker: str = field(default="", metadata=UNLESS_DEFAULT)
    failure: FailureKind | None = field(default=None, metadata=UNLESS_DEFAULT)
    unsupported: UnsupportedOperator | None = field(default=None, metadata=UNLESS_DEFAULT)
    said: str = field(default="", metadata=UNRECORDED)

    @property
    def full_reason(self) -> str:
        """The reason, behind a sentence that says it of the model."""
        return f"{self.unsupported.sentence}; {self.reason}" if self.unsupported else self.reason

    @property
    def known(self) -> StepStatistics:
        """Its statistics, read."""
        return StepStatistics.from_dict(self.statistics)

    @property
    def time_statistic(self) -> Statistic:
        """Which of its repetitions are held against a golden, or would be."""
        said = next((check.statistic for check in self.checks if check.metric == Figure.TIME), "")
        return Statistic.MIN if said == Statistic.MIN else Statistic.MEAN

    def measure(self, figure: Figure) -> float | None:
        """What it has of a figure; None where it has nothing.

        Instructions are those in dispatches, or of the whole call where it is not known which these are.
        """
        match figure:
            case Figure.TIME if self.samples is not None and self.samples.real_time_ms:
                samples = self.samples
                return samples.min_ms if self.time_statistic is Statistic.MIN else samples.mean_ms
            case Figure.TIME:
                return None
            case Figure.ERROR:
                return self.max_abs_error
            case Figure.INSTRUCTIONS:
                whole = self.measure(Figure.CALL_INSTRUCTIONS)
                return None if whole is None else whole - (self.measure(Figure.INSTRUCTIONS_OUTSIDE) or 0.0)
        measured = self.statistics.get(figure.row.statistic)
        return None if measured is None else read_number(measured)

    @property
    def max_abs_error(self) -> float | None:
        """The largest of all outputs, NaN above all; None where none was compared value by value."""
        known = [output.max_abs_error for output in self.outputs if output.max_abs_error is not None]
        # NaN is greater than nothing and less than nothing: it would hide behind any number.
        return next((error for error in known if math.isnan(error)), max(known, default=None))

    @property
    def crashed(self) -> bool:
        """The tool's own fault ended it by a signal."""
        return self.failure is FailureKind.CRASHES

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """As `Recorded.from_dict`, with statistics that readers can use."""
        result = super(Result, cls).from_dict(data)
        try:
            _ = result.known, [result.measure(figure) for figure in Figure if figure.row.statistic]
        except ValueError as error:
            raise RecordError("statistics", error) from error
        return result


def find_unapplied(goldens: Iterable[Golden], checks: Iterable[Check], sku: str) -> tuple[Golden, ...]:
    """Goldens of a spec whose figure was measured and held against none: they are of another release, count or machine.

    A time is for the machines of its SKU alone, and is none of them elsewhere.
    """
    loose = {check.metric for check in checks if check.passed is None}
    return tuple(
        golden
        for golden in goldens
        if golden.metric in loose
        and golden.origin.field
        and (golden.field.rule is not GoldenRule.TIMED or golden.sku == sku)
    )


def shorten(text: str) -> str:
    """One line of bounded length."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_REASON else line[: _LONGEST_REASON - 1] + "…"


@dataclass(frozen=True, slots=True)
class WorkPart(Recorded):
    """What two counts of a call say of a part of it.

    Attributes:
        part: a `CallPart` of `measuring/instructions/work.py`.
        verdict: a `Work` of the same file.
        a, b: instructions.
        more, less: of dispatches, the names of those that do more and less, the largest changes first.
    """

    part: str
    verdict: str
    a: int
    b: int
    more: tuple[str, ...] = ()
    less: tuple[str, ...] = ()

    @property
    def description(self) -> str:
        """How its instructions differ: `in dispatches +760 (+0.1753 %), more in conv_3x3_f32`."""
        share = f" ({work_change(self.a, self.b)})" if self.a and self.a != self.b else ""
        changes = (("more", self.more), ("less", self.less))
        names = "; ".join(f"{word} in {listed(dispatches, _MOST_NAMES)}" for word, dispatches in changes if dispatches)
        kept = self.part == "outside" and self.verdict == "same work" and self.a != self.b
        change = f"{_PARTS[self.part]} {self.b - self.a:+,}{share}"
        return ", ".join(filter(None, (change, names, "within its limits" if kept else "")))


@dataclass(frozen=True, slots=True)
class DispatchChange(Recorded):
    """Dispatches of one program and what they became in another.

    Attributes:
        match: how the two sides belong together, a `Match` of `measuring/profiles/dispatch_profile.py`.
        a_ns, b_ns: what they take in an invocation, in ns or instructions.
        share: of the whole difference; None where there is none.
        place: in the program; None where it was not looked for, empty where it is not known.
    """

    name: str
    kind: str
    match: str
    a_ns: int
    b_ns: int
    a_count: int
    b_count: int
    a_names: tuple[str, ...] = ()
    b_names: tuple[str, ...] = ()
    share: float | None = None
    place: str | None = field(default=None, metadata=UNLESS_DEFAULT)

    @property
    def difference_ns(self) -> int:
        """What B takes more."""
        return self.b_ns - self.a_ns
