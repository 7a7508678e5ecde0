"""Rules for golden times: outliers, means and shares of false alarms."""

from __future__ import annotations

import math
import statistics
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iree_gauntlet.errors import UsageError
from iree_gauntlet.measuring.goldens.golden_rules import find_outliers, parse_rule
from tests.support.simulated_histories import draw_noise, simulate


@pytest.mark.parametrize(
    ("times", "outliers"),
    [
        ([0.4, 0.4, 0.4, 0.004, 0.4, 0.4], {3}),
        ([0.4, 0.41, 0.39, 0.4, 4.0], {4}),
        # Nothing says which of two is the outlier, and less than 10 % is none.
        ([0.4, 0.004], set()),
        ([0.4], set()),
        ([1.0, 1.0, 1.0, 1.0, 1.09], set()),
        ([1.0, 1.0, 1.0, 1.0, 1.11], {4}),
        # Where times vary, the same distance is usual.
        ([1.0, 1.11, 0.95, 1.05, 0.9], set()),
        ([1.0, 2.0, 4.0], set()),
    ],
)
def test_what_stands_alone_is_an_outlier(times: list[float], outliers: set[int]) -> None:
    assert find_outliers(times) == outliers


@given(times=st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=12))
def test_at_most_half_are_outliers_and_their_order_does_not_matter(times: list[float]) -> None:
    outliers = find_outliers(times)
    assert 2 * len(outliers) <= len(times)
    assert {len(times) - 1 - index for index in find_outliers(times[::-1])} == outliers


def test_rules_are_read() -> None:
    assert parse_rule("").factor == 0
    assert parse_rule("mean * 1.25").factor == 1.25
    assert parse_rule("p99").share == parse_rule("1 in 100").share == Fraction(1, 100)
    assert [parse_rule(text).min_runs for text in ("", "mean*2", "p50", "p99", "p99.9", "1 in 1000")] == [
        *(5, 5, 5, 99, 999, 999)
    ]


@pytest.mark.parametrize("text", ["median", "mean*", "mean*0", "mean*-1", "p100", "p10", "1 in 1", "1 in 0", "2 in 9"])
def test_other_rules_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="no such rule"):
        parse_rule(text)


def test_a_rule_sets_the_limit_whatever_the_specs_factor() -> None:
    times = [1.0, 1.02, 0.98, 1.01, 0.99, 5.0]
    for factor in (1.0, 1.1, 1.5):
        assert parse_rule("").compute_golden(times, factor) == 1.0
        assert parse_rule("mean*1.2").compute_golden(times, factor) * factor == pytest.approx(1.2, rel=0.005)
        hundred = [1 + number / 1000 for number in range(99)]
        assert parse_rule("1 in 100").compute_golden(hundred, factor) * factor == pytest.approx(1.098, rel=0.001)
        assert parse_rule("1 in 10").compute_golden(hundred, factor) * factor == pytest.approx(1.089, rel=0.001)
        # It is rounded up only.
        assert parse_rule("1 in 100").compute_golden(hundred, factor) * factor >= 1.098 * (1 - 1e-9)


@pytest.mark.parametrize("runs", [99, 120, 197, 250])
def test_a_share_of_one_in_a_hundred_is_kept_over_a_thousand_histories(runs: int) -> None:
    chance = np.random.default_rng(runs)
    rule = parse_rule("1 in 100")
    shares = []
    for _ in range(1000):
        noise = draw_noise(chance)
        limit = rule.compute_golden(noise.draw(chance, runs).tolist(), 1.1) * 1.1
        shares.append(float((noise.draw(chance, 1000) > limit).mean()))
    assert 0.01 / 1.5 <= statistics.fmean(shares) <= 0.01 * 1.5


def test_histories_give_goldens_unless_they_changed() -> None:
    level = simulate("1 in 100", 60, 140, seed=1)
    assert level.refused_share <= 0.1, level.reasons
    assert 0.01 / 1.5 <= statistics.fmean(level.alarm_shares) <= 0.01 * 1.5
    step = simulate("1 in 100", 30, 140, seed=2, step=0.2, runs_after=60)
    assert step.reasons == {"too short since its step": 30}
    drift = simulate("1 in 100", 30, 140, seed=3, drift=0.2)
    assert drift.refused_share == 1, drift.reasons
    assert not math.isnan(drift.refused_share)
