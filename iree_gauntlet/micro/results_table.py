"""Results as text: a table of recipes and shapes for each entry of `model_params`, on the console and in Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TextIO

from rich.text import Text

from iree_gauntlet.cleaning import clean, one_line
from iree_gauntlet.micro.report_rows import entries
from iree_gauntlet.micro.results_figures import (
    LEGEND,
    SUMMARY_COLUMNS,
    doubts,
    heading_facts,
    remarks,
    speedup_text,
    summaries,
    time_text,
    without_empty,
)
from iree_gauntlet.reports.live.printing import printing
from iree_gauntlet.reports.markdown import escape, table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from iree_gauntlet.micro.report_rows import Entry, Row

__all__ = ["print_results", "results_markdown", "speedup_table"]

_WIDTH = 120
_GAP = "  "
_MOST_ROWS = 60
_MOST_DOUBTS = 12


def results_markdown(rows: Sequence[Row], header: Mapping[str, Any] | None = None) -> str:
    """All results as GitHub-flavoured Markdown; ends with a newline.

    Args:
        rows: of all points.
        header: of the run; what it lacks is left out.
    """
    parts = ["# IREE Gauntlet: micro-benchmarks", " · ".join(map(escape, heading_facts(header, rows)))]
    parts += [f"> {escape(remark)}" for remark in remarks(header, rows)]
    for entry in entries(rows):
        columns, cells = without_empty(SUMMARY_COLUMNS, [summary.cells() for summary in summaries(entry)])
        head, lines = speedup_table(entry)
        parts += [
            f"## {escape(entry.title)}",
            _markdown_table(columns, cells),
            "### Speed-ups",
            _markdown_table(head, lines),
        ]
        found = doubts(entry.rows)
        parts += ["\n".join(f"- {escape(text)}" for text in found)] if found else []
    if rows:
        parts.append("\n".join(f"- {escape(text)}" for text in LEGEND))
    return "\n\n".join(part for part in parts if part) + "\n"


def print_results(
    rows: Sequence[Row],
    header: Mapping[str, Any] | None,
    reports: str,
    stream: TextIO,
    *,
    environ: Mapping[str, str],
    width: int = _WIDTH,
) -> None:
    """Print the end of a run: for each entry what its recipes came to, and their speed-ups at each shape.

    Args:
        rows: of all points.
        header: of the run; what it lacks is left out.
        reports: where the rest is, for the user (`runs/…/results.md`).
        stream: where to; coloured where it is a terminal and `NO_COLOR` is not set.
        environ: the environment.
        width: columns; a table that is wider goes on below.
    """
    with printing(stream, environ) as console:
        for text, style in _printed(rows, reports, width):
            console.print(Text(clean(text).rstrip(), style=style), soft_wrap=True)
        for remark in remarks(header, rows):
            console.print(Text(f"note: {one_line(remark)}", style="yellow"), soft_wrap=True)


def speedup_table(entry: Entry) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Head and lines: shapes and recipes, the longer axis down; beside the shapes the baseline's time in ms."""
    shapes, recipes = entry.shapes, entry.recipes
    baseline = {shape: entry.baseline(shape) for shape in shapes}
    times = {shape: time_text(row.iree if row else None) for shape, row in baseline.items()}
    speedups = {(recipe, shape): speedup_text(entry.row(recipe, shape)) for recipe in recipes for shape in shapes}
    if len(shapes) < len(recipes):
        lines = [(recipe, *(speedups[recipe, shape] for shape in shapes)) for recipe in recipes]
        return ("m-k-n", *shapes), [("baseline, ms", *(times[shape] for shape in shapes)), *lines]
    head = ("m-k-n", "baseline, ms", *recipes)
    return head, [(shape, times[shape], *(speedups[recipe, shape] for recipe in recipes)) for shape in shapes]


def _markdown_table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    right = frozenset(range(1, len(head)))
    return table([escape(cell) for cell in head], [[escape(cell) for cell in line] for line in lines], right)


def _printed(rows: Sequence[Row], reports: str, width: int) -> Iterator[tuple[str, str]]:
    """Lines and their styles."""
    for entry in entries(rows):
        yield "", ""
        yield one_line(entry.title), "bold"
        columns, cells = without_empty(SUMMARY_COLUMNS, [summary.cells() for summary in summaries(entry)])
        yield from _aligned(columns, cells, width)
        head, lines = speedup_table(entry)
        yield "", ""
        yield from _aligned(head, lines[:_MOST_ROWS], width)
        if len(lines) > _MOST_ROWS:
            yield f"and {len(lines) - _MOST_ROWS} more, in {reports}", ""
        found = doubts(entry.rows)
        for text in found[:_MOST_DOUBTS]:
            yield f"note: {one_line(text)}", "yellow"
        if len(found) > _MOST_DOUBTS:
            yield f"and {len(found) - _MOST_DOUBTS} more notes, in {reports}", "yellow"
    if rows:
        yield "", ""
        for text in LEGEND:
            yield text, "dim"


def _aligned(head: Sequence[str], lines: Sequence[Sequence[str]], width: int) -> Iterator[tuple[str, str]]:
    """The first column to the left and again at the head of each part, the others to the right."""
    every = [[one_line(cell) for cell in line] for line in (head, *lines)]
    widths = [max(len(line[column]) for line in every) for column in range(len(head))]
    for columns in _parts(widths, width):
        for number, line in enumerate(every):
            cells = [line[column].rjust(widths[column]) for column in columns]
            yield _GAP.join([line[0].ljust(widths[0]), *cells]), "bold" if number == 0 else ""


def _parts(widths: Sequence[int], width: int) -> Iterator[list[int]]:
    """The columns after the first, as many together as fit beside it; at least one."""
    columns: list[int] = []
    used = widths[0]
    for column in range(1, len(widths)):
        needed = len(_GAP) + widths[column]
        if columns and used + needed > width:
            yield columns
            columns, used = [], widths[0]
        columns.append(column)
        used += needed
    yield columns
