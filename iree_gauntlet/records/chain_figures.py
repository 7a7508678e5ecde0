"""The figures of a chain, one line for each model/submodel on a target: for tables, and to compare with other IREEs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from iree_gauntlet.cases import Verdict
from iree_gauntlet.figures import Combination, Figure, Statistic
from iree_gauntlet.formatting import duration, format_error, format_mean_and_spread, milliseconds, percent, whole
from iree_gauntlet.journal_format import BUSY_SHARE, STEAL_SHARE
from iree_gauntlet.results import CpuShares

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from iree_gauntlet.records.outcome import ChainOutcome, StepOutcome
    from iree_gauntlet.results import Check, OutputComparison, Samples


NOTHING = "–"
_RANKS = {False: 0, True: 1, None: 2}


@dataclass(frozen=True, slots=True)
class ChainFigures:
    """What a chain measured.

    Attributes:
        values: what there is of each figure. Instructions in dispatches are there only where it is known which are.
        checks: what figures were held against, the worst check of each.
        compile_cached: all of its modules came from the cache; their compile time is that of when they were made.
        statistic: of the time.
        disturbed: what the machine did besides while the time was taken; empty where it was quiet.
        is_marked: whether the time counts as disturbed.
        counted_by: what has counted instructions, and for which CPU the modules were compiled.
    """

    values: Mapping[Figure, float] = field(default_factory=dict)
    checks: Mapping[Figure, Check] = field(default_factory=dict)
    outputs: tuple[OutputComparison, ...] = ()
    samples: Samples | None = None
    compile_cached: bool = False
    statistic: Statistic = Statistic.MEAN
    disturbed: str = ""
    is_marked: bool = False
    counted_by: str = ""

    @property
    def worst_output(self) -> OutputComparison | None:
        """The output that is furthest off; a failed one before any that passed."""
        return max(
            self.outputs,
            key=lambda output: (not output.passed, _measure_error(output) / (output.atol or 1.0)),
            default=None,
        )

    @property
    def largest_error(self) -> OutputComparison | None:
        """The output with the largest error."""
        compared = (output for output in self.outputs if output.max_abs_error is not None)
        return max(compared, key=_measure_error, default=None)

    @property
    def spread_ms(self) -> float | None:
        """Sample standard deviation of the repetitions; None without a time."""
        return self.samples.stdev_ms if self.samples and Figure.TIME in self.values else None

    def find_check(self, figure: Figure) -> Check | None:
        """Find the check of a figure; for the instructions of a call, that of its dispatches."""
        check = self.checks.get(figure)
        return self.checks.get(Figure.INSTRUCTIONS) if figure is Figure.CALL_INSTRUCTIONS and not check else check

    def format_cell(self, figure: Figure) -> str:
        """A figure in a table of runs, with what it was held against; a dash where there is none."""
        value, check = self.values.get(figure), self.find_check(figure)
        if figure is Figure.ERROR:
            return self._format_quality()
        if figure is Figure.TIME and self.samples is not None and self.samples.real_time_ms:
            # The mean, whichever is held against a golden.
            mean = format_mean_and_spread(self.samples.mean_ms, self.samples.stdev_ms)
            return f"{mean} *" if self.is_marked else mean
        limit = None if check is None else check.limit
        if figure is Figure.CALL_INSTRUCTIONS and limit is not None:
            value = self.values.get(Figure.INSTRUCTIONS, value)
        if value is None:
            return "cached" if figure is Figure.COMPILE_TIME and self.compile_cached else NOTHING
        if figure is Figure.COMPILE_TIME:
            return f"{duration(value)} (cached)" if self.compile_cached else duration(value)
        write = figure.row.write
        return write(value) if limit is None else f"{write(value)} / {write(limit)}"

    def _format_quality(self) -> str:
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
    def least_time_cell(self) -> str:
        """The least repetition, in ms."""
        least = self.samples.min_ms if self.samples else None
        return NOTHING if least is None else milliseconds(least)

    @property
    def golden_time_cell(self) -> str:
        """`9.00 (limit 9.90, mean)`, in ms."""
        check = self.checks.get(Figure.TIME)
        if check is None or check.golden is None or check.limit is None:
            return NOTHING
        statistic = f", {check.statistic}" if check.statistic else ""
        return f"{milliseconds(check.golden)} (limit {milliseconds(check.limit)}{statistic})"


def collect_chain_figures(chain: ChainOutcome) -> ChainFigures:
    """What the steps of a chain measured."""
    own = [step for step in chain.steps if not step.of_count and step.verdict is not Verdict.SKIPPED]
    compiles = [step for step in own if step.stage is Figure.COMPILE_TIME.row.stage]
    timed = [step for step in chain.steps if step.samples is not None]
    counts = [step.known for step in chain.steps if step.stage.row.beside and step.known.counter]
    # The check of a figure that failed, else one that was made, else any.
    ranked = sorted((check for step in chain.steps for check in step.checks), key=lambda check: _RANKS[check.passed])
    checks = {figure: check for check in reversed(ranked) for figure in Figure if check.metric == figure}
    measured = {figure: _measure(chain, figure, checks.get(figure)) for figure in Figure}
    values = {figure: value for figure, value in measured.items() if value is not None}
    # Of the last benchmark, which is the one whose times count.
    shares = timed[-1].known.machine if timed else CpuShares()
    busy, stolen = shares.busy_share, shares.steal_share
    causes = [f"other work kept the CPUs {100 * busy:.0f} % busy"] if busy > BUSY_SHARE else []
    causes += [f"other machines of the host took {100 * stolen:.0f} % of the CPUs"] if stolen > STEAL_SHARE else []
    if Figure.INSTRUCTIONS_OUTSIDE not in values and values.pop(Figure.INSTRUCTIONS, None) is not None:
        # It is not known which are in dispatches: what was held against a golden is the whole call.
        checks |= {Figure.CALL_INSTRUCTIONS: checks.pop(Figure.INSTRUCTIONS)} if Figure.INSTRUCTIONS in checks else {}
    return ChainFigures(
        values=values,
        checks=checks,
        outputs=tuple(output for step in chain.steps for output in step.outputs),
        samples=timed[-1].samples if timed else None,
        compile_cached=bool(compiles) and all(step.cache and step.cache.hit for step in compiles),
        statistic=timed[-1].time_statistic if timed else Statistic.MEAN,
        disturbed="; ".join(causes),
        is_marked=bool(timed and timed[-1].known.disturbed),
        counted_by=", ".join(filter(None, (counts[-1].counter, counts[-1].cpu))) if counts else "",
    )


def _measure(chain: ChainOutcome, figure: Figure, check: Check | None) -> float | None:
    """A figure of a chain, from those of its steps."""
    steps = [step for step in chain.steps if step.stage is figure.row.stage and step.of_count is figure.is_counted]
    match figure.row.combination:
        case Combination.MAIN:
            main = next((step for step in steps if not step.role and step.verdict is not Verdict.SKIPPED), None)
            compiled = main.measure(figure) if main else None
            return compiled if check is None or check.measured is None else check.measured
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
    """One value of several; None where not all passed and have it: a part of them would look like less work."""
    values = [step.measure(figure) for step in steps if step.verdict.counts_as_pass]
    known = [value for value in values if value is not None]
    return combine(known) if known and len(known) == len(steps) else None


def _rank_error(error: float | None) -> float:
    """NaN as an infinite one, none below all."""
    return -1.0 if error is None else math.inf if math.isnan(error) else error


def _measure_error(output: OutputComparison) -> float:
    return _rank_error(output.max_abs_error or 0.0)


def format_chain_verdict(chain: ChainOutcome) -> str:
    """The verdicts that are no good with their steps, `failed: threshold, compstat; inconclusive: benchmark`."""
    steps: dict[str, dict[str, None]] = {}
    for step in _order_worst_first(chain, lambda verdict: verdict.is_bad):
        steps.setdefault(str(step.verdict), {})["not started" if step.never_started else step.name] = None
    return "; ".join(f"{verdict}: {', '.join(names)}" for verdict, names in steps.items()) or str(chain.verdict)


def _order_worst_first(chain: ChainOutcome, counts: Callable[[Verdict], bool]) -> list[StepOutcome]:
    """The steps that came out so, those that made the chain's verdict before the others."""
    steps = (step for step in chain.steps if counts(step.verdict))
    return sorted(steps, key=lambda step: step.verdict is not chain.verdict)


@dataclass(frozen=True, slots=True)
class MatrixCell:
    """The result of a chain, to be held against those of other IREEs.

    Attributes:
        stages: names of the steps that came out badly, or failed as expected.
        reason: of the first of them; empty where there is none.
        works: whether it came out as a user would want it, expected or not; None where that was not found out
            (skipped, inconclusive, cut short).
        wrong_numbers: its outputs differ from the expected ones.
        timed_on: machine of a cluster that the time was taken on; empty for the one that the run was started on.
    """

    verdict: Verdict
    figures: ChainFigures = field(default_factory=ChainFigures)
    stages: tuple[str, ...] = ()
    reason: str = ""
    works: bool | None = None
    wrong_numbers: bool = False
    timed_on: str = ""

    @property
    def verdict_text(self) -> str:
        """`passed`, `failed: threshold`, `failed: compile +1`."""
        if not self.stages:
            return str(self.verdict)
        more = f" +{len(self.stages) - 1}" if len(self.stages) > 1 else ""
        return f"{self.verdict}: {self.stages[0]}{more}"


def make_matrix_cell(chain: ChainOutcome) -> MatrixCell:
    """The result of a chain with one of several IREEs."""
    wanting = _order_worst_first(chain, lambda verdict: verdict.is_bad or verdict.counts_as_failure)
    conclusive = [step for step in wanting if not step.unfinished and not step.verdict.is_doubtful]
    return MatrixCell(
        verdict=chain.verdict,
        figures=collect_chain_figures(chain),
        stages=tuple(step.name for step in wanting),
        reason=wanting[0].reason if wanting else "",
        works=True if chain.verdict.counts_as_pass else False if conclusive else None,
        wrong_numbers=any(
            step.verdict is Verdict.FAILED
            or (step.verdict is Verdict.XFAILED and any(not output.passed for output in step.outputs))
            for step in chain.steps
            if step.stage.row.checks_numbers
        ),
    )
