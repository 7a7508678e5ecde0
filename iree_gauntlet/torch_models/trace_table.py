"""The table of a trace: what each dispatch of a program takes in one call."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from iree_gauntlet.cleaning import one_line
from iree_gauntlet.document import Cell, Column, Kind, Table
from iree_gauntlet.figures import milliseconds
from iree_gauntlet.measuring.profiles.dispatch_names import dispatch_name

if TYPE_CHECKING:
    from iree_gauntlet.measuring.profiles.dispatch_profile import DispatchProfile


_COLUMNS = (
    *(Column(title, Kind.NAME) for title in ("dispatch", "shape")),
    *(Column(title, Kind.NUMBER) for title in ("a call", "ms a call", "share")),
)
_OUTSIDE = "outside of dispatches (scheduling, copies, waiting)"
_LONGEST_NAME = 80
_NS_PER_MS = 1e6
# The first word of a name that gives sizes, `128x2x64` or `4xDxf32`, and the types behind it.
_SHAPE = re.compile(r"(?:^|_)(?P<shape>(?:\d+|D)(?:x(?:\d+|D))*(?:x[a-z]+\d+\w*?)?(?:_[a-z]+\d+[^_]*)?)(?=_|$)")


@dataclass(frozen=True, slots=True)
class TraceRow:
    """All dispatches of one function of a program.

    Attributes:
        name: as the compiler named it, `main$async_dispatch_12_matmul_256x256x256_f32`.
        shape: sizes and types of its loops, as the name tells them (`256x256x256 f32`); empty where it tells none.
        kind: `matmul`, `conv`, `elementwise` …
        count: how often one call of the program dispatches it.
        ns: what that takes in one call, ns: the median over the calls of the trace.
        share: of the call's time, or of all dispatches' where that is not known.
    """

    name: str
    shape: str
    kind: str
    count: int
    ns: int
    share: float


@dataclass(frozen=True, slots=True)
class TraceTable:
    """The dispatches of a program.

    Attributes:
        rows: the longest first.
        calls: how often the program was called for it.
        call_ns: wall time of a call under the profiler, ns, median; None where unknown.
        on_device: the device's own clock timed the dispatches, not the host's.
        notes: what a reader should know.
    """

    rows: tuple[TraceRow, ...]
    calls: int
    call_ns: int | None
    on_device: bool
    notes: tuple[str, ...] = ()

    @property
    def dispatched_ns(self) -> int:
        """All dispatches of a call, ns; more than the call takes where some run side by side."""
        return sum(row.ns for row in self.rows)

    @property
    def outside_ns(self) -> int | None:
        """What is left of a call; negative where dispatches run side by side."""
        return None if self.call_ns is None else self.call_ns - self.dispatched_ns

    def as_dict(self) -> dict[str, Any]:
        """For the journal and for files; times in ns of one call."""
        return {
            "calls": self.calls,
            "call_ns": self.call_ns,
            "dispatched_ns": self.dispatched_ns,
            "outside_ns": self.outside_ns,
            "on_device": self.on_device,
            "rows": [asdict(row) for row in self.rows],
            "notes": list(self.notes),
        }


def trace_table(profile: DispatchProfile) -> TraceTable:
    """The rows of a profile, in the order of their time; of the program where that is the same."""
    whole = profile.elapsed_ns or profile.dispatched_ns
    rows = [
        TraceRow(
            dispatch.name,
            _split(dispatch.name)[1],
            dispatch_name(dispatch.name).kind,
            profile.per_invocation(dispatch),
            dispatch.invocation_ns,
            dispatch.invocation_ns / whole if whole else 0.0,
        )
        for dispatch in profile.dispatches
    ]
    rows.sort(key=lambda row: -row.ns)
    return TraceTable(tuple(rows), profile.invocations, profile.elapsed_ns, profile.on_device, profile.notes)


def table_lines(table: TraceTable, most: int | None = None) -> list[str]:
    """The table as text in columns, below a line that sums it up.

    Args:
        table: what is shown.
        most: so many rows, and one for all others; None for every row.
    """
    shown, others = table.rows[:most], table.rows[len(table.rows[:most]) :]
    if len(others) == 1:
        shown, others = table.rows, ()
    cells: list[tuple[Cell, ...]] = []
    for row in shown:
        name, shape = _split(row.name)
        cells.append((one_line(name, _LONGEST_NAME), shape or None, *_figures(table, row.ns, row.count)))
    if others:
        label = f"the other {len(others)} functions"
        cells.append((label, "", *_figures(table, sum(row.ns for row in others), sum(row.count for row in others))))
    if table.outside_ns is not None:
        cells.append((_OUTSIDE, "", *_figures(table, table.outside_ns, "")))
    return [
        _headline(table),
        *Table(_COLUMNS, tuple(cells)).lines,
        *(f"note: {one_line(note)}" for note in _notes(table)),
    ]


def _headline(table: TraceTable) -> str:
    count = sum(row.count for row in table.rows)
    dispatches = f"{_ms(table.dispatched_ns)} ms in {count} dispatches of {len(table.rows)} functions"
    clock = "device" if table.on_device else "host"
    timed = f"medians of {table.calls} calls under the profiler, by the {clock}'s clock"
    if table.call_ns is None:
        return f"{dispatches} ({timed})"
    return f"{_ms(table.call_ns)} ms a call, {dispatches} ({timed})"


def _notes(table: TraceTable) -> tuple[str, ...]:
    if table.outside_ns is not None and table.outside_ns < 0:
        return (*table.notes, "dispatches run side by side: together they take longer than the call")
    return table.notes


def _figures(table: TraceTable, ns: int, count: Cell) -> tuple[Cell, ...]:
    whole = table.call_ns or table.dispatched_ns
    return (count, _ms(ns), f"{100 * ns / whole:.1f} %" if whole and ns >= 0 else None)


def _split(name: str) -> tuple[str, str]:
    """A name without its sizes and types, and these: `…_dispatch_12_matmul` and `256x256x256 f32`."""
    work = dispatch_name(name).work
    match = _SHAPE.search(work)
    if match is None or work == name:
        return name, ""
    rest = work[: match.start()] + work[match.end() :]
    head = name.removesuffix(work)
    return (head + rest) if rest else head.removesuffix("_"), match["shape"].replace("_", " ")


def _ms(ns: int) -> str:
    return milliseconds(ns / _NS_PER_MS)
