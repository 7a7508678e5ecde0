"""Pictures as SVG: those of pages are coloured by their style sheet, by class; those that are files by themselves."""

from __future__ import annotations

import math
from collections import defaultdict
from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING

from markupsafe import Markup

from iree_gauntlet.document import INK, PAPER, Bars, Chart, Course, DrawnInterval, Lanes
from iree_gauntlet.formatting import LOOKS, duration, one_line, signed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from iree_gauntlet.document import Cell, Column, Line, Stop, WorkSpan


# Of what stands in a cell, in its own units; a page scales it.
_CELL, _LINE = 200, 18
_EDGE = 5
# Of an axis' label, at least.
_LABEL = 34
_WIDTH = 1200
_CHART, _MOST_DOTS = 160, 150
# A line that hardly moves is not blown up to the whole height.
_STEADY = 0.02
_LANE, _MOST_LANES = 16, 40
_OUTLINED = ("bad", "broken")
# More pieces of work than this have no names of their own: each would be a line of the page.
_NAMED_SPANS = 400
_TICKS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0)
_STOPS_HEIGHT, _STOP_LABELS = 170, 24
# Of more stops than these the values stand in the table alone.
_VALUED_STOPS, _LONGEST_TEXT = 16, 24
# Of files, in pixels: as wide as characters of their font are at most on average, and the margin around all.
_CHARACTER, _WIDE_CHARACTER, _FILE_MARGIN = 7.0, 11.5, 16
_ANCHORS = ("start", "middle", "end")
_FONT = 'font-family="system-ui, DejaVu Sans, Verdana, sans-serif" font-size="11" shape-rendering="crispEdges"'


def draw_column(column: Column, cells: Sequence[Cell]) -> tuple[Markup, list[Markup]]:
    """What stands at the head of a column that is drawn, and its cells, all in one scale."""
    intervals = [cell for cell in cells if isinstance(cell, DrawnInterval)]
    if intervals:
        place, axis = _make_interval_scale(column, intervals)
        return axis, [
            _make_interval(cell, column, place) if isinstance(cell, DrawnInterval) else Markup() for cell in cells
        ]
    most = max((value for cell in cells if isinstance(cell, Bars) for value in cell.values), default=0.0) or 1.0
    drawn = []
    for cell in cells:
        bars = _make_bars(cell, most) if isinstance(cell, Bars) else Markup()
        drawn.append(_make_course(cell) if isinstance(cell, Course) else bars)
    return Markup(), drawn


def tone(word: str) -> str:
    """The class of a word's colour; `plain` of one that does not judge."""
    return LOOKS[word][0] if word in LOOKS else "plain"


def draw_held_bar(value: float, limit: float, word: str) -> Markup:
    """A figure as a bar on the way to its limit, which is an upright line."""
    share = value / limit if limit > 0 else 0.0 if value == 0 else math.inf
    # Twice the way and more, as infinitely much and what is no number, fills the picture.
    part = share if share <= 2 else 2.0
    most = max(part, 1.0)
    width, at = 100 * part / most, 100 / most
    bar = f'<rect class="bar {tone(word)}" y="1" width="{width:.1f}" height="4"/>'
    line = f'<line class="limit" x1="{at:.1f}" x2="{at:.1f}" y1="0" y2="6"/>'
    return _make_markup(
        f'<svg class="held" viewBox="0 0 101 6" preserveAspectRatio="none" aria-hidden="true">{bar}{line}</svg>'
    )


def _make_interval_scale(column: Column, cells: Sequence[DrawnInterval]) -> tuple[Callable[[float], float], Markup]:
    """Where a ratio stands, and the axis: nearly linear within the margins, logarithmic outside of them."""
    unit = min((abs(margin) for margin in column.margins), default=0.01) or 0.01
    known = (
        end for cell in cells for end in (cell.low, cell.middle, cell.high, *(cell.behind or ())) if end is not None
    )
    edges = [abs(math.log(end)) for end in known if 0 < end < math.inf]
    widest = max([math.log1p(unit), *edges, *(math.log1p(abs(margin)) for margin in column.margins)]) * 1.05

    def place(ratio: float) -> float:
        if not 0 < ratio < math.inf:
            return float(_EDGE if ratio <= 0 else _CELL - _EDGE)
        share = math.asinh(math.log(ratio) / unit) / math.asinh(widest / unit)
        return _CELL / 2 + max(-1.0, min(share, 1.0)) * (_CELL / 2 - _EDGE)

    texts = [_format_text(_CELL / 2, 10, "0 %")]
    taken = [_CELL / 2]
    for tick in sorted((tick for tick in _TICKS if math.log1p(tick) <= widest), reverse=True):
        if min(abs(place(1 + tick) - other) for other in taken) < _LABEL:
            continue
        taken.append(place(1 + tick))
        signs = ((1 + tick, f"+{100 * tick:g} %"), (1 - tick, f"−{100 * tick:g} %"))
        if tick >= 1:
            signs = ((1 + tick, f"×{1 + tick:g}"), (1 / (1 + tick), f"÷{1 + tick:g}"))
        for ratio, text in signs:
            if abs(math.log(ratio)) <= widest:
                texts.append(_format_text(place(ratio), 10, text))
    return place, _make_svg("axis", _CELL, 12, "".join(texts))


def _make_interval(cell: DrawnInterval, column: Column, place: Callable[[float], float]) -> Markup:
    middle, parts = _LINE / 2, []
    margins = sorted(column.margins)
    if margins:
        low, high = place(1 / (1 + margins[-1])), place(1 + margins[-1])
        parts.append(f'<rect class="band" x="{low:.1f}" width="{high - low:.1f}" height="{_LINE}"/>')
    for ratio in (1.0, *(side for margin in margins[:-1] for side in (1 + margin, 1 / (1 + margin)))):
        x = place(ratio)
        parts.append(f'<line class="{"zero" if ratio == 1 else "margin"}" x1="{x:.1f}" x2="{x:.1f}" y2="{_LINE}"/>')
    if cell.behind:
        low, high = map(place, cell.behind)
        parts.append(
            f'<rect class="behind" x="{low:.1f}" y="2" width="{max(high - low, 1):.1f}" height="{_LINE - 4}"/>'
        )
    low = place(cell.low) if cell.low is not None else 0
    high = place(cell.high) if cell.high is not None else _CELL
    word = tone(cell.word)
    parts.append(f'<line class="interval {word}" x1="{low:.1f}" x2="{high:.1f}" y1="{middle}" y2="{middle}"/>')
    parts.append(f'<circle class="dot {word}" cx="{place(cell.middle):.1f}" cy="{middle}" r="4"/>')
    return _make_svg("forest", _CELL, _LINE, "".join(parts))


def _make_bars(cell: Bars, most: float) -> Markup:
    height = _LINE / len(cell.values)
    words = ["plain"] * (len(cell.values) - 1) + [tone(cell.word)]
    parts = (
        f'<rect class="bar {word}" y="{place * height + 1:.1f}" width="{_CELL * (value / most):.1f}" '
        f'height="{height - 2:.1f}"/>'
        for place, (value, word) in enumerate(zip(cell.values, words, strict=True))
    )
    return _make_svg("bars", _CELL, _LINE, "".join(parts))


def _make_course(cell: Course) -> Markup:
    across, up = _make_scales(cell.values, _CELL / 2, _LINE)
    marks = (_format_upright(across(index - 0.5), _LINE, "change") for index in cell.changes)
    points = [(across(index), up(value)) for index, value in enumerate(cell.values)]
    x, y = points[-1]
    dot = f'<circle class="dot {tone(cell.word)}" cx="{x:.0f}" cy="{y:.1f}" r="3"/>'
    text = escape(one_line(cell.text))
    beside = f'<a href="{escape(cell.url)}">{text}</a>' if cell.url else text
    return _make_svg("course", _CELL // 2, _LINE, "".join((*marks, _track(points, 1), dot))) + _make_markup(beside)


def _draw_chart(chart: Chart) -> Markup:
    levels = [] if chart.level is None else [chart.level]
    # Where something changed, that is as high as the picture.
    across, up = _make_scales(
        [*chart.values, *levels], _WIDTH, _CHART, len(chart.values), 0.0 if chart.changes else _STEADY
    )
    parts = [
        _format_upright(across(at - 0.5), _CHART, "change settled" if calm else "change") for at, calm in chart.changes
    ]
    parts += [
        f'<line class="level" x1="0" x2="{_WIDTH}" y1="{up(level):.0f}" y2="{up(level):.0f}"/>' for level in levels
    ]
    points = [(across(index), up(value)) for index, value in enumerate(chart.values)]
    parts.append(_track(points))
    if len(points) <= _MOST_DOTS:
        for index, ((x, y), origin) in enumerate(zip(points, chart.origins, strict=True)):
            said = escape(one_line(f"{', '.join(origin[:2])}: {chart.values[index]:,.6g} {chart.unit}"))
            kind = "dot hollow" if index in chart.disturbed else "dot"
            parts.append(f'<circle class="{kind}" cx="{x:.0f}" cy="{y:.0f}" r="4"><title>{said}</title></circle>')
    return _make_svg("chart", _WIDTH, _CHART, "".join(parts), chart.text)


def _make_scales(
    values: Sequence[float], width: float, height: float, count: int = 0, least: float = _STEADY
) -> tuple[Callable[[float], float], Callable[[float], float]]:
    """Where an index and a value of a line stand, in the whole height if they differ by this share at least."""
    low, high = min(values), max(values)
    room = max(high - low, least * abs(high)) or 1.0
    step = (width - 2 * _EDGE) / max((count or len(values)) - 1, 1)

    def up(value: float) -> float:
        # Shares first: half of the least number is 0.
        return height / 2 - ((value - low) / room - (high - low) / room / 2) * (height - max(6, height / 14))

    return lambda index: _EDGE + step * index, up


def _track(points: Sequence[tuple[float, float]], digits: int = 0) -> str:
    """A line, in steps: thousands of them are a good part of a page."""
    places = [(round(x), round(y, digits)) for x, y in points]
    steps = "".join(f"l{x - x0} {y - y0:g}" for (x0, y0), (x, y) in pairwise(places))
    return f'<path class="track" d="M{places[0][0]} {places[0][1]:g}{steps.replace(" -", "-")}"/>'


def _format_upright(x: float, height: int, kind: str) -> str:
    return f'<line class="{kind}" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height}"/>'


def draw_block(block: Lanes | Line | Chart) -> Markup:
    """What is a picture by itself."""
    if isinstance(block, Chart):
        return _draw_chart(block)
    return draw_lanes(block) if isinstance(block, Lanes) else draw_line(block)


def draw_lanes(lanes: Lanes) -> Markup:
    """What ran when: a lane for each piece of work that ran at the same time as another, the seconds below."""
    spans = sorted(lanes.spans, key=lambda span: span.start)
    end = max(1e-3, *(span.start + span.waited + span.seconds for span in spans))
    free: list[float] = []
    rows: dict[int, list[WorkSpan]] = defaultdict(list)
    for span in spans:
        lane = next((index for index, until in enumerate(free) if until <= span.start + 1e-3), len(free))
        free[lane : lane + 1] = [span.start + span.waited + span.seconds]
        rows[min(lane, _MOST_LANES - 1)].append(span)
    scale, named = _WIDTH / end, len(spans) <= _NAMED_SPANS
    parts = []
    for lane, row in sorted(rows.items()):
        y = lane * (_LANE + 3)
        paths: dict[str, list[str]] = defaultdict(list)
        for span in row:
            begin = span.start * scale
            waits, works = span.waited * scale, max(span.seconds * scale, 1.0)
            bad = " outlined" if tone(span.word) in _OUTLINED else ""
            kind = f"stage-{span.kind}{bad}"
            if named:
                title = escape(one_line(f"{span.name}: {duration(span.seconds)}, {span.word}{_describe_wait(span)}"))
                parts.append(
                    f"<g><title>{title}</title>"
                    + (_format_box(begin, y, waits, f"wait stage-{span.kind}") if waits >= 1 else "")
                    + _format_box(begin + waits, y, works, kind)
                    + "</g>"
                )
            else:
                paths[kind].append(f"M{begin + waits:.0f} {y}h{works:.0f}v{_LANE}h-{works:.0f}z")
        parts += [f'<path class="{kind}" d="{"".join(drawn)}"/>' for kind, drawn in paths.items()]
    height = (max(rows) + 1) * (_LANE + 3)
    for second in _list_seconds(end):
        x = second * scale
        anchor = "start" if second == 0 else "end" if x > _WIDTH - 60 else "middle"
        parts.insert(0, f'<line class="tick" x1="{x:.0f}" x2="{x:.0f}" y1="0" y2="{height}"/>')
        parts.append(_format_text(x, height + 14, _format_clock(second), "", anchor))
    text = f"what ran when, {duration(end)} in all"
    kinds = {f"stage-{span.kind}": span.kind for span in spans}
    kinds |= {"wait stage-compile": "waiting"} if any(_describe_wait(span) for span in spans) else {}
    kinds |= {"outlined": "failed"} if any(tone(span.word) in _OUTLINED for span in spans) else {}
    keys = "".join(f'<li><span class="{kind}"></span>{escape(name)}</li>' for kind, name in kinds.items())
    return _make_markup(f'<ul class="keys">{keys}</ul>') + _make_svg("lanes", _WIDTH, height + 20, "".join(parts), text)


def _describe_wait(span: WorkSpan) -> str:
    return f", waited {duration(span.waited)}" if span.waited >= 0.1 else ""


def _format_box(x: float, y: float, width: float, kind: str) -> str:
    return f'<rect class="{kind}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_LANE}"/>'


def _list_seconds(end: float) -> list[float]:
    """Round numbers of seconds, five to ten of them."""
    if end < 120:
        return list_round_numbers(end)
    rough = end / 8
    units = (15, 30, 60, 120, 300, 600, 1800, 3600)
    step = next((unit for unit in units if unit >= rough), 7200 * math.ceil(rough / 7200))
    return [step * index for index in range(int(end / step) + 1)]


def list_round_numbers(end: float) -> list[float]:
    """List up to nine round numbers from 0 to an end above 0."""
    power = 10 ** math.floor(math.log10(end / 8))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= end / 8)
    return [step * index for index in range(int(end / step) + 1)]


def _format_clock(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:g} s"
    minutes = f"{int(seconds // 60)}:{int(seconds % 60):02}"
    return f"{minutes} min" if seconds < 3600 else f"{int(seconds // 3600)}:{int(seconds % 3600 // 60):02} h"


def draw_line(line: Line) -> Markup:
    """Values one after the other, on a logarithmic scale where they differ more than a hundredfold."""
    known = [stop.value for stop in line.stops if stop.value is not None and math.isfinite(stop.value)]
    above = [value for value in known if value > 0]
    far = bool(above) and min(known) >= 0 and max(above) > 100 * min(above)

    def scaled(value: float) -> float:
        # What is 0 stands below the least.
        return value if not far else math.log(value) if value > 0 else math.log(min(above)) - 1

    low, high = (scaled(edge(known)) if known else 0.0 for edge in (min, max))
    room = high - low or 1.0
    step = (_WIDTH - 200) / max(len(line.stops) - 1, 1)
    height = _STOPS_HEIGHT

    def place(index: int, stop: Stop) -> tuple[float, float]:
        if stop.value is None or not math.isfinite(stop.value):
            return 100 + index * step, 24.0 if stop.value is not None else height - 6.0
        return 100 + index * step, height - 24 - (scaled(stop.value) - low) / room * (height - 56)

    places = [place(index, stop) for index, stop in enumerate(line.stops)]
    parts = []
    if line.between:
        left, right = (places[index][0] for index in line.between)
        parts.append(f'<rect class="found" x="{left:.0f}" y="0" width="{right - left:.0f}" height="{height}"/>')
    with_value = [spot for spot, stop in zip(places, line.stops, strict=True) if stop.value is not None]
    parts += [
        f'<line class="track" x1="{x0:.0f}" y1="{y0:.0f}" x2="{x1:.0f}" y2="{y1:.0f}"/>'
        for (x0, y0), (x1, y1) in pairwise(with_value)
    ]
    # Labels stand on as many lines as keep them apart.
    rows = max(1, min(3, math.ceil(150 / step)))
    for index, ((x, y), stop) in enumerate(zip(places, line.stops, strict=True)):
        said = escape(one_line(f"{stop.name}: {stop.text} {stop.word}"))
        kind = f'dot {tone(stop.word)}" r="6' if stop.value is not None else 'untried" r="4'
        dot = f'<circle class="{kind}" cx="{x:.0f}" cy="{y:.0f}"/>'
        name = _format_text(x, height + 16 + 16 * (index % rows), signed(stop.name, stop.word))
        value = _format_text(x, y - 12, stop.text, "value") if len(line.stops) <= _VALUED_STOPS else ""
        parts.append(f"<g><title>{said}</title>{dot}{name}{value}</g>")
    return _make_svg("stops", _WIDTH, height + _STOP_LABELS + 16 * (rows - 1), "".join(parts), line.text)


def _format_text(x: float, y: float, text: str, kind: str = "", anchor: str = "middle") -> str:
    said = escape(one_line(text, _LONGEST_TEXT))
    return f'<text class="{kind}" x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{said}</text>'


def _make_svg(kind: str, width: int, height: int, inside: str, text: str = "") -> Markup:
    said = f'role="img" aria-label="{escape(one_line(text, 1000))}"' if text else 'aria-hidden="true"'
    return _make_markup(f'<svg class="{kind}" viewBox="0 0 {width} {height}" {said}>{inside}</svg>')


def _make_markup(text: str) -> Markup:
    """Our own text, of which all that is others' was escaped."""
    return Markup(text)  # noqa: S704


class FileDrawing:
    """An SVG file that needs no style sheet: below its title what is drawn, and as large as that is.

    Attributes:
        left: where text stands that is aligned with the title.
        top: where there is room below the title.
    """

    left, top = float(_FILE_MARGIN), 3.0 * _FILE_MARGIN

    def __init__(self, title: str) -> None:
        self._parts: list[str] = []
        self._width = self._height = 0.0
        self.write(self.left, 1.25 * _FILE_MARGIN, title)

    def write(self, x: float, y: float, text: str, anchor: str = "start", *, turn: int = 0, ink: str = INK) -> float:
        """Write a text on one line, turned by so many degrees around (x, y); return where its right end is."""
        line = one_line(text)
        width, share, angle = measure_text(line), _ANCHORS.index(anchor) / 2, math.radians(turn)
        right = x + (1 - share) * width * math.cos(angle)
        self._extend(right, y - share * width * math.sin(angle))
        turned = f' transform="rotate({turn} {x:.1f} {y:.1f})"' if turn else ""
        place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{turned}'
        self._parts.append(f'<text {place} pointer-events="none" style="fill: {ink}">{escape(line)}</text>')
        return right

    def fill(self, x: float, y: float, width: float, height: float, style: str, title: str = "") -> None:
        """Draw a rectangle, with a title where a pointer rests on it."""
        self._extend(x + width, y + height)
        place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
        inside = f"<title>{escape(one_line(title))}</title>" if title else ""
        self._parts.append(f'<rect {place} style="{style}">{inside}</rect>')

    def connect(self, points: Iterable[tuple[float, float]], style: str) -> None:
        """Draw a line through points."""
        places = list(points)
        self._extend(*map(max, zip(*places, strict=True)))
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        self._parts.append(f'<polyline points="{line}" style="fill: none; {style}"/>')

    def finish(self) -> str:
        """Return the file."""
        width, height = (math.ceil(end) + _FILE_MARGIN for end in (self._width, self._height))
        size = f'width="{width}" height="{height}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {width} {height}" {_FONT}>'
        return "\n".join((head, f'<rect {size} style="fill: {PAPER}"/>', *self._parts, "</svg>\n"))

    def _extend(self, right: float, bottom: float) -> None:
        self._width, self._height = max(self._width, right), max(self._height, bottom)


def measure_text(text: str) -> float:
    """Estimate the width of a text in a file's font, in pixels; never too little."""
    return sum(_CHARACTER if character < "\u1100" else _WIDE_CHARACTER for character in text)
