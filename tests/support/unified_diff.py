"""Applying a unified diff as `git apply` does, by its format alone, so that tests need no git.

Stricter than git: every line must stand where the diff says, and there is nothing in it besides files and hunks.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["apply_diff", "lines_of"]

_HUNK = re.compile(r"@@ -([0-9]+)(?:,([0-9]+))? \+([0-9]+)(?:,([0-9]+))? @@\n")
_NO_NEWLINE = "\\ No newline at end of file\n"


def lines_of(text: str) -> list[str]:
    r"""The lines of a text with their ends, as git and diff see them: `\n` alone ends a line."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def apply_diff(folder: Path, diff: str) -> None:
    """Change the files below a folder as a diff says.

    Raises ValueError: it is no diff in git's form, or none of these files.
    """
    lines = lines_of(diff)
    if not lines:
        raise ValueError("the diff is empty")
    while lines:
        old, new = _name(lines, "--- a/"), _name(lines, "+++ b/")
        if old != new:
            raise ValueError(f"the diff renames {old} to {new}")
        path = folder / old
        path.write_bytes(_patched(path.read_bytes().decode(), lines).encode())


def _name(lines: list[str], prefix: str) -> str:
    if not lines or not lines[0].startswith(prefix) or not lines[0].endswith("\n"):
        raise ValueError(f"expected {prefix}…, found {lines[:1]}")
    return lines.pop(0)[len(prefix) : -1]


def _patched(text: str, lines: list[str]) -> str:
    """The text after the hunks that the lines begin with, which are taken from them."""
    before, after, done = lines_of(text), list[str](), 0
    if not lines or not _HUNK.fullmatch(lines[0]):
        raise ValueError(f"expected a hunk, found {lines[:1]}")
    while lines and (found := _HUNK.fullmatch(lines[0])):
        del lines[0]
        first, count, new_first, new_count = (int(number) if number is not None else 1 for number in found.groups())
        removed, added = _sides(lines, count, new_count)
        # A side without lines names the line before it.
        begin = first - 1 if count else first
        after += before[done:begin]
        if begin < done or before[begin : begin + count] != removed:
            raise ValueError(f"lines {first}-{first + count - 1} are not what the diff says: {removed}")
        if len(after) != (new_first - 1 if new_count else new_first):
            raise ValueError(f"the hunk at line {first} ends up at line {len(after) + 1}, not {new_first}")
        after += added
        done = begin + count
    after += before[done:]
    if any(not line.endswith("\n") for line in after[:-1]):
        raise ValueError("a line in the midst of the file has no end")
    return "".join(after)


def _sides(lines: list[str], count: int, new_count: int) -> tuple[list[str], list[str]]:
    removed, added = list[str](), list[str]()
    while len(removed) < count or len(added) < new_count:
        if not lines or lines[0][0] not in " -+":
            raise ValueError(f"the hunk ends too early, at {lines[:1]}")
        kind, line = lines[0][0], lines[0][1:]
        del lines[0]
        if lines and lines[0] == _NO_NEWLINE:
            del lines[0]
            line = line.removesuffix("\n")
        if kind in " -":
            removed.append(line)
        if kind in " +":
            added.append(line)
    if (len(removed), len(added)) != (count, new_count):
        raise ValueError("the hunk has other lines than it says")
    return removed, added
