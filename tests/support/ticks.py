"""The clock of a file system, which is coarse."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.processes import wait_until

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["await_tick"]


def await_tick(path: Path) -> None:
    """Returns when a change of a file gets another time than its last one has, some milliseconds at most."""
    probe = path.parent.parent / f"{path.name}.probe"

    def has_ticked() -> bool:
        probe.touch()
        return probe.stat().st_ctime_ns > path.stat().st_ctime_ns

    wait_until(has_ticked)
    probe.unlink()
