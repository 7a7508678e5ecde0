"""What a matrix's reports for people have in common: titles, notes, and the lines of its table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iree_gauntlet.reporting.cleaning import one_line
from iree_gauntlet.reporting.matrix_changes import ChangeKind
from iree_gauntlet.reporting.matrix_marks import figure_cells, ratio_text
from iree_gauntlet.reporting.outcome import BAD_VERDICTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from iree_gauntlet.reporting.matrix import MatrixOutcome, MatrixRow
    from iree_gauntlet.reporting.matrix_changes import MeanRatio

__all__ = ["LEGEND", "NOTE", "TITLES", "failures", "figure_lines", "mean_lines"]

NOTE = (
    "Times were taken one IREE after the other: differences of a few per cent need `gauntlet compare A B`.",
    "Compiles ran beside each other, unless with -j 1; the times of those from the cache are from when they were made.",
)
LEGEND = (
    "×: ratio to {base}. memory: of the compiler at its peak. max error: the largest of all outputs, and which one.",
    "↑ ↓: times and memory more than 5 % off, counts and sizes that are not the same, errors twice or half.",
)
TITLES = {
    ChangeKind.FAILING: "Newly failing",
    ChangeKind.PASSING: "Newly passing",
    ChangeKind.WRONG: "Wrong numbers",
    ChangeKind.DISPATCHES: "Dispatches",
    ChangeKind.SIZE: "Module size (5 % and more), bytes",
    ChangeKind.TIME: "Run time (a quarter and more; not yet proved to be real)",
}
_MEANS = {"time": "run time", "compile": "compile time"}


def failures(matrix: MatrixOutcome) -> Iterator[tuple[str, str, str]]:
    """Label, chain, and what came out badly with which reason."""
    for iree in matrix.ran:
        for row in matrix.rows:
            cell = row.cells.get(iree.label)
            if cell is not None and cell.verdict in BAD_VERDICTS:
                yield iree.label, row.chain, f"{cell.verdict_text}: {one_line(cell.reason, 200)}"


def figure_lines(row: MatrixRow, matrix: MatrixOutcome) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Label, verdict and figures of every IREE that ran a chain."""
    base = row.cells.get(matrix.base)
    for iree in matrix.ran:
        cell = row.cells.get(iree.label)
        if cell is not None:
            held = None if iree.label == matrix.base else base
            yield iree.label, cell.verdict_text, figure_cells(cell, held)


def mean_lines(means: Sequence[MeanRatio]) -> list[str]:
    """Geometric means, a line for each metric."""
    lines = []
    for metric, title in _MEANS.items():
        own = [mean for mean in means if mean.metric == metric]
        if own:
            noun = "1 model" if own[0].chains == 1 else f"{own[0].chains} models"
            texts = ", ".join(f"{mean.label} {ratio_text(mean.ratio)}" for mean in own)
            lines.append(f"geometric mean of {title} over {noun} that all have: {texts}")
    return lines
