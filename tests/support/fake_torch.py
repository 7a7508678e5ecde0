"""Stands in for a Python that has torch, which is too large for the tests: answers its probe, and builds models.

What it leaves is what `building.py` leaves, made with onnx and NumPy. Faults come by the variable STAND_IN; a
torch that has one where it is asked for its version is another torch, so that what it makes is kept apart.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.support.fake_torch_variants import linear_variant
from tests.support.places import ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["main", "stand_in"]

_WIDTH = 64
_VOCABULARY, _TOKENS, _POSITION = 50, 6, 3
_TORCH = "0.0.torch"
_VERSIONS = {"torch": _TORCH, "onnxscript": "0.0", "onnx": "0.0", "numpy": np.__version__}
_DTYPES = {"Fp32": ("f32", np.float32), "Fp16": ("f16", np.float16)}
_ROUNDOFF = {"f32": 2.0**-24, "f16": 2.0**-11, "i64": 0.0}


def stand_in(folder: Path) -> Path:
    """A program in a folder that is called as a Python is."""
    path = folder / "python-with-torch"
    # No PYTHONPATH of ours: whoever starts it may have set one.
    call = "from tests.support.fake_torch import main; sys.exit(main(sys.argv[1:]))"
    script = f"import sys; sys.path.insert(0, {str(ROOT)!r}); {call}"
    # Every command asks for versions first: the shell answers that at once.
    versions = json.dumps({"python": ".".join(map(str, sys.version_info[:3])), "versions": _VERSIONS, "paths": []})
    output = shlex.quote(versions).replace(_TORCH, f"{_TORCH}'\"$STAND_IN\"'")
    path.write_text(
        f'#!/bin/sh\n[ "$1" = -c ] && printf "%s\\n" {output} && exit\n'
        f'exec {shlex.quote(sys.executable)} -c {shlex.quote(script)} "$@"\n'
    )
    path.chmod(0o755)
    return path


def main(words: list[str]) -> int:
    """Builds a model; the plan is the last of the words."""
    fault = os.environ.get("STAND_IN", "")
    plan = json.loads(Path(words[-1]).read_text())
    builds = Path(plan["output"]).parents[5] / "builds.txt"
    with builds.open("a") as calls:
        calls.write(f"{plan.get('model') or plan['quantization']}\n")
    if fault == "usage":
        sys.stderr.write("error: models/line.py:3: line: nothing is right here\n")
        return 2
    if fault == "hangs once" and len(builds.read_text().split()) == 1:
        signal.pause()
    if fault == "ends":
        return 0
    if "quantization" in plan:
        made = linear_variant(plan, fault)
    else:
        made = _generative(plan) if plan["model"] == "counter" else _line(plan, fault)
    (Path(plan["output"]) / "build.json").write_text(json.dumps(made))
    return 0


def _array(folder: Path, file: str, values: NDArray[Any], element_type: str) -> dict[str, Any]:
    np.save(folder / file, values)
    return {"file": file, "type": element_type, "shape": list(values.shape)}


def _with_errors(record: dict[str, Any], values: NDArray[Any]) -> dict[str, Any]:
    """An output with the errors that a sum of 64 products may have."""
    wide = values.astype(np.float64)
    scales = [float(np.sqrt(np.mean(wide**2))), 4 * float(np.abs(wide).max())]
    rounding, sums = _ROUNDOFF[record["type"]], 4 * _ROUNDOFF["f32"]
    kinds = {"rounding": rounding, "sums": sums, "products": rounding}
    return record | {"errors": {kind: [unit * at for at in scales] for kind, unit in kinds.items()}}


def _directions(folder: Path, expected: NDArray[np.float64], roundoff: float) -> dict[str, Any]:
    """That of the only contraction is the result itself."""
    flat = expected.reshape(-1)
    usable = np.isfinite(flat).all() and flat.any()
    filters = (flat / np.dot(flat, flat) if usable else np.zeros_like(flat))[np.newaxis]
    kinds = (roundoff, 4 * _ROUNDOFF["f32"], roundoff)
    size = np.sqrt(np.mean(flat**2)) if usable else 1.0
    np.savez(
        folder / "main.directions.npz",
        outputs=np.zeros(flat.size, int),
        places=np.arange(flat.size),
        scales=np.ones(flat.size),
        filters=filters,
        flips=np.zeros((0, flat.size)),
        along=[unit * np.linalg.norm(filters * flat, axis=1) for unit in kinds],
        rest=[[unit * size] for unit in kinds],
    )
    return {"file": "main.directions.npz", "names": ["contraction 1 of 1 (mm)"], "contractions": 1}


def _build(plan: dict[str, Any], kind: str, programs: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {
        "schema": 1,
        "kind": kind,
        "model": plan["model"],
        "config": plan["config"],
        "samples": plan["microbatch"] or 2,
        "parameter_count": _WIDTH * _WIDTH,
        "programs": programs,
        "host": {"pre": False, "post": False},
        "host_inputs": [],
        "host_outputs": [],
        "generation": None,
        "training": None,
        "reference": [],
        "weight_error": None,
        "versions": _VERSIONS,
        "seconds": {"build": 0.0},
        **more,
    }


def _save(folder: Path, name: str, nodes: list[Any], inputs: list[Any], outputs: list[Any], weights: list[Any]) -> None:
    import onnx  # noqa: PLC0415 - the probe must not wait for it
    from onnx import helper, numpy_helper  # noqa: PLC0415

    initializers = [numpy_helper.from_array(values, label) for label, values in weights]
    graph = helper.make_graph(nodes, "main_graph", inputs, outputs, initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    # As torch does: onnxruntime wants the axes of a sum in the program itself.
    onnx.save(model, str(folder / name), save_as_external_data=True, location=f"{name}.data", size_threshold=1024)


def _line(plan: dict[str, Any], fault: str) -> dict[str, Any]:
    """y = max(x W, 0), 64 wide."""
    from onnx import TensorProto, helper  # noqa: PLC0415

    folder = Path(plan["output"])
    element_type, dtype = _DTYPES[plan["dataformat"]]
    onnx_type = TensorProto.FLOAT if element_type == "f32" else TensorProto.FLOAT16
    random = np.random.default_rng(7)
    exact = random.standard_normal((_WIDTH, _WIDTH)) / 8, random.standard_normal((plan["microbatch"] or 2, _WIDTH))
    weight, given = (values.astype(dtype) for values in exact)
    expected = np.maximum(given.astype(np.float64) @ weight.astype(np.float64), 0)
    if fault.startswith("one layer is "):
        # The program that is compiled is so much larger than it should be.
        expected /= float(fault.removeprefix("one layer is "))
    if fault == "wrong":
        expected[0, 3] += 1
    if fault in {"infinite", "zero"}:
        expected[:] = np.inf if fault == "infinite" else 0
    if fault == "zero":
        given[:] = 0
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Relu", ["p"], ["y"])]
    shapes = [helper.make_tensor_value_info(name, onnx_type, given.shape) for name in ("x", "y")]
    _save(folder, "main.onnx", nodes, shapes[:1], shapes[1:], [("w", weight)])
    program = {
        "name": "main",
        "onnx": "main.onnx",
        "inputs": [_array(folder, "main.input_0.npy", given, element_type)],
        "outputs": [_with_errors(_array(folder, "main.output_0.npy", expected.astype(dtype), element_type), expected)],
        "directions": _directions(folder, expected, _ROUNDOFF[element_type]),
    }
    reference = np.maximum(exact[1] @ exact[0], 0).astype(np.float32)
    references = [] if element_type == "f32" else [_array(folder, "reference_0.npy", reference, "f32")]
    return _build(plan, "pipeline", [program], reference=references)


def _generative(plan: dict[str, Any]) -> dict[str, Any]:
    """A model whose state is a fading sum of the embeddings of its tokens; a second one stays as the prompt left it."""
    from onnx import TensorProto, helper  # noqa: PLC0415

    folder = Path(plan["output"])
    random = np.random.default_rng(2)
    embedding = random.standard_normal((_VOCABULARY, _WIDTH)).astype(np.float32)
    head = random.standard_normal((_WIDTH, _VOCABULARY)).astype(np.float32)
    prompt, kept = np.array([[3, 1, 4]], np.int64), np.full((1, 1), 2, np.float32)
    half, where = np.array(0.5, np.float32), np.array([1], np.int64)

    def floats(name: str, width: int) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, width))

    def integers(name: str, *shape: int) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.INT64, shape)

    nodes = [
        helper.make_node("Gather", ["embedding", "prompt"], ["all"]),
        helper.make_node("ReduceSum", ["all", "where"], ["state"], keepdims=0),
        helper.make_node("MatMul", ["state", "head"], ["logits"]),
        helper.make_node("Identity", ["two"], ["kept"]),
    ]
    outputs = [floats("logits", _VOCABULARY), floats("state", _WIDTH), floats("kept", 1)]
    common = [("embedding", embedding), ("head", head), ("where", where)]
    _save(folder, "prefill.onnx", nodes, [integers("prompt", 1, 3)], outputs, [*common, ("two", kept)])
    nodes = [
        helper.make_node("Gather", ["embedding", "token"], ["one"]),
        helper.make_node("ReduceSum", ["one", "where"], ["flat"], keepdims=0),
        helper.make_node("Mul", ["state", "half"], ["faded"]),
        helper.make_node("Mul", ["faded", "kept"], ["more"]),
        helper.make_node("Cast", ["position"], ["place"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["flat", "place"], ["placed"]),
        helper.make_node("Add", ["more", "placed"], ["new"]),
        helper.make_node("MatMul", ["new", "head"], ["logits"]),
    ]
    inputs = [integers("token", 1, 1), integers("position", 1), floats("state", _WIDTH), floats("kept", 1)]
    outputs = [floats("logits", _VOCABULARY), floats("new", _WIDTH)]
    _save(folder, "decode.onnx", nodes, inputs, outputs, [*common, ("half", half)])
    state = embedding[prompt].sum(axis=1)
    logits = state @ head
    first, chosen = (logits, state, kept), [int(logits.argmax())]
    given = np.array([chosen], np.int64), np.array([_POSITION], np.int64), state, kept
    steps = []
    for position in range(_POSITION, _POSITION + _TOKENS - 1):
        state = state + embedding[chosen[-1]] * position
        steps.append((state @ head, state))
        chosen.append(int(steps[-1][0].argmax()))

    def arrays(name: str, found: Sequence[NDArray[Any]]) -> list[dict[str, Any]]:
        types = {np.dtype(np.int64): "i64", np.dtype(np.float32): "f32"}
        return [
            _with_errors(_array(folder, f"{name}_{n}.npy", values, types[values.dtype]), values)
            for n, values in enumerate(found)
        ]

    programs = [
        {
            "name": "prefill",
            "onnx": "prefill.onnx",
            "inputs": arrays("prefill.input", [prompt]),
            "outputs": arrays("prefill.output", first),
        },
        {
            "name": "decode",
            "onnx": "decode.onnx",
            "inputs": arrays("decode.input", given),
            "outputs": arrays("decode.output", steps[0]),
        },
    ]
    generation = {"position": _POSITION, "tokens": _TOKENS, "state": 2, "carried": 1, "chosen": [chosen]}
    return _build({**plan, "microbatch": 1}, "generative", programs, generation=generation)
