"""Element types, tensors, and reading them as `iree-run-module` reads `--input=` and `--expected_output=`.

Element types have IREE's names (`iree_hal_parse_element_type`, runtime/src/iree/hal/string_util.c): `f32`, `bf16`,
`i64`, `si32`, `ui8`, `i1` (a byte a value), `cf64` (two f32), `f8E4M3FN`, … and `*16` for bits of no known meaning.

This follows runtime/src/iree/tooling/{function_io,numpy_io}.c and runtime/src/iree/hal/string_util.c.
Files that the tool rejects are rejected here, except for Fortran order and big-endian values: NumPy reads them, and
suites that compare by NumPy's rule have such files. Two of the tool's rules surprise people. An integer .npy holds
*signed* integers (`si32`), which never equal a module's `i32`. A .npy cannot name bf16 or f8, which are read as
bits of no known meaning (`*16`). Files are memory-mapped, so that large files cost no memory.

Written values such as `4xf32=1 2 3 4` are separated by spaces, commas and brackets. One value fills the tensor; no
value means zeros. Integers may be hexadecimal (`0x10`) or octal (`010`). Values of types without a number format (`i1`,
complex, packed) are hexadecimal bytes (`01`). Two things that the tool accepts are errors here: `1.5` or `1abc` as an
integer, of which the tool reads only the `1`, and a file whose end no argument reads.
"""

from __future__ import annotations

import ast
import math
import re
import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from iree_gauntlet.errors import GauntletError
from iree_gauntlet.formatting import parse_c_float, parse_c_integer, split_values

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from numpy.typing import NDArray

    Array = NDArray[Any]
    DType = np.dtype[Any]


# The types that NumPy can compute with. All other types are handled as bytes, as in iree-run-module.
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
_SIZED_TYPE = re.compile(r"(?:i|si|ui|f|bf|cf|\*)([0-9]+)")
_MAX_BITS = 255  # the width is a byte of IREE's element type
_MAX_RANK = 128
_NPY_MAGIC = b"\x93NUMPY"
_MAX_HEADER_BYTES = 1 << 20
_LONG_LITERAL = re.compile(r"(?<=\d)L\b")
# runtime/src/iree/tooling/numpy_io.c accepts only such headers: `{'` first, only single quotes, a comma before `}`.
_HEADER_PATTERN = re.compile(r"\{'[^\"]*,\s*\}")
_TYPES_BY_KIND = {"b": "i", "i": "si", "u": "ui", "f": "f", "c": "cf", "V": "*"}
_IGNORED_ARGUMENTS = ("(ignored)", "(null)")
# CPython 3.11 has one counter of syntax tree depth for all threads. If garbage collection switches threads during
# parsing, either thread may get a SystemError, so only one thread parses at a time.
_PARSER_LOCK = threading.Lock()


class TensorError(GauntletError):
    """A tensor that cannot be read: a type, a value or a file that IREE's tools reject too."""


def is_float(element_type: str) -> bool:
    """Return whether an element type is a floating-point type that NumPy can compute with."""
    return element_type in _FLOATS


def is_integer(element_type: str) -> bool:
    """Return whether an element type is an integer type of whole bytes (not a bool)."""
    return element_type in _INTEGERS


def count_bits(element_type: str) -> int:
    """Return the bits of storage of one value."""
    if element_type in _DTYPES:
        return int(np.dtype(_DTYPES[element_type]).itemsize) * 8
    match = _SIZED_TYPE.fullmatch(element_type)
    if match is None or not 0 < int(match[1]) <= _MAX_BITS:
        raise TensorError(
            f"element type {element_type!r} is not one of IREE's",
            "use names such as f32, f16, bf16, i64, si32, ui8, i1, f8E4M3FN (case matters)",
        )
    return int(match[1])


def get_storage_dtype(element_type: str) -> DType:
    """Return the NumPy type that stores an element type: raw bytes (`V2`) if unknown, uint8 for less than 8 bits."""
    if element_type in _DTYPES:
        numpy_type: DType = np.dtype(_DTYPES[element_type])
        return numpy_type
    bits = count_bits(element_type)
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
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def packed(self) -> bool:
        """True if several values share a byte."""
        return count_bits(self.element_type) < 8

    @property
    def byte_count(self) -> int:
        """The bytes of the contents, dense and row-major."""
        bits = count_bits(self.element_type)
        return (self.count * bits + 7) // 8 if self.packed else self.count * ((bits + 7) // 8)


def parse_tensor_type(text: str) -> TensorType:
    """Parse `1x64xf16`, or `f16` for a tensor of rank 0."""
    *dims, element_type = text.strip().split("x")
    count_bits(element_type)
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


class UnreadError(TensorError):
    """A file whose end no argument reads."""


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A tensor with IREE's own element type, which NumPy's cannot always express.

    Attributes:
        array: the values in `get_storage_dtype(element_type)` with the tensor's shape; packed types (`i4`) are a
            flat array of bytes.
        source: the file that the tensor was read from, for messages; empty if it was made in memory.
    """

    element_type: str
    shape: tuple[int, ...]
    array: Array
    source: str = ""

    @property
    def type(self) -> TensorType:
        """The shape and element type."""
        return TensorType(self.shape, self.element_type)

    def with_element_type(self, element_type: str) -> Tensor:
        """Return the same bits under another element type of the same width."""
        dtype = get_storage_dtype(element_type)
        if dtype.itemsize != self.array.dtype.itemsize or TensorType((), element_type).packed:
            raise TensorError(f"{self.source or 'a tensor'}: {self.type} is not {element_type}: the widths differ")
        return replace(self, element_type=element_type, array=self.array.view(dtype))

    @property
    def has_unknown_type(self) -> bool:
        """True if NumPy cannot interpret the tensor's bits as numbers."""
        return self.array.dtype.type is np.void

    def with_known_type(self) -> Tensor:
        """Return the tensor with a known element type; values of two untyped bytes are bf16, as NumPy saves it so.

        Raises:
            TensorError: the meaning of the values is unknown.
        """
        if self.element_type == "*16":
            return self.with_element_type("bf16")
        if self.has_unknown_type:
            raise TensorError(
                f"{self.source}: the type of its {self.array.itemsize}-byte values is not given",
                'store raw bytes as a .bin, and name the type: {"url": …, "meta": {"dtype": …, "shape": […]}}',
            )
        return self


def read_npy(path: Path) -> Tensor:
    """Read the array of a .npy file (versions 1 to 3) of plain numbers; if it holds several arrays, read the first."""
    return _read_npy(path, 0)[0]


def read_raw(path: Path, tensor_type: TensorType, offset: int = 0) -> Tensor:
    """Read the contents of a tensor from a file without a header; any bytes after them are ignored."""
    shape = (tensor_type.byte_count,) if tensor_type.packed else tensor_type.shape
    array = _map_file(path, get_storage_dtype(tensor_type.element_type), shape, offset, str(tensor_type))
    return Tensor(tensor_type.element_type, tensor_type.shape, array, str(path))


def read_output(path: Path, tensor_type: TensorType | None = None) -> Tensor:
    """Read a file that iree-run-module wrote (`--output=@path`).

    A .npy has its own shape and type, but the tool writes `i32` and `si32` alike. Both are read as `i32`, because
    modules made from models have signless integers. Types that a .npy cannot name (bf16, f8) are written to
    raw files. A raw file has the given type, unless its size differs; then it is read as bytes (`*8`), which
    equal no other type.
    """
    if path.suffix == ".npy":
        tensor = read_npy(path)
        return tensor.with_element_type(tensor.element_type.removeprefix("s"))
    if tensor_type is None:
        raise TensorError(f"{path}: a raw file does not describe its contents", "give its shape and element type")
    size = _get_size(path)
    return read_raw(path, tensor_type if size == tensor_type.byte_count else TensorType((size,), "*8"))


def read_arguments(arguments: Iterable[str], folder: Path) -> list[Tensor | None]:
    """Read the values of `--input=` or `--expected_output=` flags, in order; a value that means "ignored" is None.

    `@a.npy` opens a file, `+a.npy` continues where the last read of the file stopped, and `*a.npy` reads all
    remaining arrays. `4xf32=@a.bin` and `4xf32=+a.bin` read raw bytes; `4xf32=1 2 3 4` has inline values.

    Raises:
        TensorError: a text or a file cannot be used; the message names the argument.
        UnreadError: no argument reads a file to its end; raised after all other errors.
    """
    offsets = _Offsets(folder)
    tensors: list[Tensor | None] = []
    for argument in arguments:
        text = argument.strip()
        if text in _IGNORED_ARGUMENTS:
            tensors.append(None)
        elif text[:1] in ("@", "+", "*"):
            tensors.extend(_read_npy_argument(text, folder, offsets))
        else:
            tensors.append(_read_typed_argument(text, folder, offsets))
    offsets.require_ends()
    return tensors


class _Offsets:
    """The positions up to which the files of some arguments are read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # The end of the last read of each file; and the type and the end of the read that ended farthest.
        self._last: dict[str, int] = {}
        self._farthest: dict[str, tuple[TensorType, int]] = {}

    def last(self, name: str) -> int:
        return self._last.get(name, 0)

    def read(self, name: str, tensor_type: TensorType, end: int) -> None:
        self._last[name] = end
        if end >= self._farthest.get(name, (tensor_type, 0))[1]:
            self._farthest[name] = (tensor_type, end)

    def require_ends(self) -> None:
        """Raise an error if there is a file that no argument reads to its end."""
        for name, (tensor_type, end) in self._farthest.items():
            path = self._folder / name
            start, size = end - tensor_type.byte_count, _get_size(path)
            if end < size:
                rest = f" after byte {start}" if start else ""
                raise UnreadError(
                    f"{path}: {tensor_type} needs {tensor_type.byte_count} bytes, the file has {size - start}{rest}",
                    f"the rest is not read: correct the shape and type, or the file; an argument +{name} reads it",
                )


def _read_npy_argument(text: str, folder: Path, offsets: _Offsets) -> list[Tensor]:
    mode, name = text[0], text[1:]
    if not name.endswith(".npy"):
        raise TensorError(
            f"argument {text!r}: a file without a type must be a .npy", f"name the type of a raw file: 1x64xf16=@{name}"
        )
    path = folder / name
    offset = 0 if mode == "@" else offsets.last(name)
    tensors: list[Tensor] = []
    while offset < _get_size(path) if mode == "*" else not tensors:
        tensor, offset = _read_npy(path, offset)
        tensors.append(tensor)
        offsets.read(name, tensor.type, offset)
    return tensors


def _read_typed_argument(text: str, folder: Path, offsets: _Offsets) -> Tensor:
    text = text.removeprefix('"').removesuffix('"')
    type_text, equals, contents = text.partition("=")
    if not equals and "x" not in text:
        raise TensorError(
            f"argument {text!r} is not a tensor",
            "write a shape and type and its values, such as 4xf32=1 2 3 4, 4xf32=@file.bin or @file.npy",
        )
    tensor_type = parse_tensor_type(type_text)
    if contents[:1] in ("@", "+"):
        name = contents[1:]
        offset = 0 if contents[0] == "@" else offsets.last(name)
        tensor = read_raw(folder / name, tensor_type, offset)
        offsets.read(name, tensor_type, offset + tensor_type.byte_count)
        return tensor
    return Tensor(tensor_type.element_type, tensor_type.shape, parse_inline_values(contents, tensor_type))


def _read_npy(path: Path, offset: int) -> tuple[Tensor, int]:
    """Read the array that starts at `offset`; return the array and the offset after it."""
    _, header, start = _read_header(path, offset)
    match header:
        case {"descr": str(descr), "fortran_order": bool(fortran), "shape": tuple(shape)} if all(
            isinstance(dim, int) and not isinstance(dim, bool) and dim >= 0 for dim in shape
        ):
            pass
        case _:
            raise TensorError(f"{path}: not an array of plain numbers", "save the array alone, with numpy.save")
    if len(shape) > _MAX_RANK:
        raise TensorError(f"{path}: rank {len(shape)} exceeds IREE's limit of {_MAX_RANK}")
    tensor_type = TensorType(shape, _name_npy_type(path, descr))
    tensor = read_raw(path, tensor_type, start)
    array = tensor.array
    if descr[0] == ">":
        array = array.byteswap()
    if fortran:
        array = np.ascontiguousarray(array.reshape(-1).reshape(shape, order="F"))
    return replace(tensor, array=array), start + tensor_type.byte_count


def explain_refusal(path: Path) -> str:
    """Explain why iree-run-module rejects a .npy that the toolkit can read; empty if the tool accepts it.

    Raises:
        TensorError: the toolkit cannot read the file either.
    """
    text, header, _ = _read_header(path, 0)
    _read_npy(path, 0)
    match header:
        case {"fortran_order": True}:
            return "its values are in Fortran order, which iree-run-module does not read"
        case {"descr": str(descr)} if descr.startswith(">"):
            return f"its values are big-endian ({descr}), which iree-run-module does not read"
    is_readable = _HEADER_PATTERN.fullmatch(text)
    return "" if is_readable else "iree-run-module reads its header only as NumPy writes it: {'descr': …, 'shape': …, }"


def _read_header(path: Path, offset: int) -> tuple[str, object, int]:
    """Read a header: its text, its document, and the offset of the values."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            prefix = file.read(8)
            if len(prefix) < 8 or not prefix.startswith(_NPY_MAGIC):
                raise TensorError(f"{path}: not a .npy file (no {_NPY_MAGIC!r} at byte {offset})")
            if prefix[6] not in (1, 2, 3):
                raise TensorError(f"{path}: .npy version {prefix[6]}.{prefix[7]} is not supported (1 to 3 are)")
            width = 2 if prefix[6] == 1 else 4
            length = int.from_bytes(file.read(width), "little")
            if length > _MAX_HEADER_BYTES:
                raise TensorError(f"{path}: a .npy header of {length} bytes is not plausible")
            text = file.read(length)
            start = file.tell()
            if start < offset + len(prefix) + width + length:
                raise TensorError(f"{path}: ends inside the .npy header")
    except OSError as error:
        raise TensorError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        # Python 2 wrote integers as `3L`.
        header = _LONG_LITERAL.sub("", text.decode("utf-8" if prefix[6] == 3 else "latin-1").strip())
        with _PARSER_LOCK:
            return header, ast.literal_eval(header), start
    except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
        raise TensorError(f"{path}: damaged .npy header") from error


def _name_npy_type(path: Path, descr: str) -> str:
    plain = descr[1:] if descr[:1] in ("|", "=", "<", ">") else descr
    kind, width = plain[:1], plain[1:]
    if kind not in _TYPES_BY_KIND or not (width.isascii() and width.isdigit()) or not 0 < int(width) <= 31:
        raise TensorError(
            f"{path}: data type {descr!r} is not supported by iree-run-module",
            "save bools, integers, floats or complex numbers",
        )
    return "i1" if plain == "b1" else f"{_TYPES_BY_KIND[kind]}{int(width) * 8}"


def _get_size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise TensorError(f"{path}: cannot be read: {error.strerror}") from error


def _map_file(path: Path, dtype: DType, shape: tuple[int, ...], offset: int, part: str) -> Array:
    size = int(np.prod(shape, dtype=object)) * dtype.itemsize
    available = max(0, _get_size(path) - offset)
    if available < size:
        raise TensorError(
            f"{path}: {part} needs {size} bytes, the file has {available}{f' after byte {offset}' if offset else ''}",
            "the file is cut short, or its shape or type is not the given one",
        )
    if size == 0:
        return np.empty(shape, dtype)
    try:
        return np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=shape)
    except OSError as error:
        raise TensorError(f"{path}: cannot be read: {error.strerror}") from error


def parse_inline_values(text: str, tensor_type: TensorType) -> Array:
    """Parse the array that the text after `=` describes."""
    dtype = get_storage_dtype(tensor_type.element_type)
    capacity = tensor_type.byte_count // dtype.itemsize
    shape = (capacity,) if tensor_type.packed else tensor_type.shape
    tokens = split_values(text)
    if not tokens:
        return np.zeros(shape, dtype)
    if len(tokens) not in (1, capacity) or capacity == 0:
        raise TensorError(
            f"{tensor_type} holds {capacity} values, but {len(tokens)} are given",
            "give all of them, or one that fills the tensor",
        )
    values = np.empty(len(tokens), dtype)
    for index, token in enumerate(tokens):
        try:
            values[index : index + 1] = _parse_value(token, tensor_type.element_type, dtype)
        except ValueError as error:
            raise TensorError(f"{token!r} is not a value of {tensor_type.element_type}: {error}") from error
    return np.broadcast_to(values, (capacity,)).copy().reshape(shape)


def _parse_value(token: str, element_type: str, dtype: DType) -> Array:
    if is_integer(element_type):
        bits = dtype.itemsize * 8
        value = parse_c_integer(token, element_type) % (1 << bits)
        return np.frombuffer(value.to_bytes(bits // 8, "little"), dtype)
    if is_float(element_type):
        number = parse_c_float(token)
        with np.errstate(all="ignore"):
            # Convert small floats through f32 as the tool does, because the two roundings affect the result.
            return np.array([number], np.float64 if element_type == "f64" else np.float32).astype(dtype)
    if not re.fullmatch(r"[0-9a-fA-F]*", token) or len(token) != 2 * dtype.itemsize:
        raise ValueError(f"expected {2 * dtype.itemsize} hexadecimal digits")
    return np.frombuffer(bytes.fromhex(token), dtype)
