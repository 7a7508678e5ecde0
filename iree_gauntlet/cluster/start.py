"""Starts workers, and a scheduler with workers on this machine; ends them with Ctrl-C."""

from __future__ import annotations

import asyncio
import logging
import signal
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import dask
from distributed import Nanny, Scheduler
from distributed.core import Status

from iree_gauntlet.cluster.dask_worker import GauntletWorker
from iree_gauntlet.cluster.project_copy import OwnedFolder, folder_of
from iree_gauntlet.errors import ExitCode, UsageError
from iree_gauntlet.formatting import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from distributed.security import Security

    from iree_gauntlet.cluster.offers import WorkerOffer


# Neither measured programs nor references are to run with one thread, and nobody is to be ended for the memory that a
# compiler takes; what wakes up a hundred times a second, a profiler, or fifty times, to see how late events are, has no
# place beside a benchmark.
_SETTINGS: dict[str, Any] = {
    "distributed.nanny.pre-spawn-environ": {},
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "1s",
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": False,
    # Which worker does what again is not the scheduler's matter.
    "distributed.scheduler.allowed-failures": 0,
}
# Whether a scheduler of ours has a dashboard, where `cluster.status` finds it.
DASHBOARD = "gauntlet-dashboard"
_CONNECT_SECONDS = 30
_LOOK_SECONDS = 1.0
_MOST_MISSED = 3
_END_SECONDS = 20.0

# What Dask says of a worker that died is said here, and in the run that lost it.
logging.getLogger("distributed").setLevel(logging.CRITICAL)


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """Where workers are; no `security` is for loopback alone, a port of 0 for any that is free."""

    scheduler: str
    cache_dir: Path
    security: Security | None = None
    port: int = 0
    nanny_port: int = 0


def run_worker(place: WorkerPlace, offer: WorkerOffer, say: Callable[[str], None]) -> ExitCode:
    """Runs a worker until it is interrupted; where its scheduler goes, it waits for that to come back."""

    async def serve() -> ExitCode:
        keeper = _Keeper(place, offer, say)
        await keeper.begin()
        say(f"worker {offer.name} takes part in {place.scheduler}")
        return await _wait_until_interrupted([keeper])

    with dask.config.set(_SETTINGS), OwnedFolder(folder_of(place.cache_dir, offer.name)):
        return asyncio.run(serve())


def run_local(
    count: int, offer: WorkerOffer, place: WorkerPlace, port: int, say: Callable[[str], None], *, dashboard: bool
) -> ExitCode:
    """Runs a scheduler (its port is 0 for any) with workers that offer the same until it is interrupted."""

    async def serve() -> ExitCode:
        async with AsyncExitStack() as stack:
            try:
                scheduler = await stack.enter_async_context(
                    Scheduler(host="127.0.0.1", port=port, dashboard=dashboard, dashboard_address="127.0.0.1:0")
                )
            except (OSError, RuntimeError, OverflowError) as error:
                raise UsageError(
                    f"port {port} of this machine cannot be used: {error}", "Give another --port."
                ) from error
            scheduler.task_metadata[DASHBOARD] = dashboard
            here = replace(place, scheduler=scheduler.address)
            keepers = []
            for number in range(count):
                each = replace(offer, name=f"{offer.name}-{number}")
                stack.enter_context(OwnedFolder(folder_of(place.cache_dir, each.name)))
                keepers.append(_Keeper(here, each, say))
            await asyncio.gather(*(keeper.begin() for keeper in keepers))
            say(f"{counted(count, 'worker')} take{'s' if count == 1 else ''} part in {scheduler.address}")
            if dashboard:
                say(f"dashboard: http://127.0.0.1:{scheduler.http_server.port}/status")
            return await _wait_until_interrupted(keepers)

    with dask.config.set(_SETTINGS):
        return asyncio.run(serve())


class _Keeper:
    """Keeps a worker: under a nanny, which starts it again when it dies, and another nanny where that gives up.

    Dask's gives up when a worker dies while it starts, and when its scheduler is gone for a while.
    """

    def __init__(self, place: WorkerPlace, offer: WorkerOffer, say: Callable[[str], None]) -> None:
        self._place = place
        self._offer = offer
        self._say = say
        self._nanny: Nanny | None = None

    async def begin(self) -> None:
        """Starts the worker."""
        try:
            await self._start()
        except (OSError, ValueError, RuntimeError) as error:
            raise UsageError(
                f"worker {self._offer.name} cannot take part in {self._place.scheduler}: {error}",
                "See that no other worker has this name (--name), and that its ports are free (--port, --nanny-port).",
            ) from error

    async def keep(self) -> None:
        """Starts it again whenever its nanny has given up."""
        missed = 0
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            nanny = self._nanny
            process = nanny.process if nanny and nanny.status is Status.running else None
            missed = 0 if process and process.status in (Status.running, Status.starting) else missed + 1
            if missed < _MOST_MISSED:
                # Between a death and its nanny's next start a worker is not there either.
                continue
            missed = 0
            await self.end()
            try:
                await self._start()
            except (OSError, ValueError, RuntimeError) as error:
                self._say(f"worker {self._offer.name} is not there, and is tried again: {error!r}")
            else:
                self._say(f"worker {self._offer.name} takes part again")

    async def end(self) -> None:
        """Ends it, and all that it does."""
        nanny, self._nanny = self._nanny, None
        if nanny is not None:
            with suppress(OSError, AssertionError):
                await nanny.close(timeout=_END_SECONDS)

    async def _start(self) -> None:
        place, offer = self._place, self._offer
        self._nanny = await Nanny(
            place.scheduler,
            name=offer.name,
            # A step waits for its process here, and takes no part of a core; a few more plan runs.
            nthreads=offer.jobs + len(offer.devices) + 2,
            memory_limit=0,
            silence_logs=logging.CRITICAL,
            worker_class=GauntletWorker,
            security=place.security,
            protocol="tls" if place.security else "tcp",
            host=None if place.security else "127.0.0.1",
            worker_port=place.port,
            port=place.nanny_port,
            local_directory=str(folder_of(place.cache_dir, offer.name) / "dask"),
            death_timeout=_CONNECT_SECONDS,
            dashboard=False,
            # Its page of health has no business outside of this machine.
            dashboard_address="127.0.0.1:0",
            offer=offer.as_dict(),
            cache_dir=str(place.cache_dir),
        )


async def _wait_until_interrupted(keepers: Sequence[_Keeper]) -> ExitCode:
    """Keeps workers until Ctrl-C or SIGTERM, then ends them."""
    interrupted = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupted.set)
    keeping = [asyncio.create_task(keeper.keep()) for keeper in keepers]
    await interrupted.wait()
    for task in keeping:
        task.cancel()
    await asyncio.gather(*keeping, return_exceptions=True)
    await asyncio.gather(*(keeper.end() for keeper in keepers))
    return ExitCode.INTERRUPTED
