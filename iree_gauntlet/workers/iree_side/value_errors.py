"""Compute tolerances, and the errors of a program's values against expected values, for workers and the toolkit.

The comparison follows the rule of `iree-run-module` (`iree_math_fuzzy_compare_f64`): a value passes if it equals the
expected value, if both are NaN, or if the expected value is finite and |actual − expected| ≤ atol + rtol · |expected|,
all in double precision. Limits are pairs (atol, rtol).

A correct result differs from a reference by rounding. The reference's own error against the same model in double
precision shows how much the model amplifies rounding: an implementation that adds in another order has a similar error.
The minimum tolerance is a few roundings of the largest value in the type, because approximations of exp, tanh, erf and
the like differ by as much. The maximum is less than a mistake of 1 %.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    Array = NDArray[Any]
    Limits = tuple[float, float]


# The number of values that are processed at once; in double precision they fit into the processor's cache.
PIECE = 1 << 15
# These limits accept every finite difference of finite values.
_FINITE_LIMITS = (sys.float_info.max, 0.0)
FLOAT_TYPES = ("f16", "bf16", "f32", "f64")
# Minimum tolerances by IREE's name of the element type: as a share of the largest value, and of each value. All are
# below 1 %. Those of f16 are two units in the last place, those of bf16 one. IREE's tanh form of GELU is off by 3e-5.
_MIN_SHARE = {"f64": 1e-12, "f32": 5e-5, "f16": 2e-3, "bf16": 4e-3}
_UNIT_ROUNDOFF = {"f64": 2.0**-53, "f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}
_RTOL = {"f64": 1e-12, "f32": 1e-5, "f16": 2e-3, "bf16": 4e-3}
# Tolerances for outputs that another program computed, which may add in another order.
_FOREIGN_SHARE = {"f64": 1e-7, "f32": 1e-4, "f16": 4e-3, "bf16": 8e-3}
# The factors for the error against f64. The first allows for other orders of addition and other approximations. If it
# would hide a mistake of 1 %, half of the visible error is used instead, or the second factor if that gives more.
_ERROR_FACTOR, _MIN_ERROR_FACTOR = 10.0, 2.0
_MAX_SHARE = 5e-3
# An error above this share of the largest value is not due to rounding: the model behaves differently in f64.
_MAX_ROUNDING_SHARE = 0.1


def judge_values(actual: Array, reference: Array, limits: Limits) -> tuple[NDArray[np.bool_], Array, Array]:
    """Return for each value whether it passes, its error, and its limit; arrays are of double precision or complex."""
    error, limit = np.abs(actual - reference), limits[0] + limits[1] * np.abs(reference)
    is_passing = (actual == reference) | (np.isfinite(reference) & (error <= limit))
    if not is_passing.all():
        is_passing |= np.isnan(actual) & np.isnan(reference)
    return is_passing, error, limit


def are_close(actual: Array, reference: Array, limits: Limits | None, element_type: str = "") -> bool:
    """Return whether all values pass; `bf16` arrays hold bits. Without limits, the bytes must be equal."""
    actual_values, references = actual.reshape(-1), reference.reshape(-1)
    if np.array_equal(actual_values.view(np.uint8), references.view(np.uint8)):
        return True
    if limits is None:
        return False
    pieces = (slice(start, start + PIECE) for start in range(0, actual_values.size, PIECE))
    with np.errstate(all="ignore"):
        return all(
            judge_values(widen(actual_values[piece], element_type), widen(references[piece], element_type), limits)[
                0
            ].all()
            for piece in pieces
        )


def find_close(actual: Array, reference: Array, *, rtol: float, atol: float, equal_nan: bool) -> NDArray[np.bool_]:
    """Return for each value whether it passes the rule of `numpy.allclose`, computed in the arrays' own precision."""
    with np.errstate(all="ignore"):
        return np.asarray(np.isclose(actual, reference, rtol=rtol, atol=atol, equal_nan=equal_nan))


def measure_difference(array: Array, second: Array) -> float:
    """Return the largest difference of finite values; infinity if only one side has a NaN or an infinity."""
    if array.shape != second.shape:
        return math.inf
    with np.errstate(all="ignore"):
        is_passing, error, _ = judge_values(widen(array), widen(second), _FINITE_LIMITS)
    return float(error.max(where=np.isfinite(error), initial=0.0)) if is_passing.all() else math.inf


def find_largest(array: Array) -> float:
    """Return the largest finite absolute value; 0 if there is none."""
    with np.errstate(all="ignore"):
        sizes = np.abs(widen(array))
    return float(sizes.max(where=np.isfinite(sizes), initial=0.0))


def widen(values: Array, element_type: str = "") -> NDArray[np.float64]:
    """Convert numbers to double precision; `bf16` numbers are given by their bits."""
    if element_type == "bf16":
        return (values.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return values.astype(np.float64)


@dataclass(frozen=True, slots=True)
class OutputTolerance:
    """The tolerance of a model's outputs of one element type."""

    atol: float
    rtol: float
    reason: str


def choose_tolerance(
    element_type: str, outputs: Iterable[tuple[Array, Array | None, Array | None]], longest_sum: int
) -> OutputTolerance:
    """Choose the tolerance of a model's outputs of one type of `FLOAT_TYPES`.

    Each output is given by the reference, by the reference in f64, and by another reference; None if unavailable. Each
    value is a sum of at most `longest_sum` products; without an f64 result, the error is estimated from this number.
    """
    tolerance = OutputTolerance(0.0, _RTOL[element_type], "")
    for array, exact, second in outputs:
        scale = find_largest(array)
        min_atol = _MIN_SHARE[element_type] * (scale or 1.0)
        error = measure_difference(array, exact) if exact is not None else math.inf
        if error <= _MAX_ROUNDING_SHARE * scale:
            reason = f"its error against the same model in f64 is {error:.2g}, the largest value {scale:.3g}"
        else:
            error = _UNIT_ROUNDOFF[element_type] * math.sqrt(longest_sum) * scale / _ERROR_FACTOR
            reason = f"sums of {longest_sum} products in {element_type}, the largest value {scale:.3g}"
        atol = max(min(_ERROR_FACTOR * error, _MAX_SHARE * scale), _MIN_ERROR_FACTOR * error)
        reference_difference = measure_difference(array, second) if second is not None else 0.0
        if atol < _MIN_ERROR_FACTOR * reference_difference <= _MAX_SHARE * scale:
            atol = _MIN_ERROR_FACTOR * reference_difference
            reason = f"two references differ by {reference_difference:.2g}, the largest value {scale:.3g}"
        if atol <= min_atol:
            atol = min_atol
            reason = (
                f"{_MIN_SHARE[element_type]:g} of the largest value, {scale:.3g}: a few roundings of {element_type}"
            )
        if atol > tolerance.atol:
            tolerance = OutputTolerance(_round_up(atol), tolerance.rtol, reason)
    return tolerance


def choose_foreign_tolerance(element_type: str, outputs: Iterable[Array]) -> OutputTolerance:
    """Choose the tolerance of outputs of one floating-point type that another program computed."""
    scale = max(map(find_largest, outputs), default=0.0)
    share = _FOREIGN_SHARE[element_type]
    reason = f"{share:g} of the largest value, {scale:.3g}: they come from another program"
    return OutputTolerance(_round_up(share * (scale or 1.0)), _RTOL[element_type], reason)


def _round_up(value: float) -> float:
    """Round up to two significant digits."""
    digit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{math.ceil(value / digit - 1e-9) * digit:.2g}")
