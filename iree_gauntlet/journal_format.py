"""Reading a run's journal: JSON lines, append-only, written by a process that may die at any byte.

The lines are described where they are written (`records/event_log.py`). A reader trusts a line only when it is whole: a
last line without its newline is torn, was never acknowledged, and is left out.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NoReturn

from iree_gauntlet.errors import GauntletError
from iree_gauntlet.results import Result
from iree_gauntlet.steps import Step

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path


# Name of a run's journal, in the run's folder.
JOURNAL = "journal.jsonl"
# Above these shares of the CPUs' time, other work and other machines of the host disturb what is measured.
BUSY_SHARE = 0.2
STEAL_SHARE = 0.02


@dataclass(frozen=True, slots=True)
class JournalRecord:
    """What a journal says.

    Attributes:
        runs: every `run` event; a resumed run has more than one.
        steps: the steps of the last `run` event, and those that it found out later (`steps` events), as written.
        starts: when each step was last started, as written (ISO 8601), by step id.
        results: the result of each step last, by step id.
        result_times: when that was written (ISO 8601), by step id.
        end: the `end` event; None for a run that was killed, is under way, or was resumed and not ended.
        torn: whether there is a line that was cut short by a crash (it is left out).
        workers: machines of a cluster that took part, by the worker's name (`worker` events).
        remarks: what a reader must know (`remark` events), one line each.
    """

    path: Path
    runs: tuple[dict[str, Any], ...] = ()
    steps: tuple[dict[str, Any], ...] = ()
    starts: dict[str, str] = field(default_factory=dict)
    results: dict[str, Result] = field(default_factory=dict)
    result_times: dict[str, str] = field(default_factory=dict)
    end: dict[str, Any] | None = None
    torn: bool = False
    workers: dict[str, dict[str, Any]] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

    @property
    def planned(self) -> tuple[Step, ...]:
        """The steps, read.

        Raises:
            GauntletError: one is none that this version can read.
        """
        try:
            return tuple(map(Step.from_dict, self.steps))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            version = self.runs[-1].get("version", "unknown") if self.runs else "unknown"
            raise GauntletError(
                f"{self.path}: the journal cannot be read: {type(error).__name__}: {error}",
                f"it was written by version {version}; use that version to report on it",
            ) from error

    def result_event(self, step: str) -> dict[str, Any]:
        """The `result` event of a step, for another journal."""
        return {"event": "result", "time": self.result_times[step], "step": step, **self.results[step].as_dict()}

    def started_again(self, step: str) -> bool:
        """Whether a later part of a resumed run started a step once more, and has no result of that.

        The two times are compared across the beginning of a part only: within one part a result follows its
        start, whatever the wall clock was set to in between.
        """
        started, ended = self.starts.get(step, ""), self.result_times.get(step, "")
        return any(ended < str(run.get("time", "")) <= started for run in self.runs[1:])


@dataclass(frozen=True, slots=True)
class EventRecord:
    """What a log of events says, in the order of its lines.

    Attributes:
        events: with the numbers of their lines.
        torn: whether there is a line that was cut short by a crash (it is left out).
    """

    path: Path
    events: tuple[tuple[int, dict[str, Any]], ...]
    torn: bool


def read_events(path: Path, opening: str) -> EventRecord:
    """Read a log that `records/event_log.py` writes, also one that is being written or whose writer was killed.

    Args:
        path: the log.
        opening: the event that every writer of it begins with; a line that was cut short may stand before one.

    Raises:
        GauntletError: there is no such log, or a line of it that is not the last one of its writer is no JSON object.
    """
    reader = _LogReader(path, opening)
    return EventRecord(path, tuple(reader), reader.torn)


def read_journal(path: Path) -> JournalRecord:
    """Read a journal, also one that is being written or whose writer was killed.

    Events of an unknown kind are left out, so that an older reader can read a newer journal.

    Raises:
        GauntletError: there is no such journal, or a line of it that is not the last one of its writer
            is no JSON object, lacks what its event needs, or is a result that this version cannot read.
    """
    reader, found = _LogReader(path, "run"), JournalRecord(path)
    runs: list[dict[str, Any]] = []
    steps: list[dict[str, Any]] = []
    end: dict[str, Any] | None = None
    # One by one: of ten thousands of events, only what counts in the end is kept.
    for number, event in reader:
        match event.get("event"):
            case "run" | "steps" as kind:
                if not isinstance(event.get("steps"), list):
                    refuse(path, number, f"is a {kind} event without a list of steps")
                if kind == "run":
                    runs.append(event)
                    steps.clear()
                    end = None
                steps += event["steps"]
            case "start":
                found.starts[_step_of(path, number, event)] = str(event.get("time", ""))
            case "result":
                step = _step_of(path, number, event)
                found.result_times[step] = str(event.get("time", ""))
                try:
                    found.results[step] = Result.from_dict(event)
                except (AttributeError, KeyError, TypeError, ValueError) as error:
                    version = runs[-1].get("version", "unknown") if runs else "unknown"
                    raise GauntletError(
                        f"{path}:{number}: the result of {step} cannot be read: {type(error).__name__}: {error}",
                        f"it was written by version {version}; use that version to report on it",
                    ) from error
            case "end":
                end = event
            case _:
                _take_of_a_cluster(found, event)
    return replace(found, runs=tuple(runs), steps=tuple(steps), end=end, torn=reader.torn)


def _take_of_a_cluster(found: JournalRecord, event: Mapping[str, Any]) -> None:
    if event.get("event") == "worker":
        found.workers[str(event.get("name", ""))] = dict(event.get("machine") or {})
    elif event.get("event") == "remark":
        found.remarks.append(str(event.get("text", "")))


class _LogReader:
    """The events of a log with the numbers of their lines, read as they are asked for.

    Attributes:
        torn: whether a line was torn so far.
    """

    def __init__(self, path: Path, opening: str) -> None:
        self._path = path
        self._opening = opening
        self.torn = False

    def __iter__(self) -> Iterator[tuple[int, dict[str, Any]]]:
        try:
            with self._path.open("rb") as stream:
                yield from self._events(stream)
        except FileNotFoundError:
            raise GauntletError(
                f"{self._path}: there is no journal", "name the folder of a run; `runs/` holds one for each run"
            ) from None
        except OSError as error:
            raise GauntletError(f"{self._path}: cannot read the journal: {error.strerror}") from error

    def _events(self, lines: Iterable[bytes]) -> Iterator[tuple[int, dict[str, Any]]]:
        broken = 0
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            # What follows the last newline was cut short, whatever it looks like: `{"a":1}` may lack nothing but
            # its newline, but its writer had not got to the end of it.
            event = _parse(line) if line.endswith(b"\n") else None
            if event is None:
                self.torn = True
                broken = broken or (number if line.endswith(b"\n") else 0)
                continue
            # A line that a crash tore is followed by that of a writer who came to resume; by the next whole one, to
            # be exact: that writer may have been killed in its first line too.
            if broken and event.get("event") != self._opening:
                refuse(self._path, broken, "is no JSON object")
            broken = 0
            yield number, event


def _parse(line: bytes) -> dict[str, Any] | None:
    """The object of a line; None for what is no strict JSON object."""
    try:
        event = _DECODER.decode(line.decode())
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) else None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)


_DECODER = json.JSONDecoder(parse_constant=_no_constant)


def _step_of(path: Path, number: int, event: dict[str, Any]) -> str:
    step = event.get("step")
    if not isinstance(step, str):
        refuse(path, number, f"is a {event['event']} event without a step")
    return step


def refuse(path: Path, number: int, what: str) -> NoReturn:
    """Raises what is wrong with a line.

    Raises:
        GauntletError: always.
    """
    raise GauntletError(
        f"{path}:{number}: the line {what}",
        "the journal was changed by something else than a run; remove that line to use the rest of it",
    )
