"""Downloads of any size: ranges over several connections, resumed after a kill, tried again after a failure.

One `Transfer` brings one file from one `Remote` into a `Partial`. It knows the server through `Remote`'s
protocol only, and never decides whether the content is the right one: that is checked on the whole file.

A `Partial` is a download that is not whole yet: its bytes, and a journal of which of them can be relied upon.

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
import queue
import random
import shutil
import threading
import time
import zlib
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from iree_gauntlet.artifacts.publishing import require_space
from iree_gauntlet.artifacts.remote import NETWORK_HINT, Body, ChangedError, Remote, RemoteFile, TransientError
from iree_gauntlet.errors import ArtifactError
from iree_gauntlet.formatting import byte_size
from iree_gauntlet.recorded import Recorded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from iree_gauntlet.progress import Progress


# How much may be lost of what a connection has brought when the process is killed.
_NOTED_BYTES = 4 << 20
_PROGRESS_SECONDS = 0.1
_VERSIONS = 3
_NOTES = 5
# Of a file of which nobody says how long it is, nor which one it must be.
_MOST_UNKNOWN = 10**9
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


@dataclass(frozen=True, slots=True)
class Policy:
    """How hard to try; in bytes, and in seconds by the clock `now`, on which `wait` waits for an event.

    Attributes:
        part_bytes: what is asked for at once; files up to this size take one connection.
        retries: attempts after a transient failure that follow each other without a single byte of progress.
        backoff: before the first of them; doubles each time up to the longest one, ± half at random, so that parallel
            runs do not come back in step.
        longest_wait: that a server may ask for (Retry-After); more is an error at once.
        stall_timeout: without a byte, after which a connection is given up. There is no limit in total.
        most_bytes: of a file; None for what the disk has room for, or half of that where its server says no length.
    """

    connections: int = 4
    all_connections: int = 8
    part_bytes: int = 32 << 20
    retries: int = 4
    backoff: float = 0.5
    longest_backoff: float = 30.0
    longest_wait: float = 120.0
    stall_timeout: float = 60.0
    most_bytes: int | None = None
    now: Callable[[], float] = time.monotonic
    wait: Callable[[threading.Event, float], object] = threading.Event.wait


@dataclass(frozen=True, slots=True)
class Arrived:
    """A file that is whole, but not checked yet; of which an earlier attempt had brought `resumed` bytes."""

    path: Path
    file: RemoteFile
    resumed: int


@dataclass(slots=True)
class Transfer:
    """One download into the folder of a partial, whose lock the caller holds; what the progress raises ends it.

    Attributes:
        pinned: whether its hash is known before.
    """

    remote: Remote
    name: str
    folder: Path
    policy: Policy
    slots: threading.BoundedSemaphore
    progress: Progress
    pinned: bool
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _stop: threading.Event = field(default_factory=threading.Event)
    _failure: BaseException | None = None
    _interruptions: int = 0
    _not_before: float = 0.0
    _done: int = 0
    _last_report: float = 0.0

    def run(self, *, fresh: bool = False) -> Arrived:
        """Bring the whole file. Where it is not available (ArtifactError), what has arrived stays for the next time."""
        for number in range(_VERSIONS):
            try:
                return self._bring_version(resume=number == 0 and not fresh)
            except ChangedError as error:
                self.progress.note(self.name, f"changed at its source ({error}): beginning again")
        what = f"changed {_VERSIONS} times while it was fetched: {self.remote.url}"
        raise ArtifactError(self.name, what, "Wait until nobody writes it any more.")

    def _bring_version(self, *, resume: bool) -> Arrived:
        def checked(done: int, total: int) -> None:
            self.progress.checking(self.name, done, total)

        earlier = Partial.resume(self.folder, self.remote.url, checked) if resume else None
        with ExitStack() as opened:
            partial, file = earlier or self._bring_first(opened)
            opened.callback(partial.close)
            there = sum(span.stop - span.start for span in partial.spans)
            if earlier:
                self._require_room(file.size or 0, there)
            self._done = there
            self.progress.download(self.name, there, file.size)
            if file.size is not None:
                self._bring_rest(partial, file, file.size)
        return Arrived(partial.path, file, there if earlier else 0)

    def _bring_first(self, opened: ExitStack) -> tuple[Partial, RemoteFile]:
        """Ask for the first part, which tells what file it is; where parts are not available, for all of it."""
        with self.slots:
            failures = 0
            while True:
                self._done = 0
                partial: Partial | None = None
                try:
                    with self.remote.open(0, self.policy.part_bytes, "") as body:
                        self.folder.mkdir(parents=True, exist_ok=True)
                        if body.file.size is not None:
                            self._require_room(body.file.size)
                        partial = Partial.begin(self.folder, self.remote.url, body.file)
                        opened.callback(partial.close)
                        self._take_first(partial, body)
                        return partial, body.file
                except ArtifactError:
                    # Nor is it when the answer was damaged, or without end.
                    if partial is not None and not (body.file.size and body.file.version):
                        discard(self.folder)
                    raise
                except TransientError as error:
                    # With parts, the others continue where this one broke off; a stream begins again.
                    if partial is not None and body.file.ranged and body.file.size and body.file.version:
                        self._wait_after_failure(error, 0)
                        return partial, body.file
                    # No progress: what a stream has brought is of no use for the next one.
                    failures += 1
                    discard(self.folder)
                    self._wait_after_failure(error, failures)

    def _require_room(self, size: int, there: int = 0) -> None:
        """Refuse a file that is too large before any more of it is brought; some of it is there."""
        most = self.policy.most_bytes
        if most is not None and size > most:
            what = f"{self.remote.url} has {byte_size(size)}, and --max-download allows {byte_size(most)}"
            raise ArtifactError(self.name, what, "Allow more with --max-download, if this is the file that you want.")
        require_space(self.folder, self.name, size - there)

    def _find_limit(self) -> int:
        """The most bytes of a file whose length the server does not say."""
        if self.policy.most_bytes is not None:
            return self.policy.most_bytes
        half = shutil.disk_usage(self.folder).free // 2
        return half if self.pinned else min(half, _MOST_UNKNOWN)

    def _take_first(self, partial: Partial, body: Body) -> None:
        file = body.file
        self.progress.download(self.name, 0, file.size)
        end = file.size
        if file.ranged and end is not None:
            end = min(end, self.policy.part_bytes)
        limit = self._find_limit() if end is None else end
        cursor = _Cursor(0, limit + (end is None))
        try:
            self._take(partial, body, cursor, file.size)
        finally:
            partial.spans.append(ByteRange(0, cursor.position))
        if end is not None and cursor.position < end:
            raise TransientError(f"cut off after {byte_size(cursor.position)} of {byte_size(end)}")
        if end is None and cursor.position > limit:
            what = f"more than {byte_size(limit)} came from {self.remote.url}, which does not say how much it has"
            hint = "Nothing of it was kept. Allow more with --max-download, if this is the file that you want."
            raise ArtifactError(self.name, what, hint)

    def _bring_rest(self, partial: Partial, file: RemoteFile, size: int) -> None:
        """Everything that is not there yet, over several connections."""
        todo: queue.SimpleQueue[ByteRange] = queue.SimpleQueue()
        spans = list(find_missing_blocks(partial.spans, size, self.policy.part_bytes))
        for span in spans:
            todo.put(span)
        # Daemons: a run that is ended does not wait for a silent server.
        workers = [
            threading.Thread(target=self._work, args=(partial, file, todo), name="download", daemon=True)
            for _ in range(min(self.policy.connections, len(spans)))
        ]
        for worker in workers:
            worker.start()
        try:
            for worker in workers:
                worker.join()
        except BaseException:
            # Ctrl-C: what is still writing must not find its file closed, and its number given to another.
            self._stop.set()
            partial.abandon()
            raise
        failure, self._failure = self._failure, None
        self._stop.clear()
        if failure is not None:
            raise failure

    def _work(self, partial: Partial, file: RemoteFile, todo: queue.SimpleQueue[ByteRange]) -> None:
        try:
            with self.slots:
                while not self._stop.is_set():
                    try:
                        span = todo.get_nowait()
                    except queue.Empty:
                        return
                    self._bring_part(partial, file, _Cursor(span.start, span.stop))
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that asked for the file
            with self._lock:
                self._failure = self._failure or error
            self._stop.set()

    def _bring_part(self, partial: Partial, file: RemoteFile, cursor: _Cursor) -> None:
        """One part, resumed after each failure where it broke off."""
        failures = 0
        while cursor.position < cursor.stop and not self._stop.is_set():
            began = cursor.position
            self.policy.wait(self._stop, max(0.0, self._not_before - self.policy.now()))
            try:
                with self.remote.open(began, cursor.stop, file.version) as body:
                    if body.start != began:
                        raise ChangedError("the server gives no parts any more")
                    if body.file.size not in (None, file.size):
                        raise ChangedError(f"{file.size} bytes have become {body.file.size}")
                    self._take(partial, body, cursor, file.size)
                self._require_end(cursor)
            except TransientError as error:
                failures = 1 if cursor.position > began else failures + 1
                self._wait_after_failure(error, failures)

    def _require_end(self, cursor: _Cursor) -> None:
        if cursor.position < cursor.stop and not self._stop.is_set():
            raise TransientError(f"cut off after {byte_size(cursor.position)}")

    def _take(self, partial: Partial, body: Body, cursor: _Cursor, size: int | None) -> None:
        """Write what comes, up to the end of the span; the cursor says how far, also after an error."""
        noted, crc32 = cursor.position, 0
        try:
            for block in body.blocks:
                room = cursor.stop - cursor.position
                if room <= 0 or self._stop.is_set():
                    break
                taken = block[:room]
                partial.write(cursor.position, taken)
                crc32 = zlib.crc32(taken, crc32)
                cursor.position += len(taken)
                self._count(len(taken), size)
                if cursor.position - noted >= _NOTED_BYTES:
                    partial.got(ByteRange(noted, cursor.position), crc32)
                    noted, crc32 = cursor.position, 0
        finally:
            if cursor.position > noted:
                partial.got(ByteRange(noted, cursor.position), crc32)

    def _count(self, arrived: int, size: int | None) -> None:
        with self._lock:
            self._done += arrived
            now = self.policy.now()
            if now - self._last_report < _PROGRESS_SECONDS and self._done != size:
                return
            self._last_report, done = now, self._done
        self.progress.download(self.name, done, size)

    def _wait_after_failure(self, error: TransientError, failures: int) -> None:
        """Wait before the next attempt, or give up; no wait after a failure that follows progress."""
        policy = self.policy
        if failures > policy.retries:
            what = f"{error} ({failures} attempts): {self.remote.url}"
            raise ArtifactError(self.name, what, NETWORK_HINT) from error
        if error.wait is not None and error.wait > policy.longest_wait:
            what = f"{error}, and the server asks to wait {error.wait:.0f} s: {self.remote.url}"
            raise ArtifactError(self.name, what, "Try again after that time.") from error
        jitter = random.uniform(0.5, 1.5)  # noqa: S311 - no secret
        wait = min(policy.longest_backoff, policy.backoff * 2.0 ** min(max(0, failures - 1), 60)) * jitter
        if error.wait is not None:
            wait = error.wait
            # It is the server that is busy, not this connection alone.
            self._not_before = max(self._not_before, policy.now() + wait)
        with self._lock:
            self._interruptions += 1
            noted = self._interruptions <= _NOTES
        if noted:
            more = "; further ones are not reported" if self._interruptions == _NOTES else ""
            number = f"retry {max(1, failures)} of {policy.retries}"
            self.progress.note(self.name, f"{error}; {number} in {wait:.1f} s{more}")
        policy.wait(self._stop, wait)


@dataclass(slots=True)
class _Cursor:
    """Where in a part the next byte goes, and where the part ends."""

    position: int
    stop: int
