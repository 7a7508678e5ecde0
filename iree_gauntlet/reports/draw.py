"""Draw pictures as SVG; in pages the style sheet sets colours by class, and SVG files have their own colours."""

from __future__ import annotations

import math
from collections import defaultdict
from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING

from markupsafe import Markup

from iree_gauntlet.document import INK, PAPER, Bar, Chart, IntervalBar, Sparkline, Timeline
from iree_gauntlet.formatting import VERDICT_STYLES, add_verdict_sign, format_duration, join_lines, pluralize

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from iree_gauntlet.document import Cell, Line, Stop, WorkSpan
    from iree_gauntlet.formatting import Column


# The width and height of a picture in a cell are in SVG units; a page scales the picture.
_CELL_WIDTH, _CELL_HEIGHT = 200, 18
_EDGE_MARGIN = 5
# This is the minimum distance between two labels of an axis.
_MIN_LABEL_DISTANCE = 35
_WIDTH = 1200
_CHART_HEIGHT, _MAX_DOTS = 160, 150
# The space for values to the left of a chart, the steps between its releases, and the space for the lower value.
_CHART_LEFT, _CHART_STEPS, _MIN_VALUE_DISTANCE = 110, 5, 18
# Lines that vary by a smaller share are not scaled to the full height.
_MIN_RANGE = 0.02
_LANE_HEIGHT, _MAX_LANES = 16, 40
_OUTLINED_TONES = ("bad", "broken")
# With more spans than this, none has a name, because each name would be a line of the page.
_MAX_NAMED_SPANS = 400
_TICKS = (1e-5, 1e-4, 1e-3, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0)
_STOPS_HEIGHT, _STOP_LABEL_HEIGHT = 170, 24
# With more stops than this, the picture shows no values; the table has them.
_MAX_VALUED_STOPS, _MAX_TEXT_CHARS = 16, 24
# For files, in pixels: upper limits for the average width of a character, and the margin around the drawing.
_CHARACTER_WIDTH, _WIDE_CHARACTER_WIDTH, _FILE_MARGIN = 7.0, 11.5, 16
_ANCHORS = ("start", "middle", "end")
_FONT = 'font-family="system-ui, DejaVu Sans, Verdana, sans-serif" font-size="11" shape-rendering="crispEdges"'


def draw_column(column: Column, cells: Sequence[Cell]) -> tuple[Markup, list[Markup]]:
    """Return the axis for a drawn column's head, and the column's cells, all to one scale."""
    intervals = [cell for cell in cells if isinstance(cell, IntervalBar)]
    if intervals:
        to_x, axis = _make_interval_scale(column, intervals)
        return axis, [
            _make_interval(cell, column, to_x) if isinstance(cell, IntervalBar) else Markup() for cell in cells
        ]
    values = [0.0, *(cell.value for cell in cells if isinstance(cell, Bar))]
    low, high = min(values), max(values)
    pictures = []
    for cell in cells:
        bar = _make_bar(cell, low, high) if isinstance(cell, Bar) else Markup()
        pictures.append(_make_course(cell) if isinstance(cell, Sparkline) else bar)
    return Markup(), pictures


def tone(word: str) -> str:
    """Return the CSS class of a verdict's colour; `plain` for any other word."""
    return VERDICT_STYLES[word][0] if word in VERDICT_STYLES else "plain"


def draw_held_bar(share: float, word: str) -> Markup:
    """Draw a share of a limit as a bar, and the limit as an upright line."""
    # Values of at least twice the limit fill the picture; infinity and NaN do so too.
    bar_length = share if share <= 2 else 2.0
    full_length = max(bar_length, 1.0)
    width, limit_x = 100 * bar_length / full_length, 100 / full_length
    bar = f'<rect class="bar {tone(word)}" y="1" width="{width:.1f}" height="4"/>'
    line = f'<line class="limit" x1="{limit_x:.1f}" x2="{limit_x:.1f}" y1="0" y2="6"/>'
    return _make_markup(
        f'<svg class="held" viewBox="0 0 101 6" preserveAspectRatio="none" aria-hidden="true">{bar}{line}</svg>'
    )


def _make_interval_scale(column: Column, cells: Sequence[IntervalBar]) -> tuple[Callable[[float], float], Markup]:
    """Return the function from ratio to position (nearly linear within the margins, else logarithmic), and the axis."""
    unit = min((abs(margin) for margin in column.margins), default=0.01) or 0.01
    ends = (
        end for cell in cells for end in (cell.low, cell.middle, cell.high, *(cell.control or ())) if end is not None
    )
    edges = [abs(math.log(end)) for end in ends if 0 < end < math.inf]
    widest = max([math.log1p(unit), *edges, *(math.log1p(abs(margin)) for margin in column.margins)]) * 1.05

    def to_x(ratio: float) -> float:
        if not 0 < ratio < math.inf:
            return float(_EDGE_MARGIN if ratio <= 0 else _CELL_WIDTH - _EDGE_MARGIN)
        fraction = math.asinh(math.log(ratio) / unit) / math.asinh(widest / unit)
        return _CELL_WIDTH / 2 + max(-1.0, min(fraction, 1.0)) * (_CELL_WIDTH / 2 - _EDGE_MARGIN)

    texts = [_format_text(_CELL_WIDTH / 2, 10, "0 %")]
    label_positions = [_CELL_WIDTH / 2]
    for tick in sorted((tick for tick in _TICKS if math.log1p(tick) <= widest), reverse=True):
        if min(abs(to_x(1 + tick) - position) for position in label_positions) < _MIN_LABEL_DISTANCE:
            continue
        label_positions.append(to_x(1 + tick))
        signs = ((1 + tick, f"+{100 * tick:g} %"), (1 - tick, f"−{100 * tick:g} %"))
        if tick >= 1:
            signs = ((1 + tick, f"×{1 + tick:g}"), (1 / (1 + tick), f"÷{1 + tick:g}"))
        for ratio, text in signs:
            if abs(math.log(ratio)) <= widest:
                texts.append(_format_text(to_x(ratio), 10, text))
    return to_x, _make_svg("axis", _CELL_WIDTH, 12, "".join(texts))


def _make_interval(cell: IntervalBar, column: Column, to_x: Callable[[float], float]) -> Markup:
    middle, parts = _CELL_HEIGHT / 2, []
    margins = sorted(column.margins)
    if margins:
        low, high = to_x(1 / (1 + margins[-1])), to_x(1 + margins[-1])
        parts.append(f'<rect class="band" x="{low:.1f}" width="{high - low:.1f}" height="{_CELL_HEIGHT}"/>')
    ratios = (1.0, *(side for margin in margins[:-1] for side in (1 + margin, 1 / (1 + margin))))
    parts += [_format_vertical(to_x(ratio), _CELL_HEIGHT, "zero" if ratio == 1 else "margin") for ratio in ratios]
    if cell.control:
        low, high = map(to_x, cell.control)
        parts.append(
            f'<rect class="behind" x="{low:.1f}" y="2" width="{max(high - low, 1):.1f}" height="{_CELL_HEIGHT - 4}"/>'
        )
    low = to_x(cell.low) if cell.low is not None else 0
    high = to_x(cell.high) if cell.high is not None else _CELL_WIDTH
    tone_class = tone(cell.verdict)
    parts.append(f'<line class="interval {tone_class}" x1="{low:.1f}" x2="{high:.1f}" y1="{middle}" y2="{middle}"/>')
    parts.append(f'<circle class="dot {tone_class}" cx="{to_x(cell.middle):.1f}" cy="{middle}" r="4"/>')
    return _make_svg("forest", _CELL_WIDTH, _CELL_HEIGHT, "".join(parts))


def _make_bar(cell: Bar, low: float, high: float) -> Markup:
    """Draw a bar on a scale from `low` to `high`, and a line at 0."""
    start, zero, end = (
        _CELL_WIDTH * ((value - low) / (high - low or 1.0)) for value in (min(cell.value, 0), 0, max(cell.value, 0))
    )
    bar = f'<rect class="bar {tone(cell.verdict)}" x="{start:.1f}" y="1" width="{end - start:.1f}" height="16"/>'
    return _make_svg("bars", _CELL_WIDTH, _CELL_HEIGHT, bar + _format_vertical(zero, _CELL_HEIGHT, "zero"))


def _make_course(cell: Sparkline) -> Markup:
    to_x, to_y = _make_scales(cell.values, _CELL_WIDTH / 2, _CELL_HEIGHT)
    marks = (_format_vertical(to_x(index - 0.5), _CELL_HEIGHT, "change") for index in cell.changes)
    points = [(to_x(index), to_y(value)) for index, value in enumerate(cell.values)]
    x, y = points[-1]
    dot = f'<circle class="dot {tone(cell.verdict)}" cx="{x:.0f}" cy="{y:.1f}" r="3"/>'
    text = escape(join_lines(cell.text))
    label = f'<a href="{escape(cell.url)}">{text}</a>' if cell.url else text
    content = "".join((*marks, _make_path(points, 1), dot))
    return _make_svg("course", _CELL_WIDTH // 2, _CELL_HEIGHT, content) + _make_markup(label)


def _draw_chart(chart: Chart) -> Markup:
    levels = [] if chart.level is None else [chart.level]
    # The mark of a change is as high as the picture.
    shown, last = [*chart.values, *levels], len(chart.values) - 1
    min_range = 0.0 if chart.changes else _MIN_RANGE
    to_x, to_y = _make_scales(shown, _WIDTH, _CHART_HEIGHT, len(chart.values), min_range, _CHART_LEFT)
    ends = [max(shown), min(shown)]
    scale, prefix = (1e6, "M") if ends[0] >= 1e6 else (1, "")
    parts = [
        _format_text(_CHART_LEFT - 8, to_y(value) + 5, f"{value / scale:,.4g} {prefix}{chart.unit}", "", "end")
        for value in ends[: 1 if to_y(ends[1]) - to_y(ends[0]) < _MIN_VALUE_DISTANCE else 2]
    ]
    marks = (round(last * mark / _CHART_STEPS) for mark in range(_CHART_STEPS, -1, -1))
    releases = {chart.origins[index][1]: index for index in marks}
    parts += [
        _format_text(to_x(index), _CHART_HEIGHT + 22, name, "", "end" if index == last else "middle")
        for name, index in releases.items()
    ]
    parts += [
        _format_vertical(to_x(index - 0.5), _CHART_HEIGHT, "change settled" if calm else "change")
        for index, calm in chart.changes
    ]
    parts += [
        f'<line class="level" x1="{_CHART_LEFT}" x2="{_WIDTH}" y1="{to_y(level):.0f}" y2="{to_y(level):.0f}"/>'
        for level in levels
    ]
    points = [(to_x(index), to_y(value)) for index, value in enumerate(chart.values)]
    parts.append(_make_path(points))
    if len(points) <= _MAX_DOTS:
        for index, ((x, y), origin) in enumerate(zip(points, chart.origins, strict=True)):
            title = escape(join_lines(f"{', '.join(origin[:2])}: {chart.values[index]:,.6g} {chart.unit}"))
            css = "dot hollow" if index in chart.disturbed else "dot"
            parts.append(f'<circle class="{css}" cx="{x:.0f}" cy="{y:.0f}" r="4"><title>{title}</title></circle>')
    return _make_svg("chart", _WIDTH, _CHART_HEIGHT + 30, "".join(parts), chart.text)


def _make_scales(
    values: Sequence[float], width: float, height: float, count: int = 0, min_range: float = _MIN_RANGE, left: int = 0
) -> tuple[Callable[[float], float], Callable[[float], float]]:
    """Return functions from index and value to positions; a range of `min_range` (a share) or more fills the height."""
    low, high = min(values), max(values)
    extent = max(high - low, min_range * abs(high)) or 1.0
    step = (width - left - 2 * _EDGE_MARGIN) / max((count or len(values)) - 1, 1)

    def to_y(value: float) -> float:
        # Divide first, because halving the smallest number would underflow to 0.
        return height / 2 - ((value - low) / extent - (high - low) / extent / 2) * (height - max(6, height / 14))

    return lambda index: left + _EDGE_MARGIN + step * index, to_y


def _make_path(points: Sequence[tuple[float, float]], digits: int = 0) -> str:
    """Return a line as relative steps, which are short: thousands of steps are a large part of a page."""
    positions = [(round(x), round(y, digits)) for x, y in points]
    steps = "".join(f"l{x - x0} {y - y0:g}" for (x0, y0), (x, y) in pairwise(positions))
    return f'<path class="track" d="M{positions[0][0]} {positions[0][1]:g}{steps.replace(" -", "-")}"/>'


def _format_vertical(x: float, height: int, css: str) -> str:
    return f'<line class="{css}" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height}"/>'


def draw_block(block: Timeline | Line | Chart) -> Markup:
    """Draw a block of one of the picture types."""
    if isinstance(block, Chart):
        return _draw_chart(block)
    return draw_lanes(block) if isinstance(block, Timeline) else draw_line(block)


def draw_lanes(lanes: Timeline) -> Markup:
    """Draw a time line: spans that overlap are in different lanes, and the seconds are below."""
    spans = sorted(lanes.spans, key=lambda span: span.start)
    end = max(1e-3, *(span.start + span.waited + span.seconds for span in spans))
    ends: list[float] = []
    rows: dict[int, list[WorkSpan]] = defaultdict(list)
    for span in spans:
        lane = next((index for index, end_time in enumerate(ends) if end_time <= span.start + 1e-3), len(ends))
        ends[lane : lane + 1] = [span.start + span.waited + span.seconds]
        rows[min(lane, _MAX_LANES - 1)].append(span)
    scale, has_names = _WIDTH / end, len(spans) <= _MAX_NAMED_SPANS
    parts = []
    for lane, row in sorted(rows.items()):
        y = lane * (_LANE_HEIGHT + 3)
        paths: dict[str, list[str]] = defaultdict(list)
        for span in row:
            begin = span.start * scale
            waits, works = span.waited * scale, max(span.seconds * scale, 1.0)
            outline = " outlined" if tone(span.verdict) in _OUTLINED_TONES else ""
            css = f"stage-{span.stage}{outline}"
            if has_names:
                wait = f", waited {format_duration(span.waited)}" if span.waited >= 0.1 else ""
                title = f"{span.name}: {format_duration(span.seconds)}, {span.verdict}{wait}"
                bars = _format_rectangle(begin, y, waits, f"wait stage-{span.stage}") if waits >= 1 else ""
                bars += _format_rectangle(begin + waits, y, works, css)
                parts.append(f"<g><title>{escape(join_lines(title))}</title>{bars}</g>")
            else:
                paths[css].append(f"M{begin + waits:.0f} {y}h{works:.0f}v{_LANE_HEIGHT}h-{works:.0f}z")
        parts += [f'<path class="{css}" d="{"".join(path_parts)}"/>' for css, path_parts in paths.items()]
    height = (max(rows) + 1) * (_LANE_HEIGHT + 3)
    for second in _list_time_ticks(end):
        x = second * scale
        anchor = "start" if second == 0 else "end" if x > _WIDTH - 60 else "middle"
        parts.insert(0, f'<line class="tick" x1="{x:.0f}" x2="{x:.0f}" y1="0" y2="{height}"/>')
        parts.append(_format_text(x, height + 14, _format_time_label(second), "", anchor))
    text = f"what ran when, {format_duration(end)} in total"
    times: dict[str, list[float]] = defaultdict(list)
    for span in spans:
        times[span.stage].append(span.seconds)
    legend = {
        f"stage-{stage}": f"{stage}: {pluralize(len(group), 'step')}, {format_duration(sum(group))}"
        for stage, group in times.items()
    }
    waited = sum(span.waited for span in spans)
    legend |= {"wait stage-compile": f"waiting: {format_duration(waited)}"} if waited else {}
    legend |= {"outlined": "failed"} if any(tone(span.verdict) in _OUTLINED_TONES for span in spans) else {}
    keys = "".join(f'<li><span class="{css}"></span>{escape(name)}</li>' for css, name in legend.items())
    return _make_markup(f'<ul class="keys">{keys}</ul>') + _make_svg("lanes", _WIDTH, height + 20, "".join(parts), text)


def _format_rectangle(x: float, y: float, width: float, css: str) -> str:
    return f'<rect class="{css}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_LANE_HEIGHT}"/>'


def _list_time_ticks(end: float) -> list[float]:
    """Return five to ten round numbers of seconds."""
    if end < 120:
        return list_round_numbers(end)
    min_step = end / 8
    units = (15, 30, 60, 120, 300, 600, 1800, 3600)
    step = next((unit for unit in units if unit >= min_step), 7200 * math.ceil(min_step / 7200))
    return [step * index for index in range(int(end / step) + 1)]


def list_round_numbers(end: float) -> list[float]:
    """Return up to nine round numbers from 0 to an end above 0."""
    power = 10 ** math.floor(math.log10(end / 8))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= end / 8)
    return [step * index for index in range(int(end / step) + 1)]


def _format_time_label(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:g} s"
    minutes = f"{int(seconds // 60)}:{int(seconds % 60):02}"
    return f"{minutes} min" if seconds < 3600 else f"{int(seconds // 3600)}:{int(seconds % 3600 // 60):02} h"


def draw_line(line: Line) -> Markup:
    """Draw values in sequence, on a logarithmic scale if they differ more than a hundredfold."""
    values = [stop.value for stop in line.stops if stop.value is not None and math.isfinite(stop.value)]
    positive_values = [value for value in values if value > 0]
    is_logarithmic = bool(positive_values) and min(values) >= 0 and max(positive_values) > 100 * min(positive_values)

    def to_scale(value: float) -> float:
        # A value of 0 is drawn below the smallest positive one.
        return value if not is_logarithmic else math.log(value) if value > 0 else math.log(min(positive_values)) - 1

    low, high = (to_scale(edge(values)) if values else 0.0 for edge in (min, max))
    extent = high - low or 1.0
    step = (_WIDTH - 200) / max(len(line.stops) - 1, 1)
    height = _STOPS_HEIGHT

    def locate(index: int, stop: Stop) -> tuple[float, float]:
        if stop.value is None or not math.isfinite(stop.value):
            return 100 + index * step, 24.0 if stop.value is not None else height - 6.0
        return 100 + index * step, height - 24 - (to_scale(stop.value) - low) / extent * (height - 56)

    positions = [locate(index, stop) for index, stop in enumerate(line.stops)]
    parts = []
    if line.between:
        left, right = (positions[index][0] for index in line.between)
        parts.append(f'<rect class="found" x="{left:.0f}" y="0" width="{right - left:.0f}" height="{height}"/>')
    value_positions = [position for position, stop in zip(positions, line.stops, strict=True) if stop.value is not None]
    parts += [
        f'<line class="track" x1="{x0:.0f}" y1="{y0:.0f}" x2="{x1:.0f}" y2="{y1:.0f}"/>'
        for (x0, y0), (x1, y1) in pairwise(value_positions)
    ]
    # The labels take as many lines as are needed to keep them apart.
    rows = max(1, min(3, math.ceil(150 / step)))
    for index, ((x, y), stop) in enumerate(zip(positions, line.stops, strict=True)):
        title = escape(join_lines(f"{stop.name}: {stop.text} {stop.verdict}"))
        css = f'dot {tone(stop.verdict)}" r="6' if stop.value is not None else 'untried" r="4'
        dot = f'<circle class="{css}" cx="{x:.0f}" cy="{y:.0f}"/>'
        name = _format_text(x, height + 16 + 16 * (index % rows), add_verdict_sign(stop.name, stop.verdict))
        value = _format_text(x, y - 12, stop.text, "value") if len(line.stops) <= _MAX_VALUED_STOPS else ""
        parts.append(f"<g><title>{title}</title>{dot}{name}{value}</g>")
    return _make_svg("stops", _WIDTH, height + _STOP_LABEL_HEIGHT + 16 * (rows - 1), "".join(parts), line.text)


def _format_text(x: float, y: float, text: str, css: str = "", anchor: str = "middle") -> str:
    content = escape(join_lines(text, _MAX_TEXT_CHARS))
    style = f' class="{css}"' if css else ""
    return f'<text{style} x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{content}</text>'


def _make_svg(css: str, width: int, height: int, content: str, text: str = "") -> Markup:
    attributes = f'role="img" aria-label="{escape(join_lines(text, 1000))}"' if text else 'aria-hidden="true"'
    return _make_markup(f'<svg class="{css}" viewBox="0 0 {width} {height}" {attributes}>{content}</svg>')


def _make_markup(text: str) -> Markup:
    """Mark text as safe, because all parts from other sources were escaped."""
    return Markup(text)  # noqa: S704


class FileDrawing:
    """An SVG file without a style sheet, with a title and a drawing below; the content determines its size.

    Attributes:
        left: the x of text aligned with the title.
        top: the y of free space below the title.
    """

    left, top = float(_FILE_MARGIN), 3.0 * _FILE_MARGIN

    def __init__(self, title: str) -> None:
        self._parts: list[str] = []
        self._width = self._height = 0.0
        self.write(self.left, 1.25 * _FILE_MARGIN, title)

    def write(self, x: float, y: float, text: str, anchor: str = "start", *, turn: int = 0, ink: str = INK) -> float:
        """Write a text on one line, rotated by `turn` degrees around (x, y); return the x of its right end."""
        line = join_lines(text)
        width, anchor_fraction, angle = measure_text(line), _ANCHORS.index(anchor) / 2, math.radians(turn)
        right = x + (1 - anchor_fraction) * width * math.cos(angle)
        self._extend(right, y - anchor_fraction * width * math.sin(angle))
        rotation = f' transform="rotate({turn} {x:.1f} {y:.1f})"' if turn else ""
        attributes = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{rotation}'
        self._parts.append(f'<text {attributes} pointer-events="none" style="fill: {ink}">{escape(line)}</text>')
        return right

    def fill(self, x: float, y: float, width: float, height: float, style: str, title: str = "") -> None:
        """Draw a rectangle, with a tooltip if it has a title."""
        self._extend(x + width, y + height)
        attributes = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
        tooltip = f"<title>{escape(join_lines(title))}</title>" if title else ""
        self._parts.append(f'<rect {attributes} style="{style}">{tooltip}</rect>')

    def connect(self, points: Iterable[tuple[float, float]], style: str) -> None:
        """Draw a line through points."""
        positions = list(points)
        self._extend(*map(max, zip(*positions, strict=True)))
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in positions)
        self._parts.append(f'<polyline points="{line}" style="fill: none; {style}"/>')

    def finish(self) -> str:
        """Return the file's content."""
        width, height = (math.ceil(end) + _FILE_MARGIN for end in (self._width, self._height))
        size = f'width="{width}" height="{height}"'
        opening_tag = f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {width} {height}" {_FONT}>'
        return "\n".join((opening_tag, f'<rect {size} style="fill: {PAPER}"/>', *self._parts, "</svg>\n"))

    def _extend(self, right: float, bottom: float) -> None:
        self._width, self._height = max(self._width, right), max(self._height, bottom)


def measure_text(text: str) -> float:
    """Return an upper limit for the width of a text in a file's font, in pixels."""
    return sum(_CHARACTER_WIDTH if character < "\u1100" else _WIDE_CHARACTER_WIDTH for character in text)
