"""A worker of a cluster: a Dask worker that starts a process for each run, and hands it the steps that it is to do.

The process of a run ends when the run does, when nothing is heard of it for half a minute, and with the worker. Modules
come from other workers by their key, the copy of the project and files that nobody else has from where the run was
started; none of them passes through the scheduler, and all are checked by their hashes.
Workers, and a scheduler with workers on this machine, end with Ctrl-C.
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
from iree_gauntlet.cluster.link import BrokenRunError, OrderAnswer, RefusedRunError, RunOrder, decode, encode
from iree_gauntlet.cluster.offers import WorkerOffer
from iree_gauntlet.cluster.project_copy import OwnedFolder, folder_of, request_within, unpack_project, within
from iree_gauntlet.engine.modules.module_cache import DamageError, ModuleCache, pack, unpack
from iree_gauntlet.errors import ExitCode, GauntletError, UsageError
from iree_gauntlet.formatting import counted
from iree_gauntlet.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from distributed.comm.core import Comm
    from distributed.security import Security

    from iree_gauntlet.cluster.link import Made, Order, RunFacts


# Who has left may not be known yet; what it has made is quickly made again.
_CONNECT_SECONDS = 5
# Those that conduct a run are heard of every few seconds.
_SILENCE_SECONDS = 30.0
_LOOK_SECONDS = 2.0
_BLOCK_BYTES = 4 << 20
_LONGEST_LINE = 64 << 20
_END_SECONDS = 15.0
_LOG = "worker.log"
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
# Until a worker that does not reach its scheduler gives up; and its process, of which a busy machine makes a long wait.
_DEATH_SECONDS, _PROCESS_SECONDS = 30, 300
_KEEP_SECONDS = 1.0
_MOST_MISSED = 3
_CLOSE_SECONDS = 20.0

# What Dask says of a worker that died is said here, and in the run that lost it.
logging.getLogger("distributed").setLevel(logging.CRITICAL)


@dataclass(slots=True)
class _RunProcess:
    """The process of a run.

    Attributes:
        heard: when whoever conducts the run was heard of last.
        stopped: since when a signal holds the process; None where none does.
        ready: the devices that it does without, with the reasons.
    """

    process: asyncio.subprocess.Process
    stdin: asyncio.StreamWriter
    stdout: asyncio.StreamReader
    folder: Path
    heard: float
    term: int
    stopped: float | None = None
    why: str = ""
    waiting: dict[int, asyncio.Future[OrderAnswer]] = field(default_factory=dict)
    orders: int = 0
    ready: asyncio.Future[dict[str, str]] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    reading: asyncio.Task[None] | None = None


class GauntletWorker(Worker):  # type: ignore[misc]
    """A Dask worker that takes part in runs."""

    run_process: tuple[str, ...] = ("-m", "iree_gauntlet.cluster.run_process")

    def __init__(self, *arguments: Any, offer: dict[str, Any], cache_dir: str, **named: Any) -> None:
        self.gauntlet_offer = WorkerOffer.from_dict(offer)
        self.gauntlet_cache = Path(cache_dir)
        self._work = folder_of(self.gauntlet_cache, self.gauntlet_offer.name)
        self._transfers = Transfers(self.gauntlet_cache, self._work)
        self._runs: dict[str, _RunProcess] = {}
        self._starting: dict[str, asyncio.Lock] = {}
        # Of this process alone: the one before it may not have ended yet, nor what it has started.
        self._own = OwnedFolder(self._work / "runs" / secrets.token_hex(8)).__enter__()
        super().__init__(*arguments, **named)
        self.handlers.update(
            gauntlet_entry=self._transfers.give_entry,
            gauntlet_project=self._transfers.take_project,
            gauntlet_artifact=self._transfers.take_artifact,
        )
        self._watching = asyncio.ensure_future(self._end_unheard())

    async def close(self, *arguments: Any, **named: Any) -> Any:
        """Ends all runs, then itself."""
        self._watching.cancel()
        await asyncio.gather(*(self.end_run(name, "the worker was ended") for name in list(self._runs)))
        self._own.__exit__()
        return await super().close(*arguments, **named)

    # Of runs

    def describe(self) -> dict[str, Any]:
        """What it offers."""
        return self.gauntlet_offer.as_dict()

    def list_runs(self) -> list[str]:
        """The runs that it takes part in."""
        return list(self._runs)

    def has_project(self, sha256: str) -> bool:
        """Whether a copy of a project is here."""
        return self._transfers.project(sha256).is_dir()

    async def begin_run(self, facts: RunFacts, term: int) -> dict[str, str]:
        """Plans a run in a process of its own; of another term, in place of the one that there is.

        Returns:
            The devices that it does without, and why.

        Raises:
            RefusedRunError: the worker cannot take part.
        """
        async with self._starting.setdefault(facts.name, asyncio.Lock()):
            run = self._runs.get(facts.name)
            if run is not None and run.term != term:
                # Whatever it does, nobody waits for it any more.
                await self.end_run(facts.name)
                run = None
            if run is None:
                run = self._runs[facts.name] = await self._start_run(facts, term)
            return await asyncio.shield(run.ready)

    def hear(self, name: str) -> None:
        """Whoever conducts a run is there."""
        if (run := self._runs.get(name)) is not None:
            run.heard = time.monotonic()

    async def end_run(self, name: str, why: str = "") -> None:
        """Ends what is done for a run, for a reason; returns when it has ended."""
        run = self._runs.pop(name, None)
        if run is None:
            return
        run.why = why
        run.stdin.close()
        try:
            await asyncio.wait_for(run.process.wait(), _END_SECONDS)
        except TimeoutError:
            # What it has started ends with it.
            run.process.kill()
            await run.process.wait()
        if run.reading is not None:
            await run.reading
        await asyncio.to_thread(shutil.rmtree, run.folder, ignore_errors=True)

    async def do(self, name: str, order: Order) -> OrderAnswer:
        """Has the process of a run do a step.

        Raises:
            BrokenRunError: it ended meanwhile.
            UnfitDeviceError: the device that the step is to use does not pass.
        """
        run = self._runs.get(name)
        if run is None:
            raise BrokenRunError("its part of the run has ended")
        for made in order.made:
            if self.address not in made.at:
                await self._transfers.have(made, self.connection_args)
        run.orders += 1
        number = run.orders
        answer: asyncio.Future[OrderAnswer] = asyncio.get_running_loop().create_future()
        run.waiting[number] = answer
        run.stdin.write(encode((number, order)))
        return await answer

    async def _start_run(self, facts: RunFacts, term: int) -> _RunProcess:
        folder = self._own.path / facts.name
        folder.mkdir(parents=True, exist_ok=True)
        project = self._transfers.project(facts.sha256)
        with (folder / _LOG).open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *self.run_process,
                cwd=within(project, facts.cwd),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                limit=_LONGEST_LINE,
                # Ctrl-C at the worker's terminal is the worker's.
                start_new_session=True,
            )
        if process.stdin is None or process.stdout is None:
            raise BrokenRunError("the process of the run has no pipes")
        run = _RunProcess(process, process.stdin, process.stdout, folder, time.monotonic(), term)
        run.reading = asyncio.create_task(self._read(facts.name, run))
        # The folders of this worker stand in place of those where it was started.
        offer = self.gauntlet_offer
        runs = []
        for number, shared in enumerate(facts.runs):
            side = folder / "ab"[number] if facts.comparison else folder
            request = request_within(shared.request, project, side, self.gauntlet_cache, facts.cwd)
            conduct = replace(request.conduct, jobs=offer.jobs)
            runs.append(replace(shared, request=replace(request, conduct=conduct)))
        # A path below the copy is one of the machine that it was made on.
        places = ((within(project, "/").rstrip("/"), ""),)
        run.stdin.write(encode(RunOrder(str(folder), tuple(runs), facts.comparison, offer.devices, places)))
        return run

    async def _read(self, name: str, run: _RunProcess) -> None:
        """Takes what the process of a run says, until it has ended; what it has not done by then is broken."""
        try:
            while line := await run.stdout.readline():
                number, said = decode(line)
                waiting = run.ready if number is None else run.waiting.pop(number)
                if waiting.done():
                    # Nobody asks any more.
                    continue
                if isinstance(said, Exception):
                    waiting.set_exception(said)
                else:
                    waiting.set_result(said)
        except (ValueError, KeyError, TypeError) as error:
            run.why = f"its process says what is not understood: {error!r}"
            run.process.kill()
        code = await run.process.wait()
        if self._runs.get(name) is run:
            del self._runs[name]
        why = run.why or f"its process ended with {code}: {_read_last_line(run.folder / _LOG)}"
        if not run.ready.done():
            run.ready.set_exception(RefusedRunError(why))
        for waiting in run.waiting.values():
            if not waiting.done():
                waiting.set_exception(BrokenRunError(why))

    async def _end_unheard(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            now = time.monotonic()
            for name, run in list(self._runs.items()):
                if now - run.heard > _SILENCE_SECONDS:
                    await self.end_run(name, f"nothing was heard of the run for {_SILENCE_SECONDS:g} s")
                elif not _is_stopped(run.process.pid):
                    run.stopped = None
                elif run.stopped is None:
                    run.stopped = now
                elif now - run.stopped > _SILENCE_SECONDS:
                    # It keeps no time limit, its own neither; what it has not done is done again.
                    run.why = f"its process was stopped by a signal for {_SILENCE_SECONDS:g} s"
                    run.process.kill()


def _is_stopped(pid: int) -> bool:
    """Whether a signal holds a process (SIGSTOP, SIGTSTP); one that is traced or gone is not."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.Error:
        return False


async def ask_worker(what: str, *arguments: Any, dask_worker: Worker | None = None) -> Any:
    """Calls a method of a `GauntletWorker`, as a task of Dask's or by `Client.run`; None of somebody else's worker."""
    worker = dask_worker or get_worker()
    if not isinstance(worker, GauntletWorker):
        return None
    said = getattr(worker, what)(*arguments)
    return await said if inspect.isawaitable(said) else said


def _read_last_line(log: Path) -> str:
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        return "its log is gone"
    return next((line.strip() for line in reversed(lines) if line.strip()), "it says nothing")


class Transfers:
    """What is brought to one worker, and given by it."""

    def __init__(self, cache_dir: Path, work: Path) -> None:
        self._cache_dir = cache_dir
        self._work = work
        self._modules = ModuleCache(cache_dir)
        self._fetching: dict[str, asyncio.Lock] = {}

    def project(self, sha256: str) -> Path:
        """Where the copy of a project is, or would be."""
        return self._work / "projects" / sha256

    async def have(self, made: Made, connection: dict[str, Any]) -> None:
        """Has a module in the cache here, if another worker still has it; otherwise it is made here."""
        async with self._fetching.setdefault(made.key, asyncio.Lock()):
            for address in made.at:
                found = await asyncio.to_thread(self._modules.lookup, made.key)
                if found.entry is not None:
                    return
                with contextlib.suppress(OSError, DamageError):
                    await self._fetch_entry(address, made, connection)

    async def _fetch_entry(self, address: str, made: Made, connection: dict[str, Any]) -> None:
        comm = await connect(address, timeout=_CONNECT_SECONDS, **connection)
        try:
            await comm.write({"op": "gauntlet_entry", "key": made.key})
            with tempfile.TemporaryFile(dir=self._work_folder()) as file:
                while block := await comm.read():
                    if not isinstance(block, bytes):
                        raise DamageError(f"{address} does not have it")
                    await asyncio.to_thread(file.write, block)
                file.seek(0)

                def adopt() -> None:
                    with self._modules.incoming(made.key) as folder:
                        hashes = unpack(file, made.key, folder)
                        self._modules.adopt(folder, made.key, hashes, made.step)

                await asyncio.to_thread(adopt)
        finally:
            comm.abort()

    async def give_entry(self, comm: Comm, key: str) -> Status:
        """Sends an entry of the module cache in blocks; an empty one is the end, and an object says why it ends."""
        blocks = _gather(pack(self._modules.folder_of(key), key))
        try:
            while (block := await asyncio.to_thread(next, blocks, b"")) != b"":
                await comm.write(block)
        except (OSError, DamageError) as error:
            await comm.write({"error": str(error)})
            return Status.dont_reply
        await comm.write(b"")
        return Status.dont_reply

    async def take_project(self, comm: Comm, sha256: str) -> str:
        """Receives the copy of a project in blocks, up to an empty one."""
        async with self._fetching.setdefault(sha256, asyncio.Lock()):
            with tempfile.TemporaryFile(dir=self._work_folder()) as file:
                await _receive(comm, file)
                file.seek(0)
                if (await asyncio.to_thread(hashlib.file_digest, file, "sha256")).hexdigest() != sha256:
                    return "the copy of the project was damaged on its way"
                file.seek(0)
                try:
                    await asyncio.to_thread(unpack_project, file, self.project(sha256))
                except GauntletError as error:
                    return error.on_one_line
        return ""

    async def take_artifact(self, comm: Comm, url: str) -> str:
        """Receives a file that this worker cannot get, in blocks, up to an empty one."""
        descriptor, name = tempfile.mkstemp(dir=self._work_folder())
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
                os.unlink(name)  # noqa: PTH108 - of a temporary file that the store may have taken
        return ""

    def _work_folder(self) -> Path:
        self._work.mkdir(parents=True, exist_ok=True)
        return self._work


async def _receive(comm: Comm, file: Any) -> None:
    while block := await comm.read():
        await asyncio.to_thread(file.write, block)
    file.flush()


def _gather(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """The same bytes in fewer, larger blocks."""
    held: list[bytes] = []
    size = 0
    for block in blocks:
        held.append(bytes(block))
        size += len(block)
        if size >= _BLOCK_BYTES:
            yield b"".join(held)
            held, size = [], 0
    if held:
        yield b"".join(held)


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


# Of Dask, where a worker does not start; an AssertionError where it still starts when its time is up.
_NOT_STARTED = (OSError, ValueError, RuntimeError, AssertionError)


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
        except _NOT_STARTED as error:
            raise UsageError(
                f"worker {self._offer.name} cannot take part in {self._place.scheduler}: {error}",
                "See that no other worker has this name (--name), and that its ports are free (--port, --nanny-port).",
            ) from error

    async def keep(self) -> None:
        """Starts it again whenever its nanny has given up."""
        missed = 0
        while True:
            await asyncio.sleep(_KEEP_SECONDS)
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
            except _NOT_STARTED as error:
                self._say(f"worker {self._offer.name} is not there, and is tried again: {error!r}")
            else:
                self._say(f"worker {self._offer.name} takes part again")

    async def end(self) -> None:
        """Ends it, and all that it does."""
        nanny, self._nanny = self._nanny, None
        if nanny is not None:
            with suppress(OSError, AssertionError):
                await nanny.close(timeout=_CLOSE_SECONDS)

    async def _start(self) -> None:
        place, offer = self._place, self._offer
        nanny = self._nanny = Nanny(
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
            death_timeout=_PROCESS_SECONDS,
            dashboard=False,
            # Its page of health has no business outside of this machine.
            dashboard_address="127.0.0.1:0",
            offer=offer.as_dict(),
            cache_dir=str(place.cache_dir),
        )
        nanny.worker_kwargs["death_timeout"] = _DEATH_SECONDS
        await nanny


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
