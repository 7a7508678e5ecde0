"""The matching of the dispatches of two profiles: its general properties, and its results for recorded profiles."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iree_gauntlet.engine.profiling import describe_difference
from iree_gauntlet.measuring.profiles.dispatch_profile import (
    DispatchChanges,
    DispatchProfile,
    DispatchTime,
    Match,
    match_dispatches,
)
from tests.support.recorded_profiles import read_profile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iree_gauntlet.results import DispatchChange

WORKS = ("matmul_4x4_f32", "matmul_8x8_f32", "conv_3x3_f32", "elementwise_4_f32", "slow_memcpy", "")


def profile(
    dispatches: Sequence[tuple[str, int, int]], elapsed: int | None = None, first: int = 0, step: int = 1
) -> DispatchProfile:
    """Of works, times and counts in an invocation, numbered from `first` on."""
    times = tuple(
        DispatchTime(f"main$async_dispatch_{first + index * step}{f'_{work}' if work else ''}", count, ns * count, ns)
        for index, (work, ns, count) in enumerate(dispatches)
    )
    return DispatchProfile(times, 1, elapsed)


works = st.lists(st.tuples(st.sampled_from(WORKS), st.integers(0, 10**9), st.integers(1, 3)), max_size=12)
profiles = st.builds(profile, works, st.none() | st.integers(0, 10**10))


def figures(change: DispatchChange) -> tuple[str, str, int, int, int, int]:
    """A row without the names, which have the numbers in them."""
    return (change.kind, change.match, change.a_ns, change.b_ns, change.a_count, change.b_count)


@given(profiles, profiles)
def test_the_rows_add_up_to_the_whole(a: DispatchProfile, b: DispatchProfile) -> None:
    changes = match_dispatches(a, b)
    assert sum(change.difference_ns for change in changes.changes) == changes.difference_ns
    assert sum(change.a_ns for change in changes.changes) == changes.a_ns
    assert sum(change.b_ns for change in changes.changes) == changes.b_ns
    known = a.elapsed_ns is not None and b.elapsed_ns is not None
    assert (changes.a_ns, changes.b_ns) == (
        (a.elapsed_ns, b.elapsed_ns) if known else (a.dispatched_ns, b.dispatched_ns)
    )
    for side, names in ((a, "a_names"), (b, "b_names")):
        listed = [name for change in changes.changes for name in getattr(change, names)]
        assert Counter(listed) == Counter(dispatch.name for dispatch in side.dispatches)
    recorded = describe_difference(changes, changes.select_main_changes())
    rest = recorded.others.b_ns - recorded.others.a_ns
    assert sum(row.b_ns - row.a_ns for row in recorded.rows) + rest == changes.difference_ns


@given(profiles, profiles)
def test_swapping_the_sides_turns_the_signs(a: DispatchProfile, b: DispatchProfile) -> None:
    turned: dict[str, str] = {Match.NEW: Match.GONE, Match.GONE: Match.NEW}
    there, back = match_dispatches(a, b), match_dispatches(b, a)
    assert there.difference_ns == -back.difference_ns
    assert Counter(map(figures, there.changes)) == Counter(
        (kind, turned.get(match, match), b_ns, a_ns, b_count, a_count)
        for kind, match, a_ns, b_ns, a_count, b_count in map(figures, back.changes)
    )
    assert len(there.select_main_changes()) == len(back.select_main_changes())


@given(works, works, st.integers(0, 50), st.integers(1, 7))
def test_other_numbers_change_nothing(
    a: list[tuple[str, int, int]], b: list[tuple[str, int, int]], first: int, step: int
) -> None:
    as_it_is = match_dispatches(profile(a), profile(b))
    renumbered = match_dispatches(profile(a), profile(b, first=first, step=step))
    assert [*map(figures, as_it_is.changes)] == [*map(figures, renumbered.changes)]


@given(profiles)
def test_a_program_against_itself(a: DispatchProfile) -> None:
    changes = match_dispatches(a, a)
    assert changes.difference_ns == 0
    assert all(change.match in (Match.NAME, Match.OUTSIDE) for change in changes.changes)
    assert changes.select_main_changes() == ()


@given(profiles, profiles)
def test_what_is_listed_leaves_a_fifth_at_most(a: DispatchProfile, b: DispatchProfile) -> None:
    changes = match_dispatches(a, b)
    listed = changes.select_main_changes(max_rows=100)
    assert listed == changes.changes[: len(listed)]
    rest = changes.difference_ns - sum(change.difference_ns for change in listed)
    assert abs(rest) <= 0.2 * abs(changes.difference_ns) + 1e-6
    if listed:
        fewer = rest + listed[-1].difference_ns
        assert abs(fewer) > 0.2 * abs(changes.difference_ns)
    assert len(changes.select_main_changes()) <= 10


def test_a_fifth_is_little_enough() -> None:
    # The second row is a fifth of the difference, and 1 - 0.8 is less than 0.2 as a binary number.
    changes = match_dispatches(
        profile([("matmul_4x4_f32", 1_265_698, 1)]),
        profile([("matmul_4x4_f32", 1_264_504, 1), ("matmul_8x8_f32", 199, 1)]),
    )
    assert [change.difference_ns for change in changes.select_main_changes()] == [-1194]


def one(changes: DispatchChanges, **what: object) -> DispatchChange:
    found = [
        change for change in changes.changes if all(getattr(change, name) == value for name, value in what.items())
    ]
    assert len(found) == 1, found
    return found[0]


def test_each_way_of_matching() -> None:
    a = profile(
        [("matmul_4x4_f32", 10, 1), ("matmul_4x4_f32", 20, 1), ("conv_3x3_f32", 7, 1), ("elementwise_4_f32", 5, 1)]
    )
    b = profile(
        [
            ("slow_memcpy", 3, 1),
            ("matmul_4x4_f32", 10, 1),
            ("matmul_4x4_f32", 50, 1),
            ("conv_9x9_f32", 9, 1),
            ("conv_9x9_f32", 9, 2),
        ]
    )
    changes = match_dispatches(a, b)
    assert changes.difference_ns == 81 - 42
    grown = changes.changes[0]
    assert figures(grown) == ("matmul", Match.NAME, 20, 50, 1, 1)
    assert grown.name == "main$async_dispatch_2_matmul_4x4_f32"
    assert grown.a_names == ("main$async_dispatch_1_matmul_4x4_f32",)
    assert changes.share(grown) == pytest.approx(30 / 39)
    by_kind = one(changes, match=Match.KIND)
    assert by_kind.name == "conv: conv_3x3_f32, conv_9x9_f32"
    assert (by_kind.a_ns, by_kind.b_ns, by_kind.a_count, by_kind.b_count) == (7, 18, 1, 3)
    assert one(changes, match=Match.NEW).kind == "slow_memcpy"
    assert one(changes, match=Match.GONE).name == "main$async_dispatch_3_elementwise_4_f32"


def test_of_a_name_that_one_side_has_more_often_all_stand_together() -> None:
    a, b = profile([("matmul_4x4_f32", 10, 1)] * 3), profile([("matmul_4x4_f32", 10, 1)] * 2)
    changes = match_dispatches(a, b).changes
    assert [*map(figures, changes)] == [("matmul", Match.NAME, 30, 20, 3, 2)]
    assert changes[0].name == "all matmul_4x4_f32"


def test_one_compiler_writes_async_and_the_other_does_not() -> None:
    a, b = DispatchTime("f$async_dispatch_0_x", 1, 5, 5), DispatchTime("f_dispatch_4_x", 1, 5, 5)
    changes = match_dispatches(DispatchProfile((a,), 1), DispatchProfile((b,), 1)).changes
    assert [change.match for change in changes] == [Match.NAME]


def test_what_no_dispatch_accounts_for_is_a_row() -> None:
    a, b = profile([("matmul_4x4_f32", 10, 1)], elapsed=100), profile([("matmul_4x4_f32", 12, 1)], elapsed=200)
    changes = match_dispatches(a, b)
    assert figures(changes.changes[0]) == ("outside", Match.OUTSIDE, 90, 188, 0, 0)
    assert changes.difference_ns == 100
    unknown = match_dispatches(a, replace(b, elapsed_ns=None))
    assert unknown.difference_ns == 2


def test_recorded_a_fusion_that_renumbers_everything() -> None:
    """Three products become one of another kind of name; all others keep their shape and get other numbers."""
    changes = match_dispatches(read_profile("minilm-3.13.0"), read_profile("minilm-3.13.0-horizontal"))
    assert changes.a_ns == 18_147_000
    softmax = one(changes, b_names=("main_graph$async_dispatch_9_softmax_12x64x64xf32_dispatch_tensor_store",))
    assert softmax.a_names == ("main_graph$async_dispatch_11_softmax_12x64x64xf32_dispatch_tensor_store",)
    assert [change.name for change in changes.changes if change.match is not Match.NAME] == [
        "matmul: batch_matmul_1x64x384x384_f32, horizontal_multi_contract_1x64x384x384_f32",
        "outside of dispatches (scheduling, copies, waiting)",
    ]
    fused = one(changes, match=Match.KIND)
    assert (fused.a_count, fused.b_count) == (12, 6)
    assert fused in changes.select_main_changes()


def test_recorded_two_releases_match_name_by_name() -> None:
    changes = match_dispatches(read_profile("minilm-3.12.0"), read_profile("minilm-3.13.0"))
    assert {change.match for change in changes.changes} <= {Match.NAME, Match.OUTSIDE}
    assert len(changes.changes) == 17
