"""`explain` of ONNX models: an operator that IREE imports wrongly is found, and its bundle alone shows the error.

For two equally near values, GridSample with `mode="nearest"` takes the even one in onnxruntime and the later one in
IREE 3.13. If IREE changes this, these tests need another operator.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from iree_gauntlet.experiments.explaining.operators import Graph, find_first_wrong_operator
from iree_gauntlet.workers import iree_side

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tests.support.toy_project import Project

pytestmark = pytest.mark.iree

_INPUT = "random://normal/1x1x3x3xf32?seed=1"
# Half way between two of three values is -0.5 and 0.5 where corners are aligned.
_GRID = np.array([[[[-1, -1], [-0.5, -0.5], [-0.2, -0.2]], [[0, 0], [0.5, 0.5], [1, 1]]]], np.float32)
_OPSET = 20


def _model(sample: str = "GridSample") -> onnx.ModelProto:
    """Five operators and a reshape to sizes that are computed; the third is wrong where it samples."""
    middle = helper.make_node(sample, ["grown"], ["sampled"], name="/sample")
    if sample == "GridSample":
        middle.input.append("grid")
        middle.attribute.extend([helper.make_attribute("mode", "nearest"), helper.make_attribute("align_corners", 1)])
    nodes = [
        helper.make_node("Mul", ["x", "two"], ["doubled"], name="/double"),
        helper.make_node("Exp", ["doubled"], ["grown"], name="/grow"),
        middle,
        helper.make_node("Shape", ["sampled"], ["sizes"], name="/sizes"),
        helper.make_node("Sqrt", ["sampled"], ["rooted"], name="/root"),
        helper.make_node("Reshape", ["rooted", "sizes"], ["y"], name="/reshape"),
    ]
    held = [numpy_helper.from_array(np.array(2, np.float32), "two"), numpy_helper.from_array(_GRID, "grid")]
    sizes = [1, 1, 2, 3] if sample == "GridSample" else [1, 1, 3, 3]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 3, 3])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, sizes)]
    graph = helper.make_graph(nodes, "toy", inputs, outputs, initializer=held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=9)


def _added(project: Project, model: onnx.ModelProto) -> NDArray[np.float32]:
    """Adds `toy/sampled` with onnxruntime's outputs as the expected ones, and returns these."""
    from iree_gauntlet.artifacts.seeded import parse_seeded  # noqa: PLC0415 - the names of the inputs are its own

    onnx.save(model, project.regressions / "sampled.onnx")
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    right: NDArray[np.float32] = session.run(None, {"x": parse_seeded(_INPUT).generate()})[0]
    np.save(project.regressions / "sampled.npy", right)
    project.regression(
        "sampled", mlir="sampled.onnx", onnx_import={}, inputs=[{"source": _INPUT}], run_function=model.graph.name
    )
    return right


def _explained(project: Project, code: int) -> tuple[dict[str, Any], str]:
    """What `explain` finds, and says."""
    assert project.gauntlet("run", "--model", "toy", "--submodel", "sampled").code == 1
    done = project.gauntlet("explain")
    assert done.code == code, done.text
    (case,) = json.loads((project.newest / "explain" / "explain.json").read_text())["cases"]
    return case, done.out


@pytest.mark.stress
def test_the_operator_is_named_and_its_bundle_shows_it(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    # All values have 152 bytes: half of them are looked at first, and then those behind what is right of them.
    monkeypatch.setattr("iree_gauntlet.experiments.explaining.operators._MAX_BYTES", 100)
    monkeypatch.setattr("iree_gauntlet.experiments.explain._PROBES", ())
    _added(project, _model())
    case, said = _explained(project, 0)
    found = case["found"]["operator"]
    assert (found["operator"], found["repeated"]) == ('GridSample "/sample" (node 3 of 6)', False)
    assert (found["inputs"], found["outputs"]) == (["1x1x3x3xf32"], ["1x1x2x3xf32"])
    assert 'first wrong operator: GridSample "/sample" (node 3 of 6), off by ' in said
    assert case["found"]["located"]["why"] in said
    assert "no reference gives the expected numbers either" in said
    assert case["answer"] == 'GridSample "/sample" (node 3 of 6) is wrong on right inputs'

    bundle = project.newest / "explain" / "toy" / "sampled.cpu" / "bundle"
    still = project.gauntlet("bundle.run", str(bundle.with_name("bundle.tar.gz")))
    assert (still.code, "the failure is still there" in still.out) == (1, True), still.text
    (cut,) = onnx.load(bundle / "model.onnx").graph.node
    assert (cut.op_type, cut.name) == ("GridSample", "/sample")
    # With what IREE makes of it as the expected values, nothing else is wrong in it.
    given = np.fromfile(bundle / "input_0.bin", np.float32)
    actual = given.reshape(3, 3)[[0, 1, 1, 1, 2, 2], [0, 1, 1, 1, 2, 2]]
    right = np.fromfile(bundle / "expected_0.bin", np.float32)
    assert not np.array_equal(actual, right)
    actual.tofile(bundle / "expected_0.bin")
    fixed = project.gauntlet("bundle.run", str(bundle))
    assert (fixed.code, "it is fixed" in fixed.out) == (0, True), fixed.text


@pytest.mark.stress
def test_expected_values_that_are_not_onnxruntimes_are_a_finding_of_their_own(project: Project) -> None:
    np.save(project.regressions / "sampled.npy", _added(project, _model("Relu")) * 2)
    case, said = _explained(project, 4)
    assert "operator" not in case["found"]["operator"]
    version = f"onnxruntime {onnxruntime.__version__}"
    assert f"IREE gives what {version} gives" in said
    assert ": the expected values are wrong, by 1 of the largest value" in said


def test_without_onnxruntime_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("iree_gauntlet.experiments.explaining.operators.onnxruntime_version", lambda: "")
    nothing: Any = None
    found = find_first_wrong_operator(nothing, nothing, nothing)
    assert (found.operator, "pip install 'iree-gauntlet[record]'" in found.reason) == (None, True)


def _asked(folder: Path, plan: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """What the worker says to a plan."""
    script, file = Path(iree_side.__file__).with_name("cut_onnx.py"), folder / "plan.json"
    file.write_text(json.dumps(plan))
    return subprocess.run([sys.executable, str(script), str(file)], capture_output=True, text=True, check=False)


def _described(model: Path) -> subprocess.CompletedProcess[str]:
    plan = {"model": str(model), "prepared": str(model.with_name("prepared.onnx"))}
    return _asked(model.parent, plan | {"opset": None, "least_opset": None, "shapes": []})


def test_weights_outside_of_the_file_are_a_clear_word(tmp_path: Path) -> None:
    place = tmp_path / "sampled.onnx"
    onnx.save(_model(), place, save_as_external_data=True, location="weights.bin", size_threshold=0)
    done = _described(place)
    said = "the weights of sampled.onnx are in other files, so it cannot be cut\n"
    assert (done.returncode, done.stderr) == (2, said)


def _with_a_function_and_a_branch() -> onnx.ModelProto:
    """`mine.Twice(x)`, and an If whose branches take it and a weight from around them."""
    f32 = TensorProto.FLOAT
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]
    twice = helper.make_function("mine", "Twice", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], opsets)
    branches = {
        name: helper.make_graph(
            [helper.make_node(op, ["t", "w"], [name])], name, [], [helper.make_tensor_value_info(name, f32, [8])]
        )
        for name, op in (("then_branch", "Mul"), ("else_branch", "Sub"))
    }
    nodes = [
        helper.make_node("Twice", ["x"], ["t"], domain="mine"),
        helper.make_node("ReduceSum", ["x"], ["s"], keepdims=0),
        helper.make_node("Cast", ["s"], ["c"], to=TensorProto.BOOL),
        helper.make_node("If", ["c"], ["y"], **branches),
        helper.make_node("Neg", ["y"], ["z"]),
    ]
    values = [helper.make_tensor_value_info(name, f32, [8]) for name in "xztsy"]
    values[3] = helper.make_tensor_value_info("s", f32, [])
    weight = numpy_helper.from_array(np.arange(8, dtype=np.float32), "w")
    unused = numpy_helper.from_array(np.ones(2, np.float32), "unused")
    graph = helper.make_graph(
        nodes, "toy", values[:1], values[1:2], initializer=[weight, unused], value_info=values[2:]
    )
    return helper.make_model(graph, functions=[twice], opset_imports=opsets, ir_version=9)


def test_what_is_cut_out_keeps_functions_and_what_inner_graphs_take(tmp_path: Path) -> None:
    whole = tmp_path / "whole.onnx"
    onnx.save(_with_a_function_and_a_branch(), whole)
    said = json.loads(_described(whole).stdout)
    assert [node["inputs"] for node in said["nodes"]] == [["x"], ["x"], ["s"], ["c", "t", "w"], ["y"]]

    def cut(inputs: list[str], output: str, repeat: int) -> onnx.ModelProto:
        given = [{"name": name, "dtype": "float32", "shape": [8] if name == "x" else []} for name in inputs]
        plan: dict[str, Any] = {
            "model": str(tmp_path / "prepared.onnx"),
            "inputs": given,
            "constants": [],
            "outputs": [output],
        }
        plan |= {"repeat": repeat, "onnx": str(tmp_path / "cut.onnx"), "mlir": ""}
        done = _asked(tmp_path, plan)
        assert done.returncode == 0, done.stderr
        return onnx.load(tmp_path / "cut.onnx")

    found = cut(["x", "s"], "y", 3)
    assert [node.op_type for node in found.graph.node] == ["Twice", "Cast", "If"]
    assert [function.name for function in found.functions] == ["Twice"]
    (weight,) = found.graph.initializer
    assert numpy_helper.to_array(weight).tolist() == [0, 1, 2, 0, 1, 2, 0, 1]
    session = onnxruntime.InferenceSession(found.SerializeToString(), providers=["CPUExecutionProvider"])
    x = np.ones(8, np.float32)
    right = 2 * x * numpy_helper.to_array(weight)
    assert np.array_equal(session.run(None, {"x": x, "s": np.array(1, np.float32)})[0], right)


def _graph(*nodes: tuple[str, list[str], list[str]], large: int = 4) -> Any:
    said = [
        {"index": index, "name": "", "op": op, "inputs": taken, "outputs": given, "published_number": 0}
        for index, (op, taken, given) in enumerate(nodes)
    ]
    sizes = {value: large for _, _, given in nodes for value in given}
    return Graph.from_dict(
        {
            "nodes": said,
            "inputs": ["x"],
            "outputs": ["z"],
            "constants": ["w"],
            "sizes": sizes,
            "published_nodes": len(nodes),
        }
    )


def test_what_depends_on_sizes_alone_is_told_from_what_is_computed() -> None:
    graph = _graph(
        ("Conv", ["x", "w"], ["a"]), ("Shape", ["a"], ["s"]), ("Neg", ["s"], ["t"]), ("Reshape", ["a", "t"], ["z"])
    )
    assert graph.fixed_values == {"w", "s", "t"}
    (last,) = graph.find_ancestors(["z"], {"a", "t"})
    assert (graph.list_inputs([last]), graph.list_outputs([last])) == (["a", "t"], ["z"])
    # Where sizes come from is not what makes an operator wrong.
    assert [node.op for node in graph.widen([last], 1)] == ["Conv", "Reshape"]


def test_values_are_looked_at_evenly_where_all_are_too_many() -> None:
    names = [f"v{index}" for index in range(9)]
    nodes = [("Neg", [given], [taken]) for given, taken in zip(["x", *names], [*names, "z"], strict=True)]
    graph = _graph(*nodes, large=10)
    region = graph.find_ancestors(["z"], {"x"})
    assert graph.choose_extra_outputs(region, ["z"], 90) == names
    assert graph.choose_extra_outputs(region, ["z"], 30) == ["v1", "v4", "v7"]
