"""Write IREE parameter archives as a stream: memory does not grow with the weights.

As a program, this module writes an archive of synthetic weights: `python -m iree_gauntlet.artifacts.parameters --help`.

The layout is that of runtime/src/iree/schemas/parameter_archive.h, version 0.0: little-endian and packed, in the order
of IREE's own builder: header, entry table, names, data. The data and each parameter in it begin at multiples of 64
bytes. The file is padded to 4096 bytes. Entries are sorted by name, so a program's text and its bytecode give the same
archive.

A parameter filled with one value has an entry without data if the value has 1, 2 or 4 bytes. Longer values are written
out as data: the format allows longer fill patterns, but IREE's devices fill with at most 4 bytes, and the runtime
rejects longer patterns.
"""

from __future__ import annotations

import argparse
import decimal
import hashlib
import math
import struct
import sys
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from iree_gauntlet.artifacts.program_parameters import (
    PARAMETERS_FORMAT,
    BitsKind,
    ElementType,
    Parameter,
    ParameterError,
    collect_parameters,
    select_scope,
)
from iree_gauntlet.artifacts.publishing import replace_artifact, require_space
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.system.atomic import sync_folder
from iree_gauntlet.system.faults import make_unexpected_error

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray


DEVIATION = 0.01

_SEED_PREFIX = b"iree-gauntlet parameter %d" % PARAMETERS_FORMAT
_WORD_BYTES = 8
_PIECE_WORDS = 1 << 15  # words of the stream per piece: about 2 MB with everything derived from them
_TABLE_SIZE = 1 << 16
_LOG_PRECISION = 25  # digits of the logarithm before it is rounded to binary64
_MAX_CENTRE_DISTANCE = 0.425
_MAX_TAIL_ROOT = 5.0
# These are the coefficients of numerator and denominator, highest power first.
_CENTRE_COEFFICIENTS = (
    (
        *(2509.0809287301226727, 33430.575583588128105, 67265.770927008700853, 45921.953931549871457),
        *(13731.693765509461125, 1971.5909503065514427, 133.14166789178437745, 3.387132872796366608),
    ),
    (
        *(5226.495278852854561, 28729.085735721942674, 39307.89580009271061, 21213.794301586595867),
        *(5394.1960214247511077, 687.1870074920579083, 42.313330701600911252, 1.0),
    ),
)
_TAIL_COEFFICIENTS = (
    (
        *(7.7454501427834140764e-4, 0.0227238449892691845833, 0.24178072517745061177, 1.27045825245236838258),
        *(3.64784832476320460504, 5.7694972214606914055, 4.6303378461565452959, 1.42343711074968357734),
    ),
    (
        *(1.05075007164441684324e-9, 5.475938084995344946e-4, 0.0151986665636164571966, 0.14810397642748007459),
        *(0.68976733498510000455, 1.6763848301838038494, 2.05319162663775882187, 1.0),
    ),
)
_HEADER = struct.Struct("<4sHHQQQ QQQQQQQ")  # magic … flags, entry count, three segments
_ENTRY = struct.Struct("<QIQ QQ QQ Q")  # size, type, flags, name, metadata, alignment
_SPLAT = struct.Struct("<Q16sB")  # length, pattern, pattern's length
_DATA = struct.Struct("<QQ")  # offset in the storage segment, length
_SPLAT_TYPE, _DATA_TYPE = 1, 2
_TABLE_ALIGNMENT = 16
_DATA_ALIGNMENT = 64
_FILE_ALIGNMENT = 4096
_MAX_FILL_BYTES = 4
_SPLAT_PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class RandomContent:
    """Seeded values, independent between parameters; the seed is a non-negative integer."""

    seed: int = 0

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise ParameterError(f"seed {self.seed} of random weights is negative", "Use a whole number, 0 or greater.")


def make_random_bytes(parameter: Parameter, seed: int, *, piece: int = _PIECE_WORDS) -> Iterator[bytes]:
    """Yield the seeded values of a parameter as in memory: in C order, little-endian.

    Each parameter derives its own stream from the seed. `piece` is the words per step; it does not affect the bytes.
    """
    element = parameter.element
    # The number of bits of the random stream that one value uses.
    bits = {BitsKind.BOOL: 1, BitsKind.INTEGER: element.bits, BitsKind.FLOAT: max(16, element.bits)}[element.kind]
    remaining_words = -(-parameter.count * bits // (_WORD_BYTES * 8))
    remaining_values = parameter.count
    digest = hashlib.sha256(_SEED_PREFIX)
    shape = "x".join(map(str, parameter.shape))
    for text in (parameter.scope, parameter.name, parameter.element_type, shape, str(seed)):
        key_bytes = _make_key(text)
        # Each field is preceded by its length, so different fields never give the same bytes.
        digest.update(len(key_bytes).to_bytes(8, "little") + key_bytes)
    generator = np.random.PCG64(int.from_bytes(digest.digest(), "little"))
    while remaining_words:
        words = min(piece, remaining_words)
        stream = np.asarray(generator.random_raw(words), dtype=np.uint64).astype("<u8", copy=False)
        count = min(words * _WORD_BYTES * 8 // bits, remaining_values)
        remaining_words, remaining_values = remaining_words - words, remaining_values - count
        raw = stream.view(np.uint8)
        if element.kind is BitsKind.BOOL:
            yield np.unpackbits(raw, count=count, bitorder="little").tobytes()
        elif element.kind is BitsKind.INTEGER:
            value_bytes = raw[: (count * bits + 7) // 8]
            if used_bits := count * bits % 8:
                value_bytes[-1] &= (1 << used_bits) - 1
            yield value_bytes.tobytes()
        else:
            terms_table = _compute_normals(element.dtype).take(stream.view("<u2"))
            terms = bits // 16
            while terms > 1:
                # The order of additions affects the bytes, so neighbours are always added in pairs.
                terms_table = terms_table[0::2] + terms_table[1::2]
                terms //= 2
            yield terms_table[:count].tobytes()


def make_splat_pattern(element: ElementType, value: float) -> bytes:
    """Return the shortest byte pattern of a value; raise ParameterError if the type cannot hold the value."""
    pattern = (
        _make_float_bytes(element, value) if element.kind is BitsKind.FLOAT else _make_integer_bytes(element, value)
    )
    while len(pattern) > 1 and pattern[: len(pattern) // 2] == pattern[len(pattern) // 2 :]:
        pattern = pattern[: len(pattern) // 2]
    return pattern


@cache
def _compute_normals(dtype: str) -> NDArray[Any]:
    """Return the table of normal values for one term, scaled so that the sum of all terms has deviation 1."""
    terms = {"float32": 2, "float64": 4}.get(dtype, 1)
    values = quantiles() * (DEVIATION / math.sqrt(terms))
    if dtype == "float64":
        return values.astype("<f8")
    return _round(values.astype("<f4"), dtype)


def _round(values: NDArray[Any], dtype: str) -> NDArray[Any]:
    target: np.dtype[Any] = np.dtype(getattr(ml_dtypes, dtype, dtype)).newbyteorder("<")
    with np.errstate(over="ignore"):  # the caller checks for an infinity or NaN
        return values.astype(target)


def _make_float_bytes(element: ElementType, value: float) -> bytes:
    try:
        exact = float(value)
    except OverflowError:
        exact = math.inf if value > 0 else -math.inf
    if math.isfinite(exact) or not isinstance(value, int):
        array = _round(np.array([exact], dtype="<f8"), element.dtype)
        back = float(array.astype(np.float64)[0])
        if back == exact or (math.isnan(back) and math.isnan(exact)) or (math.isfinite(back) and math.isfinite(exact)):
            return array.tobytes()
    hint = "Use a smaller number, or a type with a larger range."
    raise ParameterError(f"splat value {value}: {element.name} cannot hold it", hint)


def _make_integer_bytes(element: ElementType, value: float) -> bytes:
    is_integer = isinstance(value, int) or value.is_integer()
    if not is_integer or not element.min_value <= value <= element.max_value:
        message = (
            f"splat value {value}: {element.name} holds whole numbers from {element.min_value} to {element.max_value}"
        )
        raise ParameterError(message, "Use a value that every parameter of the program can hold.")
    code = int(value) & ((1 << element.bits) - 1)
    if element.bits >= 8:
        return code.to_bytes(element.bits // 8, "little")
    return bytes([sum(code << shift for shift in range(0, 8, element.bits))])


@cache
def quantiles() -> NDArray[np.float64]:
    """Return quantiles of the standard normal distribution at (i + 1/2) / 2^16, symmetric about zero, in binary64.

    The farthest is 4.32 deviations from the mean; the table's deviation is 0.99999.
    """
    # q = 1/2 - p for the lower half; all of these are exact in binary64.
    distance = (np.arange(_TABLE_SIZE // 2, dtype=np.float64) * 2.0 + 1.0) / (2.0 * _TABLE_SIZE)
    upper = np.empty_like(distance)
    centre = distance <= _MAX_CENTRE_DISTANCE
    near = distance[centre]
    square = 0.180625 - near * near
    upper[centre] = near * np.polyval(_CENTRE_COEFFICIENTS[0], square) / np.polyval(_CENTRE_COEFFICIENTS[1], square)
    context = decimal.Context(prec=_LOG_PRECISION, rounding=decimal.ROUND_HALF_EVEN)
    root = np.sqrt(np.array([float(-context.ln(decimal.Decimal(0.5 - q))) for q in distance[~centre].tolist()]))
    assert root.max() <= _MAX_TAIL_ROOT, "the table ends before the far tail, which has coefficients of its own"
    upper[~centre] = np.polyval(_TAIL_COEFFICIENTS[0], root - 1.6) / np.polyval(_TAIL_COEFFICIENTS[1], root - 1.6)
    table = np.concatenate([-upper[::-1], upper])
    table.flags.writeable = False
    return table


def write_archive(path: Path, parameters: Sequence[Parameter], content: RandomContent | float) -> None:
    """Write the archive of one scope; it appears complete or not at all.

    Args:
        path: its folder is created if needed.
        parameters: at least one, all of one scope, with different names; otherwise ValueError is raised.
        content: the parameters' values; a number fills all parameters.

    Raises:
        ParameterError: a type cannot hold the value.
        ArtifactError: the disk is full or cannot be written.
    """
    if len({parameter.scope for parameter in parameters}) != 1:
        raise ValueError("an archive holds the parameters of one scope")
    if len({parameter.name for parameter in parameters}) != len(parameters):
        raise ValueError("the names in an archive differ")
    entries, size = _lay_out(sorted(parameters, key=lambda parameter: _make_key(parameter.name)), content)
    head = _make_file_start(entries, size)
    url = path.name
    with replace_artifact(path, url) as temporary:
        require_space(path.parent, url, _round_up(len(head) + size, _FILE_ALIGNMENT))
        with temporary.open("wb") as file:
            file.write(head)
            start = file.tell()
            for entry in entries:
                if entry.offset is not None:
                    file.write(bytes(start + entry.offset - file.tell()))
                    file.writelines(_make_content(entry, content))
            file.write(bytes(-file.tell() % _FILE_ALIGNMENT))
    sync_folder(path.parent)


@dataclass(frozen=True, slots=True)
class _ArchiveEntry:
    """A parameter and the location of its data.

    Attributes:
        pattern: the repeated bytes, for a parameter of one value; otherwise empty.
        offset: the data's offset in the storage segment; None for an entry without data.
    """

    parameter: Parameter
    pattern: bytes
    offset: int | None


def _lay_out(parameters: Sequence[Parameter], content: RandomContent | float) -> tuple[list[_ArchiveEntry], int]:
    """Return the entries, and the size in bytes of all data."""
    entries = []
    end = 0
    for parameter in parameters:
        parameter.check()
        pattern = b""
        if not isinstance(content, RandomContent):
            try:
                pattern = make_splat_pattern(parameter.element, content)
            except ParameterError as error:
                message = f"parameter {parameter.label} ({parameter.type}): {error.message}"
                raise ParameterError(message, error.hint) from error
        if 0 < len(pattern) <= _MAX_FILL_BYTES:
            entries.append(_ArchiveEntry(parameter, pattern, None))
            continue
        offset = _round_up(end, _DATA_ALIGNMENT)
        end = offset + parameter.byte_size
        entries.append(_ArchiveEntry(parameter, pattern, offset))
    return entries, end


def _make_file_start(entries: Sequence[_ArchiveEntry], storage_size: int) -> bytes:
    """Return header, entry table and names, with padding up to the start of the data."""
    names = [_make_key(entry.parameter.name) for entry in entries]
    table, name_offset = bytearray(), 0
    for entry, name in zip(entries, names, strict=True):
        if entry.offset is None:
            entry_type, alignment = _SPLAT_TYPE, 0
            body = _SPLAT.pack(entry.parameter.byte_size, entry.pattern, len(entry.pattern))
        else:
            entry_type, alignment = _DATA_TYPE, _DATA_ALIGNMENT
            body = _DATA.pack(entry.offset, entry.parameter.byte_size)
        table += bytes(-len(table) % _TABLE_ALIGNMENT)
        table += _ENTRY.pack(_ENTRY.size + len(body), entry_type, 0, name_offset, len(name), 0, 0, alignment) + body
        name_offset += len(name)
    table_offset = _round_up(_HEADER.size, _TABLE_ALIGNMENT)
    names_offset = table_offset + len(table)
    has_data = any(entry.offset is not None for entry in entries)
    storage_offset = _round_up(names_offset + name_offset, _DATA_ALIGNMENT if has_data else 1)
    prefix = (b"IRPA", 0, 0, _HEADER.size, 0, 0)
    segments = (table_offset, len(table), names_offset, name_offset, storage_offset, storage_size)
    content = _HEADER.pack(*prefix, len(entries), *segments).ljust(table_offset, b"\0") + table + b"".join(names)
    return content.ljust(storage_offset, b"\0")


def _make_content(entry: _ArchiveEntry, content: RandomContent | float) -> Iterator[bytes]:
    if isinstance(content, RandomContent):
        return make_random_bytes(entry.parameter, content.seed)
    count, remainder = divmod(entry.parameter.byte_size, _SPLAT_PIECE_BYTES)
    piece = entry.pattern * (_SPLAT_PIECE_BYTES // len(entry.pattern))
    return chain((piece for _ in range(count)), (piece[:remainder],))


def _make_key(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def _round_up(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line; the page of options lists it."""
    parser = argparse.ArgumentParser(
        prog="python -m iree_gauntlet.artifacts.parameters",
        description="Write an IREE parameter archive (.irpa) for the named parameters of an MLIR program.",
    )
    parser.add_argument("program", type=Path, help=".mlir text or .mlirbc bytecode, of any size")
    parser.add_argument("--scope", default="", help="scope of the parameters (default: the anonymous one)")
    values = parser.add_mutually_exclusive_group(required=True)
    values.add_argument("--random", type=int, metavar="SEED", help="floats normal(0, 0.01), integers of all values")
    values.add_argument("--splat", type=float, metavar="VALUE", help="this value everywhere")
    parser.add_argument("--ir-tool", default="iree-opt", help="iree-opt, for bytecode that only the compiler reads")
    parser.add_argument("-o", "--output", type=Path, required=True, help="the archive")
    return parser


def main() -> int:
    """Write an archive for a program's parameters of one scope, print a message, and return the exit code."""
    options = build_parser().parse_args()
    try:
        content = options.splat if options.random is None else RandomContent(options.random)
        parameters = select_scope(collect_parameters(options.program, options.ir_tool), options.scope)
        write_archive(options.output, parameters, content)
    except GauntletError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    except Exception as error:  # noqa: BLE001 - no exception here is a failure of the tested program
        described_error = make_unexpected_error(error)
        sys.stderr.write(f"error: {described_error}\n")
        return described_error.exit_code
    size = sum(parameter.byte_size for parameter in parameters)
    sys.stdout.write(f"{options.output}: {len(parameters)} parameters, {size} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
