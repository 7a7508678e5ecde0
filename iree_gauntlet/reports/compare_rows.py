"""The figures of a comparison as text, once for all reports: times with their verdicts, and what else changed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from iree_gauntlet.document import DrawnInterval
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.figures import Figure
from iree_gauntlet.formatting import byte_size, format_cpus, format_ratio, format_span, milliseconds, whole, work_change
from iree_gauntlet.records.chain_figures import make_matrix_cell
from iree_gauntlet.records.compare_record import COMPARISON_FILE, SIDES
from iree_gauntlet.records.outcome import read_outcome

if TYPE_CHECKING:
    from iree_gauntlet.records.compare_record import ComparisonRecord, RecordedVerdict, WorkVerdict


_ORDER = (
    "slower",
    "more work",
    "error",
    "inconclusive",
    "faster",
    "less work",
    "not slower",
    "same",
    "same work",
    "not measured",
)
# Beyond this a figure that one measurement gave is pointed out.
_NOTABLE = 0.25


@dataclass(frozen=True, slots=True)
class TimeRow:
    """A model in the table of times.

    Attributes:
        a, b: median of each side with its spread.
        floor: what A against itself showed, by how much at most.
        rounds: process starts of the comparison, and how many of its blocks were replaced.
        own_way: what the spec's own way says against the verdict; empty where it does not.
        worker: of a cluster, that measured it; empty where none did.
        work: what the instructions say beside the time; None where they were not counted.
        dispatched, outside: by how many instructions those of dispatches, and those outside of them, differ.
    """

    model: str
    verdict: str
    a: str = ""
    b: str = ""
    ratio: str = ""
    span: str = ""
    floor: str = ""
    rounds: str = ""
    reason: str = ""
    cpus: str = ""
    own_way: str = ""
    worker: str = ""
    work: str | None = None
    dispatched: str = ""
    outside: str = ""
    interval: DrawnInterval | None = None


@dataclass(frozen=True, slots=True)
class FigureChange:
    """One figure of a model on both sides as text, empty where it is not known; `change` in per cent, or `new`."""

    model: str
    figure: str
    a: str
    b: str
    change: str
    notable: bool


def list_rows(record: ComparisonRecord) -> list[TimeRow]:
    """Every model of a comparison, those first that want a look."""
    rows = []
    for model in record.prepared.models:
        if model in record.works:
            rows.append(_make_work_row(model, record.works[model]))
        elif model in record.verdicts:
            rows.append(_make_time_row(model, record.verdicts[model], record.worker_of(model)))
        else:
            rows.append(TimeRow(model, "not measured", reason=_explain_why_not(record, model)))
    rows += [TimeRow(model, "not measured", reason=reason) for model, reason in record.prepared.left_out.items()]
    for row in rows:
        if row.verdict not in _ORDER:
            raise GauntletError(
                f"{COMPARISON_FILE}: the verdict of {row.model}, {row.verdict!r}, is none that this version knows",
                "It was written by another version of this toolkit, or changed; start a new comparison.",
            )
    return sorted(rows, key=lambda row: (_ORDER.index(row.verdict), row.model))


def _explain_why_not(record: ComparisonRecord, model: str) -> str:
    if blocks := record.begun[model]:
        return f"cut short after {blocks} blocks of rounds; `compare --resume` continues with them"
    if model in record.under_way:
        how = "`compare --resume --cluster …` measures it from the beginning"
        return f"cut short while {record.under_way[model]} measured it; {how}"
    return (record.end.problem if record.end else "") or "its turn did not come"


def _make_time_row(model: str, verdict: RecordedVerdict, worker: str) -> TimeRow:
    reason, work, figures = verdict.reason, verdict.work.change if verdict.work else None, verdict.figures
    if figures is None:
        return TimeRow(model, verdict.verdict, reason=reason, worker=worker, work=work)
    floor, behind = "", None
    if verdict.control:
        control = verdict.control.figures
        floor = "unbounded"
        if control.low and control.high:
            behind = control.low, control.high
            floor = f"±{100 * max(1 / control.low - 1, control.high - 1, 0):.1f} %"
        if verdict.verdict in ("slower", "faster"):
            span = format_span(control.low, control.high)
            reason += f"; A against itself: {format_ratio(control.ratio)} ({span})"
    # Four rounds a block; those of A against itself, and replaced ones, are rounds too.
    rounds = f"{4 * (verdict.blocks + verdict.control_blocks)}"
    if verdict.replaced_blocks:
        rounds += f" (+{verdict.replaced_blocks} blocks replaced)"
    if verdict.marked_blocks:
        rounds += f" ({verdict.marked_blocks} blocks disturbed)"
    own_way = ""
    if verdict.own_way is not None and verdict.own_way.contradicts:
        own = verdict.own_way.figures
        change = f"{format_span(own.low, own.high)} ({100 * own.confidence:g} %, {own.looked_at} blocks)"
        own_way = f"as its spec runs it, B is {change}, which contradicts that"
    a, b = (figures.time_ms[side] for side in SIDES)
    return TimeRow(
        model=model,
        verdict=verdict.verdict,
        a=f"{milliseconds(a.median)} ±{100 * a.spread:.0f} %",
        b=f"{milliseconds(b.median)} ±{100 * b.spread:.0f} %",
        ratio=format_ratio(figures.ratio),
        span=format_span(figures.low, figures.high),
        floor=floor,
        rounds=rounds,
        reason=reason,
        cpus="" if verdict.cpus is None else format_cpus(verdict.cpus),
        own_way=own_way,
        worker=worker,
        work=work,
        interval=DrawnInterval(figures.low, figures.ratio, figures.high, behind, verdict.verdict),
    )


def _make_work_row(model: str, verdict: WorkVerdict) -> TimeRow:
    a, b = verdict.counts
    more = f"{b - a:+,}"
    reason = f"{more} instructions a call ({verdict.change_by_part})"
    if verdict.with_fma:
        fused_a, fused_b = (verdict.with_fma[side] for side in SIDES)
        reason += f"; with fused multiply-adds {fused_b - fused_a:+,} ({work_change(fused_a, fused_b)})"
    drawn = DrawnInterval(b / a, b / a, b / a, None, verdict.verdict)
    dispatched = outside = ""
    if verdict.outside is not None:
        dispatched, outside = f"{b - a - verdict.outside:+,}", f"{verdict.outside:+,}"
    return TimeRow(
        model=model,
        verdict=verdict.verdict,
        a=whole(a),
        b=whole(b),
        ratio=verdict.change,
        span=more,
        reason=reason,
        dispatched=dispatched,
        outside=outside,
        interval=drawn,
    )


def list_figure_changes(record: ComparisonRecord) -> list[FigureChange]:
    """The figures of the sides' runs, by model; verdicts of stages first where they differ."""
    a, b = (
        {chain.id: make_matrix_cell(chain) for chain in read_outcome(side.run).chains} if side.run else {}
        for side in record.sides
    )
    # Rounds of compiles have measured these, and better.
    measured = (Figure.COMPILE_MEMORY,) if record.opening.metric == Figure.COMPILE_TIME.row.metric else ()
    changes: list[FigureChange] = _round_memory(record) if measured else []
    for model, one in a.items():
        other = b.get(model)
        if other is None:
            continue
        if one.verdict_text != other.verdict_text:
            changes.append(FigureChange(model, "checks", one.verdict_text, other.verdict_text, "", notable=True))
        for figure in Figure:
            before, after = one.figures.values.get(figure), other.figures.values.get(figure)
            if figure.row.pair and figure not in measured and (before, after) != (None, None):
                changes.append(_compare_figure(model, figure, before, after))
    return changes


def _compare_figure(model: str, figure: Figure, a: float | None, b: float | None) -> FigureChange:
    name, write = figure.row.pair, figure.row.write
    before, after = "" if a is None else write(a), "" if b is None else write(b)
    if a is None or b is None or math.isnan(a) or math.isnan(b):
        return FigureChange(model, name, before, after, "", notable=before != after)
    if a == b:
        return FigureChange(model, name, before, after, "", notable=False)
    ratio = b / a if a > 0 else math.inf
    change = format_ratio(ratio) if math.isfinite(ratio) else "new"
    # One measurement, perhaps with other work at the same time, or of another day.
    change = change if figure.is_exact else f"~{change}"
    is_counted = figure.is_exact and figure is not Figure.ERROR
    return FigureChange(model, name, before, after, change, notable=is_counted or abs(ratio - 1) > _NOTABLE)


def _round_memory(record: ComparisonRecord) -> list[FigureChange]:
    """The largest memory of the compiles of each side, over all rounds."""
    found, name = [], Figure.COMPILE_MEMORY.row.pair
    for model, verdict in record.verdicts.items():
        a, b = (verdict.peak_rss_bytes.get(side) for side in SIDES)
        if a and b:
            change = format_ratio(b / a)
            notable = abs(b / a - 1) > _NOTABLE
            found.append(FigureChange(model, name, byte_size(a), byte_size(b), change, notable))
    return found
