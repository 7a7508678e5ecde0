"""Render a document as a self-contained HTML page with light and dark colours that is readable without scripts."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import jinja2
from markupsafe import Markup

from iree_gauntlet.document import (
    INK,
    PAPER,
    Chart,
    ColouredCell,
    Details,
    Document,
    HeatCell,
    LimitBar,
    PageOnly,
    Picture,
    TextLink,
    format_cell,
    get_verdict,
)
from iree_gauntlet.errors import ExitCode
from iree_gauntlet.formatting import VERDICT_STYLES, ColumnKind, clean_text, join_lines
from iree_gauntlet.reports.draw import draw_block, draw_column, draw_held_bar, tone
from iree_gauntlet.stages import Stage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from iree_gauntlet.document import Block, Cell, Table
    from iree_gauntlet.formatting import Column


_MEMORY = re.compile(r'<meta name="memory" content="([^"]*)">')
# Longer names may continue on another line behind spaces and these characters.
_NAME_BREAK, _MAX_WHOLE_NAME = re.compile(r"(?<=[/_$])(?=\w)"), 24
# This matches a number up to its decimal point.
_INTEGER_PART = re.compile(r"[^\d.]{0,2}[\d,]*")
# The verdict words of exit codes; other exit codes have `inconclusive`.
ENDINGS = {ExitCode.OK: "passed", ExitCode.FAILED: "failed", ExitCode.USAGE: "error", ExitCode.ERROR: "error"}


def render_html(document: Document, links: Sequence[TextLink] = ()) -> str:
    """Return the page, with links to other pages in its head; it ends with a newline."""
    environment = _make_environment()
    scripts = PageScripts(document.file_blocks)
    code, _, meaning = document.ending.partition(": ")
    ending = Markup()
    if document.exit_code is not None:
        ending = _make_badge(ENDINGS.get(document.exit_code, "inconclusive"), meaning) + Markup(" · {}").format(code)
    style = Markup(environment.get_template("page.css").render(stages=Stage) + "\n")  # noqa: S704 - our own
    values = {"document": document, "links": links, "scripts": scripts, "style": style, "ending": ending}
    return environment.get_template("document.html").render(values, ink=INK, paper=PAPER) + "\n"


@cache
def _make_environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        autoescape=True, finalize=_clean, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.loader = jinja2.FunctionLoader(_read_file)
    environment.filters |= {
        "kind": lambda block: type(block).__name__,
        "heading": _make_heading,
        "table": _make_table,
        "drawn": draw_block,
        "inlined": _inline_picture,
    }
    return environment


def read_memory(page: str) -> str:
    """Return the data that a page stores for the page that will replace it; empty for pages of other tools."""
    match = _MEMORY.search(page)
    return html.unescape(match[1]) if match else ""


def _clean(value: Any) -> Any:
    """Remove control characters from text; leave markup as it is."""
    return clean_text(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


def _make_badge(word: str, text: str) -> Markup:
    """Return a verdict as a badge, with its sign, its text and its colour."""
    style = VERDICT_STYLES.get(word)
    sign = Markup('<span aria-hidden="true">{}</span> ').format(style[1]) if style else Markup()
    return Markup('<span class="badge {}">{}{}</span>').format(tone(word), sign, clean_text(text))


def _make_heading(text: str) -> Markup | str:
    """Return a heading; a verdict before the colon becomes a badge."""
    word, colon, remainder = text.partition(": ")
    return _make_badge(word, word) + Markup(" ") + clean_text(remainder) if colon and word in VERDICT_STYLES else text


def _make_table(table: Table, title: str) -> Markup:
    """Return a table with a title for screen readers; on screens narrower than 40 rem, each row becomes a card."""
    sticky_index = next((index for index, column in enumerate(table.columns) if column.kind is ColumnKind.NAME), 0)
    heads, bodies = [], []
    for index, column in enumerate(table.columns):
        cells = [row[index] for row in table.rows]
        axis: str = ""
        contents: Sequence[str]
        if column.kind is ColumnKind.DRAWN:
            axis, contents = draw_column(column, cells)
        else:
            contents = _format_column(column, cells)
        css_class = "right" if column.right else column.kind.value
        classes = f' class="{css_class}{" stay" if index == sticky_index else ""}"'
        unit = f" <small>{html.escape(column.unit)}</small>" if column.unit else ""
        heads.append(f'<th scope="col"{classes}>{_escape(column.title)}{unit}{axis}</th>')
        start = f'<td{classes} data-of="{_escape(column.heading)}"'
        cell_contents = zip(cells, contents, strict=True)
        bodies.append([f"{start}{_format_attributes(cell)}>{content}</td>" for cell, content in cell_contents])
    head = f"<thead><tr>{''.join(heads)}</tr></thead>\n" if any(column.title for column in table.columns) else ""
    rows = "".join(f"<tr>{''.join(row)}</tr>\n" for row in zip(*bodies, strict=True))
    # All parts from other sources were escaped.
    start = f'<div class="wide"><table class="cards" aria-label="{_escape(title)}">'
    return Markup(f"{start}\n{head}<tbody>\n{rows}</tbody></table></div>")  # noqa: S704


def _format_column(column: Column, cells: Sequence[Cell]) -> list[str]:
    longest_tail = ""
    if column.right:
        # Align by the longest tail (the part from the decimal point on), unless all tails have the same length.
        tails = [_split_at_point(format_cell(column, cell))[1] for cell in cells if not isinstance(cell, ColouredCell)]
        longest_tail = max(tails, key=len) if len(set(map(len, tails))) > 1 else ""
    return [_format_cell(column, cell, longest_tail) for cell in cells]


def _format_attributes(cell: Cell) -> str:
    if cell is None:
        return " data-none"
    if isinstance(cell, ColouredCell) and cell.anchor:
        return f' id="{_escape(cell.anchor)}"'
    if not isinstance(cell, HeatCell) or abs(cell.share) < 0.02:
        return ""
    shade = "var(--bad)" if cell.share > 0 else "var(--good)"
    return f' style="background: color-mix(in srgb, {shade} {45 * min(abs(cell.share), 1):.0f}%, var(--paper))"'


def _format_cell(column: Column, cell: Cell, tail: str) -> str:
    text = format_cell(column, cell)
    if isinstance(cell, TextLink | ColouredCell) and cell.url:
        plain_cell = text if isinstance(cell, TextLink) else replace(cell, url="")
        return f'<a href="{html.escape(cell.url)}">{_format_cell(column, plain_cell, tail)}</a>'
    word = get_verdict(column, cell)
    if isinstance(cell, LimitBar):
        # Format both with an f-string, because `text + markup` would escape the text again.
        return f"{_format_aligned(text, tail)}{draw_held_bar(cell.share, cell.verdict)}"
    if column.kind is ColumnKind.VERDICT:
        return _make_badge(word, text) if word in VERDICT_STYLES else html.escape(text)
    if word in VERDICT_STYLES:
        return f'<span class="{tone(word)}">{_format_aligned(text, tail) if column.right else html.escape(text)}</span>'
    if column.kind is ColumnKind.NAME:
        words = [f"<span>{_NAME_BREAK.sub('<wbr>', word)}</span>" for word in html.escape(text).split(" ")]
        return f"<code>{' '.join(words) if len(text) > _MAX_WHOLE_NAME else html.escape(text)}</code>" if text else ""
    return _format_aligned(text, tail) if column.right else html.escape(text)


def _format_aligned(text: str, tail: str) -> str:
    """Align a number with its column by the decimal point: make the part after the point as wide as `tail`."""
    integer_part, remainder = _split_at_point(text)
    if not tail or not any(map(str.isdigit, integer_part)):
        return html.escape(text)
    tail_markup = f'<span class="tail" data-as="{html.escape(tail)}">{html.escape(remainder)}</span>'
    return f"<span>{html.escape(integer_part)}{tail_markup}</span>"


def _split_at_point(text: str) -> tuple[str, str]:
    match = _INTEGER_PART.match(text)
    position = match.end() if match and any(map(str.isdigit, match[0])) else len(text)
    return text[:position], text[position:]


def _escape(text: str) -> str:
    return html.escape(join_lines(text))


def _inline_picture(picture: Picture) -> Markup:
    """Return a picture as part of the page."""
    label = Markup('<svg role="img" aria-label="{}"').format(clean_text(picture.text))
    return Markup(picture.svg.replace("<svg", label, 1))  # noqa: S704


class PageScripts:
    """The scripts of a document, with the data of its charts."""

    def __init__(self, blocks: Iterable[Block]) -> None:
        self._charts = tuple(_list_charts(blocks))
        self._numbers = {id(chart): number for number, chart in enumerate(self._charts)}
        self._scripts = [_read_file("page.js")]
        if self._charts:
            licence, library = (_read_file("uplot/LICENSE").strip(), _read_file("uplot/uPlot.iife.min.js").strip())
            self._scripts.append(f"/*\n{licence}\n*/\n{library}\n{_read_file('charts.js')}")

    def number(self, chart: Chart) -> int:
        """Return the chart's number."""
        return self._numbers[id(chart)]

    @property
    def policy(self) -> Markup:
        """The page's content policy, which lets only these scripts run, whatever text the page contains."""
        digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in self._scripts)
        return Markup("; script-src {}").format(Markup(" ").join(map(Markup("'sha256-{}'").format, digests)))

    @property
    def style(self) -> Markup:
        """The style sheet of uPlot."""
        return Markup(_read_file("uplot/uPlot.min.css")) if self._charts else Markup()  # noqa: S704

    @property
    def written(self) -> Markup:
        """The data and the scripts, for the end of the page."""
        # Escape `<`, the only special character inside a script element.
        data = json.dumps(_make_data(self._charts), separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
        charts = Markup('<script type="application/json" id="charts">{}</script>\n').format(Markup(data))  # noqa: S704
        scripts = (Markup("<script>{}</script>").format(Markup(script)) for script in self._scripts)  # noqa: S704
        return (charts if self._charts else Markup()) + Markup("\n").join(scripts)


def _list_charts(blocks: Iterable[Block]) -> Iterator[Chart]:
    for block in blocks:
        if isinstance(block, Chart):
            yield block
        elif isinstance(block, Details | PageOnly):
            yield from _list_charts(block.blocks)


def _make_data(charts: Iterable[Chart]) -> dict[str, Any]:
    """Return the input of `charts.js`; origins and lists of origins are stored once, because most charts share them."""
    origins: dict[tuple[str, ...], int] = {}
    tracks: dict[tuple[int, ...], int] = {}
    chart_entries = []
    for chart in charts:
        track = tuple(origins.setdefault(tuple(map(clean_text, origin)), len(origins)) for origin in chart.origins)
        chart_entries.append(
            {
                "track": tracks.setdefault(track, len(tracks)),
                "values": [int(value) if value == int(value) else float(f"{value:.6g}") for value in chart.values],
                "unit": chart.unit,
                "tooltip_lines": chart.tooltip_lines,
                "level": chart.level,
                "changes": chart.changes,
                "disturbed": chart.disturbed,
            }
        )
    return {"origins": list(origins), "tracks": list(tracks), "charts": chart_entries}


@cache
def _read_file(name: str) -> str:
    """Read a file next to this one."""
    return (files(__package__) / name).read_text(encoding="utf-8")
