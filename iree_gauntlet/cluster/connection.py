"""A cluster that runs are carried out on: the connection to its scheduler, and what of a run is done there.

Workers are reached through Dask: tasks pinned to workers, and what the scheduler says of who is there.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import itertools
import logging
import os
import queue
import socket
import ssl
import tempfile
import threading
import uuid
from collections import Counter, defaultdict
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from distributed import Client, KilledWorker
from distributed.comm.core import connect
from distributed.security import Security

from iree_gauntlet import __version__
from iree_gauntlet.cases import Verdict
from iree_gauntlet.cluster.dask_worker import ask_worker
from iree_gauntlet.cluster.fleet import ClusterRunner, Fleet, keep_below, list_demands
from iree_gauntlet.cluster.link import (
    Answered,
    Broken,
    BrokenRunError,
    Joined,
    Left,
    Made,
    Refused,
    RefusedRunError,
    RunFacts,
    SharedRun,
    Supplied,
    Unfit,
    UnfitDeviceError,
)
from iree_gauntlet.cluster.offers import WorkerOffer
from iree_gauntlet.cluster.project_copy import pack_project
from iree_gauntlet.device_kinds import is_cpu
from iree_gauntlet.engine.scheduler import ReadyQueue
from iree_gauntlet.errors import GauntletError, MachinesLostError, UsageError
from iree_gauntlet.formatting import counted
from iree_gauntlet.steps import Resources
from iree_gauntlet.toolchains.find import IREE_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from distributed import Future

    from iree_gauntlet.artifacts.store import ArtifactStore
    from iree_gauntlet.cluster.link import Event, Order, OrderAnswer
    from iree_gauntlet.cluster.project_copy import ProjectCopy
    from iree_gauntlet.engine.engine import Engine
    from iree_gauntlet.engine.plan import Plan
    from iree_gauntlet.engine.workbench import Workbench
    from iree_gauntlet.engine.workspace import Selection
    from iree_gauntlet.experiments.run import Chosen
    from iree_gauntlet.experiments.sides import MadeByWorker, PreparedSide, RoundsLog
    from iree_gauntlet.progress import Progress
    from iree_gauntlet.requests import CompareRequest, TlsRequest
    from iree_gauntlet.steps import Step


_TURN_SECONDS = 0.5
_CONNECT_SECONDS = 15.0
_HANDSHAKE_SECONDS = 0.2
_HOW = "Start a scheduler (`dask scheduler`, or `gauntlet cluster.local 4`), and give the address that it shows."
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


def find_security(address: str, request: TlsRequest) -> Security | None:
    """What encrypts the connection; None for none, which goes to this machine alone.

    Raises:
        UsageError: the address is another machine's, and nothing is encrypted; or files are missing.
    """
    scheme, host, port = _split_address(address)
    if scheme not in ("tcp", "tls") or not host or not port:
        raise UsageError(f"{address}: no address of a scheduler", f"It is tcp://HOST:PORT or tls://…. {_HOW}")
    files = {"--tls-ca-file": request.tls_ca_file, "--tls-cert": request.tls_cert, "--tls-key": request.tls_key}
    if scheme == "tcp":
        if given := [name for name, file in files.items() if file]:
            raise UsageError(f"{given[0]}: {address} is not encrypted", "Give the scheduler's address as tls://….")
        try:
            loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
        except ValueError:
            loopback = False
        if not loopback:
            raise UsageError(
                f"{address} is not encrypted: whoever reaches it has anything done on every worker",
                "Use tls:// with certificates, or a tunnel to this machine (docs/how-to/cluster.md).",
            )
        return None
    missing = [name for name, file in files.items() if not file]
    if missing:
        raise UsageError(f"{address} needs {', '.join(missing)}", "docs/how-to/cluster.md says how they are made.")
    for name, file in files.items():
        if not os.path.isfile(file):  # noqa: PTH113 - as it was typed
            raise UsageError(f"{name} {file}: there is no such file", "Name a PEM file.")
    ca, cert, key = files.values()
    return Security(
        require_encryption=True,
        tls_ca_file=ca,
        **dict.fromkeys(("tls_client_cert", "tls_worker_cert", "tls_scheduler_cert"), cert),
        **dict.fromkeys(("tls_client_key", "tls_worker_key", "tls_scheduler_key"), key),
    )


def _split_address(address: str) -> tuple[str, str, int]:
    """Scheme, host and port; empty and 0 where they cannot be told."""
    try:
        parts = urlsplit(address)
        port = parts.port or 0
    except ValueError:
        return "", "", 0
    return parts.scheme, parts.hostname or "", port


def require_scheduler(address: str, security: Security | None) -> None:
    """Raises a `UsageError` where nothing listens at an address, or certificates do not fit."""
    _, host, port = _split_address(address)
    try:
        with socket.create_connection((host, port), timeout=_CONNECT_SECONDS) as plain:
            if security is not None:
                context = security.get_connection_args("client")["ssl_context"]
                with context.wrap_socket(plain, server_hostname=host) as encrypted:
                    # Who does not take our certificate says so only when something is read.
                    encrypted.settimeout(_HANDSHAKE_SECONDS)
                    with suppress(TimeoutError):
                        encrypted.recv(1)
    except ssl.SSLError as error:
        what = f"{address}: the certificates do not fit: {error.reason or error}"
        raise UsageError(
            what, "Both sides' have to be signed by the --tls-ca-file of the other, each with its key."
        ) from error
    except OSError as error:
        raise UsageError(f"no scheduler answers at {address}: {error.strerror or error}", _HOW) from error


@contextmanager
def connected(address: str, request: TlsRequest) -> Iterator[Client]:
    """A client of a cluster's scheduler; a `UsageError` as of `find_security`, or where nothing answers."""
    security = find_security(address, request)
    require_scheduler(address, security)
    try:
        client = Client(
            address,
            security=security,
            timeout=_CONNECT_SECONDS,
            set_as_default=False,
            name="gauntlet",
            direct_to_workers=False,
        )
    except (OSError, TimeoutError, ValueError) as error:
        raise UsageError(f"no scheduler answers at {address}: {error}", _HOW) from error
    with client:
        yield client


class Cluster:
    """Workers that take part in runs; as `ComparingMachines` of `experiments/sides.py`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    @contextmanager
    def taking_part(
        self, chosen: Chosen, machine: Workbench, run_dir: Path, progress: Progress
    ) -> Iterator[ClusterPart]:
        """Has the workers plan a run, each in a process of its own, which ends with this."""
        # With the IREE that the environment names.
        asked = chosen.request.toolchain
        toolchain = replace(asked, iree=asked.iree or os.environ.get(IREE_VARIABLE, ""))
        request = replace(chosen.request, toolchain=toolchain, stages=chosen.stages)
        shared = (SharedRun.of(request, machine, run_dir),)
        with self._plan(run_dir.name, chosen.selection, shared, machine.store, progress) as link:
            yield ClusterPart(link, run_dir, progress)

    @contextmanager
    def comparing(
        self, chosen: Chosen, asked: CompareRequest, sides: tuple[PreparedSide, PreparedSide], progress: Progress
    ) -> Iterator[ComparisonPart]:
        """Has the workers plan both sides of a comparison, as for `taking_part`."""
        shared = []
        for side in sides:
            request = replace(chosen.within(side.folder, side.asked).request, stages=chosen.stages)
            # What was to be compiled again has been.
            request = replace(request, conduct=replace(request.conduct, force_recompile=False))
            shared.append(SharedRun.of(request, side.machine, side.folder))
        name, store = sides[0].folder.parent.name, sides[0].machine.store
        with self._plan(name, chosen.selection, tuple(shared), store, progress, asked) as link:
            yield ComparisonPart(link, progress)

    @contextmanager
    def _plan(
        self,
        name: str,
        selection: Selection,
        runs: tuple[SharedRun, ...],
        store: ArtifactStore,
        progress: Progress,
        comparison: CompareRequest | None = None,
    ) -> Iterator[DaskLink]:
        with tempfile.TemporaryDirectory(prefix="gauntlet-project-") as folder:
            project = pack_project(selection, Path(folder) / "project.tar")
            facts = RunFacts(f"{name}-{uuid.uuid4().hex[:8]}", project.sha256, project.cwd, runs, comparison)
            link = DaskLink(self._client, facts, project, store)
            try:
                progress.waiting("for the workers of the cluster to plan the run")
                link.open()
                yield link
            finally:
                link.end()


class ClusterPart:
    """What a cluster does of one run; as `Elsewhere` of the engine."""

    def __init__(self, link: DaskLink, run_dir: Path, progress: Progress) -> None:
        self._link = link
        self._run_dir = run_dir
        self._progress = progress
        self._early: list[Event] = []

    def on_devices_there(self, plan: Plan, *, optional: bool) -> Plan:
        """The plan, where workers offer what it asks for.

        Raises:
            UsageError: none of them offers something, or none can take part in the run.
        """
        offers = _require_offers(self._link)
        demands = list_demands(plan.steps)
        lacking: dict[str, list[Step]] = {}
        steps: list[Step] = []
        for step in plan.steps:
            demand = demands[step.id]
            if step.skip or step.blocked or any(demand.is_met_by(offer) for offer in offers.values()):
                steps.append(step)
            else:
                lacking.setdefault(demand.text, []).append(step)
                skip = f"compiled only: no worker has {demand.text}"
                steps.append(replace(step, skip=skip, resources=Resources(cores=0)))
        if lacking and not optional:
            lines = [
                f"{text}, which {counted(len(need), 'step')} need: {need[-1].id}" for text, need in lacking.items()
            ]
            what = f"no worker of the cluster has {'; nor '.join(lines)}"
            raise UsageError(what, f"There are: {'; '.join(offer.text for offer in offers.values())}.")
        self._early = _wait_for_the_first(self._link, self._progress)
        return replace(plan, steps=tuple(steps))

    def perform(self, steps: Sequence[Step], finished: Mapping[str, Verdict], engine: Engine) -> dict[str, Verdict]:
        """Runs the steps on the workers."""
        fleet = Fleet(steps)
        queue = ReadyQueue(steps, finished, fleet, fail_fast=engine.options.fail_fast)
        keep = keep_below(self._run_dir)
        link, progress = self._link, self._progress
        return ClusterRunner(queue, fleet, link, engine, keep, progress, plan=engine, early=self._early).run()


class ComparisonPart:
    """What a cluster does of one comparison; as `RoundsElsewhere`."""

    def __init__(self, link: DaskLink, progress: Progress) -> None:
        self._link = link
        self._progress = progress

    def measure(self, units: Sequence[Step], made: Sequence[MadeByWorker], rounds: RoundsLog) -> None:
        """Has each unit measured by a worker."""
        addresses: defaultdict[str, tuple[str, ...]] = defaultdict(tuple)
        for address, offer in _require_offers(self._link).items():
            addresses[offer.name] += (address,)
        early = _wait_for_the_first(self._link, self._progress)
        there = {
            item.need: Made(item.need, item.key, addresses.get(item.worker.partition("/")[0], ())) for item in made
        }
        fleet = Fleet(units)
        queue = ReadyQueue(units, dict.fromkeys(there, Verdict.PASSED), fleet, fail_fast=False)

        def seconds(step: Step) -> float:
            demand = fleet.request(step)
            # Those that wait, and this one, which does not any more.
            return rounds.share(fleet.hosts(demand), queue.waiting.get(demand, 0) + 1)

        def keep(step: Step, answer: OrderAnswer) -> None:
            rounds.keep(step, answer.events)

        link, progress = self._link, self._progress
        ClusterRunner(queue, fleet, link, rounds, keep, progress, made=there, seconds=seconds, early=early).run()


def _wait_for_the_first(link: DaskLink, progress: Progress) -> list[Event]:
    """Waits until a worker has planned the run, or none is left; the run waits itself for those that died."""
    left, refused = len(link.offers()), 0
    happened: list[Event] = []
    while left > 0 and not any(isinstance(event, Joined) for event in happened):
        event = link.next_event(_TURN_SECONDS)
        happened += [event] if event is not None else []
        if isinstance(event, Refused):
            # Of one that refuses a device alone more is to come.
            left -= not event.device
            refused += not event.device
        elif isinstance(event, Left):
            left -= 1
    if refused and refused == len(link.offers()):
        reasons = [event.text for event in happened if isinstance(event, Refused)]
        raise GauntletError(f"no worker can take part: {'; '.join(reasons)}", "Mend one, and run again.")
    progress.waiting("")
    return happened


def _require_offers(link: DaskLink) -> dict[str, WorkerOffer]:
    """What the workers offer that are there, by address."""
    offers = link.offers()
    if not offers:
        raise UsageError("the cluster has no workers", "Start some: gauntlet worker ADDRESS --device cpu.")
    return offers


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
