"""Files appear in the store whole or not at all, as `system/atomic.py` writes them.

What the disk refuses (full, read-only, not ours) becomes an error that names the folder and the way out. Runs that
fetch the same file wait for each other by a lock.
"""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from iree_gauntlet.errors import ArtifactError
from iree_gauntlet.formatting import byte_size
from iree_gauntlet.system.atomic import replace_file
from iree_gauntlet.system.file_lock import file_lock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from iree_gauntlet.progress import Progress


_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_DENIED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_MISPLACED = frozenset({errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EIO})


@contextmanager
def replace_artifact(path: Path, url: str) -> Iterator[Path]:
    """A path as of `replace_file`, in a folder that is made where it is missing; refusals as `explain_disk_errors`."""
    with explain_disk_errors(path.parent, url):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replace_file(path) as temporary:
            yield temporary


def link_or_move(data: Path, path: Path) -> None:
    """Give a file a second name, so that a kill while it is checked there loses none of it; move it without links."""
    try:
        os.link(data, path)
    except OSError:
        data.replace(path)  # a file system without hard links


def require_space(folder: Path, url: str, needed: int) -> None:
    """Fail early, with an ArtifactError, where a file of `needed` bytes does not fit."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        what = f"no room for {byte_size(needed)} of {url} in {folder}: {byte_size(free)} are free"
        raise ArtifactError(url, what, "Free disk space, or use a cache on a larger disk.")


@contextmanager
def explain_disk_errors(folder: Path, url: str) -> Iterator[None]:
    """Turn what the file system refuses into errors that say what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            limit = " (file size limit of this process)" if error.errno == errno.EFBIG else ""
            what = f"disk full in {folder} while writing {url}: {error.strerror}{limit}"
            raise ArtifactError(url, what, "Free disk space, or use a cache on a larger disk.") from error
        if error.errno in _DENIED:
            name = errno.errorcode[error.errno]
            what = f"cannot write to {folder}: {error.strerror} ({name}); {url} is not in the cache"
            hint = "Make the cache writable, use another cache, or fetch with an account that may write to it."
            raise ArtifactError(url, what, hint) from error
        if error.errno in _MISPLACED:
            what = f"cannot write {url} to {folder}: {error.strerror} ({error.filename})"
            raise ArtifactError(url, what, "Look at what lies at that path.") from error
        raise


@contextmanager
def locked(path: Path, url: str, progress: Progress) -> Iterator[None]:
    """Hold a lock; a wait of more than a few seconds is noted, again and again.

    There is no limit: the owner's own timeouts bound its work, and a dead owner's lock is free. In a read-only cache
    it cannot be made: ArtifactError.
    """

    def waiting(seconds: float) -> None:
        progress.note(url, f"waiting for another download of the same file ({seconds:.0f} s so far)")

    with ExitStack() as stack:
        with explain_disk_errors(path.parent, url):
            path.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(file_lock(path, waiting))
        yield
