"""What an ONNX file keeps weights in, and its operators, read from the file alone: planning has no ONNX library.

Only what leads to a tensor is looked at (onnx.proto3 has the numbers), and weights inside of the file are passed over.
"""

from __future__ import annotations

import mmap
from collections import Counter
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


# Which fields of a message lead on, and to what.
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
_TEXTS = ("operator", "domain")
_BYTES_OF = {1: 8, 5: 4}
_VARINT, _LENGTH = 0, 2
_LONGEST_VARINT = 10


def list_data_files(path: Path) -> tuple[str, ...]:
    """Names of the files with weights of an ONNX file, as it has them: relative to its folder, sorted.

    None of a file that cannot be read, or is no ONNX file, and none outside of the folder: whoever imports it says so.
    """
    locations, _ = _read_names(path)
    found = {name: PurePosixPath(name) for name in locations if name and "\0" not in name}
    return tuple(sorted(name for name, file in found.items() if ".." not in file.parts and not file.is_absolute()))


def count_operators(path: Path) -> Counter[tuple[str, str]]:
    """How often each operator stands in an ONNX file, its functions and inner graphs, by domain and type.

    The default domain is an empty text. None of a file that cannot be read.
    """
    return _read_names(path)[1]


def _read_names(path: Path) -> tuple[set[str], Counter[tuple[str, str]]]:
    """What a file names: places of weights, and operators."""
    locations: set[str] = set()
    operators: Counter[tuple[str, str]] = Counter()
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            waiting = [("model", 0, len(content))]
            while waiting:
                kind, begin, end = waiting.pop()
                found = list(_read_parts(content, begin, end, _FIELDS[kind]))
                if kind == "entry":
                    match {word: content[first:last] for word, first, last in found}:
                        case {"key": b"location", "value": place}:
                            locations.add(place.decode())
                    continue
                if kind == "node":
                    texts = {word: content[first:last].decode() for word, first, last in found if word in _TEXTS}
                    operators[texts.get("domain", ""), texts.get("operator", "")] += 1
                waiting += (part for part in found if part[0] not in _TEXTS)
    except (OSError, ValueError, IndexError):
        return set(), Counter()
    return locations, operators


def _read_parts(content: mmap.mmap, begin: int, end: int, wanted: Mapping[int, str]) -> Iterator[tuple[str, int, int]]:
    """The fields of a message that lead on: to what, and where their content begins and ends."""
    while begin < end:
        tag, begin = _read_varint(content, begin)
        number, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            _, begin = _read_varint(content, begin)
        elif wire == _LENGTH:
            size, begin = _read_varint(content, begin)
            if begin + size > end:
                raise ValueError("a field is longer than its message")
            if number in wanted:
                yield wanted[number], begin, begin + size
            begin += size
        else:
            begin += _BYTES_OF.get(wire, end)


def _read_varint(content: mmap.mmap, begin: int) -> tuple[int, int]:
    """A number, and where it ends."""
    value = 0
    for place in range(_LONGEST_VARINT):
        byte = content[begin + place]
        value |= (byte & 127) << 7 * place
        if byte < 128:
            return value, begin + place + 1
    raise ValueError("a number has no end")
