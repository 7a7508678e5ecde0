"""The flags of a command line, without knowledge of the tool that gets them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag as written on a command line, or another argument.

    Attributes:
        name: the name without dashes; empty for an argument that is not a flag.
        value: the text after `=`, or the next argument; None without a value.
    """

    name: str
    value: str | None
    words: tuple[str, ...]

    @property
    def text(self) -> str:
        """The flag in the form with `=`."""
        return f"--{self.name}" if self.value is None else f"--{self.name}={self.value}"


def split_flags(words: Sequence[str], value_flags: frozenset[str]) -> Iterator[Flag]:
    """Yield the flags of a command line, with one dash or two, and with `=value` or a separate value.

    Only flags in `value_flags` take a separate value. The arguments after `--` are not flags.
    """
    remaining = iter(words)
    for word in remaining:
        if word == "--":
            yield Flag("", None, (word, *remaining))
            return
        if len(word) < 2 or not word.startswith("-"):
            yield Flag("", None, (word,))
            continue
        name, equals, value = word.removeprefix("-").removeprefix("-").partition("=")
        if equals:
            yield Flag(name, value, (word,))
        elif name in value_flags and (next_word := next(remaining, None)) is not None:
            yield Flag(name, next_word, (word, next_word))
        else:
            yield Flag(name, None, (word,))
