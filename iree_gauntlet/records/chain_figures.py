"""The figures of a chain, one line for each model/submodel on a target: for tables, and to compare with other IREEs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from iree_gauntlet.cases import Verdict
from iree_gauntlet.figures import duration, format_error, format_mean_and_spread, milliseconds, percent, whole
from iree_gauntlet.journal_format import BUSY_SHARE, STEAL_SHARE
from iree_gauntlet.results import CpuShares, StepStatistics
from iree_gauntlet.stages import Stage

if TYPE_CHECKING:
    from collections.abc import Callable

    from iree_gauntlet.records.outcome import ChainOutcome, StepOutcome
    from iree_gauntlet.results import Check, OutputComparison, Samples


NOTHING = "–"


@dataclass(frozen=True, slots=True)
class ChainFigures:
    """What a chain measured.

    Attributes:
        compile_seconds: wall time of its compiles that were not served from the cache; None where it has
            no compile that ran.
        time, dispatches, size, work, outside: checks of these metrics, the worst where there are several.
        dispatch_count, binary_size_bytes: measured, from the check or the compiler's statistics.
        instructions: of one call; None where they were not counted.
        instructions_outside: those of them outside of dispatches; None where it is not known which are.
    """

    compile_seconds: float | None
    compile_cached: bool
    outputs: tuple[OutputComparison, ...]
    samples: Samples | None
    time: Check | None
    dispatches: Check | None
    size: Check | None
    dispatch_count: float | None
    binary_size_bytes: float | None
    verdict: str
    disturbed: bool
    instructions: float | None
    instructions_outside: float | None
    work: Check | None
    outside: Check | None

    @property
    def compile_cell(self) -> str:
        """`8.2 s`, `cached`, or a dash."""
        if self.compile_cached:
            return "cached"
        return NOTHING if self.compile_seconds is None else duration(self.compile_seconds)

    @property
    def worst_output(self) -> OutputComparison | None:
        """The output that is furthest off; a failed one before any that passed."""
        return max(
            self.outputs,
            key=lambda output: (not output.passed, _measure_error(output) / (output.atol or 1.0)),
            default=None,
        )

    @property
    def quality_cell(self) -> str:
        """`max error 1.2e-05 (≤ 0.0001 + 1e-05·|expected|)`, `12 of 384 differ (3.1 %)`, or a dash."""
        output = self.worst_output
        if output is None:
            return NOTHING
        error = "" if output.max_abs_error is None else f"max error {format_error(output.max_abs_error)}"
        if output.passed:
            return f"{error} (≤ {output.allowed})" if error else "equal"
        if not output.mismatches:
            # Nothing was compared value by value.
            return "another type or shape than expected"
        differing = (
            f"{whole(output.mismatches)} of {whole(output.count)} differ ({percent(output.mismatches, output.count)})"
            if output.count
            else "differs"
        )
        return f"{differing}, {error} (> {output.allowed})" if error else differing

    @property
    def time_cell(self) -> str:
        """`9.10 ± 0.12`, in ms; `9.10 ± 0.12 *` of a time that was disturbed."""
        if self.samples is None or not self.samples.real_time_ms:
            return NOTHING
        return format_mean_and_spread(self.samples.mean_ms, self.samples.stdev_ms) + (" *" if self.disturbed else "")

    @property
    def least_time_cell(self) -> str:
        """The least repetition, in ms."""
        least = self.samples.min_ms if self.samples else None
        return NOTHING if least is None else milliseconds(least)

    @property
    def golden_time_cell(self) -> str:
        """`9.00 (limit 9.90, mean)`, in ms."""
        if self.time is None or self.time.golden is None or self.time.limit is None:
            return NOTHING
        statistic = f", {self.time.statistic}" if self.time.statistic else ""
        return f"{milliseconds(self.time.golden)} (limit {milliseconds(self.time.limit)}{statistic})"

    @property
    def dispatches_cell(self) -> str:
        """`76 / 76`: measured / limit."""
        return _describe_against(self.dispatch_count, self.dispatches)

    @property
    def size_cell(self) -> str:
        """`833,586 / 840,000`: measured / limit, in bytes."""
        return _describe_against(self.binary_size_bytes, self.size)

    @property
    def instructions_in_dispatches(self) -> float | None:
        """What is held against a golden count: of the whole call where it is not known which are in dispatches."""
        return None if self.instructions is None else self.instructions - (self.instructions_outside or 0.0)

    @property
    def instructions_cell(self) -> str:
        """`1,121,396,412`; with a limit `1,121,274,061 / 1,122,395,335`: in dispatches / limit."""
        held = self.work is not None and self.work.limit is not None
        return _describe_against(self.instructions_in_dispatches if held else self.instructions, self.work)


def collect_chain_figures(chain: ChainOutcome) -> ChainFigures:
    """What the steps of a chain measured."""
    compiles = [step for step in _list_own_compiles(chain) if step.verdict is not Verdict.SKIPPED]
    ran = [step for step in compiles if not step.never_started and not (step.cache and step.cache.hit)]
    checks = [check for step in chain.steps for check in step.checks]
    main = next((step.known for step in compiles if not step.role), StepStatistics())
    timed = [step for step in chain.steps if step.samples is not None]
    counts = [step for step in chain.steps if step.stage is Stage.COUNT]
    by_verdict: dict[str, dict[str, None]] = {}
    for step in _order_worst_first(chain, lambda verdict: verdict.is_bad):
        by_verdict.setdefault(str(step.verdict), {})["not started" if step.never_started else step.name] = None
    verdict = str(chain.verdict)
    dispatches, size = _find_worst(checks, "dispatch_count"), _find_worst(checks, "binary_size_bytes")
    return ChainFigures(
        compile_seconds=sum(step.seconds for step in ran) if ran else None,
        compile_cached=bool(compiles) and all(step.cache and step.cache.hit for step in compiles),
        outputs=tuple(output for step in chain.steps for output in step.outputs),
        samples=timed[-1].samples if timed else None,
        time=_find_worst(checks, "time_ms"),
        dispatches=dispatches,
        size=size,
        dispatch_count=_choose_figure(dispatches, main.dispatch_count),
        binary_size_bytes=_choose_figure(size, main.binary_size_bytes),
        verdict="; ".join(f"{verdict}: {', '.join(names)}" for verdict, names in by_verdict.items()) or verdict,
        disturbed=bool(timed and timed[-1].known.disturbed),
        instructions=counts[-1].known.instructions if counts else None,
        instructions_outside=counts[-1].known.instructions_outside if counts else None,
        work=_find_worst(checks, "instructions"),
        outside=_find_worst(checks, "instructions_outside"),
    )


def _list_own_compiles(chain: ChainOutcome) -> list[StepOutcome]:
    """The compiles of what is run."""
    return [step for step in chain.steps if step.stage is Stage.COMPILE and not step.of_count]


def _order_worst_first(chain: ChainOutcome, counts: Callable[[Verdict], bool]) -> list[StepOutcome]:
    """The steps that came out so, those that made the chain's verdict before the others."""
    found = (step for step in chain.steps if counts(step.verdict))
    return sorted(found, key=lambda step: step.verdict is not chain.verdict)


def _find_worst(checks: list[Check], metric: str) -> Check | None:
    """The check of a metric that failed, else one that was made, else any."""
    own = [check for check in checks if check.metric == metric]
    return min(own, key=lambda check: {False: 0, True: 1, None: 2}[check.passed], default=None)


def _choose_figure(check: Check | None, compiled: float | None) -> float | None:
    """What was held against a golden, else what the compiler says."""
    if check is not None and check.measured is not None:
        return check.measured
    return None if compiled is None else float(compiled)


def _describe_against(value: float | None, check: Check | None) -> str:
    if value is None:
        return NOTHING
    return whole(value) if check is None or check.limit is None else f"{whole(value)} / {whole(check.limit)}"


def _measure_error(output: OutputComparison) -> float:
    """Its largest error, NaN as an infinite one."""
    error = output.max_abs_error or 0.0
    return math.inf if math.isnan(error) else error


@dataclass(frozen=True, slots=True)
class MatrixCell:
    """The result of a chain; a figure that was not measured is None.

    Attributes:
        stages: names of the steps that came out badly, or failed as expected.
        reason: of the first of them; empty where there is none.
        works: whether it came out as a user would want it, expected or not; None where that was not found out
            (skipped, inconclusive, cut short).
        wrong_numbers: its outputs differ from the expected ones.
        compile_seconds: wall time of its compiles, together; those of modules from the cache as recorded.
        compile_peak_bytes: peak memory of the largest of its compiles.
        spread_ms: sample standard deviation of the repetitions.
        statistic: `mean` or `min`, as the spec's dialect has it; empty without a time.
        disturbed: what the machine did besides while they were taken; empty where it was quiet.
        max_abs_error: the largest over all outputs; NaN where one has NaN in place of a number.
        counted_by: what has counted them, and for which CPU the modules were compiled.
        timed_on: machine of a cluster that the time was taken on; empty for the one that the run was started on.
    """

    verdict: Verdict
    stages: tuple[str, ...] = ()
    reason: str = ""
    works: bool | None = None
    wrong_numbers: bool = False
    compile_seconds: float | None = None
    compile_cached: bool = False
    compile_peak_bytes: float | None = None
    time_ms: float | None = None
    spread_ms: float | None = None
    statistic: str = ""
    repetitions: int = 0
    disturbed: str = ""
    dispatch_count: float | None = None
    binary_size_bytes: float | None = None
    max_abs_error: float | None = None
    worst_output: int | None = None
    instructions: float | None = None
    instructions_outside: float | None = None
    counted_by: str = ""
    timed_on: str = ""

    @property
    def instructions_in_dispatches(self) -> float | None:
        """Of the whole call where it is not known which are in dispatches."""
        return None if self.instructions is None else self.instructions - (self.instructions_outside or 0.0)

    @property
    def verdict_text(self) -> str:
        """`passed`, `failed: threshold`, `failed: compile +1`."""
        if not self.stages:
            return str(self.verdict)
        more = f" +{len(self.stages) - 1}" if len(self.stages) > 1 else ""
        return f"{self.verdict}: {self.stages[0]}{more}"


def make_matrix_cell(chain: ChainOutcome) -> MatrixCell:
    """The figures of a chain, to be held against those of other IREEs."""
    figures = collect_chain_figures(chain)
    wanting = _order_worst_first(chain, lambda verdict: verdict.is_bad or verdict.counts_as_failure)
    # None where not all of them passed: a part of them would look like less work.
    compiles = _list_own_compiles(chain)
    known = [step.known for step in compiles] if all(step.verdict.counts_as_pass for step in compiles) else []
    time, statistic, samples = None, "", figures.samples
    if samples is not None and samples.real_time_ms:
        statistic = (figures.time.statistic if figures.time else "") or "mean"
        time = samples.min_ms if statistic == "min" else samples.mean_ms
    compared = [output for output in figures.outputs if output.max_abs_error is not None]
    worst = max(compared, key=_measure_error, default=None)
    counts = [step.known for step in chain.steps if step.stage is Stage.COUNT and step.known.counter]
    conclusive = [step for step in wanting if not step.unfinished and not step.verdict.is_doubtful]
    return MatrixCell(
        verdict=chain.verdict,
        stages=tuple(step.name for step in wanting),
        reason=wanting[0].reason if wanting else "",
        works=True if chain.verdict.counts_as_pass else False if conclusive else None,
        wrong_numbers=any(
            step.verdict is Verdict.FAILED
            or (step.verdict is Verdict.XFAILED and any(not output.passed for output in step.outputs))
            for step in chain.steps
            if step.stage is Stage.THRESHOLD
        ),
        compile_seconds=_combine_known(sum, [item.tool_seconds for item in known]),
        compile_cached=figures.compile_cached,
        compile_peak_bytes=_combine_known(max, [item.peak_rss_bytes for item in known]),
        time_ms=time,
        spread_ms=samples.stdev_ms if time is not None and samples else None,
        statistic=statistic,
        repetitions=len(samples.real_time_ms) if samples else 0,
        disturbed=_format_disturbed(chain),
        dispatch_count=figures.dispatch_count,
        binary_size_bytes=figures.binary_size_bytes,
        max_abs_error=worst.max_abs_error if worst else None,
        worst_output=worst.index if worst else None,
        instructions=figures.instructions,
        instructions_outside=figures.instructions_outside,
        counted_by=", ".join(filter(None, (counts[-1].counter, counts[-1].cpu))) if counts else "",
    )


def _format_disturbed(chain: ChainOutcome) -> str:
    """Of the last benchmark, which is the one whose times count."""
    machines = [step.known.machine for step in chain.steps if step.samples is not None]
    shares = machines[-1] if machines else CpuShares()
    busy, stolen = shares.busy_share, shares.steal_share
    causes = [f"other work kept the CPUs {100 * busy:.0f} % busy"] if busy > BUSY_SHARE else []
    causes += [f"other machines of the host took {100 * stolen:.0f} % of the CPUs"] if stolen > STEAL_SHARE else []
    return "; ".join(causes)


def _combine_known(how: Callable[[list[float]], float], figures: list[float | None]) -> float | None:
    """One figure of several, where all of them are known."""
    known = [figure for figure in figures if figure is not None]
    return how(known) if known and len(known) == len(figures) else None
