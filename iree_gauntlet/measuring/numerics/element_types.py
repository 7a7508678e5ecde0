"""IREE's names of element types and tensor types, and how their values are stored.

The names are those of `iree_hal_parse_element_type` (runtime/src/iree/hal/string_util.c): `f32`,
`bf16`, `i64`, `si32`, `ui8`, `i1` (a byte a value), `cf64` (two f32), `f8E4M3FN`, … and `*16` for bits
of no known meaning.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from iree_gauntlet.errors import GauntletError

# The types that NumPy can compute with. The rest is handled as bytes, as iree-run-module does.
_DTYPES: dict[str, Any] = {
    "i1": np.bool_,
    **{f"{sign}{bits}": f"int{bits}" for sign in ("i", "si") for bits in (8, 16, 32, 64)},
    **{f"ui{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{f"f{bits}": f"float{bits}" for bits in (16, 32, 64)},
    "bf16": ml_dtypes.bfloat16,
    "cf64": np.complex64,
    "cf128": np.complex128,
    "f8E5M2": ml_dtypes.float8_e5m2,
    "f8E4M3FN": ml_dtypes.float8_e4m3fn,
    "f8E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
    "f8E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
    "f8E8M0FNU": ml_dtypes.float8_e8m0fnu,
}
_FLOATS = frozenset(name for name in _DTYPES if name.startswith(("f", "bf")))
_INTEGERS = frozenset(name for name in _DTYPES if name.startswith(("i", "si", "ui"))) - {"i1"}
_SIZED = re.compile(r"(?:i|si|ui|f|bf|cf|\*)([0-9]+)")
_MAX_BITS = 255  # the width is a byte of IREE's element type
_MAX_RANK = 128


class TensorError(GauntletError):
    """A tensor that cannot be read: a type, a value or a file that IREE's tools refuse too."""


def is_float(element_type: str) -> bool:
    """Whether it is a floating-point type whose values can be computed with."""
    return element_type in _FLOATS


def is_integer(element_type: str) -> bool:
    """Whether it is an integer type of whole bytes (not a bool)."""
    return element_type in _INTEGERS


def bit_count(element_type: str) -> int:
    """Bits of storage of one value.

    Raises:
        TensorError: IREE has no such element type.
    """
    if element_type in _DTYPES:
        return int(np.dtype(_DTYPES[element_type]).itemsize) * 8
    match = _SIZED.fullmatch(element_type)
    if match is None or not 0 < int(match[1]) <= _MAX_BITS:
        raise TensorError(
            f"element type {element_type!r} is not one of IREE's",
            "use names such as f32, f16, bf16, i64, si32, ui8, i1, f8E4M3FN (case matters)",
        )
    return int(match[1])


def storage_dtype(element_type: str) -> np.dtype[Any]:
    """The NumPy type that holds it: raw bytes (`V2`) where NumPy has none, packed bytes below 8 bits.

    Raises:
        TensorError: IREE has no such element type.
    """
    if element_type in _DTYPES:
        known: np.dtype[Any] = np.dtype(_DTYPES[element_type])
        return known
    bits = bit_count(element_type)
    return np.dtype(np.uint8) if bits < 8 else np.dtype(f"V{(bits + 7) // 8}")


@dataclass(frozen=True, slots=True)
class TensorType:
    """A shape of known dimensions and an element type, written `1x64xf16`."""

    shape: tuple[int, ...]
    element_type: str

    def __str__(self) -> str:
        return "x".join([*map(str, self.shape), self.element_type])

    @property
    def count(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def packed(self) -> bool:
        """Whether several values share a byte."""
        return bit_count(self.element_type) < 8

    @property
    def byte_count(self) -> int:
        """Bytes of the contents, dense and row-major."""
        bits = bit_count(self.element_type)
        return (self.count * bits + 7) // 8 if self.packed else self.count * ((bits + 7) // 8)


def parse_tensor_type(text: str) -> TensorType:
    """Reads `1x64xf16`, or `f16` for a tensor of rank 0.

    Raises:
        TensorError: it is not a shape and an element type.
    """
    *dims, element_type = text.strip().split("x")
    bit_count(element_type)
    shape = []
    for dim in map(str.strip, dims):
        if not (dim.isascii() and dim.isdigit()):
            raise TensorError(
                f"tensor type {text!r}: dimension {dim!r} is not a number",
                "write a static shape and an element type, such as 1x64xf16",
            )
        shape.append(int(dim))
    if len(shape) > _MAX_RANK:
        raise TensorError(f"tensor type {text!r}: rank {len(shape)} exceeds IREE's limit of {_MAX_RANK}")
    return TensorType(tuple(shape), element_type)
