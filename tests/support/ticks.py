"""The clock of a file system, which is coarse."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["await_tick"]


def await_tick(path: Path) -> None:
    """Returns when a change of a file gets another time than its last one has, some milliseconds at most."""
    probe = path.parent.parent / f"{path.name}.probe"
    probe.touch()
    while probe.stat().st_ctime_ns <= path.stat().st_ctime_ns:
        probe.touch()
    probe.unlink()
