"""What two counts of one call say of the work: of each dispatch, of the module's own code, and of what lies outside.

Dispatches are the same to the instruction whenever their code is. So is the loop that interprets the module's own code,
with one runtime. What lies outside of both, the runtime and the C library, also depends on how memory was laid out, on
which the bytes of the module have a say: it is judged by itself, with limits of its own, and offsets no dispatch.
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
    """What two counts say: exactly, whatever else the machine does."""

    SAME = "same work"
    LESS = "less work"
    MORE = "more work"


class CallPart(StrEnum):
    """What a call is made of."""

    DISPATCHES = "dispatches"
    OWN_CODE = "own code"
    OUTSIDE = "outside"
    CALL = "call"


def compare_work(a: float, b: float, least: float, fewest: float = 0) -> Work:
    """What B's count says against A's; a difference counts beyond a share of A's, and beyond `fewest` instructions."""
    if abs(b - a) <= max(least * a, fewest):
        return Work.SAME
    return Work.MORE if b > a else Work.LESS


def combine_work(parts: Iterable[WorkPart]) -> Work:
    """What the parts of a call say of it: one that does less makes up for none that does more."""
    verdicts = {part.verdict for part in parts}
    return next((work for work in (Work.MORE, Work.LESS) if work in verdicts), Work.SAME)


def judge_parts(a: Counts, b: Counts, least: float, *, same_runtime: bool) -> tuple[WorkPart, ...]:
    """The parts of a call of A and B; the module's own code is one where both sides have the same runtime."""
    parts = []
    a_outside, b_outside = a.outside, b.outside
    if a.dispatches or b.dispatches:
        parts.append(_judge_dispatches(a, b, least))
    if same_runtime and a.own is not None and b.own is not None:
        parts.append(WorkPart(CallPart.OWN_CODE, compare_work(a.own, b.own, least), a.own, b.own))
        a_outside, b_outside = a_outside - a.own, b_outside - b.own
    if not parts:
        # The layout of memory has a say in it as well.
        found = compare_work(a.instructions, b.instructions, max(least, CALL_MARGIN.share), OUTSIDE_MARGIN.amount)
        return (WorkPart(CallPart.CALL, found, a.instructions, b.instructions),)
    outside = compare_work(a_outside, b_outside, max(least, OUTSIDE_MARGIN.share), OUTSIDE_MARGIN.amount)
    return (*parts, WorkPart(CallPart.OUTSIDE, outside, a_outside, b_outside))


def _judge_dispatches(a: Counts, b: Counts, least: float) -> WorkPart:
    """Each dispatch that both sides have by itself; together what they fuse or split otherwise."""
    rows = [row for row in match_dispatches(a.profile, b.profile).changes if row.match != Match.OUTSIDE]
    changed: dict[Work, list[DispatchChange]] = {work: [] for work in Work}
    others = []
    for row in rows:
        if row.match == Match.NAME and len(row.a_names) == len(row.b_names) == 1:
            changed[compare_work(row.a_ns, row.b_ns, least)].append(row)
        else:
            others.append(row)
    together = compare_work(sum(row.a_ns for row in others), sum(row.b_ns for row in others), least)
    changed[together] += [row for row in others if (row.difference_ns > 0) is (together is Work.MORE)]
    # The rows stand in the order of their changes, and those of a group with it.
    more, less = (tuple(row.name for row in rows if row in changed[work]) for work in (Work.MORE, Work.LESS))
    verdict = Work.MORE if more else Work.LESS if less else Work.SAME
    return WorkPart(CallPart.DISPATCHES, verdict, a.instructions - a.outside, b.instructions - b.outside, more, less)
