"""A document as GitHub-flavoured Markdown."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import quote

from iree_gauntlet.document import (
    Block,
    Cell,
    Code,
    Column,
    ColumnKind,
    Document,
    Folded,
    Heading,
    Items,
    Name,
    Notes,
    Paragraph,
    Picture,
    Table,
    Text,
    TextLink,
)
from iree_gauntlet.formatting import STYLES, clean, one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


_LONGEST = 1000
_HTML = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
# An underscore inside a word means nothing in GitHub's flavour, and names are full of them.
_SPECIAL = re.compile(r"[\\`*\[\]|~$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
# What would begin a list, a heading or a rule.
_AT_LINE_START = re.compile(r"^(\d*)([.)](?=\s|$)|[-+#=]+(?=\s|$))")
# A pipe ends a table's cell, even inside code.
_BARE_PIPE = re.compile(r"(?<!\\)\|")
_FOLD, _UNFOLD = "<details>", "</details>"
_BACKTICKS = re.compile(r"`+")


def render_markdown(document: Document) -> str:
    """The whole document; ends with a newline."""
    ended = (document.ending,) if document.ending else ()
    answer = " · ".join((f"**{escape(document.answer)}**", *map(escape, (*document.facts, *ended))))
    blocks = (_block(block) for block in document.in_files)
    return "\n\n".join(filter(None, (f"# {escape(document.title)}", answer, *blocks))) + "\n"


def _block(block: Block) -> str:
    """Empty for what is on a page alone."""
    found = ""
    match block:
        case Heading(text, level):
            found = f"{'#' * level} {escape(text)}"
        case Paragraph(text):
            found = _format_text(text)
        case Items(items):
            found = "\n".join(f"- {_format_text(item)}" for item in items)
        case Notes(lines):
            found = "\n\n".join(f"> {escape(line)}" for line in lines)
        case Code(text, language):
            found = fenced(text, language)
        case Picture(file, _, text):
            found = _format_text((TextLink(text, file),))
        case Folded(title, inside):
            parts = filter(None, map(_block, inside))
            # A block of HTML, in which nothing is Markdown.
            summary = f"{_FOLD}<summary>{one_line(title).translate(_HTML)}</summary>"
            found = "\n\n".join((summary, *parts, _UNFOLD))
        case Table():
            columns, rows = block.in_text.columns, block.in_text.rows
            cells = ([_format_cell(column, cell) for column, cell in zip(columns, row, strict=True)] for row in rows)
            right = frozenset(index for index, column in enumerate(columns) if column.right)
            found = table([escape(column.heading) for column in columns], cells, right)
    return found


def _format_text(text: Text) -> str:
    return "".join(_format_inline(part, first=index == 0) for index, part in enumerate(text))


def _format_inline(part: str | Name | TextLink, *, first: bool) -> str:
    if isinstance(part, Name):
        return code(part.text)
    if isinstance(part, TextLink):
        return f"[{escape(part.text)}]({quote(part.url, safe=':/?#=&+@%~')})"
    # Next to other parts, spaces at the ends count, and the beginning is not that of a line.
    before = "" if first else "!"
    text = part if len(part) <= _LONGEST else f"{part[: _LONGEST - 1]}…"
    return escape(f"{before}{text}!", 2 * _LONGEST)[len(before) : -1]


def _format_cell(column: Column, cell: Cell) -> str:
    text = column.written(cell)
    if column.kind is ColumnKind.NAME and cell is not None:
        return code(text)
    return f"**{escape(text)}**" if "bold" in STYLES.get(column.word(cell), "") else escape(text)


def escape(text: str, limit: int = 500) -> str:
    """Text as it stands, on one line, fit for a paragraph, a list item or a table cell."""
    escaped = _SPECIAL.sub(r"\\\g<0>", one_line(text, limit).translate(_HTML))
    return _AT_LINE_START.sub(r"\1\\\2", escaped)


def code(text: str, limit: int = 500) -> str:
    """Text as inline code; nothing for no text."""
    line = one_line(text, limit)
    if not line:
        return ""
    fence = "`" * (_compute_longest_run(line) + 1)
    padding = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{padding}{line}{padding}{fence}"


def fenced(text: str, language: str = "text") -> str:
    """Text as a code block, whatever backticks it holds."""
    body = clean(text).strip("\n")
    fence = "`" * max(3, _compute_longest_run(body) + 1)
    return f"{fence}{language}\n{body}\n{fence}"


def table(header: Sequence[str], rows: Iterable[Sequence[str]], right: frozenset[int] = frozenset()) -> str:
    """A table; cells are Markdown already (`escape`, `code`). Columns in `right` are aligned right."""
    rule = ["---:" if index in right else "---" for index in range(len(header))]
    safe = ([_BARE_PIPE.sub(r"\|", cell) for cell in cells] for cells in [header, rule, *rows])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in safe)


def shortened(text: str, limit: int, note: str) -> str:
    """A document of at most `limit` bytes of UTF-8 (a few hundred at least), cut between lines.

    No code block and nothing folded is left open. `note` is put at the end where something was cut off: Markdown that
    says so, and where the rest is.
    """
    if len(text.encode()) <= limit:
        return text
    # Room for the note and for closing a code block.
    room = limit - len(note.encode()) - 512
    kept: list[str] = []
    open_fence = ""
    folded = 0
    for line in text.split("\n"):
        room -= len(line.encode()) + 1
        if room < 0:
            break
        kept.append(line)
        fence = _format_fence(line)
        if open_fence and line.strip("`") == "" and len(fence) >= len(open_fence):
            open_fence = ""
        elif not open_fence:
            open_fence = fence
            folded += line.startswith(_FOLD) - (line == _UNFOLD)
    closing = [open_fence] if open_fence else []
    closing += ["", _UNFOLD] * folded
    return "\n".join([*kept, *closing, "", note, ""])


def _format_fence(line: str) -> str:
    """The backticks that open or close a code block; nothing for any other line."""
    found = _BACKTICKS.match(line)
    if not found or len(found.group()) < 3 or "`" in line[found.end() :]:
        return ""
    return found.group()


def _compute_longest_run(text: str) -> int:
    return max((len(run) for run in _BACKTICKS.findall(text)), default=0)
