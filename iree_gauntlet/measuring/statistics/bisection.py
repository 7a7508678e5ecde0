"""Since when is it so? The search alone: no candidate is run here.

Candidates stand in a row from the oldest to the newest. The two ends are on different sides of a change; what lies
between is on the old end's side, on the new end's, or cannot be judged. Always the middle one of those that were not
tried is next: then a broken one costs one try, and the change is found after at most ⌈log₂(n − 1)⌉ tries of n
candidates and one for each that cannot be judged.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from iree_gauntlet.errors import GauntletError

if TYPE_CHECKING:
    from collections.abc import Mapping


# What lies within this share of the distance between good and bad from one of them is that one's value.
_FITS = 0.25


class Side(StrEnum):
    """Which end a candidate is like."""

    OLD = "old"
    NEW = "new"
    NEITHER = "neither"


@dataclass(frozen=True, slots=True)
class Search:
    """What is known of a row of candidates.

    Attributes:
        count: how many there are, both ends among them.
        sides: of those that were tried, by their place in the row; `NEITHER` for what could not be judged.

    Raises:
        GauntletError: the ends are not on their own sides, or a place is outside of the row.
    """

    count: int
    sides: Mapping[int, Side]

    def __post_init__(self) -> None:
        if self.count < 2 or self.sides.get(0) is not Side.OLD or self.sides.get(self.count - 1) is not Side.NEW:
            raise GauntletError("a search needs two ends that differ", "check the ends first")
        if not all(0 <= place < self.count for place in self.sides):
            raise GauntletError(f"a place outside of a row of {self.count}: {sorted(self.sides)}")

    @property
    def last_old(self) -> int:
        """The newest candidate on the old end's side.

        Where the history goes back and forth that is before the newest of the changes: since then it is as it is.
        """
        return max(place for place, side in self.sides.items() if side is Side.OLD)

    @property
    def first_new(self) -> int:
        """The oldest candidate after `last_old` that is on the new end's side."""
        after = self.last_old
        return min(place for place, side in self.sides.items() if side is Side.NEW and place > after)

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

    @property
    def tries_left(self) -> int:
        """How many more tries it takes at most, if all can be judged."""
        return most_tries(len(self.untried) + 2)

    @property
    def changes(self) -> tuple[tuple[int, int], ...]:
        """Every pair of judged neighbours on different sides; more than one where the history goes back and forth."""
        judged = sorted(place for place, side in self.sides.items() if side is not Side.NEITHER)
        pairs = itertools.pairwise(judged)
        return tuple((before, after) for before, after in pairs if self.sides[before] is not self.sides[after])

    @property
    def untried_anywhere(self) -> tuple[int, ...]:
        """Everything that was not tried, also where the search needs none."""
        return tuple(place for place in range(self.count) if place not in self.sides)


def most_tries(count: int) -> int:
    """How many candidates a search among so many tries at most, in addition to the two ends, if all can be judged.

    Each try leaves at most half of those that were not tried, rounded down: ⌊log₂ u⌋ + 1 = ⌈log₂(u + 1)⌉ for u of them.
    """
    return math.ceil(math.log2(count - 1)) if count > 2 else 0


def is_same_value(one: float, other: float) -> bool:
    """Whether two values are the same. NaN counts as infinite."""
    return _no_nan(one) == _no_nan(other)


def is_nearer_to_bad(value: float, good: float, bad: float) -> bool:
    """Whether a value is nearer to the bad end's than to the good end's; in the middle it is not.

    By ratio where all three are positive, else by difference. NaN counts as infinite.
    """
    value, good, bad = (_no_nan(number) for number in (value, good, bad))
    low, high = min(good, bad), max(good, bad)
    if value <= low or value >= high:
        return (value <= low) == (bad == low)
    to_bad, to_good = _distance(value, bad, low), _distance(value, good, low)
    return to_bad < to_good


def is_third_value(value: float, good: float, bad: float) -> bool:
    """Whether a value is neither the good end's nor the bad one's: farther from each than a quarter of their distance.

    By ratio where all three are positive, else by difference. NaN counts as infinite.
    """
    value, good, bad = (_no_nan(number) for number in (value, good, bad))
    least = min(value, good, bad)
    between = _distance(good, bad, least)
    return all(_distance(value, end, least) > _FITS * between for end in (good, bad))


def _no_nan(number: float) -> float:
    return math.inf if math.isnan(number) else number


def _distance(one: float, other: float, least: float) -> float:
    if one == other:
        return 0.0
    if math.isinf(one) or math.isinf(other):
        return math.inf
    return abs(math.log(one) - math.log(other)) if least > 0 else abs(one - other)
