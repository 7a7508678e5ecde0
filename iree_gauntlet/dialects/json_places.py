"""Where the values of a JSON text stand, so that messages can name a line and an edit changes nothing else."""

from __future__ import annotations

import json
import re
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import TYPE_CHECKING

from iree_gauntlet.dialects.json5_text import without_comments

if TYPE_CHECKING:
    from collections.abc import Sequence


_SPACE = " \t\n\r"
_INDEX = re.compile(r"\[(\d+)\]")


def line_of(text: str, path: Sequence[str | int]) -> int:
    """Line (1-based) on which the value at a path of keys and indices starts; its nearest parent's if absent.

    Args:
        text: a JSON text that parses, or does without its comments.
        path: keys of objects and indices of arrays from the top.
    """
    text = without_comments(text)
    position = _skip(text, 0)
    for part in path:
        found = _child(text, position, part)
        if found is None:
            break
        position = found
    return text[:position].count("\n") + 1


def lines_of_items(text: str, path: Sequence[str | int]) -> list[int]:
    """Lines (1-based) of the items of the array at a path, in their order; empty where there is no array.

    Args:
        text: a JSON text that parses.
        path: keys of objects and indices of arrays from the top.
    """
    position = _skip(text, 0)
    for part in path:
        found = _child(text, position, part)
        if found is None:
            return []
        position = found
    if text[position : position + 1] != "[":
        return []
    decoder = json.JSONDecoder()
    lines: list[int] = []
    line, counted = 1, 0
    position = _skip(text, position + 1)
    while text[position] != "]":
        line += text.count("\n", counted, position)
        counted = position
        lines.append(line)
        _, position = decoder.raw_decode(text, position)
        position = _skip(text, position)
        if text[position] == ",":
            position = _skip(text, position + 1)
    return lines


def path_of(document: object, field: str) -> tuple[str | int, ...]:
    """Keys and indices of a dotted field (`golden_time_ms.mi300`, `inputs[0].value`) of a document.

    A key may have dots in it: of several readings, the one that the document has.

    Raises:
        KeyError: the document has no such field.
    """
    if not field:
        return ()
    if isinstance(document, list):
        match = _INDEX.match(field)
        if match and int(match[1]) < len(document):
            return (int(match[1]), *path_of(document[int(match[1])], field[match.end() :].removeprefix(".")))
    if isinstance(document, dict):
        for key in sorted(document, key=len, reverse=True):
            rest = field[len(key) :]
            if field.startswith(key) and (not rest or rest[0] in ".["):
                try:
                    return (key, *path_of(document[key], rest.removeprefix(".")))
                except KeyError:
                    continue
    raise KeyError(field)


def with_number(text: str, path: Sequence[str | int], value: float) -> str:
    """The text with another number at a path; every other character is as it was.

    Raises:
        KeyError: there is no number at that path.
    """
    return _with_scalar(text, path, (int, float), repr(int(value)) if value == int(value) else repr(float(value)))


def with_string(text: str, path: Sequence[str | int], value: str) -> str:
    """The text with another string at a path; every other character is as it was.

    Raises:
        KeyError: there is no string at that path.
    """
    return _with_scalar(text, path, (str,), json.dumps(value, ensure_ascii=False))


def _with_scalar(text: str, path: Sequence[str | int], kinds: tuple[type, ...], written: str) -> str:
    plain = without_comments(text)
    position = _skip(plain, 0)
    for part in path:
        found = _child(plain, position, part)
        if found is None:
            raise KeyError(part)
        position = found
    before, end = json.JSONDecoder().raw_decode(plain, position)
    if not isinstance(before, kinds) or isinstance(before, bool):
        raise KeyError(path[-1] if path else "")
    return text[:position] + written + text[end:]


def _skip(text: str, position: int) -> int:
    while position < len(text) and text[position] in _SPACE + "\ufeff":
        position += 1
    return position


def _child(text: str, position: int, part: str | int) -> int | None:
    """Position of the member of the container that starts at `position`; None where there is none."""
    opening = text[position : position + 1]
    if opening not in ("{", "["):
        return None
    decoder = json.JSONDecoder()
    index = 0
    position = _skip(text, position + 1)
    while text[position] not in "}]":
        key: str | int = index
        if opening == "{":
            key, position = scanstring(text, position + 1, True)
            position = _skip(text, _skip(text, position) + 1)
        if key == part:
            return position
        _, position = decoder.raw_decode(text, position)
        position = _skip(text, position)
        if text[position] == ",":
            position = _skip(text, position + 1)
        index += 1
    return None
