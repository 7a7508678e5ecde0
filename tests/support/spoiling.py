"""Damages documents: with another value, another key, or broken text."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import dataclass
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "ACTIONS",
    "JUNK_KINDS",
    "Damage",
    "classify",
    "damage_text",
    "format_path",
    "get_at",
    "is_reported",
    "iterate_damages",
    "json_values",
    "list_paths",
    "rename_key",
    "spoil",
]

DocumentPath = tuple[str | int, ...]
ACTIONS = st.sampled_from(["drop", "replace", "insert"])
_DEEP_MARK = "@deep@"
_REMOVED = object()
# Junk is of other types, too large, half a character, nested too deeply, or (`_REMOVED`) a missing field.
_JUNK = [None, True, "x", "\ud800", -1, 10**30, 10**400, 0.5, "nan", [], ["x"], {"x": 1}, _DEEP_MARK, _REMOVED]
JUNK_KINDS = len(_JUNK)


def json_values(*texts: str) -> st.SearchStrategy[Any]:
    """Generate any JSON, with some texts more often than others."""
    scalars = st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(10**30), 10**30),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(max_size=20),
        st.sampled_from(["https://h/x", "../x", "/x", "C:/x", "1x2xf32", "--x", "@x", "\x1b[0m", *texts]),
    )
    return st.recursive(
        scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    )


def list_paths(document: Any, prefix: DocumentPath = ()) -> list[DocumentPath]:
    """Return the paths (keys and indices) of all values in a document."""
    children = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    return [path for key, child in children for path in [(*prefix, key), *list_paths(child, (*prefix, key))]]


def format_path(path: DocumentPath) -> str:
    """Format a path as problems do."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


def is_reported(path: DocumentPath, fields: set[str]) -> bool:
    """Return whether problems report the field of a path, or a field inside it."""
    name = format_path(path)
    return any(field == name or field.startswith((f"{name}.", f"{name}[")) for field in fields)


def get_at(document: Any, path: DocumentPath) -> Any:
    """Return the value at a path."""
    for part in path:
        document = document[part]
    return document


def classify(value: Any) -> str:
    """Return the name of a value's type; all numbers have the same name."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return "number" if is_number else type(value).__name__


def rename_key(document: dict[str, Any], path: DocumentPath, data: st.DataObject) -> str:
    """Rename the key at a path; return the new key."""
    key = str(path[-1])
    new_key = key[:2] + data.draw(st.text("abcxyz_", min_size=1, max_size=3)) + key[2:]
    parent = get_at(document, path[:-1])
    parent[new_key] = parent.pop(key)
    return new_key


def spoil(document: dict[str, Any], action: str, data: st.DataObject, junk: Any) -> tuple[dict[str, Any], DocumentPath]:
    """Return a damaged copy of a document, with junk or no field at a random path, and return this path."""
    document = deepcopy(document)
    path = data.draw(st.sampled_from(list_paths(document)))
    parent = get_at(document, path[:-1])
    if action == "drop":
        del parent[path[-1]]
    elif action == "replace":
        parent[path[-1]] = junk
    elif isinstance(parent, list):
        parent.insert(int(path[-1]), junk)
    else:
        parent[data.draw(st.text(max_size=5))] = junk
    return document, path


def damage_text(document: Any, data: st.DataObject) -> bytes:
    """Return the text of a document in which random bytes are replaced."""
    raw = json.dumps(document, indent=1).encode()
    start = data.draw(st.integers(0, len(raw)))
    end = data.draw(st.integers(start, min(len(raw), start + 20)))
    return raw[:start] + data.draw(st.binary(max_size=4)) + raw[end:]


@dataclass(frozen=True)
class Damage:
    """The text of a damaged document, and a description of the damage."""

    description: str
    text: str


def iterate_damages(
    documents: list[Any], junk_per_place: int, stride: int = 1, first: int = 0
) -> Iterator[tuple[int, Damage]]:
    """Yield a document's index and a damage for every path, with `junk_per_place` values of junk in rotation.

    All indices of a list count as one path. Paths that an earlier document with the same `event` and `part` has are
    left out; of the other paths, every `stride`-th is damaged, from the `first` on.
    """
    junk_cycle = cycle(_JUNK)
    seen_keys = set[object]()
    for index, document in enumerate(documents):
        for path in list_paths(document):
            path_pattern = tuple("*" if isinstance(part, int) else part for part in path)
            key = (document.get("event"), document.get("part"), path_pattern)
            if key in seen_keys:
                continue
            seen_keys.add(key)
            if len(seen_keys) % stride != first:
                continue
            for junk_value in islice(junk_cycle, junk_per_place):
                yield index, _replace_value(document, path, junk_value)


def _replace_value(document: Any, path: DocumentPath, junk: object) -> Damage:
    damaged_document = deepcopy(document)
    parent = get_at(damaged_document, path[:-1])
    if junk is _REMOVED:
        del parent[path[-1]]
    else:
        parent[path[-1]] = junk
    text = json.dumps(damaged_document).replace(f'"{_DEEP_MARK}"', "[" * 100_000 + "]" * 100_000)
    return Damage(f"{format_path(path)} is {str(junk)[:20]!r}", text)
