r"""Parameter references in MLIR text of any size: read in chunks, with bounded memory.

No string and no comment of MLIR goes beyond its line. So only the lines with something that looks like a
reference are read as MLIR's lexer reads them, from their beginning on; all others are searched and no more.
Lines may have any length, since weights are written as one string of hexadecimal digits: between two chunks
is kept what the end of the text is part of (a string, a comment), not the line.

A reference is what follows `parameter.named`, as in

    #stream.parameter.named<"scope"::"name"> : tensor<4x4xf32>
    #flow.parameter.named<"name", {key = value}> : tensor<4xbf16>

with strings escaped as MLIR's lexer reads them: `\"`, `\\`, `\n`, `\t`, else two hexadecimal digits a byte.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NoReturn

from iree_gauntlet.artifacts.parameters.parameter import ParameterError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


_BLANK = re.compile(rb"(?:[ \t\r\n]+|//[^\n]*(?:\n|\Z))*")
_STRING = re.compile(rb'"((?:[^"\\\n]|\\["\\nt]|\\[0-9A-Fa-f]{2})*)"')
_ESCAPE = re.compile(rb'\\(["\\nt]|[0-9A-Fa-f]{2})')
_WORD = re.compile(rb"!?[A-Za-z_][A-Za-z0-9_.$]*")
_NESTED = re.compile(rb'"(?:[^"\\\n]|\\.)*"|//[^\n]*|->|[<>(){}\[\]]|[^"/<>(){}\[\]-]+|[/-]', re.DOTALL)
_IGNORED = re.compile(rb'("(?:[^"\\\n]|\\.)*")|//[^\n]*|[ \t\r\n]+', re.DOTALL)
_CLOSERS = {b"<": b">", b"(": b")", b"{": b"}", b"[": b"]"}
_LETTERS = {b"n": b"\n", b"t": b"\t", b'"': b'"', b"\\": b"\\"}
MARKER = b"parameter.named<"
_PREFIX = re.compile(rb"#(?:stream|flow)([.<])\Z")
_LONGEST_PREFIX = len(b"#stream.")
_ALIAS = re.compile(rb"\n(![A-Za-z_][A-Za-z0-9_$-]*)[ \t]*=[ \t]*(tensor<[^\n>]*>)")
_ALIAS_START = b"\n!"
_QUOTE, _COMMENT = b'"', b"//"
_OPENING = re.compile(rb'"|//')
_LOOK_AHEAD = 1 << 16  # longest reference or alias, bytes


class MalformedReferenceError(Exception):
    """The text is no reference: says what was expected. Whoever knows the file makes a user's error of it."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A parameter as a program names it.

    Attributes:
        scope: empty for the anonymous one.
        name: key within the scope; bytes that are not UTF-8 stand as lone surrogates.
        type: text of the type without blanks and comments; empty where the program gives none.
        line: line of the reference, 1-based; 0 where there are no lines.
    """

    scope: str
    name: str
    type: str
    line: int = 0


def _read_reference(text: bytes, start: int, *, wrapped: bool = False, line: int = 0) -> tuple[Reference, int]:
    """Read what follows `parameter.named<`.

    Args:
        text: a piece of a program with the whole reference in it.
        start: position behind the `<`.
        wrapped: the reference has the form `#stream<parameter.named<…>>`.
        line: handed through.

    Returns:
        The reference and the position behind it.

    Raises:
        MalformedReferenceError: it is no reference.
    """
    name, position = _string(text, start)
    scope = b""
    behind = _take(text, position, b"::")
    if behind:
        scope = name
        name, position = _string(text, behind)
    behind = _take(text, position, b",")
    if behind:
        position = _behind_brackets(text, _behind_blanks(text, behind))
    for _ in range(2 if wrapped else 1):
        behind = _take(text, position, b">")
        if not behind:
            raise MalformedReferenceError('">" is expected behind its name')
        position = behind
    behind = _take(text, position, b":")
    type_text, position = _type(text, behind) if behind else ("", position)
    return Reference(_decoded(scope), _decoded(name), type_text, line), position


def _behind_blanks(text: bytes, position: int) -> int:
    match = _BLANK.match(text, position)
    assert match is not None, "the pattern matches nothing at all too"
    return match.end()


def _take(text: bytes, position: int, token: bytes) -> int:
    """The position behind a token that comes next, blanks before it skipped; 0 where another thing comes."""
    position = _behind_blanks(text, position)
    return position + len(token) if text.startswith(token, position) else 0


def _string(text: bytes, position: int) -> tuple[bytes, int]:
    match = _STRING.match(text, _behind_blanks(text, position))
    if match is None:
        raise MalformedReferenceError("a name in double quotes is expected, on one line and with MLIR's escapes")
    return _ESCAPE.sub(_unescaped, match[1]), match.end()


def _type(text: bytes, position: int) -> tuple[str, int]:
    """A type: a word, and what stands in angle brackets right behind it."""
    position = _behind_blanks(text, position)
    match = _WORD.match(text, position)
    if match is None:
        raise MalformedReferenceError("a type is expected behind its colon")
    end = match.end()
    if text.startswith(b"<", end):
        end = _behind_brackets(text, end)
    type_text = _IGNORED.sub(lambda ignored: ignored[1] or b"", text[position:end])
    return type_text.decode(errors="backslashreplace"), end


def _behind_brackets(text: bytes, position: int) -> int:
    """The position behind a balanced pair of brackets that opens here."""
    awaited: list[bytes] = []
    while True:
        match = _NESTED.match(text, position)
        if match is None:
            raise MalformedReferenceError("its brackets are not closed")
        token, position = match[0], match.end()
        if token in _CLOSERS:
            awaited.append(_CLOSERS[token])
        elif not awaited:
            raise MalformedReferenceError("an opening bracket is expected")
        elif token in _CLOSERS.values():
            if token != awaited.pop():
                raise MalformedReferenceError("its brackets do not match")
            if not awaited:
                return position


def _unescaped(match: re.Match[bytes]) -> bytes:
    return _LETTERS.get(match[1]) or bytes.fromhex(match[1].decode("ascii"))


def _decoded(text: bytes) -> str:
    return text.decode(errors="surrogateescape")


def references_in_text(chunks: Iterable[bytes], source: str, *, lines: bool = True) -> Iterator[Reference]:
    """Every reference of a program, in its order, with type aliases resolved.

    Args:
        chunks: the text, cut anywhere.
        source: the program as a user would type it, for errors.
        lines: whether lines are counted; a piece of bytecode has none.

    Raises:
        ParameterError: a reference is not written as MLIR does, or the text ends within a string.
    """
    # Aliases stand at the beginning of a line; a break in front of the first one makes all lines alike.
    scanner = _Scanner(source, lines=lines)
    yield from scanner.feed(b"\n")
    for chunk in filter(None, chunks):
        yield from scanner.feed(chunk)
    yield from scanner.finish()


class _Scanner:
    """A position in the text, and whether a string or a comment continues there."""

    def __init__(self, source: str, *, lines: bool) -> None:
        self._source = source
        self._lines = lines
        self._text = b""
        self._position = 0
        self._inside = b""  # _QUOTE or _COMMENT
        self._escaped = False  # the next byte of the string belongs to an escape
        self._line = 0
        self._counted = 0  # line breaks before this position are counted in `_line`
        self._aliases: dict[str, str] = {}

    def feed(self, chunk: bytes) -> Iterator[Reference]:
        """What is found now that the text continues with this chunk."""
        self._line_at(self._position)
        self._text = self._text[self._position :] + chunk
        self._position = self._counted = 0
        yield from self._scan(final=False)

    def finish(self) -> Iterator[Reference]:
        """What is found now that the text is at its end."""
        yield from self._scan(final=True)
        if self._inside == _QUOTE:
            self._fail("the text ends within a string", len(self._text))

    def _scan(self, *, final: bool) -> Iterator[Reference]:
        text = self._text
        if self._inside == _QUOTE and _QUOTE not in text and b"\n" not in text:
            # Weights: nothing but the middle of a string, not to be searched for anything else.
            self._advance_in_string(len(text))
            self._counted = len(text)
            return
        # The end may be the beginning of a marker, or of what stands before it.
        end = len(text) if final else max(self._position, len(text) - len(MARKER) - _LONGEST_PREFIX)
        marker = alias = -1
        while True:
            # Each is searched again only when it is passed; what is not there is at the text's length.
            if marker < self._position:
                marker = self._find(MARKER)
            if alias < self._position:
                alias = self._find(_ALIAS_START)
            found = min(marker, alias)
            if found == len(text):
                self._advance(end)
                return
            if not final and len(text) - found < _LOOK_AHEAD:
                self._advance(max(self._position, found - _LONGEST_PREFIX))
                return
            if found == alias:
                self._alias(found)
                continue
            self._advance(found)
            if self._inside or not (prefix := _PREFIX.search(text[max(0, found - _LONGEST_PREFIX) : found])):
                self._advance(found + len(MARKER))
            else:
                yield self._reference(found, wrapped=prefix[1] == b"<")

    def _find(self, token: bytes) -> int:
        found = self._text.find(token, self._position)
        return found if found >= 0 else len(self._text)

    def _advance(self, end: int) -> None:
        """Go to a position, and know what continues there."""
        text = self._text
        line = text.rfind(b"\n", self._position, end)
        if line >= 0:
            self._position, self._inside, self._escaped = line, b"", False
        while self._position < end:
            if self._inside == _COMMENT:
                self._position = end
            elif self._inside == _QUOTE:
                self._advance_in_string(end)
            else:
                # A comment's second slash may stand behind the end.
                opening = _OPENING.search(text, self._position, end + 1)
                if opening is None or opening.start() >= end:
                    self._position = end
                else:
                    self._inside, self._position = opening[0], opening.end()

    def _advance_in_string(self, end: int) -> None:
        begin = self._position + self._escaped
        quote = self._text.find(_QUOTE, begin, end)
        content = self._text[begin : quote if quote >= 0 else end]
        open_escape = (len(content) - len(content.rstrip(b"\\"))) % 2 == 1
        if quote < 0:
            self._escaped, self._position = open_escape, end
            return
        self._escaped, self._position = False, quote + 1
        if not open_escape:
            self._inside = b""

    def _reference(self, found: int, *, wrapped: bool) -> Reference:
        line = self._line_at(found)
        try:
            reference, self._position = _read_reference(self._text, found + len(MARKER), wrapped=wrapped, line=line)
        except MalformedReferenceError as error:
            self._fail(f"a parameter is not written as MLIR does: {error}", found)
        known = self._aliases.get(reference.type)
        return replace(reference, type=known) if known else reference

    def _alias(self, found: int) -> None:
        self._position, self._inside, self._escaped = found + 1, b"", False
        match = _ALIAS.match(self._text, found)
        if match is not None:
            self._aliases[match[1].decode("ascii")] = re.sub(r"\s", "", match[2].decode(errors="backslashreplace"))

    def _line_at(self, position: int) -> int:
        """The line of a position, 1-based, 0 where none are counted; positions never go back."""
        if self._lines:
            self._line += self._text.count(b"\n", self._counted, position)
            self._counted = position
        return self._line

    def _fail(self, what: str, position: int) -> NoReturn:
        where = f"{self._source}:{self._line_at(position)}" if self._lines else self._source
        raise ParameterError(f"{where}: {what}", "See what iree-opt says to this program; it is damaged, or no MLIR.")
