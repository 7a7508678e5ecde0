"""What a comparison cannot see: wrong values that a tolerance would let pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


# A mistake of so much of an output's largest value should show.
_VISIBLE = 0.01
# Slices of fewer values, and axes of more slices, say little of what a model computes.
_LEAST_VALUES, _MOST_SLICES = 8, 4096


def find_blind_spot(expected: NDArray[Any], atol: float) -> str:
    """The worst thing that would pass for an output: zeros, a constant, zeros in a part of it; empty for nothing such.

    Args:
        expected: of a floating-point type that NumPy has; NaN and infinity are left alone.
        atol: the absolute tolerance.
    """
    values = np.abs(expected.astype(np.float64))
    if not atol or not values.size or not np.isfinite(values).all():
        return ""
    largest = float(values.max())
    spread = float(np.ptp(expected.astype(np.float64)))
    allowed = f"and the tolerance is {atol:g}"
    if 0 < largest <= atol:
        return f"zeros would pass: no value exceeds {largest:.3g}, {allowed}"
    if 0 < spread <= atol:
        return f"a constant would pass: its values differ by {spread:.3g}, {allowed}"
    for axis, count in enumerate(expected.shape):
        if 1 < count <= _MOST_SLICES and values.size >= _LEAST_VALUES * count:
            tops = np.moveaxis(values, axis, 0).reshape(count, -1).max(axis=1)
            hidden = (tops > 0) & (tops <= atol)
            if hidden.any():
                part = f"{int(hidden.sum())} of {count} slices of axis {axis}"
                return f"zeros would pass in {part}: they never exceed {tops[hidden].max():.3g}, {allowed}"
    if atol > _VISIBLE * largest > 0:
        return f"mistakes of up to {100 * atol / largest:.2g} % of its largest value would pass, {largest:.3g}"
    return ""
