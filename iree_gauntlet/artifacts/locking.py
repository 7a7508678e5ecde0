"""Locks between runs: of flock's kind, so that they die with their owner, also on SIGKILL."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from iree_gauntlet.artifacts.publishing import disk_errors

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from iree_gauntlet.progress import Progress

__all__ = ["locked"]

_PATIENCE_SECONDS = 3.0
_REMINDER_SECONDS = 60.0
_POLL_SECONDS = 0.05


@contextmanager
def locked(path: Path, url: str, progress: Progress) -> Iterator[None]:
    """Hold a lock; a wait of more than a few seconds is noted, and noted again every minute.

    There is no limit: the owner's own timeouts bound its work, and a dead owner's lock is free.

    Raises:
        ArtifactError: if the lock's file cannot be made (read-only cache).
    """
    with disk_errors(path.parent, url):
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path, poll_interval=_POLL_SECONDS)
        started, patience = time.monotonic(), _PATIENCE_SECONDS
        while True:
            try:
                lock.acquire(timeout=patience)
                break
            except Timeout:
                waited = time.monotonic() - started
                progress.note(url, f"waiting for another download of the same file ({waited:.0f} s so far)")
                patience = _REMINDER_SECONDS
    try:
        yield
    finally:
        lock.release()
