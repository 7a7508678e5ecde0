"""Ending a process with everything that it has started."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress

__all__ = ["end_group", "kill_group"]


def end_group(process: subprocess.Popen[bytes], grace: float) -> None:
    """End a process that leads a group of its own: asked first, and killed after `grace` seconds."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(grace)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def kill_group(process: subprocess.Popen[str], patience: float) -> None:
    """Kill a process that leads a group of its own, and wait for it as long as makes sense: a driver may hold it."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=patience)
