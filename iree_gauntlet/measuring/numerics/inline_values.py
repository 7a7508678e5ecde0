"""Values written on a command line: `4xf32=1 2 3 4`.

Follows `iree_hal_parse_buffer_elements` (runtime/src/iree/hal/string_util.c): spaces, commas and
brackets separate; one value fills the tensor; none is zeros; integers may be hexadecimal (`0x10`) or
octal (`010`); types without a number format (`i1`, complex, packed) are hexadecimal bytes, `01`.
Stricter than the tool in one point: where it reads the `1` of `1.5` or `1abc` and drops the rest, this
is an error.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from iree_gauntlet.measuring.numerics.element_types import TensorError, TensorType, is_float, is_integer, storage_dtype

if TYPE_CHECKING:
    from numpy.typing import NDArray


_TOKEN = re.compile(r"[^\s,\[\]]+")
_INTEGER = re.compile(r"([+-]?)(?:0[xX]([0-9a-fA-F]+)|0([0-7]*)|([1-9][0-9]*))(?:\.0*)?")
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fF]?")
_HEXADECIMAL = re.compile(r"[+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)(?:[pP][+-]?[0-9]+)?")
_SPECIAL = re.compile(r"[+-]?(?:inf(?:inity)?|nan)", re.IGNORECASE)


def parse_c_float(text: str) -> float:
    """Reads a number as C's `strtod` does: `1.0f`, `1e-3`, `0x1p-3`, `inf`, `nan`.

    Raises:
        ValueError: it is no number.
    """
    if _DECIMAL.fullmatch(text):
        return float(text.rstrip("fF"))
    if _HEXADECIMAL.fullmatch(text):
        try:
            return float.fromhex(text)
        except OverflowError:
            return float("-inf" if text.startswith("-") else "inf")
    if _SPECIAL.fullmatch(text):
        return float(text)
    raise ValueError(f"not a number: {text!r}")


def parse_inline_values(text: str, tensor_type: TensorType) -> NDArray[Any]:
    """The array that the text behind `=` stands for.

    Raises:
        TensorError: a value that does not fit the type, or too few or too many values.
    """
    dtype = storage_dtype(tensor_type.element_type)
    capacity = tensor_type.byte_count // dtype.itemsize
    shape = (capacity,) if tensor_type.packed else tensor_type.shape
    tokens = _TOKEN.findall(text)
    if not tokens:
        return np.zeros(shape, dtype)
    if len(tokens) not in (1, capacity) or capacity == 0:
        raise TensorError(
            f"{tensor_type} holds {capacity} values, {len(tokens)} are written",
            "write all of them, or one that fills the tensor",
        )
    values = np.empty(len(tokens), dtype)
    for index, token in enumerate(tokens):
        try:
            values[index : index + 1] = _parse_value(token, tensor_type.element_type, dtype)
        except ValueError as error:
            raise TensorError(f"{token!r} is not a value of {tensor_type.element_type}: {error}") from error
    return np.broadcast_to(values, (capacity,)).copy().reshape(shape)


def _parse_value(token: str, element_type: str, dtype: np.dtype[Any]) -> NDArray[Any]:
    if is_integer(element_type):
        return _parse_integer(token, element_type, dtype)
    if is_float(element_type):
        value = parse_c_float(token)
        with np.errstate(all="ignore"):
            # Small floats go through f32, as in the tool: the two roundings are part of the result.
            return np.array([value], np.float64 if element_type == "f64" else np.float32).astype(dtype)
    if not re.fullmatch(r"[0-9a-fA-F]*", token) or len(token) != 2 * dtype.itemsize:
        raise ValueError(f"expected {2 * dtype.itemsize} hexadecimal digits")
    return np.frombuffer(bytes.fromhex(token), dtype)


def _parse_integer(token: str, element_type: str, dtype: np.dtype[Any]) -> NDArray[Any]:
    match = _INTEGER.fullmatch(token)
    if match is None:
        raise ValueError("not an integer")
    sign, hexadecimal, octal, decimal = match.groups()
    magnitude = int(hexadecimal, 16) if hexadecimal else int(octal or "0", 8) if octal is not None else int(decimal)
    value = -magnitude if sign == "-" else magnitude
    bits = dtype.itemsize * 8
    signless = element_type.startswith("i") and bits < 64
    lowest = 0 if element_type.startswith("ui") else -(1 << (bits - 1))
    highest = (1 << bits) - 1 if signless or element_type.startswith("ui") else (1 << (bits - 1)) - 1
    if not lowest <= value <= highest:
        raise ValueError(f"out of range ({lowest} to {highest})")
    return np.frombuffer((value % (1 << bits)).to_bytes(bits // 8, "little"), dtype)
