"""What each CPU has done between two moments, from the kernel's counters (proc(5), /proc/stat).

The counters go in ticks of 10 ms. Over a short time they say little, and a share that is computed from them comes
with the part of it that may be nothing but counting.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil

from iree_gauntlet.measuring.machine.machine_sensors import asked_elsewhere, read_text

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path


_TICKS_PER_SECOND = 100
# Each of the counters that are told apart (work, idle, stolen) may be a tick off.
_UNSURE_SECONDS = 3 / _TICKS_PER_SECOND
# Places in a line of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal.
_IDLE, _STEAL, _FIELDS = (3, 4), 7, 8


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Seconds since boot that one CPU has worked, had nothing to do, and was taken away by a hypervisor."""

    work: float
    idle: float
    steal: float


@dataclass(frozen=True, slots=True)
class CpuUse:
    """What some CPUs have done in a time.

    Attributes:
        cpus: how many.
        busy_share: share of their time that other work than ours has taken, 0 to 1.
        steal_share: share of their time that a hypervisor gave to others, 0 to 1.
        unsure: how much of a share may be nothing but the kernel's ticks.
    """

    cpus: int
    busy_share: float
    steal_share: float
    unsure: float


def read_cpu_times(root: Path) -> dict[int, CpuTimes]:
    """The counters of each CPU, by its number; empty where they are not shown.

    Args:
        root: where /proc is looked for. For the real one, systems without /proc are asked in their own way.
    """
    text = read_text(root / "proc/stat")
    if text is None:
        return asked_elsewhere(root, _times_elsewhere) or {}
    found: dict[int, CpuTimes] = {}
    for line in text.splitlines():
        name, *words = line.split() or [""]
        number = name.removeprefix("cpu")
        if name.startswith("cpu") and number.isdecimal() and len(words) > max(_IDLE):
            # Those after `steal` are guests' time, which `user` and `nice` already hold.
            ticks = [int(word) if word.isdecimal() else 0 for word in words[:_FIELDS]]
            idle, steal = sum(ticks[place] for place in _IDLE), sum(ticks[_STEAL:])
            found[int(number)] = CpuTimes(
                *(value / _TICKS_PER_SECOND for value in (sum(ticks) - idle - steal, idle, steal))
            )
    return found


def cpu_use(
    before: Mapping[int, CpuTimes], after: Mapping[int, CpuTimes], own_seconds: float, cpus: Collection[int] = ()
) -> CpuUse | None:
    """What CPUs have done between two readings; None where no time has passed, or a CPU is missing.

    Args:
        before: the first reading.
        after: the second one.
        own_seconds: CPU time of our own on these CPUs, which does not count.
        cpus: numbers of the CPUs; those of both readings where empty.
    """
    asked = sorted(cpus) if cpus else sorted(before.keys() & after.keys())
    if not asked or any(number not in before or number not in after for number in asked):
        return None
    # A counter of idle time may go back a little (proc(5)).
    work, idle, steal = (
        sum(max(0.0, getattr(after[number], name) - getattr(before[number], name)) for number in asked)
        for name in ("work", "idle", "steal")
    )
    total = work + idle + steal
    if total <= 0:
        return None
    return CpuUse(
        cpus=len(asked),
        busy_share=max(0.0, work - own_seconds) / total,
        steal_share=steal / total,
        unsure=min(1.0, _UNSURE_SECONDS * len(asked) / total),
    )


def _times_elsewhere() -> dict[int, CpuTimes]:
    found = {}
    for number, times in enumerate(psutil.cpu_times(percpu=True)):
        spent = times._asdict()
        idle, steal = spent.get("idle", 0.0) + spent.get("iowait", 0.0), spent.get("steal", 0.0)
        work = sum(value for name, value in spent.items() if not name.startswith("guest")) - idle - steal
        found[number] = CpuTimes(work, idle, steal)
    return found
