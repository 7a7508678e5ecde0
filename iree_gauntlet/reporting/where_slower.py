"""Where a program got slower or faster, for people: dispatches and compile statistics of two sides.

Both are read from the record of a comparison; times there are in ns of one invocation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from iree_gauntlet.reporting.cleaning import one_line
from iree_gauntlet.reporting.figures import byte_size, milliseconds, whole
from iree_gauntlet.reporting.markdown import code, escape, table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["compile_lines", "compile_markdown", "dispatch_lines", "dispatch_markdown"]

_DISPATCH_HEADER = ("dispatch", "A ms", "B ms", "difference ms", "of the whole")
_COMPILE_HEADER = ("figure", "A", "B", "B / A")
_NS_PER_MS = 1e6
_LONGEST_NAME = 100
_LIKE = 1.2
# Times that a difference under the profiler may be larger or smaller than the measured one.
_UNLIKE = 2.0


def dispatch_lines(record: Mapping[str, Any]) -> list[str]:
    """The rows that explain the difference, as text in columns, under a line that sums them up.

    Args:
        record: what `running.profiling.compared` gave; one with a `reason` is a line.
    """
    if "reason" in record:
        return [_no_profile(record)]
    lines = [_headline(record), *_columns([_DISPATCH_HEADER, *_dispatch_rows(record)])]
    return [*lines, *(f"note: {one_line(note)}" for note in _notes(record))]


def dispatch_markdown(record: Mapping[str, Any]) -> str:
    """The same in Markdown."""
    if "reason" in record:
        return escape(_no_profile(record))
    named = len(record["rows"])
    cells = [
        (code(name, _LONGEST_NAME) if index < named else escape(name), *figures)
        for index, (name, *figures) in enumerate(_dispatch_rows(record))
    ]
    body = table(_DISPATCH_HEADER, cells, frozenset({1, 2, 3, 4}))
    notes = [f"\nNote: {escape(note)}" for note in _notes(record)]
    return "\n".join([escape(_headline(record)), "", body, *notes])


def compile_lines(changes: Sequence[Mapping[str, Any]]) -> list[str]:
    """The figures of the compile that differ, as text in columns.

    Args:
        changes: what `CompileChange.as_dict` gave.
    """
    if not changes:
        return ["the compiler's statistics and the module's size are the same"]
    return _columns([_COMPILE_HEADER, *map(_compile_row, changes)])


def compile_markdown(changes: Sequence[Mapping[str, Any]]) -> str:
    """The same in Markdown."""
    if not changes:
        return "The compiler's statistics and the module's size are the same."
    rows = [tuple(escape(cell) for cell in _compile_row(change)) for change in changes]
    return table(_COMPILE_HEADER, rows, frozenset({1, 2, 3}))


def _no_profile(record: Mapping[str, Any]) -> str:
    return f"no profile: {one_line(str(record['reason']))}"


def _headline(record: Mapping[str, Any]) -> str:
    a, b = record["a_ns"], record["b_ns"]
    times = f"profiled: {_ms(a)} ms in A, {_ms(b)} ms in B ({_signed(b - a)} ms)"
    listed = sum(row["b_ns"] - row["a_ns"] for row in record["rows"])
    if not record["rows"]:
        return f"{times}; no dispatch stands out"
    count = len(record["rows"])
    rows = "this row makes" if count == 1 else f"these {count} rows make"
    return f"{times}; {rows} up {_share(listed, b - a)} of the difference"


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


def _dispatch_rows(record: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The listed rows, and one for all others."""
    whole_ns = record["b_ns"] - record["a_ns"]
    rows: list[tuple[str, ...]] = [
        (_name(row), *_times(row), _share(row["b_ns"] - row["a_ns"], whole_ns)) for row in record["rows"]
    ]
    others = record["others"]
    if not any(others.values()):
        return rows
    return [*rows, (_others_name(others), *_times(others), _share(others["b_ns"] - others["a_ns"], whole_ns))]


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


def _times(row: Mapping[str, Any]) -> tuple[str, str, str]:
    return _ms(row["a_ns"]), _ms(row["b_ns"]), _signed(row["b_ns"] - row["a_ns"])


def _share(part: int, whole_ns: int) -> str:
    return f"{100 * part / whole_ns:.0f} %" if whole_ns else "–"


def _ms(ns: int) -> str:
    return milliseconds(ns / _NS_PER_MS)


def _signed(ns: int) -> str:
    return f"+{_ms(ns)}" if ns > 0 else _ms(ns)


def _compile_row(change: Mapping[str, Any]) -> tuple[str, ...]:
    ratio = change["ratio"]
    # To the byte where larger units would show two figures that differ as one.
    exact = ratio is not None and 1 / _LIKE < ratio < _LIKE
    figures = (_figure(change[side], change["unit"], exact=exact) for side in ("a", "b"))
    return (str(change["name"]), *figures, "–" if ratio is None else f"{ratio:.3f}")


def _figure(value: float | None, unit: str, *, exact: bool) -> str:
    if value is None:
        return "not told"
    if unit == "bytes" and not exact:
        return byte_size(value)
    return f"{whole(value)} {unit}".rstrip()


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines; the first column to the left, the others to the right."""
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    return [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    ]
