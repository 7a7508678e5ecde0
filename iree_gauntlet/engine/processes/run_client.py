"""Client of the processes that run modules and compare their outputs, one small case after the other.

The server is `workers/iree_side/run_server.py` in the toolchain's Python, which keeps the runtime and its devices from
case to case. A case that crashes, hangs or takes all memory ends its process; the next case gets a new process. An
earlier case may have damaged the process, so a case that crashes in a used process is rerun alone in a new one, and the
rerun's result counts. A case is not rerun if it ran out of time, or if its process was killed from outside (SIGKILL, by
a person or for lack of memory).

The server's standard output has only responses; output of cases goes to an unnamed file. The toolkit holds a pipe to
the server and never writes to it: when the toolkit ends, for any reason, the pipe closes and the server ends.
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
from iree_gauntlet.formatting import format_bytes
from iree_gauntlet.recorded import Recorded
from iree_gauntlet.results import EXTERNAL_SIGNALS
from iree_gauntlet.system.short_process import TAIL_LINES, clean_line, get_signal_name
from iree_gauntlet.workers import iree_side

if TYPE_CHECKING:
    from collections.abc import Mapping


_SCRIPT = Path(iree_side.__file__).resolve().with_name("run_server.py")
_EXIT_TIMEOUT_SECONDS = 10.0
_MAX_LOG_BYTES = 1 << 20
# Importing NumPy and the runtime takes a fifth of a second; a machine under load may take a hundred times as long.
_START_TIMEOUT_SECONDS = 120.0
# A case waits so long for a free process before one more is started.
_MAX_WAIT_SECONDS = 0.25
# So many processes are tried for a case if each of them dies before it reads the request.
_MAX_STARTS = 3
# These fields of a case are sent to its process.
_REQUEST_FIELDS = ("cwd", "device", "on_cpu", "module", "function", "inputs", "expected", "allclose", "kept")


class RunVerdict:
    """The result of a case."""

    PASSED = "passed"
    MISMATCH = "mismatch"
    # The module could not be run; the message is IREE's status.
    ERROR = "error"
    # The case needs iree-run-module itself.
    UNSUPPORTED = "unsupported"
    # The process of the case ended by itself, or was ended.
    DIED = "died"


@dataclass(frozen=True, slots=True)
class RunJob:
    """A case to run.

    Attributes:
        timeout: seconds until the process of the case is killed.
        cwd: the base of relative paths.
        function: the function to call; empty for the only function that the module exports.
        limits: element types with absolute and relative tolerance; values of other types must have the same
            bytes.
        allclose: (rtol, atol, NaN equals NaN) to compare by `numpy.allclose`; None for iree-run-module's rule.
        kept: paths of files for the outputs of a failed case; suffixes are added by type.
        log: file for the printed output, if there is any; empty for no file.
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
        """True if the case runs entirely in its process, and not through a GPU's driver."""
        return is_cpu(self.device)


@dataclass(frozen=True, slots=True)
class RunOutput(Recorded):
    """An output of a failed case, compared with the expected one; a missing output has no type.

    Attributes:
        file: the file with the output's values; empty if there is no file.
    """

    index: int
    type: str
    passed: bool
    count: int
    file: str


@dataclass(frozen=True, slots=True)
class _RunRecord(Recorded):
    """A process's record of a case; the first record has no case, and means that the process is ready."""

    verdict: str = ""
    message: str = ""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_rss_bytes: int = 0
    outputs: tuple[RunOutput, ...] = ()


@dataclass(frozen=True, slots=True)
class RunResponse:
    """The result of a case.

    Attributes:
        outcome: as if the case had its own process; the exit code is 0 if the case passed, and 1 if it failed.
        verdict: one of `RunVerdict`.
        message: IREE's status of an error, without the location in IREE's source.
        outputs: the outputs, if they are not as expected.
        log_bytes: the number of bytes that the case printed.
    """

    outcome: Outcome
    verdict: str
    message: str = ""
    outputs: tuple[RunOutput, ...] = ()
    log_bytes: int = 0


_CANCEL_RESPONSE = RunResponse(Outcome(None, cancelled=True), RunVerdict.DIED)


class RunServers(contextlib.AbstractContextManager["RunServers"]):
    """Processes that run cases; `run` may be called from several threads at once.

    Use it as a context manager: leaving it ends the processes. They also end when the toolkit is killed.

    Args:
        python: the toolchain's Python.
        count: the number of processes; a thread waits if no process is free.
        environment: the environment of the processes; by default the toolkit's own.
        memory_bytes: the address space that a process may take for its cases; 0 for no limit. A case that needs more
            fails with RESOURCE_EXHAUSTED. GPU processes are not limited.
    """

    def __init__(
        self, python: str, count: int, environment: Mapping[str, str] | None = None, *, memory_bytes: int = 0
    ) -> None:
        self._python = python
        self._environment = environment
        self._memory_bytes = memory_bytes
        self._cancelled = False
        self._closed = False
        # A free slot is a process, or None, which permits starting one. The process that ran last is taken first,
        # because its device is already open; opening takes a GPU's driver half a second.
        self._slots: queue.LifoQueue[RunWorker | None] = queue.LifoQueue()
        self._slots.put(None)
        self._unused_slots = count - 1
        self._workers: set[RunWorker] = set()
        self._lock = threading.Lock()

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pids(self) -> tuple[int, ...]:
        """The ids of the current processes."""
        return tuple(worker.process.pid for worker in self._workers)

    def start(self) -> None:
        """Start the first process, without waiting for it; the others start when cases have to wait.

        Raises:
            ToolchainError: the toolchain's Python cannot be run.
        """
        workers: list[RunWorker | None] = []
        try:
            with contextlib.suppress(queue.Empty):
                while True:
                    workers.append(self._slots.get_nowait())
            for index, worker in enumerate(workers):
                if worker is None and not self._is_cancelled():
                    workers[index] = self._start()
        finally:
            for worker in workers:
                self._slots.put(worker)

    def run(self, job: RunJob) -> RunResponse:
        """Run a case, and wait for its end.

        Raises:
            ToolchainError: the toolchain's Python has no runtime, or cannot be run.
        """
        if self._closed:
            raise RuntimeError("the run servers are closed")
        worker = self._take_slot()
        try:
            is_first_case = worker is None or worker.cases == 0
            # If `_run_in` raises an error, the slot gets back None, not a dead process.
            slot_worker, worker = worker, None
            response, worker = self._run_in(slot_worker, job)
            if not is_first_case and _may_be_fault_of_other_case(response, job):
                first_outcome, message = response.outcome, response.message
                if worker is not None:
                    # End the process, because it still has the memory that earlier cases have taken.
                    worker.kill()
                    self._end(worker)
                    worker = None
                response, worker = self._run_in(None, job)
                if not _may_be_fault_of_other_case(response, job):
                    exit_text = first_outcome.signal or f"exit code {first_outcome.exit_code}"
                    cause = "lack of memory" if first_outcome.out_of_memory else message or exit_text
                    note = f"its process ended with {cause} after running other cases; alone in a new one it did not"
                    notes = (*response.outcome.notes, note)
                    response = replace(response, outcome=replace(response.outcome, notes=notes))
        finally:
            self._slots.put(worker)
        return response

    def _take_slot(self) -> RunWorker | None:
        """Wait for a free process; if that takes long, permit starting one more."""
        with contextlib.suppress(queue.Empty):
            return self._slots.get(timeout=_MAX_WAIT_SECONDS)
        with self._lock:
            if self._unused_slots > 0:
                self._unused_slots -= 1
                return None
        return self._slots.get()

    def cancel(self) -> None:
        """Kill every process, and start no more; safe in a signal handler, since it takes no lock."""
        self._cancelled = True
        for worker in tuple(self._workers):
            worker.kill()

    def close(self) -> None:
        """End the processes; `run` may not be called afterwards."""
        self._closed = self._cancelled = True
        for worker in tuple(self._workers):
            worker.kill()
            self._end(worker)
        with contextlib.suppress(queue.Empty):
            while True:
                self._slots.get_nowait()

    def _is_cancelled(self) -> bool:
        return self._cancelled

    def _start(self) -> RunWorker:
        worker = RunWorker(self._python, self._environment, self._memory_bytes)
        with self._lock:
            # Replace the set instead of changing it, because `cancel` may iterate over it at any time.
            self._workers = {*self._workers, worker}
        if self._is_cancelled():
            worker.kill()
        return worker

    def _end(self, worker: RunWorker) -> None:
        """Remove a process that has ended."""
        worker.reap()
        worker.close_log()
        with self._lock:
            self._workers = self._workers - {worker}

    def _run_in(self, worker: RunWorker | None, job: RunJob) -> tuple[RunResponse, RunWorker | None]:
        """Run a case in `worker`, or in a new process; return the response and the process, None if it has ended."""
        response = _CANCEL_RESPONSE
        for _ in range(_MAX_STARTS):
            if self._is_cancelled():
                return _CANCEL_RESPONSE, worker
            if worker is None or not worker.ready:
                worker = self._prepare_worker(worker)
            if worker is None:
                return _CANCEL_RESPONSE, None
            start = time.monotonic()
            fields = json.dumps({name: getattr(job, name) for name in _REQUEST_FIELDS})
            request = f'{fields[:-1]}, "limits": {_format_limits(job.limits)}}}\n'
            record = worker.ask(request.encode(), job.timeout)
            if record is not None:
                return _make_response(record, worker, job), worker
            if worker.overdue:
                worker.kill()
            worker.reap()
            response = _make_death_response(worker, job, time.monotonic() - start, is_cancel=self._is_cancelled())
            has_read = worker.has_read_request
            self._end(worker)
            worker = None
            if has_read or response.outcome.timed_out:
                break
        return response, None

    def _prepare_worker(self, worker: RunWorker | None) -> RunWorker | None:
        """Return a process that is ready; None if the servers are cancelled."""
        if worker is not None:
            if worker.wait_until_ready(_START_TIMEOUT_SECONDS):
                return worker
            # This process was started in advance and is not ready; only a new one shows if processes can run here.
            worker.kill()
            self._end(worker)
        if self._is_cancelled():
            return None
        worker = self._start()
        if worker.wait_until_ready(_START_TIMEOUT_SECONDS):
            return worker
        worker.kill()
        worker.reap()
        lines = worker.read_output()
        self._end(worker)
        if self._is_cancelled():
            return None
        raise ToolchainError(
            f"{self._python}: cannot run modules: {lines[-1] if lines else 'it does not start'}",
            "install the toolchain's runtime again: iree-base-runtime",
        )


@lru_cache(maxsize=64)
def _format_limits(limits: tuple[tuple[str, float, float], ...]) -> str:
    """Format limits as JSON. Cached: all cases of a suite have the same limits, which are half of each request."""
    return json.dumps({name: (absolute, relative) for name, absolute, relative in limits})


def _make_response(record: _RunRecord, worker: RunWorker, job: RunJob) -> RunResponse:
    log_bytes = worker.get_output_bytes()
    lines = worker.read_output(job.log) if log_bytes else []
    if record.message:
        lines = [*lines, clean_line(record.message)][-TAIL_LINES:]
    no_memory = record.message.startswith("RESOURCE_EXHAUSTED") and job.on_cpu
    outcome = Outcome(
        0 if record.verdict == RunVerdict.PASSED else 1,
        seconds=record.seconds,
        cpu_seconds=record.cpu_seconds,
        peak_rss_bytes=record.peak_rss_bytes,
        tail=tuple(lines),
        out_of_memory=bool(worker.memory_bytes) and no_memory,
        notes=_describe_memory(worker) if no_memory else (),
    )
    return RunResponse(outcome, record.verdict, record.message, record.outputs, log_bytes)


def _make_death_response(worker: RunWorker, job: RunJob, seconds: float, *, is_cancel: bool) -> RunResponse:
    """Return the result of a case whose process has ended."""
    code = worker.process.returncode
    log_bytes = worker.get_output_bytes()
    lines = worker.read_output(job.log)
    no_memory = any("bad_alloc" in line for line in lines)
    outcome = Outcome(
        code if code is not None and code >= 0 else None,
        signal=get_signal_name(-code) if code is not None and code < 0 else "",
        timed_out=worker.overdue and not is_cancel,
        cancelled=is_cancel,
        seconds=seconds,
        tail=tuple(lines),
        stuck=code is None,
        out_of_memory=bool(worker.memory_bytes) and no_memory,
        notes=_describe_memory(worker) if no_memory else (),
    )
    return RunResponse(outcome, RunVerdict.DIED, log_bytes=log_bytes)


def _describe_memory(worker: RunWorker) -> tuple[str, ...]:
    """Return the note for a case that had too little memory."""
    limit = worker.memory_bytes
    return (f"its memory is limited to {format_bytes(limit)}",) if limit else ()


def _may_be_fault_of_other_case(response: RunResponse, job: RunJob) -> bool:
    """Return True if an earlier case in the process may have caused a death, or a lack of memory.

    An earlier case may also have caused any error of a GPU: after a kernel has read an invalid address, CUDA rejects
    all later calls of the process.
    """
    outcome = response.outcome
    if response.verdict != RunVerdict.DIED:
        return outcome.out_of_memory or (response.verdict == RunVerdict.ERROR and not job.on_cpu)
    return not (outcome.timed_out or outcome.cancelled or outcome.stuck) and outcome.signal not in EXTERNAL_SIGNALS


class RunWorker:
    """A process that answers requests, one at a time, and the pipes to it; arguments as for `RunServers`.

    Attributes:
        ready: True after the process has begun to serve.
        overdue: True if the process has not answered in time.
        has_read_request: True if the process died while or after reading the last request.

    Raises:
        ToolchainError: the toolchain's Python cannot be run.
    """

    def __init__(self, python: str, environment: Mapping[str, str] | None, memory_bytes: int) -> None:
        environment = dict(os.environ if environment is None else environment)
        # Cases run one at a time and are mostly small, so threads for matrix products only cost time.
        environment.setdefault("OPENBLAS_NUM_THREADS", "1")
        self.memory_bytes = memory_bytes
        self.cases = 0
        self.ready = False
        self.overdue = False
        self.has_read_request = False
        self._pending = b""
        try:
            # This file is for the output of cases.
            self._log: IO[bytes] = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed by `close_log`
        except OSError:
            # If the disk is full, use a file in memory.
            self._log = os.fdopen(os.memfd_create("printed"), "w+b", buffering=0)
        try:
            # The process must append, because the file is emptied after every case that printed something.
            fcntl.fcntl(self._log, fcntl.F_SETFL, fcntl.fcntl(self._log, fcntl.F_GETFL) | os.O_APPEND)
            child_end, self._lifeline = os.pipe()
            try:
                self.process = subprocess.Popen(
                    [python, "-B", str(_SCRIPT), str(child_end), str(memory_bytes)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=self._log,
                    bufsize=0,
                    env=environment,
                    pass_fds=(child_end,),
                    # Ctrl-C in the terminal must not reach it.
                    start_new_session=True,
                )
            except OSError as error:
                os.close(self._lifeline)
                raise ToolchainError(f"{python}: cannot be run: {error.strerror}", "") from error
            finally:
                os.close(child_end)
        except BaseException:
            self._log.close()
            raise
        self._pipes = require_pipes(self.process)
        self._requests, self._responses = (pipe.fileno() for pipe in self._pipes)
        self._poll = select.poll()
        self._poll.register(self._responses, select.POLLIN)

    def wait_until_ready(self, timeout: float) -> bool:
        """Wait until the process serves; return False if it does not in time."""
        self.ready = self._read(time.monotonic() + timeout) is not None
        if self.ready:
            # Discard output of imports, which belongs to no case.
            self._log.truncate(0)
        return self.ready

    def ask(self, request: bytes, timeout: float) -> _RunRecord | None:
        """Send a request; return the record, or None if the process died (see `has_read_request`) or was `overdue`."""
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
            # Data that the process did not read stays in the pipe, even after the process has ended.
            unread = bytearray(4)
            fcntl.ioctl(self._requests, termios.FIONREAD, unread)
            self.has_read_request = int.from_bytes(unread, sys.byteorder) < len(request)
        return record

    def _read(self, deadline: float) -> _RunRecord | None:
        while not self._pending.endswith(b"\n"):
            remaining = deadline - time.monotonic()
            if remaining <= 0 or not self._poll.poll(min(remaining, 1e6) * 1000):
                self.overdue = True
                return None
            data = os.read(self._responses, 1 << 16)
            if not data:
                return None
            self._pending += data
        line, self._pending = self._pending, b""
        return _RunRecord.from_dict(json.loads(line))

    def get_output_bytes(self) -> int:
        """Return the size of the printed output in bytes."""
        return os.fstat(self._log.fileno()).st_size

    def read_output(self, log: str = "") -> list[str]:
        """Return the last lines of the printed output; copy the output to `log`, if named, and discard it."""
        size = self.get_output_bytes()
        if not size:
            return []
        data = os.pread(self._log.fileno(), _MAX_LOG_BYTES, max(0, size - _MAX_LOG_BYTES))
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
        """Kill the process; a second call does nothing."""
        # `poll` first checks that the id still belongs to this process.
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGKILL)

    def reap(self) -> None:
        """Wait for the end of the process, and close the pipes; the printed output can still be read."""
        try:
            self.process.wait(_EXIT_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            # The process closed its output but still runs.
            self.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(_EXIT_TIMEOUT_SECONDS)
        if self._lifeline >= 0:
            for pipe in self._pipes:
                pipe.close()
            os.close(self._lifeline)
            self._lifeline = -1

    def close_log(self) -> None:
        """Discard the printed output of the process."""
        self._log.close()
