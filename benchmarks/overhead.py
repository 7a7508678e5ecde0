"""Measures the toolkit's overhead: `python benchmarks/overhead.py` in an environment with IREE and the toolkit.

Three times are measured, each in alternation with the time of a peer:

1. starting a process: `Supervisor.run` (group, time limit, rusage, private TMPDIR) against `subprocess.run`;
2. a module from the cache (lookup, checksum, hard link) against compiling it again;
3. one model's complete warm run against the same IREE commands started one after the other by `subprocess.run`.
"""

from __future__ import annotations

import functools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.engine.modules.module_cache import ModuleCache
from iree_gauntlet.engine.modules.module_key import make_key
from iree_gauntlet.engine.processes.supervisor import Supervisor
from iree_gauntlet.journal_format import read_journal
from iree_gauntlet.steps import Command

if TYPE_CHECKING:
    from collections.abc import Callable

_ROOT = Path(__file__).parents[1]
_ROUNDS = 40
_WARM_ROUNDS = 5
_MODEL = "dtln"


def main() -> None:
    """Measure and print the table."""
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        _print_row("process start", "subprocess.run", *_measure_process_start(folder))
        run_dir = _run_gauntlet(folder, "cold")
        _print_row("module from the cache", "iree-compile", *_measure_module(folder, run_dir))
        _print_row("warm run of one model", "its commands alone", *_measure_warm_run(folder))


def _print_row(title: str, peer: str, toolkit_times: list[float], peer_times: list[float]) -> None:
    toolkit_s, peer_s = statistics.median(toolkit_times), statistics.median(peer_times)
    print(f"{title:<24} {toolkit_s * 1e3:9.2f} ms   {peer:<20} {peer_s * 1e3:9.2f} ms   ratio {toolkit_s / peer_s:.3f}")


def _time(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _measure_process_start(folder: Path) -> tuple[list[float], list[float]]:
    toolkit, peer = [], []
    command = Command(("/bin/true",), str(folder))
    with Supervisor() as supervisor, (folder / "null").open("wb") as null:
        for _ in range(_ROUNDS):
            toolkit.append(_time(lambda: supervisor.run(command, stdout=folder / "o", stderr=folder / "e", timeout=60)))
            peer.append(_time(lambda: subprocess.run(["/bin/true"], stdout=null, check=True)))
    return toolkit[1:], peer[1:]


def _run_gauntlet(folder: Path, name: str) -> Path:
    run_dir = folder / "runs" / name
    program = "from iree_gauntlet.__main__ import main; main()"
    subprocess.run(
        [sys.executable, "-c", program, "run", "--model", _MODEL, "--run-dir", str(run_dir)],
        cwd=_ROOT,
        env={**os.environ, "IREE_GAUNTLET_CACHE": str(folder / "cache")},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return run_dir


def _measure_module(folder: Path, run_dir: Path) -> tuple[list[float], list[float]]:
    record = read_journal(run_dir / "journal.jsonl")
    step = next(step for step in record.steps if step["stage"] == "compile")
    module = Path(dict(step["outputs"])["module"])
    key_inputs = {"kind": "benchmark"}
    cache_writer = ModuleCache(folder / "modules")
    cache_writer.publish({"module": module}, name="m", ingredients=key_inputs, metadata={}, created=datetime.now(UTC))

    def read_from_cache() -> None:
        cache = ModuleCache(folder / "modules")
        entry = cache.lookup(make_key(key_inputs)).entry
        assert entry is not None
        cache.materialise(entry, "module", folder / "module.vmfb")

    toolkit_times, peer_times = [], []
    for _ in range(_WARM_ROUNDS):
        toolkit_times.append(_time(read_from_cache))
        peer_times.append(_time(functools.partial(_run_quietly, step["command"])))
    return toolkit_times, peer_times


def _measure_warm_run(folder: Path) -> tuple[list[float], list[float]]:
    """Measure the wall time of a run's steps, and of the steps' commands alone, both without the start of Python."""
    toolkit_times, peer_times = [], []
    for number in range(_WARM_ROUNDS):
        record = read_journal(_run_gauntlet(folder, f"warm{number}") / "journal.jsonl")
        assert record.end is not None
        assert record.end.seconds is not None
        toolkit_times.append(record.end.seconds)
        commands = [step["command"] for step in record.steps if step["stage"] in ("threshold", "benchmark")]
        peer_times.append(sum(_time(functools.partial(_run_quietly, command)) for command in commands))
    return toolkit_times, peer_times


def _run_quietly(command: dict[str, Any]) -> None:
    subprocess.run(command["argv"], cwd=command["cwd"], check=True, capture_output=True)


if __name__ == "__main__":
    main()
