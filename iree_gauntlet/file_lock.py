"""flock(2) locks on files: the kernel frees them when the last process that holds them has died, by any signal."""

from __future__ import annotations

import fcntl
import math
import os
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

__all__ = ["file_lock", "take_lock"]

_POLL_SECONDS = 0.05
# A wait is worth a word after the first of these, and then each time the second has passed.
_PATIENCE_SECONDS = 3.0
_REMINDER_SECONDS = 30.0


def take_lock(
    path: Path, *, exclusive: bool = True, wait: bool = False, create: bool = True, mode: int | None = None
) -> int | None:
    """A descriptor that holds the lock of a file until it is closed, here and in processes that have inherited it.

    Not reentrant: two descriptors of one file exclude each other, also in one process.

    Args:
        path: the file; a symbolic link is not followed.
        exclusive: whether nobody else may hold it; otherwise others may share it.
        wait: for those who hold it.
        create: make the file where there is none. Otherwise a shared lock needs no more than reading rights.
        mode: of a file that is made, whatever the umask says; by the umask for None.

    Returns:
        The descriptor; None where another holds the lock and it was not waited for.

    Raises:
        OSError: the file cannot be opened, or its file system knows no locks.
    """
    operation = (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | (0 if wait else fcntl.LOCK_NB)
    # A lock of its own kind needs a descriptor of its own kind, on NFS.
    access = os.O_RDWR if exclusive or create else os.O_RDONLY
    while True:
        descriptor = _opened(path, access | os.O_NOFOLLOW | os.O_CLOEXEC, create=create, mode=mode)
        try:
            fcntl.flock(descriptor, operation)
            if _is_at(path, descriptor):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        # Someone swept the folder: what was locked is no longer the file that others will see.
        os.close(descriptor)


@contextmanager
def file_lock(path: Path, waiting: Callable[[float], None] | None = None, timeout: float = math.inf) -> Iterator[int]:
    """Hold the lock of a file alone, and wait for it; yields its descriptor, as of `take_lock`.

    Args:
        path: the file; made where there is none.
        waiting: is given the seconds so far, after three and then every thirty.
        timeout: seconds to wait at most.

    Raises:
        TimeoutError: it was not to be had in that time.
        OSError: as for `take_lock`.
    """
    started, patience = time.monotonic(), _PATIENCE_SECONDS
    while (descriptor := take_lock(path)) is None:
        waited = time.monotonic() - started
        if waited > timeout:
            raise TimeoutError(f"{path} is held by another process")
        if waiting is not None and waited > patience:
            waiting(waited)
            patience += _REMINDER_SECONDS
        time.sleep(_POLL_SECONDS)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _opened(path: Path, flags: int, *, create: bool, mode: int | None) -> int:
    while True:
        try:
            # Without O_CREAT: a kernel may refuse it for another user's file (fs.protected_regular).
            return os.open(path, flags)
        except FileNotFoundError:
            if not create:
                raise
        with suppress(FileExistsError):
            descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666 if mode is None else mode)
            if mode is not None:
                # Some file systems have no modes.
                with suppress(PermissionError):
                    os.fchmod(descriptor, mode)
            return descriptor


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
