"""Expected outputs of torch models, recorded with onnxruntime by the command for users."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.support.torch_project import CPU, INPUT, TorchProject

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")

MODULE = "net/modules/net_cpu"
TEST = "suite/net/net_quality_cpu.json"
RECORDED = [{"url": "out/output_0.npy"}, {"url": "out/output_1.bin", "value": "2x1xi64"}, {"url": "out/output_2.npy"}]
IDS = np.array([[3, 1, 2]], np.int64)
MIXED = INPUT - 3 * (INPUT % 3)


def write_model(path: Path) -> None:
    """y = relu(x), the index of x's largest value, and ids handed through."""
    kinds = onnx.TensorProto
    inputs = [("x", kinds.FLOAT, [2, 4]), ("ids", kinds.INT64, [1, 3])]
    outputs = [("y", kinds.FLOAT, [2, 4]), ("k", kinds.INT64, [2, 1]), ("same", kinds.INT64, [1, 3])]
    nodes = [
        onnx.helper.make_node("Relu", ["x"], ["y"]),
        onnx.helper.make_node("ArgMax", ["x"], ["k"], axis=1),
        onnx.helper.make_node("Identity", ["ids"], ["same"]),
    ]
    graph = onnx.helper.make_graph(
        nodes,
        "net",
        [onnx.helper.make_tensor_value_info(*value) for value in inputs],
        [onnx.helper.make_tensor_value_info(*value) for value in outputs],
    )
    opset = onnx.helper.make_opsetid("", 17)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8), path)


@pytest.fixture
def project(tmp_path: Path) -> TorchProject:
    project = TorchProject(tmp_path)
    project.warm(modules=False)
    project.write(project.suite / f"{MODULE}.json", {"mlir": "net.onnx", "compiler_flags": list(CPU)})
    write_model(project.suite / "net" / "modules" / "net.onnx")
    (tmp_path / "files").mkdir()
    np.save(tmp_path / "files" / "x.npy", MIXED)
    np.save(tmp_path / "files" / "ids.npy", IDS)
    quality(project)
    return project


def quality(project: TorchProject, *expected: dict[str, str], **changes: Any) -> None:
    fields: dict[str, Any] = {
        "type": "quality",
        "modules": [MODULE],
        "inputs": [{"url": "x.npy"}, {"url": "ids.npy"}],
        "expected_outputs": list(expected),
        "run_args": ["--device=local-task", "--function=net"],
    }
    project.test("net/net_quality_cpu", **(fields | changes))


def record(project: TorchProject, code: int = 0) -> str:
    done = project.gauntlet("golden.record", "--model=net")
    assert done.code == code, done.text
    return done.text


def named(project: TorchProject) -> Any:
    return json.loads((project.folder / TEST).read_text(encoding="utf-8"))["expected_outputs"]


def provenance(folder: Path) -> Any:
    return json.loads((folder / "provenance.json").read_text(encoding="utf-8"))


@pytest.mark.iree
def test_outputs_are_recorded_named_in_the_spec_and_then_pass(project: TorchProject) -> None:
    record(project)
    # What a module computes has no sign, what it hands through has that of the .npy file.
    assert [item["url"].rpartition(".")[2] for item in named(project)] == ["npy", "bin", "npy"]
    assert named(project) == [{**item, "url": item["url"].replace("out/", "net_quality_cpu/")} for item in RECORDED]
    spec = json.loads((project.folder / TEST).read_text(encoding="utf-8"))
    assert spec["run_args"][2:] == ["--expected_f32_threshold=0.0003", "--expected_rtol=1e-05"]
    lint = project.gauntlet("lint")
    assert (lint.code, lint.out) == (0, "2 spec files are valid\n")
    done = project.gauntlet("run", "--run-dir=runs/first")
    assert done.code == 0, done.out
    before = (project.folder / TEST).read_bytes()
    record(project)
    assert (project.folder / TEST).read_bytes() == before
    wrong = project.suite / "net" / "net_quality_cpu" / "output_1.bin"
    wrong.write_bytes(np.array([0, 0], np.int64).tobytes())
    done = project.gauntlet("run", "--run-dir=runs/second")
    assert done.code == 1
    assert "net/net_quality_cpu@cpu threshold" in done.out
    assert "output 1: " in done.out


def test_provenance_says_what_the_outputs_were_made_from(project: TorchProject) -> None:
    record(project)
    folder = project.suite / "net" / "net_quality_cpu"
    written = provenance(folder)
    assert written["model"]["source"] == "../modules/net.onnx", "from the provenance's own folder, on any machine"
    assert [item["source"].rpartition("/")[2] for item in written["inputs"]] == ["x.npy", "ids.npy"]
    for item in written["outputs"]:
        assert hashlib.sha256((folder / item["source"]).read_bytes()).hexdigest() == item["sha256"]


def test_inputs_of_every_kind(project: TorchProject) -> None:
    content = MIXED.tobytes()
    (project.folder / "files" / "x.bin").write_bytes(content)
    quality(project, inputs=[{"url": "x.bin", "value": "2x4xf32"}, {"value": "1x3xi64=3 1 2"}])
    record(project)
    folder = project.suite / "net" / "net_quality_cpu"
    assert np.array_equal(np.load(folder / "output_0.npy"), np.maximum(MIXED, 0))
    first, second = provenance(folder)["inputs"]
    assert (first["value"], first["sha256"]) == ("2x4xf32", hashlib.sha256(content).hexdigest())
    assert (second["value"], second["source"]) == ("1x3xi64", "1x3xi64=3 1 2")
    # Handed through, but without a sign: its input is no .npy file.
    assert (folder / "output_2.bin").read_bytes() == IDS.tobytes()


def test_an_input_of_another_type_than_the_models(project: TorchProject) -> None:
    quality(project, inputs=[{"value": "2x4xbf16=1"}, {"url": "ids.npy"}])
    text = record(project, 2)
    assert "the input '2x4xbf16=1' is a bf16, but the model takes float32" in text


@pytest.mark.parametrize("there", ["nowhere", "next to it", "external"])
def test_named_outputs_are_recorded_where_they_are_meant(project: TorchProject, there: str) -> None:
    folder = {"external": project.folder / "files"}.get(there, project.suite / "net") / "out"
    if there != "nowhere":
        folder.mkdir()
        np.save(folder / "output_0.npy", INPUT)
    quality(project, *RECORDED)
    record(project)
    assert named(project) == RECORDED
    assert sorted(path.name for path in folder.iterdir()) == [
        *("output_0.npy", "output_1.bin", "output_2.npy", "provenance.json")
    ]


def test_an_output_of_another_name_is_replaced_and_all_else_stays(project: TorchProject) -> None:
    quality(project, {"url": "out/y.npy"}, run_args=["--expected_f32_threshold=0.5"])
    before = (project.folder / TEST).read_text(encoding="utf-8")
    record(project)
    assert named(project) == RECORDED
    after = json.loads((project.folder / TEST).read_text(encoding="utf-8"))
    assert after == json.loads(before) | {"expected_outputs": RECORDED}, "a tolerance that is there stays"


@pytest.mark.parametrize(
    ("expected", "says"),
    [
        ([{"url": "https://h/out/output_0.npy"}], "no files of its own: https://h/out/output_0.npy"),
        ([{"url": "random://uniform/2x4xf32?seed=1"}], "no files of its own"),
        ([{"url": "file:///nowhere/output_0.npy"}], "outside of the specs, in /nowhere"),
        ([{"url": "a/output_0.npy"}, {"url": "b/output_1.npy"}], "outputs lie in 2 folders"),
    ],
)
def test_outputs_that_are_not_the_specs_own(project: TorchProject, expected: list[dict[str, str]], says: str) -> None:
    quality(project, *expected)
    text = record(project, 2)
    assert f"error: {TEST}: " in text
    assert says in text
    assert not list(project.suite.rglob("output_*"))


def test_given_outputs_of_programs_in_mlir_stay(project: TorchProject) -> None:
    project.module("net/modules/add_cpu")
    outputs = [{"url": "given.npy"}]
    np.save(project.suite / "net" / "given.npy", np.zeros(4, np.float32))
    fields = {"type": "quality", "modules": ["net/modules/add_cpu"], "inputs": [], "expected_outputs": outputs}
    project.test("net/add_quality_cpu", **fields)
    reason = "its program is MLIR, and its expected outputs are given"
    assert f"suite/net/add_quality_cpu.json: skipped: {reason}" in record(project)
    (project.folder / TEST).unlink()
    assert f"suite/net/add_quality_cpu.json: {reason}" in record(project, 2)


def test_weights_outside_of_the_model_are_refused(project: TorchProject) -> None:
    weights = [{"type": "splat", "module": MODULE, "value": 1, "scope": ""}]
    quality(project, weights=weights)
    assert "its weights lie outside of the .onnx file" in record(project, 2)


def test_weights_that_could_be_wrong_unseen_are_named_and_the_share_is_kept(project: TorchProject) -> None:
    kinds, helper = onnx.TensorProto, onnx.helper
    names = {"large": 100.0, "small": 5e-3}
    nodes = [helper.make_node("Add", ["x", "large"], ["a"]), helper.make_node("Add", ["a", "small"], ["y"])]
    values = [helper.make_tensor_value_info(name, kinds.FLOAT, [2, 4]) for name in "xy"]
    weights = [onnx.numpy_helper.from_array(np.full((4,), value, np.float32), name) for name, value in names.items()]
    graph = helper.make_graph(nodes, "net", values[:1], values[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, project.suite / "net" / "modules" / "net.onnx")
    quality(project, inputs=[{"url": "x.npy"}])
    unwritten = project.gauntlet("golden.sensitivity", "--model=net", "--write")
    assert unwritten.code == 2
    assert "Record the outputs first" in unwritten.err
    record(project)
    done = project.gauntlet("golden.sensitivity", "--model=net", "--write")
    assert done.code == 0, done.text
    assert "1 of 2 weights would be detected if they were 1 % wrong; 0 have no effect" in done.out
    (row,) = [line.split() for line in done.out.splitlines() if line.startswith("small")]
    assert row[:2] == ["small", "4"]
    found = provenance(project.suite / "net" / "net_quality_cpu")
    assert found["sensitivity"] == {"scaled_by": 1.01, "weights": 2, "seen": 1, "without_effect": 0}
    assert found["made_by"] == "onnxruntime"
    unnamed = project.gauntlet("golden.sensitivity")
    assert (unnamed.code, "name the models" in unnamed.err) == (2, True)
