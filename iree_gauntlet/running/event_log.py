"""Append-only logs of events, one JSON object a line, safe against death at any byte.

Every event has `event` and `time` (ISO 8601, UTC, milliseconds). A line goes out in one write and, unless it may be
lost, to the disk before the call returns: what was reported is what survives. `journal_format.py` reads such files.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from datetime import UTC
from typing import TYPE_CHECKING, Any, Self

from iree_gauntlet.atomic import sync_folder
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.running.machine_lock import LockFile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime
    from pathlib import Path

__all__ = ["EventLog"]


class EventLog:
    """The one writer of a log; its methods may be called from several threads.

    Opening it makes the file, or continues one: a last line that a crash cut short is left as it is, and
    the next event starts on a line of its own.

    Args:
        path: the file, in a folder that exists. A lock file lies beside it.
        clock: gives the present time, with a time zone.

    Raises:
        GauntletError: another process writes this log, or it cannot be written.
    """

    def __init__(self, path: Path, clock: Callable[[], datetime]) -> None:
        self._path = path
        self._clock = clock
        self._mutex = threading.Lock()
        self._lock = LockFile(path.with_name(f"{path.name}.lock"))
        self._descriptor: int | None = None
        try:
            if not self._lock.acquire_now():
                who = ", ".join(str(pid) for pid in self._lock.holders()) or "of another run"
                raise GauntletError(
                    f"run {path.parent.name} is being written by process {who}",
                    "wait for it, or start a run of its own",
                )
            self._descriptor = self._open()
        except OSError as error:
            self._lock.release()
            raise self._unwritable(error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, event: str, fields: Mapping[str, Any], *, lasting: bool = True) -> None:
        """Append an event.

        Args:
            event: its name.
            fields: what it says.
            lasting: it is on the disk when this returns.

        Raises:
            GauntletError: the disk is full or gone; nothing of the event is in the file then.
            TypeError, ValueError: a field is no JSON, NaN and infinity included. Nothing is written.
        """
        with self._mutex:
            if self._descriptor is None:
                raise RuntimeError(f"{self._path.name} is closed")
            # The time is taken inside the lock, so that times never go back from line to line.
            document = {"event": event, "time": _stamp(self._clock()), **fields}
            line = json.dumps(document, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode()
            self._append(self._descriptor, line + b"\n", lasting=lasting)

    def close(self) -> None:
        """Let go of the file and the lock."""
        with self._mutex:
            descriptor, self._descriptor = self._descriptor, None
            if descriptor is not None:
                os.close(descriptor)
            self._lock.release()

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        descriptor = os.open(self._path, flags, 0o644)
        try:
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                os.write(descriptor, b"\n")
            sync_folder(self._path.parent)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _append(self, descriptor: int, line: bytes, *, lasting: bool) -> None:
        size = os.fstat(descriptor).st_size
        try:
            written = os.write(descriptor, line)
            while written < len(line):
                written += os.write(descriptor, line[written:])
            if lasting:
                os.fsync(descriptor)
        except OSError as error:
            # Half a line would spoil what follows. The lock makes this the only writer.
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, size)
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> GauntletError:
        return GauntletError(
            f"{error.filename or self._path}: cannot write {self._path.name}: {error.strerror}",
            "make room there, or make it writable, then resume the run",
        )


def _stamp(now: datetime) -> str:
    return now.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
