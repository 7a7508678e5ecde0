"""Files that are written together: all of them stay, or what was there before."""

from __future__ import annotations

import itertools
import os
import shutil
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class UnfinishedFiles:
    """What has been begun so far, and where lies what it takes the place of."""

    def __init__(self) -> None:
        self._begun: list[tuple[Path, Path | None]] = []
        # Of what was begun, in the order of their making.
        self._folders: list[Path] = []

    def begin(self, path: Path) -> None:
        """Makes room for a file or a folder: its own folder is there, and what is there itself lies aside."""
        self._folders += reversed([parent for parent in path.parents if not parent.exists()])
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = _find_free_name(path) if path.exists() else None
        if aside:
            path.rename(aside)
        self._begun.append((path, aside))

    def undo(self) -> None:
        """Puts everything back."""
        for path, aside in reversed(self._begun):
            _remove(path)
            if aside:
                aside.rename(path)
        for folder in reversed(self._folders):
            # Somebody else may have put something there meanwhile.
            with suppress(OSError):
                folder.rmdir()
        self._begun.clear()

    def finish(self) -> None:
        """Lets go what lies aside."""
        for _, aside in self._begun:
            if aside:
                _remove(aside)


def _find_free_name(path: Path) -> Path:
    """A name beside a path that nothing has: a command that was killed has left its own, which may be all there is."""
    names = (path.with_name(f".{path.name}.before{number or ''}") for number in itertools.count())
    return next(name for name in names if not os.path.lexists(name))


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def whole_or_nothing() -> Iterator[UnfinishedFiles]:
    """What is begun inside stays where that ends well."""
    writing = UnfinishedFiles()
    try:
        yield writing
    except BaseException:
        writing.undo()
        raise
    writing.finish()
