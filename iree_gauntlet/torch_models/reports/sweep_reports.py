"""Reports of a sweep, by entry of `model_params`: tables of recipes and shapes, SVG files, a page, files of results."""

from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from iree_gauntlet.document import (
    INK,
    PAPER,
    Block,
    ColouredCell,
    Details,
    Document,
    Heading,
    Items,
    PageOnly,
    Picture,
    Table,
)
from iree_gauntlet.errors import GauntletError, UsageError
from iree_gauntlet.formatting import Column, ColumnKind, format_milliseconds, list_first
from iree_gauntlet.journal_events import EndEvent, Opening
from iree_gauntlet.journal_format import JournalRecord, explain_unreadable
from iree_gauntlet.measuring.profiles.memory_profile import (
    MEMORY_FILE,
    MEMORY_ROLE,
    MemoryProfile,
    read_written_memory_profile,
)
from iree_gauntlet.records.chain_figures import NO_VALUE
from iree_gauntlet.records.outcome import get_state
from iree_gauntlet.records.sweep_record import (
    MEASURED,
    MICRO,
    SAME_MODULE,
    UNREADABLE_SWEEP,
    VARIANT_FIGURES,
    IreeTimes,
    SweepRequest,
    TorchTimes,
    format_decibels,
)
from iree_gauntlet.reports.draw import FileDrawing, list_round_numbers, measure_text
from iree_gauntlet.reports.render_console import print_document
from iree_gauntlet.reports.render_html import render_html
from iree_gauntlet.reports.render_markdown import render_markdown
from iree_gauntlet.reports.report_files import list_page_links, make_provenance
from iree_gauntlet.settings import expand_home, format_path
from iree_gauntlet.stages import Stage
from iree_gauntlet.steps import make_step_id
from iree_gauntlet.system.atomic import write_atomic
from iree_gauntlet.torch_models.reports.sweep_rows import (
    MissingPoint,
    Row,
    SweepEntry,
    SweepHeader,
    find_mean_ratio,
    format_factor,
    format_ratio,
    format_results_csv,
    group_entries,
    make_oss_json,
    read_rows,
    read_targets,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    # A title, labels of columns, and cells by the labels of their rows and columns.
    _HeatMap = tuple[str, Sequence[str], Mapping[tuple[str, str], Row]]


# Colours by Okabe and Ito, "Color Universal Design" (2008): blue and vermilion differ in all colour blindness.
_BLUE, _VERMILION, _NEUTRAL = (0.0, 0.447, 0.698), (0.835, 0.369, 0.0), (0.96, 0.96, 0.95)
VERDICT_COLOURS = {"faster": "#0072b2", "slower": "#d55e00", "same": "#8c8c8c", "inconclusive": PAPER}
_RESIDENT_STYLE, _MAPPED_STYLE, _DEVICE_STYLE = (
    "stroke: #0072b2",
    "stroke: #8c8c8c; stroke-dasharray: 6 3",
    "stroke: #d55e00",
)
# Marks that replace a speed-up, and marks that follow a speed-up.
STATUS_MARKS = {"same module": "≡", "failed": "×", "error": "×", "skipped": "·"}
_VERDICT_MARKS = {"same": "=", "inconclusive": "?"}
_AXIS_STYLE, _EDGE_STYLE, _GRID_STYLE = f"stroke: {INK}", "stroke: #8c8c8c", "stroke: #8c8c8c; stroke-opacity: 0.35"
_CURVE_STYLE = "; stroke-width: 2; shape-rendering: auto"

# The minimum and maximum range of scales, in octaves. With the minimum, small differences stay pale; with the maximum,
# an outlier does not make the other cells pale. Bars have a larger maximum, so that their intervals fit.
_MIN_OCTAVES, _MAX_OCTAVES, _MAX_BAR_OCTAVES = math.log2(1.25), 3.0, 5.0
# Ticks are at these ratios and their inverses. A scale has those from a quarter of its limit (in octaves) to its limit.
_TICKS = (1.1, 1.25, 1.5, 2.0, 4.0, 8.0, 16.0, 32.0)
# These constants are pixels, except the counts of maps and of shapes per row.
_LINE_HEIGHT, _GAP = 18, 6
_CELL_WIDTH, _CELL_HEIGHT = 52, 32
_MAPS_PER_ROW, _SHAPES_PER_ROW = 3, 20
# A bar's slot is as wide as the number of shapes permits, and wide enough for its label.
_MAX_SLOT_WIDTH, _MIN_SLOT_WIDTH, _MAX_PANEL_WIDTH, _MIN_PANEL_WIDTH = 44, 13, 1300, 380
_PANEL_HEIGHT, _AXIS_LABEL_WIDTH = 132, 52
_MEMORY_WIDTH, _MEMORY_HEIGHT = 660, 260
_BYTES_PER_MB = 1e6
_MAX_NAME_CHARS = 100
_UNSAFE_CHARS = re.compile(r"[^A-Za-z0-9._+-]+")


def draw_plots(entry: SweepEntry, names: set[str]) -> Iterator[Picture]:
    """Draw heat maps and bars of an entry that has a recipe besides the baseline; file names in `names` are taken."""
    for name, text, svg in _draw_entry(entry) if any(row.speedup and not row.is_baseline for row in entry.rows) else ():
        base = stem = _UNSAFE_CHARS.sub("-", name)[:_MAX_NAME_CHARS].strip(".-")
        number = 2
        while stem.lower() in names:
            stem, number = f"{base}-{number}", number + 1
        names.add(stem.lower())
        yield Picture(f"{stem}.svg", svg, text)


def _draw_entry(entry: SweepEntry) -> Iterator[tuple[str, str, str]]:
    """Yield name, description and SVG of each plot of an entry."""
    if is_grid(entry):
        for recipe in entry.recipes:
            yield f"heat-{entry.name}-{recipe}", f"speed-up of {recipe} over the sweep", draw_grid_map(entry, recipe)
    else:
        yield f"heat-{entry.name}", "speed-ups", draw_overview_map(entry)
    yield f"bars-{entry.name}", "speed-ups with intervals", draw_speedup_bars(entry)


def draw_speedup_bars(entry: SweepEntry) -> str:
    """Draw the speed-ups of all recipes of an entry by shape, from 1.0 up or down on a logarithmic axis."""
    drawing = FileDrawing(f"{entry.title}: speed-up, with 95 % intervals")
    shapes, left, y = entry.shapes, drawing.left + _AXIS_LABEL_WIDTH, drawing.top
    ratios = [row.speedup for row in entry.rows if row.speedup]
    x = left
    for verdict, colour in VERDICT_COLOURS.items():
        if any(ratio.word == verdict for ratio in ratios):
            drawing.fill(x, y - 9, 24, 10, f"fill: {colour}; {_EDGE_STYLE}")
            x = drawing.write(x + 24 + _GAP, y, verdict) + 2 * _GAP
    ends = [end for ratio in ratios for end in (ratio.ratio, ratio.low, ratio.high) if end is not None]
    # The range in octaves below and above 1.0 contains all ends, with a margin.
    low = -1.06 * find_scale_limit((end for end in ends if end < 1), max_octaves=_MAX_BAR_OCTAVES)
    high = 1.06 * find_scale_limit((end for end in ends if end > 1), max_octaves=_MAX_BAR_OCTAVES)
    ticks = [tick for tick in choose_ticks(max(-low, high)) if low <= math.log2(tick) <= high]
    slot_width = min(_MAX_SLOT_WIDTH, max(_MIN_SLOT_WIDTH, _MAX_PANEL_WIDTH / len(shapes)))
    width = max(slot_width * len(shapes), _MIN_PANEL_WIDTH)
    middles = {shape: left + width / len(shapes) * (index + 0.5) for index, shape in enumerate(shapes)}
    for recipe in entry.recipes:
        rows = {row.shape_label: row for row in entry.get_recipe_rows(recipe)}
        mean = find_mean_ratio([row.speedup.ratio for row in rows.values() if row.speedup])
        title = recipe if mean is None else f"{recipe}: {format_factor(mean)}× in the geometric mean"
        drawing.write(left, y + 1.5 * _LINE_HEIGHT, title)
        y += 2 * _LINE_HEIGHT + _PANEL_HEIGHT

        def scale(ratio: float, bottom: float = y) -> float:
            octaves = max(low, min(high, _convert_to_octaves(ratio)))
            return bottom - (octaves - low) / (high - low) * _PANEL_HEIGHT

        for tick in ticks:
            drawing.connect(
                [(left, scale(tick)), (left + width, scale(tick))], _AXIS_STYLE if tick == 1 else _GRID_STYLE
            )
            drawing.write(left - _GAP, scale(tick) + 4, format_tick(tick), "end")
        for shape, row in rows.items():
            _draw_bar(drawing, row, middles[shape], 0.36 * slot_width, scale)
    for shape, x in middles.items():
        drawing.write(x + 4, y + _GAP, shape, "end", turn=-90)
    _write_legend(drawing, y + max(map(measure_text, shapes)) + 2 * _LINE_HEIGHT, entry.rows, STATUS_MARKS)
    return drawing.finish()


def _draw_bar(drawing: FileDrawing, row: Row, x: float, half: float, scale: Callable[[float], float]) -> None:
    ratio = row.speedup
    if ratio is None:
        drawing.write(x, scale(1) - _GAP, STATUS_MARKS.get(row.variant.status, ""), "middle")
        return
    begin, end = scale(1), scale(ratio.ratio)
    # Even a bar without height must be visible.
    height = max(abs(end - begin), 4)
    style = f"fill: {VERDICT_COLOURS.get(ratio.word, PAPER)}; {_EDGE_STYLE}"
    drawing.fill(x - half, (begin + end - height) / 2, 2 * half, height, style, _describe_row(row))
    if ratio.low is not None and ratio.high is not None:
        interval = [(x, scale(ratio.low)), (x, scale(ratio.high))]
        # The line is dark for light bars, with a light rim for dark ones.
        drawing.connect(interval, f"stroke: {PAPER}; stroke-width: 3")
        drawing.connect(interval, _AXIS_STYLE)


def draw_memory_plot(profile: MemoryProfile, title: str) -> str:
    """Draw the resident set over time, its part mapped from files, the device's memory, and the phases."""
    drawing = FileDrawing(title)
    series = profile.series
    device_points = [(sample.ms, sample.device_bytes) for sample in series if sample.device_bytes is not None]
    curves = (
        ("resident", _RESIDENT_STYLE, [(sample.ms, sample.resident_bytes) for sample in series]),
        ("of which mapped from files", _MAPPED_STYLE, [(sample.ms, sample.mapped_bytes) for sample in series]),
        ("from the device's allocator", _DEVICE_STYLE, device_points),
    )
    end = 1.02 * max(*(sample.ms for sample in series), profile.phases[-1].end_ms, 1e-3)
    max_bytes = 1.08 * max(profile.peak_bytes, *(size for _, size in device_points), 1)
    left, bottom = drawing.left + 1.5 * _AXIS_LABEL_WIDTH, drawing.top + 3 * _LINE_HEIGHT + _MEMORY_HEIGHT

    def locate(ms: float, size: float) -> tuple[float, float]:
        return left + ms / end * _MEMORY_WIDTH, bottom - size / max_bytes * _MEMORY_HEIGHT

    for number in list_round_numbers(max_bytes / _BYTES_PER_MB):
        x, y = locate(0, number * _BYTES_PER_MB)
        drawing.connect([(x, y), (x + _MEMORY_WIDTH, y)], _GRID_STYLE if number else _AXIS_STYLE)
        drawing.write(x - _GAP, y + 4, f"{number:,g} MB", "end")
    for number in list_round_numbers(end):
        drawing.write(locate(number, 0)[0], bottom + _LINE_HEIGHT, f"{number:,g} ms", "middle")
    for index, phase in enumerate(profile.phases):
        x, y = locate(phase.begin_ms, max_bytes)
        # Names alternate between two heights, because short phases begin close to each other.
        drawing.write(x, y - _GAP - index % 2 * 12, phase.name)
        drawing.connect([(x, y), (x, bottom)], _GRID_STYLE)
        # The phase's peak may lie between two samples.
        drawing.connect([locate(ms, phase.peak_bytes) for ms in (phase.begin_ms, phase.end_ms)], _RESIDENT_STYLE)
    x = left
    for name, style, points in curves:
        if points:
            drawing.connect([locate(*point) for point in points], style + _CURVE_STYLE)
            drawing.connect([(x, drawing.top - 4), (x + 24, drawing.top - 4)], style + _CURVE_STYLE)
            x = drawing.write(x + 24 + _GAP, drawing.top, name) + 2 * _GAP
    return drawing.finish()


def is_grid(entry: SweepEntry) -> bool:
    """Return True if the shapes of an entry are a sweep of k and n, which needs a separate map for each m."""
    shapes = {(row.point.m, row.point.k, row.point.n) for row in entry.rows}
    panels = {m for m, _, _ in shapes}
    cell_count = sum(
        len({k for shape_m, k, _ in shapes if shape_m == m}) * len({n for shape_m, _, n in shapes if shape_m == m})
        for m in panels
    )
    varies = min(len({k for _, k, _ in shapes}), len({n for _, _, n in shapes})) > 1
    return varies and len(shapes) >= 2 * len(panels) and 2 * len(shapes) >= cell_count


def draw_overview_map(entry: SweepEntry) -> str:
    """Draw all recipes of an entry by shape; each recipe is a row, in as many bands as the shapes need."""
    cells = {(row.recipe, row.shape_label): row for row in entry.rows if not row.is_baseline}
    starts = range(0, len(entry.shapes), _SHAPES_PER_ROW)
    bands = [("", entry.shapes[start : start + _SHAPES_PER_ROW], cells) for start in starts]
    return _draw_maps(entry, f"{entry.title}: speed-up", entry.recipes, bands, 1)


def draw_grid_map(entry: SweepEntry, recipe: str) -> str:
    """Draw one recipe over a sweep: for each m a map with n to the right and k upwards."""
    sizes_k = [str(size) for size in sorted({row.point.k for row in entry.rows}, reverse=True)]
    sizes_n = [str(size) for size in sorted({row.point.n for row in entry.rows})]
    maps = []
    for m in sorted({row.point.m for row in entry.rows}):
        cells = {(str(row.point.k), str(row.point.n)): row for row in entry.get_recipe_rows(recipe) if row.point.m == m}
        maps.append((f"m = {m}", sizes_n, cells))
    return _draw_maps(entry, f"{entry.title}: speed-up of {recipe}", sizes_k, maps, _MAPS_PER_ROW)


def _draw_maps(entry: SweepEntry, title: str, rows: Sequence[str], maps: Sequence[_HeatMap], maps_per_row: int) -> str:
    """Draw maps, `maps_per_row` in a row, and below them a legend of colours and marks."""
    drawing = FileDrawing(title)
    # All recipes have the same limit, so that their maps can be compared.
    limit = find_scale_limit(row.speedup.ratio for row in entry.rows if row.speedup)
    label_width = max(measure_text(label) for _, columns, _ in maps for label in columns)
    # Labels wider than a cell are slanted.
    turn, anchor, label_height = (-40, "end", 0.65 * label_width) if label_width > _CELL_WIDTH else (0, "middle", 0.0)
    left = drawing.left + max(*map(measure_text, rows), label_height) + _GAP
    width = left + len(maps[0][1]) * _CELL_WIDTH
    height = len(rows) * _CELL_HEIGHT + label_height + 2.5 * _LINE_HEIGHT
    for index, (name, columns, cells) in enumerate(maps):
        x0, y0 = left + index % maps_per_row * width, drawing.top + index // maps_per_row * height
        bottom = y0 + len(rows) * _CELL_HEIGHT + _LINE_HEIGHT - 4
        if name:
            drawing.write(x0 + len(columns) * _CELL_WIDTH / 2, y0 - _GAP, name, "middle")
            drawing.write(x0 - _GAP, y0 - _GAP, "k", "end")
            drawing.write(x0 - _GAP, bottom, "n", "end")
        xs = {label: x0 + column * _CELL_WIDTH for column, label in enumerate(columns)}
        ys = {label: y0 + row * _CELL_HEIGHT for row, label in enumerate(rows)}
        for label, x in xs.items():
            drawing.write(x + _CELL_WIDTH / 2, bottom, label, anchor, turn=turn)
        for label, y in ys.items():
            drawing.write(x0 - _GAP, y + _LINE_HEIGHT + 2, label, "end")
        for (row_label, column_label), row in cells.items():
            if column_label in xs:
                _draw_result(drawing, xs[column_label], ys[row_label], row, limit)
    y = drawing.top + math.ceil(len(maps) / maps_per_row) * height
    for index, tick in enumerate(choose_ticks(limit)):
        _draw_cell(drawing, left + index * _CELL_WIDTH, y, format_tick(tick), choose_colour(tick, limit))
    results = [row for _, _, cells in maps for row in cells.values()]
    _write_legend(drawing, y + _CELL_HEIGHT + 1.5 * _LINE_HEIGHT, results, STATUS_MARKS | _VERDICT_MARKS)
    return drawing.finish()


def _draw_result(drawing: FileDrawing, x: float, y: float, row: Row, limit: float) -> None:
    """Draw a cell: a speed-up, or the mark of the variant's status."""
    ratio = row.speedup
    if ratio:
        text = f"{format_factor(ratio.ratio)}{_VERDICT_MARKS.get(ratio.word, '')}"
        _draw_cell(drawing, x, y, text, choose_colour(ratio.ratio, limit), _describe_row(row))
    elif row.variant.status in STATUS_MARKS:
        drawing.fill(x + 1, y + 1, _CELL_WIDTH - 2, _CELL_HEIGHT - 2, f"fill: none; {_EDGE_STYLE}")
        drawing.write(x + _CELL_WIDTH / 2, y + _LINE_HEIGHT + 2, STATUS_MARKS[row.variant.status], "middle")


def _draw_cell(drawing: FileDrawing, x: float, y: float, text: str, colour: Sequence[float], title: str = "") -> None:
    style = f"fill: #{bytes(round(255 * part) for part in colour).hex()}"
    drawing.fill(x + 1, y + 1, _CELL_WIDTH - 2, _CELL_HEIGHT - 2, style, title)
    drawing.write(x + _CELL_WIDTH / 2, y + _LINE_HEIGHT + 2, text, "middle", ink=choose_ink(colour))


def _describe_row(row: Row) -> str:
    """Return a row's tooltip: `int8wo at 1024-1024-1024: 1.72 (1.60–1.84)`."""
    return f"{row.recipe} at {row.shape_label}: {format_ratio(row.speedup)}"


def _write_legend(drawing: FileDrawing, y: float, rows: Iterable[Row], marks: Mapping[str, str]) -> None:
    """Write the meanings of the marks that rows have."""
    x, meanings = drawing.left, {row.speedup.word if row.speedup else row.variant.status for row in rows}
    for meaning, mark in marks.items():
        if meaning in meanings:
            x = drawing.write(x, y, f"{mark} {meaning}") + 2 * _GAP


def find_scale_limit(ratios: Iterable[float], *, max_octaves: float = _MAX_OCTAVES) -> float:
    """Return the range of a scale, in octaves on each side of 1.0, which is the middle.

    Args:
        ratios: the ratios to be shown; only positive and finite ones count.
        max_octaves: largest range; values beyond it are drawn at the end of the scale.
    """
    octaves = (abs(math.log2(ratio)) for ratio in ratios if 0 < ratio < math.inf)
    return min(max_octaves, max(_MIN_OCTAVES, *octaves, 0.0))


def choose_ticks(limit: float) -> tuple[float, ...]:
    """Return the ratios at which a scale with `limit` octaves on each side has labels."""
    upper_ticks = [tick for tick in _TICKS if limit / 4 <= math.log2(tick) <= 1.01 * limit]
    return (*(1 / tick for tick in reversed(upper_ticks)), 1.0, *upper_ticks)


def format_tick(ratio: float) -> str:
    """Return a tick's label: `0.67×`, `2×`."""
    return f"{ratio:.3g}×"


def _convert_to_octaves(ratio: float) -> float:
    return math.log2(ratio) if 0 < ratio < math.inf else math.copysign(math.inf, ratio - 1.0)


def choose_colour(ratio: float, limit: float) -> tuple[float, float, float]:
    """Return the colour of a speed-up: blue above 1.0, vermilion below; its strength follows the logarithm."""
    strength = min(1.0, abs(_convert_to_octaves(ratio)) / limit)
    end = _BLUE if ratio > 1 else _VERMILION
    red, green, blue = (neutral + strength * (edge - neutral) for neutral, edge in zip(_NEUTRAL, end, strict=True))
    return red, green, blue


def choose_ink(colour: Sequence[float]) -> str:
    """Return black or white, whichever is legible on a colour (relative luminance of WCAG 2.1)."""
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in colour]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#000000" if luminance > 0.179 else "#ffffff"


_SIGNS = {"faster": "▲ ", "slower": "▼ "}
# The status of a point that a sweep did not reach, and the reason by the sweep's state.
_NOT_MEASURED = "not measured"
_MISSING_REASONS = {
    "interrupted": "the sweep was interrupted",
    "unfinished": "the sweep was killed, or is still running",
    "complete": "the end of its measurement is not recorded",
}
LEGEND = (
    "speed-up: the baseline's time over the recipe's, above 1 is faster; in parentheses its 95 % interval",
    "it is the median of the ratios within blocks of rounds, which may differ from the ratio of the median times",
    "▲ is faster and ▼ slower, by 1 % or more; = is the same within 3 %, ? is inconclusive",
    "per recipe: geometric mean, lowest and highest speed-up, number of shapes by verdict, lowest SQNR, size in bytes",
    "eager/IREE, compile/IREE: torch's time over IREE's for the same recipe, above 1 means that IREE is faster",
)
_BASELINE_TITLE = "baseline, ms"
# Limits of a terminal's tables and lists.
_MAX_ROWS, _MAX_NOTES, _MAX_LABELS = 60, 12, 3


def make_speedup_cell(row: Row | None) -> ColouredCell | str:
    """Return a variant's speed-up, with a sign if it is faster or slower; without a speed-up, its status."""
    if row is None or row.speedup is None:
        return NO_VALUE if row is None or row.variant.status == MEASURED else row.variant.status
    verdict = row.speedup.word
    return ColouredCell(f"{_SIGNS.get(verdict, '')}{format_ratio(row.speedup)}", verdict)


def _format_time(side: IreeTimes | TorchTimes | None) -> str:
    """Return a time in ms, without its unit."""
    return format_milliseconds(side.ms) if side else NO_VALUE


def collect_notes(rows: Iterable[Row]) -> tuple[str, ...]:
    """Return the reasons why variants were not measured, and the notes, each once."""
    labels_by_note: dict[str, list[str]] = {}
    for row in rows:
        reason = f": {row.variant.reason}" if row.variant.reason else ""
        status = [] if row.variant.status == MEASURED else [f"{row.variant.status}{reason}"]
        for note in (*row.record.notes, *(f"{row.recipe}: {text}" for text in (*status, *row.variant.notes))):
            labels_by_note.setdefault(note, []).append(row.shape_label)
    return tuple(f"{note} ({_list_some(labels)})" for note, labels in labels_by_note.items())


def collect_heading_facts(header: SweepHeader, rows: Sequence[Row]) -> tuple[str, ...]:
    """Return the lines below the title: the run, IREE, the machine, the numbers of points and variants."""
    toolchain, machine = header.toolchain, header.machine
    points = len({row.point_key for row in rows})
    facts = (
        f"run {header.run}" if header.run else "",
        f"configuration {header.config}" if header.config else "",
        f"IREE {toolchain.compiler}" if toolchain.compiler else "",
        f"runtime {toolchain.runtime}" if toolchain.runtime != toolchain.compiler else "",
        ", ".join(f"{name} {version}" for name, version in header.versions.items()),
        f"{machine.cpu}, {machine.cores} cores" if machine.cores else "",
        f"locks in {header.lock_folder}" if header.lock_folder else "",
        f"{points} point{'s' if points != 1 else ''}, {len(rows)} variants",
    )
    return tuple(fact for fact in facts if fact)


def _list_remarks(header: SweepHeader, rows: Sequence[Row]) -> tuple[str, ...]:
    """Return the remarks above the figures: an unfinished sweep, and points without figures with their reasons."""
    points: dict[tuple[str, str], list[str]] = {}
    for missing_point in header.missing:
        points.setdefault((missing_point.status, missing_point.reason), []).append(missing_point.point)
    reasons = [f"{status}: {reason} ({_list_some(names)})" for (status, reason), names in points.items()]
    if header.state == "complete":
        return tuple(reasons)
    count = len({(row.point.name, row.shape_label) for row in rows})
    total = count + len(header.missing)
    progress = f"{count} of {total} points measured; micro --resume continues it"
    return (f"{_MISSING_REASONS[header.state]}: {progress}", *reasons)


def summarise(entry: SweepEntry, recipe: str) -> tuple[str, ...]:
    """Return the result of a recipe over all shapes of an entry, in the order of a summary's columns.

    Means are geometric; the signal-to-noise ratio is the worst; weights are a share of the baseline's.
    """
    rows = entry.get_recipe_rows(recipe)
    speedups = [row.speedup for row in rows if row.speedup]
    ratios = [ratio.ratio for ratio in speedups]
    verdicts = [ratio.word for ratio in speedups]
    sqnr_values = [row.errors.sqnr_db for row in rows if row.errors.sqnr_db is not None]
    shares = []
    for row in rows:
        baseline = entry.baseline(row.shape_label)
        if baseline and baseline.variant.parameter_bytes and row.variant.parameter_bytes is not None:
            shares.append(row.variant.parameter_bytes / baseline.variant.parameter_bytes)
    share = find_mean_ratio(shares)
    same_count = sum(row.variant.status == SAME_MODULE for row in rows)
    faster, slower = verdicts.count("faster"), verdicts.count("slower")
    missing = sum(row.variant.iree is None for row in rows) + len(entry.shapes) - len({row.shape_label for row in rows})
    return (
        recipe,
        _format_mean(ratios),
        f"{format_factor(min(ratios))} … {format_factor(max(ratios))}" if ratios else NO_VALUE,
        *(
            str(count) if count else NO_VALUE
            for count in (faster, slower, len(verdicts) - faster - slower + same_count, missing)
        ),
        format_decibels(min(sqnr_values)) if sqnr_values else NO_VALUE,
        NO_VALUE if share is None else f"{100 * share:.0f} %",
        *(
            _format_torch_mean(row.variant.torch_eager for row in rows),
            _format_torch_mean(row.variant.torch_compile for row in rows),
        ),
    )


def _format_torch_mean(sides: Iterable[TorchTimes | None]) -> str:
    return _format_mean([side.beside_iree.ratio for side in sides if side and side.beside_iree])


def _format_mean(ratios: Sequence[float]) -> str:
    mean = find_mean_ratio(ratios)
    return NO_VALUE if mean is None else format_factor(mean)


def _list_some(labels: Iterable[str]) -> str:
    return list_first(list(dict.fromkeys(labels)), _MAX_LABELS)


def _make_columns(names: Sequence[str], *figures: str) -> tuple[Column, ...]:
    return (
        *(Column(title, ColumnKind.NAME) for title in names),
        *(Column(title, ColumnKind.NUMBER) for title in figures),
    )


_SUMMARY_COLUMNS = _make_columns(
    ["recipe"],
    *("speed-up", "from … to", "faster", "slower", "neither", "missing", "SQNR", "weights"),
    *("eager/IREE", "compile/IREE"),
)
_FIGURE_COLUMNS = (
    *_make_columns(
        ["m-k-n", "shape", "recipe", "status"],
        *("IREE, ms", "speed-up", "torch eager, ms", "eager/IREE"),
        *("torch.compile, ms", "compile/IREE", *(figure.column for figure in VARIANT_FIGURES)),
    ),
    Column("the module shows"),
)


def make_sweep_document(rows: Sequence[Row], header: SweepHeader, end: EndEvent | None = None) -> Document:
    """Return the sweep's report for people; `end` is None if the sweep has not finished."""
    blocks: list[Block] = []
    names: set[str] = set()
    for entry in group_entries(rows):
        blocks += _make_entry_blocks(entry, draw_plots(entry, names))
    blocks += [Heading("How to read it", 3), Items(tuple((line,) for line in LEGEND))] if rows else []
    *facts, summary = collect_heading_facts(header, rows)
    return Document(
        "IREE Gauntlet: micro-benchmarks",
        f"{_describe_fastest(rows)}{summary}",
        tuple(facts),
        tuple(blocks),
        exit_code=end.exit_code if end else None,
        remarks=_list_remarks(header, rows),
        provenance=make_provenance(
            header.toolchain.compiler,
            Opening.from_dict({**header.as_dict(), "kind": "micro", "time": header.started}),
            ("results.md", "results.csv", "results.json"),
            end,
        ),
    )


def _describe_fastest(rows: Sequence[Row]) -> str:
    """Describe the recipe with the largest mean speed-up; empty without speed-ups."""
    ratios: dict[str, list[float]] = {}
    for row in rows:
        if row.speedup and not row.is_baseline:
            ratios.setdefault(row.recipe, []).append(row.speedup.ratio)
    means = {recipe: find_mean_ratio(values) or 0.0 for recipe, values in ratios.items()}
    fastest = max(means, key=means.__getitem__, default="")
    return f"fastest: {fastest}, {format_factor(means[fastest])}× in the geometric mean; " if fastest else ""


def make_speedup_table(entry: SweepEntry) -> Table:
    """Return the table of shapes and recipes, the longer list as rows; shapes have the baseline's time in ms."""
    shapes, recipes = entry.shapes, entry.recipes
    baselines = {shape: entry.baseline(shape) for shape in shapes}
    baseline_times = {shape: _format_time(row.variant.iree if row else None) for shape, row in baselines.items()}
    cells = {(recipe, shape): make_speedup_cell(entry.row(recipe, shape)) for recipe in recipes for shape in shapes}
    if len(shapes) < len(recipes):
        lines = [(recipe, *(cells[recipe, shape] for shape in shapes)) for recipe in recipes]
        rows = ((_BASELINE_TITLE, *(baseline_times[shape] for shape in shapes)), *lines)
        return Table(_make_columns(["m-k-n"], *shapes), rows, _MAX_ROWS)
    rows = tuple((shape, baseline_times[shape], *(cells[recipe, shape] for recipe in recipes)) for shape in shapes)
    return Table(_make_columns(["m-k-n"], _BASELINE_TITLE, *recipes), rows, _MAX_ROWS)


def _make_entry_blocks(entry: SweepEntry, pictures: Iterable[Picture]) -> Iterator[Block]:
    yield Heading(entry.title)
    yield _make_table(
        _SUMMARY_COLUMNS, [summarise(entry, recipe) for recipe in dict.fromkeys(row.recipe for row in entry.rows)]
    )
    yield from pictures
    yield Heading("Speed-ups", 3)
    yield make_speedup_table(entry)
    if notes := collect_notes(entry.rows):
        yield Heading("Notes", 3)
        yield Items(tuple((note,) for note in notes), _MAX_NOTES)
    figures = _make_table(_FIGURE_COLUMNS, list(map(_collect_figures, entry.rows)))
    yield PageOnly((Details(f"All figures ({len(entry.rows)})", (figures,)),))


def _make_table(columns: Sequence[Column], rows: Sequence[tuple[str, ...]]) -> Table:
    """Return a table without empty columns."""
    cells = tuple(tuple(None if cell in ("", NO_VALUE) else cell for cell in row) for row in rows)
    return Table(tuple(columns), cells).filled_form


def _collect_figures(row: Row) -> tuple[str, ...]:
    """Return a row's figures in the order of `_FIGURE_COLUMNS`."""
    torch_eager, torch_compile = row.variant.torch_eager, row.variant.torch_compile
    return (
        *(row.shape_label, row.point.shape, row.recipe, row.variant.status),
        *(_format_time(row.variant.iree), format_ratio(row.speedup)),
        *(_format_time(torch_eager), format_ratio(torch_eager.beside_iree if torch_eager else None)),
        *(_format_time(torch_compile), format_ratio(torch_compile.beside_iree if torch_compile else None)),
        *(figure.format(row.variant) or NO_VALUE for figure in VARIANT_FIGURES),
        "; ".join(row.variant.shows),
    )


def write_micro_reports(record: JournalRecord, run_dir: Path, stream: TextIO) -> dict[str, str]:
    """Write all reports into `results/` of the run's folder, print the document, and return the files by name."""
    with explain_unreadable(f"{record.path}: the sweep", UNREADABLE_SWEEP):
        sweep = SweepRequest.from_dict(record.run.micro or {})
        results = [record.results.get(make_step_id(chain, Stage.BENCHMARK)) for chain in sweep.points]
        records = [result.statistics[MICRO] for result in results if result is not None and MICRO in result.statistics]
        rows = read_rows(records)
        header_fields = _make_header(record, sweep)
        header = SweepHeader.from_dict(header_fields)
    targets = read_targets(sweep.targets)
    oss = make_oss_json(rows, header, targets=targets)
    document = make_sweep_document(rows, header, record.end)
    folder = run_dir / "results"
    files = {
        "results.csv": format_results_csv(rows, header.missing),
        "results.md": render_markdown(document),
        "results.json": json.dumps({"header": header_fields, "points": records}, indent=1) + "\n",
        "results.html": render_html(document, tuple(list_page_links(folder))),
        "benchmark_results.json": oss,
        **{block.file: block.svg for block in document.blocks if isinstance(block, Picture)},
    }
    _write(folder, files)
    _draw_memory(record, run_dir)
    names = ", ".join(name for name in files if name.startswith("results."))
    print_document(document, stream, f"{format_path(folder)}: {names}", environ=os.environ)
    return files


def copy_micro_reports(record: JournalRecord, run_dir: Path, files: Mapping[str, str], stream: TextIO) -> None:
    """Write copies where the sweep's command requested them; later reports write only to the run's folder."""
    sweep, working_folder = SweepRequest.from_dict(record.run.micro or {}), Path(record.run.cwd)
    if sweep.output_dir:
        _write(working_folder / sweep.output_dir / run_dir.name, files)
        stream.write(f"the same in {sweep.output_dir}/{run_dir.name}\n")
    if sweep.output:
        output = working_folder / expand_home(sweep.output)
        _write(output.parent, {output.name: files["benchmark_results.json"]})
        stream.write(f"records for a benchmark database: {sweep.output}\n")


def check_writable(name: str) -> None:
    """Check that `--output` can be written, before anything is measured."""
    if not name:
        return
    path = expand_home(name).absolute()
    if path.is_dir():
        raise UsageError(f"--output {name}: it is a folder", "Name a file, such as benchmark_results.json.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"--output {name}: {path.parent}: {error.strerror}", "Name a file in a folder where you may write."
        ) from error
    if not os.access(path.parent, os.W_OK):
        raise UsageError(
            f"--output {name}: {path.parent} cannot be written", "Name a file in a folder where you may write."
        )


def _draw_memory(record: JournalRecord, run_dir: Path) -> None:
    """Draw each memory profile next to its file."""
    for step in record.planned:
        result = record.results.get(step.id)
        if result is None or "memory" not in result.statistics:
            continue
        path = (run_dir / result.log).with_name(MEMORY_FILE)
        profile = read_written_memory_profile(path)
        if profile is not None:
            label = step.id.removeprefix(make_step_id(step.chain, Stage.BENCHMARK, MEMORY_ROLE))
            svg = draw_memory_plot(profile, f"{_name_point(step.chain)}: {label}")
            _write(path.parent, {path.with_suffix(".svg").name: svg})


def _name_point(chain: str) -> str:
    """Return a point's name, which is the chain's name without the target."""
    return chain.rpartition("@")[0]


def _make_header(record: JournalRecord, sweep: SweepRequest) -> dict[str, Any]:
    """Return the header of `results.json`."""
    run, first_run = record.run, record.runs[0]
    # Points without a record have a status and a reason.
    missing = [MissingPoint(name, "skipped", reason) for name, reason in sweep.refused.items()]
    for chain in sweep.points:
        result = record.results.get(make_step_id(chain, Stage.BENCHMARK))
        if result is None:
            missing.append(MissingPoint(_name_point(chain), _NOT_MEASURED, _MISSING_REASONS[get_state(record)]))
        elif MICRO not in result.statistics:
            missing.append(MissingPoint(_name_point(chain), str(result.verdict), result.reason))
    return {
        "run": run.name,
        "state": get_state(record),
        "started": first_run.time,
        "config": Path(sweep.config).name,
        "toolchain": run.toolchain.as_dict(),
        "machine": run.machine.as_dict(),
        "command": first_run.command,
        "cwd": run.cwd,
        "version": run.version,
        "lock_folder": run.lock_folder,
        "gpus": list(run.gpus),
        "versions": sweep.versions,
        "missing": [point.as_dict() for point in missing],
    }


def _write(folder: Path, files: Mapping[str, str]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            write_atomic(folder / name, content)
    except OSError as error:
        raise GauntletError(
            f"{folder}: results cannot be written: {error.strerror or error}",
            "Fix that; then `gauntlet report` writes the reports of the run's folder again, from its journal.",
        ) from error
