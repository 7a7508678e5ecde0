"""References of ONNX models: the program that runs them, the inputs, and messages about the outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import onnx
import pytest

from iree_gauntlet.workers.iree_side import run_onnx
from iree_gauntlet.workers.iree_side.onnx_reference import (
    InferenceFailedError,
    OnnxEvaluator,
    OnnxRuntime,
    pack_bytes,
    read_input,
)
from iree_gauntlet.workers.iree_side.plan_file import PlanError
from tests.support.own_models import BF16, F32, I64, make_node, write_model, write_user_models

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("onnxruntime")


def answered(model: Path, *sets: list[str], tolerances: dict[str, float] | None = None) -> dict[str, Any]:
    folder = model.parent
    plan = {"model": str(model), "inputs": list(sets), "cwd": str(folder), "folder": str(folder)}
    return run_onnx._answer(plan | {"tolerances": tolerances, "last": True})


def relu(folder: Path, *shape: int | str) -> Path:
    return write_model(folder / "relu.onnx", [make_node("Relu", "x", "y")], [("x", F32, shape)], [("y", F32, shape)])


def test_quantised_models_are_run_as_they_say(tmp_path: Path) -> None:
    write_user_models(tmp_path)
    np.save(tmp_path / "x.npy", np.random.default_rng(1).normal(size=(1, 8, 14, 14)).astype(np.float32))
    found = answered(tmp_path / "quantised.onnx", ["@x.npy"])
    assert found["reference"]["name"] == "onnxruntime"
    # With its optimisations it is one quantum off.
    assert found["outputs"][0]["optimised"] == pytest.approx(0.05, rel=1e-3)
    weight = onnx.numpy_helper.to_array(onnx.load(tmp_path / "quantised.onnx").graph.initializer[3]).astype(np.float64)
    x = np.clip(np.round(np.load(tmp_path / "x.npy")[0].astype(np.float64) / np.float32(0.03)), -128, 127) * 0.03
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, ((0, 0), (1, 1), (1, 1))), (3, 3), axis=(1, 2))
    y = np.clip(np.round(np.maximum(np.einsum("ihwyx,oiyx->ohw", windows, weight), 0) / 0.05), -128, 127) * 0.05
    mine = np.frombuffer((tmp_path / "output_0.bin").read_bytes(), np.float32)
    assert np.abs(mine - y.reshape(-1)).max() < 1e-5


@pytest.mark.parametrize("seeded", [True, False])
def test_outputs_that_differ_from_run_to_run_are_named(tmp_path: Path, seeded: bool) -> None:
    """With a seed too: another program draws other numbers with it."""
    nodes = [
        make_node("RandomNormalLike", "x", "r", **({"seed": 3.0} if seeded else {})),
        make_node("Add", "x r", "y"),
        make_node("Relu", "x", "z"),
    ]
    model = write_model(tmp_path / "m.onnx", nodes, [("x", F32, [4])], [("y", F32, [4]), ("z", F32, [4])])
    found = answered(model, ["4xf32=1 2 3 4"])
    assert [item["differs"] for item in found["outputs"]] == [True, False]
    assert found["random"] == ["RandomNormalLike"]


def test_a_generator_whose_numbers_are_not_used_is_none(tmp_path: Path) -> None:
    nodes = [make_node("RandomNormalLike", "x", "r"), make_node("Shape", "r", "n"), make_node("Reshape", "x n", "y")]
    model = write_model(tmp_path / "m.onnx", nodes, [("x", F32, [4])], [("y", F32, [4])])
    assert [item["differs"] for item in answered(model, ["4xf32=1 2 3 4"])["outputs"]] == [False]


def test_the_evaluator_runs_what_onnxruntime_cannot(tmp_path: Path) -> None:
    write_user_models(tmp_path)
    found = answered(tmp_path / "mul_bf16.onnx", ["4xf32=1 2 3 0.5"])
    assert found["reference"]["name"] == "onnx"
    assert "onnxruntime cannot load" in found["notes"][0]
    assert found["outputs"][0]["type"] == "4xbf16"
    values = np.frombuffer((tmp_path / "output_0.bin").read_bytes(), ml_dtypes.bfloat16)
    assert values.astype(np.float32).tolist() == [1, 4, 9, 0.25]
    assert found["allowed"]["bf16"]["atol"] < 0.09


def test_of_operators_that_onnxruntime_computes_otherwise_the_evaluator_is_right(tmp_path: Path) -> None:
    """onnxruntime 1.32 rounds the size of what `align_corners` interpolates otherwise than ONNX's own evaluator."""
    ways = {"mode": "linear", "coordinate_transformation_mode": "align_corners"}
    nodes = [onnx.helper.make_node("Resize", ["x", "", "s"], ["y"], **ways)]
    model = tmp_path / "m.onnx"
    scales = np.array([1, 1, 0.6, 0.6], np.float32)
    write_model(model, nodes, [("x", F32, [1, 1, 2, 4])], [("y", F32, [1, 1, 1, 2])], {"s": scales})
    arrays = [np.arange(1, 9, dtype=np.float32).reshape(1, 1, 2, 4)]
    mine, theirs = (one.run(arrays)["y"] for one in (OnnxEvaluator(onnx.load(model)), OnnxRuntime(model)))
    found = answered(model, ["1x1x2x4xf32=1 2 3 4 5 6 7 8"])
    differ = not np.allclose(mine, theirs, atol=1e-3)
    assert found["reference"]["name"] == ("onnx" if differ else "onnxruntime")
    assert bool(found["notes"]) is differ


def test_of_all_others_onnxruntime_is_right_and_a_difference_is_said(tmp_path: Path) -> None:
    """Before opset 13, Softmax is one over all dimensions from its axis on, which the evaluator does not know."""
    model = tmp_path / "m.onnx"
    write_model(
        model, [make_node("Softmax", "x", "y", axis=1)], [("x", F32, [1, 2, 2])], [("y", F32, [1, 2, 2])], opset=11
    )
    found = answered(model, ["1x2x2xf32=1 2 3 4"])
    assert (found["reference"]["name"], found["notes"]) == ("onnxruntime", [])
    assert found["outputs"][0]["other"] == pytest.approx(0.55, abs=0.1)
    assert np.frombuffer((tmp_path / "output_0.bin").read_bytes(), np.float32).sum() == pytest.approx(1)


def test_the_first_inputs_that_run_and_tell_something_are_taken(tmp_path: Path) -> None:
    nodes = [make_node("Gather", "t i", "y")]
    model = write_model(tmp_path / "m.onnx", nodes, [("t", F32, [3]), ("i", I64, [2])], [("y", F32, [2])])
    found = answered(model, ["3xf32=1 2 3", "2xi64=7"], ["3xf32=1", "2xi64=0 1"], ["3xf32=1 2 3", "2xi64=0 1"])
    assert (found["taken"], found["tells"]) == (2, True)
    assert "onnxruntime cannot run m.onnx" in found["refused"][0]
    assert "all of them are constant" in found["refused"][1]
    idle = answered(model, ["3xf32=1 2 3", "2xi64=7"], ["3xf32=1", "2xi64=0 1"])
    assert (idle["taken"], idle["tells"]) == (1, False)
    with pytest.raises(InferenceFailedError, match="cannot run"):
        answered(model, ["3xf32=1 2 3", "2xi64=7"])


def test_outputs_of_other_sizes_than_declared_are_taken_last(tmp_path: Path) -> None:
    nodes = [make_node("Expand", "x n", "y")]
    model = write_model(tmp_path / "m.onnx", nodes, [("x", F32, [1, 2]), ("n", I64, [2])], [("y", F32, [3, 2])])
    x = "1x2xf32=1 2"
    found = answered(model, [x, "2xi64=1 1"], [x, "2xi64=3 2"])
    assert (found["taken"], found["notes"]) == (1, [])
    alone = answered(model, [x, "2xi64=1 1"])
    assert alone["notes"] == ["y is [1, 2], but the model declares [3, 2]"]
    assert not alone["tells"]


def test_nan_infinity_and_nothing_are_counted(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m.onnx", [make_node("Log", "x", "y")], [("x", F32, [4])], [("y", F32, [4])])
    (item,) = answered(model, ["4xf32=-1 0 1 2"])["outputs"]
    assert (item["nans"], item["infinities"], item["least"]) == (1, 1, 0)
    assert item["most"] == pytest.approx(np.log(2))
    empty = answered(relu(tmp_path, "n", 4), ["0x4xf32="])
    assert (empty["outputs"][0]["type"], empty["outputs"][0]["least"]) == ("0x4xf32", None)


def test_what_a_spec_allows_is_not_chosen(tmp_path: Path) -> None:
    given = {"f32": 0.5, "rtol": 0.0}
    found = answered(relu(tmp_path, 4), ["4xf32=1 2 3 4"], tolerances=given)
    assert found["allowed"]["f32"] == {"atol": 0.5, "rtol": 0.0, "reason": "as the spec says"}


def test_what_is_handed_through_is_known_by_its_way(tmp_path: Path) -> None:
    nodes = [make_node("Identity", "i", "same"), make_node("Max", "i i", "larger")]
    values = [("same", I64, [2]), ("larger", I64, [2])]
    model = write_model(tmp_path / "m.onnx", nodes, [("x", F32, [1]), ("i", I64, [2])], values)
    found = answered(model, ["f32=1".replace("f32", "1xf32"), "2xi64=3 4"])
    assert [item["input"] for item in found["outputs"]] == [1, None]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("4xf32=@none.bin", "cannot be given"),
        ("(ignored)", "is not a tensor"),
        ("3xf64=1", "is a f64, but the model takes"),
    ],
)
def test_inputs_that_cannot_be_given(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises((PlanError, InferenceFailedError), match=says):
        answered(relu(tmp_path, 4), [text])


def test_the_number_of_inputs_has_to_fit(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="2 inputs were given, but the model takes 1: x float32"):
        answered(relu(tmp_path, 4), ["4xf32=1", "4xf32=1"])


def test_files_that_are_no_models(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"no model")
    with pytest.raises(PlanError, match=r"cannot read m\.onnx"):
        answered(tmp_path / "m.onnx", [])


def test_four_bit_integers_are_packed_low_half_first(tmp_path: Path) -> None:
    array = np.array([1, -2, 7], ml_dtypes.int4)
    assert pack_bytes(array) == bytes([0xE1, 0x07])
    (tmp_path / "x.bin").write_bytes(pack_bytes(array))
    assert read_input("3xi4=@x.bin", str(tmp_path), "int4").astype(int).tolist() == [1, -2, 7]
    unsigned = read_input("3xi4=@x.bin", str(tmp_path), "uint4")
    assert (unsigned.dtype.name, unsigned.astype(int).tolist()) == ("uint4", [1, 14, 7])


def test_types_without_a_tensor_are_refused(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m.onnx", [make_node("Cast", "x", "y", to=8)], [("x", F32, [2])], [("y", 8, [2])])
    with pytest.raises(PlanError, match="only tensors of numbers can be compared"):
        answered(model, ["2xf32=1 2"])


def test_bf16_inputs_reach_the_evaluator(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m.onnx", [make_node("Neg", "x", "y")], [("x", BF16, [2])], [("y", BF16, [2])])
    found = answered(model, ["2xbf16=1 2"])
    assert (found["reference"]["name"], found["outputs"][0]["most"]) == ("onnx", -1.0)


def test_f8_outputs_are_f8(tmp_path: Path) -> None:
    """onnxruntime has them as bytes."""
    kind = onnx.TensorProto.FLOAT8E4M3FN
    nodes = [make_node("Cast", "x", "y", to=kind)]
    model = write_model(tmp_path / "m.onnx", nodes, [("x", F32, [3])], [("y", kind, [3])], opset=19)
    found = answered(model, ["3xf32=1 2.1 -448"])
    assert (found["outputs"][0]["type"], found["outputs"][0]["other"]) == ("3xf8E4M3FN", None)
    values = np.frombuffer((tmp_path / "output_0.bin").read_bytes(), ml_dtypes.float8_e4m3fn)
    assert values.astype(np.float32).tolist() == [1, 2, -448]
