"""SHA-256 of files, remembered for as long as a file is the one that was hashed.

A remembered hash is a small JSON file in a folder of stamps. It holds as long as the file has the size, inode and
times of modification and change (nanoseconds) that it had when it was hashed; so a 16 GB archive is read once, not at
every run, and once more after its rights, its owner or its hard links have changed. A stamp carries a checksum of its
own: one that is damaged says nothing.
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


# A file that was changed this shortly before it was hashed may be changed again within the same tick of
# the file system's clock, with no trace in its times: such a hash is not remembered.
_CLOCK_TICK_NS = 100_000_000

# Last uses are known to this precision: more would be a write to the disk for each use.
_USE_SECONDS = 3600.0

# A memory aid that cannot be written must not stop the work: a read-only or full cache.
_UNWRITABLE = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT})


def hash_file(path: Path) -> str:
    """SHA-256 of a file's content, 64 hexadecimal digits; reads it once, in blocks."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hash_watched(path: Path, read: Callable[[int], None], algorithms: Collection[str] = ("sha256",)) -> dict[str, str]:
    """Hashes of a file's content, in hex by hashlib's names; read once, and `read` is called with each block's size."""
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
    # Whether somebody else has said what it must be, or how long it is.
    vouched: bool = True

    @classmethod
    def of(cls, path: Path | str, status: os.stat_result, sha256: str, *, vouched: bool = True) -> _Stamp:
        # `Path.resolve` would follow links.
        absolute = os.path.abspath(path)  # noqa: PTH100
        state = FileState.of(status)
        return cls(absolute, state.size, state.mtime_ns, state.ctime_ns, state.inode, sha256, vouched)

    @classmethod
    def read(cls, file: Path) -> _Stamp | None:
        """The stamp in a file; None where it is missing or damaged, which costs one hashing."""
        try:
            data = file.read_bytes()
            stamp = cls.from_dict(json.loads(data))
        except (OSError, ValueError, TypeError, AttributeError, RecursionError):
            return None
        # The bytes themselves are compared, so that no changed byte is overlooked.
        return stamp if data == stamp.sealed() else None

    def sealed(self) -> bytes:
        """The content of its file: the stamp, and its checksum."""
        content = self.as_dict()
        checksum = hashlib.sha256(json.dumps(content).encode()).hexdigest()
        return json.dumps({**content, "checksum": checksum}).encode() + b"\n"


class VerifiedHashes:
    """Hashes of any files on this machine, remembered across runs in a folder of stamps."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def known(self, path: Path) -> str:
        """Remembered SHA-256 of a file that has not changed since; empty where there is none. Cheap."""
        try:
            status = path.stat()
        except OSError:
            return ""
        stamp = _Stamp.read(self._locate_stamp(path))
        same = stamp and stamp == _Stamp.of(path, status, stamp.sha256, vouched=stamp.vouched)
        return stamp.sha256 if stamp and same else ""

    def last(self, path: Path) -> str:
        """SHA-256 that the file at this path had when it was last hashed, whatever is there now."""
        stamp = _Stamp.read(self._locate_stamp(path))
        return stamp.sha256 if stamp else ""

    def is_vouched(self, path: Path) -> bool:
        """Whether somebody else has said what the file must be; True where nothing is remembered of it."""
        stamp = _Stamp.read(self._locate_stamp(path))
        return stamp is None or stamp.vouched

    def sha256(self, path: Path, expected: str = "") -> str:
        """SHA-256 of a file, from memory where it has not changed, else by reading it.

        Another hash than the `expected` one is not remembered: what the file ought to be would be lost.
        """
        known = self.known(path)
        if known:
            return known
        started_ns = time.time_ns()
        before = path.stat()
        sha256 = hash_file(path)
        after = path.stat()
        steady = _Stamp.of(path, before, "") == _Stamp.of(path, after, "")
        settled = before.st_ctime_ns + _CLOCK_TICK_NS < started_ns
        if steady and settled and sha256 == (expected or sha256):
            self._store(_Stamp.of(path, before, sha256, vouched=self.is_vouched(path)))
        return sha256

    def remember(self, path: Path, sha256: str, *, vouched: bool = True) -> None:
        """Note the hash of a file that only the caller has written."""
        self._store(_Stamp.of(path, path.stat(), sha256, vouched=vouched))

    def touch(self, path: Path, used: float | None = None) -> None:
        """Note that a file with a stamp was used, at most once an hour; the stamp's own time tells when.

        What is `used` (seconds since 1970) is noted in any case.
        """
        stamp = self._locate_stamp(path)
        try:
            if used is not None:
                os.utime(stamp, (used, used))
            elif time.time() - stamp.stat().st_mtime > _USE_SECONDS:
                # Without a time, so that everyone who may write the file may do it, not only its owner.
                os.utime(stamp)
        except OSError as error:
            if error.errno not in _UNWRITABLE | {errno.ENOENT}:
                raise

    def last_use(self, path: Path) -> float | None:
        """When a file was last used, to the hour, in seconds since 1970; None where it has no stamp."""
        try:
            return self._locate_stamp(path).stat().st_mtime
        except OSError:
            return None

    def doubt(self, path: Path) -> None:
        """Have a file hashed at its next use; what it ought to be is not forgotten, nor when it was used."""
        stamp, used = _Stamp.read(self._locate_stamp(path)), self.last_use(path)
        if stamp is not None:
            self._store(replace(stamp, mtime_ns=-1))
            self.touch(path, used)

    def gone(self) -> Iterator[Path]:
        """Stamps of files that are no longer there, and what killed writers have left."""
        for file in sorted(self._folder.glob("*/*")):
            if file.name.startswith("."):
                with suppress(OSError):  # it is gone meanwhile
                    if time.time() - file.stat().st_mtime > _USE_SECONDS:
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
                # Not fsynced: what a power cut leaves of it reads as no stamp, and the file is hashed again.
                temporary.write_bytes(stamp.sealed())
                temporary.replace(file)
        except OSError as error:
            if error.errno not in _UNWRITABLE:
                raise
