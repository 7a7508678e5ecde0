"""Documents that are spoiled somewhere: by another value, another name, damaged text."""

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
    "at",
    "damage",
    "dotted",
    "is_named",
    "iterate_damages",
    "json_values",
    "kind_of",
    "paths_in",
    "rename",
    "spoil",
]

Place = tuple[str | int, ...]
ACTIONS = st.sampled_from(["drop", "replace", "insert"])
_DEEP = "@deep@"
_GONE = object()
# Other types, numbers that no machine has, half a character, nothing at all, and what no reader could follow.
_JUNK = [None, True, "x", "\ud800", -1, 10**30, 10**400, 0.5, "nan", [], ["x"], {"x": 1}, _DEEP, _GONE]
JUNK_KINDS = len(_JUNK)


def json_values(*texts: str) -> st.SearchStrategy[Any]:
    """Any JSON; with some texts more often than others."""
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


def paths_in(value: Any, prefix: Place = ()) -> list[Place]:
    """Keys and indices of all that is in a document."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path for key, child in children for path in [(*prefix, key), *paths_in(child, (*prefix, key))]]


def dotted(path: Place) -> str:
    """A place as problems have it."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


def is_named(path: Place, fields: set[str]) -> bool:
    """Whether a place, or something in it, is among the fields of problems."""
    name = dotted(path)
    return any(field == name or field.startswith((f"{name}.", f"{name}[")) for field in fields)


def at(document: Any, path: Place) -> Any:
    """What is at a place."""
    for part in path:
        document = document[part]
    return document


def kind_of(value: Any) -> str:
    """The kind of a value, of which numbers are one."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return "number" if is_number else type(value).__name__


def rename(document: dict[str, Any], path: Place, data: st.DataObject) -> str:
    """Renames the key at a place; the new one."""
    key = str(path[-1])
    renamed = key[:2] + data.draw(st.text("abcxyz_", min_size=1, max_size=3)) + key[2:]
    parent = at(document, path[:-1])
    parent[renamed] = parent.pop(key)
    return renamed


def spoil(document: dict[str, Any], action: str, data: st.DataObject, junk: Any) -> tuple[dict[str, Any], Place]:
    """The document with junk somewhere, or without something; and where."""
    document = deepcopy(document)
    path = data.draw(st.sampled_from(paths_in(document)))
    parent = at(document, path[:-1])
    if action == "drop":
        del parent[path[-1]]
    elif action == "replace":
        parent[path[-1]] = junk
    elif isinstance(parent, list):
        parent.insert(int(path[-1]), junk)
    else:
        parent[data.draw(st.text(max_size=5))] = junk
    return document, path


def damage(document: Any, data: st.DataObject) -> bytes:
    """The text of a document with other bytes in a place."""
    raw = json.dumps(document, indent=1).encode()
    start = data.draw(st.integers(0, len(raw)))
    end = data.draw(st.integers(start, min(len(raw), start + 20)))
    return raw[:start] + data.draw(st.binary(max_size=4)) + raw[end:]


@dataclass(frozen=True)
class Damage:
    """The text of a document that is not as it was written, and what is wrong with it."""

    place: str
    text: str


def iterate_damages(documents: list[Any], each: int, every: int = 1) -> Iterator[tuple[int, Damage]]:
    """Every place of some documents, one for all items of a list, with so many kinds of junk, by turns.

    The number of the document stands before. What other documents with the same `event` and `part` have is left out;
    of what remains, every second place is taken where `every` is 2, and so on.
    """
    junk = cycle(_JUNK)
    known = set[object]()
    for number, document in enumerate(documents):
        for path in paths_in(document):
            shape = tuple("*" if isinstance(part, int) else part for part in path)
            key = (document.get("event"), document.get("part"), shape)
            if key in known:
                continue
            known.add(key)
            if len(known) % every:
                continue
            for item in islice(junk, each):
                yield number, _put(document, path, item)


def _put(document: Any, path: Place, junk: object) -> Damage:
    copy = deepcopy(document)
    parent = at(copy, path[:-1])
    if junk is _GONE:
        del parent[path[-1]]
    else:
        parent[path[-1]] = junk
    text = json.dumps(copy).replace(f'"{_DEEP}"', "[" * 100_000 + "]" * 100_000)
    return Damage(f"{dotted(path)} is {str(junk)[:20]!r}", text)
