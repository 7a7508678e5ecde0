"""What a cluster costs a step: `python benchmarks/cluster.py [CASES]` in an environment with the extra `cluster`.

Synthetic operator cases as in `operator_scale.py`, each a compile and a threshold step, which come to their results at
once, so that all the time is the toolkit's and Dask's own.

`here` is the engine of one machine. `4 workers` is a real scheduler and four real workers, each in a process of its
own with a process of the run, which answer at once; the memory of driver and scheduler is read at each fifth. The
second table is of the driver alone, with workers that answer in simulated time: what one step costs it, and how short
the steps of all hosts may be on average until it has no time for more.
"""

from __future__ import annotations

import asyncio
import heapq
import io
import itertools
import json
import random
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distributed import Client
from operator_scale import case_steps, compiled_result, judged_result, opened_engine, run_here, status_bytes

from iree_gauntlet import __version__
from iree_gauntlet.artifacts.registry_file import Registry
from iree_gauntlet.artifacts.store import ArtifactStore
from iree_gauntlet.cluster.connection import DaskLink
from iree_gauntlet.cluster.dask_worker import GauntletWorker
from iree_gauntlet.cluster.fleet import ClusterRunner, Fleet, keep_below
from iree_gauntlet.cluster.link import Answered, Joined, OrderAnswer, RunFacts, SharedRun, decode, encode
from iree_gauntlet.cluster.offers import DeviceOffer, WorkerOffer
from iree_gauntlet.cluster.project_copy import ProjectCopy
from iree_gauntlet.engine.scheduler import ReadyQueue
from iree_gauntlet.reports.live_progress import PlainProgress
from iree_gauntlet.requests import RunRequest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from iree_gauntlet.cluster.link import Event, Order
    from iree_gauntlet.steps import Step


_WORKERS = 4
_JOBS = 2
_FIFTHS = 5
_SIMULATED = ((10, 8), (100, 8), (1000, 8))
# Simulated; their mean does not matter to the driver.
_STEP_SECONDS = (0.5, 1.5)


def main() -> None:
    """Measure and print the tables."""
    match sys.argv[1:]:
        case ["--worker", address, name, cache]:
            asyncio.run(_work(address, name, cache))
        case ["--steps"]:
            _answer_at_once()
        case ["--simulated", count, hosts, jobs]:
            print(json.dumps(_simulated(int(count), int(hosts), int(jobs))))
        case words:
            _print(int(words[0]) if words else 5_000)


def _print(count: int) -> None:
    print(f"{'part':<12} {'steps':>7} {'seconds':>8} {'ms/step':>8}")
    here = _here(count)
    there, memory = _on_workers(count)
    for part, seconds in ((f"here -j {_WORKERS * _JOBS}", here), (f"{_WORKERS} workers", there)):
        print(f"{part:<12} {2 * count:>7} {seconds:8.2f} {seconds / count / 2 * 1e3:8.3f}")
    print(f"a step costs {(there - here) / count / 2 * 1e3:.2f} ms more on workers")
    for name, sizes in memory.items():
        print(f"memory of the {name}, MB: {' '.join(f'{size / 1e6:.0f}' for size in sizes)}")
    print(f"\n{'hosts':>6} {'jobs':>5} {'steps':>7} {'us/step':>8} {'steps/s':>8}  busy with steps of")
    for hosts, jobs in _SIMULATED:
        steps = max(2 * count, 4 * hosts * jobs)
        words = [sys.executable, __file__, "--simulated", str(steps // 2), str(hosts), str(jobs)]
        seconds = json.loads(subprocess.run(words, check=True, stdout=subprocess.PIPE).stdout)
        each = seconds / steps
        print(f"{hosts:>6} {jobs:>5} {steps:>7} {each * 1e6:8.0f} {1 / each:8.0f}  {hosts * jobs * each:.2f} s or more")


def _here(count: int) -> float:
    with tempfile.TemporaryDirectory() as name:
        run_dir = Path(name) / "runs" / "here"
        run_dir.mkdir(parents=True)
        steps = _steps(count, run_dir)
        began = time.perf_counter()
        run_here(steps, Path(name), run_dir, _WORKERS * _JOBS)
        return time.perf_counter() - began


def _steps(count: int, run_dir: Path) -> list[Step]:
    return [step for number in range(count) for step in case_steps(number, run_dir)]


def _on_workers(count: int) -> tuple[float, dict[str, list[int]]]:
    """Seconds, and the memory of driver and scheduler at each fifth."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as held:
        folder, run_dir = Path(name), Path(name) / "runs" / "there"
        run_dir.mkdir(parents=True)
        steps = _steps(count, run_dir)
        scheduler, address = _scheduler(held, folder)
        for number in range(_WORKERS):
            words = [sys.executable, __file__, "--worker", address, f"w{number}", str(folder / "caches" / str(number))]
            held.callback(_ended, subprocess.Popen(words))
        client = held.enter_context(Client(address, set_as_default=False))
        client.wait_for_workers(_WORKERS)
        archive = folder / "project.tar"
        archive.write_bytes(b"\0" * 10240)
        shared = SharedRun(RunRequest(), "", "", (str(run_dir), "", "", "", ""))
        facts = RunFacts("there", "0" * 64, str(folder), (shared,))
        link = DaskLink(client, facts, ProjectCopy(archive, "0" * 64, str(folder)), ArtifactStore(folder, Registry()))
        link.open()
        held.callback(link.end)
        fleet = Fleet(steps)
        while len(fleet) < _WORKERS:
            event = link.next_event(1.0)
            assert event is None or isinstance(event, Joined), event
            if event is not None:
                fleet.join(event.worker, event.offer)
        memory: dict[str, list[int]] = {"driver": [], "scheduler": []}
        engine = held.enter_context(opened_engine(steps, folder, run_dir, 1, {}))
        watched = _Watched(link, len(steps) // _FIFTHS, lambda: _look(memory, scheduler.pid))
        queue = ReadyQueue(steps, {}, fleet, fail_fast=False)
        began = time.perf_counter()
        ClusterRunner(queue, fleet, watched, engine, keep_below(run_dir), PlainProgress(io.StringIO())).run()
        return time.perf_counter() - began, memory


class _Watched:
    """A link, which looks at something after so many orders."""

    def __init__(self, link: DaskLink, every: int, look: Any) -> None:
        self._link = link
        self._every = every
        self._look = look
        self._sent = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._link, name)

    def send(self, worker: str, order: Order) -> None:
        self._link.send(worker, order)
        self._sent += 1
        if self._sent % self._every == 0:
            self._look()


def _look(memory: dict[str, list[int]], scheduler: int) -> None:
    memory["driver"].append(status_bytes("VmRSS"))
    lines = Path(f"/proc/{scheduler}/status").read_text(encoding="ascii").splitlines()
    memory["scheduler"].append(next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:")))


def _scheduler(held: ExitStack, folder: Path) -> tuple[subprocess.Popen[bytes], str]:
    contact = folder / "scheduler.json"
    words = ["-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard"]
    process = subprocess.Popen(
        [sys.executable, *words, "--scheduler-file", str(contact)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    held.callback(_ended, process)
    while not contact.exists():
        time.sleep(0.05)
    return process, json.loads(contact.read_text())["address"]


def _ended(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait()


class _SyntheticWorker(GauntletWorker):
    """A worker whose process of a run answers at once."""

    run_process = (__file__, "--steps")


async def _work(address: str, name: str, cache: str) -> None:
    offer = WorkerOffer(name, name, _JOBS, (DeviceOffer("cpu", "local-task"),), version=__version__)
    worker = _SyntheticWorker(
        address, name=name, nthreads=_JOBS + 2, memory_limit=0, offer=offer.as_dict(), cache_dir=cache, dashboard=False
    )
    # There is no copy of a project to be had.
    project = Path(cache) / "cluster" / name / "projects" / ("0" * 64)
    # The folder that the run was started in is that of all caches.
    (project / "files" / Path(cache).parents[1].relative_to("/")).mkdir(parents=True)
    await worker
    await worker.finished()


def _answer_at_once() -> None:
    """The process of a run, which plans nothing and answers at once."""
    lines, output = sys.stdin.buffer, sys.stdout.buffer
    lines.readline()
    output.write(encode((None, {})))
    output.flush()
    while line := lines.readline():
        number, order = decode(line)
        output.write(encode((number, OrderAnswer(_result(order)))))
        output.flush()


def _result(order: Order) -> dict[str, Any]:
    made, judged = case_steps(int(order.step.split("test_operator_")[1].partition("_")[0]), Path("/runs/there"))
    return (compiled_result(made) if order.step == made.id else judged_result(judged)).as_dict()


class _SimulatedLink:
    """Workers that answer in simulated time."""

    def __init__(self) -> None:
        self.now = 0.0
        self._rng = random.Random(1)  # noqa: S311 - simulated times
        self._order = itertools.count()
        self._out: list[tuple[float, int, str, Order]] = []

    def send(self, worker: str, order: Order) -> None:
        heapq.heappush(self._out, (self.now + self._rng.uniform(*_STEP_SECONDS), next(self._order), worker, order))

    def supply(self, worker: str, step: str, urls: tuple[str, ...]) -> None:
        raise NotImplementedError

    def next_event(self, seconds: float) -> Event | None:
        del seconds
        self.now, _, worker, order = heapq.heappop(self._out)
        return Answered(worker, order.step, OrderAnswer(_result(order)))

    def show(self, running: Sequence[tuple[str, str, str]], waiting: Mapping[str, int]) -> None:
        pass

    def end(self) -> None:
        pass


def _simulated(count: int, hosts: int, jobs: int) -> float:
    """Seconds of the driver."""
    with tempfile.TemporaryDirectory() as name:
        folder, run_dir = Path(name), Path(name) / "runs" / "there"
        run_dir.mkdir(parents=True)
        steps = _steps(count, run_dir)
        fleet = Fleet(steps)
        for number in range(hosts):
            fleet.join(f"w{number}", WorkerOffer(f"w{number}", f"h{number}", jobs, (DeviceOffer("cpu", "local-task"),)))
        with opened_engine(steps, folder, run_dir, 1, {}) as engine:
            queue = ReadyQueue(steps, {}, fleet, fail_fast=False)
            began = time.perf_counter()
            keep, progress = keep_below(run_dir), PlainProgress(io.StringIO())
            ClusterRunner(queue, fleet, _SimulatedLink(), engine, keep, progress).run()
            return time.perf_counter() - began


if __name__ == "__main__":
    main()
