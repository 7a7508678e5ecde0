"""Work verdicts of comparisons and matrices."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from iree_gauntlet.cases import Verdict
from iree_gauntlet.engine.rounds.blocks import PairSamples
from iree_gauntlet.experiments.compare import add_work
from iree_gauntlet.experiments.session_verdicts import ModelVerdict
from iree_gauntlet.figures import Figure
from iree_gauntlet.measuring.statistics.comparison_verdict import compare_log_ratios
from iree_gauntlet.measuring.statistics.rounds import plan_looks
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
_CHANGE = "(+0.3440 %: ) as compiled for x86-64-v3,-fma"


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


def _judged(shift: float, control_shift: float = 0.0) -> ModelVerdict:
    """The verdict of ten blocks whose sides differ by a shift, and whose control spreads as wide as another one."""
    plan = plan_looks(0.01)
    times, control = compare_log_ratios(np.full(10, shift), plan), compare_log_ratios(np.zeros(10), plan)
    control = replace(control, low=math.exp(-control_shift), high=math.exp(control_shift))
    return ModelVerdict("m/a@cpu", times, control, None, PairSamples(), "", is_contradicted=True)


def _reason(verdict: ModelVerdict) -> str:
    return verdict.comparison.reason if verdict.comparison else ""


def _work(verdict: str) -> WorkVerdict:
    return WorkVerdict.from_dict(_VERDICT | {"verdict": verdict, "parts": []})


@pytest.mark.parametrize(
    ("shift", "verdict", "unexplained", "word"),
    [(0.05, "slower", ("same work", "less work"), "more"), (-0.05, "faster", ("same work", "more work"), "fewer")],
)
def test_a_difference_without_work_says_so_and_is_none_within_the_control(
    shift: float, verdict: str, unexplained: tuple[str, ...], word: str
) -> None:
    for work in ("same work", "less work", "more work"):
        quiet, wide = (add_work(_judged(shift, control), _work(work)) for control in (0.01, 0.06))
        assert quiet.verdict == verdict
        note = f"; B executes no {word} instructions {_CHANGE}: layout, caches, frequency"
        assert _reason(quiet).endswith(note) is _reason(wide).endswith(note) is (work in unexplained)
        assert (wide.verdict, wide.is_contradicted) == (
            ("inconclusive", False) if work in unexplained else (verdict, True)
        )


def test_what_is_undecided_says_what_the_work_is() -> None:
    same = add_work(_judged(0.005), _work("same work"))
    assert same.verdict == "same"
    assert "instructions" not in _reason(same)
    without = ModelVerdict("m/a@cpu", None, None, None, PairSamples(), "the time is up")
    assert add_work(without, _work("more work")).record().reason == f"the time is up; more work {_CHANGE}"
    assert add_work(without, _work("same work")).record().reason == (
        f"the time is up; the same work {_CHANGE}: the counted code does no more"
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
