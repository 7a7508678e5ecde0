"""What goes on, in one line that is painted over on a terminal; elsewhere only what stays to be read."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Self, TextIO

import rich.console
import rich.markup

from iree_gauntlet.reporting.cleaning import one_line
from iree_gauntlet.reporting.console import is_live, write_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["ProgressLine"]

_HEARTBEAT_SECONDS = 30.0


class ProgressLine:
    """Tells people how a long measurement goes.

    Args:
        stream: where to.
        environ: the environment (`TERM`).
        heartbeat: where it is no terminal, seconds between two lines of progress.
        clock: seconds.
    """

    def __init__(
        self,
        stream: TextIO,
        environ: Mapping[str, str],
        *,
        heartbeat: float = _HEARTBEAT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream
        self._clock = clock
        self._heartbeat = heartbeat
        self._told = clock()
        self._status = rich.console.Console(file=stream).status("") if is_live(stream, environ) else None

    def __enter__(self) -> Self:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def message(self, text: str) -> None:
        """A line that stays."""
        if self._status is not None:
            self._status.console.print(one_line(text), markup=False, highlight=False, emoji=False, soft_wrap=True)
        else:
            write_text(self._stream, f"{one_line(text)}\n")
            self._told = self._clock()

    def progress(self, text: str) -> None:
        """What goes on now."""
        if self._status is not None:
            self._status.update(rich.markup.escape(one_line(text)))
        elif self._clock() - self._told >= self._heartbeat:
            self.message(text)
