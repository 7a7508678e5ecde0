from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iree_gauntlet.measuring.statistics.bisection import (
    MAX_UNDECIDED_CANDIDATES,
    CandidateEnd,
    Search,
    count_max_comparisons,
    find_middle,
    place_candidate,
)
from iree_gauntlet.measuring.statistics.comparison_verdict import compare_log_ratios
from iree_gauntlet.measuring.statistics.rounds import EvidenceError, SequentialPlan, plan_looks

if TYPE_CHECKING:
    from numpy.typing import NDArray


def log_ratios(chance: np.random.Generator, truth: float, count: int, spread: float) -> NDArray[np.float64]:
    """Blocks with lopsided, heavy-tailed noise, and a coin for the order, as in a real comparison."""
    noise = chance.standard_t(2, count) * spread + chance.exponential(spread, count)
    return np.asarray(truth + noise * chance.choice([-1.0, 1.0], count))


def placed(
    chance: np.random.Generator, truth: float, plan: SequentialPlan, middle: float, spread: float
) -> bool | None:
    """A candidate taken block by block, as a search takes it."""
    ratios = log_ratios(chance, truth, plan.max_blocks, spread)
    count = plan.looks[0]
    while True:
        found = place_candidate(ratios[:count], plan, middle)
        if found.next_look is None:
            return found.bad
        count = found.next_look


def test_a_candidate_is_placed_by_its_whole_interval() -> None:
    plan = plan_looks(0.01, 20)
    middle = find_middle(1.2, 1.15, 1.25)
    assert middle == pytest.approx(math.log(1.2) / 2)
    good = place_candidate(np.full(plan.looks[0], 0.001), plan, middle)
    assert (good.bad, good.next_look, good.confidence) == (False, None, 0.99)
    bad = place_candidate(np.full(plan.looks[0], math.log(1.19)), plan, middle)
    assert bad.bad is True
    assert bad.ratio == pytest.approx(1.19)
    # The other way round: bad is the faster one.
    assert place_candidate(np.full(plan.looks[0], -0.2), plan, -middle).bad is True
    assert place_candidate(np.full(plan.looks[0], 0.0), plan, -middle).bad is False
    early = place_candidate(np.full(3, 0.2), plan, middle)
    assert (early.bad, early.next_look, early.low, early.high) == (None, plan.looks[0], 0.0, math.inf)
    assert "too few blocks" in early.reason
    across = np.tile([middle - 0.05, middle + 0.05], 10)
    spent = place_candidate(across, plan, middle)
    assert (spent.bad, spent.next_look) == (None, None)
    assert "contains the middle" in spent.reason
    assert "budget is spent" in spent.reason


def test_a_machine_that_changed_under_way_decides_nothing() -> None:
    plan = plan_looks(0.01, 40)
    ratios = np.concatenate([np.linspace(0.049, 0.051, plan.looks[0]), np.linspace(-0.5, -0.4, 30)])
    found = place_candidate(ratios, plan, 0.05)
    assert (found.bad, found.next_look) == (None, None)
    assert "contradict" in found.reason


def test_the_middle_never_lies_beyond_what_is_sure_of_the_bad_end() -> None:
    assert find_middle(1.5, 1.02, 2.2) == pytest.approx(math.log(1.02))
    assert find_middle(1 / 1.5, 1 / 2.2, 1 / 1.02) == pytest.approx(-math.log(1.02))
    # The estimate is of all blocks, the interval of all looks.
    assert find_middle(1.3, 1.05, 1.2) == pytest.approx(math.log(1.05))
    for ratio, low, high in ((1.1, 0.9, 1.3), (1.1, 0.0, math.inf), (1.0, 1.0, 1.0), (1.1, 1.2, 1.1)):
        with pytest.raises(EvidenceError, match="do not clearly differ"):
            find_middle(ratio, low, high)
    with pytest.raises(EvidenceError, match="divides nothing"):
        place_candidate(np.zeros(10), plan_looks(), 0.0)


@settings(max_examples=50)
@given(st.floats(1.01, 3), st.floats(0.0, 0.5), st.integers(0, 2**32))
def test_swapping_the_sides_swaps_nothing_but_signs(ratio: float, spread: float, seed: int) -> None:
    plan = plan_looks(0.01, 14)
    ratios = np.random.default_rng(seed).normal(math.log(ratio), spread, plan.max_blocks)
    middle = math.log(ratio) / 2
    one, other = place_candidate(ratios, plan, middle), place_candidate(-ratios, plan, -middle)
    assert one.bad == other.bad
    assert one.ratio == pytest.approx(1 / other.ratio)


@pytest.mark.parametrize(("truth", "wrong"), [(0.0, True), (1.0, False)])
def test_a_candidate_is_put_on_the_wrong_side_less_often_than_stated(truth: float, wrong: bool) -> None:
    """At a level of 20 %, where a rule that did not keep to it would show."""
    chance = np.random.default_rng(7)
    plan = plan_looks(0.2, 20)
    effect = 0.02
    # At the worst place for the middle: on the candidate itself, each side is wrong in half of the cases.
    outcomes = [placed(chance, 0.0, plan, 1e-9, 0.05) for _ in range(400)]
    decided = sum(outcome is not None for outcome in outcomes)
    assert decided / 400 < 0.2
    outcomes = [placed(chance, truth * effect, plan, effect / 2, 0.05) for _ in range(400)]
    assert sum(outcome is wrong for outcome in outcomes) / 400 < 0.1


def search(chance: np.random.Generator, count: int, change: int, effect: float, spread: float, alpha: float) -> str:
    """A whole search by times, from the ends' comparison on: `right`, `range` or `wrong`."""
    comparisons = count_max_comparisons(count)
    plan = plan_looks(alpha / comparisons, 40)
    ends = compare_log_ratios(log_ratios(chance, effect, plan.max_blocks, spread), plan)
    if not ends.differs:
        return "range"
    middle = find_middle(ends.ratio, ends.low, ends.high)
    sides = {0: CandidateEnd.OLD, count - 1: CandidateEnd.NEW}
    names = {True: CandidateEnd.NEW, False: CandidateEnd.OLD, None: CandidateEnd.NEITHER}
    made = 1
    while (candidate := Search(count, sides).next) is not None and made < comparisons:
        truth = effect if candidate >= change else 0.0
        sides[candidate] = names[placed(chance, truth, plan, middle, spread)]
        made += 1
    found = Search(count, sides)
    if not found.last_old < change <= found.first_new:
        return "wrong"
    return "range" if found.between else "right"


def test_a_search_by_times_is_wrong_less_often_than_stated() -> None:
    chance = np.random.default_rng(3)
    assert count_max_comparisons(9) == 1 + 3 + MAX_UNDECIDED_CANDIDATES
    quiet = [search(chance, 9, int(chance.integers(1, 9)), 0.07, 0.01, 0.01) for _ in range(150)]
    assert quiet.count("wrong") == 0
    assert quiet.count("right") >= 0.95 * len(quiet)
    # Noise as large as the change, and a stated rate of 20 %: mostly ranges, seldom wrong.
    loud = [search(chance, 9, int(chance.integers(1, 9)), 0.07, 0.07, 0.2) for _ in range(150)]
    assert loud.count("wrong") / len(loud) < 0.2
