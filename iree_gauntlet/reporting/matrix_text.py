"""What is printed at the end of a matrix."""

from __future__ import annotations

from typing import TYPE_CHECKING, TextIO

from rich.text import Text

from iree_gauntlet.reporting.cleaning import clean, one_line
from iree_gauntlet.reporting.figures import STYLES, duration
from iree_gauntlet.reporting.matrix_changes import ChangeKind, changes, mean_ratios
from iree_gauntlet.reporting.matrix_marks import FIGURES
from iree_gauntlet.reporting.matrix_words import LEGEND, NOTE, TITLES, failures, figure_lines, mean_lines
from iree_gauntlet.reporting.outcome import BAD_VERDICTS, exit_meaning
from iree_gauntlet.reporting.printing import printing

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from iree_gauntlet.reporting.matrix import MatrixOutcome, MatrixRow
    from iree_gauntlet.reporting.matrix_changes import Change

__all__ = ["print_matrix"]

_WIDTH = 120
_GAP = "  "
_MOST_ROWS = 40
_MOST_CHANGES = 12


def print_matrix(
    matrix: MatrixOutcome, folder: Path, reports: Sequence[str], stream: TextIO, *, environ: Mapping[str, str]
) -> None:
    """Print the end of a matrix: what changed, a table of 120 columns at most, one line for each IREE.

    Args:
        matrix: what to print.
        folder: of the matrix, as the user knows it.
        reports: names of its reports.
        stream: where to; coloured where it is a terminal and `NO_COLOR` is not set.
        environ: the environment.
    """
    with printing(stream, environ) as console:
        for text, style in _printed(matrix, folder, reports):
            console.print(Text(clean(text).rstrip(), style=style), soft_wrap=True)


def _printed(matrix: MatrixOutcome, folder: Path, reports: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Lines and their styles."""
    yield "", ""
    several = len(matrix.ran) > 1
    if several:
        yield from _printed_changes(changes(matrix), folder)
    yield from _printed_failures(list(failures(matrix)), folder)
    yield from _printed_table(matrix, folder)
    if several and matrix.rows:
        for line in mean_lines(mean_ratios(matrix)):
            yield line, ""
        for line in NOTE:
            yield line.replace("`", ""), ""
        yield "", ""
    for remark in matrix.remarks:
        yield f"note: {one_line(remark)}", "yellow"
    width = max((len(iree.label) for iree in matrix.irees), default=0)
    for iree in matrix.irees:
        bad = iree.exit_code is None or int(iree.exit_code)
        yield f"{iree.label:<{width}}{_GAP}{one_line(iree.result_text)}", "bold red" if bad else "green"
        if iree.hint:
            yield f"{'':<{width}}{_GAP}{one_line(iree.hint)}", ""
    yield f"reports in {folder}: {', '.join(reports)}", ""
    yield f"time: {duration(matrix.seconds)}", ""
    code_number = int(matrix.exit_code)
    meaning = exit_meaning(matrix.exit_code)
    yield f"exit code {code_number}: {meaning}", "bold red" if code_number else "bold green"


def _printed_failures(found: list[tuple[str, str, str]], folder: Path) -> Iterator[tuple[str, str]]:
    if not found:
        return
    yield "What went wrong", "bold"
    for label, chain, text in found[:_MOST_CHANGES]:
        yield f"    {label}: {one_line(chain)}: {text}", ""
    if len(found) > _MOST_CHANGES:
        yield f"    and {len(found) - _MOST_CHANGES} more, in {folder / 'matrix.md'}", ""
    yield f"    output, logs and commands to reproduce: summary.md in the folders of the runs, {folder}/*", ""
    yield "", ""


def _printed_changes(found: list[Change], folder: Path) -> Iterator[tuple[str, str]]:
    yield "What changed between releases", "bold"
    if not found:
        yield "  nothing: verdicts, dispatch counts, sizes and times are the same within the margins", ""
    for kind in ChangeKind:
        own = [change for change in found if change.kind is kind]
        if own:
            yield f"  {TITLES[kind]}", "bold"
        for change in own[:_MOST_CHANGES]:
            yield f"    {one_line(change.chain)}: {one_line(change.text)}", ""
        if len(own) > _MOST_CHANGES:
            yield f"    and {len(own) - _MOST_CHANGES} more, in {folder / 'matrix.md'}", ""
    yield "", ""


def _printed_table(matrix: MatrixOutcome, folder: Path) -> Iterator[tuple[str, str]]:
    """A block for each chain, in which every IREE has a line."""
    if not matrix.rows:
        return
    rows = _shown(matrix)
    header = ("", "verdict", *FIGURES)
    blocks = [
        [(f"  {label}", verdict, *figures) for label, verdict, figures in figure_lines(row, matrix)] for row in rows
    ]
    lines = [header, *(line for block in blocks for line in block)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    columns = _fitting(widths)
    yield _aligned(header, widths, columns), "bold"
    for row, block in zip(rows, blocks, strict=True):
        yield one_line(row.chain), "bold"
        cells = [row.cells[iree.label] for iree in matrix.ran if iree.label in row.cells]
        for cell, line in zip(cells, block, strict=True):
            style = STYLES[cell.verdict] if cell.verdict in BAD_VERDICTS else ""
            yield _aligned(line, widths, columns), style
    more = len(matrix.rows) - len(rows)
    if more:
        yield f"and {more} more models, in {folder / 'matrix.md'}", ""
    if len(matrix.ran) > 1:
        for text in LEGEND:
            yield text.format(base=one_line(matrix.base)), "dim"
    yield "", ""


def _shown(matrix: MatrixOutcome) -> list[MatrixRow]:
    """The chains of the table, in plan order; where they are too many, those that do not work everywhere go first."""
    rows = list(matrix.rows)
    room = max(1, _MOST_ROWS * 4 // max(1, len(matrix.ran)))
    if len(rows) <= room:
        return rows
    sound = [all(cell.verdict not in BAD_VERDICTS for cell in row.cells.values()) for row in rows]
    kept = sorted(range(len(rows)), key=lambda index: (sound[index], index))[:room]
    return [rows[index] for index in sorted(kept)]


def _fitting(widths: list[int]) -> list[int]:
    """The columns that fit side by side; `matrix.md` has all."""
    columns = list(range(len(widths)))
    # Memory first, then the error, the size, the compile time: what can best be spared.
    for spared in (3, 7, 6, 2):
        if sum(widths[column] + len(_GAP) for column in columns) <= _WIDTH:
            break
        columns.remove(spared)
    return columns


def _aligned(cells: Sequence[str], widths: Sequence[int], columns: Sequence[int]) -> str:
    """Label and verdict to the left, figures to the right."""
    return _GAP.join(
        cells[column].ljust(widths[column]) if column < 2 else cells[column].rjust(widths[column]) for column in columns
    )
