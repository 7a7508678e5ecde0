"""Variants built by the script as the toolkit starts it, and run by the real compiler and runtime."""

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
class Built:
    """A build folder, and what is made of it."""

    folder: Path

    @property
    def record(self) -> dict[str, Any]:
        read_build(self.folder)
        found: dict[str, Any] = json.loads((self.folder / "build.json").read_text(encoding="utf-8"))
        return found

    @property
    def program(self) -> Path:
        return self.folder / "iree" / "program.mlir"

    def module(self, flags: Sequence[str]) -> Path:
        return self.folder / "iree" / f"module{''.join(flags).replace('=', '-')}.vmfb"

    def outputs(self) -> list[NDArray[Any]]:
        return [read(self.folder, item) for item in self.record["programs"][0]["outputs"]]

    def reference(self) -> list[NDArray[Any]]:
        return [read(self.folder, item) for item in self.record["reference"]] or self.outputs()

    def compiled(self, flags: Sequence[str] = ()) -> Path:
        """Import and compile it."""
        module = self.module(flags)
        self.program.parent.mkdir(exist_ok=True)
        if not self.program.exists():
            parameters = self.program.with_name("model.irpa")
            words = ["--externalize-params", "--save-params-to", str(parameters), "-o", str(self.program)]
            importer = [sys.executable, "-m", "iree.compiler.tools.import_onnx"]
            check([*importer, str(self.folder / "main.onnx"), *words])
        # The native one: its wrapper takes longer to start than this takes to compile.
        import iree.compiler  # noqa: PLC0415 - not for those who build alone

        native = Path(iree.compiler.__path__[0]) / "_mlir_libs" / "iree-compile"
        check([str(native), str(self.program), "-o", str(module), *FLAGS, *flags])
        return module

    def run(self, flags: Sequence[str] = (), calls: int = 1) -> tuple[list[NDArray[Any]], float]:
        """Compile and run it: the outputs, and the median call in ms."""
        module = self.compiled(flags)
        inputs = self.record["programs"][0]["inputs"]
        given = [{"file": str(self.folder / item["file"]), "type": item["type"]} for item in inputs]
        plan = {
            "modules": [str(module)],
            "parameters": [["model", str(self.program.with_name("model.irpa"))]],
            "function": "main_graph",
            "devices": ["local-task"],
            "inputs": given,
            "outputs": str(self.program.parent),
            "calls": calls,
            "warm_up_calls": 1,
        }
        path = self.program.with_name("plan.json")
        path.write_text(json.dumps(plan), encoding="utf-8")
        script = Path(iree_side.__file__).with_name("measure_module.py")
        done = check([sys.executable, str(script), str(path)])
        answer = json.loads(done.stdout.splitlines()[-1])
        found = [read(self.program.parent, item) for item in answer["outputs"]]
        return found, float(np.median(answer["call_ms"][0]))


def plan_of(
    folder: Path, model_type: str = "linear", m: int = 4, k: int = 64, n: int = 32, **given: Any
) -> VariantPlan:
    return VariantPlan(model_type=model_type, m=m, k=k, n=n, **{"output": str(folder), **given})


def run_builder(plan: VariantPlan) -> subprocess.CompletedProcess[str]:
    folder = Path(plan.output)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "plan.json").write_text(plan.to_json(), encoding="utf-8")
    # From another folder, as an environment in which the toolkit is not installed.
    return subprocess.run(
        [*make_torch_argv(sys.executable, "building_variant"), str(folder / "plan.json")],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )


def built(folder: Path, model_type: str = "linear", m: int = 4, k: int = 64, n: int = 32, **given: Any) -> Built:
    """Build it by the script."""
    plan = plan_of(folder, model_type, m, k, n, **given)
    done = run_builder(plan)
    assert done.returncode == 0, done.stderr
    assert not done.stdout
    return Built(folder)


def built_here(folder: Path, plan: VariantPlan) -> Built:
    """Build it in this process, which has torch loaded once."""
    from iree_gauntlet.torch_models.torch_side.building_variant import build  # noqa: PLC0415 - it imports torch

    build(replace(plan, output=str(folder)))
    return Built(folder)


def errors(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in done.stderr.splitlines() if line.startswith("error: ")]


def check(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr[-3000:]}"
    return done


def read(folder: Path, item: dict[str, Any]) -> NDArray[Any]:
    """An array of a build folder or of the worker, floats in f64."""
    found: NDArray[Any] = np.load(folder / item["file"], allow_pickle=False)
    if item["type"] == "bf16":
        found = (found.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return found.astype(np.float64)


def distance(actual: Sequence[NDArray[Any]], expected: Sequence[NDArray[Any]]) -> float:
    """Relative root mean square of the differences."""
    noise = sum(float(np.square(one - two).sum()) for one, two in zip(actual, expected, strict=True))
    return float(np.sqrt(noise / sum(float(np.square(two).sum()) for two in expected)))
