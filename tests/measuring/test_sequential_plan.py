from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iree_gauntlet.measuring.statistics.comparison_verdict import TimeVerdict, compare_log_ratios
from iree_gauntlet.measuring.statistics.rounds import EvidenceError, SequentialPlan, plan_looks


def test_the_default_plan() -> None:
    plan = plan_looks()
    assert plan.looks == (10, 14, 19, 26, 40)
    assert plan.alpha == 0.01
    assert plan.weights == pytest.approx((0.25, 0.1, 0.125, 0.175, 0.35))


def test_a_look_that_cannot_decide_is_not_made() -> None:
    for alpha, blocks, first in ((0.01, 10, 10), (0.01, 100, 11), (1e-5, 40, 19), (1e-9, 12, 12)):
        plan = plan_looks(alpha, blocks)
        assert plan.looks[0] == first
        decided = compare_log_ratios(np.full(first, 0.5), plan)
        assert decided.differs == (first != 12)
    assert decided.reason == ("too few blocks for an interval at such a false-alarm rate; all 12 blocks are used")


@given(st.floats(1e-6, 0.5), st.integers(1, 500))
def test_every_plan_spends_alpha_and_ends_with_the_budget(alpha: float, blocks: int) -> None:
    plan = plan_looks(alpha, blocks)
    assert plan.max_blocks == blocks
    assert sum(level for _, level in plan.list_looks(blocks)) == pytest.approx(alpha)
    assert plan.next_look(blocks) is None
    assert plan.next_look(0) == plan.looks[0] >= min(10, blocks)
    assert plan.list_looks(plan.looks[0] - 1) == ()


@pytest.mark.parametrize(
    ("alpha", "looks", "weights"),
    [
        (0.0, (4,), (1.0,)),
        (1.0, (4,), (1.0,)),
        (math.nan, (4,), (1.0,)),
        (0.01, (), ()),
        (0.01, (4, 8), (1.0,)),
        (0.01, (8, 4), (0.5, 0.5)),
        (0.01, (4, 4), (0.5, 0.5)),
        (0.01, (0, 4), (0.5, 0.5)),
        (0.01, (4, 8), (0.5, 0.6)),
        (0.01, (4, 8), (1.5, -0.5)),
    ],
)
def test_what_cannot_be_a_plan_is_an_error(alpha: float, looks: tuple[int, ...], weights: tuple[float, ...]) -> None:
    with pytest.raises(EvidenceError):
        SequentialPlan(alpha, looks, weights)


def test_no_budget_is_an_error() -> None:
    with pytest.raises(EvidenceError, match="0 blocks"):
        plan_looks(max_blocks=0)


@pytest.mark.parametrize("tails", ["normal", "cauchy"])
def test_false_alarms_stay_below_alpha_at_the_band_s_very_edge(tails: str) -> None:
    """The worst case of the null hypothesis: a true ratio on the edge, and a stop at the first look that says so."""
    plan, sessions = plan_looks(0.1), 600
    chance = np.random.default_rng(len(tails))
    wrong = small = 0
    for _ in range(sessions):
        noise = (
            chance.standard_normal(plan.max_blocks) if tails == "normal" else chance.standard_cauchy(plan.max_blocks)
        )
        ratios = math.log(1.01) + 0.02 * noise
        looks = [compare_log_ratios(ratios[:look], plan) for look in plan.looks]
        wrong += any(comparison.verdict == TimeVerdict.SLOWER for comparison in looks)
        small += looks[-1].p_value <= 0.1
    # One edge is at stake, hence half of alpha.
    limit = 0.05 + 3 * math.sqrt(0.05 * 0.95 / sessions)
    assert wrong / sessions <= limit
    assert small / sessions <= limit


@given(st.integers(0, 1000), st.floats(-0.1, 0.1), st.integers(1, 45))
def test_the_p_value_and_the_verdict_agree(seed: int, shift: float, count: int) -> None:
    plan = plan_looks()
    ratios = np.random.default_rng(seed).normal(shift, 0.03, count)
    comparison = compare_log_ratios(ratios, plan)
    if comparison.low <= comparison.high:
        assert comparison.differs == (comparison.p_value <= plan.alpha)
