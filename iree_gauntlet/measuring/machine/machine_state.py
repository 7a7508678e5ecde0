"""What machine this is, and whether it is fit to measure on. Only reads; changes nothing.

Sources: proc(5), Documentation/admin-guide/pm/cpufreq.rst, cgroup-v2.rst, Documentation/hwmon/sysfs-interface.rst and
Documentation/driver-api/thermal/sysfs-api.rst. Each reader takes the folder under which /proc and /sys are looked for;
of the real machine where none is named. Counters of CPUs (/proc/stat) go in ticks of 10 ms: over a short time they say
little, and a share that is computed from them comes with the part of it that may be nothing but counting. What a
container or another system does not show is None, never a guess.
"""

from __future__ import annotations

import math
import os
import platform
import re
import socket
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import psutil

from iree_gauntlet.formatting import byte_size
from iree_gauntlet.journal_events import MachineFacts
from iree_gauntlet.journal_format import BUSY_SHARE, STEAL_SHARE

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from iree_gauntlet.measuring.machine.gpus import GpuReading, GpuState


_ROOT = Path("/")
# Drivers of processors' own sensors; a board's sensors (nct6775, acpitz) say nothing about the processor.
_CPU_DRIVERS = ("coretemp", "k10temp", "k8temp", "zenpower", "fam15h_power", "cpu_thermal", "via_cputemp")
_CPU_ZONE = re.compile(r"x86_pkg_temp|.*\bcpu\b.*|cpu[-_0-9].*", re.IGNORECASE)
_CPU_FOLDER = re.compile(r"cpu([0-9]+)")
_CHUNK = 1 << 16
# What a broken sensor shows lies far outside of this, in thousandths of a degree.
_COLDEST, _HOTTEST = -40_000, 150_000

_TICKS_PER_SECOND = 100
# Each of the counters that are distinguished (work, idle, stolen) may be a tick off.
_UNSURE_SECONDS = 3 / _TICKS_PER_SECOND
# Places in a line of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal.
_IDLE, _STEAL, _FIELDS = (3, 4), 7, 8

_Answer = TypeVar("_Answer")
_GIB = 1 << 30
# Processors slow down from 95 to 105 °C on.
_HOT_CPU_C = 95


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
        busy_share: share of their time that other work than ours has taken, 0 to 1.
        steal_share: share of their time that a hypervisor gave to others, 0 to 1.
        unsure: how much of a share may be nothing but the kernel's ticks.
    """

    busy_share: float
    steal_share: float
    unsure: float


def _ask_elsewhere(root: Path, question: Callable[[], _Answer]) -> _Answer | None:
    """What the system says where /proc or /sys says nothing, as on systems that have none; None where it cannot."""
    if str(root) != root.anchor:
        return None
    try:
        return question()
    except (psutil.Error, OSError, RuntimeError, AttributeError, LookupError, ValueError):
        return None


def _count_usable_cores(root: Path) -> int:
    """Logical CPUs that this process may use, by affinity and by its cgroup's quota."""
    # Not on every system, and typeshed knows it only for Linux.
    affinity = getattr(os, "sched_getaffinity", None)
    quotas = [float(len(affinity(0)) if affinity else os.cpu_count() or 1)]
    for folder in _list_cgroup_folders(root):
        quota, _, period = (read_text(folder / "cpu.max") or "").partition(" ")
        if quota.isdigit() and period.strip().isdigit():
            quotas.append(int(quota) / int(period))
    old = root / "sys/fs/cgroup/cpu"
    quota_v1, period_v1 = _read_number(old / "cpu.cfs_quota_us"), _read_number(old / "cpu.cfs_period_us")
    if quota_v1 and period_v1 and quota_v1 > 0:
        quotas.append(quota_v1 / period_v1)
    return max(1, math.ceil(min(quotas)))


def total_memory(root: Path = _ROOT) -> int | None:
    """Bytes of memory that the machine has."""
    fields = _read_meminfo(root)
    return fields.get("MemTotal") if fields else _ask_elsewhere(root, lambda: psutil.virtual_memory().total)


def free_memory(root: Path = _ROOT) -> int | None:
    """Bytes of memory that can be had without swapping."""
    fields = _read_meminfo(root)
    if fields:
        return fields.get("MemAvailable", fields.get("MemFree"))
    return _ask_elsewhere(root, lambda: psutil.virtual_memory().available)


def read_used_swap(root: Path = _ROOT) -> int | None:
    """Bytes of swap in use."""
    fields = _read_meminfo(root)
    if not fields:
        return _ask_elsewhere(root, lambda: psutil.swap_memory().used)
    return fields["SwapTotal"] - fields["SwapFree"] if {"SwapTotal", "SwapFree"} <= fields.keys() else None


def _read_cpu_model(root: Path) -> str:
    """Name of the processor; `unknown` where it is not shown."""
    for line in (read_text(root / "proc/cpuinfo") or "").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Model", "cpu model") and value.strip():
            return value.strip()
    return platform.processor() or platform.machine() or "unknown"


def _read_cpu_temperature(root: Path) -> float | None:
    """The hottest of the processors' sensors, in °C."""
    files: list[Path] = []
    for chip in _list_entries(root / "sys/class/hwmon", "hwmon*"):
        files += _list_entries(chip, "temp*_input") if read_text(chip / "name") in _CPU_DRIVERS else []
    for zone in _list_entries(root / "sys/class/thermal", "thermal_zone*"):
        files += [zone / "temp"] if _CPU_ZONE.fullmatch(read_text(zone / "type") or "") else []
    found = [value for file in files if (value := _read_number(file)) is not None and _COLDEST <= value <= _HOTTEST]
    return max(found) / 1000 if found else None


def load_average(root: Path) -> float | None:
    """Of the last minute."""
    words = (read_text(root / "proc/loadavg") or "").split()
    try:
        return float(words[0])
    except (IndexError, ValueError):
        return _ask_elsewhere(root, lambda: os.getloadavg()[0])


def is_on_battery(root: Path) -> bool | None:
    """Whether the machine runs on battery; None where it has none, or does not say.

    Batteries of its devices, such as a mouse, are none of its own (Documentation/ABI/testing/sysfs-class-power).
    """
    supplies = [(read_text(folder / "type"), folder) for folder in _list_entries(root / "sys/class/power_supply")]
    if not supplies:
        battery = _ask_elsewhere(root, getattr(psutil, "sensors_battery", lambda: None))
        return None if battery is None or battery.power_plugged is None else not battery.power_plugged
    batteries = [folder for kind, folder in supplies if kind == "Battery" and read_text(folder / "scope") != "Device"]
    if not batteries:
        return None
    if any(flag(folder / "online") for kind, folder in supplies if kind != "Battery"):
        return False
    statuses = {read_text(folder / "status") for folder in batteries}
    if "Discharging" in statuses:
        return True
    return False if statuses & {"Charging", "Full", "Not charging"} else None


def list_cpus(root: Path) -> list[int]:
    """Numbers of the logical CPUs, rising."""
    folders = _list_entries(root / "sys/devices/system/cpu", "cpu*")
    return sorted(int(found[1]) for folder in folders if (found := _CPU_FOLDER.fullmatch(folder.name)))


def _read_cpu_texts(root: Path, name: str, cpus: Collection[int] = ()) -> list[str]:
    """What a file of each CPU's folder says."""
    folder = root / "sys/devices/system/cpu"
    numbers = sorted(cpus) or list_cpus(root)
    return [text for number in numbers if (text := read_text(f"{folder}/cpu{number}/{name}"))]


def _read_cpu_numbers(root: Path, name: str, cpus: Collection[int] = ()) -> list[int]:
    """As `_read_cpu_texts`, where it is a number."""
    return [int(text) for text in _read_cpu_texts(root, name, cpus) if text.isdecimal()]


def choose_fastest_cores(root: Path, cpus: Collection[int]) -> list[int]:
    """One logical CPU of each physical core, of the fastest kind where cores differ; rising.

    Of those that may be used, all where none is named; what /sys does not say, does not differ.
    """
    cores: dict[str, tuple[int, int]] = {}
    for number in sorted(cpus) or list_cpus(root):
        core = next(iter(_read_cpu_texts(root, "topology/thread_siblings_list", (number,))), str(number))
        cores[core] = next(iter(_read_cpu_numbers(root, "cpufreq/cpuinfo_max_freq", (number,))), 0), number
    fastest = max((speed for speed, _ in cores.values()), default=0)
    return sorted(number for speed, number in cores.values() if speed == fastest)


def flag(path: Path) -> bool | None:
    """What a file with 0 or 1 says."""
    return {"0": False, "1": True}.get(read_text(path) or "")


def _read_meminfo(root: Path) -> dict[str, int]:
    found = {}
    for line in (read_text(root / "proc/meminfo") or "").splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if len(words) == 2 and words[0].isdecimal() and words[1] == "kB":
            found[name] = int(words[0]) * 1024
    return found


def _list_cgroup_folders(root: Path) -> list[Path]:
    """This process's cgroup (version 2) and those above it."""
    base = root / "sys/fs/cgroup"
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        if line.startswith("0::"):
            parts = [part for part in line[3:].split("/") if part and part != ".."]
            return [base.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]
    return [base]


def _list_entries(folder: Path, pattern: str = "*") -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return [folder / entry.name for entry in entries if fnmatchcase(entry.name, pattern)]
    except OSError:
        return []


def _read_number(path: Path) -> int | None:
    text = read_text(path) or ""
    return int(text) if text.removeprefix("-").isdecimal() else None


def read_text(path: Path | str) -> str | None:
    """What a file says; None where it is absent, or not ours to read: both are common in containers."""
    # Without the layers of text files: a large machine has hundreds of these, and they are read around every round.
    try:
        opened = os.open(path, os.O_RDONLY)
        try:
            parts = []
            while part := os.read(opened, _CHUNK):
                parts.append(part)
            return b"".join(parts).decode(errors="replace").strip()
        finally:
            os.close(opened)
    except OSError:
        return None


def read_cpu_times(root: Path = _ROOT) -> dict[int, CpuTimes]:
    """The counters of each CPU, by its number; empty where they are not shown."""
    text = read_text(root / "proc/stat")
    if text is None:
        return _ask_elsewhere(root, _times_elsewhere) or {}
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


def measure_cpu_use(
    before: Mapping[int, CpuTimes], after: Mapping[int, CpuTimes], own_seconds: float = 0.0, cpus: Collection[int] = ()
) -> CpuUse | None:
    """What CPUs have done between two readings; None where no time has passed, or a CPU is missing.

    CPU time of our own on these does not count. Where no numbers are named, they are those of both readings.
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


@dataclass(frozen=True, slots=True)
class MachineState:
    """What spoils a benchmark, at one moment. None where the system does not say.

    Attributes:
        busy_share, steal_share: as of `CpuUse`, of all CPUs together.
        gpu_problem: why GPUs could not be read; empty where they were, or were not asked about.
    """

    cores: int
    load_1m: float | None
    busy_share: float | None
    steal_share: float | None
    governor: str | None
    frequency_mhz: float | None
    throttle_count: int | None
    turbo: bool | None
    smt: bool | None
    free_memory_bytes: int | None
    swap_used_bytes: int | None
    on_battery: bool | None
    cpu_temperature_c: float | None = None
    gpus: tuple[GpuState, ...] = ()
    gpu_problem: str = ""


def read_machine_facts(root: Path = _ROOT) -> MachineFacts:
    """Reads what this machine is, of its memory what cgroups above this process allow."""
    files = [folder / "memory.max" for folder in _list_cgroup_folders(root)]
    files.append(root / "sys/fs/cgroup/memory/memory.limit_in_bytes")
    limits = [total_memory(root), *(limit for file in files if (limit := _read_number(file)) and limit > 0)]
    return MachineFacts(
        host=socket.gethostname(),
        cpu=_read_cpu_model(root),
        cores=_count_usable_cores(root),
        memory_bytes=min((limit for limit in limits if limit is not None), default=None),
        os=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
    )


def read_machine_state(
    use: CpuUse | None = None, root: Path = _ROOT, *, cpus: Collection[int] = (), gpus: GpuReading | None = None
) -> MachineState:
    """Reads the state of the machine, by what the CPUs have done just now and what the GPUs' tool has said.

    `cpus` are numbers of those whose frequencies and governors count; all where empty.
    """
    frequencies = [value for value in _read_cpu_numbers(root, "cpufreq/scaling_cur_freq", cpus) if value > 0]
    throttles = _read_cpu_numbers(root, "thermal_throttle/core_throttle_count")
    no_turbo = flag(root / "sys/devices/system/cpu/intel_pstate/no_turbo")
    return MachineState(
        cores=_count_usable_cores(root),
        load_1m=load_average(root),
        busy_share=use.busy_share if use else None,
        steal_share=use.steal_share if use else None,
        governor=",".join(sorted(set(_read_cpu_texts(root, "cpufreq/scaling_governor", cpus)))) or None,
        frequency_mhz=sum(frequencies) / len(frequencies) / 1000 if frequencies else None,
        throttle_count=sum(throttles) if throttles else None,
        turbo=flag(root / "sys/devices/system/cpu/cpufreq/boost") if no_turbo is None else not no_turbo,
        smt=flag(root / "sys/devices/system/cpu/smt/active"),
        free_memory_bytes=free_memory(root),
        swap_used_bytes=read_used_swap(root),
        on_battery=is_on_battery(root),
        cpu_temperature_c=_read_cpu_temperature(root),
        gpus=gpus.gpus if gpus else (),
        gpu_problem=gpus.problem if gpus else "",
    )


def list_benchmark_warnings(state: MachineState) -> list[str]:
    """What would spoil a benchmark now, each with what to do about it; empty for a fit machine."""
    return [*_warn_of_load(state), *_warn_of_clock(state), *_warn_of_memory(state), *_warn_of_heat(state)]


def _warn_of_clock(state: MachineState) -> Iterator[str]:
    if state.governor and set(state.governor.split(",")) - {"performance"}:
        yield (
            f"CPU frequency governor is {state.governor}: times depend on how warm the clock is;"
            " sudo cpupower frequency-set -g performance"
        )
    if state.turbo:
        yield (
            "turbo is on: the clock depends on temperature and on the other cores;"
            " turn it off in the firmware or under /sys/devices/system/cpu"
        )
    if state.smt:
        yield (
            "SMT is on: two threads can share a core; give iree-benchmark-module one thread a core"
            " (--task_topology_group_count), or echo off | sudo tee /sys/devices/system/cpu/smt/control"
        )
    if state.throttle_count:
        yield (
            f"the CPU has throttled {state.throttle_count} times since it started: improve its cooling, and"
            " compare this count before and after a run"
        )
    if state.on_battery:
        yield "running on battery, which slows the CPU: plug it in"


def _warn_of_load(state: MachineState) -> Iterator[str]:
    if state.busy_share is not None and state.busy_share > BUSY_SHARE:
        yield f"other work keeps the CPUs {100 * state.busy_share:.0f} % busy: stop it, or wait until it ends"
    elif state.busy_share is None and state.load_1m is not None and state.load_1m > 0.5 * state.cores:
        yield f"load average is {state.load_1m:.1f} on {state.cores} CPUs: wait until other work is done"
    if state.steal_share is not None and state.steal_share > STEAL_SHARE:
        yield (
            f"the hypervisor takes {100 * state.steal_share:.0f} % of the CPU time: use a machine that is not"
            " shared, or compare only runs that alternate on this one"
        )


def _warn_of_memory(state: MachineState) -> Iterator[str]:
    if state.swap_used_bytes is not None and state.swap_used_bytes > _GIB // 4:
        yield f"{byte_size(state.swap_used_bytes)} of swap are in use: free memory, then sudo swapoff -a"
    if state.free_memory_bytes is not None and state.free_memory_bytes < _GIB:
        yield (
            f"only {byte_size(state.free_memory_bytes)} of memory are free: end what uses it before large"
            " models are measured"
        )


def _warn_of_heat(state: MachineState) -> Iterator[str]:
    if state.cpu_temperature_c is not None and state.cpu_temperature_c >= _HOT_CPU_C:
        yield (
            f"the CPU is at {state.cpu_temperature_c:.0f} °C, close to where it slows down: let it cool, and look"
            " after its cooling"
        )
    for gpu in state.gpus:
        if gpu.ill_reasons:
            yield (
                f"{gpu.label} is slowed down ({', '.join(gpu.ill_reasons)}): let it cool, and look after its cooling"
                " and power supply"
            )
