"""The measuring worker, as its own process, with the real runtime."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from iree_gauntlet import worker
from iree_gauntlet.toolchains.installed import find_installed
from iree_gauntlet.worker.measure_module import run_loop

_SCRIPT = Path(worker.__file__).with_name("measure_module.py")
_FLAGS = (
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-llvmcpu-target-cpu=host",
)
_PROGRAM = """
util.global private @weight = #flow.parameter.named<"model"::"weight"> : tensor<4xf32>
func.func @two(%a: tensor<4xf32>, %b: tensor<4xi64>) -> (tensor<4xf32>, tensor<4xbf16>, tensor<4xi64>) {
  %w = util.global.load @weight : tensor<4xf32>
  %0 = arith.mulf %a, %w : tensor<4xf32>
  %1 = arith.truncf %0 : tensor<4xf32> to tensor<4xbf16>
  %2 = arith.addi %b, %b : tensor<4xi64>
  return %0, %1, %2 : tensor<4xf32>, tensor<4xbf16>, tensor<4xi64>
}
"""
_A = np.array([1.5, -2.25, 0.0, 3e4], np.float32)
_WEIGHT = np.array([2.0, 4.0, 8.0, 0.5], np.float32)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from iree import runtime  # noqa: PLC0415 - only where the runtime is

    folder = tmp_path_factory.mktemp("measured")
    (folder / "two.mlir").write_text(_PROGRAM)
    argv = [find_installed().compile, str(folder / "two.mlir"), "-o", str(folder / "two.vmfb"), *_FLAGS]
    subprocess.run(argv, check=True, timeout=120)
    index = runtime.ParameterIndex()
    index.add_buffer("weight", _WEIGHT.tobytes())
    index.create_archive_file(str(folder / "two.irpa"))
    np.save(folder / "a.npy", _A)
    np.save(folder / "b.npy", np.arange(4))
    return folder


def _plan(built: Path, **changes: Any) -> dict[str, Any]:
    plan: dict[str, Any] = {
        "devices": ["local-task"],
        "modules": [str(built / "two.vmfb")],
        "parameters": [["model", str(built / "two.irpa")]],
        "function": "two",
        "inputs": [{"file": str(built / "a.npy"), "type": "f32"}, {"file": str(built / "b.npy"), "type": "i64"}],
        "calls": 20,
        "warm_up_calls": 1,
        "outputs": "",
    }
    return plan | changes


def _run(folder: Path, plan: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    (folder / "plan.json").write_text(json.dumps(plan))
    argv = [sys.executable, str(_SCRIPT), str(folder / "plan.json")]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.iree
def test_calls_are_timed_one_by_one_and_outputs_are_right(built: Path, tmp_path: Path) -> None:
    done = _run(tmp_path, _plan(built, outputs=str(tmp_path)))
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert [len(times) for times in result["call_ms"]] == [20]
    in_calls = sum(result["call_ms"][0]) / 1e3
    assert 0 < in_calls <= result["total_s"]
    assert result["total_s"] - in_calls < 20 * 100 * result["overhead_us"] / 1e6 + 0.01, "little but calls"
    assert [item["type"] for item in result["outputs"]] == ["f32", "bf16", "i64"]
    first, second, third = (np.load(item["file"]) for item in result["outputs"])
    assert first.tolist() == (_A * _WEIGHT).tolist()
    assert second.view(ml_dtypes.bfloat16).tolist() == (_A * _WEIGHT).astype(ml_dtypes.bfloat16).tolist()
    assert third.tolist() == [0, 2, 4, 6]
    assert result["first_call_ms"] > 0
    assert result["peak_rss_bytes"] > 1 << 20
    assert result["device_memory"]["device_bytes_allocated"] > 0


@pytest.mark.iree
def test_contexts_share_the_calls(built: Path, tmp_path: Path) -> None:
    done = _run(tmp_path, _plan(built, devices=["local-task", "local-sync"], calls=9))
    assert done.returncode == 0, done.stderr
    assert [len(times) for times in json.loads(done.stdout)["call_ms"]] == [5, 4]


@pytest.mark.iree
@pytest.mark.parametrize(
    ("changes", "code", "says"),
    [
        ({"function": "three"}, 2, "has no function 'three': "),
        ({"devices": ["nothing://0"]}, 2, "nothing"),
        ({"devices": []}, 2, "expected a device or more"),
        ({"calls": 0}, 2, "0 calls on 1 devices"),
        ({"modules": ["/no/such.vmfb"]}, 2, "such.vmfb"),
        ({"inputs": [{"file": "/no/such.npy", "type": "f32"}]}, 2, "/no/such.npy: cannot be read"),
        ({"parameters": []}, 2, "required module 'io_parameters' not registered"),
    ],
)
def test_what_cannot_be_measured_is_one_line(
    built: Path, tmp_path: Path, changes: dict[str, Any], code: int, says: str
) -> None:
    done = _run(tmp_path, _plan(built, **changes))
    assert done.returncode in (1, 2), done.stderr
    assert (done.returncode, says in done.stderr) == (code, True), done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stdout == ""


@pytest.mark.iree
def test_an_input_of_another_type_than_it_says(built: Path, tmp_path: Path) -> None:
    inputs = [{"file": str(built / "b.npy"), "type": "f32"}, {"file": str(built / "b.npy"), "type": "i64"}]
    done = _run(tmp_path, _plan(built, inputs=inputs))
    assert done.returncode == 2
    assert "holds int64, and f32 is held by f4" in done.stderr


def test_a_plan_that_is_none(tmp_path: Path) -> None:
    done = _run(tmp_path, {})
    assert done.returncode == 2
    assert done.stderr == "the plan lacks 'inputs'\n"


def test_calls_beside_each_other_take_the_time_of_the_longest() -> None:
    loop = run_loop([lambda: time.sleep(0.02), lambda: time.sleep(0.02)], 8)
    assert [len(times) for times in loop.call_ns] == [4, 4]
    assert 0.08e9 <= loop.total_ns < 0.15e9, "not one after the other"


def test_what_a_call_raises_is_raised() -> None:
    def fails() -> None:
        raise RuntimeError("device lost")

    with pytest.raises(RuntimeError, match="device lost"):
        run_loop([fails], 1)
    with pytest.raises(RuntimeError, match="device lost"):
        run_loop([lambda: None, fails], 4)
