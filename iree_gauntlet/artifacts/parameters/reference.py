r"""One parameter reference of MLIR's assembly format, read from the text behind its mnemonic.

    #stream.parameter.named<"scope"::"name"> : tensor<4x4xf32>
    #flow.parameter.named<"name", {key = value}> : tensor<4xbf16>

Strings are escaped as MLIR's lexer reads them: `\"`, `\\`, `\n`, `\t`, else two hexadecimal digits a byte.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_BLANK = re.compile(rb"(?:[ \t\r\n]+|//[^\n]*(?:\n|\Z))*")
_STRING = re.compile(rb'"((?:[^"\\\n]|\\["\\nt]|\\[0-9A-Fa-f]{2})*)"')
_ESCAPE = re.compile(rb'\\(["\\nt]|[0-9A-Fa-f]{2})')
_WORD = re.compile(rb"!?[A-Za-z_][A-Za-z0-9_.$]*")
_NESTED = re.compile(rb'"(?:[^"\\\n]|\\.)*"|//[^\n]*|->|[<>(){}\[\]]|[^"/<>(){}\[\]-]+|[/-]', re.DOTALL)
_IGNORED = re.compile(rb'("(?:[^"\\\n]|\\.)*")|//[^\n]*|[ \t\r\n]+', re.DOTALL)
_CLOSERS = {b"<": b">", b"(": b")", b"{": b"}", b"[": b"]"}
_LETTERS = {b"n": b"\n", b"t": b"\t", b'"': b'"', b"\\": b"\\"}


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


def read_reference(text: bytes, start: int, *, wrapped: bool = False, line: int = 0) -> tuple[Reference, int]:
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
