"""Counts and errors of two arrays, gathered piece by piece."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from iree_gauntlet.measuring.numerics.element_types import is_float, is_integer

if TYPE_CHECKING:
    from numpy.typing import NDArray


# Looking a 16-bit float up is several times faster than NumPy's conversion of it.
_TABLE_PAYS = 1 << 15


class ErrorStatistics:
    """What is known of the pieces that were added.

    Attributes:
        mismatches: values that do not pass.
        worst: flat index of the value furthest outside its limit; None while all are equal.
        max_abs_error, max_rel_error: over values finite on both sides (relative: expected ≠ 0 as well);
            None for types without arithmetic or while there are none.
        actual_nans, expected_nans, actual_infs, expected_infs: counts.
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

    def add(
        self,
        start: int,
        actual: NDArray[Any],
        expected: NDArray[Any],
        limits: tuple[float, float] | None,
    ) -> None:
        """Adds a piece.

        Args:
            start: flat index of its first value.
            actual: values of the module, one-dimensional.
            expected: what they should be, of the same type and length.
            limits: (atol, rtol); None where values must be the same bytes.
        """
        same = _same_bytes(actual, expected)
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

    def _add_equal(self, values: NDArray[Any]) -> None:
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
        self,
        start: int,
        actual: NDArray[Any],
        expected: NDArray[Any],
        same: NDArray[np.bool_],
        limits: tuple[float, float] | None,
    ) -> None:
        mine, wanted = self._widen(actual), self._widen(expected)
        mine_nan, wanted_nan = np.isnan(mine), np.isnan(wanted)
        self.actual_nans += int(np.count_nonzero(mine_nan))
        self.expected_nans += int(np.count_nonzero(wanted_nan))
        self.actual_infs += int(np.count_nonzero(np.isinf(mine)))
        self.expected_infs += int(np.count_nonzero(np.isinf(wanted)))
        error, size = np.abs(mine - wanted), np.abs(wanted)
        equal = (mine == wanted) | (mine_nan & wanted_nan)
        limit: NDArray[Any] | float = 0.0
        passed = same
        if limits is not None:
            limit = limits[0] + limits[1] * size
            passed = equal | (np.isfinite(wanted) & (error <= limit))
        self.mismatches += int(np.count_nonzero(~passed))
        finite = np.isfinite(mine) & np.isfinite(wanted)
        self._add_errors(error, size, finite)
        if not self._is_complex:
            self._add_products(np.where(finite, mine, 0.0), np.where(finite, wanted, 0.0))
        excess = np.where(finite, error - limit, math.inf)
        # Whatever fails is worse than anything that passes, whatever rounding does to the excess.
        excess = np.where(passed, np.minimum(excess, 0.0), np.maximum(np.nan_to_num(excess, nan=math.inf), 0.0))
        self._add_worst(start, np.where(passed & equal, -math.inf, excess))

    def _widen(self, values: NDArray[Any]) -> NDArray[Any]:
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

    def _add_integers(self, start: int, actual: NDArray[Any], expected: NDArray[Any], same: NDArray[np.bool_]) -> None:
        unsigned = f"uint{actual.dtype.itemsize * 8}"
        mine, wanted = actual.view(unsigned), expected.view(unsigned)
        # Exact for all values, also where the difference of two i64 does not fit an i64.
        error = np.where(actual > expected, mine - wanted, wanted - mine).astype(np.float64)
        self.mismatches += int(np.count_nonzero(~same))
        wide_mine, wide_wanted = actual.astype(np.float64), expected.astype(np.float64)
        self._add_errors(error, np.abs(wide_wanted), np.ones(error.shape, np.bool_))
        self._add_products(wide_mine, wide_wanted)
        self._add_worst(start, np.where(same, -math.inf, error))

    def _add_errors(self, error: NDArray[Any], size: NDArray[Any], finite: NDArray[np.bool_]) -> None:
        if finite.any():
            self.max_abs_error = max(self.max_abs_error or 0.0, float(np.max(error, where=finite, initial=0.0)))
        comparable = finite & (size > 0)
        if comparable.any():
            relative = np.divide(error, size, where=comparable, out=np.zeros_like(error))
            self.max_rel_error = max(self.max_rel_error or 0.0, float(relative.max()))

    def _add_products(self, mine: NDArray[Any], wanted: NDArray[Any]) -> None:
        # Not `@`: BLAS would wake its threads for each of these short pieces.
        self._products[0] += float(np.einsum("i,i->", mine, wanted))
        self._products[1] += float(np.einsum("i,i->", mine, mine))
        self._products[2] += float(np.einsum("i,i->", wanted, wanted))

    def _add_worst(self, start: int, excess: NDArray[Any]) -> None:
        index = int(np.argmax(excess))
        if excess[index] > self._worst_excess:
            self._worst_excess = float(excess[index])
            self.worst = start + index


def _same_bytes(actual: NDArray[Any], expected: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether values are the same bytes, one answer a value."""
    width = actual.dtype.itemsize
    if width in (1, 2, 4, 8):
        unsigned = f"uint{width * 8}"
        same: NDArray[np.bool_] = actual.view(unsigned) == expected.view(unsigned)
        return same
    mine = np.ascontiguousarray(actual).view(np.uint8).reshape(-1, width)
    wanted = np.ascontiguousarray(expected).view(np.uint8).reshape(-1, width)
    return np.asarray(np.all(mine == wanted, axis=1))
