"""On which side of the middle between two ends does a candidate lie? For times, which are never the same twice.

The bad end was compared with the good one (`comparison_verdict`), and differs. The middle of the two is a fixed number
from then on, on the log scale. A candidate is compared with the good end too, in blocks of its own, and is

- bad, where the whole interval of log(candidate/good) lies beyond the middle, on bad's side;
- good, where it lies wholly on good's side;
- undecided, where it holds the middle when the budget is spent.

The interval is that of `comparison_verdict`: the intersection of exact intervals over all looks, which holds with
1 − α whatever the noise and the stopping. A candidate that is like the good end (log ratio 0) is called bad, or one
like the bad end good, only where it does not hold. So with C comparisons at level α/C each, the whole search goes
wrong with probability α at most (Boole's inequality). C counts the comparison of the ends, the tries of the search,
and the candidates that may stay undecided.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from iree_gauntlet.measuring.statistics.bisection import most_tries
from iree_gauntlet.measuring.statistics.paired import Interval, rank_estimate, rank_interval, sorted_walsh_averages
from iree_gauntlet.measuring.statistics.rounds import EvidenceError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from iree_gauntlet.measuring.statistics.sequential import SequentialPlan


# So many candidates may stay undecided before the search ends with a range.
MOST_UNDECIDED = 2


@dataclass(frozen=True, slots=True)
class Placing:
    """Where a candidate lies.

    Attributes:
        bad: None for undecided.
        reason: one line.
        ratio: estimate of candidate / good.
        low, high: its interval; 0 and infinity where there are too few blocks for one.
        confidence: of the interval, whatever the stopping.
        blocks: how many were looked at.
        next_look: at how many blocks it may be decided; None where it is, or the budget is spent.
    """

    bad: bool | None
    reason: str
    ratio: float
    low: float
    high: float
    confidence: float
    blocks: int
    next_look: int | None


def most_comparisons(count: int) -> int:
    """How many comparisons a search among `count` candidates may make, that of the ends among them."""
    return 1 + most_tries(count) + MOST_UNDECIDED


def middle_of(ratio: float, low: float, high: float) -> float:
    """The middle of the good and the bad end: a log ratio, above 0 where bad takes longer.

    Half the estimated log(bad/good), but never beyond the interval's end that is nearer to the good one: then the
    truth about the bad end lies beyond the middle as surely as the interval holds.

    Args:
        ratio: estimate of bad / good.
        low: lower end of its interval.
        high: upper end.

    Raises:
        EvidenceError: the interval holds 1, so that the ends may be the same.
    """
    if not 0 < low <= high < math.inf or low <= 1 <= high:
        raise EvidenceError(f"the ends do not differ for certain: ratio {ratio:.4g}, interval {low:.4g} to {high:.4g}")
    # The estimate is of all blocks, the interval the intersection over looks: it may lie a little outside.
    half = math.log(min(max(ratio, low), high)) / 2
    return min(half, math.log(low)) if half > 0 else max(half, math.log(high))


def place(ratios: NDArray[np.float64], plan: SequentialPlan, middle: float) -> Placing:
    """Places a candidate by the log ratios log(candidate/good) of its blocks, in the order in which they were taken.

    Args:
        ratios: of all blocks that count; those after the plan's last look are not used.
        plan: when to look and what the looks cost together: α shared out over all comparisons of the search.
        middle: of the ends (`middle_of`); above 0 where bad takes longer.

    Raises:
        EvidenceError: no ratios, one that is not finite, a middle that is 0 or not finite.
    """
    if middle == 0 or not math.isfinite(middle):
        raise EvidenceError(f"a middle at {middle!r} divides nothing")
    interval = Interval(-math.inf, math.inf)
    walsh = sorted_walsh_averages(ratios[: plan.max_blocks])
    bad: bool | None = None
    for look, level in plan.reached(ratios.size):
        walsh = sorted_walsh_averages(ratios[:look])
        interval = interval.intersection(rank_interval(walsh, level))
        bad = _side(interval, middle)
        if bad is not None:
            break
    next_look = plan.next_look(ratios.size) if bad is None and interval.low <= interval.high else None
    return Placing(
        bad=bad,
        reason=_reason(interval, middle, bad, next_look),
        ratio=math.exp(rank_estimate(walsh)),
        low=math.exp(interval.low),
        high=math.exp(interval.high),
        confidence=1 - plan.alpha,
        blocks=int(ratios.size),
        next_look=next_look,
    )


def _side(interval: Interval, middle: float) -> bool | None:
    if interval.low > interval.high:
        return None
    if interval.low > middle:
        return middle > 0
    if interval.high < middle:
        return middle < 0
    return None


def _reason(interval: Interval, middle: float, bad: bool | None, next_look: int | None) -> str:
    if interval.low > interval.high:
        return "earlier and later blocks contradict each other: the machine or a side has changed"
    if math.isinf(interval.low) or math.isinf(interval.high):
        return "too few blocks for an interval at such a false-alarm rate"
    span = f"{math.exp(interval.low):.4g} to {math.exp(interval.high):.4g} times the good end's time"
    if bad is None:
        budget = "" if next_look else "; the budget is spent"
        return f"{span} holds the middle of the ends, {math.exp(middle):.4g}{budget}"
    return f"{span} lies on the {'bad' if bad else 'good'} end's side of the middle, {math.exp(middle):.4g}"
