"""How far long work on the cache is, on standard error: one changing line on a terminal, else a line now and then."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Self, TextIO

from iree_gauntlet.artifacts.publishing import human_bytes
from iree_gauntlet.reporting.cleaning import one_line

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CacheProgress"]

_QUIET_SECONDS = 1.0
_TERMINAL_SECONDS = 0.2
_PLAIN_SECONDS = 10.0


class CacheProgress:
    """Progress of work on a cache; calls may come from several threads. Also a `Progress` of fetches.

    Work of less than a second shows nothing.

    Args:
        doing: what is being done, such as `verifying`.
        total: bytes of all the work; None where it is not known.
        stream: where to; standard error by default.
        clock: seconds.
    """

    def __init__(
        self,
        doing: str,
        total: int | None = None,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._doing = doing
        self._total = total
        self._stream = stream or sys.stderr
        self._terminal = self._stream.isatty()
        self._clock = clock
        self._lock = threading.Lock()
        self._started = clock()
        self._next = self._started + _QUIET_SECONDS
        self._done = 0
        self._shown = False
        self._stopped = False

    def advance(self, count: int) -> None:
        """So many bytes more are done.

        Raises:
            CancelledError: the work was given up.
        """
        with self._lock:
            if self._stopped:
                raise CancelledError
            self._done += count
            seconds = self._clock() - self._started
            rate = f", {human_bytes(round(self._done / seconds))}/s" if seconds > 0 else ""
            of = f" of {human_bytes(self._total)}" if self._total else ""
            left = ""
            if self._total and 0 < self._done <= self._total:
                left = f", {seconds * (self._total - self._done) / self._done:.0f} s left"
            self._show(f"{self._doing}: {human_bytes(self._done)}{of}{rate}{left}")

    def update(self, url: str, done: int, total: int | None) -> None:
        """A download goes on."""
        with self._lock:
            of = f" of {human_bytes(total)}" if total else ""
            self._show(f"fetching {human_bytes(done)}{of} {url}")

    def checking(self, url: str, done: int, total: int) -> None:
        """What was downloaded is hashed."""
        with self._lock:
            self._show(f"checking {human_bytes(done)} of {human_bytes(total)} {url}")

    def finished(self, url: str) -> None:
        """Nothing more comes of a URL."""
        del url
        with self._lock:
            self._clear()

    def note(self, url: str, message: str) -> None:
        """Something out of the ordinary about a URL."""
        del url  # the messages name what they are about
        with self._lock:
            self._clear()
            self._stream.write(f"note: {one_line(message)}\n")
            self._stream.flush()

    def say(self, line: str) -> None:
        """A line of the result, on standard output."""
        with self._lock:
            self._clear()
            sys.stdout.write(f"{one_line(line)}\n")
            sys.stdout.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._stopped = True
            self._clear()

    def _show(self, text: str) -> None:
        now = self._clock()
        if now < self._next:
            return
        if self._terminal:
            self._next = now + _TERMINAL_SECONDS
            self._stream.write(f"\r\x1b[K{one_line(text)[: shutil.get_terminal_size().columns - 1]}")
            self._shown = True
        else:
            self._next = now + _PLAIN_SECONDS
            self._stream.write(f"{one_line(text)}\n")
        self._stream.flush()

    def _clear(self) -> None:
        if self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._shown = False
