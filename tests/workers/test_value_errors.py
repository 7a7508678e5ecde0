"""Tolerances of outputs: they allow the roundings of the type, but reveal an error of one per cent."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iree_gauntlet.workers.iree_side.value_errors import (
    are_close,
    choose_foreign_tolerance,
    choose_tolerance,
    measure_difference,
    widen,
)

TYPES = {"f16": np.float16, "f32": np.float32, "f64": np.float64}


@given(st.sampled_from(sorted(TYPES)), st.floats(1e-3, 1e3), st.floats(0, 2e-4), st.integers(1, 1 << 16))
def test_one_per_cent_of_the_largest_value_is_always_seen(kind: str, scale: float, error: float, longest: int) -> None:
    values = np.array([scale, -scale / 3, 0.0]).astype(TYPES[kind])
    exact = values.astype(np.float64) * (1 + error)
    found = choose_tolerance(kind, [(values, exact, None)], longest)
    assert 0 < found.atol + found.rtol * scale < 0.01 * scale


def test_the_error_against_f64_gets_room() -> None:
    values = np.array([1.0, 0.5], np.float32)
    found = choose_tolerance("f32", [(values, np.array([1.0 + 3e-5, 0.5]), None)], 1)
    assert found.atol == pytest.approx(3e-4, rel=0.1)
    assert "against the same model in f64 is 3e-05" in found.reason


def test_what_is_another_model_in_f64_does_not_count() -> None:
    values = np.array([1.0, 0.5], np.float32)
    found = choose_tolerance("f32", [(values, np.array([9.0, 0.5]), None)], 1)
    assert found.atol == pytest.approx(5e-5)
    # Sums that are long enough to matter.
    assert choose_tolerance("f32", [(values, None, None)], 1 << 20).atol == pytest.approx(6.2e-5, rel=0.05)


def test_tiny_values_get_a_tiny_tolerance_and_zeros_one_of_their_type() -> None:
    assert choose_tolerance("f32", [(np.array([2e-9, -1e-9], np.float32), None, None)], 1).atol == pytest.approx(1e-13)
    assert choose_tolerance("f32", [(np.zeros(3, np.float32), None, None)], 1).atol == pytest.approx(5e-5)
    assert choose_tolerance("f32", [(np.array([], np.float32), None, None)], 1).atol == pytest.approx(5e-5)


def test_the_largest_output_decides_for_its_type() -> None:
    small, large = np.array([0.1], np.float32), np.array([50.0], np.float32)
    assert (
        choose_tolerance("f32", [(small, None, None), (large, None, None)], 1).atol
        == choose_tolerance("f32", [(large, None, None)], 1).atol
    )


def test_two_references_that_differ_a_little_are_both_right() -> None:
    values = np.array([1.0, 0.5], np.float32)
    found = choose_tolerance("f32", [(values, None, values + np.float32(1e-4))], 1)
    assert found.atol == pytest.approx(2e-4, rel=0.05)
    assert "two references differ" in found.reason
    assert choose_tolerance("f32", [(values, None, values + np.float32(0.1))], 1).atol == pytest.approx(5e-5)


def test_numbers_of_another_program_get_more_room() -> None:
    found = choose_foreign_tolerance("f32", [np.array([2.0, -4.0], np.float32)])
    assert found.atol == pytest.approx(4e-4)
    assert "another program" in found.reason


def test_nan_equals_nan_and_nothing_else() -> None:
    a = np.array([1.0, np.nan, np.inf])
    assert measure_difference(a, a) == 0
    assert measure_difference(a, np.array([1.5, np.nan, np.inf])) == 0.5
    assert measure_difference(a, np.array([1.0, 0.0, np.inf])) == np.inf
    assert measure_difference(a, np.array([1.0, np.nan, -np.inf])) == np.inf
    assert measure_difference(a, a[:2]) == np.inf
    assert measure_difference(np.array(2.0, np.float32), np.array(2.5)) == 0.5
    assert measure_difference(np.array(np.nan), np.array(np.nan)) == 0
    assert measure_difference(np.array([np.inf]), np.array([1.0])) == np.inf
    assert measure_difference(np.array([1.0]), np.array([np.inf])) == np.inf


def test_zeros_of_both_signs_are_equal_values_and_other_bytes() -> None:
    zero, minus = np.array([0.0], np.float32), np.array([-0.0], np.float32)
    assert are_close(zero, minus, (0.0, 0.0))
    assert not are_close(zero, minus, None)
    assert are_close(minus, minus, None)


def test_bf16_is_widened_from_its_bits() -> None:
    assert widen(np.array([0x3F80, 0xC040, 0x7F80], np.uint16), "bf16").tolist() == [1.0, -3.0, np.inf]
