"""Which files of a cache are in use by a living process, so that nothing is collected under its feet.

    <cache>/leases/<host>-<process>-<random>.txt   of one process: a used path a line, relative to the cache
    <cache>/locks/use.lock                         shared by those who write a line, exclusive for who collects

A process holds a flock on its lease file for as long as its store lives; the kernel frees it on any death, so a
lease file without a lock is that of a dead process and counts for nothing. As lines are written under the
shared lock and files are taken away under the exclusive one, a file is either seen to be in use and stays,
or it is gone before its user looks for it: use it first, look for it then.

On NFS, Linux passes flock on to the server (as a lock of the whole file), so that processes of several
machines see each other's leases; not on mounts with `nolock` or `local_lock=flock` (or `all`).
"""

from __future__ import annotations

import errno
import os
import secrets
import socket
import threading
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.errors import ArtifactError, GauntletError
from iree_gauntlet.system.file_lock import file_lock, take_lock, wait_for_lock

if TYPE_CHECKING:
    from collections.abc import Iterator


_DENIED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE})
_PATIENCE_SECONDS = 30.0


class Leases:
    """The leases of a cache, as one process sees them; may be used by several threads, and across `fork`."""

    def __init__(self, root: Path) -> None:
        # Both forms, as callers may have resolved links or not.
        self._roots = tuple(dict.fromkeys((os.path.abspath(root), os.path.realpath(root))))  # noqa: PTH100
        self._folder = Path(self._roots[0]) / "leases"
        self._lock_path = Path(self._roots[0]) / "locks" / "use.lock"
        # By process, so that a forked child finds that it has none, and holds no lock of its parent.
        self._own: dict[int, _Own] = {}

    def use(self, path: Path) -> None:
        """Say that this process uses a file or folder of the cache, until it ends; to be called before looking for it.

        Of no effect for paths outside of the cache, and in a cache that this process may not write to: it
        leaves no trace there, and a user who may collect there must know that others read it.

        Raises:
            ArtifactError: the file system fails in another way, or knows no locks.
        """
        absolute = os.path.abspath(path)  # noqa: PTH100 - `Path.resolve` would follow links out of the cache
        root = next((root for root in self._roots if absolute.startswith(root + os.sep)), None)
        if root is None:
            return
        relative = absolute[len(root) + 1 :].replace(os.sep, "/")
        process = os.getpid()
        own = self._own.setdefault(process, _Own())
        if relative in own.used:
            return
        with own.lock:
            for other in [other for other in self._own if other != process]:
                # Inherited by fork: closed, and not unlocked, as the lock is the parent's too.
                del self._own[other]
            if relative in own.used:
                return
            try:
                self._append(own, relative)
            except OSError as error:
                if error.errno not in _DENIED | _FULL:
                    what = f"cannot note in {self._folder} what is in use: {error.strerror} ({error.filename})"
                    hint = "The cache must be a folder on a file system with locks (flock)."
                    raise ArtifactError("", what, hint) from error
            own.used.add(relative)

    def in_use(self) -> set[str]:
        """Paths, relative to the cache, that living processes use; lease files of the dead are removed."""
        found: set[str] = set()
        for file, lives in self._list_leases():
            if lives:
                with suppress(OSError):
                    # A last line without its end is being written right now, or never was to the end.
                    found.update(map(os.fsdecode, file.read_bytes().split(b"\n")[:-1]))
                continue
            try:
                file.unlink(missing_ok=True)
            except OSError as error:
                if error.errno not in _DENIED:  # another user's
                    raise
        return found

    @contextmanager
    def collecting(self, patience: float = _PATIENCE_SECONDS) -> Iterator[None]:
        """Keep out new leases: what `in_use` does not name meanwhile may be taken away.

        Raises:
            GauntletError: the lock was not available within `patience` seconds.
        """
        self._lock_path.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            try:
                stack.enter_context(file_lock(self._lock_path, timeout=patience))
            except TimeoutError as error:
                raise GauntletError(
                    str(error),
                    "Another collection is under way, or a run found the disk full and holds on to all of the cache: "
                    "wait for its end.",
                ) from error
            yield

    def dead(self) -> list[Path]:
        """Lease files of processes that have ended; nothing is removed."""
        return [file for file, lives in self._list_leases() if not lives]

    def _list_leases(self) -> Iterator[tuple[Path, bool]]:
        """Every lease file, and whether its process lives; that of a dead one is locked until the next is asked for."""
        for file in sorted(self._folder.glob("*.txt")):
            with try_lock(file, shared=True) as locked:
                yield file, not locked

    def _append(self, own: _Own, relative: str) -> None:
        self._lock_path.parent.mkdir(parents=True, exist_ok=True)
        shared = wait_for_lock(self._lock_path, exclusive=False)
        try:
            if own.descriptor < 0:
                self._folder.mkdir(exist_ok=True)
                host = "".join(letter if letter.isalnum() else "-" for letter in socket.gethostname())[:40]
                # Someone may take it for that of a dead process, in the moment before it is locked: waited for.
                own.descriptor = wait_for_lock(self._folder / f"{host}-{os.getpid()}-{secrets.token_hex(8)}.txt")
            os.write(own.descriptor, os.fsencode(relative) + b"\n")
        except OSError as error:
            if error.errno in _FULL:
                # No room for the line: the lock itself, kept to the end, protects everything.
                _close(own.guard)
                own.guard = shared
                return
            _close(shared)
            raise
        _close(shared)


class _Own:
    """The lease of one process."""

    __slots__ = ("descriptor", "guard", "lock", "used")

    def __init__(self) -> None:
        self.descriptor = -1
        self.guard = -1
        self.lock = threading.Lock()
        self.used: set[str] = set()

    def __del__(self) -> None:
        # A process that has dropped its store no longer uses it. In a forked child the parent's lock stays.
        _close(self.descriptor)
        _close(self.guard)


@contextmanager
def try_lock(path: Path, *, shared: bool = False) -> Iterator[bool]:
    """Hold the flock of a file if it can be had; whether it is: not where the file is missing, closed to us, or held.

    `shared` only checks that no process holds it exclusively; reading rights are enough.
    """
    try:
        descriptor = take_lock(path, exclusive=not shared, create=False)
    except OSError:
        descriptor = None
    try:
        yield descriptor is not None
    finally:
        _close(-1 if descriptor is None else descriptor)


def _close(descriptor: int) -> None:
    if descriptor >= 0:
        os.close(descriptor)
