"""Compile many programs, each in a child of its own that has the compiler loaded already.

    python -B compile_server.py FOLDER

Requests are lines of JSON on standard input:

    {"op": "compile", "id": 1, "programs": ["model.mlir"], "prefixes": null, "flags": […], "output": "/…/module.vmfb",
     "stdout": "/…", "stderr": "/…", "cwd": "/…", "timeout": 60.0, "grace": 2.0, "memory_bytes": 0}
    {"op": "end", "id": 1}

With `prefixes`, one for each program, the programs are compiled as one, the prefixes before the names of their symbols.
A compile that runs longer than its `timeout` gets SIGTERM, and SIGKILL after another `grace` seconds. `memory_bytes`
limits the address space (0: no limit). Each child gets a private TMPDIR in FOLDER, which is removed at
the end. Answers are lines of JSON on standard output: `{"ready": true}` at first; for each compile `{"id", "pid"}` when
it runs, and at its end

    {"id", "status", "timed_out", "stuck", "seconds", "cpu_seconds", "peak_rss_bytes", "detail", "notes"}

with the status as wait(2) gives it; or `{"id", "error"}` where it could not be started.

Nothing but the children compiles, and there is one thread, so that a fork copies a process at rest. A crash, a hang or
a want of memory is the child's alone. A child leads a group of its own; whatever lives in it when its leader is gone is
killed. All end with the server, and the server ends with its standard input, or on SIGTERM.
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
    # The package is the one that this script lies in; all else is found as this Python finds it.
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
_KILL_PATIENCE_SECONDS = 15.0
# How often a group is looked at whose leader is gone while members live on.
_DRAIN_SECONDS = 0.01
# In the private folder: what the child reports in addition to its exit code.
_DETAIL_FILE = "gauntlet-detail.json"
_PR_SET_PDEATHSIG = 1
# sysexits.h: an error while doing I/O, and an internal one.
_EXIT_UNWRITABLE = 74
_EXIT_DEFECT = 70
_SMALLEST_ROOM = 1 << 16
_DEFAULTS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGCHLD", "SIGPIPE", "SIGXFSZ")


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
    server: int,
    told: int,
) -> NoReturn:
    """Do what a request asks for, and end the process."""
    code = _EXIT_DEFECT
    if not os.read(told, 1):
        os._exit(code)
    os.close(told)
    try:
        os.setsid()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != server:
            # It was gone before the line above.
            os._exit(_EXIT_DEFECT)
        signal.set_wakeup_fd(-1)
        for name in _DEFAULTS:
            # As a program that is started finds them; Python ignores some.
            signal.signal(signal.Signals[name], signal.SIG_DFL)
        for target, descriptor in enumerate(streams):
            os.dup2(descriptor, target)
        os.environ["TMPDIR"] = private
        os.chdir(request.cwd)
        limit, most = request.memory_bytes, resource.getrlimit(resource.RLIMIT_AS)[1]
        if limit and (most == resource.RLIM_INFINITY or limit < most):
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        code = _work(library, request, Path(private))
    except BaseException:  # noqa: BLE001  a child that came back into the server's loop would serve its requests
        with contextlib.suppress(OSError):
            os.write(2, traceback.format_exc().encode())
    else:
        library.end(code)
    finally:
        os._exit(code)


def _work(library: CompilerLibrary, request: _CompileRequest, private: Path) -> int:
    programs = request.programs
    program = programs[0]
    if request.prefixes is not None:
        merged = merge_programs(programs, request.prefixes)
        detail = {"functions": merged.functions, "refused": sorted(merged.refused)}
        (private / _DETAIL_FILE).write_text(json.dumps(detail), encoding="utf-8")
        if merged.refused:
            _say("\n".join(merged.refused.values()))
            return 1
        program = _hold_in_memory(merged.module, "merged.mlirbc")
    # In memory: a full disk is met, and named, when it is written out.
    output = _hold_in_memory(b"", "module.vmfb")
    code = library.compile(program, request.flags, output)
    if code:
        # The compiler takes a full disk for a failed link.
        room = os.statvfs(private)
        if room.f_bavail * room.f_frsize < _SMALLEST_ROOM:
            _say(f"error: {private}: No space left on device")
        return code
    return _write_out(output, Path(request.output))


def _hold_in_memory(data: bytes, name: str) -> str:
    """The path of a file in memory."""
    descriptor = os.memfd_create(name)
    with open(descriptor, "wb", closefd=False) as stream:
        stream.write(data)
    return f"/proc/self/fd/{descriptor}"


def _write_out(held: str, output: Path) -> int:
    """Write a module to where it belongs: whole, or not at all."""
    temporary = output.with_name(f".{output.name}.{os.getpid()}.tmp")
    try:
        with Path(held).open("rb") as source, temporary.open("wb") as target:
            left, done = os.fstat(source.fileno()).st_size, 0
            while done < left:
                done += os.sendfile(target.fileno(), source.fileno(), done, left - done)
            os.fsync(target.fileno())
        temporary.replace(output)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        _say(f"error: cannot write {output}: {error.strerror}")
        return _EXIT_UNWRITABLE
    return 0


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


@dataclass(slots=True)
class _Child:
    """A compile under way; times are of the monotonic clock."""

    pid: int
    request: _CompileRequest
    private: str
    begun: float
    deadline: float
    gone: bool = False
    asked: bool = False
    killed: bool = False
    answer: dict[str, Any] = field(default_factory=lambda: {"status": 0, "cpu_seconds": 0.0, "peak_rss_bytes": 0})


class _CompileServer:
    """All compiles. Everything is done between two waits of the selector."""

    def __init__(
        self, library: CompilerLibrary, folder: str, wake: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._library = library
        self._folder = folder
        self._wake = wake
        self._clock = clock
        self._selector = selectors.DefaultSelector()
        self._selector.register(0, selectors.EVENT_READ)
        self._selector.register(wake, selectors.EVENT_READ)
        self._nothing = os.open(os.devnull, os.O_RDONLY)
        self._buffer = b""
        self._children: dict[int, _Child] = {}
        self._merges = False
        self.ending = False

    def serve(self) -> None:
        """Work until standard input ends or a signal says so, then kill what is left."""
        while not self.ending:
            for key, _ in self._selector.select(self._compute_patience()):
                if key.fd == self._wake:
                    os.read(self._wake, 4096)
                elif not self._read():
                    self.ending = True
            self._reap()
            self._advance()
        self._end_everything()

    def _compute_patience(self) -> float | None:
        """Seconds until something is due; None for never."""
        if any(child.gone for child in self._children.values()):
            return _DRAIN_SECONDS
        due = min((child.deadline for child in self._children.values()), default=float("inf"))
        return None if due == float("inf") else max(0.0, due - self._clock())

    def _read(self) -> bool:
        """Take in what came; False at the end of standard input."""
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
        if request.prefixes is not None and not self._merges:
            # Once, and not in each child. It starts no thread.
            import_bindings()
            gc.freeze()
            self._merges = True
        begun = self._clock()
        private = ""
        try:
            with contextlib.ExitStack() as stack:
                if not Path(request.cwd).is_dir():
                    raise FileNotFoundError(2, "no such folder", request.cwd)
                out = stack.enter_context(Path(request.stdout).open("wb"))
                same = request.stdout == request.stderr
                err = out if same else stack.enter_context(Path(request.stderr).open("wb"))
                private = tempfile.mkdtemp(prefix="compile-", dir=self._folder)
                told, tell = os.pipe()
                for descriptor in (told, tell):
                    stack.callback(os.close, descriptor)
                server = os.getpid()
                pid = os.fork()
                if pid == 0:
                    os.close(tell)
                    streams = (self._nothing, out.fileno(), err.fileno())
                    _become_child(self._library, request, streams, private, server, told)
                self._children[pid] = _Child(pid, request, private, begun, begun + request.timeout)
                # Before it does anything: what was begun is never taken for what was not, and begun again.
                _tell({"id": request.id, "pid": pid})
                os.write(tell, b"\n")
        except OSError as error:
            if private:
                shutil.rmtree(private, ignore_errors=True)
            where = f"{error.filename}: " if error.filename else ""
            _tell({"id": request.id, "error": f"{where}{error.strerror}"})

    def _reap(self) -> None:
        """Collect every process that has ended: children, and orphans that came here as to their subreaper."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            child = self._children.get(pid)
            if child is None or child.gone:
                continue
            child.gone = True
            child.answer = {
                "status": status,
                "seconds": self._clock() - child.begun,
                "cpu_seconds": usage.ru_utime + usage.ru_stime,
                # getrusage(2): kilobytes on Linux, which is where this server runs.
                "peak_rss_bytes": usage.ru_maxrss * 1024,
            }

    def _advance(self) -> None:
        """Move every compile on: overdue ones to their end, ended ones out."""
        now = self._clock()
        for child in list(self._children.values()):
            if child.gone:
                if not _has_members(child.pid):
                    self._finish(child)
                    continue
                # A linker that it left behind has nobody to work for.
                self._kill(child)
            if now < child.deadline:
                continue
            if child.killed:
                self._finish(child, stuck=True)
            elif child.asked:
                self._kill(child)
            else:
                child.asked = True
                child.deadline = now + child.request.grace
                _send_signal(child.pid, signal.SIGTERM)

    def _kill(self, child: _Child) -> None:
        if not child.killed:
            child.killed = True
            child.deadline = self._clock() + _KILL_PATIENCE_SECONDS
        _send_signal(child.pid, signal.SIGKILL)

    def _finish(self, child: _Child, *, stuck: bool = False) -> None:
        del self._children[child.pid]
        child.answer.setdefault("seconds", self._clock() - child.begun)
        detail = None
        if child.request.prefixes is not None:
            # Missing, or torn where it was killed while it wrote.
            with contextlib.suppress(OSError, ValueError):
                detail = json.loads((Path(child.private) / _DETAIL_FILE).read_bytes())
        notes = []
        try:
            shutil.rmtree(child.private)
        except OSError as error:
            notes.append(f"{child.private} was left behind: {error.strerror}")
        facts = {"timed_out": child.asked, "stuck": stuck, "detail": detail, "notes": notes}
        _tell({"id": child.request.id, **child.answer, **facts})

    def _end_everything(self) -> None:
        for child in self._children.values():
            self._kill(child)
        until = self._clock() + _KILL_PATIENCE_SECONDS
        while self._children and self._clock() < until:
            time.sleep(_DRAIN_SECONDS / 4)
            self._reap()
            self._advance()
        shutil.rmtree(self._folder, ignore_errors=True)


def _tell(answer: dict[str, Any]) -> None:
    # A client that is gone closes standard input as well, which ends the server.
    with contextlib.suppress(BrokenPipeError):
        left = json.dumps(answer).encode() + b"\n"
        while left:
            left = left[os.write(1, left) :]


def _send_signal(pid: int, number: signal.Signals) -> None:
    """Signal a child's group; and the child, which may not lead one yet."""
    for send in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError):
            send(pid, number)


def _has_members(group: int) -> bool:
    """Whether a process lives in the group of a leader that was collected: all its members are children by now."""
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
    wake, woken = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(woken, False)
    server = _CompileServer(library, sys.argv[1], wake)

    def end(*_: object) -> None:
        server.ending = True

    # Ctrl-C in a terminal is the client's business.
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    signal.signal(signal.SIGTERM, end)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    # What lives now lives for ever: the collector would touch, and so copy, its pages in every child.
    gc.freeze()
    _tell({"ready": True})
    server.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
