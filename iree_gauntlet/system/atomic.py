"""Files and directories that are complete or absent: written under another name, synced, then renamed.

Syncing the data first, then renaming, then syncing the parent directory survives a power cut. If several processes
write a file, the last process wins. If several add a directory, the first wins; a directory is replaced only by the
holder of its lock.
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


# The temporary name has only so many characters of the file's name, which may be as long as the file system allows.
_NAME_CHARS = 40


def write_atomic(path: Path, content: bytes | str) -> None:
    """Replace a file's content, or create the file, in one step even if a crash happens; text is written as UTF-8.

    A symbolic link is followed. The mode of an existing file is kept; a new file gets the mode that `open` would give.

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
    """Yield a path as in `reserve_file`; at the end, `put_file` renames the file that the block wrote to `path`."""
    with reserve_file(path) as temporary:
        yield temporary
        put_file(temporary, path)


@contextmanager
def reserve_file(path: Path) -> Iterator[Path]:
    """Yield a free path in the folder of `path`, for a file to be renamed; at the end, remove a file that is left."""
    temporary = path.parent / f".{path.name[:_NAME_CHARS]}.{os.urandom(12).hex()}.part"
    try:
        yield temporary
    finally:
        # Even rename(2) leaves the file there if both names are links to one file. Errors are ignored because a
        # read-only file system refuses to remove even a file that does not exist.
        with suppress(OSError):
            temporary.unlink()


def remove_reserved(path: Path) -> None:
    """Remove the temporary files that killed writers of a file have left; the caller must hold the file's lock."""
    for leftover in path.parent.glob(f".{glob.escape(path.name[:_NAME_CHARS])}.{'[0-9a-f]' * 24}.part"):
        leftover.unlink(missing_ok=True)


def put_file(temporary: Path, path: Path) -> None:
    """Sync a temporary file to disk and rename it to `path`."""
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    temporary.replace(path)


@contextmanager
def replace_folder(path: Path) -> Iterator[Path]:
    """Yield a path as in `reserve_folder`; at the end, it replaces `path`, whose lock the caller must hold."""
    # Remove the leftovers of killed processes.
    for leftover in path.parent.glob(f".making-{path.name}-*"):
        shutil.rmtree(leftover)
    with reserve_folder(path) as temporary:
        yield temporary
        discard_folder(path)
        temporary.rename(path)
        sync_folder(path.parent)


@contextmanager
def add_folder(path: Path) -> Iterator[Path]:
    """Yield a path as in `reserve_folder`; at the end, `put_folder` renames it to `path`."""
    with reserve_folder(path) as temporary:
        yield temporary
        put_folder(temporary, path)


@contextmanager
def reserve_folder(path: Path, within: Path | None = None) -> Iterator[Path]:
    """Yield a free path next to `path`, or in `within`; at the end, remove a directory that is left there."""
    temporary = (within or path.parent) / f".making-{path.name}-{os.urandom(4).hex()}"
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def put_folder(new: Path, path: Path) -> bool:
    """Rename a directory to `path`, durably; if `path` exists, leave it unchanged and return False."""
    try:
        new.rename(path)
    except OSError:
        if not path.exists():
            raise
        return False
    sync_folder(path.parent)
    return True


def discard_folder(path: Path) -> None:
    """Rename a directory first, so that it is gone at once, then delete it; a missing directory is no error."""
    with reserve_folder(path) as trash, suppress(FileNotFoundError):
        path.rename(trash)
        shutil.rmtree(trash)


def sync_folder(folder: Path) -> None:
    """Make new names in a directory survive a power cut, if the file system supports this."""
    descriptor = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    try:
        # Some network and FUSE file systems answer EINVAL.
        with suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
