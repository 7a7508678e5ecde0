"""The report of a sweep: the result of recipes for each entry of `model_params`, and their speed-ups at each shape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from iree_gauntlet.document import Block, Column, Document, Folded, Heading, Items, Kind, Picture, Table
from iree_gauntlet.figures import duration, error_figure, milliseconds
from iree_gauntlet.records.chain_figures import NOTHING
from iree_gauntlet.reports.sweeps.sweep_figures import (
    LEGEND,
    decibels,
    doubts,
    heading_facts,
    ratio_text,
    remarks,
    size_text,
    speedup_cell,
    summaries,
    time_text,
)
from iree_gauntlet.reports.sweeps.sweep_rows import Entry, Row, entries

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from iree_gauntlet.reports.sweeps.sweep_plots import Plot


_TITLE = "IREE Gauntlet: micro-benchmarks"
_BASELINE = "baseline, ms"
# What a terminal shows.
_MOST_ROWS, _MOST_DOUBTS = 60, 12


def _columns(names: Sequence[str], *figures: str) -> tuple[Column, ...]:
    return (*(Column(title, Kind.NAME) for title in names), *(Column(title, Kind.NUMBER) for title in figures))


_SUMMARY = _columns(
    ["recipe"],
    *("speed-up", "from … to", "faster", "slower", "neither", "missing", "SQNR", "weights"),
    *("eager/IREE", "compile/IREE"),
)
_FIGURES = (
    *_columns(
        ["m-k-n", "shape", "recipe", "status"],
        *("IREE, ms", "speed-up", "torch eager, ms", "torch eager / IREE"),
        *("torch.compile, ms", "torch.compile / IREE", "max error", "relative error", "SQNR", "module", "parameters"),
        *("peak memory", "device memory", "compile", "first call, ms", "of peak"),
    ),
    Column("the module shows"),
)


def sweep_document(
    rows: Sequence[Row], header: Mapping[str, Any] | None = None, plots: Sequence[Plot] = ()
) -> Document:
    """What people read of it.

    Args:
        rows: of all points.
        header: of the run; what it lacks is left out.
        plots: of `draw_plots`; none where matplotlib is missing.
    """
    blocks: list[Block] = []
    for entry in entries(rows):
        blocks += _entry(entry, [plot for plot in plots if plot.entry == entry.title])
    blocks += [Heading("How to read it", 3), Items(tuple((line,) for line in LEGEND))] if rows else []
    *facts, answer = heading_facts(header, rows)
    return Document(_TITLE, answer, tuple(facts), tuple(blocks), remarks=remarks(header, rows))


def speedup_table(entry: Entry) -> Table:
    """Shapes and recipes, the longer axis down; beside the shapes the baseline's time in ms."""
    shapes, recipes = entry.shapes, entry.recipes
    baselines = {shape: entry.baseline(shape) for shape in shapes}
    times = {shape: time_text(row.iree if row else None) for shape, row in baselines.items()}
    cells = {(recipe, shape): speedup_cell(entry.row(recipe, shape)) for recipe in recipes for shape in shapes}
    if len(shapes) < len(recipes):
        lines = [(recipe, *(cells[recipe, shape] for shape in shapes)) for recipe in recipes]
        rows = ((_BASELINE, *(times[shape] for shape in shapes)), *lines)
        return Table(_columns(["m-k-n"], *shapes), rows, _MOST_ROWS)
    rows = tuple((shape, times[shape], *(cells[recipe, shape] for recipe in recipes)) for shape in shapes)
    return Table(_columns(["m-k-n"], _BASELINE, *recipes), rows, _MOST_ROWS)


def _entry(entry: Entry, plots: Sequence[Plot]) -> Iterator[Block]:
    yield Heading(entry.title)
    yield _table(_SUMMARY, [summary.cells() for summary in summaries(entry)])
    for plot in plots:
        yield Picture(f"{plot.name}.svg", plot.svg, plot.title.removeprefix(f"{entry.title}: "))
    yield Heading("Speed-ups", 3)
    yield speedup_table(entry)
    if found := doubts(entry.rows):
        yield Heading("Notes", 3)
        yield Items(tuple((text,) for text in found), _MOST_DOUBTS)
    yield Folded(f"All figures ({len(entry.rows)})", (_table(_FIGURES, list(map(_figures, entry.rows))),))


def _table(columns: Sequence[Column], lines: Sequence[tuple[str, ...]]) -> Table:
    """A table without the columns in which nothing stands."""
    kept = [index for index in range(len(columns)) if any(line[index] not in ("", NOTHING) for line in lines)]
    return Table(tuple(columns[index] for index in kept), tuple(tuple(line[index] for index in kept) for line in lines))


def _figures(row: Row) -> tuple[str, ...]:
    """In the order of `_FIGURES`."""
    eager, compiled = row.torch_eager, row.torch_compile
    first = row.iree.first_call_ms if row.iree else None
    share = NOTHING if row.roofline_share is None else f"{100 * row.roofline_share:.0f} % {row.roofline_bound}"
    error = [NOTHING if value is None else error_figure(value) for value in (row.max_error, row.relative_error)]
    return (
        *(row.label, row.shape, row.recipe, row.status, time_text(row.iree), ratio_text(row.speedup)),
        *(time_text(eager), ratio_text(eager.beside_iree if eager else None)),
        *(time_text(compiled), ratio_text(compiled.beside_iree if compiled else None)),
        *(*error, decibels(row.sqnr_db), size_text(row.module_bytes), size_text(row.parameter_bytes)),
        *(size_text(row.peak_rss_bytes), size_text(row.device_peak_bytes)),
        NOTHING if row.compile_s is None else duration(row.compile_s),
        NOTHING if first is None else milliseconds(first),
        *(share, "; ".join(row.shows)),
    )
