"""Stands in for a Python that has torch, which is too large for the tests: answers its probe, and builds models.

What it leaves is what `bench/build_model.py` leaves, made with onnx and NumPy. Faults come by the variable STAND_IN; a
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
    from numpy.typing import NDArray

__all__ = ["main", "stand_in"]

_WIDTH = 64
_VOCABULARY, _STATE, _TOKENS = 11, 16, 6
_TORCH = "0.0.torch"
_VERSIONS = {"torch": _TORCH, "onnxscript": "0.0", "onnx": "0.0", "numpy": np.__version__}
_DTYPES = {"Fp32": ("f32", np.float32), "Fp16": ("f16", np.float16)}


def stand_in(folder: Path) -> Path:
    """A program in a folder that is called as a Python is."""
    path = folder / "python-with-torch"
    # No PYTHONPATH of ours: whoever starts it may have set one.
    call = "from tests.support.fake_torch import main; sys.exit(main(sys.argv[1:]))"
    script = f"import sys; sys.path.insert(0, {str(ROOT)!r}); {call}"
    # Every command asks for versions first: the shell answers that at once.
    versions = json.dumps({"python": list(sys.version_info[:3]), "versions": _VERSIONS, "paths": []})
    told = shlex.quote(versions).replace(_TORCH, f"{_TORCH}'$STAND_IN'")
    path.write_text(
        f'#!/bin/sh\n[ "$1" = -c ] && printf "%s\\n" {told} && exit\n'
        f'exec {sys.executable} -c {shlex.quote(script)} "$@"\n'
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
        "contractions": 1,
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
    onnx.save(model, str(folder / name), save_as_external_data=True, location=f"{name}.data", size_threshold=0)


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
        "outputs": [_array(folder, "main.output_0.npy", expected.astype(dtype), element_type)],
    }
    reference = np.maximum(exact[1] @ exact[0], 0).astype(np.float32)
    references = [] if element_type == "f32" else [_array(folder, "reference_0.npy", reference, "f32")]
    return _build(plan, "pipeline", [program], reference=references)


def _generative(plan: dict[str, Any]) -> dict[str, Any]:
    """A tiny recurrent network: logits = state L, state' = tanh(state S + E[token]); the prompt is one token."""
    from onnx import TensorProto, helper  # noqa: PLC0415

    folder = Path(plan["output"])
    random = np.random.default_rng(3)
    tables = [("l", (_STATE, _VOCABULARY)), ("s", (_STATE, _STATE)), ("e", (_VOCABULARY, _STATE))]
    weights = [(name, random.standard_normal(shape).astype(np.float32)) for name, shape in tables]
    values = dict(weights)

    def step(token: NDArray[np.int64], state: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        new = np.tanh(state @ values["s"] + values["e"][token[:, 0]]).astype(np.float32)
        return (new @ values["l"]).astype(np.float32), new

    token_info = helper.make_tensor_value_info("token", TensorProto.INT64, (1, 1))
    position_info = helper.make_tensor_value_info("position", TensorProto.INT64, (1,))
    state_info = helper.make_tensor_value_info("state", TensorProto.FLOAT, (1, _STATE))
    outputs = [
        helper.make_tensor_value_info("logits", TensorProto.FLOAT, (1, _VOCABULARY)),
        helper.make_tensor_value_info("new", TensorProto.FLOAT, (1, _STATE)),
    ]
    common = [
        helper.make_node("Squeeze", ["token", "axis"], ["index"]),
        helper.make_node("Gather", ["e", "index"], ["embedded"]),
        helper.make_node("MatMul", ["state", "s"], ["carried"]),
        helper.make_node("Add", ["carried", "embedded"], ["sum"]),
        helper.make_node("Tanh", ["sum"], ["new"]),
        helper.make_node("MatMul", ["new", "l"], ["logits"]),
    ]
    axis = ("axis", np.array([1], np.int64))
    zeros = np.zeros((1, _STATE), np.float32)
    _save(folder, "prefill.onnx", common, [token_info], outputs, [*weights, axis, ("state", zeros)])
    # The position is an input that has no bearing on anything, but in the sum with nothing of it.
    idle = [
        helper.make_node("Cast", ["position"], ["place"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["place", "nought"], ["nothing"]),
        helper.make_node("Add", ["state", "nothing"], ["used"]),
    ]
    common[2] = helper.make_node("MatMul", ["used", "s"], ["carried"])
    inputs = [token_info, position_info, state_info]
    _save(
        folder, "decode.onnx", [*idle, *common], inputs, outputs, [*weights, axis, ("nought", np.zeros(1, np.float32))]
    )
    token, position = np.array([[4]], np.int64), np.array([1], np.int64)
    logits, state = step(token, zeros)
    chosen = [int(logits[0].argmax())]
    first, second = [logits, state], step(np.array([chosen], np.int64), state)
    for _ in range(_TOKENS - 1):
        logits, state = step(np.array([[chosen[-1]]], np.int64), state)
        chosen.append(int(logits[0].argmax()))
    programs = [
        {
            "name": "prefill",
            "onnx": "prefill.onnx",
            "inputs": [_array(folder, "prefill.input_0.npy", token, "i64")],
            "outputs": [_array(folder, f"prefill.output_{n}.npy", found, "f32") for n, found in enumerate(first)],
        },
        {
            "name": "decode",
            "onnx": "decode.onnx",
            "inputs": [
                _array(folder, "decode.input_0.npy", np.array([chosen[:1]], np.int64), "i64"),
                _array(folder, "decode.input_1.npy", position, "i64"),
                _array(folder, "decode.input_2.npy", first[1], "f32"),
            ],
            "outputs": [_array(folder, f"decode.output_{n}.npy", found, "f32") for n, found in enumerate(second)],
        },
    ]
    generation = {"position": 1, "tokens": _TOKENS, "state": 1, "carried": 1, "chosen": [chosen]}
    return _build({**plan, "microbatch": 1}, "generative", programs, generation=generation)
