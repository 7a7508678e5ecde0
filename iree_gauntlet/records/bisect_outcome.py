"""The record of a bisect, `bisect.jsonl` in its folder, and its outcome: also of one that was killed."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from iree_gauntlet.errors import ExitCode, GauntletError
from iree_gauntlet.journal_events import ExperimentEnd, ExperimentOpening
from iree_gauntlet.journal_format import explain_unreadable, read_events
from iree_gauntlet.recorded import UNLESS_DEFAULT, Recorded
from iree_gauntlet.records.outcome import lock_remark

if TYPE_CHECKING:
    from pathlib import Path


BISECT_RECORD = "bisect.jsonl"
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
class BisectOpening(ExperimentOpening):
    """`bisect`: what is looked for; a resumed bisect appends another one.

    Attributes:
        confidence: how sure an answer is; 1 where it is exact.
        lock_folder: of the machine's locks, where they are not the user's own.
        chain: of the one model; the title of a bundle.
        asked: the options that a resumed bisect keeps.
        commit: `compiler_commit` or `runtime_commit`, whichever is searched.
    """

    resumed: bool = False
    confidence: float
    lock_folder: str = field(default="", metadata=UNLESS_DEFAULT)
    metric: str
    chain: str
    good: str
    bad: str
    row: tuple[RowCandidate, ...]
    good_is_older: bool
    asked: dict[str, Any]
    commit: str


@dataclass(frozen=True, slots=True)
class Judged(Recorded):
    """`judged`: the result of a candidate, with its label and what is known of the change by then.

    Attributes:
        third: the value is neither the good end's nor the bad one's.
        bad: whether it is like the bad end; None before it is judged, and where it cannot be.
        value: of the metric; None where there is none. Of times, the ratio to the good end.
        reason: why it cannot be judged; empty where it can.
        confidence: that the judgement is right, as far as noise goes; 1 for what has none.
        low, high: interval of the value; None where it is exact.
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
class BisectFound(Recorded):
    """What is known of the change, by labels of candidates.

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
class BisectChange(Recorded):
    """The commit that made the change, as git describes it; `pull` is the number of its request."""

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
    end: ExperimentEnd | None
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
            found.append(f"{BISECT_RECORD} has a line that a crash cut short: it is left out")
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


def bisect_outcome(folder: Path) -> BisectOutcome:
    """What the record in a bisect's folder says; GauntletError where there is none, or it cannot be read."""
    record = read_events(folder / BISECT_RECORD, "bisect", {"judged": ("candidate",)})
    hint = "It was written by another version of this toolkit, or changed; start a new bisect."
    asked: BisectOpening | None = None
    judged: dict[str, Judged] = {}
    search: BisectFound | None = None
    change: BisectChange | None = None
    end: ExperimentEnd | None = None
    for number, event in record.events:
        with explain_unreadable(f"{record.path}:{number}: the {event.get('event')} event", hint):
            match event:
                case {"event": "bisect"}:
                    # A resumed one is made again by the command that began it.
                    opening, end = BisectOpening.from_dict(event), None
                    asked = replace(opening, command=(asked or opening).command)
                case {"event": "refined"} if asked:
                    asked = replace(asked, row=BisectRow.from_dict(event).row)
                case {"event": "change"}:
                    change = BisectChange.from_dict(event)
                case {"event": "judged", "candidate": label}:
                    judged[label] = Judged.from_dict(event)
                case {"event": "end"}:
                    end = ExperimentEnd.from_dict(event)
            if event.get("search"):
                search = BisectFound.from_dict(event["search"])
    if asked is None:
        raise GauntletError(f"{record.path}: does not say what was looked for", "Start a new bisect.")
    outcome = BisectOutcome(folder.name, asked, judged, search, change, end, record.torn)
    # Others may have written to it: its events have to fit each other.
    with explain_unreadable(f"{record.path}: the bisect", hint):
        outcome.as_dict()
    return outcome
