from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iree_gauntlet.errors import GauntletError
from iree_gauntlet.measuring.statistics.rounds import (
    Block,
    BlockOrder,
    EvidenceError,
    Location,
    Round,
    draw_block_orders,
)
from tests.support.recorded_noise import swap_sides

_TIMES = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=10)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 0.0, -1.0])
def test_a_time_that_is_none_is_an_error(bad: float) -> None:
    with pytest.raises(EvidenceError, match="positive finite") as caught:
        Round((1.0, bad))
    assert isinstance(caught.value, GauntletError)
    assert caught.value.hint


def test_a_round_without_repetitions_is_an_error() -> None:
    with pytest.raises(EvidenceError, match="without repetitions"):
        Round(())


def test_locations() -> None:
    round_ = Round((4.0, 1.0, 2.0, 9.0))
    assert [round_.compute_location(kind) for kind in (Location.MIN, Location.MEAN)] == [1.0, 4.0]


@given(_TIMES.flatmap(lambda times: st.tuples(st.just(times), st.permutations(times))), st.sampled_from(list(Location)))
def test_the_order_of_repetitions_is_no_matter(both: tuple[list[float], list[float]], kind: Location) -> None:
    times, shuffled = both
    assert Round(tuple(times)).compute_location(kind) == Round(tuple(shuffled)).compute_location(kind)


@pytest.mark.parametrize("order", list(BlockOrder))
def test_linear_drift_cancels_in_a_block(order: BlockOrder) -> None:
    drift = [Round((math.exp(0.03 * number),)) for number in range(4)]
    assert Block.of_rounds(order, drift).compute_log_ratio() == pytest.approx(0, abs=1e-12)


def test_a_slower_b_has_a_positive_log_ratio_in_either_order() -> None:
    a, b = Round((1.0, 1.0)), Round((1.05, 1.05))
    assert Block.of_rounds(BlockOrder.ABBA, [a, b, b, a]).compute_log_ratio() == pytest.approx(math.log(1.05))
    assert Block.of_rounds(BlockOrder.BAAB, [b, a, a, b]).compute_log_ratio() == pytest.approx(math.log(1.05))


@given(st.lists(_TIMES, min_size=4, max_size=4), st.sampled_from(list(BlockOrder)))
def test_swapping_the_sides_inverts_the_ratio(times: list[list[float]], order: BlockOrder) -> None:
    block = Block.of_rounds(order, [Round(tuple(row)) for row in times])
    assert swap_sides(block).compute_log_ratio() == -block.compute_log_ratio()
    assert swap_sides(swap_sides(block)) == block


def test_a_block_has_four_rounds() -> None:
    with pytest.raises(EvidenceError, match="3 rounds"):
        Block.of_rounds(BlockOrder.ABBA, [Round((1.0,))] * 3)


def test_block_orders_are_drawn_fairly_and_are_the_same_for_a_seed() -> None:
    orders = draw_block_orders(2000, 3)
    assert orders == draw_block_orders(2000, 3)
    assert orders[:10] == draw_block_orders(10, 3)
    assert orders[:50] != draw_block_orders(50, 4)
    assert 900 < orders.count(BlockOrder.ABBA) < 1100


@pytest.mark.parametrize(("count", "seed"), [(-1, 0), (1, -1)])
def test_block_orders_refuse_nonsense(count: int, seed: int) -> None:
    with pytest.raises(EvidenceError, match="0 or more"):
        draw_block_orders(count, seed)
