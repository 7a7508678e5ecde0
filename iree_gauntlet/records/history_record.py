"""The extract of a run's record that a history keeps, and the content of a history: series and changes in them.

A run's file is one JSON object, named by the time of the run and the SHA-256 of the file's bytes:

    20261125T064911Z-1f0c9a7be2d34f5a6b7c.json

With such names, damaged files are detected, a run that is added twice gives one file, and histories of several labs are
merged by copying files into one folder. Readers ignore unknown fields. `schema` grows only if old readers would fail.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import statistics
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Self, TypeVar

from iree_gauntlet.errors import ExitCode, GauntletError
from iree_gauntlet.figures import Figure, Statistic
from iree_gauntlet.journal_format import explain_unreadable
from iree_gauntlet.recorded import UNLESS_DEFAULT, Recorded, RecordError, read_json
from iree_gauntlet.records.bisect_outcome import format_bisect_command, format_options, select_chain

if TYPE_CHECKING:
    from collections.abc import Iterable

    from iree_gauntlet.figures import HistoryView
    from iree_gauntlet.journal_events import MachineInfo


_RecordedT = TypeVar("_RecordedT", bound=Recorded)
_SCHEMA = 1
# The state of a file about a collection from CI, which is no run.
COLLECTION = "collection"
# The state of a run from another tool's file.
IMPORTED = "imported"
_FILE_NAME = re.compile(r"(\d{8}T\d{6}Z)-([0-9a-f]{20})\.json\Z")
_TIME_FORMAT = "%Y%m%dT%H%M%SZ"
# Versions such as `3.8.0rc20251010` contain the day on which the IREE was built.
_VERSION_DAY = re.compile(r"(?:rc|dev|\+|\.)(20\d{6})\b")
# The verdicts of a comparison in which nothing got worse.
_REFUTING_VERDICTS = ("same", "faster", "not slower")
# The verdicts of a case whose first attempt failed.
_FAILED_VERDICTS = ("failed", "error", "flaky", "quarantined")
_UNKNOWN = "–"
# After so many runs without a failure, the end of a quarantine is proposed.
_RELEASE_RUNS = 20
# The keys in JSON of a finding, and of the points next to the finding's step.
_FINDING_KEYS = ("kind", "suspected", "accepted", "confirmed", "ratio")
_POINT_KEYS = ("run", "time", "iree", "commit", "file")
# The figures by the names of their series.
FIGURES_BY_SERIES = {figure.row.history.name: figure for figure in Figure if figure.row.history}


@dataclass(frozen=True, slots=True)
class IreeVersion(Recorded):
    """The versions of an IREE, as its tools print them, and the IREE's commits; unknown values are empty.

    Attributes:
        named: the value of `--iree` that means this IREE on any machine (`3.8.0`); empty for a local IREE.
    """

    compiler: str = ""
    compiler_commit: str = ""
    runtime: str = ""
    runtime_commit: str = ""
    named: str = ""

    @property
    def shown(self) -> str:
        """The version; if unknown, the commit; if both are unknown, a dash."""
        return self.compiler or self.compiler_commit[:12] or _UNKNOWN


@dataclass(frozen=True, slots=True)
class HistoryMachine(Recorded):
    """The properties of a machine that do not change (so no clock rate and no load), and not its name."""

    cpu: str = ""
    cores: int = 0
    memory_bytes: int = 0
    os: str = ""

    @classmethod
    def of(cls, facts: MachineInfo) -> Self:
        """Take the stable properties of a journal's machine."""
        return cls(facts.cpu, facts.cores, facts.memory_bytes or 0, facts.os)

    @property
    def shown(self) -> str:
        """The machine in one line: `AMD EPYC, 2 cores, Linux 6.18`; a dash if nothing is known."""
        cores = f"{self.cores} cores" if self.cores else ""
        return ", ".join(filter(None, (self.cpu, cores, self.os))) or "–"


@dataclass(frozen=True, slots=True)
class HistoryFigure(Recorded):
    """A figure of a case.

    Attributes:
        name: `time_ms`, `compile_s`, `compile_peak_bytes`, `size_bytes`, `dispatches`, `max_error`, or another one.
        statistic: the statistic of the rounds, `mean` or `min`; empty without rounds.
        disturbed: True if other work on the machine distorted the value.
        flags: a hash of the flags of the measured module, if they differ from the case's flags.
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

    @property
    def first_value(self) -> float:
        """The value of the first rounds, which further rounds replace if it breaks a golden."""
        if self.golden is None or not self.rounds:
            return self.value
        return min(self.rounds) if self.statistic == Statistic.MIN else statistics.fmean(self.rounds)


@dataclass(frozen=True, slots=True)
class HistoryCase(Recorded):
    """A model on a target (with variants: `cpu+O3`).

    `device` is IREE's device, such as `hip`; `flags` is a hash of compile and run flags; `quarantine` is the place of
    the suite's entry, in force or not.
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
    quarantine: str = field(default="", metadata=UNLESS_DEFAULT)


@dataclass(frozen=True, slots=True)
class FigureConfirmation(Recorded):
    """The result, for a figure of a case, of comparing two IREEs by measuring them in turns."""

    case: str
    figure: str
    before: str
    after: str
    verdict: str = ""
    ratio: float | None = None


@dataclass(frozen=True, slots=True)
class CiOrigin(Recorded):
    """The origin of a run that was collected from CI; of a `collection`, the runs of CI that are settled.

    Attributes:
        source: the repository, folder or bucket: `github:OWNER/REPO`.
        selection: which of its workflows and artifacts were asked for.
        artifact: the identifier of the artifact in its source; empty for a collection.
        settled: runs of CI of which nothing more is to be collected.
        problems: the artifacts that could not be read, with the reasons.
    """

    source: str
    selection: str = field(default="", metadata=UNLESS_DEFAULT)
    artifact: str = field(default="", metadata=UNLESS_DEFAULT)
    name: str = field(default="", metadata=UNLESS_DEFAULT)
    url: str = field(default="", metadata=UNLESS_DEFAULT)
    commit: str = field(default="", metadata=UNLESS_DEFAULT)
    branch: str = field(default="", metadata=UNLESS_DEFAULT)
    date: str = field(default="", metadata=UNLESS_DEFAULT)
    runner: str = field(default="", metadata=UNLESS_DEFAULT)
    settled: tuple[str, ...] = field(default=(), metadata=UNLESS_DEFAULT)
    problems: tuple[str, ...] = field(default=(), metadata=UNLESS_DEFAULT)


@dataclass(frozen=True, slots=True)
class _Schema(Recorded):
    """The schema version of a file."""

    schema: int


@dataclass(frozen=True, slots=True)
class HistoryRun(Recorded):
    """A run.

    Attributes:
        time: the start, ISO 8601 in UTC.
        cases: the cases with their figures, including failed cases.
        state: `complete`, `interrupted`, `unfinished`, `imported`, `confirmation` of a step, or `collection`.
        source: the writer of the figures: `gauntlet 0.1.0`, or the format from which they were imported.
        more: the other content of an imported file; in a confirmation, `confirms`; if collected from CI, `collected`.
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
        _ = self.confirms, self.collected

    @property
    def confirms(self) -> FigureConfirmation | None:
        """The result of a confirmation; None for other runs; ValueError if the result cannot be read."""
        return self._read_more("confirms", FigureConfirmation)

    @property
    def collected(self) -> CiOrigin | None:
        """The origin in CI; None for other runs; ValueError if it cannot be read."""
        return self._read_more("collected", CiOrigin)

    def _read_more(self, name: str, kind: type[_RecordedT]) -> _RecordedT | None:
        fields = self.more.get(name)
        try:
            return kind.from_dict(fields) if fields else None
        except ValueError as error:
            raise RecordError(f"more.{name}", error) from error

    @property
    def position(self) -> tuple[str, str]:
        """The sort key in a series: first the IREE's day (if unknown, the run's day), then the run's time."""
        day = _VERSION_DAY.search(self.iree.compiler)
        return (day[1] if day else self.time[:10].replace("-", ""), self.time)


def make_history_file(run: HistoryRun) -> tuple[str, bytes]:
    """Return the name and the bytes of a run's file."""
    content = (json.dumps(run.as_dict(), separators=(",", ":"), ensure_ascii=True, allow_nan=False) + "\n").encode()
    return f"{datetime.fromisoformat(run.time).astimezone(UTC):{_TIME_FORMAT}}-{_digest(content)}.json", content


def is_history_file(name: str) -> bool:
    """Return True if a file is named like those of a history."""
    return _FILE_NAME.match(name) is not None


def read_history_file(name: str, content: bytes) -> HistoryRun:
    """Read the run from a file; GauntletError if the file is damaged, or has a newer schema."""
    name_match = _FILE_NAME.match(name)
    if name_match is None or _digest(content) != name_match[2]:
        raise GauntletError(
            f"{name}: its content does not match its name: it was changed or truncated",
            "Copy it again from its source; the other runs are read.",
        )
    with explain_unreadable(name, "It was written by another program; the other runs are read."):
        fields = read_json(content)
        schema = _Schema.from_dict(fields).schema
        if schema > _SCHEMA:
            message = f"{name}: written by a newer version (schema {schema}, but this version reads {_SCHEMA})"
            raise GauntletError(message, "Update Gauntlet to read this run; the others are read.")
        return HistoryRun.from_dict(fields)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:20]


@dataclass(frozen=True, slots=True, order=True)
class SeriesKey:
    """The key of comparable figures: those of a model on a device, with the same flags, on machines that are alike.

    Attributes:
        sku: the device's SKU; empty if the device is the machine itself.
        flags: a hash of the flags that the model is compiled and run with.
        more_is_better: True if a decrease is a loss.
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
        """The chain: `ocr/detector@cpu`."""
        return f"{self.model}/{self.submodel}" + (f"@{self.target}" if self.target else "")

    @property
    def selection(self) -> dict[str, list[str]]:
        """The values of the options that select the case: its model, submodel, target and variants."""
        return select_chain(self.case)

    @property
    def selection_options(self) -> tuple[str, ...]:
        """The words of a command line that select the case."""
        return format_options(self.selection)

    @property
    def quantity(self) -> str:
        """The measured quantity: the figure's name without the counter after it."""
        return self.figure.partition(" ")[0]

    @property
    def history_view(self) -> HistoryView | None:
        """The figure's view in a history; None for a figure that other tools measured."""
        figure = FIGURES_BY_SERIES.get(self.quantity)
        return figure.row.history if figure else None

    @property
    def bisect_metric(self) -> str:
        """The metric by which `bisect` searches for a change of the figure; empty if there is none."""
        figure = FIGURES_BY_SERIES.get(self.figure)
        return figure.row.metric if figure else ""

    @property
    def is_exact(self) -> bool:
        """True if every change of the figure counts."""
        return self.history_view is not None and not self.history_view.noisy

    @property
    def unit(self) -> str:
        """The unit of the figure; empty for counts, errors and unknown figures."""
        return self.history_view.unit if self.history_view else ""

    @property
    def title(self) -> str:
        """The case and the figure: `ocr/detector@cpu time_ms`."""
        return f"{self.case} {self.figure}"


@dataclass(frozen=True, slots=True)
class Point:
    """A figure of a run.

    Attributes:
        file: the run's file in the history.
        commit: the compiler's commit; empty if unknown.
        iree_arg: the value of `--iree` that names the IREE; empty for a local IREE.
        first_value: the value before further rounds that confirmed a breach of the golden, or did not, replaced it;
            None if unknown.
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
    iree_arg: str = ""
    first_value: float | None = None

    @property
    def dated_iree(self) -> str:
        """The IREE, with the run's day unless its version contains a day: `3.9.0, run 2026-03-01`."""
        return self.iree if _VERSION_DAY.search(self.iree) else f"{self.iree}, run {self.time[:10]}"

    @property
    def version(self) -> str:
        """The commit or version that runs of the same IREE share; empty if unknown."""
        return self.commit or self.iree


@dataclass(frozen=True, slots=True)
class RunIndexEntry:
    """A run of a history, in the form of the history's index.

    Attributes:
        day: the day of the run's IREE.
        confirms: a `Confirmation` as JSON; an empty object for a run that confirms nothing.
        skus: the SKUs of its cases, with commas; empty if no case has one.
        collected: the origin in CI as JSON; an empty object for a run that was not collected.
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
    skus: str
    cases: int
    figures: int
    collected: str = "{}"


@dataclass(frozen=True, slots=True)
class Series:
    """The figures of a key, in order of the IREE's day, then of the run's time."""

    key: SeriesKey
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class VerdictPoint:
    """The verdict on a case in a run."""

    run: str
    time: str
    iree: str
    commit: str
    verdict: str
    reason: str
    quarantine: str

    @property
    def is_failure(self) -> bool:
        """True if the first attempt did not succeed, whatever its repetitions and quarantine made of it."""
        return self.verdict in _FAILED_VERDICTS

    @property
    def version(self) -> str:
        """The commit or version of the IREE; empty if unknown."""
        return self.commit or self.iree.removeprefix(_UNKNOWN)


@dataclass(frozen=True, slots=True)
class FailureRate:
    """The share of runs in which a case failed, on machines that are alike.

    Attributes:
        kind: `flaky` if the case passed and failed with the same IREE, `failed` if it has failed in every run since its
            first failure, otherwise `passed`.
        runs, failures: the number of runs, and of those in which the first attempt failed.
        low, high: the interval that contains the probability of a failure with 95 % confidence (Wilson).
        first, last: the first and the last failure; None without any.
        passes_in_a_row: the number of newest runs without a failure.
        quarantine: the place of the newest run's entry in a suite; empty for none.
    """

    case: str
    sku: str
    machine: str
    kind: str
    runs: int
    failures: int
    low: float
    high: float
    first: VerdictPoint | None
    last: VerdictPoint | None
    passes_in_a_row: int
    quarantine: str

    @property
    def needs_notice(self) -> bool:
        """True if the case fails, is flaky, or is in quarantine."""
        return self.kind != "passed" or bool(self.quarantine)

    @property
    def can_be_released(self) -> bool:
        """True if a case in quarantine has passed so often that the entry can be removed."""
        return bool(self.quarantine) and self.passes_in_a_row >= _RELEASE_RUNS


class FindingKind(StrEnum):
    """The kinds of findings."""

    REGRESSION = "regression"
    IMPROVEMENT = "improvement"
    DRIFT = "drift"


@dataclass(frozen=True, slots=True)
class Finding:
    """A series that changed.

    Attributes:
        index: the index of the first point after the step; for a drift, of the first point after the best stretch.
        runs: the number of runs after the step, up to the next step.
        today: the newest level of the series; that of the change (`new`) if it is the newest one.
        suspected: True if so few runs cannot prove a change.
        p_value: the probability of such a step without a change, over all series of the report; None if exact.
        disturbed: the number of disturbed points on both sides.
        until, undone: the last point with the change's level, if others follow; True if nothing of the change is left.
        confirmed: the verdict of `history.confirm`: `slower`, `same`, …; empty if not confirmed.
        ratio: the ratio of the two IREEs, measured in turns; None if not measured or unknown.
        accepted: the reason that somebody gave for accepting the change; empty if it was not accepted.
    """

    key: SeriesKey
    kind: FindingKind
    index: int
    point_before: Point
    point_after: Point
    old: float
    new: float
    runs: int
    today: float
    suspected: bool = False
    p_value: float | None = None
    disturbed: int = 0
    until: Point | None = None
    undone: bool = False
    accepted: str = ""
    confirmed: str = ""
    ratio: float | None = None

    @property
    def is_refuted(self) -> bool:
        """True if measuring both IREEs in turns did not show the loss."""
        return self.kind is not FindingKind.IMPROVEMENT and self.confirmed in _REFUTING_VERDICTS

    @property
    def needs_action(self) -> bool:
        """True if somebody has to examine the finding: a loss that was neither won back, nor accepted, nor refuted."""
        return self.kind is not FindingKind.IMPROVEMENT and not (self.undone or self.accepted or self.is_refuted)

    @property
    def bisect_command(self) -> str:
        """The command that finds the release of a loss; empty if none is needed or possible."""
        ends = self.point_before.iree_arg, self.point_after.iree_arg
        return format_bisect_command(ends, self.key.bisect_metric, self.key.case) if self.needs_action else ""

    @property
    def label(self) -> str:
        """The label of the finding's state, in a word or two."""
        undone_label = "lost again" if self.kind is FindingKind.IMPROVEMENT else "won back"
        labels = ((self.accepted, "accepted"), (self.is_refuted, "refuted"), (self.undone, undone_label))
        settled_label = next((label for applies, label in labels if applies), "")
        return settled_label or (f"suspected {self.kind}" if self.suspected else str(self.kind))

    @property
    def same_iree(self) -> bool:
        """True if the runs on both sides have the same IREE, so that something else must have changed."""
        return bool(self.point_after.version) and self.point_before.version == self.point_after.version

    @property
    def change(self) -> float:
        """The change as a fraction of the old level; infinite if the old level was 0."""
        return (self.new - self.old) / abs(self.old) if self.old else math.inf

    def as_dict(self) -> dict[str, Any]:
        """Return the finding for JSON."""
        change = self.change
        return {
            **{name: getattr(self.key, name) for name in ("case", "figure", "sku", "machine", "flags")},
            **{name: getattr(self, name) for name in _FINDING_KEYS},
            "won_back": self.undone and self.kind is not FindingKind.IMPROVEMENT,
            "change": change if math.isfinite(change) else None,
            "today": self.today,
            "until": self.until and {name: getattr(self.until, name) for name in _POINT_KEYS},
            **{name: getattr(self, name) for name in ("old", "new", "runs", "p_value", "disturbed", "same_iree")},
            "before": {name: getattr(self.point_before, name) for name in _POINT_KEYS},
            "after": {name: getattr(self.point_after, name) for name in _POINT_KEYS},
        }


@dataclass(frozen=True, slots=True)
class HistoryOutcome:
    """The content of a history; `problems` are about files that could not be read."""

    location: str
    runs: int
    series: tuple[Series, ...]
    findings: tuple[Finding, ...]
    problems: tuple[str, ...] = ()
    rates: tuple[FailureRate, ...] = ()

    @property
    def exit_code(self) -> ExitCode:
        """1 if something got worse, 4 if a loss is only suspected, 3 if runs could not be read, else 0."""
        codes = [ExitCode.INCONCLUSIVE if finding.suspected else ExitCode.FAILED for finding in self.regressions]
        return ExitCode.worst([*codes, *([ExitCode.ERROR] if self.problems else [])])

    @property
    def regressions(self) -> tuple[Finding, ...]:
        """The losses that somebody has to examine."""
        return tuple(finding for finding in self.findings if finding.needs_action)


def select_series(series: Iterable[Series], pattern: str, sku: str) -> tuple[Series, ...]:
    """Select the series of one device whose title or case matches a glob; an empty `pattern` or `sku` matches all."""
    return tuple(
        candidate
        for candidate in series
        if (not pattern or fnmatchcase(candidate.key.title, pattern) or fnmatchcase(candidate.key.case, pattern))
        and (not sku or candidate.key.sku == sku)
    )
