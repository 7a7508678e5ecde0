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

from tests.support.places import ROOT

if TYPE_CHECKING:
    from pathlib import Path

CPU = (
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-llvmcpu-target-cpu=host",
)
# y = x·w + x, with w a parameter.
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
# Where the toolkit is installed, pytest finds the plugin by itself, and would not take it twice.
INSTALLED = entry_points(group="pytest11", name="iree_gauntlet")
PYTEST = (sys.executable, "-m", "pytest", *(() if INSTALLED else ("-p", "iree_gauntlet.pytest_plugin")))
X = np.arange(8, dtype=np.float32).reshape(2, 4)


@dataclass
class TorchProject:
    """A folder with `suite/` (tests and modules) and `files/` (external files).

    Attributes:
        folder: where everything is, and where commands run.
        suite_name: name of the folder of tests.
    """

    folder: Path
    suite_name: str = "suite"

    @property
    def suite(self) -> Path:
        """The folder of tests."""
        return self.folder / self.suite_name

    def module(self, name: str = "toy/modules/add_cpu", **changes: Any) -> str:
        """A module definition and its program; its name."""
        path = self.suite / f"{name}.json"
        program = f"{path.stem}.mlir"
        self.write(path, {"mlir": program, "compiler_flags": list(CPU), **changes})
        path.with_name(program).write_text(PROGRAM % {"name": path.stem.replace("-", "_")})
        return name

    def quality(self, name: str = "toy/add_quality_cpu", *, value: float = 0.5, **changes: Any) -> Path:
        """A quality test with splat weights, and its expected output."""
        expected = X @ np.full((4, 4), value, np.float32) + X
        files = self.folder / "files" / name.replace("/", "_")
        files.mkdir(parents=True, exist_ok=True)
        np.save(files / "x.npy", X)
        np.save(files / "y.npy", expected)
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
        """A benchmark with random weights."""
        fields = {
            "weights": [{"type": "random", "module": "toy/modules/add_cpu", "seed": 1, "scope": "model"}],
            "inputs": [{"value": "2x4xf32=1"}],
            "run_args": ["--device=local-task", "--function=main", "--benchmark_repetitions=2"],
        }
        return self.test(name, type="benchmark", **(fields | changes))

    def compstat(self, name: str = "toy/add_compstat_cpu", **changes: Any) -> Path:
        """A test of compile statistics."""
        return self.write(
            self.suite / f"{name}.json",
            {"type": "compstat", "markers": ["cpu"], "module": "toy/modules/add_cpu", **changes},
        )

    def test(self, name: str, **fields: Any) -> Path:
        """A test of modules."""
        return self.write(
            self.suite / f"{name}.json", {"markers": ["cpu"], "modules": ["toy/modules/add_cpu"], **fields}
        )

    def write(self, path: Path, document: object) -> Path:
        """A JSON file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document, indent=2))
        return path

    def pytest_command(self, *arguments: str) -> list[str]:
        """The plugin's command line, as a person types it."""
        return [
            *(*PYTEST, "-p", "no:cacheprovider"),
            *("--test-file-directory=./suite", "--module-directory=./suite", "--external-file-directory=./files"),
            *arguments,
        ]

    def pytest(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Runs pytest on the suite."""
        return self._run(self.pytest_command(*arguments), environment)

    def gauntlet(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs the toolkit's own command on the suite, with the artifacts of pytest's runs as its cache."""
        code = "from iree_gauntlet.tasks.program import main; main()"
        folders = ["--spec-dir=suite", "--module-directory=suite", "--external-file-directory=files"]
        return self._run([sys.executable, "-c", code, *arguments, *folders, "--cache-dir=artifacts"], {})

    def _run(self, command: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=self.folder, capture_output=True, text=True, check=False, env=self.environment(**environment)
        )

    @staticmethod
    def environment(**changes: str) -> dict[str, str]:
        """Of a process that finds the toolkit, and no plugins but those that it is given."""
        dropped = ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER", "PYTEST_CURRENT_TEST", "COV_CORE_SOURCE")
        kept = {name: value for name, value in os.environ.items() if name not in dropped}
        return kept | {"PYTHONPATH": str(ROOT), "NO_COLOR": "1", **changes}

    def journal(self, name: str = "journal.jsonl") -> list[dict[str, Any]]:
        """The events of the newest session."""
        newest = max((self.folder / "artifacts" / "runs").iterdir())
        return [json.loads(line) for line in (newest / name).read_text().splitlines()]

    def summary(self) -> dict[str, Any]:
        """The job summary in the working folder."""
        found: dict[str, Any] = json.loads((self.folder / "job_summary.json").read_text())
        return found
