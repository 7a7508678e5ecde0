"""Intervals and p-values from the log ratios of blocks: exact, by flipping signs.

Where B is A times a constant, a block's log ratio less the log of that constant is as likely x as −x: the coin that
chose the block's order decides. So the signs may be flipped freely, and Wilcoxon's signed-rank statistic has a known
distribution for any noise (Wilcoxon, Biometrics Bulletin 1, 1945; counted exactly, without approximation). Turned
round, the constants that the test does not reject are the interval: order statistics of the Walsh averages
(dᵢ + dⱼ)/2, i ≤ j, and their median is the estimate (Hodges and Lehmann, Annals of Mathematical Statistics 34, 1963).
Up to a quarter of wild blocks moves it little.

`bootstrap_t_interval` resamples the hierarchy (block, round, repetition) instead, as a check;
docs/explanation/statistics.md has the coverage of both and of simpler intervals.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from iree_gauntlet.measuring.statistics.rounds import Block, EvidenceError, Location

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


_MAX_BLOCKS = 1000


@dataclass(frozen=True, slots=True)
class Interval:
    """From where to where; infinite where the evidence is too little for any bound."""

    low: float
    high: float

    def intersection(self, other: Interval) -> Interval:
        """What is in both; `low` above `high` where nothing is."""
        return Interval(max(self.low, other.low), min(self.high, other.high))


def compute_log_ratios(blocks: Sequence[Block], location: Location = Location.MIN) -> NDArray[np.float64]:
    """log(B/A) of each block.

    Raises:
        EvidenceError: no blocks.
    """
    if not blocks:
        raise EvidenceError("no blocks to compare", "take at least one round of each side")
    return np.array([block.compute_log_ratio(location) for block in blocks], dtype=np.float64)


def sort_walsh_averages(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The n(n+1)/2 averages (vᵢ + vⱼ)/2, i ≤ j, rising.

    Raises:
        EvidenceError: no values, more than 1,000, or one that is not finite.
    """
    if not 1 <= values.size <= _MAX_BLOCKS or not np.isfinite(values).all():
        raise EvidenceError(f"{values.size} log ratios, expected 1 to {_MAX_BLOCKS} finite numbers")
    rows, columns = _list_pairs(values.size)
    return np.sort((values[rows] + values[columns]) / 2)


def rank_estimate(walsh: NDArray[np.float64]) -> float:
    """The Hodges–Lehmann estimate: median of the sorted Walsh averages."""
    return float(walsh[(walsh.size - 1) // 2] + walsh[walsh.size // 2]) / 2


def rank_interval(walsh: NDArray[np.float64], level: float) -> Interval:
    """The interval of the location that holds with probability 1 − level or more.

    Args:
        walsh: sorted Walsh averages of the values.
        level: two-sided; too small a one for so few values gives an infinite interval.
    """
    needed = _find_critical_count(_count(walsh), level / 2)
    if needed > walsh.size:
        return Interval(-math.inf, math.inf)
    return Interval(float(walsh[walsh.size - needed]), float(walsh[needed - 1]))


def rank_p_above(walsh: NDArray[np.float64], edge: float) -> float:
    """One-sided p-value against "the location is at most `edge`"; averages on the edge count for it."""
    above = int(walsh.size - np.searchsorted(walsh, edge, side="right"))
    return float(_compute_upper_tail(_count(walsh))[above])


def _count(walsh: NDArray[np.float64]) -> int:
    return (math.isqrt(8 * walsh.size + 1) - 1) // 2


# The tables depend on n alone and are the same for every model of a run.
@functools.lru_cache(maxsize=8)
def _list_pairs(count: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Places i ≤ j of all pairs of n values."""
    rows, columns = np.triu_indices(count)
    for places in (rows, columns):
        places.flags.writeable = False
    return rows, columns


@functools.lru_cache(maxsize=256)
def _compute_upper_tail(count: int) -> NDArray[np.float64]:
    """P(W ≥ w) for w = 0 … n(n+1)/2, of the signed-rank statistic of n values."""
    size = count * (count + 1) // 2 + 1
    chances = np.zeros(size)
    chances[0] = 1.0
    for rank in range(1, count + 1):
        with_rank = np.zeros(size)
        with_rank[rank:] = chances[:-rank]
        chances = (chances + with_rank) / 2
    tail = np.cumsum(chances[::-1])[::-1].copy()
    tail[0] = 1.0
    tail.flags.writeable = False
    return tail


@functools.lru_cache(maxsize=1024)
def _find_critical_count(count: int, level: float) -> int:
    """The fewest Walsh averages above a value that reject it at a one-sided level; more than exist where none do."""
    tail = _compute_upper_tail(count)
    # The tail falls with w.
    return int(np.searchsorted(-tail, -level, side="left"))


def bootstrap_t_interval(
    blocks: Sequence[Block], level: float, seed: int, draws: int = 1000, location: Location = Location.MIN
) -> Interval:
    """Interval of the mean log ratio by a studentised bootstrap over blocks, rounds in them, repetitions in those.

    Efron and Tibshirani, An Introduction to the Bootstrap, 1993, §12.5: each resample gives (mean* − mean)/se*, and
    their quantiles take the place of Student's. The block order is no matter here.

    Args:
        blocks: at least three, all rounds with the same number of repetitions.
        level: two-sided.
        seed: the same seed gives the same interval.
        draws: resamples.
        location: which figure stands for a round.

    Raises:
        EvidenceError: too few blocks or draws, rounds of unequal length, a level outside 0 to 1.
    """
    if len(blocks) < 3 or draws < 100 or not 0 < level < 1 or seed < 0:
        raise EvidenceError(
            f"cannot bootstrap {len(blocks)} blocks with {draws} draws, seed {seed} and level {level!r}",
            "it takes 3 blocks, 100 draws, a seed of 0 or more and a level between 0 and 1",
        )
    if len({len(round_.times) for block in blocks for round_ in (*block.a, *block.b)}) != 1:
        raise EvidenceError("rounds with unequal numbers of repetitions cannot be resampled together")
    # Axes: block, side, round, repetition.
    times = np.log([[[round_.times for round_ in side] for side in (block.a, block.b)] for block in blocks])
    chance = np.random.default_rng(seed)
    count, _, rounds, repetitions = times.shape
    chosen = chance.integers(count, size=(draws, count))[:, :, None, None, None]
    sides = np.arange(2)[None, None, :, None, None]
    in_block = chance.integers(rounds, size=(draws, count, 2, rounds))[..., None]
    in_round = chance.integers(repetitions, size=(draws, count, 2, rounds, repetitions))
    figures = _reduce_repetitions(times[chosen, sides, in_block, in_round], location).mean(axis=-1)
    resampled = figures[..., 1] - figures[..., 0]
    original = compute_log_ratios(blocks, location)
    mean, error = original.mean(), original.std(ddof=1) / math.sqrt(count)
    errors = resampled.std(axis=1, ddof=1) / math.sqrt(count)
    usable = errors > 0
    if error == 0 or not usable.any():
        return Interval(float(mean), float(mean)) if error == 0 else Interval(-math.inf, math.inf)
    studentised = (resampled[usable].mean(axis=1) - mean) / errors[usable]
    low, high = np.quantile(studentised, [1 - level / 2, level / 2])
    return Interval(float(mean - low * error), float(mean - high * error))


def _reduce_repetitions(log_times: NDArray[np.float64], location: Location) -> NDArray[np.float64]:
    match location:
        case Location.MIN:
            return np.asarray(log_times.min(axis=-1))
        case Location.MEDIAN:
            return np.asarray(np.median(log_times, axis=-1))
        case Location.MEAN:
            return np.asarray(np.log(np.exp(log_times).mean(axis=-1)))
