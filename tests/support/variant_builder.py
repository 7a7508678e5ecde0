"""Builds variants with the real script, and runs them with the real compiler and runtime."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from iree_gauntlet.torch_models.build_files import VariantPlan, read_build
from iree_gauntlet.torch_models.torch_chain import make_torch_argv
from iree_gauntlet.workers import iree_side
from tests.support.command_line import LIMIT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

FLAGS = (
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-llvmcpu-target-cpu=host",
)


@dataclass(frozen=True)
class VariantBuild:
    """A build directory, and its compiled modules."""

    folder: Path

    @property
    def record(self) -> dict[str, Any]:
        read_build(self.folder)
        record: dict[str, Any] = json.loads((self.folder / "build.json").read_text(encoding="utf-8"))
        return record

    @property
    def program(self) -> Path:
        return self.folder / "iree" / "program.mlir"

    def module(self, flags: Sequence[str]) -> Path:
        return self.folder / "iree" / f"module{''.join(flags).replace('=', '-')}.vmfb"

    def outputs(self) -> list[NDArray[Any]]:
        return [read_array(self.folder, array_fields) for array_fields in self.record["programs"][0]["outputs"]]

    def reference(self) -> list[NDArray[Any]]:
        return [read_array(self.folder, array_fields) for array_fields in self.record["reference"]] or self.outputs()

    def compile_module(self, flags: Sequence[str] = ()) -> Path:
        """Import and compile the program; return the path of the module."""
        module = self.module(flags)
        self.program.parent.mkdir(exist_ok=True)
        if not self.program.exists():
            parameter_file = self.program.with_name("model.irpa")
            import_options = ["--externalize-params", "--save-params-to", str(parameter_file), "-o", str(self.program)]
            importer = [sys.executable, "-m", "iree.compiler.tools.import_onnx"]
            run_checked([*importer, str(self.folder / "main.onnx"), *import_options])
        # The native compiler is called, since its Python wrapper takes longer to start than the compile takes.
        import iree.compiler  # noqa: PLC0415 - building alone needs no compiler

        compiler_path = Path(iree.compiler.__path__[0]) / "_mlir_libs" / "iree-compile"
        run_checked([str(compiler_path), str(self.program), "-o", str(module), *FLAGS, *flags])
        return module

    def run(self, flags: Sequence[str] = (), calls: int = 1) -> tuple[list[NDArray[Any]], float]:
        """Compile and run the program; return the outputs, and the median call time in ms."""
        module = self.compile_module(flags)
        inputs = self.record["programs"][0]["inputs"]
        plan_inputs = [
            {"file": str(self.folder / array_fields["file"]), "type": array_fields["type"]} for array_fields in inputs
        ]
        plan = {
            "modules": [str(module)],
            "parameters": [["model", str(self.program.with_name("model.irpa"))]],
            "function": "main_graph",
            "devices": ["local-task"],
            "inputs": plan_inputs,
            "outputs": str(self.program.parent),
            "calls": calls,
            "warm_up_calls": 1,
        }
        plan_path = self.program.with_name("plan.json")
        plan_path.write_text(json.dumps(plan), encoding="utf-8")
        script = Path(iree_side.__file__).with_name("measure_module.py")
        result = run_checked([sys.executable, str(script), str(plan_path)])
        response = json.loads(result.stdout.splitlines()[-1])
        outputs = [read_array(self.program.parent, array_fields) for array_fields in response["outputs"]]
        return outputs, float(np.median(response["call_ms"][0]))


def make_plan(
    folder: Path, model_type: str = "linear", m: int = 4, k: int = 64, n: int = 32, **options: Any
) -> VariantPlan:
    return VariantPlan(model_type=model_type, m=m, k=k, n=n, **{"output": str(folder), **options})


def run_builder(plan: VariantPlan) -> subprocess.CompletedProcess[str]:
    folder = Path(plan.output)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "plan.json").write_text(plan.to_json(), encoding="utf-8")
    # The working directory and environment are those of a Python without the toolkit.
    return subprocess.run(
        [*make_torch_argv(sys.executable, "building_variant"), str(folder / "plan.json")],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )


def build_variant(
    folder: Path, model_type: str = "linear", m: int = 4, k: int = 64, n: int = 32, **options: Any
) -> VariantBuild:
    """Build a variant with the script, in a process of its own."""
    plan = make_plan(folder, model_type, m, k, n, **options)
    result = run_builder(plan)
    assert result.returncode == 0, result.stderr
    assert not result.stdout
    return VariantBuild(folder)


def build_variant_in_process(folder: Path, plan: VariantPlan) -> VariantBuild:
    """Build a variant in this process, which loads torch once."""
    from iree_gauntlet.torch_models.torch_side.building_variant import build  # noqa: PLC0415 - it imports torch

    build(replace(plan, output=str(folder)))
    return VariantBuild(folder)


def list_errors(result: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in result.stderr.splitlines() if line.startswith("error: ")]


def run_checked(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    result = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False)
    assert result.returncode == 0, f"{' '.join(command)}\n{result.stderr[-3000:]}"
    return result


def read_array(folder: Path, array_fields: dict[str, Any]) -> NDArray[Any]:
    """Read an array of a build directory or of the worker, with floats in f64."""
    array: NDArray[Any] = np.load(folder / array_fields["file"], allow_pickle=False)
    if array_fields["type"] == "bf16":
        array = (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float64)


def compute_distance(outputs: Sequence[NDArray[Any]], references: Sequence[NDArray[Any]]) -> float:
    """Compute the relative root mean square of the differences."""
    error = sum(float(np.square(a - b).sum()) for a, b in zip(outputs, references, strict=True))
    return float(np.sqrt(error / sum(float(np.square(b).sum()) for b in references)))
