"""Append-only logs of events (one JSON object a line) that survive a crash at any byte, and merging of several logs.

Every event has `event` and `time` (ISO 8601, UTC, milliseconds). When the call returns, a `NOW` line is on the disk,
and a `SOON` line has been passed to the kernel, in one write for each line. Lines of both kinds survive the death of
this process by any signal. A power cut may lose `SOON` lines of the last 20 ms, or since the previous sync began if the
disk was busy. A `LATER` line is written with the next line, or alone within 20 ms; a power cut or the death of this
process may lose it. `journal_format.py` reads such files.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from dataclasses import is_dataclass, replace
from datetime import UTC, datetime
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Self

from iree_gauntlet.cases import Verdict
from iree_gauntlet.errors import ExitCode, GauntletError
from iree_gauntlet.journal_events import EndEvent
from iree_gauntlet.journal_format import OPENING
from iree_gauntlet.recorded import Recorded
from iree_gauntlet.results import Result
from iree_gauntlet.system.atomic import sync_folder
from iree_gauntlet.system.file_lock import LockFile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from iree_gauntlet.journal_events import RunOpening
    from iree_gauntlet.journal_format import JournalRecord
    from iree_gauntlet.steps import Step


# Many lines share one fsync, because one fsync takes as long as thousands of writes.
_SYNC_SECONDS = 0.02
# Results of steps that take at least this long are synced at once: losing them costs much more than a sync.
_LONG_STEP_SECONDS = 1.0
_STOPPED_REASON = "the run stopped before this step started"


class Sync(Enum):
    """The time by which a line must be on the disk."""

    NOW = auto()  # before the call returns
    SOON = auto()  # within 20 ms, together with other lines
    LATER = auto()  # whenever other lines are synced


class EventLog:
    """The only writer of a log; its methods may be called from several threads.

    Opening creates the file, or continues an existing one: if a crash truncated the last line, the line stays
    unchanged, and the next event starts on a new line. A lock file is next to the log.

    Raises:
        GauntletError: another process writes this log, or the log cannot be written.
    """

    def __init__(self, path: Path, clock: Callable[[], datetime]) -> None:
        self._path = path
        self._clock = clock
        self._mutex = threading.Lock()
        # The sync thread writes the pending lines, syncs if needed, waits for the event, and stores its failure for
        # the next caller.
        self._pending_lines: list[bytes] = []
        self._needs_sync = False
        self._has_work = threading.Event()
        self._closing = threading.Event()
        self._sync_thread: threading.Thread | None = None
        self._failure: GauntletError | None = None
        self._lock = LockFile(path.with_name(f"{path.name}.lock"))
        self._descriptor: int | None = None
        try:
            if not self._lock.try_acquire():
                holders = ", ".join(str(pid) for pid in self._lock.holders()) or "of another run"
                raise GauntletError(
                    f"run {path.parent.name} is being written by process {holders}", "wait for it, or start another run"
                )
            self._descriptor = self._open()
        except OSError as error:
            self._lock.release()
            has_content = path.is_file() and path.stat().st_size > 0
            raise self._explain_unwritable(error, has_content=has_content) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(
        self, event: str, content: Mapping[str, Any] | Recorded, *, step: str = "", sync: Sync = Sync.NOW
    ) -> None:
        """Append an event about a step or the experiment; a dataclass within a mapping is written as its fields.

        Raises:
            GauntletError: the disk is full or gone, and nothing of this event was written; or writing an earlier
                event to the disk has failed.
            TypeError, ValueError: a field cannot be encoded as JSON (NaN and infinity cannot). Nothing is written.
        """
        fields = {"step": step} if step else {}
        fields |= content.as_dict() if isinstance(content, Recorded) else content
        encoded_fields = _ENCODER.encode(fields).encode()
        with self._mutex:
            if self._descriptor is None:
                raise RuntimeError(f"{self._path.name} is closed")
            if self._failure is not None:
                raise self._failure
            # Read the clock inside the lock, so that the lines' times never decrease.
            time = self._clock().astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
            head = f'{{"event":{_ENCODER.encode(event)},"time":"{time}"{"," if fields else ""}'
            line = b"".join((head.encode(), memoryview(encoded_fields)[1:], b"\n"))
            if sync is Sync.LATER:
                self._pending_lines.append(line)
            else:
                self._append(self._descriptor, line, lasting=sync is Sync.NOW)
                self._needs_sync = sync is Sync.SOON
            if sync is not Sync.NOW and not self._has_work.is_set():
                self._has_work.set()
                if self._sync_thread is None:
                    thread = threading.Thread(target=self._sync, name=f"sync {self._path.name}", daemon=True)
                    thread.start()
                    # Set this only now: if Ctrl-C comes before the thread has started, `close` must not wait for it.
                    self._sync_thread = thread

    def close(self) -> None:
        """Write everything to the disk, and release the file and the lock; GauntletError if the writing failed."""
        self._closing.set()
        self._has_work.set()
        if self._sync_thread is not None:
            self._sync_thread.join()
        with self._mutex:
            descriptor, failure = self._descriptor, self._failure
            self._descriptor = self._failure = None
            if descriptor is not None:
                try:
                    self._append(descriptor, b"", lasting=self._needs_sync)
                except GauntletError as error:
                    failure = failure or error
                os.close(descriptor)
            self._lock.release()
        if failure is not None:
            raise failure

    def _sync(self) -> None:
        """Write lines to the kernel and the disk, many at a time, until the log is closed; runs in a thread."""
        while not self._closing.is_set():
            self._has_work.wait()
            self._closing.wait(_SYNC_SECONDS)
            try:
                with self._mutex:
                    self._has_work.clear()
                    needs_sync, self._needs_sync = self._needs_sync, False
                    descriptor = self._descriptor
                    if descriptor is not None:
                        self._append(descriptor, b"", lasting=False)
                # Sync outside of the lock, so that lines may be added meanwhile. The file stays open: only `close`
                # closes it, after waiting for this thread.
                if needs_sync and descriptor is not None:
                    os.fsync(descriptor)
            except (GauntletError, OSError) as error:
                # Store the error for the next caller of `write`, who can act on it.
                self._failure = error if isinstance(error, GauntletError) else self._explain_unwritable(error)

    def _open(self) -> int:
        descriptor = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
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
        """Write the pending lines, then a line."""
        lines = b"".join((*self._pending_lines, line)) if self._pending_lines else line
        written_bytes = 0
        try:
            while written_bytes < len(lines):
                written_bytes += os.write(descriptor, memoryview(lines)[written_bytes:])
            if lasting:
                os.fsync(descriptor)
        except OSError as error:
            # Remove a partial line, which would corrupt the next one; with the lock, no other process writes here.
            has_content = True
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, os.fstat(descriptor).st_size - written_bytes)
                has_content = os.fstat(descriptor).st_size > 0
            if not has_content:
                # Remove an empty file, because there is nothing to resume.
                self._path.unlink(missing_ok=True)
            raise self._explain_unwritable(error, has_content=has_content) from error
        self._pending_lines.clear()

    def _explain_unwritable(self, error: OSError, *, has_content: bool = True) -> GauntletError:
        next_step = "resume the run" if has_content else "run it again: nothing of it has started"
        return GauntletError(
            f"{error.filename or self._path}: cannot write {self._path.name}: {error.strerror}",
            f"free some space or make it writable, then {next_step}",
        )


def _make_object(value: Any) -> dict[str, Any]:
    """Return a dataclass's fields for the encoder, one level at a time, to avoid deep copies of thousands of steps."""
    if not is_dataclass(value):
        raise TypeError(f"{type(value).__name__} is not JSON")
    return {name: getattr(value, name) for name in value.__dataclass_fields__}


_ENCODER = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":"), default=_make_object)


class Journal(EventLog):
    """The only writer of a run's `journal.jsonl`, whose events `RUN_JOURNAL` declares.

    When the call returns, a result has been passed to the kernel, so `kill -9` of this process loses no reported
    result. The plan, the end, and the results of steps of at least a second are then on the disk. Other results share
    a sync within 20 ms, because operator suites have hundreds a second; a power cut may lose them. A start is written
    with the next line, or within 20 ms, so `kill -9` may lose the starts of the newest steps.
    """

    def write_opening(self, opening: RunOpening, steps: Sequence[Step]) -> None:
        """Write the opening of the run, and its planned steps."""
        self.write(OPENING, {**opening.as_dict(), "steps": steps})

    def write_steps(self, steps: Sequence[Step]) -> None:
        """Write steps that were planned after the run's start."""
        self.write("steps", {"steps": steps})

    def write_start(self, step: str) -> None:
        """Write the start of a step; a start is useful only during the run, so losing it does little harm."""
        self.write("start", {}, step=step, sync=Sync.LATER)

    def write_attempt(self, step: str, result: Result) -> None:
        """Write the result of a failed attempt at a step that will be repeated."""
        self.write("attempt", result, step=step)

    def write_result(self, step: str, result: Result) -> None:
        """Write the result of a step."""
        sync = Sync.NOW if result.seconds >= _LONG_STEP_SECONDS else Sync.SOON
        self.write("result", result, step=step, sync=sync)

    def write_end(self, *, exit_code: int, seconds: float, interrupted: bool) -> None:
        """Write the end of the run."""
        self.write("end", EndEvent(exit_code=ExitCode(exit_code), seconds=seconds, interrupted=interrupted))


def merge_journals(opening: RunOpening, steps: Sequence[dict[str, Any]], records: Sequence[JournalRecord]) -> str:
    """Merge the journals of several runs into the journal of one run; the first result of each step counts."""
    starts: dict[str, str] = {}
    results: dict[str, tuple[str, Result]] = {}
    for record in records:
        for step, time in record.starts.items():
            starts[step] = min(time, starts.get(step, time))
        for step, time in record.result_times.items():
            if step not in results or time < results[step][0]:
                results[step] = time, record.results[step]
    for record in records:
        if record.end is not None and not record.end.interrupted:
            # Write the skip as a result: otherwise, if another run was killed, the step would look unfinished.
            for step in (skipped_step.id for skipped_step in record.planned if skipped_step.id not in starts):
                results.setdefault(step, (record.end.time, Result(Verdict.SKIPPED, _STOPPED_REASON)))
    planned_ids = {str(step["id"]) for step in steps}
    step_events = [
        *({"event": "start", "time": time, "step": step} for step, time in starts.items() if step in planned_ids),
        *(
            {"event": "result", "time": time, "step": step, **result.as_dict()}
            for step, (time, result) in results.items()
            if step in planned_ids
        ),
    ]
    step_events.sort(key=lambda event: (str(event["time"]), event["event"] == "result"))
    events = [{"event": OPENING, **replace(opening, steps=tuple(steps)).as_dict()}, *step_events]
    ends = [record.end for record in records if record.end is not None]
    if len(ends) == len(records):
        end = EndEvent(
            time=max(end.time for end in ends),
            exit_code=ExitCode.worst([end.exit_code for end in ends]),
            seconds=max(end.seconds or 0.0 for end in ends),
            interrupted=any(end.interrupted for end in ends),
        )
        events.append({"event": "end", **end.as_dict()})
    return "".join(json.dumps(event, separators=(",", ":")) + "\n" for event in events)
