"""Record which cache files a living process uses, so that garbage collection skips them.

    <cache>/leases/<host>-<process>-<random>.txt   one file per process; each line is a cache-relative path in use
    <cache>/locks/use.lock                         shared by writers of lines, exclusive for garbage collection

A process holds a flock on its lease file while its store exists. The kernel releases the flock when the process dies,
so an unlocked lease file belongs to a dead process and is ignored. Call `use()` before checking whether a file exists:
`use()` waits for a running garbage collection, which may remove the file before the check. After `use()`, garbage
collection finds the file in use and keeps it.

On NFS, Linux passes flock on to the server, so processes of several machines see each other's leases. It does not on
mounts with `nolock` or `local_lock=flock` (or `all`).
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
from iree_gauntlet.system.file_lock import file_lock, try_file_lock, wait_for_lock

if TYPE_CHECKING:
    from collections.abc import Iterator


_PERMISSION_ERRNOS = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_EXHAUSTION_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE})
_TIMEOUT_SECONDS = 30.0


class Leases:
    """The leases of a cache in one process; may be used by several threads, and across `fork`."""

    def __init__(self, root: Path) -> None:
        # Callers may pass paths with or without links resolved.
        self._roots = tuple(dict.fromkeys((os.path.abspath(root), os.path.realpath(root))))  # noqa: PTH100
        self._folder = Path(self._roots[0]) / "leases"
        self._lock_path = Path(self._roots[0]) / "locks" / "use.lock"
        # The key is the process ID, so a forked child has no entry and makes its own lease.
        self._lease_by_process: dict[int, _Lease] = {}

    def use(self, path: Path) -> None:
        """Record that this process uses a cache file or folder until it ends; call this before checking for the file.

        Paths outside of the cache are ignored. In a cache without write permission nothing can be recorded, so
        users who may collect garbage there must know that others read it.

        Raises:
            ArtifactError: the file system fails in another way, or supports no locks.
        """
        absolute = os.path.abspath(path)  # noqa: PTH100 - `Path.resolve` would follow links out of the cache
        root = next((root for root in self._roots if absolute.startswith(root + os.sep)), None)
        if root is None:
            return
        relative = absolute[len(root) + 1 :].replace(os.sep, "/")
        process = os.getpid()
        lease = self._lease_by_process.setdefault(process, _Lease())
        if relative in lease.used:
            return
        with lease.lock:
            for process_id in [process_id for process_id in self._lease_by_process if process_id != process]:
                # The lease is inherited by fork. It is closed but not unlocked: the parent still holds the lock.
                del self._lease_by_process[process_id]
            if relative in lease.used:
                return
            try:
                self._append_path(lease, relative)
            except OSError as error:
                if error.errno not in _PERMISSION_ERRNOS | _EXHAUSTION_ERRNOS:
                    message = f"cannot record in {self._folder} what is in use: {error.strerror} ({error.filename})"
                    hint = "The cache must be a folder on a file system with locks (flock)."
                    raise ArtifactError("", message, hint) from error
            lease.used.add(relative)

    def list_used_paths(self) -> set[str]:
        """Return the cache-relative paths in use by living processes; remove lease files of dead processes."""
        paths: set[str] = set()
        for file, is_alive in self._list_leases():
            if is_alive:
                with suppress(OSError):
                    # A last line without a newline is incomplete and ignored.
                    paths.update(map(os.fsdecode, file.read_bytes().split(b"\n")[:-1]))
                continue
            try:
                file.unlink(missing_ok=True)
            except OSError as error:
                if error.errno not in _PERMISSION_ERRNOS:  # another user's file
                    raise
        return paths

    @contextmanager
    def block_new_leases(self, timeout: float = _TIMEOUT_SECONDS) -> Iterator[None]:
        """Block new leases, so that files that `list_used_paths` does not list can be removed in the block.

        Raises:
            GauntletError: the lock was not available within `timeout` seconds.
        """
        self._lock_path.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            try:
                stack.enter_context(file_lock(self._lock_path, timeout=timeout))
            except TimeoutError as error:
                raise GauntletError(
                    str(error),
                    "Another collection is running, or a run found the disk full and keeps all of the cache: "
                    "wait until it ends.",
                ) from error
            yield

    def list_dead_leases(self) -> list[Path]:
        """Return lease files of processes that have ended, without removing any."""
        return [file for file, is_alive in self._list_leases() if not is_alive]

    def _list_leases(self) -> Iterator[tuple[Path, bool]]:
        """Yield each lease file, and True if its process is alive; lock a dead process's file until the next item."""
        for file in sorted(self._folder.glob("*.txt")):
            with try_lock(file, shared=True) as has_lock:
                yield file, not has_lock

    def _append_path(self, lease: _Lease, relative: str) -> None:
        self._lock_path.parent.mkdir(parents=True, exist_ok=True)
        lock_fd = wait_for_lock(self._lock_path, exclusive=False)
        try:
            if lease.descriptor < 0:
                self._folder.mkdir(exist_ok=True)
                host = "".join(letter if letter.isalnum() else "-" for letter in socket.gethostname())[:40]
                # Until we hold the lock, another process may lock the file as a dead process's: wait for the lock.
                lease.descriptor = wait_for_lock(self._folder / f"{host}-{os.getpid()}-{secrets.token_hex(8)}.txt")
            os.write(lease.descriptor, os.fsencode(relative) + b"\n")
        except OSError as error:
            if error.errno in _EXHAUSTION_ERRNOS:
                # There is no space for the line. Keeping the shared lock until the end protects the whole cache.
                _close(lease.guard)
                lease.guard = lock_fd
                return
            _close(lock_fd)
            raise
        _close(lock_fd)


class _Lease:
    """The lease file of one process."""

    __slots__ = ("descriptor", "guard", "lock", "used")

    def __init__(self) -> None:
        self.descriptor = -1
        self.guard = -1
        self.lock = threading.Lock()
        self.used: set[str] = set()

    def __del__(self) -> None:
        # A process without its store uses no files. Closing in a forked child does not release the parent's lock.
        _close(self.descriptor)
        _close(self.guard)


@contextmanager
def try_lock(path: Path, *, shared: bool = False) -> Iterator[bool]:
    """Hold a file's flock if available; yield False if the file is missing, inaccessible, or locked elsewhere."""
    try:
        descriptor = try_file_lock(path, exclusive=not shared, create=False)
    except OSError:
        descriptor = None
    try:
        yield descriptor is not None
    finally:
        _close(-1 if descriptor is None else descriptor)


def _close(descriptor: int) -> None:
    if descriptor >= 0:
        os.close(descriptor)
