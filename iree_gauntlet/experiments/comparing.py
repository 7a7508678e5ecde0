"""Taking rounds of two sides in turn, until each model has its verdict or the time is up.

The rounds go into the log as they are taken (`blocks`): a comparison that was killed goes on where it was.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from iree_gauntlet.engine.rounds.blocks import AB, CONTROL, BlockTaker, Evidence, Pair
from iree_gauntlet.measuring.statistics.comparison_verdict import Comparison, Verdict, compare
from iree_gauntlet.measuring.statistics.sequential import SequentialPlan, sequential_plan

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from iree_gauntlet.engine.session import Session
    from iree_gauntlet.measuring.statistics.rounds import Block

__all__ = ["CONTROL_BLOCKS", "Comparer", "Rules"]

# Blocks of A against itself: as many as its one look takes.
CONTROL_BLOCKS = 10


@dataclass(frozen=True, slots=True)
class Rules:
    """What decides, stated before anything is measured.

    Attributes:
        plan: when to look, and the false-alarm rate of all looks together.
        least: the least difference that matters; 0.01 is 1 %.
        band: within which two times are the same.
        allow: the slowdown below which `not slower` will do.
        budget: seconds for all rounds of all models.
        seed: of the coins that choose the order of each block.
        replace_disturbed: whether a block with a disturbed round is taken again.
    """

    plan: SequentialPlan
    least: float
    band: float
    allow: float
    budget: float
    seed: int
    replace_disturbed: bool

    @property
    def control_plan(self) -> SequentialPlan:
        """Of A against itself: one look."""
        return sequential_plan(self.plan.alpha, CONTROL_BLOCKS)

    def judged(self, blocks: Sequence[Block]) -> Comparison:
        """B against A, by these rules."""
        return compare(blocks, self.plan, self.least, self.band, allow=self.allow)


class Comparer:
    """Takes the rounds.

    Args:
        session: what it runs in.
        rules: what decides.
        clock: seconds.
    """

    def __init__(self, session: Session[Any], rules: Rules, clock: Callable[[], float] = time.monotonic) -> None:
        self._progress = session.progress
        self._rules = rules
        self._cancelled = session.cancelled
        self._taker = BlockTaker(session, rules.seed, replace_disturbed=rules.replace_disturbed)
        self._clock = clock
        self._began = clock()

    def run(self, pairs: Sequence[Pair], earlier: dict[str, Evidence]) -> dict[str, Evidence]:
        """Takes rounds of every model up to its first look, then of those that are undecided, in turn.

        Args:
            pairs: the models.
            earlier: what an earlier part of this comparison has measured; changed in place.

        Returns:
            The evidence, by model.
        """
        found = {pair.chain: earlier.setdefault(pair.chain, Evidence()) for pair in pairs}
        waiting = list(pairs)
        while waiting and not self._over():
            still = []
            for number, pair in enumerate(waiting, start=1):
                evidence = found[pair.chain]
                look = self._next_look(evidence)
                if look is None or self._over():
                    continue
                self._take_until(pair, evidence, look, f"{number}/{len(waiting)}")
                self._tell(pair, evidence)
                if self._next_look(evidence) is not None:
                    still.append(pair)
            waiting = still
        return found

    def _over(self) -> bool:
        return self._cancelled.is_set() or self._left() <= 0

    def _left(self) -> float:
        """Seconds of the budget; waiting for other runs does not use it up."""
        return self._rules.budget - (self._clock() - self._began - self._taker.waited)

    def _next_look(self, evidence: Evidence) -> int | None:
        """At how many blocks more could be said; None where nothing more can."""
        if self._taker.gives_up(evidence):
            return None
        if len(evidence.blocks) < self._rules.plan.looks[0]:
            return self._rules.plan.looks[0]
        return self._rules.judged(evidence.blocks).next_look

    def _take_until(self, pair: Pair, evidence: Evidence, look: int, place: str) -> None:
        """Blocks up to a look; those of A against itself between them, so that they see the same machine."""

        def goes_on() -> bool:
            return not self._over() and not self._taker.gives_up(evidence)

        while len(evidence.blocks) < look and goes_on():
            left = max(0.0, self._left())
            self._progress.status(
                f"{place} {pair.chain}: block {len(evidence.blocks) + 1} of {look}, at most {left / 60:.1f} min left"
            )
            self._taker.take(pair, evidence, AB)
            while len(evidence.control) < min(CONTROL_BLOCKS, len(evidence.blocks)) and goes_on():
                self._taker.take(pair, evidence, CONTROL)

    def _tell(self, pair: Pair, evidence: Evidence) -> None:
        if evidence.failure or not evidence.blocks:
            self._progress.message(f"{pair.chain}: {evidence.failure or evidence.main_disturbance or 'the time is up'}")
            return
        so_far = self._rules.judged(evidence.blocks)
        more = "" if so_far.next_look is None or so_far.verdict is not Verdict.INCONCLUSIVE else "; more rounds follow"
        change = f"{100 * (so_far.ratio - 1):+.1f} %"
        self._progress.message(f"{pair.chain}: {so_far.verdict} ({change}) after {len(evidence.blocks)} blocks{more}")
