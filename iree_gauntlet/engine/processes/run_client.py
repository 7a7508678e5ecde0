"""Processes that run modules and compare their outputs, one small case after the other: the toolkit's side.

The work is done by `workers/iree_side/run_server.py` in the toolchain's Python, which keeps the runtime and its devices
from case to case. A case that crashes, hangs or takes all memory takes its process along, and no other case: the next
one gets a new process. So that nobody pays for what an earlier case has broken in the process that both had, a case
that crashes in a process that had others before it is run once more, alone in a new one, and that decides. One whose
process is killed from outside (SIGKILL, by a person or for lack of memory) or runs out of time is not.

Its standard output is for answers alone; what cases print goes to an unnamed file. A pipe that nothing is ever written
to has it ended when the toolkit ends, however that ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import queue
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import termios
import threading
import time
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import IO, TYPE_CHECKING

from iree_gauntlet.device_kinds import is_cpu
from iree_gauntlet.engine.processes.processes import require_pipes
from iree_gauntlet.engine.processes.supervisor import Outcome
from iree_gauntlet.errors import ToolchainError
from iree_gauntlet.formatting import byte_size
from iree_gauntlet.recorded import Recorded
from iree_gauntlet.results import SENT_SIGNALS
from iree_gauntlet.system.short_process import TAIL_LINES, clean_line, name_signal
from iree_gauntlet.workers import iree_side

if TYPE_CHECKING:
    from collections.abc import Mapping


_SCRIPT = Path(iree_side.__file__).resolve().with_name("run_server.py")
_LAST_WORDS_SECONDS = 10.0
_MOST_LOG = 1 << 20
# Importing NumPy and the runtime takes a fifth of a second; a machine under load may take a hundred times as long.
_START_SECONDS = 120.0
# Processes that are tried for a case which none of them reads.
_MOST_STARTS = 3
# What of a case is sent to its process.
_SENT = ("cwd", "device", "on_cpu", "module", "function", "inputs", "expected", "allclose", "kept")


class RunVerdict:
    """The result of a case."""

    PASSED = "passed"
    MISMATCH = "mismatch"
    # The module could not be run; the message is IREE's status.
    ERROR = "error"
    # Only iree-run-module itself can run it.
    UNSUPPORTED = "unsupported"
    # Its process ended, or was ended.
    DIED = "died"


@dataclass(frozen=True, slots=True)
class RunJob:
    """A case.

    Attributes:
        timeout: seconds until its process is killed.
        cwd: where relative paths begin.
        function: empty for the only one that the module exports.
        limits: element type with absolute and relative tolerance; types that are not listed are compared by their
            bytes.
        allclose: rtol, atol and whether NaN equals NaN: `numpy.allclose` in place of iree-run-module's rule.
        kept: where outputs go when the case fails; suffixes are chosen by their types.
        log: file for what it printed, if it printed anything; empty for none.
    """

    module: str
    device: str
    timeout: float
    cwd: str = ""
    function: str = ""
    inputs: tuple[str, ...] = ()
    expected: tuple[str, ...] = ()
    limits: tuple[tuple[str, float, float], ...] = ()
    allclose: tuple[float, float, bool] | None = None
    kept: tuple[str, ...] = ()
    log: str = ""

    @property
    def on_cpu(self) -> bool:
        """Whether it runs in its own process alone, and not through a GPU's driver."""
        return is_cpu(self.device)


@dataclass(frozen=True, slots=True)
class RunOutput(Recorded):
    """An output of a case that gives something else than it should; one that is missing has no type.

    Attributes:
        file: what keeps it; empty for none.
    """

    index: int
    type: str
    passed: bool
    count: int
    file: str


@dataclass(frozen=True, slots=True)
class _RunRecord(Recorded):
    """What a process says of a case; of none at first, when it is ready."""

    verdict: str = ""
    message: str = ""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_rss_bytes: int = 0
    outputs: tuple[RunOutput, ...] = ()


@dataclass(frozen=True, slots=True)
class RunAnswer:
    """The result of a case.

    Attributes:
        outcome: as of a process of its own; its exit code is 0 where the case passed, and 1 where it did not.
        verdict: one of `RunVerdict`.
        message: IREE's status of an error, without the place in its source.
        outputs: of a mismatch.
        logged: bytes that it printed.
    """

    outcome: Outcome
    verdict: str
    message: str = ""
    outputs: tuple[RunOutput, ...] = ()
    logged: int = 0


_CANCELLED = RunAnswer(Outcome(None, cancelled=True), RunVerdict.DIED)


class RunServers(contextlib.AbstractContextManager["RunServers"]):
    """Processes that run cases; `run` may be called from several threads at once.

    Use it as a context manager: leaving it ends the processes. They also end when the toolkit is killed.

    Args:
        python: the toolchain's.
        count: how many processes; a thread that finds none free waits.
        environment: what they inherit; by default the toolkit's own.
        memory_bytes: address space that a process may take for its cases, so that one which asks for more fails with
            RESOURCE_EXHAUSTED; 0 for no limit. Those of a GPU have none.
    """

    def __init__(
        self, python: str, count: int, environment: Mapping[str, str] | None = None, *, memory_bytes: int = 0
    ) -> None:
        self._python = python
        self._environment = environment
        self._memory_bytes = memory_bytes
        self._cancelled = False
        self._closed = False
        # What is free: a process, or leave to start one. The one that ran last is taken first: it has its device open,
        # which takes a GPU's driver half a second.
        self._slots: queue.LifoQueue[RunWorker | None] = queue.LifoQueue()
        self._workers: set[RunWorker] = set()
        self._lock = threading.Lock()
        for _ in range(count):
            self._slots.put(None)

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes that are there now."""
        return tuple(worker.process.pid for worker in self._workers)

    def start(self) -> None:
        """Starts the processes that are not running, and does not wait for them.

        Raises:
            ToolchainError: the toolchain's Python cannot be run.
        """
        taken: list[RunWorker | None] = []
        try:
            with contextlib.suppress(queue.Empty):
                while True:
                    taken.append(self._slots.get_nowait())
            for index, worker in enumerate(taken):
                if worker is None and not self._stop():
                    taken[index] = self._start()
        finally:
            for worker in taken:
                self._slots.put(worker)

    def run(self, job: RunJob) -> RunAnswer:
        """Runs a case, and waits for its end.

        Raises:
            ToolchainError: the toolchain's Python has no runtime, or cannot be run.
        """
        if self._closed:
            raise RuntimeError("the run servers are closed")
        worker = self._slots.get()
        try:
            first = worker is None or worker.cases == 0
            # What goes back is what came out of it: not one that is gone.
            given, worker = worker, None
            answer, worker = self._run_in(given, job)
            if not first and _may_be_anothers_fault(answer, job):
                before, message = answer.outcome, answer.message
                if worker is not None:
                    # What earlier cases have taken of its memory, it keeps.
                    worker.kill()
                    self._end(worker)
                    worker = None
                answer, worker = self._run_in(None, job)
                if not _may_be_anothers_fault(answer, job):
                    ended = before.signal or f"exit code {before.exit_code}"
                    how = "lack of memory" if before.out_of_memory else message or ended
                    note = f"its process ended with {how} after other cases in it; alone in a new one it did not"
                    notes = (*answer.outcome.notes, note)
                    answer = replace(answer, outcome=replace(answer.outcome, notes=notes))
        finally:
            self._slots.put(worker)
        return answer

    def cancel(self) -> None:
        """Kills every process, and starts none again; takes no lock, so that a signal handler may call it."""
        self._cancelled = True
        for worker in tuple(self._workers):
            worker.kill()

    def close(self) -> None:
        """Ends the processes; `run` may not be called afterwards."""
        self._closed = self._cancelled = True
        for worker in tuple(self._workers):
            worker.kill()
            self._end(worker)
        with contextlib.suppress(queue.Empty):
            while True:
                self._slots.get_nowait()

    def _stop(self) -> bool:
        return self._cancelled

    def _start(self) -> RunWorker:
        worker = RunWorker(self._python, self._environment, self._memory_bytes)
        with self._lock:
            # Not changed in place: `cancel` goes through it at any time.
            self._workers = {*self._workers, worker}
        if self._stop():
            worker.kill()
        return worker

    def _end(self, worker: RunWorker) -> None:
        """Forgets a process that is gone."""
        worker.reap()
        worker.forget()
        with self._lock:
            self._workers = self._workers - {worker}

    def _run_in(self, worker: RunWorker | None, job: RunJob) -> tuple[RunAnswer, RunWorker | None]:
        """Runs a case in a process, or in a new one; the process is None where it is gone afterwards."""
        answer = _CANCELLED
        for _ in range(_MOST_STARTS):
            if self._stop():
                return _CANCELLED, worker
            if worker is None or not worker.ready:
                worker = self._find_ready(worker)
            if worker is None:
                return _CANCELLED, None
            begun = time.monotonic()
            asked = json.dumps({name: getattr(job, name) for name in _SENT})
            request = f'{asked[:-1]}, "limits": {_format_limits(job.limits)}}}\n'
            record = worker.ask(request.encode(), job.timeout)
            if record is not None:
                return _answer(record, worker, job), worker
            if worker.overdue:
                worker.kill()
            worker.reap()
            answer = _answer_death(worker, job, time.monotonic() - begun, cancelled=self._stop())
            taken = worker.taken
            self._end(worker)
            worker = None
            if taken or answer.outcome.timed_out:
                break
        return answer, None

    def _find_ready(self, worker: RunWorker | None) -> RunWorker | None:
        """A process that serves; None where all was cancelled before it did."""
        if worker is not None:
            if worker.get_ready(_START_SECONDS):
                return worker
            # Started early, and ended by somebody before it had anything to do: the next one shows whether any serves.
            worker.kill()
            self._end(worker)
        if self._stop():
            return None
        worker = self._start()
        if worker.get_ready(_START_SECONDS):
            return worker
        worker.kill()
        worker.reap()
        lines = worker.printed()
        self._end(worker)
        if self._stop():
            return None
        raise ToolchainError(
            f"{self._python}: cannot run modules: {lines[-1] if lines else 'it does not start'}",
            "install the toolchain's runtime again: iree-base-runtime",
        )


@lru_cache(maxsize=64)
def _format_limits(limits: tuple[tuple[str, float, float], ...]) -> str:
    """The same for all cases of a suite, and as long as the rest of a request."""
    return json.dumps({name: (absolute, relative) for name, absolute, relative in limits})


def _answer(record: _RunRecord, worker: RunWorker, job: RunJob) -> RunAnswer:
    logged = worker.printed_bytes()
    lines = worker.printed(job.log) if logged else []
    if record.message:
        lines = [*lines, clean_line(record.message)][-TAIL_LINES:]
    exhausted = record.message.startswith("RESOURCE_EXHAUSTED") and job.on_cpu
    outcome = Outcome(
        0 if record.verdict == RunVerdict.PASSED else 1,
        seconds=record.seconds,
        cpu_seconds=record.cpu_seconds,
        peak_rss_bytes=record.peak_rss_bytes,
        tail=tuple(lines),
        out_of_memory=bool(worker.memory_bytes) and exhausted,
        notes=_describe_memory(worker) if exhausted else (),
    )
    return RunAnswer(outcome, record.verdict, record.message, record.outputs, logged)


def _answer_death(worker: RunWorker, job: RunJob, seconds: float, *, cancelled: bool) -> RunAnswer:
    """What there is to say of a case whose process is gone."""
    code = worker.process.returncode
    logged = worker.printed_bytes()
    lines = worker.printed(job.log)
    exhausted = any("bad_alloc" in line for line in lines)
    outcome = Outcome(
        code if code is not None and code >= 0 else None,
        signal=name_signal(-code) if code is not None and code < 0 else "",
        timed_out=worker.overdue and not cancelled,
        cancelled=cancelled,
        seconds=seconds,
        tail=tuple(lines),
        stuck=code is None,
        out_of_memory=bool(worker.memory_bytes) and exhausted,
        notes=_describe_memory(worker) if exhausted else (),
    )
    return RunAnswer(outcome, RunVerdict.DIED, logged=logged)


def _describe_memory(worker: RunWorker) -> tuple[str, ...]:
    """What there is to say to one that had too little memory."""
    limit = worker.memory_bytes
    return (f"the memory that it may take is limited to {byte_size(limit)}",) if limit else ()


def _may_be_anothers_fault(answer: RunAnswer, job: RunJob) -> bool:
    """Whether a death, or a lack of memory, may have its cause in a case that the process had before.

    So may every error of a GPU: once a kernel has read where nothing is, CUDA refuses all that the process asks for.
    """
    outcome = answer.outcome
    if answer.verdict != RunVerdict.DIED:
        return outcome.out_of_memory or (answer.verdict == RunVerdict.ERROR and not job.on_cpu)
    return not (outcome.timed_out or outcome.cancelled or outcome.stuck) and outcome.signal not in SENT_SIGNALS


class RunWorker:
    """A process that answers requests, one at a time, and the pipes to it; arguments as for `RunServers`.

    Attributes:
        ready: whether it has begun to serve.
        overdue: whether it has not answered in time.
        taken: whether it has begun to read the request that it did not answer.

    Raises:
        ToolchainError: the toolchain's Python cannot be run.
    """

    def __init__(self, python: str, environment: Mapping[str, str] | None, memory_bytes: int) -> None:
        environment = dict(os.environ if environment is None else environment)
        # One case at a time, and mostly small: threads for products of matrices are only in the way.
        environment.setdefault("OPENBLAS_NUM_THREADS", "1")
        self.memory_bytes = memory_bytes
        self.cases = 0
        self.ready = False
        self.overdue = False
        self.taken = False
        self._pending = b""
        try:
            # For what cases print.
            self._log: IO[bytes] = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed by `forget`
        except OSError:
            # In memory where the disk is full.
            self._log = os.fdopen(os.memfd_create("printed"), "w+b", buffering=0)
        try:
            # Emptied after every case that printed something: the process has to write where the end is then.
            fcntl.fcntl(self._log, fcntl.F_SETFL, fcntl.fcntl(self._log, fcntl.F_GETFL) | os.O_APPEND)
            theirs, self._life = os.pipe()
            try:
                self.process = subprocess.Popen(
                    [python, "-B", str(_SCRIPT), str(theirs), str(memory_bytes)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=self._log,
                    bufsize=0,
                    env=environment,
                    pass_fds=(theirs,),
                    # Ctrl-C in the terminal is not for it.
                    start_new_session=True,
                )
            except OSError as error:
                os.close(self._life)
                raise ToolchainError(f"{python}: cannot be run: {error.strerror}", "") from error
            finally:
                os.close(theirs)
        except BaseException:
            self._log.close()
            raise
        self._pipes = require_pipes(self.process)
        self._requests, self._answers = (pipe.fileno() for pipe in self._pipes)
        self._poll = select.poll()
        self._poll.register(self._answers, select.POLLIN)

    def get_ready(self, timeout: float) -> bool:
        """Whether it has begun to serve."""
        self.ready = self._read(time.monotonic() + timeout) is not None
        if self.ready:
            # What imports have to say is of no case.
            self._log.truncate(0)
        return self.ready

    def ask(self, request: bytes, timeout: float) -> _RunRecord | None:
        """Has a request answered; None where the process died (`taken`: not while it was idle), or was `overdue`."""
        deadline = time.monotonic() + timeout
        self.cases += 1
        try:
            data = memoryview(request)
            while data:
                data = data[os.write(self._requests, data) :]
        except BrokenPipeError:
            return None
        record = self._read(deadline)
        if record is None:
            # What nobody has read stays in the pipe, also when its other end is closed.
            unread = bytearray(4)
            fcntl.ioctl(self._requests, termios.FIONREAD, unread)
            self.taken = int.from_bytes(unread, sys.byteorder) < len(request)
        return record

    def _read(self, deadline: float) -> _RunRecord | None:
        while not self._pending.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not self._poll.poll(min(left, 1e6) * 1000):
                self.overdue = True
                return None
            data = os.read(self._answers, 1 << 16)
            if not data:
                return None
            self._pending += data
        line, self._pending = self._pending, b""
        return _RunRecord.from_dict(json.loads(line))

    def printed_bytes(self) -> int:
        """How much has been printed."""
        return os.fstat(self._log.fileno()).st_size

    def printed(self, log: str = "") -> list[str]:
        """The last lines of what was printed, which goes to a file too, and is forgotten."""
        size = self.printed_bytes()
        if not size:
            return []
        data = os.pread(self._log.fileno(), _MOST_LOG, max(0, size - _MOST_LOG))
        lines = data.decode(errors="replace").splitlines()
        if log:
            try:
                Path(log).parent.mkdir(parents=True, exist_ok=True)
                with Path(log).open("wb") as stream:
                    self._log.seek(0)
                    shutil.copyfileobj(self._log, stream)
            except OSError as error:
                lines.append(f"{log}: cannot write the log: {error.strerror}")
        self._log.truncate(0)
        return [clean_line(line) for line in lines if line.strip()][-TAIL_LINES:]

    def kill(self) -> None:
        """Ends it; a second time does nothing."""
        # Popen looks first whether it still is this process.
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGKILL)

    def reap(self) -> None:
        """Waits for its end, and closes the pipes; what it has printed can still be had."""
        try:
            self.process.wait(_LAST_WORDS_SECONDS)
        except subprocess.TimeoutExpired:
            # Its answers have ended and it has not.
            self.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(_LAST_WORDS_SECONDS)
        if self._life >= 0:
            for pipe in self._pipes:
                pipe.close()
            os.close(self._life)
            self._life = -1

    def forget(self) -> None:
        """Lets go of what it has printed."""
        self._log.close()
