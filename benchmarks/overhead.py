"""What the toolkit costs: `python benchmarks/overhead.py` in an environment with IREE and the toolkit.

Three figures, each against a named peer, alternating in one run:

1. starting a process: `Supervisor.run` (group, time limit, rusage, private TMPDIR) against `subprocess.run`;
2. a module out of the cache (lookup, checksum, hard link) against compiling it again;
3. one model's whole warm run against the same IREE commands started one after the other by `subprocess.run`.
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
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _row("process start", "subprocess.run", *_process_start(folder))
        run = _gauntlet(folder, "cold")
        _row("module from the cache", "iree-compile", *_module(folder, run))
        _row("warm run of one model", "its commands alone", *_warm_run(folder))


def _row(what: str, peer: str, ours: list[float], theirs: list[float]) -> None:
    mine, other = statistics.median(ours), statistics.median(theirs)
    print(f"{what:<24} {mine * 1e3:9.2f} ms   {peer:<20} {other * 1e3:9.2f} ms   ratio {mine / other:.3f}")


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _process_start(folder: Path) -> tuple[list[float], list[float]]:
    ours, theirs = [], []
    command = Command(("/bin/true",), str(folder))
    with Supervisor() as supervisor, (folder / "null").open("wb") as null:
        for _ in range(_ROUNDS):
            ours.append(_timed(lambda: supervisor.run(command, stdout=folder / "o", stderr=folder / "e", timeout=60)))
            theirs.append(_timed(lambda: subprocess.run(["/bin/true"], stdout=null, check=True)))
    return ours[1:], theirs[1:]


def _gauntlet(folder: Path, name: str) -> Path:
    run_dir = folder / "runs" / name
    program = "from iree_gauntlet.tasks.program import main; main()"
    subprocess.run(
        [sys.executable, "-c", program, "run", "--model", _MODEL, "--run-dir", str(run_dir)],
        cwd=_ROOT,
        env={**os.environ, "IREE_GAUNTLET_CACHE": str(folder / "cache")},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return run_dir


def _module(folder: Path, run: Path) -> tuple[list[float], list[float]]:
    record = read_journal(run / "journal.jsonl")
    step = next(step for step in record.steps if step["stage"] == "compile")
    module = Path(dict(step["outputs"])["module"])
    ingredients = {"kind": "benchmark"}
    first = ModuleCache(folder / "modules")
    first.publish({"module": module}, name="m", ingredients=ingredients, metadata={}, created=datetime.now(UTC))

    def from_cache() -> None:
        modules = ModuleCache(folder / "modules")
        entry = modules.lookup(make_key(ingredients)).entry
        assert entry is not None
        modules.materialise(entry, "module", folder / "module.vmfb")

    ours, theirs = [], []
    for _ in range(_WARM_ROUNDS):
        ours.append(_timed(from_cache))
        theirs.append(_timed(functools.partial(_quietly, step["command"])))
    return ours, theirs


def _warm_run(folder: Path) -> tuple[list[float], list[float]]:
    """Steps' wall time with all our own work, against the same commands alone: no start of Python in either."""
    ours, theirs = [], []
    for number in range(_WARM_ROUNDS):
        record = read_journal(_gauntlet(folder, f"warm{number}") / "journal.jsonl")
        assert record.end is not None
        assert record.end.seconds is not None
        ours.append(record.end.seconds)
        commands = [step["command"] for step in record.steps if step["stage"] in ("threshold", "benchmark")]
        theirs.append(sum(_timed(functools.partial(_quietly, command)) for command in commands))
    return ours, theirs


def _quietly(command: dict[str, Any]) -> None:
    subprocess.run(command["argv"], cwd=command["cwd"], check=True, capture_output=True)


if __name__ == "__main__":
    main()
