"""Asking a tool a short question: bounded in time."""

from __future__ import annotations

import shlex
import subprocess
from typing import TYPE_CHECKING

from iree_gauntlet.errors import ToolchainError
from iree_gauntlet.system.short_process import Answer, run_short

if TYPE_CHECKING:
    from collections.abc import Sequence


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
        return run_short(argv, timeout=timeout, stdin=stdin)
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
