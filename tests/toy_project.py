"""A tiny project in a temporary folder, and commands run in it as a user runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from iree_gauntlet.artifacts.seeded import parse_seeded
from iree_gauntlet.journal_format import JournalRecord, read_journal

INPUT = "random://uniform/4xf32?seed=1&low=-1&high=1"
FLAGS = [
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-llvmcpu-target-cpu=host",
]
_MAIN = "from iree_gauntlet.tasks.program import main; main()"
_PATCHED = """
import dataclasses, sys
import iree_gauntlet.tasks.surroundings as surroundings
from iree_gauntlet.tasks.program import main
found = surroundings.find_installed()
changes = dict(pair.split("=", 1) for pair in sys.argv.pop(1).split(";"))
surroundings.find_installed = lambda: dataclasses.replace(found, **changes)
main()
"""


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        return self.out + self.err


class Project:
    """A project with one model, `toy/abs`: four numbers in, their absolute values out."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.regressions = folder / "specs" / "regression_tests" / "toy"
        self.benchmarks = folder / "specs" / "benchmarks" / "toy"
        for path in (self.regressions, self.benchmarks, folder / "suites"):
            path.mkdir(parents=True)
        self.add("abs")

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
        """Runs a command to its end; `toolchain` replaces fields of the toolchain that is found."""
        done = subprocess.run(
            self._argv(words, toolchain),
            cwd=self.folder,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return Done(done.returncode, done.stdout, done.stderr)

    def start(self, *words: str, output: Any = subprocess.DEVNULL, **toolchain: str) -> subprocess.Popen[bytes]:
        """Starts a command and does not wait for it; `output` takes what it writes."""
        return subprocess.Popen(
            self._argv(words, toolchain),
            cwd=self.folder,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.DEVNULL,
        )

    def environment(self) -> dict[str, str]:
        return {**os.environ, "IREE_GAUNTLET_CACHE": str(self.folder / "cache"), "NO_COLOR": "1"}

    @staticmethod
    def _argv(words: tuple[str, ...], toolchain: dict[str, str]) -> list[str]:
        if not toolchain:
            return [sys.executable, "-c", _MAIN, *words]
        changes = ";".join(f"{name}={value}" for name, value in toolchain.items())
        return [sys.executable, "-c", _PATCHED, changes, *words]

    @property
    def newest(self) -> Path:
        runs = [path.parent for path in (self.folder / "runs").glob("*/journal.jsonl")]
        return max(runs, key=lambda path: (path / "journal.jsonl").stat().st_mtime_ns)

    @property
    def journal(self) -> JournalRecord:
        return read_journal(self.newest / "journal.jsonl")

    def verdict(self, step: str) -> str:
        return str(self.journal.results[step]["verdict"])

    def result(self, step: str) -> dict[str, Any]:
        return self.journal.results[step]

    def tool(self, script: str) -> str:
        """A program in place of one of IREE's tools, whose flags are asked of the real one before."""
        assert self.gauntlet("plan").code == 0
        path = self.folder / "tool.sh"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return str(path)

    @staticmethod
    def _write(path: Path, content: dict[str, Any]) -> None:
        path.write_text(json.dumps(content, indent=2))


def wait_until(condition: Any, seconds: float = 60.0) -> None:
    """Waits for something that another process does."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def running(word: str) -> list[int]:
    """Processes whose command line holds a word."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except (OSError, IndexError):
                continue
            if word in line and state != "Z":
                found.append(int(entry.name))
    return found
