"""Small ONNX models as people bring them, each of a kind of its own."""

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
# Name, element type, sizes; a name in place of a size leaves it open.
Value = tuple[str, int, "Sequence[int | str] | None"]


def write_model(
    path: Path,
    nodes: Iterable[onnx.NodeProto],
    inputs: Iterable[Value],
    outputs: Iterable[Value],
    weights: Mapping[str, Any] | None = None,
    opset: int = 17,
) -> Path:
    """Writes a model whose graph is named as its file."""
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


def node(op_type: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    """An operator; names are parted by spaces."""
    return helper.make_node(op_type, inputs.split(), outputs.split(), **attributes)


def write_own_models(folder: Path) -> dict[str, str]:
    """Writes models; what becomes of each, by the name of its file: a verdict, or `refused`."""
    random = np.random.default_rng(7)
    quantised = [
        node("QuantizeLinear", "x s z", "q"),
        node("DequantizeLinear", "q s z", "d"),
        node("Conv", "d w", "c", pads=[1, 1, 1, 1]),
        node("Relu", "c", "r"),
        node("QuantizeLinear", "r t z", "p"),
        node("DequantizeLinear", "p t z", "y"),
    ]
    weights = {
        "s": np.float32(0.03),
        "t": np.float32(0.05),
        "z": np.int8(0),
        "w": (random.normal(size=(16, 8, 3, 3)) / 8).astype(np.float32),
    }
    eight = [("x", F32, [8])]
    made: dict[str, tuple[Any, ...]] = {
        "quantised": (quantised, [("x", F32, [1, 8, 14, 14])], [("y", F32, [1, 16, 14, 14])], weights),
        "to_i8": (
            [node("Mul", "x k", "b"), node("Cast", "b", "y", to=I8)],
            [("x", F32, [16])],
            [("y", I8, [16])],
            {"k": np.float32(20)},
        ),
        "topk": (
            [node("TopK", "x k", "v i")],
            [("x", F32, [3, 9])],
            [("v", F32, [3, 4]), ("i", I64, [3, 4])],
            {"k": np.array([4])},
        ),
        "sqrt_nan": ([node("Sqrt", "x", "y")], eight, [("y", F32, [8])]),
        "sign_of_nan": ([node("Sqrt", "x", "q"), node("Sign", "q", "y")], eight, [("y", F32, [8])]),
        "exp_f64": ([node("Exp", "x", "y")], [("x", F64, [8])], [("y", F64, [8])]),
        "Scalar-Input": ([node("Mul", "x s", "y")], [*eight, ("s", F32, [])], [("y", F32, [8])]),
        "random_op": (
            [node("RandomNormalLike", "x", "r", seed=3.0), node("Add", "x r", "y")],
            eight,
            [("y", F32, [8])],
        ),
        "mul_bf16": ([node("Cast", "x", "b", to=BF16), node("Mul", "b b", "y")], [("x", F32, [4])], [("y", BF16, [4])]),
        "gather": ([node("Gather", "t i", "y")], [("t", F32, [5, 3]), ("i", I64, [4])], [("y", F32, [4, 3])]),
        "tiny_values": ([node("Mul", "x k", "y")], eight, [("y", F32, [8])], {"k": np.float32(1e-9)}),
        "sum_f16": (
            [node("Cast", "x", "b", to=F16), node("ReduceSum", "b", "y", keepdims=0)],
            [("x", F32, [4096])],
            [("y", F16, [])],
        ),
        "a name with é": ([node("Relu", "x", "y")], eight, [("y", F32, [8])]),
        "reflect_pad": (
            [node("Pad", "x p", "y", mode="reflect")],
            [("x", F32, [1, "length"])],
            [("y", F32, [1, "padded"])],
            {"p": np.array([0, 9, 0, 9])},
        ),
        "no_values": (
            [node("Exp", "x", "y"), node("Relu", "z", "w")],
            [("x", F32, [0, 4]), ("z", F32, [4])],
            [("y", F32, [0, 4]), ("w", F32, [4])],
        ),
        "all_nan": ([node("Mul", "x n", "y")], eight, [("y", F32, [8])], {"n": np.float32(np.nan)}),
        "expand_to": ([node("Expand", "x n", "y")], [("x", F32, [3, 1]), ("n", I64, [3])], [("y", F32, [2, 3, 6])]),
    }
    for name, parts in made.items():
        write_model(folder / f"{name}.onnx", *parts)
    return dict.fromkeys(made, "passed") | {
        # Where IREE gives 0 for the sign of NaN.
        "sign_of_nan": "failed",
        "random_op": "refused",
        "all_nan": "refused",
    }
