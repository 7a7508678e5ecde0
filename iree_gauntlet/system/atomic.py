"""Files that are whole or not there: temporary file in the same folder, fsync, rename.

The order is the one that survives a power cut: data first, then the name, then the folder that holds the name.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path


def write_atomic(path: Path, content: bytes | str) -> None:
    """Replace a file's content, or make the file, in one step that no crash can halve; text is written as UTF-8.

    A symbolic link is followed. The mode of an existing file is kept; a new one gets what `open` would have given it.

    Raises:
        OSError: the folder is missing, read-only or full. The old content is untouched, and no temporary file is left.
    """
    data = content.encode() if isinstance(content, str) else content
    target = Path(os.path.realpath(path))
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name[:64]}.", suffix=".tmp", dir=target.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            # What `open` would give a new one.
            mode = target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~_read_umask()
            os.fchmod(stream.fileno(), mode)
            os.fsync(stream.fileno())
        temporary.replace(target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        raise
    sync_folder(target.parent)


def sync_folder(folder: Path) -> None:
    """Make names that were just created or renamed in a folder survive a power cut, where its file system can."""
    descriptor = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    try:
        # Some network and FUSE file systems answer EINVAL.
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read_umask() -> int:
    """The process's umask, read without changing it where the system allows."""
    with contextlib.suppress(OSError), Path("/proc/self/status").open(encoding="ascii", errors="replace") as lines:
        for line in lines:
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    return 0o022
