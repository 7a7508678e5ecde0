"""Start, timing and end of every process of a run.

A small separate process, the reaper, does the work (`reaper.py` has the reasons); this module is its client in the
toolkit. Each process gets its own session and group, no standard input, files for its streams and a private TMPDIR.
When `Supervisor.run` returns, no member of the process's group is alive.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.engine.processes import reaper
from iree_gauntlet.engine.processes.boards import Board, BoardError
from iree_gauntlet.errors import GauntletError, ToolchainError
from iree_gauntlet.system.short_process import TAIL_LINES, get_signal_name, read_tail
from iree_gauntlet.targets import split_board

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from iree_gauntlet.measuring.machine.disturbance import RoundState
    from iree_gauntlet.steps import Command


# Python caches the bytecode of an imported module; a script would be compiled again at each start.
_REAPER_SCRIPT = "import sys; sys.path.append(sys.argv[1]); import reaper; reaper.main()"
_GRACE_SECONDS = 2.0
_KILL_TIMEOUT_SECONDS = 15.0
# Even next to a long standard error, standard output gets so many lines of the tail, because iree-run-module and
# iree-benchmark-module write their verdicts to it.
_STDOUT_LINES = 6
# A dead reaper may have started a process without reporting it.
_MAX_SCANS = 5
_SCAN_INTERVAL_SECONDS = 0.02
_DISK_FULL_BYTES = 1 << 20
# A shell takes these paths literally.
_PLAIN_PATH = re.compile(r"[\w/.,:=@#+-]+")
_LINKER_VARIABLE = "IREE_LLVM_EMBEDDED_LINKER_PATH"
_DISK_FULL_MESSAGES = ("no space left on device", "disk quota exceeded")


@dataclass(frozen=True, slots=True)
class Request:
    """A process to start; paths are absolute, times are seconds."""

    argv: list[str]
    cwd: str
    env: dict[str, str]
    stdout: str
    stderr: str
    timeout: float
    grace: float
    kill_patience: float
    private: str


@dataclass(slots=True)
class ProcessReport:
    """The result of a request, not `started` if `cancelled` or after a system error; `stuck` as in `Outcome`."""

    started: bool = False
    error_number: int = 0
    error_text: str = ""
    error_file: str = ""
    status: int = 0
    timed_out: bool = False
    cancelled: bool = False
    stuck: bool = False
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_rss_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a process.

    Attributes:
        exit_code: None if a signal ended the process, or if it was cancelled before it started.
        signal: name of the signal that ended the process (`SIGSEGV`); empty for none.
        cancelled: True if `cancel_all` ended the process or kept it from starting.
        seconds: wall time from the start to the end of the process.
        cpu_seconds: user and system time of the process and of the descendants that it waited for.
        peak_rss_bytes: largest resident set of one of these processes (not their sum). Never below
            the few MB of the reaper, which forks the process.
        tail: at most 20 last lines of the output, fit to print: standard output first, then standard error.
        truncated: True if there is more output than the tail shows.
        stuck: True if the process outlived SIGKILL (a driver holds it) and still exists.
        out_of_memory: True if the process reached its memory limit.
        board_state: the state of the board that the process ran on, if it was a benchmark there; None on this machine.
    """

    exit_code: int | None
    signal: str = ""
    timed_out: bool = False
    cancelled: bool = False
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_rss_bytes: int = 0
    tail: tuple[str, ...] = ()
    truncated: bool = False
    stuck: bool = False
    out_of_memory: bool = False
    notes: tuple[str, ...] = ()
    board_state: RoundState | None = None


@dataclass(kw_only=True)
class Supervisor(contextlib.AbstractContextManager["Supervisor"]):
    """The owner of the child processes of a run; `run` may be called from several threads at once.

    Use it as a context manager: leaving the block kills all remaining processes. If the toolkit itself is killed, the
    reaper does the same: it notices that the last copy of its control socket is closed. So do not fork the toolkit
    without exec while a supervisor is open.

    Attributes:
        grace: seconds between SIGTERM and SIGKILL.
        kill_patience: seconds after SIGKILL until a process is given up as stuck.
        locks: returns descriptors of the locks that the calling thread holds. A process that the thread starts holds
            these locks too, so they stay locked until the process is gone, even if the toolkit dies.
        on_wait: called with a line that names the holder, if a process waits for a board; with "" after the wait.
    """

    grace: float = _GRACE_SECONDS
    kill_patience: float = _KILL_TIMEOUT_SECONDS
    locks: Callable[[], Sequence[int]] = tuple
    on_wait: Callable[[str], object] = str
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _reaper: subprocess.Popen[bytes] | None = None
    _control: socket.socket | None = None
    _cancels: int = 0
    _close_flag: bool = False
    _boards: dict[tuple[str, ...], Board] = field(default_factory=dict)

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(
        self, command: Command, *, stdout: Path, stderr: Path, timeout: float, tmpdir: Path | None = None
    ) -> Outcome:
        """Run a process to its end, on this machine, or on the board that its runner names.

        Args:
            command: the command to run. An empty `cwd` means the toolkit's own.
            stdout: file for standard output, emptied if it exists; its folder is made. May be the same as `stderr`.
            stderr: file for standard error, likewise.
            timeout: seconds until the process's group gets SIGTERM; `inf` for no limit.
            tmpdir: folder in which the private TMPDIR is made and removed; by default the system's temporary folder.

        Raises:
            ToolchainError: the executable is missing or cannot be run.
            GauntletError: the working folder is missing, a log cannot be written, the reaper was killed, or the board
                cannot run it.
        """
        run_here = partial(self._run_here, stdout=stdout, stderr=stderr, timeout=timeout, tmpdir=tmpdir)
        words, runner = split_board(command.runner)
        if not words:
            return run_here(command)
        with self._lock:
            board = self._boards.setdefault(words, Board(words, self.on_wait))
        try:
            with board.prepare(replace(command, runner=runner)) as run:
                outcome = run_here(run.command)
                if outcome.cancelled or outcome.timed_out:
                    return outcome
                there = run.finish(outcome.exit_code, outcome.tail)
        except BoardError:
            if self._cancels:
                return Outcome(None, cancelled=True)
            raise
        return replace(
            outcome,
            exit_code=there.exit_code,
            signal=there.signal,
            seconds=there.seconds,
            cpu_seconds=there.cpu_seconds,
            peak_rss_bytes=0,
            board_state=there.state,
        )

    def _run_here(
        self, command: Command, *, stdout: Path, stderr: Path, timeout: float, tmpdir: Path | None
    ) -> Outcome:
        if self._cancels:
            return Outcome(None, cancelled=True)
        with contextlib.ExitStack() as stack:
            notes: list[str] = []
            try:
                for log in (stdout, stderr):
                    log.parent.mkdir(parents=True, exist_ok=True)
                private = Path(tempfile.mkdtemp(prefix="gauntlet-", dir=tmpdir))
            except OSError as error:
                raise GauntletError(
                    f"{error.filename}: cannot create a folder for a process: {error.strerror}",
                    "make room there, or make it writable",
                ) from error
            stack.callback(_remove_folder, private, notes)
            request = Request(
                argv=list(command.words),
                cwd=str(Path(command.cwd).absolute()),
                env={**os.environ, **dict(find_linker(command.argv[0])), "TMPDIR": str(private), **dict(command.env)},
                stdout=str(stdout.absolute()),
                stderr=str(stderr.absolute()),
                timeout=timeout,
                grace=self.grace,
                kill_patience=self.kill_patience,
                private=str(private),
            )
            report = self._ask(request)
            stack.pop_all().close()
            if report.error_text:
                raise _make_start_error(report, request)
            if not report.started:
                return Outcome(None, cancelled=report.cancelled, notes=tuple(notes))
            return process_outcome(report, stdout, stderr, tuple(notes))

    def cancel_all(self) -> None:
        """End every process, and start no more; a second call kills without grace. Safe in a signal handler."""
        self._cancels += 1
        control = self._control
        if control is not None:
            # A dead reaper has nothing left to cancel.
            with contextlib.suppress(OSError):
                control.send(b"c")
        for board in tuple(self._boards.values()):
            board.cancel()

    def close(self) -> None:
        """Kill the remaining processes and end the reaper; `run` may not be called afterwards."""
        with self._lock:
            self._close_flag = True
            control, self._control = self._control, None
            process, self._reaper = self._reaper, None
        if control is not None:
            control.close()
        if process is not None:
            process.wait()
        for board in self._boards.values():
            board.close()

    def _ask(self, request: Request) -> ProcessReport:
        """Send a request and wait for its report.

        An exception during the wait (Ctrl-C) closes the connection, and thereby ends the process.
        """
        connection, reaper_end = socket.socketpair()
        with connection:
            with reaper_end:
                self._hand_over(reaper_end)
            reply = bytearray()
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(json.dumps(asdict(request)).encode() + b"\n")
                while not reply.endswith(b"}\n") and (chunk := connection.recv(1 << 16)):
                    reply += chunk
        lines = bytes(reply).splitlines()
        if reply.endswith(b"}\n"):
            return ProcessReport(**json.loads(lines[-1]))
        if lines:
            # The killed reaper can no longer kill the process.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(int(lines[0]), signal.SIGKILL)
        else:
            _kill_unknown(request.private)
        raise _make_reaper_error()

    def _hand_over(self, connection: socket.socket) -> None:
        """Send a connection and the locks of this thread to the reaper, which the first call starts."""
        with self._lock:
            if self._close_flag:
                raise RuntimeError("the supervisor is closed")
            control = self._control
            if control is None:
                control, reaper_end = socket.socketpair()
                with reaper_end:
                    # With -I -S the reaper ignores the user's environment and packages, and starts in a few ms. Its own
                    # session keeps Ctrl-C in the terminal from reaching it.
                    self._reaper = subprocess.Popen(
                        [sys.executable, "-I", "-S", "-B", "-c", _REAPER_SCRIPT, str(Path(reaper.__file__).parent)],
                        stdin=reaper_end.fileno(),
                        stdout=subprocess.DEVNULL,
                        start_new_session=True,
                    )
                self._control = control
                for _ in range(self._cancels):
                    control.send(b"c")
            try:
                socket.send_fds(control, [b"r"], [connection.fileno(), *self.locks()])
            except (BrokenPipeError, ConnectionResetError):
                raise _make_reaper_error() from None


def _kill_unknown(private: str) -> None:
    """Kill a process whose reaper was killed before it reported its id; its private folder identifies it (Linux)."""
    mark = f"TMPDIR={private}".encode()
    for _ in range(_MAX_SCANS):
        for process in Path("/proc").glob("[0-9]*"):
            # The process may have ended, or be another user's.
            with contextlib.suppress(OSError):
                if mark in (process / "environ").read_bytes().split(b"\0"):
                    os.killpg(os.getpgid(int(process.name)), signal.SIGKILL)
        # The process may be between fork and exec.
        time.sleep(_SCAN_INTERVAL_SECONDS)


def format_shell_line(command: Command) -> str:
    """Format the command as a person would type it: `cd DIR && NAME=value program argument…`."""
    words = [shlex.quote(word) for word in command.words]
    if command.env:
        if all(name.isidentifier() and name.isascii() for name, _ in command.env):
            words = [f"{name}={shlex.quote(value)}" for name, value in command.env] + words
        else:
            words = ["env", *(shlex.quote(f"{name}={value}") for name, value in command.env), *words]
    line = " ".join(words)
    if not command.cwd:
        return line
    folder = f"./{command.cwd}" if command.cwd.startswith("-") else command.cwd
    return f"cd {shlex.quote(folder)} && {line}"


def is_plain_path(path: str) -> bool:
    """Return True if a path needs no quotes in a shell, since iree-compile starts its linker without quotes."""
    return _PLAIN_PATH.fullmatch(path) is not None


def find_linker(compiler: str) -> tuple[tuple[str, str], ...]:
    """Return the environment variable that passes the linker's path in quotes; empty if no quotes are needed."""
    linker = Path(compiler).with_name("iree-lld")
    if is_plain_path(str(linker)) or _LINKER_VARIABLE in os.environ or not linker.is_file():
        return ()
    return ((_LINKER_VARIABLE, shlex.quote(str(linker))),)


def is_disk_full(path: Path, tail: Iterable[str] = ()) -> bool:
    """Return True if the file system of a path (or of its nearest existing parent) has no room left.

    Also True if the tail of a process's output reports a full disk, because its temporary files are gone by now.
    """
    if any(phrase in line.lower() for line in tail for phrase in _DISK_FULL_MESSAGES):
        return True
    folder = path.absolute()
    while not folder.exists():
        folder = folder.parent
    status = os.statvfs(folder)
    # File systems that count no inodes report 0 in all.
    return status.f_bavail * status.f_frsize < _DISK_FULL_BYTES or (status.f_files > 0 and status.f_favail == 0)


def process_outcome(report: ProcessReport, stdout: Path, stderr: Path, notes: tuple[str, ...]) -> Outcome:
    """Return the outcome of a started process, from the reaper's report or the compile server's response."""
    signal_number = os.WTERMSIG(report.status) if os.WIFSIGNALED(report.status) else 0
    is_exit = not (signal_number or report.stuck)
    errors = read_tail(stderr, TAIL_LINES)
    max_stdout_lines = max(_STDOUT_LINES, TAIL_LINES - len(errors.lines))
    output = read_tail(stdout, max_stdout_lines) if stdout != stderr else None
    lines = errors.lines
    if output is not None and output.lines:
        lines = (*output.lines, *lines[-(TAIL_LINES - len(output.lines)) :])[-TAIL_LINES:]
    total = len(errors.lines) + (len(output.lines) if output else 0)
    return Outcome(
        exit_code=os.WEXITSTATUS(report.status) if is_exit else None,
        signal=get_signal_name(signal_number),
        timed_out=report.timed_out,
        cancelled=report.cancelled,
        seconds=report.seconds,
        cpu_seconds=report.cpu_seconds,
        peak_rss_bytes=report.peak_rss_bytes,
        tail=lines,
        truncated=errors.truncated or (output is not None and output.truncated) or total > len(lines),
        stuck=report.stuck,
        notes=notes,
    )


def _make_start_error(report: ProcessReport, request: Request) -> GauntletError:
    """Return the error for a process that could not be started, for users."""
    program, folder = request.argv[0] if request.argv else "", Path(request.cwd)
    number, text = report.error_number, report.error_text
    if report.error_file in (request.stdout, request.stderr):
        return GauntletError(f"{report.error_file}: cannot write the log: {text}", "make room there")
    if not folder.is_dir():
        return GauntletError(
            f"{folder}: cannot run {program} there: no such folder", "create it, or correct the working directory"
        )
    path = folder / program if "/" in program else None
    if number == errno.ENOENT and path is not None and path.is_file():
        return ToolchainError(
            f"{program}: cannot be run: the interpreter or loader that it names is missing",
            "install it again for this system (`file` tells what it was built for)",
        )
    if number == errno.ENOENT:
        location = "" if path is not None else " on PATH"
        return ToolchainError(
            f"{program}: no such program{location}", "install the toolchain that has it, or name another one"
        )
    if number in (errno.EACCES, errno.ENOEXEC):
        return ToolchainError(
            f"{program}: cannot be run: {text}",
            "make it executable (chmod +x), on a file system that is not mounted noexec",
        )
    return ToolchainError(f"{program}: cannot be started: {text}", "")


def _make_reaper_error() -> GauntletError:
    return GauntletError(
        "the process that watches over this run's processes was killed from outside",
        "see the kernel's log for a lack of memory (dmesg), then resume the run",
    )


def _remove_folder(folder: Path, notes: list[str]) -> None:
    """Remove a folder whose users are gone; add a note if it cannot be removed, and raise nothing."""
    deadline = time.monotonic() + 1.0
    while True:
        try:
            shutil.rmtree(folder)
        except FileNotFoundError:
            return
        except OSError as error:
            if time.monotonic() > deadline:
                notes.append(f"{folder} was left behind: {error.strerror}")
                return
            # Either a tool made the folder read-only, or a process that left its group is still writing.
            with contextlib.suppress(OSError):
                for inner, _, _ in os.walk(folder):
                    Path(inner).chmod(0o700)
            time.sleep(0.02)
        else:
            return
