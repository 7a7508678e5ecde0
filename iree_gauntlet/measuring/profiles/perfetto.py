"""Convert a profile of `iree-profile export --format=ireeperf-jsonl` to a file that https://ui.perfetto.dev opens.

The file is JSON of the trace event format
(https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU): a process for each device, and for
each of its queues threads for submissions, for execution on the host and on the device, and for dispatches. IREE's own
`iree-profile-render` makes another one, in a Python that has the perfetto package.

Rows have no version to check. The kinds of rows that releases 3.12 and 3.13 write are read; other kinds are skipped. A
row needs only the fields that are used here.
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
_SOURCE_LABEL = "the exported profile"
_SUBMISSION_KIND = "queue_event"
_HOST_KIND = "host_execution_event"
_DEVICE_KIND = "queue_device_event"
_DISPATCH_KIND = "dispatch_event"
# The families of a queue's threads, from top to bottom.
_FAMILY_TITLES = ("submissions", "execution on the host", "execution on the device", "dispatches")
_SUBMISSIONS, _HOST, _DEVICE, _DISPATCHES = range(len(_FAMILY_TITLES))
# A click on an event shows these fields, under these titles.
_DETAIL_TITLES = (
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
class _Thread:
    """A thread of the trace, or with lane 0 the family of threads."""

    device: int
    queue: int
    family: int
    lane: int = 0


@dataclass(frozen=True, slots=True)
class _Event:
    """An event from `start` to `end`, in ns of the host's clock; an instant if both are equal."""

    thread: _Thread
    start: int
    end: int
    name: str
    category: str
    details: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Clock:
    """A conversion from a device's clock to the host's ns by the first and last reading of both, as in IREE's tools."""

    first: tuple[int, int]
    last: tuple[int, int]

    def convert_to_host(self, tick: int) -> int:
        ticks, ns = (self.last[index] - self.first[index] for index in (0, 1))
        elapsed_ticks = tick - self.first[0]
        return self.first[1] + (elapsed_ticks if ticks == 0 else round(elapsed_ticks * ns / ticks))


def make_perfetto_trace(lines: Iterable[str], device: str) -> dict[str, Any]:
    """Convert exported rows to the JSON document.

    Times in it are µs since the first event, with the ns as decimals. Overlapping events that are not nested go to
    separate threads. `otherData.left_out` counts the events without a valid time. The device is the benchmark's
    `--device`.

    Raises:
        ProfileError: there are no such rows or no events, or a row is truncated or lacks a required field, which the
        message names.
    """
    rows = list(read_profile_rows(lines, _SOURCE_LABEL, "record_type", required=True))
    if not any(row.kind == "schema" and row.fields.get("format") == _FORMAT for row in rows):
        raise ProfileError(f"{_SOURCE_LABEL} is not marked as {_FORMAT}")
    clocks = _read_clocks(rows)
    candidates = [
        _read_event(row, clocks)
        for row in rows
        if row.kind in (_SUBMISSION_KIND, _HOST_KIND, _DEVICE_KIND, _DISPATCH_KIND)
    ]
    events = [event for event in candidates if event is not None]
    if not events:
        raise ProfileError("the exported profile contains no events with a time")
    lanes = _assign_lanes(events)
    # Numbers begin at 1, because Perfetto gives process 0 (the idle process of a kernel trace) another name.
    processes = {ordinal: pid for pid, ordinal in enumerate(sorted({event.thread.device for event in events}), 1)}
    threads = {
        thread: (processes[thread.device], tid) for tid, thread in enumerate(sorted({thread for thread, _ in lanes}), 1)
    }
    begin = min(event.start for event in events)
    return {
        "displayTimeUnit": "ns",
        "otherData": {"left_out": len(candidates) - len(events)},
        "traceEvents": [
            *_make_metadata(processes, threads, device),
            *(_make_trace_event(event, threads[thread], begin) for thread, event in lanes),
        ],
    }


def _pick_details(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields worth showing, without those that are zero or missing."""
    details = {title: fields.get(name) for name, title in _DETAIL_TITLES if fields.get(name)}
    index = fields.get("command_index", _NO_ORDINAL)
    if index != _NO_ORDINAL:
        details["command"] = index
    for name in ("workgroup_count", "workgroup_size"):
        sizes = fields.get(name)
        if isinstance(sizes, list) and any(sizes):
            details[name.replace("_", " ")] = "x".join(map(str, sizes))
    return details


def _read_clocks(rows: Iterable[ProfileRow]) -> dict[int, _Clock]:
    readings: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for row in rows:
        if row.kind != "clock_correlation" or not {"host_time_begin_ns", "device_tick"} <= row.fields.keys():
            continue
        # The device's clock was read between the two.
        host_ns = (row.integer("host_time_begin_ns") + row.integer("host_time_end_ns")) // 2
        readings[row.integer("physical_device_ordinal")].append((row.integer("device_tick"), host_ns))
    return {device: _Clock(min(ticks), max(ticks)) for device, ticks in readings.items()}


def _read_event(row: ProfileRow, clocks: Mapping[int, _Clock]) -> _Event | None:
    """Parse a row; return None for one without a valid time."""
    device, queue = row.integer("physical_device_ordinal"), row.integer("queue_ordinal")
    kind, details = row.kind, _pick_details(row.fields)
    if kind == _SUBMISSION_KIND:
        submit_ns = row.integer("host_time_ns")
        ready_ns = row.fields.get("ready_host_time_ns")
        if isinstance(ready_ns, int) and ready_ns > submit_ns:
            details["ready after, ns"] = ready_ns - submit_ns
        name = f"submit {row.text('op')}"
        return _Event(_Thread(device, queue, _SUBMISSIONS), submit_ns, submit_ns, name, "submission", details)
    if row.fields.get("valid") is False:
        return None
    if kind == _HOST_KIND:
        start, end = row.integer("start_host_time_ns"), row.integer("end_host_time_ns")
    elif device in clocks:
        start, end = (clocks[device].convert_to_host(row.integer(name)) for name in ("start_tick", "end_tick"))
    else:
        return None
    if end < start:
        return None
    # The host's rows have the kind of work in a field; dispatches on the device have rows of their own.
    if kind == _DISPATCH_KIND or row.fields.get("op") == "dispatch":
        return _Event(_Thread(device, queue, _DISPATCHES), start, end, row.text("key"), "dispatch", details)
    family = _HOST if kind == _HOST_KIND else _DEVICE
    return _Event(_Thread(device, queue, family), start, end, row.text("op"), "execution", details)


def _assign_lanes(events: Sequence[_Event]) -> list[tuple[_Thread, _Event]]:
    """Return events in time order, each on a thread that is free at its time."""
    lane_events = []
    busy_lanes: dict[_Thread, list[tuple[int, int]]] = defaultdict(list)
    free_lanes: dict[_Thread, list[int]] = defaultdict(list)
    for event in sorted(events, key=lambda event: (event.start, event.end, event.thread)):
        running, idle_lanes = busy_lanes[event.thread], free_lanes[event.thread]
        while running and running[0][0] <= event.start:
            heapq.heappush(idle_lanes, heapq.heappop(running)[1])
        lane = heapq.heappop(idle_lanes) if idle_lanes else len(running)
        heapq.heappush(running, (event.end, lane))
        lane_events.append((_Thread(event.thread.device, event.thread.queue, event.thread.family, lane), event))
    return lane_events


def _make_metadata(
    processes: Mapping[int, int], threads: Mapping[_Thread, tuple[int, int]], device: str
) -> list[dict[str, Any]]:
    """Make the metadata events: names of processes and threads, and their order."""
    labels = [
        ("process", pid, 0, device if ordinal == _NO_ORDINAL else f"{device}, device {ordinal}")
        for ordinal, pid in processes.items()
    ]
    for thread, (pid, tid) in threads.items():
        queue = "no queue" if thread.queue == _NO_ORDINAL else f"queue {thread.queue}"
        lane = f" ({thread.lane + 1})" if thread.lane else ""
        labels.append(("thread", pid, tid, f"{queue}: {_FAMILY_TITLES[thread.family]}{lane}"))
    events: list[dict[str, Any]] = []
    for kind, pid, tid, name in labels:
        common = {"ph": "M", "pid": pid, "tid": tid, "ts": 0}
        events.append({**common, "name": f"{kind}_name", "args": {"name": name}})
        events.append({**common, "name": f"{kind}_sort_index", "args": {"sort_index": tid or pid}})
    return events


def _make_trace_event(event: _Event, thread: tuple[int, int], start_ns: int) -> dict[str, Any]:
    pid, tid = thread
    is_submission = event.thread.family == _SUBMISSIONS
    phase = {"ph": "i", "s": "t"} if is_submission else {"ph": "X", "dur": (event.end - event.start) / _NS_PER_US}
    common = {"name": event.name, "cat": event.category, "pid": pid, "tid": tid}
    return {**phase, **common, "ts": (event.start - start_ns) / _NS_PER_US, "args": event.details}
