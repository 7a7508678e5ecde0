"""Standard input, output and error of a command, which may be closed, full, without a reader, or not UTF-8."""

from __future__ import annotations

import io
import os
import select
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class _StandardFile(io.FileIO):
    """Standard output or error; after the first write error, all further text is discarded silently.

    Attributes:
        error: the first write error; None while there is none. The error is raised once if the stream has results.
    """

    def __init__(self, number: int, *, is_result: bool) -> None:
        super().__init__(number, "w", closefd=False)
        self._is_result = is_result
        self.error: OSError | None = None

    def write(self, data: ReadableBuffer, /) -> int:
        """Write all data, or discard the rest after an error."""
        while self.error is None:
            try:
                count = super().write(data)
            except OSError as error:
                self.error = error
                if self._is_result:
                    raise
            else:
                if count is not None:
                    return count
                # The stream is in non-blocking mode, so wait for its reader.
                select.select([], [self], [])
        return memoryview(data).nbytes


def open_standard_streams() -> None:
    """Prepare the standard streams: connect closed streams to /dev/null, and escape text that cannot be encoded."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            stream = open(_open_null(number), "w" if number else "r", encoding="utf-8", closefd=False)  # noqa: SIM115 - as long as the process
            setattr(sys, name, stream)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is getattr(sys, f"__{name}__"):
            setattr(sys, name, _reopen(getattr(sys, name), is_result=name == "stdout"))


def find_output_error() -> OSError | None:
    """Return the error that kept standard output from being written; None if there was none."""
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    return raw.error if isinstance(raw, _StandardFile) else None


def _open_null(number: int) -> int:
    """Open /dev/null, with the given descriptor if it is free, so that no later file gets that descriptor."""
    null_fd = os.open(os.devnull, os.O_RDWR)
    try:
        os.fstat(number)
    except OSError:
        os.dup2(null_fd, number)
        os.close(null_fd)
        return number
    return null_fd


def _reopen(stream: TextIO, *, is_result: bool) -> TextIO:
    stream.flush()
    raw = io.BufferedWriter(_StandardFile(stream.fileno(), is_result=is_result))
    errors = "backslashreplace" if stream.errors == "strict" else stream.errors
    return io.TextIOWrapper(raw, stream.encoding, errors, line_buffering=bool(stream.line_buffering))
