"""Objects that a journal keeps: how they are written, and read again.

A journal has an object for each, with the fields by their names, in their order. JSON has neither NaN nor infinities:
they are written as the strings `nan`, `inf` and `-inf`. A field that is missing or null is read as its default, and one
that is unknown is passed over, so that journals of earlier versions can be read.
"""

from __future__ import annotations

import math
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, Self, cast, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    # The type that needs no reading, and what reads another.
    _Reader = tuple[type | None, Callable[[Any], Any]]


# Metadata of a field that the journal does not have; that it does not have where it is its default; and of an object
# whose fields stand among those of the one that holds it, or of none.
UNRECORDED: dict[str, Any] = {"recorded": False}
UNLESS_DEFAULT: dict[str, Any] = {"recorded": "unless default"}
FLAT: dict[str, Any] = {"recorded": "flat"}
# What stays as it is in a journal.
_PLAIN = frozenset({str, int, bool, type(None)})


class Recorded:
    """A dataclass that the journal keeps."""

    __slots__ = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain data for the journal; a dict that the object holds is not copied."""
        readers, defaults, flat = self._layout()
        # Most are as they should be; thousands of results are written one by one.
        found = {name: value if type(value := getattr(self, name)) in _PLAIN else _plain(value) for name in readers}
        for name, default in defaults.items():
            if getattr(self, name) == default:
                del found[name]
        if not flat:
            return found
        written: dict[str, Any] = {}
        for name, value in found.items():
            written |= (value or {}) if name in flat else {name: value}
        return written

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """From the journal's object; TypeError, ValueError for a field that is missing or holds what it cannot."""
        readers, _, flat = cls._layout()
        given = {}
        for name, (kind, read) in readers.items():
            value = data.get(name)
            # Most are what they should be; thousands of results are read at once.
            if type(value) is kind:
                given[name] = value
            elif value is not None:
                given[name] = read(value)
        for name, (part, needed) in flat.items():
            if needed <= data.keys():
                given[name] = part.from_dict(data)
        return cls(**given)

    @classmethod
    @cache
    def _layout(cls) -> tuple[dict[str, _Reader], dict[str, Any], dict[str, tuple[type[Recorded], set[str]]]]:
        """How fields are read, in order; defaults that are left out; flat fields: their types, and what those need."""
        hints, known = get_type_hints(cls), fields(cast("Any", cls))
        readers = {item.name: _find_reader(hints[item.name]) for item in known if item.metadata != UNRECORDED}
        defaults: dict[str, Any] = {}
        flat: dict[str, tuple[type[Recorded], set[str]]] = {}
        for item in known:
            if item.metadata == UNLESS_DEFAULT:
                defaults[item.name] = item.default_factory() if callable(item.default_factory) else item.default
            elif item.metadata == FLAT:
                kind = (*get_args(hints[item.name]), hints[item.name])[0]
                needed = {part.name for part in fields(kind) if part.default is part.default_factory is MISSING}
                flat[item.name] = kind, needed
        return readers, defaults, flat


def _find_reader(hint: Any) -> _Reader:
    """For values that are not null."""
    if isinstance(hint, UnionType):
        hint, _ = get_args(hint)
    if get_origin(hint) is tuple:
        readers = [_find_reader(item)[1] for item in get_args(hint) if item is not Ellipsis]
        if Ellipsis in get_args(hint):
            return None, lambda values: tuple(map(readers[0], values))
        return None, lambda values: tuple(read(value) for read, value in zip(readers, values, strict=True))
    if get_origin(hint) is dict:
        kind, read = _find_reader(get_args(hint)[1])
        if kind is None:
            return None, lambda values: {name: read(value) for name, value in values.items()}
    kind = get_origin(hint) or hint
    if issubclass(kind, Recorded):
        return None, kind.from_dict
    return kind, number if kind is float else kind


def number(value: Any) -> float | None:
    """A journal's number; None for null; TypeError, ValueError for what is neither one nor `nan`, `inf`, `-inf`."""
    if isinstance(value, bool) or not isinstance(value, int | float | str | None):
        raise TypeError(f"{value!r} is no number")
    return float(value) if isinstance(value, str) else value


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value] if value else []
    if isinstance(value, Recorded):
        return value.as_dict()
    if isinstance(value, dict) and _has_objects(value):
        return {name: _plain(item) for name, item in value.items()}
    return str(value) if isinstance(value, Path) else value


def _has_objects(value: dict[str, Any]) -> bool:
    first = next(iter(value.values()), None)
    return _has_objects(first) if isinstance(first, dict) else isinstance(first, Recorded)


def strict_json(value: Any) -> Any:
    """The same document in what JSON can say; numbers that are whole are written as such."""
    kind = type(value)
    if kind is str or kind is bool or kind is int:
        return value
    if kind is float:
        if not math.isfinite(value):
            return f"{value}"
        return int(value) if value.is_integer() and abs(value) < 2**53 else value
    if kind is dict:
        return {str(key): strict_json(item) for key, item in value.items()}
    if kind is list or kind is tuple:
        return [strict_json(item) for item in value]
    return value
