"""Ending a process with everything that it has started."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress

__all__ = ["end_group"]


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
