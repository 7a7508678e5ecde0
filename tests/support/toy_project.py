"""A tiny project in a temporary folder, and commands run in it as a user runs them."""

from __future__ import annotations

import json
import os
import shlex
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
from tests.support.command_line import MAIN, Done, gauntlet_argv, run_here, run_in_process, run_program
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
# The tool of each stage that has a process, as a toolchain names it.
TOOLS = {"import": "python", "compile": "compile", "threshold": "run_module", "benchmark": "benchmark_module"}


class Project:
    """A project with one model, `toy/abs`: four numbers in, their absolute values out."""

    def __init__(self, folder: Path, *, cache: str = "warm") -> None:
        """Makes it.

        `cache`: `warm` with the tools' flags and the module of `abs`, `flags` without the module, `empty`.
        """
        self.folder = folder
        self._started: list[subprocess.Popen[bytes]] = []
        self.regressions = folder / "specs" / "regression_tests" / "toy"
        self.benchmarks = folder / "specs" / "benchmarks" / "toy"
        for path in (self.regressions, self.benchmarks, folder / "suites"):
            path.mkdir(parents=True)
        self.add("abs")
        if cache != "empty":
            fill_cache(folder / "cache", _warm, modules=cache == "warm")

    def add(self, name: str, operation: str = "math.absf %a : tensor<4xf32>") -> None:
        """Adds a submodel with a regression and a benchmark spec."""
        body = f"%0 = {operation}\n  return %0 : tensor<4xf32>"
        program = f"func.func @{name}(%a: tensor<4xf32>) -> tensor<4xf32> {{\n  {body}\n}}\n"
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

    def expected(self, name: str, values: list[float]) -> None:
        np.save(self.regressions / f"{name}.npy", np.array(values, np.float32))

    def gauntlet(self, *words: str, **toolchain: str) -> Done:
        """Runs a command to its end, in this process; `toolchain` replaces fields of the toolchain that is found."""
        return run_here(words, self.folder, self.environment(), toolchain)

    def gauntlet_process(self, *words: str, **toolchain: str) -> Done:
        """As `gauntlet`, in a process of its own."""
        return run_in_process(words, self.folder, self.environment(), toolchain)

    def shell(self, line: str, cwd: Path | None = None) -> Done:
        """Runs a line of bash in which `gauntlet` is the command."""
        gauntlet = f"gauntlet() {{ {shlex.quote(sys.executable)} -c '{MAIN}' \"$@\"; }}"
        argv = ["bash", "-o", "pipefail", "-c", f"{gauntlet}; {line}"]
        return run_program(argv, cwd or self.folder, {**self.environment(), "PYTHONPATH": str(ROOT)})

    def start(self, *words: str, output: Any = subprocess.DEVNULL, **toolchain: str) -> subprocess.Popen[bytes]:
        """Starts a command in a process of its own and does not wait for it; `output` takes what it writes."""
        process = subprocess.Popen(
            gauntlet_argv(words, toolchain),
            cwd=self.folder,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.DEVNULL,
        )
        self._started.append(process)
        return process

    def close(self) -> None:
        """Ends every command that was started."""
        for process in self._started:
            process.kill()
            process.wait()

    def environment(self) -> dict[str, str]:
        return {**os.environ, "IREE_GAUNTLET_CACHE": str(self.folder / "cache"), "NO_COLOR": "1"}

    @property
    def newest(self) -> Path:
        """The folder of the run that was written to last."""
        return next(list_folders(self.folder / "runs", *(kind for kind in ExperimentKind if kind.is_run), None))

    @property
    def journal(self) -> JournalRecord:
        return read_journal(self.newest / "journal.jsonl")

    def verdict(self, step: str) -> str:
        return str(self.journal.results[step].verdict)

    def result(self, step: str) -> dict[str, Any]:
        """A step's last result, as the journal has it."""
        return self.journal.results[step].as_dict()

    def tool(self, script: str) -> str:
        """A program in place of one of IREE's tools."""
        path = self.folder / "tool.sh"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return str(path)

    def telling_tools(self, slow: str = "") -> dict[str, str]:
        """The real tools behind programs that first write their stage to `self.calls`; that of a slow one hangs."""
        found = find_installed()
        tools = {}
        for stage, name in TOOLS.items():
            path = self.folder / f"{stage}.sh"
            # The shell stays, so that `running` finds the project's folder.
            wait = f"({HANG})\n" if stage == slow else ""
            real = shlex.quote(getattr(found.compiler if hasattr(found.compiler, name) else found.runtime, name))
            path.write_text(f'#!/bin/sh\necho {stage} >> {shlex.quote(str(self._calls))}\n{wait}exec {real} "$@"\n')
            path.chmod(0o755)
            tools[name] = str(path)
        return tools

    @property
    def _calls(self) -> Path:
        return self.folder / "calls.txt"

    @property
    def calls(self) -> list[str]:
        """Stages whose tools were started, in the order of their starts."""
        return self._calls.read_text().split() if self._calls.exists() else []

    @staticmethod
    def _write(path: Path, content: dict[str, Any]) -> None:
        path.write_text(json.dumps(content, indent=2))


def _warm(cache: Path) -> None:
    # Of each attempt its own: who tries again after a failure meets that failure, not what it left.
    project = Project(Path(tempfile.mkdtemp(prefix="toy-project-", dir=cache.parent)), cache="empty")
    done = run_here(["compile", "--cache-dir", str(cache)], project.folder, project.environment())
    assert done.code == 0, done.text
