"""Report in which weights of a model its recorded outputs would detect a wrong value; only a reference is run.

    python golden_sensitivity.py PLAN.json

Each floating-point tensor in the file is scaled by 1.01, one at a time, and the model is run again. The plan has
`model`, `inputs` (only the first set is used) and `cwd` as in `run_onnx`, and `tolerances`: absolute tolerances by
element type, and `rtol`; empty if outputs must be equal. The answer is `{"weights": […]}` with an object for each
tensor: `name`, `elements`, and `effect`. The effect is the largest |difference| of any output's element divided by its
tolerance. The comparison detects the change if the effect exceeds 1; 0 means no effect on this input.

Exit codes: those of `plan_file`.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

if __name__ == "__main__":
    # Import `iree_gauntlet` from the folder that contains this script, without installing it.
    sys.modules["iree_gauntlet"] = package = ModuleType("iree_gauntlet")
    package.__path__ = [str(Path(__file__).resolve().parents[2])]

from iree_gauntlet.workers.iree_side.onnx_reference import (
    InferenceFailedError,
    get_float_type,
    load_model,
    load_reference,
    read_inputs,
)
from iree_gauntlet.workers.iree_side.plan_file import read_plan, run_worker_main
from iree_gauntlet.workers.iree_side.value_errors import judge_values, widen

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import onnx

    from iree_gauntlet.workers.iree_side.plan_file import Array


FACTOR = 1.01


@dataclass(frozen=True, slots=True)
class _SensitivityPlan:
    model: str
    inputs: list[list[str]]
    cwd: str
    tolerances: dict[str, float]


def measure_effect(
    baseline_outputs: Sequence[Array], scaled_outputs: Sequence[Array], tolerances: Mapping[str, float], rtol: float
) -> float:
    """Return the largest difference of any element, divided by its tolerance.

    `tolerances` has absolute tolerances by IREE's names of element types; outputs of other types must be equal.
    """
    worst = 0.0
    for baseline, scaled_output in zip(baseline_outputs, scaled_outputs, strict=True):
        if baseline.shape != scaled_output.shape:
            return float("inf")
        element = get_float_type(baseline)
        if element not in tolerances:
            worst = max(worst, float("inf") if not np.array_equal(baseline, scaled_output) else 0.0)
            continue
        with np.errstate(all="ignore"):
            is_passing, error, limit = judge_values(widen(scaled_output), widen(baseline), (tolerances[element], rtol))
            shares = error / limit
        # The share is NaN if tolerance and difference are zero, or if a result has become NaN.
        shares = np.where(np.isnan(shares), np.where(is_passing, 0.0, np.inf), shares)
        worst = max(worst, float(shares.max(initial=0.0)))
    return worst


def _list_tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Yield the floating-point initializers and constants of a graph and of the graphs inside its nodes."""
    from onnx import TensorProto  # noqa: PLC0415

    floats = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)
    yield from (tensor for tensor in graph.initializer if tensor.data_type in floats)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _list_tensors(attribute.g)
            if node.op_type == "Constant" and attribute.HasField("t") and attribute.t.data_type in floats:
                tensor = attribute.t
                tensor.name = tensor.name or node.output[0]
                yield tensor


def _answer(document: Mapping[str, object]) -> dict[str, Any]:
    import onnx  # noqa: PLC0415

    plan = read_plan(_SensitivityPlan, document)
    model = load_model(Path(plan.model))
    reference, _ = load_reference(model.SerializeToString(), model)
    arrays = read_inputs(plan.inputs[0], plan.cwd, reference.inputs)
    tolerances = dict(plan.tolerances)
    rtol = tolerances.pop("rtol", 0.0)
    baseline_outputs = list(reference.run(arrays).values())
    effects = []
    for tensor in list(_list_tensors(model.graph)):
        original = onnx.TensorProto()
        original.CopyFrom(tensor)
        values = onnx.numpy_helper.to_array(tensor)
        scaled_values = (values.astype(np.float64) * FACTOR).astype(values.dtype)
        tensor.CopyFrom(onnx.numpy_helper.from_array(scaled_values, tensor.name))
        try:
            scaled_reference, _ = load_reference(model.SerializeToString(), model)
            effect = measure_effect(baseline_outputs, list(scaled_reference.run(arrays).values()), tolerances, rtol)
        except InferenceFailedError:
            # The tensor is a size, or scales one. With another value the model cannot run, so the change is always
            # detected.
            effect = math.inf
        finally:
            tensor.CopyFrom(original)
        effects.append({"name": tensor.name, "elements": int(values.size), "effect": effect})
    return {"weights": effects}


if __name__ == "__main__":
    sys.exit(run_worker_main(sys.argv, _answer))
