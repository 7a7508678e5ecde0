"""A download that is not whole yet: its bytes, and a journal of which of them can be relied upon.

    <folder>/data          the bytes that have arrived, at their places; holes elsewhere
    <folder>/state.jsonl   first {"url": …, "size": …, "version": …, "boot": …}, then lines that are appended:
                           {"got": [from, to]}   these bytes were written
                           {"synced": n}         the first n bytes of this file, and the data that they speak of,
                                                 have reached the disk

A process may be killed at any point: what it has written stays in the system's memory, so all `got` lines
hold, and a torn last line is left out. After a power cut they hold up to the last `synced` line alone; which
of the two it was is told by the identity of the boot. Nothing here is ever taken for the file itself: it is
checked as a whole and then renamed to its place.
"""

from __future__ import annotations

import json
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from iree_gauntlet.artifacts.remote import RemoteFile

__all__ = ["Partial", "Span", "boot_identity", "merged", "missing"]

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_SYNC_BYTES = 256 << 20


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """Bytes from `start` up to and without `stop`."""

    start: int
    stop: int


def merged(spans: Iterable[Span]) -> list[Span]:
    """The same bytes as few spans, in order, that do not touch."""
    result: list[Span] = []
    for span in sorted(spans):
        if result and span.start <= result[-1].stop:
            result[-1] = Span(result[-1].start, max(result[-1].stop, span.stop))
        elif span.start < span.stop:
            result.append(span)
    return result


def missing(spans: Iterable[Span], size: int, longest: int) -> Iterator[Span]:
    """What of `size` bytes is in no span, in order, in pieces of at most `longest` bytes."""
    position = 0
    for span in [*merged(spans), Span(size, size)]:
        while position < min(span.start, size):
            stop = min(span.start, size, position + longest)
            yield Span(position, stop)
            position = stop
        position = max(position, span.stop)


def boot_identity() -> str:
    """What changes when this machine starts anew; empty where the system does not tell."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


class Partial:
    """A partial download that is open for writing; used by several threads.

    The caller holds the lock of the file that it is for.

    Attributes:
        path: of the data.
        spans: what was there when it was opened, merged.
    """

    def __init__(self, folder: Path, data: int, state: int, spans: list[Span]) -> None:
        self.path = folder / "data"
        self.spans = spans
        self._data = data
        self._state = state
        self._lock = threading.Lock()
        self._unsynced = 0

    @classmethod
    def resume(cls, folder: Path, url: str) -> tuple[Self, RemoteFile] | None:
        """Continue what an earlier attempt has left; None where there is nothing of use.

        Args:
            folder: where it lies, or not.
            url: where it must come from.

        Raises:
            OSError: the folder cannot be read or written.
        """
        from iree_gauntlet.artifacts.remote import RemoteFile  # noqa: PLC0415 - types alone elsewhere

        state = folder / "state.jsonl"
        if not state.is_file() or not (folder / "data").is_file():
            return None
        content = state.read_bytes()
        header, spans, intact = _read(content)
        if header is None or header.get("url") != url or not header.get("version"):
            return None
        size, version = header.get("size"), str(header["version"])
        there = (folder / "data").stat().st_size
        usable = isinstance(size, int) and all(span.stop <= min(size, there) for span in spans)
        if not usable or not spans:
            return None
        if intact < len(content):
            os.truncate(state, intact)
        partial = cls(folder, *_opened(folder), merged(spans))
        # A boot that is not the one of the header: from here on the lines hold for the present one.
        partial._append({"boot": boot_identity()})
        return partial, RemoteFile(size, version, ranged=True)

    @classmethod
    def begin(cls, folder: Path, url: str, file: RemoteFile) -> Self:
        """Start anew; what an earlier attempt has left is thrown away.

        Raises:
            OSError: the folder cannot be written.
        """
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("state.jsonl", "data"):
            (folder / name).unlink(missing_ok=True)
        partial = cls(folder, *_opened(folder), [])
        partial._append({"url": url, "size": file.size, "version": file.version, "boot": boot_identity()})
        return partial

    def write(self, position: int, block: bytes) -> None:
        """Put bytes at their place; `got` makes them count.

        Raises:
            OSError: the disk is full, for one.
        """
        view = memoryview(block)
        while view:
            written = os.pwrite(self._data, view, position)
            view, position = view[written:], position + written

    def got(self, span: Span) -> None:
        """Note that bytes have been written; from time to time they are made durable.

        Raises:
            OSError: the disk is full, for one.
        """
        with self._lock:
            self._append({"got": [span.start, span.stop]})
            self._unsynced += span.stop - span.start
            if self._unsynced < _SYNC_BYTES:
                return
            self._unsynced = 0
            known = os.fstat(self._state).st_size
        # Outside of the lock: the other connections go on meanwhile.
        os.fdatasync(self._data)
        with self._lock:
            self._append({"synced": known})
            os.fdatasync(self._state)

    def close(self) -> None:
        """Close the files; may be called twice."""
        data, state, self._data, self._state = self._data, self._state, -1, -1
        for descriptor in (data, state):
            if descriptor >= 0:
                os.close(descriptor)

    def _append(self, line: dict[str, Any]) -> None:
        os.write(self._state, json.dumps(line).encode() + b"\n")


def _opened(folder: Path) -> tuple[int, int]:
    data = os.open(folder / "data", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    return data, os.open(folder / "state.jsonl", flags, 0o644)


def _read(content: bytes) -> tuple[dict[str, Any] | None, list[Span], int]:
    """The header, the spans that can be relied upon, and how many bytes of the file are intact."""
    header: dict[str, Any] | None = None
    boot, position, synced = "", 0, 0
    noted: list[tuple[int, str, Span]] = []  # where its line ends, and in which boot it was written
    for line in content.splitlines(keepends=True):
        entry = _entry(line)
        if entry is None:
            break
        header = entry if header is None else header
        position += len(line)
        boot = str(entry.get("boot", boot))
        synced = entry.get("synced", synced)
        if "got" in entry:
            noted.append((position, boot, Span(*entry["got"])))
    now = boot_identity()
    return header, [span for end, of, span in noted if end <= synced or (now and of == now)], position


def _entry(line: bytes) -> dict[str, Any] | None:
    """A line; None for one that is torn or damaged."""
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    if not line.endswith(b"\n") or not isinstance(entry, dict):
        return None
    got, synced = entry.get("got", [0, 0]), entry.get("synced", 0)
    whole = isinstance(got, list) and len(got) == 2 and all(isinstance(number, int) for number in [*got, synced])
    return entry if whole and 0 <= got[0] <= got[1] else None
