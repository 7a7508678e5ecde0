"""Comparing a module's outputs with the expected ones, by the rule of `iree-run-module`.

The rule (runtime/src/iree/tooling/buffer_view_matchers.c and `iree_math_fuzzy_compare_f64`): shapes and
element types must be the same; f16, bf16, f32 and f64 values pass where they are equal, both NaN, or
|actual − expected| ≤ atol + rtol · |expected| with a finite expected value, all computed in double
precision; values of every other type (integers, bools, f8, complex) must be the same bytes.

The arrays are gone through in pieces that fit the processor's cache.
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


# Looking a 16-bit float up is several times faster than NumPy's conversion of it.
_TABLE_PAYS = 1 << 15
# What a comparison has of the errors of its values.
_FIGURES = (
    *("mismatches", "max_abs_error", "max_rel_error", "cosine_similarity"),
    *("actual_nans", "expected_nans", "actual_infs", "expected_infs"),
)


def compare_outputs(
    actual: Sequence[Tensor], expected: Sequence[Tensor | None], tolerances: Tolerances
) -> list[OutputComparison]:
    """Compares all outputs of a call; the call passes where every entry passes.

    There is one for each actual output and for each expected one that is missing; nothing (None) may be expected.
    """
    comparisons = [
        _compare_output(index, mine, wanted, tolerances)
        for index, (mine, wanted) in enumerate(zip(actual, expected, strict=False))
    ]
    counts = f"the module gives {len(actual)} outputs, {len(expected)} are expected"
    extra, lost = actual[len(expected) :], expected[len(actual) :]
    odd = [(tensor, "has no expectation") for tensor in extra] + [(tensor, "is missing") for tensor in lost]
    return comparisons + [
        OutputComparison(index, str(tensor.type) if tensor else "", f"{counts}: this one {what}", passed=False)
        for index, (tensor, what) in enumerate(odd, len(comparisons))
    ]


def compare_allclose(
    actual: Sequence[Tensor], expected: Sequence[Tensor | None], allclose: Allclose
) -> list[OutputComparison]:
    """The same by NumPy's own function, in the arrays' own precision; only the element types need not be the same."""
    tolerances = Tolerances(f64=allclose.atol, rtol=allclose.rtol)
    found = compare_outputs(
        list(map(_make_doubles, actual)), [item and _make_doubles(item) for item in expected], tolerances
    )
    for index, (comparison, mine, wanted) in enumerate(zip(found, actual, expected, strict=False)):
        named = replace(comparison, type=str(mine.type), atol=allclose.atol, rtol=allclose.rtol)
        same = wanted is not None and mine.shape == wanted.shape and not mine.lacks_meaning
        found[index] = _judge_allclose(named, mine.array, wanted.array, allclose) if wanted and same else named
    return found


def _make_doubles(tensor: Tensor) -> Tensor:
    """The values in double precision, for figures; bits without a meaning stay what they are."""
    if tensor.lacks_meaning:
        return tensor
    return replace(tensor, element_type="f64", array=tensor.array.astype(np.float64))


def _judge_allclose(comparison: OutputComparison, mine: Array, wanted: Array, allclose: Allclose) -> OutputComparison:
    close = find_close(mine, wanted, rtol=allclose.rtol, atol=allclose.atol, equal_nan=allclose.equal_nan)
    if (worst := comparison.worst_index) is not None:
        comparison = replace(comparison, worst_actual=str(mine[worst]), worst_expected=str(wanted[worst]))
    mismatches = int(close.size - np.count_nonzero(close))
    comparison = replace(comparison, passed=not mismatches, mismatches=mismatches)
    rule = _format_rule(comparison) or "0 + 0·|expected|"
    if comparison.passed:
        return replace(comparison, message=_describe_passed(comparison, rule))
    message = _describe_mismatches(comparison, rule)
    nans = comparison.actual_nans, comparison.expected_nans
    if any(nans) and not allclose.equal_nan:
        message += f"; {nans[0]} NaN, expected {nans[1]}, and NaN equals no NaN here"
    return replace(comparison, message=message)


def _compare_output(index: int, actual: Tensor, expected: Tensor | None, tolerances: Tolerances) -> OutputComparison:
    if expected is None:
        message = "ignored: nothing is expected of this output"
        return OutputComparison(
            index, str(actual.type), message, passed=True, count=actual.type.count, actual_path=actual.source
        )
    atol, rtol = tolerances.written(actual.element_type)
    result = OutputComparison(
        index,
        str(actual.type),
        passed=False,
        count=actual.type.count,
        atol=atol,
        rtol=rtol,
        actual_path=actual.source,
        expected_path=expected.source,
    )
    if actual.type != expected.type:
        return replace(result, message=_describe_types(actual, expected))
    mine, wanted = actual.array.reshape(-1), expected.array.reshape(-1)
    limits = tolerances.effective(actual.element_type) if tolerances.applies_to(actual.element_type) else None
    statistics = _ErrorStatistics(actual.element_type)
    for start in range(0, mine.size, PIECE):
        statistics.add(start, mine[start : start + PIECE], wanted[start : start + PIECE], limits)
    result = replace(
        result, passed=statistics.mismatches == 0, **{name: getattr(statistics, name) for name in _FIGURES}
    )
    if statistics.worst is not None:
        where = np.unravel_index(statistics.worst, actual.array.shape)
        result = replace(
            result,
            worst_index=tuple(int(axis) for axis in where),
            worst_actual=_show(mine[statistics.worst]),
            worst_expected=_show(wanted[statistics.worst]),
        )
    return replace(result, message=_describe_values(result))


def _describe_types(actual: Tensor, expected: Tensor) -> str:
    if actual.shape != expected.shape:
        return f"the module gives {actual.type}, expected is {expected.type}"
    message = f"the module gives element type {actual.element_type}, expected is {expected.element_type}"
    if expected.source.endswith(".npy") and f"s{actual.element_type}" == expected.element_type:
        message += (
            f" (integers in a .npy have a sign, and iree-run-module takes the two for different types:"
            f" store the expected values as raw bytes, {actual.type}=@file.bin)"
        )
    elif expected.element_type.startswith("*"):
        message += f" (a .npy cannot name {actual.element_type}: store raw bytes, {actual.type}=@file.bin)"
    return message


def _describe_values(result: OutputComparison) -> str:
    rule = _format_rule(result)
    if result.passed:
        if result.worst_index is None:
            return f"all {result.count} values are equal"
        return _describe_passed(result, rule)
    text = _describe_mismatches(result, rule)
    for name, mine, wanted in (
        ("NaN", result.actual_nans, result.expected_nans),
        ("Inf", result.actual_infs, result.expected_infs),
    ):
        if mine != wanted:
            text += f"; {mine} {name}, expected {wanted}"
    return text


def _format_rule(result: OutputComparison) -> str:
    return f"{result.atol:g} + {result.rtol:g}·|expected|" if result.atol or result.rtol else ""


def _describe_passed(result: OutputComparison, rule: str) -> str:
    return f"all {result.count} values are within {rule}{_describe_error(result)}"


def _describe_mismatches(result: OutputComparison, rule: str) -> str:
    share = 100 * (result.mismatches or 0) / result.count
    text = f"{result.mismatches} of {result.count} values ({share:.3g} %) differ"
    text += f" by more than {rule}" if rule else ""
    if result.worst_index is None:
        return text
    worst = f"{result.worst_actual}, expected {result.worst_expected}{_describe_error(result)}"
    return f"{text}; worst at {list(result.worst_index)}: {worst}"


def _describe_error(result: OutputComparison) -> str:
    return "" if result.max_abs_error is None else f" (largest error {result.max_abs_error:.4g})"


def _show(value: Any) -> str:
    """One value as text, in the fewest digits that distinguish it from its neighbours."""
    if isinstance(value, np.void):
        return "0x" + value.tobytes().hex()
    if isinstance(value, np.bool_):
        # A damaged bool holds neither 0 nor 1, which is just what one then needs to see.
        return str(np.array([value]).view(np.uint8)[0])
    return str(value)


class _ErrorStatistics:
    """Counts and errors of two arrays, gathered piece by piece.

    Attributes:
        worst: flat index of the value furthest outside its limit; None while all are equal.
        max_abs_error, max_rel_error: over values finite on both sides (relative: expected ≠ 0 as well), if there are.
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
        """a·b / (|a| |b|) over values finite on both sides; None where it is undefined or overflows."""
        inner, actual, expected = self._products
        norm = math.sqrt(actual) * math.sqrt(expected)
        if not math.isfinite(inner) or not math.isfinite(norm) or norm == 0:
            return None
        return max(-1.0, min(1.0, inner / norm))

    def add(self, start: int, actual: Array, expected: Array, limits: tuple[float, float] | None) -> None:
        """Adds a piece."""
        same = _compare_bytes(actual, expected)
        with np.errstate(all="ignore"):
            if same.all() and not self._is_complex:
                self._add_equal(actual)
            elif self._is_float or self._is_complex:
                self._add_numbers(start, actual, expected, same, limits)
            elif is_integer(self._element_type):
                self._add_integers(start, actual, expected, same)
            else:
                self.mismatches += int(np.count_nonzero(~same))
                self._add_worst(start, np.where(same, -math.inf, 0.0))

    def _add_equal(self, values: Array) -> None:
        """A piece that is the same on both sides to the bit: most pieces of most outputs."""
        if not self._is_float and not is_integer(self._element_type):
            return
        wide = self._widen(values)
        finite = np.isfinite(wide)
        if not finite.all():
            nans = int(np.count_nonzero(np.isnan(wide)))
            infs = wide.size - int(np.count_nonzero(finite)) - nans
            self.actual_nans += nans
            self.expected_nans += nans
            self.actual_infs += infs
            self.expected_infs += infs
            wide = wide[finite]
        if wide.size:
            self.max_abs_error = self.max_abs_error or 0.0
            if wide.any():
                self.max_rel_error = self.max_rel_error or 0.0
            square = float(np.einsum("i,i->", wide, wide))
            self._products = [product + square for product in self._products]

    def _add_numbers(
        self, start: int, actual: Array, expected: Array, same: NDArray[np.bool_], limits: tuple[float, float] | None
    ) -> None:
        mine, wanted = self._widen(actual), self._widen(expected)
        self.actual_nans += int(np.count_nonzero(np.isnan(mine)))
        self.expected_nans += int(np.count_nonzero(np.isnan(wanted)))
        self.actual_infs += int(np.count_nonzero(np.isinf(mine)))
        self.expected_infs += int(np.count_nonzero(np.isinf(wanted)))
        passed, error, limit = judge_values(mine, wanted, limits or (0.0, 0.0))
        if limits is None:
            passed = same
        self.mismatches += int(np.count_nonzero(~passed))
        finite = np.isfinite(mine) & np.isfinite(wanted)
        self._add_errors(error, np.abs(wanted), finite)
        if not self._is_complex:
            self._add_products(np.where(finite, mine, 0.0), np.where(finite, wanted, 0.0))
        excess = np.where(finite, error - limit, math.inf)
        # Whatever fails is worse than anything that passes, whatever rounding does to the excess.
        excess = np.where(passed, np.minimum(excess, 0.0), np.maximum(np.nan_to_num(excess, nan=math.inf), 0.0))
        self._add_worst(start, np.where(passed & ~(error > 0), -math.inf, excess))

    def _widen(self, values: Array) -> Array:
        """The same numbers in double precision."""
        if self._is_complex:
            return values.astype(np.complex128)
        bits = 8 * values.dtype.itemsize
        if not self._is_float or bits > 16 or (self._table is None and values.size < _TABLE_PAYS):
            return values.astype(np.float64)
        pattern = np.dtype(f"uint{bits}")
        if self._table is None:
            self._table = np.arange(1 << bits).astype(pattern).view(values.dtype).astype(np.float64)
        return np.asarray(self._table[values.view(pattern)])

    def _add_integers(self, start: int, actual: Array, expected: Array, same: NDArray[np.bool_]) -> None:
        unsigned = f"uint{actual.dtype.itemsize * 8}"
        mine, wanted = actual.view(unsigned), expected.view(unsigned)
        # Exact for all values, also where the difference of two i64 does not fit an i64.
        error = np.where(actual > expected, mine - wanted, wanted - mine).astype(np.float64)
        self.mismatches += int(np.count_nonzero(~same))
        wide_mine, wide_wanted = actual.astype(np.float64), expected.astype(np.float64)
        self._add_errors(error, np.abs(wide_wanted), np.ones(error.shape, np.bool_))
        self._add_products(wide_mine, wide_wanted)
        self._add_worst(start, np.where(same, -math.inf, error))

    def _add_errors(self, error: Array, size: Array, finite: NDArray[np.bool_]) -> None:
        if finite.any():
            self.max_abs_error = max(self.max_abs_error or 0.0, float(np.max(error, where=finite, initial=0.0)))
        comparable = finite & (size > 0)
        if comparable.any():
            relative = np.divide(error, size, where=comparable, out=np.zeros_like(error))
            self.max_rel_error = max(self.max_rel_error or 0.0, float(relative.max()))

    def _add_products(self, mine: Array, wanted: Array) -> None:
        # Not `@`: BLAS would wake its threads for each of these short pieces.
        self._products[0] += float(np.einsum("i,i->", mine, wanted))
        self._products[1] += float(np.einsum("i,i->", mine, mine))
        self._products[2] += float(np.einsum("i,i->", wanted, wanted))

    def _add_worst(self, start: int, excess: Array) -> None:
        index = int(np.argmax(excess))
        if excess[index] > self._worst_excess:
            self._worst_excess = float(excess[index])
            self.worst = start + index


def _compare_bytes(actual: Array, expected: Array) -> NDArray[np.bool_]:
    """Whether values are the same bytes, one answer a value."""
    width = actual.dtype.itemsize
    if width in (1, 2, 4, 8):
        unsigned = f"uint{width * 8}"
        same: NDArray[np.bool_] = actual.view(unsigned) == expected.view(unsigned)
        return same
    mine = np.ascontiguousarray(actual).view(np.uint8).reshape(-1, width)
    wanted = np.ascontiguousarray(expected).view(np.uint8).reshape(-1, width)
    return np.asarray(np.all(mine == wanted, axis=1))
