"""Starts workers, and a scheduler with workers on this machine; ends them with Ctrl-C."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import shutil
import signal
import tempfile
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import dask
from distributed import Nanny, Scheduler

from iree_gauntlet.cluster.dask_worker import GauntletWorker
from iree_gauntlet.errors import ExitCode, UsageError
from iree_gauntlet.system.file_lock import LockFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from distributed.security import Security

    from iree_gauntlet.cluster.offers import WorkerOffer


# Neither measured programs nor references are to run with one thread, and nobody is to be ended for the memory that a
# compiler takes; a profiler that wakes up a hundred times a second has no place beside a benchmark.
_SETTINGS: dict[str, Any] = {
    "distributed.nanny.pre-spawn-environ": {},
    "distributed.worker.profile.enabled": False,
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": False,
    # Which worker does what again is not the scheduler's matter.
    "distributed.scheduler.allowed-failures": 0,
}
_CONNECT_SECONDS = 30
_LOCK = "worker.lock"


@dataclass(frozen=True, slots=True)
class Place:
    """Where workers are.

    Attributes:
        scheduler: its address.
        cache_dir: their cache.
        security: encrypts what they say; None for loopback alone.
        port, nanny_port: that they listen on; 0 for any.
    """

    scheduler: str
    cache_dir: Path
    security: Security | None = None
    port: int = 0
    nanny_port: int = 0


def run_worker(place: Place, offer: WorkerOffer, say: Callable[[str], None]) -> ExitCode:
    """Runs a worker until it is interrupted, or its scheduler is gone.

    Args:
        place: where.
        offer: what it offers.
        say: gets a line when it is there.

    Raises:
        UsageError: there is no scheduler, or it has a worker of this name.
    """

    async def serve() -> ExitCode:
        async with AsyncExitStack() as stack:
            nanny = await _entered(stack, place, offer)
            say(f"worker {offer.name} takes part in {place.scheduler}")
            return await _until_interrupted(nanny.finished())

    with dask.config.set(_SETTINGS):
        return asyncio.run(serve())


def run_local(count: int, offer: WorkerOffer, place: Place, port: int, say: Callable[[str], None]) -> ExitCode:
    """Runs a scheduler with workers on this machine until it is interrupted.

    Args:
        count: how many workers.
        offer: what each of them offers, but for its name.
        place: where; the scheduler is made here.
        port: of the scheduler; 0 for any.
        say: gets lines when they are there.

    Raises:
        UsageError: the port is taken.
    """
    dashboard = importlib.util.find_spec("bokeh") is not None

    async def serve() -> ExitCode:
        async with AsyncExitStack() as stack:
            try:
                scheduler = await stack.enter_async_context(
                    Scheduler(host="127.0.0.1", port=port, dashboard=dashboard, dashboard_address="127.0.0.1:0")
                )
            except OSError as error:
                raise UsageError(
                    f"port {port} of this machine cannot be used: {error}", "Give another --port."
                ) from error
            here = replace(place, scheduler=scheduler.address)
            for number in range(count):
                await _entered(stack, here, replace(offer, name=f"{offer.name}-{number}"))
            say(f"{count} workers take part in {scheduler.address}")
            if dashboard:
                say(f"dashboard: http://127.0.0.1:{scheduler.http_server.port}/status")
            return await _until_interrupted(scheduler.finished())

    with dask.config.set(_SETTINGS):
        return asyncio.run(serve())


async def _entered(stack: AsyncExitStack, place: Place, offer: WorkerOffer) -> Nanny:
    """A worker that is there, under a nanny that starts it again when it dies."""
    stack.enter_context(_Owned(place.cache_dir, offer.name))
    logging.getLogger("distributed").setLevel(logging.WARNING)
    scratch = tempfile.mkdtemp(prefix="gauntlet-dask-")
    stack.callback(shutil.rmtree, scratch, ignore_errors=True)
    nanny = Nanny(
        place.scheduler,
        name=offer.name,
        # A step waits for its process here, and takes no part of a core; a few more plan runs.
        nthreads=offer.jobs + len(offer.devices) + 2,
        memory_limit=0,
        silence_logs=logging.WARNING,
        worker_class=GauntletWorker,
        security=place.security,
        protocol="tls" if place.security else "tcp",
        host=None if place.security else "127.0.0.1",
        worker_port=place.port,
        port=place.nanny_port,
        local_directory=scratch,
        death_timeout=_CONNECT_SECONDS,
        dashboard=False,
        offer=offer.as_dict(),
        cache_dir=str(place.cache_dir),
    )
    try:
        return await stack.enter_async_context(nanny)
    except (OSError, ValueError, RuntimeError) as error:
        raise UsageError(
            f"worker {offer.name} cannot take part in {place.scheduler}: {error}",
            "See that the scheduler runs there, and that no other worker has this name (--name).",
        ) from error


async def _until_interrupted(ended: Any) -> ExitCode:
    interrupted = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupted.set)
    waiting = [asyncio.ensure_future(ended), asyncio.ensure_future(interrupted.wait())]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()
    return ExitCode.INTERRUPTED if interrupted.is_set() else ExitCode.OK


class _Owned:
    """Owns the folder of a worker's runs while it lives; clears what workers have left that were killed."""

    def __init__(self, cache_dir: Path, name: str) -> None:
        self._folder = cache_dir / "cluster" / name
        self._lock = LockFile(self._folder / _LOCK)

    def __enter__(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        if not self._lock.acquire_now():
            raise UsageError(f"a worker {self._folder.name} runs here already", "Give this one another --name.")
        for folder in _left_behind(self._folder):
            shutil.rmtree(folder, ignore_errors=True)

    def __exit__(self, *_: object) -> None:
        self._lock.remove()
        shutil.rmtree(self._folder, ignore_errors=True)


def _left_behind(own: Path) -> Iterator[Path]:
    for lock in own.parent.glob(f"*/{_LOCK}"):
        if lock.parent == own:
            continue
        other = LockFile(lock)
        if other.acquire_now():
            yield lock.parent
            other.release()
