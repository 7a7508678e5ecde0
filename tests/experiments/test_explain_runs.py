"""`explain` of runs that fail or crash before they give numbers: the dispatch in which it happens is found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.experiments.test_explain_compiles import explained
from tests.support.toy_project import FLAGS

if TYPE_CHECKING:
    from tests.support.toy_project import Project

pytestmark = pytest.mark.iree

# Three dispatches; the middle one reads where its second input says.
READS = """\
!square = tensor<16x16xf32>
func.func @toy(%a: tensor<16x16xf32>, %b: tensor<16xi64>) -> tensor<16x16xf32> {
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : !square
  %f = linalg.fill ins(%z : f32) outs(%e : !square) -> !square
  %0 = linalg.matmul ins(%a, %a : !square, !square) outs(%f : !square) -> !square
  %s = tensor.empty() : tensor<16xf32>
  %1 = linalg.generic {
      indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>], iterator_types = ["parallel"]}
    ins(%b : tensor<16xi64>) outs(%s : tensor<16xf32>) {
  ^bb0(%x: i64, %o: f32):
    %i = linalg.index 0 : index
    %j = arith.index_cast %x : i64 to index
    %r = tensor.extract %0[%i, %j] : !square
    linalg.yield %r : f32
  } -> tensor<16xf32>
  %h = linalg.broadcast ins(%1 : tensor<16xf32>) outs(%e : !square) dimensions = [1]
  %2 = linalg.matmul ins(%h, %a : !square, !square) outs(%f : !square) -> !square
  return %2 : !square
}
"""
# Its function wants another shape than it is given.
MISMATCH = """\
func.func @toy(%a: tensor<?xf32>, %b: tensor<?xf32>) -> tensor<?xf32> {
  %c0 = arith.constant 0 : index
  %n = tensor.dim %a, %c0 : tensor<?xf32>
  %four = arith.constant 4 : index
  %same = arith.cmpi eq, %n, %four : index
  cf.assert %same, "four values are wanted"
  %0 = arith.addf %a, %b : tensor<?xf32>
  return %0 : tensor<?xf32>
}
"""


def failed(project: Project, program: str, *inputs: np.ndarray[Any, Any]) -> None:
    """A run in which a program does not come to its end."""
    (project.regressions / "toy.mlir").write_text(program)
    for number, values in enumerate(inputs):
        np.save(project.regressions / f"in{number}.npy", values)
    np.save(project.regressions / "toy.npy", inputs[0])
    sources = [{"source": f"in{number}.npy"} for number in range(len(inputs))]
    project.regression("toy", inputs=sources, compiler_flags=FLAGS)
    done = project.gauntlet("run", "--model", "toy", "--submodel", "toy", "--stages", "threshold")
    assert done.code in (1, 3), done.text


def test_a_crash_is_found_in_its_dispatch_and_shown_by_that_alone(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("iree_gauntlet.experiments.explain._PROBES", ())
    # Nothing is mapped so far away.
    places = np.full(16, 1 << 44, np.int64)
    failed(project, READS, np.ones((16, 16), np.float32), places)
    case, bundle = explained(project)
    located = case["found"]["located"]
    assert (case["kind"], case["found"]["bundle"]["form"]) == ("run crash (SIGSEGV)", "a program for any release")
    assert "dispatch_1" in located["dispatch"]
    assert located["call"] == 1
    program = (bundle / "program.mlir").read_text()
    assert ("tensor.extract " in program, "matmul" in program) == (True, False)
    still = project.gauntlet("bundle.run", str(bundle))
    assert (still.code, "the failure is still there" in still.out) == (1, True), still.text
    # Where it reads what is there, it does not crash.
    (given,) = (path for path in bundle.glob("input_*.bin") if path.stat().st_size == places.nbytes)
    given.write_bytes(bytes(places.nbytes))
    assert project.gauntlet("bundle.run", str(bundle)).code == 0


# Another function doubles where it has to read.
SEVERAL = (
    READS
    + """\
func.func @double(%b: tensor<16xi64>) -> tensor<16xi64> {
  %0 = arith.addi %b, %b : tensor<16xi64>
  return %0 : tensor<16xi64>
}
"""
)


@pytest.mark.stress
def test_a_crash_in_one_of_several_calls_is_found_in_its_dispatch(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("iree_gauntlet.experiments.explain._PROBES", ())
    (project.regressions / "toy.mlir").write_text(SEVERAL)
    np.save(project.regressions / "places.npy", np.full(16, 1 << 43, np.int64))
    calls: list[dict[str, Any]] = [
        {"function": "toy", "inputs": [{"value": "16x16xf32=1"}, {"value": "16xi64=0"}]},
        {"function": "double", "inputs": [{"source": "places.npy"}]},
        {"function": "toy", "inputs": ["@0.input0", "@1.0"]},
    ]
    several: dict[str, Any] = {"run_function": None, "inputs": [], "outputs": []}
    project.regression("toy", **several, calls=calls, compiler_flags=FLAGS)
    done = project.gauntlet("run", "--model", "toy", "--submodel", "toy", "--stages", "threshold")
    assert (done.code, "call 2 (toy) crashed with SIGSEGV" in done.out) == (3, True), done.text
    case, bundle = explained(project)
    located = case["found"]["located"]
    assert (case["kind"], located["function_call"]) == ("run crash (SIGSEGV)", "2 (toy)")
    assert case["found"]["bundle"]["form"] == "a program for any release"
    assert "tensor.extract " in (bundle / "program.mlir").read_text()
    assert ", in call 2 (toy) of the spec)" in (bundle.parents[2] / "explain.md").read_text()


@pytest.mark.stress
def test_what_fails_in_no_dispatch_is_shown_whole(project: Project) -> None:
    failed(project, MISMATCH, np.ones(5, np.float32), np.ones(5, np.float32))
    case, bundle = explained(project)
    assert (case["kind"], case["found"]["bundle"]["form"]) == ("run failure", "the whole program")
    assert "four values are wanted" in case["found"]["again"]["symptom"]["said"]
    assert project.gauntlet("bundle.run", str(bundle)).code == 1
