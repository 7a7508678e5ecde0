"""Judging by times: each candidate is compared with the good end in interleaved rounds, until it is clear which it is.

`measuring/statistics/midpoint.py` has the rule and why the whole search keeps to its false-alarm rate.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

from iree_gauntlet.experiments.bisect_probe import Judged, Run
from iree_gauntlet.measuring.statistics.comparison_verdict import Comparison, Verdict, compare
from iree_gauntlet.measuring.statistics.midpoint import Placing, middle_of, place
from iree_gauntlet.measuring.statistics.paired import log_ratios
from iree_gauntlet.measuring.statistics.rounds import Block, EvidenceError
from iree_gauntlet.measuring.statistics.sequential import sequential_plan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iree_gauntlet.toolchains.candidates import Candidate

__all__ = ["BlockSource", "RoundsJudge"]


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
