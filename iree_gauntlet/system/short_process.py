"""Short-lived programs, each of which runs in its own process group for a bounded time; reading of their last lines."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from iree_gauntlet import messages
from iree_gauntlet.errors import ToolchainError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path


# Wait only so long for the pipes of a killed program, since a process that is stuck in a driver survives SIGKILL.
_PIPE_TIMEOUT_SECONDS = 2.0
_PROGRESS_INTERVAL_SECONDS = 10.0
# A group that was asked to end gets so much time before it is killed; Ninja uses it to delete incomplete files.
_GRACE_SECONDS = 10.0
TAIL_LINES = 20
_TAIL_BYTES = 1 << 16
_MAX_LINE_CHARS = 400
# ECMA-48: CSI sequences; OSC, DCS, APC, PM and SOS strings up to their end; other escapes of one letter.
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]P_^X].*?(?:\x07|\x1b\\|$)|\x1b[ -/]*[0-~]|\x9b[0-?]*[ -/]*[@-~]")


@dataclass(frozen=True, slots=True)
class ProcessOutput:
    """A program's exit code and output.

    Attributes:
        exit_code: the exit code as in `subprocess`, negative for a signal.
    """

    exit_code: int
    stdout: str
    stderr: str

    @property
    def text(self) -> str:
        """Standard output and standard error."""
        return self.stdout + self.stderr


def run_short(
    argv: Sequence[str],
    *,
    timeout: float,
    stdin: str = "",
    grace: float = 0.0,
    environment: Mapping[str, str] | None = None,
    inherited_fds: Sequence[int] = (),
    news: Callable[[float], None] | None = None,
) -> ProcessOutput:
    """Run a program to its end; after the timeout, or an interrupt of this process, end its process group.

    Args:
        argv: the argument vector.
        timeout: the time limit in seconds; infinite for no limit.
        stdin: text for standard input; less than a pipe holds (64 KiB).
        grace: seconds from asking the group to end until it is killed; 0 kills it at once.
        environment: the program's environment variables; None for the environment of this process.
        inherited_fds: further descriptors that the program inherits, such as the descriptor of a lock.
        news: called every ten seconds with the elapsed seconds.

    Raises:
        OSError: the program cannot be started.
        subprocess.TimeoutExpired: the time is up; `output` is the text that the program had printed.
    """
    messages.print_detail(f"$ {shlex.join(map(str, argv))}")
    process = _start(argv, environment, inherited_fds, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    start = time.monotonic()
    try:
        while True:
            remaining = start + timeout - time.monotonic()
            wait_seconds = min(remaining, _PROGRESS_INTERVAL_SECONDS)
            try:
                stdout, stderr = process.communicate(stdin, timeout=wait_seconds)
            except subprocess.TimeoutExpired:
                if wait_seconds == remaining:
                    raise
                if news:
                    news(time.monotonic() - start)
                stdin = ""
            else:
                return ProcessOutput(process.returncode, stdout, stderr)
    except subprocess.TimeoutExpired:
        raise subprocess.TimeoutExpired(argv, timeout, output=_end_group(process, grace)) from None
    except BaseException:
        _end_group(process, grace)
        raise


def _start(
    argv: Sequence[str], environment: Mapping[str, str] | None, inherited_fds: Sequence[int], *, stdin: int, stderr: int
) -> subprocess.Popen[str]:
    """Start a program that leads a process group, with text pipes."""
    return subprocess.Popen(
        argv,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        encoding="utf-8",
        errors="replace",
        env=environment,
        pass_fds=inherited_fds,
        start_new_session=True,
    )


def format_last_lines(program: str, output: str, max_lines: int) -> str:
    """Return the last non-empty lines of a program's output, at most `max_lines`, as part of a hint."""
    lines = ["".join(char for char in line if char.isprintable()) for line in output.splitlines()]
    printed_lines = [line for line in lines if line.strip()]
    return "\n  ".join((f"{program} printed:", *(f"  {line}" for line in printed_lines[-max_lines:])))


@dataclass(frozen=True, slots=True)
class Tail:
    """The last lines of a file; `size` is the size of the whole file in bytes."""

    lines: tuple[str, ...]
    truncated: bool
    size: int


def read_tail(path: Path, lines: int = TAIL_LINES) -> Tail:
    """Read the last lines of a file; a missing file has none.

    No more than the last 64 KiB are read. Empty lines at the end are left out.
    """
    try:
        with path.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            offset = max(0, size - _TAIL_BYTES)
            stream.seek(offset)
            chunk = stream.read(_TAIL_BYTES)
    except FileNotFoundError:
        return Tail((), truncated=False, size=0)
    all_lines = chunk.decode(errors="replace").split("\n")
    if offset:
        all_lines[0] = f"… {all_lines[0]}"
    while all_lines and not all_lines[-1].strip():
        all_lines.pop()
    last = all_lines[-lines:] if lines > 0 else []
    return Tail(tuple(clean_line(text) for text in last), offset > 0 or len(all_lines) > len(last), size)


def clean_line(text: str) -> str:
    """Return a line without escape sequences and control characters; truncate a long line and mark this.

    If a line was overwritten repeatedly (a progress bar), keep its last state.
    """
    text = _ESCAPES.sub("", text).rstrip("\r")
    text = text.rsplit("\r", 1)[-1]
    text = "".join(c if c.isprintable() else " " if c.isspace() else "" for c in text)
    excess = len(text) - _MAX_LINE_CHARS
    return f"{text[:_MAX_LINE_CHARS]}… ({excess} more characters)" if excess > 0 else text


def _end_group(process: subprocess.Popen[str], grace: float) -> str:
    """End a process that leads its own group, and the whole group; return the text that it has printed.

    The group is killed even if its leader ended when asked, because a child that the leader had just started may have
    missed the signal, or may ignore it.
    """
    output = ""
    for signal_number, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, _PIPE_TIMEOUT_SECONDS)):
        if seconds > 0:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal_number)
            with suppress(subprocess.TimeoutExpired):
                output = "".join(filter(None, process.communicate(timeout=seconds)))
    return output


def run_tool(
    argv: Sequence[str], *, timeout: float, stdin: str = "", environment: Mapping[str, str] | None = None
) -> ProcessOutput:
    """Run a program as `run_short` does; raise ToolchainError if it cannot be started, or does not end in time."""
    try:
        return run_short(argv, timeout=timeout, stdin=stdin, environment=environment)
    except OSError as error:
        raise ToolchainError(
            f"{argv[0]} cannot be started: {error.strerror or error}",
            "it may be built for another system; reinstall it for this system",
        ) from error
    except subprocess.TimeoutExpired:
        raise ToolchainError(
            f"{shlex.join(argv)} did not answer within {timeout:g} s and was killed",
            "a device driver may hang; try the command by hand, and check the system's log",
        ) from None


def run_logged(
    argv: Sequence[str],
    log: Path,
    *,
    environment: Mapping[str, str],
    inherited_fds: Sequence[int],
    follow: Callable[[str], None],
) -> int:
    """Run a program to its end, append both its outputs to a log, and return its exit code as in `subprocess`."""
    messages.print_detail(f"$ {shlex.join(argv)}")
    with log.open("a", encoding="utf-8") as file:
        file.write(f"$ {shlex.join(argv)}\n")
        process = _start(argv, environment, inherited_fds, stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT)
        assert process.stdout is not None, "a pipe was requested"
        try:
            with process.stdout as lines:
                for line in lines:
                    file.write(line)
                    follow(line.rstrip("\n"))
            return process.wait()
        finally:
            if process.poll() is None:
                _end_group(process, _GRACE_SECONDS)


def get_signal_name(number: int) -> str:
    """Return a signal's name; empty for 0."""
    if not number:
        return ""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"
