"""Compile many programs, each in its own child process, forked after the compiler is loaded.

    python -B compile_server.py FOLDER

Requests are lines of JSON on standard input:

    {"op": "compile", "id": 1, "programs": ["model.mlir"], "prefixes": null, "flags": […], "output": "/…/module.vmfb",
     "stdout": "/…", "stderr": "/…", "cwd": "/…", "timeout": 60.0, "grace": 2.0, "memory_bytes": 0}
    {"op": "end", "id": 1}

With `prefixes`, one for each program, the programs are merged and compiled as one; a program's prefix is put before the
names of its symbols. A compile that runs longer than its `timeout` gets SIGTERM, and SIGKILL after another `grace`
seconds. `memory_bytes` limits the address space (0: no limit). Each child gets a private TMPDIR in FOLDER, which is
removed when the child ends. Answers are lines of JSON on standard output. The first answer is `{"ready": true}`. Each
compile gives `{"id", "pid"}` when it starts, and when it ends

    {"id", "status", "timed_out", "stuck", "seconds", "cpu_seconds", "peak_rss_bytes", "detail", "notes"}

with the status of wait(2). A compile that could not be started gives `{"id", "error"}` only.

Only the children compile, and the server has one thread, so a fork copies an idle process. A crash, a hang or a lack of
memory affects one child only. A child leads its own process group; when it ends, remaining processes of the group are
killed. All children end with the server. The server ends when its standard input ends, or on SIGTERM.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import resource
import selectors
import shutil
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable


if __name__ == "__main__":
    # Import `iree_gauntlet` from the folder that contains this script, without installing it.
    sys.modules["iree_gauntlet"] = package = ModuleType("iree_gauntlet")
    package.__path__ = [str(Path(__file__).resolve().parents[2])]

from iree_gauntlet.workers.iree_side.compiler_library import (
    CompilerLibrary,
    LibraryMissingError,
    find_package,
    import_bindings,
    merge_programs,
)

_PR_SET_CHILD_SUBREAPER = 36
_KILL_TIMEOUT_SECONDS = 15.0
# The interval for checking a process group whose leader has ended, but other members have not.
_DRAIN_INTERVAL_SECONDS = 0.01
# The child reports more than its exit code in this file of its private folder.
_DETAIL_FILE = "gauntlet-detail.json"
_PR_SET_PDEATHSIG = 1
# Exit codes of sysexits.h: an I/O error, and an internal error.
_EXIT_UNWRITABLE = 74
_EXIT_DEFECT = 70
_MIN_FREE_BYTES = 1 << 16
_DEFAULT_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGCHLD", "SIGPIPE", "SIGXFSZ")


@dataclass(frozen=True, slots=True)
class _CompileRequest:
    id: int
    programs: list[str]
    prefixes: list[str] | None
    flags: list[str]
    output: str
    stdout: str
    stderr: str
    cwd: str
    timeout: float
    grace: float
    memory_bytes: int


def _become_child(
    library: CompilerLibrary,
    request: _CompileRequest,
    streams: tuple[int, int, int],
    private: str,
    server_pid: int,
    start_pipe: int,
) -> NoReturn:
    """Compile as requested, and end the process."""
    code = _EXIT_DEFECT
    if not os.read(start_pipe, 1):
        os._exit(code)
    os.close(start_pipe)
    try:
        os.setsid()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != server_pid:
            # The server ended before the call above could bind this child's life to it.
            os._exit(_EXIT_DEFECT)
        signal.set_wakeup_fd(-1)
        for name in _DEFAULT_SIGNALS:
            # Python ignores some signals, but a newly started compiler would have the defaults.
            signal.signal(signal.Signals[name], signal.SIG_DFL)
        for target, descriptor in enumerate(streams):
            os.dup2(descriptor, target)
        os.environ["TMPDIR"] = private
        os.chdir(request.cwd)
        limit, hard_limit = request.memory_bytes, resource.getrlimit(resource.RLIMIT_AS)[1]
        if limit and (hard_limit == resource.RLIM_INFINITY or limit < hard_limit):
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        code = _compile(library, request, Path(private))
    except BaseException:  # noqa: BLE001  a child that came back into the server's loop would serve its requests
        with contextlib.suppress(OSError):
            os.write(2, traceback.format_exc().encode())
    else:
        library.end(code)
    finally:
        os._exit(code)


def _compile(library: CompilerLibrary, request: _CompileRequest, private: Path) -> int:
    programs = request.programs
    program = programs[0]
    if request.prefixes is not None:
        merge = merge_programs(programs, request.prefixes)
        detail = {"functions": merge.functions, "faulty_programs": sorted(merge.faulty_programs)}
        (private / _DETAIL_FILE).write_text(json.dumps(detail), encoding="utf-8")
        if merge.faulty_programs:
            _print_error("\n".join(merge.faulty_programs.values()))
            return 1
        program = _make_memory_file(merge.module, "merged.mlirbc")
    # The output is written to memory. A full disk is detected and reported when the output is copied.
    output = _make_memory_file(b"", "module.vmfb")
    code = library.compile(program, request.flags, output)
    if code:
        # The compiler reports a full disk as a failed link.
        filesystem = os.statvfs(private)
        if filesystem.f_bavail * filesystem.f_frsize < _MIN_FREE_BYTES:
            _print_error(f"error: {private}: No space left on device")
        return code
    return _write_out(output, Path(request.output))


def _make_memory_file(contents: bytes, name: str) -> str:
    """Make a file in memory; return its path."""
    descriptor = os.memfd_create(name)
    with open(descriptor, "wb", closefd=False) as stream:
        stream.write(contents)
    return f"/proc/self/fd/{descriptor}"


def _write_out(source_path: str, output: Path) -> int:
    """Copy a module to its destination: completely, or not at all."""
    temporary = output.with_name(f".{output.name}.{os.getpid()}.tmp")
    try:
        with Path(source_path).open("rb") as source, temporary.open("wb") as target:
            total_bytes, copied_bytes = os.fstat(source.fileno()).st_size, 0
            while copied_bytes < total_bytes:
                copied_bytes += os.sendfile(target.fileno(), source.fileno(), copied_bytes, total_bytes - copied_bytes)
            os.fsync(target.fileno())
        temporary.replace(output)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        _print_error(f"error: cannot write {output}: {error.strerror}")
        return _EXIT_UNWRITABLE
    return 0


def _print_error(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


@dataclass(slots=True)
class _Child:
    """A running compile; its times are read from the monotonic clock."""

    pid: int
    request: _CompileRequest
    private: str
    started_at: float
    deadline: float
    is_dead: bool = False
    sent_sigterm: bool = False
    sent_sigkill: bool = False
    answer: dict[str, Any] = field(default_factory=lambda: {"status": 0, "cpu_seconds": 0.0, "peak_rss_bytes": 0})


class _CompileServer:
    """The state of all compiles; it changes only between two waits of the selector."""

    def __init__(
        self, library: CompilerLibrary, folder: str, wake_fd: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._library = library
        self._folder = folder
        self._wake_fd = wake_fd
        self._clock = clock
        self._selector = selectors.DefaultSelector()
        self._selector.register(0, selectors.EVENT_READ)
        self._selector.register(wake_fd, selectors.EVENT_READ)
        self._devnull_fd = os.open(os.devnull, os.O_RDONLY)
        self._buffer = b""
        self._children: dict[int, _Child] = {}
        self._can_merge = False
        self.should_end = False

    def serve(self) -> None:
        """Serve until standard input ends or a signal arrives, then kill the remaining compiles."""
        while not self.should_end:
            for key, _ in self._selector.select(self._compute_timeout()):
                if key.fd == self._wake_fd:
                    os.read(self._wake_fd, 4096)
                elif not self._read():
                    self.should_end = True
            self._reap()
            self._advance()
        self._end_all()

    def _compute_timeout(self) -> float | None:
        """Return the seconds until the next deadline; None for never."""
        if any(child.is_dead for child in self._children.values()):
            return _DRAIN_INTERVAL_SECONDS
        next_deadline = min((child.deadline for child in self._children.values()), default=float("inf"))
        return None if next_deadline == float("inf") else max(0.0, next_deadline - self._clock())

    def _read(self) -> bool:
        """Read and start requests; return False at the end of standard input."""
        data = os.read(0, 1 << 16)
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            request = json.loads(line)
            if request.pop("op") == "compile":
                self._start(_CompileRequest(**request))
            else:
                for child in self._children.values():
                    if child.request.id == request["id"]:
                        self._kill(child)
        return bool(data)

    def _start(self, request: _CompileRequest) -> None:
        if request.prefixes is not None and not self._can_merge:
            # The server imports the bindings once, so that no child has to. They start no thread.
            import_bindings()
            gc.freeze()
            self._can_merge = True
        started_at = self._clock()
        private = ""
        try:
            with contextlib.ExitStack() as stack:
                if not Path(request.cwd).is_dir():
                    raise FileNotFoundError(2, "no such folder", request.cwd)
                stdout_file = stack.enter_context(Path(request.stdout).open("wb"))
                one_file = request.stdout == request.stderr
                stderr_file = stdout_file if one_file else stack.enter_context(Path(request.stderr).open("wb"))
                private = tempfile.mkdtemp(prefix="compile-", dir=self._folder)
                start_reader, start_writer = os.pipe()
                for descriptor in (start_reader, start_writer):
                    stack.callback(os.close, descriptor)
                server_pid = os.getpid()
                pid = os.fork()
                if pid == 0:
                    os.close(start_writer)
                    streams = (self._devnull_fd, stdout_file.fileno(), stderr_file.fileno())
                    _become_child(self._library, request, streams, private, server_pid, start_reader)
                self._children[pid] = _Child(pid, request, private, started_at, started_at + request.timeout)
                # The start is reported before the child does anything. Otherwise, if the server died, the client might
                # repeat a compile that has started.
                _send_answer({"id": request.id, "pid": pid})
                os.write(start_writer, b"\n")
        except OSError as error:
            if private:
                shutil.rmtree(private, ignore_errors=True)
            path_prefix = f"{error.filename}: " if error.filename else ""
            _send_answer({"id": request.id, "error": f"{path_prefix}{error.strerror}"})

    def _reap(self) -> None:
        """Collect every ended process: children, and their orphans, whose subreaper this process is."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            child = self._children.get(pid)
            if child is None or child.is_dead:
                continue
            child.is_dead = True
            child.answer = {
                "status": status,
                "seconds": self._clock() - child.started_at,
                "cpu_seconds": usage.ru_utime + usage.ru_stime,
                # On Linux, getrusage(2) reports kilobytes; this server runs only there.
                "peak_rss_bytes": usage.ru_maxrss * 1024,
            }

    def _advance(self) -> None:
        """Advance every compile: terminate overdue ones, report ended ones."""
        now_seconds = self._clock()
        for child in list(self._children.values()):
            if child.is_dead:
                if not _has_members(child.pid):
                    self._finish(child)
                    continue
                # Group members that outlive the compiler, such as a linker, are useless.
                self._kill(child)
            if now_seconds < child.deadline:
                continue
            if child.sent_sigkill:
                self._finish(child, is_stuck=True)
            elif child.sent_sigterm:
                self._kill(child)
            else:
                child.sent_sigterm = True
                child.deadline = now_seconds + child.request.grace
                _send_signal(child.pid, signal.SIGTERM)

    def _kill(self, child: _Child) -> None:
        if not child.sent_sigkill:
            child.sent_sigkill = True
            child.deadline = self._clock() + _KILL_TIMEOUT_SECONDS
        _send_signal(child.pid, signal.SIGKILL)

    def _finish(self, child: _Child, *, is_stuck: bool = False) -> None:
        del self._children[child.pid]
        child.answer.setdefault("seconds", self._clock() - child.started_at)
        detail = None
        if child.request.prefixes is not None:
            # The file may be missing, or truncated if the child was killed while writing.
            with contextlib.suppress(OSError, ValueError):
                detail = json.loads((Path(child.private) / _DETAIL_FILE).read_bytes())
        notes = []
        try:
            shutil.rmtree(child.private)
        except OSError as error:
            notes.append(f"{child.private} was left behind: {error.strerror}")
        outcome = {"timed_out": child.sent_sigterm, "stuck": is_stuck, "detail": detail, "notes": notes}
        _send_answer({"id": child.request.id, **child.answer, **outcome})

    def _end_all(self) -> None:
        for child in self._children.values():
            self._kill(child)
        deadline = self._clock() + _KILL_TIMEOUT_SECONDS
        while self._children and self._clock() < deadline:
            time.sleep(_DRAIN_INTERVAL_SECONDS / 4)
            self._reap()
            self._advance()
        shutil.rmtree(self._folder, ignore_errors=True)


def _send_answer(answer: dict[str, Any]) -> None:
    # If the client is gone, standard input is closed too, which ends the server.
    with contextlib.suppress(BrokenPipeError):
        remaining = json.dumps(answer).encode() + b"\n"
        while remaining:
            remaining = remaining[os.write(1, remaining) :]


def _send_signal(pid: int, signal_number: signal.Signals) -> None:
    """Send a signal to a child's group, and to the child itself, which may not have made its group yet."""
    for send in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError):
            send(pid, signal_number)


def _has_members(group: int) -> bool:
    """Return whether the group of an ended leader has living members; all of them are children of this process now."""
    try:
        while os.waitpid(-group, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        return False
    return True


def main() -> int:
    """Serve standard input."""
    if len(sys.argv) != 2:
        sys.stderr.write(f"usage: {Path(sys.argv[0]).name} FOLDER\n")
        return 2
    try:
        library = CompilerLibrary(find_package())
    except LibraryMissingError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    if sys.platform != "linux" or ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        sys.stderr.write("the compile server needs Linux\n")
        return 1
    wake_reader, wake_writer = os.pipe()
    os.set_blocking(wake_reader, False)
    os.set_blocking(wake_writer, False)
    server = _CompileServer(library, sys.argv[1], wake_reader)

    def end(*_: object) -> None:
        server.should_end = True

    # The client handles Ctrl-C in a terminal; this process ignores it.
    for signal_number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD):
        signal.signal(signal_number, lambda *_: None)
    signal.signal(signal.SIGTERM, end)
    signal.set_wakeup_fd(wake_writer, warn_on_full_buffer=False)
    # Exempt present objects from garbage collection, which would write to, and so copy, their pages in every child.
    gc.freeze()
    _send_answer({"ready": True})
    server.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
