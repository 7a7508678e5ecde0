"""Waits for the coarse clock of a file system."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.processes import wait_until

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["await_tick"]


def await_tick(path: Path) -> None:
    """Wait, some milliseconds at most, until a change of a file would get another timestamp than its last change."""
    probe = path.parent.parent / f"{path.name}.probe"

    def has_ticked() -> bool:
        probe.touch()
        return probe.stat().st_ctime_ns > path.stat().st_ctime_ns

    wait_until(has_ticked)
    probe.unlink()
