"""Measure a module's memory use, phase by phase, in the Python of the measured toolchain.

    python measure_memory.py PLAN.json

The plan has the fields of `measure_module`, with one device, and `interval_ms`, the interval of memory samples; more
samples are taken at the begin and end of each phase. Times are not measured, because sampling takes time. Phases are

    load         the device is opened, and the module and its parameters are loaded
    first call   all outputs are fetched to the host
    calls        the planned number of calls is made
    after        the program and its outputs are released; the device stays open

A device may keep a program's allocations for the next program: local-task of 3.13 does, local-task of 3.9 does not.

The answer is one JSON object on standard output:

    {"phases": [{"name", "begin_ms", "end_ms", "begin_bytes", "peak_bytes", "end_bytes", "device_bytes"}],
     "samples": [[ms, resident bytes, part of these mapped from files, device's bytes]], "interval_ms", "exact_peaks",
     "device_memory": {…}}

Bytes of phases are sizes of the resident set, except `device_bytes`: the bytes allocated by the device's allocator at
the phase's end, or null if the runtime was built without statistics. `device_memory` has all statistics; the function
`device_context.device_memory` says what they leave out. Parameters that are used from their mapped file count as
resident, but are released when memory is short. Python, NumPy, the runtime and the inputs are loaded before the first
phase.

`peak_bytes` is the kernel's own high-water mark, which is reset when a phase begins (proc(5), clear_refs). If the reset
is not allowed, `peak_bytes` is the largest sample, and `exact_peaks` is false. A long run is sampled less and less
often, so an answer has at most a few thousand samples; `interval_ms` is the last interval.

Exit codes are those of `plan_file`.
"""

from __future__ import annotations

import gc
import os
import re
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Self

if __name__ == "__main__":
    # Import `iree_gauntlet` from the folder that contains this script, without installing it.
    sys.modules["iree_gauntlet"] = package = ModuleType("iree_gauntlet")
    package.__path__ = [str(Path(__file__).resolve().parents[2])]

from iree_gauntlet.workers.iree_side.device_context import OpenDevice, read_device_memory
from iree_gauntlet.workers.iree_side.measure_module import ContextPlan, load_contexts
from iree_gauntlet.workers.iree_side.plan_file import PlanError, read_arrays, read_plan, run_worker_main

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    # Time in ms, resident bytes, the part of these that is mapped from files, and the device's bytes.
    Sample = tuple[float, int, int, int | None]


_PROC_SELF = Path("/proc/self")
_HIGH_WATER_LINE = re.compile(r"^VmHWM:\s*([0-9]+) kB$", re.MULTILINE)
_RESET_COMMAND = "5"
_MAX_SAMPLES = 4000
_NS_PER_MS = 1e6
_MS_PER_S = 1e3


def thin_out_samples(samples: Sequence[Sample]) -> list[Sample]:
    """Return the larger sample of each two, so that no peak is lost."""
    return [max(samples[index : index + 2], key=lambda sample: sample[1]) for index in range(0, len(samples), 2)]


class MemorySampler:
    """Samples this process's memory during a block, in a separate thread.

    When it has more than `max_samples` samples, it drops half of them, and samples half as often.
    """

    def __init__(self, interval_ms: float, max_samples: int = _MAX_SAMPLES) -> None:
        self.interval_ms = interval_ms
        self.samples: list[Sample] = []
        self.phases: list[dict[str, Any]] = []
        self.exact_peaks = True
        self.device: OpenDevice | None = None
        self._max_samples = max_samples
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._start_ns = time.perf_counter_ns()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample_repeatedly, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @contextmanager
    def record_phase(self, name: str) -> Iterator[None]:
        """Record the block as a phase, unless the block raises."""
        begin_sample = self.take_sample()
        try:
            (_PROC_SELF / "clear_refs").write_text(_RESET_COMMAND)
        except OSError:
            self.exact_peaks = False
        yield
        end_sample = self.take_sample()
        peak = max(sample[1] for sample in [begin_sample, end_sample, *self.samples] if sample[0] >= begin_sample[0])
        if self.exact_peaks and (high_water := _HIGH_WATER_LINE.search((_PROC_SELF / "status").read_text())):
            # The kernel updates the high-water mark and the count separately, so the mark may lag by some pages.
            peak = max(peak, int(high_water[1]) * 1024)
        self.phases.append(
            {
                "name": name,
                "begin_ms": begin_sample[0],
                "end_ms": end_sample[0],
                "begin_bytes": begin_sample[1],
                "peak_bytes": peak,
                "end_bytes": end_sample[1],
                "device_bytes": end_sample[3],
            }
        )

    def take_sample(self) -> Sample:
        """Take a sample."""
        with self._lock:
            resident, mapped_size = (
                int(word) * self._page_bytes for word in (_PROC_SELF / "statm").read_text().split()[1:3]
            )
            statistics = read_device_memory([self.device]) if self.device else {}
            device_bytes = (
                statistics["device_bytes_allocated"] - statistics["device_bytes_freed"] if statistics else None
            )
            sample = (time.perf_counter_ns() - self._start_ns) / _NS_PER_MS, resident, mapped_size, device_bytes
            self.samples.append(sample)
            if len(self.samples) > self._max_samples:
                self.samples = thin_out_samples(self.samples)
                self.interval_ms *= 2
        return sample

    def _sample_repeatedly(self) -> None:
        while not self._stop.wait(self.interval_ms / _MS_PER_S):
            self.take_sample()


@dataclass(frozen=True, slots=True, kw_only=True)
class _MemoryPlan(ContextPlan):
    interval_ms: float


def measure(document: Mapping[str, object]) -> dict[str, object]:
    """Sample memory as a plan requests; return the answer for `run_worker_main`."""
    plan = read_plan(_MemoryPlan, document)
    interval_ms, device_count = plan.interval_ms, len(plan.devices)
    if interval_ms <= 0 or device_count != 1:
        raise PlanError(f"every {interval_ms:g} ms on {device_count} devices: expected more than 0, and one")
    inputs = read_arrays(plan.inputs)
    # Importing the runtime here keeps the memory of its code out of all phases.
    import iree.runtime  # noqa: F401, PLC0415 - the plan is checked without it

    with MemorySampler(interval_ms) as sampler:
        with sampler.record_phase("load"):
            contexts = load_contexts(plan, inputs)
            sampler.device = contexts[0].program.device
        with sampler.record_phase("first call"):
            contexts[0].make_first_call(fetch_all=True)
        with sampler.record_phase("calls"):
            for _ in range(plan.calls):
                contexts[0].call_group()
        with sampler.record_phase("after"):
            contexts.clear()
            gc.collect()
    return {
        "phases": sampler.phases,
        "samples": sampler.samples,
        "interval_ms": sampler.interval_ms,
        "exact_peaks": sampler.exact_peaks,
        "device_memory": read_device_memory([sampler.device]),
    }


if __name__ == "__main__":
    sys.exit(run_worker_main(sys.argv, measure))
