"""Programs that answer a question and end: each in a process group of its own, for a bounded time; their last lines."""

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


# How long the pipes of a killed program may stay open: a process stuck in a driver survives SIGKILL.
_PATIENCE_SECONDS = 2.0
_NEWS_SECONDS = 10.0
# From asking a group to end until it is killed: Ninja takes away what was being written.
_GRACE_SECONDS = 10.0
TAIL_LINES = 20
_TAIL_BYTES = 1 << 16
_LINE_CHARACTERS = 400
# ECMA-48: CSI sequences; OSC, DCS, APC, PM and SOS strings up to their end; other escapes of one letter.
_ESCAPE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]P_^X].*?(?:\x07|\x1b\\|$)|\x1b[ -/]*[0-~]|\x9b[0-?]*[ -/]*[@-~]")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a program said.

    Attributes:
        exit_code: as of `subprocess`: negative for a signal.
    """

    exit_code: int
    stdout: str
    stderr: str

    @property
    def text(self) -> str:
        """Both."""
        return self.stdout + self.stderr


def run_short(
    argv: Sequence[str],
    *,
    timeout: float,
    stdin: str = "",
    grace: float = 0.0,
    environment: Mapping[str, str] | None = None,
    held: Sequence[int] = (),
    news: Callable[[float], None] | None = None,
) -> Answer:
    """Run a program to its end; after its time, or an interrupt of ours, its process group is ended.

    Args:
        argv: argument vector.
        timeout: seconds that it has; infinite for all that it needs.
        stdin: less than a pipe holds (64 KiB).
        grace: seconds from asking the group to end until it is killed; 0 kills it at once.
        environment: what it inherits; ours for None.
        held: descriptors that it inherits too, such as a lock's.
        news: is given the seconds so far, every ten seconds.

    Raises:
        OSError: it cannot be started.
        subprocess.TimeoutExpired: its time is up; `output` is what it had said.
    """
    messages.print_detail(f"$ {shlex.join(map(str, argv))}")
    process = _start(argv, environment, held, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    started = time.monotonic()
    try:
        while True:
            left = started + timeout - time.monotonic()
            turn = min(left, _NEWS_SECONDS)
            try:
                stdout, stderr = process.communicate(stdin, timeout=turn)
            except subprocess.TimeoutExpired:
                if turn == left:
                    raise
                if news:
                    news(time.monotonic() - started)
                stdin = ""
            else:
                return Answer(process.returncode, stdout, stderr)
    except subprocess.TimeoutExpired:
        raise subprocess.TimeoutExpired(argv, timeout, output=_end_group(process, grace)) from None
    except BaseException:
        _end_group(process, grace)
        raise


def _start(
    argv: Sequence[str], environment: Mapping[str, str] | None, held: Sequence[int], *, stdin: int, stderr: int
) -> subprocess.Popen[str]:
    """A program that leads a process group, and says text."""
    return subprocess.Popen(
        argv,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        encoding="utf-8",
        errors="replace",
        env=environment,
        pass_fds=held,
        start_new_session=True,
    )


def show_last_words(program: str, output: str, most: int) -> str:
    """The last lines, so many at most, of what a program said, as part of a hint; empty ones do not count."""
    lines = ["".join(letter for letter in line if letter.isprintable()) for line in output.splitlines()]
    said = [line for line in lines if line.strip()]
    return "\n  ".join((f"{program} said:", *(f"  {line}" for line in said[-most:])))


@dataclass(frozen=True, slots=True)
class Tail:
    """The end of a file; its size in bytes is that of the whole."""

    lines: tuple[str, ...]
    truncated: bool
    size: int


def read_tail(path: Path, lines: int = TAIL_LINES) -> Tail:
    """Read the last lines of a file; a file that is not there has none.

    No more than the last 64 KiB are read. Empty lines at the end are left out.
    """
    try:
        with path.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            start = max(0, size - _TAIL_BYTES)
            stream.seek(start)
            data = stream.read(_TAIL_BYTES)
    except FileNotFoundError:
        return Tail((), truncated=False, size=0)
    texts = data.decode(errors="replace").split("\n")
    if start:
        texts[0] = f"… {texts[0]}"
    while texts and not texts[-1].strip():
        texts.pop()
    last = texts[-lines:] if lines > 0 else []
    return Tail(tuple(clean_line(text) for text in last), start > 0 or len(texts) > len(last), size)


def clean_line(text: str) -> str:
    """A line without escape sequences and control characters, cut to a length with a mark.

    Of a line that was written over and over (a progress bar), the last state is kept.
    """
    text = _ESCAPE.sub("", text).rstrip("\r")
    text = text.rsplit("\r", 1)[-1]
    text = "".join(c if c.isprintable() else " " if c.isspace() else "" for c in text)
    left_out = len(text) - _LINE_CHARACTERS
    return f"{text[:_LINE_CHARACTERS]}… ({left_out} more characters)" if left_out > 0 else text


def _end_group(process: subprocess.Popen[str], grace: float) -> str:
    """End a process that leads a group of its own, with all of the group; what it has said.

    The group is killed even where its leader ended when asked: what the leader had just started may have missed that,
    or may ignore it.
    """
    said = ""
    for number, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, _PATIENCE_SECONDS)):
        if seconds > 0:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                said = "".join(filter(None, process.communicate(timeout=seconds)))
    return said


def ask(
    argv: Sequence[str], *, timeout: float, stdin: str = "", environment: Mapping[str, str] | None = None
) -> Answer:
    """As `run_short`, with a ToolchainError where a tool cannot be started, or does not answer in time."""
    try:
        return run_short(argv, timeout=timeout, stdin=stdin, environment=environment)
    except OSError as problem:
        raise ToolchainError(
            f"{argv[0]} cannot be started: {problem.strerror or problem}",
            "it may be built for another system; reinstall it for this one",
        ) from problem
    except subprocess.TimeoutExpired:
        raise ToolchainError(
            f"{shlex.join(argv)} did not answer within {timeout:g} s and was killed",
            "a device driver may hang; try the command by hand, and look at the system's log",
        ) from None


def run_logged(
    argv: Sequence[str],
    log: Path,
    *,
    environment: Mapping[str, str],
    held: Sequence[int],
    follow: Callable[[str], None],
) -> int:
    """Runs a program to its end, adds both its outputs to a log, and returns its exit code, as of `subprocess`."""
    messages.print_detail(f"$ {shlex.join(argv)}")
    with log.open("a", encoding="utf-8") as file:
        file.write(f"$ {shlex.join(argv)}\n")
        process = _start(argv, environment, held, stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT)
        assert process.stdout is not None, "a pipe was asked for"
        try:
            with process.stdout as lines:
                for line in lines:
                    file.write(line)
                    follow(line.rstrip("\n"))
            return process.wait()
        finally:
            if process.poll() is None:
                _end_group(process, _GRACE_SECONDS)


def name_signal(number: int) -> str:
    """A signal's name; empty for 0."""
    if not number:
        return ""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"
