"""A tiny project in a temporary directory, in which commands run as a user runs them."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from iree_gauntlet.artifacts.seeded import parse_seeded
from iree_gauntlet.journal_events import ExperimentKind
from iree_gauntlet.journal_format import JournalRecord, read_journal
from iree_gauntlet.records.run_folder import list_folders
from iree_gauntlet.toolchains.installed import find_installed
from tests.support.command_line import (
    MAIN,
    CommandResult,
    gauntlet_argv,
    run_in_process,
    run_in_subprocess,
    run_program,
)
from tests.support.hanging import HANG
from tests.support.places import ROOT
from tests.support.warm_cache import fill_cache

__all__ = ["FLAGS", "INPUT", "TOOLS", "Project"]

INPUT = "random://uniform/4xf32?seed=1&low=-1&high=1"
FLAGS = [
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-llvmcpu-target-cpu=host",
]
# The toolchain fields of the tools, by the stages that start a process.
TOOLS = {"import": "python", "compile": "compile", "threshold": "run_module", "benchmark": "benchmark_module"}


class Project:
    """A project with one model, `toy/abs`: four numbers in, their absolute values out."""

    def __init__(self, folder: Path, *, cache: str = "warm") -> None:
        """Create the project.

        `cache`: `warm`: with the tools' flags and the module of `abs`; `flags`: without the module; or `empty`.
        """
        self.folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self.regressions = folder / "specs" / "regression_tests" / "toy"
        self.benchmarks = folder / "specs" / "benchmarks" / "toy"
        self._write_model()
        if cache != "empty":
            fill_cache(folder / "cache", _fill_template_cache, modules=cache == "warm")

    def reset(self) -> None:
        """Remove all files but the cache, and write the model again: for tests that share their modules."""
        for path in self.folder.iterdir():
            if path.is_dir() and path.name != "cache":
                shutil.rmtree(path)
            elif path.name != "cache":
                path.unlink()
        self._write_model()

    def _write_model(self) -> None:
        for path in (self.regressions, self.benchmarks, self.folder / "suites"):
            path.mkdir(parents=True)
        self.add("abs")

    def forget_modules(self) -> None:
        """Remove the modules of the cache."""
        shutil.rmtree(self.folder / "cache" / "modules", ignore_errors=True)

    def add(self, name: str, operation: str = "math.absf %a : tensor<4xf32>") -> None:
        """Add a submodel with a regression and a benchmark spec."""
        function_body = f"%0 = {operation}\n  return %0 : tensor<4xf32>"
        program = f"func.func @{name}(%a: tensor<4xf32>) -> tensor<4xf32> {{\n  {function_body}\n}}\n"
        (self.regressions / f"{name}.mlir").write_text(program)
        np.save(self.regressions / f"{name}.npy", np.abs(parse_seeded(INPUT).generate()))
        self.regression(name)
        self.benchmark(name)

    def regression(self, name: str = "abs", **changes: Any) -> None:
        spec = {
            "mlir": f"{name}.mlir",
            "device": "local-task",
            "inputs": [{"source": INPUT}],
            "outputs": [{"source": f"{name}.npy"}],
            "compiler_flags": FLAGS,
            "run_function": name,
        }
        self._write(self.regressions / f"{name}_cpu.json", spec | changes)

    def benchmark(self, name: str = "abs", **changes: Any) -> None:
        spec = {
            "inputs": ["4xf32"],
            "function_run": name,
            "device": "local-task",
            "benchmark_flags": ["--benchmark_repetitions=3", "--benchmark_min_time=0.01s"],
        }
        self._write(self.benchmarks / f"{name}_cpu.json", spec | changes)

    def suite(self, text: str) -> None:
        (self.folder / "suites" / "s.toml").write_text(f'name = "s"\ntarget = "cpu"\n{text}')

    def write_expected(self, name: str, values: list[float]) -> None:
        np.save(self.regressions / f"{name}.npy", np.array(values, np.float32))

    def gauntlet(self, *arguments: str, **toolchain: str) -> CommandResult:
        """Run a command in this process; `toolchain` replaces fields of the installed toolchain."""
        return run_in_process(arguments, self.folder, self.environment(), toolchain)

    def gauntlet_process(self, *arguments: str, **toolchain: str) -> CommandResult:
        """Run a command as `gauntlet` does, but in a process of its own."""
        return run_in_subprocess(arguments, self.folder, self.environment(), toolchain)

    def shell(self, line: str, cwd: Path | None = None) -> CommandResult:
        """Run a line of bash in which `gauntlet` is the command."""
        gauntlet_function = f"gauntlet() {{ {shlex.quote(sys.executable)} -c '{MAIN}' \"$@\"; }}"
        argv = ["bash", "-o", "pipefail", "-c", f"{gauntlet_function}; {line}"]
        return run_program(argv, cwd or self.folder, {**self.environment(), "PYTHONPATH": str(ROOT)})

    def start(self, *arguments: str, output: Any = subprocess.DEVNULL, **toolchain: str) -> subprocess.Popen[bytes]:
        """Start a command in a process of its own, without waiting for it; `output` is its stdout."""
        process = subprocess.Popen(
            gauntlet_argv(arguments, toolchain),
            cwd=self.folder,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.DEVNULL,
        )
        self._processes.append(process)
        return process

    def close(self) -> None:
        """Kill all processes of `start`."""
        for process in self._processes:
            process.kill()
            process.wait()

    def environment(self) -> dict[str, str]:
        return {**os.environ, "IREE_GAUNTLET_CACHE": str(self.folder / "cache"), "NO_COLOR": "1"}

    @property
    def newest(self) -> Path:
        """The directory of the run that was written to last."""
        return next(list_folders(self.folder / "runs", *(kind for kind in ExperimentKind if kind.is_run), None))

    @property
    def journal(self) -> JournalRecord:
        return read_journal(self.newest / "journal.jsonl")

    def verdict(self, step: str) -> str:
        return str(self.journal.results[step].verdict)

    def result(self, step: str) -> dict[str, Any]:
        """Return a step's last result, as the journal has it."""
        return self.journal.results[step].as_dict()

    def write_tool(self, script: str) -> str:
        """Write a shell script to replace one of IREE's tools; return its path."""
        path = self.folder / "tool.sh"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return str(path)

    def write_logging_tools(self, slow_stage: str = "") -> dict[str, str]:
        """Write wrappers of the real tools; each first logs its stage in `calls`; that of `slow_stage` then hangs."""
        iree = find_installed()
        tools = {}
        for stage, name in TOOLS.items():
            path = self.folder / f"{stage}.sh"
            # The shell stays as the parent, so that `find_processes` finds the project's directory in its command line.
            hang_line = f"({HANG})\n" if stage == slow_stage else ""
            real_tool = shlex.quote(getattr(iree.compiler if hasattr(iree.compiler, name) else iree.runtime, name))
            path.write_text(
                f'#!/bin/sh\necho {stage} >> {shlex.quote(str(self._call_log))}\n{hang_line}exec {real_tool} "$@"\n'
            )
            path.chmod(0o755)
            tools[name] = str(path)
        return tools

    @property
    def _call_log(self) -> Path:
        return self.folder / "calls.txt"

    @property
    def calls(self) -> list[str]:
        """The stages whose tools were started, in the order of their starts."""
        return self._call_log.read_text().split() if self._call_log.exists() else []

    @staticmethod
    def _write(path: Path, spec: dict[str, Any]) -> None:
        path.write_text(json.dumps(spec, indent=2))


def _fill_template_cache(cache: Path) -> None:
    # Each attempt has a directory of its own: a retry must not find the files of a failed attempt.
    project = Project(Path(tempfile.mkdtemp(prefix="toy-project-", dir=cache.parent)), cache="empty")
    result = run_in_process(["compile", "--cache-dir", str(cache)], project.folder, project.environment())
    assert result.code == 0, result.text
