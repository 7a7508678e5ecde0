"""Replaces torch for building a model of `micro`: one linear layer, plain or with weights in int8."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["build_linear_variant"]


def build_linear_variant(plan: dict[str, Any], fault: str) -> dict[str, Any]:
    """Build y = x W for the baseline, (x Q) s for int8wo; return the content of `build.json`.

    `fault`: `folded`: int8wo leaves the weights in f32, as an exporter that folds constants would; `wrong`: torch's
    outputs of int8wo are shifted; empty: no fault.
    """
    from onnx import TensorProto, helper, numpy_helper, save  # noqa: PLC0415 - the probe must not wait for it

    folder = Path(plan["output"])
    rows, features, outputs = plan["m"], plan["k"], plan["n"]
    rng = np.random.default_rng(11)
    weight = (rng.standard_normal((features, outputs)) / np.sqrt(features)).astype(np.float32)
    inputs = rng.standard_normal((rows, features)).astype(np.float32)
    exact_outputs = (inputs.astype(np.float64) @ weight).astype(np.float32)
    is_int8 = plan["quantization"] == "int8wo"
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    weights: list[tuple[str, NDArray[Any]]] = [("w", weight)]
    expected_outputs = exact_outputs
    if is_int8:
        scale = (np.abs(weight).max(axis=0) / 127).astype(np.float32)
        int8_weight = np.rint(weight / scale).astype(np.int8)
        expected_outputs = ((inputs.astype(np.float64) @ int8_weight) * scale).astype(np.float32)
        weights = (
            [("w", int8_weight.astype(np.float32) * scale)] if fault == "folded" else [("q", int8_weight), ("s", scale)]
        )
        if fault != "folded":
            nodes = [
                helper.make_node("Cast", ["q"], ["w"], to=TensorProto.FLOAT),
                helper.make_node("MatMul", ["x", "w"], ["p"]),
                helper.make_node("Mul", ["p", "s"], ["y"]),
            ]
        if fault == "wrong":
            expected_outputs = expected_outputs + np.float32(1)
    value_infos = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", inputs.shape), ("y", expected_outputs.shape))
    ]
    initializers = [numpy_helper.from_array(values, name) for name, values in weights]
    graph = helper.make_graph(nodes, "main_graph", value_infos[:1], value_infos[1:], initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    save(model, str(folder / "main.onnx"), save_as_external_data=True, location="main.onnx.data", size_threshold=0)

    def save_array(file: str, values: NDArray[Any]) -> dict[str, Any]:
        np.save(folder / file, values)
        return {"file": file, "type": "f32", "shape": list(values.shape)}

    return {
        "schema": 1,
        "kind": "pipeline",
        "model": plan["model_type"],
        "config": None,
        "samples": rows,
        "parameter_count": weight.size,
        "programs": [
            {
                "name": "main",
                "onnx": "main.onnx",
                "inputs": [save_array("main.input_0.npy", inputs)],
                "outputs": [save_array("main.output_0.npy", expected_outputs)],
            }
        ],
        "host": {"pre": False, "post": False},
        "host_inputs": [],
        "host_outputs": [],
        "generation": None,
        "training": None,
        "contractions": 1,
        "reference": [save_array("reference_0.npy", exact_outputs)] if is_int8 else [],
        "weight_error": None,
        "versions": {"torch": "0.0"},
        "seconds": {"build": 0.0},
        "flops": 2 * rows * features * outputs,
        "changed_layers": int(is_int8),
        "changed_bytes": weight.nbytes if is_int8 else 0,
    }
