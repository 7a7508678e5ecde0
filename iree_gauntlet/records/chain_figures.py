"""The figures of a chain (a model/submodel on a target), for tables and for comparisons with other IREEs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from iree_gauntlet.cases import Verdict
from iree_gauntlet.figures import Combination, Figure, Statistic
from iree_gauntlet.formatting import format_duration, format_mean_and_spread, format_ratio

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from iree_gauntlet.records.outcome import ChainOutcome, StepOutcome
    from iree_gauntlet.results import Check, DispatchCode, OutputComparison, Samples
    from iree_gauntlet.stages import Stage


NO_VALUE = "–"
_CHECK_RANKS = {False: 0, True: 1, None: 2}


@dataclass(frozen=True, slots=True)
class ChainFigures:
    """The figures of a chain.

    Attributes:
        values: the known figures; instructions in dispatches are known only if the counter can separate dispatches.
        checks: the worst comparison of each figure with a limit or an expected value.
        all_from_cache: True if all modules came from the cache; the compile time is from their original compile.
        statistic: the statistic of the time.
        disturbance: what disturbed the machine while the time was measured, such as other work; empty for nothing.
        code: the code of the main module's dispatches; empty if it was not read.
        counted_by: the counter of instructions, and the CPU that the modules were compiled for.
        agrees_with: IREE's other way that computed the expected outputs; empty if a reference did.
    """

    values: Mapping[Figure, float] = field(default_factory=dict)
    checks: Mapping[Figure, Check] = field(default_factory=dict)
    outputs: tuple[OutputComparison, ...] = ()
    samples: Samples | None = None
    all_from_cache: bool = False
    statistic: Statistic = Statistic.MEAN
    disturbance: str = ""
    code: tuple[DispatchCode, ...] = ()
    counted_by: str = ""
    agrees_with: str = ""

    @property
    def worst_output(self) -> OutputComparison | None:
        """The output that is furthest off; a failed output counts as worse than any passed one."""
        return max(
            self.outputs,
            key=lambda output: (not output.passed, _measure_error(output) / (output.atol or 1.0)),
            default=None,
        )

    @property
    def largest_error(self) -> OutputComparison | None:
        """The output with the largest error."""
        compared_outputs = (output for output in self.outputs if output.max_abs_error is not None)
        return max(compared_outputs, key=_measure_error, default=None)

    @property
    def spread_ms(self) -> float | None:
        """The sample standard deviation of the repetitions, in ms; None without a time."""
        return self.samples.stdev_ms if self.samples and Figure.TIME in self.values else None

    def find_check(self, figure: Figure) -> Check | None:
        """Find a figure's check; if a call's instructions have none, the check of the instructions in dispatches."""
        check = self.checks.get(figure)
        return check or (self.checks.get(Figure.DISPATCH_INSTRUCTIONS) if figure is Figure.CALL_INSTRUCTIONS else None)

    def format_cell(self, figure: Figure) -> str:
        """Format a figure for a table of runs, with its limit if any; return a dash for a missing figure."""
        value, check, suffix = self.values.get(figure), self.find_check(figure), ""
        write = figure.row.write
        if figure is Figure.ERROR:
            if self.worst_output is None:
                return NO_VALUE
            relation = "agrees with" if self.worst_output.passed else "against"
            prefix = f"{relation} {self.agrees_with}: " if self.agrees_with else ""
            return f"{prefix}{self.worst_output.summary}"
        if check is not None and check.limit is not None:
            excess = f" · {format_ratio((check.measured or 0) / check.limit)}" if check.limit else ""
            suffix = f" / {write(check.limit)}{excess if check.passed is False else ''}"
            value = (
                self.values.get(Figure.DISPATCH_INSTRUCTIONS, value) if figure is Figure.CALL_INSTRUCTIONS else value
            )
        if figure is Figure.TIME and self.samples is not None and self.samples.real_time_ms:
            # The mean comes first, even if the golden is compared with another statistic.
            mean = format_mean_and_spread(self.samples.mean_ms, self.samples.stdev_ms)
            fastest = (
                f", min {write(value)}" if self.statistic is Statistic.MIN and suffix and value is not None else ""
            )
            return f"{mean}{' *' if self.disturbance else ''}{fastest}{suffix}"
        if value is None:
            return "cached" if figure is Figure.COMPILE_TIME and self.all_from_cache else NO_VALUE
        if figure is Figure.COMPILE_TIME:
            return f"{format_duration(value)} (cached)" if self.all_from_cache else format_duration(value)
        return f"{write(value)}{suffix}"


def collect_chain_figures(chain: ChainOutcome) -> ChainFigures:
    """Collect the figures of a chain from its steps."""
    main_steps = [step for step in chain.steps if not step.is_for_count and step.verdict is not Verdict.SKIPPED]
    compiles = [step for step in main_steps if step.stage is Figure.COMPILE_TIME.row.stage]
    timed_steps = [step for step in chain.steps if step.samples is not None]
    count_records = [
        step.typed_statistics for step in chain.steps if step.is_for_count and step.typed_statistics.counter
    ]
    # For each figure, a failed check has precedence over a passed one, and this over a check that was not made.
    ranked_checks = sorted(
        (check for step in chain.steps for check in step.checks), key=lambda check: _CHECK_RANKS[check.passed]
    )
    checks = {figure: check for check in reversed(ranked_checks) for figure in Figure if check.metric == figure}
    steps: dict[tuple[Stage, bool], list[StepOutcome]] = {}
    for step in chain.steps:
        steps.setdefault((step.stage, step.is_for_count), []).append(step)
    measurable = [(figure, steps.get((figure.row.stage, figure.is_counted), [])) for figure in Figure]
    figures = {
        figure: _measure(figure, figure_steps, checks.get(figure))
        for figure, figure_steps in measurable
        if figure_steps or figure in checks
    }
    values = {figure: value for figure, value in figures.items() if value is not None}
    # With several benchmarks, the last one's times count.
    disturbances = timed_steps[-1].typed_statistics.disturbed if timed_steps else ()
    part = Figure.DISPATCH_INSTRUCTIONS
    if Figure.OUTSIDE_INSTRUCTIONS not in values and values.pop(part, None) is not None:
        # If the counter cannot separate dispatches, the golden was compared with the whole call.
        checks |= {Figure.CALL_INSTRUCTIONS: checks.pop(part)} if part in checks else {}
    return ChainFigures(
        values=values,
        checks=checks,
        outputs=tuple(output for step in chain.steps for output in step.decisive_outputs),
        samples=timed_steps[-1].samples if timed_steps else None,
        all_from_cache=bool(compiles) and all(step.cache and step.cache.hit for step in compiles),
        statistic=timed_steps[-1].time_statistic if timed_steps else Statistic.MEAN,
        disturbance="; ".join(disturbances),
        code=next((step.typed_statistics.code for step in compiles if not step.role), ()),
        agrees_with=next((step.agrees_with for step in chain.steps if step.agrees_with), ""),
        counted_by=", ".join(filter(None, (count_records[-1].counter, count_records[-1].cpu))) if count_records else "",
    )


def _measure(figure: Figure, steps: Sequence[StepOutcome], check: Check | None) -> float | None:
    """Compute a figure of a chain from its steps of the figure's stage."""
    match figure.row.combination:
        case Combination.MAIN:
            main = next((step for step in steps if not step.role and step.verdict is not Verdict.SKIPPED), None)
            value = main.measure(figure) if main else None
            return value if check is None or check.measured is None else check.measured
        case Combination.LAST:
            return steps[-1].measure(figure) if steps else None
        case Combination.WORST:
            return max((step.measure(figure) for step in steps), key=_rank_error, default=None)
        case Combination.SUM:
            return _combine_passed(sum, steps, figure)
        case Combination.LARGEST:
            return _combine_passed(max, steps, figure)


def _combine_passed(
    combine: Callable[[list[float]], float], steps: Sequence[StepOutcome], figure: Figure
) -> float | None:
    """Combine the steps' values; None unless all passed and have values, because a part would look like less work."""
    values = [step.measure(figure) for step in steps if step.verdict.counts_as_pass]
    available_values = [value for value in values if value is not None]
    return combine(available_values) if available_values and len(available_values) == len(steps) else None


def _rank_error(error: float | None) -> float:
    """Return an error as a sort key; NaN counts as infinite, and a missing error as smallest."""
    return -1.0 if error is None else math.inf if math.isnan(error) else error


def _measure_error(output: OutputComparison) -> float:
    return _rank_error(output.max_abs_error or 0.0)


def format_chain_verdict(chain: ChainOutcome) -> str:
    """Format the bad verdicts with their steps: `failed: threshold, compstat; inconclusive: benchmark`."""
    steps: dict[str, dict[str, None]] = {}
    for step in _order_worst_first(chain, lambda verdict: verdict.is_bad):
        steps.setdefault(str(step.verdict), {})["not started" if step.never_started else step.name] = None
    return "; ".join(f"{verdict}: {', '.join(names)}" for verdict, names in steps.items()) or str(chain.verdict)


def _order_worst_first(chain: ChainOutcome, matches: Callable[[Verdict], bool]) -> list[StepOutcome]:
    """Return the steps whose verdicts match, beginning with the steps that have the chain's verdict."""
    steps = (step for step in chain.steps if matches(step.verdict))
    return sorted(steps, key=lambda step: step.verdict is not chain.verdict)


@dataclass(frozen=True, slots=True)
class MatrixCell:
    """The result of a chain with one IREE, for comparison with other IREEs.

    Attributes:
        stages: names of the steps that ended badly, or failed as expected.
        reason: the reason of the first of these steps; empty if there are none.
        works: True if the outcome is good for a user, even if not expected; None if unknown (skipped,
            inconclusive, cut short).
        wrong_numbers: True if the outputs differ from the expected ones.
        url: the target of a link to the failure, relative to the matrix; empty if there is none.
        timed_on: the cluster machine that measured the time; empty for the machine that started the run.
    """

    verdict: Verdict
    figures: ChainFigures = field(default_factory=ChainFigures)
    stages: tuple[str, ...] = ()
    reason: str = ""
    works: bool | None = None
    wrong_numbers: bool = False
    timed_on: str = ""
    url: str = ""

    @property
    def verdict_text(self) -> str:
        """The verdict with the steps that caused it: `passed`, `failed: threshold`, `failed: compile +1`."""
        if not self.stages:
            return str(self.verdict)
        suffix = f" +{len(self.stages) - 1}" if len(self.stages) > 1 else ""
        return f"{self.verdict}: {self.stages[0]}{suffix}"


def make_matrix_cell(chain: ChainOutcome, folder: str = "") -> MatrixCell:
    """Make the result of a chain with one of several IREEs, whose run is in the folder."""
    bad_steps = _order_worst_first(chain, lambda verdict: verdict.is_bad or verdict.counts_as_failure)
    conclusive_steps = [step for step in bad_steps if not step.unfinished and not step.verdict.is_doubtful]
    return MatrixCell(
        verdict=chain.verdict,
        figures=collect_chain_figures(chain),
        stages=tuple(step.name for step in bad_steps),
        reason=bad_steps[0].reason if bad_steps else "",
        url=f"{folder}/summary.html#{bad_steps[0].id}" if folder and chain.verdict.is_bad else "",
        works=True if chain.verdict.counts_as_pass else False if conclusive_steps else None,
        wrong_numbers=any(
            step.verdict is Verdict.FAILED
            or (
                step.verdict in (Verdict.XFAILED, Verdict.QUARANTINED)
                and any(not output.passed for output in step.outputs)
            )
            for step in chain.steps
            if step.stage.row.checks_numbers
        ),
    )
