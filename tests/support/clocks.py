"""A clock that a test sets, for what takes a clock, and in place of the module `time`."""

from __future__ import annotations

__all__ = ["Clock"]


class Clock:
    """Seconds that pass only when a test says so."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    monotonic = __call__

    def advance(self, seconds: float) -> None:
        """Lets time pass."""
        self.now += seconds
