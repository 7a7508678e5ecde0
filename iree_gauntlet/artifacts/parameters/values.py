"""Values of a parameter: seeded ones, or one value repeated, in pieces of bounded size.

Seeded bytes depend on scope, name, type, shape and seed of the parameter alone: not on the other parameters,
the machine, the program's form or the size of the pieces. The SHA-256 of these five seeds PCG64, whose raw
stream NumPy promises for ever; it is used from the first byte on, 64-bit words in little-endian order.

* Integers of whole bytes, and packed ones, are the stream as it comes: every bit pattern is equally likely.
  The unused bits of a last byte are zero.
* `i1` takes one bit a value, the lowest of a byte first, and writes a byte 0 or 1.
* Floats are normal with mean 0 and deviation 0.01 (`normal.py`): 16 bits of the stream a value of f16, bf16
  and the f8 types, 32 of f32 and 64 of f64.
"""

from __future__ import annotations

import decimal
import hashlib
import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from iree_gauntlet.artifacts.parameters.parameter import PARAMETERS_FORMAT, ElementType, Kind, Parameter, ParameterError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray


DEVIATION = 0.01

_SCHEME = b"iree-gauntlet parameter %d" % PARAMETERS_FORMAT
_WORD_BYTES = 8
_PIECE = 1 << 15  # words of the stream a piece: some 2 MB with all that is made of them
_TABLE_SIZE = 1 << 16
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


@dataclass(frozen=True, slots=True)
class RandomContent:
    """Seeded values, independent between parameters.

    Attributes:
        seed: any whole number from 0 on.
    """

    seed: int = 0

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise ParameterError(f"seed {self.seed} of random weights is negative", "Use a whole number from 0 on.")


@dataclass(frozen=True, slots=True)
class SplatContent:
    """One value everywhere.

    Attributes:
        value: a number that each parameter's element type can hold.
    """

    value: float = 0


def random_bytes(parameter: Parameter, seed: int, *, piece: int = _PIECE) -> Iterator[bytes]:
    """The seeded values of a parameter in C order, little-endian, as they lie in memory.

    Args:
        parameter: what to make.
        seed: of the weights; each parameter makes its own stream of it.
        piece: words of the stream that are handled at once; the bytes do not depend on it.
    """
    element = parameter.element
    words_left = -(-parameter.count * _stream_bits(element) // (_WORD_BYTES * 8))
    values_left = parameter.count
    generator = np.random.PCG64(_stream_seed(parameter, seed))
    while words_left:
        words = min(piece, words_left)
        stream = np.asarray(generator.random_raw(words), dtype=np.uint64).astype("<u8", copy=False)
        values = words * _WORD_BYTES * 8 // _stream_bits(element)
        yield _made(stream, element, min(values, values_left))
        words_left -= words
        values_left -= min(values, values_left)


def splat_pattern(element: ElementType, value: float) -> bytes:
    """The shortest run of bytes whose repetition fills a parameter of this type with a value.

    Raises:
        ParameterError: the type cannot hold it.
    """
    pattern = _float_bytes(element, value) if element.kind is Kind.FLOAT else _integer_bytes(element, value)
    while len(pattern) > 1 and pattern[: len(pattern) // 2] == pattern[len(pattern) // 2 :]:
        pattern = pattern[: len(pattern) // 2]
    return pattern


def _stream_seed(parameter: Parameter, seed: int) -> int:
    fields = (parameter.scope, parameter.name, parameter.element_type, "x".join(map(str, parameter.shape)), str(seed))
    digest = hashlib.sha256(_SCHEME)
    for field in fields:
        content = field.encode("utf-8", "surrogateescape")
        # With its length before it no field can pass for a part of its neighbour.
        digest.update(len(content).to_bytes(8, "little") + content)
    return int.from_bytes(digest.digest(), "little")


def _stream_bits(element: ElementType) -> int:
    """Bits of the stream that make one value."""
    if element.kind is Kind.BOOL:
        return 1
    return max(16, element.bits) if element.kind is Kind.FLOAT else element.bits


def _made(stream: NDArray[Any], element: ElementType, count: int) -> bytes:
    """The first `count` values of a piece of the stream."""
    raw = stream.view(np.uint8)
    if element.kind is Kind.BOOL:
        return np.unpackbits(raw, count=count, bitorder="little").tobytes()
    if element.kind is Kind.INTEGER:
        used_bits = count * element.bits
        content = raw[: (used_bits + 7) // 8]
        if used_bits % 8:
            content[-1] &= (1 << used_bits % 8) - 1
        return content.tobytes()
    picked = _normals(element.dtype).take(stream.view("<u2"))
    return _sums(picked, _stream_bits(element) // 16)[:count].tobytes()


def _sums(picked: NDArray[Any], terms: int) -> NDArray[Any]:
    """Sums of neighbours, always by pairs: the order of additions is part of the bytes."""
    while terms > 1:
        picked = picked[0::2] + picked[1::2]
        terms //= 2
    return picked


@cache
def _normals(dtype: str) -> NDArray[Any]:
    """The table of one term, with the deviation that the sum of all terms needs."""
    terms = {"float32": 2, "float64": 4}.get(dtype, 1)
    scaled = quantiles() * (DEVIATION / math.sqrt(terms))
    if dtype == "float64":
        return scaled.astype("<f8")
    return _rounded(scaled.astype("<f4"), dtype)


def _rounded(values: NDArray[Any], dtype: str) -> NDArray[Any]:
    known: np.dtype[Any] = np.dtype(getattr(ml_dtypes, dtype, dtype)).newbyteorder("<")
    with np.errstate(over="ignore"):  # an infinity or NaN is what the caller looks for
        return values.astype(known)


def _float_bytes(element: ElementType, value: float) -> bytes:
    try:
        exact = float(value)
    except OverflowError:
        exact = math.inf if value > 0 else -math.inf
    if math.isfinite(exact) or not isinstance(value, int):
        held = _rounded(np.array([exact], dtype="<f8"), element.dtype)
        back = float(held.astype(np.float64)[0])
        if back == exact or (math.isnan(back) and math.isnan(exact)) or (math.isfinite(back) and math.isfinite(exact)):
            return held.tobytes()
    raise ParameterError(
        f"splat value {value}: {element.name} cannot hold it", "Use a smaller number, or a type with a larger range."
    )


def _integer_bytes(element: ElementType, value: float) -> bytes:
    whole = isinstance(value, int) or value.is_integer()
    if not whole or not element.least <= value <= element.most:
        raise ParameterError(
            f"splat value {value}: {element.name} holds whole numbers from {element.least} to {element.most}",
            "Use a value that every parameter of the program can hold.",
        )
    code = int(value) & ((1 << element.bits) - 1)
    if element.bits >= 8:
        return code.to_bytes(element.bits // 8, "little")
    return bytes([sum(code << shift for shift in range(0, 8, element.bits))])


@cache
def quantiles() -> NDArray[np.float64]:
    """Quantiles of the standard normal distribution at (i + 1/2) / 2^16, symmetric about zero, in binary64.

    The farthest is 4.32 deviations from the mean; their own deviation is 0.99999.
    """
    # q = 1/2 - p for the lower half; all of it is exact in binary64.
    distance = (np.arange(_TABLE_SIZE // 2, dtype=np.float64) * 2.0 + 1.0) / (2.0 * _TABLE_SIZE)
    upper = np.empty_like(distance)
    centre = distance <= _CENTRE
    near = distance[centre]
    square = 0.180625 - near * near
    upper[centre] = near * np.polyval(_NEAR_MEDIAN[0], square) / np.polyval(_NEAR_MEDIAN[1], square)
    root = np.sqrt(np.array([_minus_log(0.5 - q) for q in distance[~centre].tolist()]))
    assert root.max() <= _FAR, "the table ends before the far tail, which has coefficients of its own"
    upper[~centre] = np.polyval(_IN_TAIL[0], root - 1.6) / np.polyval(_IN_TAIL[1], root - 1.6)
    table = np.concatenate([-upper[::-1], upper])
    table.flags.writeable = False
    return table


def _minus_log(p: float) -> float:
    context = decimal.Context(prec=_LOG_DIGITS, rounding=decimal.ROUND_HALF_EVEN)
    return float(-context.ln(decimal.Decimal(p)))
