"""Locks between runs on one machine: a device for one user at a time, and quiet for benchmarks.

`Engine._hold_locks`, `BlockRunner.run` and `Session.hold_machine` take them. They are flock(2) locks: the kernel
frees them when the holder dies, so no stale lock file can block anyone. Each user has one lock folder per machine, not
per cache, so runs with different caches and checkouts exclude each other. Runs of different users, and runs in
containers, do so if `$IREE_GAUNTLET_LOCKS` names one folder for all: docs/explanation/disturbance.md.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.errors import GauntletError, UsageError
from iree_gauntlet.measuring.machine.gpus import name_gpu
from iree_gauntlet.system.file_lock import LockFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


LOCKS_VARIABLE = "IREE_GAUNTLET_LOCKS"
# Waiting for the longest benchmark of another run may take so long.
_TIMEOUT_SECONDS = 3600.0
_POLL_SECONDS = 0.1
_GATE = "quiet-gate.lock"
_MAX_STRETCH_SECONDS = 0.5


class WaitCancelledError(GauntletError):
    """The run was cancelled while it waited for a lock."""


@dataclass(frozen=True, slots=True)
class LockFolder:
    """The folder of the machine's locks: this user's own, or one that `$IREE_GAUNTLET_LOCKS` names."""

    path: Path
    from_variable: bool = False


@dataclass(slots=True)
class MachineLocks:
    """The locks of this machine, as one run uses them.

    Attributes:
        patience: seconds to wait for a lock before giving up.
        cancelled: when set, every wait ends with `WaitCancelledError`.
    """

    folder: LockFolder
    patience: float
    cancelled: threading.Event
    clock: Callable[[], float] = time.monotonic
    _thread_state: threading.local = field(default_factory=threading.local)

    def held_here(self) -> tuple[int, ...]:
        """Return the descriptors of the exclusive locks that the calling thread holds."""
        return tuple(lock.descriptor for lock in getattr(self._thread_state, "locks", ()))

    def device_lock(self, device: str, on_wait: Callable[[str], None]) -> contextlib.AbstractContextManager[None]:
        """Hold a device (`hip://0`, `local-task`) alone; a GPU is one device even if several drivers offer it.

        Args:
            device: the device's name; all its users must spell it alike.
            on_wait: called once with a line that names the holder, if this call has to wait.

        Raises:
            GauntletError: the lock was not free in time, or locks cannot be made here.
            WaitCancelledError: the run was cancelled while it waited.
        """
        # Replacing other characters by their codes gives each device a file name of its own.
        file_name = re.sub(r"[^A-Za-z0-9-]", lambda match: f"_{ord(match[0]):x}_", name_gpu(device))
        return self._hold(f"device-{file_name}.lock", f"device {device}", on_wait, exclusive=True)

    @contextlib.contextmanager
    def quiet_machine(self, *, exclusive: bool, on_wait: Callable[[str], None]) -> Iterator[None]:
        """Hold the machine: noisy work shares it; a benchmark has it alone (`exclusive`). Errors as in `device_lock`.

        Not reentrant: a holder of the shared lock that asks for it again may wait for itself. A waiting benchmark has
        priority over new noisy work, or else a busy machine would never let it in. All callers pass a gate one by one,
        and a benchmark waits inside the gate.
        """
        name = "a quiet machine" if exclusive else "this machine, kept quiet for a measurement"
        with contextlib.ExitStack() as stack:
            with self._hold(_GATE, name, on_wait, exclusive=True):
                stack.enter_context(self._hold("quiet.lock", name, on_wait, exclusive=exclusive))
            yield

    @contextlib.contextmanager
    def _hold(self, file: str, name: str, on_wait: Callable[[str], None], *, exclusive: bool) -> Iterator[None]:
        lock = LockFile(self.folder.path / file, _make_lock_folder(self.folder))
        start = self.clock()
        tries = 0
        while True:
            try:
                if lock.try_acquire(exclusive=exclusive):
                    break
            except OSError as error:
                message = f"{error.filename or self.folder.path}: cannot lock: {error.strerror}"
                hint = "the folder must be writable, on a file system that supports locks (flock)"
                raise GauntletError(message, f"{hint}; ${LOCKS_VARIABLE} can name another") from error
            tries += 1
            # The first wait is not reported, since the steps of one run pass the gate within moments.
            if tries == 2:
                on_wait(f"for {name}: {_describe_holders(lock.holders(), file)}")
            if self.clock() - start > self.patience:
                raise GauntletError(
                    f"no access to {name} within {self.patience:g} s: {_describe_holders(lock.holders(), file)}",
                    "wait for that run, or end it, and run again",
                )
            if self.cancelled.wait(_POLL_SECONDS):
                raise WaitCancelledError(f"cancelled while waiting for {name}")
        held_locks: list[LockFile] = self._thread_state.__dict__.setdefault("locks", [])
        if exclusive:
            held_locks.append(lock)
        try:
            yield
        finally:
            if exclusive:
                held_locks.remove(lock)
            lock.release()


def make_machine_locks(environ: Mapping[str, str], cancel_event: threading.Event) -> MachineLocks:
    """Return the locks of this machine; waiting for a lock takes an hour at most. Errors as in `find_lock_folder`."""
    return MachineLocks(find_lock_folder(environ), patience=_TIMEOUT_SECONDS, cancelled=cancel_event)


def find_lock_folder(environ: Mapping[str, str]) -> LockFolder:
    """Return the folder that `$IREE_GAUNTLET_LOCKS` names, or else this user's own lock folder on this machine.

    The user's own folder is in /tmp if possible: TMPDIR may differ between jobs, whose locks would then be separate.

    Raises:
        UsageError: the variable holds a relative path, which would be a different folder for each working folder.
    """
    value = environ.get(LOCKS_VARIABLE)
    if value:
        if not Path(value).is_absolute():
            raise UsageError(
                f"${LOCKS_VARIABLE} is {value}: not an absolute path, so runs in other folders use other locks",
                f"give the folder's full path: {LOCKS_VARIABLE}={Path(value).absolute()}",
            )
        return LockFolder(Path(value), from_variable=True)
    parent = Path("/tmp")  # noqa: S108 (the folder's owner and mode are checked before use)
    if not os.access(parent, os.W_OK | os.X_OK):
        parent = Path(tempfile.gettempdir())
    return LockFolder(parent / f"iree-gauntlet-{os.getuid()}")


def require_lock_folder(environ: Mapping[str, str]) -> None:
    """Raise UsageError if the folder that `$IREE_GAUNTLET_LOCKS` names cannot be used; nothing is created."""
    folder = find_lock_folder(environ)
    if not folder.from_variable:
        return
    # A dangling link prevents creating the folder too, so `lexists` is used.
    parent = next(path for path in (folder.path, *folder.path.parents) if os.path.lexists(path))
    error = "" if parent.is_dir() else "is a broken link" if not parent.exists() else "is not a folder"
    if not error and not os.access(parent, os.W_OK | os.X_OK):
        error = "is not writable"
    if error:
        raise UsageError(
            f"${LOCKS_VARIABLE} is {folder.path}: {'it' if parent == folder.path else parent} {error}",
            f"${LOCKS_VARIABLE} must name a folder that exists or can be created; unset it to use this user's own.",
        )


def make_lock_facts(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the lock folder for the run's record, unless it is the user's own; errors as in `find_lock_folder`."""
    folder = find_lock_folder(environ)
    return {"lock_folder": str(folder.path)} if folder.from_variable else {}


def _make_lock_folder(folder: LockFolder) -> int:
    """Create the lock folder if it does not exist; return the mode that lock files in it get."""
    if not folder.from_variable:
        _make_private(folder.path)
        return 0o600
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = "it is not a folder" if isinstance(error, FileExistsError) else error.strerror
        raise GauntletError(
            f"{folder.path}: cannot create the folder for locks: {reason}",
            f"${LOCKS_VARIABLE} must name a folder that exists or can be created",
        ) from error
    # Every user who may create files in the folder may also use the lock files of other users.
    return stat.S_IMODE(folder.path.stat().st_mode) & 0o666 | 0o600


def _make_private(folder: Path) -> None:
    """Create the folder; if it exists, check that no other user can have prepared it."""
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise GauntletError(
            f"{folder}: cannot create the folder for locks: {error.strerror}",
            f"{folder.parent} must exist and be writable",
        ) from error
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise GauntletError(
            f"{folder}: does not belong to you, so locks in it cannot be trusted",
            "someone else created it; have it removed",
        )
    if status.st_mode & 0o077:
        folder.chmod(0o700)


def _describe_holders(pids: tuple[int, ...], file: str) -> str:
    if not pids:
        return "another process uses it"
    if pids == (os.getpid(),):
        # Who holds the gate longer than a moment waits for the machine itself.
        return f"another step of this run {'waits for' if file == _GATE else 'uses'} it"
    noun = "process" if len(pids) == 1 else "processes"
    return f"{noun} {', '.join(map(str, pids))} of another run" + (" use it" if len(pids) > 1 else " uses it")


@dataclass(slots=True)
class MachineShare:
    """A shared hold on the machine for many steps; may be used from several threads.

    Taking the lock costs a dozen system calls, more than many steps of operator suites, so it is taken once for a
    stretch of steps. A benchmark of another run waits inside the gate until all shared holders have released the lock,
    so a stretch has a maximum age. Then the next step begins a new stretch, which has to pass the gate, and the old
    stretch ends with the last step that began in it.

    The lock is kept between two steps, since a thread usually takes its next step at once. Before doing anything else,
    a thread calls `release`; otherwise a benchmark, even one of this run, would wait although no step is running.

    Attributes:
        on_wait: called with a line that names the holder of the lock.
        seconds: the age of a stretch after which it takes no more steps.
    """

    locks: MachineLocks
    on_wait: Callable[[str], None]
    seconds: float = _MAX_STRETCH_SECONDS
    clock: Callable[[], float] = time.monotonic
    _mutex: threading.Lock = field(default_factory=threading.Lock)
    _current: _Stretch | None = None

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the machine shared; errors as in `MachineLocks.quiet_machine`."""
        with self._mutex:
            if self._current is not None and self.clock() - self._current.began >= self.seconds:
                self._retire()
            stretch = self._current
            if stretch is not None:
                stretch.steps += 1
        if stretch is None:
            # Several threads may begin a stretch each; later steps join the last of them.
            lock_stack = contextlib.ExitStack()
            lock_stack.enter_context(self.locks.quiet_machine(exclusive=False, on_wait=self.on_wait))
            stretch = _Stretch(lock_stack, self.clock())
            with self._mutex:
                self._retire()
                self._current = stretch
        try:
            yield
        finally:
            with self._mutex:
                stretch.steps -= 1
                if stretch is not self._current:
                    stretch.end_if_unused()

    def release(self) -> None:
        """Release the lock, unless a step that needs it is running."""
        with self._mutex:
            if self._current is not None and not self._current.steps:
                self._retire()

    def _retire(self) -> None:
        stretch, self._current = self._current, None
        if stretch is not None:
            stretch.end_if_unused()


@dataclass(slots=True)
class _Stretch:
    """One hold of the machine's lock, and the number of steps that run under that hold."""

    lock_stack: contextlib.ExitStack
    began: float
    steps: int = 1

    def end_if_unused(self) -> None:
        if not self.steps:
            self.lock_stack.close()
