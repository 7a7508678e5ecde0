"""A document on a terminal or in a log: tables as wide as there is room, the answer last."""

from __future__ import annotations

import io
import itertools
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, TextIO

import rich.console
import rich.table
import rich.text

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
    Notes,
    OnPage,
    Paragraph,
    Picture,
    Table,
    Text,
    TextLink,
)
from iree_gauntlet.formatting import STYLES, clean, one_line, signed
from iree_gauntlet.messages import write_text
from iree_gauntlet.reports.output import is_live

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


# Where there is no terminal, and for any row.
_PLAIN_WIDTH = 160
_PLENTY = 1000

# What a column of text needs: longer cells are folded.
_LEAST_TEXT = 30
_GAP = 2


def print_document(
    document: Document, stream: TextIO, reports: str = "", *, environ: Mapping[str, str], width: int | None = None
) -> None:
    """Print a document without its details, coloured where the stream is a terminal and `NO_COLOR` is not set.

    `reports` says where it is in files, such as `runs/x: a.md, a.json`. The width in columns is by itself the
    terminal's, or where there is none 160, and as many as it takes for what is in no file.
    """
    if not (document.title and reports) and not stream.isatty():
        width = width or _PLENTY
    facts = "".join(f" · {fact}" for fact in document.facts)
    with _open_console(stream, environ, width) as console:
        if document.title:
            _write_line(console, f"\n{document.title}", "bold")
        before: Block | None = None if document.title else Heading("")
        for block in chain.from_iterable(map(_open_folded, document.blocks)):
            # Tables and what has a heading stand apart, a heading not from what it is of.
            if isinstance(before, Table) or (isinstance(block, Heading | Table) and not isinstance(before, Heading)):
                _write_line(console, "")
            _print(console, block)
            before = block
        if document.title:
            _write_line(console, "")
        _print(console, Notes(document.remarks))
        _write_line(console, f"{one_line(document.answer, 400)}{facts}", "bold")
        if reports:
            _write_line(console, f"reports in {reports}")
        if document.ending:
            _write_line(console, document.ending, "bold red" if document.exit_code else "bold green")


def _open_folded(block: Block) -> tuple[Block, ...]:
    """What a terminal shows of a block."""
    if isinstance(block, Folded):
        return block.blocks if block.brief else ()
    return () if isinstance(block, OnPage) else (block.in_text if isinstance(block, Table) else block,)


@contextmanager
def _open_console(stream: TextIO, environ: Mapping[str, str], width: int | None) -> Iterator[rich.console.Console]:
    """A console whose text goes to a stream when the block is left; nothing of it where the block raises."""
    live = is_live(stream, environ)
    buffer = io.StringIO()
    yield rich.console.Console(
        file=buffer,
        force_terminal=live,
        no_color=not live or bool(environ.get("NO_COLOR")),
        color_system="standard" if live else None,
        width=width or (rich.console.Console(file=stream).width if live else _PLAIN_WIDTH),
        highlight=False,
        markup=False,
        emoji=False,
    )
    text = buffer.getvalue()
    write_text(stream, text if live else "".join(f"{line.rstrip()}\n" for line in text.splitlines()))


def _print(console: rich.console.Console, block: Block) -> None:
    for text, style in _list_lines(block):
        _write_line(console, text, style)
    if isinstance(block, Table):
        _print_table(console, block)
    if isinstance(block, Items | Table):
        count = len(block.items if isinstance(block, Items) else block.rows)
        if 0 < block.most < count:
            _write_line(console, f"  and {count - block.most} more, in the reports")


def _list_lines(block: Block) -> Iterator[tuple[str, str]]:
    """Lines of what is no table, and their styles."""
    match block:
        case Heading(text):
            # What stands before a colon may be a verdict.
            word = text.partition(":")[0]
            yield signed(text, word), STYLES.get(word, "bold")
        case Paragraph(text):
            yield _make_plain(text), ""
        case Items(items, most):
            for item in items[: most or None]:
                yield f"  {_make_plain(item)}", ""
        case Notes(lines):
            for line in lines:
                yield f"note: {one_line(line, 400)}", "yellow"
        case Code(text):
            for line in clean(text).splitlines():
                yield f"    {line}", ""
        case Picture(file, _, text):
            yield f"{one_line(text)}: {file}", ""


def _make_plain(text: Text) -> str:
    parts = (part if isinstance(part, str) else part.url if isinstance(part, TextLink) else part.text for part in text)
    return one_line("".join(parts), 1000)


def _print_table(console: rich.console.Console, table: Table) -> None:
    """As one that fits; as several where no more of its columns may go. Nothing but text is broken."""
    columns, rows, width = table.columns, table.rows[: table.most or None], console.width + _GAP
    cells = [list(map(_format_cell, columns, row)) for row in rows]
    # Each column with the gap before the next one; text that is longer is folded.
    most = [_LEAST_TEXT if column.kind is ColumnKind.TEXT else _PLENTY for column in columns]
    needed = [
        _GAP + max(len(column.heading), *(min(len(row[index]), most[index]) for row in cells), 0)
        for index, column in enumerate(columns)
    ]
    # Those for which there is room, by their ranks.
    shown = list(range(len(columns)))
    while sum(needed[index] for index in shown) > width:
        least = max(shown, key=lambda index: columns[index].rank)
        if columns[least].rank == 0:
            break
        shown.remove(least)
    leading = len(list(itertools.takewhile(lambda index: columns[index].kind is ColumnKind.NAME, shown)))
    for part in _split_parts(shown, max(leading, 1), needed, width):
        found = rich.table.Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
        for index in part:
            column = columns[index]
            found.add_column(
                one_line(column.heading),
                justify="right" if column.right else "left",
                overflow="fold",
                no_wrap=column.kind is not ColumnKind.TEXT,
            )
        for row, written in zip(rows, cells, strict=True):
            styles = {index: STYLES.get(columns[index].word(row[index]), "") for index in part}
            found.add_row(*(rich.text.Text(written[index], style) for index, style in styles.items()))
        # What is wider than the terminal is broken by that alone: what is copied is whole.
        console.width = max(width, sum(needed[index] for index in part)) - _GAP
        console.print(found, crop=False)
        console.width = width - _GAP
    hidden = [column.heading for index, column in enumerate(columns) if index not in shown]
    if hidden:
        names = ", ".join(f"'{heading}'" for heading in hidden)
        # Nobody can widen a pipe, where only what the reports have is left out.
        how = "widen the terminal" if console.is_terminal else "the reports have them"
        _write_line(console, f"  no room for the columns {names}: {how}", "dim")


def _format_cell(column: Column, cell: Cell) -> str:
    """A verdict stands behind its sign."""
    text = column.written(cell)
    return signed(text, column.word(cell)) if column.kind is ColumnKind.VERDICT else text


def _split_parts(shown: Sequence[int], leading: int, needed: Sequence[int], width: int) -> Iterator[list[int]]:
    """The columns that say what a row is about, with as many of the others as there is room for; at least one."""
    part = [*shown[:leading]]
    for index in shown[leading:]:
        if len(part) > leading and sum(needed[other] for other in part) + needed[index] > width:
            yield part
            part = [*shown[:leading]]
        part.append(index)
    yield part


def _write_line(console: rich.console.Console, text: str, style: str = "") -> None:
    console.print(rich.text.Text(clean(text), style=style), soft_wrap=True)
