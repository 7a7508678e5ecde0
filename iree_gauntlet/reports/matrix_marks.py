"""How a figure of a matrix is written: its value, and how it stands to the base."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from iree_gauntlet.figures import byte_size, error_figure, mean_and_spread, whole
from iree_gauntlet.records.chain_figures import NOTHING
from iree_gauntlet.records.matrix_cells import MatrixCell
from iree_gauntlet.reports.matrix_changes import ratio

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["FIGURES", "figure_cells", "ratio_text"]

# Names of the columns, in the order of `figure_cells`.
FIGURES = ("compile s", "memory MB", "time ms", "dispatches", "size", "max error")
_SAME_TIME = 0.05
# Errors of different schedules differ in their last digits.
_SAME_ERROR = 1.0


def figure_cells(cell: MatrixCell | None, base: MatrixCell | None) -> tuple[str, ...]:
    """The figures of a chain with one IREE, in the order of `FIGURES`; memory is the compiler's at its peak.

    Times, memory, counts and sizes carry their ratio to the base. An arrow stands where a time or memory is more
    than 5 % off, where a count or a size is not the same, and where an error is more than twice or less than half.
    A `~` stands before a time that was taken while the machine did other work.

    Args:
        cell: None where the chain was not run.
        base: with the first IREE; None for that itself, and where it did not run the chain.
    """
    if cell is None:
        return (NOTHING,) * len(FIGURES)
    error = NOTHING
    if cell.max_abs_error is not None:
        error = f"{error_figure(cell.max_abs_error)} #{cell.worst_output}"
    time = NOTHING
    if cell.time_ms is not None:
        least = "min " if cell.statistic == "min" else ""
        time = f"{'~' if cell.disturbed else ''}{least}{mean_and_spread(cell.time_ms, cell.spread_ms)}"
    memory = NOTHING if cell.compile_peak_bytes is None else f"{cell.compile_peak_bytes / 1e6:,.0f}"
    held = base or MatrixCell(cell.verdict)
    return (
        _marked(_seconds(cell.compile_seconds), cell.compile_seconds, held.compile_seconds),
        _marked(memory, cell.compile_peak_bytes, held.compile_peak_bytes),
        _marked(time, cell.time_ms, held.time_ms),
        _counted(whole, cell.dispatch_count, held.dispatch_count),
        _counted(byte_size, cell.binary_size_bytes, held.binary_size_bytes),
        error + _arrow(ratio(cell.max_abs_error, held.max_abs_error), _SAME_ERROR),
    )


def ratio_text(value: float) -> str:
    """`×1.40`, `×0.980`: three digits, at least two decimals."""
    if not math.isfinite(value):
        return f"×{value}"
    return f"×{value:.0f}" if value >= 100 else f"×{value:.1f}" if value >= 10 else f"×{value:.2f}"


def _marked(text: str, value: float | None, base: float | None) -> str:
    share = ratio(value, base)
    return text if share is None else f"{text} {ratio_text(share)}{_arrow(share, _SAME_TIME)}"


def _counted(write: Callable[[float], str], value: float | None, base: float | None) -> str:
    """A count with its ratio and an arrow where it is not the base's; a ratio that says nothing is left out."""
    if value is None:
        return NOTHING
    share = ratio(value, base)
    if share is None or value == base:
        return write(value)
    told = ratio_text(share)
    return f"{write(value)} {told if told != ratio_text(1) else ''}{_arrow(share, 0.0)}"


def _seconds(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.2f}" if value < 100 else f"{value:.0f}"


def _arrow(share: float | None, same: float) -> str:
    """Up or down where a ratio is further from 1 than `same`; nothing else."""
    if share is None or 1 / (1 + same) <= share <= 1 + same:
        return ""
    return "↑" if share > 1 else "↓"
