"""List an ONNX file's external data files and operators without an ONNX library: planning must not require one.

Only fields that lead to a tensor are read (onnx.proto3 defines their numbers); weights in the file are skipped.
"""

from __future__ import annotations

import mmap
from collections import Counter
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


# These are the fields of each message to follow, and the types of their content.
_FIELDS: dict[str, dict[int, str]] = {
    "model": {7: "graph", 25: "function"},
    "graph": {1: "node", 5: "tensor", 15: "sparse tensor"},
    "function": {7: "node"},
    "node": {4: "operator", 5: "attribute", 7: "domain"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse tensor", 23: "sparse tensor"},
    "sparse tensor": {1: "tensor", 2: "tensor"},
    "tensor": {13: "entry"},
    "entry": {1: "key", 2: "value"},
}
_TEXT_TYPES = ("operator", "domain")
_FIXED_SIZES = {1: 8, 5: 4}
_VARINT, _LENGTH = 0, 2
_MAX_VARINT_BYTES = 10


def list_data_files(path: Path) -> tuple[str, ...]:
    """Return the paths of an ONNX file's external data files, relative to its folder, sorted.

    Files outside of the folder are left out. The result is empty for an unreadable file, whose import will fail.
    """
    locations, _ = _read_names(path)
    paths = {name: PurePosixPath(name) for name in locations if name and "\0" not in name}
    return tuple(sorted(name for name, file in paths.items() if ".." not in file.parts and not file.is_absolute()))


def count_operators(path: Path) -> Counter[tuple[str, str]]:
    """Count the operators of an ONNX file, its functions and inner graphs, by domain and type.

    The default domain is an empty string. The result is empty if the file cannot be read.
    """
    return _read_names(path)[1]


def _read_names(path: Path) -> tuple[set[str], Counter[tuple[str, str]]]:
    """Return the locations of a file's external weights, and its operators."""
    locations: set[str] = set()
    operators: Counter[tuple[str, str]] = Counter()
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            pending = [("model", 0, len(content))]
            while pending:
                message_type, begin, end = pending.pop()
                parts = list(_read_parts(content, begin, end, _FIELDS[message_type]))
                if message_type == "entry":
                    match {name: content[start:stop] for name, start, stop in parts}:
                        case {"key": b"location", "value": location}:
                            locations.add(location.decode())
                    continue
                if message_type == "node":
                    texts = {name: content[start:stop].decode() for name, start, stop in parts if name in _TEXT_TYPES}
                    operators[texts.get("domain", ""), texts.get("operator", "")] += 1
                pending += (part for part in parts if part[0] not in _TEXT_TYPES)
    except (OSError, ValueError, IndexError):
        return set(), Counter()
    return locations, operators


def _read_parts(content: mmap.mmap, begin: int, end: int, types: Mapping[int, str]) -> Iterator[tuple[str, int, int]]:
    """Yield type, start and end of each field of a message whose number is in `types`."""
    while begin < end:
        tag, begin = _read_varint(content, begin)
        number, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            _, begin = _read_varint(content, begin)
        elif wire == _LENGTH:
            size, begin = _read_varint(content, begin)
            if begin + size > end:
                raise ValueError("a field is longer than its message")
            if number in types:
                yield types[number], begin, begin + size
            begin += size
        else:
            begin += _FIXED_SIZES.get(wire, end)


def _read_varint(content: mmap.mmap, begin: int) -> tuple[int, int]:
    """Return a number, and the position after it."""
    value = 0
    for index in range(_MAX_VARINT_BYTES):
        byte = content[begin + index]
        value |= (byte & 127) << 7 * index
        if byte < 128:
            return value, begin + index + 1
    raise ValueError("a number is too long")
