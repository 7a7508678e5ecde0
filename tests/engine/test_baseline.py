"""Runs that are compared with an earlier run: the compared steps and figures, and gaps of the earlier run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from iree_gauntlet.cases import Golden, Verdict
from iree_gauntlet.engine.run_start import add_baseline_goldens, add_compile_statistics
from iree_gauntlet.figures import Figure
from iree_gauntlet.journal_format import JournalRecord
from iree_gauntlet.measuring.goldens.goldens import check_figure
from iree_gauntlet.results import OutputComparison, Result
from iree_gauntlet.stages import Stage
from tests.support.spec_trees import BENCHMARK, SPEC, load, plan, write_tree
from tests.support.torch_trees import COMPSTAT, MODULE, QUALITY

if TYPE_CHECKING:
    from iree_gauntlet.engine.plan import Plan

_STAGES = (Stage.COMPILE, Stage.THRESHOLD, Stage.COMPSTAT)


def _error(*errors: float | None) -> tuple[OutputComparison, ...]:
    return tuple(
        OutputComparison(index=index, type="1xf32", passed=True, max_abs_error=error)
        for index, error in enumerate(errors)
    )


def _record(plan: Plan, *, outputs: tuple[OutputComparison, ...] = (), **statistics: float) -> JournalRecord:
    """A run of all compiles and thresholds of a plan, without its compile statistics."""
    results = {
        step.id: Result(
            Verdict.PASSED,
            outputs=outputs if step.stage is Stage.THRESHOLD else (),
            statistics=statistics if step.stage is Stage.COMPILE else {},
        )
        for step in plan.steps
        if step.stage is not Stage.COMPSTAT
    }
    return JournalRecord(Path("journal.jsonl"), results=results)


def _goldens(plan: Plan, stage: Stage) -> list[tuple[Golden, ...]]:
    return [step.goldens for step in plan.steps if step.stage is stage]


def test_counts_sizes_and_errors_are_held_whatever_the_release(tmp_path: Path) -> None:
    made = plan(add_compile_statistics(load(write_tree(tmp_path, {"regression_tests/m/a.json": SPEC}))), _STAGES)
    record = _record(made, outputs=_error(1e-6, 3e-6, None), dispatch_count=19, binary_size_bytes=1000)
    held, missing = add_baseline_goldens(made, record, "runs/r", "3.14.0")
    assert missing == ()
    (counts,) = _goldens(held, Stage.COMPSTAT)
    passed = {
        (Figure.DISPATCHES, 19): True,
        (Figure.DISPATCHES, 20): False,
        (Figure.SIZE, 1010): True,
        (Figure.SIZE, 1011): False,
    }
    for (metric, figure), expected in passed.items():
        assert check_figure(metric, figure, counts, "3.14.0").passed is expected, (metric, figure)
    (errors,) = _goldens(held, Stage.THRESHOLD)
    assert check_figure(Figure.ERROR, 6e-6, errors, "").passed is True
    assert check_figure(Figure.ERROR, 6.1e-6, errors, "").passed is False
    assert check_figure(Figure.ERROR, float("nan"), errors, "").passed is False
    assert {golden.origin.file for golden in (*counts, *errors)} == {"--baseline runs/r"}


def test_a_spec_keeps_its_own_goldens_and_the_strictest_counts(tmp_path: Path) -> None:
    own = {"golden_dispatch": {"cpu": 30}, "golden_compiler": "3.14.0", "device": "local-task"}
    tree = {"regression_tests/m/a.json": SPEC, "benchmarks/m/a_cpu.json": BENCHMARK | own}
    made = plan(add_compile_statistics(load(write_tree(tmp_path, tree))), _STAGES)
    (before,) = _goldens(made, Stage.COMPSTAT)
    held, _ = add_baseline_goldens(made, _record(made, dispatch_count=19), "runs/r", "3.14.0")
    (goldens,) = _goldens(held, Stage.COMPSTAT)
    assert goldens[-len(before) :] == before != ()
    assert check_figure(Figure.DISPATCHES, 20, goldens, "3.14.0").limit == 19


def test_each_module_is_counted_once(tmp_path: Path) -> None:
    tree = {
        "torch_models/m/modules/x.json": MODULE,
        "torch_models/m/quality.json": QUALITY | {"modules": ["m/modules/x"]},
        "torch_models/m/count.json": COMPSTAT | {"module": "m/modules/x"},
    }
    cases = load(write_tree(tmp_path, tree))
    made = plan(add_compile_statistics(cases), _STAGES)
    assert [step.chain for step in made.steps if step.stage is Stage.COMPSTAT] == ["m/count@cpu"]
    alone = replace(cases, cases=tuple(case for case in cases.cases if case.submodel == "quality"))
    made = plan(add_compile_statistics(alone), _STAGES)
    assert [step.chain for step in made.steps if step.stage is Stage.COMPSTAT] == ["m/quality@cpu"]


@pytest.mark.parametrize("gone", ["the step", "its verdict", "its error"])
def test_what_an_earlier_run_does_not_say_is_named(tmp_path: Path, gone: str) -> None:
    made = plan(add_compile_statistics(load(write_tree(tmp_path, {"regression_tests/m/a.json": SPEC}))), _STAGES)
    record = _record(made, outputs=_error(None if gone == "its error" else 1e-6), dispatch_count=19)
    checked = next(step.id for step in made.steps if step.stage is Stage.THRESHOLD)
    if gone == "the step":
        del record.results[checked]
    elif gone == "its verdict":
        record.results[checked] = replace(record.results[checked], verdict=Verdict.FAILED)
    held, missing = add_baseline_goldens(made, record, "runs/r", "3.14.0")
    assert missing == ("m/a@cpu",)
    assert _goldens(held, Stage.THRESHOLD) == [()]
    assert len(*_goldens(held, Stage.COMPSTAT)) == 1
