"""Objects that a journal keeps: how they are written, and read again.

A journal has an object for each, with the fields by their names, in their order. JSON has neither NaN nor infinities:
they are written as the strings `nan`, `inf` and `-inf`. A field that is missing or null is read as its default, and one
that is unknown is passed over.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import MISSING, fields
from enum import Enum
from functools import cache, partial
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, NoReturn, Self, cast, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    # The type that needs no reading, and what reads another.
    _Reader = tuple[type | None, Callable[[Any], Any]]


# Metadata of a field that the journal does not have; that it does not have where it is its default; and of an object
# whose fields stand among those of the one that holds it, or of none.
UNRECORDED: dict[str, Any] = {"recorded": False}
UNLESS_DEFAULT: dict[str, Any] = {"recorded": "unless default"}
FLAT: dict[str, Any] = {"recorded": "flat"}
# What stays as it is in a journal.
_PLAIN = frozenset({str, int, bool, type(None)})
_NAMES = {str: "text", int: "a whole number", bool: "true or false", dict: "an object", list: "a list"}
# Of a value, in a message.
_LONGEST = 60
# Deeper than any record is, and far from where a reader that calls itself ends.
_DEEPEST = 64
_LONG_NUMBER = re.compile(r"\d{19}")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


class RecordError(ValueError):
    """A field of an object that is not as its type says; `place` is its path."""

    def __init__(self, place: str, why: ValueError | str) -> None:
        self.place: str = f"{place}.{why.place}" if isinstance(why, RecordError) else place
        self.why: str = why.why if isinstance(why, RecordError) else str(why)
        super().__init__(f"{self.place}: {self.why}")


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
        """From the journal's object; ValueError, with its path, for a field that is missing or holds what it cannot."""
        readers, _, flat = cls._layout()
        _expect(dict, data)
        given = {}
        for name, (kind, read) in readers.items():
            value = data.get(name)
            # Most are what they should be; thousands of results are read at once.
            if type(value) is kind:
                given[name] = value
            elif value is not None:
                try:
                    given[name] = read(value)
                except ValueError as error:
                    raise RecordError(name, error) from error
        for name, (part, needed) in flat.items():
            if needed <= data.keys():
                given[name] = part.from_dict(data)
        for name in cls._list_needed():
            if name not in given:
                raise RecordError(name, "is missing")
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
                flat[item.name] = kind, set(kind._list_needed())  # noqa: SLF001 - of this class
        return readers, defaults, flat

    @classmethod
    @cache
    def _list_needed(cls) -> tuple[str, ...]:
        """The fields that have no default."""
        return tuple(item.name for item in fields(cast("Any", cls)) if item.default is item.default_factory is MISSING)


def read_text(data: Mapping[str, Any], name: str) -> str:
    """A text of an object that it has to have; ValueError where it has none."""
    text = _expect(dict, data).get(name)
    if not isinstance(text, str):
        raise RecordError(name, "expected text, found none")
    return text


def _find_reader(hint: Any) -> _Reader:
    """For values that are not null; what a reader cannot read is a ValueError."""
    if isinstance(hint, UnionType):
        kinds = [item for item in get_args(hint) if item is not NoneType]
        hint = kinds[0] if len(kinds) == 1 else Any
    kind, parts = get_origin(hint) or hint, get_args(hint)
    read: Callable[[Any], Any]
    if parts and not (kind is dict and parts[1] is Any):
        return None, _find_container_reader(kind, parts)
    if kind is Any:
        return None, lambda value: value
    if issubclass(kind, Recorded):
        return None, lambda value: kind.from_dict(_expect(dict, value))
    if issubclass(kind, Enum):
        read = partial(_read_member, kind)
    else:
        read = {float: read_number, Path: _read_path}.get(kind, partial(_expect, kind))
    return kind, read


def _find_container_reader(kind: type, parts: Sequence[Any]) -> Callable[[Any], Any]:
    reads = [_find_item_reader(part) for part in parts if part is not Ellipsis]
    if kind is dict:
        return lambda values: {name: reads[1](value) for name, value in _expect(dict, values).items()}
    if kind is tuple and Ellipsis not in parts:
        return lambda values: tuple(read(value) for read, value in zip(reads, _expect(list, values), strict=True))
    return lambda values: kind(map(reads[0], _expect(list, values)))


def _find_item_reader(hint: Any) -> Callable[[Any], Any]:
    """Of what stands in a list or an object, where null is a value only if the type says so."""
    _, read = _find_reader(hint)
    if isinstance(hint, UnionType):
        return lambda value: None if value is None else read(value)
    return read


def _read_member(kind: type[Enum], value: Any) -> Enum:
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(str(item.value) for item in kind)
        raise ValueError(f"expected one of {known}, found {_quote(value)}") from None


def _read_path(value: Any) -> Path:
    return Path(_expect(str, value))


def _expect(kind: type, value: Any) -> Any:
    """The value, which has to be of a type of JSON."""
    like = (list, tuple) if kind is list else kind
    if not isinstance(value, like) or (kind is int and isinstance(value, bool)):
        raise ValueError(f"expected {_NAMES[kind]}, found {_quote(value)}")
    return value


def _quote(value: Any) -> str:
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def read_number(value: Any) -> float:
    """A journal's number; ValueError for what is neither one nor `nan`, `inf`, `-inf`."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"expected a number, found {_quote(value)}")  # noqa: TRY004 - as for all else
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        raise ValueError(f"expected a number, found {_quote(value)}") from None


def read_json(data: bytes) -> Any:
    """A document that somebody has recorded, perhaps with bad intent.

    Half a surrogate pair, which is no character, becomes U+FFFD.

    Raises:
        ValueError: it is no strict JSON (NaN), nests deeper than records do, or has a number beyond 64 bits.
    """
    text = data.decode()
    try:
        document = (_CAREFUL if _LONG_NUMBER.search(text) else _DECODER).decode(text)
    except RecursionError:
        raise ValueError(f"it is nested more than {_DEEPEST} deep") from None
    if text.count("[") + text.count("{") > _DEEPEST:
        _refuse_depth(document)
    if "\\ud" in text or "\\uD" in text:
        document = json.loads(_LONE_SURROGATE.sub("\ufffd", json.dumps(document, ensure_ascii=False)))
    return document


def _refuse_depth(document: Any) -> None:
    level = [document]
    for _ in range(_DEEPEST):
        nodes = (node.values() if isinstance(node, dict) else node for node in level)
        level = [item for node in nodes for item in node if isinstance(item, dict | list)]
        if not level:
            return
    raise ValueError(f"it is nested more than {_DEEPEST} deep")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number in JSON")


def _read_integer(digits: str) -> int:
    value = int(digits) if len(digits) <= 20 else 2**64
    if not -(2**63) <= value < 2**63:
        raise ValueError(f"a number has more than 64 bits: {digits[:20]}…")
    return value


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
_CAREFUL = json.JSONDecoder(parse_constant=_refuse_constant, parse_int=_read_integer)


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
