"""Work verdicts of comparisons and matrices."""

from __future__ import annotations

from iree_gauntlet.cases import Verdict
from iree_gauntlet.figures import Figure
from iree_gauntlet.records.chain_figures import ChainFigures, MatrixCell
from iree_gauntlet.records.compare_record import WorkVerdict
from iree_gauntlet.records.matrix_outcome import MatrixRow
from iree_gauntlet.reports.matrix_report import _list_changes_of_row
from iree_gauntlet.results import WorkPart

_VERDICT = {
    "verdict": "more work",
    "instructions": {"A": 555_879, "B": 557_791},
    "ratio": 557_791 / 555_879,
    "counter": "valgrind 3.19.0",
    "cpu": "x86-64-v3,-fma",
    "outside": 1_874,
}


def test_a_verdict_says_what_each_part_does() -> None:
    parts = (
        WorkPart("dispatches", "more work", 433_528, 434_288, ("f_dispatch_1_mm",), ()),
        WorkPart("outside", "same work", 122_351, 121_587),
    )
    counts = {"instructions": {"A": 555_879, "B": 555_875}, "parts": [part.as_dict() for part in parts]}
    new = WorkVerdict.from_dict(_VERDICT | counts)
    assert new.parts == parts
    assert new.change_by_part == (
        "-0.0007 %: in dispatches +760 (+0.1753 %), more in f_dispatch_1_mm; "
        "outside of dispatches -764 (-0.6244 %), within its limits"
    )


def test_a_matrix_holds_them_apart() -> None:
    def cell(dispatches: int, outside: int | None) -> MatrixCell:
        values: dict[Figure, float] = {Figure.CALL_INSTRUCTIONS: dispatches + (outside or 0)}
        if outside is not None:
            values |= {Figure.DISPATCH_INSTRUCTIONS: dispatches, Figure.OUTSIDE_INSTRUCTIONS: outside}
        return MatrixCell(Verdict.PASSED, ChainFigures(values, counted_by="valgrind"))

    def changes(*cells: MatrixCell) -> list[str]:
        row = MatrixRow("m/a@cpu", "m", "a", "cpu", dict(zip("ab", cells, strict=True)))
        return [change.kind for change in _list_changes_of_row(row, ["a", "b"])]

    assert changes(cell(100_000, 50_000), cell(100_200, 49_800)) == ["instructions"]
    assert changes(cell(100_000, 50_000), cell(100_000, 51_900)) == []
    assert changes(cell(100_000, 50_000), cell(100_000, 52_100)) == ["instructions outside of dispatches"]
    # Where the counter does not know dispatches.
    assert changes(cell(150_000, None), cell(100_200, 49_800)) == []
