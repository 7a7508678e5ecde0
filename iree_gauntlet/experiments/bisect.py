"""The `bisect` task: since which release, nightly or build is something as it is?"""

from __future__ import annotations

import contextlib
import sys
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from iree_gauntlet.cases import Stage
from iree_gauntlet.engine.rounds.blocks import evidence_of
from iree_gauntlet.errors import ExitCode, GauntletError
from iree_gauntlet.experiments.bisect_question import (
    EXACT_METRICS,
    ExactJudge,
    Judge,
    Question,
    describe_change,
    describe_cost,
    find_ready,
    keep_bundle,
    list_commits_inside,
    list_nightlies_inside,
    question_before,
    question_of,
    row_of,
    run_candidate,
    run_kept_bundle,
)
from iree_gauntlet.experiments.bisect_timing import RoundsJudge, TimedBlocks
from iree_gauntlet.experiments.experiment import Experiment
from iree_gauntlet.experiments.run import run
from iree_gauntlet.figures import counted, one_line
from iree_gauntlet.measuring.statistics.bisection import CandidateEnd, Search, count_most_tries, most_comparisons
from iree_gauntlet.measuring.statistics.rounds import DEFAULT_ALPHA, DEFAULT_MAX_BLOCKS
from iree_gauntlet.records.bisect_outcome import BISECT_RECORD, BisectFound, BisectRow, Judged
from iree_gauntlet.records.run_folder import free_folder
from iree_gauntlet.settings import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from iree_gauntlet.experiments.run import Chosen
    from iree_gauntlet.progress import Presenter, Progress
    from iree_gauntlet.records.event_log import EventLog
    from iree_gauntlet.requests import BisectRequest, RunRequest
    from iree_gauntlet.toolchains.candidates import Candidate


_FETCH_FOLDER = "fetch"


def bisect(asked: BisectRequest, request: RunRequest, presenter: Presenter) -> ExitCode:
    """Searches, records what was found as it goes, and reports.

    Raises:
        GauntletError: what keeps it from starting.
    """
    experiment = Experiment.find("bisect", BISECT_RECORD, request.folder)
    earlier: dict[str, Judged] = {}
    if experiment.before:
        question, earlier = question_before(experiment.before, asked, request)
    else:
        question = question_of(asked, request)
    opening = question.opening(resumed=experiment.resumed).as_dict()
    with experiment.record(presenter, opening) as log, presenter.progress() as progress:
        if question.asked.bundle:
            keep_bundle(question.asked.bundle, experiment.folder)
        else:
            _fetch(experiment.folder, question.chosen, presenter)
        with _judge(question, experiment, log, progress, presenter) as judge:
            search = BisectSearch(question, judge, log, progress.message, earlier, question.asked.every)
            experiment.code, experiment.problem = search.search()
    return experiment.code


@contextlib.contextmanager
def _judge(
    question: Question, experiment: Experiment, log: EventLog, progress: Progress, presenter: Presenter
) -> Iterator[Judge]:
    """What decides on candidates by the question's metric; Ctrl-C ends what runs for it."""
    chosen, folder = question.chosen, experiment.folder
    if question.metric in EXACT_METRICS:
        metric, chain = question.metric, question.chain
        yield ExactJudge(metric, lambda candidate: run_candidate(candidate, metric, chain, folder, chosen, presenter))
        return
    # With every candidate tried, that many comparisons share the false-alarm rate.
    count = len(question.row)
    comparisons = count - 1 if question.asked.every else most_comparisons(count)
    with experiment.open_session(log, progress) as session:
        if question.asked.bundle:
            supervisor = session.supervisor
            yield ExactJudge(
                question.metric, lambda candidate: run_kept_bundle(candidate, folder, chosen, supervisor, presenter)
            )
            return
        earlier = evidence_of(experiment.read_events())
        source = TimedBlocks(question, session, earlier, presenter)
        yield RoundsJudge(source, comparisons, DEFAULT_ALPHA, DEFAULT_MAX_BLOCKS)


def _fetch(folder: Path, chosen: Chosen, presenter: Presenter) -> None:
    """Fetches what the model needs, once and before any candidate: a download that fails is no candidate's fault."""
    run_dir = free_folder(folder / _FETCH_FOLDER)
    fetched = chosen.within(run_dir, stages=(Stage.FETCH,))
    code = run(fetched, presenter.to(sys.stderr), brief=True).exit_code
    if code is ExitCode.INTERRUPTED:
        raise KeyboardInterrupt
    if code is not ExitCode.OK:
        raise GauntletError("not everything that the model needs could be fetched", f"See {shown(run_dir)}.")


@dataclass(slots=True)
class BisectSearch:
    """A search under way.

    Attributes:
        judged: what an earlier part of this bisect has judged, and this one after it, by label.
    """

    question: Question
    judge: Judge
    log: EventLog
    say: Callable[[str], None]
    judged: dict[str, Judged]
    every: bool
    _begun: bool = False

    def search(self) -> tuple[ExitCode, str]:
        """The exit code, and what kept it from an answer; empty where nothing did."""
        question = self.question
        row = question.row
        self.say(
            f"{question.chain} by {question.metric}: {len(row)} candidates from {row[0].label} "
            f"({'good' if question.good_is_older else 'bad'}) to {row[-1].label} "
            f"({'bad' if question.good_is_older else 'good'})"
        )
        if question.asked.source:
            self.say(describe_cost(row, count_most_tries(len(row)), question.place))
        ends: dict[bool, Judged] = {}
        for bad, candidate in ((False, question.good), (True, question.bad)):
            word = "bad" if bad else "good"
            if candidate.label not in self.judged:
                self.say(f"{candidate.label} ({word} end) …")
                began = time.monotonic()
                self._record(candidate, self.judge.end(question.taken(candidate, self.say), bad=bad), began)
            judged = self.judged[candidate.label]
            ends[bad] = judged
            if judged.value is None:
                return ExitCode.ERROR, f"the {word} end {candidate.label} cannot be judged: {judged.reason}"
            self.say(f"{candidate.label} ({word} end): {judged.text}")
        nothing = self.judge.begin(ends[False], ends[True])
        if nothing:
            return ExitCode.FAILED, nothing
        self._begun = True
        self.log.write("ends", {"search": self._describe_found()})
        self._narrow()
        if question.asked.into:
            self._refine(question.asked.into)
        if (source := question.asked.source or question.asked.into) and not self._state.between:
            self._name_change(source)
        return (ExitCode.INCONCLUSIVE, "") if self._state.between else (ExitCode.OK, "")

    def _narrow(self) -> None:
        """Tries candidates until the change is between two, or nothing more can be said."""
        while (place := self._choose_next()) is not None:
            self._take_step(place)

    def _refine(self, source: str) -> None:
        """Goes on among what lies between the two candidates that were found: nightlies of releases, then commits."""
        if not self._state.between:
            self._go_on(list_nightlies_inside(*self._found_pair, self.question.place, self.say))
        if not self._state.between:
            self._go_on(self._list_commits_inside(source))

    @property
    def _found_pair(self) -> tuple[Candidate, Candidate]:
        """The two candidates that the change lies between, the older one first."""
        row, state = self.question.row, self._state
        return row[state.last_old], row[state.first_new]

    def _list_commits_inside(self, source: str) -> tuple[Candidate, ...]:
        """The commits between the two candidates that were found; says what they cost."""
        old, new = self._found_pair
        place = self.question.place
        commits = self._find_commit(old), self._find_commit(new)
        if not all(commits):
            what = f"the commits of {old.label} and {new.label} are not known"
            raise GauntletError(what, "Search with --source between two of them.")
        inside = list_commits_inside(*commits, source, place)
        if inside:
            cost = describe_cost(inside, count_most_tries(len(inside) + 2), place)
            self.say(f"between {old.label} and {new.label}: {cost}")
        return inside

    def _go_on(self, inside: Sequence[Candidate]) -> None:
        """Puts candidates between the two that were found, and searches among them."""
        if not inside:
            return
        row, state = self.question.row, self._state
        row = (*row[: state.last_old + 1], *inside, *row[state.first_new :])
        self.question = replace(self.question, row=row)
        self.log.write("refined", BisectRow(row=row_of(row)).as_dict())
        self._narrow()

    def _name_change(self, source: str) -> None:
        """Says which commit it was."""
        commit = self._find_commit(self._found_pair[1])
        if commit:
            self.log.write("change", describe_change(commit, source, self.question.place).as_dict())

    def _find_commit(self, candidate: Candidate) -> str:
        """Of the side that is searched; empty where it is not known."""
        return self.judged[candidate.label].toolchain.get(self.question.commit, "")

    @property
    def _state(self) -> Search:
        row = [self.judged.get(candidate.label) for candidate in self.question.row]
        return Search(len(row), {place: self._find_side(judged) for place, judged in enumerate(row) if judged})

    def _choose_next(self) -> int | None:
        state, question, most = self._state, self.question, self.judge.most_comparisons
        compared = sum(found.value is not None for label, found in self.judged.items() if label != question.good.label)
        if most is not None and compared >= most:
            # One more comparison could cost the stated confidence.
            return None
        if state.next is not None or not self.every:
            of_commits = question.asked.source or question.asked.into
            return state.next_of(find_ready(question.row, question.place) if of_commits else ())
        return next(iter(state.untried_anywhere), None)

    def _take_step(self, place: int) -> None:
        candidate = self.question.row[place]
        state = self._state
        if state.untried:
            left = counted(state.tries_left, "step")
            self.say(f"bisecting {counted(len(state.untried), 'candidate')}, about {left} left")
        else:
            self.say(f"trying the other {counted(len(state.untried_anywhere), 'candidate')} too")
        began = time.monotonic()
        judged = self.judge.judge(self.question.taken(candidate, self.say))
        self._record(candidate, judged, began)
        if judged.bad is None:
            self.say(f"{candidate.label}: cannot be judged: {one_line(judged.reason)}")
        else:
            third = ", a third value" if judged.third else ""
            self.say(f"{candidate.label}: {one_line(judged.text)}: {judged.word}{third}")

    def _find_side(self, judged: Judged) -> CandidateEnd:
        if judged.bad is None:
            return CandidateEnd.NEITHER
        return CandidateEnd.NEW if judged.bad == self.question.good_is_older else CandidateEnd.OLD

    def _record(self, candidate: Candidate, judged: Judged, began: float) -> None:
        judged = replace(judged, seconds=round(time.monotonic() - began, 3))
        self.judged[candidate.label] = judged
        fields = {"candidate": candidate.label, **judged.as_dict(), "search": self._describe_found()}
        self.log.write("judged", fields)

    def _describe_found(self) -> dict[str, Any]:
        """What is known of the change; empty before both ends are."""
        if not self._begun:
            return {}
        state = self._state
        label = [candidate.label for candidate in self.question.row]
        found = BisectFound(
            last_old=label[state.last_old],
            first_new=label[state.first_new],
            between=tuple(label[place] for place in state.between),
            over=state.next is None,
            changes=tuple((label[before], label[after]) for before, after in state.changes),
        )
        return found.as_dict()
