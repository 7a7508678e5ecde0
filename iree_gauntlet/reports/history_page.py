"""The page of a history: what changed, and every series as a line that can be zoomed, in a file without network."""

from __future__ import annotations

import hashlib
import shlex
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

from iree_gauntlet.document import (
    Chart,
    Code,
    Column,
    Course,
    Document,
    Folded,
    Heading,
    Items,
    Kind,
    Link,
    Paragraph,
    Table,
)
from iree_gauntlet.figures import counted
from iree_gauntlet.records.bisect_outcome import BISECT_COMPARE
from iree_gauntlet.records.history_outcome import UNITS
from iree_gauntlet.records.history_outcome import Kind as Found
from iree_gauntlet.reports.history_document import change_line, changes_document, figure_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from iree_gauntlet.document import Block, Cell, Text
    from iree_gauntlet.records.history_outcome import Finding, HistoryOutcome, Point, Series, SeriesKey


_BISECTED = {
    "time_ms": "time",
    "compile_s": "compile-time",
    "size_bytes": "size",
    "dispatches": "dispatches",
    "instructions": "instructions",
}
_COMMIT_CHARACTERS = 40
_FOLDED_FROM = 10
# Words of a point's origin.
_RUN, _IREE, _DAY, _COMMIT, _NAMED, _FILE = range(6)
# Of the series of a case: what people look for first stands first.
_FIRST = ("time_ms", "instructions", "max_error", "dispatches", "size_bytes", "compile_s")
_ORDER = {name: place for place, name in enumerate(_FIRST)}
# Values of a small course: of more, the last.
_COURSE = 60


def history_page(outcome: HistoryOutcome, now: str, memory: str = "") -> Document:
    """What changed first, then every series in a table, then a part for each case, with a chart for each series.

    Args:
        outcome: what the history says.
        now: `2026-11-25T10:45Z`.
        memory: of the page that this one replaces: what came since then stands first.
    """
    changed = changes_document(outcome)
    ordered = sorted(
        outcome.series, key=lambda item: (item.key.case, _ORDER.get(item.key.figure, len(_ORDER)), item.key)
    )
    cases = [(case, tuple(series)) for case, series in groupby(ordered, key=lambda item: item.key.case)]
    anchors = {case: f"case-{number}" for number, (case, _) in enumerate(cases)}
    blocks = [*_changes(outcome, memory), Heading("Every series"), *_every(ordered, outcome, anchors)]
    for number, (case, series) in enumerate(cases):
        blocks.append(Heading(case, anchor=f"case-{number}"))
        for item in series:
            blocks += _series(item, [found for found in outcome.findings if found.key == item.key])
    return Document(
        "History",
        changed.answer,
        changed.facts,
        tuple(blocks),
        exit_code=outcome.exit_code,
        meaning=changed.meaning,
        memory=" ".join((now, *map(_identity, outcome.findings))),
    )


def _changes(outcome: HistoryOutcome, memory: str) -> Iterable[Block]:
    """What changed; where there was a page before, what is new since then, and the rest below it."""
    before, *known = memory.split() or [""]
    new = tuple(item for item in outcome.findings if _identity(item) not in known)
    if not before:
        yield from (Heading("What changed"), *_losses_first(outcome))
        return
    yield from (Heading(f"New since {before}"), *_new(outcome, new))
    old = tuple(item for item in outcome.findings if item not in new)
    if old:
        yield from (Heading("Known before"), *_losses_first(replace(outcome, findings=old, problems=())))


def _new(outcome: HistoryOutcome, found: tuple[Finding, ...]) -> tuple[Block, ...]:
    if found or outcome.problems:
        return _losses_first(replace(outcome, findings=found))
    return (Paragraph(("Nothing is new.",)),)


def _losses_first(outcome: HistoryOutcome) -> tuple[Block, ...]:
    """What changed; where much is better, or as good again, that is folded."""
    better = tuple(item for item in outcome.findings if item.kind is Found.IMPROVEMENT or item.settled)
    if len(better) < _FOLDED_FROM:
        return changes_document(outcome).blocks
    worse = tuple(item for item in outcome.findings if item not in better)
    folded = changes_document(replace(outcome, findings=better, problems=())).blocks
    blocks = changes_document(replace(outcome, findings=worse)).blocks
    return (*blocks, Folded(f"{len(better)} that are better, or as good again", folded))


def _identity(finding: Finding) -> str:
    """The same for the same change on every page."""
    key, point = finding.key, finding.after
    words = (key.title, key.sku, key.machine, key.flags, str(finding.kind), point.run, point.time)
    return hashlib.sha256("\0".join(words).encode()).hexdigest()[:16]


def _every(ordered: Sequence[Series], outcome: HistoryOutcome, anchors: Mapping[str, str]) -> Iterable[Block]:
    """For each machine a table: a row for each model, and its figures side by side, each as a small course.

    A figure that a model has with several flags is in as many rows.
    """
    by_machine: dict[str, dict[str, list[dict[str, Cell]]]] = {}
    for item in ordered:
        key, last = item.key, item.points[-_COURSE:]
        found = [finding for finding in outcome.findings if finding.key == key]
        before = len(item.points) - len(last)
        changes = tuple(finding.at - before for finding in found if finding.at > before)
        worse = any(finding.kind is Found.REGRESSION and not finding.settled for finding in found)
        newest = figure_text(last[-1].value, key.figure)
        course = Course(tuple(point.value for point in last), newest, changes, word="bad" if worse else "")
        rows = by_machine.setdefault(key.sku or key.machine, {}).setdefault(key.case, [])
        if all(key.figure in row for row in rows):
            rows.append({})
        next(row for row in rows if key.figure not in row)[key.figure] = course
    for name, cases in by_machine.items():
        known = {figure for rows in cases.values() for row in rows for figure in row}
        figures = sorted(known, key=lambda figure: (_ORDER.get(figure, len(_ORDER)), figure))
        columns = (Column("model", Kind.NAME), *(Column(figure, Kind.DRAWN) for figure in figures))
        lines = (
            (Link(case, f"#{anchors[case]}"), *map(row.get, figures)) for case, rows in cases.items() for row in rows
        )
        yield Heading(name, 3)
        yield Table(columns, tuple(lines))


def _series(series: Series, findings: Sequence[Finding]) -> Iterable[Block]:
    key, points = series.key, series.points
    values = [point.value for point in points]
    where = f"{key.sku or key.machine}, flags {key.flags or '–'}"
    low, high = (figure_text(edge, key.figure) for edge in (min(values), max(values)))
    newest = figure_text(values[-1], key.figure)
    said = f"{key.title}: {low} to {high} in {counted(len(values), 'run')}, newest {newest}"
    yield Heading(f"{key.figure}: {newest}", 3)
    yield Chart(
        said,
        f"{low} to {high}; {where}",
        tuple(values),
        UNITS.get(key.figure, ""),
        tuple(map(_origin, points)),
        tuple(_says(key)),
        next((point.golden for point in reversed(points) if point.golden is not None), None),
        tuple((item.at, item.kind is not Found.REGRESSION) for item in findings),
        tuple(place for place, point in enumerate(points) if point.disturbed),
    )
    lines: list[Text] = [(change_line(item), *_commits(item)) for item in findings]
    lines.append((f"newest: {points[-1].run}, IREE {points[-1].iree}, {points[-1].time[:10]}",))
    yield Items(tuple(lines))
    commands = [line for item in findings if (line := _bisect(item))]
    if commands:
        yield Code("\n".join(commands), "sh")


def _origin(point: Point) -> tuple[str, ...]:
    commit = point.commit if len(point.commit) == _COMMIT_CHARACTERS else ""
    return (point.run, point.iree, point.time[:10], commit, shlex.quote(point.named) if point.named else "", point.file)


def _says(key: SeriesKey) -> Iterable[tuple[str | int, ...]]:
    """What a point of the series leads to: its run, its commits, and the commands to run and to bisect it."""
    yield ("run ", _RUN, ", ", _FILE)
    yield ("IREE ", _IREE, ", ", _DAY)
    yield (f"{BISECT_COMPARE}/", ~_COMMIT, "...", _COMMIT)
    case = shlex.join(("--model", key.model, "--submodel", key.submodel, "--target", key.target))
    yield (f"gauntlet run {case} --iree ", _NAMED)
    if key.figure in _BISECTED:
        metric = f"--metric {_BISECTED[key.figure]}"
        yield ("gauntlet bisect --good ", ~_NAMED, " --bad ", _NAMED, f" {metric} {case}")


def _commits(finding: Finding) -> Text:
    old, new = finding.before.commit, finding.after.commit
    if old == new or {len(old), len(new)} != {_COMMIT_CHARACTERS}:
        return ()
    return (" · ", Link("commits", f"{BISECT_COMPARE}/{old}...{new}"))


def _bisect(finding: Finding) -> str:
    """The command that would find the release or commit; empty where nobody has to."""
    metric, key = _BISECTED.get(finding.key.figure), finding.key
    good, bad = finding.before.named, finding.after.named
    if metric is None or finding.kind is Found.IMPROVEMENT or finding.settled or not (good and bad) or good == bad:
        return ""
    words = ["gauntlet", "bisect", "--good", good, "--bad", bad, "--metric", metric, "--model", key.model]
    return shlex.join([*words, "--submodel", key.submodel, "--target", key.target])
