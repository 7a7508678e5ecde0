"""Say which weights of a model its recorded outputs can tell from wrong ones, through onnxruntime alone.

    python -m iree_gauntlet.workers.iree_side.golden_sensitivity --model MODEL.onnx --input x.npy… \
        --tolerance f32=1e-5 --rtol 1e-5

Each floating-point tensor that the file holds is scaled by 1.01, one at a time, and the model is run again. Prints a
JSON array, an object a tensor: `name`, `elements`, and `effect`: the largest |difference| of any output's element over
what the tolerance allows there. Above 1 the comparison sees the change, 0 is no effect at all on this input.

Exit codes: as of `record_golden`.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from iree_gauntlet.workers.iree_side.record_golden import RefusedError, load_array, run_command, run_model

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    Array = NDArray[Any]


FACTOR = 1.01
_TYPES = {"float16": "f16", "float32": "f32", "float64": "f64"}


def effect_of(before: Sequence[Array], after: Sequence[Array], allowed: Mapping[str, float], rtol: float) -> float:
    """The largest difference of any element, in units of what the tolerance allows there.

    Args:
        before: outputs.
        after: those that are held against them, in the same order.
        allowed: absolute tolerance by IREE's name of the element type; other types must not change at all.
        rtol: relative tolerance.
    """
    worst = 0.0
    for old, new in zip(before, after, strict=True):
        if old.shape != new.shape:
            return float("inf")
        element = _TYPES.get(str(old.dtype), "")
        if element not in allowed:
            worst = max(worst, float("inf") if not np.array_equal(old, new) else 0.0)
            continue
        wanted, found = old.astype(np.float64), new.astype(np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            shares = np.abs(found - wanted) / (allowed[element] + rtol * np.abs(wanted))
        # No number where the tolerance is zero and so is the difference, or where a result has become NaN.
        shares = np.where(found == wanted, 0.0, np.where(np.isnan(shares), np.inf, shares))
        worst = max(worst, float(shares.max(initial=0.0)))
    return worst


def _tensors(graph: Any) -> Iterator[Any]:
    """The floating-point tensors of a graph and of those inside of its nodes: initializers, and values of constants."""
    from onnx import TensorProto  # noqa: PLC0415

    floats = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)
    yield from (tensor for tensor in graph.initializer if tensor.data_type in floats)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _tensors(attribute.g)
            if node.op_type == "Constant" and attribute.HasField("t") and attribute.t.data_type in floats:
                tensor = attribute.t
                tensor.name = tensor.name or node.output[0]
                yield tensor


def _measured(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    import onnx  # noqa: PLC0415
    from google.protobuf.message import DecodeError  # noqa: PLC0415

    try:
        model = onnx.load(str(arguments.model))
    except (OSError, ValueError, DecodeError) as error:
        raise RefusedError(f"cannot read {arguments.model}: {error}") from error
    arrays = [load_array(path) for path in arguments.input]
    allowed = {name: float(value) for name, _, value in (item.partition("=") for item in arguments.tolerance)}
    _, outputs = run_model(model.SerializeToString(), arrays)
    before = list(outputs.values())
    found = []
    for tensor in list(_tensors(model.graph)):
        kept = onnx.TensorProto()
        kept.CopyFrom(tensor)
        values = onnx.numpy_helper.to_array(tensor)
        scaled = (values.astype(np.float64) * FACTOR).astype(values.dtype)
        tensor.CopyFrom(onnx.numpy_helper.from_array(scaled, tensor.name))
        _, outputs = run_model(model.SerializeToString(), arrays)
        tensor.CopyFrom(kept)
        effect = effect_of(before, list(outputs.values()), allowed, arguments.rtol)
        found.append({"name": tensor.name, "elements": int(values.size), "effect": effect})
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="golden_sensitivity")
    parser.add_argument("--model", type=Path, required=True, help="the .onnx file as published")
    parser.add_argument("--input", type=Path, action="append", default=[], help=".npy file, in the graph's order")
    parser.add_argument("--tolerance", action="append", default=[], help="absolute tolerance, such as f32=1e-5")
    parser.add_argument("--rtol", type=float, default=1e-5, help="relative tolerance (1e-5)")
    arguments = parser.parse_args(argv)
    return run_command("golden_sensitivity", lambda: json.dumps(_measured(arguments)))


if __name__ == "__main__":
    sys.exit(main())
