"""A small suite of torch models: programs that compile in a second, and tests of every type."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.support.command_line import CommandResult, run_in_process
from tests.support.places import ROOT
from tests.support.pytest_here import run_pytest_here
from tests.support.warm_cache import fill_cache

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import Self

CPU = (
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-llvmcpu-target-cpu=host",
)
# The program computes y = x·w + x, with w a parameter.
PROGRAM = """
module @%(name)s {
  util.global private @w = #stream.parameter.named<"model"::"w"> : tensor<4x4xf32>
  func.func @main(%%x: tensor<2x4xf32>) -> tensor<2x4xf32> {
    %%w = util.global.load @w : tensor<4x4xf32>
    %%zero = arith.constant 0.0 : f32
    %%empty = tensor.empty() : tensor<2x4xf32>
    %%init = linalg.fill ins(%%zero : f32) outs(%%empty : tensor<2x4xf32>) -> tensor<2x4xf32>
    %%product = linalg.matmul ins(%%x, %%w : tensor<2x4xf32>, tensor<4x4xf32>)
        outs(%%init : tensor<2x4xf32>) -> tensor<2x4xf32>
    %%sum = arith.addf %%product, %%x : tensor<2x4xf32>
    return %%sum : tensor<2x4xf32>
  }
}
"""
# pytest loads the plugin of an installed toolkit by itself, and would reject a second registration.
_PLUGIN_ENTRY_POINTS = entry_points(group="pytest11", name="iree_gauntlet")
_PLUGIN_OPTIONS = ("-p", "no:cacheprovider", *(() if _PLUGIN_ENTRY_POINTS else ("-p", "iree_gauntlet.pytest_plugin")))
BENCHMARK = ("--device=local-task", "--function=main")
INPUT = np.arange(8, dtype=np.float32).reshape(2, 4)


@dataclass
class TorchProject:
    """A directory with `suite/` (tests and modules) and `files/` (external files)."""

    folder: Path
    suite_name: str = "suite"

    @classmethod
    def create_filled(cls, folder: Path) -> Self:
        """Create a project with a test of every type, whose program is in the cache."""
        project = cls(folder)
        project.fill()
        project.warm()
        return project

    @property
    def suite(self) -> Path:
        """The directory of tests."""
        return self.folder / self.suite_name

    def module(self, name: str = "toy/modules/add_cpu", **changes: Any) -> str:
        """Write a module definition and its program; return its name."""
        path = self.suite / f"{name}.json"
        program = f"{path.stem}.mlir"
        self.write(path, {"mlir": program, "compiler_flags": list(CPU), **changes})
        path.with_name(program).write_text(PROGRAM % {"name": path.stem.replace("-", "_")})
        return name

    def quality(self, name: str = "toy/add_quality_cpu", *, value: float = 0.5, **changes: Any) -> Path:
        """Write a quality test with splat weights, and its expected output."""
        expected_output = INPUT @ np.full((4, 4), value, np.float32) + INPUT
        files = self.folder / "files" / name.replace("/", "_")
        files.mkdir(parents=True, exist_ok=True)
        np.save(files / "x.npy", INPUT)
        np.save(files / "y.npy", expected_output)
        return self.test(
            name,
            type="quality",
            weights=[{"type": "splat", "module": "toy/modules/add_cpu", "value": value, "scope": "model"}],
            inputs=[{"url": f"{files.name}/x.npy"}],
            expected_outputs=[{"url": f"{files.name}/y.npy"}],
            run_args=["--device=local-task", "--function=main"],
            **changes,
        )

    def benchmark(self, name: str = "toy/add_benchmark_cpu", **changes: Any) -> Path:
        """Write a benchmark with random weights."""
        fields = {
            "weights": [{"type": "random", "module": "toy/modules/add_cpu", "seed": 1, "scope": "model"}],
            "inputs": [{"value": "2x4xf32=1"}],
            "run_args": [*BENCHMARK, "--benchmark_repetitions=2", "--benchmark_min_time=0.01s"],
        }
        return self.test(name, type="benchmark", **(fields | changes))

    def compstat(self, name: str = "toy/add_compstat_cpu", **changes: Any) -> Path:
        """Write a test of compile statistics."""
        return self.write(
            self.suite / f"{name}.json",
            {"type": "compstat", "markers": ["cpu"], "module": "toy/modules/add_cpu", **changes},
        )

    def test(self, name: str, **fields: Any) -> Path:
        """Write a test of modules."""
        return self.write(
            self.suite / f"{name}.json", {"markers": ["cpu"], "modules": ["toy/modules/add_cpu"], **fields}
        )

    def write(self, path: Path, document: object) -> Path:
        """Write a JSON file; return its path."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document, indent=2))
        return path

    def fill(self) -> None:
        """Write a test of every type for one program."""
        self.module()
        self.quality()
        self.benchmark()
        self.compstat(golden_dispatch_count=1)

    def warm(self, artifacts: Path | None = None, *, modules: bool = True) -> None:
        """Fill the cache with the tools' flags and the compiled program of `fill`, as an earlier session would.

        `artifacts`: the cache's directory, which does not exist yet; by default the directory of pytest's runs.
        """
        fill_cache(
            artifacts or self.folder / "artifacts", _fill_template_artifacts, modules=modules, name="torch-artifacts"
        )

    def options(self, *arguments: str) -> list[str]:
        """Return the plugin's options, as a user types them."""
        folders = ["--test-file-directory=./suite", "--module-directory=./suite", "--external-file-directory=./files"]
        return [*folders, *arguments]

    def pytest(self, *arguments: str, **environment: str) -> CommandResult:
        """Run pytest on the suite, in this process."""
        command = [*_PLUGIN_OPTIONS, *self.options(*arguments)]
        return run_pytest_here(command, self.folder, self.environment(**environment))

    def plain_pytest(self, arguments: Sequence[str], folder: Path | None = None) -> CommandResult:
        """Run pytest with only these arguments, by default in the project."""
        return run_pytest_here([*_PLUGIN_OPTIONS, *arguments], folder or self.folder, self.environment())

    def pytest_command(self, *arguments: str) -> list[str]:
        """Return the command line of a pytest in a process of its own."""
        return [sys.executable, "-m", "pytest", *_PLUGIN_OPTIONS, "-p", "no:randomly", *self.options(*arguments)]

    def pytest_process(self, *arguments: str) -> CommandResult:
        """Run pytest as `pytest` does, but in a process of its own, which may start further processes."""
        command = self.pytest_command(*arguments)
        result = subprocess.run(
            command, cwd=self.folder, capture_output=True, text=True, check=False, env=self.environment()
        )
        return CommandResult(result.returncode, result.stdout, result.stderr)

    def gauntlet(self, *arguments: str) -> CommandResult:
        """Run `gauntlet` on the suite, with the artifacts of pytest's runs as its cache."""
        folders = ["--spec-dir=suite", "--module-directory=suite", "--external-file-directory=files"]
        return run_in_process([*arguments, *folders, "--cache-dir=artifacts"], self.folder, self.environment())

    @staticmethod
    def environment(**changes: str) -> dict[str, str]:
        """Return the environment of a process that finds the toolkit, without options of the outer pytest."""
        pytest_variables = ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER", "PYTEST_CURRENT_TEST", "COV_CORE_SOURCE")
        variables = {name: value for name, value in os.environ.items() if name not in pytest_variables}
        return variables | {"PYTHONPATH": str(ROOT), "NO_COLOR": "1", **changes}

    def journal(self, name: str = "journal.jsonl") -> list[dict[str, Any]]:
        """Read the events of the newest session."""
        newest = max((self.folder / "artifacts" / "runs").iterdir())
        return [json.loads(line) for line in (newest / name).read_text().splitlines()]

    def summary(self) -> dict[str, Any]:
        """Read the job summary in the working directory."""
        summary: dict[str, Any] = json.loads((self.folder / "job_summary.json").read_text())
        return summary


def _fill_template_artifacts(artifacts: Path) -> None:
    project = TorchProject(artifacts.with_name("torch-project"))
    project.fill()
    result = project.pytest("-q", "-k", "compstat", f"--artifact-directory={artifacts}")
    assert result.code == 0, result.text
