"""Applies a unified diff as `git apply` does, but without git, so that tests need none.

`apply_diff` is stricter than git: each hunk must match at its line number, and the diff contains only files and hunks.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["apply_diff", "split_lines"]

_HUNK = re.compile(r"@@ -([0-9]+)(?:,([0-9]+))? \+([0-9]+)(?:,([0-9]+))? @@\n")
_NO_NEWLINE = "\\ No newline at end of file\n"


def split_lines(text: str) -> list[str]:
    r"""Split a text into lines with their ends, as git and diff do: only `\n` ends a line."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def apply_diff(folder: Path, diff: str) -> None:
    """Apply a diff to the files below a directory.

    Raises ValueError if it is no diff in git's format, or does not match these files.
    """
    lines = split_lines(diff)
    if not lines:
        raise ValueError("the diff is empty")
    while lines:
        old, new = _pop_file_name(lines, "--- a/"), _pop_file_name(lines, "+++ b/")
        if old != new:
            raise ValueError(f"the diff renames {old} to {new}")
        path = folder / old
        path.write_bytes(_apply_hunks(path.read_bytes().decode(), lines).encode())


def _pop_file_name(lines: list[str], prefix: str) -> str:
    if not lines or not lines[0].startswith(prefix) or not lines[0].endswith("\n"):
        raise ValueError(f"expected {prefix}…, found {lines[:1]}")
    return lines.pop(0)[len(prefix) : -1]


def _apply_hunks(text: str, lines: list[str]) -> str:
    """Apply the hunks at the start of `lines` to a text; remove them from `lines`."""
    old_lines, new_lines, position = split_lines(text), list[str](), 0
    if not lines or not _HUNK.fullmatch(lines[0]):
        raise ValueError(f"expected a hunk, found {lines[:1]}")
    while lines and (match := _HUNK.fullmatch(lines[0])):
        del lines[0]
        old_first, old_count, new_first, new_count = (
            int(number) if number is not None else 1 for number in match.groups()
        )
        removed_lines, added_lines = _pop_sides(lines, old_count, new_count)
        # The number of a hunk side without lines is that of the line before the hunk.
        start = old_first - 1 if old_count else old_first
        new_lines += old_lines[position:start]
        if start < position or old_lines[start : start + old_count] != removed_lines:
            raise ValueError(
                f"lines {old_first}-{old_first + old_count - 1} are not what the diff says: {removed_lines}"
            )
        if len(new_lines) != (new_first - 1 if new_count else new_first):
            raise ValueError(f"the hunk at line {old_first} ends up at line {len(new_lines) + 1}, not {new_first}")
        new_lines += added_lines
        position = start + old_count
    new_lines += old_lines[position:]
    if any(not line.endswith("\n") for line in new_lines[:-1]):
        raise ValueError("a line in the midst of the file has no end")
    return "".join(new_lines)


def _pop_sides(lines: list[str], old_count: int, new_count: int) -> tuple[list[str], list[str]]:
    removed_lines, added_lines = list[str](), list[str]()
    while len(removed_lines) < old_count or len(added_lines) < new_count:
        if not lines or lines[0][0] not in " -+":
            raise ValueError(f"the hunk ends too early, at {lines[:1]}")
        sign, line = lines[0][0], lines[0][1:]
        del lines[0]
        if lines and lines[0] == _NO_NEWLINE:
            del lines[0]
            line = line.removesuffix("\n")
        if sign in " -":
            removed_lines.append(line)
        if sign in " +":
            added_lines.append(line)
    if (len(removed_lines), len(added_lines)) != (old_count, new_count):
        raise ValueError("the hunk has other lines than it says")
    return removed_lines, added_lines
