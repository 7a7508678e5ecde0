"""The text of a JSON file: comments, where its values stand, and edits that change nothing else.

Configs of operator suites have comments and trailing commas, which is what they use of JSON5; torch models have
comments. Such a text becomes plain JSON of the same length, every value in its place, so that the standard library
reads it, messages name its lines, and edits can keep every other byte. That takes a millisecond for a config of a
thousand lines; a parser of all of JSON5 in Python takes a second, and one in C keeps no places. What else JSON5 has
(single quotes, bare keys, other numbers) no config was seen to use: it is refused, with its line, as JSON refuses it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


_STRING = r'"(?:[^"\\\n]|\\.)*"'
_COMMENT = r"//[^\n]*|/\*.*?(?:\*/|\Z)"
_WORDS = re.compile(rf"{_STRING}|(?P<comment>{_COMMENT})", re.DOTALL)
_TOKEN = re.compile(rf"{_STRING}|\S")
_CLOSING = re.compile(r"\s*[\]}]")
_NOT_SPACE = re.compile(r"[^\n\r]")
_SPACE = " \t\n\r\ufeff"
_INDEX = re.compile(r"\[(\d+)\]")
# An array that is longer has a line for each item.
_LONG_LINE = 100


def read_plain_json(text: str) -> str:
    """The same values in the same places, without comments and trailing commas.

    A comment that does not end swallows the rest, so that the JSON that is left does not end either.
    """
    return _without_last_commas(without_comments(text))


def without_comments(text: str) -> str:
    """The same values in the same places; a comment becomes spaces."""
    # Most specs have no `//` but those of their URLs, and no comment can begin within `s://`.
    if "/*" in text or "//" in text.replace("s://", ""):
        text = _WORDS.sub(lambda match: _NOT_SPACE.sub(" ", match[0]) if match["comment"] else match[0], text)
    return text


def list_comments(text: str) -> dict[int, str]:
    """What is said in the comments of one line each, by number of the line (1-based); of several, the last one."""
    found: dict[int, str] = {}
    line, position = 1, 0
    for match in _WORDS.finditer(text):
        comment = match["comment"]
        if comment is None:
            continue
        line += text.count("\n", position, match.start())
        position = match.start()
        if "\n" not in comment:
            found[line] = comment[2:].removesuffix("*/").strip()
    return found


def _without_last_commas(text: str) -> str:
    pieces: list[str] = []
    done = 0
    value = False  # whether what stands before may be followed by a comma
    for match in _TOKEN.finditer(text):
        word = match[0]
        if word == "," and value and _CLOSING.match(text, match.end()):
            pieces += [text[done : match.start()], " "]
            done = match.end()
        value = word not in (",", "[", "{", ":")
    pieces.append(text[done:])
    return "".join(pieces)


@dataclass(frozen=True, slots=True)
class Member:
    """One member of a container.

    Attributes:
        start, end: of `value`, or of `"key": value`.
        comma: position of the comma behind it; None where there is none.
        text: of a value that is a string; None for any other.
        key: of an object's member, else empty.
        container: the value's own members, where it has any.
    """

    start: int
    end: int
    comma: int | None
    text: str | None
    key: str = ""
    container: Container | None = None


@dataclass(frozen=True, slots=True)
class Container:
    """An array or an object: positions of its brackets, and its members."""

    opening: int
    closing: int
    members: tuple[Member, ...]


def read_spans(text: str) -> Container:
    """The places of a document that is an array or an object.

    Raises:
        ValueError: it is none, by this grammar.
    """
    plain = read_plain_json(text)
    opening = _skip(plain, 0)
    document, end = json.JSONDecoder().raw_decode(plain, opening)
    if not isinstance(document, dict | list) or not is_blank(plain[end:]):
        raise ValueError("the document is not one object or array")
    return _read_container(plain, without_comments(text), opening, end)


def _read_container(plain: str, with_commas: str, opening: int, end: int) -> Container:
    """The places of what is between two positions; the second text has the commas before closing brackets, too."""
    members: list[Member] = []
    for key, start, position in _read_members(plain, opening):
        value, stop = json.JSONDecoder().raw_decode(plain, position)
        behind = _skip(with_commas, stop)
        members.append(
            Member(
                start,
                stop,
                comma=behind if with_commas[behind] == "," else None,
                text=value if isinstance(value, str) else None,
                key=key if isinstance(key, str) else "",
                container=_read_container(plain, with_commas, position, stop)
                if isinstance(value, dict | list)
                else None,
            )
        )
    return Container(opening, end - 1, tuple(members))


def is_blank(text: str) -> bool:
    """Whether a text between tokens is space alone, without comments."""
    return not text.strip(_SPACE)


def find_line(text: str, path: Sequence[str | int]) -> int:
    """Line (1-based) on which the value at a path of keys and indices starts; its nearest parent's if absent."""
    text = without_comments(text)
    position, _ = _find(text, path)
    return text[:position].count("\n") + 1


def find_item_lines(text: str, path: Sequence[str | int]) -> list[int]:
    """Lines (1-based) of the items of the array at a path, in their order; empty where there is no array."""
    position, missing = _find(text, path)
    if missing or text[position : position + 1] != "[":
        return []
    lines: list[int] = []
    line, counted = 1, 0
    for _, _, start in _read_members(text, position):
        line += text.count("\n", counted, start)
        counted = start
        lines.append(line)
    return lines


def find_path(document: object, field: str) -> tuple[str | int, ...]:
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
            return (int(match[1]), *find_path(document[int(match[1])], field[match.end() :].removeprefix(".")))
    if isinstance(document, dict):
        for key in sorted(document, key=len, reverse=True):
            rest = field[len(key) :]
            if field.startswith(key) and (not rest or rest[0] in ".["):
                try:
                    return (key, *find_path(document[key], rest.removeprefix(".")))
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


def with_member(text: str, key: str, value: object) -> str:
    """The text of an object with a value under a key, in its place or as the last one; all else is as it was.

    Raises:
        ValueError: the text is no object.
    """
    whole = read_spans(text)
    first = whole.members[0].start if whole.members else whole.closing
    line = text.rfind("\n", 0, first) + 1
    # As the first member; four spaces where it would be that.
    indent = (text[line:first] if is_blank(text[line:first]) else "") if whole.members else "    "
    written = json.dumps(value, ensure_ascii=False)
    if isinstance(value, list) and len(value) > 1 and len(written) > _LONG_LINE:
        inner = ",\n".join(f"{indent}{indent}{json.dumps(item, ensure_ascii=False)}" for item in value)
        written = f"[\n{inner}\n{indent}]"
    written = f"{json.dumps(key, ensure_ascii=False)}: {written}"
    there = next((member for member in whole.members if member.key == key), None)
    if there is not None:
        return text[: there.start] + written + text[there.end :]
    if not whole.members:
        return text[: whole.opening + 1] + f"\n{indent}{written}\n" + text[whole.closing :]
    last = whole.members[-1]
    gap = f"\n{indent}" if line else " "
    return text[: last.end] + f",{gap}{written}" + text[last.end :]


def _with_scalar(text: str, path: Sequence[str | int], kinds: tuple[type, ...], written: str) -> str:
    plain = without_comments(text)
    position, missing = _find(plain, path)
    if missing:
        raise KeyError(missing[0])
    before, end = json.JSONDecoder().raw_decode(plain, position)
    if not isinstance(before, kinds) or isinstance(before, bool):
        raise KeyError(path[-1] if path else "")
    return text[:position] + written + text[end:]


def _skip(text: str, position: int) -> int:
    while position < len(text) and text[position] in _SPACE:
        position += 1
    return position


def _find(text: str, path: Sequence[str | int]) -> tuple[int, Sequence[str | int]]:
    """Position of the value at a path, or of its nearest parent, and what of the path is not there."""
    position = _skip(text, 0)
    for depth, part in enumerate(path):
        found = next((start for key, _, start in _read_members(text, position) if key == part), None)
        if found is None:
            return position, path[depth:]
        position = found
    return position, ()


def _read_members(text: str, position: int) -> Iterator[tuple[str | int, int, int]]:
    """(key or index, position, position of the value) of the members of the container that starts at `position`."""
    opening = text[position : position + 1]
    if opening not in ("{", "["):
        return
    decoder = json.JSONDecoder()
    index = 0
    position = _skip(text, position + 1)
    while text[position] not in "}]":
        key: str | int = index
        start = position
        if opening == "{":
            key, position = scanstring(text, position + 1, True)
            position = _skip(text, _skip(text, position) + 1)
        yield key, start, position
        _, position = decoder.raw_decode(text, position)
        position = _skip(text, position)
        if text[position] == ",":
            position = _skip(text, position + 1)
        index += 1
