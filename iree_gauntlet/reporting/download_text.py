"""What people read of downloads: lines of a log, and columns of a terminal."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from iree_gauntlet.reporting.cleaning import one_line
from iree_gauntlet.reporting.figures import byte_size, duration, percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iree_gauntlet.reporting.download_rates import Arrival, Beginning, Figures

__all__ = ["arrival_text", "beginning_text", "bytes_text", "columns", "progress_text", "time_left"]

# An arrival that took less is not worth a line of its own.
_WORTH_SECONDS = 5.0
_STALLED_SECONDS = 10.0
# Of `19.9 %`, `3.2 of 16.1 GB`, `80.1 MB/s` and `2 min 41 s left`, so that nothing moves as figures grow.
_LEAST_WIDTHS = (6, 14, 9, 15)
_SHORTEST_NAME = 16
_LONGEST_NAME = 60


def time_left(seconds: float) -> str:
    """Seconds as `12 s`, `3 min 05 s`, `2 h 03 min`, `4 days`; rounded up, as nothing is there before it is."""
    whole = math.ceil(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    if whole < 100 * 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02} min"
    return f"{whole // 86400} days"


def bytes_text(done: int, total: int | None) -> str:
    """`3.2 of 16.1 GB`, `12.0 MB of 16.1 GB`, `12.0 MB`."""
    if not total:
        return byte_size(done)
    there, all_of_it = byte_size(done), byte_size(total)
    number, _, unit = there.partition(" ")
    return f"{number if all_of_it.endswith(f' {unit}') else there} of {all_of_it}"


def beginning_text(begun: Beginning) -> str:
    """`downloading URL (16.1 GB)`, `resuming URL at 3.2 of 16.1 GB`."""
    if begun.resumed:
        return f"resuming {one_line(begun.url)} at {bytes_text(begun.resumed, begun.total)}"
    size = f" ({byte_size(begun.total)})" if begun.total else ""
    return f"downloading {one_line(begun.url)}{size}"


def arrival_text(arrival: Arrival) -> str:
    """`downloaded x (16.1 GB in 3 min 20 s, 80.1 MB/s)`; empty where it was so quick that nobody has waited."""
    if arrival.seconds < _WORTH_SECONDS:
        return ""
    speed = f"{byte_size(arrival.arrived / arrival.seconds)}/s"
    size = byte_size(arrival.total)
    if arrival.arrived < arrival.total:
        size = f"{size}, the missing {byte_size(arrival.arrived)}"
    return f"downloaded {one_line(arrival.name)} ({size} in {duration(arrival.seconds)}, {speed})"


def progress_text(figures: Figures) -> str:
    """`downloading x: 3.2 of 16.1 GB (19.9 %), 80.1 MB/s, 2 min 41 s left`."""
    what = one_line(figures.name) or f"{figures.files} files"
    share = f" ({percent(figures.done, figures.total)})" if figures.total else ""
    parts = [f"{bytes_text(figures.done, figures.total)}{share}", _rate(figures), _left(figures)]
    doing = "checking" if figures.checking else "downloading"
    return f"{doing} {what}: {', '.join(filter(None, parts))}"


def columns(together: Figures | None, files: Sequence[Figures], width: int) -> list[str]:
    """Aligned lines of at most `width` columns as far as that can be: all together, then each file."""
    rows = [*([together] if together else []), *files]
    if not rows:
        return []
    names = [one_line(row.name, 1000) or f"{row.files} downloads" for row in rows]
    cells = [[_share(row), bytes_text(row.done, row.total), _rate(row), _left(row) or _checking(row)] for row in rows]
    fixed = _widths(cells, _LEAST_WIDTHS)
    room = width - sum(fixed) - 2 * len(fixed)
    if room < _SHORTEST_NAME:
        # The percentage says nearly the same as the sizes.
        cells = [[share or size, *rest] for share, size, *rest in cells]
        fixed = _widths(cells, (_LEAST_WIDTHS[0], *_LEAST_WIDTHS[2:]))
        room = width - sum(fixed) - 2 * len(fixed)
    longest = min(max(map(len, names)), max(_SHORTEST_NAME, min(room, _LONGEST_NAME)))
    lines = []
    for name, row in zip(names, cells, strict=True):
        figures = [cell.rjust(size) for cell, size in zip(row[:-1], fixed, strict=False)]
        lines.append("  ".join([_middle(name, longest).ljust(longest), *figures, row[-1]]).rstrip())
    return lines


def _widths(cells: list[list[str]], at_least: tuple[int, ...]) -> list[int]:
    return [max(least, *map(len, column)) for least, column in zip(at_least, zip(*cells, strict=True), strict=True)]


def _middle(text: str, limit: int) -> str:
    """Text with its middle cut out: names differ at their ends."""
    if len(text) <= limit:
        return text
    tail = (limit - 1) * 2 // 3
    return f"{text[: limit - 1 - tail]}…{text[len(text) - tail :]}"


def _share(figures: Figures) -> str:
    return f"{100 * figures.done / figures.total:.1f} %" if figures.total else ""


def _rate(figures: Figures) -> str:
    return f"{byte_size(figures.rate)}/s" if figures.rate else ""


def _left(figures: Figures) -> str:
    if figures.checking:
        return ""
    if figures.total is not None and figures.done >= figures.total:
        return ""
    if figures.silence >= _STALLED_SECONDS:
        return f"nothing for {time_left(figures.silence)}"
    return f"{time_left(figures.left)} left" if figures.left is not None else ""


def _checking(figures: Figures) -> str:
    return "checking" if figures.checking else ""
