"""A program's share of the machine's peak performance: the roofline of a matrix product and a copy.

A program takes at least the longer of two times: the time for its operations at peak speed, and the time to move its
bytes at peak speed (Williams, Waterman and Patterson, Communications of the ACM 52, 2009). Both peaks are measured, by
an f32 matrix product in NumPy, and by a copy with as many threads as cores. The peaks are cached, and measured again at
the first few uses; the best values count, because other work on the machine only lowers a peak.
"""

from __future__ import annotations

import hashlib
import json
import math
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from iree_gauntlet.device_kinds import LOCAL_SYNC, is_cpu, split_device
from iree_gauntlet.errors import GauntletError, ToolchainError
from iree_gauntlet.recorded import Recorded
from iree_gauntlet.system.atomic import write_atomic
from iree_gauntlet.system.file_lock import file_lock
from iree_gauntlet.system.short_process import run_tool
from iree_gauntlet.workers import iree_side

if TYPE_CHECKING:
    from iree_gauntlet.journal_events import MachineInfo


Bound: TypeAlias = Literal["compute", "memory"]

_WORKER = "measure_roofline.py"
# A new number invalidates all cached figures.
_FORMAT_VERSION = 2
# The peaks are measured at most this many times.
_MAX_MEASUREMENTS = 3
_MATRIX_SIZES = (1024, 2048)
_SECONDS = 1.0
# STREAM requires four times the last-level cache; this size suffices for a cache of 128 MiB.
_COPY_BYTES = 1 << 29
_MEMORY_DIVISOR = 8
_NUMPY_VERSION = "import importlib.metadata; print(importlib.metadata.version('numpy'))"
_MS_PER_S = 1e3


@dataclass(frozen=True, slots=True)
class Roofline(Recorded):
    """The peak performance of a machine.

    Attributes:
        flops_per_s: operations per second of an f32 matrix product on all cores.
        bytes_per_s: bytes per second that all cores read and write in a copy.
    """

    flops_per_s: float
    bytes_per_s: float

    def __post_init__(self) -> None:
        if not all(math.isfinite(value) and value > 0 for value in (self.flops_per_s, self.bytes_per_s)):
            raise ValueError(f"{self} has a figure that is not a positive number")

    def share(self, flops: float, moved_bytes: float, ms: float) -> tuple[float, Bound]:
        """Return the minimum time of work on this machine as a share of its actual time, and the bound.

        A multiplication and an addition are two operations; `moved_bytes` is the minimum to read and write. A share
        above 1 means that the type is faster than f32, or that data came from caches.
        """
        compute, memory = flops / self.flops_per_s, moved_bytes / self.bytes_per_s
        bound: Bound = "compute" if compute >= memory else "memory"
        return max(compute, memory) * _MS_PER_S / ms, bound


@dataclass(frozen=True, slots=True)
class _PeaksCache(Recorded):
    """The content of the cache file: the best of `measurements` measurements."""

    format: int
    machine: dict[str, Any]
    measurements: int
    roofline: Roofline


def explain_no_roofline(device: str) -> str:
    """Return the reason why a device has no roofline; empty for the CPU."""
    driver, _ = split_device(device)
    if driver == LOCAL_SYNC.name:
        return f"{driver} runs on one core, but the peaks are those of all cores"
    return "" if is_cpu(device) else f"the peaks of {driver} devices are not measured, only the CPU's"


def find_roofline(folder: Path, python: str, machine: MachineInfo) -> Roofline:
    """Return the roofline of this machine's CPU; the first three calls measure it, which takes some seconds.

    The caller ensures that the machine is idle. Concurrent callers measure one after the other.
    """
    numpy_probe = run_tool([python, "-c", _NUMPY_VERSION], timeout=60.0)
    if numpy_probe.exit_code != 0:
        raise ToolchainError(
            f"{python} has no NumPy, which measures the machine's peaks", "install it: pip install numpy"
        )
    conditions = {"cpu": machine.cpu, "cores": machine.cores, "numpy": numpy_probe.stdout.strip()}
    digest = hashlib.sha256(json.dumps(conditions, sort_keys=True).encode()).hexdigest()
    path = folder / f"{digest[:16]}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with file_lock(folder / f".{path.stem}.lock"):
            peaks = _read_cached_peaks(path, conditions)
            if peaks is None or peaks.measurements < _MAX_MEASUREMENTS:
                best, times = _measure(python, machine), 1
                if peaks is not None:
                    new, old, times = best, peaks.roofline, peaks.measurements + 1
                    best = Roofline(max(new.flops_per_s, old.flops_per_s), max(new.bytes_per_s, old.bytes_per_s))
                peaks = _PeaksCache(_FORMAT_VERSION, conditions, times, best)
                write_atomic(path, json.dumps(peaks.as_dict(), indent=1) + "\n")
    except OSError as error:
        raise GauntletError(
            f"{folder}: the machine's peaks cannot be saved there: {error.strerror or error}",
            "the cache's folder must be writable",
        ) from error
    return peaks.roofline


def _read_cached_peaks(path: Path, conditions: dict[str, Any]) -> _PeaksCache | None:
    """Return the peaks of a cache file; None if it is missing, damaged, or of another format or machine."""
    try:
        peaks = _PeaksCache.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError, TypeError, AttributeError):
        return None
    return peaks if (peaks.format, peaks.machine) == (_FORMAT_VERSION, conditions) else None


def _measure(python: str, machine: MachineInfo) -> Roofline:
    script = Path(iree_side.__file__).with_name(_WORKER)
    memory_bytes = machine.memory_bytes
    plan = {
        "threads": machine.cores,
        "matrix_sizes": _MATRIX_SIZES,
        "copy_bytes": _COPY_BYTES if memory_bytes is None else min(_COPY_BYTES, memory_bytes // _MEMORY_DIVISOR),
        "seconds": _SECONDS,
    }
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "plan.json"
        path.write_text(json.dumps(plan), encoding="utf-8")
        result = run_tool([python, "-B", str(script), str(path)], timeout=600.0)
    try:
        return Roofline.from_dict(json.loads(result.stdout))
    except (ValueError, TypeError, AttributeError) as error:
        message = (result.stderr.strip().splitlines() or ["it did not respond"])[-1]
        raise GauntletError(
            f"the machine's peaks cannot be measured (exit code {result.exit_code}): {message}",
            "free memory, and check that NumPy works in that Python",
        ) from error
