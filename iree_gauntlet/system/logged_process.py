"""Programs that take long: what they say goes into a log, and line by line to who follows them."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING

from iree_gauntlet import messages

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path


# From asking a group to end until it is killed: Ninja takes away what was being written.
_GRACE_SECONDS = 10.0


def run_logged(
    argv: Sequence[str],
    log: Path,
    *,
    environment: Mapping[str, str],
    held: Sequence[int],
    follow: Callable[[str], None],
) -> int:
    """Runs a program to its end, and adds both its outputs to a log.

    Args:
        argv: argument vector.
        log: gets the command line too.
        environment: what it inherits.
        held: descriptors that it inherits too, such as a lock's: if we are killed, nobody begins again while it writes.
        follow: receives each line.

    Returns:
        The exit code, as of `subprocess`: negative for a signal.

    Raises:
        OSError: it cannot be started, or the log cannot be written.
    """
    messages.detail(f"$ {shlex.join(argv)}")
    with log.open("a", encoding="utf-8") as file:
        file.write(f"$ {shlex.join(argv)}\n")
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
            env=environment,
            pass_fds=held,
            start_new_session=True,
        )
        assert process.stdout is not None, "a pipe was asked for"
        try:
            with process.stdout as lines:
                for line in lines:
                    file.write(line)
                    follow(line.rstrip("\n"))
            return process.wait()
        finally:
            _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    """Ends what is left of a program and its group."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE_SECONDS)
