from __future__ import annotations

import json
import math
import tracemalloc
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iree_gauntlet.measuring.numerics.arrays import Tensor, get_storage_dtype
from iree_gauntlet.measuring.numerics.comparison import compare_outputs
from iree_gauntlet.measuring.numerics.tolerances import Tolerances

if TYPE_CHECKING:
    from iree_gauntlet.results import OutputComparison

RECORD = {
    *("index", "type", "passed", "message", "mismatches", "count", "max_abs_error", "max_rel_error"),
    *("worst_index", "worst_actual", "worst_expected", "cosine_similarity", "actual_nans", "expected_nans"),
    *("actual_infs", "expected_infs", "atol", "rtol", "actual_path", "expected_path"),
}


def tensor(values: Any, name: str = "f32", source: str = "") -> Tensor:
    array = np.asarray(values).astype(get_storage_dtype(name))
    return Tensor(name, array.shape, array, source)


def compare(actual: Any, expected: Any, name: str = "f32", **tolerances: Any) -> OutputComparison:
    pair = tensor(actual, name), tensor(expected, name)
    return compare_outputs([pair[0]], [pair[1]], Tolerances(**tolerances))[0]


def reference(actual: float, expected: float, atol: float, rtol: float) -> bool:
    """The tool's rule for one pair of doubles, in Python's own arithmetic."""
    if actual == expected or (math.isnan(actual) and math.isnan(expected)):
        return True
    return math.isfinite(expected) and abs(actual - expected) <= atol + rtol * abs(expected)


def test_zeros_of_both_signs_differ_where_bytes_count() -> None:
    assert compare([0.0], [-0.0]).passed
    assert compare([0.0], [-0.0], exact=True).mismatches == 1


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(), st.floats()), min_size=1, max_size=20), st.floats(0, 10), st.floats(0, 2))
def test_f64_follows_the_rule(pairs: list[tuple[float, float]], atol: float, rtol: float) -> None:
    actual, expected = zip(*pairs, strict=True)
    result = compare(actual, expected, "f64", f64_atol=atol, rtol=rtol)
    assert result.mismatches == sum(not reference(a, e, atol, rtol) for a, e in pairs)
    assert result.passed == (result.mismatches == 0)


@settings(deadline=None)
@given(st.lists(st.floats(width=32), min_size=1), st.sampled_from(["f16", "bf16", "f32", "f64", "f8E5M2", "cf64"]))
def test_equal_outputs_pass(values: list[float], name: str) -> None:
    with np.errstate(all="ignore"):
        result = compare(values, values, name, exact=True)
    assert result.passed
    assert result.worst_index is None
    assert result.message == f"all {len(values)} values are equal"
    assert result.max_abs_error in (0.0, None)


def test_a_failure_says_what_a_person_needs() -> None:
    expected = np.arange(24.0).reshape(2, 3, 4)
    actual = expected.copy()
    actual[1, 0, 2] += 0.5
    actual[0, 1, 1] -= 0.25
    result = compare(actual, expected)
    assert not result.passed
    assert (result.mismatches, result.count) == (2, 24)
    assert result.worst_index == (1, 0, 2)
    assert (result.worst_actual, result.worst_expected) == ("14.5", "14.0")
    assert result.max_abs_error == 0.5
    assert result.max_rel_error == pytest.approx(0.25 / 5)
    assert result.cosine_similarity == pytest.approx(1, abs=1e-3)
    assert result.message == (
        "2 of 24 values (8.33 %) differ by more than 0.0001 + 1e-05·|expected|;"
        " worst at [1, 0, 2]: 14.5, expected 14.0 (largest error 0.5)"
    )


def test_a_failure_by_nan_or_inf_is_the_worst() -> None:
    result = compare([1, math.nan, 9, math.inf], [1, 2, 3, 4])
    assert (result.mismatches, result.actual_nans, result.actual_infs) == (3, 1, 1)
    assert result.worst_index == (1,)
    assert result.max_abs_error == 6
    assert result.message == (
        "3 of 4 values (75 %) differ: at [1] NaN where 2.0 was expected, others off by up to 6;"
        " 1 NaN, expected 0; 1 Inf, expected 0"
    )
    missing = compare([1, 0], [1.000001, math.nan])
    assert missing.message == "1 of 2 values (50 %) differ: at [1] 0.0 where NaN was expected; 0 NaN, expected 1"
    same = compare([math.nan, math.inf, -math.inf], [math.nan, math.inf, -math.inf])
    assert same.passed
    assert (same.actual_nans, same.expected_nans, same.actual_infs, same.expected_infs) == (1, 1, 2, 2)


def test_a_passing_output_names_its_nearest_value() -> None:
    result = compare([1.00005, 2], [1, 2])
    assert result.passed
    assert result.worst_index == (0,)
    assert result.message.startswith("all 2 values are within 0.0001 + 1e-05·|expected| (largest error ")


@pytest.mark.parametrize(("name", "low", "high"), [("i64", -(2**63), 2**63 - 1), ("ui64", 0, 2**64 - 1)])
def test_integers_far_apart(name: str, low: int, high: int) -> None:
    dtype = get_storage_dtype(name)
    pair = [Tensor(name, (1,), np.array([value], dtype)) for value in (low, high)]
    result = compare_outputs([pair[0]], [pair[1]], Tolerances())[0]
    assert result.max_abs_error == float(2**64 - 1)
    assert (result.worst_actual, result.worst_expected) == (str(low), str(high))
    assert not result.passed


def test_large_integers_are_not_rounded() -> None:
    assert not compare([2**53 + 1], [2**53], "i64").passed
    assert compare([2**53 + 1], [2**53], "i64").max_abs_error == 1


@pytest.mark.parametrize("name", ["i1", "i8", "ui16", "f8E4M3FN", "cf64", "cf128", "*16", "f128", "i4"])
def test_a_changed_bit_is_found(name: str) -> None:
    dtype = get_storage_dtype(name)
    data = np.zeros(3 * dtype.itemsize, np.uint8)
    changed = data.copy()
    changed[dtype.itemsize] = 1
    shape = (6,) if name == "i4" else (3,)
    pair = [Tensor(name, shape, array.view(dtype)) for array in (changed, data)]
    result = compare_outputs([pair[0]], [pair[1]], Tolerances())[0]
    assert (result.passed, result.mismatches, result.worst_index) == (False, 1, (1,))
    assert result.worst_actual != result.worst_expected
    assert json.dumps(result.as_dict(), allow_nan=False)


def test_shapes_types_and_counts_that_differ() -> None:
    def message(actual: Tensor, expected: Tensor) -> str:
        result = compare_outputs([actual], [expected], Tolerances())[0]
        assert not result.passed
        assert result.mismatches is None
        return result.message

    assert message(tensor([1, 2]), tensor([[1, 2]])) == "the module returns 2xf32, expected 1x2xf32"
    assert message(tensor([1]), tensor([1], "f64")) == "the module returns element type f32, expected f64"
    assert "have a sign" in message(tensor([1], "i32"), tensor([1], "si32", "e.npy"))
    assert "1xbf16=@file.bin" in message(tensor([1], "bf16"), Tensor("*16", (1,), np.zeros(1, "V2")))
    missing = compare_outputs([tensor([1])], [tensor([1]), None], Tolerances())
    assert [entry.passed for entry in missing] == [True, False]
    assert missing[1].message == "the module returns 1 outputs, expected 2: this one is missing"
    extra = compare_outputs([tensor([1]), tensor([2])], [None], Tolerances())
    assert [entry.passed for entry in extra] == [True, False]
    assert compare_outputs([], [], Tolerances()) == []


def test_empty_and_scalar_outputs() -> None:
    assert compare(np.zeros((0, 4)), np.zeros((0, 4))).passed
    result = compare(1.5, 1.0)
    assert (result.worst_index, result.type, result.count) == ((), "f32", 1)


@pytest.mark.parametrize(
    ("actual", "expected", "similarity"),
    [([1, 2], [1, 2], 1.0), ([1, 0], [0, 1], 0.0), ([1, 1], [-1, -1], -1.0), ([0, 0], [1, 2], None)],
)
def test_cosine_similarity(actual: list[float], expected: list[float], similarity: float | None) -> None:
    found = compare(actual, expected).cosine_similarity
    assert found is None if similarity is None else found == pytest.approx(similarity)


def test_values_that_overflow_are_no_crash() -> None:
    result = compare([1.7e308, 1e200], [-1.7e308, 1e200], "f64")
    assert result.max_abs_error == math.inf
    assert result.cosine_similarity is None
    assert result.as_dict()["max_abs_error"] == "inf"


def test_the_record_is_the_journals() -> None:
    result = compare_outputs([tensor([1, math.nan], source="a.npy")], [tensor([1, 2], source="e.npy")], Tolerances())
    record = result[0].as_dict()
    assert set(record) == RECORD
    assert record["worst_index"] == [1]
    assert (record["worst_actual"], record["actual_path"], record["expected_path"]) == ("nan", "a.npy", "e.npy")
    assert (record["atol"], record["rtol"]) == (1e-4, 1e-5)
    json.dumps(record, allow_nan=False)


@settings(deadline=None)
@given(st.integers(1, 5), st.integers(0, 2**15 * 5 - 1))
def test_pieces_do_not_show(pieces: int, where: int) -> None:
    size = pieces * 2**15 - 3
    expected = np.zeros(size, np.float32)
    actual = expected.copy()
    actual[where % size] = 1
    result = compare(actual, expected)
    assert (result.mismatches, result.worst_index) == (1, (where % size,))


@pytest.mark.parametrize("name", ["f16", "bf16", "f8E4M3FN"])
def test_narrow_floats_of_any_length_read_the_same(name: str) -> None:
    dtype = get_storage_dtype(name)
    patterns = np.arange(1 << 16).astype(f"uint{8 * dtype.itemsize}").view(dtype)
    whole = compare_outputs(
        [Tensor(name, patterns.shape, patterns)], [Tensor(name, patterns.shape, patterns[::-1])], Tolerances()
    )[0]
    parts = [
        compare_outputs([Tensor(name, (4096,), mine)], [Tensor(name, (4096,), wanted)], Tolerances())[0]
        for mine, wanted in zip(np.split(patterns, 16), np.split(patterns[::-1], 16), strict=True)
    ]
    assert whole.mismatches == sum(part.mismatches or 0 for part in parts)
    assert whole.actual_nans == sum(part.actual_nans for part in parts)
    assert whole.max_abs_error == max(part.max_abs_error or 0 for part in parts)


def test_memory_stays_small_for_large_outputs() -> None:
    expected = np.ones(8_000_000, np.float32)
    pair = Tensor("f32", expected.shape, expected), Tensor("f32", expected.shape, expected + np.float32(1e-5))
    tracemalloc.start()
    result = compare_outputs([pair[0]], [pair[1]], Tolerances())[0]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert result.passed
    assert peak < expected.nbytes / 3
