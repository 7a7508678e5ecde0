"""The machine's peaks: the worker with the real NumPy, its stored answers, and shares of the peaks."""

from __future__ import annotations

import itertools
import json
import math
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iree_gauntlet.errors import GauntletError, ToolchainError
from iree_gauntlet.journal_events import MachineInfo
from iree_gauntlet.measuring.machine.machine_state import read_machine_facts
from iree_gauntlet.torch_models import roofline
from iree_gauntlet.torch_models.roofline import Roofline, explain_no_roofline, find_roofline
from iree_gauntlet.workers.iree_side.measure_roofline import (
    copy_rate,
    measure,
    measure_best_seconds,
    measure_product_rate,
)
from tests.support.clocks import Clock
from tests.support.command_line import CommandResult
from tests.support.worker_here import run_plan_here

_Run: TypeAlias = Callable[[dict[str, Any]], CommandResult]
_PLAN: dict[str, Any] = {"threads": 2, "matrix_sizes": [16, 64], "copy_bytes": 1 << 20, "seconds": 0.0}
_NO_FIGURES = (0.0, -1.0, math.inf, math.nan, "fast", None)
_POSITIVE = st.floats(1e-3, 1e15)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> MachineInfo:
    """Measurements of no worth that take no time; what this machine is."""
    monkeypatch.setattr(roofline, "_MATRIX_SIZES", (32,))
    monkeypatch.setattr(roofline, "_COPY_BYTES", 1 << 16)
    monkeypatch.setattr(roofline, "_SECONDS", 0.0)
    return read_machine_facts()


class _Python:
    """A program in place of the toolchain's Python, with an answer for each measurement that it is asked for."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.path = str(folder / "python")
        self._answers = folder / "answers"
        version = '[ "$1" = -c ] && echo 2.0.0 && exit'
        # One measures at a time: nothing gets between the two.
        answer = f"head -n 1 '{self._answers}'\nsed -i 1d '{self._answers}'"
        Path(self.path).write_text(f"#!/bin/sh\n{version}\n{answer}\n")
        Path(self.path).chmod(0o755)
        self.answers((1e9, 1e9), (1e9, 1e9), (1e9, 1e9))

    def answers(self, *figures: tuple[float, float]) -> None:
        """What it says from now on: operations and bytes a second."""
        lines = [json.dumps({"flops_per_s": flops, "bytes_per_s": moved}) for flops, moved in figures]
        self._answers.write_text("".join(f"{line}\n" for line in lines))


@pytest.fixture
def python(tmp_path: Path) -> _Python:
    return _Python(tmp_path / "toolchain")


@pytest.fixture
def run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> _Run:
    """What the worker does with a plan."""
    return lambda plan: run_plan_here(measure, plan, tmp_path, capfd)


def test_the_worker_measures_a_product_and_a_copy(run: _Run) -> None:
    done = run(_PLAN)
    assert done.code == 0, done.err
    answer = json.loads(done.out)
    assert set(answer) == {"flops_per_s", "matrix_size", "bytes_per_s", "numpy"}
    assert answer["matrix_size"] in _PLAN["matrix_sizes"]
    assert answer["flops_per_s"] > 0
    assert answer["bytes_per_s"] > 0


@pytest.mark.parametrize(
    "changes", [{"threads": 0}, {"matrix_sizes": []}, {"matrix_sizes": [0]}, {"copy_bytes": 8}, {"seconds": -1}]
)
def test_the_worker_refuses_what_cannot_be_measured(changes: dict[str, Any], run: _Run) -> None:
    done = run(_PLAN | changes)
    assert done.code == 2
    assert "expected a size or more" in done.err
    assert done.out == ""


def test_the_best_of_several_calls_counts() -> None:
    clock = Clock(0)
    lengths = iter([100.0, 5.0, 3.0, 4.0])
    # One to warm up, three that count.
    assert measure_best_seconds(lambda: clock.advance(next(lengths)), 0.0, clock) == 3.0
    assert next(lengths, None) is None


def test_calls_go_on_until_their_seconds_are_over() -> None:
    clock = Clock(0)
    lengths = iter([100.0, *[2.0] * 9, 1.0, 2.0])
    assert measure_best_seconds(lambda: clock.advance(next(lengths)), 18.5, clock) == 1.0
    assert list(lengths) == [2.0]


@pytest.mark.parametrize("threads", [1, 3])
def test_a_copy_by_any_number_of_threads_moves_what_is_read_and_written(threads: int) -> None:
    ticks = itertools.count()
    # A second from any look at the clock to the next one.
    assert copy_rate(1 << 16, threads, 0.0, lambda: next(ticks)) == 2 * (1 << 16)


def test_the_size_that_reached_the_rate_is_told() -> None:
    ticks = itertools.count()
    assert measure_product_rate([8, 16], 0.0, lambda: next(ticks)) == (2 * 16**3, 16)


def test_it_is_measured_in_the_toolchains_python(small: MachineInfo, tmp_path: Path) -> None:
    found = find_roofline(tmp_path, sys.executable, small)
    assert found.flops_per_s > 0
    assert found.bytes_per_s > 0
    (path,) = tmp_path.glob("*.json")
    document = json.loads(path.read_text())
    assert document["machine"] == {"cpu": small.cpu, "cores": small.cores, "numpy": np.__version__}
    assert document["roofline"] == {"flops_per_s": found.flops_per_s, "bytes_per_s": found.bytes_per_s}


def test_the_best_of_three_measurements_is_kept(small: MachineInfo, python: _Python, tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "rooflines"
    # Other work makes a peak lower, and never higher.
    python.answers((2e9, 6e9), (3e9, 4e9), (1e9, 7e9), (9e9, 9e9))
    found = [find_roofline(folder, python.path, small) for _ in range(5)]
    assert found == [Roofline(2e9, 6e9), Roofline(3e9, 6e9), *[Roofline(3e9, 7e9)] * 3]
    (path,) = folder.glob("*.json")
    document = json.loads(path.read_text())
    assert document["measurements"] == 3
    assert document["machine"]["cpu"] == small.cpu
    assert document["machine"]["cores"] == small.cores


def test_a_damaged_file_is_measured_again(small: MachineInfo, python: _Python, tmp_path: Path) -> None:
    find_roofline(tmp_path, python.path, small)
    (path,) = tmp_path.glob("*.json")
    good = json.loads(path.read_text())
    figures = [good | {"roofline": good["roofline"] | {"bytes_per_s": value}} for value in _NO_FIGURES]
    others = [[], None, {"format": 1}, good | {"format": 0}, good | {"machine": {}}, good | {"roofline": 7}]
    texts = [json.dumps(document).encode() for document in (*figures, *others)]
    for content in (b"", b"\xff\xfe", texts[0][:40], *texts):
        path.write_bytes(content)
        assert roofline._read_cached_peaks(path, good["machine"]) is None
    python.answers((5e9, 6e9))
    assert find_roofline(tmp_path, python.path, small) == Roofline(5e9, 6e9)
    assert json.loads(path.read_text())["roofline"] == {"flops_per_s": 5e9, "bytes_per_s": 6e9}


def test_another_machine_has_its_own(small: MachineInfo, python: _Python, tmp_path: Path) -> None:
    find_roofline(tmp_path, python.path, small)
    other = MachineInfo(small.host, "another processor", 1, small.memory_bytes, small.os, small.python)
    find_roofline(tmp_path, python.path, other)
    assert len(list(tmp_path.glob("*.json"))) == 2


def test_of_several_that_ask_at_once_no_measurement_is_lost(
    small: MachineInfo, python: _Python, tmp_path: Path
) -> None:
    python.answers((1e9, 9e9), (2e9, 8e9), (3e9, 7e9))
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda _: find_roofline(tmp_path, python.path, small), range(3)))
    (path,) = tmp_path.glob("*.json")
    kept = json.loads(path.read_text())
    assert kept["measurements"] == 3
    assert kept["roofline"] == {"flops_per_s": 3e9, "bytes_per_s": 9e9}
    assert {item.flops_per_s for item in found} == {1e9, 2e9, 3e9}


def test_a_folder_that_cannot_be_used_is_named(small: MachineInfo, python: _Python, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(GauntletError, match="file: the machine's peaks cannot be saved there"):
        find_roofline(tmp_path / "file", python.path, small)


def test_a_python_that_cannot_measure_is_named(
    small: MachineInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ToolchainError, match="has no NumPy"):
        find_roofline(tmp_path, "/bin/false", small)
    monkeypatch.setattr(roofline, "_WORKER", "missing.py")
    with pytest.raises(GauntletError, match=r"cannot be measured \(exit code 2\): .*missing.py"):
        find_roofline(tmp_path, sys.executable, small)
    assert not list(tmp_path.glob("*.json"))


def test_only_all_cores_have_a_roofline() -> None:
    assert explain_no_roofline("local-task") == ""
    assert "one core" in explain_no_roofline("local-sync")
    assert explain_no_roofline("hip://0") == "the peaks of hip devices are not measured, only the CPU's"
    assert "cuda" in explain_no_roofline("cuda")


@given(flops=_POSITIVE, moved=_POSITIVE, ms=st.floats(1e-3, 1e6), peak=_POSITIVE, rate=_POSITIVE)
def test_the_longer_one_of_two_times_bounds(flops: float, moved: float, ms: float, peak: float, rate: float) -> None:
    line = Roofline(peak, rate)
    share, bound = line.share(flops, moved, ms)
    compute, memory = 1e3 * flops / peak, 1e3 * moved / rate
    assert share * ms == pytest.approx(max(compute, memory))
    assert bound == ("compute" if flops / peak >= moved / rate else "memory")
    # Twice as fast is twice the share.
    assert line.share(flops, moved, ms / 2)[0] == pytest.approx(2 * share)


def test_a_program_at_its_peak_has_all_of_it() -> None:
    line = Roofline(flops_per_s=100e9, bytes_per_s=10e9)
    for flops, moved, ms, expected, bound in ((1e9, 1e6, 10.0, 1.0, "compute"), (1e6, 1e9, 200.0, 0.5, "memory")):
        share, found = line.share(flops, moved, ms)
        assert share == pytest.approx(expected)
        assert found == bound
    assert line.share(0, 0, 1.0)[0] == 0
