"""Markdown (GitHub's flavour) from text that nobody has vetted."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from iree_gauntlet.cleaning import clean, one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["code", "escape", "fenced", "shortened", "table"]

_HTML = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
# An underscore inside a word means nothing in GitHub's flavour, and names are full of them.
_SPECIAL = re.compile(r"[\\`*\[\]|~$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
# What would begin a list, a heading or a rule.
_AT_LINE_START = re.compile(r"^(\d*)([.)](?=\s|$)|[-+#=]+(?=\s|$))")
# A pipe ends a table's cell, even inside code.
_BARE_PIPE = re.compile(r"(?<!\\)\|")
_BACKTICKS = re.compile(r"`+")


def escape(text: str, limit: int = 500) -> str:
    """Text as it stands, on one line, fit for a paragraph, a list item or a table cell."""
    escaped = _SPECIAL.sub(r"\\\g<0>", one_line(text, limit).translate(_HTML))
    return _AT_LINE_START.sub(r"\1\\\2", escaped)


def code(text: str, limit: int = 500) -> str:
    """Text as inline code; nothing for no text."""
    line = one_line(text, limit)
    if not line:
        return ""
    fence = "`" * (_longest_run(line) + 1)
    padding = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{padding}{line}{padding}{fence}"


def fenced(text: str, language: str = "text") -> str:
    """Text as a code block, whatever backticks it holds."""
    body = clean(text).strip("\n")
    fence = "`" * max(3, _longest_run(body) + 1)
    return f"{fence}{language}\n{body}\n{fence}"


def table(header: Sequence[str], rows: Iterable[Sequence[str]], right: frozenset[int] = frozenset()) -> str:
    """A table; cells are Markdown already (`escape`, `code`). Columns in `right` are aligned right."""
    rule = ["---:" if index in right else "---" for index in range(len(header))]
    safe = ([_BARE_PIPE.sub(r"\|", cell) for cell in cells] for cells in [header, rule, *rows])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in safe)


def shortened(text: str, limit: int, note: str) -> str:
    """A document of at most `limit` bytes of UTF-8: cut between lines, no code block left open.

    Args:
        text: the document.
        limit: bytes; at least a few hundred.
        note: Markdown that says that and where the rest is; put at the end where something was cut off.
    """
    if len(text.encode()) <= limit:
        return text
    # Room for the note and for closing a code block.
    room = limit - len(note.encode()) - 512
    kept: list[str] = []
    open_fence = ""
    for line in text.split("\n"):
        room -= len(line.encode()) + 1
        if room < 0:
            break
        kept.append(line)
        fence = _fence_of(line)
        if open_fence and line.strip("`") == "" and len(fence) >= len(open_fence):
            open_fence = ""
        elif not open_fence:
            open_fence = fence
    closing = [open_fence] if open_fence else []
    return "\n".join([*kept, *closing, "", note, ""])


def _fence_of(line: str) -> str:
    """The backticks that open or close a code block; nothing for any other line."""
    found = _BACKTICKS.match(line)
    if not found or len(found.group()) < 3 or "`" in line[found.end() :]:
        return ""
    return found.group()


def _longest_run(text: str) -> int:
    return max((len(run) for run in _BACKTICKS.findall(text)), default=0)
