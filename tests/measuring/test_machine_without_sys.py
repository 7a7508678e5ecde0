"""Machines that reveal little: containers without /sys, a /proc that others may not read, no battery."""

from __future__ import annotations

import errno
import json
import os
import resource
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from iree_gauntlet.engine import operator_suites
from iree_gauntlet.measuring.machine.disturbance import RoundWatch
from iree_gauntlet.measuring.machine.machine_state import (
    is_on_battery,
    list_benchmark_warnings,
    measure_cpu_use,
    read_cpu_times,
    read_free_memory,
    read_load_average,
    read_machine_facts,
    read_machine_state,
    read_total_memory,
    read_used_swap,
)
from iree_gauntlet.system.short_process import ProcessOutput
from iree_gauntlet.torch_models import roofline
from iree_gauntlet.workers.iree_side import run_server
from tests.support.machines import write_files

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.toy_project import Project

KNOWN_ANYWAY = {"cores", "gpus", "gpu_problem"}
SUPPLIES = "sys/class/power_supply"
MEMINFO = "MemTotal: 1000 kB\nMemFree: 100 kB\nMemAvailable: 400 kB\nSwapTotal: 50 kB\nSwapFree: 20 kB\n"
FAULTS = (
    FileNotFoundError(errno.ENOENT, "No such file or directory", "/sys/class/power_supply"),
    PermissionError(errno.EACCES, "Permission denied", "/proc/stat"),
    RuntimeError("line not found in /proc/stat"),
    NotImplementedError("not here"),
    psutil.AccessDenied(1),
)


def hide(monkeypatch: pytest.MonkeyPatch, fault: Exception) -> None:
    """Have nothing below /proc and /sys be there for this process, and psutil and the C library find nothing either."""

    def hidden(real: Callable[..., Any]) -> Callable[..., Any]:
        def opened(path: Any, *words: Any, **options: Any) -> Any:
            if str(path).startswith(("/proc", "/sys")):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            return real(path, *words, **options)

        return opened

    def refuse(*_: Any, **__: Any) -> None:
        raise fault

    for name in ("open", "scandir"):
        monkeypatch.setattr(os, name, hidden(getattr(os, name)))
    for name in ("virtual_memory", "swap_memory", "cpu_times", "sensors_battery"):
        monkeypatch.setattr(psutil, name, refuse)

    def no_load() -> None:
        raise OSError("Load averages are unobtainable")

    monkeypatch.setattr(os, "getloadavg", no_load)


def test_of_a_machine_that_shows_nothing_nothing_is_made_up(tmp_path: Path) -> None:
    use = measure_cpu_use(read_cpu_times(tmp_path), read_cpu_times(tmp_path))
    state, facts = read_machine_state(use, tmp_path), read_machine_facts(tmp_path)
    assert {name for name, value in asdict(state).items() if value is not None} == KNOWN_ANYWAY
    assert facts.memory_bytes is None
    assert list_benchmark_warnings(state) == []
    json.dumps([facts.as_dict(), asdict(state)])
    for cpus in ((), (0,)):
        watched = RoundWatch(root=tmp_path, cpus=cpus).ended(own_cpu_seconds=0.0)
        assert watched.as_dict().keys() == {"seconds"}
        assert watched.list_disturbances() == ()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
def test_what_cannot_be_read_is_unknown_and_no_error(fault: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, fault)
    state = read_machine_state(measure_cpu_use(read_cpu_times(), read_cpu_times()))
    assert {name for name, value in asdict(state).items() if value is not None} == KNOWN_ANYWAY
    assert (read_machine_facts().memory_bytes, read_cpu_times(Path("/")), read_machine_facts().cores > 0) == (
        None,
        {},
        True,
    )
    assert RoundWatch(cpus=(0,)).ended(own_cpu_seconds=0.0).list_disturbances() == ()


def test_a_run_on_a_machine_that_hides_itself_measures_all_the_same(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide(monkeypatch, FAULTS[0])
    done = project.gauntlet("run")
    assert done.code == 0, done.text
    assert project.journal.run.machine.memory_bytes is None
    machine = project.result("toy/abs@cpu:benchmark")["statistics"]["machine"]
    assert {"free_memory_bytes", "swap_used_bytes", "on_battery", "load_1m"}.isdisjoint(machine), machine
    assert project.gauntlet("report", "latest").code == 0
    doctor = project.gauntlet("doctor")
    assert "unknown memory" in doctor.out, doctor.text
    assert "Traceback" not in doctor.text


def test_a_limit_of_memory_that_cannot_be_computed_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert operator_suites._compute_memory_limit(1) > 0
    monkeypatch.setattr(operator_suites, "read_total_memory", lambda: None)
    assert operator_suites._compute_memory_limit(1) == 0
    monkeypatch.setattr(run_server, "_STATM_PATH", tmp_path / "statm")
    before = resource.getrlimit(resource.RLIMIT_AS)
    run_server._limit_memory(1)
    assert resource.getrlimit(resource.RLIMIT_AS) == before


def test_peaks_of_a_machine_of_unknown_memory_are_measured_on_the_usual_size(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = []

    def measured(argv: list[str], **_: Any) -> ProcessOutput:
        plans.append(json.loads(Path(argv[-1]).read_text()))
        return ProcessOutput(0, '{"flops_per_s": 2.0, "bytes_per_s": 3.0}', "")

    monkeypatch.setattr(roofline, "run_tool", measured)
    for memory in (None, 1 << 20):
        roofline._measure("python", replace(read_machine_facts(), memory_bytes=memory))
    assert [plan["copy_bytes"] for plan in plans] == [roofline._COPY_BYTES, 1 << 17]


def test_memory_is_what_the_kernel_says(tmp_path: Path) -> None:
    write_files(tmp_path, {"proc/meminfo": MEMINFO})
    assert (read_total_memory(tmp_path), read_free_memory(tmp_path), read_used_swap(tmp_path)) == (
        1024_000,
        409_600,
        30_720,
    )
    write_files(
        tmp_path, {"proc/meminfo": "MemTotal: 1000 kB\nMemFree: 100 kB\nSwapTotal: what\nnothing\nHugePages_Total: 3\n"}
    )
    assert (read_total_memory(tmp_path), read_free_memory(tmp_path), read_used_swap(tmp_path)) == (
        1024_000,
        102_400,
        None,
    )
    write_files(tmp_path, {"sys/fs/cgroup/memory.max": "1000"})
    assert read_machine_facts(tmp_path).memory_bytes == 1000
    (tmp_path / "proc/meminfo").unlink()
    assert read_machine_facts(tmp_path).memory_bytes == 1000, "a container's limit is known by itself"


def test_memory_is_what_psutil_says_on_this_machine() -> None:
    assert read_total_memory() == psutil.virtual_memory().total
    assert (read_free_memory() or 0) > 0
    assert read_used_swap() is not None


@pytest.mark.parametrize(("text", "load"), [("0.52 1.25 1.00 1/2 3", 0.52), ("", None), ("many", None)])
def test_load_average(text: str, load: float | None, tmp_path: Path) -> None:
    write_files(tmp_path, {"proc/loadavg": text})
    assert read_load_average(tmp_path) == load


@pytest.mark.parametrize(
    ("supplies", "battery"),
    [
        ({}, None),
        ({"AC": {"type": "Mains", "online": "1"}}, None),
        ({"AC": {"type": "Mains", "online": "0"}, "BAT0": {"type": "Battery", "status": "Discharging"}}, True),
        ({"AC": {"type": "Mains", "online": "1"}, "BAT0": {"type": "Battery", "status": "Discharging"}}, False),
        ({"usb": {"type": "USB", "online": "1"}, "BAT1": {"type": "Battery", "status": "Not charging"}}, False),
        ({"BAT0": {"type": "Battery", "status": "Discharging", "scope": "System"}}, True),
        ({"BAT0": {"type": "Battery", "status": "Full"}}, False),
        ({"BAT0": {"type": "Battery", "status": "Unknown"}}, None),
        ({"BAT0": {"type": "Battery"}}, None),
        ({"BAT0": {}}, None),
        ({"hid-mouse-battery": {"type": "Battery", "status": "Discharging", "scope": "Device"}}, None),
    ],
)
def test_battery(supplies: dict[str, dict[str, str]], battery: bool | None, tmp_path: Path) -> None:
    (tmp_path / SUPPLIES).mkdir(parents=True)
    for name, fields in supplies.items():
        (tmp_path / SUPPLIES / name).mkdir()
        write_files(tmp_path / SUPPLIES / name, fields)
    assert is_on_battery(tmp_path) is battery


def test_places_that_are_not_what_they_should_be_are_unknown_too(tmp_path: Path) -> None:
    for name in ("hwmon", "thermal", "power_supply"):
        write_files(tmp_path, {f"sys/class/{name}": "a file"})
    write_files(tmp_path, {"sys/devices/system/cpu": "a file", "proc/stat": "a\n\nfile", "proc/meminfo": "a file"})
    (tmp_path / "proc/loadavg").mkdir()
    state = read_machine_state(measure_cpu_use(read_cpu_times(tmp_path), read_cpu_times(tmp_path)), tmp_path)
    assert {name for name, value in asdict(state).items() if value is not None} == KNOWN_ANYWAY
