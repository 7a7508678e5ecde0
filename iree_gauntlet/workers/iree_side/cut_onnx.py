"""Describe an ONNX model, or cut out a part of the model and import this part, in the toolchain's Python.

    python cut_onnx.py PLAN.json

With the plan `{"model": "/…/m.onnx", "prepared": "/…/prepared.onnx", "opset", "least_opset", "shapes"}` the model is
prepared as for its import (with the options of `import_onnx.py`), and the answer is

    {"inputs": […], "outputs": […], "constants": […],   names of values; constants have their values in the file
     "nodes": [{"index": 0, "name": …, "op": "Conv", "inputs": […], "outputs": […],
                "published_number": 12}],      its number in the published file, from 1; 0 if the preparation added it
     "published_nodes": 134,                     number of nodes in the published file
     "sizes": {value: bytes}}       sizes of the nodes' outputs that are tensors of numbers; null for an unknown size

A node's inputs include the values that graphs inside the node use.

With the plan

    {"model": "/…/prepared.onnx",
     "inputs": [{"name", "dtype", "shape"}],              new inputs; null for the model's own
     "constants": [{"name", "dtype", "shape", "file"}],   values that become constants, raw
     "outputs": ["…"],
     "repeat": 1021,              larger floating-point constants repeat their first 1021 elements; 0: all are kept
     "onnx": "/…/cut.onnx",
     "mlir": "/…/cut.mlir"}       empty: the part is not imported

the part has the nodes that compute the new outputs from the new inputs, and the constants, operator sets and functions
that these nodes need. The answer is `{"bytes": …}`, the size of the .onnx. The function is called `operator`.

Exit codes: those of `plan_file`.
"""

from __future__ import annotations

import math
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

if __name__ == "__main__":
    # Import `iree_gauntlet` from the folder that contains this script, without installing it.
    sys.modules["iree_gauntlet"] = package = ModuleType("iree_gauntlet")
    package.__path__ = [str(Path(__file__).resolve().parents[2])]

from iree_gauntlet.workers.iree_side.import_onnx import (
    ImportFailedError,
    InputError,
    import_to_mlir,
    list_inner_graphs,
    list_inputs,
    load_onnx,
    prepare_file,
)
from iree_gauntlet.workers.iree_side.plan_file import PlanError, read_plan, run_worker_main

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


# The maximum size of a protobuf message, and so of a model that is processed in memory.
_MAX_MODEL_BYTES = 2_000_000_000
# Bytes per element, by ONNX's number of the type; only types that onnxruntime returns as arrays and IREE accepts.
_ELEMENT_BYTES = {1: 4, 2: 1, 3: 1, 4: 2, 5: 2, 6: 4, 7: 8, 9: 1, 10: 2, 11: 8, 12: 4, 13: 8}
_FUNCTION_NAME = "operator"
# The first version in which initializers need not be listed as inputs.
_MIN_IR_VERSION = 4


@dataclass(frozen=True, slots=True)
class _DescribePlan:
    model: str
    prepared: str
    opset: int | None
    least_opset: int | None
    shapes: list[tuple[str, list[int]]]


@dataclass(frozen=True, slots=True)
class _CutValue:
    name: str
    dtype: str
    shape: list[int]
    file: str = ""

    def declare(self) -> onnx.ValueInfoProto:
        """Return the value as an input."""
        return helper.make_tensor_value_info(
            self.name, helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype)), self.shape
        )

    def read(self) -> onnx.TensorProto:
        """Return the value as a constant."""
        return numpy_helper.from_array(np.fromfile(self.file, self.dtype).reshape(self.shape), self.name)


@dataclass(frozen=True, slots=True)
class _CutPlan:
    model: str
    inputs: list[dict[str, Any]] | None
    constants: list[dict[str, Any]]
    outputs: list[str]
    repeat: int
    onnx: str
    mlir: str


def _list_used_values(node: onnx.NodeProto) -> list[str]:
    """Return the values that a node uses, including outer values that graphs inside the node use."""
    outer_values = [name for graph in list_inner_graphs(node) for name in _list_outer_values(graph)]
    return list(dict.fromkeys(name for name in (*node.input, *outer_values) if name))


def _list_outer_values(graph: onnx.GraphProto) -> Iterator[str]:
    inner_names = {value.name for value in (*graph.input, *graph.initializer)}
    for node in graph.node:
        yield from (name for name in _list_used_values(node) if name not in inner_names)
        inner_names.update(node.output)
    yield from (value.name for value in graph.output if value.name not in inner_names)


def _describe(model: onnx.ModelProto, published_model: onnx.ModelProto) -> dict[str, object]:
    graph = model.graph
    constants = [tensor.name for tensor in graph.initializer] + [item.values.name for item in graph.sparse_initializer]
    numbers_by_outputs = {tuple(node.output): number for number, node in enumerate(published_model.graph.node, 1)}
    sizes: dict[str, int | None] = {}
    for value in (*graph.value_info, *graph.output):
        tensor = value.type.tensor_type
        if tensor.elem_type in _ELEMENT_BYTES:
            has_sizes = tensor.HasField("shape") and all(dim.HasField("dim_value") for dim in tensor.shape.dim)
            count = math.prod(dim.dim_value for dim in tensor.shape.dim)
            sizes[value.name] = count * _ELEMENT_BYTES[tensor.elem_type] if has_sizes else None
    return {
        "inputs": [value.name for value in list_inputs(graph)],
        "outputs": [value.name for value in graph.output],
        "constants": constants,
        "nodes": [
            {
                "index": index,
                "name": node.name,
                "op": node.op_type,
                "inputs": _list_used_values(node),
                "outputs": [name for name in node.output if name],
                "published_number": numbers_by_outputs.get(tuple(node.output), 0),
            }
            for index, node in enumerate(graph.node)
        ],
        "published_nodes": len(published_model.graph.node),
        "sizes": sizes,
    }


def _select_nodes(
    graph: onnx.GraphProto, outputs: list[str], available: set[str]
) -> tuple[list[onnx.NodeProto], set[str]]:
    """Return, in order, the nodes that compute outputs from available values, and all values that these nodes use."""
    value_names, nodes = set(outputs) - available, []
    for node in reversed(graph.node):
        if value_names.intersection(node.output):
            nodes.append(node)
            value_names.update(name for name in _list_used_values(node) if name not in available)
    used_values = {name for node in nodes for name in _list_used_values(node)} | set(outputs)
    return nodes[::-1], used_values


def _cut(model: onnx.ModelProto, plan: _CutPlan) -> onnx.ModelProto:
    graph = model.graph
    inputs = {item.name: item.declare() for item in (read_plan(_CutValue, entry) for entry in plan.inputs or ())}
    additions = {item.name: item.read() for item in (read_plan(_CutValue, entry) for entry in plan.constants)}
    nodes, uses = _select_nodes(graph, plan.outputs, {*inputs, *additions})
    initializers = [item for item in graph.initializer if item.name in uses and item.name not in {*inputs, *additions}]
    names = {item.name for item in initializers}
    infos = {item.name: item for item in (*graph.input, *graph.value_info, *graph.output)}
    missing = [name for name in plan.outputs if name not in infos]
    if missing:
        raise PlanError(f"the type of {missing[0]} is not known")
    result = onnx.ModelProto()
    result.ir_version = max(model.ir_version, _MIN_IR_VERSION)
    result.opset_import.extend(model.opset_import)
    result.functions.extend(model.functions)
    result.graph.name = _FUNCTION_NAME
    result.graph.node.extend(nodes)
    result.graph.initializer.extend(_repeat(item, plan.repeat) for item in (*initializers, *additions.values()))
    result.graph.sparse_initializer.extend(item for item in graph.sparse_initializer if item.values.name in uses)
    result.graph.input.extend(list_inputs(graph) if plan.inputs is None else inputs.values())
    result.graph.output.extend(infos[name] for name in plan.outputs)
    inner_names = {name for node in nodes for name in node.output} - set(plan.outputs) - names
    result.graph.value_info.extend(item for item in graph.value_info if item.name in inner_names)
    return result


def _repeat(tensor: onnx.TensorProto, count: int) -> onnx.TensorProto:
    values = numpy_helper.to_array(tensor) if count else None
    if values is None or values.dtype.kind != "f" or values.size <= count:
        return tensor
    return numpy_helper.from_array(np.resize(values.ravel()[:count], values.shape), tensor.name)


def _answer(document: Mapping[str, object]) -> dict[str, object]:
    try:
        return _answer_describe(document) if "prepared" in document else _answer_cut(read_plan(_CutPlan, document))
    except InputError as error:
        raise PlanError(str(error)) from error
    except ImportFailedError as error:
        raise RuntimeError(str(error)) from error


def _answer_describe(document: Mapping[str, object]) -> dict[str, object]:
    plan = read_plan(_DescribePlan, document)
    path = Path(plan.model)
    if path.stat().st_size > _MAX_MODEL_BYTES:
        raise PlanError(f"{path.name} is larger than 2 GB and cannot be cut")
    # External weights are not read for this check.
    published_model = onnx.load(path, load_external_data=False)
    if any(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in published_model.graph.initializer):
        raise PlanError(f"the weights of {path.name} are in other files, so it cannot be cut")
    shapes = {name: tuple(shape) for name, shape in plan.shapes}
    model = prepare_file(path, shapes, plan.opset, plan.least_opset)
    onnx.save(model, plan.prepared)
    return _describe(model, published_model)


def _answer_cut(plan: _CutPlan) -> dict[str, object]:
    target, model = Path(plan.onnx), _cut(load_onnx(Path(plan.model)), plan)
    onnx.save(model, target)
    if plan.mlir:
        with tempfile.TemporaryDirectory(prefix=".import-", dir=target.parent) as folder:
            import_to_mlir(model, Path(folder)).replace(plan.mlir)
    return {"bytes": target.stat().st_size}


if __name__ == "__main__":
    sys.exit(run_worker_main(sys.argv, _answer))
