"""Files that are whole or not there: temporary file in the same folder, fsync, rename.

The order is the one that survives a power cut: data first, then the name, then the folder that holds
the name. A reader sees the old content or the new one, never a mixture.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

_NEW_FILE_MODE = 0o666


def write_atomic(path: Path, content: bytes | str) -> None:
    """Replace a file's content, or make the file, in one step that no crash can halve.

    A symbolic link is followed, so that what it points to is replaced and the link stays. The mode of
    an existing file is kept; a new one gets what `open` would have given it.

    Args:
        path: the file; its folder must exist.
        content: text is written as UTF-8, without newline translation.

    Raises:
        OSError: the folder is missing, read-only or full. The old content is untouched then, and no
            temporary file is left.
    """
    data = content.encode() if isinstance(content, str) else content
    target = Path(os.path.realpath(path))
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name[:64]}.", suffix=".tmp", dir=target.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fchmod(stream.fileno(), _find_mode(target))
            os.fsync(stream.fileno())
        temporary.replace(target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        raise
    sync_folder(target.parent)


def sync_folder(folder: Path) -> None:
    """Make names that were just created or renamed in a folder survive a power cut.

    File systems that know no such thing (some network and FUSE ones answer EINVAL) are left alone: there
    the rename is all that can be had.
    """
    descriptor = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    try:
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _find_mode(target: Path) -> int:
    try:
        return target.stat().st_mode & 0o777
    except FileNotFoundError:
        return _NEW_FILE_MODE & ~_read_umask()


def _read_umask() -> int:
    """The process's umask, read without changing it where the system allows."""
    with contextlib.suppress(OSError), Path("/proc/self/status").open(encoding="ascii", errors="replace") as lines:
        for line in lines:
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    return 0o022
