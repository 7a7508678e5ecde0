"""What machine this is, and whether it is fit to measure on. Only reads; changes nothing.

Linux answers from /proc and /sys (`machine_sensors.py`), GPUs through their vendors' tools (`gpus.py`); what a
container or another system does not show is None, never a guess.
"""

from __future__ import annotations

import platform
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.figures import byte_size
from iree_gauntlet.journal_format import BUSY_SHARE, STEAL_SHARE
from iree_gauntlet.measuring.machine.machine_sensors import (
    cpu_model,
    cpu_numbers,
    cpu_temperature,
    cpu_texts,
    flag,
    free_memory,
    load_average,
    memory_limits,
    on_battery,
    total_memory,
    turbo,
    usable_cores,
    used_swap,
)
from iree_gauntlet.recorded import Recorded

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from iree_gauntlet.measuring.machine.gpus import GpuReading, GpuState
    from iree_gauntlet.measuring.machine.machine_sensors import CpuUse


_ROOT = Path("/")
_GIB = 1 << 30
# Processors slow down from 95 to 105 °C on.
_HOT_CPU_C = 95


@dataclass(frozen=True, slots=True)
class MachineFacts(Recorded):
    """What does not change while a run lasts.

    Attributes:
        host: its name.
        cpu: model name of the processor.
        cores: logical CPUs that this process may use, by affinity and by its cgroup's quota.
        memory_bytes: memory that this process may use, by machine and by cgroup; None where neither says.
        os: system, release and architecture.
        python: version of the Python that measures.
    """

    host: str
    cpu: str
    cores: int
    memory_bytes: int | None
    os: str
    python: str


@dataclass(frozen=True, slots=True)
class MachineState:
    """What spoils a benchmark, at one moment. None where the system does not say.

    Attributes:
        cores: logical CPUs that this process may use.
        load_1m: load average of the last minute.
        busy_share: share of the watched time in which the CPUs did other work than ours, 0 to 1 (all CPUs together).
        steal_share: share of the watched time that a hypervisor gave to others.
        governor: frequency governors in use, joined by commas.
        frequency_mhz: mean current frequency.
        throttle_count: thermal throttling events since boot, all CPUs together.
        turbo: whether the processor may exceed its nominal frequency.
        smt: whether cores run more than one thread.
        free_memory_bytes: memory that can be had without swapping.
        swap_used_bytes: swap in use.
        on_battery: whether it runs on battery.
        cpu_temperature_c: of the processors' hottest sensor, in °C.
        gpus: the GPUs, where they were asked about; empty for a run on the CPU.
        gpu_problem: why they could not be read; empty where they were, or were not asked about.
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


def machine_facts(root: Path = _ROOT) -> MachineFacts:
    """Reads what this machine is.

    Args:
        root: where /proc and /sys are looked for.
    """
    memory = total_memory(root)
    return MachineFacts(
        host=socket.gethostname(),
        cpu=cpu_model(root),
        cores=usable_cores(root),
        memory_bytes=min([*([] if memory is None else [memory]), *memory_limits(root)], default=None),
        os=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=platform.python_version(),
    )


def machine_state(
    use: CpuUse | None = None, root: Path = _ROOT, *, cpus: Collection[int] = (), gpus: GpuReading | None = None
) -> MachineState:
    """Reads the state of the machine.

    Args:
        use: what the CPUs have done just now; None where it is not known.
        root: where /proc and /sys are looked for.
        cpus: numbers of the CPUs whose frequencies and governors count; all where empty.
        gpus: what the GPUs' tool has said, where they were asked about.
    """
    frequencies = [value for value in cpu_numbers(root, "cpufreq/scaling_cur_freq", cpus) if value > 0]
    throttles = cpu_numbers(root, "thermal_throttle/core_throttle_count")
    return MachineState(
        cores=usable_cores(root),
        load_1m=load_average(root),
        busy_share=use.busy_share if use else None,
        steal_share=use.steal_share if use else None,
        governor=",".join(sorted(set(cpu_texts(root, "cpufreq/scaling_governor", cpus)))) or None,
        frequency_mhz=sum(frequencies) / len(frequencies) / 1000 if frequencies else None,
        throttle_count=sum(throttles) if throttles else None,
        turbo=turbo(root),
        smt=flag(root / "sys/devices/system/cpu/smt/active"),
        free_memory_bytes=free_memory(root),
        swap_used_bytes=used_swap(root),
        on_battery=on_battery(root),
        cpu_temperature_c=cpu_temperature(root),
        gpus=gpus.gpus if gpus else (),
        gpu_problem=gpus.problem if gpus else "",
    )


def benchmark_warnings(state: MachineState) -> list[str]:
    """What would spoil a benchmark now, each with what to do about it; empty for a fit machine."""
    return [*_load_warnings(state), *_clock_warnings(state), *_memory_warnings(state), *_heat_warnings(state)]


def _clock_warnings(state: MachineState) -> Iterator[str]:
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


def _load_warnings(state: MachineState) -> Iterator[str]:
    if state.busy_share is not None and state.busy_share > BUSY_SHARE:
        yield f"other work keeps the CPUs {100 * state.busy_share:.0f} % busy: stop it, or wait until it ends"
    elif state.busy_share is None and state.load_1m is not None and state.load_1m > 0.5 * state.cores:
        yield f"load average is {state.load_1m:.1f} on {state.cores} CPUs: wait until other work is done"
    if state.steal_share is not None and state.steal_share > STEAL_SHARE:
        yield (
            f"the hypervisor takes {100 * state.steal_share:.0f} % of the CPU time: use a machine that is not"
            " shared, or compare only runs that alternate on this one"
        )


def _memory_warnings(state: MachineState) -> Iterator[str]:
    if state.swap_used_bytes is not None and state.swap_used_bytes > _GIB // 4:
        yield f"{byte_size(state.swap_used_bytes)} of swap are in use: free memory, then sudo swapoff -a"
    if state.free_memory_bytes is not None and state.free_memory_bytes < _GIB:
        yield (
            f"only {byte_size(state.free_memory_bytes)} of memory are free: end what uses it before large"
            " models are measured"
        )


def _heat_warnings(state: MachineState) -> Iterator[str]:
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
