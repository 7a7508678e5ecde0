"""Reading the journals of experiments: JSON lines, append-only, written by a process that may die at any byte.

The writer (`records/event_log.py`) describes the lines. A reader trusts only complete lines. It ignores a last line
without newline, which is truncated and was never acknowledged. A `JournalSchema` declares the events of each kind of
experiment; a reader ignores other events, so that it can read a newer journal.
"""

from __future__ import annotations

import re
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from iree_gauntlet.errors import GauntletError
from iree_gauntlet.journal_events import EndEvent, ExperimentKind, MachineInfo, Opening, Remark, RunOpening, StepStart
from iree_gauntlet.recorded import Recorded, read_json, read_text
from iree_gauntlet.results import Result
from iree_gauntlet.steps import Step

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path


# Name of an experiment's journal, in its folder.
JOURNAL = "journal.jsonl"
# The folder of an explanation, in the folder of its run.
EXPLAIN_FOLDER = "explain"
OPENING = "opening"
# Reading the kind needs only the first bytes of a line, which may have thousands of steps.
_HEAD_BYTES = 4096
_KIND = re.compile(rb'"event": ?"opening",[^{}\[\]]{0,200}?"kind": ?"(\w+)"')
# The first events of journals from before 0.1.0, which had no common opening.
_EARLIER_OPENINGS = ("run", "comparison", "matrix", "bisect", "explain")

OpeningT = TypeVar("OpeningT", bound=Opening)
_Content = TypeVar("_Content", bound=Recorded)


@dataclass(frozen=True, slots=True)
class JournalSchema(Generic[OpeningT]):
    """The events in an experiment's journals, besides starts, remarks and the end.

    Attributes:
        kinds: the kinds of experiments.
        opening: the type of the opening.
        step_events: types of the events about a step, by name; `result` is its result.
        events: types of the events about the experiment, by name.
    """

    kinds: tuple[ExperimentKind, ...]
    opening: type[OpeningT]
    step_events: Mapping[str, type[Recorded]]
    events: Mapping[str, type[Recorded]] = field(default_factory=dict)

    def read(self, folder: Path) -> ExperimentRecord[OpeningT]:
        """Read the journal of a folder, even during writing or after its writer was killed.

        Raises:
            GauntletError: it is missing, of another kind or version, or a line other than its writer's last one is no
                JSON object or lacks a required field.
        """
        record = ExperimentRecord[OpeningT](folder / JOURNAL)
        reader = EventReader(record.path, self)
        for event in reader:
            if isinstance(event.content, self.opening):
                record.openings.append(event.content)
                record.latest, record.end = [], None
            elif isinstance(event.content, EndEvent):
                record.end = event.content
            else:
                record.events.append(event)
                record.latest.append(event)
        record.has_truncated_line = reader.lines.torn
        return record


@dataclass(frozen=True, slots=True)
class JournalEvent:
    """An event of a schema, and its `fields` as written; `step` is empty for an event about the experiment."""

    name: str
    time: str
    step: str
    content: Recorded
    fields: dict[str, Any]


@dataclass(slots=True)
class ExperimentRecord(Generic[OpeningT]):
    """The content of an experiment's journal; `latest` has the events since the last opening.

    Attributes:
        end: None if the experiment was killed, is running, or was resumed and has not ended.
        has_truncated_line: True if a crash truncated a line, which is ignored.
    """

    path: Path
    openings: list[OpeningT] = field(default_factory=list)
    events: list[JournalEvent] = field(default_factory=list)
    latest: list[JournalEvent] = field(default_factory=list)
    end: EndEvent | None = None
    has_truncated_line: bool = False

    @property
    def opening(self) -> OpeningT:
        """The last opening; GauntletError if there is none."""
        if not self.openings:
            raise GauntletError(f"{self.path}: its first line, which describes the command, is missing", _BEGIN_ANEW)
        return self.openings[-1]

    @property
    def state(self) -> str:
        """One of `complete`, `interrupted`, `stopped` (before its last part), `unfinished` (killed or running)."""
        if self.end is None:
            return "unfinished"
        return "interrupted" if self.end.interrupted else "stopped" if self.end.stopped else "complete"

    @property
    def remarks(self) -> list[str]:
        """The remarks since the last opening."""
        return [event.content.text for event in self.latest if isinstance(event.content, Remark)]

    def collect(self, kind: type[_Content], events: list[JournalEvent] | None = None) -> dict[str, _Content]:
        """Collect the last content of a type for each step, from some events or from all."""
        searched_events = self.events if events is None else events
        return {event.step: event.content for event in searched_events if isinstance(event.content, kind)}

    def collect_results(self, kind: type[_Content]) -> dict[str, _Content]:
        """Collect the results by step, without those of steps that were started again afterwards."""
        results: dict[str, _Content] = {}
        for event in self.events:
            if isinstance(event.content, StepStart):
                results.pop(event.step, None)
            elif event.name == "result" and isinstance(event.content, kind):
                results[event.step] = event.content
        return results

    def explain_unreadable(self) -> AbstractContextManager[None]:
        """Explain inconsistent records, as the function of this name does."""
        return explain_unreadable(f"{self.path}: the {self.opening.kind.noun}", _advise(self.opening))


@dataclass(frozen=True, slots=True)
class MoreSteps(Recorded):
    """`steps`: further written steps of a run."""

    steps: tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True)
class WorkerInfo(Recorded):
    """`worker`: a machine of a cluster joins."""

    name: str
    machine: MachineInfo = field(default_factory=MachineInfo)


RUN_JOURNAL = JournalSchema(
    tuple(kind for kind in ExperimentKind if kind.is_run),
    RunOpening,
    {"result": Result, "attempt": Result},
    {"steps": MoreSteps, "worker": WorkerInfo},
)


@dataclass(frozen=True)
class JournalRecord:
    """The content of a run's journal.

    Attributes:
        runs: all openings; a resumed run has more than one.
        steps: the written steps of the last opening and of later `steps` events.
        starts: the time of each step's last start, as written (ISO 8601), by step id.
        results: the last result of each step, by step id; none for a step that a later part repeats.
        result_times: the time of that result (ISO 8601), by step id.
        attempts: failed attempts at each step that has no result yet, by step id.
        end: None if the run was killed, is running, or was resumed and has not ended.
        torn: True if a crash truncated a line, which is ignored.
        workers: machines of a cluster, by the worker's name (`worker` events).
        remarks: important notes (`remark` events), one line each.
    """

    path: Path
    runs: tuple[RunOpening, ...] = ()
    steps: tuple[dict[str, Any], ...] = ()
    starts: dict[str, str] = field(default_factory=dict)
    results: dict[str, Result] = field(default_factory=dict)
    result_times: dict[str, str] = field(default_factory=dict)
    attempts: dict[str, tuple[Result, ...]] = field(default_factory=dict)
    end: EndEvent | None = None
    torn: bool = False
    workers: dict[str, MachineInfo] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

    @property
    def run(self) -> RunOpening:
        """The last opening; an empty one if there is none."""
        return self.runs[-1] if self.runs else RunOpening()

    @cached_property
    def planned(self) -> tuple[Step, ...]:
        """The parsed steps; GauntletError if this version cannot read one."""
        with explain_unreadable(f"{self.path}: a step", _advise(self.run)):
            return tuple(map(Step.from_dict, self.steps))


@contextmanager
def explain_unreadable(subject: str, hint: str) -> Iterator[None]:
    """Raise a GauntletError for an unreadable part of a record, which others may have written or changed."""
    try:
        yield
    except KeyError as error:
        raise GauntletError(f"{subject} cannot be read: it refers to a missing {error}", hint) from error
    except ValueError as error:
        raise GauntletError(f"{subject} cannot be read: {error}", hint) from error


_BEGIN_ANEW = "Start again."


def _advise(opening: Opening | None) -> str:
    version, kind = (opening.version, opening.kind) if opening else ("", ExperimentKind.RUN)
    # The folder of an explanation is inside of the run's folder.
    advice = "remove it and explain again" if kind is ExperimentKind.EXPLAIN else f"start a new {kind.noun}"
    origin = f"It was written by version {version or 'unknown'}: use that version to report on it"
    return f"{origin}; or it was changed afterwards: {advice}."


def read_kind(path: Path) -> ExperimentKind | None:
    """Read the kind of a journal from its first bytes; None if it is missing or has no kind."""
    with suppress(OSError, ValueError), path.open("rb") as stream:
        match = _KIND.search(stream.read(_HEAD_BYTES))
        return ExperimentKind(match[1].decode()) if match else None
    return None


def read_events(path: Path) -> list[dict[str, Any]]:
    """Read the plain events of any log of `records/event_log.py`; errors as in `JournalSchema.read`."""
    return [event for _, event in _LineReader(path)]


def read_journal(path: Path) -> JournalRecord:
    """Read the journal of a run; errors as in `JournalSchema.read`."""
    # Reading the events one by one keeps only the last result of each step in memory.
    reader, record = EventReader(path, RUN_JOURNAL), JournalRecord(path)
    for event in reader:
        record = _add_event(record, event)
    return replace(record, torn=reader.lines.torn)


def _add_event(record: JournalRecord, event: JournalEvent) -> JournalRecord:
    match event.content:
        case RunOpening() as opening:
            for step in opening.again:
                record.attempts[step] = record.results[step].failed_attempts if step in record.results else ()
                for by_step in (record.starts, record.results, record.result_times):
                    by_step.pop(step, None)
            return replace(record, runs=(*record.runs, opening), steps=opening.steps, end=None)
        case MoreSteps(steps):
            return replace(record, steps=(*record.steps, *steps))
        case StepStart():
            record.starts[event.step] = event.time
        case Result() as result:
            _add_result(record, event, result)
        case EndEvent() as end:
            return replace(record, end=end)
        case WorkerInfo(name, machine):
            record.workers[name] = machine
        case Remark(text):
            record.remarks.append(text)
    return record


def _add_result(record: JournalRecord, event: JournalEvent, result: Result) -> None:
    """Add a result, which contains all attempts, or the result of a failed attempt."""
    earlier_attempts = record.attempts.pop(event.step, ())
    if event.name == "attempt":
        same_attempts = (attempt for attempt in earlier_attempts if attempt.attempt_key == result.attempt_key)
        record.attempts[event.step] = (*same_attempts, result)
    else:
        record.result_times[event.step] = event.time
        record.results[event.step] = result


class EventReader(Generic[OpeningT]):
    """An iterator over the events of a journal that its schema declares."""

    def __init__(self, path: Path, schema: JournalSchema[OpeningT]) -> None:
        self._path = path
        self.lines = _LineReader(path)
        self._schema = schema
        self._step_events: dict[str, type[Recorded]] = {"start": StepStart, **schema.step_events}
        self._events: dict[str, type[Recorded]] = {
            OPENING: schema.opening,
            "remark": Remark,
            "end": EndEvent,
            **schema.events,
        }

    def __iter__(self) -> Iterator[JournalEvent]:
        opening: OpeningT | None = None
        for number, fields in self.lines:
            name, step = str(fields.get("event")), ""
            if opening is None and name in _EARLIER_OPENINGS:
                raise explain_earlier(self._path)
            step_type = self._step_events.get(name)
            content_type = step_type or self._events.get(name)
            if content_type is None:
                continue
            try:
                step = read_text(fields, "step") if step_type else ""
                content = content_type.from_dict(fields)
            except ValueError as error:
                subject = f"{self._path}:{number}: the {name} {f'of {step}' if step else 'event'}"
                raise GauntletError(f"{subject} cannot be read: {error}", _advise(opening)) from error
            if isinstance(content, self._schema.opening):
                opening = content
                if opening.kind not in self._schema.kinds:
                    message = (
                        f"{self._path}: describes {opening.kind.description}, not {self._schema.kinds[0].description}"
                    )
                    raise GauntletError(message, f"`gauntlet report {self._path.parent}` shows it.")
            yield JournalEvent(name, str(fields.get("time", "")), step, content, fields)


def explain_earlier(path: Path) -> GauntletError:
    """Return the error for a record of an earlier version."""
    return GauntletError(
        f"{path}: was written by an earlier version, whose records this version cannot read",
        "Use that version to report on it or to resume it, or start again.",
    )


class _LineReader:
    """An iterator over the events of a log with their line numbers; it sets `has_truncated_line`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.torn = False

    def __iter__(self) -> Iterator[tuple[int, dict[str, Any]]]:
        broken_line, reason = 0, ""
        try:
            with self._path.open("rb") as stream:
                for number, line in enumerate(stream, start=1):
                    if not line.strip():
                        continue
                    # A line without a newline is truncated even if it is valid JSON, such as `{"a":1}`: its writer did
                    # not finish it.
                    event = _parse(line) if line.endswith(b"\n") else ""
                    if isinstance(event, str):
                        self.torn = True
                        if event and not broken_line:
                            broken_line, reason = number, event
                        continue
                    # After a truncated line the next complete one is the opening of a resumed experiment; in between
                    # there may be truncated openings.
                    if broken_line and event.get("event") != OPENING:
                        _raise_line_error(self._path, broken_line, f"is not a JSON object: {reason}")
                    broken_line = 0
                    if "time" in event and not _is_time(event["time"]):
                        _raise_line_error(self._path, number, f"has a time that cannot be read: {event['time']!r}")
                    yield number, event
        except FileNotFoundError:
            raise GauntletError(
                f"{self._path}: there is no journal", "name the folder of a run; `runs/` holds one for each run"
            ) from None
        except OSError as error:
            raise GauntletError(f"{self._path}: cannot read the journal: {error.strerror}") from error


def _is_time(value: object) -> bool:
    """Return whether a value is a time with a zone, which readers need to compute with times."""
    try:
        return isinstance(value, str) and datetime.fromisoformat(value).tzinfo is not None
    except ValueError:
        return False


def _parse(line: bytes) -> dict[str, Any] | str:
    """Parse the JSON object of a line; if the line is not a JSON object, return the reason as a string."""
    try:
        event = read_json(line)
    except ValueError as error:
        return str(error)
    return event if isinstance(event, dict) else "it is another type of value"


def _raise_line_error(path: Path, number: int, problem: str) -> NoReturn:
    raise GauntletError(
        f"{path}:{number}: the line {problem}",
        "something other than this toolkit changed it; remove that line to use the rest",
    )
