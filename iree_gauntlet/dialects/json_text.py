"""The text of a JSON file: comments, and positions of values.

Configs of operator suites use two parts of JSON5, comments and trailing commas; torch models use comments. Such a text
is converted to plain JSON of the same length, in which every value keeps its position. So messages have the original
lines, edits keep every other byte, and the standard library reads the text in a millisecond. (A Python parser of all of
JSON5 takes a second; one in C keeps no positions.) Other JSON5 syntax is rejected, with its line.
"""

from __future__ import annotations

import json
import re
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


_STRING = r'"(?:[^"\\\n]|\\.)*"'
_COMMENT = r"//[^\n]*|/\*.*?(?:\*/|\Z)"
_TEXT_OR_COMMENT = re.compile(rf"{_STRING}|(?P<comment>{_COMMENT})", re.DOTALL)
_TOKEN = re.compile(rf"{_STRING}|\S")
_CLOSING_BRACKET = re.compile(r"\s*[\]}]")
_NOT_SPACE = re.compile(r"[^\n\r]")
_ARRAY_INDEX = re.compile(r"\[(\d+)\]")
WHITESPACE = " \t\n\r\ufeff"


def read_plain_json(text: str) -> str:
    """Replace comments and trailing commas by spaces; every value keeps its position.

    An unterminated comment extends to the text's end, so the resulting JSON is unterminated too.
    """
    text = without_comments(text)
    pieces: list[str] = []
    copied_end = 0
    follows_value = False  # True if a comma may follow the previous symbol.
    for match in _TOKEN.finditer(text):
        symbol = match[0]
        if symbol == "," and follows_value and _CLOSING_BRACKET.match(text, match.end()):
            pieces += [text[copied_end : match.start()], " "]
            copied_end = match.end()
        follows_value = symbol not in (",", "[", "{", ":")
    return "".join((*pieces, text[copied_end:]))


def without_comments(text: str) -> str:
    """Replace comments by spaces; every value keeps its position."""
    # Return early: most specs have `//` only in URLs, and no comment can begin within `s://`.
    if "/*" in text or "//" in text.replace("s://", ""):
        text = _TEXT_OR_COMMENT.sub(lambda match: _NOT_SPACE.sub(" ", match[0]) if match["comment"] else match[0], text)
    return text


def list_comments(text: str) -> dict[int, str]:
    """Map line numbers (1-based) to single-line comments; if a line has several, the last one counts."""
    matches = [match for match in _TEXT_OR_COMMENT.finditer(text) if match["comment"]]
    lines = _count_lines(text, (match.start() for match in matches))
    comments = ((line, match["comment"]) for line, match in zip(lines, matches, strict=True))
    return {line: comment[2:].removesuffix("*/").strip() for line, comment in comments if "\n" not in comment}


def _count_lines(text: str, positions: Iterable[int]) -> Iterator[int]:
    """Yield the lines (1-based) of ascending positions."""
    line, last_position = 1, 0
    for position in positions:
        line += text.count("\n", last_position, position)
        last_position = position
        yield line


def find_line(text: str, path: Sequence[str | int]) -> int:
    """Return the line (1-based) on which the value at a path (or the nearest existing parent) starts."""
    text = without_comments(text)
    position, _ = find_value(text, path)
    return text[:position].count("\n") + 1


def find_item_lines(text: str, path: Sequence[str | int]) -> list[int]:
    """Return the lines (1-based) of the items of the array at a path, in order; empty if there is no array."""
    position, missing = find_value(text, path)
    if missing or text[position : position + 1] != "[":
        return []
    return list(_count_lines(text, (start for _, _, start in read_members(text, position))))


def find_path(document: object, field: str) -> tuple[str | int, ...]:
    """Parse a dotted field (`golden_time_ms.mi300`, `inputs[0].value`) into keys and indices of a document.

    Keys may contain dots, so the first reading that exists in the document is returned; KeyError if none exists.
    """
    if not field:
        return ()
    if isinstance(document, list):
        match = _ARRAY_INDEX.match(field)
        if match and int(match[1]) < len(document):
            return (int(match[1]), *find_path(document[int(match[1])], field[match.end() :].removeprefix(".")))
    if isinstance(document, dict):
        for key in sorted(document, key=len, reverse=True):
            suffix = field[len(key) :]
            if field.startswith(key) and (not suffix or suffix[0] in ".["):
                try:
                    return (key, *find_path(document[key], suffix.removeprefix(".")))
                except KeyError:
                    continue
    raise KeyError(field)


def skip_whitespace(text: str, position: int) -> int:
    """Return the position of the first character from `position` on that is not whitespace."""
    while position < len(text) and text[position] in WHITESPACE:
        position += 1
    return position


def find_value(text: str, path: Sequence[str | int]) -> tuple[int, Sequence[str | int]]:
    """Return the position of the value at a path, or of its nearest parent, and the missing rest of the path."""
    position = skip_whitespace(text, 0)
    for depth, key in enumerate(path):
        start = next((value_start for name, _, value_start in read_members(text, position) if name == key), None)
        if start is None:
            return position, path[depth:]
        position = start
    return position, ()


def read_members(text: str, position: int) -> Iterator[tuple[str | int, int, int]]:
    """Yield (key or index, position, position of the value) for the members of the container at `position`."""
    opening = text[position : position + 1]
    if opening not in ("{", "["):
        return
    decoder = json.JSONDecoder()
    index = 0
    position = skip_whitespace(text, position + 1)
    while text[position] not in "}]":
        key: str | int = index
        start = position
        if opening == "{":
            key, position = scanstring(text, position + 1, True)
            position = skip_whitespace(text, skip_whitespace(text, position) + 1)
        yield key, start, position
        _, position = decoder.raw_decode(text, position)
        position = skip_whitespace(text, position)
        if text[position] == ",":
            position = skip_whitespace(text, position + 1)
        index += 1
