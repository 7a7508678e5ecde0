"""Compare a module's outputs with the expected ones, by the rule of `iree-run-module`.

The rule (runtime/src/iree/tooling/buffer_view_matchers.c and `iree_math_fuzzy_compare_f64`): shapes and
element types must be the same; f16, bf16, f32 and f64 values pass where they are equal, both NaN, or
|actual − expected| ≤ atol + rtol · |expected| with a finite expected value, all computed in double
precision; values of every other type (integers, bools, f8, complex) must be the same bytes.

The arrays are compared in pieces that fit the processor's cache.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from iree_gauntlet.measuring.numerics.arrays import is_float, is_integer
from iree_gauntlet.measuring.numerics.tolerances import Tolerances
from iree_gauntlet.results import OutputComparison
from iree_gauntlet.workers.iree_side.value_errors import PIECE, find_close, judge_values

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from iree_gauntlet.cases import Allclose
    from iree_gauntlet.measuring.numerics.arrays import Array, Tensor


# From this many values on, looking up a 16-bit float is several times faster than NumPy's conversion.
_MIN_TABLE_VALUES = 1 << 15
# The fields of a comparison that `_ErrorStatistics` computes.
_STATISTICS_FIELDS = (
    *("mismatches", "max_abs_error", "max_rel_error", "cosine_similarity"),
    *("actual_nans", "expected_nans", "actual_infs", "expected_infs"),
)


def compare_outputs(
    actual: Sequence[Tensor], expected: Sequence[Tensor | None], tolerances: Tolerances
) -> list[OutputComparison]:
    """Compare all outputs of a call; the call passes if every comparison passes.

    Return a comparison for each actual output and for each missing output. Expected tensors may be None.
    """
    comparisons = [
        _compare_output(index, actual_tensor, expected_tensor, tolerances)
        for index, (actual_tensor, expected_tensor) in enumerate(zip(actual, expected, strict=False))
    ]
    counts = f"the module returns {len(actual)} outputs, expected {len(expected)}"
    extra, missing = actual[len(expected) :], expected[len(actual) :]
    leftovers = [(tensor, "has no expectation") for tensor in extra] + [(tensor, "is missing") for tensor in missing]
    return comparisons + [
        OutputComparison(index, str(tensor.type) if tensor else "", f"{counts}: this one {problem}", passed=False)
        for index, (tensor, problem) in enumerate(leftovers, len(comparisons))
    ]


def compare_allclose(
    actual: Sequence[Tensor], expected: Sequence[Tensor | None], allclose: Allclose
) -> list[OutputComparison]:
    """Compare by `numpy.allclose` in the arrays' own precision; the element types may differ."""
    tolerances = Tolerances(f64_atol=allclose.atol, rtol=allclose.rtol)
    comparisons = compare_outputs(
        list(map(_make_doubles, actual)), [tensor and _make_doubles(tensor) for tensor in expected], tolerances
    )
    for index, (comparison, output, reference) in enumerate(zip(comparisons, actual, expected, strict=False)):
        result = replace(comparison, type=str(output.type), atol=allclose.atol, rtol=allclose.rtol)
        fits = reference is not None and output.shape == reference.shape and not output.has_unknown_type
        comparisons[index] = (
            _judge_allclose(result, output.array, reference.array, allclose) if reference and fits else result
        )
    return comparisons


def _make_doubles(tensor: Tensor) -> Tensor:
    """Return the values in double precision, for statistics; bits of no known meaning are not changed."""
    if tensor.has_unknown_type:
        return tensor
    return replace(tensor, element_type="f64", array=tensor.array.astype(np.float64))


def _judge_allclose(
    comparison: OutputComparison, outputs: Array, references: Array, allclose: Allclose
) -> OutputComparison:
    close = find_close(outputs, references, rtol=allclose.rtol, atol=allclose.atol, equal_nan=allclose.equal_nan)
    if (worst := comparison.worst_index) is not None:
        comparison = replace(comparison, worst_actual=str(outputs[worst]), worst_expected=str(references[worst]))
    mismatches = int(close.size - np.count_nonzero(close))
    comparison = replace(comparison, passed=not mismatches, mismatches=mismatches)
    rule = _format_rule(comparison) or "0 + 0·|expected|"
    if comparison.passed:
        return replace(comparison, message=_describe_passed(comparison, rule))
    message = _describe_mismatches(comparison, rule)
    nans = comparison.actual_nans, comparison.expected_nans
    if any(nans) and not allclose.equal_nan:
        message += f"; {nans[0]} NaN, expected {nans[1]}, and NaN does not equal NaN here"
    return replace(comparison, message=message)


def _compare_output(index: int, actual: Tensor, reference: Tensor | None, tolerances: Tolerances) -> OutputComparison:
    if reference is None:
        message = "ignored: nothing is expected of this output"
        return OutputComparison(
            index, str(actual.type), message, passed=True, count=actual.type.count, actual_path=actual.source
        )
    atol, rtol = tolerances.get_as_written(actual.element_type)
    result = OutputComparison(
        index,
        str(actual.type),
        passed=False,
        count=actual.type.count,
        atol=atol,
        rtol=rtol,
        actual_path=actual.source,
        expected_path=reference.source,
    )
    if actual.type != reference.type:
        return replace(result, message=_describe_types(actual, reference))
    actual_values, expected_values = actual.array.reshape(-1), reference.array.reshape(-1)
    limits = tolerances.get_limits(actual.element_type) if tolerances.applies_to(actual.element_type) else None
    statistics = _ErrorStatistics(actual.element_type)
    for start in range(0, actual_values.size, PIECE):
        statistics.add(start, actual_values[start : start + PIECE], expected_values[start : start + PIECE], limits)
    result = replace(
        result, passed=statistics.mismatches == 0, **{name: getattr(statistics, name) for name in _STATISTICS_FIELDS}
    )
    if statistics.worst is not None:
        worst_index = np.unravel_index(statistics.worst, actual.array.shape)
        result = replace(
            result,
            worst_index=tuple(int(axis) for axis in worst_index),
            worst_actual=_format_value(actual_values[statistics.worst]),
            worst_expected=_format_value(expected_values[statistics.worst]),
        )
    return replace(result, message=_describe_values(result))


def _describe_types(actual: Tensor, reference: Tensor) -> str:
    if actual.shape != reference.shape:
        return f"the module returns {actual.type}, expected {reference.type}"
    message = f"the module returns element type {actual.element_type}, expected {reference.element_type}"
    if reference.source.endswith(".npy") and f"s{actual.element_type}" == reference.element_type:
        message += (
            f" (integers in a .npy have a sign, and iree-run-module treats the two as different types:"
            f" store the expected values as raw bytes, {actual.type}=@file.bin)"
        )
    elif reference.element_type.startswith("*"):
        message += f" (a .npy cannot name {actual.element_type}: store raw bytes, {actual.type}=@file.bin)"
    return message


def _describe_values(result: OutputComparison) -> str:
    rule = _format_rule(result)
    if result.passed:
        if result.worst_index is None:
            return f"all {result.count} values are equal"
        return _describe_passed(result, rule)
    message = _describe_mismatches(result, rule)
    for name, actual_count, expected_count in result.special_counts:
        if actual_count != expected_count:
            message += f"; {actual_count} {name}, expected {expected_count}"
    return message


def _format_rule(result: OutputComparison) -> str:
    return f"{result.atol:g} + {result.rtol:g}·|expected|" if result.atol or result.rtol else ""


def _describe_passed(result: OutputComparison, rule: str) -> str:
    return f"all {result.count} values are within {rule}{_describe_error(result)}"


def _describe_mismatches(result: OutputComparison, rule: str) -> str:
    percentage = 100 * (result.mismatches or 0) / result.count
    message = f"{result.mismatches} of {result.count} values ({percentage:.3g} %) differ"
    if result.special_text:
        return f"{message}: at {list(result.worst_index or ())} {result.special_text}"
    message += f" by more than {rule}" if rule else ""
    if result.worst_index is None:
        return message
    worst = f"{result.worst_actual}, expected {result.worst_expected}{_describe_error(result)}"
    return f"{message}; worst at {list(result.worst_index)}: {worst}"


def _describe_error(result: OutputComparison) -> str:
    return "" if result.max_abs_error is None else f" (largest error {result.max_abs_error:.4g})"


def _format_value(value: Any) -> str:
    """Return a value as text, in the fewest digits that distinguish it from its neighbours."""
    if isinstance(value, np.void):
        return "0x" + value.tobytes().hex()
    if isinstance(value, np.bool_):
        # Show the byte, because a damaged bool may be neither 0 nor 1.
        return str(np.array([value]).view(np.uint8)[0])
    return str(value)


class _ErrorStatistics:
    """Counts and errors of two arrays, computed piece by piece.

    Attributes:
        worst: flat index of the value furthest outside its limit; None while all values are equal.
        max_abs_error, max_rel_error: over values that are finite on both sides; the latter also skips expected zeros.
    """

    def __init__(self, element_type: str) -> None:
        self._element_type = element_type
        self._is_float = is_float(element_type)
        self._is_complex = element_type in ("cf64", "cf128")
        self._table: NDArray[np.float64] | None = None
        self._worst_excess = -math.inf
        self._products = [0.0, 0.0, 0.0]
        self.mismatches = 0
        self.worst: int | None = None
        self.max_abs_error: float | None = None
        self.max_rel_error: float | None = None
        self.actual_nans = self.expected_nans = self.actual_infs = self.expected_infs = 0

    @property
    def cosine_similarity(self) -> float | None:
        """a·b / (|a| |b|) over values finite on both sides; None if it is undefined or overflows."""
        inner, actual, expected = self._products
        norm = math.sqrt(actual) * math.sqrt(expected)
        if not math.isfinite(inner) or not math.isfinite(norm) or norm == 0:
            return None
        return max(-1.0, min(1.0, inner / norm))

    def add(self, start: int, actual_values: Array, expected_values: Array, limits: tuple[float, float] | None) -> None:
        """Add the differences of one piece."""
        is_same = _compare_bytes(actual_values, expected_values)
        with np.errstate(all="ignore"):
            if is_same.all() and not self._is_complex:
                self._add_equal(actual_values)
            elif self._is_float or self._is_complex:
                self._add_numbers(start, actual_values, expected_values, is_same, limits)
            elif is_integer(self._element_type):
                self._add_integers(start, actual_values, expected_values, is_same)
            else:
                self.mismatches += int(np.count_nonzero(~is_same))
                self._add_worst(start, np.where(is_same, -math.inf, 0.0))

    def _add_equal(self, values: Array) -> None:
        """Add a piece with the same bits on both sides, a shortcut for most pieces of most outputs."""
        if not self._is_float and not is_integer(self._element_type):
            return
        doubles = self._widen(values)
        finite = np.isfinite(doubles)
        if not finite.all():
            nans = int(np.count_nonzero(np.isnan(doubles)))
            infs = doubles.size - int(np.count_nonzero(finite)) - nans
            self.actual_nans += nans
            self.expected_nans += nans
            self.actual_infs += infs
            self.expected_infs += infs
            doubles = doubles[finite]
        if doubles.size:
            self.max_abs_error = self.max_abs_error or 0.0
            if doubles.any():
                self.max_rel_error = self.max_rel_error or 0.0
            square = float(np.einsum("i,i->", doubles, doubles))
            self._products = [product + square for product in self._products]

    def _add_numbers(
        self,
        start: int,
        outputs: Array,
        references: Array,
        is_same: NDArray[np.bool_],
        limits: tuple[float, float] | None,
    ) -> None:
        actual_values, expected_values = self._widen(outputs), self._widen(references)
        self.actual_nans += int(np.count_nonzero(np.isnan(actual_values)))
        self.expected_nans += int(np.count_nonzero(np.isnan(expected_values)))
        self.actual_infs += int(np.count_nonzero(np.isinf(actual_values)))
        self.expected_infs += int(np.count_nonzero(np.isinf(expected_values)))
        passing, error, limit = judge_values(actual_values, expected_values, limits or (0.0, 0.0))
        if limits is None:
            passing = is_same
        self.mismatches += int(np.count_nonzero(~passing))
        finite = np.isfinite(actual_values) & np.isfinite(expected_values)
        self._add_errors(error, np.abs(expected_values), finite)
        if not self._is_complex:
            self._add_products(np.where(finite, actual_values, 0.0), np.where(finite, expected_values, 0.0))
        excess = np.where(finite, error - limit, math.inf)
        # A failing value is always worse than a passing value, whatever the rounding of the excess.
        excess = np.where(passing, np.minimum(excess, 0.0), np.maximum(np.nan_to_num(excess, nan=math.inf), 0.0))
        self._add_worst(start, np.where(passing & ~(error > 0), -math.inf, excess))

    def _widen(self, values: Array) -> Array:
        """Return the same numbers in double precision."""
        if self._is_complex:
            return values.astype(np.complex128)
        bits = 8 * values.dtype.itemsize
        if not self._is_float or bits > 16 or (self._table is None and values.size < _MIN_TABLE_VALUES):
            return values.astype(np.float64)
        bits_dtype = np.dtype(f"uint{bits}")
        if self._table is None:
            self._table = np.arange(1 << bits).astype(bits_dtype).view(values.dtype).astype(np.float64)
        return np.asarray(self._table[values.view(bits_dtype)])

    def _add_integers(self, start: int, outputs: Array, references: Array, is_same: NDArray[np.bool_]) -> None:
        bits_dtype = f"uint{outputs.dtype.itemsize * 8}"
        actual_bits, expected_bits = outputs.view(bits_dtype), references.view(bits_dtype)
        # The error is exact for all values, even if the difference of two i64 values does not fit an i64.
        error = np.where(outputs > references, actual_bits - expected_bits, expected_bits - actual_bits).astype(
            np.float64
        )
        self.mismatches += int(np.count_nonzero(~is_same))
        actual_doubles, expected_doubles = outputs.astype(np.float64), references.astype(np.float64)
        self._add_errors(error, np.abs(expected_doubles), np.ones(error.shape, np.bool_))
        self._add_products(actual_doubles, expected_doubles)
        self._add_worst(start, np.where(is_same, -math.inf, error))

    def _add_errors(self, error: Array, magnitude: Array, finite: NDArray[np.bool_]) -> None:
        if finite.any():
            self.max_abs_error = max(self.max_abs_error or 0.0, float(np.max(error, where=finite, initial=0.0)))
        comparable = finite & (magnitude > 0)
        if comparable.any():
            relative = np.divide(error, magnitude, where=comparable, out=np.zeros_like(error))
            self.max_rel_error = max(self.max_rel_error or 0.0, float(relative.max()))

    def _add_products(self, outputs: Array, references: Array) -> None:
        # Do not use `@`, because BLAS would wake its threads for each of these short pieces.
        self._products[0] += float(np.einsum("i,i->", outputs, references))
        self._products[1] += float(np.einsum("i,i->", outputs, outputs))
        self._products[2] += float(np.einsum("i,i->", references, references))

    def _add_worst(self, start: int, excess: Array) -> None:
        index = int(np.argmax(excess))
        if excess[index] > self._worst_excess:
            self._worst_excess = float(excess[index])
            self.worst = start + index


def _compare_bytes(outputs: Array, references: Array) -> NDArray[np.bool_]:
    """Return for each value whether its bytes are the same."""
    width = outputs.dtype.itemsize
    if width in (1, 2, 4, 8):
        bits_dtype = f"uint{width * 8}"
        is_same: NDArray[np.bool_] = outputs.view(bits_dtype) == references.view(bits_dtype)
        return is_same
    actual_bytes = np.ascontiguousarray(outputs).view(np.uint8).reshape(-1, width)
    expected_bytes = np.ascontiguousarray(references).view(np.uint8).reshape(-1, width)
    return np.asarray(np.all(actual_bytes == expected_bytes, axis=1))
