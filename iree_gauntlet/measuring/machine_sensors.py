"""Reading /proc and /sys: what the kernel shows of processors, limits and sensors. Only reads.

Sources: proc(5), Documentation/admin-guide/pm/cpufreq.rst, cgroup-v2.rst, Documentation/hwmon/sysfs-interface.rst
and Documentation/driver-api/thermal/sysfs-api.rst. Each reader takes the folder under which /proc and /sys are
looked for. What is not shown (a container, another system) is None or empty, never a guess.
"""

from __future__ import annotations

import math
import os
import platform
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

__all__ = [
    "cpu_model",
    "cpu_numbers",
    "cpu_temperature",
    "cpu_texts",
    "cpus_there",
    "flag",
    "memory_limits",
    "turbo",
    "usable_cores",
]

# Drivers of processors' own sensors; a board's sensors (nct6775, acpitz) say nothing about the processor.
_CPU_DRIVERS = ("coretemp", "k10temp", "k8temp", "zenpower", "fam15h_power", "cpu_thermal", "via_cputemp")
_CPU_ZONE = re.compile(r"x86_pkg_temp|.*\bcpu\b.*|cpu[-_0-9].*", re.IGNORECASE)
_CPU_FOLDER = re.compile(r"cpu([0-9]+)")
_CHUNK = 1 << 16
# What a broken sensor shows lies far outside of this, in thousandths of a degree.
_COLDEST, _HOTTEST = -40_000, 150_000


def usable_cores(root: Path) -> int:
    """Logical CPUs that this process may use, by affinity and by its cgroup's quota."""
    # Not on every system, and typeshed knows it only for Linux.
    affinity = getattr(os, "sched_getaffinity", None)
    count = len(affinity(0)) if affinity else os.cpu_count() or 1
    quota = _cpu_quota(root)
    return max(1, count if quota is None else min(count, math.ceil(quota)))


def memory_limits(root: Path) -> list[int]:
    """Bytes that each cgroup above this process allows."""
    files = [folder / "memory.max" for folder in _cgroup_folders(root)]
    files.append(root / "sys/fs/cgroup/memory/memory.limit_in_bytes")
    return [limit for file in files if (limit := _number(file)) is not None and limit > 0]


def cpu_model(root: Path) -> str:
    """Name of the processor; `unknown` where nobody says."""
    for line in (_text(root / "proc/cpuinfo") or "").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Model", "cpu model") and value.strip():
            return value.strip()
    return platform.processor() or platform.machine() or "unknown"


def cpu_temperature(root: Path) -> float | None:
    """The hottest of the processors' sensors, in °C."""
    found: list[int] = []
    for chip in root.glob("sys/class/hwmon/hwmon*"):
        if _text(chip / "name") in _CPU_DRIVERS:
            found += [value for file in chip.glob("temp*_input") if (value := _number(file)) is not None]
    for zone in root.glob("sys/class/thermal/thermal_zone*"):
        if _CPU_ZONE.fullmatch(_text(zone / "type") or "") and (value := _number(zone / "temp")) is not None:
            found.append(value)
    hottest = max((value for value in found if _COLDEST <= value <= _HOTTEST), default=None)
    return None if hottest is None else hottest / 1000


def turbo(root: Path) -> bool | None:
    """Whether the processor may exceed its nominal frequency."""
    no_turbo = flag(root / "sys/devices/system/cpu/intel_pstate/no_turbo")
    if no_turbo is not None:
        return not no_turbo
    return flag(root / "sys/devices/system/cpu/cpufreq/boost")


def cpus_there(root: Path) -> list[int]:
    """Numbers of the logical CPUs, rising."""
    try:
        with os.scandir(root / "sys/devices/system/cpu") as entries:
            names = [entry.name for entry in entries]
    except OSError:
        return []
    return sorted(int(found[1]) for name in names if (found := _CPU_FOLDER.fullmatch(name)))


def cpu_texts(root: Path, name: str, cpus: Collection[int] = ()) -> list[str]:
    """What a file of each CPU's folder says.

    Args:
        root: where /sys is looked for.
        name: the file, such as `cpufreq/scaling_governor`.
        cpus: numbers of the CPUs that are asked; all where empty.
    """
    folder = root / "sys/devices/system/cpu"
    numbers = sorted(cpus) or cpus_there(root)
    return [text for number in numbers if (text := _text(f"{folder}/cpu{number}/{name}"))]


def cpu_numbers(root: Path, name: str, cpus: Collection[int] = ()) -> list[int]:
    """As `cpu_texts`, where it is a number."""
    return [int(text) for text in cpu_texts(root, name, cpus) if text.isdecimal()]


def flag(path: Path) -> bool | None:
    """What a file with 0 or 1 says."""
    return {"0": False, "1": True}.get(_text(path) or "")


def _cpu_quota(root: Path) -> float | None:
    """CPUs that the tightest cgroup above this process allows; None for no limit."""
    quotas = []
    for folder in _cgroup_folders(root):
        quota, _, period = (_text(folder / "cpu.max") or "").partition(" ")
        if quota.isdigit() and period.strip().isdigit():
            quotas.append(int(quota) / int(period))
    old = root / "sys/fs/cgroup/cpu"
    quota_v1, period_v1 = _number(old / "cpu.cfs_quota_us"), _number(old / "cpu.cfs_period_us")
    if quota_v1 and period_v1 and quota_v1 > 0:
        quotas.append(quota_v1 / period_v1)
    return min(quotas, default=None)


def _cgroup_folders(root: Path) -> list[Path]:
    """This process's cgroup (version 2) and those above it."""
    base = root / "sys/fs/cgroup"
    for line in (_text(root / "proc/self/cgroup") or "").splitlines():
        if line.startswith("0::"):
            parts = [part for part in line[3:].split("/") if part and part != ".."]
            return [base.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]
    return [base]


def _number(path: Path) -> int | None:
    text = _text(path) or ""
    return int(text) if text.removeprefix("-").isdecimal() else None


def _text(path: Path | str) -> str | None:
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
        return None  # absent, or not ours to read: both are common in containers
