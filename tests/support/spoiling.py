"""Documents that are spoiled somewhere: by another value, another name, damaged text."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

from hypothesis import strategies as st

__all__ = ["ACTIONS", "at", "damage", "dotted", "is_named", "json_values", "kind_of", "paths_in", "rename", "spoil"]

Place = tuple[str | int, ...]
ACTIONS = st.sampled_from(["drop", "replace", "insert"])


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
