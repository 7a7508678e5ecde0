"""A profile as a file that https://ui.perfetto.dev opens, from `iree-profile export --format=ireeperf-jsonl`.

The file is JSON of the trace event format
(https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU): a process for each device, and for
each of its queues threads for what was submitted, for what the host and the device did with it, and for dispatches.
IREE's own `iree-profile-render` makes another one, in a Python that has the perfetto package.

Rows have no version that is checked: the kinds that are read are the ones of releases 3.12 and 3.13, whatever has the
fields that they need is taken, and all other kinds are passed over.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from iree_gauntlet.measuring.profiles.dispatch_profile import ProfileError, ProfileRow, read_profile_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


_FORMAT = "ireeperf-jsonl"
_EXPORTED = "the exported profile"
_SUBMITTED = "queue_event"
_ON_HOST = "host_execution_event"
_ON_DEVICE = "queue_device_event"
_DISPATCH = "dispatch_event"
# Threads of a queue, from top to bottom.
_FAMILIES = ("submissions", "execution on the host", "execution on the device", "dispatches")
_SUBMISSIONS, _HOST, _DEVICE, _DISPATCHES = range(len(_FAMILIES))
# What a click on an event shows, under the name that it has there.
_DETAILS = (
    ("submission_id", "submission"),
    ("command_buffer_id", "command buffer"),
    ("payload_length", "bytes"),
    ("operation_count", "operations"),
    ("tile_count", "workgroups run"),
    ("tile_duration_sum_ns", "sum of all workers, ns"),
    ("wait_count", "waits for"),
    ("dependency_strategy", "dependencies"),
)
_NO_ORDINAL = (1 << 32) - 1
_NS_PER_US = 1000


@dataclass(frozen=True, slots=True, order=True)
class _Place:
    """A thread of the trace, or with lane 0 the family of threads."""

    device: int
    queue: int
    family: int
    lane: int = 0


@dataclass(frozen=True, slots=True)
class _Event:
    """Something that took from `start` to `end`, ns of the host's clock; an instant where both are one."""

    place: _Place
    start: int
    end: int
    name: str
    category: str
    details: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Clock:
    """A device's clock in ns of the host's, by its first and its last reading, as IREE's own tools relate them."""

    first: tuple[int, int]
    last: tuple[int, int]

    def convert_to_host(self, tick: int) -> int:
        ticks, ns = (self.last[index] - self.first[index] for index in (0, 1))
        passed = tick - self.first[0]
        return self.first[1] + (passed if ticks == 0 else round(passed * ns / ticks))


def make_perfetto_trace(lines: Iterable[str], device: str) -> dict[str, Any]:
    """Reads exported rows, and gives the JSON document.

    Times in it are µs from the first event on, with the ns as decimals. What overlaps without lying inside each other
    goes to threads of its own. `otherData.left_out` counts the events without a valid time. The device is as the
    benchmark's `--device` names it.

    Raises:
        ProfileError: no such rows, one that is cut off or lacks a field that is needed, which is named, or no events.
    """
    rows = list(read_profile_rows(lines, _EXPORTED, "record_type", needed=True))
    if not any(row.kind == "schema" and row.fields.get("format") == _FORMAT for row in rows):
        raise ProfileError(f"{_EXPORTED} does not say that it is {_FORMAT}")
    clocks = _read_clocks(rows)
    found = [_read_event(row, clocks) for row in rows if row.kind in (_SUBMITTED, _ON_HOST, _ON_DEVICE, _DISPATCH)]
    events = [event for event in found if event is not None]
    if not events:
        raise ProfileError("the exported profile holds no events with a time")
    placed = _place_in_lanes(events)
    # From 1 on: 0 is the idle process of a kernel's trace, to which Perfetto gives another name.
    processes = {ordinal: pid for pid, ordinal in enumerate(sorted({event.place.device for event in events}), 1)}
    threads = {
        place: (processes[place.device], tid) for tid, place in enumerate(sorted({place for place, _ in placed}), 1)
    }
    begin = min(event.start for event in events)
    return {
        "displayTimeUnit": "ns",
        "otherData": {"left_out": len(found) - len(events)},
        "traceEvents": [
            *_name_all(processes, threads, device),
            *(_record(event, threads[place], begin) for place, event in placed),
        ],
    }


def _pick_details(fields: Mapping[str, Any]) -> dict[str, Any]:
    """What is worth showing; nothing of what is zero or not there."""
    found = {title: fields.get(name) for name, title in _DETAILS if fields.get(name)}
    index = fields.get("command_index", _NO_ORDINAL)
    if index != _NO_ORDINAL:
        found["command"] = index
    for name in ("workgroup_count", "workgroup_size"):
        sizes = fields.get(name)
        if isinstance(sizes, list) and any(sizes):
            found[name.replace("_", " ")] = "x".join(map(str, sizes))
    return found


def _read_clocks(rows: Iterable[ProfileRow]) -> dict[int, _Clock]:
    readings: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for row in rows:
        if row.kind != "clock_correlation" or not {"host_time_begin_ns", "device_tick"} <= row.fields.keys():
            continue
        # The device was asked some time between the two.
        host = (row.integer("host_time_begin_ns") + row.integer("host_time_end_ns")) // 2
        readings[row.integer("physical_device_ordinal")].append((row.integer("device_tick"), host))
    return {device: _Clock(min(found), max(found)) for device, found in readings.items()}


def _read_event(row: ProfileRow, clocks: Mapping[int, _Clock]) -> _Event | None:
    """None for one without a valid time."""
    device, queue = row.integer("physical_device_ordinal"), row.integer("queue_ordinal")
    kind, details = row.kind, _pick_details(row.fields)
    if kind == _SUBMITTED:
        at = row.integer("host_time_ns")
        ready = row.fields.get("ready_host_time_ns")
        if isinstance(ready, int) and ready > at:
            details["ready after, ns"] = ready - at
        name = f"submit {row.text('op')}"
        return _Event(_Place(device, queue, _SUBMISSIONS), at, at, name, "submission", details)
    if row.fields.get("valid") is False:
        return None
    if kind == _ON_HOST:
        start, end = row.integer("start_host_time_ns"), row.integer("end_host_time_ns")
    elif device in clocks:
        start, end = (clocks[device].convert_to_host(row.integer(name)) for name in ("start_tick", "end_tick"))
    else:
        return None
    if end < start:
        return None
    # The host's rows name the kind of work in a field; the device's have rows of their own for dispatches.
    if kind == _DISPATCH or row.fields.get("op") == "dispatch":
        return _Event(_Place(device, queue, _DISPATCHES), start, end, row.text("key"), "dispatch", details)
    family = _HOST if kind == _ON_HOST else _DEVICE
    return _Event(_Place(device, queue, family), start, end, row.text("op"), "execution", details)


def _place_in_lanes(events: Sequence[_Event]) -> list[tuple[_Place, _Event]]:
    """Events in the order of time, each on a thread where nothing else runs at its time."""
    placed = []
    busy: dict[_Place, list[tuple[int, int]]] = defaultdict(list)
    free: dict[_Place, list[int]] = defaultdict(list)
    for event in sorted(events, key=lambda event: (event.start, event.end, event.place)):
        running, idle = busy[event.place], free[event.place]
        while running and running[0][0] <= event.start:
            heapq.heappush(idle, heapq.heappop(running)[1])
        lane = heapq.heappop(idle) if idle else len(running)
        heapq.heappush(running, (event.end, lane))
        placed.append((_Place(event.place.device, event.place.queue, event.place.family, lane), event))
    return placed


def _name_all(
    processes: Mapping[int, int], threads: Mapping[_Place, tuple[int, int]], device: str
) -> list[dict[str, Any]]:
    """Metadata: what processes and threads are called, and their order."""
    named = [
        ("process", pid, 0, device if ordinal == _NO_ORDINAL else f"{device}, device {ordinal}")
        for ordinal, pid in processes.items()
    ]
    for place, (pid, tid) in threads.items():
        queue = "no queue" if place.queue == _NO_ORDINAL else f"queue {place.queue}"
        lane = f" ({place.lane + 1})" if place.lane else ""
        named.append(("thread", pid, tid, f"{queue}: {_FAMILIES[place.family]}{lane}"))
    found: list[dict[str, Any]] = []
    for kind, pid, tid, name in named:
        common = {"ph": "M", "pid": pid, "tid": tid, "ts": 0}
        found.append({**common, "name": f"{kind}_name", "args": {"name": name}})
        found.append({**common, "name": f"{kind}_sort_index", "args": {"sort_index": tid or pid}})
    return found


def _record(event: _Event, thread: tuple[int, int], begin: int) -> dict[str, Any]:
    pid, tid = thread
    submitted = event.place.family == _SUBMISSIONS
    phase = {"ph": "i", "s": "t"} if submitted else {"ph": "X", "dur": (event.end - event.start) / _NS_PER_US}
    named = {"name": event.name, "cat": event.category, "pid": pid, "tid": tid}
    return {**phase, **named, "ts": (event.start - begin) / _NS_PER_US, "args": event.details}
