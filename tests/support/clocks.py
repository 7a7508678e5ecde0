"""A clock that a test sets: for code that accepts a clock, and as a replacement of the module `time`."""

from __future__ import annotations

__all__ = ["Clock"]


class Clock:
    """A clock in seconds that only `advance` moves."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    monotonic = __call__

    def advance(self, seconds: float) -> None:
        """Advance the clock."""
        self.now += seconds
