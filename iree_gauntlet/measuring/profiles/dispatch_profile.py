"""Dispatches of programs: what they are, and what differs between two sides.

What each dispatch takes comes from `iree-profile dispatch --dispatch_events --format=jsonl`.

The rows are described by `iree-profile --agents_md` and https://iree.dev/developers/performance/device-profiling/.
A CPU gives `host_dispatch_event` rows, timed by the host's clock; a GPU gives `dispatch_event` rows, timed by its own.
All other rows are passed over, so that a release which adds some is still read.

IREE names dispatches `<function>[$async]_dispatch_<number>[_<what it does>[_<sizes>_<types>]]`, and changes of layout
`_encoding_<number>_<what it does>`. The numbers are given in the order of the program; each compiler that fuses
otherwise gives other ones.

Of two profiles, the dispatches are matched in two rounds, since two compilers number and fuse otherwise:

1. By name without the number, `matmul_256x256x256_f32`, where both sides have as many: those that take the same, to the
   ns or the instruction, and what is left in their order.
2. What is left goes together by kind (`matmul`, `conv`, …): three products that were fused into one are one row. What
   has nothing of its kind on the other side is new or gone.

The number itself matches nothing: of several dispatches of one shape, the same number would be another one. Each
dispatch is in one row, so the rows add up to the difference of the whole, to the nanosecond.

Names of dispatches stand among the module's strings (3.13) or in its executables (3.5 to 3.12).
"""

from __future__ import annotations

import json
import math
import re
import statistics
from collections import Counter, defaultdict
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from iree_gauntlet.errors import GauntletError
from iree_gauntlet.results import DispatchChange

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


_HOST_EVENT = "host_dispatch_event"
_DEVICE_EVENT = "dispatch_event"
_SUMMARY = "dispatch_summary"
_MATCHED = {_HOST_EVENT: "matched_host_dispatches", _DEVICE_EVENT: "matched_dispatches"}
_DISPATCH = re.compile(r"(?P<function>.*?)(?:\$async)?_dispatch_(?P<number>\d+)(?:_(?P<work>.+))?")
_ENCODING = re.compile(r"(?P<function>)_encoding_(?P<number>\d+)_(?P<work>.+)")
# `256x256`, `4xD`: `D` stands for a dimension that is not known; the last may carry its type (`2xf32`).
_SIZES = re.compile(r"(?:\d+|D)(?:x(?:\d+|D))*(?:x[a-z]+\d+\w*)?")
# What a dispatch is counted as: the heaviest kind of work in its name.
_KINDS = (
    ("attention", ("attention",)),
    ("conv", ("conv", "im2col", "winograd")),
    ("matmul", ("matmul", "mmt4d", "matvec", "vecmat", "contract")),
    ("pooling", ("pool",)),
    ("reduction", ("reduction", "reduce", "softmax", "argmax", "argmin", "topk")),
    ("encoding", ("encode", "decode", "encoding", "pack")),
    ("elementwise", ("elementwise", "generic", "broadcast", "transpose")),
)
_WRITTEN_DISPATCH = re.compile(rb"[\w$.]*_(?:dispatch|encoding)_\d+(?:_\w+)?")
_NUMBERED = re.compile(r".*_(?:dispatch|encoding)_\d+")
# The kind of the row for what no dispatch accounts for.
OUTSIDE = "outside"
OUTSIDE_NAME = "outside of dispatches (scheduling, copies, waiting)"
_EXPLAINED = 0.8
_MOST_ROWS = 10
# In the name of a row of several.
_MOST_WORKS = 3


class ProfileError(GauntletError):
    """A profile from which no times can be had."""


@dataclass(frozen=True, slots=True)
class DispatchTime:
    """One function that is dispatched, over a whole profile, as the compiler named it.

    Attributes:
        total_ns: what that took in all.
        invocation_ns: what it takes in one invocation of the program: the median over the invocations. Whole, so
            that sums of them are exact.
    """

    name: str
    count: int
    total_ns: int
    invocation_ns: int


@dataclass(frozen=True, slots=True)
class DispatchProfile:
    """The dispatches of a program; `elapsed_ns` is an invocation's wall time under the profile, the median."""

    dispatches: tuple[DispatchTime, ...]
    invocations: int
    elapsed_ns: int | None = None
    on_device: bool = False
    notes: tuple[str, ...] = ()

    @property
    def dispatched_ns(self) -> int:
        """All dispatches of an invocation, ns. More than the elapsed time where some run side by side."""
        return sum(dispatch.invocation_ns for dispatch in self.dispatches)

    @property
    def outside_ns(self) -> int | None:
        """What is left of an invocation: scheduling, copies, waiting. Negative where dispatches run side by side."""
        return None if self.elapsed_ns is None else self.elapsed_ns - self.dispatched_ns

    def per_invocation(self, dispatch: DispatchTime) -> int:
        """How often one invocation dispatches it, rounded; at least 1."""
        return max(1, round(dispatch.count / self.invocations))


def parse_dispatch_events(lines: Iterable[str], *, invocations: int, elapsed_ns: int | None = None) -> DispatchProfile:
    """Reads the rows of a profile of so many invocations, those that warmed up too; `elapsed_ns` is one's wall time.

    Raises:
        ProfileError: no dispatches, rows that are cut off, or a row without what is needed, which is named.
    """
    if invocations < 1:
        raise ProfileError(f"a profile of {invocations} invocations has no times")
    events: dict[str, dict[str, list[int | None]]] = {_HOST_EVENT: defaultdict(list), _DEVICE_EVENT: defaultdict(list)}
    summary: Mapping[str, Any] | None = None
    for row in read_profile_rows(lines, "the profile's rows", "type"):
        if row.kind == _SUMMARY:
            summary = row.fields
        elif row.kind in events:
            name, duration = _read_event(row)
            events[row.kind][name].append(duration)
    kind = _DEVICE_EVENT if events[_DEVICE_EVENT] else _HOST_EVENT
    found = events[kind]
    if summary is None:
        raise ProfileError(
            f"the profile's rows end without their {_SUMMARY}",
            "iree-profile was ended early, or this one writes another format",
        )
    count = sum(map(len, found.values()))
    expected = summary.get(_MATCHED[kind], count)
    if expected != count:
        raise ProfileError(f"the profile's rows hold {count} dispatches, and {_SUMMARY} counts {expected}")
    if not found:
        raise ProfileError(
            "the profile holds no dispatches",
            "the program dispatches nothing, or its device writes no events of dispatches",
        )
    notes: list[str] = []
    dispatches = tuple(_sum_dispatch(name, durations, invocations, notes) for name, durations in found.items())
    return DispatchProfile(dispatches, invocations, elapsed_ns, kind == _DEVICE_EVENT, tuple(notes))


def merged(profiles: Sequence[DispatchProfile]) -> DispatchProfile:
    """Several profiles of one program as one: the mean of their times, over the sum of their invocations."""
    if not profiles:
        raise ProfileError("there is no profile to merge")
    first = profiles[0]
    tables = [{dispatch.name: dispatch for dispatch in profile.dispatches} for profile in profiles]
    for table in tables:
        odd = sorted(table.keys() ^ tables[0].keys())
        if odd:
            raise ProfileError(f"profiles of one program differ in their dispatches: {odd[0]} is not in all of them")
    elapsed = [profile.elapsed_ns for profile in profiles if profile.elapsed_ns is not None]
    return DispatchProfile(
        tuple(
            DispatchTime(
                dispatch.name,
                sum(table[dispatch.name].count for table in tables),
                sum(table[dispatch.name].total_ns for table in tables),
                round(statistics.fmean(table[dispatch.name].invocation_ns for table in tables)),
            )
            for dispatch in first.dispatches
        ),
        sum(profile.invocations for profile in profiles),
        round(statistics.fmean(elapsed)) if len(elapsed) == len(profiles) else None,
        first.on_device,
        tuple(dict.fromkeys(note for profile in profiles for note in profile.notes)),
    )


def read_profile_rows(lines: Iterable[str], what: str, field: str, *, needed: bool = False) -> Iterator[ProfileRow]:
    """The rows that a tool printed, but for empty lines; `what` they are is for messages.

    A field says of which kind a row is; each has to have it where it is `needed`.
    """
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ProfileError(
                f"line {number} of {what} is no JSON: {line.strip()[:80]}",
                "iree-profile was ended early, or wrote something else; run it by hand",
            ) from error
        if not isinstance(row, dict) or (needed and not isinstance(row.get(field), str)):
            wrong = f"has no {field}" if needed else "is no JSON object"
            raise ProfileError(f"line {number} of {what} {wrong}: {line.strip()[:80]}")
        yield ProfileRow(row, row.get(field), f"line {number} of {what}")


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """A row whose fields are read by name and checked."""

    fields: Mapping[str, Any]
    kind: Any
    where: str

    def integer(self, name: str, least: float = -math.inf, expected: str = "a whole number") -> int:
        """A whole number; ProfileError where it is none."""
        value = self.fields.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.unfit(name, expected)
        return value

    def text(self, name: str) -> str:
        """A name; ProfileError where it is none."""
        value = self.fields.get(name)
        if not isinstance(value, str) or not value:
            raise self.unfit(name, "a name")
        return value

    def unfit(self, name: str, expected: str) -> ProfileError:
        """What is wrong with a field."""
        found = f"is {self.fields[name]!r}" if name in self.fields else "is missing"
        return ProfileError(
            f"{self.where} ({self.kind}): {name} {found}, expected {expected}",
            "this iree-profile writes another format",
        )


def _read_event(row: ProfileRow) -> tuple[str, int | None]:
    """Name and ns of a dispatch; None for one without a valid time."""
    name, valid = row.text("key"), row.fields.get("valid")
    if not isinstance(valid, bool):
        raise row.unfit("valid", "true or false")
    if not valid:
        return name, None
    if row.fields.get("clock_fit_available") is False:
        raise ProfileError(
            "the device's clock could not be related to nanoseconds",
            "its driver gave too few readings of both clocks; profile more invocations",
        )
    return name, row.integer("duration_ns", 0, "a number of ns")


def _sum_dispatch(name: str, durations: Sequence[int | None], invocations: int, notes: list[str]) -> DispatchTime:
    timed = [duration for duration in durations if duration is not None]
    if not timed:
        raise ProfileError(f"no dispatch of {name} has a valid time")
    count = len(durations)
    if len(timed) < count:
        notes.append(f"{name}: {count - len(timed)} of {count} dispatches have no valid time")
    elif count % invocations:
        notes.append(f"{name}: {count} dispatches in {invocations} invocations, not the same in each")
    else:
        # The rows stand in the order in which the dispatches ran: those of one invocation together.
        each = count // invocations
        sums = [sum(timed[start : start + each]) for start in range(0, count, each)]
        # The first invocations find cold caches, and any may be interrupted: the median knows of neither.
        return DispatchTime(name, count, sum(timed), round(statistics.median(sums)))
    mean = sum(timed) / len(timed)
    return DispatchTime(name, count, sum(timed), round(mean * count / invocations))


@dataclass(frozen=True, slots=True)
class DispatchName:
    """The parts of a name.

    Attributes:
        function: of the program, without IREE's `$async`; empty where the name has none.
        number: its running number; None where the name has none.
        work: what it does with sizes and types, `matmul_256x256x256_f32`; the whole name where it has another form.
        kind: `matmul`, `conv`, `elementwise`, `reduction` …; the name of the work without sizes where it is none of
            these (`slow_memcpy`), and `other` where the name has no words.
    """

    function: str
    number: int | None
    work: str
    kind: str

    @property
    def label(self) -> tuple[str, str]:
        """What is the same for two compilers: the name without its number."""
        return (self.function, self.work)


def parse_dispatch_name(name: str) -> DispatchName:
    """Takes a name apart; one of another form is its own work."""
    match = _DISPATCH.fullmatch(name) or _ENCODING.fullmatch(name)
    if match is None:
        return DispatchName("", None, name, "other")
    work = match["work"] or ""
    words = work.split("_")
    sizes = next((index for index, word in enumerate(words) if _SIZES.fullmatch(word)), len(words))
    kind_words = "_".join(words[:sizes])
    kind = next((kind for kind, parts in _KINDS if any(part in kind_words for part in parts)), kind_words or "other")
    return DispatchName(match["function"], int(match["number"]), work, kind)


def find_dispatch_names(data: Iterable[bytes]) -> list[str]:
    """Names of dispatches in any data, in their order; the shorter of two for the same one is left out."""
    found = {match.decode() for part in data for match in _WRITTEN_DISPATCH.findall(part)}
    # An executable is called like its dispatch, without what it does.
    short = {match[0] for name in found if (match := _NUMBERED.match(name)) and match[0] != name}
    # The length of a text is before it in some formats, and may look like a letter.
    parts = {name: parse_dispatch_name(name) for name in found if name not in short and name[1:] not in found}
    # Numbers are given in the order of the program.
    return sorted(
        parts, key=lambda name: (parts[name].function, -1 if parts[name].number is None else parts[name].number, name)
    )


def find_new_and_gone(before: Iterable[str], after: Iterable[str]) -> tuple[list[str], list[str]]:
    """What one list of dispatches has and the other has not, without their numbers: `matmul_4x8_f32`, `add_4 (2)`."""
    old, new = (Counter(parse_dispatch_name(name).work or name for name in names) for names in (before, after))
    return _list_works(new - old), _list_works(old - new)


def _list_works(works: Counter[str]) -> list[str]:
    return [work if count == 1 else f"{work} ({count})" for work, count in sorted(works.items())]


class Match(StrEnum):
    """How the two sides of a row belong together."""

    NAME = "name"
    KIND = "kind"
    NEW = "new"
    GONE = "gone"
    OUTSIDE = "outside"


@dataclass(frozen=True, slots=True)
class DispatchChanges:
    """All rows, those that matter most first."""

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


def match_dispatches(a: DispatchProfile, b: DispatchProfile) -> DispatchChanges:
    """Matches the dispatches of two profiles."""
    sides = _group_by_label(a), _group_by_label(b)
    changes: list[DispatchChange] = []
    left: tuple[dict[str, list[_Dispatch]], dict[str, list[_Dispatch]]] = (defaultdict(list), defaultdict(list))
    for label in sorted(sides[0].keys() | sides[1].keys()):
        ours, theirs = (side.get(label, []) for side in sides)
        if [dispatch.count for dispatch in ours] == [dispatch.count for dispatch in theirs]:
            changes += [_change(Match.NAME, [one], [other]) for one, other in _pair_up(ours, theirs)]
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
    a_ns, b_ns = a.dispatched_ns, b.dispatched_ns
    if a.outside_ns is not None and b.outside_ns is not None:
        changes.append(DispatchChange(OUTSIDE_NAME, OUTSIDE, Match.OUTSIDE, a.outside_ns, b.outside_ns, 0, 0))
        a_ns, b_ns = a_ns + a.outside_ns, b_ns + b.outside_ns
    # Stable: rows of one size keep the order of their labels, whichever side is A and whatever the numbers are.
    changes.sort(key=lambda change: -abs(change.difference_ns))
    notes = [f"{side}: {note}" for side, profile in (("A", a), ("B", b)) for note in profile.notes]
    return DispatchChanges(tuple(changes), a_ns, b_ns, tuple(notes))


@dataclass(frozen=True, slots=True)
class _Dispatch:
    """A dispatch, with what its name says."""

    time: DispatchTime
    name: DispatchName
    count: int


def _group_by_label(profile: DispatchProfile) -> dict[tuple[str, str], list[_Dispatch]]:
    """The dispatches of each name without number, in the order of the program."""
    found: dict[tuple[str, str], list[_Dispatch]] = defaultdict(list)
    for dispatch in profile.dispatches:
        name = parse_dispatch_name(dispatch.name)
        found[name.label].append(_Dispatch(dispatch, name, profile.per_invocation(dispatch)))
    for group in found.values():
        group.sort(key=lambda dispatch: dispatch.name.number or 0)
    return found


def _pair_up(ours: Sequence[_Dispatch], theirs: Sequence[_Dispatch]) -> Iterator[tuple[_Dispatch, _Dispatch]]:
    """Dispatches of one name: those that take the same, then the others in their order."""
    left, waiting = list(theirs), []
    for one in ours:
        same = next((other for other in left if other.time.invocation_ns == one.time.invocation_ns), None)
        if same is None:
            waiting.append(one)
        else:
            left.remove(same)
            yield one, same
    yield from zip(waiting, left, strict=True)


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
