"""Rounds for a bisect: the good end and a candidate in turn, as `compare` takes them.

Each candidate is compared with the good end in interleaved rounds, until it is clear which end it is like;
`measuring/statistics/bisection.py` has the rule and why the whole search keeps to its false-alarm rate.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from iree_gauntlet.cases import Stage
from iree_gauntlet.engine.rounds.blocks import AB, CONTROL, BlockTaker, Cpus, Pair, PairEvidence, choose_way, take_own
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.experiments.bisect_probe import Judged, candidate_run
from iree_gauntlet.experiments.session_verdicts import CONTROL_BLOCKS, in_own_way
from iree_gauntlet.experiments.sides import PreparedSide, pair_of, prepare_side, rounds_asked, unready
from iree_gauntlet.figures import cpus_text
from iree_gauntlet.measuring.statistics.bisection import Placing, find_middle, place
from iree_gauntlet.measuring.statistics.comparison_verdict import (
    DEFAULT_BAND,
    DEFAULT_LEAST,
    Comparison,
    TimeVerdict,
    compare,
)
from iree_gauntlet.measuring.statistics.paired import compute_log_ratios
from iree_gauntlet.measuring.statistics.rounds import DEFAULT_ALPHA, Block, EvidenceError, plan_looks

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from iree_gauntlet.engine.session import Session
    from iree_gauntlet.experiments.bisect_question import Question
    from iree_gauntlet.progress import Presenter
    from iree_gauntlet.toolchains.candidates import Candidate


_DEFAULT_MINUTES = 30.0
_SEED = 1


class TimedBlocks:
    """Takes blocks of the good end and of candidates; each is compiled and checked in a run of its own before."""

    def __init__(
        self, question: Question, session: Session[Any], earlier: dict[str, PairEvidence], presenter: Presenter
    ) -> None:
        self._presenter = presenter
        self._question = question
        self._folder = session.folder
        self._rounds = rounds_asked(question.asked)
        self._budget = 60 * (question.asked.budget or _DEFAULT_MINUTES)
        conduct = question.chosen.request.conduct
        self._taker = BlockTaker(session, replace_disturbed=conduct.replaces_disturbed)
        self._progress = session.progress
        self._evidence = earlier
        self._good: PreparedSide | None = None
        self._sides: dict[str, PreparedSide] = {}
        self._given: dict[str, int] = {}
        self._deadlines: dict[str, float] = {}
        self.cpus: Cpus = ()

    def ready(self, candidate: Candidate) -> Judged:
        """Compile for a candidate, and check its numbers.

        Raises:
            GauntletError: the good end, which was fit before, is not any more.
        """
        found = self._prepared(candidate)
        if self._good is None:
            if candidate.label == self._question.good.label:
                self._good = self._sides.get(candidate.label)
            else:
                good = self._question.taken(self._question.good, self._progress.message)
                reason = self._prepared(good).reason
                self._good = self._sides.get(self._question.good.label)
                if reason or self._good is None:
                    raise GauntletError(f"the good end {self._question.good.label} cannot be measured: {reason}")
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
        evidence.cpus = self._find_known_cpus(pair)
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

    def _find_known_cpus(self, pair: Pair) -> Cpus | None:
        """Those of the blocks that were taken so far; None before the first."""
        begun = (evidence for evidence in self._evidence.values() if evidence.attempts)
        known = next(begun, None)
        if known is None:
            return None
        return pair.ways[0] if known.cpus is None else known.cpus

    def _compute_measuring_seconds(self) -> float:
        return time.monotonic() - self._taker.waited

    def trouble(self, candidate: Candidate) -> str:
        """Why its blocks are no evidence after all; empty where they are."""
        evidence = self._evidence.get(self._name(candidate), PairEvidence())
        if evidence.failure:
            return evidence.failure
        if self._taker.gives_up(evidence):
            return f"{evidence.replaced} blocks were disturbed and replaced; for example: {evidence.main_disturbance}"
        if (
            evidence.against_itself
            and compare(evidence.against_itself, plan_looks(DEFAULT_ALPHA, CONTROL_BLOCKS)).differs
        ):
            return "void: the good end differs from itself; find what differs, and repeat"
        return ""

    def _name(self, candidate: Candidate) -> str:
        """Also the name of its coins: those of another candidate are others."""
        return f"{self._question.chain} with {candidate.label}"

    def _pair(self, candidate: Candidate) -> Pair:
        assert self._good is not None, "a candidate is readied before it is measured"
        metric, sides = self._question.metric, (self._good, self._sides[candidate.label])
        steps = [side.steps(metric)[self._question.chain] for side in sides]
        return pair_of(self._name(candidate), (steps[0], steps[1]), metric, self._rounds)

    def _prepared(self, candidate: Candidate) -> Judged:
        return candidate_run(candidate, self._folder, self._presenter, partial(self._prepare, candidate))

    def _prepare(self, candidate: Candidate, folder: Path, presenter: Presenter) -> Judged:
        chosen = self._question.chosen
        chosen = replace(chosen, stages=tuple(dict.fromkeys((*chosen.stages, Stage.BENCHMARK))))
        machine = chosen.workbench(candidate.iree)
        side = prepare_side(candidate.label, machine, candidate.iree, chosen, folder, presenter)
        if side.interrupted:
            raise KeyboardInterrupt
        step = side.steps(self._question.metric).get(self._question.chain)
        self._sides[candidate.label] = side
        return Judged(reason=unready(side, step) if step else "it has no such step", toolchain=side.toolchain)


class BlockSource(Protocol):
    """Takes rounds of a candidate against the good end.

    Attributes:
        cpus: that they are pinned to; none for all.
    """

    cpus: Cpus

    def ready(self, candidate: Candidate) -> Judged:
        """Compile for a candidate; the `reason` says why it cannot be measured."""

    def more_blocks(self, candidate: Candidate, count: int) -> Sequence[Block]:
        """Further blocks, the good end as A and the candidate as B; fewer than asked for where no more can be had."""

    def own_way(self, candidate: Candidate) -> Comparison | None:
        """The candidate against the good end in the spec's own way; None where that is how it was measured anyway."""

    def trouble(self, candidate: Candidate) -> str:
        """Why its blocks are no evidence after all; empty where they are."""


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
        self._plan = plan_looks(alpha / comparisons, max_blocks)
        # As many as the false-alarm rate was shared out over.
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
            more_can_be_had = more and self._plan.next_look(len(blocks)) is not None
            if not more_can_be_had or found.verdict is TimeVerdict.SAME or (found.differs and _is_sharp(found)):
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
        """Take the middle of the ends."""
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
        where = f", on CPU {cpus_text(self._source.cpus)}" if self._source.cpus else ""
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


def _is_sharp(ends: Comparison) -> bool:
    """Whether the middle of the ends is known well enough to distinguish candidates: the interval lies beyond it."""
    return find_middle(ends.ratio, ends.low, ends.high) == find_middle(ends.ratio, ends.ratio, ends.ratio)
