"""Rounds for a bisect: the good end and a candidate in turn, as `compare` takes them.

Each candidate is compared with the good end in interleaved rounds, until it is clear which end it is like;
`measuring/statistics/midpoint.py` has the rule and why the whole search keeps to its false-alarm rate.
"""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from iree_gauntlet.cases import Stage
from iree_gauntlet.engine.rounds.blocks import AB, CONTROL, BlockTaker, Pair, PairEvidence, evidence_of
from iree_gauntlet.engine.rounds.taken_rounds import RoundSettings, compile_round, parse_cpus, timed
from iree_gauntlet.engine.session import Session, open_session
from iree_gauntlet.engine.workbench import open_workbench
from iree_gauntlet.errors import GauntletError, SpecError, ToolchainError, UsageError
from iree_gauntlet.experiments.bisect_probe import CONSOLE, Judged, Reading, Run
from iree_gauntlet.experiments.sides import Side, prepare_side, unready
from iree_gauntlet.journal_format import read_events
from iree_gauntlet.measuring.statistics.comparison_verdict import Comparison, Verdict, compare
from iree_gauntlet.measuring.statistics.midpoint import Placing, middle_of, place
from iree_gauntlet.measuring.statistics.paired import log_ratios
from iree_gauntlet.measuring.statistics.rounds import Block, EvidenceError
from iree_gauntlet.measuring.statistics.sequential import DEFAULT_ALPHA, sequential_plan
from iree_gauntlet.progress import Presenter, Progress
from iree_gauntlet.records.bisect_outcome import BISECT_RECORD
from iree_gauntlet.records.run_folder import free_folder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from iree_gauntlet.experiments.bisect_question import Question
    from iree_gauntlet.records.event_log import EventLog
    from iree_gauntlet.requests import BisectRequest, ConductRequest
    from iree_gauntlet.toolchains.candidates import Candidate


TIMED_METRICS = ("time", "compile-time")
# Options that only these metrics have a use for.
TIMING_NAMES = ("budget", "repetitions", "min_time", "cpus", "disturbed")
_DEFAULT_MINUTES = 30.0
_LONGEST_REPETITION = 3600.0
# As many as the one look at A against itself takes.
_CONTROL_BLOCKS = 10
_SEED = 1


@dataclass(frozen=True, slots=True)
class TimingSettings:
    """How rounds are taken.

    Attributes:
        rounds: of each process.
        budget: seconds for the rounds of one candidate.
        replace_disturbed: whether a block with a disturbed round is taken again.
    """

    rounds: RoundSettings
    budget: float
    replace_disturbed: bool

    @classmethod
    def of(cls, asked: BisectRequest, conduct: ConductRequest) -> TimingSettings:
        """What is asked for.

        Raises:
            UsageError: it makes no sense.
        """
        usual = RoundSettings()
        min_time = asked.min_time or usual.min_time
        if min_time >= _LONGEST_REPETITION:
            raise UsageError(
                f"--min-time {min_time:g}: expected less than an hour", f"Leave it out for {usual.min_time:g}."
            )
        affinity = getattr(os, "sched_getaffinity", None)  # Linux alone can say and pin
        cpus = parse_cpus(asked.cpus, frozenset(affinity(0)) if affinity else frozenset())
        rounds = RoundSettings(asked.repetitions or usual.repetitions, min_time, cpus)
        return cls(rounds, 60 * (asked.budget or _DEFAULT_MINUTES), conduct.replaces_disturbed)


class TimedBlocks:
    """Takes blocks of the good end and of candidates; each is compiled and checked in a run of its own before.

    Args:
        question: what is looked for.
        session: what it runs in.
        settings: how rounds are taken.
        earlier: what an earlier part of this bisect has measured.
        presenter: shows the runs, in files of theirs.
    """

    def __init__(
        self,
        question: Question,
        session: Session[Any],
        settings: TimingSettings,
        earlier: dict[str, PairEvidence],
        presenter: Presenter,
    ) -> None:
        self._presenter = presenter
        self._question = question
        self._folder = session.folder
        self._settings = settings
        self._taker = BlockTaker(session, replace_disturbed=settings.replace_disturbed)
        self._progress = session.progress
        self._evidence = earlier
        self._cancelled = session.cancelled
        self._good: Side | None = None
        self._sides: dict[str, Side] = {}
        self._given: dict[str, int] = {}
        self._deadlines: dict[str, float] = {}

    def ready(self, candidate: Candidate) -> Run:
        """Compile for a candidate, and check its numbers.

        Raises:
            GauntletError: the good end, which was fit before, is not any more.
            KeyboardInterrupt: it was interrupted.
        """
        run = self._prepared(candidate)
        if self._good is None:
            if candidate == self._question.good:
                self._good = self._sides.get(candidate.label)
            else:
                reason = self._prepared(self._question.good).reading.reason
                self._good = self._sides.get(self._question.good.label)
                if reason or self._good is None:
                    raise GauntletError(f"the good end {self._question.good.label} cannot be measured: {reason}")
        return run

    def more_blocks(self, candidate: Candidate, count: int) -> Sequence[Block]:
        """Further blocks, the good end as A and the candidate as B; fewer where the time is up or one failed."""
        pair = self._pair(candidate)
        evidence = self._evidence.setdefault(pair.chain, PairEvidence())
        # Waiting for other runs is no measuring time.
        deadline = self._deadlines.setdefault(candidate.label, self._measuring_seconds() + self._settings.budget)
        begin = self._given.get(candidate.label, 0)
        end = begin + count
        while len(evidence.blocks) < end and not self._taker.gives_up(evidence):
            left = deadline - self._measuring_seconds()
            if left <= 0 or self._cancelled.is_set():
                break
            self._progress.status(f"{pair.chain}: block {len(evidence.blocks) + 1} of {end}, {left / 60:.0f} min left")
            self._taker.take(pair.block(AB, evidence, _SEED), evidence)
            if len(evidence.control) < min(_CONTROL_BLOCKS, len(evidence.blocks)):
                self._taker.take(pair.block(CONTROL, evidence, _SEED), evidence)
        found = evidence.blocks[begin:end]
        self._given[candidate.label] = begin + len(found)
        return found

    def _measuring_seconds(self) -> float:
        return time.monotonic() - self._taker.waited

    def trouble(self, candidate: Candidate) -> str:
        """Why its blocks are no evidence after all; empty where they are."""
        evidence = self._evidence.get(self._name(candidate), PairEvidence())
        if evidence.failure:
            return evidence.failure
        if self._taker.gives_up(evidence):
            return f"{evidence.replaced} blocks were disturbed and replaced; such as: {evidence.main_disturbance}"
        if evidence.control and compare(evidence.control, sequential_plan(DEFAULT_ALPHA, _CONTROL_BLOCKS)).differs:
            return "void: the good end differs from itself; find what differs, and repeat"
        return ""

    def _name(self, candidate: Candidate) -> str:
        """Also the name of its coins: those of another candidate are others."""
        return f"{self._question.chain} with {candidate.label}"

    def _pair(self, candidate: Candidate) -> Pair:
        assert self._good is not None, "a candidate is readied before it is measured"
        measured = timed if self._question.metric == "time" else compile_round
        steps = [
            (side.benchmarks if self._question.metric == "time" else side.compiles)[self._question.chain]
            for side in (self._good, self._sides[candidate.label])
        ]
        good, other = (measured(step, self._settings.rounds) for step in steps)
        return Pair(self._name(candidate), good, other)

    def _prepared(self, candidate: Candidate) -> Run:
        began = time.monotonic()
        folder = free_folder(self._folder / candidate.label)
        folder.mkdir()
        try:
            with (folder / CONSOLE).open("w", encoding="utf-8") as stream:
                side = self._side(candidate, folder, self._presenter.to(stream))
        except (ToolchainError, SpecError) as error:
            reason = f"{error.what} {error.hint}".strip()
            return Run(Reading(None, reason=reason), folder.name, {}, time.monotonic() - began)
        if side.interrupted:
            raise KeyboardInterrupt
        steps = side.benchmarks if self._question.metric == "time" else side.compiles
        step = steps.get(self._question.chain)
        reason = unready(side, step) if step else "it has no such step"
        self._sides[candidate.label] = side
        toolchain = side.machine.toolchain.as_dict() if side.machine.toolchain else {}
        return Run(Reading(None, reason=reason), folder.name, toolchain, time.monotonic() - began)

    def _side(self, candidate: Candidate, folder: Path, presenter: Presenter) -> Side:
        chosen = self._question.chosen
        stages = tuple(dict.fromkeys((*chosen.stages, Stage.BENCHMARK)))
        request = replace(chosen.request.toolchain, iree=candidate.iree)
        machine = open_workbench(request, Progress(), chosen.request.network, need_toolchain=True)
        return prepare_side(candidate.label, machine, candidate.iree, replace(chosen, stages=stages), folder, presenter)


@contextmanager
def timed_blocks(
    question: Question, folder: Path, settings: TimingSettings, log: EventLog, progress: Progress, presenter: Presenter
) -> Iterator[TimedBlocks]:
    """A source of blocks, with all that it needs while it is used; Ctrl-C ends what runs."""
    with open_session(folder, log, progress) as session, session.interruptible():
        earlier = evidence_of(event for _, event in read_events(folder / BISECT_RECORD, "bisect").events)
        yield TimedBlocks(question, session, settings, earlier, presenter)


class BlockSource(Protocol):
    """Takes rounds of a candidate against the good end."""

    def ready(self, candidate: Candidate) -> Run:
        """Compile for a candidate; the reading's `reason` says why it cannot be measured, its value is of no matter."""
        ...

    def more_blocks(self, candidate: Candidate, count: int) -> Sequence[Block]:
        """Further blocks, the good end as A and the candidate as B; fewer than asked for where no more can be had."""
        ...

    def trouble(self, candidate: Candidate) -> str:
        """Why its blocks are no evidence after all; empty where they are."""
        ...


class RoundsJudge:
    """Judges by times.

    Args:
        source: takes the rounds.
        comparisons: how many there may be, that of the ends among them.
        alpha: chance that the whole search goes wrong by noise; shared out evenly over the comparisons.
        max_blocks: of each comparison.
    """

    def __init__(self, source: BlockSource, comparisons: int, alpha: float, max_blocks: int) -> None:
        self._source = source
        self._plan = sequential_plan(alpha / comparisons, max_blocks)
        self._most = comparisons
        self._middle = 0.0

    @property
    def most_comparisons(self) -> int:
        """As many as the false-alarm rate was shared out over."""
        return self._most

    def end(self, candidate: Candidate, *, bad: bool) -> Judged:
        """Ready the good end, or compare the bad one with it."""
        began = time.monotonic()
        run = self._source.ready(candidate)
        if run.reading.reason:
            return _unmeasured(run, run.reading.reason, began)
        if not bad:
            seconds = time.monotonic() - began
            return Judged(False, 1.0, "1", folder=run.folder, toolchain=run.toolchain, seconds=seconds)
        blocks: list[Block] = []
        while True:
            more = self._to_next_look(candidate, blocks)
            if not blocks:
                return _unmeasured(run, self._source.trouble(candidate) or "no rounds could be taken", began)
            found = compare(blocks, self._plan)
            more_can_be_had = more and self._plan.next_look(len(blocks)) is not None
            if not more_can_be_had or found.verdict is Verdict.SAME or (found.differs and _is_sharp(found)):
                break
        reason = "" if found.differs else f"the ends do not differ for certain: {found.verdict}: {found.reason}"
        reason = self._source.trouble(candidate) or reason
        return _measured(run, began, found, bad=True, reason=reason)

    def begin(self, good: Judged, bad: Judged) -> str:
        """Take the middle of the ends."""
        del good  # is 1, whatever its time
        if bad.reason:
            return bad.reason
        assert bad.value is not None, "an end without a value ends the search"
        try:
            self._middle = middle_of(bad.value, bad.low or 0.0, bad.high or 0.0)
        except EvidenceError as error:
            return error.what
        return ""

    def judge(self, candidate: Candidate) -> Judged:
        """Compare a candidate with the good end, until its interval lies on one side of the middle."""
        began = time.monotonic()
        run = self._source.ready(candidate)
        if run.reading.reason:
            return _unmeasured(run, run.reading.reason, began)
        blocks: list[Block] = []
        while True:
            more = self._to_next_look(candidate, blocks)
            if not blocks:
                return _unmeasured(run, self._source.trouble(candidate) or "no rounds could be taken", began)
            found = place(log_ratios(blocks), self._plan, self._middle)
            if found.next_look is None or not more:
                break
        trouble = self._source.trouble(candidate)
        bad = None if trouble else found.bad
        reason = "" if bad is not None else trouble or found.reason
        if not trouble and bad is None and found.next_look is not None:
            reason += "; the time is up"
        return _measured(run, began, found, bad=bad, reason=reason)

    def _to_next_look(self, candidate: Candidate, blocks: list[Block]) -> bool:
        """Takes blocks up to the plan's next look, as far as they can be had; whether there were any."""
        look = self._plan.next_look(len(blocks))
        more = self._source.more_blocks(candidate, look - len(blocks)) if look else ()
        blocks += more
        return bool(more)


def _is_sharp(ends: Comparison) -> bool:
    """Whether the middle of the ends is known well enough to tell candidates apart: the interval lies beyond it."""
    return middle_of(ends.ratio, ends.low, ends.high) == middle_of(ends.ratio, ends.ratio, ends.ratio)


def _unmeasured(run: Run, reason: str, began: float) -> Judged:
    seconds = time.monotonic() - began
    return Judged(None, None, "", reason, folder=run.folder, toolchain=run.toolchain, seconds=seconds)


def _measured(run: Run, began: float, found: Comparison | Placing, *, bad: bool | None, reason: str) -> Judged:
    return Judged(
        bad,
        found.ratio,
        f"{found.ratio:.3f} × the good end's time ({found.low:.3f} to {found.high:.3f})",
        reason,
        confidence=found.confidence,
        low=found.low,
        high=found.high,
        folder=run.folder,
        toolchain=run.toolchain,
        seconds=time.monotonic() - began,
    )
