"""JSON with comments and trailing commas, which is what operator suites' configs use of JSON5; torch models comment.

The text becomes plain JSON of the same length, every value in its place, so that the standard library reads it,
messages name its lines, and edits can keep every other byte. That takes a millisecond for a config of a thousand
lines; a parser of all of JSON5 in Python takes a second, and one in C keeps no places. What else JSON5 has (single
quotes, bare keys, other numbers) no config was seen to use: it is refused, with its line, as JSON refuses it.
"""

from __future__ import annotations

import re

__all__ = ["comments_of", "plain_json", "without_comments"]

_STRING = r'"(?:[^"\\\n]|\\.)*"'
_COMMENT = r"//[^\n]*|/\*.*?(?:\*/|\Z)"
_WORDS = re.compile(rf"{_STRING}|(?P<comment>{_COMMENT})", re.DOTALL)
_TOKEN = re.compile(rf"{_STRING}|\S")
_CLOSING = re.compile(r"\s*[\]}]")
_NOT_SPACE = re.compile(r"[^\n\r]")


def plain_json(text: str) -> str:
    """The same values in the same places, without comments and trailing commas.

    A comment that does not end swallows the rest, so that the JSON that is left does not end either.
    """
    return _without_last_commas(without_comments(text))


def without_comments(text: str) -> str:
    """The same values in the same places; a comment becomes spaces."""
    if "//" in text or "/*" in text:
        text = _WORDS.sub(lambda match: _blank(match[0]) if match["comment"] else match[0], text)
    return text


def comments_of(text: str) -> dict[int, str]:
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


def _blank(comment: str) -> str:
    return _NOT_SPACE.sub(" ", comment)


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
