from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import pytest

from iree_gauntlet.measuring.machine.gpus import GpuReading, GpuState, Slowdown
from iree_gauntlet.measuring.machine.machine_state import (
    MachineState,
    list_benchmark_warnings,
    measure_cpu_use,
    read_cpu_times,
    read_machine_facts,
    read_machine_state,
)
from tests.support.machines import FIT_STATE, write_files

if TYPE_CHECKING:
    from pathlib import Path


def test_our_own_work_is_not_other_work(tmp_path: Path) -> None:
    write_files(tmp_path, {"proc/stat": "cpu0 100 0 0 100 0 0 0 0 0 0"})
    before = read_cpu_times(tmp_path)
    assert measure_cpu_use(before, read_cpu_times(tmp_path)) is None, "no time has passed"
    write_files(tmp_path, {"proc/stat": "cpu0 150 0 0 140 0 0 0 10 0 0"})
    after = read_cpu_times(tmp_path)
    for own_seconds, busy_share in ((0.0, 0.5), (0.3, 0.2), (1e6, 0.0)):
        state = read_machine_state(measure_cpu_use(before, after, own_seconds), tmp_path)
        assert (state.busy_share, state.steal_share) == pytest.approx((busy_share, 0.1))


def test_this_machine_can_be_described() -> None:
    facts, state = read_machine_facts(), read_machine_state(measure_cpu_use(read_cpu_times(), read_cpu_times()))
    assert facts.cores >= 1
    assert (facts.memory_bytes or 0) > 0
    assert facts.cpu
    assert state.busy_share is None or 0 <= state.busy_share <= 1
    json.dumps([facts.as_dict(), asdict(state)])
    assert all(isinstance(line, str) for line in list_benchmark_warnings(state))


def test_a_machine_that_says_nothing(tmp_path: Path) -> None:
    state = read_machine_state(root=tmp_path)
    assert (state.governor, state.frequency_mhz, state.throttle_count, state.turbo, state.smt) == (None,) * 5
    assert (state.busy_share, state.steal_share) == (None, None)
    assert read_machine_facts(root=tmp_path).cpu


def test_what_linux_says(tmp_path: Path) -> None:
    cpu = "sys/devices/system/cpu"
    write_files(
        tmp_path,
        {
            "proc/cpuinfo": "processor : 0\nmodel name\t: Frobnicator 9000\n",
            f"{cpu}/cpu0/cpufreq/scaling_governor": "powersave",
            f"{cpu}/cpu1/cpufreq/scaling_governor": "performance",
            f"{cpu}/cpu0/cpufreq/scaling_cur_freq": "1000000",
            f"{cpu}/cpu1/cpufreq/scaling_cur_freq": "2000000",
            f"{cpu}/cpu0/thermal_throttle/core_throttle_count": "3",
            f"{cpu}/cpu1/thermal_throttle/core_throttle_count": "4",
            f"{cpu}/intel_pstate/no_turbo": "0",
            f"{cpu}/smt/active": "1",
        },
    )
    state = read_machine_state(root=tmp_path)
    assert read_machine_facts(root=tmp_path).cpu == "Frobnicator 9000"
    assert (state.governor, state.frequency_mhz) == ("performance,powersave", 1500)
    assert (state.throttle_count, state.turbo, state.smt) == (7, True, True)
    write_files(tmp_path, {f"{cpu}/intel_pstate/no_turbo": "1"})
    assert read_machine_state(root=tmp_path).turbo is False


def test_the_hottest_cpu_sensor_counts(tmp_path: Path) -> None:
    assert read_machine_state(root=tmp_path).cpu_temperature_c is None
    write_files(
        tmp_path,
        {
            "sys/class/hwmon/hwmon0/name": "nct6775",
            "sys/class/hwmon/hwmon0/temp1_input": "99000",
            "sys/class/hwmon/hwmon1/name": "coretemp",
            "sys/class/hwmon/hwmon1/temp1_input": "61000",
            "sys/class/hwmon/hwmon1/temp2_input": "63500",
            "sys/class/hwmon/hwmon1/temp3_input": "200000000",
            "sys/class/thermal/thermal_zone0/type": "acpitz",
            "sys/class/thermal/thermal_zone0/temp": "27800",
        },
    )
    assert read_machine_state(root=tmp_path).cpu_temperature_c == 63.5
    write_files(
        tmp_path,
        {
            "sys/class/thermal/thermal_zone1/type": "x86_pkg_temp",
            "sys/class/thermal/thermal_zone1/temp": "71000",
            "sys/class/thermal/thermal_zone2/type": "cpu-thermal",
            "sys/class/thermal/thermal_zone2/temp": "garbage",
        },
    )
    assert read_machine_state(root=tmp_path).cpu_temperature_c == 71.0


def test_only_the_cpus_that_are_asked_give_their_clocks(tmp_path: Path) -> None:
    cpu = "sys/devices/system/cpu"
    write_files(tmp_path, {f"{cpu}/cpu{n}/cpufreq/scaling_cur_freq": f"{n + 1}000000" for n in range(4)})
    write_files(tmp_path, {f"{cpu}/cpu{n}/cpufreq/scaling_governor": f"governor{n}" for n in range(4)})
    state = read_machine_state(root=tmp_path, cpus=(1, 3))
    assert (state.frequency_mhz, state.governor) == (3000, "governor1,governor3")


def test_what_the_gpus_tool_said_is_part_of_the_state(tmp_path: Path) -> None:
    state = read_machine_state(root=tmp_path, gpus=GpuReading((GpuState(0, "H200"),), ""))
    assert state.gpus == (GpuState(0, "H200"),)
    assert json.loads(json.dumps(asdict(state)))["gpus"][0]["name"] == "H200"
    assert read_machine_state(root=tmp_path, gpus=GpuReading((), "there is no nvidia-smi")).gpu_problem


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"sys/fs/cgroup/cpu.max": "100000 100000"}, 1),
        ({"sys/fs/cgroup/cpu.max": "max 100000"}, None),
        ({"proc/self/cgroup": "0::/a/b", "sys/fs/cgroup/a/cpu.max": "50000 100000"}, 1),
        ({"proc/self/cgroup": "0::/../a", "sys/fs/cgroup/a/cpu.max": "garbage"}, None),
        ({"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "10000", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}, 1),
        ({"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}, None),
    ],
)
def test_cores_of_a_container(files: dict[str, str], cores: int | None, tmp_path: Path) -> None:
    free = read_machine_facts(root=tmp_path).cores
    write_files(tmp_path, files)
    assert read_machine_facts(root=tmp_path).cores == (cores or free)


def test_memory_of_a_container(tmp_path: Path) -> None:
    free = read_machine_facts(root=tmp_path).memory_bytes
    write_files(tmp_path, {"sys/fs/cgroup/memory.max": "max"})
    assert read_machine_facts(root=tmp_path).memory_bytes == free
    write_files(tmp_path, {"proc/self/cgroup": "0::/a", "sys/fs/cgroup/a/memory.max": "1048576"})
    assert read_machine_facts(root=tmp_path).memory_bytes == 1048576


def test_a_fit_machine_has_no_warnings() -> None:
    assert list_benchmark_warnings(FIT_STATE) == []
    unknown = MachineState(2, *(None,) * 11)
    assert list_benchmark_warnings(unknown) == []
    working = GpuState(0, "H200", reasons=(Slowdown.POWER_CAP,))
    assert list_benchmark_warnings(replace(FIT_STATE, cpu_temperature_c=70.0, gpus=(working,))) == []


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (replace(FIT_STATE, governor="performance,powersave"), "cpupower"),
        (replace(FIT_STATE, busy_share=0.5), "50 % busy"),
        (replace(FIT_STATE, load_1m=3.0, busy_share=None), "load average is 3.0 on 4"),
        (replace(FIT_STATE, steal_share=0.1), "hypervisor"),
        (replace(FIT_STATE, turbo=True), "turbo"),
        (replace(FIT_STATE, smt=True), "SMT"),
        (replace(FIT_STATE, throttle_count=2), "throttled 2 times"),
        (replace(FIT_STATE, swap_used_bytes=1 << 30), "swap"),
        (replace(FIT_STATE, free_memory_bytes=1 << 20), "memory is free"),
        (replace(FIT_STATE, on_battery=True), "plug it in"),
        (replace(FIT_STATE, cpu_temperature_c=97.0), "97 °C"),
        (
            replace(FIT_STATE, gpus=(GpuState(1, "H200", reasons=(Slowdown.HEAT,)),)),
            "GPU 1 (H200) is slowed down (heat)",
        ),
    ],
)
def test_each_trouble_has_its_warning(change: MachineState, word: str) -> None:
    (warning,) = list_benchmark_warnings(change)
    assert word in warning
