"""Cut an ONNX model between values, and import what is left, in the Python of the toolchain.

    python cut_onnx.py PLAN.json

What is computed from the new inputs, and needed for the new outputs, stays, with the constants, operator sets and
functions that it needs. The plan:

    {"model": "/…/prepared.onnx",
     "inputs": [{"name", "dtype", "shape"}],              new inputs; null for the model's own
     "constants": [{"name", "dtype", "shape", "file"}],   values that become constants, raw
     "outputs": ["…"],
     "repeat": 1021,              floating-point constants of more elements hold their first ones over and over; 0: none
     "onnx": "/…/cut.onnx",
     "mlir": "/…/cut.mlir"}       empty: it is not imported

The answer is `{"bytes": …}`, of the .onnx. The function is called `operator`. Exit codes: as of `plan_file`.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

if __name__ == "__main__":
    # The package is the one that this script lies in; all else is found as this Python finds it.
    sys.modules["iree_gauntlet"] = package = ModuleType("iree_gauntlet")
    package.__path__ = [str(Path(__file__).resolve().parents[2])]

from iree_gauntlet.workers.iree_side.describe_onnx import list_used_values
from iree_gauntlet.workers.iree_side.import_onnx import ImportFailedError, InputError, import_to_mlir, load_onnx
from iree_gauntlet.workers.iree_side.plan_file import PlanError, answer_plan, read_plan

if TYPE_CHECKING:
    import onnx


_FUNCTION = "operator"
# The first whose initializers need not be among the inputs.
_LEAST_IR = 4


@dataclass(frozen=True, slots=True)
class _CutPlan:
    model: str
    inputs: list[dict[str, Any]] | None
    constants: list[dict[str, Any]]
    outputs: list[str]
    repeat: int
    onnx: str
    mlir: str


def _find_needed(graph: onnx.GraphProto, outputs: list[str], given: set[str]) -> tuple[list[onnx.NodeProto], set[str]]:
    """The nodes that outputs need where some values are given, in order; and all values that these take."""
    wanted, nodes = set(outputs) - given, []
    for node in reversed(graph.node):
        if wanted.intersection(node.output):
            nodes.append(node)
            wanted.update(name for name in list_used_values(node) if name not in given)
    used = {name for node in nodes for name in list_used_values(node)} | set(outputs)
    return nodes[::-1], used


def _cut(model: onnx.ModelProto, plan: _CutPlan) -> onnx.ModelProto:
    import onnx  # noqa: PLC0415 - the toolchain's
    from onnx import helper, numpy_helper  # noqa: PLC0415

    graph = model.graph
    new = {
        item["name"]: helper.make_tensor_value_info(
            item["name"], helper.np_dtype_to_tensor_dtype(np.dtype(item["dtype"])), item["shape"]
        )
        for item in plan.inputs or ()
    }
    made = {
        item["name"]: numpy_helper.from_array(
            np.fromfile(item["file"], item["dtype"]).reshape(item["shape"]), item["name"]
        )
        for item in plan.constants
    }
    nodes, used = _find_needed(graph, plan.outputs, {*new, *made})
    kept = [item for item in graph.initializer if item.name in used and item.name not in {*new, *made}]
    constants = {item.name for item in kept}
    own = [item for item in graph.input if item.name not in {item.name for item in graph.initializer}]
    infos = {item.name: item for item in (*graph.input, *graph.value_info, *graph.output)}
    missing = [name for name in plan.outputs if name not in infos]
    if missing:
        raise PlanError(f"the type of {missing[0]} is not known")
    cut = onnx.ModelProto()
    cut.ir_version = max(model.ir_version, _LEAST_IR)
    cut.opset_import.extend(model.opset_import)
    cut.functions.extend(model.functions)
    cut.graph.name = _FUNCTION
    cut.graph.node.extend(nodes)
    cut.graph.initializer.extend(_repeat(item, plan.repeat) for item in (*kept, *made.values()))
    cut.graph.sparse_initializer.extend(item for item in graph.sparse_initializer if item.values.name in used)
    cut.graph.input.extend(own if plan.inputs is None else new.values())
    cut.graph.output.extend(infos[name] for name in plan.outputs)
    inner = {name for node in nodes for name in node.output} - set(plan.outputs) - constants
    cut.graph.value_info.extend(item for item in graph.value_info if item.name in inner)
    return cut


def _repeat(tensor: onnx.TensorProto, first: int) -> onnx.TensorProto:
    from onnx import numpy_helper  # noqa: PLC0415 - the toolchain's

    values = numpy_helper.to_array(tensor) if first else None
    if values is None or values.dtype.kind != "f" or values.size <= first:
        return tensor
    return numpy_helper.from_array(np.resize(values.ravel()[:first], values.shape), tensor.name)


def _answer(said: dict[str, Any]) -> dict[str, Any]:
    import onnx  # noqa: PLC0415 - the toolchain's

    plan = read_plan(_CutPlan, said)
    target = Path(plan.onnx)
    try:
        model = _cut(load_onnx(Path(plan.model)), plan)
        onnx.save(model, target)
        if plan.mlir:
            with tempfile.TemporaryDirectory(prefix=".import-", dir=target.parent) as folder:
                import_to_mlir(model, Path(folder)).replace(plan.mlir)
    except InputError as error:
        raise PlanError(str(error)) from error
    except ImportFailedError as error:
        raise RuntimeError(str(error)) from error
    return {"bytes": target.stat().st_size}


if __name__ == "__main__":
    sys.exit(answer_plan(sys.argv, _answer))
