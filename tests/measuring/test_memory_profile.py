"""Memory by phases: the worker with the real runtime, the reading of its answer, and the plot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iree_gauntlet.errors import GauntletError
from iree_gauntlet.measuring.profiles.memory_profile import (
    MEMORY_WORKER,
    MemoryProfile,
    make_memory_plan,
    read_memory_profile,
    read_written_memory_profile,
    write_memory_profile,
)
from iree_gauntlet.torch_models.reports.sweep_reports import draw_memory_plot
from iree_gauntlet.workers import iree_side
from iree_gauntlet.workers.iree_side.measure_memory import MemorySampler, measure, thin_out_samples
from tests.support.processes import wait_until
from tests.support.worker_here import compile_for_cpu, run_plan_here, run_script

if TYPE_CHECKING:
    from tests.support.command_line import CommandResult

_SCRIPT = Path(iree_side.__file__).with_name(MEMORY_WORKER)
_PHASES = ["load", "first call", "calls", "after"]
_MIB = 1 << 20
# 64 MiB out of nothing much.
_SPREAD = """
func.func @spread(%x: tensor<4096xf32>) -> tensor<4096x4096xf32> {
  %space = tensor.empty() : tensor<4096x4096xf32>
  %out = linalg.broadcast ins(%x : tensor<4096xf32>) outs(%space : tensor<4096x4096xf32>) dimensions = [0]
  return %out : tensor<4096x4096xf32>
}
"""
_ANSWER: dict[str, Any] = {
    "phases": [
        {
            "name": name,
            "begin_ms": 10.0 * index,
            "end_ms": 10.0 * index + 9,
            "begin_bytes": 50_000_000,
            "peak_bytes": 60_000_000 + 10_000_000 * index * (3 - index),
            "end_bytes": 55_000_000,
            "device_bytes": 4096 * index,
        }
        for index, name in enumerate(_PHASES)
    ],
    "samples": [[float(at), 50_000_000 + 100_000 * at, 20_000_000, None if at < 9 else 4096] for at in range(40)],
    "interval_ms": 2.0,
    "exact_peaks": True,
    "device_memory": {"device_bytes_peak": 8192, "device_bytes_allocated": 9000, "device_bytes_freed": 9000},
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("memory")
    compile_for_cpu(_SPREAD, folder / "spread.vmfb")
    np.save(folder / "x.npy", np.ones(4096, np.float32))
    return folder


def _module_plan(built: Path) -> dict[str, Any]:
    return {
        "devices": ["local-task", "local-task"],
        "modules": [str(built / "spread.vmfb")],
        "parameters": [],
        "function": "spread",
        "inputs": [{"file": str(built / "x.npy"), "type": "f32"}],
        "calls": 50,
        "warm_up_calls": 1,
        "outputs": "/nowhere",
    }


def _plan(built: Path, **changes: Any) -> dict[str, Any]:
    return make_memory_plan(_module_plan(built)) | {"calls": 3, "interval_ms": 1.0} | changes


@pytest.mark.iree
def test_memory_is_seen_phase_by_phase(built: Path, tmp_path: Path) -> None:
    # In a process of its own: it is the process's memory.
    done = run_script(_SCRIPT, _plan(built), tmp_path)
    assert done.returncode == 0, done.stderr
    profile = read_memory_profile(json.loads(done.stdout))
    assert [phase.name for phase in profile.phases] == _PHASES
    load, first, calls, after = profile.phases
    # The output on the device, and its copy on the host.
    assert first.peak_bytes >= load.end_bytes + 120 * _MIB
    assert calls.peak_bytes >= load.end_bytes + 60 * _MIB
    # The copy is given back; what the program allocated, the device may keep.
    assert after.end_bytes <= load.end_bytes + 80 * _MIB
    assert profile.peak_bytes == max(first.peak_bytes, calls.peak_bytes)
    assert 120 * _MIB <= profile.program_bytes <= 400 * _MIB
    for phase in profile.phases:
        assert phase.peak_bytes >= max(phase.begin_bytes, phase.end_bytes)
        assert phase.begin_ms <= phase.end_ms
    times = [sample.ms for sample in profile.series]
    assert times == sorted(times)
    assert all(0 < sample.mapped_bytes <= sample.resident_bytes for sample in profile.series)
    # What was pushed, and no more: local-task does not count what a program allocates.
    assert profile.device_peak_bytes == 4096 * 4


@pytest.mark.iree
def test_a_plan_that_cannot_be_used_is_refused(built: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def run(**changes: Any) -> CommandResult:
        return run_plan_here(measure, _plan(built, **changes), tmp_path, capfd)

    done = run(devices=["local-task"] * 2)
    assert (done.code, done.err) == (2, "every 1 ms on 2 devices: expected more than 0, and one\n")
    assert run(interval_ms=0).code == 2
    assert "no function 'other'" in run(function="other").err


def test_a_plan_keeps_what_is_called_and_drops_how_it_is_timed(tmp_path: Path) -> None:
    plan = make_memory_plan(_module_plan(tmp_path))
    assert plan["devices"] == ["local-task"]
    assert 0 < plan["calls"] < 50
    assert plan["interval_ms"] > 0
    assert not plan.keys() & {"warm_up_calls", "outputs"}


def test_a_peak_between_two_looks_is_the_kernels() -> None:
    with MemorySampler(interval_ms=1e6) as watch, watch.record_phase("up and down"):
        taken = np.ones(16 * _MIB)
        del taken
    (phase,) = watch.phases
    assert len(watch.samples) == 2
    if not watch.exact_peaks:
        pytest.skip("the kernel does not let its mark be set back here")
    assert phase["peak_bytes"] >= phase["begin_bytes"] + 100 * _MIB


def test_without_the_kernels_mark_the_largest_sample_counts() -> None:
    with MemorySampler(interval_ms=1e6) as watch:
        with watch.record_phase("first"):
            pass
        watch.exact_peaks = False
        with watch.record_phase("second"):
            taken = np.ones(8 * _MIB)
            inside = watch.take_sample()
            del taken
    assert watch.phases[1]["peak_bytes"] == inside[1]


def test_a_long_watch_looks_less_often_and_keeps_few_samples() -> None:
    with MemorySampler(interval_ms=1e6, max_samples=8) as watch:
        for _ in range(8):
            watch.take_sample()
        assert (len(watch.samples), watch.interval_ms) == (8, 1e6)
        # The ninth is one too many, and then the fourth after it.
        watch.take_sample()
        assert (len(watch.samples), watch.interval_ms) == (5, 2e6)
        for _ in range(4):
            watch.take_sample()
        assert (len(watch.samples), watch.interval_ms) == (5, 4e6)


def test_a_watch_looks_by_itself() -> None:
    with MemorySampler(interval_ms=0.1) as watch:
        wait_until(lambda: len(watch.samples) > 3)


@given(st.lists(st.integers(0, 1000), max_size=60))
def test_thinning_loses_no_peak_and_keeps_the_order(sizes: list[int]) -> None:
    samples = [(float(at), size, 0, None) for at, size in enumerate(sizes)]
    fewer = thin_out_samples(samples)
    assert len(fewer) == (len(samples) + 1) // 2
    assert [sample[0] for sample in fewer] == sorted(sample[0] for sample in fewer)
    assert max((sample[1] for sample in fewer), default=0) == max(sizes, default=0)


def _profile() -> MemoryProfile:
    return read_memory_profile(_ANSWER)


def test_an_answer_is_read_and_written(tmp_path: Path) -> None:
    profile = _profile()
    assert (profile.peak_bytes, profile.program_bytes, profile.device_peak_bytes) == (80_000_000, 30_000_000, 8192)
    write_memory_profile(profile, tmp_path / "memory.json")
    document = json.loads((tmp_path / "memory.json").read_text())
    assert document["peak_bytes"] == 80_000_000
    assert document["phases"] == _ANSWER["phases"]
    assert [list(sample.values()) for sample in document["series"]] == _ANSWER["samples"]
    assert read_written_memory_profile(tmp_path / "memory.json") == profile
    assert profile.lines() == [
        "load: at most 60.0 MB, 55.0 MB at its end",
        "first call: at most 80.0 MB, 55.0 MB at its end, 4.1 kB on the device",
        "calls: at most 80.0 MB, 55.0 MB at its end, 8.2 kB on the device",
        "after: at most 60.0 MB, 55.0 MB at its end, 12.3 kB on the device",
    ]


def test_a_runtime_without_statistics_says_nothing_of_the_device() -> None:
    phases = [phase | {"device_bytes": None} for phase in _ANSWER["phases"]]
    profile = read_memory_profile(_ANSWER | {"device_memory": {}, "phases": phases})
    assert profile.device_peak_bytes is None
    assert not any("device" in line for line in profile.lines())


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {**_ANSWER, "phases": [{"name": "load"}]},
        {**_ANSWER, "samples": [[1.0]]},
        {**_ANSWER, "samples": None},
        {**_ANSWER, "phases": []},
        {**_ANSWER, "samples": []},
    ],
)
def test_another_answer_is_refused(answer: dict[str, Any]) -> None:
    with pytest.raises(GauntletError, match=MEMORY_WORKER):
        read_memory_profile(answer)


def test_the_plot_is_drawn_twice_alike() -> None:
    svg = draw_memory_plot(_profile(), "int8wo")
    assert svg == draw_memory_plot(_profile(), "int8wo")
    assert all(name in svg for name in [*_PHASES, "int8wo", "resident", "allocator"])


@pytest.mark.parametrize("content", [None, "{", "[]", '{"phases": [{"name": "load"}]}'])
def test_what_was_not_written_as_a_profile_is_none(content: str | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "memory.json").write_text(content)
    assert read_written_memory_profile(tmp_path / "memory.json") is None
