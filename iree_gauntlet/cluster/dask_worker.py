"""A worker of a cluster: a Dask worker that starts a process for each run, and passes it the steps to do.

The process of a run ends with the run, with the worker, or when no heartbeat arrives for half a minute. Modules come
from other workers, by their key. The copy of the project, and files that only the starting machine has, come from that
machine. None of these files passes through the scheduler, and all are checked by their hashes.
Ctrl-C ends workers, and a scheduler with workers on this machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import inspect
import logging
import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dask
import psutil
from distributed import Nanny, Scheduler, Worker, get_worker
from distributed.comm.core import connect
from distributed.core import Status

from iree_gauntlet.artifacts.hashing import hash_file
from iree_gauntlet.artifacts.registry_file import Registry
from iree_gauntlet.artifacts.store import ArtifactStore
from iree_gauntlet.cluster.link import OrderAnswer, RunOrder, RunProcessError, RunRejectionError, decode, encode
from iree_gauntlet.cluster.offers import WorkerResources
from iree_gauntlet.cluster.project_copy import ExclusiveFolder, get_worker_folder, map_path, map_request, unpack_project
from iree_gauntlet.engine.modules.module_cache import DamageError, ModuleCache, pack, unpack
from iree_gauntlet.errors import ExitCode, GauntletError, UsageError
from iree_gauntlet.formatting import pluralize
from iree_gauntlet.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from distributed.comm.core import Comm
    from distributed.security import Security

    from iree_gauntlet.cluster.link import ModuleLocation, Order, RunInfo


# The timeout is short: a listed worker may have left, and rebuilding its modules is quick.
_CONNECT_TIMEOUT_SECONDS = 5
# The timeout for a run's heartbeats, which are sent every few seconds.
_SILENCE_TIMEOUT_SECONDS = 30.0
_WATCH_SECONDS = 2.0
_BLOCK_BYTES = 4 << 20
_MAX_LINE_BYTES = 64 << 20
_END_TIMEOUT_SECONDS = 15.0
_LOG_NAME = "worker.log"
# `nanny.pre-spawn-environ`: Dask's default limits programs and references to one thread. `memory`: a compiler's memory
# must not end its worker. The profiler (100 times a second) and the event loop's delay check (50 times) would disturb
# benchmarks.
_DASK_SETTINGS: dict[str, Any] = {
    "distributed.nanny.pre-spawn-environ": {},
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "1s",
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": False,
    # The run, not the scheduler, decides which worker repeats a task.
    "distributed.scheduler.allowed-failures": 0,
}
# The scheduler's metadata key that tells `cluster.status` whether the scheduler has a dashboard.
DASHBOARD_KEY = "gauntlet-dashboard"
# Timeouts: for a worker to reach its scheduler, and for a worker's process to start, which is slow on a busy machine.
_SCHEDULER_TIMEOUT_SECONDS, _START_TIMEOUT_SECONDS = 30, 300
_SUPERVISION_SECONDS = 1.0
_MAX_FAILED_CHECKS = 3
_CLOSE_TIMEOUT_SECONDS = 20.0

# The worker, and the run that lost it, report dead workers themselves, so Dask's messages are not shown.
logging.getLogger("distributed").setLevel(logging.CRITICAL)


@dataclass(slots=True)
class _RunProcess:
    """The process of a run.

    Attributes:
        heard_at: the time of the last heartbeat of the run.
        stopped_at: the time since which a signal holds the process; None if the process is not stopped.
        ready: resolves when the run is planned, to the error messages of unusable devices.
    """

    process: asyncio.subprocess.Process
    stdin: asyncio.StreamWriter
    stdout: asyncio.StreamReader
    folder: Path
    heard_at: float
    term: int
    stopped_at: float | None = None
    end_reason: str = ""
    pending_answers: dict[int, asyncio.Future[OrderAnswer]] = field(default_factory=dict)
    order_count: int = 0
    ready: asyncio.Future[dict[str, str]] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    reader_task: asyncio.Task[None] | None = None


class GauntletWorker(Worker):  # type: ignore[misc]
    """A Dask worker that takes part in runs."""

    run_process: tuple[str, ...] = ("-m", "iree_gauntlet.cluster.run_process")

    def __init__(self, *arguments: Any, offer: dict[str, Any], cache_dir: str, **options: Any) -> None:
        self.gauntlet_offer = WorkerResources.from_dict(offer)
        self.gauntlet_cache = Path(cache_dir)
        self._work = get_worker_folder(self.gauntlet_cache, self.gauntlet_offer.name)
        self._transfers = Transfers(self.gauntlet_cache, self._work)
        self._runs: dict[str, _RunProcess] = {}
        self._starting: dict[str, asyncio.Lock] = {}
        # A fresh name: a previous worker process, or its children, may still be using their own folder.
        self._runs_folder = ExclusiveFolder(self._work / "runs" / secrets.token_hex(8)).__enter__()
        super().__init__(*arguments, **options)
        self.handlers.update(
            gauntlet_entry=self._transfers.send_entry,
            gauntlet_project=self._transfers.receive_project,
            gauntlet_artifact=self._transfers.receive_artifact,
        )
        self._watch_task = asyncio.ensure_future(self._end_stale_runs())

    async def close(self, *arguments: Any, **options: Any) -> Any:
        """End all runs, then the worker."""
        self._watch_task.cancel()
        await asyncio.gather(*(self.end_run(name, "the worker was stopped") for name in list(self._runs)))
        self._runs_folder.__exit__()
        return await super().close(*arguments, **options)

    # Runs

    def describe(self) -> dict[str, Any]:
        """Return the worker's resources."""
        return self.gauntlet_offer.as_dict()

    def list_runs(self) -> list[str]:
        """Return the names of the runs that this worker takes part in."""
        return list(self._runs)

    def has_project(self, sha256: str) -> bool:
        """Return whether the copy of a project is on this worker."""
        return self._transfers.locate_project(sha256).is_dir()

    async def begin_run(self, run_info: RunInfo, term: int) -> dict[str, str]:
        """Plan a run in a separate process; if its process has another `term`, replace that process.

        Returns:
            The error messages of unusable devices, by name.

        Raises:
            RunRejectionError: the worker cannot take part.
        """
        async with self._starting.setdefault(run_info.name, asyncio.Lock()):
            run = self._runs.get(run_info.name)
            if run is not None and run.term != term:
                # The orders of the present process were abandoned, so end it.
                await self.end_run(run_info.name)
                run = None
            if run is None:
                run = self._runs[run_info.name] = await self._start_run(run_info, term)
            return await asyncio.shield(run.ready)

    def note_heartbeat(self, name: str) -> None:
        """Note a heartbeat of a run."""
        if (run := self._runs.get(name)) is not None:
            run.heard_at = time.monotonic()

    async def end_run(self, name: str, reason: str = "") -> None:
        """End a run's process, with a reason for messages; return when the process has ended."""
        run = self._runs.pop(name, None)
        if run is None:
            return
        run.end_reason = reason
        run.stdin.close()
        try:
            await asyncio.wait_for(run.process.wait(), _END_TIMEOUT_SECONDS)
        except TimeoutError:
            # The child processes of the run's process end with it.
            run.process.kill()
            await run.process.wait()
        if run.reader_task is not None:
            await run.reader_task
        await asyncio.to_thread(shutil.rmtree, run.folder, ignore_errors=True)

    async def do(self, name: str, order: Order) -> OrderAnswer:
        """Have the process of a run do a step.

        Raises:
            RunProcessError: the process ended before the step was done.
            UnfitDeviceError: the device of the step fails its health check.
        """
        run = self._runs.get(name)
        if run is None:
            raise RunProcessError("its part of the run has ended")
        for module in order.cached_modules:
            if self.address not in module.addresses:
                await self._transfers.ensure_module(module, self.connection_args)
        run.order_count += 1
        number = run.order_count
        pending_answer: asyncio.Future[OrderAnswer] = asyncio.get_running_loop().create_future()
        run.pending_answers[number] = pending_answer
        run.stdin.write(encode((number, order)))
        return await pending_answer

    async def _start_run(self, run_info: RunInfo, term: int) -> _RunProcess:
        folder = self._runs_folder.path / run_info.name
        folder.mkdir(parents=True, exist_ok=True)
        project = self._transfers.locate_project(run_info.sha256)
        with (folder / _LOG_NAME).open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *self.run_process,
                cwd=map_path(project, run_info.cwd),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                limit=_MAX_LINE_BYTES,
                # Ctrl-C at the worker's terminal must reach the worker alone.
                start_new_session=True,
            )
        if process.stdin is None or process.stdout is None:
            raise RunProcessError("the process of the run has no pipes")
        run = _RunProcess(process, process.stdin, process.stdout, folder, time.monotonic(), term)
        run.reader_task = asyncio.create_task(self._read(run_info.name, run))
        # The folders of this worker replace those of the machine where the run was started.
        resources = self.gauntlet_offer
        runs = []
        for number, shared_run in enumerate(run_info.runs):
            side_folder = folder / "ab"[number] if run_info.comparison else folder
            request = map_request(shared_run.request, project, side_folder, self.gauntlet_cache, run_info.cwd)
            execution = replace(request.execution, jobs=resources.jobs)
            runs.append(replace(shared_run, request=replace(request, execution=execution)))
        # Paths in messages are mapped back to those of the starting machine.
        path_map = ((map_path(project, "/").rstrip("/"), ""),)
        run.stdin.write(encode(RunOrder(str(folder), tuple(runs), run_info.comparison, resources.devices, path_map)))
        return run

    async def _read(self, name: str, run: _RunProcess) -> None:
        """Receive the messages of a run's process until the process ends; then its unfinished orders fail."""
        try:
            while line := await run.stdout.readline():
                number, message = decode(line)
                pending_answer = run.ready if number is None else run.pending_answers.pop(number)
                if pending_answer.done():
                    # Nobody waits for this answer any more.
                    continue
                if isinstance(message, Exception):
                    pending_answer.set_exception(message)
                else:
                    pending_answer.set_result(message)
        except (ValueError, KeyError, TypeError) as error:
            run.end_reason = f"its process sent an invalid message: {error!r}"
            run.process.kill()
        code = await run.process.wait()
        if self._runs.get(name) is run:
            del self._runs[name]
        reason = run.end_reason or f"its process ended with {code}: {_read_last_line(run.folder / _LOG_NAME)}"
        if not run.ready.done():
            run.ready.set_exception(RunRejectionError(reason))
        for pending_answer in run.pending_answers.values():
            if not pending_answer.done():
                pending_answer.set_exception(RunProcessError(reason))

    async def _end_stale_runs(self) -> None:
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            now_seconds = time.monotonic()
            for name, run in list(self._runs.items()):
                if now_seconds - run.heard_at > _SILENCE_TIMEOUT_SECONDS:
                    await self.end_run(name, f"no message from the run for {_SILENCE_TIMEOUT_SECONDS:g} s")
                elif not _is_stopped(run.process.pid):
                    run.stopped_at = None
                elif run.stopped_at is None:
                    run.stopped_at = now_seconds
                elif now_seconds - run.stopped_at > _SILENCE_TIMEOUT_SECONDS:
                    # A stopped process cannot enforce time limits. Its unfinished orders are done again.
                    run.end_reason = f"its process was stopped by a signal for {_SILENCE_TIMEOUT_SECONDS:g} s"
                    run.process.kill()


def _is_stopped(pid: int) -> bool:
    """Return whether a signal (SIGSTOP, SIGTSTP) holds a process; False for a traced or ended process."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.Error:
        return False


async def ask_worker(method_name: str, *arguments: Any, dask_worker: Worker | None = None) -> Any:
    """Call a method of a `GauntletWorker`, as a Dask task or by `Client.run`; return None from another Dask worker."""
    worker = dask_worker or get_worker()
    if not isinstance(worker, GauntletWorker):
        return None
    result = getattr(worker, method_name)(*arguments)
    return await result if inspect.isawaitable(result) else result


def _read_last_line(log: Path) -> str:
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        return "its log is missing"
    return next((line.strip() for line in reversed(lines) if line.strip()), "it printed nothing")


class Transfers:
    """Files that one worker receives and sends."""

    def __init__(self, cache_dir: Path, work: Path) -> None:
        self._cache_dir = cache_dir
        self._work = work
        self._modules = ModuleCache(cache_dir)
        self._fetching: dict[str, asyncio.Lock] = {}

    def locate_project(self, sha256: str) -> Path:
        """Return the folder for the copy of a project; the folder may not exist."""
        return self._work / "projects" / sha256

    async def ensure_module(self, module: ModuleLocation, connection: dict[str, Any]) -> None:
        """Copy a module from another worker to this worker's cache; if no worker has it, it is built here later."""
        async with self._fetching.setdefault(module.key, asyncio.Lock()):
            for address in module.addresses:
                lookup = await asyncio.to_thread(self._modules.lookup, module.key)
                if lookup.entry is not None:
                    return
                with contextlib.suppress(OSError, DamageError):
                    await self._fetch_entry(address, module, connection)

    async def _fetch_entry(self, address: str, module: ModuleLocation, connection: dict[str, Any]) -> None:
        comm = await connect(address, timeout=_CONNECT_TIMEOUT_SECONDS, **connection)
        try:
            await comm.write({"op": "gauntlet_entry", "key": module.key})
            with tempfile.TemporaryFile(dir=self._make_work_folder()) as file:
                while block := await comm.read():
                    if not isinstance(block, bytes):
                        raise DamageError(f"{address} does not have it")
                    await asyncio.to_thread(file.write, block)
                file.seek(0)

                def adopt() -> None:
                    with self._modules.reserve_entry_folder(module.key) as folder:
                        hashes = unpack(file, module.key, folder)
                        self._modules.adopt(folder, module.key, hashes, module.step)

                await asyncio.to_thread(adopt)
        finally:
            comm.abort()

    async def send_entry(self, comm: Comm, key: str) -> Status:
        """Send an entry of the module cache in blocks, then an empty block; in case of an error, send an object."""
        blocks = _merge_blocks(pack(self._modules.get_entry_folder(key), key))
        try:
            while (block := await asyncio.to_thread(next, blocks, b"")) != b"":
                await comm.write(block)
        except (OSError, DamageError) as error:
            await comm.write({"error": str(error)})
            return Status.dont_reply
        await comm.write(b"")
        return Status.dont_reply

    async def receive_project(self, comm: Comm, sha256: str) -> str:
        """Receive the copy of a project in blocks, up to an empty block; return an error message, or an empty text."""
        async with self._fetching.setdefault(sha256, asyncio.Lock()):
            with tempfile.TemporaryFile(dir=self._make_work_folder()) as file:
                await _receive(comm, file)
                file.seek(0)
                if (await asyncio.to_thread(hashlib.file_digest, file, "sha256")).hexdigest() != sha256:
                    return "the copy of the project was damaged in transit"
                file.seek(0)
                try:
                    await asyncio.to_thread(unpack_project, file, self.locate_project(sha256))
                except GauntletError as error:
                    return error.on_one_line
        return ""

    async def receive_artifact(self, comm: Comm, url: str) -> str:
        """Receive a file that this worker cannot download itself, like `receive_project`."""
        descriptor, name = tempfile.mkstemp(dir=self._make_work_folder())
        try:
            with os.fdopen(descriptor, "wb") as file:
                await _receive(comm, file)

            def adopt() -> None:
                store = ArtifactStore(self._cache_dir, Registry())
                store.adopt(url, Path(name), hash_file(Path(name)), Progress())

            await asyncio.to_thread(adopt)
        except GauntletError as error:
            return error.on_one_line
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)  # noqa: PTH108 - the store may have moved the temporary file
        return ""

    def _make_work_folder(self) -> Path:
        self._work.mkdir(parents=True, exist_ok=True)
        return self._work


async def _receive(comm: Comm, file: Any) -> None:
    while block := await comm.read():
        await asyncio.to_thread(file.write, block)
    file.flush()


def _merge_blocks(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the same bytes in fewer, larger blocks."""
    pending: list[bytes] = []
    size = 0
    for block in blocks:
        pending.append(bytes(block))
        size += len(block)
        if size >= _BLOCK_BYTES:
            yield b"".join(pending)
            pending, size = [], 0
    if pending:
        yield b"".join(pending)


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """The location of workers; without `security`, only loopback is used. Port 0 means any free port."""

    scheduler: str
    cache_dir: Path
    security: Security | None = None
    port: int = 0
    nanny_port: int = 0


def run_worker(config: WorkerConfig, resources: WorkerResources, show_message: Callable[[str], None]) -> ExitCode:
    """Run a worker until it is interrupted; a worker that loses its scheduler waits until the scheduler is back."""

    async def serve() -> ExitCode:
        supervisor = _WorkerSupervisor(config, resources, show_message)
        await supervisor.start()
        show_message(f"worker {resources.name} takes part in {config.scheduler}")
        return await _wait_until_interrupted([supervisor])

    with dask.config.set(_DASK_SETTINGS), ExclusiveFolder(get_worker_folder(config.cache_dir, resources.name)):
        return asyncio.run(serve())


def run_local(
    count: int,
    resources: WorkerResources,
    config: WorkerConfig,
    port: int,
    show: Callable[[str], None],
    *,
    dashboard: bool,
) -> ExitCode:
    """Run a scheduler (port 0: any free port) and workers that all have the same resources, until interrupted."""

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
            scheduler.task_metadata[DASHBOARD_KEY] = dashboard
            local = replace(config, scheduler=scheduler.address)
            supervisors = []
            for number in range(count):
                worker = replace(resources, name=f"{resources.name}-{number}")
                stack.enter_context(ExclusiveFolder(get_worker_folder(config.cache_dir, worker.name)))
                supervisors.append(_WorkerSupervisor(local, worker, show))
            await asyncio.gather(*(supervisor.start() for supervisor in supervisors))
            show(f"{pluralize(count, 'worker')} take{'s' if count == 1 else ''} part in {scheduler.address}")
            if dashboard:
                show(f"dashboard: http://127.0.0.1:{scheduler.http_server.port}/status")
            return await _wait_until_interrupted(supervisors)

    with dask.config.set(_DASK_SETTINGS):
        return asyncio.run(serve())


# Dask raises these if a worker does not start; an AssertionError means that it is still starting at the timeout.
_START_ERRORS = (OSError, ValueError, RuntimeError, AssertionError)


class _WorkerSupervisor:
    """Keeps a worker running under a nanny, which restarts a dead worker; starts a new nanny if the nanny gives up.

    Dask's nanny gives up if a worker dies while starting, or if the scheduler is gone for a while.
    """

    def __init__(self, config: WorkerConfig, resources: WorkerResources, show_message: Callable[[str], None]) -> None:
        self._config = config
        self._resources = resources
        self._show_message = show_message
        self._nanny: Nanny | None = None

    async def start(self) -> None:
        """Start the worker."""
        try:
            await self._start_nanny()
        except _START_ERRORS as error:
            raise UsageError(
                f"worker {self._resources.name} cannot take part in {self._config.scheduler}: {error}",
                "Check that no other worker has this name (--name) and that its ports are free (--port, --nanny-port).",
            ) from error

    async def supervise(self) -> None:
        """Restart the worker whenever its nanny has given up."""
        failed_checks = 0
        while True:
            await asyncio.sleep(_SUPERVISION_SECONDS)
            nanny = self._nanny
            process = nanny.process if nanny and nanny.status is Status.running else None
            failed_checks = 0 if process and process.status in (Status.running, Status.starting) else failed_checks + 1
            if failed_checks < _MAX_FAILED_CHECKS:
                # A worker is also absent after its death until the nanny restarts it, so a few checks may fail.
                continue
            failed_checks = 0
            await self.end()
            try:
                await self._start_nanny()
            except _START_ERRORS as error:
                self._show_message(f"worker {self._resources.name} cannot start, and is retried: {error!r}")
            else:
                self._show_message(f"worker {self._resources.name} takes part again")

    async def end(self) -> None:
        """End the worker and all its work."""
        nanny, self._nanny = self._nanny, None
        if nanny is not None:
            with suppress(OSError, AssertionError):
                await nanny.close(timeout=_CLOSE_TIMEOUT_SECONDS)

    async def _start_nanny(self) -> None:
        config, resources = self._config, self._resources
        nanny = self._nanny = Nanny(
            config.scheduler,
            name=resources.name,
            # Each step occupies a thread while it waits for its process. Two more threads are for planning runs.
            nthreads=resources.jobs + len(resources.devices) + 2,
            memory_limit=0,
            silence_logs=logging.CRITICAL,
            worker_class=GauntletWorker,
            security=config.security,
            protocol="tls" if config.security else "tcp",
            host=None if config.security else "127.0.0.1",
            worker_port=config.port,
            port=config.nanny_port,
            local_directory=str(get_worker_folder(config.cache_dir, resources.name) / "dask"),
            death_timeout=_START_TIMEOUT_SECONDS,
            dashboard=False,
            # The worker's health page must not be reachable from other machines.
            dashboard_address="127.0.0.1:0",
            offer=resources.as_dict(),
            cache_dir=str(config.cache_dir),
        )
        nanny.worker_kwargs["death_timeout"] = _SCHEDULER_TIMEOUT_SECONDS
        await nanny


async def _wait_until_interrupted(supervisors: Sequence[_WorkerSupervisor]) -> ExitCode:
    """Supervise workers until Ctrl-C or SIGTERM, then end them."""
    stop_event = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signal_number, stop_event.set)
    supervision_tasks = [asyncio.create_task(supervisor.supervise()) for supervisor in supervisors]
    await stop_event.wait()
    for task in supervision_tasks:
        task.cancel()
    await asyncio.gather(*supervision_tasks, return_exceptions=True)
    await asyncio.gather(*(supervisor.end() for supervisor in supervisors))
    return ExitCode.INTERRUPTED
