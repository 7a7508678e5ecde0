"""A folder that belongs to a living process: nobody else uses it, and what the dead have left beside it is cleared."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Self

from iree_gauntlet.errors import UsageError
from iree_gauntlet.system.file_lock import LockFile

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_LOCK = "owner.lock"


def folder_of(cache_dir: Path, name: str) -> Path:
    """Where a worker of a name keeps what is its own."""
    return cache_dir / "cluster" / name


class OwnedFolder:
    """Owns a folder until it is left, which removes it; a lock in it says so, and is free when its owner is dead.

    Args:
        path: of the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = LockFile(path / _LOCK)

    def __enter__(self) -> Self:
        self.path.mkdir(parents=True, exist_ok=True)
        if not self._lock.acquire_now():
            raise UsageError(f"a worker {self.path.name} runs here already", "Give this one another --name.")
        for folder in _left_behind(self.path):
            shutil.rmtree(folder, ignore_errors=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.remove()
        shutil.rmtree(self.path, ignore_errors=True)


def _left_behind(own: Path) -> Iterator[Path]:
    for lock in own.parent.glob(f"*/{_LOCK}"):
        if lock.parent == own:
            continue
        other = LockFile(lock)
        if other.acquire_now():
            yield lock.parent
            other.release()
