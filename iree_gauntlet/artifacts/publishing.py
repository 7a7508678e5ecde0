"""Write files to the store atomically: a file appears there complete or not at all (see `system/atomic.py`).

Disk errors (full, read-only, no permission) become errors that name the folder and the next step. A lock makes runs
that fetch the same file wait for each other.
"""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from iree_gauntlet.errors import ArtifactError
from iree_gauntlet.formatting import format_bytes
from iree_gauntlet.system.atomic import replace_file
from iree_gauntlet.system.file_lock import file_lock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from iree_gauntlet.progress import Progress


_DISK_FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_PERMISSION_ERRNOS = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_PATH_ERRNOS = frozenset({errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EIO})


@contextmanager
def replace_artifact(path: Path, url: str) -> Iterator[Path]:
    """Yield a path as `replace_file` does; create its folder if needed; handle errors as `explain_disk_errors`."""
    with explain_disk_errors(path.parent, url):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replace_file(path) as temporary:
            yield temporary


def link_or_move(data: Path, path: Path) -> None:
    """Hard-link a file: that keeps the download if we are killed while verifying it. Move it if links fail."""
    try:
        os.link(data, path)
    except OSError:
        data.replace(path)  # a file system without hard links


def require_space(folder: Path, url: str, size: int) -> None:
    """Raise an ArtifactError if the disk has no space for a file of `size` bytes."""
    free = shutil.disk_usage(folder).free
    if size > free:
        message = f"no space for {format_bytes(size)} of {url} in {folder}: {format_bytes(free)} are free"
        raise ArtifactError(url, message, "Free disk space, or use a cache on a larger disk.")


@contextmanager
def explain_disk_errors(folder: Path, url: str) -> Iterator[None]:
    """Turn file system errors into errors with a next step."""
    try:
        yield
    except OSError as error:
        if error.errno in _DISK_FULL_ERRNOS:
            limit = " (file size limit of this process)" if error.errno == errno.EFBIG else ""
            message = f"disk full in {folder} while writing {url}: {error.strerror}{limit}"
            raise ArtifactError(url, message, "Free disk space, or use a cache on a larger disk.") from error
        if error.errno in _PERMISSION_ERRNOS:
            name = errno.errorcode[error.errno]
            message = f"cannot write to {folder}: {error.strerror} ({name}); {url} is not in the cache"
            hint = "Make the cache writable, use another cache, or fetch with an account that can write to it."
            raise ArtifactError(url, message, hint) from error
        if error.errno in _PATH_ERRNOS:
            message = f"cannot write {url} to {folder}: {error.strerror} ({error.filename})"
            raise ArtifactError(url, message, "Check what is at that path.") from error
        raise


@contextmanager
def hold_lock(path: Path, url: str, progress: Progress) -> Iterator[None]:
    """Hold a lock; report a wait of more than a few seconds repeatedly.

    The wait needs no limit: the owner's timeouts limit its work, and a dead owner's lock is free. In a read-only cache
    no lock can be created, and an ArtifactError is raised.
    """

    def report_wait(seconds: float) -> None:
        progress.note(url, f"waiting for another download of the same file ({seconds:.0f} s so far)")

    with ExitStack() as stack:
        with explain_disk_errors(path.parent, url):
            path.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(file_lock(path, report_wait))
        yield
