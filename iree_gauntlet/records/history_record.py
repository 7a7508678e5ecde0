"""What a history keeps of each run, an extract of its record; and what all of them say: series, and their changes.

A run's file is one JSON object, and its name is made of when the run was and of the SHA-256 of the file's bytes:

    20261125T064911Z-1f0c9a7be2d34f5a6b7c.json

So one that is damaged is seen, the same run added twice is one file, and histories of several labs are merged by
copying files together. Fields that a reader does not know are passed over; `schema` grows only where a file cannot be
read as before.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Self

from iree_gauntlet.errors import ExitCode, GauntletError
from iree_gauntlet.figures import Figure
from iree_gauntlet.journal_format import explain_unreadable
from iree_gauntlet.recorded import Recorded, RecordError, read_json

if TYPE_CHECKING:
    from collections.abc import Iterable

    from iree_gauntlet.figures import Trend
    from iree_gauntlet.journal_events import MachineFacts


_SCHEMA = 1
_NAME = re.compile(r"(\d{8}T\d{6}Z)-([0-9a-f]{20})\.json\Z")
_STAMP = "%Y%m%dT%H%M%SZ"
# `3.8.0rc20251010`: the day on which that IREE was made.
_DAY = re.compile(r"(?:rc|dev|\+|\.)(20\d{6})\b")
# Verdicts of a comparison in which nothing got worse.
_NO_LOSS = ("same", "faster", "not slower")
# What programs are told of a finding, and of the points next to its step.
_JUDGED = ("kind", "suspected", "won_back", "accepted", "confirmed", "ratio")
_OF_A_POINT = ("run", "time", "iree", "commit", "file")
# Figures by the names of their series.
TRENDS = {figure.row.trend.name: figure for figure in Figure if figure.row.trend}


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
        disturbed: whether other work on the machine spoilt it.
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
    """A model on a target; `device` is IREE's, such as `hip`, `flags` a hash of what it was compiled and run with."""

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
class ConfirmedFigure(Recorded):
    """What a comparison of two IREEs, measured in turns, came to of a figure of a case."""

    case: str
    figure: str
    before: str
    after: str
    verdict: str = ""
    ratio: float | None = None


@dataclass(frozen=True, slots=True)
class _Schema(Recorded):
    """Which fields a file has."""

    schema: int


@dataclass(frozen=True, slots=True)
class HistoryRun(Recorded):
    """A run.

    Attributes:
        time: when it began, ISO 8601 in UTC.
        cases: with what was measured, also of those that failed.
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
    exit_code: ExitCode = ExitCode.OK
    source: str = ""
    more: dict[str, Any] = field(default_factory=dict)
    schema: int = _SCHEMA

    def __post_init__(self) -> None:
        try:
            datetime.fromisoformat(self.time)
        except ValueError as error:
            raise RecordError("time", error) from error
        _ = self.confirms

    @property
    def confirms(self) -> ConfirmedFigure | None:
        """What a confirmation came to; None for another run, ValueError where it cannot be read."""
        found = self.more.get("confirms")
        try:
            return ConfirmedFigure.from_dict(found) if found else None
        except ValueError as error:
            raise RecordError("more.confirms", error) from error

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
    """The run that a file keeps; GauntletError where it is damaged, or from a newer version."""
    found = _NAME.match(name)
    if found is None or _digest(data) != found[2]:
        raise GauntletError(
            f"{name}: its content is not what its name says: it was changed, or cut short",
            "Copy it again from where it came from; the other runs are read as they are.",
        )
    with explain_unreadable(name, "It was written by another program; the other runs are read as they are."):
        content = read_json(data)
        schema = _Schema.from_dict(content).schema
        if schema > _SCHEMA:
            what = f"{name}: written by a newer version (schema {schema}, and this one reads {_SCHEMA})"
            raise GauntletError(what, "Update Gauntlet to see this run; the others are read as they are.")
        return HistoryRun.from_dict(content)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:20]


@dataclass(frozen=True, slots=True, order=True)
class SeriesKey:
    """What belongs together: a figure of a model on a device, with the same flags, on machines that are alike.

    Attributes:
        sku: of the device; empty where the machine is it.
        flags: hash of what it is compiled and run with.
        more_is_better: whether a fall of it is a loss.
    """

    model: str
    submodel: str
    target: str
    figure: str
    sku: str
    flags: str
    machine: str
    more_is_better: bool = False

    @property
    def case(self) -> str:
        """`ocr/detector@cpu`."""
        return f"{self.model}/{self.submodel}" + (f"@{self.target}" if self.target else "")

    @property
    def quantity(self) -> str:
        """What is measured; how it was counted stands behind it in the figure."""
        return self.figure.partition(" ")[0]

    @property
    def trend(self) -> Trend | None:
        """The trend of its figure; None for a figure that others have measured."""
        figure = TRENDS.get(self.quantity)
        return figure.row.trend if figure else None

    @property
    def is_exact(self) -> bool:
        """Whether every change of it counts."""
        return self.trend is not None and not self.trend.noisy

    @property
    def unit(self) -> str:
        """Of its figure; empty for a count, an error, and what is not known."""
        return self.trend.unit if self.trend else ""

    @property
    def title(self) -> str:
        """`ocr/detector@cpu time_ms`."""
        return f"{self.case} {self.figure}"


@dataclass(frozen=True, slots=True)
class Point:
    """A figure of a run.

    Attributes:
        file: of the run in the history.
        commit: of the compiler; empty where it is not known.
        named: how `--iree` names the IREE; empty for one that was only there.
    """

    file: str
    run: str
    time: str
    iree: str
    commit: str
    value: float
    disturbed: bool = False
    golden: float | None = None
    limit: float | None = None
    named: str = ""

    @property
    def version(self) -> str:
        """What is the same for runs of the same IREE; empty where it is not known."""
        return self.commit or self.iree


@dataclass(frozen=True, slots=True)
class IndexedRun:
    """A run of a history, as its index has it.

    Attributes:
        day: of its IREE.
        confirms: a `ConfirmedFigure` as JSON; an empty object for a run that is none.
    """

    file: str
    run: str
    time: str
    day: str
    suite: str
    state: str
    exit_code: int
    source: str
    iree: str
    named: str
    commit_id: str
    confirms: str
    machine: str
    cases: int
    figures: int


@dataclass(frozen=True, slots=True)
class Series:
    """The figures of a key, in their order: by the day of the IREE, then by the time of the run."""

    key: SeriesKey
    points: tuple[Point, ...]


class FindingKind(StrEnum):
    """What a finding is about."""

    REGRESSION = "regression"
    IMPROVEMENT = "improvement"
    DRIFT = "drift"


@dataclass(frozen=True, slots=True)
class Finding:
    """A series that changed.

    Attributes:
        at: index of the first point behind the step; of a drift, behind its best stretch.
        runs: behind the step, up to the next one.
        suspected: whether there are too few of them to be sure.
        p_value: how likely it is where nothing changes, over all series of the report; None where it is exact.
        disturbed: how many points on both sides the machine spoilt.
        won_back: whether the series has come back since.
        confirmed: what `history.confirm` found of it: `slower`, `same`, …; empty where it was not asked.
        ratio: of both, measured in turns; None where it was not asked, or is not known.
        accepted: why somebody says that it is meant; empty where nobody does.
    """

    key: SeriesKey
    kind: FindingKind
    at: int
    before: Point
    after: Point
    old: float
    new: float
    runs: int
    suspected: bool = False
    p_value: float | None = None
    disturbed: int = 0
    won_back: bool = False
    accepted: str = ""
    confirmed: str = ""
    ratio: float | None = None

    @property
    def refuted(self) -> bool:
        """Whether a loss was not there when both IREEs were measured in turns."""
        return self.kind is not FindingKind.IMPROVEMENT and self.confirmed in _NO_LOSS

    @property
    def settled(self) -> bool:
        """Whether nobody has to look at it: a loss that was won back, accepted, or found to be none."""
        return bool(self.won_back or self.accepted or self.refuted)

    @property
    def word(self) -> str:
        """What it is, in a word or two."""
        words = ((self.accepted, "accepted"), (self.refuted, "refuted"), (self.won_back, "won back"))
        settled = next((word for holds, word in words if holds), "")
        return settled or (f"suspected {self.kind}" if self.suspected else str(self.kind))

    @property
    def same_iree(self) -> bool:
        """Whether the runs on both sides have the same IREE: then something else changed."""
        return bool(self.after.version) and self.before.version == self.after.version

    @property
    def change(self) -> float:
        """As a share of the old level; infinite where that was 0."""
        return (self.new - self.old) / abs(self.old) if self.old else math.inf

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        change = self.change
        return {
            **{name: getattr(self.key, name) for name in ("case", "figure", "sku", "machine", "flags")},
            **{name: getattr(self, name) for name in _JUDGED},
            "change": change if math.isfinite(change) else None,
            **{name: getattr(self, name) for name in ("old", "new", "runs", "p_value", "disturbed", "same_iree")},
            "before": {name: getattr(self.before, name) for name in _OF_A_POINT},
            "after": {name: getattr(self.after, name) for name in _OF_A_POINT},
        }


@dataclass(frozen=True, slots=True)
class HistoryOutcome:
    """What a history says; `problems` are of files that could not be read."""

    place: str
    runs: int
    series: tuple[Series, ...]
    findings: tuple[Finding, ...]
    problems: tuple[str, ...] = ()

    @property
    def exit_code(self) -> ExitCode:
        """1 where something got worse, 4 where that is only suspected, 3 where runs could not be read, else 0."""
        found = [ExitCode.INCONCLUSIVE if item.suspected else ExitCode.FAILED for item in self.regressions]
        return ExitCode.worst([*found, *([ExitCode.ERROR] if self.problems else [])])

    @property
    def regressions(self) -> tuple[Finding, ...]:
        """Those that somebody has to look at: losses that were neither won back, accepted nor found to be none."""
        return tuple(item for item in self.findings if item.kind is not FindingKind.IMPROVEMENT and not item.settled)


def select_series(series: Iterable[Series], pattern: str, sku: str) -> tuple[Series, ...]:
    """Those whose title or case fits a glob, of one device; all where both are empty."""
    return tuple(
        item
        for item in series
        if (not pattern or fnmatchcase(item.key.title, pattern) or fnmatchcase(item.key.case, pattern))
        and (not sku or item.key.sku == sku)
    )
