"""Standard output that may go away while a run is under way."""

from __future__ import annotations

import io
import os
from typing import TextIO, cast

__all__ = ["Output"]


class Output(io.TextIOBase):
    """A stream whose reader may go away (`| head`), or whose disk may be full: what runs goes on without it.

    Attributes:
        lost: why it takes nothing any more; empty while it does.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.lost = ""

    @property
    def stream(self) -> TextIO:
        """This object, under the type that consoles ask for."""
        return cast("TextIO", self)

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """That of the stream behind it."""
        return self._stream.encoding

    def isatty(self) -> bool:
        """Whether the stream behind it is a terminal."""
        return self._stream.isatty()

    def fileno(self) -> int:
        """The descriptor of the stream behind it."""
        return self._stream.fileno()

    def write(self, text: str) -> int:
        """Writes at once, or notes that it cannot."""
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError as error:
            self.lost = error.strerror or "cannot be written"
            # What is still buffered would fail again when Python exits.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
        return len(text)
