"""A scheduler with workers on this machine, started as a user starts them."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil

from iree_gauntlet.journal_format import read_journal
from iree_gauntlet.toolchains.installed import find_installed
from tests.support.command_line import gauntlet_argv
from tests.support.hanging import HANG
from tests.support.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from iree_gauntlet.results import Result

__all__ = ["HangingTools", "LocalCluster", "local_cluster", "results", "run_processes", "started"]

_ADDRESS = re.compile(r"takes? part in (tcp://127\.0\.0\.1:\d+)\n")
_RUN_PROCESS = "iree_gauntlet.cluster.run_process"


@dataclass(frozen=True)
class LocalCluster:
    """A cluster that runs."""

    address: str
    process: psutil.Process
    said: Path

    @property
    def run_processes(self) -> list[psutil.Process]:
        """The processes of runs on its workers."""
        return run_processes(self.process)

    def worker_of(self, process: psutil.Process) -> psutil.Process:
        """The Dask worker that one of its descendants belongs to."""
        lineage = [process, *process.parents()]
        return lineage[lineage.index(self.process) - 1]


def results(folder: Path) -> dict[str, Result]:
    """Results of the run in a folder, by step."""
    return dict(read_journal(folder / "journal.jsonl").results)


def run_processes(root: psutil.Process) -> list[psutil.Process]:
    """The processes of runs among the descendants of a process."""
    found = []
    for process in root.children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if _RUN_PROCESS in process.cmdline():
                found.append(process)
    return found


@contextlib.contextmanager
def local_cluster(
    folder: Path, *words: str, count: int = 2, environ: Mapping[str, str] | None = None
) -> Iterator[LocalCluster]:
    """A cluster of workers with the processor as their device, and a cache of their own below a folder."""
    arguments = [
        "cluster.local",
        str(count),
        "--port",
        "0",
        "--cache-dir",
        str(folder / "cache"),
        "--jobs",
        "2",
        *words,
    ]
    with started(arguments, folder, environ or os.environ) as (process, said):
        wait_until(lambda: _ADDRESS.search(said.read_text()) or process.poll() is not None)
        match = _ADDRESS.search(said.read_text())
        assert match is not None, said.read_text()
        yield LocalCluster(match[1], psutil.Process(process.pid), said)


@contextlib.contextmanager
def started(
    words: list[str],
    folder: Path,
    environ: Mapping[str, str],
    program: str = "",
    around: Callable[[list[str]], list[str]] = list,
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A command that goes on until this is left, and the file of what it writes; `program` in place of `gauntlet`.

    `around` makes the argument vector of it that starts it elsewhere.
    """
    folder.mkdir(parents=True, exist_ok=True)
    said = folder / f"{words[0]}.txt"
    with said.open("wb") as stream:
        argv = [sys.executable, "-m", program, *words[1:]] if program else gauntlet_argv(words, {})
        process = subprocess.Popen(around(argv), cwd=folder, env=dict(environ), stdout=stream, stderr=subprocess.STDOUT)
    try:
        yield process, said
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(60)
        process.kill()
        process.wait()


class HangingTools:
    """IREE's tools, of which iree-run-module hangs when it runs a module, until that is mended.

    `folder`: gets them; it must not be there yet.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self._gate, self._begun = folder / "gate", folder / "begun"
        self.spoil()
        _write_tools(folder, f"[ -e '{self._gate}' ] && echo $$ >> '{self._begun}' && {{ {HANG}; }}")
        path = f"{folder}{os.pathsep}{os.environ['PATH']}"
        self.environ = {**os.environ, "PATH": path, "NO_COLOR": "1"}

    def spoil(self) -> None:
        """From now on iree-run-module hangs."""
        self._begun.unlink(missing_ok=True)
        self._gate.touch()

    def hanging(self) -> psutil.Process:
        """The first process that hangs since it was spoiled; waits for it."""
        wait_until(lambda: self._begun.exists() and self._begun.read_text().endswith("\n"))
        return psutil.Process(int(self._begun.read_text().split()[0]))

    def mend(self) -> None:
        """From now on they do what they should."""
        self._gate.unlink()


def _write_tools(folder: Path, before_running: str) -> None:
    found = find_installed()
    tools = {
        "iree-compile": found.compiler.compile,
        "iree-run-module": found.runtime.run_module,
        "iree-benchmark-module": found.runtime.benchmark_module,
    }
    for name, tool in tools.items():
        real = f'exec {shlex.quote(tool)} "$@"'
        # Neither questions about the tool, nor the health check of a worker's devices.
        guard = f'case "$*" in *known_good*) {real};; *--module=*) ;; *) {real};; esac'
        lines = [guard, before_running] if name == "iree-run-module" else []
        script = folder / name
        script.write_text("\n".join(["#!/bin/sh", *lines, real, ""]))
        script.chmod(0o755)
