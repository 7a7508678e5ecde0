"""What a history keeps of a run: an extract of its record, small and never changed again.

A file is one JSON object, and its name is made of when the run was and of the SHA-256 of the file's bytes:

    20261125T064911Z-1f0c9a7be2d34f5a6b7c.json

So one that is damaged is seen, the same run added twice is one file, and histories of several labs are merged by
copying files together. Fields that a reader does not know are passed over; `schema` grows only where a file cannot be
read as before.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self

from iree_gauntlet.errors import GauntletError
from iree_gauntlet.recorded import Recorded

if TYPE_CHECKING:
    from iree_gauntlet.journal_events import MachineFacts


_SCHEMA = 1
_NAME = re.compile(r"(\d{8}T\d{6}Z)-([0-9a-f]{20})\.json\Z")
_STAMP = "%Y%m%dT%H%M%SZ"
# `3.8.0rc20251010`: the day on which that IREE was made.
_DAY = re.compile(r"(?:rc|dev|\+|\.)(20\d{6})\b")


@dataclass(frozen=True, slots=True)
class IreeVersion(Recorded):
    """Which IREE: versions as its tools say them, and commits; empty where they are not known.

    Attributes:
        named: how `--iree` names it everywhere (`3.8.0`); empty for one that is only here.
    """

    compiler: str = ""
    compiler_commit: str = ""
    runtime: str = ""
    runtime_commit: str = ""
    named: str = ""

    @property
    def shown(self) -> str:
        """The version, else the commit, else a dash."""
        return self.compiler or self.compiler_commit[:12] or "–"


@dataclass(frozen=True, slots=True)
class HistoryMachine(Recorded):
    """What is stable about a machine: no clock, no load, no name."""

    cpu: str = ""
    cores: int = 0
    memory_bytes: int = 0
    os: str = ""

    @classmethod
    def of(cls, facts: MachineFacts) -> Self:
        """What is stable of what a journal says."""
        return cls(facts.cpu, facts.cores, facts.memory_bytes or 0, facts.os)

    @property
    def shown(self) -> str:
        """`AMD EPYC, 2 cores, Linux 6.18`; a dash where nothing is known."""
        cores = f"{self.cores} cores" if self.cores else ""
        return ", ".join(filter(None, (self.cpu, cores, self.os))) or "–"


@dataclass(frozen=True, slots=True)
class HistoryFigure(Recorded):
    """What was measured of a case.

    Attributes:
        name: `time_ms`, `compile_s`, `compile_peak_bytes`, `size_bytes`, `dispatches`, `max_error`, or another one.
        statistic: of the rounds, `mean` or `min`; empty where there are none.
        rounds: that it was made of.
        disturbed: whether other work on the machine spoilt it.
        golden: what it is held against; None for nothing.
        limit: up to which it passes; None for none.
        more_is_better: whether a fall of it is a loss.
        flags: hash of what it was made with, where that is not what its case was.
    """

    name: str
    value: float
    statistic: str = ""
    rounds: tuple[float, ...] = ()
    disturbed: bool = False
    golden: float | None = None
    limit: float | None = None
    more_is_better: bool = False
    flags: str = ""


@dataclass(frozen=True, slots=True)
class HistoryCase(Recorded):
    """A model on a target.

    Attributes:
        device: IREE's, such as `hip`.
        flags: hash of what it was compiled and run with.
        reason: where it did not pass.
    """

    model: str
    submodel: str
    target: str
    sku: str = ""
    device: str = ""
    flags: str = ""
    verdict: str = ""
    reason: str = ""
    figures: tuple[HistoryFigure, ...] = ()


@dataclass(frozen=True, slots=True)
class HistoryRun(Recorded):
    """A run.

    Attributes:
        time: when it began, ISO 8601 in UTC.
        cases: with what was measured, also of those that failed.
        iree: that it was made with.
        machine: that it was made on.
        suite: that was run; empty for none.
        command: that made it.
        state: `complete`, `interrupted`, `unfinished`, `imported`, or `confirmation` of a step.
        source: who wrote the figures: `gauntlet 0.1.0`, or the format that they were imported from.
        more: what an imported file says besides; of a confirmation, `confirms`.
    """

    run: str
    time: str
    cases: tuple[HistoryCase, ...]
    iree: IreeVersion = IreeVersion()
    machine: HistoryMachine = HistoryMachine()
    suite: str = ""
    command: str = ""
    state: str = "complete"
    exit_code: int = 0
    source: str = ""
    more: dict[str, Any] = field(default_factory=dict)
    schema: int = _SCHEMA

    @property
    def position(self) -> tuple[str, str]:
        """Where it stands in the order of a series: by the day of its IREE where that is known, then by time."""
        day = _DAY.search(self.iree.compiler)
        return (day[1] if day else self.time[:10].replace("-", ""), self.time)


def history_file(run: HistoryRun) -> tuple[str, bytes]:
    """The name and the bytes of a run's file."""
    data = (json.dumps(run.as_dict(), separators=(",", ":"), ensure_ascii=True, allow_nan=False) + "\n").encode()
    return f"{datetime.fromisoformat(run.time).astimezone(UTC):{_STAMP}}-{_digest(data)}.json", data


def is_history_file(name: str) -> bool:
    """Whether a file is named as those of a history are."""
    return _NAME.match(name) is not None


def read_history_file(name: str, data: bytes) -> HistoryRun:
    """The run that a file keeps.

    Raises:
        GauntletError: it is damaged, or from a newer version.
    """
    found = _NAME.match(name)
    if found is None or _digest(data) != found[2]:
        raise GauntletError(
            f"{name}: its content is not what its name says: it was changed, or cut short",
            "Copy it again from where it came from; the other runs are read as they are.",
        )
    try:
        content = json.loads(data)
        if content["schema"] > _SCHEMA:
            what = f"{name}: written by a newer version (schema {content['schema']}, and this one reads {_SCHEMA})"
            raise GauntletError(what, "Update Gauntlet to see this run; the others are read as they are.")
        return HistoryRun.from_dict(content)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise GauntletError(
            f"{name}: no run that this version can read: {type(error).__name__}: {error}",
            "It was written by another program; the other runs are read as they are.",
        ) from error


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:20]
