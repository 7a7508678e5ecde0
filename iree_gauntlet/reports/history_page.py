"""The page of a history: what changed, and every series as a line that can be zoomed, in a file without network."""

from __future__ import annotations

import hashlib
import math
import shlex
from dataclasses import replace
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any

from iree_gauntlet.document import (
    Chart,
    Code,
    ColouredCell,
    Column,
    ColumnKind,
    Course,
    Document,
    Folded,
    Heading,
    Items,
    Notes,
    Paragraph,
    Table,
    TextLink,
)
from iree_gauntlet.errors import ExitCode
from iree_gauntlet.figures import Figure
from iree_gauntlet.formatting import counted, milliseconds
from iree_gauntlet.records.bisect_outcome import BISECT_COMPARE
from iree_gauntlet.records.history_record import TRENDS, Finding, HistoryOutcome, Series
from iree_gauntlet.records.history_record import FindingKind as Found

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from iree_gauntlet.document import Block, Cell, Text
    from iree_gauntlet.records.history_record import IndexedRun, SeriesKey


_RUNS = (
    Column("day"),
    Column("run", ColumnKind.NAME),
    Column("IREE", ColumnKind.NAME),
    Column("machine", rank=2),
    Column("suite", rank=3),
    Column("state"),
    Column("cases", ColumnKind.NUMBER),
    Column("figures", ColumnKind.NUMBER, rank=1),
)
_CHANGES = (
    Column("what", ColumnKind.VERDICT),
    Column("series", ColumnKind.NAME),
    Column("change", ColumnKind.NAME),
    Column("old → new", ColumnKind.NAME),
    Column("since IREE", ColumnKind.NAME),
    Column("last before", ColumnKind.NAME, rank=2),
    Column("runs", ColumnKind.NUMBER, rank=1),
    Column("p", ColumnKind.NAME, rank=3),
    Column("machine", ColumnKind.NAME, rank=4),
)
_SHOWN = 60
_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 60
# Shares below it need a digit of their own, and from it on nobody thinks in per cent.
_SMALL, _TIMES = 0.001, 10.0
_MEANINGS = {
    ExitCode.OK: "nothing got worse",
    ExitCode.FAILED: "something got worse",
    ExitCode.INCONCLUSIVE: "something may have got worse",
}
_COMMIT_CHARACTERS = 40
_FOLDED_FROM = 10
# Words of a point's origin.
_RUN, _IREE, _DAY, _COMMIT, _NAMED, _FILE = range(6)
# In the order in which people look for them; those of others stand last.
_PLACES = {trend.name: trend.place for figure in Figure if (trend := figure.row.trend)}
# Values of a small course: of more, the last.
_COURSE = 60


def make_history_page(outcome: HistoryOutcome, now: str, memory: str = "") -> Document:
    """What changed first, then every series in a table, then a part for each case, with a chart for each series.

    `now` is like `2026-11-25T10:45Z`; `memory` of the page that this one replaces: what came since stands first.
    """
    changed = make_changes_document(outcome)
    ordered = sorted(
        outcome.series, key=lambda item: (item.key.case, _PLACES.get(item.key.figure, len(_PLACES)), item.key)
    )
    cases = [(case, tuple(series)) for case, series in groupby(ordered, key=lambda item: item.key.case)]
    anchors = {case: f"case-{number}" for number, (case, _) in enumerate(cases)}
    blocks = [*_show_changes(outcome, memory), Heading("Every series"), *_show_every(ordered, outcome, anchors)]
    for number, (case, series) in enumerate(cases):
        blocks.append(Heading(case, anchor=f"case-{number}"))
        for item in series:
            blocks += _show_series(item, [found for found in outcome.findings if found.key == item.key])
    return Document(
        "History",
        changed.answer,
        changed.facts,
        tuple(blocks),
        exit_code=outcome.exit_code,
        meaning=changed.meaning,
        memory=" ".join((now, *map(_format_identity, outcome.findings))),
    )


def _show_changes(outcome: HistoryOutcome, memory: str) -> Iterable[Block]:
    """What changed; where there was a page before, what is new since then, and the rest below it."""
    before, *known = memory.split() or [""]
    new = tuple(item for item in outcome.findings if _format_identity(item) not in known)
    if not before:
        yield from (Heading("What changed"), *_order_losses_first(outcome))
        return
    yield Heading(f"New since {before}")
    if new or outcome.problems:
        yield from _order_losses_first(replace(outcome, findings=new))
    else:
        yield Paragraph(("Nothing is new.",))
    old = tuple(item for item in outcome.findings if item not in new)
    if old:
        yield from (Heading("Known before"), *_order_losses_first(replace(outcome, findings=old, problems=())))


def _order_losses_first(outcome: HistoryOutcome) -> tuple[Block, ...]:
    """What changed; where much is better, or as good again, that is folded."""
    better = tuple(item for item in outcome.findings if item.kind is Found.IMPROVEMENT or item.settled)
    if len(better) < _FOLDED_FROM:
        return make_changes_document(outcome).blocks
    worse = tuple(item for item in outcome.findings if item not in better)
    folded = make_changes_document(replace(outcome, findings=better, problems=())).blocks
    blocks = make_changes_document(replace(outcome, findings=worse)).blocks
    return (*blocks, Folded(f"{len(better)} that are better, or as good again", folded))


def _format_identity(finding: Finding) -> str:
    """The same for the same change on every page."""
    key, point = finding.key, finding.after
    words = (key.title, key.sku, key.machine, key.flags, str(finding.kind), point.run, point.time)
    return hashlib.sha256("\0".join(words).encode()).hexdigest()[:16]


def _show_every(ordered: Sequence[Series], outcome: HistoryOutcome, anchors: Mapping[str, str]) -> Iterable[Block]:
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
        newest = _format_figure_text(last[-1].value, key.unit)
        course = Course(tuple(point.value for point in last), newest, changes, word="bad" if worse else "")
        rows = by_machine.setdefault(key.sku or key.machine, {}).setdefault(key.case, [])
        if all(key.figure in row for row in rows):
            rows.append({})
        next(row for row in rows if key.figure not in row)[key.figure] = course
    for name, cases in by_machine.items():
        known = {figure for rows in cases.values() for row in rows for figure in row}
        figures = sorted(known, key=lambda figure: (_PLACES.get(figure, len(_PLACES)), figure))
        columns = (Column("model", ColumnKind.NAME), *(Column(figure, ColumnKind.DRAWN) for figure in figures))
        lines = (
            (TextLink(case, f"#{anchors[case]}"), *map(row.get, figures))
            for case, rows in cases.items()
            for row in rows
        )
        yield Heading(name, 3)
        yield Table(columns, tuple(lines))


def _show_series(series: Series, findings: Sequence[Finding]) -> Iterable[Block]:
    key, points = series.key, series.points
    values = [point.value for point in points]
    where = f"{key.sku or key.machine}, flags {key.flags or '–'}"
    low, high = (_format_figure_text(edge, key.unit) for edge in (min(values), max(values)))
    newest = _format_figure_text(values[-1], key.unit)
    said = f"{key.title}: {low} to {high} in {counted(len(values), 'run')}, newest {newest}"
    yield Heading(f"{key.figure}: {newest}", 3)
    origins = []
    for point in points:
        commit = point.commit if len(point.commit) == _COMMIT_CHARACTERS else ""
        quoted = shlex.quote(point.named) if point.named else ""
        origins.append((point.run, point.iree, point.time[:10], commit, quoted, point.file))
    yield Chart(
        said,
        f"{low} to {high}; {where}",
        tuple(values),
        key.unit,
        tuple(origins),
        tuple(_list_statements(key)),
        next((point.golden for point in reversed(points) if point.golden is not None), None),
        tuple((item.at, item.kind is not Found.REGRESSION) for item in findings),
        tuple(place for place, point in enumerate(points) if point.disturbed),
    )
    lines: list[Text] = []
    for item in findings:
        old, new = item.before.commit, item.after.commit
        named = old != new and {len(old), len(new)} == {_COMMIT_CHARACTERS}
        link: Text = (" · ", TextLink("commits", f"{BISECT_COMPARE}/{old}...{new}")) if named else ()
        lines.append((_change_line(item), *link))
    lines.append((f"newest: {points[-1].run}, IREE {points[-1].iree}, {points[-1].time[:10]}",))
    yield Items(tuple(lines))
    commands = [line for item in findings if (line := _format_bisect(item))]
    if commands:
        yield Code("\n".join(commands), "sh")


def _list_statements(key: SeriesKey) -> Iterable[tuple[str | int, ...]]:
    """What a point of the series leads to: its run, its commits, and the commands to run and to bisect it."""
    yield ("run ", _RUN, ", ", _FILE)
    yield ("IREE ", _IREE, ", ", _DAY)
    yield (f"{BISECT_COMPARE}/", ~_COMMIT, "...", _COMMIT)
    case = shlex.join(("--model", key.model, "--submodel", key.submodel, "--target", key.target))
    yield (f"gauntlet run {case} --iree ", _NAMED)
    if metric := _find_metric(key):
        yield ("gauntlet bisect --good ", ~_NAMED, " --bad ", _NAMED, f" --metric {metric} {case}")


def _find_metric(key: SeriesKey) -> str:
    """The metric by which a series is bisected; empty where it is not."""
    figure = TRENDS.get(key.figure)
    return figure.row.metric if figure else ""


def _format_bisect(finding: Finding) -> str:
    """The command that would find the release or commit; empty where nobody has to."""
    metric, key = _find_metric(finding.key), finding.key
    good, bad = finding.before.named, finding.after.named
    if not metric or finding.kind is Found.IMPROVEMENT or finding.settled or not (good and bad) or good == bad:
        return ""
    words = ["gauntlet", "bisect", "--good", good, "--bad", bad, "--metric", metric, "--model", key.model]
    return shlex.join([*words, "--submodel", key.submodel, "--target", key.target])


def make_runs_document(runs: Sequence[IndexedRun]) -> Document:
    """A list of runs."""
    rows = tuple(
        (run.time[:10], run.run, run.iree, run.machine, run.suite, run.state, float(run.cases), float(run.figures))
        for run in runs
    )
    return Document("", counted(len(runs), "run"), (), (Table(_RUNS, rows),) if rows else ())


def make_changes_document(outcome: HistoryOutcome) -> Document:
    """What changed, the largest loss first."""
    findings = outcome.findings
    rows = tuple(map(_make_row, findings))
    blocks: list[Block] = [Table(_CHANGES, rows, _SHOWN)] if rows else [Paragraph(("Nothing changed.",))]
    notes = []
    if any(item.disturbed for item in findings):
        notes.append("* some of its runs were measured on a busy machine, and count for a quarter")
    if any(item.same_iree for item in findings):
        notes.append("† the IREE is the same before and after: something else changed, such as the machine")
    if notes:
        blocks.append(Notes(tuple(notes)))
    if outcome.problems:
        blocks += [Heading("Not read"), Items(tuple((problem,) for problem in outcome.problems))]
    worse = [item for item in outcome.regressions if not item.suspected]
    suspected = len(outcome.regressions) - len(worse)
    better = sum(item.kind is Found.IMPROVEMENT for item in findings)
    answer = f"{counted(len(worse), 'regression')}, {suspected} suspected, {counted(better, 'improvement')}"
    facts = (f"{counted(outcome.runs, 'run')}, {len(outcome.series)} series", outcome.place)
    code = outcome.exit_code
    return Document("What changed", answer, facts, tuple(blocks), (), code, meaning=_MEANINGS.get(code, ""))


def _make_row(item: Finding) -> tuple[Cell, ...]:
    good = item.settled or item.kind is Found.IMPROVEMENT
    colour = "passed" if good else "inconclusive" if item.suspected else "failed"
    share = item.change
    change = f"{100 * share:+.1f} %" if abs(share) >= _SMALL else f"{100 * share:+.1g} %"
    if share >= _TIMES:
        change = "from 0" if math.isinf(share) else f"×{1 + share:.3g}"
    if item.confirmed:
        change += f" ({item.confirmed}{f' ×{item.ratio:.3f}' if item.ratio else ''})"
    old, new = (_format_figure_text(value, item.key.unit) for value in (item.old, item.new))
    levels = f"{old} → {new}{' *' if item.disturbed else ''}"
    since = f"{item.after.iree} {item.after.time[:10]}{' †' if item.same_iree else ''}"
    likely = "exact" if item.p_value is None else "" if item.kind is Found.DRIFT else f"{item.p_value:.1g}"
    before, machine = f"{item.before.iree} {item.before.time[:10]}", item.key.sku or item.key.machine
    word = ColouredCell(item.word, colour)
    return word, item.key.title, change, levels, since, before, float(item.runs), likely, machine


def _change_line(item: Finding) -> str:
    """`regression: +4.0 %, 10 ms → 10.4 ms, since 3.9.0 2026-03-01`."""
    _, _, change, levels, since, *_ = _make_row(item)
    return f"{item.word}: {change}, {levels}, since {since}"


def make_series_document(outcome: HistoryOutcome) -> Document:
    """Each series as a line that is drawn with characters, and its changes."""
    blocks: list[Block] = []
    for series in outcome.series:
        values = [point.value for point in series.points]
        key, newest = series.key, series.points[-1]
        blocks.append(Heading(f"{key.title} ({key.sku or key.machine}, flags {key.flags or '–'})"))
        low, high = (_format_figure_text(edge, key.unit) for edge in (min(values), max(values)))
        blocks.append(Paragraph((f"{_format_sparkline(values)}  {low} to {high}, {counted(len(values), 'run')}",)))
        lines = [f"newest: {_format_figure_text(newest.value, key.unit)} with {newest.iree} on {newest.time[:10]}"]
        lines += [_change_line(item) for item in outcome.findings if item.key == key]
        blocks.append(Items(tuple((line,) for line in lines)))
    facts = (counted(outcome.runs, "run"), outcome.place)
    return Document("Series", f"{len(outcome.series)} series", facts, tuple(blocks))


def format_series_json(outcome: HistoryOutcome) -> dict[str, Any]:
    """All points, for programs."""
    fields = ("file", "run", "time", "iree", "commit", "value", "disturbed", "golden", "limit")
    return {
        "schema": 1,
        "series": [
            {
                **{name: getattr(item.key, name) for name in ("case", "figure", "sku", "machine", "flags")},
                "points": [{name: getattr(point, name) for name in fields} for point in item.points],
            }
            for item in outcome.series
        ],
        "findings": [item.as_dict() for item in outcome.findings],
    }


def export_rows(series: Iterable[Series]) -> Iterator[tuple[str | float | None, ...]]:
    """All figures, a row each, with a heading."""
    of_series = ("model", "submodel", "target", "figure", "sku", "machine", "flags")
    of_point = ("run", "time", "iree", "commit", "value", "disturbed", "golden", "limit")
    yield (*of_series, *of_point)
    for item in series:
        names = [getattr(item.key, column) for column in of_series]
        for point in item.points:
            figures = (getattr(point, column) for column in of_point)
            yield (*names, *(int(value) if isinstance(value, bool) else value for value in figures))


def _format_sparkline(values: Sequence[float], width: int = _WIDTH) -> str:
    """A line of characters, of medians where there are more values than room."""
    if len(values) > width:
        edges = [round(place * len(values) / width) for place in range(width + 1)]
        values = [sorted(values[start:end])[(end - start) // 2] for start, end in pairwise(edges)]
    low, high = min(values), max(values)
    if low == high:
        return _BARS[len(_BARS) // 2] * len(values)
    return "".join(_BARS[min(int((value - low) / (high - low) * len(_BARS)), len(_BARS) - 1)] for value in values)


def _format_figure_text(value: float, unit: str) -> str:
    """A figure with its unit."""
    if unit == "ms":
        return f"{milliseconds(value)} ms"
    text = f"{value:,.0f}" if value == int(value) and abs(value) >= 1 else f"{value:.4g}"
    return f"{text} {unit}".rstrip()
