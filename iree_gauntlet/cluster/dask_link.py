"""The link to workers through Dask: tasks pinned to workers, and what the scheduler says of who is there."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import queue
import threading
from collections import Counter
from concurrent.futures import CancelledError
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from distributed import KilledWorker
from distributed.comm.core import connect

from iree_gauntlet import __version__
from iree_gauntlet.cluster.dask_worker import ask_worker
from iree_gauntlet.cluster.link import (
    Answered,
    Broken,
    BrokenRunError,
    Joined,
    Left,
    Refused,
    RefusedRunError,
    Supplied,
    Unfit,
    UnfitDeviceError,
)
from iree_gauntlet.cluster.offers import WorkerOffer
from iree_gauntlet.device_kinds import is_cpu
from iree_gauntlet.errors import GauntletError, MachinesLostError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from distributed import Client, Future

    from iree_gauntlet.artifacts.store import ArtifactStore
    from iree_gauntlet.cluster.link import Event, Order, RunFacts
    from iree_gauntlet.cluster.project_copy import ProjectCopy


# Workers end a run of which nothing is heard for half a minute, and a run gives up a worker that does not answer for so
# long: a signal or its machine holds it.
_BEAT_SECONDS = 5.0
_SILENCE_SECONDS = 30.0
_BLOCK_BYTES = 4 << 20
_END_SECONDS = 30.0

# What it says of workers that are lost is said in the run, and in its results.
for _name in ("distributed", "distributed.client"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)

_VERSIONS = "install the same on both"
# Where `cluster.status` finds who does what.
STATES = "gauntlet-runs"


class DaskLink:
    """The link of one run."""

    def __init__(self, client: Client, facts: RunFacts, project: ProjectCopy, store: ArtifactStore) -> None:
        self._client = client
        self._facts = facts
        self._project = project
        self._store = store
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        # Of the client's event loop, as all that follows.
        self._known: set[str] = set()
        self._renewing: set[str] = set()
        # Workers whose last beat is not answered yet.
        self._unanswered: set[str] = set()
        # How often each has begun the run.
        self._terms: Counter[str] = Counter()
        self._offered: dict[str, WorkerOffer] = {}
        self._futures: dict[tuple[str, str], Future] = {}
        self._asked = itertools.count()
        self._background: set[asyncio.Task[Any]] = set()
        self._ended = threading.Event()
        self._beating: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Has all workers that are there plan the run; those that come later are asked when they come."""
        self._client.subscribe_topic("all", self._hear)
        self._client.sync(self._open)

    def offers(self) -> dict[str, WorkerOffer]:
        """What those offer that were there when it was opened, by address."""
        return dict(self._offered)

    # What a `Link` does

    def send(self, worker: str, order: Order) -> None:
        """Has a worker do a step."""
        self._client.loop.add_callback(self._keep, self._do(worker, order))

    def supply(self, worker: str, step: str, urls: tuple[str, ...]) -> None:
        """Brings files to a worker."""
        self._client.loop.add_callback(self._keep, self._supply(worker, step, urls))

    def next_event(self, seconds: float) -> Event | None:
        """What happens next.

        Raises:
            MachinesLostError: the scheduler is gone.
        """
        try:
            return self._events.get(timeout=seconds)
        except queue.Empty:
            if self._client.status not in ("running", "connecting"):
                raise MachinesLostError(
                    "the scheduler of the cluster is gone", "Start it again, and go on with `--resume`."
                ) from None
            return None

    def show(self, running: Sequence[tuple[str, str, str]], waiting: Mapping[str, int]) -> None:
        """Makes known who does what."""
        said = {"running": list(map(list, running)), "waiting": list(map(list, waiting.items()))}
        self._client.loop.add_callback(self._keep, self._show(said))

    def end(self) -> None:
        """Has all workers end what they do for this run; once, and not longer than half a minute."""
        if self._ended.is_set():
            return
        self._ended.set()
        if self._client.status != "running":
            # Workers whose scheduler is gone end by themselves what they do.
            return
        with contextlib.suppress(OSError, TimeoutError):
            self._client.sync(self._close, callback_timeout=_END_SECONDS)

    # What happens in the client's event loop

    def _keep(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._end_background)

    def _end_background(self, task: asyncio.Task[Any]) -> None:
        self._background.discard(task)
        if not task.cancelled() and isinstance(task.exception(), OSError | TimeoutError | CancelledError):
            # The connection is gone: whoever asks for the next event is told.
            return
        if not task.cancelled() and (error := task.exception()) is not None:
            logging.getLogger("iree_gauntlet").error("in the background of a cluster's run", exc_info=error)

    async def _open(self) -> None:
        self._beating = asyncio.ensure_future(self._keep_beating())
        addresses = await self._list_workers()
        for address in addresses:
            self._keep(self._begin(address))
        answers = await asyncio.gather(*(self._ask_in_time(address, "describe") for address in addresses))
        self._offered = {
            address: WorkerOffer.from_dict(offer)
            for address, offer in zip(addresses, answers, strict=True)
            if offer is not None
        }

    def _hear(self, event: tuple[float, Any]) -> None:
        match event:
            case (_, {"action": "add-worker", "worker": worker}):
                self._keep(self._begin(worker))
            case (_, {"action": "remove-worker", "worker": worker}):
                self._note_left(worker)

    def _note_left(self, address: str) -> None:
        self._known.discard(address)
        for key in [key for key in self._futures if key[0] == address]:
            self._keep(self._futures.pop(key).cancel())
        self._events.put(Left(address))

    async def _begin(self, address: str) -> None:
        """Has a worker plan the run, with the copy of the project in its place first."""
        if address in self._known or self._ended.is_set():
            return
        self._known.add(address)
        name = address
        try:
            found = (await self._client.run(ask_worker, "describe", workers=[address])).get(address)
            if found is None:
                # A Dask worker for something else.
                return
            offer = WorkerOffer.from_dict(found)
            name = offer.name
            if offer.version != __version__:
                self._events.put(
                    Refused(name, f"it has Gauntlet {offer.version}, and the run {__version__}: {_VERSIONS}")
                )
                return
            there = await self._client.run(ask_worker, "has_project", self._facts.sha256, workers=[address])
            if not there[address] and (what := await self._bring("project", address)):
                self._events.put(Refused(name, what))
                return
            # Each time another task: the result of an earlier one is not that of a process which has ended since.
            key = ("begin", self._facts.name, address, next(self._asked))
            term = self._terms[address]
            future = self._client.submit(
                ask_worker, "begin_run", self._facts, term, workers=[address], pure=False, key=key
            )
            unfit: dict[str, str] = await future
            for device, reason in unfit.items():
                self._events.put(Refused(name, reason, device))
            if any(device.name in unfit and is_cpu(device.uri) for device in offer.devices):
                # Whoever computes wrong does not compile right.
                self._events.put(Refused(name, "its processor failed the health check"))
            else:
                devices = tuple(device for device in offer.devices if device.name not in unfit)
                self._events.put(Joined(address, replace(offer, devices=devices)))
        except RefusedRunError as error:
            self._events.put(Refused(name, str(error)))
        except Exception as error:  # noqa: BLE001 - whatever Dask says of a worker that it could not have asked
            # Of one that is gone it is said by itself.
            if address in self._known and not isinstance(error, KilledWorker | CancelledError):
                self._known.discard(address)
                self._events.put(Refused(name, f"it cannot be reached: {type(error).__name__}: {error}"))

    async def _renew(self, address: str) -> None:
        """Has a worker begin the run again, once for all orders that broke together; nobody waits for what it does."""
        if address in self._renewing:
            return
        self._renewing.add(address)
        self._terms[address] += 1
        try:
            self._known.discard(address)
            await self._begin(address)
        finally:
            self._renewing.discard(address)

    async def _do(self, worker: str, order: Order) -> None:
        # The first word is what the scheduler keeps for ever, and what its dashboard has a colour for.
        stage = order.step.rpartition(":")[2]
        key = (stage, order.step, self._facts.name, order.attempt, next(self._asked))
        future = self._futures[worker, order.step] = self._client.submit(
            ask_worker, "do", self._facts.name, order, workers=[worker], pure=False, key=key, retries=0
        )
        try:
            self._events.put(Answered(worker, order.step, await future))
        except UnfitDeviceError as error:
            self._events.put(Unfit(worker, order.step, str(error)))
        except Exception as error:  # noqa: BLE001 - whatever Dask says of a task that it could not have done
            if worker not in self._known or isinstance(error, KilledWorker) or self._ended.is_set():
                # Its worker is gone, which is said by itself.
                return
            # Or the connection to the scheduler was, and all that it knew of this run with it.
            what = str(error) if isinstance(error, BrokenRunError) else f"{type(error).__name__}: {error}"
            if isinstance(error, CancelledError):
                what = "the connection to the scheduler was lost"
            self._events.put(Broken(worker, order.step, what))
            self._keep(self._renew(worker))
        finally:
            if self._futures.get((worker, order.step)) is future:
                del self._futures[worker, order.step]

    async def _supply(self, worker: str, step: str, urls: tuple[str, ...]) -> None:
        what = ""
        try:
            for url in urls:
                path = (await asyncio.to_thread(self._store.fetch, url)).path
                if what := await self._bring("artifact", worker, path=path, url=url):
                    break
        except GauntletError as error:
            what = error.on_one_line
        except OSError as error:
            what = f"{type(error).__name__}: {error}"
        self._events.put(Supplied(worker, step, what))

    async def _bring(self, what: str, worker: str, path: Path | None = None, url: str = "") -> str:
        """Sends a file straight to a worker; what is wrong, empty where it is there."""
        named = {"sha256": self._facts.sha256} if path is None else {"url": url}
        comm = await connect(worker, **self._client.connection_args)
        try:
            await comm.write({"op": f"gauntlet_{what}", **named})
            with (path or self._project.archive).open("rb") as file:
                while block := file.read(_BLOCK_BYTES):
                    await comm.write(block)
            await comm.write(b"")
            said = await comm.read()
            # What failed there without a word of ours, Dask says.
            return said if isinstance(said, str) else f"it failed: {said.get('exception_text', said)}"
        finally:
            comm.abort()

    async def _show(self, said: dict[str, Any]) -> None:
        await self._client.scheduler.set_metadata(keys=[STATES, self._facts.name], value=said)

    async def _ask_in_time(self, address: str, what: str, *arguments: Any) -> Any:
        """As `ask_worker`; None of one that does not answer in time, or that is gone."""
        answer = self._client.run(ask_worker, what, *arguments, workers=[address], on_error="ignore")
        with contextlib.suppress(TimeoutError):
            return (await asyncio.wait_for(answer, _SILENCE_SECONDS)).get(address)
        return None

    async def _keep_beating(self) -> None:
        while not self._ended.is_set():
            # While the client connects again nothing can be asked; it is tried again.
            with contextlib.suppress(OSError, TimeoutError):
                # What the scheduler says of those who come and go is lost when the connection is.
                there = await self._list_workers()
                for address in self._known.difference(there):
                    self._note_left(address)
                for address in set(there).difference(self._unanswered):
                    self._keep(self._begin(address))
                    self._keep(self._beat(address))
            await asyncio.sleep(_BEAT_SECONDS)

    async def _beat(self, address: str) -> None:
        """Lets a worker hear of the run; one that does not answer in time has left until it answers."""
        self._unanswered.add(address)
        answer = asyncio.ensure_future(
            self._client.run(ask_worker, "hear", self._facts.name, workers=[address], on_error="ignore")
        )
        try:
            if not (await asyncio.wait({answer}, timeout=_SILENCE_SECONDS))[0]:
                # What it is doing counts no more: it begins the run again when it answers.
                self._terms[address] += 1
                self._note_left(address)
            await answer
        finally:
            self._unanswered.discard(address)

    async def _list_workers(self) -> list[str]:
        """The addresses of all workers that the scheduler has."""
        return list((await self._client.scheduler.identity(n_workers=-1))["workers"])

    async def _close(self) -> None:
        if self._beating is not None:
            self._beating.cancel()
        self._client.unsubscribe_topic("all")
        for future in list(self._futures.values()):
            self._keep(future.cancel())
        self._futures.clear()
        await self._show({})
        await asyncio.gather(*(self._ask_in_time(address, "end_run", self._facts.name) for address in self._known))
