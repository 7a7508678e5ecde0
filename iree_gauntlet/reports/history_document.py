"""What people read of a history: its runs, what changed, and its series."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from iree_gauntlet.document import Column, Document, Heading, Items, Judged, Kind, Notes, Paragraph, Table
from iree_gauntlet.errors import ExitCode
from iree_gauntlet.figures import counted
from iree_gauntlet.records.history_outcome import UNITS, Finding, HistoryOutcome, Series
from iree_gauntlet.records.history_outcome import Kind as Found

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from iree_gauntlet.document import Block, Cell


_RUNS = (
    *(Column("day"), Column("run", Kind.NAME), Column("IREE", Kind.NAME), Column("machine", rank=2)),
    *(Column("suite", rank=3), Column("state"), Column("cases", Kind.NUMBER), Column("figures", Kind.NUMBER, rank=1)),
)
_CHANGES = (
    *(
        Column("what", Kind.VERDICT),
        Column("series", Kind.NAME),
        Column("change", Kind.NAME),
        Column("old → new", Kind.NAME),
    ),
    *(Column("since IREE", Kind.NAME), Column("last before", Kind.NAME, rank=2), Column("runs", Kind.NUMBER, rank=1)),
    *(Column("p", Kind.NAME, rank=3), Column("machine", Kind.NAME, rank=4)),
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


def runs_document(runs: Sequence[dict[str, Any]]) -> Document:
    """A list of runs."""
    rows = tuple(
        (
            *(str(run["time"])[:10], run["run"], run["iree"], run["machine"], run["suite"], run["state"]),
            *(float(run["cases"]), float(run["figures"])),
        )
        for run in runs
    )
    return Document("", counted(len(runs), "run"), (), (Table(_RUNS, rows),) if rows else ())


def changes_document(outcome: HistoryOutcome) -> Document:
    """What changed, the largest loss first."""
    findings = outcome.findings
    rows = tuple(map(_row, findings))
    blocks: list[Block] = [Table(_CHANGES, rows, _SHOWN)] if rows else [Paragraph(("Nothing changed.",))]
    disturbed = [item for item in findings if item.disturbed]
    notes = []
    if disturbed:
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


def _row(item: Finding) -> tuple[Cell, ...]:
    good = item.settled or item.kind is Found.IMPROVEMENT
    colour = "passed" if good else "inconclusive" if item.suspected else "failed"
    change = _change(item.change)
    if item.confirmed:
        change += f" ({item.confirmed}{f' ×{item.ratio:.3f}' if item.ratio else ''})"
    figure = item.key.figure
    levels = f"{figure_text(item.old, figure)} → {figure_text(item.new, figure)}{' *' if item.disturbed else ''}"
    since = f"{item.after.iree} {item.after.time[:10]}{' †' if item.same_iree else ''}"
    likely = "exact" if item.p_value is None else "" if item.kind is Found.DRIFT else f"{item.p_value:.1g}"
    before = item.before
    return (
        *(Judged(item.word, colour), item.key.title, change, levels, since),
        *(f"{before.iree} {before.time[:10]}", float(item.runs), likely, item.key.sku or item.key.machine),
    )


def change_line(item: Finding) -> str:
    """`regression: +4.0 %, 10 ms → 10.4 ms, since 3.9.0 2026-03-01`."""
    _, _, change, levels, since, *_ = _row(item)
    return f"{item.word}: {change}, {levels}, since {since}"


def series_document(outcome: HistoryOutcome) -> Document:
    """Each series as a line that is drawn with characters, and its changes."""
    blocks: list[Block] = []
    for series in outcome.series:
        values = [point.value for point in series.points]
        key, newest = series.key, series.points[-1]
        blocks.append(Heading(f"{key.title} ({key.sku or key.machine}, flags {key.flags or '–'})"))
        low, high = (figure_text(edge, key.figure) for edge in (min(values), max(values)))
        blocks.append(Paragraph((f"{_sparkline(values)}  {low} to {high}, {counted(len(values), 'run')}",)))
        lines = [f"newest: {figure_text(newest.value, key.figure)} with {newest.iree} on {newest.time[:10]}"]
        lines += [change_line(item) for item in outcome.findings if item.key == key]
        blocks.append(Items(tuple((line,) for line in lines)))
    facts = (counted(outcome.runs, "run"), outcome.place)
    return Document("Series", f"{len(outcome.series)} series", facts, tuple(blocks))


def series_json(outcome: HistoryOutcome) -> dict[str, Any]:
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
    columns = ("model", "submodel", "target", "figure", "sku", "machine", "flags")
    yield (*columns, "run", "time", "iree", "commit", "value", "disturbed", "golden", "limit")
    for item in series:
        names = [getattr(item.key, column) for column in columns]
        for point in item.points:
            yield (
                *(*names, point.run, point.time, point.iree, point.commit),
                *(point.value, int(point.disturbed), point.golden, point.limit),
            )


def _sparkline(values: Sequence[float], width: int = _WIDTH) -> str:
    """A line of characters, of medians where there are more values than room."""
    if len(values) > width:
        edges = [round(place * len(values) / width) for place in range(width + 1)]
        values = [sorted(values[start:end])[(end - start) // 2] for start, end in pairwise(edges)]
    low, high = min(values), max(values)
    if low == high:
        return _BARS[len(_BARS) // 2] * len(values)
    return "".join(_BARS[min(int((value - low) / (high - low) * len(_BARS)), len(_BARS) - 1)] for value in values)


def _change(share: float) -> str:
    if math.isinf(share):
        return "from 0"
    if share >= _TIMES:
        return f"×{1 + share:.3g}"
    return f"{100 * share:+.1f} %" if abs(share) >= _SMALL else f"{100 * share:+.1g} %"


def figure_text(value: float, figure: str) -> str:
    """A figure with its unit."""
    unit = UNITS.get(figure, "")
    text = f"{value:,.0f}" if value == int(value) and abs(value) >= 1 else f"{value:.4g}"
    return f"{text} {unit}".rstrip()
