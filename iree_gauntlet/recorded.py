"""Writing and reading of the objects in journals.

A journal has a JSON object for each recorded object, with the fields by name, in order. The strings `nan`, `inf` and
`-inf` stand for numbers that JSON lacks. A missing or null field becomes its default; unknown fields are ignored.
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

    # The type whose values need no conversion, and the function that converts values of other types.
    _Reader = tuple[type | None, Callable[[Any], Any]]


# Metadata of fields. UNRECORDED: never recorded. UNLESS_DEFAULT: recorded unless equal to the default. FLAT: the fields
# of an optional object are recorded among the fields of its parent.
UNRECORDED: dict[str, Any] = {"recorded": False}
UNLESS_DEFAULT: dict[str, Any] = {"recorded": "unless default"}
FLAT: dict[str, Any] = {"recorded": "flat"}
# Values of these types are recorded unchanged.
_PLAIN_TYPES = frozenset({str, int, bool, type(None)})
_TYPE_NAMES = {str: "text", int: "a whole number", bool: "true or false", dict: "an object", list: "a list"}
_MAX_QUOTED_CHARS = 60
# No valid record nests deeper than this, and recursive readers can handle far more.
_MAX_DEPTH = 64
_LONG_NUMBER = re.compile(r"\d{19}")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


class RecordError(ValueError):
    """A field that does not match its type; `place` is the path of the field."""

    def __init__(self, place: str, cause: ValueError | str) -> None:
        self.place: str = f"{place}.{cause.place}" if isinstance(cause, RecordError) else place
        self.reason: str = cause.reason if isinstance(cause, RecordError) else str(cause)
        super().__init__(f"{self.place}: {self.reason}")


class Recorded:
    """A base of dataclasses whose objects are recorded in journals."""

    __slots__ = ()

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for the journal; a dict in the object is not copied."""
        readers, defaults, flat = self._layout()
        # Plain values are a fast path: most values are plain, and there are thousands of results.
        data = {
            name: value if type(value := getattr(self, name)) in _PLAIN_TYPES else _to_plain(value) for name in readers
        }
        for name, default in defaults.items():
            if getattr(self, name) == default:
                del data[name]
        if not flat:
            return data
        flat_data: dict[str, Any] = {}
        for name, value in data.items():
            flat_data |= (value or {}) if name in flat else {name: value}
        return flat_data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Create the object from plain data; ValueError with the path of a missing or invalid field."""
        readers, _, flat = cls._layout()
        _expect(dict, data)
        arguments = {}
        for name, (kind, read) in readers.items():
            value = data.get(name)
            # Most values have the right type, and there are thousands of results.
            if type(value) is kind:
                arguments[name] = value
            elif value is not None:
                try:
                    arguments[name] = read(value)
                except ValueError as error:
                    raise RecordError(name, error) from error
        for name, (part, required_names) in flat.items():
            if required_names <= data.keys():
                arguments[name] = part.from_dict(data)
        for name in cls._list_required():
            if name not in arguments:
                raise RecordError(name, "is missing")
        return cls(**arguments)

    @classmethod
    @cache
    def _layout(cls) -> tuple[dict[str, _Reader], dict[str, Any], dict[str, tuple[type[Recorded], set[str]]]]:
        """Return readers of fields, in order; unrecorded defaults; types and required names of flat fields."""
        hints, all_fields = get_type_hints(cls), fields(cast("Any", cls))
        readers = {item.name: _find_reader(hints[item.name]) for item in all_fields if item.metadata != UNRECORDED}
        defaults: dict[str, Any] = {}
        flat: dict[str, tuple[type[Recorded], set[str]]] = {}
        for item in all_fields:
            if item.metadata == UNLESS_DEFAULT:
                defaults[item.name] = item.default_factory() if callable(item.default_factory) else item.default
            elif item.metadata == FLAT:
                kind = (*get_args(hints[item.name]), hints[item.name])[0]
                flat[item.name] = kind, set(kind._list_required())  # noqa: SLF001 - of this class
        return readers, defaults, flat

    @classmethod
    @cache
    def _list_required(cls) -> tuple[str, ...]:
        """List the fields without a default."""
        return tuple(item.name for item in fields(cast("Any", cls)) if item.default is item.default_factory is MISSING)


def read_text(data: Mapping[str, Any], name: str) -> str:
    """Return a required text of a JSON object; ValueError if it is missing."""
    text = _expect(dict, data).get(name)
    if not isinstance(text, str):
        raise RecordError(name, "expected text, found none")
    return text


def _find_reader(hint: Any) -> _Reader:
    """Return the reader of non-null values of a type; readers raise ValueError for invalid values."""
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
    """Return the reader of items in a list or an object; null is valid only if the type includes None."""
    _, read = _find_reader(hint)
    if isinstance(hint, UnionType):
        return lambda value: None if value is None else read(value)
    return read


def _read_member(kind: type[Enum], value: Any) -> Enum:
    try:
        return kind(value)
    except ValueError:
        valid_values = ", ".join(str(item.value) for item in kind)
        raise ValueError(f"expected one of {valid_values}, found {_quote(value)}") from None


def _read_path(value: Any) -> Path:
    return Path(_expect(str, value))


def _expect(kind: type, value: Any) -> Any:
    """Return a value after checking its JSON type."""
    types = (list, tuple) if kind is list else kind
    if not isinstance(value, types) or (kind is int and isinstance(value, bool)):
        raise ValueError(f"expected {_TYPE_NAMES[kind]}, found {_quote(value)}")
    return value


def _quote(value: Any) -> str:
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= _MAX_QUOTED_CHARS else f"{text[: _MAX_QUOTED_CHARS - 1]}…"


def read_number(value: Any) -> float:
    """Read a number of a journal; ValueError for anything except numbers, `nan`, `inf` and `-inf`."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"expected a number, found {_quote(value)}")  # noqa: TRY004 - as for all else
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        raise ValueError(f"expected a number, found {_quote(value)}") from None


def read_json(data: bytes) -> Any:
    """Parse a JSON document that may be hostile.

    A lone surrogate, which is no character, becomes U+FFFD.

    Raises:
        ValueError: it is not strict JSON (NaN), is nested too deeply, or has a number beyond 64 bits.
    """
    text = data.decode()
    try:
        document = (_BOUNDED_DECODER if _LONG_NUMBER.search(text) else _DECODER).decode(text)
    except RecursionError:
        raise ValueError(f"it is nested more than {_MAX_DEPTH} levels deep") from None
    if text.count("[") + text.count("{") > _MAX_DEPTH:
        _refuse_depth(document)
    if "\\ud" in text or "\\uD" in text:
        document = json.loads(_LONE_SURROGATE.sub("\ufffd", json.dumps(document, ensure_ascii=False)))
    return document


def _refuse_depth(document: Any) -> None:
    level = [document]
    for _ in range(_MAX_DEPTH):
        nodes = (node.values() if isinstance(node, dict) else node for node in level)
        level = [item for node in nodes for item in node if isinstance(item, dict | list)]
        if not level:
            return
    raise ValueError(f"it is nested more than {_MAX_DEPTH} levels deep")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a valid number in JSON")


def _read_integer(digits: str) -> int:
    value = int(digits) if len(digits) <= 20 else 2**64
    if not -(2**63) <= value < 2**63:
        raise ValueError(f"a number has more than 64 bits: {digits[:20]}…")
    return value


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
_BOUNDED_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_int=_read_integer)


def _to_plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, tuple):
        return [_to_plain(item) for item in value] if value else []
    if isinstance(value, Recorded):
        return value.as_dict()
    if isinstance(value, dict) and _has_objects(value):
        return {name: _to_plain(item) for name, item in value.items()}
    return str(value) if isinstance(value, Path) else value


def _has_objects(value: dict[str, Any]) -> bool:
    first = next(iter(value.values()), None)
    return _has_objects(first) if isinstance(first, dict) else isinstance(first, Recorded)


def strict_json(value: Any) -> Any:
    """Convert a document to strict JSON values; integral floats become integers."""
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
