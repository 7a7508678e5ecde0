from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iree_gauntlet.figures import Statistic
from iree_gauntlet.measuring.goldens.goldens import RoundCost, confirm_breach, find_least_time
from iree_gauntlet.measuring.statistics.rounds import EvidenceError, Round, plan_looks

_PLAN = plan_looks()


def _rounds(level: float, count: int, seed: int = 0, noise: float = 0.02) -> list[Round]:
    chance = np.random.default_rng(seed)
    return [Round(tuple((level * np.exp(chance.normal(0, noise, 3))).tolist())) for _ in range(count)]


def test_a_real_breach_is_confirmed_and_a_false_one_is_not() -> None:
    broken = confirm_breach(_rounds(12.0, 10), 10.0, 1.1, Statistic.MEAN, _PLAN)
    assert broken.passed is False
    assert broken.low > broken.limit == pytest.approx(11.0)
    assert broken.next_look is None
    kept = confirm_breach(_rounds(10.0, 10), 10.0, 1.1, Statistic.MEAN, _PLAN)
    assert kept.passed is True
    assert kept.high <= kept.limit


def test_on_the_limit_it_is_inconclusive_until_the_budget_is_spent() -> None:
    early = confirm_breach(_rounds(11.0, 10), 10.0, 1.1, Statistic.MEAN, _PLAN)
    assert (early.passed, early.next_look) == (None, 14)
    late = confirm_breach(_rounds(11.0, 40), 10.0, 1.1, Statistic.MEAN, _PLAN)
    assert (late.passed, late.next_look) == (None, None)
    assert late.reason.endswith("all 40 rounds are used")


def test_too_few_rounds_say_how_many_are_needed() -> None:
    confirmation = confirm_breach(_rounds(99.0, 3), 10.0, 1.1, Statistic.MIN, _PLAN)
    assert confirmation.passed is None
    assert (confirmation.low, confirmation.high) == (0.0, math.inf)
    assert confirmation.reason == "3 more rounds, but 10 are needed to confirm a breach"


def test_a_rate_out_of_reach_is_named() -> None:
    confirmation = confirm_breach(_rounds(99.0, 12), 10.0, 1.1, Statistic.MIN, plan_looks(1e-9, 12))
    assert confirmation.passed is None
    assert confirmation.reason.startswith("too few rounds for an interval")


def test_a_machine_that_changes_gives_no_verdict() -> None:
    rounds = [*_rounds(20.0, 10), *_rounds(5.0, 30)]
    confirmation = confirm_breach(rounds, 10.0, 1.1, Statistic.MEAN, _PLAN)
    assert confirmation.passed is None
    assert "contradict" in confirmation.reason


@pytest.mark.parametrize(
    ("costs", "statistic", "cpus", "least"),
    [
        # The cheapest of the rounds, by the dialect's figure, on all CPUs, ten times as cheap on a quiet machine.
        ([(40.0, 44.0), (60.0, 60.0), (50.0, 50.0)], Statistic.MEAN, 1, 4.2),
        ([(40.0, 44.0), (60.0, 60.0), (50.0, 50.0)], Statistic.MIN, 1, 4.0),
        ([(40.0, 44.0), (60.0, 60.0), (50.0, 50.0)], Statistic.MIN, 2, 2.0),
        # A round that had to wait a second for 50 µs of work has cost these.
        ([(0.05,), (0.05,), (0.05,)], Statistic.MEAN, 1, 0.005),
        # Too few say nothing.
        ([(40.0, 44.0), (60.0, 60.0)], Statistic.MEAN, 1, 0.0),
    ],
)
def test_the_least_time_is_that_of_the_cpus_alone(
    costs: list[tuple[float, ...]], statistic: Statistic, cpus: int, least: float
) -> None:
    assert find_least_time([RoundCost(times) for times in costs], statistic, cpus) == pytest.approx(least)


def test_what_a_hypervisor_took_may_be_counted_as_the_guests() -> None:
    costs = [RoundCost((100.0,), share) for share in (0.0, 0.6, 0.2)]
    assert find_least_time(costs, Statistic.MEAN, 1) == pytest.approx(4.0)


def test_the_dialect_s_figure_is_the_one_that_counts() -> None:
    rounds = [Round((10.0, 14.0))] * 10
    assert confirm_breach(rounds, 10.0, 1.1, Statistic.MIN, _PLAN).passed is True
    assert confirm_breach(rounds, 10.0, 1.1, Statistic.MEAN, _PLAN).passed is False


@given(st.integers(0, 500), st.floats(1.0001, 2), st.integers(1, 45))
def test_slower_rounds_never_mend_a_breach(seed: int, factor: float, count: int) -> None:
    def passed(level: float) -> bool | None:
        return confirm_breach(_rounds(level, count, seed, 0.05), 10.0, 1.1, Statistic.MEAN, _PLAN).passed

    before, after = passed(11.0), passed(11.0 * factor)
    assert after is not True or before is True
    assert before is not False or after is False


@pytest.mark.parametrize("skew", [False, True])
def test_false_confirmations_stay_below_the_stated_rate(skew: bool) -> None:
    plan, sessions = plan_looks(0.1), 800
    chance = np.random.default_rng(int(skew))
    wrong = 0
    for _ in range(sessions):
        # The median is on the limit; the skewed noise has a long tail of slow rounds, as real noise does.
        noise = chance.exponential(size=plan.max_blocks) - math.log(2) if skew else chance.normal(size=plan.max_blocks)
        rounds = [Round((figure,)) for figure in np.exp(0.05 * noise).tolist()]
        wrong += any(
            confirm_breach(rounds[:look], 1.0, 1.0, Statistic.MEAN, plan).passed is False for look in plan.looks
        )
    assert wrong / sessions <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / sessions)


@pytest.mark.parametrize("golden", [0.0, -1.0, math.nan, math.inf])
def test_a_golden_that_is_none_is_an_error(golden: float) -> None:
    for value, factor in ((golden, 1.1), (1.1, golden)):
        with pytest.raises(EvidenceError, match="positive finite"):
            confirm_breach(_rounds(1.0, 10), value, factor, Statistic.MEAN, _PLAN)
    with pytest.raises(EvidenceError, match="no rounds"):
        confirm_breach([], 1.0, 1.0, Statistic.MEAN, _PLAN)
