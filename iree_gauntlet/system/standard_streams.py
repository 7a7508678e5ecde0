"""Standard input, output and error as commands find them: closed, full, without a reader, or of another encoding."""

from __future__ import annotations

import io
import os
import select
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class _StandardFile(io.FileIO):
    """Standard output or error, which takes what is written to it without a word once it could not be written.

    Attributes:
        lost: why it could not be; None while it can. It is raised once, where what is written there is a result.
    """

    def __init__(self, number: int, *, is_result: bool) -> None:
        super().__init__(number, "w", closefd=False)
        self._is_result = is_result
        self.lost: OSError | None = None

    def write(self, data: ReadableBuffer, /) -> int:
        """Write what can be written."""
        while self.lost is None:
            try:
                count = super().write(data)
            except OSError as error:
                self.lost = error
                if self._is_result:
                    raise
            else:
                if count is not None:
                    return count
                # Somebody has told it not to wait for its reader.
                select.select([], [self], [])
        return memoryview(data).nbytes


def open_standard_streams() -> None:
    """Prepares the streams of this process: those that are closed lead nowhere, and no text is too much for them."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            stream = open(_open_nowhere(number), "w" if number else "r", encoding="utf-8", closefd=False)  # noqa: SIM115 - as long as the process
            setattr(sys, name, stream)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is getattr(sys, f"__{name}__"):
            setattr(sys, name, _reopen(getattr(sys, name), is_result=name == "stdout"))


def find_lost_output() -> OSError | None:
    """Why standard output could not be written; None where it could."""
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    return raw.lost if isinstance(raw, _StandardFile) else None


def _open_nowhere(number: int) -> int:
    """A descriptor that leads nowhere: the given one where it is free, or the next file that is opened would get it."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    try:
        os.fstat(number)
    except OSError:
        os.dup2(nowhere, number)
        os.close(nowhere)
        return number
    return nowhere


def _reopen(stream: TextIO, *, is_result: bool) -> TextIO:
    stream.flush()
    raw = io.BufferedWriter(_StandardFile(stream.fileno(), is_result=is_result))
    errors = "backslashreplace" if stream.errors == "strict" else stream.errors
    return io.TextIOWrapper(raw, stream.encoding, errors, line_buffering=bool(stream.line_buffering))
