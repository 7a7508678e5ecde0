"""Locks between runs that fetch."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from iree_gauntlet.artifacts.publishing import disk_errors
from iree_gauntlet.system.file_lock import file_lock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from iree_gauntlet.progress import Progress


@contextmanager
def locked(path: Path, url: str, progress: Progress) -> Iterator[None]:
    """Hold a lock; a wait of more than a few seconds is noted, again and again.

    There is no limit: the owner's own timeouts bound its work, and a dead owner's lock is free.

    Raises:
        ArtifactError: if the lock's file cannot be made (read-only cache).
    """

    def waiting(seconds: float) -> None:
        progress.note(url, f"waiting for another download of the same file ({seconds:.0f} s so far)")

    with ExitStack() as stack:
        with disk_errors(path.parent, url):
            path.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(file_lock(path, waiting))
        yield
