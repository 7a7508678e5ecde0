"""Download files of any size: ranges over several connections, resumed after a kill, retried after a failure.

One `Transfer` copies one file from one `Remote` into a `Partial`, using only the `Remote` protocol. The caller checks
the content of the complete file.

A `Partial` is an incomplete download: the received bytes, and a journal of the ranges that were written.

    <folder>/data          the bytes received so far, at their offsets; holes elsewhere
    <folder>/state.jsonl   first the server's metadata: {"url": …, "size": …, "version": …, "checksums": {…}},
                           then a line for each written range: {"got": [from, to], "crc32": …}

After a kill or a power failure, both files may lack any part of what was written. Therefore a range is reused only if
the journal lists it *and* its checksum matches the data. Journal lines after a truncated line are ignored, and ranges
with another checksum are downloaded again. The data file is never used directly: the complete file is checked, and then
renamed to its final path.
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
from iree_gauntlet.artifacts.remote import NETWORK_HINT, Body, Remote, RemoteFile, SourceChangeError, TransientError
from iree_gauntlet.errors import ArtifactError
from iree_gauntlet.formatting import format_bytes
from iree_gauntlet.recorded import Recorded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from iree_gauntlet.progress import Progress


# A killed process loses at most this many bytes per connection.
_JOURNAL_INTERVAL_BYTES = 4 << 20
_PROGRESS_INTERVAL_SECONDS = 0.1
_MAX_VERSIONS = 3
_MAX_NOTES = 5
# The maximum size of a file whose size and hash are unknown.
_MAX_UNVERIFIED_BYTES = 10**9
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, order=True)
class ByteRange:
    """The bytes from `start` (inclusive) to `stop` (exclusive)."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        """The number of bytes."""
        return self.stop - self.start


def merge_blocks(byte_ranges: Iterable[ByteRange]) -> list[ByteRange]:
    """Merge ranges that overlap or touch; return the ranges in order."""
    result: list[ByteRange] = []
    for byte_range in sorted(byte_ranges):
        if result and byte_range.start <= result[-1].stop:
            result[-1] = ByteRange(result[-1].start, max(result[-1].stop, byte_range.stop))
        elif byte_range.start < byte_range.stop:
            result.append(byte_range)
    return result


def find_missing_blocks(byte_ranges: Iterable[ByteRange], size: int, max_bytes: int) -> Iterator[ByteRange]:
    """Yield the ranges below `size` that no given range covers, in order, in pieces of at most `max_bytes`."""
    position = 0
    for byte_range in [*merge_blocks(byte_ranges), ByteRange(size, size)]:
        while position < min(byte_range.start, size):
            stop = min(byte_range.start, size, position + max_bytes)
            yield ByteRange(position, stop)
            position = stop
        position = max(position, byte_range.stop)


@dataclass(frozen=True, slots=True)
class PartialHeader(Recorded):
    """The first line of the journal: the file's source and the server's metadata."""

    url: str
    size: int | None = None
    version: str = ""
    checksums: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _RangeEntry(Recorded):
    """A further line of the journal: the start and stop of a written range."""

    got: tuple[int, int]
    crc32: int

    @property
    def span(self) -> ByteRange:
        return ByteRange(*self.got)


def read_partial(folder: Path) -> tuple[PartialHeader | None, list[ByteRange]]:
    """Return header and ranges of a partial download's journal without verifying them; empty if unreadable."""
    try:
        header, entries, _ = _parse_journal((folder / "state.jsonl").read_bytes())
    except OSError:
        return None, []
    return header, [entry.span for entry in entries]


def remove_partial(folder: Path) -> None:
    """Remove a partial download's files."""
    for name in ("state.jsonl", "data"):
        (folder / name).unlink(missing_ok=True)


class Partial:
    """A partial download that is open for writing; used by several threads.

    The caller holds the lock of the destination file.
    """

    def __init__(self, folder: Path, data: int, state: int, spans: list[ByteRange]) -> None:
        self.path = folder / "data"
        self.spans = spans
        self._data = data
        self._state = state
        self._lock = threading.Lock()

    @classmethod
    def resume(cls, folder: Path, url: str, report_check: Callable[[int, int], None]) -> tuple[Self, RemoteFile] | None:
        """Continue an earlier attempt; `report_check` gets the number of verified bytes, and the total.

        None without both files, the same URL, a size, a version, hashlib's checksums, and a range whose CRC matches.
        """
        state = folder / "state.jsonl"
        if not state.is_file() or not (folder / "data").is_file():
            return None
        journal_bytes = state.read_bytes()
        header, entries, intact_bytes = _parse_journal(journal_bytes)
        if header is None or header.url != url or header.size is None or not header.version:
            return None
        if not header.checksums.keys() <= hashlib.algorithms_guaranteed:
            return None
        data, journal = _open_files(folder)
        spans = list(_verify(data, entries, header.size, report_check))
        if not spans:
            os.close(data)
            os.close(journal)
            return None
        if intact_bytes < len(journal_bytes):
            os.truncate(state, intact_bytes)
        file = RemoteFile(header.size, header.version, accepts_ranges=True, checksums=header.checksums)
        return cls(folder, data, journal, merge_blocks(spans)), file

    @classmethod
    def begin(cls, folder: Path, url: str, file: RemoteFile) -> Self:
        """Start a new download; discard the files of an earlier attempt."""
        folder.mkdir(parents=True, exist_ok=True)
        remove_partial(folder)
        partial = cls(folder, *_open_files(folder), [])
        partial._append(PartialHeader(url, file.size, file.version, dict(file.checksums)))
        return partial

    def write(self, position: int, block: bytes) -> None:
        """Write bytes at their offset; `record_range` marks them as valid."""
        view = memoryview(block)
        while view:
            count = os.pwrite(self._data, view, position)
            view, position = view[count:], position + count

    def record_range(self, span: ByteRange, crc32: int) -> None:
        """Record in the journal that a range has been written."""
        with self._lock:
            self._append(_RangeEntry((span.start, span.stop), crc32))

    def abandon(self) -> None:
        """Stop writing, but leave the files open, because another thread may still write before the process ends."""
        self._data = self._state = -1

    def close(self) -> None:
        """Close the files; may be called twice, and after `abandon`."""
        data, state, self._data, self._state = self._data, self._state, -1, -1
        for descriptor in (data, state):
            if descriptor >= 0:
                os.close(descriptor)

    def _append(self, line: Recorded) -> None:
        os.write(self._state, json.dumps(line.as_dict()).encode() + b"\n")


def _open_files(folder: Path) -> tuple[int, int]:
    data = os.open(folder / "data", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    return data, os.open(folder / "state.jsonl", flags, 0o644)


def _parse_journal(journal_bytes: bytes) -> tuple[PartialHeader | None, list[_RangeEntry], int]:
    """Return header and entries before the first truncated or damaged line, and the size in bytes of these lines."""
    header: PartialHeader | None = None
    entries: list[_RangeEntry] = []
    position = 0
    for line in journal_bytes.splitlines(keepends=True):
        if not line.endswith(b"\n"):
            break
        try:
            entry = json.loads(line)
            if header is None:
                header = PartialHeader.from_dict(entry)
            else:
                entries.append(_RangeEntry.from_dict(entry))
        except (ValueError, TypeError, AttributeError):
            break
        position += len(line)
    return header, entries, position


def _verify(
    data: int, entries: list[_RangeEntry], size: int, report_check: Callable[[int, int], None]
) -> Iterator[ByteRange]:
    """Yield the ranges whose checksum matches."""
    total, count = sum(entry.span.size for entry in entries), 0
    for entry in entries:
        span = entry.span
        if not 0 <= span.start < span.stop <= size:
            continue
        crc32, position = 0, span.start
        while position < span.stop and (block := os.pread(data, min(_BLOCK_BYTES, span.stop - position), position)):
            crc32 = zlib.crc32(block, crc32)
            position += len(block)
        if position == span.stop and crc32 == entry.crc32:
            yield span
        count += span.size
        report_check(count, total)


@dataclass(frozen=True, slots=True)
class Policy:
    """Limits of a download, in bytes, and in seconds of the clock `now`; `wait` waits for an event by this clock.

    Attributes:
        part_bytes: the size of a request; files up to this size use one connection.
        retries: the maximum number of consecutive retries that receive no byte.
        backoff: the wait before the first retry. It doubles up to `longest_backoff`, and varies by half at random, so
            parallel runs do not retry at the same time.
        longest_wait: the longest wait that a server may request (Retry-After).
        stall_timeout: the time without a byte after which a connection is closed. The total has no limit.
        max_bytes: a file's maximum size; None: the free space, or half the free space if the size is unknown.
    """

    connections: int = 4
    all_connections: int = 8
    part_bytes: int = 32 << 20
    retries: int = 4
    backoff: float = 0.5
    longest_backoff: float = 30.0
    longest_wait: float = 120.0
    stall_timeout: float = 60.0
    max_bytes: int | None = None
    now: Callable[[], float] = time.monotonic
    wait: Callable[[threading.Event, float], object] = threading.Event.wait


@dataclass(frozen=True, slots=True)
class CompleteDownload:
    """A complete, unchecked file; `resumed` is the number of its bytes that an earlier attempt received."""

    path: Path
    file: RemoteFile
    resumed: int


@dataclass(slots=True)
class Transfer:
    """One download into a partial's folder, whose lock the caller holds; exceptions from `progress` end the download.

    Attributes:
        pinned: True if the expected hash is known beforehand.
    """

    remote: Remote
    name: str
    folder: Path
    policy: Policy
    connection_slots: threading.BoundedSemaphore
    progress: Progress
    pinned: bool
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _stop: threading.Event = field(default_factory=threading.Event)
    _failure: BaseException | None = None
    _interruptions: int = 0
    _next_attempt_at: float = 0.0
    _received_bytes: int = 0
    _last_report: float = 0.0

    def run(self, *, fresh: bool = False) -> CompleteDownload:
        """Download the file; if that fails (ArtifactError), keep the received bytes for the next attempt."""
        for number in range(_MAX_VERSIONS):
            try:
                return self._download_version(resume=number == 0 and not fresh)
            except SourceChangeError as error:
                self.progress.note(self.name, f"changed at its source ({error}): starting again")
        message = f"changed {_MAX_VERSIONS} times while it was fetched: {self.remote.url}"
        raise ArtifactError(self.name, message, "Wait until it is no longer being written.")

    def _download_version(self, *, resume: bool) -> CompleteDownload:
        def report_check(done: int, total: int) -> None:
            self.progress.hash_progress(self.name, done, total)

        previous_attempt = Partial.resume(self.folder, self.remote.url, report_check) if resume else None
        with ExitStack() as stack:
            partial, file = previous_attempt or self._request_first_part(stack)
            stack.callback(partial.close)
            present_bytes = sum(span.size for span in partial.spans)
            if previous_attempt:
                self._require_space(file.size or 0, present_bytes)
            self._received_bytes = present_bytes
            self.progress.download_progress(self.name, present_bytes, file.size)
            if file.size is not None:
                self._download_missing_parts(partial, file, file.size)
        return CompleteDownload(partial.path, file, present_bytes if previous_attempt else 0)

    def _request_first_part(self, stack: ExitStack) -> tuple[Partial, RemoteFile]:
        """Download the first part, whose response identifies the file; without range support, download all of it."""
        with self.connection_slots:
            failures = 0
            while True:
                self._received_bytes = 0
                partial: Partial | None = None
                try:
                    with self.remote.open(0, self.policy.part_bytes, "") as body:
                        self.folder.mkdir(parents=True, exist_ok=True)
                        if body.file.size is not None:
                            self._require_space(body.file.size)
                        partial = Partial.begin(self.folder, self.remote.url, body.file)
                        stack.callback(partial.close)
                        self._write_first_part(partial, body)
                        return partial, body.file
                except ArtifactError:
                    # Without size and version, the partial cannot be resumed.
                    if partial is not None and not (body.file.size and body.file.version):
                        remove_partial(self.folder)
                    raise
                except TransientError as error:
                    # With ranges, the other parts continue after the last received byte. Otherwise start again.
                    if partial is not None and body.file.accepts_ranges and body.file.size and body.file.version:
                        self._wait_after_failure(error, 0)
                        return partial, body.file
                    # The received bytes do not count as progress, because the next attempt cannot use them.
                    failures += 1
                    remove_partial(self.folder)
                    self._wait_after_failure(error, failures)

    def _require_space(self, size: int, present_bytes: int = 0) -> None:
        """Raise an error if the file is too large; `present_bytes` of it are already on the disk."""
        max_bytes = self.policy.max_bytes
        if max_bytes is not None and size > max_bytes:
            error = f"{self.remote.url} has {format_bytes(size)}, but --max-download allows {format_bytes(max_bytes)}"
            raise ArtifactError(self.name, error, "Allow more with --max-download, if this is the file that you want.")
        require_space(self.folder, self.name, size - present_bytes)

    def _find_max_bytes(self) -> int:
        """Return the maximum size in bytes of a file whose length the server does not report."""
        if self.policy.max_bytes is not None:
            return self.policy.max_bytes
        half = shutil.disk_usage(self.folder).free // 2
        return half if self.pinned else min(half, _MAX_UNVERIFIED_BYTES)

    def _write_first_part(self, partial: Partial, body: Body) -> None:
        file = body.file
        self.progress.download_progress(self.name, 0, file.size)
        end = file.size
        if file.accepts_ranges and end is not None:
            end = min(end, self.policy.part_bytes)
        limit = self._find_max_bytes() if end is None else end
        cursor = _PartCursor(0, limit + (end is None))
        try:
            self._write_blocks(partial, body, cursor, file.size)
        finally:
            partial.spans.append(ByteRange(0, cursor.position))
        if end is not None and cursor.position < end:
            raise TransientError(f"cut off after {format_bytes(cursor.position)} of {format_bytes(end)}")
        if end is None and cursor.position > limit:
            message = f"received more than {format_bytes(limit)} from {self.remote.url}, which does not report a length"
            hint = "Nothing was kept. Allow more with --max-download, if this is the file that you want."
            raise ArtifactError(self.name, message, hint)

    def _download_missing_parts(self, partial: Partial, file: RemoteFile, size: int) -> None:
        """Download all missing parts over several connections."""
        pending: queue.SimpleQueue[ByteRange] = queue.SimpleQueue()
        parts = list(find_missing_blocks(partial.spans, size, self.policy.part_bytes))
        for part in parts:
            pending.put(part)
        # The threads are daemons, so that a run can end without waiting for a silent server.
        workers = [
            threading.Thread(target=self._work, args=(partial, file, pending), name="download", daemon=True)
            for _ in range(min(self.policy.connections, len(parts)))
        ]
        for worker in workers:
            worker.start()
        try:
            for worker in workers:
                worker.join()
        except BaseException:
            # Ctrl-C: leave the files open, because a closed descriptor may be reused while a thread still writes.
            self._stop.set()
            partial.abandon()
            raise
        failure, self._failure = self._failure, None
        self._stop.clear()
        if failure is not None:
            raise failure

    def _work(self, partial: Partial, file: RemoteFile, pending: queue.SimpleQueue[ByteRange]) -> None:
        try:
            with self.connection_slots:
                while not self._stop.is_set():
                    try:
                        part = pending.get_nowait()
                    except queue.Empty:
                        return
                    self._download_part(partial, file, _PartCursor(part.start, part.stop))
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that requested the file
            with self._lock:
                self._failure = self._failure or error
            self._stop.set()

    def _download_part(self, partial: Partial, file: RemoteFile, cursor: _PartCursor) -> None:
        """Download one part; after each failure, continue after the last received byte."""
        failures = 0
        while cursor.position < cursor.stop and not self._stop.is_set():
            start = cursor.position
            self.policy.wait(self._stop, max(0.0, self._next_attempt_at - self.policy.now()))
            try:
                with self.remote.open(start, cursor.stop, file.version) as body:
                    if body.start != start:
                        raise SourceChangeError("the server no longer sends parts")
                    if body.file.size not in (None, file.size):
                        raise SourceChangeError(f"{file.size} bytes became {body.file.size}")
                    self._write_blocks(partial, body, cursor, file.size)
                self._require_complete_part(cursor)
            except TransientError as error:
                failures = 1 if cursor.position > start else failures + 1
                self._wait_after_failure(error, failures)

    def _require_complete_part(self, cursor: _PartCursor) -> None:
        if cursor.position < cursor.stop and not self._stop.is_set():
            raise TransientError(f"cut off after {format_bytes(cursor.position)}")

    def _write_blocks(self, partial: Partial, body: Body, cursor: _PartCursor, size: int | None) -> None:
        """Write blocks up to the part's end; the cursor always has the current position, even after an error."""
        recorded_position, crc32 = cursor.position, 0
        try:
            for block in body.blocks:
                free_bytes = cursor.stop - cursor.position
                if free_bytes <= 0 or self._stop.is_set():
                    break
                data = block[:free_bytes]
                partial.write(cursor.position, data)
                crc32 = zlib.crc32(data, crc32)
                cursor.position += len(data)
                self._count(len(data), size)
                if cursor.position - recorded_position >= _JOURNAL_INTERVAL_BYTES:
                    partial.record_range(ByteRange(recorded_position, cursor.position), crc32)
                    recorded_position, crc32 = cursor.position, 0
        finally:
            if cursor.position > recorded_position:
                partial.record_range(ByteRange(recorded_position, cursor.position), crc32)

    def _count(self, new_bytes: int, size: int | None) -> None:
        with self._lock:
            self._received_bytes += new_bytes
            now = self.policy.now()
            if now - self._last_report < _PROGRESS_INTERVAL_SECONDS and self._received_bytes != size:
                return
            self._last_report, done_bytes = now, self._received_bytes
        self.progress.download_progress(self.name, done_bytes, size)

    def _wait_after_failure(self, error: TransientError, failures: int) -> None:
        """Wait before the next attempt; raise an error after too many failures, or if the server's wait is too long."""
        policy = self.policy
        if failures > policy.retries:
            message = f"{error} ({failures} attempts): {self.remote.url}"
            raise ArtifactError(self.name, message, NETWORK_HINT) from error
        if error.wait is not None and error.wait > policy.longest_wait:
            message = f"{error}, and the server asks to wait {error.wait:.0f} s: {self.remote.url}"
            raise ArtifactError(self.name, message, "Try again after that time.") from error
        jitter = random.uniform(0.5, 1.5)  # noqa: S311 - no secret
        wait = min(policy.longest_backoff, policy.backoff * 2.0 ** min(max(0, failures - 1), 60)) * jitter
        if error.wait is not None:
            wait = error.wait
            # The server is busy, so all connections must wait.
            self._next_attempt_at = max(self._next_attempt_at, policy.now() + wait)
        with self._lock:
            self._interruptions += 1
            may_report = self._interruptions <= _MAX_NOTES
        if may_report:
            suffix = "; more retries are not reported" if self._interruptions == _MAX_NOTES else ""
            retry_text = f"retry {max(1, failures)} of {policy.retries}"
            self.progress.note(self.name, f"{error}; {retry_text} in {wait:.1f} s{suffix}")
        policy.wait(self._stop, wait)


@dataclass(slots=True)
class _PartCursor:
    """The offset of a part's next byte, and the part's end."""

    position: int
    stop: int
