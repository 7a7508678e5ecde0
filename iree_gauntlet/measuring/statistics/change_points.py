"""Where does a series change? Steps of a history of figures, and drifts that no single step accounts for.

The best split of a stretch is that of the energy statistic (Székely and Rizzo, InterStat 2004; "E-divisive": Matteson
and James, Journal of the American Statistical Association 109, 2014), taken over ranks, so that outliers do not pull
it. Splits are taken in turn on both sides, then those that are not significant between their neighbours are given up
again, the weakest first (as in Hunter: Fleming et al., ICPE 2023).

A split is significant where Welch's test on trimmed means (Yuen, Biometrika 61, 1974) and the rank test of Mann and
Whitney both say so; where a stretch is too short for the rank test to get there, the first alone. Both are told how
much figures that follow one another are alike: a first-order autocorrelation r leaves n figures worth n(1 - r)/(1 + r)
(Bartlett, Journal of the Royal Statistical Society 98, 1935). A short stretch could have been found at many places: its
p-value counts as many times as there are such places, beyond three.

All differences are of logarithms: +0.02 is 2 %.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from iree_gauntlet.measuring.statistics.comparison_verdict import compute_student_p

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Values = NDArray[np.float64]


# What a step's p-value is at most.
_P_VALUE = 1e-3
# Fewer figures than this prove nothing on either side of a change; fewer than that leave it suspected.
LEAST_RUNS, CONFIRMED_RUNS = 3, 5
# A share of a stretch that is left out at either end of it, from so many figures on.
_TRIMMED, _TRIMMED_FROM = 0.25, 10
# What is looked into further: splits that need not be significant yet.
_PROMISING = 0.1
# How far from where the energy statistic has it a split may be better.
_REFINED = 8
# Of fewer figures the variance is known so badly that it is taken with the other side's, unless it is so much larger.
_FEW, _MUCH_LARGER = 8, 4.0
_PLACES = 3
_MOST_ALIKE = 0.9
# What a disturbed figure counts for.
_DISTURBED_WEIGHT = 0.25
_EXACT = 900


@dataclass(frozen=True, slots=True)
class LevelChange:
    """A step of a series."""

    at: int
    before: int
    after: int
    effect: float
    p_value: float

    @property
    def confirmed(self) -> bool:
        """Whether enough figures are behind it to call it more than suspected."""
        return self.after >= CONFIRMED_RUNS


@dataclass(frozen=True, slots=True)
class Drift:
    """A series that got slower bit by bit."""

    since: int
    effect: float
    p_value: float


def change_points(
    values: Sequence[float], least_effect: float, *, disturbed: Sequence[bool] = ()
) -> tuple[LevelChange, ...]:
    """The steps of a series of positive finite figures, in its order.

    A step has an effect (|difference of logarithms|) of so much at least. Figures that a busy machine `disturbed` count
    for a quarter.
    """
    series = _Series(values, disturbed)
    cuts = series.splits(0, len(values))
    while cuts:
        changes = series.changes(cuts)
        worst = max(range(len(cuts)), key=lambda place: _rank_weakness(changes[place], least_effect))
        if _rank_weakness(changes[worst], least_effect) < _P_VALUE:
            return changes
        del cuts[worst]
    return ()


def drift(values: Sequence[float], least_effect: float, *, disturbed: Sequence[bool] = ()) -> Drift | None:
    """A rise from the best earlier stretch to the last one that no single step of that size accounts for.

    Arguments are as those of `change_points`.
    """
    # Steps of whatever size: each is significant, and none alone would be reported.
    small = change_points(values, 0.0, disturbed=disturbed)
    if len(small) < 2 or any(abs(change.effect) >= least_effect for change in small):
        return None
    series = _Series(values, disturbed)
    edges = [0, *(change.at for change in small), len(values)]
    *earlier, last = [
        (series.location(start, end), end)
        for start, end in itertools.pairwise(edges)
        if end - start >= CONFIRMED_RUNS or end == len(values)
    ]
    if not earlier or len(values) - edges[-2] < CONFIRMED_RUNS:
        return None
    best, since = min(earlier)
    if last[0] - best < least_effect:
        return None
    return Drift(since, last[0] - best, max(change.p_value for change in small))


def _rank_weakness(change: LevelChange, least_effect: float) -> float:
    """Its p-value; above 1 for one that is too small, the smaller the higher."""
    return change.p_value if abs(change.effect) >= least_effect else 1.0 + least_effect - abs(change.effect)


@dataclass(frozen=True, slots=True)
class _SeriesPart:
    """A stretch as the tests see it."""

    mean: float
    error: float
    count: float
    variance: float


class _Series:
    def __init__(self, values: Sequence[float], disturbed: Sequence[bool]) -> None:
        given = np.asarray(values, dtype=np.float64)
        if not (np.isfinite(given) & (given > 0)).all():
            raise ValueError("figures that are not positive have no logarithm")
        self._logs = np.log(given)
        self._sides: dict[tuple[int, int], _SeriesPart] = {}
        self._weights = np.where(disturbed, _DISTURBED_WEIGHT, 1.0) if len(disturbed) else np.ones(len(given))

    def location(self, start: int, end: int) -> float:
        return self._get_side(start, end).mean

    def splits(self, start: int, end: int) -> list[int]:
        """Where a stretch may change, in order."""
        if end - start < 2 * LEAST_RUNS:
            return []
        at = start + self._find_best_split(start, end)
        if self._test_by_welch(start, at, end, alike=0.0) > _PROMISING:
            return []
        return [*self.splits(start, at), at, *self.splits(at, end)]

    def _find_best_split(self, start: int, end: int) -> int:
        _, inverse, counts = np.unique(self._logs[start:end], return_inverse=True, return_counts=True)
        # Equal ones share theirs.
        ranks = (counts.cumsum() - (counts - 1) / 2)[inverse]
        count = end - start
        apart = np.abs(ranks[:, None] - ranks[None, :])
        first = np.arange(LEAST_RUNS, count - LEAST_RUNS + 1)
        second = count - first
        # Sums over pairs: of the first so many among themselves, and of these with all.
        within = 2 * np.tril(apart).sum(1).cumsum()[first - 1]
        rows = apart.sum(1).cumsum()
        across, behind = rows[first - 1] - within, rows[-1] - 2 * rows[first - 1] + within
        energy = 2 * across / (first * second) - within / first**2 - behind / second**2
        return self._refine_split(self._logs[start:end], int(first[np.argmax(first * second / count * energy)]))

    @staticmethod
    def _refine_split(logs: Values, place: int) -> int:
        """Where both sides are nearest to their medians; what is far off counts no more than three spreads."""
        medians = float(np.median(logs[:place])), float(np.median(logs[place:]))
        off = np.abs(logs - medians[0]), np.abs(logs - medians[1])
        spread = 1.4826 * float(np.median(np.concatenate((off[0][:place], off[1][place:]))))
        if not spread:
            return place
        most = max(3.0, abs(medians[1] - medians[0]) / 2 / spread)
        first, second = (np.minimum(each / spread, most) for each in off)
        cost = np.concatenate(([0.0], np.cumsum(first - second)))
        low, high = max(LEAST_RUNS, place - _REFINED), min(len(logs) - LEAST_RUNS, place + _REFINED)
        return low + int(np.argmin(cost[low : high + 1]))

    def changes(self, cuts: Sequence[int]) -> tuple[LevelChange, ...]:
        """Each split, held against the stretches up to its neighbours."""
        edges = [0, *cuts, len(self._logs)]
        alike = self._measure_likeness(edges)
        found = []
        for start, at, end in zip(edges, edges[1:], edges[2:], strict=False):
            before, after = at - start, end - at
            p_value = max(
                self._test_by_welch(start, at, end, alike=alike), self._rank_test(start, at, end, alike=alike)
            )
            places = max(1.0, (before + after) / (_PLACES * min(before, after)))
            effect = self.location(at, end) - self.location(start, at)
            found.append(LevelChange(at, before, after, effect, min(1.0, p_value * places)))
        return tuple(found)

    def _measure_likeness(self, edges: Sequence[int]) -> float:
        """The autocorrelation of figures about their stretches' means, corrected for being measured from those."""
        parts = [_cut_outliers(self._logs[start:end]) for start, end in itertools.pairwise(edges)]
        rest = np.concatenate([part - part.mean() for part in parts])
        count, power = len(rest), float(rest @ rest)
        if power <= 0:
            return 0.0
        found = float(rest[1:] @ rest[:-1]) / power
        found += (1 + 3 * found) / count + (len(edges) - 2) * (1 - found) / count
        return min(max(found, 0.0), _MOST_ALIKE)

    def _get_side(self, start: int, end: int) -> _SeriesPart:
        # Splits that are given up one by one leave most stretches as they were.
        if (start, end) not in self._sides:
            self._sides[start, end] = self._measure_side(start, end)
        return self._sides[start, end]

    def _measure_side(self, start: int, end: int) -> _SeriesPart:
        order = np.argsort(self._logs[start:end], kind="stable")
        logs, weights = self._logs[start:end][order], self._weights[start:end][order]
        count = end - start
        out = int(_TRIMMED * count) if count >= _TRIMMED_FROM else 0
        kept = slice(out, count - out)
        mean = float(logs[kept] @ weights[kept] / weights[kept].sum())
        # As many figures of full weight as these are worth.
        whole = float(weights.sum())
        worth = float(whole**2 / (weights @ weights))
        left = max(worth * (count - 2 * out) / count, 1.0)
        if worth <= 1 or left <= 1:
            return _SeriesPart(mean, math.inf, left, math.inf)
        clipped = np.clip(logs, logs[out], logs[count - out - 1])
        spread = float((clipped - clipped @ weights / whole) ** 2 @ weights / whole)
        variance = spread * worth / (left - 1)
        return _SeriesPart(mean, variance / left, left, variance)

    def _test_by_welch(self, start: int, at: int, end: int, *, alike: float) -> float:
        one, other = self._get_side(start, at), self._get_side(at, end)
        errors, degrees = (one.error, other.error), 0.0
        if min(at - start, end - at) < _FEW:
            few, many = (one, other) if at - start < end - at else (other, one)
            if few.variance <= _MUCH_LARGER * many.variance:
                degrees = one.count + other.count - 2
                shared = ((one.count - 1) * one.variance + (other.count - 1) * other.variance) / degrees
                shared = max(shared, many.variance)
                errors = shared / one.count, shared / other.count
        total = sum(errors)
        difference = abs(other.mean - one.mean)
        if not total:
            return float(not difference)
        if not math.isfinite(total):
            return 1.0
        if not degrees:
            parts = zip(errors, (one.count, other.count), strict=True)
            degrees = total**2 / sum(error**2 / max(count - 1, 1.0) for error, count in parts)
        return compute_student_p(
            difference / math.sqrt(total) * math.sqrt((1 - alike) / (1 + alike)), max(1, int(degrees))
        )

    def _rank_test(self, start: int, at: int, end: int, *, alike: float) -> float:
        """0 where there are too few figures for it to say anything."""
        one, other = self._logs[start:at], np.sort(self._logs[at:end])
        below, upto = np.searchsorted(other, one, "left"), np.searchsorted(other, one, "right")
        share = float((len(other) - (below + upto) / 2).sum()) / (len(one) * len(other))
        share = min(share, 1 - share)
        worth = (1 - alike) / (1 + alike)
        few, many = sorted(max(1, round(len(side) * worth)) for side in (one, other))
        if 2 / math.comb(few + many, few) > _P_VALUE:
            return 0.0
        pairs = few * many
        if pairs <= _EXACT:
            tail = _rank_tail(few, many)
            low = int(share * pairs)
            part = share * pairs - low
            return min(1.0, 2 * float(tail[low] * (1 - part) + tail[min(low + 1, pairs)] * part))
        deviation = math.sqrt(pairs * (few + many + 1) / 12)
        return math.erfc(max(pairs * (0.5 - share) - 0.5, 0.0) / deviation / math.sqrt(2))


def _cut_outliers(values: Values) -> Values:
    out = int(_TRIMMED * len(values)) if len(values) >= _TRIMMED_FROM else 0
    ordered = np.sort(values)
    return np.clip(values, ordered[out], ordered[len(values) - out - 1])


@cache
def _rank_tail(few: int, many: int) -> Values:
    """P(U ≤ u) of Mann and Whitney's statistic, for u = 0 … few·many: by its generating function."""
    counts = np.zeros(few * many + 1)
    counts[0] = 1.0
    for number in range(1, few + 1):
        step = many + number
        counts[step:] -= counts[: max(len(counts) - step, 0)].copy()
        for place in range(number, len(counts)):
            counts[place] += counts[place - number]
    return np.asarray(np.cumsum(counts) / math.comb(few + many, few))
