"""The machine's measured peaks: the worker with the real NumPy, what is kept of it, and shares of it."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iree_gauntlet import worker
from iree_gauntlet.errors import GauntletError, ToolchainError
from iree_gauntlet.measuring.machine import MachineFacts, machine_facts
from iree_gauntlet.micro import roofline
from iree_gauntlet.micro.roofline import Roofline, machine_roofline, why_no_roofline
from iree_gauntlet.worker.measure_roofline import best_seconds, copy_rate, product_rate

_SCRIPT = Path(worker.__file__).with_name("measure_roofline.py")
_PLAN: dict[str, Any] = {"threads": 2, "matrix_sizes": [16, 64], "copy_bytes": 1 << 20, "seconds": 0.0}
_NO_FIGURES = (0.0, -1.0, math.inf, math.nan, "fast", None)
_POSITIVE = st.floats(1e-3, 1e15)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> MachineFacts:
    """Measurements of no worth that take no time; what this machine is."""
    monkeypatch.setattr(roofline, "_MATRIX_SIZES", (32,))
    monkeypatch.setattr(roofline, "_COPY_BYTES", 1 << 16)
    monkeypatch.setattr(roofline, "_SECONDS", 0.0)
    return machine_facts()


def _run(folder: Path, plan: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    (folder / "plan.json").write_text(json.dumps(plan))
    argv = [sys.executable, str(_SCRIPT), str(folder / "plan.json")]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)


def test_the_worker_measures_a_product_and_a_copy(tmp_path: Path) -> None:
    done = _run(tmp_path, _PLAN)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert set(answer) == {"flops_per_s", "matrix_size", "bytes_per_s", "numpy"}
    assert answer["matrix_size"] in _PLAN["matrix_sizes"]
    # No processor is slower, and none as fast.
    assert 1e6 < answer["flops_per_s"] < 1e17
    assert 1e6 < answer["bytes_per_s"] < 1e15


@pytest.mark.parametrize(
    "changes", [{"threads": 0}, {"matrix_sizes": []}, {"matrix_sizes": [0]}, {"copy_bytes": 8}, {"seconds": -1}]
)
def test_the_worker_refuses_what_cannot_be_measured(changes: dict[str, Any], tmp_path: Path) -> None:
    done = _run(tmp_path, _PLAN | changes)
    assert done.returncode == 2
    assert "expected a size or more" in done.stderr
    assert done.stdout == ""


def test_the_best_of_several_calls_counts() -> None:
    calls: list[int] = []
    assert 0 <= best_seconds(lambda: calls.append(1), 0.0) < 1
    # One to warm up, three that count.
    assert len(calls) == 4


@pytest.mark.parametrize("threads", [1, 3])
def test_a_copy_by_any_number_of_threads_has_a_rate(threads: int) -> None:
    assert copy_rate(1 << 16, threads, 0.0) > 0


def test_the_size_that_reached_the_rate_is_told() -> None:
    rate, size = product_rate([8, 16], 0.0)
    assert rate > 0
    assert size in (8, 16)


def test_the_best_of_three_measurements_is_kept(
    small: MachineFacts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "cache" / "rooflines"
    found = Roofline(0.0, 0.0)
    for _ in range(3):
        before, found = found, machine_roofline(folder, sys.executable, small)
        # Other work makes a peak lower, and never higher.
        assert found.flops_per_s >= before.flops_per_s
        assert found.bytes_per_s >= before.bytes_per_s
    assert found.flops_per_s > 0
    assert found.bytes_per_s > 0
    (path,) = folder.glob("*.json")
    document = json.loads(path.read_text())
    assert document["measurements"] == 3
    assert document["machine"]["cpu"] == small.cpu
    assert document["machine"]["cores"] == small.cores
    monkeypatch.setattr(roofline, "_WORKER", "not_asked.py")
    assert machine_roofline(folder, sys.executable, small) == found


def test_a_damaged_file_is_measured_again(small: MachineFacts, tmp_path: Path) -> None:
    machine_roofline(tmp_path, sys.executable, small)
    (path,) = tmp_path.glob("*.json")
    good = json.loads(path.read_text())
    figures = [good | {"roofline": good["roofline"] | {"bytes_per_s": value}} for value in _NO_FIGURES]
    others = [[], None, {"format": 1}, good | {"format": 0}, good | {"machine": {}}, good | {"roofline": 7}]
    texts = [json.dumps(document).encode() for document in (*figures, *others)]
    for content in (b"", b"\xff\xfe", texts[0][:40], *texts):
        path.write_bytes(content)
        assert roofline._kept(path, good["machine"]) == (Roofline(0.0, 0.0), 0)
    found = machine_roofline(tmp_path, sys.executable, small)
    kept = json.loads(path.read_text())
    assert kept["roofline"] == {"flops_per_s": found.flops_per_s, "bytes_per_s": found.bytes_per_s}


def test_another_machine_has_its_own(small: MachineFacts, tmp_path: Path) -> None:
    machine_roofline(tmp_path, sys.executable, small)
    other = MachineFacts(small.host, "another processor", 1, small.memory_bytes, small.os, small.python)
    machine_roofline(tmp_path, sys.executable, other)
    assert len(list(tmp_path.glob("*.json"))) == 2


def test_of_several_that_ask_at_once_no_measurement_is_lost(small: MachineFacts, tmp_path: Path) -> None:
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda _: machine_roofline(tmp_path, sys.executable, small), range(3)))
    (path,) = tmp_path.glob("*.json")
    kept = json.loads(path.read_text())
    assert kept["measurements"] == 3
    assert kept["roofline"]["flops_per_s"] == max(item.flops_per_s for item in found)
    assert kept["roofline"]["bytes_per_s"] == max(item.bytes_per_s for item in found)


def test_a_folder_that_cannot_be_used_is_named(small: MachineFacts, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(GauntletError, match="file: the machine's peaks cannot be kept there"):
        machine_roofline(tmp_path / "file", sys.executable, small)


def test_a_python_that_cannot_measure_is_named(
    small: MachineFacts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ToolchainError, match="has no NumPy"):
        machine_roofline(tmp_path, "/bin/false", small)
    monkeypatch.setattr(roofline, "_WORKER", "missing.py")
    with pytest.raises(GauntletError, match=r"cannot be measured \(exit code 2\): .*missing.py"):
        machine_roofline(tmp_path, sys.executable, small)
    assert not list(tmp_path.glob("*.json"))


def test_only_all_cores_have_a_roofline() -> None:
    assert why_no_roofline("local-task") == ""
    assert "one core" in why_no_roofline("local-sync")
    assert why_no_roofline("hip://0") == "the peaks of hip devices are not measured: only the CPU's are"
    assert "cuda" in why_no_roofline("cuda")


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
