"""Run an ONNX model in onnxruntime, keep all that it takes and gives, and hold others' outputs against it.

    python hold_onnx.py PLAN.json

It runs in the Python that has onnxruntime. The plan:

    {"model": "/…/m.onnx",
     "inputs": ["1x4xf32=@x.bin", "@y.npy"],      as iree-run-module takes them, in the order of the graph's
     "cwd": "/…",                                 where their files lie
     "folder": "/…", "name": "whole",             values go to <folder>/<name>_input_0.bin, <name>_output_0.bin
     "sides": {"iree": ["a_0.bin", "a_1.bin"]},   an output each: files of raw values, texts like those of inputs, or
                                                  nothing
     "tolerances": {"f32": 1e-4}}                 as of trace_dispatches.py

The answer is `{"onnxruntime": "1.32.0", "inputs": […], "outputs": […]}`: objects of `name`, `type` as IREE writes it,
`dtype` and `shape` as NumPy has them, `file`; of outputs also `largest` |value|, and by side `error` as a share of
that (null where it is infinite), and `wrong`. Exit codes: as of `plan_file`.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

if __name__ == "__main__":
    # The package is the one that this script lies in; all else is found as this Python finds it.
    sys.modules["iree_gauntlet"] = package = ModuleType("iree_gauntlet")
    package.__path__ = [str(Path(__file__).resolve().parents[2])]

from iree_gauntlet.workers.iree_side.onnx_reference import (
    OnnxRuntime,
    pack_bytes,
    read_input,
    require_inputs,
    tensor_type,
)
from iree_gauntlet.workers.iree_side.plan_file import PlanError, answer_plan, read_plan
from iree_gauntlet.workers.iree_side.run_arguments import UnsupportedError, read_value
from iree_gauntlet.workers.iree_side.trace_dispatches import TracedTensor, measure_error

if TYPE_CHECKING:
    from iree_gauntlet.workers.iree_side.plan_file import Array


@dataclass(frozen=True, slots=True)
class _HoldPlan:
    model: str
    inputs: list[str]
    cwd: str
    folder: str
    name: str
    sides: dict[str, list[str]]
    tolerances: dict[str, float]


def _keep(plan: _HoldPlan, part: str, index: int, name: str, array: Array) -> dict[str, Any]:
    file = Path(plan.folder) / f"{plan.name}_{part}_{index}.bin"
    file.write_bytes(pack_bytes(array))
    kind, shape = tensor_type(name, array), list(array.shape)
    return {"name": name, "type": kind, "dtype": str(array.dtype), "shape": shape, "file": str(file)}


def _hold(text: str, plan: _HoldPlan, right: TracedTensor) -> tuple[float | None, bool]:
    """How far an output of another is off, and whether that is wrong."""
    if not text:
        return 0.0, False
    path = Path(text)
    if path.suffix == ".bin" and "=" not in path.name:
        contents = path.read_bytes()
    else:
        value = read_value(text, plan.cwd)
        contents = bytes(value.contents) if value is not None else right.contents
    if len(contents) != len(right.contents):
        return None, True
    error = measure_error(TracedTensor((), right.element_type, contents), right)
    return (error if np.isfinite(error) else None), error > plan.tolerances.get(right.element_type, 0.0)


def _answer(said: dict[str, Any]) -> dict[str, Any]:
    plan = read_plan(_HoldPlan, said)
    session = OnnxRuntime(Path(plan.model))
    require_inputs(session.inputs, plan.inputs)
    given = [read_input(text, plan.cwd, one.dtype) for text, one in zip(plan.inputs, session.inputs, strict=True)]
    results = session.run(given)
    try:
        inputs = [_keep(plan, "input", i, session.inputs[i].name, array) for i, array in enumerate(given)]
        outputs = [_keep(plan, "output", i, name, array) for i, (name, array) in enumerate(results.items())]
    except UnsupportedError as error:
        raise PlanError(str(error)) from error
    for index, (item, array) in enumerate(zip(outputs, results.values(), strict=True)):
        right = TracedTensor(array.shape, item["type"].rpartition("x")[2], Path(item["file"]).read_bytes())
        item["largest"] = right.find_largest()
        held = {side: _hold(texts[index], plan, right) for side, texts in plan.sides.items()}
        item["error"] = {side: error for side, (error, _) in held.items()}
        item["wrong"] = {side: wrong for side, (_, wrong) in held.items()}
    return {"onnxruntime": session.version, "inputs": inputs, "outputs": outputs}


if __name__ == "__main__":
    sys.exit(answer_plan(sys.argv, _answer))
