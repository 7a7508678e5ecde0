"""Reading a run's journal: JSON lines, append-only, written by a process that may die at any byte.

The lines are described where they are written (`running/event_log.py`, `running/journal.py`). A reader trusts a line
only when it is whole: a last line without its newline is torn, was never acknowledged, and is left out.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from iree_gauntlet.errors import GauntletError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["EventRecord", "JournalRecord", "read_events", "read_journal"]


@dataclass(frozen=True, slots=True)
class JournalRecord:
    """What a journal says.

    Attributes:
        path: the journal.
        runs: every `run` event; a resumed run has more than one.
        steps: the steps of the last `run` event, and those that it found out later (`steps` events).
        starts: when each step was last started, as written (ISO 8601), by step id.
        results: each step's last `result` event, by step id.
        end: the `end` event; None for a run that was killed, is under way, or was resumed and not ended.
        torn: whether there is a line that was cut short by a crash (it is left out).
    """

    path: Path
    runs: tuple[dict[str, Any], ...] = ()
    steps: tuple[dict[str, Any], ...] = ()
    starts: dict[str, str] = field(default_factory=dict)
    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    end: dict[str, Any] | None = None
    torn: bool = False


@dataclass(frozen=True, slots=True)
class EventRecord:
    """What a log of events says, in the order of its lines.

    Attributes:
        path: the log.
        events: with the numbers of their lines.
        torn: whether there is a line that was cut short by a crash (it is left out).
    """

    path: Path
    events: tuple[tuple[int, dict[str, Any]], ...]
    torn: bool

    def refuse(self, number: int, what: str) -> NoReturn:
        """Raise what is wrong with a line.

        Raises:
            GauntletError: always.
        """
        _refuse(self.path, number, what)


def read_events(path: Path, opening: str) -> EventRecord:
    """Read a log that `running/event_log.py` writes, also one that is being written or whose writer was killed.

    Args:
        path: the log.
        opening: the event that every writer of it begins with; a line that was cut short may stand before one.

    Raises:
        GauntletError: there is no such log, or a line of it that is not the last one of its writer is no JSON object.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise GauntletError(
            f"{path}: there is no journal",
            "name the folder of a run; `runs/` holds one for each run",
        ) from None
    except OSError as error:
        raise GauntletError(f"{path}: cannot read the journal: {error.strerror}") from error
    events, torn = _events(path, data, opening)
    return EventRecord(path, tuple(events), torn)


def read_journal(path: Path) -> JournalRecord:
    """Read a journal, also one that is being written or whose writer was killed.

    Events of an unknown kind are left out, so that an older reader can read a newer journal.

    Raises:
        GauntletError: there is no such journal, or a line of it that is not the last one of its writer
            is no JSON object, or lacks what its event needs.
    """
    record = read_events(path, "run")
    runs: list[dict[str, Any]] = []
    steps: list[dict[str, Any]] = []
    starts: dict[str, str] = {}
    results: dict[str, dict[str, Any]] = {}
    end: dict[str, Any] | None = None
    for number, event in record.events:
        match event.get("event"):
            case "run" | "steps" as kind:
                if not isinstance(event.get("steps"), list):
                    _refuse(path, number, f"is a {kind} event without a list of steps")
                if kind == "run":
                    runs.append(event)
                    steps.clear()
                    end = None
                steps += event["steps"]
            case "start":
                starts[_step_of(path, number, event)] = str(event.get("time", ""))
            case "result":
                results[_step_of(path, number, event)] = event
            case "end":
                end = event
    return JournalRecord(path, tuple(runs), tuple(steps), starts, results, end, record.torn)


def _events(path: Path, data: bytes, opening: str) -> tuple[list[tuple[int, dict[str, Any]]], bool]:
    """The events with their line numbers, and whether a line was torn."""
    lines = data.split(b"\n")
    # What follows the last newline was cut short, whatever it looks like: `{"a":1}` may lack nothing but
    # its newline, but its writer had not got to the fsync that makes it count.
    torn = bool(lines.pop().strip())
    events: list[tuple[int, dict[str, Any]]] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        event = _parse(line)
        if event is not None:
            events.append((number, event))
        elif _healed(lines[number:], opening):
            torn = True
        else:
            _refuse(path, number, "is no JSON object")
    return events, torn


def _parse(line: bytes) -> dict[str, Any] | None:
    """The object of a line; None for what is no strict JSON object."""
    try:
        event = json.loads(line, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) else None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _healed(following: list[bytes], opening: str) -> bool:
    """Whether a broken line was torn by a crash: then a writer who came to resume wrote the next one.

    The next whole one, to be exact: that writer may have been killed in its first line too. With no whole
    line after it, the journal ends in torn lines.
    """
    event = next(filter(None, map(_parse, following)), None)
    return event is None or event.get("event") == opening


def _step_of(path: Path, number: int, event: dict[str, Any]) -> str:
    step = event.get("step")
    if not isinstance(step, str):
        _refuse(path, number, f"is a {event['event']} event without a step")
    return step


def _refuse(path: Path, number: int, what: str) -> NoReturn:
    raise GauntletError(
        f"{path}:{number}: the line {what}",
        "the journal was changed by something else than a run; remove that line to use the rest of it",
    )
