"""Checks of what a declaration says beside its function; each adds what is wrong to a list of messages."""

from __future__ import annotations

import math
import re

__all__ = ["check_dispatch", "check_name", "check_positive", "words_of"]

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:]*(?:-[A-Za-z0-9_.:]+)*")


def check_name(name: object, messages: list[str]) -> None:
    """Checks a name, which a dash may part from arguments."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        messages.append(f"{name!r} is no name; letters, digits and _ . : make one, with single dashes between them")


def words_of(what: str, words: object, messages: list[str]) -> tuple[str, ...]:
    """A tuple of strings; a string alone would be a tuple of its letters."""
    if isinstance(words, list | tuple) and all(isinstance(word, str) and word for word in words):
        return tuple(words)
    messages.append(f'{what} is a tuple of strings, ("one",), not {words!r}')
    return ()


def check_dispatch(pattern: object, messages: list[str]) -> None:
    """Checks a regular expression."""
    try:
        re.compile(str(pattern))
    except re.error as error:
        messages.append(f"proof.dispatch is no regular expression: {error}")


def check_positive(what: str, number: object, messages: list[str]) -> None:
    """Checks a number above 0 that is one."""
    fits = isinstance(number, int | float) and not isinstance(number, bool) and number > 0 and math.isfinite(number)
    if not fits:
        messages.append(f"{what}, not {number!r}")
