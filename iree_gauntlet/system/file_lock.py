"""File locks by flock(2), which the kernel frees when the last process that holds them has died in any way."""

from __future__ import annotations

import fcntl
import math
import os
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


_POLL_SECONDS = 0.05
# Shared holders add their process ids to the file. Above this size the file is emptied, as ids are only for messages.
_MAX_HOLDERS_BYTES = 512
# A wait is reported after the first time, and then repeatedly after the second.
_FIRST_REMINDER_SECONDS = 3.0
_REMINDER_SECONDS = 30.0


def try_file_lock(path: Path, *, exclusive: bool = True, create: bool = True, mode: int | None = None) -> int | None:
    """Return a descriptor as in `wait_for_lock`, but without waiting; None if another descriptor holds the lock."""
    try:
        return _lock(path, fcntl.LOCK_NB, exclusive=exclusive, create=create, mode=mode)
    except BlockingIOError:
        return None


def wait_for_lock(path: Path, *, exclusive: bool = True) -> int:
    """Return a descriptor that holds a file's lock until it is closed here and in all processes that inherit it.

    Not reentrant: two descriptors of one file exclude each other even in one process. Symbolic links are not followed.

    Raises:
        OSError: the file cannot be opened, or the file system does not support locks.
    """
    return _lock(path, 0, exclusive=exclusive, create=True, mode=None)


def _lock(path: Path, lock_flags: int, *, exclusive: bool, create: bool, mode: int | None) -> int:
    """Open and lock a file.

    With `create`, a missing file is created; without `create`, a shared lock needs only read permission. A new file
    gets the `mode` regardless of the umask; None applies the umask.
    """
    # On NFS, an exclusive lock needs a writable descriptor.
    access = os.O_RDWR if exclusive or create else os.O_RDONLY
    while True:
        descriptor = _open(path, access | os.O_NOFOLLOW | os.O_CLOEXEC, create=create, mode=mode)
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | lock_flags)
            if _is_at(path, descriptor):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        # The file was deleted in the meantime, so other processes will lock a new file at this path.
        os.close(descriptor)


@contextmanager
def file_lock(path: Path, waiting: Callable[[float], None] | None = None, timeout: float = math.inf) -> Iterator[int]:
    """Wait for a file's lock and hold it exclusively; yield the descriptor, as in `try_file_lock`.

    `waiting` is called with the elapsed seconds after 3 s, and then every 30 s; `timeout` is the longest wait in
    seconds.

    Raises:
        TimeoutError: the lock was not available in that time.
        OSError: as in `wait_for_lock`.
    """
    start, next_reminder = time.monotonic(), _FIRST_REMINDER_SECONDS
    while (descriptor := try_file_lock(path)) is None:
        elapsed = time.monotonic() - start
        if elapsed > timeout:
            raise TimeoutError(f"{path} is held by another process")
        if waiting is not None and elapsed > next_reminder:
            waiting(elapsed)
            next_reminder += _REMINDER_SECONDS
        time.sleep(_POLL_SECONDS)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


class LockFile:
    """A file with a flock lock on it, which contains the process ids of the lock's holders.

    Not reentrant: two locks of the same path exclude each other even in one process. The file gets the mode regardless
    of the umask.
    """

    def __init__(self, path: Path, mode: int = 0o600) -> None:
        self._path = path
        self._mode = mode
        self._descriptor: int | None = None

    def try_acquire(self, *, exclusive: bool = True) -> bool:
        """Take the lock unless somebody else holds it; return True if it was taken. Errors as in `wait_for_lock`."""
        if self._descriptor is not None:
            raise RuntimeError(f"{self._path} is already held")
        self._descriptor = try_file_lock(self._path, exclusive=exclusive, mode=self._mode)
        if self._descriptor is None:
            return False
        try:
            _write_holder(self._descriptor, exclusive=exclusive)
        except BaseException:
            self.release()
            raise
        return True

    @property
    def descriptor(self) -> int:
        """The descriptor that holds the lock, while it is held."""
        if self._descriptor is None:
            raise RuntimeError(f"{self._path} is not held")
        return self._descriptor

    def release(self) -> None:
        """Release the lock; do nothing if it is not held."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def remove(self) -> None:
        """Release the lock and delete its file; processes that wait for it continue with a new file."""
        if self._descriptor is not None:
            self._path.unlink(missing_ok=True)
            self.release()

    def holders(self) -> tuple[int, ...]:
        """Return the ids of live processes that last took the lock; use them for messages only."""
        try:
            text = self._path.read_text(encoding="ascii", errors="replace")
        except OSError:
            return ()
        pids = dict.fromkeys(int(word) for word in text.split() if word.isdecimal())
        return tuple(pid for pid in pids if _is_alive(pid))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _open(path: Path, flags: int, *, create: bool, mode: int | None) -> int:
    while True:
        try:
            # Open without O_CREAT, which the kernel may refuse for another user's file (fs.protected_regular).
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


def _write_holder(descriptor: int, *, exclusive: bool) -> None:
    if exclusive or os.fstat(descriptor).st_size > _MAX_HOLDERS_BYTES:
        os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, b"%d\n" % os.getpid(), os.fstat(descriptor).st_size)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
