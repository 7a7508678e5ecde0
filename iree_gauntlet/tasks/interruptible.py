"""Ctrl-C, and what a job system sends, end what runs before they end the command."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["interruptible"]


@contextmanager
def interruptible(cancel: Callable[[], None]) -> Iterator[None]:
    """Ctrl-C and SIGTERM end what runs and raise KeyboardInterrupt once; a second one ends it without grace."""
    raised = False

    def handle(_number: int, _frame: object) -> None:
        nonlocal raised
        cancel()
        if not raised:
            raised = True
            raise KeyboardInterrupt

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
