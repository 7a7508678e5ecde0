"""Plots of the speed-ups as SVG and PNG, by matplotlib, which the toolkit does without where it is not installed.

The same rows give the same bytes with the same matplotlib: no dates, no random identifiers.
"""

from __future__ import annotations

import importlib.util
import io
import re
import warnings
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from iree_gauntlet.errors import UsageError
from iree_gauntlet.micro.plot_bars import speedup_bars
from iree_gauntlet.micro.plot_heat_maps import grid_map, is_grid, overview_map
from iree_gauntlet.micro.plot_style import STYLE
from iree_gauntlet.micro.report_rows import entries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from matplotlib.figure import Figure

    from iree_gauntlet.micro.report_rows import Entry, Row

__all__ = ["Plot", "check_matplotlib", "draw_plots", "picture"]

_PACKAGE = "matplotlib"
_DOTS_PER_INCH = 144
# Inches.
_MARGIN = 0.15
_LONGEST_NAME = 100
_UNFIT = re.compile(r"[^A-Za-z0-9._+-]+")


@dataclass(frozen=True, slots=True)
class Plot:
    """A picture of results.

    Attributes:
        name: for its files, without an ending; no two plots have the same.
        entry: title of the entry of `model_params` that it is of.
        title: what it shows, in one line.
        svg, png: the picture.
    """

    name: str
    entry: str
    title: str
    svg: bytes
    png: bytes


def check_matplotlib() -> None:
    """Makes sure that plots can be drawn, before a long run.

    Raises:
        UsageError: matplotlib is not installed.
    """
    if importlib.util.find_spec(_PACKAGE) is None:
        raise UsageError(
            "plots need matplotlib, which is not installed in this Python",
            "pip install 'iree-gauntlet[plots]', or leave the plots out",
        )


def draw_plots(rows: Sequence[Row]) -> tuple[Plot, ...]:
    """Heat maps and bars of all entries that have a recipe beside the baseline.

    Raises:
        UsageError: matplotlib is not installed.
    """
    check_matplotlib()
    found: dict[str, Plot] = {}
    for entry in entries(rows):
        if not any(row.speedup for row in entry.rows):
            continue
        for name, title, draw in _wanted(entry):
            stem = _free_name(_UNFIT.sub("-", name)[:_LONGEST_NAME].strip(".-"), found)
            svg, png = picture(draw)
            found[stem] = Plot(stem, entry.title, title, svg, png)
    return tuple(found.values())


def picture(draw: Callable[[], Figure]) -> tuple[bytes, bytes]:
    """A figure as SVG and as PNG.

    Args:
        draw: makes the figure; called under the style of all plots.
    """
    import matplotlib.style  # noqa: PLC0415 - optional

    with matplotlib.style.context(STYLE, after_reset=True), warnings.catch_warnings():
        # A name in a script that the font lacks: its letters are boxes in the PNG, and themselves in the SVG.
        warnings.filterwarnings("ignore", message=r"Glyph \d+ .* missing from", category=UserWarning)
        figure = draw()
        # Places are found once, and not by each `savefig`, which takes seconds for hundreds of shapes.
        figure.draw_without_rendering()
        figure.set_layout_engine(None)
        box = figure.get_tightbbox().padded(_MARGIN)
        svg, png = io.BytesIO(), io.BytesIO()
        figure.savefig(svg, format="svg", bbox_inches=box, metadata={"Date": None, "Creator": None})
        figure.savefig(png, format="png", bbox_inches=box, dpi=_DOTS_PER_INCH, metadata={"Software": None})
    return svg.getvalue(), png.getvalue()


def _wanted(entry: Entry) -> Iterator[tuple[str, str, Callable[[], Figure]]]:
    """Name, title and how to draw each plot of an entry."""
    if is_grid(entry):
        for recipe in entry.recipes:
            title = f"{entry.title}: speed-up of {recipe} over the sweep"
            yield f"heat-{entry.name}-{recipe}", title, partial(grid_map, entry, recipe)
    else:
        yield f"heat-{entry.name}", f"{entry.title}: speed-ups", partial(overview_map, entry)
    yield f"bars-{entry.name}", f"{entry.title}: speed-ups with intervals", partial(speedup_bars, entry)


def _free_name(name: str, taken: dict[str, Plot]) -> str:
    number, found = 2, name
    while found.lower() in {other.lower() for other in taken}:
        found, number = f"{name}-{number}", number + 1
    return found
