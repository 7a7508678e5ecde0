"""The record of a bisect, whose steps are candidates, and its outcome: also of one that was killed."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from iree_gauntlet.errors import ExitCode
from iree_gauntlet.journal_events import ExperimentKind, Opening
from iree_gauntlet.journal_format import JOURNAL, JournalSchema
from iree_gauntlet.recorded import UNLESS_DEFAULT, Recorded
from iree_gauntlet.records.compare_record import BlockEvent
from iree_gauntlet.records.outcome import lock_remark

if TYPE_CHECKING:
    from pathlib import Path

    from iree_gauntlet.journal_events import EndEvent
    from iree_gauntlet.journal_format import ExperimentRecord


_REPOSITORY = "https://github.com/iree-org/iree"
BISECT_COMPARE = f"{_REPOSITORY}/compare"
# What `bisect.json` has of a candidate.
_OF_JUDGED = ("bad", "value", "text", "low", "high", "third", "reason", "folder", "toolchain", "seconds")
_COMMIT = re.compile(r"[0-9a-f]{7,40}")


@dataclass(frozen=True, slots=True)
class RowCandidate(Recorded):
    """A candidate: its name for people, and what `--iree` takes."""

    label: str
    iree: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BisectRow(Recorded):
    """`refined`: a longer row, from the oldest to the newest, with what lies between two of its candidates."""

    row: tuple[RowCandidate, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BisectOpening(Opening):
    """How a bisect begins: what is looked for.

    Attributes:
        confidence: how sure an answer is; 1 where it is exact.
        chain: of the one model; the title of a bundle.
        commit: `compiler_commit` or `runtime_commit`, whichever is searched.
    """

    kind: ExperimentKind = ExperimentKind.BISECT
    confidence: float
    metric: str
    chain: str
    good: str
    bad: str
    row: tuple[RowCandidate, ...]
    good_is_older: bool
    commit: str


@dataclass(frozen=True, slots=True)
class BisectFound(Recorded):
    """`search`: what is known of the change, by labels of candidates.

    Attributes:
        between: those between them, which were not judged.
        over: whether nothing more can be said.
        changes: all of them, from and to, where there are several.
    """

    last_old: str
    first_new: str
    between: tuple[str, ...] = ()
    over: bool = False
    changes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Judged(Recorded):
    """`result`: what a candidate came to.

    Attributes:
        third: the value is neither the good end's nor the bad one's.
        bad: whether it is like the bad end; None before it is judged, and where it cannot be.
        value: of the metric; None where there is none. Of times, the ratio to the good end.
        reason: why it cannot be judged; empty where it can.
        confidence: that the judgement is right, as far as noise goes; 1 for what has none.
        low, high: interval of the value; None where it is exact.
        search: what is known of the change by then; None before both ends are.
    """

    bad: bool | None = None
    value: float | None = None
    text: str = ""
    reason: str = ""
    confidence: float = 1.0
    third: bool = False
    low: float | None = None
    high: float | None = None
    folder: str = ""
    toolchain: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    search: BisectFound | None = field(default=None, metadata=UNLESS_DEFAULT)

    @property
    def word(self) -> str:
        """Which end it is like: `good`, `bad`, `nearer to bad`, or a dash where it could not be judged."""
        if self.bad is None:
            return "–"
        return f"{'nearer to ' if self.third else ''}{'bad' if self.bad else 'good'}"

    @property
    def known(self) -> float:
        """The value of an end: one without a value ends the search."""
        if self.value is None:
            raise ValueError(self.reason)
        return self.value


@dataclass(frozen=True, slots=True)
class BisectChange(Recorded):
    """`change`: the commit that made the change, as git describes it; `pull` is the number of its request."""

    commit: str
    date: str
    author: str
    subject: str
    pull: int | None = None

    def __str__(self) -> str:
        return f"{self.commit[:12]} of {self.date} by {self.author}: {self.subject}"

    @property
    def pull_link(self) -> str:
        """Where its request is; empty where its subject names none."""
        return f"{_REPOSITORY}/pull/{self.pull}" if self.pull else ""


BISECT = JournalSchema(
    (ExperimentKind.BISECT,),
    BisectOpening,
    {"block": BlockEvent, "result": Judged},
    {"search": BisectFound, "refined": BisectRow, "change": BisectChange},
)


@dataclass(frozen=True, slots=True)
class BisectOutcome:
    """The result of a bisect.

    Attributes:
        asked: what is looked for, by the command that began it.
        search: what is known of the change; None before both ends are.
        change: the commit that made the change; None where none is known.
        end: None for a bisect that was killed or is under way.
        torn: whether the record has a line that was cut short by a crash (it is left out).
    """

    name: str
    asked: BisectOpening
    judged: dict[str, Judged]
    search: BisectFound | None
    change: BisectChange | None
    end: EndEvent | None
    torn: bool

    @property
    def exit_code(self) -> ExitCode:
        """What the command ended with; ERROR where it did not finish."""
        return self.end.exit_code if self.end else ExitCode.ERROR

    @property
    def labels(self) -> list[str]:
        """All candidates, from the oldest to the newest."""
        return [item.label for item in self.asked.row]

    @property
    def answer(self) -> str:
        """What was found, in a line."""
        if self.end is not None and self.end.problem:
            return self.end.problem
        if not self.search:
            return "the ends are not judged yet"
        old, new, between = self.search.last_old, self.search.first_new, self.search.between
        older, newer = ("good", "bad") if self.asked.good_is_older else ("bad", "good")
        if {old, new} <= self.judged.keys():
            older, newer = self.judged[old].word, self.judged[new].word
        if not between:
            return f"first {newer}: {new}; last {older}: {old}"
        why = "could not be judged" if self.search.over else "not judged"
        return f"between {old} ({older}) and {new} ({newer}); {why}: {', '.join(between)}"

    @property
    def confidence(self) -> str:
        """How sure the answer is; empty where there is none."""
        if not self.search:
            return ""
        share = self.asked.confidence
        return "exact" if share == 1 else f"{100 * share:g} % confidence"

    @property
    def link(self) -> str:
        """The commits of the change; empty where they are not known."""
        if not self.search:
            return ""
        old, new = self.commit_of(self.search.last_old), self.commit_of(self.search.first_new)
        if not (_COMMIT.fullmatch(old) and _COMMIT.fullmatch(new)) or old == new:
            return ""
        return f"{BISECT_COMPARE}/{old}...{new}"

    @property
    def remarks(self) -> list[str]:
        """What a reader should know in addition to the answer."""
        found = lock_remark(self.asked.lock_folder)
        if self.search and len(self.search.changes) > 1:
            words = {label: judged.word for label, judged in self.judged.items()}
            text = "; ".join(f"{one} is {words[one]}, {other} {words[other]}" for one, other in self.search.changes)
            found.append(f"there is more than one change, and the newest is reported: {text}")
        third = [(label, judged.text) for label in self.labels if (judged := self.judged.get(label)) and judged.third]
        if third:
            values = ", ".join(f"{label} ({text})" for label, text in third)
            found.append(f"a third value, neither the good end's nor the bad one's, was taken for the nearer: {values}")
        if self.torn:
            found.append(f"{JOURNAL} has a line that a crash cut short: it is left out")
        if self.end is None:
            found.append("it did not finish: --resume continues it")
        elif self.end.interrupted:
            found.append("it was interrupted: --resume continues it")
        return found

    def commit_of(self, label: str) -> str:
        """IREE's commit of a candidate, of the side that is searched; empty where it is not known."""
        return str(self.judged[label].toolchain.get(self.asked.commit) or "") if label in self.judged else ""

    def as_dict(self) -> dict[str, Any]:
        """What `bisect.json` has."""
        asked, search = self.asked, self.search
        judged = {label: found.as_dict() for label, found in self.judged.items()}
        return {
            "bisect": self.name,
            "answer": self.answer,
            "exit_code": int(self.exit_code),
            **{name: getattr(asked, name) for name in ("metric", "chain", "good", "bad", "good_is_older")},
            "last_old": search.last_old if search else None,
            "first_new": search.first_new if search else None,
            "between": search.between if search else [],
            "changes": search.changes if search else [],
            "confidence": asked.confidence if search else None,
            "commits": self.link or None,
            "change": self.change.as_dict() if self.change else None,
            "remarks": self.remarks,
            "candidates": [
                {**item.as_dict(), "tried": item.label in judged}
                | {name: judged[item.label][name] for name in _OF_JUDGED if item.label in judged}
                for item in asked.row
            ],
        }


def read_bisect_outcome(folder: Path) -> BisectOutcome:
    """What the record in a bisect's folder says; GauntletError where there is none, or it cannot be read."""
    return make_bisect_outcome(BISECT.read(folder))


def make_bisect_outcome(record: ExperimentRecord[BisectOpening]) -> BisectOutcome:
    """What came of a bisect; errors as of `read_bisect_outcome`."""
    # A resumed one is made again by the command that began it.
    asked = replace(record.opening, command=record.openings[0].command)
    rows = record.collect(BisectRow, record.latest)
    if rows:
        asked = replace(asked, row=rows[""].row)
    search: BisectFound | None = None
    for event in record.events:
        match event.content:
            case BisectFound() as found:
                search = found
            case Judged(search=BisectFound() as found):
                search = found
    outcome = BisectOutcome(
        name=record.path.parent.name,
        asked=asked,
        judged=record.collect(Judged),
        search=search,
        change=record.collect(BisectChange).get(""),
        end=record.end,
        torn=record.torn,
    )
    # Others may have written to it: its events have to fit each other.
    with record.explain_unreadable():
        outcome.as_dict()
    return outcome
