"""How much of what the machine can do at best a program reaches: the roofline of a matrix product and a copy.

A program takes at least the longer one of two times: its operations at the machine's fastest, or its bytes at the
fastest (Williams, Waterman and Patterson, Communications of the ACM 52, 2009). Both peaks are measured: an f32 matrix
product by NumPy, and a copy by as many threads as there are cores. They are kept, and measured again at the first few
occasions: other work on the machine makes a peak lower and never higher, so that the best of them stands.
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
from iree_gauntlet.system.short_process import ask
from iree_gauntlet.workers import iree_side

if TYPE_CHECKING:
    from iree_gauntlet.journal_events import MachineFacts


Bound: TypeAlias = Literal["compute", "memory"]

_WORKER = "measure_roofline.py"
# A new number disowns every figure that was kept before.
_FORMAT = 2
# After so many measurements there are no more.
_MEASUREMENTS = 3
_MATRIX_SIZES = (1024, 2048)
_SECONDS = 1.0
# STREAM asks for four times the last cache: that is enough for 128 MiB of it.
_COPY_BYTES = 1 << 29
_LARGEST_MEMORY_SHARE = 8
_NUMPY_VERSION = "import importlib.metadata; print(importlib.metadata.version('numpy'))"
_MS_PER_S = 1e3


@dataclass(frozen=True, slots=True)
class Roofline(Recorded):
    """What a machine can do at best.

    Attributes:
        flops_per_s: operations a second of an f32 matrix product on all cores.
        bytes_per_s: bytes a second that all cores read and write in a copy.
    """

    flops_per_s: float
    bytes_per_s: float

    def __post_init__(self) -> None:
        if not all(math.isfinite(value) and value > 0 for value in (self.flops_per_s, self.bytes_per_s)):
            raise ValueError(f"{self} has a figure that is no positive number")

    def share(self, flops: float, moved_bytes: float, ms: float) -> tuple[float, Bound]:
        """The least time that work takes here, as a share of the time that it took; and what bounds it.

        A multiplication and an addition are two operations; the bytes are what has to be read and written at least.
        Above 1 the work was done with less: in a type that is faster than f32, or from caches.
        """
        compute, memory = flops / self.flops_per_s, moved_bytes / self.bytes_per_s
        bound: Bound = "compute" if compute >= memory else "memory"
        return max(compute, memory) * _MS_PER_S / ms, bound


@dataclass(frozen=True, slots=True)
class _KeptPeaks(Recorded):
    """What is kept in a file: the best of so many measurements."""

    format: int
    machine: dict[str, Any]
    measurements: int
    roofline: Roofline


def explain_no_roofline(device: str) -> str:
    """Why there is none for a device; empty for the CPU."""
    driver, _ = split_device(device)
    if driver == LOCAL_SYNC.name:
        return f"{driver} runs on one core, and the peaks are those of all cores"
    return "" if is_cpu(device) else f"the peaks of {driver} devices are not measured: only the CPU's are"


def find_roofline(folder: Path, python: str, machine: MachineFacts) -> Roofline:
    """The roofline of this machine's CPU; measured at the first three times, which takes some seconds.

    The caller makes sure that the machine is quiet. Of several that ask at once, one measures at a time.
    """
    answer = ask([python, "-c", _NUMPY_VERSION], timeout=60.0)
    if answer.exit_code != 0:
        raise ToolchainError(f"{python} has no NumPy, which measures the machine's peaks", "pip install numpy there")
    measured_on = {"cpu": machine.cpu, "cores": machine.cores, "numpy": answer.stdout.strip()}
    digest = hashlib.sha256(json.dumps(measured_on, sort_keys=True).encode()).hexdigest()
    path = folder / f"{digest[:16]}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with file_lock(folder / f".{path.stem}.lock"):
            kept = _read_kept(path, measured_on)
            if kept is None or kept.measurements < _MEASUREMENTS:
                best, times = _measure(python, machine), 1
                if kept is not None:
                    one, other, times = best, kept.roofline, kept.measurements + 1
                    best = Roofline(max(one.flops_per_s, other.flops_per_s), max(one.bytes_per_s, other.bytes_per_s))
                kept = _KeptPeaks(_FORMAT, measured_on, times, best)
                write_atomic(path, json.dumps(kept.as_dict(), indent=1) + "\n")
    except OSError as error:
        raise GauntletError(
            f"{folder}: the machine's peaks cannot be kept there: {error.strerror or error}",
            "the cache's folder must be writable",
        ) from error
    return kept.roofline


def _read_kept(path: Path, measured_on: dict[str, Any]) -> _KeptPeaks | None:
    """None where nothing is kept in a file, or it is damaged, or of another format or machine."""
    try:
        kept = _KeptPeaks.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError, TypeError, AttributeError):
        return None
    return kept if (kept.format, kept.machine) == (_FORMAT, measured_on) else None


def _measure(python: str, machine: MachineFacts) -> Roofline:
    script = Path(iree_side.__file__).with_name(_WORKER)
    most = machine.memory_bytes
    plan = {
        "threads": machine.cores,
        "matrix_sizes": _MATRIX_SIZES,
        "copy_bytes": _COPY_BYTES if most is None else min(_COPY_BYTES, most // _LARGEST_MEMORY_SHARE),
        "seconds": _SECONDS,
    }
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "plan.json"
        path.write_text(json.dumps(plan), encoding="utf-8")
        answer = ask([python, "-B", str(script), str(path)], timeout=600.0)
    try:
        return Roofline.from_dict(json.loads(answer.stdout))
    except (ValueError, TypeError, AttributeError) as error:
        said = (answer.stderr.strip().splitlines() or ["it gave no answer"])[-1]
        raise GauntletError(
            f"the machine's peaks cannot be measured (exit code {answer.exit_code}): {said}",
            "free memory, and see whether NumPy works in that Python",
        ) from error
