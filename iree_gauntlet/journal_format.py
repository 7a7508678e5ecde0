"""Reading the journals of experiments: JSON lines, append-only, written by a process that may die at any byte.

The lines are described where they are written (`records/event_log.py`). A reader trusts a line only when it is whole: a
last line without its newline is torn, was never acknowledged, and is left out. What the events of a kind of experiment
are is declared once, by a `JournalSchema`; events of other names are passed over, so that an older reader can read a
newer journal.
"""

from __future__ import annotations

import re
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from iree_gauntlet.errors import GauntletError
from iree_gauntlet.journal_events import EndEvent, ExperimentKind, MachineFacts, Opening, Remark, RunOpening, StepStart
from iree_gauntlet.recorded import Recorded, read_json, read_text
from iree_gauntlet.results import Result
from iree_gauntlet.steps import Step

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path


# Name of an experiment's journal, in its folder.
JOURNAL = "journal.jsonl"
OPENING = "opening"
# Above these shares of the CPUs' time, other work and other machines of the host disturb what is measured.
BUSY_SHARE = 0.2
STEAL_SHARE = 0.02
# The kind stands in the first bytes of a line that may hold thousands of steps.
_HEAD_BYTES = 4096
_KIND = re.compile(rb'"event": ?"opening",[^{}\[\]]{0,200}?"kind": ?"(\w+)"')
# With which journals of version 0.1.0 began before they had one opening.
_EARLIER_OPENINGS = ("run", "comparison", "matrix", "bisect", "explain")

OpeningT = TypeVar("OpeningT", bound=Opening)
_Content = TypeVar("_Content", bound=Recorded)


@dataclass(frozen=True, slots=True)
class JournalSchema(Generic[OpeningT]):
    """What the journals of an experiment have besides starts, remarks and an end.

    Attributes:
        kinds: of experiments.
        opening: how they begin.
        step_events: the types of events that are about a step, by name; `result` is how it ended.
        events: those of events that are about the whole.
    """

    kinds: tuple[ExperimentKind, ...]
    opening: type[OpeningT]
    step_events: Mapping[str, type[Recorded]]
    events: Mapping[str, type[Recorded]] = field(default_factory=dict)

    def read(self, folder: Path) -> ExperimentRecord[OpeningT]:
        """Read the journal of a folder, also one that is being written or whose writer was killed.

        Raises:
            GauntletError: there is none, it is of another kind or of an earlier version, or a line of it that is not
                the last one of its writer is no JSON object, or lacks what its event needs.
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
        record.torn = reader.lines.torn
        return record


@dataclass(frozen=True, slots=True)
class JournalEvent:
    """An event that a schema has, and its `fields` as written; `step` is empty where it is about the whole."""

    name: str
    time: str
    step: str
    content: Recorded
    fields: dict[str, Any]


@dataclass(slots=True)
class ExperimentRecord(Generic[OpeningT]):
    """What the journal of an experiment says; `latest` has the events since the last opening.

    Attributes:
        end: None for one that was killed, is under way, or was resumed and not ended.
        torn: whether there is a line that was cut short by a crash (it is left out).
    """

    path: Path
    openings: list[OpeningT] = field(default_factory=list)
    events: list[JournalEvent] = field(default_factory=list)
    latest: list[JournalEvent] = field(default_factory=list)
    end: EndEvent | None = None
    torn: bool = False

    @property
    def opening(self) -> OpeningT:
        """The last one; GauntletError for a journal that ends before its first."""
        if not self.openings:
            raise GauntletError(f"{self.path}: does not say what was to be done: its first line is missing", _ANEW)
        return self.openings[-1]

    @property
    def state(self) -> str:
        """`complete`, `interrupted`, `stopped` (before its last part), or `unfinished` (killed, or under way)."""
        if self.end is None:
            return "unfinished"
        return "interrupted" if self.end.interrupted else "stopped" if self.end.stopped else "complete"

    @property
    def remarks(self) -> list[str]:
        """Those since the last opening."""
        return [event.content.text for event in self.latest if isinstance(event.content, Remark)]

    def collect(self, kind: type[_Content], events: list[JournalEvent] | None = None) -> dict[str, _Content]:
        """The last content of a type by step; of some events, or of all."""
        known = self.events if events is None else events
        return {event.step: event.content for event in known if isinstance(event.content, kind)}

    def collect_results(self, kind: type[_Content]) -> dict[str, _Content]:
        """The results by step, without those of steps that have been started again since."""
        results: dict[str, _Content] = {}
        for event in self.events:
            if isinstance(event.content, StepStart):
                results.pop(event.step, None)
            elif event.name == "result" and isinstance(event.content, kind):
                results[event.step] = event.content
        return results

    def explain_unreadable(self) -> AbstractContextManager[None]:
        """As the function, of what does not fit together."""
        return explain_unreadable(f"{self.path}: the {self.opening.kind.noun}", _advise(self.opening))


@dataclass(frozen=True, slots=True)
class MoreSteps(Recorded):
    """`steps`: further steps of a run, as written."""

    steps: tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True)
class WorkerFacts(Recorded):
    """`worker`: a machine of a cluster takes part."""

    name: str
    machine: MachineFacts = field(default_factory=MachineFacts)


RUN_JOURNAL = JournalSchema(
    tuple(kind for kind in ExperimentKind if kind.is_run),
    RunOpening,
    {"result": Result},
    {"steps": MoreSteps, "worker": WorkerFacts},
)


@dataclass(frozen=True)
class JournalRecord:
    """What a journal says.

    Attributes:
        runs: every opening; a resumed run has more than one.
        steps: those of the last opening, and those that it found out later (`steps` events), as written.
        starts: when each step was last started, as written (ISO 8601), by step id.
        results: of each step the last, by step id; none of one that a later part does again.
        result_times: when that was written (ISO 8601), by step id.
        end: None for a run that was killed, is under way, or was resumed and not ended.
        torn: whether there is a line that was cut short by a crash (it is left out).
        workers: machines of a cluster that took part, by the worker's name (`worker` events).
        remarks: what a reader must know (`remark` events), one line each.
    """

    path: Path
    runs: tuple[RunOpening, ...] = ()
    steps: tuple[dict[str, Any], ...] = ()
    starts: dict[str, str] = field(default_factory=dict)
    results: dict[str, Result] = field(default_factory=dict)
    result_times: dict[str, str] = field(default_factory=dict)
    end: EndEvent | None = None
    torn: bool = False
    workers: dict[str, MachineFacts] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

    @property
    def run(self) -> RunOpening:
        """The last opening; an empty one for a journal that ends before its first."""
        return self.runs[-1] if self.runs else RunOpening()

    @cached_property
    def planned(self) -> tuple[Step, ...]:
        """The steps, read; GauntletError where one is none that this version can read."""
        with explain_unreadable(f"{self.path}: a step", _advise(self.run)):
            return tuple(map(Step.from_dict, self.steps))


@contextmanager
def explain_unreadable(what: str, hint: str) -> Iterator[None]:
    """Says (GauntletError) what of a record cannot be read, and why: others may have written or changed it."""
    try:
        yield
    except KeyError as error:
        raise GauntletError(f"{what} cannot be read: {error} is named, and is nowhere in it", hint) from error
    except ValueError as error:
        raise GauntletError(f"{what} cannot be read: {error}", hint) from error


_ANEW = "Begin anew."


def _advise(opening: Opening | None) -> str:
    version, kind = (opening.version, opening.kind) if opening else ("", ExperimentKind.RUN)
    # An explanation has its place in the run's folder.
    again = "remove it and explain anew" if kind is ExperimentKind.EXPLAIN else f"begin a new {kind.noun}"
    written = f"It was written by version {version or 'unknown'}: use that version to report on it"
    return f"{written}; or it was changed since: {again}."


def read_kind(path: Path) -> ExperimentKind | None:
    """What a journal is of, by its first bytes; None where there is none, or it does not say."""
    with suppress(OSError, ValueError), path.open("rb") as stream:
        found = _KIND.search(stream.read(_HEAD_BYTES))
        return ExperimentKind(found[1].decode()) if found else None
    return None


def read_events(path: Path) -> list[dict[str, Any]]:
    """The events of any log that `records/event_log.py` writes, as written; errors as of `JournalSchema.read`."""
    return [event for _, event in _LineReader(path)]


def read_journal(path: Path) -> JournalRecord:
    """Read the journal of a run; errors as of `JournalSchema.read`."""
    # One by one: of ten thousands of events, only what counts in the end is kept.
    reader, found = EventReader(path, RUN_JOURNAL), JournalRecord(path)
    for event in reader:
        found = _take(found, event)
    return replace(found, torn=reader.lines.torn)


def _take(found: JournalRecord, event: JournalEvent) -> JournalRecord:
    match event.content:
        case RunOpening() as opening:
            for step in opening.again:
                for known in (found.starts, found.results, found.result_times):
                    known.pop(step, None)
            return replace(found, runs=(*found.runs, opening), steps=opening.steps, end=None)
        case MoreSteps(steps):
            return replace(found, steps=(*found.steps, *steps))
        case StepStart():
            found.starts[event.step] = event.time
        case Result() as result:
            found.result_times[event.step] = event.time
            found.results[event.step] = result
        case EndEvent() as end:
            return replace(found, end=end)
        case WorkerFacts(name, machine):
            found.workers[name] = machine
        case Remark(text):
            found.remarks.append(text)
    return found


class EventReader(Generic[OpeningT]):
    """The events of a journal that its schema has, read one by one from its `lines`."""

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
                what = f"{self._path}:{number}: the {name} {f'of {step}' if step else 'event'}"
                raise GauntletError(f"{what} cannot be read: {error}", _advise(opening)) from error
            if isinstance(content, self._schema.opening):
                opening = content
                if opening.kind not in self._schema.kinds:
                    what = f"{self._path}: is of {opening.kind.description}, not of {self._schema.kinds[0].description}"
                    raise GauntletError(what, f"`gauntlet report {self._path.parent}` shows it.")
            yield JournalEvent(name, str(fields.get("time", "")), step, content, fields)


def explain_earlier(path: Path) -> GauntletError:
    """The error for what an earlier version has recorded."""
    return GauntletError(
        f"{path}: was written by an earlier version, whose records this one cannot read",
        "Use that version to report on it or to resume it, or begin anew.",
    )


class _LineReader:
    """The events of a log with the numbers of their lines, read as they are asked for, and if one was `torn` so far."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.torn = False

    def __iter__(self) -> Iterator[tuple[int, dict[str, Any]]]:
        broken, why = 0, ""
        try:
            with self._path.open("rb") as stream:
                for number, line in enumerate(stream, start=1):
                    if not line.strip():
                        continue
                    # What follows the last newline was cut short, whatever it looks like: `{"a":1}` may lack nothing
                    # but its newline, but its writer had not got to the end of it.
                    event = _parse(line) if line.endswith(b"\n") else ""
                    if isinstance(event, str):
                        self.torn = True
                        if event and not broken:
                            broken, why = number, event
                        continue
                    # A line that a crash tore is followed by that of a writer who came to resume; by the next whole
                    # one, to be exact: that writer may have been killed in its first line too.
                    if broken and event.get("event") != OPENING:
                        _refuse(self._path, broken, f"is no JSON object: {why}")
                    broken = 0
                    if "time" in event and not _is_time(event["time"]):
                        _refuse(self._path, number, f"has a time that cannot be read: {event['time']!r}")
                    yield number, event
        except FileNotFoundError:
            raise GauntletError(
                f"{self._path}: there is no journal", "name the folder of a run; `runs/` holds one for each run"
            ) from None
        except OSError as error:
            raise GauntletError(f"{self._path}: cannot read the journal: {error.strerror}") from error


def _is_time(value: object) -> bool:
    """Whether it is one with its zone, as logs have them: readers reckon with them."""
    try:
        return isinstance(value, str) and datetime.fromisoformat(value).tzinfo is not None
    except ValueError:
        return False


def _parse(line: bytes) -> dict[str, Any] | str:
    """The object of a line; why, where it is none."""
    try:
        event = read_json(line)
    except ValueError as error:
        return str(error)
    return event if isinstance(event, dict) else "it is another value"


def _refuse(path: Path, number: int, what: str) -> NoReturn:
    """Raises (GauntletError) what is wrong with a line."""
    raise GauntletError(
        f"{path}:{number}: the line {what}",
        "it was changed by something else than this toolkit; remove that line to use the rest of it",
    )
