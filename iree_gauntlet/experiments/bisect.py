"""The `bisect` task: since which release, nightly or build is something as it is?

Of times, each candidate is compared with the good end in interleaved rounds, as `compare` takes them, until it is clear
which end it is like; `measuring/statistics/bisection.py` has the rule and why the whole search keeps to its
false-alarm rate.
"""

from __future__ import annotations

import contextlib
import sys
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from iree_gauntlet.engine.rounds.blocks import (
    AB,
    CONTROL,
    BlockTaker,
    Cpus,
    Pair,
    PairEvidence,
    choose_way,
    evidence_of,
    take_own,
)
from iree_gauntlet.errors import ExitCode, GauntletError
from iree_gauntlet.experiments.bisect_question import (
    EXACT_METRICS,
    ExactJudge,
    Question,
    describe_change,
    describe_cost,
    find_candidate_run,
    find_ready,
    keep_bundle,
    list_nightlies_inside,
    question_of,
    resume_question,
    row_of,
    run_candidate,
    run_kept_bundle,
)
from iree_gauntlet.experiments.experiment import Experiment
from iree_gauntlet.experiments.run import run
from iree_gauntlet.experiments.session_verdicts import CONTROL_BLOCKS, in_own_way
from iree_gauntlet.experiments.sides import PreparedSide, pair_of, prepare_side, rounds_asked, unready
from iree_gauntlet.figures import Figure
from iree_gauntlet.formatting import counted, format_cpus, one_line
from iree_gauntlet.measuring.statistics.bisection import (
    CandidateEnd,
    Placing,
    Search,
    count_most_tries,
    find_middle,
    most_comparisons,
    place,
)
from iree_gauntlet.measuring.statistics.comparison_verdict import (
    DEFAULT_BAND,
    DEFAULT_LEAST,
    Comparison,
    TimeVerdict,
    compare,
    compute_log_ratios,
)
from iree_gauntlet.measuring.statistics.rounds import (
    DEFAULT_ALPHA,
    DEFAULT_MAX_BLOCKS,
    Block,
    EvidenceError,
    plan_looks,
)
from iree_gauntlet.records.bisect_outcome import BISECT, BisectFound, BisectRow, Judged, make_bisect_outcome
from iree_gauntlet.records.run_folder import free_folder
from iree_gauntlet.requests import BisectRequest, given, read
from iree_gauntlet.settings import shown
from iree_gauntlet.stages import Stage
from iree_gauntlet.toolchains.candidates import list_commits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from iree_gauntlet.engine.session import Session
    from iree_gauntlet.progress import Presenter, Progress
    from iree_gauntlet.records.bisect_outcome import BisectOpening
    from iree_gauntlet.records.event_log import EventLog
    from iree_gauntlet.requests import RunRequest
    from iree_gauntlet.toolchains.candidates import Candidate


_FETCH_FOLDER = "fetch"
_DEFAULT_MINUTES = 30.0
_SEED = 1


def bisect(asked: BisectRequest, request: RunRequest, presenter: Presenter) -> ExitCode:
    """Searches, records what was found as it goes, and reports."""
    experiment = Experiment.find(BISECT, request.folder)
    earlier: dict[str, Judged] = {}
    if experiment.record:
        outcome = make_bisect_outcome(experiment.record)
        now = given((asked, request.selection, request.toolchain, request.conduct))
        options = experiment.keep_options(now)
        question = resume_question(outcome.asked, read(BisectRequest, options), request.with_kept(options))
        # What could not be measured is tried again.
        earlier = {label: judged for label, judged in outcome.judged.items() if judged.value is not None}
    else:
        question = question_of(asked, request)
    with experiment.open(presenter, question.opening()) as log, presenter.progress() as progress:
        if question.asked.bundle:
            keep_bundle(question.asked.bundle, experiment.folder)
        else:
            # What the model needs, once and before any candidate: a download that fails is no candidate's fault.
            run_dir = free_folder(experiment.folder / _FETCH_FOLDER)
            fetched = question.chosen.within(run_dir, stages=(Stage.FETCH,))
            code = run(fetched, presenter.to(sys.stderr), brief=True).exit_code
            if code is ExitCode.INTERRUPTED:
                raise KeyboardInterrupt
            if code is not ExitCode.OK:
                raise GauntletError("not everything that the model needs could be fetched", f"See {shown(run_dir)}.")
        with _judge(question, experiment, log, progress, presenter) as judge:
            search = BisectSearch(question, judge, log, progress.message, earlier, question.asked.every)
            experiment.code, experiment.problem = search.search()
    return experiment.code


@contextlib.contextmanager
def _judge(
    question: Question, experiment: Experiment[BisectOpening], log: EventLog, progress: Progress, presenter: Presenter
) -> Iterator[ExactJudge | RoundsJudge]:
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
        earlier = evidence_of(experiment.record.events if experiment.record else ())
        source = TimedBlocks(question, session, earlier, presenter)
        yield RoundsJudge(source, comparisons, DEFAULT_ALPHA, DEFAULT_MAX_BLOCKS)


@dataclass(slots=True)
class BisectSearch:
    """A search under way; `judged` has what this bisect and an earlier part of it have judged, by label."""

    question: Question
    judge: ExactJudge | RoundsJudge
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
        self.log.write("search", self._describe_found())
        self._narrow()
        if question.asked.into:
            self._refine(question.asked.into)
        if self._state.between:
            return ExitCode.INCONCLUSIVE, ""
        source = question.asked.source or question.asked.into
        if source and (commit := self._find_commit(self._found_pair[1])):
            self.log.write("change", describe_change(commit, source, question.place))
        return ExitCode.OK, ""

    def _narrow(self) -> None:
        """Tries candidates until the change is between two, or nothing more can be said."""
        while (place := self._choose_next()) is not None:
            candidate, state = self.question.row[place], self._state
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

    def _refine(self, source: str) -> None:
        """Goes on among what lies between the two candidates that were found: nightlies of releases, then commits."""
        place = self.question.place
        if not self._state.between:
            self._go_on(list_nightlies_inside(*self._found_pair, place, self.say))
        if not self._state.between:
            old, new = self._found_pair
            commits = self._find_commit(old), self._find_commit(new)
            if not all(commits):
                what = f"the commits of {old.label} and {new.label} are not known"
                raise GauntletError(what, "Search with --source between two of them.")
            row, _ = list_commits(*commits, source, place)
            if inside := row[1:-1]:
                cost = describe_cost(inside, count_most_tries(len(row)), place)
                self.say(f"between {old.label} and {new.label}: {cost}")
            self._go_on(inside)

    @property
    def _found_pair(self) -> tuple[Candidate, Candidate]:
        """The two candidates that the change lies between, the older one first."""
        row, state = self.question.row, self._state
        return row[state.last_old], row[state.first_new]

    def _go_on(self, inside: Sequence[Candidate]) -> None:
        """Puts candidates between the two that were found, and searches among them."""
        if not inside:
            return
        row, state = self.question.row, self._state
        row = (*row[: state.last_old + 1], *inside, *row[state.first_new :])
        self.question = replace(self.question, row=row)
        self.log.write("refined", BisectRow(row=row_of(row)))
        self._narrow()

    def _find_commit(self, candidate: Candidate) -> str:
        """Of the side that is searched; empty where it is not known."""
        return self.judged[candidate.label].toolchain.get(self.question.commit, "")

    @property
    def _state(self) -> Search:
        older = self.question.good_is_older
        ends = {None: CandidateEnd.NEITHER, older: CandidateEnd.NEW, not older: CandidateEnd.OLD}
        row = [self.judged.get(candidate.label) for candidate in self.question.row]
        return Search(len(row), {place: ends[judged.bad] for place, judged in enumerate(row) if judged})

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

    def _record(self, candidate: Candidate, judged: Judged, began: float) -> None:
        judged = self.judged[candidate.label] = replace(judged, seconds=round(time.monotonic() - began, 3))
        search = self._describe_found() if self._begun else None
        self.log.write("result", replace(judged, search=search), step=candidate.label)

    def _describe_found(self) -> BisectFound:
        """What is known of the change, once both ends are."""
        state = self._state
        label = [candidate.label for candidate in self.question.row]
        return BisectFound(
            last_old=label[state.last_old],
            first_new=label[state.first_new],
            between=tuple(label[place] for place in state.between),
            over=state.next is None,
            changes=tuple((label[before], label[after]) for before, after in state.changes),
        )


class TimedBlocks:
    """Takes blocks of the good end and of candidates; each is compiled and checked in a run of its own before."""

    def __init__(
        self, question: Question, session: Session[Any], earlier: dict[str, PairEvidence], presenter: Presenter
    ) -> None:
        self._presenter, self._question, self._folder = presenter, question, session.folder
        self._rounds = rounds_asked(question.asked)
        self._budget = 60 * (question.asked.budget or _DEFAULT_MINUTES)
        self._taker = BlockTaker(session, replace_disturbed=question.chosen.request.conduct.replaces_disturbed)
        self._progress = session.progress
        self._evidence = earlier
        self._sides: dict[str, PreparedSide] = {}
        self._given: dict[str, int] = {}
        self._deadlines: dict[str, float] = {}
        self.cpus: Cpus = ()

    def ready(self, candidate: Candidate) -> Judged:
        """Compile for a candidate, and check its numbers.

        Raises:
            GauntletError: the good end, which was fit before, is not any more.
        """
        found, good = self._prepared(candidate), self._question.good
        if good.label not in {*self._sides, candidate.label}:
            reason = self._prepared(self._question.taken(good, self._progress.message)).reason
            if reason or good.label not in self._sides:
                raise GauntletError(f"the good end {good.label} cannot be measured: {reason}")
        return found

    def more_blocks(self, candidate: Candidate, count: int) -> Sequence[Block]:
        """Further blocks, the good end as A and the candidate as B; fewer where the time is up or one failed."""
        pair = self._pair(candidate)
        evidence = self._evidence.setdefault(pair.chain, PairEvidence())
        # Waiting for other runs is no measuring time.
        deadline = self._deadlines.setdefault(candidate.label, self._compute_measuring_seconds() + self._budget)
        begin = self._given.get(candidate.label, 0)
        end = begin + count

        def goes_on() -> bool:
            return self._compute_measuring_seconds() < deadline and self._taker.goes_on(evidence)

        # All candidates are measured on the same CPUs: their ratios are held against each other.
        begun = (before.cpus for before in self._evidence.values() if before.attempts)
        evidence.cpus = next((pair.ways[0] if cpus is None else cpus for cpus in begun), None)
        choose_way(pair, evidence, self._taker, _SEED, goes_on)
        self.cpus = evidence.cpus or ()
        while evidence.cpus is not None and len(evidence.blocks) < end and goes_on():
            left = max(0.0, deadline - self._compute_measuring_seconds())
            self._progress.status(f"{pair.chain}: block {len(evidence.blocks) + 1} of {end}, {left / 60:.0f} min left")
            self._taker.take(pair.block(AB, evidence, _SEED, evidence.cpus), evidence)
            if len(evidence.against_itself) < min(CONTROL_BLOCKS, len(evidence.blocks)):
                self._taker.take(pair.block(CONTROL, evidence, _SEED, evidence.cpus), evidence)
        found = evidence.blocks[begin:end]
        self._given[candidate.label] = begin + len(found)
        return found

    def own_way(self, candidate: Candidate) -> Comparison | None:
        """The candidate against the good end in the spec's own way; None where that is how it was measured anyway."""
        pair = self._pair(candidate)
        evidence = self._evidence.setdefault(pair.chain, PairEvidence())
        self._progress.status(f"{pair.chain}: rounds as its spec has it")
        take_own(pair, evidence, self._taker, _SEED, lambda: self._taker.goes_on(evidence))
        return in_own_way(evidence.own, DEFAULT_LEAST, DEFAULT_BAND)

    def _compute_measuring_seconds(self) -> float:
        return time.monotonic() - self._taker.waited

    def trouble(self, candidate: Candidate) -> str:
        """Why its blocks are no evidence after all; empty where they are."""
        evidence = self._evidence.get(self._name(candidate), PairEvidence())
        if evidence.failure:
            return evidence.failure
        if self._taker.gives_up(evidence):
            return f"{evidence.replaced} blocks were disturbed and replaced; for example: {evidence.main_disturbance}"
        control, plan = evidence.against_itself, plan_looks(DEFAULT_ALPHA, CONTROL_BLOCKS)
        if control and compare(control, plan).differs:
            return "void: the good end differs from itself; find what differs, and repeat"
        return ""

    def _name(self, candidate: Candidate) -> str:
        """Also the name of its coins: those of another candidate are others."""
        return f"{self._question.chain} with {candidate.label}"

    def _pair(self, candidate: Candidate) -> Pair:
        metric, labels = self._question.metric, (self._question.good.label, candidate.label)
        a, b = (self._sides[label].measured[metric][self._question.chain] for label in labels)
        return pair_of(self._name(candidate), (a, b), metric, self._rounds)

    def _prepared(self, candidate: Candidate) -> Judged:
        question, chosen = self._question, self._question.chosen
        chosen = replace(chosen, stages=tuple(dict.fromkeys((*chosen.stages, Figure.TIME.row.stage))))

        def prepare(folder: Path, presenter: Presenter) -> Judged:
            machine = chosen.workbench(candidate.iree)
            side = prepare_side(candidate.label, machine, candidate.iree, chosen, folder, presenter)
            if side.interrupted:
                raise KeyboardInterrupt
            step = side.measured[question.metric].get(question.chain)
            self._sides[candidate.label] = side
            return Judged(reason=unready(side, step) if step else "it has no such step", toolchain=side.toolchain)

        return find_candidate_run(candidate, self._folder, self._presenter, prepare)


class RoundsJudge:
    """Judges by times.

    The chance that the whole search goes wrong by noise, `alpha`, is shared out evenly over as many `comparisons` as
    there may be, that of the ends among them; each has at most `max_blocks`.
    """

    def __init__(self, source: TimedBlocks, comparisons: int, alpha: float, max_blocks: int) -> None:
        self._source = source
        self._plan = plan_looks(alpha / comparisons, max_blocks)
        # How many candidates may be measured, the bad end among them, for the confidence to hold.
        self.most_comparisons: int | None = comparisons
        self._middle = 0.0

    def end(self, candidate: Candidate, *, bad: bool) -> Judged:
        """Ready the good end, or compare the bad one with it."""
        ready = self._source.ready(candidate)
        if ready.reason:
            return ready
        if not bad:
            return replace(ready, bad=False, value=1.0, text="1")
        blocks: list[Block] = []
        while True:
            more = self._to_next_look(candidate, blocks)
            if not blocks:
                return replace(ready, reason=self._source.trouble(candidate) or "no rounds could be taken")
            found = compare(blocks, self._plan)
            if not more or self._plan.next_look(len(blocks)) is None or found.verdict is TimeVerdict.SAME:
                break
            # The middle of the ends is known well enough to distinguish candidates where the interval lies beyond it.
            ratio = found.ratio
            if found.differs and find_middle(ratio, found.low, found.high) == find_middle(ratio, ratio, ratio):
                break
        reason = "" if found.differs else f"the ends do not differ for certain: {found.verdict}: {found.reason}"
        reason = self._source.trouble(candidate) or reason
        judged = self._measure(ready, found, bad=True, reason=reason)
        own = None if reason else self._source.own_way(candidate)
        if own is not None:
            # The others are held against the good end on the same CPUs: once is enough.
            against = ", which contradicts that" if own.low > found.high or own.high < found.low else ""
            judged = replace(judged, text=f"{judged.text}; as its spec has it {own.low:.3f} to {own.high:.3f}{against}")
        return judged

    def begin(self, good: Judged, bad: Judged) -> str:
        """Take the middle of the ends; why there is nothing to look for, or empty."""
        del good  # is 1, whatever its time
        if bad.reason:
            return bad.reason
        try:
            self._middle = find_middle(bad.known, bad.low or 0.0, bad.high or 0.0)
        except EvidenceError as error:
            return error.what
        return ""

    def judge(self, candidate: Candidate) -> Judged:
        """Compare a candidate with the good end, until its interval lies on one side of the middle."""
        ready = self._source.ready(candidate)
        if ready.reason:
            return ready
        blocks: list[Block] = []
        while True:
            more = self._to_next_look(candidate, blocks)
            if not blocks:
                return replace(ready, reason=self._source.trouble(candidate) or "no rounds could be taken")
            found = place(compute_log_ratios(blocks), self._plan, self._middle)
            if found.next_look is None or not more:
                break
        trouble = self._source.trouble(candidate)
        bad = None if trouble else found.bad
        reason = "" if bad is not None else trouble or found.reason
        if not trouble and bad is None and found.next_look is not None:
            reason += "; the time is up"
        return self._measure(ready, found, bad=bad, reason=reason)

    def _to_next_look(self, candidate: Candidate, blocks: list[Block]) -> bool:
        """Takes blocks up to the plan's next look, as far as they can be had; whether there were any."""
        look = self._plan.next_look(len(blocks))
        more = self._source.more_blocks(candidate, look - len(blocks)) if look else ()
        blocks += more
        return bool(more)

    def _measure(self, ready: Judged, found: Comparison | Placing, *, bad: bool | None, reason: str) -> Judged:
        where = f", on CPU {format_cpus(self._source.cpus)}" if self._source.cpus else ""
        return replace(
            ready,
            bad=bad,
            value=found.ratio,
            text=f"{found.ratio:.3f} × the good end's time ({found.low:.3f} to {found.high:.3f}{where})",
            reason=reason,
            confidence=found.confidence,
            low=found.low,
            high=found.high,
        )
