"""Pictures of a sweep as SVG files, which its page has too: speed-ups, and memory over time.

The same figures give the same bytes.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from iree_gauntlet.document import INK, PAPER, Picture
from iree_gauntlet.reports.draw import FileDrawing, list_round_numbers, measure_text
from iree_gauntlet.torch_models.reports.sweep_rows import find_mean_ratio, format_ratio, times

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from iree_gauntlet.measuring.profiles.memory_profile import MemoryProfile
    from iree_gauntlet.torch_models.reports.sweep_rows import Row, SweepEntry

    # A title, labels of columns, and cells by the labels of their rows and columns.
    _HeatMap = tuple[str, Sequence[str], Mapping[tuple[str, str], Row]]

# Of Okabe and Ito, "Color Universal Design" (2008): blue and vermilion stay apart in every kind of colour blindness.
_BLUE, _VERMILION, _MIDDLE = (0.0, 0.447, 0.698), (0.835, 0.369, 0.0), (0.96, 0.96, 0.95)
WORD_COLOURS = {"faster": "#0072b2", "slower": "#d55e00", "same": "#8c8c8c", "inconclusive": PAPER}
_RESIDENT, _MAPPED, _DEVICE = "stroke: #0072b2", "stroke: #8c8c8c; stroke-dasharray: 6 3", "stroke: #d55e00"
# What stands in the place of a speed-up, and behind one.
STATUS_MARKS = {"same module": "≡", "failed": "×", "error": "×", "skipped": "·"}
_WORD_MARKS = {"same": "=", "inconclusive": "?"}
_AXIS, _EDGE, _RULE = f"stroke: {INK}", "stroke: #8c8c8c", "stroke: #8c8c8c; stroke-opacity: 0.35"
_CURVE = "; stroke-width: 2; shape-rendering: auto"

# Octaves: below, differences are shown as small as they are; above, one outlier does not wash out the rest. An interval
# may reach further than any colours do.
_LEAST, _MOST, _MOST_OF_BARS = math.log2(1.25), 3.0, 5.0
# Of these a scale has those that it reaches, but for the least: with their inverses.
_TICKS = (1.1, 1.25, 1.5, 2.0, 4.0, 8.0, 16.0, 32.0)
# All that follows is in pixels, but for the counts of maps and of shapes side by side before it goes on below.
_LINE, _GAP = 18, 6
_CELL_WIDTH, _CELL_HEIGHT = 52, 32
_MAPS_ACROSS, _SHAPES_ACROSS = 3, 20
# A bar's place is as wide as all shapes let it be, and wide enough for its label.
_WIDEST, _NARROWEST, _ALL, _LEAST_WIDTH = 44, 13, 1300, 380
_PANEL_HEIGHT, _AXIS_LABELS = 132, 52
_MEMORY_WIDTH, _MEMORY_HEIGHT = 660, 260
_MB = 1e6
_LONGEST_NAME = 100
_UNFIT = re.compile(r"[^A-Za-z0-9._+-]+")


def draw_plots(entry: SweepEntry, names: set[str]) -> Iterator[Picture]:
    """Heat maps and bars of an entry, if it has a recipe besides the baseline; `names` are those that are taken."""
    for name, text, svg in _draw_entry(entry) if any(row.speedup and not row.is_baseline for row in entry.rows) else ():
        short = stem = _UNFIT.sub("-", name)[:_LONGEST_NAME].strip(".-")
        number = 2
        while stem.lower() in names:
            stem, number = f"{short}-{number}", number + 1
        names.add(stem.lower())
        yield Picture(f"{stem}.svg", svg, text)


def _draw_entry(entry: SweepEntry) -> Iterator[tuple[str, str, str]]:
    """Name, contents in words and SVG of each plot of an entry."""
    if is_grid(entry):
        for recipe in entry.recipes:
            yield f"heat-{entry.name}-{recipe}", f"speed-up of {recipe} over the sweep", draw_grid_map(entry, recipe)
    else:
        yield f"heat-{entry.name}", "speed-ups", draw_overview_map(entry)
    yield f"bars-{entry.name}", "speed-ups with intervals", draw_speedup_bars(entry)


def draw_speedup_bars(entry: SweepEntry) -> str:
    """Speed-ups of all recipes of an entry over its shapes, from 1.0 up or down on a logarithmic axis."""
    drawing = FileDrawing(f"{entry.title}: speed-up, with 95 % intervals")
    shapes, left, y = entry.shapes, drawing.left + _AXIS_LABELS, drawing.top
    ratios = [row.speedup for row in entry.rows if row.speedup]
    x = left
    for word, colour in WORD_COLOURS.items():
        if any(ratio.word == word for ratio in ratios):
            drawing.fill(x, y - 9, 24, 10, f"fill: {colour}; {_EDGE}")
            x = drawing.write(x + 24 + _GAP, y, word) + 2 * _GAP
    ends = [end for ratio in ratios for end in (ratio.ratio, ratio.low, ratio.high) if end is not None]
    # Octaves below and above 1.0 that show all of them, with some room.
    low = -1.06 * scale_limit((end for end in ends if end < 1), most=_MOST_OF_BARS)
    high = 1.06 * scale_limit((end for end in ends if end > 1), most=_MOST_OF_BARS)
    ticks = [tick for tick in scale_ticks(max(-low, high)) if low <= math.log2(tick) <= high]
    place = min(_WIDEST, max(_NARROWEST, _ALL / len(shapes)))
    width = max(place * len(shapes), _LEAST_WIDTH)
    middles = {shape: left + width / len(shapes) * (index + 0.5) for index, shape in enumerate(shapes)}
    for recipe in entry.recipes:
        rows = {row.label: row for row in entry.of_recipe(recipe)}
        mean = find_mean_ratio([row.speedup.ratio for row in rows.values() if row.speedup])
        title = recipe if mean is None else f"{recipe}: {times(mean)}× in the geometric mean"
        drawing.write(left, y + 1.5 * _LINE, title)
        y += 2 * _LINE + _PANEL_HEIGHT

        def scale(ratio: float, bottom: float = y) -> float:
            octaves = max(low, min(high, _convert_to_octaves(ratio)))
            return bottom - (octaves - low) / (high - low) * _PANEL_HEIGHT

        for tick in ticks:
            drawing.connect([(left, scale(tick)), (left + width, scale(tick))], _AXIS if tick == 1 else _RULE)
            drawing.write(left - _GAP, scale(tick) + 4, format_tick(tick), "end")
        for shape, row in rows.items():
            _draw_bar(drawing, row, middles[shape], 0.36 * place, scale)
    for shape, x in middles.items():
        drawing.write(x + 4, y + _GAP, shape, "end", turn=-90)
    _write_meanings(drawing, y + max(map(measure_text, shapes)) + 2 * _LINE, entry.rows, STATUS_MARKS)
    return drawing.finish()


def _draw_bar(drawing: FileDrawing, row: Row, x: float, half: float, scale: Callable[[float], float]) -> None:
    ratio = row.speedup
    if ratio is None:
        drawing.write(x, scale(1) - _GAP, STATUS_MARKS.get(row.variant.status, ""), "middle")
        return
    begin, end = scale(1), scale(ratio.ratio)
    # One of no height can be seen, too.
    height = max(abs(end - begin), 4)
    style = f"fill: {WORD_COLOURS.get(ratio.word, PAPER)}; {_EDGE}"
    drawing.fill(x - half, (begin + end - height) / 2, 2 * half, height, style, _describe(row))
    if ratio.low is not None and ratio.high is not None:
        interval = [(x, scale(ratio.low)), (x, scale(ratio.high))]
        # Dark on light bars, with a light rim that keeps it apart from dark ones.
        drawing.connect(interval, f"stroke: {PAPER}; stroke-width: 3")
        drawing.connect(interval, _AXIS)


def draw_memory_plot(profile: MemoryProfile, title: str) -> str:
    """The resident set over time, what of it is mapped from files, the device's own, and the phases."""
    drawing = FileDrawing(title)
    series = profile.series
    allocated = [(sample.ms, sample.device_bytes) for sample in series if sample.device_bytes is not None]
    curves = (
        ("resident", _RESIDENT, [(sample.ms, sample.resident_bytes) for sample in series]),
        ("of these, mapped from files", _MAPPED, [(sample.ms, sample.mapped_bytes) for sample in series]),
        ("given out by the device's allocator", _DEVICE, allocated),
    )
    end = 1.02 * max(*(sample.ms for sample in series), profile.phases[-1].end_ms, 1e-3)
    most = 1.08 * max(profile.peak_bytes, *(size for _, size in allocated), 1)
    left, bottom = drawing.left + 1.5 * _AXIS_LABELS, drawing.top + 3 * _LINE + _MEMORY_HEIGHT

    def place(ms: float, size: float) -> tuple[float, float]:
        return left + ms / end * _MEMORY_WIDTH, bottom - size / most * _MEMORY_HEIGHT

    for number in list_round_numbers(most / _MB):
        x, y = place(0, number * _MB)
        drawing.connect([(x, y), (x + _MEMORY_WIDTH, y)], _RULE if number else _AXIS)
        drawing.write(x - _GAP, y + 4, f"{number:,g} MB", "end")
    for number in list_round_numbers(end):
        drawing.write(place(number, 0)[0], bottom + _LINE, f"{number:,g} ms", "middle")
    for index, phase in enumerate(profile.phases):
        x, y = place(phase.begin_ms, most)
        # Short phases begin close to each other.
        drawing.write(x, y - _GAP - index % 2 * 12, phase.name)
        drawing.connect([(x, y), (x, bottom)], _RULE)
        # The most that was resident in it may lie between two samples.
        drawing.connect([place(ms, phase.peak_bytes) for ms in (phase.begin_ms, phase.end_ms)], _RESIDENT)
    x = left
    for name, style, points in curves:
        if points:
            drawing.connect([place(*point) for point in points], style + _CURVE)
            drawing.connect([(x, drawing.top - 4), (x + 24, drawing.top - 4)], style + _CURVE)
            x = drawing.write(x + 24 + _GAP, drawing.top, name) + 2 * _GAP
    return drawing.finish()


def is_grid(entry: SweepEntry) -> bool:
    """Whether the shapes of an entry are a sweep of k and n, which needs a map of its own for each m."""
    shapes = {(row.point.m, row.point.k, row.point.n) for row in entry.rows}
    panels = {m for m, _, _ in shapes}
    places = sum(
        len({k for own, k, _ in shapes if own == m}) * len({n for own, _, n in shapes if own == m}) for m in panels
    )
    varied = min(len({k for _, k, _ in shapes}), len({n for _, _, n in shapes})) > 1
    return varied and len(shapes) >= 2 * len(panels) and 2 * len(shapes) >= places


def draw_overview_map(entry: SweepEntry) -> str:
    """All recipes of an entry over its shapes; recipes downwards, as many bands as the shapes need."""
    cells = {(row.recipe, row.label): row for row in entry.rows if not row.is_baseline}
    starts = range(0, len(entry.shapes), _SHAPES_ACROSS)
    bands = [("", entry.shapes[start : start + _SHAPES_ACROSS], cells) for start in starts]
    return _draw_maps(entry, f"{entry.title}: speed-up", entry.recipes, bands, 1)


def draw_grid_map(entry: SweepEntry, recipe: str) -> str:
    """One recipe over a sweep: for each m a map with n to the right and k upwards."""
    sizes_k = [str(size) for size in sorted({row.point.k for row in entry.rows}, reverse=True)]
    sizes_n = [str(size) for size in sorted({row.point.n for row in entry.rows})]
    maps = []
    for m in sorted({row.point.m for row in entry.rows}):
        cells = {(str(row.point.k), str(row.point.n)): row for row in entry.of_recipe(recipe) if row.point.m == m}
        maps.append((f"m = {m}", sizes_n, cells))
    return _draw_maps(entry, f"{entry.title}: speed-up of {recipe}", sizes_k, maps, _MAPS_ACROSS)


def _draw_maps(entry: SweepEntry, title: str, rows: Sequence[str], maps: Sequence[_HeatMap], across: int) -> str:
    """Draw maps, so many side by side, and below what their colours and signs mean."""
    drawing = FileDrawing(title)
    # Of all recipes together, so that their maps can be compared.
    limit = scale_limit(row.speedup.ratio for row in entry.rows if row.speedup)
    longest = max(measure_text(label) for _, columns, _ in maps for label in columns)
    # Long labels are slanted.
    turn, anchor, room = (-40, "end", 0.65 * longest) if longest > _CELL_WIDTH else (0, "middle", 0.0)
    left = drawing.left + max(*map(measure_text, rows), room) + _GAP
    width = left + len(maps[0][1]) * _CELL_WIDTH
    height = len(rows) * _CELL_HEIGHT + room + 2.5 * _LINE
    for index, (name, columns, cells) in enumerate(maps):
        x0, y0 = left + index % across * width, drawing.top + index // across * height
        bottom = y0 + len(rows) * _CELL_HEIGHT + _LINE - 4
        if name:
            drawing.write(x0 + len(columns) * _CELL_WIDTH / 2, y0 - _GAP, name, "middle")
            drawing.write(x0 - _GAP, y0 - _GAP, "k", "end")
            drawing.write(x0 - _GAP, bottom, "n", "end")
        xs = {label: x0 + column * _CELL_WIDTH for column, label in enumerate(columns)}
        ys = {label: y0 + row * _CELL_HEIGHT for row, label in enumerate(rows)}
        for label, x in xs.items():
            drawing.write(x + _CELL_WIDTH / 2, bottom, label, anchor, turn=turn)
        for label, y in ys.items():
            drawing.write(x0 - _GAP, y + _LINE + 2, label, "end")
        for (down, right), row in cells.items():
            if right in xs:
                _draw_result(drawing, xs[right], ys[down], row, limit)
    y = drawing.top + math.ceil(len(maps) / across) * height
    for index, tick in enumerate(scale_ticks(limit)):
        _draw_cell(drawing, left + index * _CELL_WIDTH, y, format_tick(tick), choose_colour(tick, limit))
    results = [row for _, _, cells in maps for row in cells.values()]
    _write_meanings(drawing, y + _CELL_HEIGHT + 1.5 * _LINE, results, STATUS_MARKS | _WORD_MARKS)
    return drawing.finish()


def _draw_result(drawing: FileDrawing, x: float, y: float, row: Row, limit: float) -> None:
    """Draw a cell: a speed-up, or in its place what became of the variant."""
    ratio = row.speedup
    if ratio:
        text = f"{times(ratio.ratio)}{_WORD_MARKS.get(ratio.word, '')}"
        _draw_cell(drawing, x, y, text, choose_colour(ratio.ratio, limit), _describe(row))
    elif row.variant.status in STATUS_MARKS:
        drawing.fill(x + 1, y + 1, _CELL_WIDTH - 2, _CELL_HEIGHT - 2, f"fill: none; {_EDGE}")
        drawing.write(x + _CELL_WIDTH / 2, y + _LINE + 2, STATUS_MARKS[row.variant.status], "middle")


def _draw_cell(drawing: FileDrawing, x: float, y: float, text: str, colour: Sequence[float], title: str = "") -> None:
    style = f"fill: #{bytes(round(255 * part) for part in colour).hex()}"
    drawing.fill(x + 1, y + 1, _CELL_WIDTH - 2, _CELL_HEIGHT - 2, style, title)
    drawing.write(x + _CELL_WIDTH / 2, y + _LINE + 2, text, "middle", ink=choose_ink(colour))


def _describe(row: Row) -> str:
    """Say what a pointer asks: `int8wo at 1024-1024-1024: 1.72 (1.60–1.84)`."""
    return f"{row.recipe} at {row.label}: {format_ratio(row.speedup)}"


def _write_meanings(drawing: FileDrawing, y: float, rows: Iterable[Row], marks: Mapping[str, str]) -> None:
    """Write what those marks mean that stand for a row."""
    x, words = drawing.left, {row.speedup.word if row.speedup else row.variant.status for row in rows}
    for word, mark in marks.items():
        if word in words:
            x = drawing.write(x, y, f"{mark} {word}") + 2 * _GAP


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
    above = [tick for tick in _TICKS if limit / 4 <= math.log2(tick) <= 1.01 * limit]
    return (*(1 / tick for tick in reversed(above)), 1.0, *above)


def format_tick(ratio: float) -> str:
    """`0.67×`, `2×`."""
    return f"{ratio:.3g}×"


def _convert_to_octaves(ratio: float) -> float:
    return math.log2(ratio) if 0 < ratio < math.inf else math.copysign(math.inf, ratio - 1.0)


def choose_colour(ratio: float, limit: float) -> tuple[float, float, float]:
    """The colour of a speed-up: blue above 1.0, vermilion below, as strong as its logarithm."""
    strength = min(1.0, abs(_convert_to_octaves(ratio)) / limit)
    end = _BLUE if ratio > 1 else _VERMILION
    red, green, blue = (middle + strength * (far - middle) for middle, far in zip(_MIDDLE, end, strict=True))
    return red, green, blue


def choose_ink(colour: Sequence[float]) -> str:
    """Black or white, whichever can be read on a colour (relative luminance of WCAG 2.1)."""
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in colour]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#000000" if luminance > 0.179 else "#ffffff"
