"""`explain` of compiles that fail, crash or hang: reduced programs, whose bundles alone reproduce the failure."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from iree_gauntlet.toolchains.installed import find_installed
from iree_gauntlet.workers.iree_side import reduce_program
from tests.support.command_line import LIMIT_SECONDS
from tests.support.toy_project import FLAGS

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.toy_project import Project

pytestmark = pytest.mark.iree

TENSOR = "!torch.vtensor<[4],f32>"
# Nothing in IREE knows it.
UNKNOWN = f'torch.operator "onnx.NoSuchOperator"(%v) : ({TENSOR}) -> {TENSOR}'
# Releases up to 3.13 at least divide by a dimension of this, which is 0.
RESHAPE = """{torch.onnx.allowzero = 1 : si64}
    : (!torch.vtensor<[0,3,4],f32>, !torch.vtensor<[3],si64>) -> !torch.vtensor<[3,4,0],f32>"""
HEAD = """\
func.func @toy(%a: !torch.vtensor<[0,3,4],f32>, %b: !torch.vtensor<[3],si64>) -> !torch.vtensor<[3,4,0],f32>
    attributes {torch.onnx_meta.ir_version = 10 : si64, torch.onnx_meta.opset_version = 21 : si64} {"""
CRASH = f"""{HEAD}
  %0 = torch.operator "onnx.Reshape"(%a, %b) {RESHAPE}
  return %0 : !torch.vtensor<[3,4,0],f32>
}}
"""
# Between operators that do no harm.
CRASH_BETWEEN = f"""{HEAD}
  %x = torch.operator "onnx.Abs"(%a) : (!torch.vtensor<[0,3,4],f32>) -> !torch.vtensor<[0,3,4],f32>
  %0 = torch.operator "onnx.Reshape"(%x, %b) {RESHAPE}
  %1 = torch.operator "onnx.Abs"(%0) : (!torch.vtensor<[3,4,0],f32>) -> !torch.vtensor<[3,4,0],f32>
  return %1 : !torch.vtensor<[3,4,0],f32>
}}
"""
# What a program computes from constants alone is computed by the compiler: here, the sum of 10^16 products.
ENDLESS = """\
#j = affine_map<(i, j, k, l) -> (j)>
#k = affine_map<(i, j, k, l) -> (k)>
#l = affine_map<(i, j, k, l) -> (l)>
#i = affine_map<(i, j, k, l) -> (i)>
func.func @toy(%a: tensor<4xf32>) -> tensor<4xf32> {
  %x = math.absf %a : tensor<4xf32>
  %c = arith.constant dense<[1.0, 2.0, 3.0, 4.0]> : tensor<4xf32>
  %e = tensor.empty() : tensor<4x65536xf32>
  %b = linalg.broadcast ins(%c : tensor<4xf32>) outs(%e : tensor<4x65536xf32>) dimensions = [1]
  %v = tensor.collapse_shape %b [[0, 1]] : tensor<4x65536xf32> into tensor<262144xf32>
  %s = linalg.generic
    {indexing_maps = [#j, #k, #l, #i], iterator_types = ["parallel", "reduction", "reduction", "reduction"]}
    ins(%v, %v, %v : tensor<262144xf32>, tensor<262144xf32>, tensor<262144xf32>) outs(%c : tensor<4xf32>) {
  ^bb0(%p: f32, %q: f32, %r: f32, %o: f32):
    %pq = arith.mulf %p, %q : f32
    %pqr = arith.mulf %pq, %r : f32
    %n = arith.addf %pqr, %o : f32
    linalg.yield %n : f32
  } -> tensor<4xf32>
  %0 = arith.addf %x, %s : tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""


def long_program(operations: int, at: int, planted: str) -> str:
    """A chain of operators, one of them another."""
    lines, before = [], "%a"
    for number in range(operations):
        text = (
            planted.replace("%v", before)
            if number == at
            else f'torch.operator "onnx.Abs"({before}) : ({TENSOR}) -> {TENSOR}'
        )
        lines.append(f"  %v{number} = {text}")
        before = f"%v{number}"
    head = f"func.func @toy(%a: {TENSOR}) -> {TENSOR} attributes {{torch.onnx_meta.opset_version = 21 : si64}} {{"
    return "\n".join((head, *lines, f"  return {before} : {TENSOR}", "}", ""))


def failed(project: Project, program: str, *words: str) -> None:
    """A run in which the compile of a program does not come to its end."""
    (project.regressions / "toy.mlir").write_text(program)
    project.regression("toy")
    done = project.gauntlet("run", "--model", "toy", "--submodel", "toy", "--stages", "compile", *words)
    assert done.code in (1, 3), done.text


def explained(project: Project, *words: str) -> tuple[dict[str, Any], Path]:
    """What is known of the only case, and its bundle."""
    done = project.gauntlet("explain", *words)
    assert done.code == 0, done.text
    (case,) = json.loads((project.newest / "explain" / "explain.json").read_text())["cases"]
    assert case["bundled"], done.text
    return case, project.newest / "explain" / case["found"]["bundle"]["folder"]


@pytest.mark.stress
def test_a_planted_failure_among_500_operations_is_all_that_is_left(project: Project) -> None:
    failed(project, long_program(500, 313, UNKNOWN))
    case, bundle = explained(project)
    reduced = case["found"]["reduced"]
    assert (case["kind"], reduced["before"]["operations"], reduced["after"]["operations"]) == (
        "compile failure",
        500,
        1,
    )
    assert (reduced["complete"], reduced["phase"]) == (True, "input")
    # The diagnostic says where it is.
    assert reduced["tried"] < 10
    assert reduced["names"] == ["onnx.NoSuchOperator"]
    program = (bundle / "program.mlir").read_text()
    assert ("onnx.NoSuchOperator" in program, "onnx.Abs" in program) == (True, False)
    readme = (bundle / "README.md").read_text()
    assert ("failed to legalize operation" in readme, program.strip() in readme) == (True, True)
    still = project.gauntlet("bundle.run", str(bundle.with_name("bundle.tar.gz")))
    assert (still.code, "the failure is still there" in still.out) == (1, True), still.text
    # Without the operator it compiles, and so the bundle says that it is mended.
    (bundle / "program.mlir").write_text(program.replace("NoSuchOperator", "Abs"))
    fixed = project.gauntlet("bundle.run", str(bundle))
    assert (fixed.code, "it is fixed" in fixed.out) == (0, True), fixed.text
    # Another failure is not taken for this one.
    (bundle / "program.mlir").write_text(program.replace("NoSuchOperator", "NorThisOne"))
    other = project.gauntlet("bundle.run", str(bundle))
    assert (other.code, "it fails in a different way" in other.text) == (3, True), other.text


@pytest.mark.stress
def test_without_locations_the_failure_is_found_by_halving(project: Project) -> None:
    failed(project, re.sub("(?m)^(  %v.*)$", r"\1 loc(unknown)", long_program(100, 71, UNKNOWN)))
    case, bundle = explained(project)
    assert case["found"]["reduced"]["after"]["operations"] == 1
    assert "onnx.NoSuchOperator" in (bundle / "program.mlir").read_text()


def test_a_crash_of_the_compiler_is_reduced_to_the_operation_that_crashes(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLVM_DISABLE_SYMBOLIZATION", "1")
    failed(project, CRASH_BETWEEN)
    require_crash_alone(project, "SIGFPE")


@pytest.mark.stress
@pytest.mark.skipif(shutil.which("llvm-symbolizer") is None, reason="needs llvm-symbolizer: apt install llvm")
def test_a_crash_of_the_compiler_is_known_by_its_function(project: Project) -> None:
    failed(project, CRASH)
    require_crash_alone(project, "SIGFPE in ConvertAtenViewOp::getMultiplier")


def require_crash_alone(project: Project, says: str) -> None:
    """A bundle with the operation that crashes alone shows the crash, and is known by what it says."""
    case, bundle = explained(project)
    assert case["kind"] == "compile crash (SIGFPE)"
    assert case["found"]["again"]["symptom"]["said"] == says
    assert (bundle / "program.mlir").read_text().count("torch.operator") == 1
    # Where the tools lie on this machine is nobody's business.
    assert str(project.folder) not in (bundle / "README.md").read_text()
    assert project.gauntlet("bundle.run", str(bundle)).code == 1


@pytest.mark.measure
def test_a_compile_that_does_not_end_is_reduced_too(project: Project) -> None:
    failed(project, ENDLESS, "--timeout-compile", "5")
    case, bundle = explained(project)
    assert case["kind"] == "compile that does not end"
    assert case["found"]["again"]["symptom"]["ending"] == "does not end"
    program = (bundle / "program.mlir").read_text()
    assert ("linalg.generic" in program, "math.absf" in program) == (True, False)
    assert "timeout -k 10 5 " in (bundle / "repro.sh").read_text()


def test_what_does_not_parse_is_shown_whole(project: Project) -> None:
    project.add("broken", '"tosa.nonsense"(%a) : (tensor<4xf32>) -> tensor<4xf32')
    assert project.gauntlet("run", "--model", "toy", "--submodel", "broken").code == 1
    case, bundle = explained(project)
    assert case["found"]["reduced"]["why"] == "the program cannot be reduced: it does not parse"
    assert (bundle / "program.mlir").read_bytes() == (project.regressions / "broken.mlir").read_bytes()


@pytest.mark.parametrize("converts", [True, False])
def test_a_portable_artifact_is_reduced_as_what_it_is_converted_to(tmp_path: Path, converts: bool) -> None:
    tensor = "!vhlo.tensor_v1<4x!vhlo.f32_v1>"
    (tmp_path / "program.mlir").write_text(
        f'vhlo.func_v1 @main(%x: {tensor}) -> ({tensor}) {{ "vhlo.return_v1"(%x) : ({tensor}) -> () }}\n'
        '{arg_attrs = #vhlo.array_v1<[]>, res_attrs = #vhlo.array_v1<[]>, sym_visibility = #vhlo.string_v1<"">}\n'
    )
    # All but the conversion fails.
    real = find_installed().compiler.compile if converts else "false"
    (tmp_path / "compile").write_text(
        f'#!/bin/sh\ncase "$*" in program.mlir*) exec "{real}" "$@" ;; esac\necho "error: planted"\nexit 1\n'
    )
    (tmp_path / "compile").chmod(0o755)
    texts = {"compile": "./compile", "cwd": str(tmp_path), "pattern": "planted", "folder": str(tmp_path)}
    plan = {**texts, "program": "program.mlir", "flags": [], "crash": False, "hang": 0.0}
    plan |= {"timeout": LIMIT_SECONDS, "budget": LIMIT_SECONDS}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    argv = [sys.executable, reduce_program.__file__, "plan.json"]
    done = subprocess.run(argv, cwd=tmp_path, check=False, capture_output=True, text=True)
    assert done.returncode == (0 if converts else 2), done.stderr
    if converts:
        assert "util.func public @main(%arg0: tensor<4xf32>)" in (tmp_path / "reduced.mlir").read_text()
    else:
        assert done.stderr.startswith("it is a portable artifact of StableHLO, whose conversion fails")


@pytest.mark.stress
def test_when_the_time_is_up_the_best_so_far_counts(project: Project) -> None:
    failed(project, long_program(20, 7, UNKNOWN))
    # No compile ends in so little.
    case, _ = explained(project, "--budget", "1e-9")
    assert case["found"]["reduced"]["complete"] is False
    assert case["found"]["bundle"]["form"] == "the reduced program"
    same = project.gauntlet("explain", "--budget", "1e-9")
    assert (same.code, "reducing the program" in same.err) == (0, False), same.text
    more = project.gauntlet("explain", "--budget", "2")
    assert (more.code, "reduced from 20 operations to 1 in" in more.out) == (0, True), more.text


def test_a_program_that_has_changed_since_is_not_taken_for_the_runs(project: Project) -> None:
    # Of an operator case the run knows what the program was before it began.
    case = project.folder / "ops" / "node" / "test_toy"
    case.mkdir(parents=True)
    (project.folder / "ops" / "configs").mkdir()
    config = {"config_name": "cpu", "iree_compile_flags": FLAGS, "iree_run_module_flags": []}
    (project.folder / "ops" / "configs" / "cpu.json").write_text(json.dumps(config))
    (case / "model.mlir").write_text(long_program(3, 1, UNKNOWN))
    (case / "run_module_io_flags.txt").write_text("--input=4xf32=1\n--expected_output=4xf32=1\n")
    assert project.gauntlet("run", "--spec-dir", "ops").code == 1
    (case / "model.mlir").write_text(long_program(4, 1, UNKNOWN))
    done = project.gauntlet("explain")
    assert (done.code, "model.mlir has changed since the run" in done.out) == (4, True), done.text


def test_what_was_explained_before_stays_in_the_report(project: Project) -> None:
    project.add("broken", '"tosa.nonsense"(%a) : (tensor<4xf32>) -> tensor<4xf32')
    project.add("other", '"tosa.other"(%a) : (tensor<4xf32>) -> tensor<4xf32')
    assert project.gauntlet("run", "--model", "toy", "--submodel", "[bo]*", "--stages", "compile").code == 1
    assert project.gauntlet("explain").code == 0
    assert project.gauntlet("explain", "latest", "toy/broken*").code == 0
    report = (project.newest / "explain" / "explain.md").read_text()
    assert ("toy/broken" in report, "toy/other" in report) == (True, True)
