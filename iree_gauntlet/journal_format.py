"""Reading a run's journal: JSON lines, append-only, written by a process that may die at any byte.

The lines are described where they are written (`records/event_log.py`). A reader trusts a line only when it is whole: a
last line without its newline is torn, was never acknowledged, and is left out.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

from iree_gauntlet.errors import GauntletError
from iree_gauntlet.journal_events import EndEvent, MachineFacts, RunEvent
from iree_gauntlet.recorded import read_json
from iree_gauntlet.results import Result
from iree_gauntlet.steps import Step

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


# Name of a run's journal, in the run's folder.
JOURNAL = "journal.jsonl"
# Above these shares of the CPUs' time, other work and other machines of the host disturb what is measured.
BUSY_SHARE = 0.2
STEAL_SHARE = 0.02
# The texts that an event has to have.
_NEEDED = {"start": ("step",), "result": ("step",)}


@dataclass(frozen=True)
class JournalRecord:
    """What a journal says.

    Attributes:
        runs: every `run` event; a resumed run has more than one.
        steps: the steps of the last `run` event, and those that it found out later (`steps` events), as written.
        starts: when each step was last started, as written (ISO 8601), by step id.
        results: of each step the last, by step id.
        result_times: when that was written (ISO 8601), by step id.
        end: None for a run that was killed, is under way, or was resumed and not ended.
        torn: whether there is a line that was cut short by a crash (it is left out).
        workers: machines of a cluster that took part, by the worker's name (`worker` events).
        remarks: what a reader must know (`remark` events), one line each.
    """

    path: Path
    runs: tuple[RunEvent, ...] = ()
    steps: tuple[dict[str, Any], ...] = ()
    starts: dict[str, str] = field(default_factory=dict)
    results: dict[str, Result] = field(default_factory=dict)
    result_times: dict[str, str] = field(default_factory=dict)
    end: EndEvent | None = None
    torn: bool = False
    workers: dict[str, MachineFacts] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

    @property
    def run(self) -> RunEvent:
        """The last `run` event; an empty one for a journal that has lost it."""
        return self.runs[-1] if self.runs else RunEvent()

    @cached_property
    def planned(self) -> tuple[Step, ...]:
        """The steps, read; GauntletError where one is none that this version can read."""
        with explain_unreadable(f"{self.path}: a step", _advise(self.run)):
            return tuple(map(Step.from_dict, self.steps))

    def result_event(self, step: str) -> dict[str, Any]:
        """The `result` event of a step, for another journal."""
        return {"event": "result", "time": self.result_times[step], "step": step, **self.results[step].as_dict()}

    def started_again(self, step: str) -> bool:
        """Whether a later part of a resumed run started a step once more, and has no result of that.

        The two times are compared across the beginning of a part only: within one part a result follows its
        start, whatever the wall clock was set to in between.
        """
        started, ended = self.starts.get(step, ""), self.result_times.get(step, "")
        return any(ended < run.time <= started for run in self.runs[1:])


@contextmanager
def explain_unreadable(what: str, hint: str) -> Iterator[None]:
    """Says (GauntletError) what of a record cannot be read, and why: others may have written or changed it."""
    try:
        yield
    except KeyError as error:
        raise GauntletError(f"{what} cannot be read: {error} is named, and is nowhere in it", hint) from error
    except ValueError as error:
        raise GauntletError(f"{what} cannot be read: {error}", hint) from error


def _advise(run: RunEvent) -> str:
    version = f"it was written by version {run.version or 'unknown'}: use that version to report on it"
    return f"{version}; or it was changed since: begin a new run"


@dataclass(frozen=True, slots=True)
class EventRecord:
    """What a log of events says, with the numbers of its lines; a `torn` one, cut short by a crash, is left out."""

    path: Path
    events: tuple[tuple[int, dict[str, Any]], ...]
    torn: bool


def read_events(path: Path, opening: str, needed: Mapping[str, tuple[str, ...]] | None = None) -> EventRecord:
    """Read a log that `records/event_log.py` writes, also one that is being written or whose writer was killed.

    A line that was cut short may stand before an `opening`, the event that every writer begins with. `needed` has the
    texts that events have to have, by their kind.

    Raises:
        GauntletError: there is no such log, or a line of it lacks a text, or is no JSON object and not the last one of
            its writer.
    """
    reader = _LogReader(path, opening, needed or {})
    return EventRecord(path, tuple(reader), reader.torn)


def read_journal(path: Path) -> JournalRecord:
    """Read a journal, also one that is being written or whose writer was killed.

    Events of an unknown kind are left out, so that an older reader can read a newer journal.

    Raises:
        GauntletError: there is no such journal, or a line of it that is not the last one of its writer
            is no JSON object, lacks what its event needs, or is one that this version cannot read.
    """
    reader, found = _LogReader(path, "run", _NEEDED), JournalRecord(path)
    # One by one: of ten thousands of events, only what counts in the end is kept.
    for number, event in reader:
        kind = event.get("event")
        if kind in ("run", "steps") and not isinstance(event.get("steps"), list):
            _refuse(path, number, f"is a {kind} event without a list of steps")
        what = f"the result of {event['step']}" if kind == "result" else f"the {kind} event"
        with explain_unreadable(f"{path}:{number}: {what}", _advise(found.run)):
            found = _take(found, event)
    return replace(found, torn=reader.torn)


def _take(found: JournalRecord, event: dict[str, Any]) -> JournalRecord:
    match event:
        case {"event": "run", "steps": steps}:
            return replace(found, runs=(*found.runs, RunEvent.from_dict(event)), steps=tuple(steps), end=None)
        case {"event": "steps", "steps": steps}:
            return replace(found, steps=(*found.steps, *steps))
        case {"event": "start", "step": step}:
            found.starts[step] = str(event.get("time", ""))
        case {"event": "result", "step": step}:
            found.result_times[step] = str(event.get("time", ""))
            found.results[step] = Result.from_dict(event)
        case {"event": "end"}:
            return replace(found, end=EndEvent.from_dict(event))
        case {"event": "worker"}:
            found.workers[str(event.get("name", ""))] = MachineFacts.from_dict(event.get("machine") or {})
        case {"event": "remark"}:
            found.remarks.append(str(event.get("text", "")))
    return found


class _LogReader:
    """The events of a log with the numbers of their lines, read as they are asked for, and if one was `torn` so far."""

    def __init__(self, path: Path, opening: str, needed: Mapping[str, tuple[str, ...]]) -> None:
        self._path = path
        self._opening = opening
        self._needed = needed
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
                    if broken and event.get("event") != self._opening:
                        _refuse(self._path, broken, f"is no JSON object: {why}")
                    broken = 0
                    if lacking := _find_lacking(event, self._needed):
                        _refuse(self._path, number, lacking)
                    yield number, event
        except FileNotFoundError:
            raise GauntletError(
                f"{self._path}: there is no journal", "name the folder of a run; `runs/` holds one for each run"
            ) from None
        except OSError as error:
            raise GauntletError(f"{self._path}: cannot read the journal: {error.strerror}") from error


def _find_lacking(event: dict[str, Any], needed: Mapping[str, tuple[str, ...]]) -> str:
    """What an event lacks that readers rely on; empty for nothing."""
    if "time" in event and not _is_time(event["time"]):
        return f"has a time that cannot be read: {event['time']!r}"
    texts = needed.get(str(event.get("event")), ())
    lacking = [name for name in texts if not isinstance(event.get(name), str)]
    return f"is a {event['event']} event without a {lacking[0]}" if lacking else ""


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
