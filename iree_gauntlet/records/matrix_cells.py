"""The result of one chain with one IREE: the figures that are compared with those of other IREEs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from iree_gauntlet.cases import Verdict
from iree_gauntlet.journal_format import BUSY_SHARE, STEAL_SHARE
from iree_gauntlet.recorded import number
from iree_gauntlet.records.chain_figures import chain_figures
from iree_gauntlet.records.outcome import BAD_VERDICTS, ChainOutcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from iree_gauntlet.records.step_outcome import StepOutcome
    from iree_gauntlet.results import OutputComparison


@dataclass(frozen=True, slots=True)
class MatrixCell:
    """The result of a chain; a figure that was not measured is None.

    Attributes:
        verdict: of the chain.
        stages: names of the steps that came out badly, or failed as expected.
        reason: of the first of them; empty where there is none.
        works: whether it came out as a user would want it, expected or not; None where that was not found out
            (skipped, inconclusive, cut short).
        wrong_numbers: its outputs differ from the expected ones.
        compile_seconds: wall time of its compiles, together; those of modules from the cache as recorded.
        compile_cached: all of them came from the cache.
        compile_peak_bytes: peak memory of the largest of its compiles.
        time_ms: run time, by the statistic.
        spread_ms: sample standard deviation of the repetitions.
        statistic: `mean` or `min`, as the spec's dialect has it; empty without a time.
        repetitions: how many there were.
        disturbed: what the machine did besides while they were taken; empty where it was quiet.
        dispatch_count: of the main module.
        binary_size_bytes: of the main module.
        max_abs_error: the largest over all outputs; NaN where one has NaN in place of a number.
        worst_output: index of that output.
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

    @property
    def verdict_text(self) -> str:
        """`passed`, `failed: threshold`, `failed: compile +1`."""
        if not self.stages:
            return str(self.verdict)
        more = f" +{len(self.stages) - 1}" if len(self.stages) > 1 else ""
        return f"{self.verdict}: {self.stages[0]}{more}"


def matrix_cell(chain: ChainOutcome) -> MatrixCell:
    """Gather the figures of a chain."""
    figures = chain_figures(chain)
    wanting = [step for step in chain.steps if step.verdict in BAD_VERDICTS or step.verdict is Verdict.XFAILED]
    # The worst first: the chain's verdict is its.
    wanting.sort(key=lambda step: step.verdict is not chain.verdict)
    compiles = _compiles(chain.steps)
    statistics = [step.statistics for step in compiles]
    time, statistic = None, ""
    if figures.samples is not None and figures.samples.real_time_ms:
        statistic = (figures.time.statistic if figures.time else "") or "mean"
        time = figures.samples.min_ms if statistic == "min" else figures.samples.mean_ms
    worst = _worst_error(figures.outputs)
    return MatrixCell(
        verdict=chain.verdict,
        stages=tuple(step.name for step in wanting),
        reason=wanting[0].reason if wanting else "",
        works=_works(chain, wanting),
        wrong_numbers=any(_has_wrong_numbers(step) for step in chain.steps),
        compile_seconds=_together(sum, [number(item.get("tool_seconds")) for item in statistics]),
        compile_cached=figures.compile_cached,
        compile_peak_bytes=_together(max, [number(item.get("peak_rss_bytes")) for item in statistics]),
        time_ms=time,
        spread_ms=figures.samples.stdev_ms if time is not None and figures.samples else None,
        statistic=statistic,
        repetitions=len(figures.samples.real_time_ms) if figures.samples else 0,
        disturbed=_disturbed(chain.steps),
        dispatch_count=figures.dispatch_count,
        binary_size_bytes=figures.binary_size_bytes,
        max_abs_error=worst.max_abs_error if worst else None,
        worst_output=worst.index if worst else None,
    )


def _disturbed(steps: Iterable[StepOutcome]) -> str:
    """Of the last benchmark, which is the one whose times count."""
    machines = [step.statistics.get("machine") or {} for step in steps if step.samples is not None]
    if not machines:
        return ""
    busy, stolen = number(machines[-1].get("busy_share")) or 0.0, number(machines[-1].get("steal_share")) or 0.0
    causes = [f"other work kept the CPUs {100 * busy:.0f} % busy"] if busy > BUSY_SHARE else []
    causes += [f"other machines of the host took {100 * stolen:.0f} % of the CPUs"] if stolen > STEAL_SHARE else []
    return "; ".join(causes)


def _compiles(steps: Iterable[StepOutcome]) -> list[StepOutcome]:
    """The compiles of a chain; none where not all of them passed: a part of them would look like less work."""
    found = [step for step in steps if step.stage == "compile"]
    return found if all(step.verdict in {Verdict.PASSED, Verdict.XPASSED} for step in found) else []


def _together(how: Callable[[list[float]], float], figures: list[float | None]) -> float | None:
    """One figure of several, where all of them are known."""
    known = [figure for figure in figures if figure is not None]
    return how(known) if known and len(known) == len(figures) else None


def _works(chain: ChainOutcome, wanting: list[StepOutcome]) -> bool | None:
    if chain.verdict in {Verdict.PASSED, Verdict.XPASSED}:
        return True
    conclusive = [step for step in wanting if not step.unfinished and step.verdict is not Verdict.INCONCLUSIVE]
    return False if conclusive else None


def _has_wrong_numbers(step: StepOutcome) -> bool:
    if step.stage != "threshold":
        return False
    return step.verdict is Verdict.FAILED or (
        step.verdict is Verdict.XFAILED and any(not output.passed for output in step.outputs)
    )


def _worst_error(outputs: tuple[OutputComparison, ...]) -> OutputComparison | None:
    known = [output for output in outputs if output.max_abs_error is not None]
    return max(known, key=_error, default=None)


def _error(output: OutputComparison) -> float:
    error = output.max_abs_error
    return math.inf if error is None or math.isnan(error) else error
