"""Read the properties of this machine, and judge if it is fit to measure on; nothing is changed.

Sources: proc(5), Documentation/admin-guide/pm/cpufreq.rst, cgroup-v2.rst, Documentation/hwmon/sysfs-interface.rst and
Documentation/driver-api/thermal/sysfs-api.rst. Each reader takes `root`, the folder of /proc and /sys; by default the
real root. Counters of CPUs (/proc/stat) advance in ticks of 10 ms, so they are inaccurate over a short time. A share
that is computed from them therefore comes with its possible error. Values that a container or another system does not
show are None, never a guess.
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

from iree_gauntlet.formatting import format_bytes
from iree_gauntlet.journal_events import MachineInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from iree_gauntlet.measuring.machine.gpus import GpuReading, GpuState


_ROOT = Path("/")
# Drivers of the sensors in processors; sensors of the board (nct6775, acpitz) do not measure the processor.
_CPU_DRIVERS = ("coretemp", "k10temp", "k8temp", "zenpower", "fam15h_power", "cpu_thermal", "via_cputemp")
_CPU_ZONE = re.compile(r"x86_pkg_temp|.*\bcpu\b.*|cpu[-_0-9].*", re.IGNORECASE)
_CPU_FOLDER = re.compile(r"cpu([0-9]+)")
_CHUNK_BYTES = 1 << 16
# The values of a broken sensor are far outside of this range, in thousandths of a degree.
_MIN_MILLIDEGREES, _MAX_MILLIDEGREES = -40_000, 150_000

_TICKS_PER_SECOND = 100
# Each of the three counters (work, idle, stolen) may be off by one tick.
_COUNTER_ERROR_SECONDS = 3 / _TICKS_PER_SECOND
# Indices in a line of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal.
_IDLE_FIELDS, _STEAL_FIELD, _FIELD_COUNT = (3, 4), 7, 8

_Reading = TypeVar("_Reading")
_GIB = 1 << 30
# Warn if other processes, or other machines of the host, take more than these fractions of the CPUs' time.
_BUSY_SHARE, _STEAL_SHARE = 0.2, 0.02
# Processors slow down at 95 to 105 °C.
_HOT_CPU_C = 95


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Seconds since boot in which one CPU worked, was idle, and was taken away by a hypervisor."""

    work: float
    idle: float
    steal: float


@dataclass(frozen=True, slots=True)
class CpuUse:
    """The use of some CPUs during an interval.

    Attributes:
        busy_share: the share (0 to 1) of the CPUs' time that other processes used.
        steal_share: the share (0 to 1) of the CPUs' time that a hypervisor gave to other guests.
        share_error: the possible error of both shares, because the kernel counts in ticks.
    """

    busy_share: float
    steal_share: float
    share_error: float


def _read_by_psutil(root: Path, read: Callable[[], _Reading]) -> _Reading | None:
    """Call a reader for systems without /proc or /sys; None if the reader fails, or `root` is not /."""
    if str(root) != root.anchor:
        return None
    try:
        return read()
    except (psutil.Error, OSError, RuntimeError, AttributeError, LookupError, ValueError):
        return None


def _count_usable_cores(root: Path) -> int:
    """Return the number of logical CPUs that this process may use, by affinity and by its cgroup's quota."""
    # The function does not exist on every system, and typeshed has it only for Linux.
    affinity = getattr(os, "sched_getaffinity", None)
    quotas = [float(_read_affinity(root) or (len(affinity(0)) if affinity else os.cpu_count() or 1))]
    for folder in _list_cgroup_folders(root):
        quota, _, period = (read_text(folder / "cpu.max") or "").partition(" ")
        if quota.isdigit() and period.strip().isdigit():
            quotas.append(int(quota) / int(period))
    cgroup_v1 = root / "sys/fs/cgroup/cpu"
    quota_v1, period_v1 = _read_number(cgroup_v1 / "cpu.cfs_quota_us"), _read_number(cgroup_v1 / "cpu.cfs_period_us")
    if quota_v1 and period_v1 and quota_v1 > 0:
        quotas.append(quota_v1 / period_v1)
    return max(1, math.ceil(min(quotas)))


def _read_affinity(root: Path) -> int:
    """Return the number of CPUs in the mask of another root (proc(5)); 0 if it shows none, and for this machine."""
    status = "" if str(root) == root.anchor else read_text(root / "proc/self/status") or ""
    mask = next((line.partition(":")[2] for line in status.splitlines() if line.startswith("Cpus_allowed:")), "0")
    return int(mask.strip().replace(",", ""), 16).bit_count()


def read_total_memory(root: Path = _ROOT) -> int | None:
    """Return the machine's memory in bytes."""
    fields = _read_meminfo(root)
    return fields.get("MemTotal") if fields else _read_by_psutil(root, lambda: psutil.virtual_memory().total)


def read_free_memory(root: Path = _ROOT) -> int | None:
    """Return the bytes of memory that are available without swapping."""
    fields = _read_meminfo(root)
    if fields:
        return fields.get("MemAvailable", fields.get("MemFree"))
    return _read_by_psutil(root, lambda: psutil.virtual_memory().available)


def read_used_swap(root: Path = _ROOT) -> int | None:
    """Return the bytes of swap in use."""
    fields = _read_meminfo(root)
    if not fields:
        return _read_by_psutil(root, lambda: psutil.swap_memory().used)
    return fields["SwapTotal"] - fields["SwapFree"] if {"SwapTotal", "SwapFree"} <= fields.keys() else None


def _read_cpu_model(root: Path) -> str:
    """Return the name of the processor; `unknown` if it is not shown."""
    for line in (read_text(root / "proc/cpuinfo") or "").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Model", "cpu model") and value.strip():
            return value.strip()
    return platform.processor() or platform.machine() or "unknown"


def _read_cpu_temperature(root: Path) -> float | None:
    """Return the temperature of the hottest processor sensor, in °C."""
    files: list[Path] = []
    for chip in _list_entries(root / "sys/class/hwmon", "hwmon*"):
        files += _list_entries(chip, "temp*_input") if read_text(chip / "name") in _CPU_DRIVERS else []
    for zone in _list_entries(root / "sys/class/thermal", "thermal_zone*"):
        files += [zone / "temp"] if _CPU_ZONE.fullmatch(read_text(zone / "type") or "") else []
    values = [
        value
        for file in files
        if (value := _read_number(file)) is not None and _MIN_MILLIDEGREES <= value <= _MAX_MILLIDEGREES
    ]
    return max(values) / 1000 if values else None


def read_load_average(root: Path) -> float | None:
    """Return the load average of the last minute."""
    words = (read_text(root / "proc/loadavg") or "").split()
    try:
        return float(words[0])
    except (IndexError, ValueError):
        return _read_by_psutil(root, lambda: os.getloadavg()[0])


def is_on_battery(root: Path) -> bool | None:
    """Return whether the machine runs on battery; None if it has no battery, or does not show it.

    Batteries of peripheral devices, such as a mouse, do not count (Documentation/ABI/testing/sysfs-class-power).
    """
    supplies = [(read_text(folder / "type"), folder) for folder in _list_entries(root / "sys/class/power_supply")]
    if not supplies:
        battery = _read_by_psutil(root, getattr(psutil, "sensors_battery", lambda: None))
        return None if battery is None or battery.power_plugged is None else not battery.power_plugged
    batteries = [folder for kind, folder in supplies if kind == "Battery" and read_text(folder / "scope") != "Device"]
    if not batteries:
        return None
    if any(_read_flag(folder / "online") for kind, folder in supplies if kind != "Battery"):
        return False
    statuses = {read_text(folder / "status") for folder in batteries}
    if "Discharging" in statuses:
        return True
    return False if statuses & {"Charging", "Full", "Not charging"} else None


def list_cpus(root: Path) -> list[int]:
    """Return the numbers of the logical CPUs, rising."""
    folders = _list_entries(root / "sys/devices/system/cpu", "cpu*")
    return sorted(int(match[1]) for folder in folders if (match := _CPU_FOLDER.fullmatch(folder.name)))


def _read_cpu_texts(root: Path, name: str, cpus: Collection[int] = ()) -> list[str]:
    """Return the contents of a file in each CPU's folder."""
    folder = root / "sys/devices/system/cpu"
    numbers = sorted(cpus) or list_cpus(root)
    return [text for number in numbers if (text := read_text(f"{folder}/cpu{number}/{name}"))]


def _read_cpu_numbers(root: Path, name: str, cpus: Collection[int] = ()) -> list[int]:
    """Return the numbers among the texts that `_read_cpu_texts` returns."""
    return [int(text) for text in _read_cpu_texts(root, name, cpus) if text.isdecimal()]


def choose_fastest_cores(root: Path, cpus: Collection[int]) -> list[int]:
    """Choose one logical CPU of each physical core, only of the fastest kind of cores; return them in ascending order.

    Only `cpus` are considered; empty means all CPUs. Values that /sys does not show are taken as equal.
    """
    cores: dict[str, tuple[int, int]] = {}
    for number in sorted(cpus) or list_cpus(root):
        core = next(iter(_read_cpu_texts(root, "topology/thread_siblings_list", (number,))), str(number))
        cores[core] = next(iter(_read_cpu_numbers(root, "cpufreq/cpuinfo_max_freq", (number,))), 0), number
    fastest = max((speed for speed, _ in cores.values()), default=0)
    return sorted(number for speed, number in cores.values() if speed == fastest)


def _read_flag(path: Path) -> bool | None:
    """Return the value of a file with 0 or 1."""
    return {"0": False, "1": True}.get(read_text(path) or "")


def _read_meminfo(root: Path) -> dict[str, int]:
    fields = {}
    for line in (read_text(root / "proc/meminfo") or "").splitlines():
        name, _, value_text = line.partition(":")
        words = value_text.split()
        if len(words) == 2 and words[0].isdecimal() and words[1] == "kB":
            fields[name] = int(words[0]) * 1024
    return fields


def _list_cgroup_folders(root: Path) -> list[Path]:
    """Return the folders of this process's cgroup (version 2) and of the cgroups above it."""
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
    """Return a file's text; None if it is absent or not readable, which is common in containers."""
    # os.read is faster than open(), and a large machine reads hundreds of files before and after each round.
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            chunks = []
            while chunk := os.read(descriptor, _CHUNK_BYTES):
                chunks.append(chunk)
            return b"".join(chunks).decode(errors="replace").strip()
        finally:
            os.close(descriptor)
    except OSError:
        return None


def read_cpu_times(root: Path = _ROOT) -> dict[int, CpuTimes]:
    """Return the time counters of each CPU, by the CPU's number; empty if the system does not show them."""
    text = read_text(root / "proc/stat")
    if text is None:
        return _read_by_psutil(root, _read_psutil_times) or {}
    times_by_cpu: dict[int, CpuTimes] = {}
    for line in text.splitlines():
        name, *words = line.split() or [""]
        number = name.removeprefix("cpu")
        if name.startswith("cpu") and number.isdecimal() and len(words) > max(_IDLE_FIELDS):
            # The fields after `steal` are guests' time, which `user` and `nice` already include.
            ticks = [int(word) if word.isdecimal() else 0 for word in words[:_FIELD_COUNT]]
            idle, steal = sum(ticks[index] for index in _IDLE_FIELDS), sum(ticks[_STEAL_FIELD:])
            times_by_cpu[int(number)] = CpuTimes(
                *(value / _TICKS_PER_SECOND for value in (sum(ticks) - idle - steal, idle, steal))
            )
    return times_by_cpu


def measure_cpu_use(
    start: Mapping[int, CpuTimes], end: Mapping[int, CpuTimes], own_seconds: float = 0.0, cpus: Collection[int] = ()
) -> CpuUse | None:
    """Return the use of `cpus` between two readings; None if no time has passed, or a CPU is missing.

    `own_seconds` of CPU time do not count as use. Empty `cpus` means all CPUs that are in both readings.
    """
    numbers = sorted(cpus) if cpus else sorted(start.keys() & end.keys())
    if not numbers or any(number not in start or number not in end for number in numbers):
        return None
    # A counter of idle time may decrease a little (proc(5)).
    work, idle, steal = (
        sum(max(0.0, getattr(end[number], name) - getattr(start[number], name)) for number in numbers)
        for name in ("work", "idle", "steal")
    )
    total = work + idle + steal
    if total <= 0:
        return None
    return CpuUse(
        busy_share=max(0.0, work - own_seconds) / total,
        steal_share=steal / total,
        share_error=min(1.0, _COUNTER_ERROR_SECONDS * len(numbers) / total),
    )


def _read_psutil_times() -> dict[int, CpuTimes]:
    cpus = {}
    for number, times in enumerate(psutil.cpu_times(percpu=True)):
        seconds = times._asdict()
        idle, steal = (seconds.get("idle", 0.0) + seconds.get("iowait", 0.0), seconds.get("steal", 0.0))
        work = sum(value for name, value in seconds.items() if not name.startswith("guest")) - idle - steal
        cpus[number] = CpuTimes(work, idle, steal)
    return cpus


@dataclass(frozen=True, slots=True)
class MachineState:
    """The conditions that affect a benchmark, at one moment. None if the system does not show a value.

    Attributes:
        busy_share, steal_share: as in `CpuUse`, for all CPUs together.
        gpu_problem: the reason why GPUs could not be read; empty if they were read, or not requested.
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


def read_machine_facts(root: Path = _ROOT) -> MachineInfo:
    """Read this machine's properties; its memory is limited to the amount that this process's cgroups allow."""
    files = [folder / "memory.max" for folder in _list_cgroup_folders(root)]
    files.append(root / "sys/fs/cgroup/memory/memory.limit_in_bytes")
    limits = [read_total_memory(root), *(limit for file in files if (limit := _read_number(file)) and limit > 0)]
    return MachineInfo(
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
    """Read the state of the machine; `use` and `gpus` are the latest CPU use and reading of the GPUs.

    Frequencies and governors are read only of `cpus`; empty means all CPUs.
    """
    frequencies = [value for value in _read_cpu_numbers(root, "cpufreq/scaling_cur_freq", cpus) if value > 0]
    throttles = _read_cpu_numbers(root, "thermal_throttle/core_throttle_count")
    no_turbo = _read_flag(root / "sys/devices/system/cpu/intel_pstate/no_turbo")
    return MachineState(
        cores=_count_usable_cores(root),
        load_1m=read_load_average(root),
        busy_share=use.busy_share if use else None,
        steal_share=use.steal_share if use else None,
        governor=",".join(sorted(set(_read_cpu_texts(root, "cpufreq/scaling_governor", cpus)))) or None,
        frequency_mhz=sum(frequencies) / len(frequencies) / 1000 if frequencies else None,
        throttle_count=sum(throttles) if throttles else None,
        turbo=_read_flag(root / "sys/devices/system/cpu/cpufreq/boost") if no_turbo is None else not no_turbo,
        smt=_read_flag(root / "sys/devices/system/cpu/smt/active"),
        free_memory_bytes=read_free_memory(root),
        swap_used_bytes=read_used_swap(root),
        on_battery=is_on_battery(root),
        cpu_temperature_c=_read_cpu_temperature(root),
        gpus=gpus.gpus if gpus else (),
        gpu_problem=gpus.problem if gpus else "",
    )


def list_benchmark_warnings(state: MachineState) -> list[str]:
    """List the conditions that would disturb a benchmark now, each with a remedy; empty for a fit machine."""
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
            "SMT is on: two threads can share a core; give iree-benchmark-module one thread per core"
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
    if state.busy_share is not None and state.busy_share > _BUSY_SHARE:
        yield f"other work keeps the CPUs {100 * state.busy_share:.0f} % busy: stop it, or wait until it ends"
    elif state.busy_share is None and state.load_1m is not None and state.load_1m > 0.5 * state.cores:
        yield f"load average is {state.load_1m:.1f} on {state.cores} CPUs: wait until other work is done"
    if state.steal_share is not None and state.steal_share > _STEAL_SHARE:
        yield (
            f"the hypervisor takes {100 * state.steal_share:.0f} % of the CPU time: use a machine that is not"
            " shared, or compare only runs that alternate on this one"
        )


def _warn_of_memory(state: MachineState) -> Iterator[str]:
    if state.swap_used_bytes is not None and state.swap_used_bytes > _GIB // 4:
        yield f"{format_bytes(state.swap_used_bytes)} of swap is in use: free memory, then sudo swapoff -a"
    if state.free_memory_bytes is not None and state.free_memory_bytes < _GIB:
        yield (
            f"only {format_bytes(state.free_memory_bytes)} of memory is free: stop what uses it before large"
            " models are measured"
        )


def _warn_of_heat(state: MachineState) -> Iterator[str]:
    if state.cpu_temperature_c is not None and state.cpu_temperature_c >= _HOT_CPU_C:
        yield (
            f"the CPU is at {state.cpu_temperature_c:.0f} °C, close to where it slows down: let it cool, and check"
            " its cooling"
        )
    for gpu in state.gpus:
        if gpu.slowdown_reasons:
            yield (
                f"{gpu.label} is slowed down ({', '.join(gpu.slowdown_reasons)}): let it cool, and check its cooling"
                " and power supply"
            )
