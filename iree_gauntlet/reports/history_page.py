"""Make the page of a history, in one self-contained HTML file: the changes, and a zoomable chart of every series."""

from __future__ import annotations

import hashlib
import shlex
from dataclasses import replace
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any

from iree_gauntlet.document import (
    Chart,
    ColouredCell,
    Details,
    Document,
    Heading,
    Items,
    Notes,
    Paragraph,
    Sparkline,
    Table,
    TextLink,
)
from iree_gauntlet.errors import ExitCode
from iree_gauntlet.figures import Figure
from iree_gauntlet.formatting import Column, ColumnKind, format_bytes, format_milliseconds, format_ratio, pluralize
from iree_gauntlet.records.bisect_outcome import COMMIT_COMPARISON_URL
from iree_gauntlet.records.history_record import FIGURES_BY_SERIES, Finding, HistoryOutcome, Series
from iree_gauntlet.records.history_record import FindingKind as Found
from iree_gauntlet.reports.report_files import list_next_steps

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from iree_gauntlet.document import Block, Cell, Text
    from iree_gauntlet.records.history_record import FailureRate, RunIndexEntry, SeriesKey


_RUN_COLUMNS = (
    Column("day"),
    Column("run", ColumnKind.NAME),
    Column("IREE", ColumnKind.NAME),
    Column("machine", drop_order=2),
    Column("SKU", drop_order=2),
    Column("suite", drop_order=3),
    Column("state"),
    Column("cases", ColumnKind.NUMBER),
    Column("figures", ColumnKind.NUMBER, drop_order=1),
)
_CHANGE_COLUMNS = (
    Column("what", ColumnKind.VERDICT),
    Column("series", ColumnKind.NAME),
    Column("change", ColumnKind.NAME),
    Column("old → new", ColumnKind.NAME),
    Column("since IREE", ColumnKind.NAME),
    Column("last before", ColumnKind.NAME, drop_order=2),
    Column("runs", ColumnKind.NUMBER, drop_order=1),
    Column("p", ColumnKind.NAME, drop_order=3),
    Column("machine", ColumnKind.NAME, drop_order=4),
)
_RATE_COLUMNS = (
    Column("verdict", ColumnKind.VERDICT),
    Column("model", ColumnKind.NAME),
    Column("failed"),
    Column("rate", ColumnKind.NAME),
    Column("since", ColumnKind.NAME),
    Column("last", ColumnKind.NAME, drop_order=1),
    Column("machine", ColumnKind.NAME, drop_order=2),
)
_TERMINAL_ROWS = 60
_POINT_FIELDS = ("file", "run", "time", "iree", "commit", "value", "disturbed", "golden", "limit")
_BARS = "▁▂▃▄▅▆▇█"
_SPARKLINE_WIDTH = 60
# Smaller changes have one significant digit.
_SMALL_SHARE = 0.001
_MEANINGS = {
    ExitCode.OK: "nothing got worse",
    ExitCode.FAILED: "something got worse",
    ExitCode.INCONCLUSIVE: "something may have got worse",
}
_COMMIT_CHARACTERS = 40
_MIN_FOLDED_FINDINGS, _MAX_NEXT_COMMANDS = 10, 3
# These are indices into a point's origin.
_RUN, _IREE, _DAY, _COMMIT, _NAMED, _FILE = range(6)
# The most interesting metrics come first, and unknown metrics last.
_ORDER = {view.name: view.position for figure in Figure if (view := figure.row.history)}
# A small chart has only the last values, at most this many.
_MAX_SPARKLINE_VALUES = 60


def make_history_page(outcome: HistoryOutcome, now: str, stored_data: str = "") -> Document:
    """Return the page: the changes, then a table of all series, then for each case a part with a chart per series.

    `now` is like `2026-11-25T10:45Z`. `stored_data` has the changes that the previous page showed; new ones come first.
    """
    changes = make_changes_document(outcome)
    by_case = sorted(
        outcome.series, key=lambda series: (series.key.case, _ORDER.get(series.key.figure, len(_ORDER)), series.key)
    )
    cases = [(case, tuple(series)) for case, series in groupby(by_case, key=lambda series: series.key.case)]
    anchors = {case: f"case-{number}" for number, (case, _) in enumerate(cases)}
    changed = {finding.key for finding in outcome.findings}
    commands = [command for finding in outcome.findings if (command := finding.bisect_command)]
    next_steps = list_next_steps(commands[:_MAX_NEXT_COMMANDS])
    blocks = [
        *_show_changes(replace(outcome, rates=()), stored_data),
        *next_steps,
        *_show_rates(outcome.rates),
        Heading("Every series"),
    ]
    blocks += _show_all(by_case, outcome, anchors)
    for number, (case, group) in enumerate(cases):
        blocks.append(Heading(case, anchor=f"case-{number}"))
        calm: list[Block] = []
        for series in group:
            (blocks if series.key in changed else calm).extend(_show_series(series, outcome))
        blocks += [Details("what did not change", tuple(calm))] if calm else []
    return Document(
        "History",
        changes.answer,
        changes.facts,
        tuple(blocks),
        exit_code=outcome.exit_code,
        meaning=changes.meaning,
        stored_data=" ".join((now, *map(_format_identity, outcome.findings))),
    )


def _show_changes(outcome: HistoryOutcome, memory: str) -> Iterable[Block]:
    """Show the changes; those that the previous page (if any) did not show come first."""
    previous_time, *known_ids = memory.split() or [""]
    new_findings = tuple(finding for finding in outcome.findings if _format_identity(finding) not in known_ids)
    if not previous_time:
        yield from (Heading("What changed"), *_order_losses_first(outcome))
        return
    yield Heading(f"New since {previous_time}")
    if new_findings or outcome.problems:
        yield from _order_losses_first(replace(outcome, findings=new_findings))
    else:
        yield Paragraph(("Nothing is new.",))
    old_findings = tuple(finding for finding in outcome.findings if finding not in new_findings)
    if old_findings:
        yield from (Heading("Known before"), *_order_losses_first(replace(outcome, findings=old_findings, problems=())))


def _order_losses_first(outcome: HistoryOutcome) -> tuple[Block, ...]:
    """Show the changes, losses first; many improvements, or many settled changes, are folded."""
    better = tuple(item for item in outcome.findings if not item.needs_action)
    if len(better) < _MIN_FOLDED_FINDINGS:
        return make_changes_document(outcome).blocks
    regressions = tuple(finding for finding in outcome.findings if finding not in better)
    improvement_blocks = make_changes_document(replace(outcome, findings=better, problems=())).blocks
    blocks = make_changes_document(replace(outcome, findings=regressions)).blocks
    return (*blocks, Details(f"{len(better)} improved or recovered", improvement_blocks))


def _format_identity(finding: Finding) -> str:
    """Return an identifier of a change, the same on every page."""
    key, point = finding.key, finding.point_after
    words = (key.title, key.sku, key.machine, key.flags, str(finding.kind), point.run, point.time)
    return hashlib.sha256("\0".join(words).encode()).hexdigest()[:16]


def _show_all(by_case: Sequence[Series], outcome: HistoryOutcome, anchors: Mapping[str, str]) -> Iterable[Block]:
    """Show a table for each machine: a model's metrics side by side as small charts, in a row for each of its flags."""
    by_machine: dict[str, dict[str, list[dict[str, Cell]]]] = {}
    for series in by_case:
        key, last = series.key, series.points[-_MAX_SPARKLINE_VALUES:]
        findings = [finding for finding in outcome.findings if finding.key == key]
        offset = len(series.points) - len(last)
        changes = tuple(finding.index - offset for finding in findings if finding.index > offset)
        has_regression = any(finding.needs_action for finding in findings)
        (newest,) = _format_figures(key.unit, last[-1].value)
        verdict = "bad" if has_regression else ""
        course = Sparkline(tuple(point.value for point in last), newest, changes, verdict=verdict)
        rows = by_machine.setdefault(key.sku or key.machine, {}).setdefault(key.case, [])
        if all(key.figure in row for row in rows):
            rows.append({})
        next(row for row in rows if key.figure not in row)[key.figure] = course
    for name, cases in by_machine.items():
        known_figures = {figure for rows in cases.values() for row in rows for figure in row}
        figures = sorted(known_figures, key=lambda figure: (_ORDER.get(figure, len(_ORDER)), figure))
        columns = (Column("model", ColumnKind.NAME), *(Column(figure, ColumnKind.DRAWN) for figure in figures))
        lines = (
            (TextLink(case, f"#{anchors[case]}"), *map(row.get, figures))
            for case, rows in cases.items()
            for row in rows
        )
        yield Heading(name, 3)
        yield Table(columns, tuple(lines))


def _show_series(series: Series, outcome: HistoryOutcome) -> Iterable[Block]:
    key, points = series.key, series.points
    findings = [finding for finding in outcome.findings if finding.key == key]
    values = [point.value for point in points]
    group = f"{key.sku or key.machine}, flags {key.flags or '–'}"
    low, high, newest = _format_figures(key.unit, min(values), max(values), values[-1])
    scale, unit = (1e6, "MB") if key.unit == "B" else (1, key.unit)
    golden = next((point.golden for point in reversed(points) if point.golden is not None), None)
    title = f"{key.title}: {low} to {high} in {pluralize(len(values), 'run')}, newest {newest}"
    yield Heading(f"{key.figure}: {newest}", 3)
    origins = []
    for point in points:
        commit = point.commit if len(point.commit) == _COMMIT_CHARACTERS else ""
        iree_argument = shlex.quote(point.iree_arg) if point.iree_arg else ""
        origins.append((point.run, point.iree, point.time[:10], commit, iree_argument, point.file))
    yield Chart(
        title,
        group,
        tuple(value / scale for value in values),
        unit,
        tuple(origins),
        tuple(_list_point_actions(key)),
        None if golden is None else golden / scale,
        tuple((finding.index, not finding.needs_action) for finding in findings),
        tuple(index for index, point in enumerate(points) if point.disturbed),
    )
    lines: list[Text] = []
    for finding in findings:
        old, new = finding.point_before.commit, finding.point_after.commit
        has_commits = old != new and {len(old), len(new)} == {_COMMIT_CHARACTERS}
        link: Text = (" · ", TextLink("commits", f"{COMMIT_COMPARISON_URL}/{old}...{new}")) if has_commits else ()
        lines.append((_format_change_line(finding), *link))
    lines.append((f"newest: {points[-1].run} of {points[-1].time[:10]}, IREE {points[-1].iree}",))
    yield Items(tuple(lines))
    yield from list_next_steps(finding.bisect_command for finding in findings)


def _list_point_actions(key: SeriesKey) -> Iterable[tuple[str | int, ...]]:
    """Yield the actions for a point of the series: links to run and commits, commands to run and to bisect."""
    yield ("run ", _RUN, " of ", _DAY, ", ", _FILE)
    yield ("IREE ", _IREE)
    yield (f"{COMMIT_COMPARISON_URL}/", ~_COMMIT, "...", _COMMIT)
    case = shlex.join(key.selection_options)
    yield (f"gauntlet run {case} --iree ", _NAMED)
    if metric := key.bisect_metric:
        yield ("gauntlet bisect --good ", ~_NAMED, " --bad ", _NAMED, f" --metric {metric} {case}")


def _show_rates(rates: Sequence[FailureRate]) -> Iterator[Block]:
    """Show how often cases fail, and the quarantines that can end."""
    if not rates:
        return
    rows = []
    for rate in rates:
        share = f"{100 * rate.failures / rate.runs:.0f} % ({100 * rate.low:.0f} to {100 * rate.high:.0f} %)"
        since, last = (f"{point.time[:10]}, {point.iree}" if point else "" for point in (rate.first, rate.last))
        verdict = ColouredCell(f"{rate.kind}{' (quarantine)' if rate.quarantine else ''}", rate.kind)
        rows.append(
            (verdict, rate.case, f"{rate.failures} of {rate.runs}", share, since, last, rate.sku or rate.machine)
        )
    yield Heading("Cases that fail")
    yield Table(_RATE_COLUMNS, tuple(rows), _TERMINAL_ROWS).filled_form
    yield Paragraph(("In brackets: the interval with 95 % confidence. Repetitions of a step do not count.",))
    if released := [rate for rate in rates if rate.can_be_released]:
        yield Heading("Quarantines that can end")
        lines = (
            f"{rate.case}: passed in the last {rate.passes_in_a_row} runs: remove {rate.quarantine}"
            for rate in released
        )
        yield Items(tuple((line,) for line in lines))


def make_runs_document(runs: Sequence[RunIndexEntry], rates: Sequence[FailureRate] = ()) -> Document:
    """Return a document with a list of runs, and the rates of cases that fail."""
    rows = tuple(
        (
            *(run.time[:10], run.run, run.iree, run.machine, run.skus or "none", run.suite, run.state),
            *(float(run.cases), float(run.figures)),
        )
        for run in runs
    )
    blocks = (*(Table(_RUN_COLUMNS, rows).short_form if rows else ()), *_show_rates(rates))
    return Document("", pluralize(len(runs), "run"), (), blocks)


def make_changes_document(outcome: HistoryOutcome) -> Document:
    """Return a document with the changes, the largest loss first."""
    findings = outcome.findings
    table = Table(_CHANGE_COLUMNS, tuple(map(_make_row, findings)), _TERMINAL_ROWS)
    blocks: list[Block] = [*(table.short_form if findings else [Paragraph(("Nothing changed.",))])]
    notes = []
    if any(finding.disturbed for finding in findings):
        notes.append("* some of its runs were measured on a busy machine and have a quarter of the weight")
    if any(finding.same_iree for finding in findings):
        notes.append("† the IREE is the same before and after: something else changed, such as the machine")
    if notes:
        blocks.append(Notes(tuple(notes)))
    blocks += _show_rates(outcome.rates)
    if outcome.problems:
        blocks += [Heading("Not read"), Items(tuple((problem,) for problem in outcome.problems))]
    worse = [finding for finding in outcome.regressions if not finding.suspected]
    suspects = len(outcome.regressions) - len(worse)
    better = sum(finding.kind is Found.IMPROVEMENT and not finding.undone for finding in findings)
    answer = f"{pluralize(len(worse), 'regression')}, {suspects} suspected, {pluralize(better, 'improvement')}"
    facts = (f"{pluralize(outcome.runs, 'run')}, {len(outcome.series)} series", outcome.location)
    code = outcome.exit_code
    return Document("What changed", answer, facts, tuple(blocks), (), code, meaning=_MEANINGS.get(code, ""))


def _make_row(finding: Finding) -> tuple[Cell, ...]:
    colour = "inconclusive" if finding.suspected else "failed"
    if not finding.needs_action:
        colour = "skipped" if finding.undone else "passed"
    change = _format_change(finding, finding.today) + (" today" if finding.until else "")
    if finding.confirmed:
        change += f" ({finding.confirmed}{f' ×{finding.ratio:.3f}' if finding.ratio else ''})"
    old, new = _format_figures(finding.key.unit, finding.old, finding.today)
    levels = f"{old} → {new}{' *' if finding.disturbed else ''}"
    since = finding.point_after.dated_iree
    if finding.until:
        ends = (point.iree_arg or point.iree for point in (finding.point_after, finding.until))
        place = " to ".join(dict.fromkeys(ends))
        since = f"was {_format_change(finding, finding.new)} {'from' if ' to ' in place else 'with'} {place}"
    since += " †" if finding.same_iree else ""
    likely = "exact" if finding.p_value is None else "" if finding.kind is Found.DRIFT else f"{finding.p_value:.1g}"
    last_before, machine = finding.point_before.dated_iree, finding.key.sku or finding.key.machine
    verdict = ColouredCell(finding.label, colour)
    return verdict, finding.key.title, change, levels, since, last_before, float(finding.runs), likely, machine


def _format_change(finding: Finding, level: float) -> str:
    """Return a level's change from the old one: `+4.0 %`, `×3.1` for an error and from double or half on, `from 0`."""
    if not finding.old:
        return "from 0"
    share = (level - finding.old) / abs(finding.old)
    if FIGURES_BY_SERIES.get(finding.key.quantity) is Figure.ERROR:
        return f"×{1 + share:.3g}"
    return format_ratio(1 + share) if abs(share) >= _SMALL_SHARE else f"{100 * share:+.1g} %"


def _format_change_line(finding: Finding) -> str:
    """Return `regression: +4.0 %, 10 ms → 10.4 ms, since 3.9.0, run 2026-03-01`."""
    _, _, change, levels, since, *_ = _make_row(finding)
    return f"{finding.label}: {change}, {levels}, {'' if finding.until else 'since '}{since}"


def make_series_document(outcome: HistoryOutcome) -> Document:
    """Return a document with each series as a sparkline, and its changes."""
    blocks: list[Block] = []
    for series in outcome.series:
        values = [point.value for point in series.points]
        key, newest = series.key, series.points[-1]
        blocks.append(Heading(f"{key.title} ({key.sku or key.machine}, flags {key.flags or '–'})"))
        low, high, last = _format_figures(key.unit, min(values), max(values), newest.value)
        busy_count = sum(point.disturbed for point in series.points)
        runs = f"{pluralize(len(values), 'run')}{f', {busy_count} on a busy machine (*)' if busy_count else ''}"
        blocks.append(Paragraph((f"{_format_sparkline(values)}  {low} to {high}, {runs}",)))
        lines = [f"newest: {last}{' *' if newest.disturbed else ''} with {newest.iree} on {newest.time[:10]}"]
        lines += [_format_change_line(finding) for finding in outcome.findings if finding.key == key]
        blocks.append(Items(tuple((line,) for line in lines)))
    facts = (pluralize(outcome.runs, "run"), outcome.location)
    return Document("Series", f"{len(outcome.series)} series", facts, tuple(blocks))


def format_series_json(outcome: HistoryOutcome) -> dict[str, Any]:
    """Return all points, for programs."""
    return {
        "schema": 1,
        "series": [
            {
                **{name: getattr(series.key, name) for name in ("case", "figure", "sku", "machine", "flags")},
                "points": [{name: getattr(point, name) for name in _POINT_FIELDS} for point in series.points],
            }
            for series in outcome.series
        ],
        "findings": [series.as_dict() for series in outcome.findings],
    }


def export_rows(series: Iterable[Series]) -> Iterator[tuple[str | float | None, ...]]:
    """Yield a row of headings, then one row for each value."""
    series_columns = ("model", "submodel", "target", "figure", "sku", "machine", "flags")
    yield (*series_columns, *_POINT_FIELDS[1:])
    for one_series in series:
        names = [getattr(one_series.key, column) for column in series_columns]
        for point in one_series.points:
            values = (getattr(point, column) for column in _POINT_FIELDS[1:])
            yield (*names, *(int(value) if isinstance(value, bool) else value for value in values))


def _format_sparkline(values: Sequence[float], width: int = _SPARKLINE_WIDTH) -> str:
    """Return a line of characters; values that do not fit are grouped by median."""
    if len(values) > width:
        edges = [round(index * len(values) / width) for index in range(width + 1)]
        values = [sorted(values[start:end])[(end - start) // 2] for start, end in pairwise(edges)]
    low, high = min(values), max(values)
    if low == high:
        return _BARS[len(_BARS) // 2] * len(values)
    return "".join(_BARS[min(int((value - low) / (high - low) * len(_BARS)), len(_BARS) - 1)] for value in values)


def _format_figures(unit: str, *values: float) -> list[str]:
    """Format values with their unit; bytes are counted if larger units do not tell the values apart."""
    texts = [format_bytes(value) for value in values] if unit == "B" else []
    if len(set(texts)) == len(set(values)):
        return texts
    if unit == "ms":
        return [f"{format_milliseconds(value)} ms" for value in values]
    texts = [f"{value:,.0f}" if value == int(value) and abs(value) >= 1 else f"{value:.4g}" for value in values]
    return [f"{text} {unit}".rstrip() for text in texts]
