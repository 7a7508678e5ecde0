"""Steps of histories: planted steps are found, published examples give the published result, noise gives none."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iree_gauntlet.measuring.statistics.change_points import MIN_RUNS, find_change_points, find_drift
from iree_gauntlet.measuring.statistics.change_points import _compute_rank_tail as compute_rank_tail
from iree_gauntlet.measuring.statistics.comparison_verdict import compute_student_p, find_student_quantile

LEAST = math.log(1.02)
FIGURES = st.lists(st.floats(0.001, 1e6, allow_nan=False), max_size=40)


def noisy(level: float, count: int, seed: int, spread: float = 0.01) -> list[float]:
    values: list[float] = (level * np.exp(np.random.default_rng(seed).normal(0, spread, count))).tolist()
    return values


# The weekly means of iree-org/iree#24259, ms: punet on mi325 stepped up by about 1.5 ms between 2026-W13 and W14. Weeks
# 5 to 8 are as published there; the rest is in the shape that the thread describes ("consistent week over week").
PUNET = [40.144, 39.814, 39.738, 39.846, 39.90, 39.77, 39.85, 39.80, 39.83, 41.32, 41.29, 41.41, 41.35]


def test_thirteen_weekly_means_with_four_percent_from_the_tenth_on() -> None:
    (change,) = find_change_points(PUNET, LEAST)
    assert (change.index, change.count_after, change.is_confirmed) == (9, 4, False)
    assert change.effect == pytest.approx(0.037, abs=0.004)
    assert change.p_value < 1e-3


def test_518_runs_with_outliers_beyond_the_golden_are_none() -> None:
    # As in iree-org/iree#24257: mean 174.6, p95 180.4, a maximum of 216.8, 2.5 % above the golden of 187.
    chance = np.random.default_rng(24257)
    values = 173.8 * np.exp(chance.normal(0, 0.018, 518))
    out = chance.choice(518, 13, replace=False)
    values[out] = chance.uniform(187.5, 216.8, 13)
    assert (values > 187).mean() == pytest.approx(0.025, abs=0.003)
    assert find_change_points(values.tolist(), LEAST) == ()
    assert find_drift(values.tolist(), LEAST) is None


def test_two_steps_that_add_up_are_a_drift() -> None:
    # As in iree-org/iree#24258: two commits, 2.3 % together, over 518 runs of which the last weeks are slower.
    values = [*noisy(155.1, 400, 1), *noisy(156.9, 60, 2), *noisy(158.7, 58, 3)]
    assert find_change_points(values, LEAST) == ()
    found = find_drift(values, LEAST)
    assert found is not None
    assert abs(found.start_index - 400) <= 5
    assert found.effect == pytest.approx(math.log(158.7 / 155.1), abs=0.005)
    assert 0 < found.p_value < 1e-3


@pytest.mark.parametrize(("size", "at"), [(0.04, 40), (-0.04, 40), (0.3, 57), (0.1, 3)])
def test_a_step_is_found_where_it_is(size: float, at: int) -> None:
    values = [value * (1 + size if place >= at else 1) for place, value in enumerate(noisy(10, 60, 5))]
    (change,) = find_change_points(values, LEAST)
    assert (change.index, change.count_before, change.count_after) == (at, at, 60 - at)
    assert change.effect == pytest.approx(math.log1p(size), abs=0.02)


@pytest.mark.parametrize(("count", "behind"), [(24, 3), (33, 3), (33, 4), (37, 3)])
def test_a_large_step_among_the_last_runs_is_suspected(count: int, behind: int) -> None:
    # With 30 and 3 runs, the rank test's least p-value is 0.00037, times 11/3 positions.
    hits = spoilt_hits = 0
    for seed in range(40):
        values = [value * (1.2 if place >= count - behind else 1) for place, value in enumerate(noisy(10, count, seed))]
        changes = find_change_points(values, LEAST)
        hits += [(change.index, change.is_confirmed) for change in changes] == [(count - behind, False)]
        # An earlier run is as slow.
        values[5] = 13.0
        spoilt_hits += bool(find_change_points(values, LEAST))
    # Of 1,000, 82 to 98 %: benchmarks/change_points.py.
    assert (hits >= 28, spoilt_hits < hits) == (True, True), (hits, spoilt_hits)


def test_several_steps_are_told_apart() -> None:
    values = [*noisy(10, 20, 1), *noisy(11, 20, 2), *noisy(10.2, 20, 3)]
    assert [change.index for change in find_change_points(values, LEAST)] == [20, 40]


def test_nothing_changes_in_noise_of_any_kind() -> None:
    reported = 0
    for seed in range(60):
        chance = np.random.default_rng(seed)
        alike = np.convolve(chance.normal(0, 0.008, 65), [0.6**power for power in range(6)], "valid")
        modes = chance.normal(0, 0.005, 60) + 0.01 * np.where(chance.random(60) < 0.5, 1, -1)
        for logs in (chance.standard_t(3, 60) * 0.006, alike, modes):
            reported += bool(find_change_points((10 * np.exp(logs)).tolist(), LEAST))
    # Of 180: benchmarks/change_points.py has the shares of thousands.
    assert reported <= 2


def test_what_a_busy_machine_spoilt_counts_for_less() -> None:
    values = [*noisy(10, 30, 1), *noisy(10.5, 8, 2)]
    (change,) = find_change_points(values, LEAST)
    (doubtful,) = find_change_points(values, LEAST, disturbed=[False] * 30 + [True] * 3 + [False] * 5)
    assert (change.index, doubtful.index) == (30, 30)
    assert doubtful.p_value > change.p_value


def test_figures_without_a_logarithm_are_refused() -> None:
    for value in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="not positive"):
            find_change_points([1.0, value], LEAST)


@given(FIGURES)
def test_any_figures_have_sound_changes(values: list[float]) -> None:
    changes = find_change_points(values, LEAST)
    edges = [0, *(change.index for change in changes), len(values)]
    assert all(end - start >= MIN_RUNS for start, end in itertools.pairwise(edges)) or not changes
    assert [change.count_before for change in changes] == [end - start for start, end in itertools.pairwise(edges[:-1])]
    assert all(0 <= change.p_value < 1e-3 and abs(change.effect) >= LEAST for change in changes)


@pytest.mark.parametrize("unit", [1e-3, 60.0, 1e6])
def test_a_step_is_the_same_in_any_unit(unit: float) -> None:
    values = [*noisy(10, 20, 1), *noisy(11, 20, 2), *noisy(10.2, 20, 3)]
    for here, there in zip(
        find_change_points(values, LEAST), find_change_points([v * unit for v in values], LEAST), strict=True
    ):
        assert (here.index, here.count_before, here.count_after) == (there.index, there.count_before, there.count_after)
        assert (here.effect, here.p_value) == pytest.approx((there.effect, there.p_value), rel=1e-6)


@pytest.mark.parametrize("sizes", [(1, 3), (2, 2), (3, 4), (4, 5)])
def test_the_rank_tests_distribution_is_that_of_all_orders(sizes: tuple[int, int]) -> None:
    few, many = sizes
    counts = np.zeros(few * many + 1)
    for places in itertools.combinations(range(few + many), few):
        counts[sum(place - number for number, place in enumerate(places))] += 1
    assert compute_rank_tail(few, many) == pytest.approx(np.cumsum(counts) / math.comb(few + many, few))


@pytest.mark.parametrize("degrees", [1, 2, 7, 30])
def test_students_tail_is_the_inverse_of_its_quantile(degrees: int) -> None:
    assert compute_student_p(find_student_quantile(0.9995, degrees), degrees) == pytest.approx(0.001, rel=1e-6)


@pytest.mark.parametrize("runs", [3, 4, 5, 6])
def test_a_large_step_is_found_beside_a_figure_that_is_far_off(runs: int) -> None:
    # Measured: speechmos/dnsmos_p808 with IREE 3.6.0 and 3.7.0, in ms.
    before, behind = [9.0, 8.7, 9.1, 9.6, 9.6, 11.1][-runs:], [79.9, 78.5, 79.1, 85.6, 81.6, 84.8][:runs]
    (change,) = find_change_points([*before, *behind], LEAST)
    assert (change.index, change.is_confirmed) == (runs, runs >= 5)


def test_large_steps_among_few_runs_are_found_where_they_are() -> None:
    chance = np.random.default_rng(0)
    for _ in range(300):
        before, behind = map(int, chance.integers(5, 15, 2))
        # Late figures, as of a machine that is busy now and then.
        noise = np.abs(chance.normal(0, 0.1, before + behind))
        values = np.exp(noise + math.log(9) * (np.arange(before + behind) >= before))
        assert before in [change.index for change in find_change_points(list(values), LEAST)], values
