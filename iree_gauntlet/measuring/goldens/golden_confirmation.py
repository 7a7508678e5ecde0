"""Is a golden really broken? More rounds of one side, until the interval lies on one side of the limit.

A golden with its factor is a rail: golden × factor is the limit. After a breach by the dialect's plain rule further
rounds are taken; the breach itself, which made one look, is no evidence and stays out. Each round gives the dialect's
figure, its mean or its minimum, and the median over rounds is held against the limit.

There is no second side to cancel drift and no reason for symmetric noise, so the interval is the one of the sign test:
order statistics of the rounds, exact for any distribution of independent rounds (David and Nagaraja, Order Statistics,
3rd edition, 2003, §7.1). It speaks of the machine as it is in these minutes: a machine that is slow all along gives a
real breach. The looks and their levels are those of `sequential`, with rounds in place of blocks.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from iree_gauntlet.cases import Statistic
from iree_gauntlet.measuring.statistics.rounds import EvidenceError, Location, Round

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iree_gauntlet.measuring.statistics.sequential import SequentialPlan


@dataclass(frozen=True, slots=True)
class Confirmation:
    """What further rounds say of a golden's breach.

    Attributes:
        passed: False where the limit is broken for certain, True where it is kept for certain, None for neither.
        reason: one line.
        measured: median over rounds of the dialect's figure, in the golden's unit.
        low, high: its interval; 0 and infinity where there are too few rounds for one.
        limit: golden × factor.
        confidence: of the interval, whatever the stopping.
        rounds: how many were looked at.
        next_look: at how many rounds more could be said; None where the verdict stands or the budget is spent.
    """

    passed: bool | None
    reason: str
    measured: float
    low: float
    high: float
    limit: float
    confidence: float
    rounds: int
    next_look: int | None


def confirm_breach(
    rounds: Sequence[Round], golden: float, factor: float, statistic: Statistic, plan: SequentialPlan
) -> Confirmation:
    """Judges rounds that were taken after a breach, in their order.

    Args:
        rounds: times in the golden's unit; not the round that broke it.
        golden: the expected figure.
        factor: what it may be exceeded by; 1.1 is 10 %.
        statistic: which figure of a round's repetitions the dialect's rule holds against the limit.
        plan: when to look and what the looks cost together; rounds after the last look are not used.

    Raises:
        EvidenceError: no rounds, a golden or a factor that is not a positive finite number.
    """
    limit = golden * factor
    if not (golden > 0 and factor > 0 and math.isfinite(limit)):
        raise EvidenceError(f"golden {golden!r} × {factor!r}, expected positive finite numbers")
    if not rounds:
        raise EvidenceError("no rounds to confirm a golden's breach with", "take at least one more round")
    kind = Location.MIN if statistic == Statistic.MIN else Location.MEAN
    figures = [round_.location(kind) for round_ in rounds[: plan.max_blocks]]
    low, high = 0.0, math.inf
    looks = plan.reached(len(rounds))
    for look, level in looks:
        ordered = sorted(figures[:look])
        reach = _reach(look, level / 2)
        if reach is not None:
            low, high = max(low, ordered[reach]), min(high, ordered[-1 - reach])
    passed, reason = _judge(low, high, limit)
    next_look = plan.next_look(len(rounds)) if passed is None else None
    if not looks:
        reason = f"{len(rounds)} more rounds, and {plan.looks[0]} are needed to confirm a breach"
    elif passed is None and next_look is None:
        reason += f"; all {plan.max_blocks} rounds are taken"
    ordered = sorted(figures[: looks[-1][0]] if looks else figures)
    middle = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
    return Confirmation(passed, reason, middle, low, high, limit, 1 - plan.alpha, len(rounds), next_look)


def _judge(low: float, high: float, limit: float) -> tuple[bool | None, str]:
    if math.isinf(high):
        return None, "too few rounds for an interval at such a false-alarm rate"
    if low > high:
        return None, "earlier and later rounds contradict each other: the machine has changed"
    if low > limit:
        return False, f"the interval, {low:.4g} to {high:.4g}, lies above the limit {limit:.4g}"
    if high <= limit:
        return True, f"the interval, {low:.4g} to {high:.4g}, lies below the limit {limit:.4g}"
    return None, f"the interval, {low:.4g} to {high:.4g}, holds the limit {limit:.4g}"


@functools.lru_cache(maxsize=1024)
def _reach(count: int, level: float) -> int | None:
    """The largest k with P(at most k of `count` values fall below their median) ≤ level; None where there is none.

    The k-th order statistic, counted from 0, is then a lower bound of the median.
    """
    total, best = 0, None
    for successes in range(count):
        total += math.comb(count, successes)
        if total > level * 2**count:
            break
        best = successes
    return best
