"""A cluster that executes runs: the connection to its scheduler, and the execution of a run's steps there.

Workers are reached through Dask: by tasks pinned to workers, and by the scheduler's list of workers.
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
from iree_gauntlet.cluster.fleet import ClusterRunner, Fleet, list_resource_requests, make_file_saver
from iree_gauntlet.cluster.link import (
    AnswerEvent,
    JoinEvent,
    LeaveEvent,
    ModuleLocation,
    ProcessDeathEvent,
    RejectionEvent,
    RunDescription,
    RunInfo,
    RunProcessError,
    RunRejectionError,
    SupplyEvent,
    UnfitDeviceError,
    UnfitDeviceEvent,
)
from iree_gauntlet.cluster.offers import WorkerResources
from iree_gauntlet.cluster.project_copy import pack_project
from iree_gauntlet.device_kinds import is_cpu
from iree_gauntlet.engine.scheduler import ReadyQueue
from iree_gauntlet.errors import GauntletError, MachinesLostError, UsageError
from iree_gauntlet.formatting import pluralize
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
    from iree_gauntlet.experiments.run import RunSetup
    from iree_gauntlet.experiments.sides import ComparisonSide, RoundsLog, WorkerModule
    from iree_gauntlet.progress import Progress
    from iree_gauntlet.requests import CompareRequest, TlsRequest
    from iree_gauntlet.steps import Step


_EVENT_TIMEOUT_SECONDS = 0.5
_CONNECT_TIMEOUT_SECONDS = 15.0
_HANDSHAKE_TIMEOUT_SECONDS = 0.2
_START_HINT = "Start a scheduler (`dask scheduler`, or `gauntlet cluster.local 4`), and use the address that it prints."
# A worker ends a run whose heartbeats stop for half a minute. A run gives up a worker that does not answer for as long:
# a signal holds the worker, or its machine hangs.
_HEARTBEAT_SECONDS = 5.0
_SILENCE_TIMEOUT_SECONDS = 30.0
_BLOCK_BYTES = 4 << 20
_CLOSE_TIMEOUT_SECONDS = 30.0

# The run itself reports lost workers, in its output and its results, so Dask's messages are not shown.
for _name in ("distributed", "distributed.client"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)

_VERSION_HINT = "install the same version on both"
# The scheduler's metadata key of the running steps, for `cluster.status`.
RUN_STATES_KEY = "gauntlet-runs"


def make_security(address: str, request: TlsRequest) -> Security | None:
    """Return the encryption of the connection; None for no encryption, which is allowed only within this machine.

    Raises:
        UsageError: certificate files are missing, or no encryption is configured for another machine's address.
    """
    scheme, host, port = _split_address(address)
    if scheme not in ("tcp", "tls") or not host or not port:
        raise UsageError(f"{address}: not a scheduler's address", f"It is tcp://HOST:PORT or tls://…. {_START_HINT}")
    files = {"--tls-ca-file": request.tls_ca_file, "--tls-cert": request.tls_cert, "--tls-key": request.tls_key}
    if scheme == "tcp":
        if tls_options := [name for name, file in files.items() if file]:
            raise UsageError(
                f"{tls_options[0]}: {address} is not encrypted", "Use a tls://… address for the scheduler."
            )
        try:
            is_loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
        except ValueError:
            is_loopback = False
        if not is_loopback:
            raise UsageError(
                f"{address} is not encrypted: whoever can reach it can run anything on every worker",
                "Use tls:// with certificates, or a tunnel to this machine (docs/how-to/cluster.md).",
            )
        return None
    missing = [name for name, file in files.items() if not file]
    if missing:
        raise UsageError(f"{address} needs {', '.join(missing)}", "docs/how-to/cluster.md explains how to create them.")
    for name, file in files.items():
        if not os.path.isfile(file):  # noqa: PTH113 - as it was typed
            raise UsageError(f"{name} {file}: no such file", "Name a PEM file.")
    ca, cert, key = files.values()
    return Security(
        require_encryption=True,
        tls_ca_file=ca,
        **dict.fromkeys(("tls_client_cert", "tls_worker_cert", "tls_scheduler_cert"), cert),
        **dict.fromkeys(("tls_client_key", "tls_worker_key", "tls_scheduler_key"), key),
    )


def _split_address(address: str) -> tuple[str, str, int]:
    """Return scheme, host and port; empty and 0 if they cannot be determined."""
    try:
        parts = urlsplit(address)
        port = parts.port or 0
    except ValueError:
        return "", "", 0
    return parts.scheme, parts.hostname or "", port


def require_scheduler(address: str, security: Security | None) -> None:
    """Raise a `UsageError` if no scheduler listens at an address, or certificates do not match."""
    _, host, port = _split_address(address)
    try:
        with socket.create_connection((host, port), timeout=_CONNECT_TIMEOUT_SECONDS) as plain_socket:
            if security is not None:
                context = security.get_connection_args("client")["ssl_context"]
                with context.wrap_socket(plain_socket, server_hostname=host) as tls_socket:
                    # Read something, because only then a peer reports that it rejects our certificate.
                    tls_socket.settimeout(_HANDSHAKE_TIMEOUT_SECONDS)
                    with suppress(TimeoutError):
                        tls_socket.recv(1)
    except ssl.SSLError as error:
        message = f"{address}: the certificates do not match: {error.reason or error}"
        raise UsageError(
            message, "Each side's certificate must be signed by the other's --tls-ca-file, and have its key."
        ) from error
    except OSError as error:
        raise UsageError(f"no scheduler answers at {address}: {error.strerror or error}", _START_HINT) from error


@contextmanager
def open_client(address: str, request: TlsRequest) -> Iterator[Client]:
    """Open a client of a cluster's scheduler; raise a `UsageError` as `make_security` does, or without an answer."""
    security = make_security(address, request)
    require_scheduler(address, security)
    try:
        client = Client(
            address,
            security=security,
            timeout=_CONNECT_TIMEOUT_SECONDS,
            set_as_default=False,
            name="gauntlet",
            direct_to_workers=False,
        )
    except (OSError, TimeoutError, ValueError) as error:
        raise UsageError(f"no scheduler answers at {address}: {error}", _START_HINT) from error
    with client:
        yield client


class Cluster:
    """Workers that take part in runs; the `ComparingMachines` of `experiments/sides.py`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    @contextmanager
    def taking_part(
        self, chosen: RunSetup, workbench: Workbench, run_dir: Path, progress: Progress
    ) -> Iterator[ClusterRunExecutor]:
        """Make each worker plan a run in a separate process, which ends with this context."""
        # Workers use the IREE that this machine's environment variable names.
        toolchain_options = chosen.request.toolchain
        toolchain = replace(toolchain_options, iree=toolchain_options.iree or os.environ.get(IREE_VARIABLE, ""))
        request = replace(chosen.request, toolchain=toolchain, stages=chosen.stages)
        shared_runs = (RunDescription.of(request, workbench, run_dir),)
        with self._plan(run_dir.name, chosen.selection, shared_runs, workbench.store, progress) as link:
            yield ClusterRunExecutor(link, run_dir, progress)

    @contextmanager
    def comparing(
        self,
        chosen: RunSetup,
        options: CompareRequest,
        sides: tuple[ComparisonSide, ComparisonSide],
        progress: Progress,
    ) -> Iterator[ClusterComparisonExecutor]:
        """Make the workers plan both sides of a comparison, as `taking_part` does."""
        shared_runs = []
        for side in sides:
            request = replace(chosen.within(side.folder, side.iree).request, stages=chosen.stages)
            # This machine has already done a requested recompilation.
            request = replace(request, execution=replace(request.execution, force_recompile=False))
            shared_runs.append(RunDescription.of(request, side.workbench, side.folder))
        name, store = sides[0].folder.parent.name, sides[0].workbench.store
        with self._plan(name, chosen.selection, tuple(shared_runs), store, progress, options) as link:
            yield ClusterComparisonExecutor(link, progress)

    @contextmanager
    def _plan(
        self,
        name: str,
        selection: Selection,
        runs: tuple[RunDescription, ...],
        store: ArtifactStore,
        progress: Progress,
        comparison: CompareRequest | None = None,
    ) -> Iterator[DaskLink]:
        with tempfile.TemporaryDirectory(prefix="gauntlet-project-") as folder:
            project = pack_project(selection, Path(folder) / "project.tar")
            run_info = RunInfo(f"{name}-{uuid.uuid4().hex[:8]}", project.sha256, project.cwd, runs, comparison)
            link = DaskLink(self._client, run_info, project, store)
            try:
                progress.waiting("for the cluster's workers to plan the run")
                link.open()
                yield link
            finally:
                link.end()


class ClusterRunExecutor:
    """Executes one run on a cluster, as `RemoteExecutor` of the engine."""

    def __init__(self, link: DaskLink, run_dir: Path, progress: Progress) -> None:
        self._link = link
        self._run_dir = run_dir
        self._progress = progress
        self._early_events: list[Event] = []

    def on_devices_there(self, plan: Plan, *, optional: bool) -> Plan:
        """Return the plan if workers have the resources that it needs.

        Raises:
            UsageError: no worker has a needed resource, or no worker can take part in the run.
        """
        workers = _require_workers(self._link)
        requests = list_resource_requests(plan.steps)
        unserved_steps: dict[str, list[Step]] = {}
        steps: list[Step] = []
        for step in plan.steps:
            request = requests[step.id]
            if step.skip or step.blocked or any(request.is_met_by(resources) for resources in workers.values()):
                steps.append(step)
            else:
                unserved_steps.setdefault(request.text, []).append(step)
                skip = f"compiled only: no worker has {request.text}"
                steps.append(replace(step, skip=skip, resources=Resources(cores=0)))
        if unserved_steps and not optional:
            lines = [
                f"{resource}, which {pluralize(len(needing_steps), 'step')} need: {needing_steps[-1].id}"
                for resource, needing_steps in unserved_steps.items()
            ]
            message = f"no worker of the cluster has {'; nor '.join(lines)}"
            raise UsageError(message, f"Available: {'; '.join(resources.text for resources in workers.values())}.")
        self._early_events = _wait_for_first_worker(self._link, self._progress)
        return replace(plan, steps=tuple(steps))

    def perform(self, steps: Sequence[Step], finished: Mapping[str, Verdict], engine: Engine) -> dict[str, Verdict]:
        """Run the steps on the workers."""
        fleet = Fleet(steps)
        queue = ReadyQueue(steps, finished, fleet, fail_fast=engine.options.fail_fast)
        keep = make_file_saver(self._run_dir)
        link, progress = self._link, self._progress
        return ClusterRunner(
            queue, fleet, link, engine, keep, progress, plan_handler=engine, early_events=self._early_events
        ).run()


class ClusterComparisonExecutor:
    """Executes one comparison on a cluster, as `RoundsElsewhere`."""

    def __init__(self, link: DaskLink, progress: Progress) -> None:
        self._link = link
        self._progress = progress

    def measure(self, units: Sequence[Step], made: Sequence[WorkerModule], rounds: RoundsLog) -> None:
        """Have each unit measured by a worker."""
        addresses: defaultdict[str, tuple[str, ...]] = defaultdict(tuple)
        for address, resources in _require_workers(self._link).items():
            addresses[resources.name] += (address,)
        early = _wait_for_first_worker(self._link, self._progress)
        modules = {
            module.need: ModuleLocation(module.need, module.key, addresses.get(module.worker.partition("/")[0], ()))
            for module in made
        }
        fleet = Fleet(units)
        queue = ReadyQueue(units, dict.fromkeys(modules, Verdict.PASSED), fleet, fail_fast=False)

        def share_time(step: Step) -> float:
            request = fleet.request(step)
            # The queue no longer counts this step as waiting, so 1 is added.
            return rounds.share(fleet.count_hosts(request), queue.waiting.get(request, 0) + 1)

        def keep(step: Step, answer: OrderAnswer) -> None:
            rounds.keep(step, answer.events)

        link, progress = self._link, self._progress
        ClusterRunner(
            queue,
            fleet,
            link,
            rounds,
            keep,
            progress,
            cached_modules=modules,
            compute_budget_seconds=share_time,
            early_events=early,
        ).run()


def _wait_for_first_worker(link: DaskLink, progress: Progress) -> list[Event]:
    """Wait until a worker has planned the run, or no worker is left; the run itself waits for workers that died."""
    remaining, rejected_count = len(link.list_workers()), 0
    events: list[Event] = []
    while remaining > 0 and not any(isinstance(event, JoinEvent) for event in events):
        event = link.next_event(_EVENT_TIMEOUT_SECONDS)
        events += [event] if event is not None else []
        if isinstance(event, RejectionEvent):
            # A rejection of a single device is not the worker's last event, so the worker still counts.
            remaining -= not event.device
            rejected_count += not event.device
        elif isinstance(event, LeaveEvent):
            remaining -= 1
    if rejected_count and rejected_count == len(link.list_workers()):
        reasons = [event.text for event in events if isinstance(event, RejectionEvent)]
        raise GauntletError(f"no worker can take part: {'; '.join(reasons)}", "Fix one, and run again.")
    progress.waiting("")
    return events


def _require_workers(link: DaskLink) -> dict[str, WorkerResources]:
    """Return the resources of the connected workers, by address."""
    workers = link.list_workers()
    if not workers:
        raise UsageError("the cluster has no workers", "Start some: gauntlet worker ADDRESS --device cpu.")
    return workers


class DaskLink:
    """The link of one run."""

    def __init__(self, client: Client, run_info: RunInfo, project: ProjectCopy, store: ArtifactStore) -> None:
        self._client = client
        self._run_info = run_info
        self._project = project
        self._store = store
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        # All attributes from here on belong to the client's event loop.
        self._member_addresses: set[str] = set()
        self._restarting: set[str] = set()
        # Workers whose last heartbeat is not answered yet.
        self._silent_addresses: set[str] = set()
        # The number of times that each worker has restarted the run.
        self._start_counts: Counter[str] = Counter()
        self._resources: dict[str, WorkerResources] = {}
        self._futures: dict[tuple[str, str], Future] = {}
        self._task_numbers = itertools.count()
        self._background: set[asyncio.Task[Any]] = set()
        self._ended = threading.Event()
        self._heartbeat_task: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Make all connected workers plan the run; workers that connect later do so when they connect."""
        self._client.subscribe_topic("all", self._handle_topic_event)
        self._client.sync(self._open)

    def list_workers(self) -> dict[str, WorkerResources]:
        """Return the resources of the workers that were connected when the link was opened, by address."""
        return dict(self._resources)

    # The methods of a `Link`

    def send(self, worker: str, order: Order) -> None:
        """Send an order to a worker."""
        self._client.loop.add_callback(self._run_in_background, self._do_order(worker, order))

    def supply(self, worker: str, step: str, urls: tuple[str, ...]) -> None:
        """Send files to a worker."""
        self._client.loop.add_callback(self._run_in_background, self._supply(worker, step, urls))

    def next_event(self, seconds: float) -> Event | None:
        """Return the next event.

        Raises:
            MachinesLostError: the scheduler is gone.
        """
        try:
            return self._events.get(timeout=seconds)
        except queue.Empty:
            if self._client.status not in ("running", "connecting"):
                raise MachinesLostError(
                    "the scheduler of the cluster is gone", "Restart it, and continue with `--resume`."
                ) from None
            return None

    def show(self, running: Sequence[tuple[str, str, str]], waiting: Mapping[str, int]) -> None:
        """Publish the running orders and the number of waiting steps."""
        status = {"running": list(map(list, running)), "waiting": list(map(list, waiting.items()))}
        self._client.loop.add_callback(self._run_in_background, self._show(status))

    def end(self) -> None:
        """End everything that the workers do for this run, in at most half a minute; a second call has no effect."""
        if self._ended.is_set():
            return
        self._ended.set()
        if self._client.status != "running":
            # Workers that have lost the scheduler end their part of the run by themselves.
            return
        with contextlib.suppress(OSError, TimeoutError):
            self._client.sync(self._close, callback_timeout=_CLOSE_TIMEOUT_SECONDS)

    # Coroutines of the client's event loop

    def _run_in_background(self, coroutine: Any) -> None:
        task = asyncio.ensure_future(coroutine)
        self._background.add(task)
        task.add_done_callback(self._end_background)

    def _end_background(self, task: asyncio.Task[Any]) -> None:
        self._background.discard(task)
        if not task.cancelled() and isinstance(task.exception(), OSError | TimeoutError | CancelledError):
            # The connection is gone: `next_event` reports it.
            return
        if not task.cancelled() and (error := task.exception()) is not None:
            logging.getLogger("iree_gauntlet").error("in the background of a cluster's run", exc_info=error)

    async def _open(self) -> None:
        self._heartbeat_task = asyncio.ensure_future(self._send_heartbeats())
        addresses = await self._list_addresses()
        for address in addresses:
            self._run_in_background(self._begin(address))
        answers = await asyncio.gather(*(self._ask_with_timeout(address, "describe") for address in addresses))
        self._resources = {
            address: WorkerResources.from_dict(resources)
            for address, resources in zip(addresses, answers, strict=True)
            if resources is not None
        }

    def _handle_topic_event(self, event: tuple[float, Any]) -> None:
        match event:
            case (_, {"action": "add-worker", "worker": worker}):
                self._run_in_background(self._begin(worker))
            case (_, {"action": "remove-worker", "worker": worker}):
                self._note_departure(worker)

    def _note_departure(self, address: str) -> None:
        self._member_addresses.discard(address)
        for key in [key for key in self._futures if key[0] == address]:
            self._run_in_background(self._futures.pop(key).cancel())
        self._events.put(LeaveEvent(address))

    async def _begin(self, address: str) -> None:
        """Make a worker plan the run, after sending it the copy of the project."""
        if address in self._member_addresses or self._ended.is_set():
            return
        self._member_addresses.add(address)
        name = address
        try:
            description = (await self._client.run(ask_worker, "describe", workers=[address])).get(address)
            if description is None:
                # This Dask worker belongs to something else.
                return
            resources = WorkerResources.from_dict(description)
            name = resources.name
            if resources.version != __version__:
                self._events.put(
                    RejectionEvent(
                        name, f"it has Gauntlet {resources.version}, and the run {__version__}: {_VERSION_HINT}"
                    )
                )
                return
            has_project = await self._client.run(ask_worker, "has_project", self._run_info.sha256, workers=[address])
            if not has_project[address] and (error_message := await self._send_file("project", address)):
                self._events.put(RejectionEvent(name, error_message))
                return
            # Each start has a new key: the result of an earlier start belongs to a process that may have ended.
            key = ("begin", self._run_info.name, address, next(self._task_numbers))
            term = self._start_counts[address]
            future = self._client.submit(
                ask_worker, "begin_run", self._run_info, term, workers=[address], pure=False, key=key
            )
            device_errors: dict[str, str] = await future
            for device, reason in device_errors.items():
                self._events.put(RejectionEvent(name, reason, device))
            if any(device.name in device_errors and is_cpu(device.uri) for device in resources.devices):
                # A CPU that computes wrong results cannot be trusted to compile either.
                self._events.put(RejectionEvent(name, "its CPU failed the health check"))
            else:
                devices = tuple(device for device in resources.devices if device.name not in device_errors)
                self._events.put(JoinEvent(address, replace(resources, devices=devices)))
        except RunRejectionError as error:
            self._events.put(RejectionEvent(name, str(error)))
        except Exception as error:  # noqa: BLE001 - any error of Dask about a worker that it could not reach
            # A lost worker is reported elsewhere, as a departure.
            if address in self._member_addresses and not isinstance(error, KilledWorker | CancelledError):
                self._member_addresses.discard(address)
                self._events.put(RejectionEvent(name, f"it cannot be reached: {type(error).__name__}: {error}"))

    async def _restart_run(self, address: str) -> None:
        """Restart the run on a worker and abandon the worker's orders; orders that break together cause one restart."""
        if address in self._restarting:
            return
        self._restarting.add(address)
        self._start_counts[address] += 1
        try:
            self._member_addresses.discard(address)
            await self._begin(address)
        finally:
            self._restarting.discard(address)

    async def _do_order(self, worker: str, order: Order) -> None:
        # The scheduler groups tasks by the key's first word, and its dashboard colours them by it.
        stage = order.step.rpartition(":")[2]
        key = (stage, order.step, self._run_info.name, order.attempt, next(self._task_numbers))
        future = self._futures[worker, order.step] = self._client.submit(
            ask_worker, "do", self._run_info.name, order, workers=[worker], pure=False, key=key, retries=0
        )
        try:
            self._events.put(AnswerEvent(worker, order.step, await future))
        except UnfitDeviceError as error:
            self._events.put(UnfitDeviceEvent(worker, order.step, str(error)))
        except Exception as error:  # noqa: BLE001 - any error of Dask about a task that it could not do
            if worker not in self._member_addresses or isinstance(error, KilledWorker) or self._ended.is_set():
                # A lost worker is reported elsewhere, as a departure.
                return
            # Another error means that the connection to the scheduler was lost, and with it the run's state there.
            reason = str(error) if isinstance(error, RunProcessError) else f"{type(error).__name__}: {error}"
            if isinstance(error, CancelledError):
                reason = "the connection to the scheduler was lost"
            self._events.put(ProcessDeathEvent(worker, order.step, reason))
            self._run_in_background(self._restart_run(worker))
        finally:
            if self._futures.get((worker, order.step)) is future:
                del self._futures[worker, order.step]

    async def _supply(self, worker: str, step: str, urls: tuple[str, ...]) -> None:
        error_message = ""
        try:
            for url in urls:
                path = (await asyncio.to_thread(self._store.fetch, url)).path
                if error_message := await self._send_file("artifact", worker, path=path, url=url):
                    break
        except GauntletError as error:
            error_message = error.on_one_line
        except OSError as error:
            error_message = f"{type(error).__name__}: {error}"
        self._events.put(SupplyEvent(worker, step, error_message))

    async def _send_file(self, file_kind: str, worker: str, path: Path | None = None, url: str = "") -> str:
        """Send a file directly to a worker; return an error message, or an empty string for success."""
        header = {"sha256": self._run_info.sha256} if path is None else {"url": url}
        comm = await connect(worker, **self._client.connection_args)
        try:
            await comm.write({"op": f"gauntlet_{file_kind}", **header})
            with (path or self._project.archive).open("rb") as file:
                while block := file.read(_BLOCK_BYTES):
                    await comm.write(block)
            await comm.write(b"")
            answer = await comm.read()
            # If the handler there failed with an exception, Dask reports it.
            return answer if isinstance(answer, str) else f"it failed: {answer.get('exception_text', answer)}"
        finally:
            comm.abort()

    async def _show(self, status: dict[str, Any]) -> None:
        await self._client.scheduler.set_metadata(keys=[RUN_STATES_KEY, self._run_info.name], value=status)

    async def _ask_with_timeout(self, address: str, method_name: str, *arguments: Any) -> Any:
        """Call `ask_worker`; return None if the worker does not answer in time, or is gone."""
        answer = self._client.run(ask_worker, method_name, *arguments, workers=[address], on_error="ignore")
        with contextlib.suppress(TimeoutError):
            return (await asyncio.wait_for(answer, _SILENCE_TIMEOUT_SECONDS)).get(address)
        return None

    async def _send_heartbeats(self) -> None:
        while not self._ended.is_set():
            # No call is possible while the client reconnects; the loop repeats the call.
            with contextlib.suppress(OSError, TimeoutError):
                # Compare lists of workers, because a lost connection loses the scheduler's messages about changes.
                addresses = await self._list_addresses()
                for address in self._member_addresses.difference(addresses):
                    self._note_departure(address)
                for address in set(addresses).difference(self._silent_addresses):
                    self._run_in_background(self._begin(address))
                    self._run_in_background(self._send_heartbeat(address))
            await asyncio.sleep(_HEARTBEAT_SECONDS)

    async def _send_heartbeat(self, address: str) -> None:
        """Send a worker a heartbeat of the run; a worker that does not answer in time counts as gone until it does."""
        self._silent_addresses.add(address)
        answer = asyncio.ensure_future(
            self._client.run(ask_worker, "note_heartbeat", self._run_info.name, workers=[address], on_error="ignore")
        )
        try:
            if not (await asyncio.wait({answer}, timeout=_SILENCE_TIMEOUT_SECONDS))[0]:
                # The worker's orders are abandoned; when it answers, it restarts the run.
                self._start_counts[address] += 1
                self._note_departure(address)
            await answer
        finally:
            self._silent_addresses.discard(address)

    async def _list_addresses(self) -> list[str]:
        """Return the addresses of all workers of the scheduler."""
        return list((await self._client.scheduler.identity(n_workers=-1))["workers"])

    async def _close(self) -> None:
        if self._heartbeat_task is not None:
            self._heartbeat_task.cancel()
        self._client.unsubscribe_topic("all")
        for future in list(self._futures.values()):
            self._run_in_background(future.cancel())
        self._futures.clear()
        await self._show({})
        await asyncio.gather(
            *(self._ask_with_timeout(address, "end_run", self._run_info.name) for address in self._member_addresses)
        )
