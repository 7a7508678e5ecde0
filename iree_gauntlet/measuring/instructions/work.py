"""Compare two instruction counts of one call: of each dispatch, of the module's own code, and of the code outside.

Dispatches with the same code always execute the same number of instructions. With the same runtime, so does the loop
that interprets the module's own code. The number in all other code (runtime and C library) also depends on the layout
of memory, on which the module's bytes have an influence. So other code is judged separately, with its own limits, and
does not offset dispatches.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from iree_gauntlet.figures import CALL_MARGIN, OUTSIDE_MARGIN
from iree_gauntlet.measuring.profiles.dispatch_profile import Match, match_dispatches
from iree_gauntlet.results import WorkPart

if TYPE_CHECKING:
    from collections.abc import Iterable

    from iree_gauntlet.measuring.instructions.counters import Counts
    from iree_gauntlet.results import DispatchChange


class Work(StrEnum):
    """The verdict of two counts; it is exact, whatever else the machine does."""

    SAME = "same work"
    LESS = "less work"
    MORE = "more work"


class CallPart(StrEnum):
    """The parts of a call."""

    DISPATCHES = "dispatches"
    OWN_CODE = "own code"
    OUTSIDE = "outside"
    CALL = "call"


def compare_work(a: float, b: float, min_share: float, min_instructions: float = 0) -> Work:
    """Compare B's count with A's; only a difference above `min_share` of A's and above `min_instructions` counts."""
    if abs(b - a) <= max(min_share * a, min_instructions):
        return Work.SAME
    return Work.MORE if b > a else Work.LESS


def combine_work(parts: Iterable[WorkPart]) -> Work:
    """Combine the verdicts of a call's parts; less work in one part does not offset more work in another."""
    verdicts = {part.verdict for part in parts}
    return next((work for work in (Work.MORE, Work.LESS) if work in verdicts), Work.SAME)


def judge_parts(a: Counts, b: Counts, min_share: float, *, same_runtime: bool) -> tuple[WorkPart, ...]:
    """Compare the parts of a call of A and B; the module's own code is a part only if both have the same runtime."""
    parts = []
    a_outside, b_outside = a.outside, b.outside
    if a.dispatches or b.dispatches:
        parts.append(_judge_dispatches(a, b, min_share))
    if same_runtime and a.own is not None and b.own is not None:
        parts.append(WorkPart(CallPart.OWN_CODE, compare_work(a.own, b.own, min_share), a.own, b.own))
        a_outside, b_outside = a_outside - a.own, b_outside - b.own
    if not parts:
        # The whole call also depends on the layout of memory.
        verdict = compare_work(a.instructions, b.instructions, max(min_share, CALL_MARGIN.share), OUTSIDE_MARGIN.amount)
        return (WorkPart(CallPart.CALL, verdict, a.instructions, b.instructions),)
    outside = compare_work(a_outside, b_outside, max(min_share, OUTSIDE_MARGIN.share), OUTSIDE_MARGIN.amount)
    return (*parts, WorkPart(CallPart.OUTSIDE, outside, a_outside, b_outside))


def _judge_dispatches(a: Counts, b: Counts, min_share: float) -> WorkPart:
    """Compare each dispatch that both sides have, and the sums of all other dispatches, which were fused or split."""
    rows = [row for row in match_dispatches(a.profile, b.profile).changes if row.match != Match.OUTSIDE]
    by_work: dict[Work, list[DispatchChange]] = {work: [] for work in Work}
    leftovers = []
    for row in rows:
        if row.match == Match.NAME and len(row.a_names) == len(row.b_names) == 1:
            by_work[compare_work(row.a_ns, row.b_ns, min_share)].append(row)
        else:
            leftovers.append(row)
    leftover_work = compare_work(sum(row.a_ns for row in leftovers), sum(row.b_ns for row in leftovers), min_share)
    by_work[leftover_work] += [row for row in leftovers if (row.difference_ns > 0) is (leftover_work is Work.MORE)]
    # The rows are in the order of their changes, also those of a group.
    more_names, less_names = (
        tuple(row.name for row in rows if row in by_work[work]) for work in (Work.MORE, Work.LESS)
    )
    verdict = Work.MORE if more_names else Work.LESS if less_names else Work.SAME
    return WorkPart(
        CallPart.DISPATCHES, verdict, a.instructions - a.outside, b.instructions - b.outside, more_names, less_names
    )
