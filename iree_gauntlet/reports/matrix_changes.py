"""What changed from one IREE of a matrix to the next, and the geometric means over its chains."""

from __future__ import annotations

import itertools
import math
import statistics
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from iree_gauntlet.figures import milliseconds, one_line, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from iree_gauntlet.records.chain_figures import MatrixCell
    from iree_gauntlet.records.matrix_outcome import MatrixOutcome, MatrixRow


# Sizes differ by a few bytes between any two releases.
_SIZE_JUMP = 0.05
_WORK_JUMP = 0.001
# Times were taken one IREE after the other: what is less than this says little.
_TIME_JUMP = 0.25


class ChangeKind(StrEnum):
    """What can change; the order is that of reports."""

    FAILING = "newly failing"
    PASSING = "newly passing"
    WRONG = "wrong numbers"
    DISPATCHES = "dispatches"
    INSTRUCTIONS = "instructions"
    SIZE = "size"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class MatrixChange:
    """Something that is not the same with every IREE.

    Attributes:
        labels: the IREEs that it is about, in their order.
        text: the line for people, without the chain.
    """

    kind: ChangeKind
    chain: str
    labels: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True)
class MeanRatio:
    """A geometric mean of ratios to the base.

    Attributes:
        metric: `time` or `compile`.
        ratio: above 1 is slower.
    """

    label: str
    metric: str
    ratio: float
    chains: int


def ratio(value: float | None, base: float | None) -> float | None:
    """Value / base; None where one is missing, or the base is 0."""
    if value is None or base is None or not base > 0 or not math.isfinite(value):
        return None
    return value / base


def changes(matrix: MatrixOutcome) -> list[MatrixChange]:
    """Everything that differs from an IREE to the one before it, by kind and then in plan order.

    One that did not run a chain, or came to no figure, is passed over: the one before it counts then.
    """
    labels = [iree.label for iree in matrix.ran]
    found = [change for row in matrix.rows for change in _list_changes_of_row(row, labels)]
    order = list(ChangeKind)
    return sorted(found, key=lambda change: order.index(change.kind))


def mean_ratios(matrix: MatrixOutcome) -> list[MeanRatio]:
    """Geometric means of the time ratios to the base, over the chains that all IREEs have a time of.

    IREEs without any time are left out. So are chains with wrong numbers, as they did other work, and run times that
    were taken under a disturbance.
    """
    metrics: list[tuple[str, Callable[[MatrixCell], float | None]]] = [
        ("time", _find_comparable_time),
        ("compile", lambda cell: cell.compile_seconds),
    ]
    return [mean for name, figure in metrics for mean in _list_means(matrix, name, figure)]


def _list_means(
    matrix: MatrixOutcome, metric: str, figure: Callable[[MatrixCell], float | None]
) -> Iterator[MeanRatio]:
    tables = [
        {label: value for label, cell in row.cells.items() if (value := figure(cell)) is not None and value > 0}
        for row in matrix.rows
        if metric != "time" or row.timed_on_one_machine
    ]
    labels = [iree.label for iree in matrix.irees if any(iree.label in table for table in tables)]
    shared = [table for table in tables if all(label in table for label in labels)]
    if matrix.base not in labels or not shared:
        return
    for label in labels:
        if label != matrix.base:
            ratios = [table[label] / table[matrix.base] for table in shared]
            yield MeanRatio(label, metric, statistics.geometric_mean(ratios), len(shared))


def _list_changes_of_row(row: MatrixRow, labels: list[str]) -> Iterator[MatrixChange]:
    cells = [(label, row.cells[label]) for label in labels if label in row.cells]
    yield from _list_working(row.chain, cells)
    for label, cell in cells:
        if cell.wrong_numbers:
            yield MatrixChange(ChangeKind.WRONG, row.chain, (label,), f"{label}: {one_line(cell.reason, 80)}")
    yield from _list_jumps(
        row.chain, ChangeKind.DISPATCHES, [(label, cell.dispatch_count) for label, cell in cells], 0.0
    )
    counters = {cell.counted_by for _, cell in cells if cell.instructions is not None}
    if len(counters) == 1:
        counts = [(label, cell.instructions) for label, cell in cells]
        yield from _list_jumps(row.chain, ChangeKind.INSTRUCTIONS, counts, _WORK_JUMP)
    sizes = [(label, cell.binary_size_bytes) for label, cell in cells]
    yield from _list_jumps(row.chain, ChangeKind.SIZE, sizes, _SIZE_JUMP)
    times = [(label, _find_comparable_time(cell)) for label, cell in cells if row.timed_on_one_machine]
    yield from _list_jumps(row.chain, ChangeKind.TIME, times, _TIME_JUMP)


def _find_comparable_time(cell: MatrixCell) -> float | None:
    return None if cell.wrong_numbers or cell.disturbed else cell.time_ms


def _list_working(chain: str, cells: list[tuple[str, MatrixCell]]) -> Iterator[MatrixChange]:
    before: tuple[str, MatrixCell] | None = None
    for label, cell in cells:
        if cell.works is None:
            continue
        if before is not None and before[1].works != cell.works:
            where = f"{before[0]} → {label}"
            bad = before[1] if cell.works else cell
            what = f"{bad.verdict_text}{f': {one_line(bad.reason, 80)}' if bad.reason else ''}"
            kind = ChangeKind.PASSING if cell.works else ChangeKind.FAILING
            yield MatrixChange(kind, chain, (before[0], label), f"{where}: {'was ' if cell.works else ''}{what}")
        before = (label, cell)


def _list_jumps(
    chain: str, kind: ChangeKind, figures: list[tuple[str, float | None]], least: float
) -> Iterator[MatrixChange]:
    """One line with every value that is further than `least` from the one before it."""
    known = [(label, value) for label, value in figures if value is not None]

    def is_jump(before: float, value: float) -> bool:
        share = ratio(value, before)
        return value != before and (share is None or max(share, 1 / share if share else math.inf) > 1 + least)

    jumps = known[:1]
    for before, (label, value) in itertools.pairwise(known):
        if is_jump(before[1], value):
            if jumps[-1] != before:
                jumps.append(before)
            jumps.append((label, value))
    if len(jumps) < 2:
        return
    unit = " ms" if kind is ChangeKind.TIME else ""
    write = milliseconds if kind is ChangeKind.TIME else whole
    # What lies between two values that are no jump is left out.
    written = [f"{write(value)}{unit} ({label})" for label, value in jumps]
    signs = ["→" if is_jump(one, other) else "…" for (_, one), (_, other) in itertools.pairwise(jumps)]
    text = " ".join([written[0], *(f"{sign} {word}" for sign, word in zip(signs, written[1:], strict=True))])
    yield MatrixChange(kind, chain, tuple(label for label, _ in jumps), text)
