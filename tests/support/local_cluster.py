"""Starts a scheduler with workers on this machine, as a user does."""

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

__all__ = ["HangingTools", "LocalCluster", "find_run_processes", "local_cluster", "read_results", "start_command"]

_ADDRESS_PATTERN = re.compile(r"takes? part in (tcp://127\.0\.0\.1:\d+)\n")
_RUN_PROCESS_MODULE = "iree_gauntlet.cluster.run_process"


@dataclass(frozen=True)
class LocalCluster:
    """A running cluster, with the file of its output."""

    address: str
    process: psutil.Process
    output_path: Path

    @property
    def run_processes(self) -> list[psutil.Process]:
        """The processes of runs on the workers."""
        return find_run_processes(self.process)

    def find_worker(self, process: psutil.Process) -> psutil.Process:
        """Return the Dask worker that a process descends from."""
        lineage = [process, *process.parents()]
        return lineage[lineage.index(self.process) - 1]


def read_results(folder: Path) -> dict[str, Result]:
    """Read the results of the run in a directory, by step."""
    return dict(read_journal(folder / "journal.jsonl").results)


def find_run_processes(root: psutil.Process) -> list[psutil.Process]:
    """Find the processes of runs among the descendants of a process."""
    processes = []
    for descendant in root.children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if _RUN_PROCESS_MODULE in descendant.cmdline():
                processes.append(descendant)
    return processes


@contextlib.contextmanager
def local_cluster(
    folder: Path, *arguments: str, count: int = 2, environ: Mapping[str, str] | None = None
) -> Iterator[LocalCluster]:
    """Start a cluster of workers with the CPU as their device; their cache is below `folder`."""
    command = [
        "cluster.local",
        str(count),
        "--port",
        "0",
        "--cache-dir",
        str(folder / "cache"),
        "--jobs",
        "2",
        *arguments,
    ]
    with start_command(command, folder, environ or os.environ) as (process, output_path):
        wait_until(lambda: _ADDRESS_PATTERN.search(output_path.read_text()) or process.poll() is not None)
        match = _ADDRESS_PATTERN.search(output_path.read_text())
        assert match is not None, output_path.read_text()
        yield LocalCluster(match[1], psutil.Process(process.pid), output_path)


@contextlib.contextmanager
def start_command(
    arguments: list[str],
    folder: Path,
    environ: Mapping[str, str],
    program: str = "",
    wrap_argv: Callable[[list[str]], list[str]] = list,
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Start a command, and end it with the block; yield its process and the file of its output.

    `program`: a module to run in place of `gauntlet`. `wrap_argv`: returns an argument vector that starts the command
    on another host.
    """
    folder.mkdir(parents=True, exist_ok=True)
    output_path = folder / f"{arguments[0]}.txt"
    with output_path.open("wb") as stream:
        argv = [sys.executable, "-m", program, *arguments[1:]] if program else gauntlet_argv(arguments, {})
        process = subprocess.Popen(
            wrap_argv(argv), cwd=folder, env=dict(environ), stdout=stream, stderr=subprocess.STDOUT
        )
    try:
        yield process, output_path
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(60)
        process.kill()
        process.wait()


class HangingTools:
    """IREE's tools; between `start_hanging` and `stop_hanging`, iree-run-module hangs when it runs a module.

    `folder`: the directory of the tools, which does not exist yet.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self._hang_switch, self._hang_log = folder / "gate", folder / "begun"
        self.start_hanging()
        _write_tools(folder, f"[ -e '{self._hang_switch}' ] && echo $$ >> '{self._hang_log}' && {{ {HANG}; }}")
        path = f"{folder}{os.pathsep}{os.environ['PATH']}"
        self.environ = {**os.environ, "PATH": path, "NO_COLOR": "1"}

    def start_hanging(self) -> None:
        """Make iree-run-module hang."""
        self._hang_log.unlink(missing_ok=True)
        self._hang_switch.touch()

    def wait_for_hang(self) -> psutil.Process:
        """Wait for the first process that hangs after `start_hanging`; return it."""
        wait_until(lambda: self._hang_log.exists() and self._hang_log.read_text().endswith("\n"))
        return psutil.Process(int(self._hang_log.read_text().split()[0]))

    def stop_hanging(self) -> None:
        """Make iree-run-module work again."""
        self._hang_switch.unlink(missing_ok=True)


def _write_tools(folder: Path, hang_line: str) -> None:
    toolchain = find_installed()
    tools = {
        "iree-compile": toolchain.compiler.compile,
        "iree-run-module": toolchain.runtime.run_module,
        "iree-benchmark-module": toolchain.runtime.benchmark_module,
    }
    for name, tool in tools.items():
        exec_line = f'exec {shlex.quote(tool)} "$@"'
        # Queries of the tool, and the health check of a worker's devices, never hang.
        guard_line = f'case "$*" in *known_good*) {exec_line};; *--module=*) ;; *) {exec_line};; esac'
        lines = [guard_line, hang_line] if name == "iree-run-module" else []
        script = folder / name
        script.write_text("\n".join(["#!/bin/sh", *lines, exec_line, ""]))
        script.chmod(0o755)
