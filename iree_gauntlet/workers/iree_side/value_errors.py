"""Errors of a program's values against the expected ones, and how large they may be: here and in the toolkit.

The rule of the comparison is that of `iree-run-module` (`iree_math_fuzzy_compare_f64`): a value passes where it is
equal, where both are NaN, or where |actual − expected| ≤ atol + rtol · |expected| with a finite expected value, all in
double precision. Limits are such pairs, (atol, rtol).

A right result is off a reference by rounding. The error of the reference itself, against the same model in double
precision, says what a model does to roundings: an implementation that adds in another order is off by as much. At least
some units of the type's own rounding of the largest value are allowed, since approximations of exp, tanh, erf and the
like differ by as much; at most less than a mistake of 1 %.
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


# Values that are gone through at once: in double precision they fit the processor's cache.
PIECE = 1 << 15
# Every difference of finite values that is finite itself.
_FINITE = (sys.float_info.max, 0.0)
FLOAT_TYPES = ("f16", "bf16", "f32", "f64")
# By IREE's names of element types: the least that is allowed, as a share of the largest value; and of each value. All
# are below 1 %; those of f16 and bf16 are two units in the last place, and one. IREE's tanh form of GELU is 3e-5 off.
_LEAST = {"f64": 1e-12, "f32": 5e-5, "f16": 2e-3, "bf16": 4e-3}
_ROUNDING = {"f64": 2.0**-53, "f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}
_RELATIVE = {"f64": 1e-12, "f32": 1e-5, "f16": 2e-3, "bf16": 4e-3}
# The same of outputs that another program gave, with sums in an order of its own.
_ELSEWHERE = {"f64": 1e-7, "f32": 1e-4, "f16": 4e-3, "bf16": 8e-3}
# Of the error against f64: room for other orders and other approximations; where a mistake of 1 % would hide in that,
# half of it, or so much as is still needed.
_ROOM, _LITTLE_ROOM = 10.0, 2.0
_VISIBLE = 5e-3
# An error so large, as a share of the largest value, is none of rounding: the model in f64 is another one.
_INCOMPARABLE = 0.1


def judge_values(actual: Array, expected: Array, limits: Limits) -> tuple[NDArray[np.bool_], Array, Array]:
    """Tell which values pass, their errors, and what these may be; both arrays are of double precision or complex."""
    error, limit = np.abs(actual - expected), limits[0] + limits[1] * np.abs(expected)
    passed = (actual == expected) | (np.isfinite(expected) & (error <= limit))
    if not passed.all():
        passed |= np.isnan(actual) & np.isnan(expected)
    return passed, error, limit


def are_close(actual: Array, expected: Array, limits: Limits | None, element_type: str = "") -> bool:
    """Tell whether all values pass, of `bf16` by its bits; without limits they must be the same bytes."""
    mine, wanted = actual.reshape(-1), expected.reshape(-1)
    if np.array_equal(mine.view(np.uint8), wanted.view(np.uint8)):
        return True
    if limits is None:
        return False
    pieces = (slice(start, start + PIECE) for start in range(0, mine.size, PIECE))
    with np.errstate(all="ignore"):
        return all(
            judge_values(widen(mine[piece], element_type), widen(wanted[piece], element_type), limits)[0].all()
            for piece in pieces
        )


def find_close(actual: Array, expected: Array, *, rtol: float, atol: float, equal_nan: bool) -> NDArray[np.bool_]:
    """Tell which values of two arrays of one shape pass by the rule of `numpy.allclose`, in their own precision."""
    with np.errstate(all="ignore"):
        return np.asarray(np.isclose(actual, expected, rtol=rtol, atol=atol, equal_nan=equal_nan))


def difference(array: Array, other: Array) -> float:
    """The largest difference of finite values; infinite where one is no number or infinite and the other is not so."""
    if array.shape != other.shape:
        return math.inf
    with np.errstate(all="ignore"):
        passed, error, _ = judge_values(widen(array), widen(other), _FINITE)
    return float(error.max(where=np.isfinite(error), initial=0.0)) if passed.all() else math.inf


def find_largest(array: Array) -> float:
    """The largest absolute value that is finite; 0 where there is none."""
    with np.errstate(all="ignore"):
        sizes = np.abs(widen(array))
    return float(sizes.max(where=np.isfinite(sizes), initial=0.0))


def widen(values: Array, element_type: str = "") -> NDArray[np.float64]:
    """The same numbers in double precision; those of `bf16` from their bits."""
    if element_type == "bf16":
        return (values.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return values.astype(np.float64)


@dataclass(frozen=True, slots=True)
class Allowed:
    """What outputs of one element type may differ by."""

    atol: float
    rtol: float
    reason: str


def allow(element_type: str, outputs: Iterable[tuple[Array, Array | None, Array | None]], longest_sum: int) -> Allowed:
    """The tolerance of a model's outputs of one type, one of `FLOAT_TYPES`.

    Outputs are those of the reference, of the same in f64, and of another reference; None where they cannot be had. A
    value of the model is the sum of `longest_sum` products at most, which stands for what is not in f64.
    """
    chosen = Allowed(0.0, _RELATIVE[element_type], "")
    for array, exact, other in outputs:
        scale = find_largest(array)
        least = _LEAST[element_type] * (scale or 1.0)
        error = difference(array, exact) if exact is not None else math.inf
        if error <= _INCOMPARABLE * scale:
            reason = f"its error against the same model in f64 is {error:.2g}, the largest value {scale:.3g}"
        else:
            error = _ROUNDING[element_type] * math.sqrt(longest_sum) * scale / _ROOM
            reason = f"sums of {longest_sum} products in {element_type}, the largest value {scale:.3g}"
        wanted = max(min(_ROOM * error, _VISIBLE * scale), _LITTLE_ROOM * error)
        between = difference(array, other) if other is not None else 0.0
        if wanted < _LITTLE_ROOM * between <= _VISIBLE * scale:
            wanted = _LITTLE_ROOM * between
            reason = f"two references differ by {between:.2g}, the largest value {scale:.3g}"
        if wanted <= least:
            wanted = least
            reason = f"{_LEAST[element_type]:g} of the largest value, {scale:.3g}: a few roundings of {element_type}"
        if wanted > chosen.atol:
            chosen = Allowed(_round_up(wanted), chosen.rtol, reason)
    return chosen


def allow_of_others(element_type: str, outputs: Iterable[Array]) -> Allowed:
    """The tolerance of outputs of one floating-point type that no reference of ours gave."""
    scale = max(map(find_largest, outputs), default=0.0)
    share = _ELSEWHERE[element_type]
    reason = f"{share:g} of the largest value, {scale:.3g}: they come from another program"
    return Allowed(_round_up(share * (scale or 1.0)), _RELATIVE[element_type], reason)


def _round_up(value: float) -> float:
    """To two significant digits."""
    digit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{math.ceil(value / digit - 1e-9) * digit:.2g}")
