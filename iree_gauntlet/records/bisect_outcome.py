"""The record of a bisection, whose steps are candidates, and the outcome, even of a killed bisection."""

from __future__ import annotations

import itertools
import math
import re
import shlex
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from iree_gauntlet.errors import ExitCode
from iree_gauntlet.journal_events import ExperimentKind, Opening
from iree_gauntlet.journal_format import JOURNAL, JournalSchema
from iree_gauntlet.recorded import UNLESS_DEFAULT, Recorded
from iree_gauntlet.records.compare_record import BlockEvent
from iree_gauntlet.records.outcome import list_lock_remarks
from iree_gauntlet.targets import parse_target
from iree_gauntlet.variants import FlagVariant  # noqa: TC001 - read at run time

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from iree_gauntlet.journal_events import EndEvent
    from iree_gauntlet.journal_format import ExperimentRecord


_REPOSITORY = "https://github.com/iree-org/iree"
COMMIT_COMPARISON_URL = f"{_REPOSITORY}/compare"
# The keys of a candidate in `bisect.json`, from its result.
_CANDIDATE_KEYS = ("bad", "value", "text", "low", "high", "third", "reason", "folder", "toolchain", "seconds")
_COMMIT = re.compile(r"[0-9a-f]{7,40}")
_RELEASE = re.compile(r"\d+\.\d+\.\d+\w*")


def format_bisect_command(ends: Sequence[str], metric: str, chain: str) -> str:
    """Return the command that finds the release of a change; empty unless the ends are two releases."""
    if len(set(filter(_RELEASE.fullmatch, ends))) != 2:
        return ""
    good, bad = ends
    return CandidateRow(good, bad).format_command(metric, chain)


def select_chain(chain: str) -> dict[str, list[str]]:
    """Return the values of the options that select a chain: its model, submodel, target and variants.

    The place of an operator suite's chain is the name of a config, and no target.
    """
    name, _, place = chain.partition("@")
    model, _, submodel = name.rpartition("/")
    target, *variants = place.split("+")
    return {
        "model": [model],
        "submodel": [submodel],
        "target": [target] if parse_target(target) else [],
        "variant": variants,
    }


def format_options(options: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return options and their values as words of a command line."""
    return tuple(word for name, values in options.items() for text in values for word in (f"--{name}", text))


@dataclass(frozen=True, slots=True)
class CandidateRow(Recorded):
    """The ends of a row of candidates, and what lies between them, as the options of `bisect` say it.

    Attributes:
        among: the candidates, if they are named.
        nightlies: True if they are nightlies.
        source: the checkout whose commits they are.
        into: the checkout whose commits are searched next, between two candidates.
        packages: True if commits are installed, and not built, where IREE's CI has packages of them.
    """

    good: str
    bad: str
    among: tuple[str, ...] = ()
    nightlies: bool = False
    source: str = ""
    into: str = ""
    packages: bool = False

    def format_command(
        self, metric: str, chain: str, variants: Sequence[str] = (), spec_dirs: Sequence[str] = ()
    ) -> str:
        """Return the command of a bisection by a metric; empty without one, or if nothing lies between the ends."""
        if not metric or (self.among and {*self.among} <= {self.good, self.bad}):
            return ""
        options = {"good": [self.good], "bad": [self.bad], "among": self.among}
        options |= {name: [text] for name, text in (("source", self.source), ("into", self.into)) if text}
        options |= {"metric": [metric], "spec-dir": spec_dirs, **select_chain(chain)}
        options["variant"] = [*options["variant"], *variants]
        switches = {"--nightlies": self.nightlies, "--packages": self.packages}
        return shlex.join(("gauntlet", "bisect", *format_options(options), *filter(switches.get, switches)))


@dataclass(frozen=True, slots=True)
class RowCandidate(Recorded):
    """A candidate: its name for people, and the value that `--iree` takes."""

    label: str
    iree: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateRefinement(Recorded):
    """`refined`: a longer row, from the oldest to the newest, with the candidates between two of the previous row.

    If flags are searched: another row, which has the flags that are kept on and more and more of the others.
    """

    row: tuple[RowCandidate, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BisectOpening(Opening):
    """The opening of a bisection: the ends and the metric of the search.

    Attributes:
        confidence: the required confidence of an answer; 1 for an exact metric.
        chain: the one model's chain, or the title of a bundle.
        commit: the searched commit: `compiler_commit` or `runtime_commit`.
        variant: if flags are searched, the variant that has them; a candidate's label has their numbers (`1-3+5`).
        flags: these flags in order, each as a variant of its own.
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
    variant: FlagVariant | None = field(default=None, metadata=UNLESS_DEFAULT)
    flags: tuple[FlagVariant, ...] = field(default=(), metadata=UNLESS_DEFAULT)


@dataclass(frozen=True, slots=True)
class SearchRange(Recorded):
    """`search`: the range that contains the change, as labels of candidates.

    Attributes:
        between: the candidates inside the range, which were not judged.
        over: True if no further candidate can be judged.
        changes: if there are several changes, all of them, as pairs of labels (old and new).
    """

    last_old: str
    first_new: str
    between: tuple[str, ...] = ()
    over: bool = False
    changes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class CandidateResult(Recorded):
    """`result`: the judgement of a candidate.

    Attributes:
        third: True if the value is like neither end's value.
        bad: True if the candidate is like the bad end; None if it is not judged yet, or cannot be judged.
        value: the metric's value, for times the ratio to the good end; None if unknown.
        reason: the reason why the candidate cannot be judged; empty if it can.
        confidence: the probability that noise did not cause the judgement; 1 for a metric without noise.
        low, high: the interval of the value; None for an exact value.
        search: the state of the search after this result; None before both ends are judged.
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
    search: SearchRange | None = field(default=None, metadata=UNLESS_DEFAULT)

    @property
    def verdict_text(self) -> str:
        """The end that the candidate is like: `good`, `bad`, `nearer to bad`, or a dash if it was not judged."""
        if self.bad is None:
            return "–"
        return f"{'nearer to ' if self.third else ''}{'bad' if self.bad else 'good'}"

    @property
    def end_value(self) -> float:
        """The value of an end; ValueError if it has none, which ends the search."""
        if self.value is None:
            raise ValueError(self.reason)
        return self.value


@dataclass(frozen=True, slots=True)
class BisectChange(Recorded):
    """`change`: the commit that made the change, as git describes it; `pull` is the number of its pull request."""

    commit: str
    date: str
    author: str
    subject: str
    pull: int | None = None

    def __str__(self) -> str:
        return f"{self.commit[:12]} of {self.date} by {self.author}: {self.subject}"

    @property
    def pull_link(self) -> str:
        """The URL of the commit's pull request; empty if the subject names none."""
        return f"{_REPOSITORY}/pull/{self.pull}" if self.pull else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagAnswer(Recorded):
    """`found`: the flags that make the difference, as on a command line; `label` is the candidate that has them.

    Attributes:
        is_least: True if the difference is gone without any one of them; False if not all of this could be judged.
    """

    label: str
    flags: tuple[str, ...]
    is_least: bool


BISECT = JournalSchema(
    (ExperimentKind.BISECT,),
    BisectOpening,
    {"block": BlockEvent, "result": CandidateResult},
    {"search": SearchRange, "refined": CandidateRefinement, "change": BisectChange, "found": FlagAnswer},
)


@dataclass(frozen=True, slots=True)
class BisectOutcome:
    """The result of a bisection.

    Attributes:
        opening: the opening, with the command that first started the bisection.
        search: the range that contains the change; None before both ends are judged.
        change: the commit that made the change; None if unknown.
        found: the flags that make the difference; None if they are not found or not searched.
        end: None if the bisection was killed or is running.
        has_truncated_line: True if a crash truncated a line of the record; the line is ignored.
    """

    name: str
    opening: BisectOpening
    results: dict[str, CandidateResult]
    search: SearchRange | None
    change: BisectChange | None
    found: FlagAnswer | None
    end: EndEvent | None
    has_truncated_line: bool

    @property
    def exit_code(self) -> ExitCode:
        """The command's exit code; ERROR if the bisection did not finish."""
        return self.end.exit_code if self.end else ExitCode.ERROR

    @property
    def labels(self) -> list[str]:
        """The labels of all candidates, from the oldest to the newest."""
        return [candidate.label for candidate in self.opening.row]

    @property
    def answer(self) -> str:
        """The answer in one line."""
        if self.end is not None and self.end.problem:
            return self.end.problem
        if not self.search:
            return "the ends are not judged yet"
        if self.opening.flags:
            return self._flag_answer
        old, new, unjudged_labels = self.search.last_old, self.search.first_new, self.search.between
        older_verdict, newer_verdict = ("good", "bad") if self.opening.good_is_older else ("bad", "good")
        if {old, new} <= self.results.keys():
            older_verdict, newer_verdict = self.results[old].verdict_text, self.results[new].verdict_text
        if not unjudged_labels:
            return f"first {newer_verdict}: {new}; last {older_verdict}: {old}"
        state = "could not be judged" if self.search.over else "not judged"
        return f"between {old} ({older_verdict}) and {new} ({newer_verdict}); {state}: {', '.join(unjudged_labels)}"

    @property
    def _flag_answer(self) -> str:
        if not (self.found and self.found.flags):
            return "the flags that make the difference are not found yet"
        *others, last = self.found.flags
        difference = self._describe_part(self.results.get(self.found.label))
        if not others:
            return f"{last} alone makes {difference}"
        suffix = "none of them can be left out" if self.found.is_least else "not all smaller sets could be judged"
        return f"{', '.join(others)} and {last} together make {difference}; {suffix}"

    def _describe_part(self, result: CandidateResult | None) -> str:
        """Describe which part of the difference between the ends the found flags make."""
        if result is None or not result.third:
            return "the difference"
        value, good, bad = (
            end.value if end and end.value is not None else math.nan
            for end in (result, self.results.get(self.opening.good), self.results.get(self.opening.bad))
        )
        is_beyond_bad = (value - bad) * (bad - good) > 0
        return "more than the whole difference" if is_beyond_bad else "most of the difference"

    @property
    def confidence(self) -> str:
        """The confidence of the answer; empty without an answer."""
        if not self.search:
            return ""
        confidence = self.opening.confidence
        return "exact" if confidence == 1 else f"{100 * confidence:g} % confidence"

    @property
    def link(self) -> str:
        """The URL that compares the commits around the change; empty if the commits are unknown."""
        if not self.search:
            return ""
        old, new = self.get_commit(self.search.last_old), self.get_commit(self.search.first_new)
        if not (_COMMIT.fullmatch(old) and _COMMIT.fullmatch(new)) or old == new:
            return ""
        return f"{COMMIT_COMPARISON_URL}/{old}...{new}"

    @property
    def remarks(self) -> list[str]:
        """The notes that a reader needs besides the answer."""
        remarks = list_lock_remarks(self.opening.lock_folder)
        if self.search and len(self.search.changes) > 1:
            verdicts = {label: result.verdict_text for label, result in self.results.items()}
            changes = "; ".join(f"{old} is {verdicts[old]}, {new} {verdicts[new]}" for old, new in self.search.changes)
            fact = "there is more than one change, and the newest is reported"
            remarks.append(f"{'more flags do not always make it worse' if self.opening.flags else fact}: {changes}")
        thirds = [(label, result.text) for label in self.labels if (result := self.results.get(label)) and result.third]
        if thirds:
            shown_values = ", ".join(f"{label} ({text})" for label, text in thirds)
            remarks.append(
                f"a third value, neither the good end's nor the bad one's, was taken for the nearer: {shown_values}"
            )
        if self.has_truncated_line:
            remarks.append(f"{JOURNAL} has a line that a crash cut short: it is left out")
        if self.end is None:
            remarks.append("it did not finish: --resume continues it")
        elif self.end.interrupted:
            remarks.append("it was interrupted: --resume continues it")
        return remarks

    def get_commit(self, label: str) -> str:
        """Return the commit of a candidate's compiler or runtime, whichever is searched; empty if unknown."""
        return str(self.results[label].toolchain.get(self.opening.commit) or "") if label in self.results else ""

    def as_dict(self) -> dict[str, Any]:
        """Return the content of `bisect.json`."""
        opening, search = self.opening, self.search
        results = {label: result.as_dict() for label, result in self.results.items()}
        return {
            "bisect": self.name,
            "answer": self.answer,
            "exit_code": int(self.exit_code),
            **{name: getattr(opening, name) for name in ("metric", "chain", "good", "bad", "good_is_older")},
            "last_old": search.last_old if search else None,
            "first_new": search.first_new if search else None,
            "between": search.between if search else [],
            "changes": search.changes if search else [],
            "confidence": opening.confidence if search else None,
            "commits": self.link or None,
            "change": self.change.as_dict() if self.change else None,
            **self._describe_flags(),
            "remarks": self.remarks,
            "candidates": [
                {**candidate.as_dict(), "tried": candidate.label in results}
                | {name: results[candidate.label][name] for name in _CANDIDATE_KEYS if candidate.label in results}
                for candidate in opening.row
            ],
        }

    def _describe_flags(self) -> dict[str, Any]:
        """Return what `bisect.json` has if flags were searched."""
        variant, found = self.opening.variant, self.found
        if variant is None:
            return {}
        return {
            "variant": variant.name,
            "flags": [flag.changes for flag in self.opening.flags],
            "found": list(found.flags) if found else None,
            "found_is_least": found.is_least if found else None,
        }


def read_bisect_outcome(folder: Path) -> BisectOutcome:
    """Read the outcome from a bisection's folder; GauntletError if there is no readable record."""
    return make_bisect_outcome(BISECT.read(folder))


def make_bisect_outcome(record: ExperimentRecord[BisectOpening]) -> BisectOutcome:
    """Make the outcome from a bisection's record; GauntletError if events contradict each other."""
    # To repeat a resumed bisection, one repeats the command that first started it.
    opening = replace(record.opening, command=record.openings[0].command)
    events = record.events if opening.flags else record.latest
    rows = [event.content.row for event in events if isinstance(event.content, CandidateRefinement)]
    if opening.flags:
        # Each row has other sets of flags.
        opening = replace(opening, row=tuple(dict.fromkeys(itertools.chain(opening.row, *rows))))
    elif rows:
        opening = replace(opening, row=rows[-1])
    search: SearchRange | None = None
    for event in record.events:
        match event.content:
            case SearchRange() as state:
                search = state
            case CandidateResult(search=SearchRange() as state):
                search = state
    outcome = BisectOutcome(
        name=record.path.parent.name,
        opening=opening,
        results=record.collect(CandidateResult),
        search=search,
        change=record.collect(BisectChange).get(""),
        found=record.collect(FlagAnswer).get(""),
        end=record.end,
        has_truncated_line=record.has_truncated_line,
    )
    # Check that the events fit each other, because another program may have written to the record.
    with record.explain_unreadable():
        outcome.as_dict()
    return outcome
