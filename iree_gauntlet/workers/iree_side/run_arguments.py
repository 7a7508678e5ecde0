"""Values of iree-run-module's `--input=` and `--expected_output=`, as bytes for a device.

The forms that operator suites use are read by the tool's own rules (runtime/src/iree/tooling/function_io.c,
runtime/src/iree/hal/string_util.c): `3x4xf32=@a.bin`, `@a.npy`, `2x2xi32=1 2 3 4`. A single value fills the tensor;
without values it is zeros. All other forms and all mistakes raise `UnsupportedError`; the caller then uses the tool
itself, which reads the text or reports the mistake.
"""

from __future__ import annotations

import ast
import math
import mmap
import os
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence


# For each element type: IREE's number (IREE_HAL_ELEMENT_TYPE_VALUE in runtime/src/iree/hal/buffer_view.h: the numerical
# type in the highest byte, the number of bits in the lowest), and the NumPy type that stores its bits.
ELEMENT_TYPES = {
    "i1": (0x13000008, "?"),
    **{f"i{bits}": (0x10000000 | bits, f"<i{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"si{bits}": (0x11000000 | bits, f"<i{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"ui{bits}": (0x12000000 | bits, f"<u{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"f{bits}": (0x21000000 | bits, f"<f{bits // 8}") for bits in (16, 32, 64)},
    "bf16": (0x22000010, "<u2"),
    "cf64": (0x23000040, "<c8"),
    "cf128": (0x23000080, "<c16"),
    "f8E5M2": (0x24000008, "u1"),
    "f8E4M3FN": (0x25000008, "u1"),
    "f8E5M2FNUZ": (0x26000008, "u1"),
    "f8E4M3FNUZ": (0x27000008, "u1"),
    "f8E8M0FNU": (0x28000008, "u1"),
    "i2": (0x10000002, "u1"),
    "i4": (0x10000004, "u1"),
    "si4": (0x11000004, "u1"),
    "ui4": (0x12000004, "u1"),
}
TYPE_NAMES = {number: name for name, (number, _) in ELEMENT_TYPES.items()}

_FLOATS = ("f16", "f32", "f64", "bf16")
# Numbers of these types are not parsed here: these types are written as bytes, or must not be rounded here.
_WITHOUT_NUMBERS = frozenset(name for name in ELEMENT_TYPES if name.startswith(("cf", "f8"))) | {
    "i1",
    "i2",
    "i4",
    "si4",
    "ui4",
}
_NPY_KINDS = {"b": "i", "i": "si", "u": "ui", "f": "f", "c": "cf"}
_NPY_MAGIC = b"\x93NUMPY"
_MAX_RANK = 128
# Files of this size or more are mapped, not read.
_MIN_MAPPED_BYTES = 1 << 20
_SEPARATORS = re.compile(r"[\s,\[\]]+")
_INTEGER_PATTERN = re.compile(r"[+-]?(?:0|[1-9][0-9]*)")
_FLOAT_PATTERN = re.compile(r"[+-]?[0-9]+\.?[0-9]*(?:[eE][+-]?[0-9]+)?")


class UnsupportedError(Exception):
    """An unsupported request; the text describes it."""


@dataclass(frozen=True, slots=True)
class ArgumentValue:
    """A tensor; its contents are dense and row-major, and types below 8 bits have several values per byte."""

    shape: tuple[int, ...]
    element_type: str
    contents: bytes | memoryview


@lru_cache(maxsize=4096)
def compute_storage(shape: tuple[int, ...], element_type: str) -> tuple[tuple[int, ...], int, np.dtype[Any]]:
    """Return shape, bytes and type of the array that stores a tensor; for types below 8 bits, it is flat bytes."""
    type_number, code = ELEMENT_TYPES[element_type]
    dtype = np.dtype(code)
    count = math.prod(shape)
    bits = type_number & 0xFF
    if bits < 8:
        size = (count * bits + 7) // 8
        return (size,), size, dtype
    return shape, count * dtype.itemsize, dtype


def make_array(value: ArgumentValue) -> np.ndarray[Any, Any]:
    """Return a tensor as an array of the type that stores its bits."""
    dims, _, dtype = compute_storage(tuple(value.shape), value.element_type)
    return np.frombuffer(value.contents, dtype).reshape(dims)


def read_value(text: str, folder: str) -> ArgumentValue | None:
    """Read a flag's value, with paths relative to a folder; return None if it says that no output is expected.

    Raises:
        UnsupportedError: the text's form is not supported here.
    """
    text = text.strip()
    if text == "(ignored)":
        return None
    if text.startswith("@"):
        if not text.endswith(".npy"):
            raise UnsupportedError(f"argument {text!r}")
        return _read_npy(os.path.join(folder, text[1:]))  # noqa: PTH118 - a good part of a small case's time
    type_text, equals, contents = text.partition("=")
    if not equals and "x" not in text:
        raise UnsupportedError(f"argument {text!r}")
    shape, element_type = _parse_type(type_text)
    if contents[:1] == "+":
        raise UnsupportedError(f"argument {text!r}")
    if contents[:1] == "@":
        path = os.path.join(folder, contents[1:])  # noqa: PTH118 - see above
        return ArgumentValue(shape, element_type, _read(path, 0, compute_storage(shape, element_type)[1]))
    return ArgumentValue(shape, element_type, _parse_values(contents, shape, element_type))


@lru_cache(maxsize=4096)
def _parse_type(text: str) -> tuple[tuple[int, ...], str]:
    *dims, element_type = text.strip().split("x")
    sizes = [dim.strip() for dim in dims]
    are_numbers = all(dim.isascii() and dim.isdigit() for dim in sizes)
    if element_type not in ELEMENT_TYPES or not are_numbers or len(sizes) > _MAX_RANK:
        raise UnsupportedError(f"type {text!r}")
    return tuple(map(int, sizes)), element_type


def open_file(path: str) -> int:
    """Open a file for reading; return its descriptor, or raise an UnsupportedError."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise UnsupportedError(f"{path}: {error}") from error


def _read(path: str, offset: int, count: int) -> bytes | memoryview:
    """Read the bytes of a file from an offset to the end, which must be exactly `count` bytes."""
    if count < _MIN_MAPPED_BYTES:
        contents = _read_some(path, offset, count + 1)
        if len(contents) != count:
            raise UnsupportedError(f"{path}: not of the size that its type says")
        return contents
    file = open_file(path)
    try:
        if os.fstat(file).st_size != offset + count:
            raise UnsupportedError(f"{path}: not of the size that its type says")
        return memoryview(mmap.mmap(file, offset + count, access=mmap.ACCESS_READ))[offset:]
    except OSError as error:
        raise UnsupportedError(f"{path}: {error}") from error
    finally:
        os.close(file)


def _read_npy(path: str) -> ArgumentValue:
    # The size of a header is a multiple of 64 bytes, and most headers fit into 128 bytes.
    prefix = _read_some(path, 0, 128)
    if len(prefix) < 10 or not prefix.startswith(_NPY_MAGIC) or prefix[6] != 1:
        raise UnsupportedError(f"{path}: not a .npy of version 1")
    start = 10 + int.from_bytes(prefix[8:10], "little")
    header = prefix[10:start] if start <= len(prefix) else _read_some(path, 0, start)[10:]
    shape, element_type = _parse_npy_header(header)
    return ArgumentValue(shape, element_type, _read(path, start, compute_storage(shape, element_type)[1]))


def _read_some(path: str, offset: int, max_bytes: int) -> bytes:
    file = open_file(path)
    try:
        return os.pread(file, max_bytes, offset)
    except OSError as error:
        raise UnsupportedError(f"{path}: {error}") from error
    finally:
        os.close(file)


@lru_cache(maxsize=4096)
def _parse_npy_header(header: bytes) -> tuple[tuple[int, ...], str]:
    try:
        document = ast.literal_eval(header.decode("latin-1").strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
        raise UnsupportedError("a damaged .npy header") from error
    match document:
        case {"descr": str(descr), "fortran_order": False, "shape": tuple(shape)} if len(shape) <= _MAX_RANK and all(
            type(dim) is int and dim >= 0 for dim in shape
        ):
            pass
        case _:
            raise UnsupportedError("a .npy that is no array of plain numbers in C order")
    type_code = descr[1:] if descr[:1] in ("|", "<") else descr
    kind, width = type_code[:1], type_code[1:]
    if kind not in _NPY_KINDS or width not in ("1", "2", "4", "8", "16"):
        raise UnsupportedError(f"a .npy of {descr}")
    element_type = "i1" if type_code == "b1" else f"{_NPY_KINDS[kind]}{int(width) * 8}"
    if element_type not in ELEMENT_TYPES:
        raise UnsupportedError(f"a .npy of {descr}")
    return shape, element_type


def _parse_values(text: str, shape: tuple[int, ...], element_type: str) -> bytes | memoryview:
    """Parse plain decimal numbers; hexadecimal, octal and special numbers are left to the tool."""
    _, size, dtype = compute_storage(shape, element_type)
    tokens = [token for token in _SEPARATORS.split(text) if token]
    if not tokens:
        return bytes(size)
    capacity = size // dtype.itemsize
    kind = "f" if element_type in _FLOATS else dtype.kind
    pattern = _FLOAT_PATTERN if kind == "f" else _INTEGER_PATTERN
    has_fitting_count = len(tokens) in (1, capacity) and capacity and element_type not in _WITHOUT_NUMBERS
    if not has_fitting_count or not all(pattern.fullmatch(token) for token in tokens):
        hint = "expected decimal numbers; write others, and those of i1, complex and f8, to a file"
        raise UnsupportedError(f"values {text!r} of {element_type}: {hint}")
    if kind == "f":
        return np.broadcast_to(_make_floats(tokens, element_type), (capacity,)).tobytes()
    limits, numbers = np.iinfo(dtype), [int(token) for token in tokens]
    if not all(limits.min <= number <= limits.max for number in numbers):
        raise UnsupportedError(f"values out of the range of {dtype}")
    return np.broadcast_to(np.array(numbers, dtype), (capacity,)).tobytes()


def _make_floats(tokens: Sequence[str], element_type: str) -> np.ndarray[Any, Any]:
    numbers = np.array([float(token) for token in tokens])
    if element_type == "f64":
        return numbers
    with np.errstate(all="ignore"):
        # Small floats are rounded to f32 first, as in the tool, because the second rounding depends on the first.
        singles = numbers.astype("<f4")
        if element_type == "f16":
            return singles.astype("<f2")
    if element_type == "f32":
        return singles
    bits = singles.view("<u4")
    if (bits & 0xFFFF).any():
        raise UnsupportedError("values that bf16 rounds")
    return (bits >> 16).astype("<u2")
