"""Measures a cluster's cost for a step: `python benchmarks/cluster.py [CASES]`, in an environment with `cluster`.

The cases are synthetic as in `operator_scale.py`. Each has a compile and a threshold step that return at once, so all
the time is that of the toolkit and of Dask.

`here` is the engine of one machine. `4 workers` is a real scheduler and four real worker processes, each with a run
process that answers at once; the memory of driver and scheduler is read after each fifth of the orders. The second
table is about the driver alone, with workers that answer in simulated time: the driver's time for one step, and the
shortest average step with which it can keep all hosts busy.
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
from operator_scale import make_compile_result, make_steps, make_threshold_result, open_engine, read_memory, run_local

from iree_gauntlet import __version__
from iree_gauntlet.artifacts.registry_file import Registry
from iree_gauntlet.artifacts.store import ArtifactStore
from iree_gauntlet.cluster.connection import DaskLink
from iree_gauntlet.cluster.dask_worker import GauntletWorker
from iree_gauntlet.cluster.fleet import ClusterRunner, Fleet, make_file_saver
from iree_gauntlet.cluster.link import AnswerEvent, JoinEvent, OrderAnswer, RunDescription, RunInfo, decode, encode
from iree_gauntlet.cluster.offers import WorkerDevice, WorkerResources
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
_MEMORY_READINGS = 5
_SIMULATED_CLUSTERS = ((10, 8), (100, 8), (1000, 8))
# The durations are simulated; their mean does not affect the driver.
_STEP_SECONDS = (0.5, 1.5)


def main() -> None:
    """Measure and print the tables."""
    match sys.argv[1:]:
        case ["--worker", address, name, cache]:
            asyncio.run(_run_worker(address, name, cache))
        case ["--steps"]:
            _answer_at_once()
        case ["--simulated", count, hosts, jobs]:
            print(json.dumps(_time_simulated(int(count), int(hosts), int(jobs))))
        case arguments:
            _print_tables(int(arguments[0]) if arguments else 5_000)


def _print_tables(count: int) -> None:
    print(f"{'part':<12} {'steps':>7} {'seconds':>8} {'ms/step':>8}")
    local_seconds = _time_locally(count)
    cluster_seconds, memory = _time_on_workers(count)
    for part, seconds in ((f"here -j {_WORKERS * _JOBS}", local_seconds), (f"{_WORKERS} workers", cluster_seconds)):
        print(f"{part:<12} {2 * count:>7} {seconds:8.2f} {seconds / count / 2 * 1e3:8.3f}")
    print(f"a step costs {(cluster_seconds - local_seconds) / count / 2 * 1e3:.2f} ms more on workers")
    for name, sizes in memory.items():
        print(f"memory of the {name}, MB: {' '.join(f'{size / 1e6:.0f}' for size in sizes)}")
    print(f"\n{'hosts':>6} {'jobs':>5} {'steps':>7} {'us/step':>8} {'steps/s':>8}  busy with steps of")
    for hosts, jobs in _SIMULATED_CLUSTERS:
        steps = max(2 * count, 4 * hosts * jobs)
        argv = [sys.executable, __file__, "--simulated", str(steps // 2), str(hosts), str(jobs)]
        seconds = json.loads(subprocess.run(argv, check=True, stdout=subprocess.PIPE).stdout)
        cost = seconds / steps
        print(f"{hosts:>6} {jobs:>5} {steps:>7} {cost * 1e6:8.0f} {1 / cost:8.0f}  {hosts * jobs * cost:.2f} s or more")


def _time_locally(count: int) -> float:
    with tempfile.TemporaryDirectory() as directory:
        run_dir = Path(directory) / "runs" / "here"
        run_dir.mkdir(parents=True)
        steps = _build_steps(count, run_dir)
        start = time.perf_counter()
        run_local(steps, Path(directory), run_dir, _WORKERS * _JOBS)
        return time.perf_counter() - start


def _build_steps(count: int, run_dir: Path) -> list[Step]:
    return [step for number in range(count) for step in make_steps(number, run_dir)]


def _time_on_workers(count: int) -> tuple[float, dict[str, list[int]]]:
    """Return the seconds, and the memory of driver and scheduler after each fifth of the orders."""
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        folder, run_dir = Path(directory), Path(directory) / "runs" / "there"
        run_dir.mkdir(parents=True)
        steps = _build_steps(count, run_dir)
        scheduler, address = _start_scheduler(stack, folder)
        for number in range(_WORKERS):
            argv = [sys.executable, __file__, "--worker", address, f"w{number}", str(folder / "caches" / str(number))]
            stack.callback(_terminate, subprocess.Popen(argv))
        client = stack.enter_context(Client(address, set_as_default=False))
        client.wait_for_workers(_WORKERS)
        archive = folder / "project.tar"
        archive.write_bytes(b"\0" * 10240)
        shared_run = RunDescription(RunRequest(), "", "", (str(run_dir), "", "", "", ""))
        facts = RunInfo("there", "0" * 64, str(folder), (shared_run,))
        link = DaskLink(client, facts, ProjectCopy(archive, "0" * 64, str(folder)), ArtifactStore(folder, Registry()))
        link.open()
        stack.callback(link.end)
        fleet = Fleet(steps)
        while len(fleet) < _WORKERS:
            event = link.next_event(1.0)
            assert event is None or isinstance(event, JoinEvent), event
            if event is not None:
                fleet.join(event.worker, event.offer)
        memory: dict[str, list[int]] = {"driver": [], "scheduler": []}
        engine = stack.enter_context(open_engine(steps, folder, run_dir, 1, {}))
        observer = _LinkObserver(link, len(steps) // _MEMORY_READINGS, lambda: _record_memory(memory, scheduler.pid))
        queue = ReadyQueue(steps, {}, fleet, fail_fast=False)
        start = time.perf_counter()
        ClusterRunner(queue, fleet, observer, engine, make_file_saver(run_dir), PlainProgress(io.StringIO())).run()
        return time.perf_counter() - start, memory


class _LinkObserver:
    """A link that calls a function after every `interval` orders."""

    def __init__(self, link: DaskLink, interval: int, callback: Any) -> None:
        self._link = link
        self._interval = interval
        self._callback = callback
        self._order_count = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._link, name)

    def send(self, worker: str, order: Order) -> None:
        self._link.send(worker, order)
        self._order_count += 1
        if self._order_count % self._interval == 0:
            self._callback()


def _record_memory(memory: dict[str, list[int]], scheduler: int) -> None:
    memory["driver"].append(read_memory("VmRSS"))
    lines = Path(f"/proc/{scheduler}/status").read_text(encoding="ascii").splitlines()
    memory["scheduler"].append(next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:")))


def _start_scheduler(stack: ExitStack, folder: Path) -> tuple[subprocess.Popen[bytes], str]:
    contact = folder / "scheduler.json"
    words = ["-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard"]
    process = subprocess.Popen(
        [sys.executable, *words, "--scheduler-file", str(contact)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    stack.callback(_terminate, process)
    while not contact.exists():
        time.sleep(0.05)
    return process, json.loads(contact.read_text())["address"]


def _terminate(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait()


class _SyntheticWorker(GauntletWorker):
    """A worker whose run process answers at once."""

    run_process = (__file__, "--steps")


async def _run_worker(address: str, name: str, cache: str) -> None:
    offer = WorkerResources(name, name, _JOBS, (WorkerDevice("cpu", "local-task"),), version=__version__)
    worker = _SyntheticWorker(
        address, name=name, nthreads=_JOBS + 2, memory_limit=0, offer=offer.as_dict(), cache_dir=cache, dashboard=False
    )
    # No copy of a project can be fetched, so the folder is created in advance.
    project = Path(cache) / "cluster" / name / "projects" / ("0" * 64)
    # The run was started in the parent folder of all caches.
    (project / "files" / Path(cache).parents[1].relative_to("/")).mkdir(parents=True)
    await worker
    await worker.finished()


def _answer_at_once() -> None:
    """Act as the process of a run: plan nothing, and answer each order at once."""
    requests, output = sys.stdin.buffer, sys.stdout.buffer
    requests.readline()
    output.write(encode((None, {})))
    output.flush()
    while line := requests.readline():
        number, order = decode(line)
        output.write(encode((number, OrderAnswer(_make_result(order)))))
        output.flush()


def _make_result(order: Order) -> dict[str, Any]:
    first, second = make_steps(int(order.step.split("test_operator_")[1].partition("_")[0]), Path("/runs/there"))
    return (make_compile_result(first) if order.step == first.id else make_threshold_result(second)).as_dict()


class _LinkSimulator:
    """Workers that answer in simulated time."""

    def __init__(self) -> None:
        self.now = 0.0
        self._rng = random.Random(1)  # noqa: S311 - simulated times
        self._numbers = itertools.count()
        self._queue: list[tuple[float, int, str, Order]] = []

    def send(self, worker: str, order: Order) -> None:
        heapq.heappush(self._queue, (self.now + self._rng.uniform(*_STEP_SECONDS), next(self._numbers), worker, order))

    def supply(self, worker: str, step: str, urls: tuple[str, ...]) -> None:
        raise NotImplementedError

    def next_event(self, seconds: float) -> Event | None:
        del seconds
        self.now, _, worker, order = heapq.heappop(self._queue)
        return AnswerEvent(worker, order.step, OrderAnswer(_make_result(order)))

    def show(self, running: Sequence[tuple[str, str, str]], waiting: Mapping[str, int]) -> None:
        pass

    def end(self) -> None:
        pass


def _time_simulated(count: int, hosts: int, jobs: int) -> float:
    """Return the driver's seconds with simulated workers."""
    with tempfile.TemporaryDirectory() as directory:
        folder, run_dir = Path(directory), Path(directory) / "runs" / "there"
        run_dir.mkdir(parents=True)
        steps = _build_steps(count, run_dir)
        fleet = Fleet(steps)
        for number in range(hosts):
            fleet.join(
                f"w{number}", WorkerResources(f"w{number}", f"h{number}", jobs, (WorkerDevice("cpu", "local-task"),))
            )
        with open_engine(steps, folder, run_dir, 1, {}) as engine:
            queue = ReadyQueue(steps, {}, fleet, fail_fast=False)
            start = time.perf_counter()
            keep, progress = make_file_saver(run_dir), PlainProgress(io.StringIO())
            ClusterRunner(queue, fleet, _LinkSimulator(), engine, keep, progress).run()
            return time.perf_counter() - start


if __name__ == "__main__":
    main()
