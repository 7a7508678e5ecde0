"""Asking a tool a short question: bounded in time, in a process group of its own."""

from __future__ import annotations

import shlex
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from iree_gauntlet.errors import ToolchainError
from iree_gauntlet.process_group import kill_group

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Answer", "ask"]

# How long the pipes of a killed probe may stay open: a process stuck in a driver survives SIGKILL.
_GRACE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What a tool said.

    Attributes:
        exit_code: as of `subprocess`: negative for a signal.
        stdout, stderr: text; what is not UTF-8 is replaced.
    """

    exit_code: int
    stdout: str
    stderr: str


def ask(argv: Sequence[str], *, timeout: float, stdin: str = "") -> Answer:
    """Run a tool to its end.

    Args:
        argv: argument vector; the first is a path.
        timeout: seconds after which the whole process group is killed.
        stdin: what the tool reads.

    Raises:
        ToolchainError: where it cannot be started, or does not answer in time.
    """
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
    except OSError as problem:
        raise ToolchainError(
            f"{argv[0]} cannot be started: {problem.strerror or problem}",
            "it may be built for another system; reinstall it for this one",
        ) from problem
    try:
        stdout, stderr = process.communicate(stdin, timeout=timeout)
    except subprocess.TimeoutExpired:
        kill_group(process, _GRACE_SECONDS)
        raise ToolchainError(
            f"{shlex.join(argv)} did not answer within {timeout:g} s and was killed",
            "a device driver may hang; try the command by hand, and look at the system's log",
        ) from None
    except BaseException:
        kill_group(process, _GRACE_SECONDS)
        raise
    return Answer(process.returncode, stdout, stderr)
