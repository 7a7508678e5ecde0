"""Since when is it so? The search alone: no candidate is run here.

Candidates stand in a row from the oldest to the newest. The two ends are on different sides of a change; what lies
between is on the old end's side, on the new end's, or cannot be judged. Always the middle one of those that were not
tried is next: then a broken one costs one try, and the change is found after at most ⌈log₂(n − 1)⌉ tries of n
candidates and one for each that cannot be judged.

Times are never the same twice, so a candidate is placed on one side of the middle between the two ends. The bad end was
compared with the good one (`comparison_verdict`), and differs. The middle of the two is a fixed number from then on, on
the log scale. A candidate is compared with the good end too, in blocks of its own, and is

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

import itertools
import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from iree_gauntlet.errors import GauntletError
from iree_gauntlet.measuring.statistics.comparison_verdict import (
    Interval,
    rank_estimate,
    rank_interval,
    sort_walsh_averages,
)
from iree_gauntlet.measuring.statistics.rounds import EvidenceError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from iree_gauntlet.measuring.statistics.rounds import SequentialPlan


# What lies within this share of the distance between good and bad from one of them is that one's value.
_FITS = 0.25
# So many candidates may stay undecided before the search ends with a range.
MOST_UNDECIDED = 2


class CandidateEnd(StrEnum):
    """Which end a candidate is like."""

    OLD = "old"
    NEW = "new"
    NEITHER = "neither"


@dataclass(frozen=True, slots=True)
class Search:
    """What is known of a row of so many candidates, both ends among them.

    Attributes:
        sides: of those that were tried, by their place in the row; `NEITHER` for what could not be judged.
    """

    count: int
    sides: Mapping[int, CandidateEnd]

    def __post_init__(self) -> None:
        if (
            self.count < 2
            or self.sides.get(0) is not CandidateEnd.OLD
            or self.sides.get(self.count - 1) is not CandidateEnd.NEW
        ):
            raise GauntletError("a search needs two ends that differ", "check the ends first")
        if not all(0 <= place < self.count for place in self.sides):
            raise GauntletError(f"a place outside of a row of {self.count}: {sorted(self.sides)}")

    @property
    def last_old(self) -> int:
        """The newest candidate on the old end's side.

        Where the history goes back and forth that is before the newest of the changes: since then it is as it is.
        """
        return max(place for place, side in self.sides.items() if side is CandidateEnd.OLD)

    @property
    def first_new(self) -> int:
        """The oldest candidate after `last_old` that is on the new end's side."""
        after = self.last_old
        return min(place for place, side in self.sides.items() if side is CandidateEnd.NEW and place > after)

    @property
    def between(self) -> tuple[int, ...]:
        """What lies between `last_old` and `first_new`: not tried, or not to be judged."""
        return tuple(range(self.last_old + 1, self.first_new))

    @property
    def untried(self) -> tuple[int, ...]:
        """What is worth a try: those between that were not tried yet."""
        return tuple(place for place in self.between if place not in self.sides)

    @property
    def next(self) -> int | None:
        """Which one to try; None where the search is over."""
        untried = self.untried
        return untried[len(untried) // 2] if untried else None

    def next_of(self, there: Collection[int]) -> int | None:
        """As `next`; of those that cost no more tries at worst, the nearest to the middle that is there already."""
        untried = self.untried
        middle = len(untried) // 2

        def most(index: int) -> int:
            return max(index, len(untried) - 1 - index).bit_length()

        as_good = [index for index, place in enumerate(untried) if place in there and most(index) <= most(middle)]
        return untried[min(as_good, key=lambda index: abs(index - middle), default=middle)] if untried else None

    @property
    def tries_left(self) -> int:
        """How many more tries it takes at most, if all can be judged."""
        return count_most_tries(len(self.untried) + 2)

    @property
    def changes(self) -> tuple[tuple[int, int], ...]:
        """Every pair of judged neighbours on different sides; more than one where the history goes back and forth."""
        judged = sorted(place for place, side in self.sides.items() if side is not CandidateEnd.NEITHER)
        pairs = itertools.pairwise(judged)
        return tuple((before, after) for before, after in pairs if self.sides[before] is not self.sides[after])

    @property
    def untried_anywhere(self) -> tuple[int, ...]:
        """Everything that was not tried, also where the search needs none."""
        return tuple(place for place in range(self.count) if place not in self.sides)


def count_most_tries(count: int) -> int:
    """How many candidates a search among so many tries at most, in addition to the two ends, if all can be judged.

    Each try leaves at most half of those that were not tried, rounded down: ⌊log₂ u⌋ + 1 = ⌈log₂(u + 1)⌉ for u of them.
    """
    return math.ceil(math.log2(count - 1)) if count > 2 else 0


def is_same_value(one: float, other: float) -> bool:
    """Whether two values are the same. NaN counts as infinite."""
    return _replace_nan(one) == _replace_nan(other)


def is_nearer_to_bad(value: float, good: float, bad: float) -> bool:
    """Whether a value is nearer to the bad end's than to the good end's; in the middle it is not.

    By ratio where all three are positive, else by difference. NaN counts as infinite.
    """
    value, good, bad = (_replace_nan(number) for number in (value, good, bad))
    low, high = min(good, bad), max(good, bad)
    if value <= low or value >= high:
        return (value <= low) == (bad == low)
    to_bad, to_good = _measure_distance(value, bad, low), _measure_distance(value, good, low)
    return to_bad < to_good


def is_third_value(value: float, good: float, bad: float) -> bool:
    """Whether a value is neither the good end's nor the bad one's: farther from each than a quarter of their distance.

    By ratio where all three are positive, else by difference. NaN counts as infinite.
    """
    value, good, bad = (_replace_nan(number) for number in (value, good, bad))
    least = min(value, good, bad)
    between = _measure_distance(good, bad, least)
    return all(_measure_distance(value, end, least) > _FITS * between for end in (good, bad))


def _replace_nan(number: float) -> float:
    return math.inf if math.isnan(number) else number


def _measure_distance(one: float, other: float, least: float) -> float:
    if one == other:
        return 0.0
    if math.isinf(one) or math.isinf(other):
        return math.inf
    return abs(math.log(one) - math.log(other)) if least > 0 else abs(one - other)


@dataclass(frozen=True, slots=True)
class Placing:
    """Where a candidate lies.

    Attributes:
        bad: None for undecided.
        low, high: its interval; 0 and infinity where there are too few blocks for one.
        next_look: at how many blocks it may be decided; None where it is, or the budget is spent.
    """

    bad: bool | None
    reason: str
    ratio: float
    low: float
    high: float
    confidence: float
    next_look: int | None


def most_comparisons(count: int) -> int:
    """How many comparisons a search among `count` candidates may make, that of the ends among them."""
    return 1 + count_most_tries(count) + MOST_UNDECIDED


def find_middle(ratio: float, low: float, high: float) -> float:
    """The middle of the good and the bad end, from bad / good and its interval: a log ratio, above 0 for a slower bad.

    Half the estimated log(bad/good), but never beyond the interval's end that is nearer to the good one: then the
    truth about the bad end lies beyond the middle as surely as the interval holds. An interval that holds 1, so that
    the ends may be the same, is an EvidenceError.
    """
    if not 0 < low <= high < math.inf or low <= 1 <= high:
        raise EvidenceError(f"the ends do not differ for certain: ratio {ratio:.3f}, interval {low:.3f} to {high:.3f}")
    # The estimate is of all blocks, the interval the intersection over looks: it may lie a little outside.
    half = math.log(min(max(ratio, low), high)) / 2
    return min(half, math.log(low)) if half > 0 else max(half, math.log(high))


def place(ratios: NDArray[np.float64], plan: SequentialPlan, middle: float) -> Placing:
    """Places a candidate by the log ratios log(candidate/good) of its blocks, in the order in which they were taken.

    Those after the plan's last look are not used; its α is shared out over all comparisons of the search.
    """
    if middle == 0 or not math.isfinite(middle):
        raise EvidenceError(f"a middle at {middle!r} divides nothing")
    interval = Interval(-math.inf, math.inf)
    walsh = sort_walsh_averages(ratios[: plan.max_blocks])
    bad: bool | None = None
    for look, level in plan.reached(ratios.size):
        walsh = sort_walsh_averages(ratios[:look])
        interval = interval.intersection(rank_interval(walsh, level))
        bad = _choose_side(interval, middle)
        if bad is not None:
            break
    next_look = plan.next_look(ratios.size) if bad is None and interval.low <= interval.high else None
    return Placing(
        bad=bad,
        reason=_describe_reason(interval, middle, bad, next_look),
        ratio=math.exp(rank_estimate(walsh)),
        low=math.exp(interval.low),
        high=math.exp(interval.high),
        confidence=1 - plan.alpha,
        next_look=next_look,
    )


def _choose_side(interval: Interval, middle: float) -> bool | None:
    if interval.low > interval.high:
        return None
    if interval.low > middle:
        return middle > 0
    if interval.high < middle:
        return middle < 0
    return None


def _describe_reason(interval: Interval, middle: float, bad: bool | None, next_look: int | None) -> str:
    if interval.low > interval.high:
        return "earlier and later blocks contradict each other: the machine or a side has changed"
    if math.isinf(interval.low) or math.isinf(interval.high):
        return "too few blocks for an interval at such a false-alarm rate"
    # As the value beside it is written.
    span = f"{math.exp(interval.low):.3f} to {math.exp(interval.high):.3f} × the good end's time"
    if bad is None:
        budget = "" if next_look else "; the budget is spent"
        return f"{span} holds the middle of the ends, {math.exp(middle):.3f}{budget}"
    return f"{span} lies on the {'bad' if bad else 'good'} end's side of the middle, {math.exp(middle):.3f}"
