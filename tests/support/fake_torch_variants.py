"""Stands in for torch where it makes a model of `micro`: one linear layer, plain or with weights in int8."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["linear_variant"]


def linear_variant(plan: dict[str, Any], fault: str) -> dict[str, Any]:
    """y = x W for the baseline, (x Q) s for int8wo; what `build.json` says of it.

    `fault`: `folded`: int8wo leaves the weights in f32, as an exporter that folds constants would; `wrong`: torch's
    outputs of int8wo are others; empty for none.
    """
    from onnx import TensorProto, helper, numpy_helper, save  # noqa: PLC0415 - the probe must not wait for it

    folder = Path(plan["output"])
    rows, features, outputs = plan["m"], plan["k"], plan["n"]
    random = np.random.default_rng(11)
    weight = (random.standard_normal((features, outputs)) / np.sqrt(features)).astype(np.float32)
    given = random.standard_normal((rows, features)).astype(np.float32)
    exact = (given.astype(np.float64) @ weight).astype(np.float32)
    quantized = plan["quantization"] == "int8wo"
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    weights: list[tuple[str, NDArray[Any]]] = [("w", weight)]
    expected = exact
    if quantized:
        step = (np.abs(weight).max(axis=0) / 127).astype(np.float32)
        narrow = np.rint(weight / step).astype(np.int8)
        expected = ((given.astype(np.float64) @ narrow) * step).astype(np.float32)
        weights = [("w", narrow.astype(np.float32) * step)] if fault == "folded" else [("q", narrow), ("s", step)]
        if fault != "folded":
            nodes = [
                helper.make_node("Cast", ["q"], ["w"], to=TensorProto.FLOAT),
                helper.make_node("MatMul", ["x", "w"], ["p"]),
                helper.make_node("Mul", ["p", "s"], ["y"]),
            ]
        if fault == "wrong":
            expected = expected + np.float32(1)
    infos = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", given.shape), ("y", expected.shape))
    ]
    initializers = [numpy_helper.from_array(values, name) for name, values in weights]
    graph = helper.make_graph(nodes, "main_graph", infos[:1], infos[1:], initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    save(model, str(folder / "main.onnx"), save_as_external_data=True, location="main.onnx.data", size_threshold=0)

    def array(file: str, values: NDArray[Any]) -> dict[str, Any]:
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
                "inputs": [array("main.input_0.npy", given)],
                "outputs": [array("main.output_0.npy", expected)],
            }
        ],
        "host": {"pre": False, "post": False},
        "host_inputs": [],
        "host_outputs": [],
        "generation": None,
        "training": None,
        "contractions": 1,
        "reference": [array("reference_0.npy", exact)] if quantized else [],
        "weight_error": None,
        "versions": {"torch": "0.0"},
        "seconds": {"build": 0.0},
        "flops": 2 * rows * features * outputs,
        "changed_layers": int(quantized),
        "changed_bytes": weight.nbytes if quantized else 0,
    }
