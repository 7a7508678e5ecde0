"""Where commands write: standard output that may go away while a run is under way, and progress."""

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
    """Whether a stream is a terminal that can move its cursor (`TERM=dumb` cannot)."""
    return stream.isatty() and environ.get("TERM", "") not in ("dumb", "unknown")


def open_progress(stream: TextIO) -> Painter:
    """Live progress where `stream` is a terminal that can show it, lines elsewhere and where all is wanted."""
    # rich takes long to import.
    from iree_gauntlet.records.run_before import read_earlier_seconds  # noqa: PLC0415
    from iree_gauntlet.reports.live_progress import LiveProgress, Painter, PlainProgress  # noqa: PLC0415
    from iree_gauntlet.settings import find_runs_folder  # noqa: PLC0415

    if messages.is_quiet():
        return Painter()
    earlier = partial(read_earlier_seconds, folder=find_runs_folder() / "next")
    if is_live(stream, os.environ) and not messages.is_verbose():
        return LiveProgress(stream, colour=not os.environ.get("NO_COLOR"), earlier=earlier)
    return PlainProgress(stream, earlier=earlier)


def write_line(text: str) -> None:
    """A line of a result that comes bit by bit, on standard output."""
    from iree_gauntlet.formatting import one_line  # noqa: PLC0415

    sys.stdout.write(f"{one_line(text)}\n")
    sys.stdout.flush()


def print_table(rows: Sequence[tuple[str, ...]]) -> None:
    """Columns as wide as they need to be, the last one as it comes."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        sys.stdout.write("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() + "\n")


class Output(io.TextIOBase):
    """A stream whose reader may go away (`| head`), or whose disk may be full: what runs continues without it.

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
        return len(text)
