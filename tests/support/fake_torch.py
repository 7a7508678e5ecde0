"""A fake Python with torch, since the real torch is too large for the tests: it answers the probe, and builds models.

The fake writes the files of `building.py` with onnx and NumPy. The variable STAND_IN plants a fault. Its value is also
part of the version of torch, so that the cache separates the builds.
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

from tests.support.fake_torch_variants import build_linear_variant
from tests.support.places import ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["main", "write_fake_python"]

_WIDTH = 64
_VOCABULARY_SIZE, _TOKEN_COUNT, _FIRST_POSITION = 50, 6, 3
_TORCH = "0.0.torch"
_VERSIONS = {"torch": _TORCH, "onnxscript": "0.0", "onnx": "0.0", "numpy": np.__version__}
_DTYPES = {"Fp32": ("f32", np.float32), "Fp16": ("f16", np.float16)}
_ROUNDOFF = {"f32": 2.0**-24, "f16": 2.0**-11, "i64": 0.0}


def write_fake_python(folder: Path) -> Path:
    """Write a program that is called like a Python; return its path."""
    path = folder / "python-with-torch"
    # The script extends sys.path, as the caller may have set PYTHONPATH.
    main_call = "from tests.support.fake_torch import main; sys.exit(main(sys.argv[1:]))"
    script = f"import sys; sys.path.insert(0, {str(ROOT)!r}); {main_call}"
    # Every command queries the versions first, so the shell itself answers this query, which is fast.
    versions = json.dumps({"python": ".".join(map(str, sys.version_info[:3])), "versions": _VERSIONS, "paths": []})
    output = shlex.quote(versions).replace(_TORCH, f"{_TORCH}'\"$STAND_IN\"'")
    path.write_text(
        f'#!/bin/sh\n[ "$1" = -c ] && printf "%s\\n" {output} && exit\n'
        f'exec {shlex.quote(sys.executable)} -c {shlex.quote(script)} "$@"\n'
    )
    path.chmod(0o755)
    return path


def main(arguments: list[str]) -> int:
    """Build a model; the plan is the last argument."""
    fault = os.environ.get("STAND_IN", "")
    plan = json.loads(Path(arguments[-1]).read_text())
    build_log = Path(plan["output"]).parents[5] / "builds.txt"
    with build_log.open("a") as log_file:
        log_file.write(f"{plan.get('model') or plan['quantization']}\n")
    if fault == "usage":
        sys.stderr.write("error: models/line.py:3: line: nothing is right here\n")
        return 2
    if fault == "hangs once" and len(build_log.read_text().split()) == 1:
        signal.pause()
    if fault == "ends":
        return 0
    if "quantization" in plan:
        build = build_linear_variant(plan, fault)
    else:
        build = _build_generative(plan) if plan["model"] == "counter" else _build_line(plan, fault)
    (Path(plan["output"]) / "build.json").write_text(json.dumps(build))
    return 0


def _save_array(folder: Path, file: str, values: NDArray[Any], element_type: str) -> dict[str, Any]:
    np.save(folder / file, values)
    return {"file": file, "type": element_type, "shape": list(values.shape)}


def _add_errors(record: dict[str, Any], values: NDArray[Any]) -> dict[str, Any]:
    """Return an output with the errors that a sum of 64 products may have."""
    values_f64 = values.astype(np.float64)
    scales = [float(np.sqrt(np.mean(values_f64**2))), 4 * float(np.abs(values_f64).max())]
    rounding, sums = _ROUNDOFF[record["type"]], 4 * _ROUNDOFF["f32"]
    error_units = {"rounding": rounding, "sums": sums, "products": rounding}
    return record | {"errors": {kind: [unit * scale for scale in scales] for kind, unit in error_units.items()}}


def _write_directions(folder: Path, output: NDArray[np.float64], roundoff: float) -> dict[str, Any]:
    """Write the error directions; the direction of the only contraction is the result itself."""
    values = output.reshape(-1)
    is_usable = np.isfinite(values).all() and values.any()
    filters = (values / np.dot(values, values) if is_usable else np.zeros_like(values))[np.newaxis]
    error_units = (roundoff, 4 * _ROUNDOFF["f32"], roundoff)
    rms = np.sqrt(np.mean(values**2)) if is_usable else 1.0
    np.savez(
        folder / "main.directions.npz",
        outputs=np.zeros(values.size, int),
        places=np.arange(values.size),
        scales=np.ones(values.size),
        filters=filters,
        flips=np.zeros((0, values.size)),
        along=[unit * np.linalg.norm(filters * values, axis=1) for unit in error_units],
        rest=[[unit * rms] for unit in error_units],
    )
    return {"file": "main.directions.npz", "names": ["contraction 1 of 1 (mm)"], "contractions": 1}


def _make_build(plan: dict[str, Any], kind: str, programs: list[dict[str, Any]], **extra_fields: Any) -> dict[str, Any]:
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
        **extra_fields,
    }


def _save_model(
    folder: Path, name: str, nodes: list[Any], inputs: list[Any], outputs: list[Any], weights: list[Any]
) -> None:
    import onnx  # noqa: PLC0415 - the probe must not wait for it
    from onnx import helper, numpy_helper  # noqa: PLC0415

    initializers = [numpy_helper.from_array(values, label) for label, values in weights]
    graph = helper.make_graph(nodes, "main_graph", inputs, outputs, initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    # The threshold is torch's. Smaller arrays stay in the program, where onnxruntime needs the axes of a sum.
    onnx.save(model, str(folder / name), save_as_external_data=True, location=f"{name}.data", size_threshold=1024)


def _build_line(plan: dict[str, Any], fault: str) -> dict[str, Any]:
    """Build y = max(x W, 0), 64 wide."""
    from onnx import TensorProto, helper  # noqa: PLC0415

    folder = Path(plan["output"])
    element_type, dtype = _DTYPES[plan["dataformat"]]
    onnx_type = TensorProto.FLOAT if element_type == "f32" else TensorProto.FLOAT16
    rng = np.random.default_rng(7)
    exact_values = rng.standard_normal((_WIDTH, _WIDTH)) / 8, rng.standard_normal((plan["microbatch"] or 2, _WIDTH))
    weight, inputs = (values.astype(dtype) for values in exact_values)
    expected_values = np.maximum(inputs.astype(np.float64) @ weight.astype(np.float64), 0)
    if fault.startswith("one layer is "):
        # The compiled program's output is larger than the expected one by this factor.
        expected_values /= float(fault.removeprefix("one layer is "))
    if fault == "wrong":
        expected_values[0, 3] += 1
    if fault in {"infinite", "zero"}:
        expected_values[:] = np.inf if fault == "infinite" else 0
    if fault == "zero":
        inputs[:] = 0
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Relu", ["p"], ["y"])]
    value_infos = [helper.make_tensor_value_info(name, onnx_type, inputs.shape) for name in ("x", "y")]
    _save_model(folder, "main.onnx", nodes, value_infos[:1], value_infos[1:], [("w", weight)])
    program = {
        "name": "main",
        "onnx": "main.onnx",
        "inputs": [_save_array(folder, "main.input_0.npy", inputs, element_type)],
        "outputs": [
            _add_errors(
                _save_array(folder, "main.output_0.npy", expected_values.astype(dtype), element_type), expected_values
            )
        ],
        "directions": _write_directions(folder, expected_values, _ROUNDOFF[element_type]),
    }
    reference = np.maximum(exact_values[1] @ exact_values[0], 0).astype(np.float32)
    references = [] if element_type == "f32" else [_save_array(folder, "reference_0.npy", reference, "f32")]
    return _make_build(plan, "pipeline", [program], reference=references)


def _build_generative(plan: dict[str, Any]) -> dict[str, Any]:
    """Build a model whose state is a fading sum of token embeddings; a second state is constant after the prompt."""
    from onnx import TensorProto, helper  # noqa: PLC0415

    folder = Path(plan["output"])
    rng = np.random.default_rng(2)
    embedding = rng.standard_normal((_VOCABULARY_SIZE, _WIDTH)).astype(np.float32)
    head = rng.standard_normal((_WIDTH, _VOCABULARY_SIZE)).astype(np.float32)
    prompt, second_state = np.array([[3, 1, 4]], np.int64), np.full((1, 1), 2, np.float32)
    half, sum_axes = np.array(0.5, np.float32), np.array([1], np.int64)

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
    outputs = [floats("logits", _VOCABULARY_SIZE), floats("state", _WIDTH), floats("kept", 1)]
    common_weights = [("embedding", embedding), ("head", head), ("where", sum_axes)]
    _save_model(
        folder, "prefill.onnx", nodes, [integers("prompt", 1, 3)], outputs, [*common_weights, ("two", second_state)]
    )
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
    outputs = [floats("logits", _VOCABULARY_SIZE), floats("new", _WIDTH)]
    _save_model(folder, "decode.onnx", nodes, inputs, outputs, [*common_weights, ("half", half)])
    state = embedding[prompt].sum(axis=1)
    logits = state @ head
    prefill_outputs, token_ids = (logits, state, second_state), [int(logits.argmax())]
    decode_inputs = np.array([token_ids], np.int64), np.array([_FIRST_POSITION], np.int64), state, second_state
    decode_outputs = []
    for position in range(_FIRST_POSITION, _FIRST_POSITION + _TOKEN_COUNT - 1):
        state = state + embedding[token_ids[-1]] * position
        decode_outputs.append((state @ head, state))
        token_ids.append(int(decode_outputs[-1][0].argmax()))

    def arrays(name: str, outputs: Sequence[NDArray[Any]]) -> list[dict[str, Any]]:
        types = {np.dtype(np.int64): "i64", np.dtype(np.float32): "f32"}
        return [
            _add_errors(_save_array(folder, f"{name}_{n}.npy", values, types[values.dtype]), values)
            for n, values in enumerate(outputs)
        ]

    programs = [
        {
            "name": "prefill",
            "onnx": "prefill.onnx",
            "inputs": arrays("prefill.input", [prompt]),
            "outputs": arrays("prefill.output", prefill_outputs),
        },
        {
            "name": "decode",
            "onnx": "decode.onnx",
            "inputs": arrays("decode.input", decode_inputs),
            "outputs": arrays("decode.output", decode_outputs[0]),
        },
    ]
    generation = {"position": _FIRST_POSITION, "tokens": _TOKEN_COUNT, "state": 2, "carried": 1, "chosen": [token_ids]}
    return _make_build({**plan, "microbatch": 1}, "generative", programs, generation=generation)
