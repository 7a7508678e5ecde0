"""A normal distribution from random bits alone, the same on every machine and fast enough to fill a disk.

A table holds the quantiles of the normal distribution in the middle of 2^16 equally likely intervals, so that
16 random bits pick a value. Types with more precision than that add 2 or 4 such values of smaller deviation:
the sum of normal variates is normal, and 2^32 or 2^64 combinations are enough for their mantissas.

The quantiles are Wichura's (Algorithm AS 241, Applied Statistics 37, 1988, PPND16, accurate to about 1e-16),
evaluated with + - * / and square roots in binary64 only, which IEEE 754 rounds exactly. The logarithm in the
tails is `decimal`'s, which is correctly rounded too; the C library's differs from machine to machine.
"""

from __future__ import annotations

import decimal
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["TABLE_SIZE", "quantiles"]

TABLE_SIZE = 1 << 16

_LOG_DIGITS = 25  # of the logarithm before it is rounded to binary64
_CENTRE = 0.425
_FAR = 5.0
# Coefficients of numerator and denominator, highest power first.
_NEAR_MEDIAN = (
    (
        *(2509.0809287301226727, 33430.575583588128105, 67265.770927008700853, 45921.953931549871457),
        *(13731.693765509461125, 1971.5909503065514427, 133.14166789178437745, 3.387132872796366608),
    ),
    (
        *(5226.495278852854561, 28729.085735721942674, 39307.89580009271061, 21213.794301586595867),
        *(5394.1960214247511077, 687.1870074920579083, 42.313330701600911252, 1.0),
    ),
)
_IN_TAIL = (
    (
        *(7.7454501427834140764e-4, 0.0227238449892691845833, 0.24178072517745061177, 1.27045825245236838258),
        *(3.64784832476320460504, 5.7694972214606914055, 4.6303378461565452959, 1.42343711074968357734),
    ),
    (
        *(1.05075007164441684324e-9, 5.475938084995344946e-4, 0.0151986665636164571966, 0.14810397642748007459),
        *(0.68976733498510000455, 1.6763848301838038494, 2.05319162663775882187, 1.0),
    ),
)


@cache
def quantiles() -> NDArray[np.float64]:
    """Quantiles of the standard normal distribution at (i + 1/2) / 2^16, symmetric about zero, in binary64.

    The farthest is 4.32 deviations from the mean; their own deviation is 0.99999.
    """
    # q = 1/2 - p for the lower half; all of it is exact in binary64.
    distance = (np.arange(TABLE_SIZE // 2, dtype=np.float64) * 2.0 + 1.0) / (2.0 * TABLE_SIZE)
    upper = np.empty_like(distance)
    centre = distance <= _CENTRE
    near = distance[centre]
    square = 0.180625 - near * near
    upper[centre] = near * _polynomial(_NEAR_MEDIAN[0], square) / _polynomial(_NEAR_MEDIAN[1], square)
    root = np.sqrt(np.array([_minus_log(0.5 - q) for q in distance[~centre].tolist()]))
    assert root.max() <= _FAR, "the table ends before the far tail, which has coefficients of its own"
    upper[~centre] = _polynomial(_IN_TAIL[0], root - 1.6) / _polynomial(_IN_TAIL[1], root - 1.6)
    table = np.concatenate([-upper[::-1], upper])
    table.flags.writeable = False
    return table


def _polynomial(coefficients: Sequence[float], x: NDArray[Any]) -> NDArray[Any]:
    result = np.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        result = result * x + coefficient
    return result


def _minus_log(p: float) -> float:
    context = decimal.Context(prec=_LOG_DIGITS, rounding=decimal.ROUND_HALF_EVEN)
    return float(-context.ln(decimal.Decimal(p)))
