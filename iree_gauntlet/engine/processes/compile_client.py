"""Client of the compile server: a process of the toolchain's Python that forks a child for each compile.

`workers/iree_side/compile_server.py` describes that process. A served compile is a little faster than the native tool
and much faster than the tool's Python wrapper. The results are the same: module bytes, diagnostics, exit codes and
signals. A served compile uses one thread, so large programs are left to the plain tool.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.engine.processes.processes import require_pipes
from iree_gauntlet.engine.processes.supervisor import Outcome, ProcessReport, is_plain_path, process_outcome
from iree_gauntlet.errors import GauntletError, ToolchainError
from iree_gauntlet.recorded import Recorded
from iree_gauntlet.system.short_process import get_signal_name, read_tail
from iree_gauntlet.workers import iree_side

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


_SCRIPT = Path(iree_side.__file__).with_name("compile_server.py")
_GRACE_SECONDS = 2.0
_CLOSE_TIMEOUT_SECONDS = 20.0
# Some of these flags print something and exit; the server sets the others itself (one thread, one output).
_UNSUPPORTED_FLAG = re.compile(
    r"-+(?:help.*|h|version|print-(?:all-)?options|iree-list-plugins|iree-hal-list-target-backends|o)(?:=.*)?"
    r"|-+mlir-disable-threading=.*"
)
_ENVIRONMENT = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_KILLED_NOTE = "the compile server was killed from outside, and its compiles with it (see dmesg)"
# `workers/iree_side/compile_server.py` exits with these if the failure is not the compiler's.
EXIT_DEFECT = 70
EXIT_UNWRITABLE = 74
_MAX_STDERR_BYTES = 1 << 20
_ERROR_LOCATION = re.compile(r"^(.+?):\d+:\d+: error: ", re.MULTILINE)
# A crash's stack shows the tool's main function by these names; the frames of its callers are the server's Python.
_MAIN_FRAME = re.compile(rb"^ *#?\d+ .*(?:runIreecMain|ireeCompilerRunMain|ireeCompilerInvocation).*\n", re.MULTILINE)
_NO_MEMORY_MESSAGES = ("out of memory", "bad_alloc", "cannot allocate memory", "memoryerror")


@dataclass(frozen=True, slots=True)
class CompileJob:
    """A compile `iree-compile PROGRAM FLAGS -o OUTPUT` of one program, or of many programs merged into one.

    Attributes:
        programs: paths of MLIR files, as text or bytecode.
        output: path of the module, written completely or not at all; its folder must exist.
        cwd: the base of relative paths; empty for this process's working directory.
        timeout: seconds until SIGTERM; SIGKILL follows after the server's grace; `inf` for no limit.
        memory_bytes: limit of the address space, which includes the compiler's own 0.3 GB; 0 for no limit.
    """

    programs: tuple[str, ...]
    flags: tuple[str, ...]
    output: Path
    stdout: Path
    stderr: Path
    cwd: str
    timeout: float
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class _CompileDetail(Recorded):
    """Details of a merged compile: the public functions of each program, and the indices of faulty programs."""

    functions: tuple[tuple[str, ...], ...] = ()
    faulty_programs: tuple[int, ...] = ()


@dataclass(slots=True)
class CompileResponse(ProcessReport, Recorded):
    """A message of the server: it is ready, or a compile has started, could not be started, or has ended."""

    ready: bool = False
    id: int = 0
    pid: int = 0
    error: str = ""
    detail: _CompileDetail = _CompileDetail()
    notes: tuple[str, ...] = ()


def is_servable(flags: Sequence[str]) -> bool:
    """Return True if the server can compile with these flags, by the tool's own main function in a child process."""
    return not any(_UNSUPPORTED_FLAG.fullmatch(flag) for flag in flags)


@dataclass
class CompileServer(contextlib.AbstractContextManager["CompileServer"]):
    """A server that compiles in child processes; `compile` may be called from several threads at once.

    The first compile starts the server; a later compile restarts it if it was killed. Use it as a context manager.

    Attributes:
        python: the toolchain's Python, which has `iree.compiler`.
        tmpdir: folder for private TMPDIRs. If its path would need quotes in a shell, the system's temporary folder is
            used instead.
        grace: seconds between SIGTERM and SIGKILL.
    """

    python: str
    tmpdir: Path
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    grace: float = _GRACE_SECONDS
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _server: _ServerProcess | None = None
    _cancel_flag: bool = False
    _close_flag: bool = False

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """The process id of the server; 0 if none runs."""
        server = self._server
        return server.pid if server is not None and not server.ended else 0

    def compile(self, job: CompileJob) -> Outcome:
        """Compile a program and wait for it.

        Raises:
            ToolchainError: the server cannot be started.
            GauntletError: a folder is missing or cannot be written.
        """
        return self._ask(job, None)[0]

    def compile_batch(self, job: CompileJob) -> tuple[Outcome, tuple[tuple[str, ...], ...], tuple[int, ...]]:
        """Compile programs merged into one and wait for the end; errors as in `compile`.

        Returns:
            The outcome; each program's public functions by their names in the module (empty if the merge was not
            reached); and after a failure the indices of faulty programs (empty if unknown). Programs that do not
            parse are faulty; if all parse, those that the compiler's errors name. The compiler may stop at its
            first error, so more programs may be faulty.
        """
        # Each program gets a prefix, which is put before the names of its symbols.
        prefixes = tuple(f"c{index}_" for index in range(len(job.programs)))
        outcome, detail = self._ask(job, prefixes)
        faulty_programs = detail.faulty_programs
        if outcome.exit_code and not faulty_programs:
            faulty_programs = find_programs_with_errors(job.stderr, job.programs)
        return outcome, detail.functions, faulty_programs

    def cancel(self) -> None:
        """End every compile, and start no more; safe in a signal handler, since it takes no lock."""
        self._cancel_flag = True
        server = self._server
        if server is not None:
            server.terminate()

    def close(self) -> None:
        """End the server and its compiles; `compile` may not be called afterwards."""
        with self._lock:
            self._close_flag = True
            server, self._server = self._server, None
        if server is not None:
            server.close()

    def _ask(self, job: CompileJob, prefixes: tuple[str, ...] | None) -> tuple[Outcome, _CompileDetail]:
        if self._is_cancelled():
            return Outcome(None, cancelled=True), _CompileDetail()
        for log in (job.stdout, job.stderr):
            _make_folder(log.parent)
        start = time.monotonic()
        try:
            for _ in range(2):
                server, pending_compile = self._send(job, prefixes)
                response = server.wait(pending_compile)
                if response is not None or pending_compile.pid or self._is_cancelled():
                    break
                # The server was killed before it read the request, so the compile was not tried yet.
        except _NeverStartedError as error:
            if self._is_cancelled():
                return Outcome(None, cancelled=True), _CompileDetail()
            raise ToolchainError(
                f"{self.python}: the compile server cannot be started: {error}",
                "install iree-base-compiler for that Python; without it each compile is a process of its own",
            ) from error
        if response is None:
            outcome = Outcome(None, signal="SIGKILL", seconds=time.monotonic() - start, notes=(_KILLED_NOTE,))
        elif response.error:
            raise GauntletError(
                f"a compile cannot be started: {response.error}", "make room there, or make it readable and writable"
            )
        else:
            outcome = compile_outcome(response, job)
        if outcome.exit_code is None and self._is_cancelled():
            outcome = replace(outcome, cancelled=True, notes=())
        return outcome, response.detail if response is not None else _CompileDetail()

    def _is_cancelled(self) -> bool:
        return self._cancel_flag

    def _send(self, job: CompileJob, prefixes: tuple[str, ...] | None) -> tuple[_ServerProcess, _PendingCompile]:
        request = {
            "op": "compile",
            "programs": job.programs,
            "prefixes": prefixes,
            "flags": job.flags,
            "output": str(job.output.absolute()),
            "stdout": str(job.stdout.absolute()),
            "stderr": str(job.stderr.absolute()),
            "cwd": str(Path(job.cwd).absolute()),
            "timeout": job.timeout,
            "grace": self.grace,
            "memory_bytes": job.memory_bytes,
        }
        with self._lock:
            if self._close_flag:
                raise RuntimeError("the compile server is closed")
            if self._server is None or self._server.ended:
                if self._server is not None:
                    self._server.close()
                self._server = _ServerProcess(self.python, self.tmpdir, {**self.environment, **_ENVIRONMENT})
                if self._is_cancelled():
                    self._server.terminate()
            return self._server, self._server.send(request)


class _NeverStartedError(Exception):
    """The server ended before it was ready; the text is the last line that it printed."""


@dataclass(slots=True)
class _PendingCompile:
    """A compile in progress."""

    number: int
    done_event: threading.Event = field(default_factory=threading.Event)
    pid: int = 0
    answer: CompileResponse | None = None


class _ServerProcess:
    """One process of the server, and the thread that reads its answers."""

    def __init__(self, python: str, tmpdir: Path, environment: dict[str, str]) -> None:
        _make_folder(tmpdir)
        parent = tmpdir.absolute() if is_plain_path(str(tmpdir.absolute())) else None
        try:
            self._folder = Path(tempfile.mkdtemp(prefix="gauntlet-compile-", dir=parent))
        except OSError as error:
            raise GauntletError(
                f"{error.filename}: cannot create a folder for the compile server: {error.strerror}", "make room there"
            ) from error
        self._errors = self._folder / "server.txt"
        try:
            with self._errors.open("wb") as errors:
                # The server has its own session: Ctrl-C in the terminal must not reach it.
                self._process = subprocess.Popen(
                    [python, "-B", str(_SCRIPT), str(self._folder)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    env=environment,
                    start_new_session=True,
                )
        except OSError as error:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise ToolchainError(f"{python}: cannot be started: {error.strerror}", "name another Python") from error
        self._requests, self._answers = require_pipes(self._process)
        self.pid = self._process.pid
        self.ended = False
        self._ready = False
        self._failure = ""
        self._lock = threading.Lock()
        self._pending_compiles: dict[int, _PendingCompile] = {}
        self._count = 0
        self._reader = threading.Thread(target=self._read, name="compile server", daemon=True)
        self._reader.start()

    def send(self, request: Mapping[str, Any]) -> _PendingCompile:
        with self._lock:
            self._count += 1
            pending_compile = _PendingCompile(self._count)
            if self.ended:
                pending_compile.done_event.set()
                return pending_compile
            self._pending_compiles[pending_compile.number] = pending_compile
            self._write({**request, "id": pending_compile.number})
        return pending_compile

    def wait(self, pending_compile: _PendingCompile) -> CompileResponse | None:
        """Return the response to a compile; None if the server was killed."""
        try:
            pending_compile.done_event.wait()
        except BaseException:
            # After Ctrl-C the result is of no use.
            with self._lock:
                self._write({"op": "end", "id": pending_compile.number})
            raise
        if pending_compile.answer is None and not self._ready:
            raise _NeverStartedError(self._failure)
        return pending_compile.answer

    def terminate(self) -> None:
        """Make the server kill its children and end; takes no lock."""
        if not self.ended:
            # The server may have ended by now, but its id stays reserved until `_read` collects it, after setting
            # `ended`.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)

    def close(self) -> None:
        """End the server, and wait until the server and its children are gone."""
        with contextlib.suppress(BrokenPipeError):
            self._requests.close()
        self._reader.join(_CLOSE_TIMEOUT_SECONDS)
        if self._reader.is_alive():
            self._process.kill()
            self._reader.join()

    def _write(self, request: Mapping[str, Any]) -> None:
        # Errors are ignored here, since the reader notices a killed server.
        with contextlib.suppress(BrokenPipeError, ValueError):
            self._requests.write(json.dumps(request).encode() + b"\n")
            self._requests.flush()

    def _read(self) -> None:
        """Pass on responses until the server ends, then kill the compiles that a killed server left behind."""
        for line in self._answers:
            if not line.endswith(b"\n"):
                break
            response = CompileResponse.from_dict(json.loads(line))
            if response.ready:
                self._ready = True
                continue
            waiter = self._pending_compiles[response.id]
            if response.pid:
                waiter.pid = response.pid
                continue
            with self._lock:
                del self._pending_compiles[waiter.number]
            waiter.answer = response
            waiter.done_event.set()
        with self._lock:
            self.ended = True
            waiters = list(self._pending_compiles.values())
            self._pending_compiles.clear()
        status = self._process.wait()
        for waiter in waiters:
            if waiter.pid:
                # The killed server can no longer kill its own children.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(waiter.pid, signal.SIGKILL)
        if not self._ready:
            lines = [line for line in read_tail(self._errors).lines if line.strip()]
            exit_text = get_signal_name(-status) if status < 0 else f"exit code {status}"
            self._failure = lines[-1].strip() if lines else f"it ended with {exit_text}"
        self._answers.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        for waiter in waiters:
            waiter.done_event.set()


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise GauntletError(f"{folder}: cannot create a folder: {error.strerror}", "make room there") from error


def compile_outcome(response: CompileResponse, job: CompileJob) -> Outcome:
    """Return the outcome of a compile in the form that all processes have."""
    if os.WIFSIGNALED(response.status):
        # Drop the stack frames of the server's Python: people read the end of the log first.
        with job.stderr.open("r+b") as stream:
            frames = list(_MAIN_FRAME.finditer(stream.read(_MAX_STDERR_BYTES)))
            if frames:
                stream.truncate(frames[-1].end())
    outcome = process_outcome(response, job.stdout, job.stderr, response.notes)
    if job.memory_bytes and outcome.exit_code != 0:
        text = _read_head(job.stderr).lower()
        if any(phrase in text for phrase in _NO_MEMORY_MESSAGES):
            note = f"the compiler ran into its memory limit of {job.memory_bytes / 1e9:.3g} GB"
            return replace(outcome, out_of_memory=True, notes=(*outcome.notes, note))
    return outcome


def find_programs_with_errors(stderr: Path, programs: Sequence[str]) -> tuple[int, ...]:
    """Return the indices of programs named in the compiler's errors."""
    paths = set(_ERROR_LOCATION.findall(_read_head(stderr)))
    return tuple(index for index, program in enumerate(programs) if program in paths)


def _read_head(path: Path) -> str:
    with path.open("rb") as stream:
        return stream.read(_MAX_STDERR_BYTES).decode(errors="replace")
