"""The page of a history: what changed, and every series as a line, in a file that needs neither network nor scripts."""

from __future__ import annotations

import shlex
from itertools import groupby
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from iree_gauntlet.document import INK, PAPER, Code, Document, Heading, Items, Link, Picture
from iree_gauntlet.figures import counted
from iree_gauntlet.records.bisect_outcome import BISECT_COMPARE
from iree_gauntlet.records.history_outcome import EXACT, Kind
from iree_gauntlet.reports.history_document import change_line, changes_document, figure_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from iree_gauntlet.document import Block, Text
    from iree_gauntlet.records.history_outcome import Finding, HistoryOutcome, Point, Series


# Of a picture, in its own units; a page scales it.
_WIDTH, _HEIGHT, _EDGE = 720, 120, 8
# More points than this are a line without circles.
_CIRCLES = 150
_BISECTED = {"time_ms": "time", "compile_s": "compile-time", "size_bytes": "size", "dispatches": "dispatches"}
_COMMIT_CHARACTERS = 40


def history_page(outcome: HistoryOutcome) -> Document:
    """What changed first, then a part for each case, with a picture for each of its series."""
    changed = changes_document(outcome)
    blocks: list[Block] = [Heading(changed.title), *changed.blocks]
    numbered = enumerate(sorted(outcome.series, key=lambda item: item.key))
    for case, series in groupby(numbered, key=lambda item: item[1].key.case):
        blocks.append(Heading(case))
        for number, item in series:
            blocks += _series(item, number, [found for found in outcome.findings if found.key == item.key])
    return Document(
        "History", changed.answer, changed.facts, tuple(blocks), exit_code=outcome.exit_code, meaning=changed.meaning
    )


def _series(series: Series, number: int, findings: Sequence[Finding]) -> Iterable[Block]:
    key, points = series.key, series.points
    values = [point.value for point in points]
    where = f"{key.sku or key.machine}, flags {key.flags or '–'}"
    low, high = (figure_text(edge, key.figure) for edge in (min(values), max(values)))
    newest = figure_text(values[-1], key.figure)
    said = f"{key.title}: {low} to {high} in {counted(len(values), 'run')}, newest {newest}"
    yield Heading(f"{key.figure}: {newest}", 3)
    yield Picture(f"series_{number}.svg", _drawn(series, findings).encode(), said, f"{low} to {high}; {where}")
    lines: list[Text] = [(change_line(item), *_commits(item)) for item in findings]
    lines.append((f"newest: {points[-1].run}, IREE {points[-1].iree}, {points[-1].time[:10]}",))
    yield Items(tuple(lines))
    commands = [line for item in findings if (line := _bisect(item))]
    if commands:
        yield Code("\n".join(commands), "sh")


def _commits(finding: Finding) -> Text:
    old, new = finding.before.commit, finding.after.commit
    if old == new or {len(old), len(new)} != {_COMMIT_CHARACTERS}:
        return ()
    return (" · ", Link("commits", f"{BISECT_COMPARE}/{old}...{new}"))


def _bisect(finding: Finding) -> str:
    """The command that would find the release or commit; empty where nobody has to."""
    metric, key = _BISECTED.get(finding.key.figure), finding.key
    good, bad = finding.before.named, finding.after.named
    if metric is None or finding.kind is Kind.IMPROVEMENT or finding.settled or not (good and bad) or good == bad:
        return ""
    words = ["gauntlet", "bisect", "--good", good, "--bad", bad, "--metric", metric, "--model", key.model]
    return shlex.join([*words, "--submodel", key.submodel, "--target", key.target])


def _drawn(series: Series, findings: Sequence[Finding]) -> str:
    """The series as SVG: its figures in order, goldens dashed, changes as upright lines, disturbed figures hollow."""
    points = series.points
    goldens = [point.golden for point in points if point.golden is not None]
    edges = [point.value for point in points] + goldens
    low, high = min(edges), max(edges)
    # A line that hardly moves is not blown up to the whole height.
    room = max(high - low, abs(high) * (0.0 if series.key.figure in EXACT else 0.02)) or 1.0
    middle = (low + high) / 2

    def across(place: float) -> float:
        return _EDGE + place * (_WIDTH - 2 * _EDGE) / max(len(points) - 1, 1)

    def up(value: float) -> float:
        return _HEIGHT / 2 - (value - middle) / room * (_HEIGHT - 2 * _EDGE)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="{PAPER}"/>',
    ]
    for item in findings:
        x, dashes = across(item.at - 0.5), "" if item.kind is Kind.REGRESSION else ' stroke-dasharray="2 3"'
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{_HEIGHT}" style="stroke: {INK}" opacity="0.6"{dashes}>'
            f"<title>{escape(change_line(item))}</title></line>"
        )
    if goldens:
        y = up(goldens[-1])
        parts.append(
            f'<line x1="0" x2="{_WIDTH}" y1="{y:.1f}" y2="{y:.1f}" style="stroke: {INK}" stroke-dasharray="6 4"/>'
        )
    track = " ".join(f"{across(place):.1f},{up(point.value):.1f}" for place, point in enumerate(points))
    parts.append(f'<polyline points="{track}" fill="none" style="stroke: {INK}" stroke-width="1.5"/>')
    if len(points) <= _CIRCLES:
        parts += [_circle(across(place), up(point.value), point, series) for place, point in enumerate(points)]
    return "".join([*parts, "</svg>"])


def _circle(x: float, y: float, point: Point, series: Series) -> str:
    said = f"{point.run}, IREE {point.iree}, {point.time[:10]}: {figure_text(point.value, series.key.figure)}"
    fill = PAPER if point.disturbed else INK
    style = f"fill: {fill}; stroke: {INK}"
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" style="{style}"><title>{escape(said)}</title></circle>'
