"""Print a document on a terminal or in a log: tables fit the width, and the result comes last."""

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
    Details,
    Difference,
    Document,
    Heading,
    Items,
    Notes,
    PageOnly,
    Paragraph,
    Picture,
    Table,
    Text,
    TextLink,
    format_cell,
    get_verdict,
)
from iree_gauntlet.formatting import STYLES, Column, ColumnKind, add_verdict_sign, clean_text, join_lines
from iree_gauntlet.messages import write_text
from iree_gauntlet.reports.output import is_live

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


# The first width is the default without a terminal; the second stands for no limit.
_PLAIN_WIDTH = 160
_UNLIMITED_WIDTH = 1000

# A column of text is at most this wide; longer cells are wrapped.
_MIN_TEXT_WIDTH = 30
_COLUMN_GAP = 2
_MAX_DIFF_LINES = 200
# The styles of a difference's lines, by their first character.
_DIFF_STYLES = {"+": "green", "-": "red", "@": "cyan"}


def print_document(
    document: Document, stream: TextIO, reports: str = "", *, environ: Mapping[str, str], width: int | None = None
) -> None:
    """Print a document without its details, in colour if the stream is a terminal and `NO_COLOR` is not set.

    `reports` names the report files, such as `runs/x: a.md, a.json`. The width in columns defaults to the terminal's
    width, to 160 without a terminal, and to no limit for a document without files.
    """
    if not (document.title and reports) and not stream.isatty():
        width = width or _UNLIMITED_WIDTH
    facts = "".join(f" · {fact}" for fact in document.facts)
    with _open_console(stream, environ, width) as console:
        if document.title:
            _write_line(console, f"\n{document.title}", "bold")
        previous: Block | None = None if document.title else Heading("")
        for block in chain.from_iterable(map(_select_terminal_blocks, document.blocks)):
            # Blank lines surround tables and precede headings, but never separate a heading from its block.
            if isinstance(previous, Table) or (
                isinstance(block, Heading | Table) and not isinstance(previous, Heading)
            ):
                _write_line(console, "")
            _print_block(console, block)
            previous = block
        if document.title:
            _write_line(console, "")
        _print_block(console, Notes(document.remarks))
        _write_line(console, f"{join_lines(document.answer, 400)}{facts}", "bold")
        if reports:
            _write_line(console, f"reports in {reports}")
        if document.ending:
            _write_line(console, document.ending, "bold red" if document.exit_code else "bold green")


def _select_terminal_blocks(block: Block) -> tuple[Block, ...]:
    """Return the parts of a block that a terminal shows."""
    if isinstance(block, Details):
        title = (Paragraph((f"{block.title}:",)),) if isinstance(block.blocks[0], Code) else ()
        return (*title, *block.blocks) if block.brief else ()
    return () if isinstance(block, PageOnly) else (block.text_form if isinstance(block, Table) else block,)


@contextmanager
def _open_console(stream: TextIO, environ: Mapping[str, str], width: int | None) -> Iterator[rich.console.Console]:
    """Yield a console; its text is written to the stream at the end, unless the block raises."""
    live = is_live(stream, environ)
    buffer = io.StringIO()
    yield rich.console.Console(
        file=buffer,
        force_terminal=live,
        no_color=not live or bool(environ.get("NO_COLOR")),
        color_system="standard" if live else None,
        width=width or (rich.console.Console(file=stream).width if stream.isatty() else _PLAIN_WIDTH),
        highlight=False,
        markup=False,
        emoji=False,
    )
    text = buffer.getvalue()
    write_text(stream, text if live else "".join(f"{line.rstrip()}\n" for line in text.splitlines()))


def _print_block(console: rich.console.Console, block: Block) -> None:
    for text, style in _list_lines(block):
        _write_line(console, text, style)
    if isinstance(block, Table):
        _print_table(console, block)
    if isinstance(block, Items | Table):
        count = len(block.items if isinstance(block, Items) else block.rows)
        if 0 < block.most < count:
            _write_line(console, f"  and {count - block.most} more, in the reports")


def _list_lines(block: Block) -> Iterator[tuple[str, str]]:
    """Yield the lines of a block other than a table, and their styles."""
    match block:
        case Heading(text):
            # The text before a colon may be a verdict.
            word = text.partition(":")[0]
            yield add_verdict_sign(text, word), STYLES.get(word, "bold")
        case Paragraph(text):
            yield _make_plain(text), ""
        case Items(items, most):
            yield from ((f"  {_make_plain(item)}", "") for item in items[: most or None])
        case Notes(lines):
            yield from ((f"note: {join_lines(line, 400)}", "yellow") for line in lines)
        case Code(text):
            yield from ((f"    {line}", "") for line in clean_text(text).splitlines())
        case Difference(unified=lines):
            shown = lines[:_MAX_DIFF_LINES]
            yield from ((f"    {clean_text(line)}", _DIFF_STYLES.get(line[:1], "")) for line in shown)
            yield from [(f"    and {len(lines) - len(shown)} more lines, in the reports", "")] if lines != shown else ()
        case Picture(file, _, text):
            yield f"{join_lines(text)}: {file}", ""


def _make_plain(text: Text) -> str:
    parts = (part if isinstance(part, str) else part.url if isinstance(part, TextLink) else part.text for part in text)
    return join_lines("".join(parts), 1000)


def _print_table(console: rich.console.Console, table: Table) -> None:
    """Print one table that fits, or several if no more columns may be hidden; only cells of text are wrapped."""
    columns, rows, width = table.columns, table.rows[: table.most or None], console.width + _COLUMN_GAP
    cells = [list(map(_format_cell, columns, row)) for row in rows]
    widths = []
    for index, column in enumerate(columns):
        # Each width includes the gap before the next column; longer text is wrapped between words.
        words = (len(word) for row in cells for word in row[index].split())
        limit = max(_MIN_TEXT_WIDTH, *words, 0) if column.kind is ColumnKind.TEXT else _UNLIMITED_WIDTH
        widths.append(_COLUMN_GAP + max(len(column.heading), *(min(len(row[index]), limit) for row in cells), 0))
    # Columns are hidden by their ranks until the others fit.
    visible = list(range(len(columns)))
    while sum(widths[index] for index in visible) > width:
        lowest = max(visible, key=lambda index: columns[index].drop_order)
        if columns[lowest].drop_order == 0:
            break
        visible.remove(lowest)
    too_wide = len(visible) > 2 and sum(widths[index] for index in visible) > width
    if too_wide and columns[visible[0]].kind is ColumnKind.VERDICT:
        # Each of several tables begins with the names, so a figure is never without its model.
        visible[:2] = visible[1::-1]
    leading = len(list(itertools.takewhile(lambda index: columns[index].kind is ColumnKind.NAME, visible)))
    for part in _split_parts(visible, max(leading, 1), widths, width):
        part_table = rich.table.Table(box=None, pad_edge=False, padding=(0, _COLUMN_GAP, 0, 0), header_style="bold")
        for index in part:
            column = columns[index]
            part_table.add_column(
                join_lines(column.heading),
                justify="right" if column.right else "left",
                overflow="fold",
                no_wrap=column.kind is not ColumnKind.TEXT,
                min_width=widths[index] - _COLUMN_GAP,
            )
        for row, texts in zip(rows, cells, strict=True):
            styles = {index: STYLES.get(get_verdict(columns[index], row[index]), "") for index in part}
            part_table.add_row(*(rich.text.Text(texts[index], style) for index, style in styles.items()))
        # Let the terminal itself wrap too wide rows, so that copied text stays complete.
        console.width = max(width, sum(widths[index] for index in part)) - _COLUMN_GAP
        console.print(part_table, crop=False)
        console.width = width - _COLUMN_GAP
    hidden_names = [column.heading for index, column in enumerate(columns) if index not in visible]
    if hidden_names:
        names = ", ".join(f"'{heading}'" for heading in hidden_names)
        # A pipe cannot be widened, so the hint then names the reports, which have the hidden columns.
        hint = "widen the terminal" if console.is_terminal else "the reports have them"
        _write_line(console, f"  no room for the columns {names}: {hint}", "dim")


def _format_cell(column: Column, cell: Cell) -> str:
    """Format a cell; a verdict follows its sign."""
    text = format_cell(column, cell)
    return add_verdict_sign(text, get_verdict(column, cell)) if column.kind is ColumnKind.VERDICT else text


def _split_parts(visible: Sequence[int], leading: int, widths: Sequence[int], width: int) -> Iterator[list[int]]:
    """Yield groups of columns: the leading ones, which name a row, and as many others as fit, at least one."""
    part = [*visible[:leading]]
    for index in visible[leading:]:
        if len(part) > leading and sum(widths[column] for column in part) + widths[index] > width:
            yield part
            part = [*visible[:leading]]
        part.append(index)
    yield part


def _write_line(console: rich.console.Console, text: str, style: str = "") -> None:
    console.print(rich.text.Text(clean_text(text), style=style), soft_wrap=True)
