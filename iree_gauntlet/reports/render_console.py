"""A document on a terminal or in a log: tables as wide as there is room, the answer last."""

from __future__ import annotations

from typing import TYPE_CHECKING, TextIO

import rich.console
import rich.table
import rich.text

from iree_gauntlet.cleaning import clean, one_line
from iree_gauntlet.figures import STYLES
from iree_gauntlet.reports.document import Code, Document, Heading, Items, Kind, Link, Notes, Paragraph, Table
from iree_gauntlet.reports.live.printing import printing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from iree_gauntlet.reports.document import Block, Column, Text

__all__ = ["print_document", "rich_table"]

# What a column of text needs: longer cells are folded.
_LEAST_TEXT = 30
_GAP = 2


def print_document(
    document: Document, stream: TextIO, reports: str = "", *, environ: Mapping[str, str], width: int | None = None
) -> None:
    """Print a document.

    Args:
        document: what to print; its details are left out.
        stream: where to; coloured where it is a terminal and `NO_COLOR` is not set.
        reports: where it is in files, such as `runs/x: a.md, a.json`; empty for nowhere.
        environ: the environment.
        width: columns; None for the terminal's own, or 160 where there is none.
    """
    facts = f" ({'; '.join(document.facts)})" if document.facts else ""
    with printing(stream, environ, width=width) as console:
        _line(console, "")
        _line(console, document.title, "bold")
        before: Block | None = None
        for block in document.blocks:
            # Tables and what has a heading stand apart, a heading not from what it is of.
            if isinstance(before, Table) or (isinstance(block, Heading | Table) and not isinstance(before, Heading)):
                _line(console, "")
            _print(console, block)
            before = block
        _line(console, "")
        _print(console, Notes(document.remarks))
        _line(console, f"{one_line(document.answer, 400)}{facts}", "bold")
        if reports:
            _line(console, f"reports in {reports}")
        if document.ending:
            _line(console, document.ending, "bold red" if document.exit_code else "bold green")


def _print(console: rich.console.Console, block: Block) -> None:
    match block:
        case Heading(text):
            # What stands before a colon may be a verdict.
            _line(console, text, STYLES.get(text.partition(":")[0], "bold"))
        case Paragraph(text):
            _line(console, _plain(text))
        case Items(items, most):
            for item in items[: most or None]:
                _line(console, f"  {_plain(item)}")
            _rest(console, len(items), most)
        case Notes(lines):
            for line in lines:
                _line(console, f"note: {one_line(line, 400)}", "yellow")
        case Code(text):
            for line in clean(text).splitlines():
                _line(console, f"    {line}")
        case Table():
            console.print(rich_table(block, console.width))
            _rest(console, len(block.rows), block.most)


def _rest(console: rich.console.Console, count: int, most: int) -> None:
    if 0 < most < count:
        _line(console, f"  and {count - most} more, in the reports")


def _plain(text: Text) -> str:
    parts = (part if isinstance(part, str) else part.url if isinstance(part, Link) else part.text for part in text)
    return one_line("".join(parts), 1000)


def rich_table(table: Table, width: int) -> rich.table.Table:
    """A table for a console of so many columns."""
    rows = table.rows[: table.most or None]
    cells = [[column.written(cell) for column, cell in zip(table.columns, row, strict=True)] for row in rows]
    needed = [
        _GAP + max(len(column.heading), *(min(len(row[index]), _most(column)) for row in cells), 0)
        for index, column in enumerate(table.columns)
    ]
    shown = _fitting(table.columns, needed, width + _GAP)
    fits = sum(needed[index] for index in shown) <= width + _GAP
    found = rich.table.Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for index in shown:
        column = table.columns[index]
        found.add_column(
            one_line(column.heading),
            justify="right" if column.right else "left",
            overflow="fold",
            no_wrap=fits and column.kind is not Kind.TEXT,
        )
    for row in cells:
        found.add_row(*(rich.text.Text(row[index], table.columns[index].style(row[index])) for index in shown))
    return found


def _fitting(columns: tuple[Column, ...], needed: list[int], width: int) -> list[int]:
    """The columns for which there is room, by their ranks."""
    shown = list(range(len(columns)))
    while sum(needed[index] for index in shown) > width:
        least = max(shown, key=lambda index: columns[index].rank)
        if columns[least].rank == 0:
            break
        shown.remove(least)
    return shown


def _most(column: Column) -> int:
    return _LEAST_TEXT if column.kind is Kind.TEXT else 1000


def _line(console: rich.console.Console, text: str, style: str = "") -> None:
    console.print(rich.text.Text(clean(text), style=style), soft_wrap=True)
