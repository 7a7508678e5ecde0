"""Whole runs of a tiny project with the real tools: what is said of the data that a model is held against."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

if TYPE_CHECKING:
    from tests.support.toy_project import Project

pytestmark = pytest.mark.iree

_CHAIN = "toy/abs@cpu"
_THRESHOLD = f"{_CHAIN}:threshold"
_SPEC = "specs/regression_tests/toy/abs_cpu.json"


# Values in place of files


def test_a_spec_may_have_the_values_themselves(project: Project) -> None:
    inputs = [{"value": "4xf32=1 -2 3 -4"}]
    project.regression(inputs=inputs, outputs=[{"value": "4xf32=[1, 2], [3, 4]"}])
    done = project.gauntlet("run", "--stages", "threshold")
    assert done.code == 0, done.text
    assert "'--input=4xf32=1 -2 3 -4' '--expected_output=4xf32=[1, 2], [3, 4]'" in project.result(_THRESHOLD)["command"]
    assert project.result(_THRESHOLD)["outputs"][0]["max_abs_error"] == 0
    project.regression(inputs=inputs, outputs=[{"value": "4xf32=1"}])
    done = project.gauntlet("run", "--stages", "threshold")
    assert done.code == 1
    assert "3 of 4 values (75 %) differ" in done.out


def test_values_that_are_left_out_are_zeros(project: Project) -> None:
    project.regression(inputs=[{"value": "4xf32"}], outputs=[{"value": "4xf32"}])
    assert project.gauntlet("run", "--stages", "threshold").code == 0
    assert project.result(_THRESHOLD)["outputs"][0]["max_abs_error"] == 0


def test_values_that_do_not_fit_stop_every_command_before_anything_runs(project: Project) -> None:
    project.regression(inputs=[{"value": "4xf32=1 2 3"}])
    for task in ("lint", "run", "plan"):
        done = project.gauntlet(task)
        assert done.code == 2, done.text
        place = f"{_SPEC}:6: inputs[0].value"
        assert f"{place}: expected one value, or all 4, found 3 in '4xf32=1 2 3'" in done.err
    assert not (project.folder / "runs").exists()


def test_outputs_of_values_can_be_recorded(project: Project) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [4]) for name in "xy")
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "relu", [x], [y])
    opset = onnx.helper.make_opsetid("", 17)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8), project.regressions / "relu.onnx")
    project.regression("relu", mlir="relu.onnx", inputs=[{"value": "4xf32=1 -2 3 -4"}], outputs=[])
    done = project.gauntlet("golden.record", "--model=toy")
    assert done.code == 0, done.text
    assert np.load(project.regressions / "relu_cpu" / "output_0.npy").tolist() == [1, 0, 3, 0]
