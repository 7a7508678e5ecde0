"""A program's memory, phase by phase: the plan for the process that watches it, and what it found."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from iree_gauntlet.errors import GauntletError
from iree_gauntlet.formatting import byte_size
from iree_gauntlet.recorded import Recorded
from iree_gauntlet.system.atomic import write_atomic

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


# Name of a profile's file in the folder of its step; its picture has the same, with its own ending.
MEMORY_FILE = "memory.json"
# The role of a step that watches a variant's memory: this, and the variant's label.
MEMORY_ROLE = "memory."
# Of `iree_gauntlet.workers.iree_side`.
MEMORY_WORKER = "measure_memory.py"
# After the first one.
_CALLS = 10
# How often memory is sampled.
_INTERVAL_MS = 2.0


@dataclass(frozen=True, slots=True)
class MemorySample(Recorded):
    """Memory at one moment; `device_bytes` is what the device's allocator has given out, if that is known."""

    ms: float
    resident_bytes: int
    mapped_bytes: int
    device_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class MemoryPhase(Recorded):
    """A part of the process's life: `load`, `first call`, `calls` or `after`.

    `device_bytes` is what the device's allocator had given out where it ended, if that is known.
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
    """What was seen of a program.

    Attributes:
        device_peak_bytes: the most that the device's allocator had given out at a time; None where it is unknown.
            On local-task it is what calls were given, without what the program allocates itself.
    """

    phases: tuple[MemoryPhase, ...]
    series: tuple[MemorySample, ...]
    interval_ms: float
    exact_peaks: bool
    device_peak_bytes: int | None = None

    @property
    def peak_bytes(self) -> int:
        """The most that was resident at a time: the high-water mark of all phases."""
        return max(phase.peak_bytes for phase in self.phases)

    @property
    def program_bytes(self) -> int:
        """The same without what the process had before it loaded the program: Python, the runtime, the inputs."""
        return self.peak_bytes - self.phases[0].begin_bytes

    def as_dict(self) -> dict[str, Any]:
        """For files and for the journal; bytes and ms."""
        return {"peak_bytes": self.peak_bytes, "program_bytes": self.program_bytes, **asdict(self)}

    def lines(self) -> list[str]:
        """A line for each phase, for people."""
        return [
            f"{phase.name}: at most {byte_size(phase.peak_bytes)}, {byte_size(phase.end_bytes)} at its end"
            + (f", {byte_size(phase.device_bytes)} on the device" if phase.device_bytes else "")
            for phase in self.phases
        ]


def make_memory_plan(plan: Mapping[str, Any]) -> dict[str, Any]:
    """A plan of `measure_module`, but for its calls and outputs, as one for the worker that watches memory."""
    taken = {key: plan[key] for key in ("modules", "parameters", "function", "inputs")}
    return {**taken, "devices": list(plan["devices"])[:1], "calls": _CALLS, "interval_ms": _INTERVAL_MS}


def read_memory_profile(answer: Mapping[str, Any]) -> MemoryProfile:
    """What the worker answered."""
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
            f"{MEMORY_WORKER} answered something else than phases and samples: {error}",
            "see its standard output in the step's folder",
        ) from error
    if not profile.phases or not profile.series:
        raise GauntletError(f"{MEMORY_WORKER} saw nothing", "see its standard error in the step's folder")
    return profile


def write_memory_profile(profile: MemoryProfile, path: Path) -> None:
    """Write a profile as JSON."""
    write_atomic(path, json.dumps(profile.as_dict(), indent=1) + "\n")


def read_written_memory_profile(path: Path) -> MemoryProfile | None:
    """A profile that was written; None where there is none that can be read."""
    try:
        return MemoryProfile.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, AttributeError, TypeError):
        return None
