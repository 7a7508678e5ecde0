"""Plots of a sweep as SVG and PNG: speed-ups, and memory over time. Without matplotlib there are none.

The same figures give the same bytes with the same matplotlib: no dates, no random identifiers.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from iree_gauntlet.document import INK, PAPER
from iree_gauntlet.torch_models.reports.sweep_rows import Plot, Row, SweepEntry, find_mean_ratio, group_entries, times

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from iree_gauntlet.measuring.profiles.memory_profile import MemoryProfile


# Of Okabe and Ito, "Color Universal Design" (2008): blue and vermilion stay apart in every kind of colour blindness.
_BLUE = (0x00 / 255, 0x72 / 255, 0xB2 / 255)
_VERMILION = (0xD5 / 255, 0x5E / 255, 0x00 / 255)
_MIDDLE = (0.96, 0.96, 0.95)
WORD_COLOURS = {"faster": "#0072b2", "slower": "#d55e00", "same": "#8c8c8c", "inconclusive": PAPER}

# In the place of a speed-up.
STATUS_MARKS = {"same module": "≡", "failed": "×", "error": "×", "skipped": "·"}
_MEANINGS = {
    "=": "= the same within the margins",
    "?": "? inconclusive",
    "≡": "≡ compiled to the baseline's module",
    "×": "× failed",
    "·": "· skipped",
}

_LABEL_POINTS = 7.5
STYLE: dict[str, Any] = {
    # The same picture has the same bytes.
    "svg.hashsalt": "iree-gauntlet",
    # Text stays text: it can be searched, read aloud, and follows a page's colours.
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 8.0,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.6,
    "axes.facecolor": "none",
    "axes.titlesize": 8.5,
    "figure.facecolor": PAPER,
    "figure.titlesize": 9.0,
    "figure.labelsize": _LABEL_POINTS,
    "savefig.facecolor": PAPER,
    "hatch.linewidth": 0.5,
    "legend.fontsize": 8.0,
    "text.color": INK,
    # Names are names, also those with a dollar sign.
    "text.parse_math": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": _LABEL_POINTS,
    "ytick.labelsize": _LABEL_POINTS,
}

# Octaves: below, differences are shown as small as they are; above, one outlier does not wash out the rest.
_LEAST, _MOST = math.log2(1.25), 3.0
# Ratios that are written at a scale, by the octaves that it spans on each side.
_TICKS = (
    (0.33, (0.8, 0.9, 1.0, 1.1, 1.25)),
    (0.6, (0.67, 0.8, 1.0, 1.25, 1.5)),
    (1.0, (0.5, 0.67, 1.0, 1.5, 2.0)),
    (2.0, (0.25, 0.5, 1.0, 2.0, 4.0)),
)
_CELL_WIDTH, _CELL_HEIGHT = 0.52, 0.34
_SCALE_WIDTH = 2.2
# Columns that there is room for, so that the scale has it too.
_FEWEST = 5
# Shapes side by side before the map goes on below.
_ACROSS = 20
_PANELS_ACROSS = 3
_CELL_POINTS = 7.5
_MARKS = {"inconclusive": "?", "same": "="}
_DOTS_PER_INCH = 144
# Inches.
_MARGIN = 0.15
_LONGEST_NAME = 100
_UNFIT = re.compile(r"[^A-Za-z0-9._+-]+")
_PANEL = 1.5
_POINTS = 7.0
# A bar's place in inches: as wide as all shapes let it be, and wide enough for its label.
_WIDEST, _NARROWEST, _ALL = 0.45, 0.13, 14.0
_MOST_LABELS = 200
# Octaves that a panel shows at least, and at most: an interval may reach further than any colours do.
_LEAST_OCTAVES, _MOST_OCTAVES = 0.2, 5.0
_UNDECIDED = ("same", "inconclusive")
# Of plots of memory.
_MEMORY_WIDTH, _MEMORY_HEIGHT = 7.6, 3.9
_ROW_POINTS = 9
_MB = 1e6
# Of Okabe and Ito, as in the other plots.
_RESIDENT, _MAPPED, _DEVICE, _BORDER = "#0072b2", "#8c8c8c", "#d55e00", "#bdbdbd"


def draw_plots(rows: Sequence[Row]) -> tuple[Plot, ...]:
    """Heat maps and bars of all entries that have a recipe besides the baseline."""
    found: dict[str, Plot] = {}
    for entry in group_entries(rows):
        if not any(row.speedup for row in entry.rows):
            continue
        for name, title, draw in _choose_plots(entry):
            short = stem = _UNFIT.sub("-", name)[:_LONGEST_NAME].strip(".-")
            number = 2
            while stem.lower() in map(str.lower, found):
                stem, number = f"{short}-{number}", number + 1
            svg, png = _draw_picture(draw)
            found[stem] = Plot(stem, entry.title, title, svg, png)
    return tuple(found.values())


def _draw_picture(draw: Callable[[], Figure]) -> tuple[bytes, bytes]:
    """A figure as SVG and as PNG."""
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


def _choose_plots(entry: SweepEntry) -> Iterator[tuple[str, str, Callable[[], Figure]]]:
    """Name, title and how to draw each plot of an entry."""
    if is_grid(entry):
        for recipe in entry.recipes:
            title = f"{entry.title}: speed-up of {recipe} over the sweep"
            yield f"heat-{entry.name}-{recipe}", title, partial(draw_grid_map, entry, recipe)
    else:
        yield f"heat-{entry.name}", f"{entry.title}: speed-ups", partial(draw_overview_map, entry)
    yield f"bars-{entry.name}", f"{entry.title}: speed-ups with intervals", partial(draw_speedup_bars, entry)


def draw_speedup_bars(entry: SweepEntry) -> Figure:
    """Speed-ups of all recipes of an entry over its shapes, from 1.0 up or down on a logarithmic axis."""
    from matplotlib.patches import Patch  # noqa: PLC0415 - matplotlib is optional

    shapes, recipes = entry.shapes, entry.recipes
    place = min(_WIDEST, max(_NARROWEST, _ALL / len(shapes)))
    inner = max(place * len(shapes), 4.0)
    marks = [STATUS_MARKS.get(row.variant.status, "") for row in entry.rows if row.speedup is None]
    height = 0.8 + len(recipes) * _PANEL + _estimate_width(shapes)
    figure = _make_figure(f"{entry.title}: speed-up, with 95 % intervals", inner + 0.5, height, marks)
    # Octaves below and above 1.0 that show all values and their intervals, with some room.
    known = [row.speedup for row in entry.rows if row.speedup]
    values = [value for ratio in known for value in (ratio.ratio, ratio.low, ratio.high) if value is not None]
    octaves = [_convert_to_octaves(value) for value in values]
    low, high = min([*octaves, -_LEAST_OCTAVES]), max([*octaves, _LEAST_OCTAVES])
    room = 0.06 * (high - low)
    ends = low - room, high + room
    panels = figure.subplots(len(recipes), squeeze=False)[:, 0]
    words: set[str] = set()
    for axes, recipe in zip(panels, recipes, strict=True):
        words |= _draw_panel(axes, entry, recipe, ends, 0.72 * min(1.0, _WIDEST * len(shapes) / inner))
    every = -(-len(shapes) // _MOST_LABELS)
    panels[-1].set_xticks(range(0, len(shapes), every), shapes[::every], rotation=90)
    panels[-1].tick_params(axis="x", length=2, pad=2, labelsize=_POINTS)
    # What the colours of bars mean, above the first panel.
    shown = [
        Patch(facecolor=colour, label=word, **_choose_outline(word))
        for word, colour in WORD_COLOURS.items()
        if word in words
    ]
    panels[0].legend(
        handles=shown, loc="lower left", bbox_to_anchor=(0, 1.2), ncols=4, frameon=False, borderpad=0, borderaxespad=0
    )
    return figure


def _draw_panel(axes: Axes, entry: SweepEntry, recipe: str, ends: tuple[float, float], wide: float) -> set[str]:
    """One recipe; gives the words that its bars stand for."""
    found = [(index, entry.row(recipe, shape)) for index, shape in enumerate(entry.shapes)]
    ratios = [(index, row.speedup) for index, row in found if row and row.speedup]
    for word, colour in WORD_COLOURS.items():
        own = [(index, _convert_to_octaves(ratio.ratio, ends)) for index, ratio in ratios if ratio.word == word]
        where, values = [index for index, _ in own], [value for _, value in own]
        axes.bar(where, values, width=wide, color=colour, **_choose_outline(word))
        if word in _UNDECIDED:
            # Such a bar may have no height.
            axes.scatter(where, values, s=11, color=colour, edgecolor=INK, linewidth=0.5, zorder=4)
    known = [
        (index, ratio.low, ratio.high) for index, ratio in ratios if ratio.low is not None and ratio.high is not None
    ]
    where, lows, highs = (
        [index for index, _, _ in known],
        [_convert_to_octaves(low, ends) for _, low, _ in known],
        [_convert_to_octaves(high, ends) for _, _, high in known],
    )
    # Dark on light bars, with a light rim that keeps it apart from dark ones.
    axes.vlines(where, lows, highs, color=PAPER, linewidth=2.2, zorder=3)
    axes.vlines(where, lows, highs, color=INK, linewidth=0.9, zorder=3)
    for index, row in found:
        if row is not None and row.speedup is None:
            axes.text(
                index, 0.04, STATUS_MARKS.get(row.variant.status, ""), ha="center", va="bottom", fontsize=8, color=INK
            )
    ticks = [tick for tick in scale_ticks(max(-ends[0], ends[1])) if ends[0] <= math.log2(tick) <= ends[1]]
    axes.set_yticks([math.log2(tick) for tick in ticks], map(format_tick, ticks))
    axes.set_ylim(*ends)
    axes.set_xlim(-0.6, len(entry.shapes) - 0.4)
    axes.set_xticks([])
    axes.grid(visible=True, axis="y", color="#8c8c8c", alpha=0.35, linewidth=0.5)
    axes.set_axisbelow(True)
    axes.axhline(0, color=INK, linewidth=0.8)
    for side in ("top", "right", "bottom"):
        axes.spines[side].set_visible(False)
    mean = find_mean_ratio([ratio.ratio for _, ratio in ratios])
    axes.set_title(recipe if mean is None else f"{recipe}: {times(mean)}× in the geometric mean", loc="left", pad=4)
    return {ratio.word for _, ratio in ratios}


def _choose_outline(word: str) -> dict[str, Any]:
    """Of a bar: hatched where it says nothing."""
    hatched = word == "inconclusive"
    return {"edgecolor": INK if hatched else "none", "hatch": "////" if hatched else None, "linewidth": 0.4}


def _convert_to_octaves(ratio: float, ends: tuple[float, float] = (-_MOST_OCTAVES, _MOST_OCTAVES)) -> float:
    """Logarithm of a ratio, at most as far as the ends of an axis."""
    if math.isnan(ratio) or ratio <= 0:
        return ends[0]
    return ends[1] if ratio == math.inf else max(ends[0], min(ends[1], math.log2(ratio)))


def draw_memory_plot(profile: MemoryProfile, title: str) -> tuple[bytes, bytes]:
    """The resident set over time, what of it is mapped from files, the device's own, and the phases; SVG and PNG."""
    return _draw_picture(partial(_draw_memory_figure, profile, title))


def _draw_memory_figure(profile: MemoryProfile, title: str) -> Figure:
    figure = _make_figure(title, _MEMORY_WIDTH, _MEMORY_HEIGHT)
    axes = figure.subplots()
    times = [sample.ms for sample in profile.series]
    axes.plot(times, [sample.resident_bytes / _MB for sample in profile.series], color=_RESIDENT, label="resident")
    mapped = [sample.mapped_bytes / _MB for sample in profile.series]
    axes.plot(times, mapped, color=_MAPPED, linestyle="--", label="of these, mapped from files")
    given = [(sample.ms, sample.device_bytes / _MB) for sample in profile.series if sample.device_bytes is not None]
    if given:
        axes.plot(*zip(*given, strict=True), color=_DEVICE, label="given out by the device's allocator")
    for number, phase in enumerate(profile.phases):
        axes.axvline(phase.begin_ms, color=_BORDER, linewidth=0.6, zorder=0)
        # The most that was resident in it may lie between two samples.
        axes.hlines(phase.peak_bytes / _MB, phase.begin_ms, phase.end_ms, color=_RESIDENT, linewidth=0.6)
        axes.annotate(
            phase.name,
            (phase.begin_ms, 1),
            xycoords=("data", "axes fraction"),
            # Short phases begin close to each other.
            xytext=(0, 3 + number % 2 * _ROW_POINTS),
            textcoords="offset points",
            fontsize=7,
            color=INK,
        )
    most = max(profile.peak_bytes, *(sample.device_bytes or 0 for sample in profile.series))
    axes.set_ylim(0, 1.08 * most / _MB)
    axes.set_xlim(0, 1.02 * max(*times, profile.phases[-1].end_ms))
    axes.set_xlabel("ms")
    axes.set_ylabel("MB")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.13), ncols=3, frameon=False, borderpad=0, borderaxespad=0)
    return figure


@dataclass(frozen=True, slots=True)
class _Cell:
    """A place of a map."""

    text: str
    ratio: float | None = None
    mark: str = ""


def is_grid(entry: SweepEntry) -> bool:
    """Whether the shapes of an entry are a sweep of k and n, which needs a map of its own for each m."""
    shapes = {(row.point.m, row.point.k, row.point.n) for row in entry.rows}
    panels = {m for m, _, _ in shapes}
    places = sum(
        len({k for own, k, _ in shapes if own == m}) * len({n for own, _, n in shapes if own == m}) for m in panels
    )
    varied = min(len({k for _, k, _ in shapes}), len({n for _, _, n in shapes})) > 1
    return varied and len(shapes) >= 2 * len(panels) and 2 * len(shapes) >= places


def draw_overview_map(entry: SweepEntry) -> Figure:
    """All recipes of an entry over its shapes; recipes downwards, as many bands as the shapes need."""
    recipes, limit = entry.recipes, _find_limit(entry)
    bands = [entry.shapes[start : start + _ACROSS] for start in range(0, len(entry.shapes), _ACROSS)]
    cells = {(recipe, shape): _make_cell(entry.row(recipe, shape)) for recipe in recipes for shape in entry.shapes}
    # Labels are slanted.
    labels = _estimate_width(entry.shapes)
    columns = max(len(bands[0]), _FEWEST)
    width = _estimate_width(recipes) + 0.6 * labels + columns * _CELL_WIDTH
    height = 1.2 + len(bands) * (len(recipes) * _CELL_HEIGHT + 0.7 * labels)
    figure = _make_figure(f"{entry.title}: speed-up", width, height, (cell.mark for cell in cells.values()))
    for axes, shapes in zip(figure.subplots(len(bands), squeeze=False)[:, 0], bands, strict=True):
        _draw_frame(axes, shapes, recipes)
        axes.set_xlim(0, columns)
        axes.set_xticklabels(shapes, rotation=40, ha="right", rotation_mode="anchor")
        for column, shape in enumerate(shapes):
            for row, recipe in enumerate(recipes):
                _draw(axes, column, row, cells[recipe, shape], limit)
    _scale(figure, limit, columns)
    return figure


def draw_grid_map(entry: SweepEntry, recipe: str) -> Figure:
    """One recipe over a sweep: for each m a map with n to the right and k upwards."""
    cells = [(row, _make_cell(row)) for row in entry.of_recipe(recipe)]
    limit = _find_limit(entry)
    sizes_k = sorted({row.point.k for row in entry.rows}, reverse=True)
    sizes_n = sorted({row.point.n for row in entry.rows})
    panels = sorted({row.point.m for row in entry.rows})
    across = min(_PANELS_ACROSS, len(panels))
    down = -(-len(panels) // across)
    labels_k, labels_n = [str(size) for size in sizes_k], [str(size) for size in sizes_n]
    width = across * (len(sizes_n) * _CELL_WIDTH + _estimate_width(labels_k) + 0.4)
    height = 1.2 + down * (len(sizes_k) * _CELL_HEIGHT + 0.7)
    title = f"{entry.title}: speed-up of {recipe}"
    figure = _make_figure(title, width, height, (cell.mark for _, cell in cells))
    every = figure.subplots(down, across, squeeze=False).flat
    for axes, m in zip(every, panels, strict=False):
        _draw_frame(axes, labels_n, labels_k)
        axes.set_title(f"m = {m}", pad=3)
        axes.set_xlabel("n", labelpad=1)
        axes.set_ylabel("k", labelpad=1)
        for row, cell in cells:
            if row.point.m == m:
                _draw(axes, sizes_n.index(row.point.n), sizes_k.index(row.point.k), cell, limit)
    for axes in every[len(panels) :]:
        axes.set_axis_off()
    _scale(figure, limit, across * len(sizes_n))
    return figure


def _find_limit(entry: SweepEntry) -> float:
    """Of all recipes together, so that their maps can be compared."""
    return scale_limit(row.speedup.ratio for row in entry.rows if row.speedup)


def _make_cell(row: Row | None) -> _Cell:
    if row is None:
        return _Cell("")
    if row.speedup is None:
        mark = STATUS_MARKS.get(row.variant.status, "")
        return _Cell(mark, mark=mark)
    mark = _MARKS.get(row.speedup.word, "")
    return _Cell(times(row.speedup.ratio) + mark, row.speedup.ratio, mark)


def _draw(axes: Axes, column: int, row: int, cell: _Cell, limit: float) -> None:
    from matplotlib.patches import Rectangle  # noqa: PLC0415 - matplotlib is optional

    if not cell.text:
        return
    plain = cell.ratio is None
    colour = "none" if cell.ratio is None else choose_colour(cell.ratio, limit)
    ink = INK if cell.ratio is None else choose_ink(choose_colour(cell.ratio, limit))
    edge = "#8c8c8c" if plain else "none"
    axes.add_patch(Rectangle((column + 0.02, row + 0.03), 0.96, 0.94, facecolor=colour, edgecolor=edge, linewidth=0.5))
    text = axes.text(column + 0.5, row + 0.5, cell.text, ha="center", va="center", fontsize=_CELL_POINTS, color=ink)
    text.set_in_layout(False)


def _draw_frame(axes: Axes, columns: Sequence[str], rows: Sequence[str]) -> None:
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

    colours = ListedColormap([choose_colour(2.0 ** (limit * step / 20), limit) for step in range(-20, 21)])
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
    bar.set_ticklabels([format_tick(tick) for tick in ticks])
    bar.ax.tick_params(length=2, pad=1)


def scale_limit(ratios: Iterable[float], *, most: float = _MOST) -> float:
    """How many octaves to each side of 1.0 a scale needs: the same to both, so that 1.0 is its middle.

    Args:
        ratios: what is to be shown; those that are not positive and finite do not count.
        most: beyond this, values lie at the end of the scale.
    """
    octaves = (abs(math.log2(ratio)) for ratio in ratios if 0 < ratio < math.inf)
    return min(most, max(_LEAST, *octaves, 0.0))


def scale_ticks(limit: float) -> tuple[float, ...]:
    """Ratios to be written at a scale of so many octaves on each side."""
    for most, ticks in _TICKS:
        if limit <= most:
            return tuple(tick for tick in ticks if abs(math.log2(tick)) <= limit * 1.01)
    whole = int(limit)
    step = max(1, round(whole / 3))
    powers = [*range(-(whole // step) * step, 0, step), *range(0, whole + 1, step)]
    return tuple(2.0**power for power in powers)


def format_tick(ratio: float) -> str:
    """`0.67×`, `2×`."""
    return f"{ratio:.3g}×"


def choose_colour(ratio: float, limit: float) -> tuple[float, float, float]:
    """The colour of a speed-up: blue above 1.0, vermilion below, as strong as its logarithm."""
    octaves = math.log2(ratio) if 0 < ratio < math.inf else math.copysign(limit, ratio - 1.0)
    strength = min(1.0, abs(octaves) / limit)
    end = _BLUE if octaves > 0 else _VERMILION
    red, green, blue = (middle + strength * (far - middle) for middle, far in zip(_MIDDLE, end, strict=True))
    return red, green, blue


def choose_ink(colour: Sequence[float]) -> str:
    """Black or white, whichever can be read on a colour (relative luminance of WCAG 2.1)."""
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in colour]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#000000" if luminance > 0.179 else "#ffffff"


def _estimate_width(texts: Iterable[str]) -> float:
    """Width of the longest of some labels in inches, about; never too little for DejaVu Sans."""
    return max(map(len, texts), default=0) * _LABEL_POINTS * 0.64 / 72


def _make_figure(title: str, width: float, height: float, marks: Iterable[str] = ()) -> Figure:
    """A figure with its title, and below what some signs mean; matplotlib finds room for what is drawn between."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - matplotlib is optional

    figure = Figure(figsize=(width, height), layout="constrained")
    figure.suptitle(title, x=0, ha="left")
    known = set(marks)
    meanings = [text for mark, text in _MEANINGS.items() if mark in known]
    if meanings:
        figure.supxlabel("   ".join(meanings), x=0, ha="left")
    return figure
