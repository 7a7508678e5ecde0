"""What a module needs of memory, phase by phase, in the Python of the toolchain that is measured.

    python measure_memory.py PLAN.json

The plan is one of `measure_module`, for one device, with `interval_ms`: how often memory is looked at, in addition to
the begin and the end of each phase. It is no plan for times: looking takes time of its own. Phases are

    load         the device is opened, the module and its parameters are loaded
    first call   with all of its outputs brought to the host
    calls        as many as the plan says
    after        the program is given up, its outputs too; the device stays open

A device may keep what programs allocated, for the next ones: local-task of 3.13 does, that of 3.9 gives it back.

The answer is one JSON object on standard output:

    {"phases": [{"name", "begin_ms", "end_ms", "begin_bytes", "peak_bytes", "end_bytes", "device_bytes"}],
     "samples": [[ms, resident bytes, of these mapped from files, device's bytes]], "interval_ms", "exact_peaks",
     "device_memory": {…}}

Bytes of phases are the resident set's, but for `device_bytes`: what the device's allocator has given out at the
phase's end; null where the runtime was built without statistics, which `device_memory` has in full (for what they
leave out see `device_memory` of `device_context`). Parameters that are used where their file is mapped count as
resident, and are given back when memory is short. Before the first phase Python, NumPy and the runtime are loaded,
and so are the inputs.

`peak_bytes` is the kernel's own high-water mark, which is set back where a phase begins (proc(5), clear_refs); where
that is not allowed, it is the largest sample, and `exact_peaks` is false. A long run is looked at less often, so that
no answer has more than a few thousand samples: `interval_ms` is how often at its end.

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
    # The package is the one that has this script; all else is found as this Python finds it.
    sys.modules["iree_gauntlet"] = package = ModuleType("iree_gauntlet")
    package.__path__ = [str(Path(__file__).resolve().parents[2])]

from iree_gauntlet.workers.iree_side.device_context import OpenDevice, device_memory
from iree_gauntlet.workers.iree_side.measure_module import ContextPlan, load_contexts
from iree_gauntlet.workers.iree_side.plan_file import PlanError, answer_plan, read_arrays, read_plan

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    # ms, resident bytes, of these mapped from files, the device's bytes.
    Sample = tuple[float, int, int, int | None]


_SELF = Path("/proc/self")
_HIGH_WATER = re.compile(r"^VmHWM:\s*([0-9]+) kB$", re.MULTILINE)
_SET_BACK = "5"
_MOST_SAMPLES = 4000
_NS_PER_MS = 1e6
_MS_PER_S = 1e3


def drop_every_second(samples: Sequence[Sample]) -> list[Sample]:
    """Every second sample, with the larger one of each two, so that no peak is lost."""
    return [max(samples[index : index + 2], key=lambda sample: sample[1]) for index in range(0, len(samples), 2)]


class MemoryWatch:
    """Looks at this process's memory while its block lasts, from a thread of its own.

    With more samples than `most`, every second one goes, and it looks half as often.
    """

    def __init__(self, interval_ms: float, most: int = _MOST_SAMPLES) -> None:
        self.interval_ms = interval_ms
        self.samples: list[Sample] = []
        self.phases: list[dict[str, Any]] = []
        self.exact_peaks = True
        self.device: OpenDevice | None = None
        self._most = most
        self._page = os.sysconf("SC_PAGE_SIZE")
        self._begin = time.perf_counter_ns()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Record the block as a phase; nothing where it raises."""
        begin = self.look()
        try:
            (_SELF / "clear_refs").write_text(_SET_BACK)
        except OSError:
            self.exact_peaks = False
        yield
        end = self.look()
        peak = max(sample[1] for sample in [begin, end, *self.samples] if sample[0] >= begin[0])
        if self.exact_peaks and (marked := _HIGH_WATER.search((_SELF / "status").read_text())):
            # The kernel keeps its mark and its count apart, and the mark may lag by some pages.
            peak = max(peak, int(marked[1]) * 1024)
        self.phases.append(
            {
                "name": name,
                "begin_ms": begin[0],
                "end_ms": end[0],
                "begin_bytes": begin[1],
                "peak_bytes": peak,
                "end_bytes": end[1],
                "device_bytes": end[3],
            }
        )

    def look(self) -> Sample:
        """Take a sample."""
        with self._lock:
            resident, mapped = (int(word) * self._page for word in (_SELF / "statm").read_text().split()[1:3])
            said = device_memory([self.device]) if self.device else {}
            on_device = said["device_bytes_allocated"] - said["device_bytes_freed"] if said else None
            sample = (time.perf_counter_ns() - self._begin) / _NS_PER_MS, resident, mapped, on_device
            self.samples.append(sample)
            if len(self.samples) > self._most:
                self.samples = drop_every_second(self.samples)
                self.interval_ms *= 2
        return sample

    def _watch(self) -> None:
        while not self._stop.wait(self.interval_ms / _MS_PER_S):
            self.look()


@dataclass(frozen=True, slots=True, kw_only=True)
class _MemoryPlan(ContextPlan):
    interval_ms: float


def measure(said: dict[str, Any]) -> dict[str, Any]:
    """Watch memory as a plan says; the answer, or what `answer_plan` takes."""
    plan = read_plan(_MemoryPlan, said)
    interval_ms, devices = plan.interval_ms, len(plan.devices)
    if interval_ms <= 0 or devices != 1:
        raise PlanError(f"every {interval_ms:g} ms on {devices} devices: expected more than 0, and one")
    inputs = read_arrays(plan.inputs)
    # What the runtime's own code takes belongs to no phase.
    import iree.runtime  # noqa: F401, PLC0415 - the plan is checked without it

    with MemoryWatch(interval_ms) as watch:
        with watch.phase("load"):
            contexts = load_contexts(plan, inputs)
            watch.device = contexts[0].program.device
        with watch.phase("first call"):
            contexts[0].first(whole=True)
        with watch.phase("calls"):
            for _ in range(plan.calls):
                contexts[0].group()
        with watch.phase("after"):
            contexts.clear()
            gc.collect()
    return {
        "phases": watch.phases,
        "samples": watch.samples,
        "interval_ms": watch.interval_ms,
        "exact_peaks": watch.exact_peaks,
        "device_memory": device_memory([watch.device]),
    }


if __name__ == "__main__":
    sys.exit(answer_plan(sys.argv, measure))
