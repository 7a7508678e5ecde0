"""Names of the signals that end processes."""

from __future__ import annotations

import signal


def signal_name(number: int) -> str:
    """A signal's name; empty for 0."""
    if not number:
        return ""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"
