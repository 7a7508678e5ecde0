"""What differs between two sides: where the time of their dispatches went, and the figures of their compiles.

Of profiles, the dispatches are matched. Two compilers number dispatches otherwise and fuse otherwise, so this is done
in two rounds:

1. By name without the number, `matmul_256x256x256_f32`, in their order, where both sides have as many.
2. What is left goes together by kind (`matmul`, `conv`, …): three products that were fused into one are one row. What
   has nothing of its kind on the other side is new or gone.

The number itself matches nothing: of several dispatches of one shape, the same number would be another one.

Each dispatch is in one row, so the rows add up to the difference of the whole, to the nanosecond.

Of compiles, the compiler's statistics and the size of the module are compared. The statistics are the JSON of
`--iree-scheduling-dump-statistics-format=json`: objects within objects, with numbers as leaves. Releases name and count
other things: what one side does not report is shown as such, not counted as zero.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from iree_gauntlet.measuring.profiles.dispatch_profile import DispatchName, dispatch_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from iree_gauntlet.measuring.profiles.dispatch_profile import DispatchProfile, DispatchTime


# The kind of the row for what no dispatch accounts for.
OUTSIDE = "outside"
_OUTSIDE_NAME = "outside of dispatches (scheduling, copies, waiting)"
_EXPLAINED = 0.8
_MOST_ROWS = 10
# What a row has of each side, and the row of all others too.
_SUMMED = ("a_count", "b_count", "a_ns", "b_ns")
# In the name of a row of several.
_MOST_WORKS = 3
_MODULE_SIZE = "module size"
# What people call the figures, the most important first.
_COMPILE_NAMES = {
    "execution/dispatch-count": "dispatches",
    "executable/executable-count": "executables",
    "execution/transient-memory-size": "transient memory",
    "global/constant-size": "constant memory",
    "global/constant-count": "constants",
    "global/variable-size": "variable memory",
    "global/variable-count": "variables",
    "execution/submission-count": "submissions",
    "execution/copy-count": "copies",
    "execution/fill-count": "fills",
    "execution/call-count": "calls",
    "synchronization/await-count": "awaits",
}
_COMPILE_ORDER = (_MODULE_SIZE, *_COMPILE_NAMES.values())


class Match(StrEnum):
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

    def explaining(self, most: int = _MOST_ROWS) -> tuple[DispatchChange, ...]:
        """The fewest of the largest rows that explain four fifths of the difference; `most` where so many do not."""
        whole = self.difference_ns
        rest = whole
        for count, change in enumerate(self.changes):
            if abs(rest) <= (1 - _EXPLAINED) * abs(whole) or count == most or not change.difference_ns:
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
            "rows": [{**asdict(change), "share": self.share(change)} for change in listed],
            "others": {
                **{name: sum(getattr(change, name) for change in others) for name in _SUMMED},
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


@dataclass(frozen=True, slots=True)
class CompileChange:
    """A figure that differs.

    Attributes:
        name: for people (`transient memory`); the place in the statistics where it has no name here.
        a, b: the figures; None where that side does not report it.
        unit: `bytes`, or empty for a count.
    """

    name: str
    a: float | None
    b: float | None
    unit: str = ""

    @property
    def ratio(self) -> float | None:
        """B over A; None where a side does not report it, or A is 0."""
        return None if self.b is None or not self.a else self.b / self.a

    def as_dict(self) -> dict[str, Any]:
        """For the record."""
        return {**asdict(self), "ratio": self.ratio}


def compile_changes(
    a: Mapping[str, Any], b: Mapping[str, Any], *, a_bytes: int | None = None, b_bytes: int | None = None
) -> tuple[CompileChange, ...]:
    """The figures that differ, and those that only one side reports; none where the compiles are alike.

    Args:
        a: the compiler's statistics, the content of its JSON file.
        b: the other side's.
        a_bytes: size of the module; None where unknown.
        b_bytes: the other side's.
    """
    ours, theirs = _figures(a, a_bytes), _figures(b, b_bytes)
    names = sorted(ours.keys() | theirs.keys(), key=_place)
    changes = (CompileChange(name, ours.get(name), theirs.get(name), _unit(name)) for name in names)
    return tuple(change for change in changes if change.a != change.b)


def _figures(statistics: Mapping[str, Any], module_bytes: int | None) -> dict[str, float]:
    found = {_COMPILE_NAMES.get(path, path): value for path, value in _leaves(statistics)}
    if module_bytes is not None:
        found[_MODULE_SIZE] = module_bytes
    return found


def _leaves(statistics: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, float]]:
    """Numbers by their place, `execution/dispatch-count`."""
    for key, value in statistics.items():
        here = f"{path}/{key}" if path else str(key)
        if isinstance(value, dict):
            yield from _leaves(value, "" if here == "stream-aggregate" else here)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield here, value


def _place(name: str) -> tuple[int, str]:
    return (_COMPILE_ORDER.index(name) if name in _COMPILE_ORDER else len(_COMPILE_ORDER), name)


def _unit(name: str) -> str:
    return "bytes" if name == _MODULE_SIZE or name.endswith(("memory", "-size", "-bytes")) else ""
