"""Dispatches of programs: their names, their times, and the differences between two sides.

The time of each dispatch comes from `iree-profile dispatch --dispatch_events --format=jsonl`.

`iree-profile --agents_md` and https://iree.dev/developers/performance/device-profiling/ describe the rows.
A CPU gives `host_dispatch_event` rows with times of the host's clock; a GPU gives `dispatch_event` rows with times of
its own clock. All other rows are skipped, so releases that add kinds of rows can be read.

IREE names dispatches `<function>[$async]_dispatch_<number>[_<operation>[_<sizes>_<types>]]`, and changes of layout
`_encoding_<number>_<operation>`. The numbers follow the order of the program; a compiler that fuses differently
assigns other numbers.

The dispatches of two profiles are matched in two rounds, since two compilers number and fuse differently:

1. Dispatches are matched by name without number (`matmul_256x256x256_f32`), if both sides have equally many of a name:
   first dispatches with equal times (to the ns or the instruction), then the others in their order.
2. Remaining dispatches are matched by kind (`matmul`, `conv`, …), so three products fused into one are one row. A
   dispatch without a match of its kind on the other side is new or gone.

Numbers are not matched, since a number may mean another dispatch of the same shape on the other side. Each dispatch is
in exactly one row, so the sum of the rows is the total difference, to the nanosecond.

Names of dispatches are among the module's strings (3.13) or in its executables (3.5 to 3.12).
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
_SUMMARY_KIND = "dispatch_summary"
_COUNT_FIELDS = {_HOST_EVENT: "matched_host_dispatches", _DEVICE_EVENT: "matched_dispatches"}
_DISPATCH_NAME = re.compile(r"(?P<function>.*?)(?:\$async)?_dispatch_(?P<number>\d+)(?:_(?P<work>.+))?")
_ENCODING_NAME = re.compile(r"(?P<function>)_encoding_(?P<number>\d+)_(?P<work>.+)")
# In `256x256` or `4xD`, `D` is an unknown dimension; the last dimension may include its type (`2xf32`).
_SIZES_WORD = re.compile(r"(?:\d+|D)(?:x(?:\d+|D))*(?:x[a-z]+\d+\w*)?")
# The kind of a dispatch is the heaviest kind of work in its name.
_KINDS = (
    ("attention", ("attention",)),
    ("conv", ("conv", "im2col", "winograd")),
    ("matmul", ("matmul", "mmt4d", "matvec", "vecmat", "contract")),
    ("pooling", ("pool",)),
    ("reduction", ("reduction", "reduce", "softmax", "argmax", "argmin", "topk")),
    ("encoding", ("encode", "decode", "encoding", "pack")),
    ("elementwise", ("elementwise", "generic", "broadcast", "transpose")),
)
_DISPATCH_IN_BYTES = re.compile(rb"[\w$.]*_(?:dispatch|encoding)_\d+(?:_\w+)?")
_NAME_WITH_NUMBER = re.compile(r".*_(?:dispatch|encoding)_\d+")
# The kind of the row for the time outside of all dispatches.
OUTSIDE = "outside"
OUTSIDE_NAME = "outside of dispatches (scheduling, copies, waiting)"
_UNEXPLAINED_SHARE = 0.2
_MAX_ROWS = 10
# This limits the names in the title of a combined row.
_MAX_WORKS = 3


class ProfileError(GauntletError):
    """A profile without usable times."""


@dataclass(frozen=True, slots=True)
class DispatchTime:
    """The times of one dispatched function, as the compiler named it, over a whole profile.

    Attributes:
        total_ns: the total time.
        invocation_ns: the time in one invocation of the program: the median over the invocations. A whole number, so
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
        """The time of all dispatches of an invocation in ns; more than the elapsed time if some run in parallel."""
        return sum(dispatch.invocation_ns for dispatch in self.dispatches)

    @property
    def outside_ns(self) -> int | None:
        """The remaining time of an invocation: scheduling, copies, waiting. Negative if dispatches run in parallel."""
        return None if self.elapsed_ns is None else self.elapsed_ns - self.dispatched_ns

    def count_per_invocation(self, dispatch: DispatchTime) -> int:
        """Return how often one invocation dispatches it, rounded; at least 1."""
        return max(1, round(dispatch.count / self.invocations))


def parse_dispatch_events(lines: Iterable[str], *, invocations: int, elapsed_ns: int | None = None) -> DispatchProfile:
    """Read the rows of a profile of so many invocations, including warm-up; `elapsed_ns` is one's wall time.

    Raises:
        ProfileError: there are no dispatches, rows are truncated, or a row lacks a required field, which is named.
    """
    if invocations < 1:
        raise ProfileError(f"a profile of {invocations} invocations has no times")
    events: dict[str, dict[str, list[int | None]]] = {_HOST_EVENT: defaultdict(list), _DEVICE_EVENT: defaultdict(list)}
    summary: Mapping[str, Any] | None = None
    for row in read_profile_rows(lines, "the profile's rows", "type"):
        if row.kind == _SUMMARY_KIND:
            summary = row.fields
        elif row.kind in events:
            name, duration = _read_event(row)
            events[row.kind][name].append(duration)
    kind = _DEVICE_EVENT if events[_DEVICE_EVENT] else _HOST_EVENT
    durations = events[kind]
    if summary is None:
        raise ProfileError(
            f"the profile's rows end without their {_SUMMARY_KIND}",
            "iree-profile was stopped early, or this one writes another format",
        )
    count = sum(map(len, durations.values()))
    total = summary.get(_COUNT_FIELDS[kind], count)
    if total != count:
        raise ProfileError(f"the profile's rows contain {count} dispatches, but {_SUMMARY_KIND} counts {total}")
    if not durations:
        raise ProfileError(
            "the profile contains no dispatches",
            "the program dispatches nothing, or its device records no dispatch events",
        )
    notes: list[str] = []
    dispatches = tuple(
        _sum_dispatch(name, event_durations, invocations, notes) for name, event_durations in durations.items()
    )
    return DispatchProfile(dispatches, invocations, elapsed_ns, kind == _DEVICE_EVENT, tuple(notes))


def merge_profiles(profiles: Sequence[DispatchProfile]) -> DispatchProfile:
    """Merge several profiles of one program: the mean of their times, over the sum of their invocations."""
    if not profiles:
        raise ProfileError("there is no profile to merge")
    first = profiles[0]
    tables = [{dispatch.name: dispatch for dispatch in profile.dispatches} for profile in profiles]
    for table in tables:
        different = sorted(table.keys() ^ tables[0].keys())
        if different:
            raise ProfileError(
                f"profiles of one program differ in their dispatches: {different[0]} is not in all of them"
            )
    times = [profile.elapsed_ns for profile in profiles if profile.elapsed_ns is not None]
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
        round(statistics.fmean(times)) if len(times) == len(profiles) else None,
        first.on_device,
        tuple(dict.fromkeys(note for profile in profiles for note in profile.notes)),
    )


def read_profile_rows(lines: Iterable[str], label: str, field: str, *, required: bool = False) -> Iterator[ProfileRow]:
    """Yield the rows that a tool printed, without empty lines; `label` is their description for messages.

    `field` is the name of the field with a row's kind; each row must have it if it is `required`.
    """
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ProfileError(
                f"line {number} of {label} is not JSON: {line.strip()[:80]}",
                "iree-profile was stopped early, or wrote something else; run it by hand",
            ) from error
        if not isinstance(row, dict) or (required and not isinstance(row.get(field), str)):
            problem = f"has no {field}" if required else "is not a JSON object"
            raise ProfileError(f"line {number} of {label} {problem}: {line.strip()[:80]}")
        yield ProfileRow(row, row.get(field), f"line {number} of {label}")


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """A row whose fields are read by name and checked."""

    fields: Mapping[str, Any]
    kind: Any
    where: str

    def integer(self, name: str, minimum: float = -math.inf, expected: str = "a whole number") -> int:
        """Return the whole number in a field; raise ProfileError if the field has none."""
        value = self.fields.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise self.make_field_error(name, expected)
        return value

    def text(self, name: str) -> str:
        """Return the name in a field; raise ProfileError if the field has none."""
        value = self.fields.get(name)
        if not isinstance(value, str) or not value:
            raise self.make_field_error(name, "a name")
        return value

    def make_field_error(self, name: str, expected: str) -> ProfileError:
        """Make the error for a field with an unexpected value."""
        problem = f"is {self.fields[name]!r}" if name in self.fields else "is missing"
        return ProfileError(
            f"{self.where} ({self.kind}): {name} {problem}, expected {expected}",
            "this iree-profile writes another format",
        )


def _read_event(row: ProfileRow) -> tuple[str, int | None]:
    """Return the name and the ns of a dispatch; the ns are None if the dispatch has no valid time."""
    name, is_valid = row.text("key"), row.fields.get("valid")
    if not isinstance(is_valid, bool):
        raise row.make_field_error("valid", "true or false")
    if not is_valid:
        return name, None
    if row.fields.get("clock_fit_available") is False:
        raise ProfileError(
            "the device's clock could not be related to nanoseconds",
            "its driver gave too few readings of both clocks; profile more invocations",
        )
    return name, row.integer("duration_ns", 0, "a number of ns")


def _sum_dispatch(name: str, durations: Sequence[int | None], invocations: int, notes: list[str]) -> DispatchTime:
    valid_durations = [duration for duration in durations if duration is not None]
    if not valid_durations:
        raise ProfileError(f"no dispatch of {name} has a valid time")
    count = len(durations)
    if len(valid_durations) < count:
        notes.append(f"{name}: {count - len(valid_durations)} of {count} dispatches have no valid time")
    elif count % invocations:
        notes.append(f"{name}: {count} dispatches in {invocations} invocations, not the same number in each")
    else:
        # Rows are in order of execution, so the rows of one invocation are together.
        per_invocation = count // invocations
        sums = [sum(valid_durations[start : start + per_invocation]) for start in range(0, count, per_invocation)]
        # Take the median, because the first invocations have cold caches, and any invocation may be interrupted.
        return DispatchTime(name, count, sum(valid_durations), round(statistics.median(sums)))
    mean = sum(valid_durations) / len(valid_durations)
    return DispatchTime(name, count, sum(valid_durations), round(mean * count / invocations))


@dataclass(frozen=True, slots=True)
class DispatchName:
    """The parts of a name.

    Attributes:
        function: the function of the program, without IREE's `$async`; empty if the name has none.
        number: the running number; None if the name has none.
        work: the operation with sizes and types, `matmul_256x256x256_f32`; the whole name if it has another form.
        kind: `matmul`, `conv`, `elementwise`, `reduction` …; for another operation (`slow_memcpy`) its name without
            sizes; `other` if the name has no words.
    """

    function: str
    number: int | None
    work: str
    kind: str

    @property
    def label(self) -> tuple[str, str]:
        """The part of a name that is the same for two compilers: the name without its number."""
        return (self.function, self.work)


def parse_dispatch_name(name: str) -> DispatchName:
    """Parse the name of a dispatch; if it has an unknown form, the whole name becomes its `work`."""
    match = _DISPATCH_NAME.fullmatch(name) or _ENCODING_NAME.fullmatch(name)
    if match is None:
        return DispatchName("", None, name, "other")
    work = match["work"] or ""
    words = work.split("_")
    sizes = next((index for index, word in enumerate(words) if _SIZES_WORD.fullmatch(word)), len(words))
    kind_words = "_".join(words[:sizes])
    kind = next(
        (kind for kind, keywords in _KINDS if any(keyword in kind_words for keyword in keywords)), kind_words or "other"
    )
    return DispatchName(match["function"], int(match["number"]), work, kind)


def find_dispatch_names(data: Iterable[bytes]) -> list[str]:
    """Find the names of dispatches in any data, in program order; of two names for one dispatch, keep the longer."""
    names = {match.decode() for chunk in data for match in _DISPATCH_IN_BYTES.findall(chunk)}
    # An executable has its dispatch's name without the operation.
    short = {match[0] for name in names if (match := _NAME_WITH_NUMBER.match(name)) and match[0] != name}
    # Some formats store a string's length before it, which may look like a letter.
    parts = {name: parse_dispatch_name(name) for name in names if name not in short and name[1:] not in names}
    # The numbers follow the order of the program.
    return sorted(
        parts, key=lambda name: (parts[name].function, -1 if parts[name].number is None else parts[name].number, name)
    )


def find_new_and_gone(before: Iterable[str], after: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the works (`matmul_4x8_f32`, `add_4 (2)`) that only the second list has, and those only in the first."""
    old_works, new_works = (
        Counter(parse_dispatch_name(name).work or name for name in names) for names in (before, after)
    )
    return _list_works(new_works - old_works), _list_works(old_works - new_works)


def _list_works(works: Counter[str]) -> list[str]:
    return [work if count == 1 else f"{work} ({count})" for work, count in sorted(works.items())]


class Match(StrEnum):
    """The relation of the two sides of a row."""

    NAME = "name"
    KIND = "kind"
    NEW = "new"
    GONE = "gone"
    OUTSIDE = "outside"


@dataclass(frozen=True, slots=True)
class DispatchChanges:
    """All rows, the largest changes first."""

    changes: tuple[DispatchChange, ...]
    a_ns: int
    b_ns: int
    notes: tuple[str, ...] = ()

    @property
    def difference_ns(self) -> int:
        """B's additional time in an invocation in ns, which is exactly the sum of the rows' differences."""
        return self.b_ns - self.a_ns

    def share(self, change: DispatchChange) -> float | None:
        """Return a row's fraction of the total difference; negative if the row's difference has the opposite sign.

        Return None if there is no total difference.
        """
        return change.difference_ns / self.difference_ns if self.difference_ns else None

    def select_main_changes(self, max_rows: int = _MAX_ROWS) -> tuple[DispatchChange, ...]:
        """Return the fewest of the largest rows that explain four fifths of the difference, at most `max_rows`."""
        total = self.difference_ns
        missing = total
        for count, change in enumerate(self.changes):
            if abs(missing) <= _UNEXPLAINED_SHARE * abs(total) or count == max_rows or not change.difference_ns:
                return self.changes[:count]
            missing -= change.difference_ns
        return self.changes


def match_dispatches(a: DispatchProfile, b: DispatchProfile) -> DispatchChanges:
    """Match the dispatches of two profiles."""
    sides = _group_by_label(a), _group_by_label(b)
    changes: list[DispatchChange] = []
    remaining: tuple[dict[str, list[_Dispatch]], dict[str, list[_Dispatch]]] = (defaultdict(list), defaultdict(list))
    for label in sorted(sides[0].keys() | sides[1].keys()):
        a_group, b_group = (side.get(label, []) for side in sides)
        if [dispatch.count for dispatch in a_group] == [dispatch.count for dispatch in b_group]:
            changes += [
                _make_change(Match.NAME, [a_dispatch], [b_dispatch])
                for a_dispatch, b_dispatch in _pair_up(a_group, b_group)
            ]
            continue
        for side, group in zip(remaining, (a_group, b_group), strict=True):
            for dispatch in group:
                side[dispatch.name.kind].append(dispatch)
    for kind in sorted(remaining[0].keys() | remaining[1].keys()):
        a_group, b_group = (side.get(kind, []) for side in remaining)
        if a_group and b_group:
            have_one_name = len({dispatch.name.label for dispatch in (*a_group, *b_group)}) == 1
            changes.append(_make_change(Match.NAME if have_one_name else Match.KIND, a_group, b_group))
        else:
            changes += [_make_change(Match.GONE, [dispatch], []) for dispatch in a_group]
            changes += [_make_change(Match.NEW, [], [dispatch]) for dispatch in b_group]
    a_ns, b_ns = a.dispatched_ns, b.dispatched_ns
    if a.outside_ns is not None and b.outside_ns is not None:
        changes.append(DispatchChange(OUTSIDE_NAME, OUTSIDE, Match.OUTSIDE, a.outside_ns, b.outside_ns, 0, 0))
        a_ns, b_ns = a_ns + a.outside_ns, b_ns + b.outside_ns
    # The sort is stable, so rows with equal changes keep the order of their labels, whichever side is A.
    changes.sort(key=lambda change: -abs(change.difference_ns))
    notes = [f"{side}: {note}" for side, profile in (("A", a), ("B", b)) for note in profile.notes]
    return DispatchChanges(tuple(changes), a_ns, b_ns, tuple(notes))


@dataclass(frozen=True, slots=True)
class _Dispatch:
    """A dispatch with its parsed name."""

    time: DispatchTime
    name: DispatchName
    count: int


def _group_by_label(profile: DispatchProfile) -> dict[tuple[str, str], list[_Dispatch]]:
    """Group the dispatches by name without number, in the order of the program."""
    dispatches_by_label: dict[tuple[str, str], list[_Dispatch]] = defaultdict(list)
    for dispatch in profile.dispatches:
        name = parse_dispatch_name(dispatch.name)
        dispatches_by_label[name.label].append(_Dispatch(dispatch, name, profile.count_per_invocation(dispatch)))
    for group in dispatches_by_label.values():
        group.sort(key=lambda dispatch: dispatch.name.number or 0)
    return dispatches_by_label


def _pair_up(a_group: Sequence[_Dispatch], b_group: Sequence[_Dispatch]) -> Iterator[tuple[_Dispatch, _Dispatch]]:
    """Pair dispatches of one name: first those with equal times, then the others in their order."""
    unpaired_b, unpaired_a = list(b_group), []
    for a_dispatch in a_group:
        match = next(
            (b_dispatch for b_dispatch in unpaired_b if b_dispatch.time.invocation_ns == a_dispatch.time.invocation_ns),
            None,
        )
        if match is None:
            unpaired_a.append(a_dispatch)
        else:
            unpaired_b.remove(match)
            yield a_dispatch, match
    yield from zip(unpaired_a, unpaired_b, strict=True)


def _make_change(match: Match, a_group: Sequence[_Dispatch], b_group: Sequence[_Dispatch]) -> DispatchChange:
    named_side = b_group or a_group
    kind = named_side[0].name.kind
    works = sorted({dispatch.name.work or "unnamed" for dispatch in (*a_group, *b_group)})
    if match is Match.KIND:
        ellipsis = ", …" if len(works) > _MAX_WORKS else ""
        name = f"{kind}: {', '.join(works[:_MAX_WORKS])}{ellipsis}"
    elif len(a_group) > 1 or len(b_group) > 1:
        name = f"all {works[0]}"
    else:
        name = named_side[0].time.name
    return DispatchChange(
        name,
        kind,
        match,
        sum(dispatch.time.invocation_ns for dispatch in a_group),
        sum(dispatch.time.invocation_ns for dispatch in b_group),
        sum(dispatch.count for dispatch in a_group),
        sum(dispatch.count for dispatch in b_group),
        tuple(dispatch.time.name for dispatch in a_group),
        tuple(dispatch.time.name for dispatch in b_group),
    )
