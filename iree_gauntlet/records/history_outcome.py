"""What a history says: its series, where they change, and what could not be read."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from iree_gauntlet.errors import ExitCode
from iree_gauntlet.recorded import Recorded

if TYPE_CHECKING:
    from collections.abc import Iterable


# Figures of which every change counts: they have no noise.
_EXACT = ("size_bytes", "dispatches", "max_error", "instructions")
# Verdicts of a comparison in which nothing got worse.
_NO_LOSS = ("same", "faster", "not slower")
# What programs are told of a finding, and of the points next to its step.
_JUDGED = ("kind", "suspected", "won_back", "accepted", "confirmed", "ratio")
_OF_A_POINT = ("run", "time", "iree", "commit", "file")
UNITS = {"time_ms": "ms", "compile_s": "s", "compile_peak_bytes": "B", "size_bytes": "B"}


@dataclass(frozen=True, slots=True, order=True)
class SeriesKey:
    """What belongs together: a figure of a model on a device, with the same flags, on machines that are alike.

    Attributes:
        figure: `time_ms`, `size_bytes`, …
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
    def is_exact(self) -> bool:
        """Whether every change of it counts."""
        return self.quantity in _EXACT

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
        cases, figures: how many.
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
class ConfirmedFigure(Recorded):
    """What a comparison of two IREEs, measured in turns, came to of a figure of a case."""

    case: str
    figure: str
    before: str
    after: str
    verdict: str = ""
    ratio: float | None = None


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
        before, after: the points next to the step.
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
    """What a history says.

    Attributes:
        place: where it is.
        problems: files that could not be read, with why.
    """

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


def selected(series: Iterable[Series], pattern: str, sku: str) -> tuple[Series, ...]:
    """Those whose title or case fits a glob, of one device; all where both are empty."""
    return tuple(
        item
        for item in series
        if (not pattern or fnmatchcase(item.key.title, pattern) or fnmatchcase(item.key.case, pattern))
        and (not sku or item.key.sku == sku)
    )
