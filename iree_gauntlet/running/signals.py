"""Signals that end processes: their names, and which of them say nothing of who was ended."""

from __future__ import annotations

import signal

__all__ = ["SENT_SIGNALS", "signal_name"]

# From a person, a job system or the kernel's want of memory.
SENT_SIGNALS = ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGXCPU")


def signal_name(number: int) -> str:
    """A signal's name; empty for 0."""
    if not number:
        return ""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"
