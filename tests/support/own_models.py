"""Small ONNX models like those of users, each with a difficulty of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

F16, F32, F64, BF16 = TensorProto.FLOAT16, TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.BFLOAT16
I8, I64 = TensorProto.INT8, TensorProto.INT64
# The fields are name, element type, and sizes; a name in place of a size makes it dynamic.
ValueInfo = tuple[str, int, "Sequence[int | str] | None"]


def write_model(
    path: Path,
    nodes: Iterable[onnx.NodeProto],
    inputs: Iterable[ValueInfo],
    outputs: Iterable[ValueInfo],
    weights: Mapping[str, Any] | None = None,
    opset: int = 17,
) -> Path:
    """Write a model whose graph has the name of its file."""
    graph = helper.make_graph(
        list(nodes),
        path.stem,
        [helper.make_tensor_value_info(*value) for value in inputs],
        [helper.make_tensor_value_info(*value) for value in outputs],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in (weights or {}).items()],
    )
    model = helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", opset)])
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


def make_node(op_type: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    """Make a node; names of inputs and outputs are separated by spaces."""
    return helper.make_node(op_type, inputs.split(), outputs.split(), **attributes)


def write_user_models(folder: Path) -> dict[str, str]:
    """Write models; return the expected verdict of each, or `refused`, by the stem of its file."""
    rng = np.random.default_rng(7)
    quantised = [
        make_node("QuantizeLinear", "x s z", "q"),
        make_node("DequantizeLinear", "q s z", "d"),
        make_node("Conv", "d w", "c", pads=[1, 1, 1, 1]),
        make_node("Relu", "c", "r"),
        make_node("QuantizeLinear", "r t z", "p"),
        make_node("DequantizeLinear", "p t z", "y"),
    ]
    weights = {
        "s": np.float32(0.03),
        "t": np.float32(0.05),
        "z": np.int8(0),
        "w": (rng.normal(size=(16, 8, 3, 3)) / 8).astype(np.float32),
    }
    x_input = [("x", F32, [8])]
    models: dict[str, tuple[Any, ...]] = {
        "quantised": (quantised, [("x", F32, [1, 8, 14, 14])], [("y", F32, [1, 16, 14, 14])], weights),
        "to_i8": (
            [make_node("Mul", "x k", "b"), make_node("Cast", "b", "y", to=I8)],
            [("x", F32, [16])],
            [("y", I8, [16])],
            {"k": np.float32(20)},
        ),
        "topk": (
            [make_node("TopK", "x k", "v i")],
            [("x", F32, [3, 9])],
            [("v", F32, [3, 4]), ("i", I64, [3, 4])],
            {"k": np.array([4])},
        ),
        "sqrt_nan": ([make_node("Sqrt", "x", "y")], x_input, [("y", F32, [8])]),
        "sign_of_nan": ([make_node("Sqrt", "x", "q"), make_node("Sign", "q", "y")], x_input, [("y", F32, [8])]),
        "exp_f64": ([make_node("Exp", "x", "y")], [("x", F64, [8])], [("y", F64, [8])]),
        "Scalar-Input": ([make_node("Mul", "x s", "y")], [*x_input, ("s", F32, [])], [("y", F32, [8])]),
        "random_op": (
            [make_node("RandomNormalLike", "x", "r", seed=3.0), make_node("Add", "x r", "y")],
            x_input,
            [("y", F32, [8])],
        ),
        "mul_bf16": (
            [make_node("Cast", "x", "b", to=BF16), make_node("Mul", "b b", "y")],
            [("x", F32, [4])],
            [("y", BF16, [4])],
        ),
        "gather": ([make_node("Gather", "t i", "y")], [("t", F32, [5, 3]), ("i", I64, [4])], [("y", F32, [4, 3])]),
        "tiny_values": ([make_node("Mul", "x k", "y")], x_input, [("y", F32, [8])], {"k": np.float32(1e-9)}),
        "sum_f16": (
            [make_node("Cast", "x", "b", to=F16), make_node("ReduceSum", "b", "y", keepdims=0)],
            [("x", F32, [4096])],
            [("y", F16, [])],
        ),
        "a name with é": ([make_node("Relu", "x", "y")], x_input, [("y", F32, [8])]),
        "reflect_pad": (
            [make_node("Pad", "x p", "y", mode="reflect")],
            [("x", F32, [1, "length"])],
            [("y", F32, [1, "padded"])],
            {"p": np.array([0, 9, 0, 9])},
        ),
        "no_values": (
            [make_node("Exp", "x", "y"), make_node("Relu", "z", "w")],
            [("x", F32, [0, 4]), ("z", F32, [4])],
            [("y", F32, [0, 4]), ("w", F32, [4])],
        ),
        # The other output could tell right from wrong.
        "all_nan": (
            [make_node("Mul", "x n", "y"), make_node("Relu", "x", "r")],
            x_input,
            [("y", F32, [8]), ("r", F32, [8])],
            {"n": np.float32(np.nan)},
        ),
        "expand_to": (
            [make_node("Expand", "x n", "y")],
            [("x", F32, [3, 1]), ("n", I64, [3])],
            [("y", F32, [2, 3, 6])],
        ),
    }
    for name, model_parts in models.items():
        write_model(folder / f"{name}.onnx", *model_parts)
    return dict.fromkeys(models, "passed") | {
        # IREE gives 0 for the sign of NaN.
        "sign_of_nan": "failed",
        "random_op": "refused",
        "all_nan": "refused",
    }
