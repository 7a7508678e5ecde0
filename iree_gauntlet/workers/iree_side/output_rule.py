"""Whether an output passes, by the rule of iree-run-module: the small fast half of `measuring/numerics/comparison.py`.

The rule is documented there. Here are the verdict and the largest error alone; tests compare the two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


# Types whose values may differ; all others are compared by their bytes.
_TOLERANT_TYPES = ("f16", "f32", "f64", "bf16")

_PIECE = 1 << 15


def same_values(
    actual: NDArray[Any], expected: NDArray[Any], element_type: str, limits: tuple[float, float] | None
) -> tuple[bool, float | None]:
    """Whether two arrays of the same type and shape pass, and the largest error of finite values.

    Args:
        actual: what the module gave, as its bits are held.
        expected: what it should have given.
        element_type: IREE's name of the type.
        limits: absolute and relative tolerance; None where values must be the same bytes.

    Returns:
        The verdict; the error is 0 where all bytes are the same, and None where it was not looked for: for types of
        other kinds, and where no value is finite on both sides.
    """
    mine, wanted = actual.reshape(-1), expected.reshape(-1)
    if np.array_equal(mine.view(np.uint8), wanted.view(np.uint8)):
        return True, 0.0
    if limits is None or element_type not in _TOLERANT_TYPES:
        return False, None
    passed, largest = True, None
    with np.errstate(all="ignore"):
        for start in range(0, mine.size, _PIECE):
            piece = slice(start, start + _PIECE)
            good, error = _compare(_widen(mine[piece], element_type), _widen(wanted[piece], element_type), limits)
            passed = passed and good
            if error is not None:
                largest = error if largest is None else max(largest, error)
    return passed, largest


def close_values(
    actual: NDArray[Any], expected: NDArray[Any], *, rtol: float, atol: float, equal_nan: bool
) -> tuple[bool, float | None]:
    """Whether two arrays of the same shape pass by `numpy.allclose`, and the largest error of finite values."""
    with np.errstate(all="ignore"):
        passed = bool(np.allclose(actual, expected, rtol=rtol, atol=atol, equal_nan=equal_nan))
        if actual.dtype.kind not in "fiu" or expected.dtype.kind not in "fiu":
            return passed, None
        mine, wanted = actual.astype(np.float64), expected.astype(np.float64)
        finite = np.isfinite(mine) & np.isfinite(wanted)
        return passed, float(np.abs(mine - wanted).max(where=finite, initial=0.0)) if finite.any() else None


def _compare(
    mine: NDArray[np.float64], wanted: NDArray[np.float64], limits: tuple[float, float]
) -> tuple[bool, float | None]:
    error, size = np.abs(mine - wanted), np.abs(wanted)
    finite = np.isfinite(wanted)
    passed = (mine == wanted) | (finite & (error <= limits[0] + limits[1] * size))
    if not passed.all():
        passed |= np.isnan(mine) & np.isnan(wanted)
    finite &= np.isfinite(mine)
    return bool(passed.all()), float(error.max(where=finite, initial=0.0)) if finite.any() else None


def _widen(values: NDArray[Any], element_type: str) -> NDArray[np.float64]:
    """The same numbers in double precision."""
    if element_type == "bf16":
        return (values.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return values.astype(np.float64)
