"""Where a program got slower or faster, for people: dispatches and compile statistics of two sides.

Both are read from the record of a comparison; times there are in ns of one invocation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from iree_gauntlet.cleaning import one_line
from iree_gauntlet.figures import byte_size, milliseconds, whole
from iree_gauntlet.reports.document import Column, Kind, Notes, Paragraph, Table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from iree_gauntlet.reports.document import Block, Cell

__all__ = ["compile_blocks", "dispatch_blocks"]

_DISPATCH_COLUMNS = (
    Column("dispatch", Kind.NAME),
    Column("A", Kind.NUMBER, "ms", rank=2),
    Column("B", Kind.NUMBER, "ms", rank=1),
    Column("difference", Kind.NUMBER, "ms"),
    Column("of the whole", Kind.SHARE),
)
_COMPILE_COLUMNS = (Column("figure"), *(Column(title, Kind.NUMBER) for title in ("A", "B", "B / A")))
_NS_PER_MS = 1e6
_LONGEST_NAME = 100
_LIKE = 1.2
# Times that a difference under the profiler may be larger or smaller than the measured one.
_UNLIKE = 2.0


def dispatch_blocks(record: Mapping[str, Any]) -> tuple[Block, ...]:
    """The rows that explain the difference, under a line that sums them up.

    Args:
        record: what `running.profiling.compared` gave; one with a `reason` is a line.
    """
    if "reason" in record:
        return (Paragraph((f"no profile: {record['reason']}",)),)
    notes = _notes(record)
    return (
        Paragraph((_headline(record),)),
        Table(_DISPATCH_COLUMNS, _dispatch_rows(record)),
        *([Notes(tuple(notes))] if notes else []),
    )


def compile_blocks(changes: Sequence[Mapping[str, Any]]) -> tuple[Block, ...]:
    """The figures of the compile that differ.

    Args:
        changes: what `CompileChange.as_dict` gave.
    """
    if not changes:
        return (Paragraph(("The compiler's statistics and the module's size are the same.",)),)
    return Paragraph(("The compiles differ in:",)), Table(_COMPILE_COLUMNS, tuple(map(_compile_row, changes)))


def _headline(record: Mapping[str, Any]) -> str:
    a, b = record["a_ns"], record["b_ns"]
    times = f"profiled: {_ms(a)} ms in A, {_ms(b)} ms in B ({_signed(b - a)} ms)"
    listed = sum(row["b_ns"] - row["a_ns"] for row in record["rows"])
    if not record["rows"]:
        return f"{times}; no dispatch stands out"
    count = len(record["rows"])
    rows = "this row makes" if count == 1 else f"these {count} rows make"
    share = f"{100 * listed / (b - a):.0f} %" if b != a else "nothing"
    return f"{times}; {rows} up {share} of the difference"


def _notes(record: Mapping[str, Any]) -> list[str]:
    """What a reader should know, above all where the profile is not about the difference that was measured."""
    notes = [str(note) for note in record["notes"]]
    measured = record.get("measured")
    if measured is not None:
        a, b = measured["a_ns"], measured["b_ns"]
        told = f"measured without the profiler: {_ms(a)} ms in A, {_ms(b)} ms in B ({_signed(b - a)} ms)"
        seen = record["b_ns"] - record["a_ns"]
        if b != a and not 1 / _UNLIKE <= seen / (b - a) <= _UNLIKE:
            told += "; the profile shows another difference, and does not explain this one"
        notes.insert(0, told)
    return notes


def _dispatch_rows(record: Mapping[str, Any]) -> tuple[tuple[Cell, ...], ...]:
    """The listed rows, and one for all others."""
    named = [(_name(row), row) for row in record["rows"]]
    others = record["others"]
    if any(others.values()):
        named.append((_others_name(others), others))
    whole_ns = record["b_ns"] - record["a_ns"]
    return tuple((name, *_times(row), _share(row["b_ns"] - row["a_ns"], whole_ns)) for name, row in named)


def _others_name(others: Mapping[str, Any]) -> str:
    a, b = others["a_count"], others["b_count"]
    count = f"the other {a if a == b else f'{a} → {b}'} dispatches"
    if not others["outside"]:
        return count
    return f"{count}, and what is outside of them" if a or b else "outside of dispatches"


def _name(row: Mapping[str, Any]) -> str:
    name = one_line(str(row["name"]), _LONGEST_NAME)
    if row["match"] in ("new", "gone"):
        return f"{name} ({row['match']})"
    if row["a_count"] != row["b_count"]:
        return f"{name} ({row['a_count']} → {row['b_count']} dispatches)"
    return f"{name} ({row['b_count']} dispatches)" if row["b_count"] > 1 else name


def _times(row: Mapping[str, Any]) -> tuple[Cell, Cell, Cell]:
    return row["a_ns"] / _NS_PER_MS, row["b_ns"] / _NS_PER_MS, _signed(row["b_ns"] - row["a_ns"])


def _share(part: int, whole_ns: int) -> float | None:
    return part / whole_ns if whole_ns else None


def _ms(ns: int) -> str:
    return milliseconds(ns / _NS_PER_MS)


def _signed(ns: int) -> str:
    return f"+{_ms(ns)}" if ns > 0 else _ms(ns)


def _compile_row(change: Mapping[str, Any]) -> tuple[Cell, ...]:
    ratio = change["ratio"]
    # To the byte where larger units would show two figures that differ as one.
    exact = ratio is not None and 1 / _LIKE < ratio < _LIKE
    figures = (_figure(change[side], change["unit"], exact=exact) for side in ("a", "b"))
    return (str(change["name"]), *figures, None if ratio is None else f"{ratio:.3f}")


def _figure(value: float | None, unit: str, *, exact: bool) -> str:
    if value is None:
        return "not told"
    if unit == "bytes" and not exact:
        return byte_size(value)
    return f"{whole(value)} {unit}".rstrip()
