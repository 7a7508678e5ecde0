"""Locks between runs on one machine: a device for one user at a time, and quiet for benchmarks.

They are flock(2) locks: the kernel frees them when their holder dies, by whatever signal, and no stale
lock file can block anyone. They lie in one folder for each user and machine, not beside a cache, so that
runs with different caches and checkouts still see each other. Runs of different users do not.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

from iree_gauntlet.errors import GauntletError

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator

__all__ = ["PATIENCE_SECONDS", "LockFile", "MachineLocks", "WaitCancelledError", "machine_lock_folder"]

# As long as the longest benchmark of another run may take.
PATIENCE_SECONDS = 3600.0
_POLL_SECONDS = 0.1
# Shared holders add their id to the file; beyond this it starts afresh (ids serve messages alone).
_HOLDERS_BYTES = 512


class WaitCancelledError(GauntletError):
    """The run was cancelled while it waited for a lock."""


class LockFile:
    """A file with a flock lock on it, and the ids of those who hold it as its content.

    Not reentrant: two of the same path exclude each other, also in one process.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def acquire_now(self, *, exclusive: bool = True) -> bool:
        """Take the lock unless someone holds it; whether it was taken.

        Raises:
            OSError: the file cannot be opened (a symbolic link is not followed), or its file system
                knows no locks.
        """
        if self._descriptor is not None:
            raise RuntimeError(f"{self._path} is held already")
        while True:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(self._path, flags, 0o600)
            try:
                fcntl.flock(descriptor, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
                current = _is_at(self._path, descriptor)
                if current:
                    _write_holder(descriptor, exclusive=exclusive)
            except BaseException as error:
                os.close(descriptor)
                if isinstance(error, OSError) and error.errno == errno.EWOULDBLOCK:
                    return False
                raise
            if current:
                self._descriptor = descriptor
                return True
            # Someone swept the folder: what was locked is no longer the file that others will see.
            os.close(descriptor)

    def release(self) -> None:
        """Give the lock back; of no effect where it is not held."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def remove(self) -> None:
        """Give the lock back and delete its file; those who wait for it go on with a new one."""
        if self._descriptor is not None:
            self._path.unlink(missing_ok=True)
            self.release()

    def holders(self) -> tuple[int, ...]:
        """Ids of the live processes that took the lock last: whom to name in a message, no more."""
        try:
            text = self._path.read_text(encoding="ascii", errors="replace")
        except OSError:
            return ()
        pids = dict.fromkeys(int(word) for word in text.split() if word.isdecimal())
        return tuple(pid for pid in pids if _lives(pid))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class MachineLocks:
    """The locks of this machine, as one run uses them.

    Args:
        folder: where they lie; `machine_lock_folder()` but in tests.
        patience: seconds to wait for one before giving up.
        cancelled: when set, every wait ends with `WaitCancelledError`.
    """

    def __init__(self, folder: Path, *, patience: float, cancelled: threading.Event) -> None:
        self._folder = folder
        self._patience = patience
        self._cancelled = cancelled

    @contextlib.contextmanager
    def device_lock(self, device: str, on_wait: Callable[[str], None]) -> Iterator[None]:
        """Hold a device (`hip://0`, `local-task`) alone.

        Args:
            device: its name, spelled alike by all who use it.
            on_wait: called once with a line that says for whom one waits, if one has to.

        Raises:
            GauntletError: it was not to be had in time, or locks cannot be made here.
            WaitCancelledError: the run was cancelled meanwhile.
        """
        lock = LockFile(self._folder / f"device-{_safe(device)}.lock")
        with self._held(lock, f"device {device}", on_wait, exclusive=True):
            yield

    @contextlib.contextmanager
    def quiet_machine(self, *, exclusive: bool, on_wait: Callable[[str], None]) -> Iterator[None]:
        """Hold the machine: work that makes noise holds it shared, a benchmark alone.

        Not reentrant: whoever holds it shared and asks for it again may wait for itself. A waiting
        benchmark goes before new noise, or a busy machine would never let it in: all pass a gate one by
        one, and a benchmark waits inside it.

        Args:
            exclusive: whether nothing else may run meanwhile.
            on_wait: as for `device_lock`.

        Raises:
            GauntletError: as for `device_lock`.
            WaitCancelledError: as for `device_lock`.
        """
        name = "this machine, to be quiet" if exclusive else "this machine, which must stay quiet now"
        gate = LockFile(self._folder / "quiet-gate.lock")
        lock = LockFile(self._folder / "quiet.lock")
        with contextlib.ExitStack() as stack:
            with self._held(gate, name, on_wait, exclusive=True):
                stack.enter_context(self._held(lock, name, on_wait, exclusive=exclusive))
            yield

    @contextlib.contextmanager
    def _held(self, lock: LockFile, name: str, on_wait: Callable[[str], None], *, exclusive: bool) -> Iterator[None]:
        _make_private(self._folder)
        begun = time.monotonic()
        tries = 0
        while not self._acquire(lock, exclusive=exclusive):
            tries += 1
            # Not at once: steps of one run pass the gate one by one, in an instant.
            if tries == 2:
                on_wait(f"for {name}: {_named(lock.holders())}")
            if time.monotonic() - begun > self._patience:
                raise GauntletError(
                    f"no access to {name} within {self._patience:g} s: {_named(lock.holders())}",
                    "wait for that run, or end it, and run again",
                )
            if self._cancelled.wait(_POLL_SECONDS):
                raise WaitCancelledError(f"cancelled while waiting for {name}")
        try:
            yield
        finally:
            lock.release()

    def _acquire(self, lock: LockFile, *, exclusive: bool) -> bool:
        try:
            return lock.acquire_now(exclusive=exclusive)
        except OSError as error:
            raise GauntletError(
                f"{error.filename or self._folder}: cannot lock: {error.strerror}",
                "the folder must be writable, and on a file system with locks (flock)",
            ) from error


def machine_lock_folder() -> Path:
    """The folder of this user's locks on this machine.

    In /tmp where it can be used: TMPDIR may differ from job to job, and then they would not meet.
    """
    parent = Path("/tmp")  # noqa: S108 (the folder's owner and mode are checked before use)
    if not os.access(parent, os.W_OK | os.X_OK):
        parent = Path(tempfile.gettempdir())
    return parent / f"iree-gauntlet-{os.getuid()}"


def _make_private(folder: Path) -> None:
    """Make the folder, or check that it is one that nobody else could have prepared."""
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise GauntletError(
            f"{folder}: cannot make the folder for locks: {error.strerror}",
            f"{folder.parent} must exist and be writable",
        ) from error
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise GauntletError(
            f"{folder}: is not a folder of yours, so locks in it cannot be trusted",
            "someone else made it; have it removed",
        )
    if found.st_mode & 0o077:
        folder.chmod(0o700)


def _write_holder(descriptor: int, *, exclusive: bool) -> None:
    if exclusive or os.fstat(descriptor).st_size > _HOLDERS_BYTES:
        os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, b"%d\n" % os.getpid(), os.fstat(descriptor).st_size)


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _named(pids: tuple[int, ...]) -> str:
    if not pids:
        return "another process uses it"
    if pids == (os.getpid(),):
        return "another step of this run uses it"
    noun = "process" if len(pids) == 1 else "processes"
    return f"{noun} {', '.join(map(str, pids))} of another run" + (" use it" if len(pids) > 1 else " uses it")


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _safe(name: str) -> str:
    """A file name for a device; different devices get different ones."""
    return re.sub(r"[^A-Za-z0-9-]", lambda match: f"_{ord(match[0]):x}_", name)
