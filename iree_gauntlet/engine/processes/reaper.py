"""The reaper: a small process that starts, times and ends the processes of one run.

It is a separate program, run by `supervisor.py` with the toolkit's Python, and imports only the standard library. It is
a separate process for four reasons:

- If the toolkit dies, by whatever signal, the reaper reads the end of its control socket and kills all that
  it has started, grandchildren included, on every system. Linux's `PR_SET_PDEATHSIG` would reach direct
  children only, fires when the *thread* that forked exits, and must be set between fork and exec, which
  doubles the cost of a start. If the reaper is killed, the toolkit has the group ids and kills them.
- The kernel starts a child's `ru_maxrss` at the peak of the process that forked it (`exec_mmap` in Linux's
  fs/exec.c). Forked from a toolkit that holds arrays, every tool would seem to need as much memory.
- Deadlines are kept while the toolkit's interpreter is busy or stuck.
- It is the subreaper of the processes that it starts (Linux), so that the kernel reports exactly when the last member
  of a group is gone, and a process that left its group is still found.

Protocol: standard input is a stream socket. `r` with a file descriptor passes a connection for one process; further
descriptors are locks, which the process and its descendants hold while they live. `c` cancels all running and future
processes, a second `c` kills without grace; the end of the stream ends everything. The client sends one line of JSON
(`Request`) on a connection; the reaper replies with the process's id on a line when it starts, and with a line of JSON
when it ends (fields of `ProcessReport`). Closing a connection before its report cancels its process.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from types import SimpleNamespace

# Each run starts this program; importing `dataclasses`, `pathlib`, `shutil` and `typing` would double its start time.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


_PR_SET_CHILD_SUBREAPER = 36
# The longest wait: a selector refuses one of more than 24 days.
_MAX_POLL_SECONDS = 3600.0
# If a group's leader has ended but other members still live, the group is checked at this interval.
_DRAIN_POLL_SECONDS = 0.02
# At most 3 are expected (a connection, the lock of a device, the lock of the machine); 8 leaves room for more.
_MAX_DESCRIPTORS = 8


class _RunningProcess:
    """A running process; times are readings of the monotonic clock."""

    def __init__(
        self,
        connection: socket.socket,
        request: SimpleNamespace,
        report: SimpleNamespace,
        process: subprocess.Popen[bytes],
        start: float,
    ) -> None:
        self.connection = connection
        self.request = request
        self.report = report
        self.process = process
        self.start = start
        self.deadline: float = start + request.timeout
        self.leader_gone = self.terminated = self.killed = False

    @property
    def group(self) -> int:
        return self.process.pid


class _Reaper:
    """The processes of one run. Single-threaded: all work is done between two waits of the selector.

    A signal writes a byte to the `wake` pipe.
    """

    def __init__(self, control: socket.socket, wake: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._control = control
        self._wake = wake
        self._clock = clock
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ)
        self._selector.register(wake, selectors.EVENT_READ)
        self._reading: dict[socket.socket, bytearray] = {}
        self._locks: dict[socket.socket, list[int]] = {}
        self._runs: dict[int, _RunningProcess] = {}
        self._cancels = 0
        self._subreaper = _become_subreaper()

    def serve(self) -> None:
        """Work until the control socket ends, then kill all remaining processes."""
        while True:
            for key, _ in self._selector.select(self._compute_timeout()):
                if key.fileobj is self._control:
                    if not self._read_command():
                        self._end_all_runs()
                        return
                elif key.fileobj == self._wake:
                    os.read(self._wake, 4096)
                elif isinstance(key.fileobj, socket.socket):
                    request = self._read_request(key.fileobj)
                    if request is not None:
                        self._start(key.fileobj, request)
            self._reap()
            self._advance_runs()

    def _compute_timeout(self) -> float | None:
        """Return the seconds until the next deadline; None for never."""
        if not self._runs:
            return None
        if any(run.leader_gone for run in self._runs.values()):
            return _DRAIN_POLL_SECONDS
        next_deadline = min(run.deadline for run in self._runs.values())
        if next_deadline == float("inf"):
            return None
        return min(max(0.0, next_deadline - self._clock()), _MAX_POLL_SECONDS)

    def _read_command(self) -> bool:
        """Read one command; return False at the end of the stream."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self._control, 1, _MAX_DESCRIPTORS)
        except ConnectionResetError:
            return False
        if data == b"r" and descriptors:
            connection = socket.socket(fileno=descriptors[0])
            connection.setblocking(False)
            self._reading[connection] = bytearray()
            self._locks[connection] = descriptors[1:]
            self._selector.register(connection, selectors.EVENT_READ)
        elif data == b"c":
            self._cancels += 1
            for run in self._runs.values():
                self._cancel(run)
        return bool(data)

    def _read_request(self, connection: socket.socket) -> SimpleNamespace | None:
        """Return a complete request; None if it is still incomplete, or the connection is closed."""
        try:
            data = connection.recv(1 << 16)
        except BlockingIOError:
            return None
        except ConnectionResetError:
            data = b""
        buffer = self._reading.get(connection)
        if buffer is None or not data:
            self._close_connection(connection)
            for run in self._runs.values():
                if run.connection is connection:
                    self._cancel(run)
            return None
        buffer += data
        if not buffer.endswith(b"\n"):
            return None
        del self._reading[connection]
        return SimpleNamespace(**json.loads(buffer))

    def _start(self, connection: socket.socket, request: SimpleNamespace) -> None:
        report = SimpleNamespace(started=False, cancelled=False, timed_out=False, stuck=False)
        if self._cancels:
            report.cancelled = True
            self._send_report(connection, report)
            return
        start = self._clock()
        try:
            # A file for both streams is opened only once, or else the streams would overwrite each other.
            with open(request.stdout, "wb") as out, contextlib.ExitStack() as stack:  # noqa: PTH123
                same = request.stdout == request.stderr
                err = out if same else stack.enter_context(open(request.stderr, "wb"))  # noqa: PTH123
                process = subprocess.Popen(
                    request.argv,
                    cwd=request.cwd,
                    env=request.env,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    start_new_session=True,
                    pass_fds=self._locks.get(connection, ()),
                )
        except (OSError, ValueError) as error:
            if isinstance(error, OSError):
                report.error_number = error.errno or 0
                report.error_file = str(error.filename or "")
            report.error_text = (isinstance(error, OSError) and error.strerror) or str(error)
            self._send_report(connection, report)
            return
        self._close_locks(connection)
        report.started = True
        with contextlib.suppress(OSError):
            connection.sendall(b"%d\n" % process.pid)
        self._runs[process.pid] = _RunningProcess(connection, request, report, process, start)

    def _cancel(self, run: _RunningProcess) -> None:
        run.report.cancelled = run.report.cancelled or not run.report.timed_out
        if self._cancels > 1:
            self._kill(run)
        elif not run.terminated:
            self._terminate(run)

    def _terminate(self, run: _RunningProcess) -> None:
        run.terminated = True
        run.deadline = self._clock() + run.request.grace
        _send_signal_to_group(run.group, signal.SIGTERM)

    def _kill(self, run: _RunningProcess) -> None:
        if not run.killed:
            run.terminated = run.killed = True
            run.deadline = self._clock() + run.request.kill_patience
        _send_signal_to_group(run.group, signal.SIGKILL)

    def _reap(self) -> None:
        """Collect every child that has ended: leaders, and orphans that were reparented to this subreaper."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            run = self._runs.get(pid)
            if run is None or run.leader_gone:
                continue
            run.leader_gone = True
            run.process.returncode = status
            run.report.status = status
            run.report.seconds = self._clock() - run.start
            run.report.cpu_seconds = usage.ru_utime + usage.ru_stime
            # getrusage(2): kilobytes on Linux, bytes on macOS.
            run.report.peak_rss_bytes = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)

    def _advance_runs(self) -> None:
        """Advance every run: end overdue ones, remove ended ones."""
        now = self._clock()
        for run in list(self._runs.values()):
            if run.leader_gone:
                if not self._has_members(run.group):
                    self._finish(run)
                    continue
                if not run.terminated:
                    # The leader has finished, so its remaining descendants are useless.
                    self._kill(run)
            if now < run.deadline:
                continue
            if run.killed:
                self._finish(run, stuck=True)
            elif run.terminated:
                self._kill(run)
            else:
                run.report.timed_out = True
                self._terminate(run)

    def _has_members(self, group: int) -> bool:
        """Return True if a process still lives in a group whose leader was collected.

        A subreaper has every such process among its descendants, so the kernel answers exactly. Without a subreaper a
        null signal tests the group; macOS answers EPERM if only zombies are left.
        """
        if self._subreaper:
            try:
                while os.waitpid(-group, os.WNOHANG) != (0, 0):
                    pass
            except ChildProcessError:
                return False
            return True
        try:
            os.killpg(group, 0)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def _finish(self, run: _RunningProcess, *, stuck: bool = False) -> None:
        if stuck:
            run.report.stuck = True
            if not run.leader_gone:
                run.report.seconds = self._clock() - run.start
                run.process.returncode = -signal.SIGKILL
        del self._runs[run.group]
        if not self._runs:
            _kill_children()
        self._send_report(run.connection, run.report)

    def _send_report(self, connection: socket.socket, report: SimpleNamespace) -> None:
        # The client may be gone. A report never blocks, since it is far smaller than a socket's buffer.
        with contextlib.suppress(OSError):
            connection.sendall(json.dumps(vars(report)).encode() + b"\n")
        self._close_connection(connection)

    def _close_locks(self, connection: socket.socket) -> None:
        """Close the lock descriptors that came with a connection; the started process has its own copies."""
        for descriptor in self._locks.pop(connection, ()):
            os.close(descriptor)

    def _close_connection(self, connection: socket.socket) -> None:
        self._reading.pop(connection, None)
        self._close_locks(connection)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(connection)
        connection.close()

    def _end_all_runs(self) -> None:
        """Kill all groups and orphans, and remove the private folders of the runs, since the toolkit is dead."""
        runs = list(self._runs.values())
        for run in runs:
            self._kill(run)
        deadline = max((run.deadline for run in runs), default=0.0)
        while self._runs and self._clock() < deadline:
            time.sleep(_DRAIN_POLL_SECONDS / 4)
            self._reap()
            self._advance_runs()
        _kill_children()
        if runs:
            from shutil import rmtree  # noqa: PLC0415 - only if the toolkit died

            for run in runs:
                if run.request.private:
                    rmtree(run.request.private, ignore_errors=True)


def _send_signal_to_group(group: int, number: signal.Signals) -> None:
    # The group may be gone, or may have only zombies (macOS).
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _kill_children() -> None:
    """Kill this process's children until there are none. Call only when no run is left.

    Works on Linux only; other systems cannot find a process that left its group.
    """
    children = f"/proc/self/task/{os.getpid()}/children"
    for _ in range(100):
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        try:
            with open(children, encoding="ascii") as file:  # noqa: PTH123
                pids = [int(pid) for pid in file.read().split()]
        except OSError:
            return
        if not pids:
            return
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.002)


def _become_subreaper() -> bool:
    """Have orphaned descendants reparented to this process; return False if the system does not support it."""
    if sys.platform != "linux":
        return False
    try:
        prctl = ctypes.CDLL(None).prctl
    except (OSError, AttributeError):
        return False
    return bool(prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


def main() -> None:
    """Serve the socket that is standard input."""
    # The reaper ignores these signals, since the toolkit stops it. It uses no-op handlers because SIG_IGN, unlike
    # handlers, would be inherited through exec by the tools.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    wake, wake_writer = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(wake_writer, False)
    signal.set_wakeup_fd(wake_writer, warn_on_full_buffer=False)
    control = socket.socket(fileno=os.dup(0))
    # The reaper must not keep the current folder busy; started processes must not keep the control socket open.
    os.chdir("/")
    _Reaper(control, wake).serve()
