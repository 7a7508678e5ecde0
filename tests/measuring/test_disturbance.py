"""Disturbances of a round are seen, and harmless effects are tolerated, on synthetic machines."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iree_gauntlet.measuring.machine.disturbance import RoundState, RoundWatch
from iree_gauntlet.measuring.machine.gpus import GpuState, Slowdown
from iree_gauntlet.measuring.machine.machine_state import (
    CpuTimes,
    CpuUse,
    MachineState,
    measure_cpu_use,
    read_cpu_times,
)
from tests.support.machines import FIT_STATE, write_files

if TYPE_CHECKING:
    from pathlib import Path

BEFORE = replace(
    FIT_STATE, busy_share=None, steal_share=None, throttle_count=5, swap_used_bytes=1 << 30, cpu_temperature_c=60.0
)
QUIET = CpuUse(0.01, 0.0, 0.005)
GPU = GpuState(0, "H200", clock_mhz=1980, utilization_percent=90, others=())


def _state(pinned: CpuUse | None = None, whole: CpuUse | None = QUIET, **changes: Any) -> RoundState:
    return RoundState(BEFORE, replace(BEFORE, **changes), 2.0, whole, pinned)


def _on_gpu(before: GpuState | None, after: GpuState, seconds: float = 2.0) -> RoundState:
    return RoundState(replace(BEFORE, gpus=(before,) if before else ()), replace(BEFORE, gpus=(after,)), seconds, QUIET)


def test_an_undisturbed_round() -> None:
    state = _state(load_1m=3.0, free_memory_bytes=7 << 30, swap_used_bytes=(1 << 30) + (1 << 20))
    assert state.list_disturbances() == ()
    assert _on_gpu(GPU, GPU).list_disturbances() == ()
    # The notes of a run do not warn of other work that its times are not judged by.
    short = _state(whole=CpuUse(0.36, 0.05, 0.6))
    assert (short.state_with_cpu_use.busy_share, short.state_with_cpu_use.steal_share) == (0.0, 0.0)
    assert _state(whole=CpuUse(0.36, 0.0, 0.05)).state_with_cpu_use.busy_share == 0.36
    written = json.loads(json.dumps(state.as_dict()))
    assert written["swap_grown_bytes"] == 1 << 20
    assert "pinned_busy_share" not in written
    assert len(json.dumps(written)) < 500


@pytest.mark.parametrize(
    ("state", "cause"),
    [
        (_state(whole=CpuUse(0.34, 0, 0.005)), "other work kept the CPUs 34 % busy (10 % is tolerated)"),
        (_state(pinned=CpuUse(0.06, 0, 0.015)), "other work kept the round's own CPUs 6 % busy (2 % is tolerated)"),
        (
            _state(pinned=CpuUse(0.0, 0, 0.015), whole=CpuUse(0.7, 0, 0.005)),
            "other work kept the CPUs 70 % busy (50 % is tolerated)",
        ),
        (_state(whole=CpuUse(0, 0.05, 0.005)), "the hypervisor took 5 % of the CPU time (2 % is tolerated)"),
        (_state(throttle_count=8), "the CPU throttled 3 times, at 60 °C (0 is tolerated)"),
        (_state(governor="powersave"), "the frequency governor changed from performance to powersave"),
        (
            _state(frequency_mhz=2400),
            "the CPU frequency was 2400 MHz, 20 % below the 3000 MHz at its start (10 % is tolerated)",
        ),
        (_state(swap_used_bytes=(1 << 30) + (64 << 20)), "64 MiB went to swap (16 MiB is tolerated)"),
        (_state(on_battery=True), "the machine ran on battery"),
        (
            _on_gpu(replace(GPU, others=(17,)), replace(GPU, others=(17, 42))),
            "2 other processes on GPU 0 (H200) (pid 17, 42; 0 is tolerated)",
        ),
        (
            _on_gpu(replace(GPU, throttled=((Slowdown.HEAT, 5.0),)), replace(GPU, throttled=((Slowdown.HEAT, 5.5),))),
            "GPU 0 (H200) was slowed down for 25 % of the round: heat (2 % is tolerated)",
        ),
        (
            _on_gpu(GPU, replace(GPU, reasons=(Slowdown.POWER_BRAKE,), temperature_c=91.0)),
            "GPU 0 (H200) is slowed down: power brake at 91 °C",
        ),
        (_on_gpu(None, replace(GPU, reasons=(Slowdown.HARDWARE,))), "GPU 0 (H200) is slowed down: slowed down by"),
        (
            _on_gpu(GPU, replace(GPU, clock_mhz=1200)),
            "the clock of GPU 0 (H200) fell from 1980 to 1200 MHz, by 39 % (10 % is tolerated)",
        ),
    ],
)
def test_each_cause_has_its_line(state: RoundState, cause: str) -> None:
    (line,) = state.list_disturbances()
    assert line.startswith(cause)


@pytest.mark.parametrize(
    "state",
    [
        # One's own pinned CPUs are quiet: a neighbour on others is tolerated.
        _state(pinned=CpuUse(0.01, 0, 0.015), whole=CpuUse(0.3, 0, 0.005)),
        # Nobody knows what a kernel of ticks has seen in so short a time.
        _state(whole=CpuUse(0.6, 0.6, 0.9)),
        _state(whole=None),
        # Nothing but the end of the load that the governor has answered to.
        RoundState(
            replace(BEFORE, governor="schedutil"), replace(BEFORE, governor="schedutil", frequency_mhz=800), 2, None
        ),
        RoundState(replace(BEFORE, throttle_count=9, swap_used_bytes=2 << 30), BEFORE, 2.0, QUIET),
        RoundState(MachineState(4, *(None,) * 11), MachineState(4, *(None,) * 11), 0.0, None),
        # A GPU that is done falls asleep, and one at work draws what it may.
        _on_gpu(GPU, replace(GPU, clock_mhz=345, utilization_percent=0)),
        _on_gpu(GPU, replace(GPU, clock_mhz=345, reasons=(Slowdown.IDLE,))),
        _on_gpu(
            replace(GPU, throttled=((Slowdown.POWER_CAP, 1.0),)),
            replace(GPU, throttled=((Slowdown.POWER_CAP, 3.0),), reasons=(Slowdown.POWER_CAP,)),
        ),
        # The counters tell that it has ended before the round began.
        _on_gpu(
            replace(GPU, reasons=(Slowdown.HEAT,), throttled=((Slowdown.HEAT, 5.0),)),
            replace(GPU, throttled=((Slowdown.HEAT, 5.0),)),
        ),
        _on_gpu(replace(GPU, others=None), replace(GPU, others=None)),
    ],
)
def test_what_is_let_pass(state: RoundState) -> None:
    assert state.list_disturbances() == ()


def test_a_clock_that_was_slow_before_the_round_is_no_cause() -> None:
    slow = replace(BEFORE, frequency_mhz=2000)
    assert RoundState(slow, slow, 2.0, QUIET).list_disturbances() == ()


def test_a_gpu_s_own_clock_measures_how_long_it_was_slow() -> None:
    state = _on_gpu(
        replace(GPU, throttled=((Slowdown.HEAT, 100),), uptime=1000),
        replace(GPU, throttled=((Slowdown.HEAT, 300),), uptime=1500),
    )
    (line,) = state.list_disturbances()
    assert line == "GPU 0 (H200) was slowed down for 40 % of the round: heat (2 % is tolerated)"


_SHARES = st.floats(0, 1)


@given(share=_SHARES, steal=_SHARES, unsure=_SHARES, more=_SHARES)
def test_more_disturbance_is_never_less_of_a_cause(share: float, steal: float, unsure: float, more: float) -> None:
    state = _state(whole=CpuUse(share, steal, unsure))
    worse = _state(whole=CpuUse(max(share, more), max(steal, more), unsure))
    assert len(worse.list_disturbances()) >= len(state.list_disturbances())
    if max(share, steal) <= unsure:
        assert state.list_disturbances() == ()


# Counters of the kernel.


def _stat(root: Path, *cpus: str) -> Path:
    lines = ["cpu  1 1 1 1 1 1 1 1 1 1", *(f"cpu{number} {text}" for number, text in enumerate(cpus)), "intr 5 1 1"]
    write_files(root, {"proc/stat": "\n".join(lines)})
    return root


def test_counters_of_the_kernel(tmp_path: Path) -> None:
    assert read_cpu_times(tmp_path) == {}
    before = read_cpu_times(_stat(tmp_path, "100 0 50 1000 10 0 0 0 0 0", "0 0 0 0 0 0 0 0 0 0"))
    assert before[0] == CpuTimes(work=1.5, idle=10.1, steal=0.0)
    # guest time (the last two) is in user and nice already
    after = read_cpu_times(_stat(tmp_path, "150 0 60 1130 10 5 5 20 50 0", "200 0 0 20 0 0 0 0 0 0"))
    first, use = measure_cpu_use(before, after, 0.0, (0,)), measure_cpu_use(before, after, 1.7)
    assert first is not None
    assert [first.busy_share, first.steal_share, first.share_error] == pytest.approx([0.7 / 2.2, 0.2 / 2.2, 0.03 / 2.2])
    assert use is not None
    assert [use.busy_share, use.share_error] == pytest.approx([1.0 / 4.4, 0.06 / 4.4])
    assert measure_cpu_use(before, after, 99.0) == replace(use, busy_share=0.0)
    assert measure_cpu_use(before, after, 0.0, (0, 7)) is None
    assert measure_cpu_use(before, before, 0.0) is None
    assert measure_cpu_use({}, {}, 0.0) is None


def test_a_garbled_stat_says_nothing(tmp_path: Path) -> None:
    write_files(tmp_path, {"proc/stat": "cpu0\n\ncpuX 1 2 3 4 5\ncpu1 a b c d e"})
    assert read_cpu_times(tmp_path) == {1: CpuTimes(0, 0, 0)}


_TICKS = st.lists(st.integers(0, 10**9), min_size=10, max_size=10)


@given(before=_TICKS, after=_TICKS, own=st.floats(0, 1e6))
def test_shares_are_shares_whatever_the_counters_do(before: list[int], after: list[int], own: float) -> None:
    first, second = ({0: CpuTimes(*(value / 100 for value in ticks[:3]))} for ticks in (before, after))
    use = measure_cpu_use(first, second, own)
    if use is not None:
        assert 0 <= use.busy_share <= 1
        assert 0 <= use.steal_share <= 1
        assert 0 <= use.share_error <= 1


def test_systems_without_proc_are_asked_in_their_own_way(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from iree_gauntlet.measuring.machine import machine_state  # noqa: PLC0415

    found = machine_state._read_psutil_times()
    assert found.keys() == read_cpu_times(tmp_path.parents[-1]).keys()
    assert all(times.work > 0 and times.idle >= 0 for times in found.values())


# The watch, with readings that come from files.


def _machine(root: Path, *, governor: str, mhz: int, throttles: int, cpus: tuple[str, str]) -> None:
    _stat(root, *cpus)
    for number in range(2):
        said = {
            "cpufreq/scaling_governor": governor,
            "cpufreq/scaling_cur_freq": f"{mhz}000",
            "thermal_throttle/core_throttle_count": str(throttles),
        }
        write_files(root / f"sys/devices/system/cpu/cpu{number}", said)


def test_a_watch_sees_what_changes_between_its_readings(tmp_path: Path) -> None:
    quiet = "0 0 0 0 0 0 0 0 0 0"
    _machine(tmp_path, governor="performance", mhz=3000, throttles=1, cpus=(quiet, quiet))
    watch, pinned = RoundWatch(root=tmp_path), RoundWatch(root=tmp_path, cpus=(1,))
    busy = ("50 0 0 150 0 0 0 0 0 0", "200 0 0 0 0 0 0 0 0 0")
    _machine(tmp_path, governor="performance", mhz=2000, throttles=2, cpus=busy)
    state = watch.ended(own_cpu_seconds=1.9)
    assert [line.partition(" (")[0] for line in state.list_disturbances()] == [
        "other work kept the CPUs 15 % busy",
        "the CPU throttled 2 times",
        "the CPU frequency was 2000 MHz, 33 % below the 3000 MHz at its start",
    ]
    assert state.as_dict()["throttle_events"] == 2
    state = pinned.ended(own_cpu_seconds=1.9)
    assert state.list_disturbances()[0] == "other work kept the round's own CPUs 5 % busy (2 % is tolerated)"


def test_a_watch_of_a_gpu_asks_its_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    line = "0, GPU-a, 1980, 1980, 61, 99, 688.21, 0x0000000000000000, 0, 0, 0, 0, NVIDIA H200"
    apps = f'case "$1" in --query-compute-apps*) echo "GPU-a, 4242"; echo "GPU-a, 17";; *) echo "{line}";; esac'
    tool.write_text(f"#!/bin/sh\n{apps}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    state = RoundWatch(gpu=True, device="cuda://0", root=tmp_path).ended(own_cpu_seconds=0.0)
    assert state.after.gpus[0].others == (17, 4242)
    assert state.list_disturbances() == ("2 other processes on GPU 0 (NVIDIA H200) (pid 17, 4242; 0 is tolerated)",)
    assert state.as_dict()["gpus"][0]["clock_mhz"] == 1980
    tool.unlink()
    state = RoundWatch(gpu=True, root=tmp_path).ended(own_cpu_seconds=0.0)
    assert state.list_disturbances() == ()
    assert "there is no nvidia-smi" in state.as_dict()["gpu_problem"]
    assert "gpu_problem" not in RoundWatch(root=tmp_path).ended(own_cpu_seconds=0.0).as_dict()


@pytest.mark.parametrize(
    ("ticks", "own_seconds", "causes"),
    [
        # Ticks of a hundredth of a second: work, idle, stolen.
        ((60, 0, 0), 0.0, ["other work kept the round's own CPUs 100 % busy"]),
        ((30, 30, 0), 0.0, ["other work kept the round's own CPUs 50 % busy"]),
        ((60, 0, 0), 0.6, []),
        ((0, 60, 0), 0.0, []),
        ((0, 90, 10), 0.0, ["the hypervisor took 10 % of the CPU time"]),
        # Too short to be judged: it may be nothing but counting.
        ((3, 0, 0), 0.0, []),
        ((0, 2, 1), 0.0, []),
    ],
)
def test_a_watch_of_one_cpu_judges_what_others_do_there(
    tmp_path: Path, ticks: tuple[int, int, int], own_seconds: float, causes: list[str]
) -> None:
    watch = RoundWatch(root=_stat(tmp_path, "7 0 0 0 0 0 0 0 0 0", "100 0 0 100 0 0 0 0 0 0"), cpus=(1,))
    work, idle, stolen = ticks
    # The other CPU is as idle as can be.
    _stat(tmp_path, "7 0 0 500 0 0 0 0 0 0", f"{100 + work} 0 0 {100 + idle} 0 0 0 {stolen} 0 0")
    state = watch.ended(own_cpu_seconds=own_seconds)
    assert [line.partition(" (")[0] for line in state.list_disturbances()] == causes


def test_this_machine_can_be_watched() -> None:
    state = RoundWatch(cpus=sorted(os.sched_getaffinity(0))[:1]).ended(own_cpu_seconds=0.0)
    assert len(json.dumps(state.as_dict())) < 1000
    assert all(isinstance(line, str) for line in state.list_disturbances())
