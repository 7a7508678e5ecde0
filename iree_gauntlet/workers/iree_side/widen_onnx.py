"""An ONNX model in double precision: what its numbers would be, were there no rounding to its own types.

All of f16, bf16 and f32 becomes f64: weights, constants, inputs, outputs, casts. Operators that no kernel has in f64
are for whoever runs the result to find out.
"""

from __future__ import annotations

from typing import Any

import numpy as np

# Attributes that name an element type.
_TYPE_ATTRIBUTES = ("to", "dtype", "output_datatype", "output_dtype")


def widened(model: Any) -> Any:
    """A copy of a model in f64; `model` as of `onnx.load`, with its weights."""
    import onnx  # noqa: PLC0415

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    _widen_graph(copy.graph)
    for function in copy.functions:
        for node in function.node:
            _widen_node(node)
    return copy


def _is_narrow(element_type: int) -> bool:
    from onnx import TensorProto  # noqa: PLC0415

    return element_type in (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)


def _widen_graph(graph: Any) -> None:
    from onnx import TensorProto  # noqa: PLC0415

    # Of values in between, which say nothing that does not follow.
    del graph.value_info[:]
    for value in (*graph.input, *graph.output):
        if _is_narrow(value.type.tensor_type.elem_type):
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    for tensor in graph.initializer:
        _widen_tensor(tensor)
    for node in graph.node:
        _widen_node(node)


def _widen_tensor(tensor: Any) -> None:
    from onnx import numpy_helper  # noqa: PLC0415

    if _is_narrow(tensor.data_type):
        values = numpy_helper.to_array(tensor).astype(np.float64)
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))


def _widen_node(node: Any) -> None:
    from onnx import TensorProto, helper, numpy_helper  # noqa: PLC0415

    for attribute in node.attribute:
        if attribute.HasField("t"):
            _widen_tensor(attribute.t)
        if attribute.HasField("g"):
            _widen_graph(attribute.g)
        if attribute.name in _TYPE_ATTRIBUTES and _is_narrow(attribute.i):
            attribute.i = TensorProto.DOUBLE
        if node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
            values = np.array(attribute.f if attribute.name == "value_float" else attribute.floats, np.float64)
            attribute.CopyFrom(helper.make_attribute("value", numpy_helper.from_array(values)))
