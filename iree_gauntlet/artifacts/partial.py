"""A download that is not whole yet: its bytes, and a journal of which of them can be relied upon.

    <folder>/data          the bytes that have arrived, at their places; holes elsewhere
    <folder>/state.jsonl   first what the server says: {"url": …, "size": …, "version": …, "checksums": {…}},
                           then a line for each stretch that was written: {"got": [from, to], "crc32": …}

A process may be killed at any point, and the power may fail: the two files then hold anything between what was
written and nothing of it, in any order. So what is resumed is what the journal says *and* the data proves:
a torn line ends the journal, and bytes whose checksum does not match are had again. Nothing here is ever taken
for the file itself: that is checked as a whole and then renamed to its place.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from iree_gauntlet.artifacts.remote import RemoteFile
from iree_gauntlet.recorded import Recorded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path


_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, order=True)
class ByteRange:
    """Bytes from `start` up to and without `stop`."""

    start: int
    stop: int


def merge_blocks(spans: Iterable[ByteRange]) -> list[ByteRange]:
    """The same bytes as few spans, in order, that do not touch."""
    result: list[ByteRange] = []
    for span in sorted(spans):
        if result and span.start <= result[-1].stop:
            result[-1] = ByteRange(result[-1].start, max(result[-1].stop, span.stop))
        elif span.start < span.stop:
            result.append(span)
    return result


def find_missing_blocks(spans: Iterable[ByteRange], size: int, longest: int) -> Iterator[ByteRange]:
    """What of `size` bytes is in no span, in order, in pieces of at most `longest` bytes."""
    position = 0
    for span in [*merge_blocks(spans), ByteRange(size, size)]:
        while position < min(span.start, size):
            stop = min(span.start, size, position + longest)
            yield ByteRange(position, stop)
            position = stop
        position = max(position, span.stop)


@dataclass(frozen=True, slots=True)
class PartialHeader(Recorded):
    """The first line of the journal: where the file comes from, and what its server says of it."""

    url: str
    size: int | None = None
    version: str = ""
    checksums: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Note(Recorded):
    """Another line: from and to where bytes were written."""

    got: tuple[int, int]
    crc32: int

    @property
    def span(self) -> ByteRange:
        return ByteRange(*self.got)


def look(folder: Path) -> tuple[PartialHeader | None, list[ByteRange]]:
    """What a partial download says of itself, where that can be read: its header and its spans; nothing is proven."""
    try:
        header, notes, _ = _read((folder / "state.jsonl").read_bytes())
    except OSError:
        return None, []
    return header, [note.span for note in notes]


def discard(folder: Path) -> None:
    """Remove a partial download."""
    for name in ("state.jsonl", "data"):
        (folder / name).unlink(missing_ok=True)


class Partial:
    """A partial download that is open for writing; used by several threads.

    The caller holds the lock of the file that it is for.
    """

    def __init__(self, folder: Path, data: int, state: int, spans: list[ByteRange]) -> None:
        self.path = folder / "data"
        self.spans = spans
        self._data = data
        self._state = state
        self._lock = threading.Lock()

    @classmethod
    def resume(cls, folder: Path, url: str, checked: Callable[[int, int], None]) -> tuple[Self, RemoteFile] | None:
        """Continue what an earlier attempt at a URL has left; None where nothing can be used.

        `checked` is called with how many bytes of how many have been read again.
        """
        state = folder / "state.jsonl"
        if not state.is_file() or not (folder / "data").is_file():
            return None
        content = state.read_bytes()
        header, notes, intact = _read(content)
        if header is None or header.url != url or header.size is None or not header.version:
            return None
        if not header.checksums.keys() <= hashlib.algorithms_guaranteed:
            return None
        data, journal = _open(folder)
        spans = list(_prove(data, notes, header.size, checked))
        if not spans:
            os.close(data)
            os.close(journal)
            return None
        if intact < len(content):
            os.truncate(state, intact)
        file = RemoteFile(header.size, header.version, ranged=True, checksums=header.checksums)
        return cls(folder, data, journal, merge_blocks(spans)), file

    @classmethod
    def begin(cls, folder: Path, url: str, file: RemoteFile) -> Self:
        """Start again; what an earlier attempt has left is thrown away."""
        folder.mkdir(parents=True, exist_ok=True)
        discard(folder)
        partial = cls(folder, *_open(folder), [])
        partial._append(PartialHeader(url, file.size, file.version, dict(file.checksums)))
        return partial

    def write(self, position: int, block: bytes) -> None:
        """Put bytes at their place; `got` makes them count."""
        view = memoryview(block)
        while view:
            written = os.pwrite(self._data, view, position)
            view, position = view[written:], position + written

    def got(self, span: ByteRange, crc32: int) -> None:
        """Note that bytes have been written."""
        with self._lock:
            self._append(_Note((span.start, span.stop), crc32))

    def abandon(self) -> None:
        """Write no more, and leave the files open: another thread may be about to write, and the process to end."""
        self._data = self._state = -1

    def close(self) -> None:
        """Close the files; may be called twice, and after `abandon`."""
        data, state, self._data, self._state = self._data, self._state, -1, -1
        for descriptor in (data, state):
            if descriptor >= 0:
                os.close(descriptor)

    def _append(self, line: Recorded) -> None:
        os.write(self._state, json.dumps(line.as_dict()).encode() + b"\n")


def _open(folder: Path) -> tuple[int, int]:
    data = os.open(folder / "data", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    return data, os.open(folder / "state.jsonl", flags, 0o644)


def _read(content: bytes) -> tuple[PartialHeader | None, list[_Note], int]:
    """What the lines say up to the first that is torn or damaged, and how many bytes those take."""
    header: PartialHeader | None = None
    notes: list[_Note] = []
    position = 0
    for line in content.splitlines(keepends=True):
        if not line.endswith(b"\n"):
            break
        try:
            entry = json.loads(line)
            if header is None:
                header = PartialHeader.from_dict(entry)
            else:
                notes.append(_Note.from_dict(entry))
        except (ValueError, TypeError, AttributeError):
            break
        position += len(line)
    return header, notes, position


def _prove(data: int, notes: list[_Note], size: int, checked: Callable[[int, int], None]) -> Iterator[ByteRange]:
    """The spans whose bytes are what they were."""
    total, done = sum(note.span.stop - note.span.start for note in notes), 0
    for note in notes:
        span = note.span
        if not 0 <= span.start < span.stop <= size:
            continue
        crc32, position = 0, span.start
        while position < span.stop and (block := os.pread(data, min(_BLOCK_BYTES, span.stop - position), position)):
            crc32 = zlib.crc32(block, crc32)
            position += len(block)
        if position == span.stop and crc32 == note.crc32:
            yield span
        done += span.stop - span.start
        checked(done, total)
