"""IREE parameter archives, written as a stream: memory does not grow with the weights.

Layout of runtime/src/iree/schemas/parameter_archive.h, version 0.0, everything little-endian and packed, in
the order of IREE's own builder: header, entry table, names, then the data from a multiple of 64 bytes on,
each parameter at one too, the file padded to 4096 bytes. Entries are sorted by name, so that a program's text
and its bytecode give the same archive.

A parameter with one value everywhere takes an entry without data where its pattern has 1, 2 or 4 bytes. The
format allows 8 and more, but IREE's devices fill with 4 bytes at the most, and the runtime refuses to load
such an entry: those are written out as data.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from iree_gauntlet.artifacts.parameters.parameter import Parameter, ParameterError
from iree_gauntlet.artifacts.parameters.values import RandomContent, SplatContent, random_bytes, splat_pattern
from iree_gauntlet.artifacts.publishing import publishing, require_space
from iree_gauntlet.system.atomic import sync_folder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


_HEADER = struct.Struct("<4sHHQQQ QQQQQQQ")  # magic … flags, entry count, three segments
_ENTRY = struct.Struct("<QIQ QQ QQ Q")  # size, type, flags, name, metadata, alignment
_SPLAT = struct.Struct("<Q16sB")  # length, pattern, pattern's length
_DATA = struct.Struct("<QQ")  # offset in the storage segment, length
_SPLAT_TYPE, _DATA_TYPE = 1, 2
_TABLE_ALIGNMENT = 16
_DATA_ALIGNMENT = 64
_FILE_ALIGNMENT = 4096
_LONGEST_FILL = 4
_SPLAT_PIECE = 1 << 20


def write_archive(path: Path, parameters: Sequence[Parameter], content: RandomContent | SplatContent) -> None:
    """Write the archive of one scope; it appears whole or not at all.

    Args:
        path: the archive; its folder is made where it is missing.
        parameters: at least one, all of one scope and of different names.
        content: their values.

    Raises:
        ParameterError: a type cannot hold the value.
        ArtifactError: the disk is full or cannot be written.
        ValueError: the parameters are none, or no scope's.
    """
    if len({parameter.scope for parameter in parameters}) != 1:
        raise ValueError("an archive holds the parameters of one scope")
    if len({parameter.name for parameter in parameters}) != len(parameters):
        raise ValueError("the names in an archive differ")
    entries = _laid_out(sorted(parameters, key=lambda parameter: _key(parameter.name)), content)
    head = _head(entries)
    url = path.name
    with publishing(path, url) as temporary:
        require_space(path.parent, url, _aligned(len(head) + _storage_size(entries), _FILE_ALIGNMENT))
        with temporary.open("wb") as file:
            file.write(head)
            start = file.tell()
            for entry in entries:
                if entry.offset is not None:
                    file.write(bytes(start + entry.offset - file.tell()))
                    for piece in _content(entry, content):
                        file.write(piece)
            file.write(bytes(-file.tell() % _FILE_ALIGNMENT))
    sync_folder(path.parent)


@dataclass(frozen=True, slots=True)
class _Entry:
    """A parameter and where its data is.

    Attributes:
        parameter: as the program names it.
        pattern: what repeats, for a parameter of one value; else empty.
        offset: of its data in the storage segment; None for an entry without data.
    """

    parameter: Parameter
    pattern: bytes
    offset: int | None


def _laid_out(parameters: Sequence[Parameter], content: RandomContent | SplatContent) -> list[_Entry]:
    entries = []
    end = 0
    for parameter in parameters:
        parameter.check()
        pattern = b"" if isinstance(content, RandomContent) else _pattern(parameter, content.value)
        if 0 < len(pattern) <= _LONGEST_FILL:
            entries.append(_Entry(parameter, pattern, None))
            continue
        offset = _aligned(end, _DATA_ALIGNMENT)
        end = offset + parameter.byte_size
        entries.append(_Entry(parameter, pattern, offset))
    return entries


def _pattern(parameter: Parameter, value: float) -> bytes:
    try:
        return splat_pattern(parameter.element, value)
    except ParameterError as error:
        raise ParameterError(f"parameter {parameter.label} ({parameter.type}): {error.what}", error.hint) from error


def _storage_size(entries: Sequence[_Entry]) -> int:
    ends = (entry.offset + entry.parameter.byte_size for entry in entries if entry.offset is not None)
    return max(ends, default=0)


def _head(entries: Sequence[_Entry]) -> bytes:
    """Header, entry table and names, padded to where the data begins."""
    names = [_key(entry.parameter.name) for entry in entries]
    table, name_offset = bytearray(), 0
    for entry, name in zip(entries, names, strict=True):
        table += bytes(-len(table) % _TABLE_ALIGNMENT)
        table += _table_entry(entry, name_offset, len(name))
        name_offset += len(name)
    table_offset = _aligned(_HEADER.size, _TABLE_ALIGNMENT)
    names_offset = table_offset + len(table)
    has_data = any(entry.offset is not None for entry in entries)
    storage_offset = _aligned(names_offset + name_offset, _DATA_ALIGNMENT if has_data else 1)
    prefix = (b"IRPA", 0, 0, _HEADER.size, 0, 0)
    segments = (table_offset, len(table), names_offset, name_offset, storage_offset, _storage_size(entries))
    head = _HEADER.pack(*prefix, len(entries), *segments).ljust(table_offset, b"\0") + table + b"".join(names)
    return head.ljust(storage_offset, b"\0")


def _table_entry(entry: _Entry, name_offset: int, name_size: int) -> bytes:
    if entry.offset is None:
        kind, alignment = _SPLAT_TYPE, 0
        body = _SPLAT.pack(entry.parameter.byte_size, entry.pattern, len(entry.pattern))
    else:
        kind, alignment = _DATA_TYPE, _DATA_ALIGNMENT
        body = _DATA.pack(entry.offset, entry.parameter.byte_size)
    return _ENTRY.pack(_ENTRY.size + len(body), kind, 0, name_offset, name_size, 0, 0, alignment) + body


def _content(entry: _Entry, content: RandomContent | SplatContent) -> Iterator[bytes]:
    if isinstance(content, RandomContent):
        return random_bytes(entry.parameter, content.seed)
    full, rest = divmod(entry.parameter.byte_size, _SPLAT_PIECE)
    piece = entry.pattern * (_SPLAT_PIECE // len(entry.pattern))
    return chain((piece for _ in range(full)), (piece[:rest],))


def _key(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def _aligned(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment
