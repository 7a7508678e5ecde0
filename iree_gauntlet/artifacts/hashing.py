"""Compute the SHA-256 of files, and cache it until a file changes.

A cached hash is a small JSON file, a stamp. A stamp is valid while the hashed file has the same size, inode,
modification time and change time (nanoseconds). So a 16 GB archive is not read again in every run, but it is read again
after a change of its rights, owner or hard links. A stamp contains its own checksum, so damaged stamps are detected and
ignored.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from iree_gauntlet.recorded import Recorded
from iree_gauntlet.system.atomic import reserve_file
from iree_gauntlet.system.file_state import FileState

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path


# Hashes of files that were changed less than this before hashing are not cached. Another change within the same tick
# of the file system's clock would not change the file's times.
_CLOCK_TICK_NS = 100_000_000

# The precision of last uses. A higher precision would need a write to the disk for each use.
_USE_PRECISION_SECONDS = 3600.0

# A cache that is read-only or full must not stop the work.
_UNWRITABLE_ERRNOS = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT})


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file's content as 64 hexadecimal digits; read the file in blocks."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hash_with_progress(
    path: Path, read: Callable[[int], None], algorithms: Collection[str] = ("sha256",)
) -> dict[str, str]:
    """Return a file's hashes in hex, by hashlib's names, in one pass; call `read` with the size of each block."""
    digests = {name: hashlib.new(name, usedforsecurity=False) for name in algorithms}
    block = bytearray(1 << 20)
    view = memoryview(block)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(block):
            for digest in digests.values():
                digest.update(view[:count])
            read(count)
    return {name: digest.hexdigest() for name, digest in digests.items()}


@dataclass(frozen=True, slots=True)
class _Stamp(Recorded):
    path: str
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    sha256: str
    # True if another source confirms the hash or the length.
    vouched: bool = True

    @classmethod
    def of(cls, path: Path | str, status: os.stat_result, sha256: str, *, is_confirmed: bool = True) -> _Stamp:
        # `Path.resolve` would follow links.
        absolute = os.path.abspath(path)  # noqa: PTH100
        state = FileState.of(status)
        return cls(absolute, state.size, state.mtime_ns, state.ctime_ns, state.inode, sha256, is_confirmed)

    @classmethod
    def read(cls, file: Path) -> _Stamp | None:
        """Read a stamp; return None if it is missing or damaged: then the stamped file is hashed again."""
        try:
            content = file.read_bytes()
            stamp = cls.from_dict(json.loads(content))
        except (OSError, ValueError, TypeError, AttributeError, RecursionError):
            return None
        # The bytes themselves are compared, so that every changed byte is detected.
        return stamp if content == stamp.serialize() else None

    def serialize(self) -> bytes:
        """Return the content of its file: the stamp and its checksum."""
        content = self.as_dict()
        checksum = hashlib.sha256(json.dumps(content).encode()).hexdigest()
        return json.dumps({**content, "checksum": checksum}).encode() + b"\n"


class HashCache:
    """Hashes of any files on this machine, cached across runs in a folder of stamps."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get_cached_hash(self, path: Path) -> str:
        """Return the SHA-256 of an unchanged file from the cache; empty if it is not cached. This is cheap."""
        try:
            status = path.stat()
        except OSError:
            return ""
        stamp = _Stamp.read(self._locate_stamp(path))
        is_current = stamp and stamp == _Stamp.of(path, status, stamp.sha256, is_confirmed=stamp.vouched)
        return stamp.sha256 if stamp and is_current else ""

    def get_last_hash(self, path: Path) -> str:
        """Return the SHA-256 that was last computed at this path, even if the file has changed since."""
        stamp = _Stamp.read(self._locate_stamp(path))
        return stamp.sha256 if stamp else ""

    def is_confirmed(self, path: Path) -> bool:
        """Return True if another source confirms the file's content, or if the file has no stamp."""
        stamp = _Stamp.read(self._locate_stamp(path))
        return stamp is None or stamp.vouched

    def sha256(self, path: Path, expected_sha256: str = "") -> str:
        """Return the SHA-256 of a file: from the cache if the file is unchanged, otherwise by reading the file.

        A hash that differs from `expected_sha256` is not cached, because it would replace the expected hash.
        """
        cached_hash = self.get_cached_hash(path)
        if cached_hash:
            return cached_hash
        started_ns = time.time_ns()
        status = path.stat()
        sha256 = hash_file(path)
        status_after = path.stat()
        is_unchanged = _Stamp.of(path, status, "") == _Stamp.of(path, status_after, "")
        is_old_enough = status.st_ctime_ns + _CLOCK_TICK_NS < started_ns
        if is_unchanged and is_old_enough and sha256 == (expected_sha256 or sha256):
            self._store(_Stamp.of(path, status, sha256, is_confirmed=self.is_confirmed(path)))
        return sha256

    def remember(self, path: Path, sha256: str, *, is_confirmed: bool = True) -> None:
        """Cache the hash of a file that only the caller has written."""
        self._store(_Stamp.of(path, path.stat(), sha256, is_confirmed=is_confirmed))

    def touch(self, path: Path, used_at: float | None = None) -> None:
        """Record the use of a file as the modification time of its stamp, if it has one.

        Without `used_at` (seconds since 1970), the current time is recorded, but at most once an hour.
        """
        stamp = self._locate_stamp(path)
        try:
            if used_at is not None:
                os.utime(stamp, (used_at, used_at))
            elif time.time() - stamp.stat().st_mtime > _USE_PRECISION_SECONDS:
                # Setting an explicit time needs ownership; the current time needs only write permission.
                os.utime(stamp)
        except OSError as error:
            if error.errno not in _UNWRITABLE_ERRNOS | {errno.ENOENT}:
                raise

    def last_use(self, path: Path) -> float | None:
        """Return a file's last use, to the hour, in seconds since 1970; None if it has no stamp."""
        try:
            return self._locate_stamp(path).stat().st_mtime
        except OSError:
            return None

    def invalidate(self, path: Path) -> None:
        """Have a file hashed again at its next use; keep its recorded hash and last use."""
        stamp, used_at = _Stamp.read(self._locate_stamp(path)), self.last_use(path)
        if stamp is not None:
            self._store(replace(stamp, mtime_ns=-1))
            self.touch(path, used_at)

    def list_orphan_stamps(self) -> Iterator[Path]:
        """Yield the stamps of files that no longer exist, and temporary files of killed writers."""
        for file in sorted(self._folder.glob("*/*")):
            if file.name.startswith("."):
                with suppress(OSError):  # another process has removed it
                    if time.time() - file.stat().st_mtime > _USE_PRECISION_SECONDS:
                        yield file
                continue
            stamp = _Stamp.read(file)
            if stamp is None or not os.path.lexists(stamp.path):
                yield file

    def _locate_stamp(self, path: Path | str) -> Path:
        # `Path.resolve` would follow links.
        digest = hashlib.sha256(os.fsencode(os.path.abspath(path))).hexdigest()  # noqa: PTH100
        return self._folder / digest[:2] / f"{digest[2:40]}.json"

    def _store(self, stamp: _Stamp) -> None:
        file = self._locate_stamp(stamp.path)
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with reserve_file(file) as temporary:
                # No fsync is needed: after a power failure, an incomplete stamp is ignored, and the file hashed again.
                temporary.write_bytes(stamp.serialize())
                temporary.replace(file)
        except OSError as error:
            if error.errno not in _UNWRITABLE_ERRNOS:
                raise
