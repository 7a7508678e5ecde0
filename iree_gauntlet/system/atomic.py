"""Files and directories that are either complete or absent: written aside on one file system, synced, renamed.

The order survives a power cut: first the data, then the name, then the directory that holds the name. If several
processes write a file, the last one wins. A directory is replaced by the holder of its lock, or added; the first one
wins.
"""

from __future__ import annotations

import glob
import os
import shutil
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


# The temporary name takes this much of the file's name, which may already be as long as the file system allows.
_NAME_CHARS = 40


def write_atomic(path: Path, content: bytes | str) -> None:
    """Replace a file's content, or create the file, in one step that no crash can halve; text is written as UTF-8.

    A symbolic link is followed. The mode of an existing file is kept; a new one gets what `open` would have given it.

    Raises:
        OSError: the directory is missing, read-only or full. The old content is untouched; no temporary file is left.
    """
    data = content.encode() if isinstance(content, str) else content
    target = Path(os.path.realpath(path))
    with replace_file(target) as temporary, temporary.open("xb") as stream:
        with suppress(FileNotFoundError):
            os.fchmod(stream.fileno(), target.stat().st_mode & 0o777)
        stream.write(data)
    sync_folder(target.parent)


@contextmanager
def replace_file(path: Path) -> Iterator[Path]:
    """Yield a path as `reserve_file` does; at the end, `put_file` moves the file that the body wrote to `path`."""
    with reserve_file(path) as temporary:
        yield temporary
        put_file(temporary, path)


@contextmanager
def reserve_file(path: Path) -> Iterator[Path]:
    """Yield a free path beside `path`, to be renamed to it; at the end, remove a file that is still there."""
    temporary = path.parent / f".{path.name[:_NAME_CHARS]}.{os.urandom(12).hex()}.part"
    try:
        yield temporary
    finally:
        # The file can also be there after rename(2), which keeps both names if they are links to one file. A read-only
        # file system refuses to remove even a file that does not exist.
        with suppress(OSError):
            temporary.unlink()


def remove_reserved(path: Path) -> None:
    """Remove the temporary files that killed writers of a file have left beside it; the caller holds its lock."""
    for leftover in path.parent.glob(f".{glob.escape(path.name[:_NAME_CHARS])}.{'[0-9a-f]' * 24}.part"):
        leftover.unlink(missing_ok=True)


def put_file(temporary: Path, path: Path) -> None:
    """Sync a temporary file to disk and rename it to `path`."""
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    temporary.replace(path)


@contextmanager
def replace_folder(path: Path) -> Iterator[Path]:
    """Yield a path as `reserve_folder` does, and rename it to `path`, which is deleted; the caller holds its lock."""
    # Killed processes have left these.
    for leftover in path.parent.glob(f".making-{path.name}-*"):
        shutil.rmtree(leftover)
    with reserve_folder(path) as temporary:
        yield temporary
        discard_folder(path)
        temporary.rename(path)
        sync_folder(path.parent)


@contextmanager
def add_folder(path: Path) -> Iterator[Path]:
    """Yield a path as `reserve_folder` does; at the end, `put_folder` renames it to `path`."""
    with reserve_folder(path) as temporary:
        yield temporary
        put_folder(temporary, path)


@contextmanager
def reserve_folder(path: Path, within: Path | None = None) -> Iterator[Path]:
    """Yield a free path beside a directory, or within another one; at the end, remove a directory still there."""
    temporary = (within or path.parent) / f".making-{path.name}-{os.urandom(4).hex()}"
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def put_folder(new: Path, path: Path) -> bool:
    """Give a directory its name, durably; return False, and leave the existing one, if the name is in use."""
    try:
        new.rename(path)
    except OSError:
        if not path.exists():
            raise
        return False
    sync_folder(path.parent)
    return True


def discard_folder(path: Path) -> None:
    """Rename a directory away at once, then delete it; a missing one is no error."""
    with reserve_folder(path) as trash, suppress(FileNotFoundError):
        path.rename(trash)
        shutil.rmtree(trash)


def sync_folder(folder: Path) -> None:
    """Make names just created or renamed in a directory survive a power cut, if its file system can."""
    descriptor = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    try:
        # Some network and FUSE file systems answer EINVAL.
        with suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
