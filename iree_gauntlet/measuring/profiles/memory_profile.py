"""The memory of a program: of a device's heaps, as IREE's tools print them, and of the process, phase by phase.

`read_heap_peaks` reads what `--print_statistics` prints. The rest is the plan for the process that measures the memory
phase by phase, and that process's result.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from iree_gauntlet.errors import GauntletError
from iree_gauntlet.formatting import format_bytes
from iree_gauntlet.recorded import Recorded
from iree_gauntlet.system.atomic import write_atomic

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path


# The name of a profile's file in its step's folder; the profile's picture has the same name with another suffix.
MEMORY_FILE = "memory.json"
# The prefix of the roles of steps that sample a variant's memory; the variant's label follows.
MEMORY_ROLE = "memory."
# The script in `iree_gauntlet.workers.iree_side` that samples memory.
MEMORY_WORKER = "measure_memory.py"
# The number of calls after the first call.
_CALL_COUNT = 10
# The interval at which memory is sampled.
_INTERVAL_MS = 2.0
# `iree_hal_allocator_statistics_fprint` (runtime/src/iree/hal/allocator.c) prints a line for each heap, in bytes.
_HEAPS_TITLE = "[[ iree_hal_allocator_t memory statistics ]]"
DEVICE_HEAP, HOST_HEAP = "DEVICE_LOCAL", "HOST_LOCAL"
_HEAP_LINE = re.compile(r"^\s*(HOST_LOCAL|DEVICE_LOCAL):\s*(.*?) peak\b", re.MULTILINE)
_HEAP_BYTES = re.compile(r"([0-9]+)B")


def read_heap_peaks(lines: Iterable[str], *, is_call: bool = False) -> dict[str, int]:
    """Read the largest total allocation of each heap in bytes; the peaks of several devices are added.

    Args:
        lines: the standard error of a tool with `--print_statistics`; each device has a block of its own.
        is_call: True if the process has made a call, which allocates something.

    Raises:
        GauntletError: there is no block, or a block with other words or units, or a call has allocated nothing.
    """
    peaks = dict.fromkeys((DEVICE_HEAP, HOST_HEAP), 0)
    blocks = "\n".join(lines).split(_HEAPS_TITLE)[1:]
    if not blocks:
        raise GauntletError("the tool printed no memory statistics; a runtime may be built without them", "")
    for block in blocks:
        texts = dict(_HEAP_LINE.findall(block))
        for heap in peaks:
            size = _HEAP_BYTES.fullmatch(texts.get(heap, ""))
            if size is None:
                text = f"{texts[heap]!r} for {heap}" if heap in texts else f"no {heap}"
                raise GauntletError(f"the tool's memory statistics have {text}: expected a peak in bytes", "")
            peaks[heap] += int(size[1])
    if is_call and not any(peaks.values()):
        raise GauntletError("the device's allocator counted no bytes: its driver may keep no statistics", "")
    return peaks


@dataclass(frozen=True, slots=True)
class MemorySample(Recorded):
    """Memory at one moment; `device_bytes` is the allocation of the device's allocator, if known."""

    ms: float
    resident_bytes: int
    mapped_bytes: int
    device_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class MemoryPhase(Recorded):
    """A part of the process's life: `load`, `first call`, `calls` or `after`.

    `device_bytes` is the allocation of the device's allocator at the end of the phase, if known.
    """

    name: str
    begin_ms: float
    end_ms: float
    begin_bytes: int
    peak_bytes: int
    end_bytes: int
    device_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class MemoryProfile(Recorded):
    """The memory use of a program.

    Attributes:
        device_peak_bytes: the largest total allocation of the device's allocator at any time; None if it is unknown.
            On local-task, the allocator has only the arguments of calls, not the program's own allocations.
    """

    phases: tuple[MemoryPhase, ...]
    series: tuple[MemorySample, ...]
    interval_ms: float
    exact_peaks: bool
    device_peak_bytes: int | None = None

    @property
    def peak_bytes(self) -> int:
        """The largest resident memory at a time: the high-water mark of all phases."""
        return max(phase.peak_bytes for phase in self.phases)

    @property
    def program_bytes(self) -> int:
        """The peak minus the memory before the program was loaded (of Python, the runtime and the inputs)."""
        return self.peak_bytes - self.phases[0].begin_bytes

    def as_dict(self) -> dict[str, Any]:
        """Convert the profile for files and the journal; units are bytes and ms."""
        return {"peak_bytes": self.peak_bytes, "program_bytes": self.program_bytes, **asdict(self)}

    def lines(self) -> list[str]:
        """Return a line for each phase, for people."""
        return [
            f"{phase.name}: at most {format_bytes(phase.peak_bytes)}, {format_bytes(phase.end_bytes)} at its end"
            + (f", {format_bytes(phase.device_bytes)} on the device" if phase.device_bytes else "")
            for phase in self.phases
        ]


def make_memory_plan(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a plan of `measure_module`, without calls and outputs, to a plan for the worker that samples memory."""
    common = {key: plan[key] for key in ("modules", "parameters", "function", "inputs")}
    return {**common, "devices": list(plan["devices"])[:1], "calls": _CALL_COUNT, "interval_ms": _INTERVAL_MS}


def read_memory_profile(answer: Mapping[str, Any]) -> MemoryProfile:
    """Read the worker's answer."""
    try:
        profile = MemoryProfile(
            tuple(MemoryPhase(**phase) for phase in answer["phases"]),
            tuple(MemorySample(*sample) for sample in answer["samples"]),
            answer["interval_ms"],
            answer["exact_peaks"],
            answer["device_memory"]["device_bytes_peak"] if answer["device_memory"] else None,
        )
    except (KeyError, TypeError) as error:
        raise GauntletError(
            f"{MEMORY_WORKER} returned something other than phases and samples: {error}",
            "see its standard output in the step's folder",
        ) from error
    if not profile.phases or not profile.series:
        raise GauntletError(f"{MEMORY_WORKER} recorded nothing", "see its standard error in the step's folder")
    return profile


def write_memory_profile(profile: MemoryProfile, path: Path) -> None:
    """Write a profile as JSON."""
    write_atomic(path, json.dumps(profile.as_dict(), indent=1) + "\n")


def read_written_memory_profile(path: Path) -> MemoryProfile | None:
    """Read a profile from a file; return None if there is no readable profile."""
    try:
        return MemoryProfile.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, AttributeError, TypeError):
        return None
