"""Find the first candidate that has a change. This module only searches; it runs no candidate.

Candidates form a row from the oldest to the newest. The two ends are on different sides of a change. A candidate
between them is on the old end's side, or on the new end's side, or cannot be judged. The next try is always the middle
of the untried candidates. So a broken candidate costs one try, and the change among n candidates is found after at most
⌈log₂(n − 1)⌉ tries plus one try for each candidate that cannot be judged.

Times are never the same twice, so a candidate is placed on one side of the middle between the two ends. A comparison
of the bad end with the good end (`comparison_verdict`) has shown a difference, and its middle on the log scale is fixed
from then on. Each candidate is compared with the good end in blocks of its own, and is

- bad, if the whole interval of log(candidate/good) is beyond the middle, on bad's side;
- good, if the whole interval is on good's side;
- undecided, if it contains the middle when the budget is spent.

The interval is that of `comparison_verdict`, the intersection of exact intervals over all looks. It covers the truth
with probability 1 − α for any noise and any stopping. A good candidate (log ratio 0) is called bad, or a bad candidate
good, only if its interval does not cover the truth. With C comparisons at level α/C, the search goes wrong with
probability α at most (Boole's inequality). C counts the comparison of the ends, the tries of the search, and the
candidates that may stay undecided.
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


# A value counts as an end's value if its distance from that end is at most this fraction of the ends' distance.
_MAX_END_DISTANCE_FRACTION = 0.25
# The number of candidates that may stay undecided before the search ends with a range.
MAX_UNDECIDED_CANDIDATES = 2


class CandidateEnd(StrEnum):
    """The end that a candidate is like."""

    OLD = "old"
    NEW = "new"
    NEITHER = "neither"


@dataclass(frozen=True, slots=True)
class Search:
    """The state of a search over a row of `count` candidates, including both ends.

    Attributes:
        sides: the sides of the tried candidates, by index in the row; `NEITHER` if a candidate could not be judged.
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
        if not all(0 <= index < self.count for index in self.sides):
            raise GauntletError(f"a place outside of a row of {self.count}: {sorted(self.sides)}")

    @property
    def last_old(self) -> int:
        """The newest candidate on the old end's side.

        If the history alternates between the sides, this candidate precedes the newest change.
        """
        return max(index for index, side in self.sides.items() if side is CandidateEnd.OLD)

    @property
    def first_new(self) -> int:
        """The oldest candidate after `last_old` that is on the new end's side."""
        last_old = self.last_old
        return min(index for index, side in self.sides.items() if side is CandidateEnd.NEW and index > last_old)

    @property
    def between(self) -> tuple[int, ...]:
        """The candidates between `last_old` and `first_new`, which were not tried or could not be judged."""
        return tuple(range(self.last_old + 1, self.first_new))

    @property
    def untried(self) -> tuple[int, ...]:
        """The candidates in `between` that were not tried yet."""
        return tuple(index for index in self.between if index not in self.sides)

    @property
    def next(self) -> int | None:
        """The candidate to try next; None if the search is over."""
        untried = self.untried
        return untried[len(untried) // 2] if untried else None

    def choose_next(self, available: Collection[int]) -> int | None:
        """Return `next`, or the nearest available candidate with which the worst case takes no more tries."""
        untried = self.untried
        middle = len(untried) // 2

        def count_tries(index: int) -> int:
            return max(index, len(untried) - 1 - index).bit_length()

        good = [
            index
            for index, place in enumerate(untried)
            if place in available and count_tries(index) <= count_tries(middle)
        ]
        return untried[min(good, key=lambda index: abs(index - middle), default=middle)] if untried else None

    @property
    def tries_left(self) -> int:
        """The maximum number of further tries, if all candidates can be judged."""
        return count_max_tries(len(self.untried) + 2)

    @property
    def changes(self) -> tuple[tuple[int, int], ...]:
        """Every pair of judged neighbours on different sides; more than one if the history alternates."""
        judged_indices = sorted(index for index, side in self.sides.items() if side is not CandidateEnd.NEITHER)
        pairs = itertools.pairwise(judged_indices)
        return tuple((earlier, later) for earlier, later in pairs if self.sides[earlier] is not self.sides[later])

    @property
    def untried_anywhere(self) -> tuple[int, ...]:
        """All candidates that were not tried, including those that the search does not need."""
        return tuple(index for index in range(self.count) if index not in self.sides)


def count_max_tries(count: int) -> int:
    """Return the maximum number of tries among `count` candidates besides the two ends, if all can be judged.

    Each try leaves at most half of the u untried candidates, rounded down: ⌊log₂ u⌋ + 1 = ⌈log₂(u + 1)⌉ tries.
    """
    return math.ceil(math.log2(count - 1)) if count > 2 else 0


def is_same_value(first: float, second: float) -> bool:
    """Return whether two values are equal; NaN counts as infinity."""
    return _replace_nan(first) == _replace_nan(second)


def is_nearer_to_bad(value: float, good: float, bad: float) -> bool:
    """Return whether a value is nearer to the bad end's value than to the good end's; False in the middle.

    The distance is a ratio if all three are positive, else a difference. NaN counts as infinite.
    """
    value, good, bad = (_replace_nan(number) for number in (value, good, bad))
    low, high = min(good, bad), max(good, bad)
    if value <= low or value >= high:
        return (value <= low) == (bad == low)
    to_bad, to_good = _measure_distance(value, bad, low), _measure_distance(value, good, low)
    return to_bad < to_good


def matches_neither_end(value: float, good: float, bad: float) -> bool:
    """Return whether a value is farther from each end's value than a quarter of the distance between the ends.

    The distance is a ratio if all three are positive, else a difference. NaN counts as infinite.
    """
    value, good, bad = (_replace_nan(number) for number in (value, good, bad))
    minimum = min(value, good, bad)
    end_distance = _measure_distance(good, bad, minimum)
    return all(
        _measure_distance(value, end, minimum) > _MAX_END_DISTANCE_FRACTION * end_distance for end in (good, bad)
    )


def _replace_nan(number: float) -> float:
    return math.inf if math.isnan(number) else number


def _measure_distance(first: float, second: float, minimum: float) -> float:
    if first == second:
        return 0.0
    if math.isinf(first) or math.isinf(second):
        return math.inf
    return abs(math.log(first) - math.log(second)) if minimum > 0 else abs(first - second)


@dataclass(frozen=True, slots=True)
class Placement:
    """The position of a candidate relative to the middle of the two ends.

    Attributes:
        bad: True for the bad end's side, False for the good end's side, None for undecided.
        low, high: the interval of the ratio; 0 and infinity if there are too few blocks.
        next_look: the number of blocks of the next look; None after a decision or the last look.
    """

    bad: bool | None
    reason: str
    ratio: float
    low: float
    high: float
    confidence: float
    next_look: int | None


def count_max_comparisons(count: int) -> int:
    """Return the maximum number of comparisons in a search of `count` candidates, with the comparison of the ends."""
    return 1 + count_max_tries(count) + MAX_UNDECIDED_CANDIDATES


def count_max_flag_comparisons(count: int) -> int:
    """Return the maximum number of comparisons in a search of `count` flags, of which two make the difference together.

    Each of the two takes a search and a try of all found so far; one more try shows that the second alone is too few.
    """
    return count_max_comparisons(count + 1) + count_max_tries(count + 1) + 3


def find_middle(ratio: float, low: float, high: float) -> float:
    """Return the middle between the ends as a log ratio to the good end, given the ratio bad/good and its interval.

    The middle is half the estimated log(bad/good), but not beyond the interval's end that is nearer to the good end.
    So if the interval covers the true ratio, the bad end is beyond the middle. Raise EvidenceError if the interval
    contains 1, since the ends may then be equal.
    """
    if not 0 < low <= high < math.inf or low <= 1 <= high:
        raise EvidenceError(f"the ends do not clearly differ: ratio {ratio:.3f}, interval {low:.3f} to {high:.3f}")
    # The estimate uses all blocks, so it may be slightly outside of the interval, which intersects all looks.
    half = math.log(min(max(ratio, low), high)) / 2
    return min(half, math.log(low)) if half > 0 else max(half, math.log(high))


def place_candidate(ratios: NDArray[np.float64], plan: SequentialPlan, middle: float) -> Placement:
    """Place a candidate by the log ratios log(candidate/good) of its blocks, in the order of measurement.

    Blocks after the plan's last look are not used. The caller has divided α among all comparisons of the search.
    """
    if middle == 0 or not math.isfinite(middle):
        raise EvidenceError(f"a middle at {middle!r} divides nothing")
    interval = Interval(-math.inf, math.inf)
    walsh = sort_walsh_averages(ratios[: plan.max_blocks])
    bad: bool | None = None
    for look, level in plan.list_looks(ratios.size):
        walsh = sort_walsh_averages(ratios[:look])
        interval = interval.intersection(rank_interval(walsh, level))
        bad = _choose_side(interval, middle)
        if bad is not None:
            break
    next_look = plan.next_look(ratios.size) if bad is None and interval.low <= interval.high else None
    return Placement(
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
    # The number format is the same as that of the value beside it.
    span = f"{math.exp(interval.low):.3f} to {math.exp(interval.high):.3f} × the good end's time"
    if bad is None:
        budget = "" if next_look else "; the budget is spent"
        return f"{span} contains the middle of the ends, {math.exp(middle):.3f}{budget}"
    return f"{span} is on the {'bad' if bad else 'good'} end's side of the middle, {math.exp(middle):.3f}"
