"""Heat maps of speed-ups: all recipes over a list of shapes, or one recipe over a grid of k and n for each m."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from iree_gauntlet.document import INK
from iree_gauntlet.reports.sweeps.plot_style import (
    STATUS_MARKS,
    colour_of,
    figure_of,
    ink_on,
    scale_limit,
    scale_ticks,
    text_width,
    tick_text,
)
from iree_gauntlet.reports.sweeps.sweep_document import times

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from iree_gauntlet.reports.sweeps.sweep_rows import Entry, Row


_CELL_WIDTH, _CELL_HEIGHT = 0.52, 0.34
_SCALE_WIDTH = 2.2
# Columns that there is room for, so that the scale has it too.
_FEWEST = 5
# Shapes side by side before the map goes on below.
_ACROSS = 20
_PANELS_ACROSS = 3
_POINTS = 7.5
_MARKS = {"inconclusive": "?", "same": "="}


@dataclass(frozen=True, slots=True)
class _Cell:
    """A place of a map.

    Attributes:
        text: what is written in it.
        ratio: what gives its colour; None for none.
        mark: a sign that needs explaining; empty for none.
    """

    text: str
    ratio: float | None = None
    mark: str = ""


def is_grid(entry: Entry) -> bool:
    """Whether the shapes of an entry are a sweep of k and n, which needs a map of its own for each m."""
    shapes = {(row.m, row.k, row.n) for row in entry.rows}
    panels = {m for m, _, _ in shapes}
    places = sum(
        len({k for own, k, _ in shapes if own == m}) * len({n for own, _, n in shapes if own == m}) for m in panels
    )
    varied = min(len({k for _, k, _ in shapes}), len({n for _, _, n in shapes})) > 1
    return varied and len(shapes) >= 2 * len(panels) and 2 * len(shapes) >= places


def overview_map(entry: Entry) -> Figure:
    """All recipes of an entry over its shapes; recipes downwards, as many bands as the shapes need."""
    recipes, limit = entry.recipes, _limit(entry)
    bands = [entry.shapes[start : start + _ACROSS] for start in range(0, len(entry.shapes), _ACROSS)]
    cells = {(recipe, shape): _cell(entry.row(recipe, shape)) for recipe in recipes for shape in entry.shapes}
    # Labels are slanted.
    labels = text_width(entry.shapes)
    columns = max(len(bands[0]), _FEWEST)
    width = text_width(recipes) + 0.6 * labels + columns * _CELL_WIDTH
    height = 1.2 + len(bands) * (len(recipes) * _CELL_HEIGHT + 0.7 * labels)
    figure = figure_of(f"{entry.title}: speed-up", width, height, (cell.mark for cell in cells.values()))
    for axes, shapes in zip(figure.subplots(len(bands), squeeze=False)[:, 0], bands, strict=True):
        _frame(axes, shapes, recipes)
        axes.set_xlim(0, columns)
        axes.set_xticklabels(shapes, rotation=40, ha="right", rotation_mode="anchor")
        for column, shape in enumerate(shapes):
            for row, recipe in enumerate(recipes):
                _draw(axes, column, row, cells[recipe, shape], limit)
    _scale(figure, limit, columns)
    return figure


def grid_map(entry: Entry, recipe: str) -> Figure:
    """One recipe over a sweep: for each m a map with n to the right and k upwards."""
    cells = [(row, _cell(row)) for row in entry.of_recipe(recipe)]
    limit = _limit(entry)
    sizes_k = sorted({row.k for row in entry.rows}, reverse=True)
    sizes_n = sorted({row.n for row in entry.rows})
    panels = sorted({row.m for row in entry.rows})
    across = min(_PANELS_ACROSS, len(panels))
    down = -(-len(panels) // across)
    labels_k, labels_n = [str(size) for size in sizes_k], [str(size) for size in sizes_n]
    width = across * (len(sizes_n) * _CELL_WIDTH + text_width(labels_k) + 0.4)
    height = 1.2 + down * (len(sizes_k) * _CELL_HEIGHT + 0.7)
    title = f"{entry.title}: speed-up of {recipe}"
    figure = figure_of(title, width, height, (cell.mark for _, cell in cells))
    every = figure.subplots(down, across, squeeze=False).flat
    for axes, m in zip(every, panels, strict=False):
        _frame(axes, labels_n, labels_k)
        axes.set_title(f"m = {m}", pad=3)
        axes.set_xlabel("n", labelpad=1)
        axes.set_ylabel("k", labelpad=1)
        for row, cell in cells:
            if row.m == m:
                _draw(axes, sizes_n.index(row.n), sizes_k.index(row.k), cell, limit)
    for axes in every[len(panels) :]:
        axes.set_axis_off()
    _scale(figure, limit, across * len(sizes_n))
    return figure


def _limit(entry: Entry) -> float:
    """Of all recipes together, so that their maps can be compared."""
    return scale_limit(row.speedup.ratio for row in entry.rows if row.speedup)


def _cell(row: Row | None) -> _Cell:
    if row is None:
        return _Cell("")
    if row.speedup is None:
        mark = STATUS_MARKS.get(row.status, "")
        return _Cell(mark, mark=mark)
    mark = _MARKS.get(row.speedup.word, "")
    return _Cell(times(row.speedup.ratio) + mark, row.speedup.ratio, mark)


def _draw(axes: Axes, column: int, row: int, cell: _Cell, limit: float) -> None:
    from matplotlib.patches import Rectangle  # noqa: PLC0415 - matplotlib is optional

    if not cell.text:
        return
    plain = cell.ratio is None
    colour = "none" if cell.ratio is None else colour_of(cell.ratio, limit)
    ink = INK if cell.ratio is None else ink_on(colour_of(cell.ratio, limit))
    edge = "#8c8c8c" if plain else "none"
    axes.add_patch(Rectangle((column + 0.02, row + 0.03), 0.96, 0.94, facecolor=colour, edgecolor=edge, linewidth=0.5))
    text = axes.text(column + 0.5, row + 0.5, cell.text, ha="center", va="center", fontsize=_POINTS, color=ink)
    text.set_in_layout(False)


def _frame(axes: Axes, columns: Sequence[str], rows: Sequence[str]) -> None:
    """Labels at the middle of each cell; the first row is the uppermost."""
    axes.set_xlim(0, len(columns))
    axes.set_ylim(len(rows), 0)
    axes.set_xticks([index + 0.5 for index in range(len(columns))], columns)
    axes.set_yticks([index + 0.5 for index in range(len(rows))], rows)
    axes.tick_params(length=0, pad=2)
    for side in axes.spines.values():
        side.set_visible(False)


def _scale(figure: Figure, limit: float, columns: int) -> None:
    """The colours, below the maps."""
    from matplotlib.cm import ScalarMappable  # noqa: PLC0415 - matplotlib is optional
    from matplotlib.colors import ListedColormap, Normalize  # noqa: PLC0415

    colours = ListedColormap([colour_of(2.0 ** (limit * step / 20), limit) for step in range(-20, 21)])
    ticks = scale_ticks(limit)
    bar = figure.colorbar(
        ScalarMappable(Normalize(-limit, limit), colours),
        ax=figure.axes,
        location="bottom",
        shrink=min(1.0, _SCALE_WIDTH / columns / _CELL_WIDTH),
        aspect=18,
        anchor=(0, 0),
        ticks=[math.log2(tick) for tick in ticks],
    )
    bar.set_ticklabels([tick_text(tick) for tick in ticks])
    bar.ax.tick_params(length=2, pad=1)
