from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iree_gauntlet.errors import UsageError
from iree_gauntlet.measuring.numerics.tolerances import Tolerances, parse_tolerances


def test_defaults_are_the_tools() -> None:
    assert parse_tolerances([]) == Tolerances(
        f16_atol=1e-3, f32_atol=1e-4, f64_atol=1e-4, bf16_atol=1e-2, rtol=1e-5, exact=False
    )


def test_flags_as_specs_write_them() -> None:
    parsed = parse_tolerances(
        [
            "--device=local-task",
            "--expected_f16_threshold=1.0f",
            " --expected_f32_threshold=0.15f",
            "--expected_rtol=0",
            "--expected_bf16_threshold=0x1p-4",
            "--equality_mode=approximate",
            "--expected_output=@a.npy",
        ]
    )
    assert parsed == Tolerances(f16_atol=1.0, f32_atol=0.15, bf16_atol=0.0625, rtol=0.0)


def test_the_last_flag_wins() -> None:
    assert parse_tolerances(["--expected_f32_threshold=1", "--expected_f32_threshold=2"]).f32_atol == 2
    assert not parse_tolerances(["--equality_mode=exact", '--equality_mode="approximate"']).exact


@pytest.mark.parametrize("value", ["", "=", "=abc", "=-1", "=nan", "=1,5", "=0.1 0.2", "=-inf", "=1e"])
def test_garbage_and_negative_tolerances_are_errors(value: str) -> None:
    with pytest.raises(UsageError, match="--expected_f32_threshold") as caught:
        parse_tolerances([f"--expected_f32_threshold{value}"])
    assert caught.value.hint


@pytest.mark.parametrize("mode", ["", "foo", "Exact"])
def test_unknown_modes_are_errors(mode: str) -> None:
    with pytest.raises(UsageError, match="equality mode"):
        parse_tolerances([f"--equality_mode={mode}"])


@settings(deadline=None)
@given(st.lists(st.text(max_size=30).filter(lambda flag: "expected_" not in flag and "equality_mode" not in flag)))
def test_other_flags_are_left_alone(flags: list[str]) -> None:
    assert parse_tolerances(flags) == Tolerances()


def test_which_types_may_differ() -> None:
    tolerances = Tolerances()
    approximate = {name for name in ("f16", "bf16", "f32", "f64") if tolerances.applies_to(name)}
    exact = {name for name in ("f8E5M2", "f8E4M3FN", "i32", "i1", "cf64") if not tolerances.applies_to(name)}
    assert (len(approximate), len(exact)) == (4, 5)
    assert not Tolerances(exact=True).applies_to("f32")
    assert tolerances.get_as_written("i32") == tolerances.get_limits("i32") == (0.0, 0.0)


def test_thresholds_are_c_floats_but_for_f64() -> None:
    tolerances = Tolerances(f32_atol=0.1, f64_atol=0.1, rtol=0.1)
    assert tolerances.get_limits("f32") == (float(np.float32(0.1)), 0.1)
    assert tolerances.get_limits("f64") == (0.1, 0.1)
    assert Tolerances(f16_atol=1e300).get_limits("f16")[0] == float("inf")
