"""Peculiarities of files of torch models that others wrote: each means the same as to the others' programs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from iree_gauntlet.dialects.json_text import find_line
from iree_gauntlet.figures import Statistic
from iree_gauntlet.stages import Stage
from iree_gauntlet.upkeep.json_edits import with_value
from tests.support.spec_trees import find_step, plan, write_tree
from tests.support.torch_trees import BENCHMARK, COMPSTAT, MODULE, QUALITY, TREE, load_torch, remove_fields

if TYPE_CHECKING:
    from pathlib import Path

    from iree_gauntlet.dialects.load import CaseSet
    from iree_gauntlet.engine.plan import Plan
    from iree_gauntlet.steps import Step

ALL = (Stage.COMPILE, Stage.THRESHOLD, Stage.COMPSTAT, Stage.BENCHMARK)
HIP = ["--iree-hal-target-device=hip"]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return write_tree(tmp_path, TREE)


def planned(folder: Path, **files: Any) -> Plan:
    """The plan of a tree with some files of the model `m` changed, without a problem."""
    cases = loaded(folder, **files)
    assert not cases.problems
    return plan(cases, ALL)


def loaded(folder: Path, **files: Any) -> CaseSet:
    """What a tree means with some files of the model `m` changed."""
    return load_torch(write_tree(folder, {f"torch_models/m/{name}.json": content for name, content in files.items()}))


def argv_of(step: Step) -> tuple[str, ...]:
    """The command line of a step that has one."""
    assert step.command is not None
    return step.command.argv


# Fields


@pytest.mark.parametrize("left_out", [("inputs",), ("expected_outputs",), ("inputs", "expected_outputs")])
def test_a_test_without_inputs_or_expected_outputs_runs(tree: Path, left_out: tuple[str, ...]) -> None:
    step = find_step(planned(tree, quality=remove_fields(QUALITY, *left_out)), "m/quality@cpu:threshold")
    words = argv_of(step)
    assert any(word.startswith("--input=") for word in words) == ("inputs" not in left_out)
    assert any(word.startswith("--expected_output=") for word in words) == ("expected_outputs" not in left_out)
    nothing_compared = "the spec has no expected outputs: only that it runs is checked"
    assert (nothing_compared in step.notes) == ("expected_outputs" in left_out)


def test_a_benchmark_without_inputs(tree: Path) -> None:
    step = find_step(planned(tree, bench=remove_fields(BENCHMARK, "inputs")), "m/bench@cpu:benchmark")
    assert not any(word.startswith("--input=") for word in argv_of(step))


def test_weights_without_a_type_are_fetched(tree: Path) -> None:
    weights = [{"scope": "model", "url": "https://h/w.irpa"}]
    step = find_step(planned(tree, quality=QUALITY | {"weights": weights}), "m/quality@cpu:threshold")
    assert "--parameters=model=/cache/h/w.irpa" in argv_of(step)


def test_the_pipeline_of_another_format_is_passed_over_with_a_note(tree: Path) -> None:
    carried = {"pipeline_mlir": "pipeline.mlir", "pipeline_compiler_flags": ["--iree-hal-target-device=hip"]}
    changed = find_step(planned(tree, quality=QUALITY | carried), "m/quality@cpu:threshold")
    plain = find_step(planned(tree, quality=QUALITY), "m/quality@cpu:threshold")
    assert argv_of(changed) == argv_of(plain)
    assert [note.split()[0] for note in changed.notes] == ["pipeline_mlir"]
    assert plain.notes == ()


def test_the_module_of_a_compstat_as_an_array_of_one(tree: Path) -> None:
    step = find_step(planned(tree, stat=COMPSTAT | {"module": ["m/modules/a"]}), "m/stat@cpu:compstat")
    assert step.needs == ("m/modules/a@cpu:compile",)


# Targets: a scheduler next to the model says no chip, or nothing at all


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ([HIP, [*HIP, "--iree-hip-target=gfx942"]], "rocm-gfx942"),
        ([[*HIP, "--iree-hip-target=gfx942"], HIP], "rocm-gfx942"),
        ([[], [*HIP, "--iree-hip-target=gfx942"]], "rocm-gfx942"),
        ([["--iree-opt-level=O1"], HIP], "rocm"),
        ([HIP, ["--iree-hal-target-device=cuda"]], "rocm"),
        ([[], []], "cpu"),
    ],
)
def test_the_target_is_that_of_any_module(tree: Path, flags: list[list[str]], name: str) -> None:
    modules = {f"modules/{n}": MODULE | {"compiler_flags": found} for n, found in zip("ab", flags, strict=True)}
    cases = loaded(tree, **modules, quality=QUALITY | {"modules": ["m/modules/a", "m/modules/b"], "markers": ["two"]})
    assert not cases.problems
    assert [case.target.name for case in cases.cases if "two" in case.markers] == [name]


# Goldens of the first generation


def test_a_golden_of_the_first_generation_is_the_limit_of_the_mean(tree: Path) -> None:
    old = remove_fields(BENCHMARK, "golden_time_ms") | {"golden_time": 550.0}
    step = find_step(planned(tree, bench=old), "m/bench@cpu:benchmark")
    assert [(item.limit, item.statistic, item.origin.field) for item in step.goldens] == [
        (550.0, Statistic.MEAN, "golden_time")
    ]
    assert "golden_time_ms" in step.notes[0]


def test_the_newer_golden_goes_before_that_of_the_first_generation(tree: Path) -> None:
    both = BENCHMARK | {"golden_time": 550.0, "golden_time_ms": 10.0, "tolerance_factor": 1.5}
    step = find_step(planned(tree, bench=both), "m/bench@cpu:benchmark")
    assert [(item.limit, item.statistic) for item in step.goldens] == [(15.0, Statistic.MIN)]
    assert len(step.notes) == 1


# Comments

COMMENTED = """// of the first machine
{
  "type": "benchmark", /* two
  lines */ "markers": ["cpu"],
  "modules": ["m/modules/a"],  // https://no.comment/"
  "run_args": ["--x=//not/a/comment"],
  "golden_time_ms": 12.5 // measured
}
"""


def test_comments_are_read_over(tree: Path) -> None:
    step = find_step(planned(tree, bench=COMMENTED), "m/bench@cpu:benchmark")
    assert "--x=//not/a/comment" in argv_of(step)
    assert step.goldens[0].value == 12.5


def test_a_tree_of_any_name_is_known_by_a_test_with_comments(tmp_path: Path) -> None:
    files = {"own/a.json": json.dumps(MODULE), "own/bench.json": COMMENTED.replace("m/modules/a", "a")}
    cases = load_torch(write_tree(tmp_path, files) / "own")
    assert not cases.problems
    assert [case.submodel for case in cases.cases] == ["bench"]


def test_a_mistake_below_comments_has_its_line(tree: Path) -> None:
    cases = loaded(tree, bench=COMMENTED.replace("12.5", '"slow"'))
    assert [(problem.line, problem.field) for problem in cases.problems] == [(7, "golden_time_ms")]


def test_an_edit_keeps_the_comments() -> None:
    assert with_value(COMMENTED, ["golden_time_ms"], 11.0) == COMMENTED.replace("12.5", "11")
    assert find_line(COMMENTED, ["run_args", 0]) == 6


# Names of modules


def test_a_dot_in_the_name_of_a_module(tree: Path) -> None:
    compiled = planned(tree, **{"modules/a.v2": MODULE}, quality=QUALITY | {"modules": ["m/modules/a.v2"]})
    assert "m/modules/a.v2@cpu:compile" in find_step(compiled, "m/quality@cpu:threshold").needs


def test_what_follows_a_dot_is_a_suffix_where_there_is_only_such_a_file(tree: Path) -> None:
    compiled = planned(tree, quality=QUALITY | {"modules": ["m/modules/a.v2"]})
    assert "m/modules/a@cpu:compile" in find_step(compiled, "m/quality@cpu:threshold").needs
    missing = loaded(tree, stat=COMPSTAT | {"module": "m/modules/b.v2"}).problems
    assert ["m/modules/b.v2.json" in problem.message for problem in missing] == [True]
