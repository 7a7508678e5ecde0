"""Files and folders that are whole or not there: written aside on the same file system, synced, renamed.

The order is the one that survives a power cut: data first, then the name, then the folder that holds the name. Of files
the last writer's stays. A folder is replaced by who holds its lock, or added, and then the first writer's stays.
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


# Of a file's name in that of what is written aside: the whole may be as long as the file system allows.
_NAME_CHARS = 40


def write_atomic(path: Path, content: bytes | str) -> None:
    """Replace a file's content, or make the file, in one step that no crash can halve; text is written as UTF-8.

    A symbolic link is followed. The mode of an existing file is kept; a new one gets what `open` would have given it.

    Raises:
        OSError: the folder is missing, read-only or full. The old content is untouched, and no temporary file is left.
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
    """A path as of `reserve_file`; what the body wrote there takes the place of `path` at the end, as of `put_file`."""
    with reserve_file(path) as temporary:
        yield temporary
        put_file(temporary, path)


@contextmanager
def reserve_file(path: Path) -> Iterator[Path]:
    """A free path beside `path`, for what is to be renamed to it; a file that is still there at the end goes."""
    temporary = path.parent / f".{path.name[:_NAME_CHARS]}.{os.urandom(12).hex()}.part"
    try:
        yield temporary
    finally:
        # Also after rename(2), which leaves both names where they are links to one file. A file system that is
        # read-only refuses to remove even what is not there.
        with suppress(OSError):
            temporary.unlink()


def remove_reserved(path: Path) -> None:
    """Remove what writers of a file that were killed have left beside it; the caller holds its lock."""
    for left in path.parent.glob(f".{glob.escape(path.name[:_NAME_CHARS])}.{'[0-9a-f]' * 24}.part"):
        left.unlink(missing_ok=True)


def put_file(temporary: Path, path: Path) -> None:
    """Make what was written durable and put it in its place."""
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    temporary.replace(path)


@contextmanager
def replace_folder(path: Path) -> Iterator[Path]:
    """A path as of `reserve_folder`; what the body made there takes the place of `path`; the caller holds its lock."""
    # They were left by who was killed.
    for left in path.parent.glob(f".making-{path.name}-*"):
        shutil.rmtree(left)
    with reserve_folder(path) as new:
        yield new
        discard_folder(path)
        new.rename(path)
        sync_folder(path.parent)


@contextmanager
def add_folder(path: Path) -> Iterator[Path]:
    """A path as of `reserve_folder`; the folder that the body made there becomes `path`, as of `put_folder`."""
    with reserve_folder(path) as new:
        yield new
        put_folder(new, path)


@contextmanager
def reserve_folder(path: Path, within: Path | None = None) -> Iterator[Path]:
    """A free path beside a folder, or within another one, to rename from or to; what is still there at the end goes."""
    new = (within or path.parent) / f".making-{path.name}-{os.urandom(4).hex()}"
    try:
        yield new
    finally:
        shutil.rmtree(new, ignore_errors=True)


def put_folder(new: Path, path: Path) -> bool:
    """Give a folder its name, durably; False where something has it, which stays."""
    try:
        new.rename(path)
    except OSError:
        if not path.exists():
            raise
        return False
    sync_folder(path.parent)
    return True


def discard_folder(path: Path) -> None:
    """Take a folder away at once, then delete it; one that is not there is not missed."""
    with reserve_folder(path) as aside, suppress(FileNotFoundError):
        path.rename(aside)
        shutil.rmtree(aside)


def sync_folder(folder: Path) -> None:
    """Make names that were just created or renamed in a folder survive a power cut, where its file system can."""
    descriptor = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    try:
        # Some network and FUSE file systems answer EINVAL.
        with suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
