"""Weights of a model: for each, whether the expected outputs would reveal a wrong value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iree_gauntlet.workers.iree_side import golden_sensitivity
from iree_gauntlet.workers.iree_side.golden_sensitivity import measure_effect
from iree_gauntlet.workers.iree_side.plan_file import PlanError

if TYPE_CHECKING:
    from pathlib import Path

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

FINITE = st.floats(-1e3, 1e3, width=32)


@given(st.lists(st.tuples(FINITE, FINITE), min_size=1), st.floats(1e-6, 1.0), st.floats(0, 0.1))
def test_an_effect_above_one_is_what_the_comparison_calls_wrong(
    pairs: list[tuple[float, float]], atol: float, rtol: float
) -> None:
    before, after = (np.array(column, np.float32) for column in zip(*pairs, strict=True))
    effect = measure_effect([before], [after], {"f32": atol}, rtol)
    shares = [abs(float(a) - float(b)) / (atol + rtol * abs(float(b))) for b, a in zip(before, after, strict=True)]
    assert effect == pytest.approx(max(shares))


def test_types_without_a_tolerance_and_what_is_no_number_any_more() -> None:
    whole, real = np.array([1, 2]), np.array([1.0, 2.0], np.float32)
    assert measure_effect([whole], [whole], {"f32": 1.0}, 0.0) == 0
    assert measure_effect([whole], [whole + 1], {"f32": 1.0}, 0.0) == np.inf
    assert measure_effect([real], [real * np.nan], {"f32": 1.0}, 0.0) == np.inf
    assert measure_effect([real], [real[:1]], {"f32": 1.0}, 0.0) == np.inf
    assert measure_effect([real], [real], {"f32": 0.0}, 0.0) == 0
    assert measure_effect([real * np.nan], [real * np.nan], {"f32": 1.0}, 0.0) == 0, "the comparison passes it"


def _model(path: Path) -> None:
    """y = if(yes, x·w + tiny·c, x): a weight that counts, one that hardly does, one that is never used."""
    kinds, helper = onnx.TensorProto, onnx.helper
    value = helper.make_tensor_value_info("y", kinds.FLOAT, [2])
    nodes = [
        helper.make_node("Constant", [], ["c"], value=onnx.numpy_helper.from_array(np.full(2, 1e-3, np.float32), "")),
        helper.make_node("Mul", ["x", "w"], ["xw"]),
        helper.make_node("Add", ["xw", "c"], ["z"]),
    ]
    weight = onnx.numpy_helper.from_array(np.array([2.0, 3.0], np.float32), "w")
    branch = helper.make_graph(nodes, "then", [], [helper.make_tensor_value_info("z", kinds.FLOAT, [2])], [weight])
    other = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["same"])],
        "else",
        [],
        [helper.make_tensor_value_info("same", kinds.FLOAT, [2])],
    )
    graph = helper.make_graph(
        [helper.make_node("If", ["yes"], ["y"], then_branch=branch, else_branch=other)],
        "net",
        [helper.make_tensor_value_info("x", kinds.FLOAT, [2]), helper.make_tensor_value_info("yes", kinds.BOOL, [])],
        [value],
        [onnx.numpy_helper.from_array(np.array([5.0], np.float32), "unused")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def _tried(folder: Path, *inputs: str) -> list[dict[str, Any]]:
    plan = {
        "model": str(folder / "net.onnx"),
        "inputs": [inputs],
        "cwd": str(folder),
        "tolerances": {"f32": 1e-3, "rtol": 0.0},
    }
    found: list[dict[str, Any]] = golden_sensitivity._answer(plan)["weights"]
    return found


def test_each_weight_is_tried_also_those_of_inner_graphs(tmp_path: Path) -> None:
    _model(tmp_path / "net.onnx")
    np.save(tmp_path / "yes.npy", np.array(True))
    found = {item["name"]: (item["elements"], item["effect"]) for item in _tried(tmp_path, "2xf32=1", "@yes.npy")}
    # 1 % of 3 is 30 tolerances; 1 % of a thousandth is a hundredth of one.
    assert found == {"unused": (1, 0.0), "w": (2, pytest.approx(30, rel=1e-3)), "c": (2, pytest.approx(0.01, rel=2e-2))}


def test_what_cannot_be_run_is_said(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="cannot read"):
        _tried(tmp_path)
    _model(tmp_path / "net.onnx")
    with pytest.raises(PlanError, match="0 inputs were given, but the model takes 2"):
        _tried(tmp_path)
    (tmp_path / "net.onnx").write_bytes(b"nothing")
    with pytest.raises(PlanError, match="cannot read"):
        _tried(tmp_path)
