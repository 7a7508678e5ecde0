"""Tuning specs: the number of dispatches that they match, with the real compiler."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.toy_project import FLAGS, Project
from tests.support.tuning_specs import MATMULS, write_cpu_spec, write_gfx942_spec

pytestmark = pytest.mark.iree

_STEP = "toy/abs@cpu:compstat"
_SPEC_FLAG = "--iree-codegen-tuning-spec-path"
_NO_MATCH = "tuning spec matches no dispatch"


@pytest.fixture
def project(shared_project: Project) -> Project:
    project = shared_project
    project.reset()
    (project.folder / "matches.mlir").write_text(write_cpu_spec())
    (project.folder / "stale.mlir").write_text(write_cpu_spec("linalg.conv_2d"))
    (project.folder / "gfx942.mlir").write_text(write_gfx942_spec())
    (project.folder / "gauntlet.toml").write_text(
        "".join(f'[variants.{name}]\ntuning_spec = "{name}.mlir"\n' for name in ("matches", "stale"))
    )
    return project


def _use_flag(project: Project, name: str) -> None:
    """Give the model's own flags a tuning spec."""
    project.regression(compiler_flags=[*FLAGS, f"{_SPEC_FLAG}={project.folder}/{name}.mlir"])


def _summarise(project: Project) -> dict[str, Any]:
    (chain,) = json.loads((project.newest / "summary.json").read_text())["chains"]
    return dict(chain)


def test_a_spec_that_matches_is_counted_once(project: Project) -> None:
    # The cache may have the module alone.
    project.forget_modules()
    assert project.gauntlet("run", "--variant", "matches", "--stages", "compile").code == 0
    done = project.gauntlet("run", "--variant", "matches", "--stages", "compstat")
    assert done.code == 0, done.text
    result = project.result(_STEP)
    assert result["statistics"]["tuned_dispatches"] == 1
    assert (project.result("toy/abs@cpu:compile")["cache"]["hit"], result["cache"]["hit"]) == (True, False)
    assert _summarise(project)["tuned_dispatches"]["measured"] == 1
    assert project.gauntlet("run", "--variant", "matches", "--stages", "compstat").code == 0
    again = project.result(_STEP)
    assert (again["statistics"]["tuned_dispatches"], again["cache"]["hit"]) == (1, True)


def test_dispatches_that_do_not_match_are_not_counted(project: Project) -> None:
    program = MATMULS.replace("return %twice", "%sizes = math.absf %a : tensor<64x256xf32>\n  return %twice, %sizes")
    types = "tensor<64x256xf32>"
    program = program.replace(f"-> {types} {{\n  %zero", f"-> ({types}, {types}) {{\n  %zero")
    (project.regressions / "abs.mlir").write_text(program.replace(f"%sizes : {types}", f"%sizes : {types}, {types}"))
    _use_flag(project, "matches")
    done = project.gauntlet("run", "--stages", "compstat")
    assert done.code == 0, done.text
    tuned = json.loads((project.newest / "steps" / "toy" / "abs.cpu" / "compstat" / "tuning.json").read_text())
    assert (len(tuned["matched"]), tuned["dispatches"]) == (1, 2)
    assert "elementwise" in tuned["matched"][0]


def test_a_model_without_tuning_spec_has_no_such_figure(project: Project) -> None:
    done = project.gauntlet("run", "--stages", "compstat")
    assert done.code == 0, done.text
    assert project.result(_STEP).get("command", "") == ""
    assert "tuned_dispatches" not in _summarise(project)
    assert "tuned" not in done.out


def test_a_spec_that_matches_nothing_fails_and_the_model_is_checked_as_usual(project: Project) -> None:
    done = project.gauntlet("run", "--variant", "stale", "--stages", "threshold", "--stages", "compstat")
    assert done.code == 1, done.text
    assert f" s: {_NO_MATCH}\n" in done.out
    result = project.result(_STEP)
    assert (result["verdict"], result["reason"], result["failure"]) == ("failed", _NO_MATCH, "tunes nothing")
    assert project.verdict("toy/abs@cpu:threshold") == "passed"


def test_no_match_can_be_expected(project: Project) -> None:
    _use_flag(project, "stale")
    fields = ('case = "toy/abs"', 'stage = "compstat"', 'kind = "tunes nothing"', 'reason = "to be tuned again"')
    project.suite("\n".join(("[[expect_failure]]", *fields)))
    words = ("run", "--suite", "suites/s.toml", "--stages", "compstat")
    assert project.gauntlet(*words).code == 0
    result = project.result(_STEP)
    assert result["verdict"] == "xfailed"
    assert result["reason"].startswith(f"{_NO_MATCH}; tunes nothing, expected: to be tuned again")
    _use_flag(project, "matches")
    assert project.gauntlet(*words).code == 1
    assert project.verdict(_STEP) == "xpassed"
    # Without a tuning spec, its failure is not expected.
    project.regression()
    assert project.gauntlet(*words).code == 0
    assert project.verdict(_STEP) == "passed"


def test_a_model_without_benchmark_is_checked_too(project: Project) -> None:
    (project.benchmarks / "abs_cpu.json").unlink()
    _use_flag(project, "stale")
    done = project.gauntlet("run")
    assert done.code == 1, done.text
    assert project.result(_STEP)["reason"] == _NO_MATCH


@pytest.mark.parametrize(("golden", "code"), [(1, 0), (2, 1), (0, 1)])
def test_a_golden_is_exact(project: Project, golden: int, code: int) -> None:
    project.benchmark(golden_tuned_dispatches={"cpu": golden})
    _use_flag(project, "matches")
    done = project.gauntlet("run", "--stages", "compstat")
    assert done.code == code, done.text
    result = project.result(_STEP)
    relation = {1: "", 2: "is below the limit 2 by 1, -50.0 %", 0: "exceeds the limit 0 by 1"}[golden]
    assert result["reason"].startswith(f"tuned dispatches 1 {relation}" if relation else "")
    assert result.get("failure") == ("misses a golden" if code else None)
    assert any("the tuning spec matches 1 of 1 dispatches: abs_dispatch_0" in note for note in result["notes"]) == code


def test_a_golden_without_tuning_spec_is_broken(project: Project) -> None:
    project.benchmark(golden_tuned_dispatches={"cpu": 1})
    assert project.gauntlet("run", "--stages", "compstat").code == 1
    assert project.result(_STEP)["reason"].startswith("tuned dispatches 0 is below the limit 1 by 1, -100.0 %")


def test_a_golden_is_shown_and_updated(project: Project) -> None:
    project.benchmark(variants={"matches": {"golden_tuned_dispatches": {"cpu": 2}}})
    assert project.gauntlet("run", "--variant", "matches", "--run-dir", "runs/v", "--stages", "compstat").code == 1
    shown = json.loads(project.gauntlet("golden.show", "--format", "json").out)["goldens"]
    assert [(entry["metric"], entry["measured"], entry["verdict"]) for entry in shown] == [
        ("tuned_dispatches", 1, "broken")
    ]
    done = project.gauntlet("golden.update", "--run", "runs/v", "--write")
    assert done.code == 0, done.text
    spec = json.loads((project.benchmarks / "abs_cpu.json").read_text())
    assert spec["variants"]["matches"]["golden_tuned_dispatches"] == {"cpu": 1}


def test_a_comparison_with_a_spec_that_matches_nothing_has_no_effect(project: Project) -> None:
    done = project.gauntlet("compare", "+stale", "--run-dir", "c", "--cpus", "all", "--no-work")
    assert done.code == 0, done.text
    assert "No effect on 1 model" in done.out


def _compile_for(project: Project, chip: str) -> Any:
    """Compile two matmuls for a chip of which there is no device."""
    (project.regressions / "abs.mlir").write_text(MATMULS)
    (project.regressions / "abs_cpu.json").unlink()
    (project.benchmarks / "abs_cpu.json").unlink()
    spec = {
        "mlir": "abs.mlir",
        "device": "hip",
        "compile_only": True,
        "compiler_flags": ["--iree-hal-target-device=hip", f"--iree-rocm-target={chip}"],
        "tuner_file": {"mi300x": "gfx942.mlir"},
    }
    (project.regressions / "abs_rocm.json").write_text(json.dumps(spec))
    words = ("--target", chip, "--sku", "mi300x", "--external-file-directory", str(project.folder))
    return project.gauntlet("run", "--stages", "compstat", *words)


def test_a_tuner_file_for_gfx942_matches_there(project: Project) -> None:
    done = _compile_for(project, "gfx942")
    assert done.code == 0, done.text
    assert project.result("toy/abs@rocm-gfx942:compstat")["statistics"]["tuned_dispatches"] == 1


def test_a_tuner_file_for_another_chip_does_not_compile(project: Project) -> None:
    done = _compile_for(project, "gfx1201")
    assert done.code == 1, done.text
    result = project.result("toy/abs@rocm-gfx1201:compile")
    assert (result["verdict"], result["failure"]) == ("failed", "does not compile")
    assert project.verdict("toy/abs@rocm-gfx1201:compstat") == "skipped"
