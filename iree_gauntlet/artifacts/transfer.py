"""Downloads of any size: ranges over several connections, resumed after a kill, tried again after a failure.

One `Transfer` brings one file from one `Remote` into a `Partial`. It knows the server through `Remote`'s
protocol only, and never decides whether the content is the right one: that is checked on the whole file.
"""

from __future__ import annotations

import queue
import random
import shutil
import threading
import time
import zlib
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from iree_gauntlet.artifacts.partial import ByteRange, Partial, discard, find_missing_blocks
from iree_gauntlet.artifacts.publishing import require_space
from iree_gauntlet.artifacts.remote import NETWORK_HINT, Body, ChangedError, Remote, RemoteFile, TransientError
from iree_gauntlet.errors import ArtifactError
from iree_gauntlet.formatting import byte_size

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from iree_gauntlet.progress import Progress


# How much may be lost of what a connection has brought when the process is killed.
_NOTED_BYTES = 4 << 20
_PROGRESS_SECONDS = 0.1
_VERSIONS = 3
_NOTES = 5
# Of a file of which nobody says how long it is, nor which one it must be.
_MOST_UNKNOWN = 10**9


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
