"""Output streams of commands: progress, and a standard output that may be closed while the run continues."""

from __future__ import annotations

import io
import os
import sys
from functools import partial
from typing import TYPE_CHECKING, TextIO, cast

from iree_gauntlet import messages

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from iree_gauntlet.reports.live_progress import Painter


def is_live(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Return True if a stream is a terminal that can move its cursor (`TERM=dumb` cannot)."""
    return stream.isatty() and environ.get("TERM", "") not in ("dumb", "unknown")


def open_progress(stream: TextIO) -> Painter:
    """Return live progress if `stream` is a terminal that supports it; otherwise, and for verbose output, log lines."""
    # These imports are late because importing rich takes long.
    from iree_gauntlet.records.run_before import read_previous_seconds  # noqa: PLC0415
    from iree_gauntlet.reports.live_progress import LiveProgress, Painter, PlainProgress  # noqa: PLC0415
    from iree_gauntlet.settings import find_runs_folder  # noqa: PLC0415

    if messages.is_quiet():
        return Painter()
    read_step_seconds = partial(read_previous_seconds, folder=find_runs_folder() / "next")
    if is_live(stream, os.environ) and not messages.is_verbose():
        return LiveProgress(stream, colour=not os.environ.get("NO_COLOR"), read_step_seconds=read_step_seconds)
    return PlainProgress(stream, read_step_seconds=read_step_seconds)


def write_line(text: str) -> None:
    """Write to standard output one line of a result that is printed piece by piece."""
    from iree_gauntlet.formatting import join_lines  # noqa: PLC0415

    sys.stdout.write(f"{join_lines(text)}\n")
    sys.stdout.flush()


def print_table(rows: Sequence[tuple[str, ...]]) -> None:
    """Print a table with columns as wide as their content, the last one without padding."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        sys.stdout.write("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() + "\n")


class Output(io.TextIOBase):
    """A stream that may fail: if its reader closes it (`| head`) or the disk is full, the command goes on without it.

    Attributes:
        lost: the reason why writing fails; empty while writing works.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.lost = ""

    @property
    def stream(self) -> TextIO:
        """This stream, with the type that consoles require."""
        return cast("TextIO", self)

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The encoding of the underlying stream."""
        return self._stream.encoding

    def isatty(self) -> bool:
        """Return True if the underlying stream is a terminal."""
        return self._stream.isatty()

    def fileno(self) -> int:
        """Return the descriptor of the underlying stream."""
        return self._stream.fileno()

    def write(self, text: str) -> int:
        """Write the text at once, or record why writing fails."""
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError as error:
            self.lost = error.strerror or "cannot be written"
        return len(text)
