from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iree_gauntlet.errors import GauntletError
from iree_gauntlet.measuring.statistics.bisection import (
    CandidateEnd,
    Search,
    count_max_tries,
    is_nearer_to_bad,
    is_same_value,
    matches_neither_end,
)


def searched(truth: list[CandidateEnd]) -> tuple[Search, list[int]]:
    """The end of a search in a row of known sides, and what it tried, in order."""
    sides = {0: CandidateEnd.OLD, len(truth) - 1: CandidateEnd.NEW}
    tried: list[int] = []
    while (place := Search(len(truth), sides).next) is not None:
        assert Search(len(truth), sides).tries_left > 0
        tried.append(place)
        sides[place] = truth[place]
    return Search(len(truth), sides), tried


@st.composite
def monotone(draw: st.DrawFn) -> tuple[list[CandidateEnd], int]:
    """A history with one change and any set of broken candidates between the ends; where the change is."""
    count = draw(st.integers(2, 200))
    change = draw(st.integers(1, count - 1))
    broken = draw(st.sets(st.integers(1, count - 2))) if count > 2 else set()
    sides = [
        CandidateEnd.NEITHER if i in broken else CandidateEnd.OLD if i < change else CandidateEnd.NEW
        for i in range(count)
    ]
    return sides, change


@given(monotone())
def test_the_change_is_found_with_few_tries_and_none_twice(history: tuple[list[CandidateEnd], int]) -> None:
    truth, change = history
    found, tried = searched(truth)
    assert len(set(tried)) == len(tried)
    broken = sum(truth[place] is CandidateEnd.NEITHER for place in tried)
    assert len(tried) <= count_max_tries(len(truth)) + broken
    assert truth[found.last_old] is CandidateEnd.OLD
    assert truth[found.first_new] is CandidateEnd.NEW
    assert found.last_old < change <= found.first_new
    assert all(truth[place] is CandidateEnd.NEITHER for place in found.between)
    assert found.tries_left == 0
    assert len(found.changes) == 1


@given(st.lists(st.sampled_from(list(CandidateEnd)), min_size=0, max_size=60))
def test_any_history_ends_with_a_change_that_is_there(middle: list[CandidateEnd]) -> None:
    truth = [CandidateEnd.OLD, *middle, CandidateEnd.NEW]
    found, tried = searched(truth)
    assert len(set(tried)) == len(tried) <= len(middle)
    assert truth[found.last_old] is CandidateEnd.OLD
    assert truth[found.first_new] is CandidateEnd.NEW
    assert all(truth[place] is CandidateEnd.NEITHER for place in found.between)


@pytest.mark.parametrize(
    ("count", "tries"), [(2, 0), (3, 1), (4, 2), (5, 2), (6, 3), (9, 3), (10, 4), (17, 4), (18, 5), (257, 8)]
)
def test_the_bound_is_reached_and_not_passed(count: int, tries: int) -> None:
    assert count_max_tries(count) == tries
    rows = ([CandidateEnd.OLD] * change + [CandidateEnd.NEW] * (count - change) for change in range(1, count))
    assert max(len(searched(row)[1]) for row in rows) == tries


def test_broken_ones_in_the_middle_are_stepped_around() -> None:
    truth = [CandidateEnd.OLD] * 3 + [CandidateEnd.NEITHER] * 3 + [CandidateEnd.NEW] * 3
    found, tried = searched(truth)
    assert tried[:3] == [4, 5, 3]
    assert (found.last_old, found.between, found.first_new) == (2, (3, 4, 5), 6)


def test_a_history_that_goes_back_and_forth_tells_its_changes_and_the_newest() -> None:
    sides = dict(
        enumerate(
            [
                CandidateEnd.OLD,
                CandidateEnd.NEW,
                CandidateEnd.NEITHER,
                CandidateEnd.OLD,
                CandidateEnd.NEW,
                CandidateEnd.NEW,
            ]
        )
    )
    found = Search(6, sides)
    assert found.changes == ((0, 1), (1, 3), (3, 4))
    assert (found.last_old, found.first_new) == (3, 4)
    assert Search(6, {0: CandidateEnd.OLD, 4: CandidateEnd.NEITHER, 5: CandidateEnd.NEW}).untried_anywhere == (1, 2, 3)


@pytest.mark.parametrize(
    "sides",
    [
        {},
        {0: CandidateEnd.OLD},
        {0: CandidateEnd.NEW, 2: CandidateEnd.NEW},
        {0: CandidateEnd.OLD, 2: CandidateEnd.NEITHER},
    ],
)
def test_ends_that_do_not_differ_are_refused(sides: dict[int, CandidateEnd]) -> None:
    with pytest.raises(GauntletError, match="two ends that differ"):
        Search(3, sides)
    with pytest.raises(GauntletError, match="outside of a row of 3"):
        Search(3, {0: CandidateEnd.OLD, 2: CandidateEnd.NEW, 3: CandidateEnd.NEW})


@pytest.mark.parametrize(
    ("value", "good", "bad", "is_bad", "is_third"),
    [
        (76, 97, 76, True, False),
        (97, 97, 76, False, False),
        (95, 97, 76, False, False),
        (86, 97, 76, False, True),
        (85, 97, 76, True, True),
        (60, 97, 76, True, True),
        (500, 97, 76, False, True),
        # By ratio: 3e-5 is nearer to 1e-6 than to 1e-2.
        (3e-5, 1e-6, 1e-2, False, True),
        (2e-3, 1e-6, 1e-2, True, False),
        (2.0, 1.0, 4.0, False, True),  # the middle itself is not nearer
        # With 0 by difference.
        (0.0, 0.0, 1e-3, False, False),
        (4e-4, 0.0, 1e-3, False, True),
        (9e-4, 0.0, 1e-3, True, False),
        (0.0, 1e-6, 1e-3, False, False),
        (math.nan, 1e-6, math.inf, True, False),
        (1.0, 1e-6, math.inf, False, False),
        (math.inf, 1e-6, 1e-3, True, True),
        (1.0, math.nan, 1e-6, True, False),
    ],
)
def test_which_end_a_value_is_nearer_to(value: float, good: float, bad: float, is_bad: bool, is_third: bool) -> None:
    assert is_nearer_to_bad(value, good, bad) is is_bad
    assert matches_neither_end(value, good, bad) is is_third


@given(*[st.floats(1e-12, 1e12)] * 3)
def test_the_ends_are_like_themselves_and_names_do_not_matter(value: float, good: float, bad: float) -> None:
    if is_same_value(good, bad):
        return
    assert is_nearer_to_bad(bad, good, bad)
    assert not is_nearer_to_bad(good, good, bad)
    assert not matches_neither_end(good, good, bad)
    assert matches_neither_end(value, good, bad) == matches_neither_end(value, bad, good)
    # In the middle neither is nearer.
    assert not (is_nearer_to_bad(value, good, bad) and is_nearer_to_bad(value, bad, good))
    assert is_same_value(math.nan, math.inf)
    assert np.isfinite(value)


@given(st.integers(3, 60), st.data())
def test_what_is_there_already_is_taken_where_it_costs_no_more_tries(count: int, data: st.DataObject) -> None:
    search = Search(count, {0: CandidateEnd.OLD, count - 1: CandidateEnd.NEW})
    there = data.draw(st.sets(st.integers(0, count - 1)))
    found = search.choose_next(there)
    assert found is not None
    # Whichever side is left over, no more tries are needed than behind the middle one.
    after = [Search(count, {**search.sides, found: side}).tries_left for side in (CandidateEnd.OLD, CandidateEnd.NEW)]
    assert max(after) <= search.tries_left - 1
    assert found in there or found == search.next
    assert search.choose_next(()) == search.next


def test_a_search_that_is_over_takes_none() -> None:
    assert Search(2, {0: CandidateEnd.OLD, 1: CandidateEnd.NEW}).choose_next({0, 1}) is None
