"""Locks between runs on one machine: a device for one user at a time, and quiet for benchmarks.

They are flock(2) locks: the kernel frees them when their holder dies, by whatever signal, and no stale
lock file can block anyone. They lie in one folder for each user and machine, not next to a cache, so that
runs with different caches and checkouts still see each other. Runs of different users, and those in containers
of their own, see each other where `$IREE_GAUNTLET_LOCKS` names one folder for all of them:
docs/explanation/disturbance.md.
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
# As long as the longest benchmark of another run may take.
_PATIENCE_SECONDS = 3600.0
_POLL_SECONDS = 0.1
_STRETCH_SECONDS = 0.5


class WaitCancelledError(GauntletError):
    """The run was cancelled while it waited for a lock."""


@dataclass(frozen=True, slots=True)
class LockFolder:
    """Where the machine's locks lie: this user's own, or whoever's whom `$IREE_GAUNTLET_LOCKS` names it for."""

    path: Path
    named: bool = False


@dataclass(slots=True)
class MachineLocks:
    """The locks of this machine, as one run uses them.

    Attributes:
        patience: seconds to wait for one before giving up.
        cancelled: when set, every wait ends with `WaitCancelledError`.
    """

    folder: LockFolder
    patience: float
    cancelled: threading.Event
    clock: Callable[[], float] = time.monotonic
    _mine: threading.local = field(default_factory=threading.local)

    def held_here(self) -> tuple[int, ...]:
        """Descriptors of the locks that keep others away for what the calling thread does."""
        return tuple(lock.descriptor for lock in getattr(self._mine, "locks", ()))

    def device_lock(self, device: str, on_wait: Callable[[str], None]) -> contextlib.AbstractContextManager[None]:
        """Hold a device (`hip://0`, `local-task`) alone; a GPU that several drivers have is one device.

        Args:
            device: as all who use it spell it.
            on_wait: called once with a line that says for whom one waits, if one has to.

        Raises:
            GauntletError: it was not to be had in time, or locks cannot be made here.
            WaitCancelledError: the run was cancelled meanwhile.
        """
        # A name of a file; different devices get different ones.
        safe = re.sub(r"[^A-Za-z0-9-]", lambda match: f"_{ord(match[0]):x}_", name_gpu(device))
        return self._hold(f"device-{safe}.lock", f"device {device}", on_wait, exclusive=True)

    @contextlib.contextmanager
    def quiet_machine(self, *, exclusive: bool, on_wait: Callable[[str], None]) -> Iterator[None]:
        """Hold the machine: work that makes noise holds it shared, a benchmark alone (`exclusive`).

        Not reentrant: whoever holds it shared and asks for it again may wait for itself. A waiting
        benchmark goes before new noise, or a busy machine would never let it in: all pass a gate one by
        one, and a benchmark waits inside it. Otherwise as `device_lock`.
        """
        name = "a quiet machine" if exclusive else "this machine, kept quiet for a measurement"
        with contextlib.ExitStack() as stack:
            with self._hold("quiet-gate.lock", name, on_wait, exclusive=True):
                stack.enter_context(self._hold("quiet.lock", name, on_wait, exclusive=exclusive))
            yield

    @contextlib.contextmanager
    def _hold(self, file: str, name: str, on_wait: Callable[[str], None], *, exclusive: bool) -> Iterator[None]:
        lock = LockFile(self.folder.path / file, _prepare(self.folder))
        begun = self.clock()
        tries = 0
        while True:
            try:
                if lock.acquire_now(exclusive=exclusive):
                    break
            except OSError as error:
                what = f"{error.filename or self.folder.path}: cannot lock: {error.strerror}"
                hint = "the folder must be writable, and on a file system with locks (flock)"
                raise GauntletError(what, f"{hint}; ${LOCKS_VARIABLE} names one") from error
            tries += 1
            # Not at once: steps of one run pass the gate one by one, in an instant.
            if tries == 2:
                on_wait(f"for {name}: {_name_holder(lock.holders())}")
            if self.clock() - begun > self.patience:
                raise GauntletError(
                    f"no access to {name} within {self.patience:g} s: {_name_holder(lock.holders())}",
                    "wait for that run, or end it, and run again",
                )
            if self.cancelled.wait(_POLL_SECONDS):
                raise WaitCancelledError(f"cancelled while waiting for {name}")
        held: list[LockFile] = self._mine.__dict__.setdefault("locks", [])
        if exclusive:
            held.append(lock)
        try:
            yield
        finally:
            if exclusive:
                held.remove(lock)
            lock.release()


def make_machine_locks(environ: Mapping[str, str], cancelled: threading.Event) -> MachineLocks:
    """The locks of this machine; a wait for one takes an hour at most. Raises as `lock_folder`."""
    return MachineLocks(lock_folder(environ), patience=_PATIENCE_SECONDS, cancelled=cancelled)


def lock_folder(environ: Mapping[str, str]) -> LockFolder:
    """The folder that `$IREE_GAUNTLET_LOCKS` names, else that of this user's locks on this machine.

    The latter is in /tmp where it can be used: TMPDIR may differ from job to job, and then they would not meet.

    Raises:
        UsageError: the variable holds a relative path: another folder for each working folder.
    """
    named = environ.get(LOCKS_VARIABLE)
    if named:
        if not Path(named).is_absolute():
            raise UsageError(
                f"${LOCKS_VARIABLE} is {named}: not an absolute path, so that runs in other folders have other locks",
                f"name the folder by its whole path: {LOCKS_VARIABLE}={Path(named).absolute()}",
            )
        return LockFolder(Path(named), named=True)
    parent = Path("/tmp")  # noqa: S108 (the folder's owner and mode are checked before use)
    if not os.access(parent, os.W_OK | os.X_OK):
        parent = Path(tempfile.gettempdir())
    return LockFolder(parent / f"iree-gauntlet-{os.getuid()}")


def require_lock_folder(environ: Mapping[str, str]) -> None:
    """Makes sure that there is, or can be made, the folder that `$IREE_GAUNTLET_LOCKS` names; makes nothing."""
    folder = lock_folder(environ)
    if not folder.named:
        return
    # A link that leads nowhere is in the way of a folder, too.
    there = next(path for path in (folder.path, *folder.path.parents) if os.path.lexists(path))
    why = "" if there.is_dir() else "is a link that leads nowhere" if not there.exists() else "is not a folder"
    if not why and not os.access(there, os.W_OK | os.X_OK):
        why = "is not writable"
    if why:
        raise UsageError(
            f"${LOCKS_VARIABLE} is {folder.path}: {'it' if there == folder.path else there} {why}",
            f"${LOCKS_VARIABLE} must name a folder that exists or can be made; unset it for this user's own.",
        )


def lock_facts(environ: Mapping[str, str]) -> dict[str, str]:
    """What a record says of the locks: `lock_folder`, where it is not this user's own. Raises as `lock_folder`."""
    folder = lock_folder(environ)
    return {"lock_folder": str(folder.path)} if folder.named else {}


def _prepare(folder: LockFolder) -> int:
    """Make the folder where there is none; the mode of files in it."""
    if not folder.named:
        _make_private(folder.path)
        return 0o600
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = "it is not a folder" if isinstance(error, FileExistsError) else error.strerror
        raise GauntletError(
            f"{folder.path}: cannot make the folder for locks: {why}",
            f"${LOCKS_VARIABLE} must name a folder that exists or can be made",
        ) from error
    # Whoever may make files in it may use those of the others.
    return stat.S_IMODE(folder.path.stat().st_mode) & 0o666 | 0o600


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


def _name_holder(pids: tuple[int, ...]) -> str:
    if not pids:
        return "another process uses it"
    if pids == (os.getpid(),):
        return "another step of this run uses it"
    noun = "process" if len(pids) == 1 else "processes"
    return f"{noun} {', '.join(map(str, pids))} of another run" + (" use it" if len(pids) > 1 else " uses it")


@dataclass(slots=True)
class QuietStretch:
    """Holds the machine shared for as many steps as there are; may be used from several threads.

    Taking the lock costs a dozen system calls, more than many a step of an operator suite, so that it is taken once
    for a stretch of steps. A benchmark of another run waits inside the gate for all shared holders to let go, so no
    stretch lasts: when one has grown old, the next step begins a new one, for which it has to pass the gate, and the
    old one ends with the last step begun in it.

    Between two steps the lock is kept, for the thread that takes the next one at once. Whoever does something else
    than such a step calls `rest` first, or a benchmark, of this run too, would wait for nobody.

    Attributes:
        on_wait: called with a line that says for whom one waits.
        seconds: the age at which a stretch takes no more steps.
    """

    locks: MachineLocks
    on_wait: Callable[[str], None]
    seconds: float = _STRETCH_SECONDS
    clock: Callable[[], float] = time.monotonic
    _mutex: threading.Lock = field(default_factory=threading.Lock)
    _current: _Stretch | None = None

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold the machine shared; raises as `MachineLocks.quiet_machine`."""
        with self._mutex:
            if self._current is not None and self.clock() - self._current.began >= self.seconds:
                self._retire()
            stretch = self._current
            if stretch is not None:
                stretch.steps += 1
        if stretch is None:
            # Several threads may begin one each; the last one counts from then on.
            held = contextlib.ExitStack()
            held.enter_context(self.locks.quiet_machine(exclusive=False, on_wait=self.on_wait))
            stretch = _Stretch(held, self.clock())
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

    def rest(self) -> None:
        """Let go of the lock, unless a step that holds it is under way."""
        with self._mutex:
            if self._current is not None and not self._current.steps:
                self._retire()

    def _retire(self) -> None:
        retired, self._current = self._current, None
        if retired is not None:
            retired.end_if_unused()


@dataclass(slots=True)
class _Stretch:
    """One holding of the lock, and how many steps run under it."""

    held: contextlib.ExitStack
    began: float
    steps: int = 1

    def end_if_unused(self) -> None:
        if not self.steps:
            self.held.close()
