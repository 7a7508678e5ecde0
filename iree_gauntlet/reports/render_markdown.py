"""A document as GitHub-flavoured Markdown."""

from __future__ import annotations

from urllib.parse import quote

from iree_gauntlet.document import (
    Block,
    Cell,
    Code,
    Column,
    Document,
    Heading,
    Items,
    Kind,
    Link,
    Name,
    Notes,
    Paragraph,
    Picture,
    Table,
    Text,
)
from iree_gauntlet.figures import STYLES
from iree_gauntlet.reports.markdown import code, escape, fenced, table

__all__ = ["markdown"]

_LONGEST = 1000


def markdown(document: Document) -> str:
    """The whole document; ends with a newline."""
    ended = (document.ending,) if document.ending else ()
    answer = " · ".join((f"**{escape(document.answer)}**", *map(escape, (*document.facts, *ended))))
    blocks = (_block(block) for block in document.in_files)
    return "\n\n".join(filter(None, (f"# {escape(document.title)}", answer, *blocks))) + "\n"


def _block(block: Block) -> str:
    """Empty for what is folded on a page."""
    found = ""
    match block:
        case Heading(text, level):
            found = f"{'#' * level} {escape(text)}"
        case Paragraph(text):
            found = _text(text)
        case Items(items):
            found = "\n".join(f"- {_text(item)}" for item in items)
        case Notes(lines):
            found = "\n\n".join(f"> {escape(line)}" for line in lines)
        case Code(text, language):
            found = fenced(text, language)
        case Picture(file, _, text, caption):
            found = _text((Link(caption or text, file),))
        case Table(columns, rows):
            cells = ([_cell(column, cell) for column, cell in zip(columns, row, strict=True)] for row in rows)
            right = frozenset(index for index, column in enumerate(columns) if column.right)
            found = table([escape(column.heading) for column in columns], cells, right)
    return found


def _text(text: Text) -> str:
    return "".join(_inline(part, first=index == 0) for index, part in enumerate(text))


def _inline(part: str | Name | Link, *, first: bool) -> str:
    if isinstance(part, Name):
        return code(part.text)
    if isinstance(part, Link):
        return f"[{escape(part.text)}]({quote(part.url, safe=':/?#=&+@%~')})"
    # Beside other parts, spaces at the ends count, and the beginning is not that of a line.
    before = "" if first else "!"
    text = part if len(part) <= _LONGEST else f"{part[: _LONGEST - 1]}…"
    return escape(f"{before}{text}!", 2 * _LONGEST)[len(before) : -1]


def _cell(column: Column, cell: Cell) -> str:
    text = column.written(cell)
    if column.kind is Kind.NAME and cell is not None:
        return code(text)
    return f"**{escape(text)}**" if "bold" in STYLES.get(column.word(cell), "") else escape(text)
