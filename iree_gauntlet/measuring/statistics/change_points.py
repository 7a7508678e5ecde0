"""Find where a series changes: steps in a history of metrics, and drifts that no single step explains.

The energy statistic (Székely and Rizzo, InterStat 2004; "E-divisive": Matteson and James, Journal of the American
Statistical Association 109, 2014) finds the best split of a segment. It is computed on ranks, so that outliers have
little influence. Both sides are split in turn. Then splits that are not significant between their neighbours are
discarded, the weakest first (as in Hunter: Fleming et al., ICPE 2023).

A split is significant if both Welch's test on trimmed means (Yuen, Biometrika 61, 1974) and the rank test of Mann and
Whitney say so; if a segment is too short for the rank test, Welch's test decides alone, or requires that the sides do
not overlap. Both tests account for the
correlation of successive values: with a first-order autocorrelation r, n values count as n(1 - r)/(1 + r) (Bartlett,
Journal of the Royal Statistical Society 98, 1935). A short segment could occur at many positions, so its p-value is
multiplied by their number, beyond three. All differences are differences of logarithms: +0.02 is 2 %.
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


# The largest p-value of a step that is reported.
_MAX_P_VALUE = 1e-3
# A change needs at least the first number of values on either side, and the second number to be more than suspected.
MIN_RUNS, MIN_CONFIRMED_RUNS = 3, 5
# The fraction of values that is trimmed at either end, and the smallest segment that is trimmed.
_TRIM_FRACTION, _MIN_TRIM_COUNT = 0.25, 10
# Splits with at most this p-value are split further; they need not be significant yet.
_MAX_SPLIT_P_VALUE = 0.1
# A split may be moved by at most so many values from the position that the energy statistic finds.
_MAX_SHIFT = 8
# A side with fewer values pools its variance with the other side's, unless it exceeds the other's by this factor.
_MIN_VARIANCE_COUNT, _MAX_VARIANCE_RATIO = 8, 4.0
_FREE_POSITIONS = 3
_MAX_AUTOCORRELATION = 0.9
# The weight of a value that was measured on a disturbed machine.
_DISTURBED_WEIGHT = 0.25
_MAX_EXACT_PAIRS = 900


@dataclass(frozen=True, slots=True)
class LevelChange:
    """A step of a series."""

    index: int
    count_before: int
    count_after: int
    effect: float
    p_value: float

    @property
    def is_confirmed(self) -> bool:
        """True if enough values follow the change; otherwise it is only suspected."""
        return self.count_after >= MIN_CONFIRMED_RUNS


@dataclass(frozen=True, slots=True)
class Drift:
    """A series that became slower in small steps."""

    start_index: int
    effect: float
    p_value: float


def find_change_points(
    values: Sequence[float], least_effect: float, *, disturbed: Sequence[bool] = ()
) -> tuple[LevelChange, ...]:
    """Return the steps of a series of positive finite values, in the order of the series.

    A step has an effect (|difference of logarithms|) of at least `least_effect`. Values that are marked as `disturbed`
    by a busy machine count for a quarter.
    """
    series = _Series(values, disturbed)
    splits = series.find_splits(0, len(values))
    while splits:
        changes = series.measure_changes(splits)
        weakest = max(range(len(splits)), key=lambda index: _rank_weakness(changes[index], least_effect))
        if _rank_weakness(changes[weakest], least_effect) < _MAX_P_VALUE:
            return changes
        del splits[weakest]
    return ()


def find_drift(values: Sequence[float], least_effect: float, *, disturbed: Sequence[bool] = ()) -> Drift | None:
    """Return a rise from the best earlier segment to the last segment, if no single step is that large.

    Arguments are those of `find_change_points`.
    """
    # Find steps of any size; there is a drift only if each is significant but too small to be reported.
    small_steps = find_change_points(values, 0.0, disturbed=disturbed)
    if len(small_steps) < 2 or any(abs(change.effect) >= least_effect for change in small_steps):
        return None
    series = _Series(values, disturbed)
    edges = [0, *(change.index for change in small_steps), len(values)]
    *previous_segments, last_segment = [
        (series.get_location(start, end), end)
        for start, end in itertools.pairwise(edges)
        if end - start >= MIN_CONFIRMED_RUNS or end == len(values)
    ]
    if not previous_segments or len(values) - edges[-2] < MIN_CONFIRMED_RUNS:
        return None
    best_level, since = min(previous_segments)
    if last_segment[0] - best_level < least_effect:
        return None
    return Drift(since, last_segment[0] - best_level, max(change.p_value for change in small_steps))


def compute_trend_p(values: Sequence[float]) -> float:
    """Return the p-value of a rise or fall without steps (Mann, Econometrica 13, 1945; Kendall's rank correlation).

    Unlike that of a step, it takes a correlation of successive values for a trend.
    """
    array, count = np.asarray(values, dtype=np.float64), len(values)
    balance = abs(float(np.triu(np.sign(array[None, :] - array[:, None]), 1).sum()))
    deviation = math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    return math.erfc(max(balance - 1, 0.0) / deviation / math.sqrt(2)) if count > 1 else 1.0


def _rank_weakness(change: LevelChange, least_effect: float) -> float:
    """Return the change's p-value; for a change that is too small, a value above 1, larger for smaller changes."""
    return change.p_value if abs(change.effect) >= least_effect else 1.0 + least_effect - abs(change.effect)


@dataclass(frozen=True, slots=True)
class _SegmentStatistics:
    """The mean, standard error, effective count and variance of a segment."""

    mean: float
    error: float
    count: float
    variance: float


class _Series:
    def __init__(self, values: Sequence[float], disturbed: Sequence[bool]) -> None:
        array = np.asarray(values, dtype=np.float64)
        if not (np.isfinite(array) & (array > 0)).all():
            raise ValueError("figures that are not positive have no logarithm")
        self._logs = np.log(array)
        self._segments: dict[tuple[int, int], _SegmentStatistics] = {}
        self._weights = np.where(disturbed, _DISTURBED_WEIGHT, 1.0) if len(disturbed) else np.ones(len(array))

    def get_location(self, start: int, end: int) -> float:
        return self._get_segment(start, end).mean

    def find_splits(self, start: int, end: int) -> list[int]:
        """Return the indices at which a segment may change, in order."""
        if end - start < 2 * MIN_RUNS:
            return []
        index = start + self._find_best_split(start, end)
        if self._test_by_welch(start, index, end, correlation=0.0) > _MAX_SPLIT_P_VALUE:
            return []
        return [*self.find_splits(start, index), index, *self.find_splits(index, end)]

    def _find_best_split(self, start: int, end: int) -> int:
        _, inverse, counts = np.unique(self._logs[start:end], return_inverse=True, return_counts=True)
        # Equal values share their rank.
        ranks = (counts.cumsum() - (counts - 1) / 2)[inverse]
        count = end - start
        distances = np.abs(ranks[:, None] - ranks[None, :])
        left = np.arange(MIN_RUNS, count - MIN_RUNS + 1)
        right = count - left
        # Sums of distances over pairs: among the first values, and between those and all values.
        left_sum = 2 * np.tril(distances).sum(1).cumsum()[left - 1]
        row_sums = distances.sum(1).cumsum()
        cross_sum, right_sum = (row_sums[left - 1] - left_sum, row_sums[-1] - 2 * row_sums[left - 1] + left_sum)
        energy = 2 * cross_sum / (left * right) - left_sum / left**2 - right_sum / right**2
        return self._refine_split(self._logs[start:end], int(left[np.argmax(left * right / count * energy)]))

    @staticmethod
    def _refine_split(logs: Values, index: int) -> int:
        """Return the index at which both sides are nearest to their medians; an outlier counts ≤ three spreads."""
        medians = float(np.median(logs[:index])), float(np.median(logs[index:]))
        distances = np.abs(logs - medians[0]), np.abs(logs - medians[1])
        spread = 1.4826 * float(np.median(np.concatenate((distances[0][:index], distances[1][index:]))))
        if not spread:
            return index
        max_distance = max(3.0, abs(medians[1] - medians[0]) / 2 / spread)
        before_cost, after_cost = (np.minimum(distance / spread, max_distance) for distance in distances)
        cost = np.concatenate(([0.0], np.cumsum(before_cost - after_cost)))
        low, high = (max(MIN_RUNS, index - _MAX_SHIFT), min(len(logs) - MIN_RUNS, index + _MAX_SHIFT))
        return low + int(np.argmin(cost[low : high + 1]))

    def measure_changes(self, splits: Sequence[int]) -> tuple[LevelChange, ...]:
        """Return each split as a change between the segments up to its neighbours."""
        edges = [0, *splits, len(self._logs)]
        correlation = self._estimate_autocorrelation(edges)
        changes = []
        for start, index, end in zip(edges, edges[1:], edges[2:], strict=False):
            count_before, count_after = index - start, end - index
            positions = max(1.0, (count_before + count_after) / (_FREE_POSITIONS * min(count_before, count_after)))
            p_value = max(
                self._test_by_welch(start, index, end, correlation=correlation),
                self._test_by_rank(start, index, end, correlation=correlation, positions=positions),
            )
            effect = self.get_location(index, end) - self.get_location(start, index)
            changes.append(LevelChange(index, count_before, count_after, effect, min(1.0, p_value * positions)))
        return tuple(changes)

    def _estimate_autocorrelation(self, edges: Sequence[int]) -> float:
        """Return the autocorrelation of values about their segments' means, corrected for estimating those."""
        segments = [_cut_outliers(self._logs[start:end]) for start, end in itertools.pairwise(edges)]
        residuals = np.concatenate([segment - segment.mean() for segment in segments])
        count, power = len(residuals), float(residuals @ residuals)
        if power <= 0:
            return 0.0
        estimate = float(residuals[1:] @ residuals[:-1]) / power
        estimate += (1 + 3 * estimate) / count + (len(edges) - 2) * (1 - estimate) / count
        return min(max(estimate, 0.0), _MAX_AUTOCORRELATION)

    def _get_segment(self, start: int, end: int) -> _SegmentStatistics:
        # Most segments are unchanged when splits are discarded one by one.
        if (start, end) not in self._segments:
            self._segments[start, end] = self._measure_segment(start, end)
        return self._segments[start, end]

    def _measure_segment(self, start: int, end: int) -> _SegmentStatistics:
        order = np.argsort(self._logs[start:end], kind="stable")
        logs, weights = self._logs[start:end][order], self._weights[start:end][order]
        count = end - start
        trim_count = int(_TRIM_FRACTION * count) if count >= _MIN_TRIM_COUNT else 0
        kept_slice = slice(trim_count, count - trim_count)
        mean = float(logs[kept_slice] @ weights[kept_slice] / weights[kept_slice].sum())
        # The number of values of full weight that have the same precision as these.
        weight_sum = float(weights.sum())
        effective_count = float(weight_sum**2 / (weights @ weights))
        trimmed_count = max(effective_count * (count - 2 * trim_count) / count, 1.0)
        if effective_count <= 1 or trimmed_count <= 1:
            return _SegmentStatistics(mean, math.inf, trimmed_count, math.inf)
        clipped_logs = np.clip(logs, logs[trim_count], logs[count - trim_count - 1])
        spread = float((clipped_logs - clipped_logs @ weights / weight_sum) ** 2 @ weights / weight_sum)
        variance = spread * effective_count / (trimmed_count - 1)
        return _SegmentStatistics(mean, variance / trimmed_count, trimmed_count, variance)

    def _test_by_welch(self, start: int, index: int, end: int, *, correlation: float) -> float:
        first, second = self._get_segment(start, index), self._get_segment(index, end)
        errors, degrees = (first.error, second.error), 0.0
        if min(index - start, end - index) < _MIN_VARIANCE_COUNT:
            smaller, larger = (first, second) if index - start < end - index else (second, first)
            if smaller.variance <= _MAX_VARIANCE_RATIO * larger.variance:
                degrees = first.count + second.count - 2
                pooled_variance = ((first.count - 1) * first.variance + (second.count - 1) * second.variance) / degrees
                pooled_variance = max(pooled_variance, larger.variance)
                errors = pooled_variance / first.count, pooled_variance / second.count
        total = sum(errors)
        difference = abs(second.mean - first.mean)
        if not total:
            return float(not difference)
        if not math.isfinite(total):
            return 1.0
        if not degrees:
            error_counts = zip(errors, (first.count, second.count), strict=True)
            degrees = total**2 / sum(error**2 / max(count - 1, 1.0) for error, count in error_counts)
        return compute_student_p(
            difference / math.sqrt(total) * math.sqrt((1 - correlation) / (1 + correlation)), max(1, int(degrees))
        )

    def _test_by_rank(self, start: int, index: int, end: int, *, correlation: float, positions: float) -> float:
        """Return the p-value; 0 if there are too few values for the test.

        The p-value will be multiplied by the number of `positions`. If it could not be significant then, whatever the
        values are, it is 0 for sides without any overlap, and 1 for others. (Of correlated values, which drift, this
        would allow more false steps.)
        """
        first, second = self._logs[start:index], np.sort(self._logs[index:end])
        lower, upper = np.searchsorted(second, first, "left"), np.searchsorted(second, first, "right")
        smaller_fraction = float((len(second) - (lower + upper) / 2).sum()) / (len(first) * len(second))
        smaller_fraction = min(smaller_fraction, 1 - smaller_fraction)
        count_factor = (1 - correlation) / (1 + correlation)
        smaller_count, larger_count = sorted(max(1, round(len(segment) * count_factor)) for segment in (first, second))
        least_p = 2 / math.comb(smaller_count + larger_count, smaller_count)
        if least_p > _MAX_P_VALUE:
            return 0.0
        if least_p * positions > _MAX_P_VALUE and smaller_count >= min(len(first), len(second)) - 1:
            return float(smaller_fraction > 0)
        pairs = smaller_count * larger_count
        if pairs <= _MAX_EXACT_PAIRS:
            tail = _compute_rank_tail(smaller_count, larger_count)
            lower_index = int(smaller_fraction * pairs)
            remainder = smaller_fraction * pairs - lower_index
            return min(
                1.0, 2 * float(tail[lower_index] * (1 - remainder) + tail[min(lower_index + 1, pairs)] * remainder)
            )
        deviation = math.sqrt(pairs * (smaller_count + larger_count + 1) / 12)
        return math.erfc(max(pairs * (0.5 - smaller_fraction) - 0.5, 0.0) / deviation / math.sqrt(2))


def _cut_outliers(values: Values) -> Values:
    trim_count = int(_TRIM_FRACTION * len(values)) if len(values) >= _MIN_TRIM_COUNT else 0
    sorted_values = np.sort(values)
    return np.clip(values, sorted_values[trim_count], sorted_values[len(values) - trim_count - 1])


@cache
def _compute_rank_tail(first_count: int, second_count: int) -> Values:
    """Return P(U ≤ u) of Mann and Whitney's statistic for u = 0 … the counts' product, by its generating function."""
    counts = np.zeros(first_count * second_count + 1)
    counts[0] = 1.0
    for number in range(1, first_count + 1):
        step = second_count + number
        counts[step:] -= counts[: max(len(counts) - step, 0)].copy()
        for index in range(number, len(counts)):
            counts[index] += counts[index - number]
    return np.asarray(np.cumsum(counts) / math.comb(first_count + second_count, first_count))
