"""The figures of a comparison as text, once for all reports: times with their verdicts, and what else changed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from iree_gauntlet.document import DrawnInterval
from iree_gauntlet.figures import byte_size, cpus_text, error_figure, milliseconds, outside_text, whole, work_change
from iree_gauntlet.records.chain_figures import MatrixCell, matrix_cell
from iree_gauntlet.records.outcome import outcome_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from iree_gauntlet.records.compare_record import ComparedSide, ComparisonRecord


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
# Name of a figure, how to read it, how it is written, whether any change of it is pointed out.
FIGURES: tuple[tuple[str, Callable[[MatrixCell], float | None], Callable[[float], str], bool], ...] = (
    ("compile memory", lambda cell: cell.compile_peak_bytes, byte_size, False),
    ("module size", lambda cell: cell.binary_size_bytes, whole, True),
    ("dispatches", lambda cell: cell.dispatch_count, whole, True),
    ("largest error", lambda cell: cell.max_abs_error, error_figure, False),
)


@dataclass(frozen=True, slots=True)
class TimeRow:
    """A model in the table of times.

    Attributes:
        verdict: `slower`, `faster`, `same`, `inconclusive`, `error` or `not measured`.
        a, b: median of each side with its spread.
        floor: what A against itself showed, by how much at most.
        rounds: process starts of the comparison, and how many of its blocks were replaced.
        own_way: what the spec's own way says against the verdict; empty where it does not.
        worker: of a cluster, that measured it; empty where none did.
        work: what the instructions say beside the time; empty where they were not counted.
        interval: of the ratio, as it is drawn; None where there is none.
        reason: why it is that verdict and not more.
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
    work: str = ""
    interval: DrawnInterval | None = None


@dataclass(frozen=True, slots=True)
class FigureChange:
    """One figure of a model on both sides.

    Attributes:
        a, b: its values as text; empty for unknown.
        change: in per cent, or `new`; empty where there is none.
    """

    model: str
    figure: str
    a: str
    b: str
    change: str
    notable: bool


def ratio_text(ratio: float) -> str:
    """A ratio of times as a change: `+4.2 %`; `×3.1` from double or half on."""
    if ratio <= 0.5 or ratio >= 2:
        return f"×{ratio:.3g}"
    return f"{100 * (ratio - 1):+.1f} %"


def span_text(low: float | None, high: float | None) -> str:
    """An interval of ratios: `+1.0 to +3.5 %`."""
    if low is None or high is None:
        return "unbounded"
    if low <= 0.5 or high >= 2:
        return f"×{low:.3g} to ×{high:.3g}"
    return f"{100 * (low - 1):+.1f} to {100 * (high - 1):+.1f} %"


def time_rows(record: ComparisonRecord) -> list[TimeRow]:
    """Every model of a comparison, those first that want a look."""
    rows = []
    for model in record.models:
        verdict = record.verdicts.get(model)
        if verdict is None:
            blocks = record.begun[model]
            taken = f"cut short after {blocks} blocks of rounds; `compare --resume` continues with them"
            why = taken if blocks else _explain_why_not(record, model)
            rows.append(TimeRow(model, "not measured", reason=why))
        else:
            rows.append(_make_row(model, verdict, record.worker_of(model)))
    rows += [TimeRow(model, "not measured", reason=reason) for model, reason in record.left_out.items()]
    return sorted(rows, key=lambda row: (_ORDER.index(row.verdict), row.model))


def _explain_why_not(record: ComparisonRecord, model: str) -> str:
    if model in record.under_way:
        how = "`compare --resume --cluster …` measures it from the beginning"
        return f"cut short while {record.under_way[model]} measured it; {how}"
    return str((record.end or {}).get("problem") or "its turn did not come")


def _make_row(model: str, verdict: dict[str, Any], worker: str) -> TimeRow:
    reason = str(verdict["reason"])
    if "instructions" in verdict:
        return _work_row(model, verdict)
    work = verdict.get("work")
    said = work_change(work["instructions"]["A"], work["instructions"]["B"]) if work else ""
    if "ratio" not in verdict:
        return TimeRow(model, str(verdict["verdict"]), reason=reason, worker=worker, work=said)
    control = verdict.get("control") or {}
    floor = ""
    if control:
        low, high = control.get("low"), control.get("high")
        floor = f"±{100 * max(1 / low - 1, high - 1, 0):.1f} %" if low and high else "unbounded"
        if control.get("ratio") and verdict["verdict"] in ("slower", "faster"):
            reason += f"; A against itself: {ratio_text(control['ratio'])} ({span_text(low, high)})"
    # Four rounds a block; those of A against itself, and replaced ones, are rounds too.
    rounds = f"{4 * (int(verdict['blocks']) + int(verdict['control_blocks']))}"
    if verdict["replaced_blocks"]:
        rounds += f" (+{verdict['replaced_blocks']} blocks replaced)"
    if verdict["marked_blocks"]:
        rounds += f" ({verdict['marked_blocks']} blocks disturbed)"
    return TimeRow(
        model=model,
        verdict=str(verdict["verdict"]),
        a=_time(verdict["time_ms"]["A"]),
        b=_time(verdict["time_ms"]["B"]),
        ratio=ratio_text(verdict["ratio"]),
        span=span_text(verdict["low"], verdict["high"]),
        floor=floor,
        rounds=rounds,
        reason=reason,
        cpus=cpus_text(verdict["cpus"]) if "cpus" in verdict else "",
        own_way=_describe_own_way(verdict.get("own_way") or {}),
        worker=worker,
        work=said,
        interval=_make_interval(verdict, control.get("low"), control.get("high")),
    )


def _make_interval(verdict: dict[str, Any], low: float | None, high: float | None) -> DrawnInterval:
    behind = (low, high) if low and high else None
    return DrawnInterval(verdict["low"], verdict["ratio"], verdict["high"], behind, str(verdict["verdict"]))


def _work_row(model: str, verdict: dict[str, Any]) -> TimeRow:
    a, b = (int(verdict["instructions"][name]) for name in "AB")
    reason = f"{b - a:+,} instructions a call ({work_change(a, b)}{outside_text(b - a, verdict.get('outside'))})"
    if "with_fma" in verdict:
        fused = [int(verdict["with_fma"][name]) for name in "AB"]
        reason += f"; with fused multiply-adds {fused[1] - fused[0]:+,} ({work_change(*fused)})"
    judged, ratio = str(verdict["verdict"]), b / a
    drawn = DrawnInterval(ratio, ratio, ratio, None, judged)
    return TimeRow(model, judged, whole(a), whole(b), work_change(a, b), f"{b - a:+,}", reason=reason, interval=drawn)


def _describe_own_way(own: dict[str, Any]) -> str:
    if not own.get("contradicts"):
        return ""
    change = f"{span_text(own['low'], own['high'])} ({100 * own['confidence']:g} %, {own['looked_at']} blocks)"
    return f"as its spec runs it, B is {change}, which contradicts that"


def _time(side: dict[str, float]) -> str:
    return f"{milliseconds(side['median'])} ±{100 * side['spread']:.0f} %"


def verdict_counts(rows: list[TimeRow]) -> dict[str, int]:
    """How many of each, in the order of interest."""
    counts = {verdict: sum(row.verdict == verdict for row in rows) for verdict in _ORDER}
    return {verdict: count for verdict, count in counts.items() if count}


def changes(record: ComparisonRecord) -> list[FigureChange]:
    """The figures of the sides' runs, by model; verdicts of stages first where they differ."""
    if len(record.sides) != 2:
        return []
    a, b = (_describe_cells(side) for side in record.sides)
    # Rounds of compiles have measured these, and better.
    measured = ("compile memory",) if record.options.get("metric") == "compile-time" else ()
    found: list[FigureChange] = _round_memory(record) if measured else []
    for model, one in a.items():
        other = b.get(model)
        if other is None:
            continue
        if one.verdict_text != other.verdict_text:
            found.append(FigureChange(model, "checks", one.verdict_text, other.verdict_text, "", notable=True))
        for name, read, write, counted in FIGURES:
            before, after = read(one), read(other)
            if name not in measured and (before, after) != (None, None):
                found.append(_change(model, name, before, after, write, counted=counted))
    return found


def _change(
    model: str, name: str, a: float | None, b: float | None, write: Callable[[float], str], *, counted: bool
) -> FigureChange:
    before, after = "" if a is None else write(a), "" if b is None else write(b)
    if a is None or b is None or math.isnan(a) or math.isnan(b):
        return FigureChange(model, name, before, after, "", notable=before != after)
    if a == b:
        return FigureChange(model, name, before, after, "", notable=False)
    ratio = b / a if a > 0 else math.inf
    change = ratio_text(ratio) if math.isfinite(ratio) else "new"
    # One measurement, perhaps with other work at the same time, or of another day.
    change = change if counted or name == "largest error" else f"~{change}"
    return FigureChange(model, name, before, after, change, notable=counted or abs(ratio - 1) > _NOTABLE)


def _round_memory(record: ComparisonRecord) -> list[FigureChange]:
    """The largest memory of the compiles of each side, over all rounds."""
    found = []
    for model, verdict in record.verdicts.items():
        peaks = verdict.get("peak_rss_bytes") or {}
        a, b = peaks.get("A"), peaks.get("B")
        if a and b:
            change = ratio_text(b / a)
            notable = abs(b / a - 1) > _NOTABLE
            found.append(FigureChange(model, "compile memory", byte_size(a), byte_size(b), change, notable))
    return found


def _describe_cells(side: ComparedSide) -> dict[str, MatrixCell]:
    if side.run is None:
        return {}
    return {chain.id: matrix_cell(chain) for chain in outcome_of(side.run).chains}
