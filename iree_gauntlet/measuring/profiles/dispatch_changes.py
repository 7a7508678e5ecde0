"""Where the time went between two profiles of one program: their dispatches matched, and what each adds.

Two compilers number dispatches otherwise and fuse otherwise, so they are matched in two rounds:

1. By name without the number, `matmul_256x256x256_f32`, in their order, where both sides have as many.
2. What is left goes together by kind (`matmul`, `conv`, …): three products that were fused into one are one row. What
   has nothing of its kind on the other side is new or gone.

The number itself matches nothing: of several dispatches of one shape, the same number would be another one.

Each dispatch is in one row, so the rows add up to the difference of the whole, to the nanosecond.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from iree_gauntlet.measuring.profiles.dispatch_names import DispatchName, dispatch_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iree_gauntlet.measuring.profiles.dispatch_profile import DispatchProfile, DispatchTime


# The kind of the row for what no dispatch accounts for.
OUTSIDE = "outside"
_OUTSIDE_NAME = "outside of dispatches (scheduling, copies, waiting)"
_EXPLAINED = 0.8
_MOST_ROWS = 10
# In the name of a row of several.
_MOST_WORKS = 3


class Match(Enum):
    """How the two sides of a row belong together."""

    NAME = "name"
    KIND = "kind"
    NEW = "new"
    GONE = "gone"
    OUTSIDE = "outside"


@dataclass(frozen=True, slots=True)
class DispatchChange:
    """One row: dispatches of A and what they became in B.

    Attributes:
        name: for people: the name in B (in A for what is gone), or what several have in common.
        kind: what they do.
        match: how they were matched.
        a_ns, b_ns: what they take in an invocation, ns.
        a_count, b_count: how often an invocation dispatches them.
        a_names, b_names: the names of the functions.
    """

    name: str
    kind: str
    match: Match
    a_ns: int
    b_ns: int
    a_count: int
    b_count: int
    a_names: tuple[str, ...] = ()
    b_names: tuple[str, ...] = ()

    @property
    def difference_ns(self) -> int:
        """What B takes more, ns in an invocation."""
        return self.b_ns - self.a_ns


@dataclass(frozen=True, slots=True)
class DispatchChanges:
    """All rows, those that matter most first.

    Attributes:
        changes: by the size of their difference.
        a_ns, b_ns: the whole: an invocation's wall time where both profiles know it, else its dispatches alone.
        notes: what a reader should know, of both profiles.
    """

    changes: tuple[DispatchChange, ...]
    a_ns: int
    b_ns: int
    notes: tuple[str, ...] = ()

    @property
    def difference_ns(self) -> int:
        """What B takes more, ns in an invocation: exactly the sum of the rows' differences."""
        return self.b_ns - self.a_ns

    def share(self, change: DispatchChange) -> float | None:
        """The part of the whole difference that a row makes up; negative where it goes the other way.

        None where there is no difference.
        """
        return change.difference_ns / self.difference_ns if self.difference_ns else None

    def explaining(self, share: float = _EXPLAINED, most: int = _MOST_ROWS) -> tuple[DispatchChange, ...]:
        """The fewest of the largest rows that leave no more than the rest of the difference to all others together.

        Args:
            share: of the difference, that the rows explain.
            most: rows, where so many do not explain it.
        """
        whole = self.difference_ns
        rest = whole
        for count, change in enumerate(self.changes):
            if abs(rest) <= (1 - share) * abs(whole) or count == most or not change.difference_ns:
                return self.changes[:count]
            rest -= change.difference_ns
        return self.changes

    def as_dict(self) -> dict[str, Any]:
        """For the record: the rows that explain the difference, and the sum of all others. Times are in ns."""
        listed = self.explaining()
        others = self.changes[len(listed) :]
        return {
            "a_ns": self.a_ns,
            "b_ns": self.b_ns,
            "rows": [
                {
                    "name": change.name,
                    "kind": change.kind,
                    "match": change.match.value,
                    "a_ns": change.a_ns,
                    "b_ns": change.b_ns,
                    "a_count": change.a_count,
                    "b_count": change.b_count,
                    "a_names": list(change.a_names),
                    "b_names": list(change.b_names),
                    "share": self.share(change),
                }
                for change in listed
            ],
            "others": {
                "a_count": sum(change.a_count for change in others),
                "b_count": sum(change.b_count for change in others),
                "a_ns": sum(change.a_ns for change in others),
                "b_ns": sum(change.b_ns for change in others),
                "outside": any(change.match is Match.OUTSIDE for change in others),
            },
            "notes": list(self.notes),
        }


def dispatch_changes(a: DispatchProfile, b: DispatchProfile) -> DispatchChanges:
    """Matches the dispatches of two profiles."""
    changes = _matched(a, b)
    a_ns, b_ns = a.dispatched_ns, b.dispatched_ns
    if a.outside_ns is not None and b.outside_ns is not None:
        changes.append(DispatchChange(_OUTSIDE_NAME, OUTSIDE, Match.OUTSIDE, a.outside_ns, b.outside_ns, 0, 0))
        a_ns, b_ns = a_ns + a.outside_ns, b_ns + b.outside_ns
    # Stable: rows of one size keep the order of their labels, whichever side is A and whatever the numbers are.
    changes.sort(key=lambda change: -abs(change.difference_ns))
    notes = [f"{side}: {note}" for side, profile in (("A", a), ("B", b)) for note in profile.notes]
    return DispatchChanges(tuple(changes), a_ns, b_ns, tuple(notes))


@dataclass(frozen=True, slots=True)
class _Dispatch:
    """A dispatch, with what its name says.

    Attributes:
        count: how often an invocation dispatches it.
    """

    time: DispatchTime
    name: DispatchName
    count: int


def _by_label(profile: DispatchProfile) -> dict[tuple[str, str], list[_Dispatch]]:
    """The dispatches of each name without number, in the order of the program."""
    found: dict[tuple[str, str], list[_Dispatch]] = defaultdict(list)
    for dispatch in profile.dispatches:
        name = dispatch_name(dispatch.name)
        found[name.label].append(_Dispatch(dispatch, name, profile.per_invocation(dispatch)))
    for group in found.values():
        group.sort(key=lambda dispatch: dispatch.name.number or 0)
    return found


def _matched(a: DispatchProfile, b: DispatchProfile) -> list[DispatchChange]:
    """A row for each pair of one name, then the rows of each kind of what is left."""
    sides = _by_label(a), _by_label(b)
    changes: list[DispatchChange] = []
    left: tuple[dict[str, list[_Dispatch]], dict[str, list[_Dispatch]]] = (defaultdict(list), defaultdict(list))
    for label in sorted(sides[0].keys() | sides[1].keys()):
        ours, theirs = (side.get(label, []) for side in sides)
        if [dispatch.count for dispatch in ours] == [dispatch.count for dispatch in theirs]:
            changes += [_change(Match.NAME, [one], [other]) for one, other in zip(ours, theirs, strict=True)]
            continue
        for side, group in zip(left, (ours, theirs), strict=True):
            for dispatch in group:
                side[dispatch.name.kind].append(dispatch)
    for kind in sorted(left[0].keys() | left[1].keys()):
        ours, theirs = (side.get(kind, []) for side in left)
        if ours and theirs:
            of_one_name = len({dispatch.name.label for dispatch in (*ours, *theirs)}) == 1
            changes.append(_change(Match.NAME if of_one_name else Match.KIND, ours, theirs))
        else:
            changes += [_change(Match.GONE, [dispatch], []) for dispatch in ours]
            changes += [_change(Match.NEW, [], [dispatch]) for dispatch in theirs]
    return changes


def _change(match: Match, ours: Sequence[_Dispatch], theirs: Sequence[_Dispatch]) -> DispatchChange:
    named = theirs or ours
    kind = named[0].name.kind
    works = sorted({dispatch.name.work or "unnamed" for dispatch in (*ours, *theirs)})
    if match is Match.KIND:
        more = ", …" if len(works) > _MOST_WORKS else ""
        name = f"{kind}: {', '.join(works[:_MOST_WORKS])}{more}"
    elif len(ours) > 1 or len(theirs) > 1:
        name = f"all {works[0]}"
    else:
        name = named[0].time.name
    return DispatchChange(
        name,
        kind,
        match,
        sum(dispatch.time.invocation_ns for dispatch in ours),
        sum(dispatch.time.invocation_ns for dispatch in theirs),
        sum(dispatch.count for dispatch in ours),
        sum(dispatch.count for dispatch in theirs),
        tuple(dispatch.time.name for dispatch in ours),
        tuple(dispatch.time.name for dispatch in theirs),
    )
