"""Results of steps: types that performers construct, the journal keeps, and readers parse."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from iree_gauntlet.cases import Verdict
from iree_gauntlet.figures import Figure, GoldenRule, Statistic
from iree_gauntlet.formatting import format_count_change, format_error, format_limit_share, format_percent, list_first
from iree_gauntlet.recorded import UNLESS_DEFAULT, UNRECORDED, Recorded, RecordError, read_number
from iree_gauntlet.stages import FailureKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from iree_gauntlet.cases import Golden


# The phrase for each part of a call.
_CALL_PART_PHRASES = {
    "dispatches": "in dispatches",
    "own code": "in the module's own code",
    "outside": "outside of dispatches",
    "call": "of the whole call",
}
_MAX_NAMES = 3
# Google Benchmark's time units.
MS_PER_UNIT = {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3}
_MAX_REASON_CHARS = 300
# The statistic of a result that names IREE's other way, if that computed the expected outputs.
AGREES_WITH = "agrees_with"
# People, job systems and the kernel (out of memory) send these signals; they are no fault of the tool.
EXTERNAL_SIGNALS = ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGXCPU")


@dataclass(frozen=True, slots=True)
class UnsupportedOperator(Recorded):
    """An operator of a model for which a compiler has no lowering.

    Attributes:
        domain: domain of ONNX, or dialect of the importer; empty if ambiguous.
        version: version of the domain's operators; None if there are none or it is unknown.
        count: number of uses in the model; None if unknown.
    """

    name: str
    domain: str
    version: int | None = None
    count: int | None = None

    @property
    def sentence(self) -> str:
        """The sentence `operator Det of ai.onnx, version 17, has no lowering in this IREE …; the model has it once`."""
        version = "" if self.version is None else f", version {self.version},"
        frequency = "once" if self.count == 1 else f"{self.count} times"
        uses = f"; the model uses it {frequency}" if self.count else ""
        domain = f" of {self.domain}" if self.domain else ""
        return f"operator {self.name}{domain}{version} has no lowering in this IREE for this use{uses}"


@dataclass(frozen=True, slots=True)
class CacheUse(Recorded):
    """A step's use of a cache: hit or miss, and the reason."""

    hit: bool
    key: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Check(Recorded):
    """A figure and its golden.

    Attributes:
        metric: a `Figure`'s key.
        measured: value in `unit`; None if unavailable.
        limit: golden × factor; all three are None if there is no golden.
        unit: `ms`, `dispatches` or `bytes`; empty for an error.
        statistic: statistic of a time; other figures have none.
        release: the compiler's release, for dispatch counts and sizes.
        passed: None if there is no golden.
        note: location of the golden (file: field), or the reason for a missing check.
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
    """The comparison of an output with the expected one.

    Attributes:
        index: number of the output, from 0.
        call, function: the call, from 0, and its function; None and empty if the step makes one call.
        type: shape and element type of the actual output, or of the expected one if it is missing.
        mismatches: number of values that do not pass; None if values were not compared.
        max_abs_error, max_rel_error, cosine_similarity: over values that are finite on both sides; None if there are
            none, and for types without arithmetic.
        worst_index: index of the value with the largest error relative to its tolerance; None if all are equal.
        atol, rtol: the written tolerance; 0 for exact comparison.
        actual_path, expected_path: empty for data in memory.
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
    call: int | None = field(default=None, metadata=UNLESS_DEFAULT)
    function: str = field(default="", metadata=UNLESS_DEFAULT)

    @property
    def label(self) -> str:
        """The name for people: `output 1`, or `call 0 (step), output 1`."""
        text = f"output {self.index}"
        return text if self.call is None else f"call {self.call} ({self.function}), {text}"

    @property
    def tolerance_text(self) -> str:
        """The tolerance as text: `0.0001 + 1e-05·|expected|`, `0.0001`; `0` if values must be equal."""
        parts = [f"{self.atol:.3g}"] if self.atol or not self.rtol else []
        parts += [f"{self.rtol:.3g}·|expected|"] if self.rtol else []
        return " + ".join(parts)

    @property
    def limit_share(self) -> float | None:
        """The error of the worst value as a share of its limit; None without one, or if it is not finite."""
        try:
            actual, expected = float(self.worst_actual), float(self.worst_expected)
            share = abs(actual - expected) / (self.atol + self.rtol * abs(expected))
        except (ValueError, ZeroDivisionError):
            return None
        return share if math.isfinite(share) else None

    @property
    def summary(self) -> str:
        """The comparison in a few words: `9.1e-06 · 9 % of limit`, `12 of 384 differ (3.1 %), ×14.2 of limit`."""
        if self.passed and not self.max_abs_error:
            return "equal"
        error = "" if self.max_abs_error is None else format_error(self.max_abs_error)
        share = "" if self.limit_share is None else format_limit_share(self.limit_share)
        if self.passed:
            return " · ".join(filter(None, (error, share)))
        place = "" if self.call is None else f"{self.label}: "
        if not self.mismatches:
            # The values were not compared.
            return f"{place}{'another type or shape than expected' if self.count else self.message}"
        part = f"{place}{self.mismatches:,} of {self.count:,} differ ({format_percent(self.mismatches, self.count)})"
        if self.special_text:
            return f"{part}: {self.special_text}"
        share = share or f"by up to {error}" * bool(error)
        return f"{part}, {share}" if share else part

    @property
    def special_text(self) -> str:
        """The worst value, if it or the expected one is NaN or infinite: `0 where NaN was expected`; else empty."""
        text = f"{self.worst_actual} where {self.worst_expected} was expected".replace("nan", "NaN")
        if self.passed or not ("NaN" in text or "inf" in text):
            return ""
        special_count = sum(abs(actual - expected) for _, actual, expected in self.special_counts)
        has_others = (self.mismatches or 0) > special_count and (self.max_abs_error or 0.0) > self.atol
        return f"{text}, others off by up to {self.max_abs_error:.3g}" if has_others else text

    @property
    def special_counts(self) -> tuple[tuple[str, int, int], ...]:
        """The numbers of NaN and of infinities, actual and expected."""
        return ("NaN", self.actual_nans, self.expected_nans), ("Inf", self.actual_infs, self.expected_infs)


@dataclass(frozen=True, slots=True)
class Samples(Recorded):
    """The repetitions of one benchmark.

    Attributes:
        name: Google Benchmark's name without its suffixes, `BM_main/process_time/real_time`.
        real_time_ms, cpu_time_ms: time of an iteration in each repetition; CPU time of the whole process.
        iterations: number of iterations in each repetition.
        aggregated: True if the tool reported only the mean of all repetitions.
    """

    name: str
    real_time_ms: tuple[float, ...]
    cpu_time_ms: tuple[float, ...]
    iterations: tuple[int, ...]
    aggregated: bool = False

    @property
    def mean_ms(self) -> float:
        """The arithmetic mean of the repetitions' wall time; NaN if there are none."""
        return statistics.fmean(self.real_time_ms) if self.real_time_ms else math.nan

    @property
    def min_ms(self) -> float | None:
        """The fastest repetition; None if there is only the mean, or nothing."""
        return None if self.aggregated else min(self.real_time_ms, default=None)

    @property
    def stdev_ms(self) -> float | None:
        """The sample standard deviation (n − 1); None for a single repetition, or if one is not finite."""
        is_defined = len(self.real_time_ms) > 1 and all(map(math.isfinite, self.real_time_ms))
        return statistics.stdev(self.real_time_ms) if is_defined else None

    @property
    def figures(self) -> dict[str, float | None]:
        """The statistics of the repetitions, by their names in JSON and JUnit; None for unknown ones."""
        max_ms = max(self.real_time_ms, default=None)
        return {"mean_ms": self.mean_ms, "stdev_ms": self.stdev_ms, "min_ms": self.min_ms, "max_ms": max_ms}


@dataclass(frozen=True, slots=True)
class FetchedFile(Recorded):
    """A file that was fetched.

    Attributes:
        seconds: duration, including waiting for other runs.
        notes: unusual events, one line each; a step's record has them among its notes.
    """

    url: str
    path: Path = Path()
    bytes: int = 0
    seconds: float = 0.0
    cached: bool = False
    sha256: str = field(default="", metadata=UNRECORDED)
    notes: tuple[str, ...] = field(default=(), metadata=UNRECORDED)


@dataclass(frozen=True, slots=True)
class Percentiles(Recorded):
    """Percentiles of latencies, in ms."""

    p50: float
    p90: float
    p99: float


# The figures of a dispatch's code, with their names in tables, the most important first.
CODE_FIGURES = {
    "vgpr_spills": "VGPR spills",
    "sgpr_spills": "SGPR spills",
    "vgprs": "VGPRs",
    "agprs": "AGPRs",
    "sgprs": "SGPRs",
    "shared_bytes": "shared memory",
    "scratch_bytes": "scratch",
    "occupancy": "occupancy",
    "code_bytes": "code bytes",
    "vector_instructions": "vector",
    "scalar_instructions": "scalar",
    "fma_instructions": "FMA",
    "loads": "loads",
    "stores": "stores",
    "stack_accesses": "stack",
}
# Those of them that count spilled registers.
SPILL_FIGURES = ("vgpr_spills", "sgpr_spills")


@dataclass(frozen=True, slots=True)
class DispatchCode(Recorded):
    """The code of a dispatch for one target, such as `gfx942`, `sm_89`, `spirv` or `x86_64`.

    Attributes:
        figures: numbers by key of `CODE_FIGURES`; a number that the executable does not tell is missing.
        code_hash: SHA-256 of the code, without addresses as far as they are known.
    """

    name: str
    target: str
    figures: dict[str, int]
    code_hash: str


@dataclass(frozen=True, slots=True)
class StepStatistics(Recorded):
    """The statistics of a result that reports use; None for missing ones.

    Attributes:
        counter, cpu: the counter of instructions, and the CPU that the modules were compiled for.
        disturbed: other activity of the machine during time measurements.
        samples_per_sec, total_samples, total_s, tokens_per_sec, latency_ms: statistics of a benchmark that repeatedly
            pushes inputs from the host.
        code: the code of the module's dispatches; empty if it was not read.
        outputs_sha256: a hash of all outputs, of targets that run with several lengths of vectors; empty for others.
    """

    counter: str = ""
    cpu: str = ""
    disturbed: tuple[str, ...] = ()
    samples_per_sec: float | None = None
    total_samples: float | None = None
    total_s: float | None = None
    tokens_per_sec: float | None = None
    latency_ms: Percentiles | None = None
    code: tuple[DispatchCode, ...] = ()
    outputs_sha256: str = ""


@dataclass(frozen=True, slots=True)
class Result(Recorded):
    """The journal's `result` event, without its name, time and step.

    Attributes:
        reason: reason of the verdict in one line.
        command: the command line, as typed in a shell.
        seconds, cpu_seconds, peak_rss_bytes: resources of all processes of the step; seconds include our own work.
        waited_seconds: time spent waiting for locks, not part of `seconds`.
        worker: the machine of a cluster that performed it.
        statistics: statistics of a module or of the machine.
        log: path of the full output, relative to the run's folder.
        failure: the kind of failure of the tested program, expected or not; None if it did not fail or is unknown.
        unsupported: the unsupported operator that made the compile fail.
        attempts: the results of all attempts, in order, if the step was repeated in fresh processes; empty for one.
        said: the tool's output, if an expected text is searched in it; not recorded.
        is_mistake: True if something that the spec names is invalid or missing.
        attempt_key: hash of the command and the files of a failed attempt; attempts with another one do not count.
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
    fetched: tuple[FetchedFile, ...] = ()
    waited_seconds: float = field(default=0.0, metadata=UNLESS_DEFAULT)
    worker: str = field(default="", metadata=UNLESS_DEFAULT)
    failure: FailureKind | None = field(default=None, metadata=UNLESS_DEFAULT)
    unsupported: UnsupportedOperator | None = field(default=None, metadata=UNLESS_DEFAULT)
    attempts: tuple[Result, ...] = field(default=(), metadata=UNLESS_DEFAULT)
    said: str = field(default="", metadata=UNRECORDED)
    is_mistake: bool = field(default=False, metadata=UNLESS_DEFAULT)
    attempt_key: str = field(default="", metadata=UNLESS_DEFAULT)

    @property
    def full_reason(self) -> str:
        """The reason, after a sentence about the model's operator."""
        return f"{self.unsupported.sentence}; {self.reason}" if self.unsupported else self.reason

    @property
    def agrees_with(self) -> str:
        """IREE's other way that computed the expected outputs of a step; empty if a reference did."""
        return str(self.statistics.get(AGREES_WITH, ""))

    @property
    def typed_statistics(self) -> StepStatistics:
        """The parsed statistics of the result."""
        return StepStatistics.from_dict(self.statistics)

    @property
    def time_statistic(self) -> Statistic:
        """The statistic of its repetitions that is, or would be, compared with a golden."""
        statistic = next((check.statistic for check in self.checks if check.metric == Figure.TIME), "")
        return Statistic.MIN if statistic == Statistic.MIN else Statistic.MEAN

    def measure(self, figure: Figure) -> float | None:
        """Return the result's value of a figure; None if there is none.

        Instructions are those in dispatches, or those of the whole call if dispatches are unknown.
        """
        match figure:
            case Figure.TIME if self.samples is not None and self.samples.real_time_ms:
                samples = self.samples
                return samples.min_ms if self.time_statistic is Statistic.MIN else samples.mean_ms
            case Figure.TIME:
                return None
            case Figure.ERROR:
                return self.max_abs_error
            case Figure.DISPATCH_INSTRUCTIONS:
                call_instructions = self.measure(Figure.CALL_INSTRUCTIONS)
                if call_instructions is None:
                    return None
                return call_instructions - (self.measure(Figure.OUTSIDE_INSTRUCTIONS) or 0.0)
        value = self.statistics.get(figure.row.statistic)
        return None if value is None else read_number(value)

    @property
    def has_compared(self) -> bool:
        """True if all outputs could be compared; False if the program did not run to its end, in no attempt."""
        has_passed = any(attempt.verdict.counts_as_pass for attempt in (self, *self.attempts))
        # Not all failures of stages that compare more than numbers have a kind.
        is_other = self.failure is None and self.verdict in (Verdict.FAILED, Verdict.INCONCLUSIVE)
        return has_passed or is_other or self.failure in (FailureKind.WRONG_NUMBERS, FailureKind.MISSES_A_GOLDEN)

    @property
    def decisive_outputs(self) -> tuple[OutputComparison, ...]:
        """The outputs that say how good the numbers are; right ones before a crash do not."""
        return tuple(output for output in self.outputs if self.has_compared or not output.passed)

    @property
    def max_abs_error(self) -> float | None:
        """The largest error of all outputs, NaN above all; None if no values were compared."""
        errors = [output.max_abs_error for output in self.decisive_outputs if output.max_abs_error is not None]
        # NaN compares as false with every number, so `max` could miss it.
        return next((error for error in errors if math.isnan(error)), max(errors, default=None))

    @property
    def can_differ(self) -> bool:
        """True if the same step may pass next time: its process failed, and not because of a mistake in the spec.

        More rounds confirm a golden time that is exceeded; other goldens are about exact figures.
        """
        ran = self.exit_code is not None or bool(self.signal) or self.timed_out
        if self.verdict is Verdict.ERROR:
            return ran and not self.is_mistake
        misses = (FailureKind.MISSES_A_GOLDEN, FailureKind.TUNES_NOTHING)
        return self.verdict is Verdict.FAILED and self.failure not in misses

    @property
    def settled_verdict(self) -> Verdict:
        """The verdict for dependent steps: a step in quarantine did its work if a repetition passed."""
        has_passed = any(attempt.verdict.counts_as_pass for attempt in self.attempts[-1:])
        return Verdict.PASSED if self.verdict is Verdict.QUARANTINED and has_passed else self.verdict

    @property
    def failed_attempts(self) -> tuple[Result, ...]:
        """The failed attempts that count if a resumed run repeats the step; after an error it begins anew."""
        attempts = self.attempts if self.verdict.is_kept_on_resume else ()
        return tuple(attempt for attempt in attempts if not attempt.verdict.counts_as_pass)

    @property
    def attempts_text(self) -> str:
        """The attempts in a few words: `failed in all 3 attempts`, `3 attempts: failed, error, passed`; or empty."""
        verdicts = [attempt.verdict for attempt in self.attempts]
        if len(set(verdicts)) == 1:
            return f"{verdicts[0].past_tense} in all {len(verdicts)} attempts"
        return f"{len(verdicts)} attempts: {', '.join(verdicts)}" if verdicts else ""

    @property
    def crashed(self) -> bool:
        """True if the tool crashed: a signal ended it because of its own fault."""
        return self.failure is FailureKind.CRASHES

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Parse a result as `Recorded.from_dict` does, and validate its statistics."""
        result = super(Result, cls).from_dict(data)
        try:
            figures = [figure for figure in Figure if figure.row.statistic in result.statistics]
            _ = result.typed_statistics, [result.measure(figure) for figure in figures]
        except ValueError as error:
            raise RecordError("statistics", error) from error
        return result


def find_unapplied_goldens(goldens: Iterable[Golden], checks: Iterable[Check], sku: str) -> tuple[Golden, ...]:
    """Find goldens of a spec that do not apply to a measured figure because of its release, counter or machine.

    A golden time applies only to machines of its SKU, and is not reported for others.
    """
    unchecked_metrics = {check.metric for check in checks if check.passed is None}
    return tuple(
        golden
        for golden in goldens
        if golden.metric in unchecked_metrics
        and golden.origin.field
        and (golden.field.rule is not GoldenRule.TIMED or golden.sku == sku)
    )


def shorten(text: str) -> str:
    """Join the lines of a text and truncate it to the length of a reason."""
    line = " ".join(text.split())
    return line if len(line) <= _MAX_REASON_CHARS else line[: _MAX_REASON_CHARS - 1] + "…"


@dataclass(frozen=True, slots=True)
class WorkPart(Recorded):
    """The comparison of two instruction counts of a part of a call.

    Attributes:
        part: a `CallPart` of `measuring/instructions/work.py`.
        verdict: a `Work` of the same file.
        a, b: instructions.
        more, less: names of dispatches with more and with fewer instructions, the largest changes first.
    """

    part: str
    verdict: str
    a: int
    b: int
    more: tuple[str, ...] = ()
    less: tuple[str, ...] = ()

    @property
    def description(self) -> str:
        """The change of its instructions: `in dispatches +760 (+0.1753 %), more in conv_3x3_f32`."""
        share = f" ({format_count_change(self.a, self.b)})" if self.a and self.a != self.b else ""
        changes = (("more", self.more), ("less", self.less))
        names = "; ".join(
            f"{word} in {list_first(dispatches, _MAX_NAMES)}" for word, dispatches in changes if dispatches
        )
        is_within_limits = self.part == "outside" and self.verdict == "same work" and self.a != self.b
        change = f"{_CALL_PART_PHRASES.get(self.part, self.part)} {self.b - self.a:+,}{share}"
        return ", ".join(filter(None, (change, names, "within its limits" if is_within_limits else "")))


@dataclass(frozen=True, slots=True)
class DispatchChange(Recorded):
    """Dispatches of one program and their counterparts in another.

    Attributes:
        match: the relation of the two sides, a `Match` of `measuring/profiles/dispatch_profile.py`.
        a_ns, b_ns: their cost in an invocation, in ns or instructions.
        share: fraction of the total difference; None if there is no difference.
        place: location in the program; None if it was not searched, empty if it is unknown.
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
        """The additional time of B."""
        return self.b_ns - self.a_ns
