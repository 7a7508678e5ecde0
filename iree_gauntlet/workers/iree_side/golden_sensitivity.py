"""Say which weights of a model its recorded outputs can tell from wrong ones, through a reference alone.

    python golden_sensitivity.py PLAN.json

Each floating-point tensor that the file holds is scaled by 1.01, one at a time, and the model is run again. The plan:
`model`, `inputs` (their first set is taken) and `cwd` as of `run_onnx`; and `tolerances`: absolute ones by element
type, and `rtol`; empty where outputs must be equal. The answer is `{"weights": […]}`, an object a tensor: `name`,
`elements`, and `effect`: the largest |difference| of any output's element over what the tolerance allows there. Above 1
the comparison sees the change, 0 is no effect at all on this input.

Exit codes: as of `plan_file`.
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
    # The package is the one that this script lies in; all else is found as this Python finds it.
    sys.modules["iree_gauntlet"] = package = ModuleType("iree_gauntlet")
    package.__path__ = [str(Path(__file__).resolve().parents[2])]

from iree_gauntlet.workers.iree_side.onnx_reference import (
    InferenceFailedError,
    float_type,
    load_model,
    load_reference,
    read_inputs,
)
from iree_gauntlet.workers.iree_side.plan_file import answer_plan, read_plan
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


def measure_effect(before: Sequence[Array], after: Sequence[Array], allowed: Mapping[str, float], rtol: float) -> float:
    """The largest difference of any element, in units of what the tolerance allows there.

    `allowed` are absolute tolerances by IREE's names of element types; other types must not change at all.
    """
    worst = 0.0
    for old, new in zip(before, after, strict=True):
        if old.shape != new.shape:
            return float("inf")
        element = float_type(old)
        if element not in allowed:
            worst = max(worst, float("inf") if not np.array_equal(old, new) else 0.0)
            continue
        with np.errstate(all="ignore"):
            passed, error, limit = judge_values(widen(new), widen(old), (allowed[element], rtol))
            shares = error / limit
        # No number where the tolerance is zero and so is the difference, or where a result has become NaN.
        shares = np.where(np.isnan(shares), np.where(passed, 0.0, np.inf), shares)
        worst = max(worst, float(shares.max(initial=0.0)))
    return worst


def _list_tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """The floating-point tensors of a graph and of those inside of its nodes: initializers, and values of constants."""
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


def _answer(said: dict[str, Any]) -> dict[str, Any]:
    import onnx  # noqa: PLC0415

    plan = read_plan(_SensitivityPlan, said)
    model = load_model(Path(plan.model))
    reference, _ = load_reference(model.SerializeToString(), model)
    arrays = read_inputs(plan.inputs[0], plan.cwd, reference.inputs)
    allowed = dict(plan.tolerances)
    rtol = allowed.pop("rtol", 0.0)
    before = list(reference.run(arrays).values())
    found = []
    for tensor in list(_list_tensors(model.graph)):
        kept = onnx.TensorProto()
        kept.CopyFrom(tensor)
        values = onnx.numpy_helper.to_array(tensor)
        scaled = (values.astype(np.float64) * FACTOR).astype(values.dtype)
        tensor.CopyFrom(onnx.numpy_helper.from_array(scaled, tensor.name))
        try:
            again, _ = load_reference(model.SerializeToString(), model)
            effect = measure_effect(before, list(again.run(arrays).values()), allowed, rtol)
        except InferenceFailedError:
            # A size, or a scale of sizes: with another one the model does not run, which is seen.
            effect = math.inf
        finally:
            tensor.CopyFrom(kept)
        found.append({"name": tensor.name, "elements": int(values.size), "effect": effect})
    return {"weights": found}


if __name__ == "__main__":
    sys.exit(answer_plan(sys.argv, _answer))
