from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iree_gauntlet.measuring.statistics.comparison_verdict import (
    Interval,
    compute_log_ratios,
    rank_estimate,
    rank_interval,
    rank_p_above,
    sort_walsh_averages,
)
from iree_gauntlet.measuring.statistics.rounds import Block, BlockOrder, EvidenceError, Round

# A grid, so that sums of few of them are exact and ties occur.
_VALUES = st.lists(st.integers(-64, 64).map(lambda number: number / 64), min_size=1, max_size=9)


def _walsh(values: list[float]) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return sort_walsh_averages(np.array(values, dtype=np.float64))


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=9, unique_by=abs).filter(lambda values: 0 not in values))
def test_the_p_value_is_that_of_all_sign_flips(values: list[float]) -> None:
    ranks = {magnitude: rank for rank, magnitude in enumerate(sorted(map(abs, values)), 1)}
    observed = sum(ranks[abs(value)] for value in values if value > 0)
    flips = [
        sum(ranks[abs(value)] for value, positive in zip(values, signs, strict=True) if positive)
        for signs in itertools.product([False, True], repeat=len(values))
    ]
    expected = sum(flip >= observed for flip in flips) / len(flips)
    assert rank_p_above(_walsh(values), 0.0) == pytest.approx(expected, rel=1e-12)


@given(_VALUES, st.floats(0.001, 0.5), st.floats(-1, 1))
def test_the_interval_holds_what_the_test_does_not_reject(values: list[float], level: float, edge: float) -> None:
    walsh = _walsh(values)
    interval = rank_interval(walsh, level)
    assert (interval.low > edge) == (rank_p_above(walsh, edge) <= level / 2)
    assert (interval.high < edge) == (rank_p_above(-walsh[::-1], -edge) <= level / 2)


@given(_VALUES, st.floats(0.001, 0.5))
def test_the_estimate_is_in_the_interval_and_turns_with_the_signs(values: list[float], level: float) -> None:
    walsh, mirrored = _walsh(values), _walsh([-value for value in values])
    interval, turned = rank_interval(walsh, level), rank_interval(mirrored, level)
    assert interval.low <= rank_estimate(walsh) <= interval.high
    assert rank_estimate(mirrored) == -rank_estimate(walsh)
    assert (turned.low, turned.high) == (-interval.high, -interval.low)


def test_too_few_blocks_give_no_bounds() -> None:
    assert rank_interval(_walsh([0.05] * 5), 0.01) == Interval(-math.inf, math.inf)
    assert rank_interval(_walsh([0.05] * 10), 0.01) == Interval(0.05, 0.05)


def test_critical_values_are_those_of_the_printed_tables() -> None:
    # Two-sided 0.05: W ≤ 8 of 10 values, W ≤ 52 of 20 (Wilcoxon and Wilcox, 1964; Hollander and Wolfe, table A.4).
    for count, rejected in ((10, 8), (20, 52)):
        walsh = np.arange(count * (count + 1) // 2, dtype=np.float64)
        assert rank_interval(walsh, 0.05).low == rejected


def test_one_wild_block_hardly_moves_the_interval() -> None:
    values = list(np.random.default_rng(1).normal(0.05, 0.01, 20))
    calm, wild = (rank_interval(_walsh([*values[1:], value]), 0.01) for value in (0.05, 3.0))
    assert wild.low == pytest.approx(calm.low, abs=0.004)
    assert wild.high == pytest.approx(calm.high, abs=0.01)


def _drawn(chance: np.random.Generator, tails: str, count: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    if tails == "normal":
        return chance.standard_normal(count)
    return chance.standard_cauchy(count) if tails == "cauchy" else chance.laplace(size=count)


@pytest.mark.parametrize("tails", ["normal", "cauchy", "laplace"])
@pytest.mark.parametrize("count", [6, 12, 30])
def test_coverage_whatever_the_tails(tails: str, count: int) -> None:
    chance = np.random.default_rng([count, len(tails)])
    sessions = 1000
    missed = 0
    for _ in range(sessions):
        interval = rank_interval(sort_walsh_averages(_drawn(chance, tails, count)), 0.05)
        missed += not interval.low <= 0 <= interval.high
    assert missed / sessions <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / sessions)


@pytest.mark.parametrize("values", [[], [math.nan], [math.inf, 0.0], [0.0] * 1001])
def test_what_is_no_log_ratio_is_an_error(values: list[float]) -> None:
    with pytest.raises(EvidenceError, match="finite numbers"):
        _walsh(values)


def test_no_blocks_are_an_error() -> None:
    with pytest.raises(EvidenceError, match="no blocks"):
        compute_log_ratios([])


def _blocks(count: int, factor: float, seed: int = 0, repetitions: int = 5) -> list[Block]:
    chance = np.random.default_rng(seed)
    scales = (1, factor, factor, 1)
    return [
        Block.of_rounds(
            BlockOrder.ABBA,
            [Round(tuple((scale * np.exp(chance.normal(0, 0.01, repetitions))).tolist())) for scale in scales],
        )
        for _ in range(count)
    ]
