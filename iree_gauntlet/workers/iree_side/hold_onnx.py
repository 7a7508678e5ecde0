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
that, and `wrong`. Exit codes: as of `plan_file`.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":
    # The package is the one that this script lies in; all else is found as this Python finds it.
    sys.modules["iree_gauntlet"] = package = ModuleType("iree_gauntlet")
    package.__path__ = [str(Path(__file__).resolve().parents[2])]

from iree_gauntlet.workers.iree_side.onnx_reference import OnnxRuntime, pack_bytes, read_inputs, tensor_type
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
    return {
        "name": name,
        "type": tensor_type(name, array),
        "dtype": str(array.dtype),
        "shape": array.shape,
        "file": str(file),
    }


def _read_side(text: str, plan: _HoldPlan, right: TracedTensor) -> bytes:
    """What another gives in place of a value; that itself where nothing is known."""
    path = Path(text)
    if path.suffix == ".bin" and "=" not in path.name:
        return path.read_bytes()
    value = read_value(text, plan.cwd) if text else None
    return right.contents if value is None else bytes(value.contents)


def _hold(plan: _HoldPlan, index: int, name: str, array: Array) -> dict[str, Any]:
    """An output, and how far those of others are off."""
    kept = _keep(plan, "output", index, name, array)
    right = TracedTensor(array.shape, tensor_type(name, array).rpartition("x")[2], pack_bytes(array))
    sides = {side: _read_side(texts[index], plan, right) for side, texts in plan.sides.items()}
    errors = {
        side: measure_error(TracedTensor((), right.element_type, contents), right)
        if len(contents) == len(right.contents)
        else float("inf")
        for side, contents in sides.items()
    }
    allowed = plan.tolerances.get(right.element_type, 0.0)
    wrong = {side: error > allowed for side, error in errors.items()}
    return {**kept, "largest": right.find_largest(), "error": errors, "wrong": wrong}


def _answer(said: dict[str, Any]) -> dict[str, Any]:
    plan = read_plan(_HoldPlan, said)
    session = OnnxRuntime(Path(plan.model))
    given = read_inputs(plan.inputs, plan.cwd, session.inputs)
    results = session.run(given)
    try:
        inputs = [_keep(plan, "input", i, session.inputs[i].name, array) for i, array in enumerate(given)]
        outputs = [_hold(plan, i, name, array) for i, (name, array) in enumerate(results.items())]
    except UnsupportedError as error:
        raise PlanError(str(error)) from error
    return {"onnxruntime": session.version, "inputs": inputs, "outputs": outputs}


if __name__ == "__main__":
    sys.exit(answer_plan(sys.argv, _answer))
