"""Measuring variants in torch, in a separate process of the Python that has torch."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from iree_gauntlet.torch_models.torch_chain import make_torch_argv
from tests.support.command_line import LIMIT_SECONDS
from tests.support.variant_builder import build_variant_in_process, compute_distance, make_plan, read_array

if TYPE_CHECKING:
    from pathlib import Path

    from iree_gauntlet.torch_models.build_files import VariantPlan

WORDS = make_torch_argv(sys.executable, "measure_torch")

pytestmark = pytest.mark.models


def measured(folder: Path, models: list[dict[str, Any]], **given: Any) -> subprocess.CompletedProcess[str]:
    outputs = folder / "outputs"
    outputs.mkdir(exist_ok=True)
    plan = {"models": models, "warm_up_calls": 1, "compile_threads": 1, "outputs": str(outputs), **given}
    (folder / "measure.json").write_text(json.dumps(plan), encoding="utf-8")
    return subprocess.run(
        [*WORDS, str(folder / "measure.json")],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder), "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")},
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )


def variant(plan: VariantPlan, mode: str = "eager", calls: int = 4) -> dict[str, Any]:
    return {
        "builder": {**asdict(plan), "output": ""},
        "build": plan.output,
        "mode": mode,
        "compile_mode": "default",
        "name": f"torch {mode} {plan.label}",
        "calls": calls,
    }


def answer(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.filterwarnings("ignore")
def test_variants_one_after_the_other(tmp_path: Path) -> None:
    wanted: list[dict[str, Any]] = [
        {},
        {"quantization": "int8dq"},
        {"quantization": "int4wo-16", "dtype": "bf16"},
        {"sparsity": "2:4"},
    ]
    plans = [make_plan(tmp_path / str(index), "ln_linear_silu", **asked) for index, asked in enumerate(wanted)]
    builds = [build_variant_in_process(tmp_path / str(index), plan) for index, plan in enumerate(plans)]
    found = answer(measured(tmp_path, [variant(plan) for plan in plans]))
    assert found["version"]
    assert found["peak_rss_bytes"] > 1e6
    labels = ["baseline", "int8dq", "int4wo-16", "baseline+2:4"]
    assert [item["name"] for item in found["models"]] == [f"torch eager {label}" for label in labels]
    for item, build in zip(found["models"], builds, strict=True):
        assert len(item["call_ms"]) == 4
        assert all(value > 0 for value in (*item["call_ms"], item["first_call_ms"]))
        assert item["compile_s"] is None
        actual = [read_array(tmp_path / "outputs", output) for output in item["outputs"]]
        assert all(np.array_equal(one, two) for one, two in zip(actual, build.outputs(), strict=True))


@pytest.mark.filterwarnings("ignore")
def test_a_variant_that_fails_leaves_the_others(tmp_path: Path) -> None:
    plan = make_plan(tmp_path / "0")
    build_variant_in_process(tmp_path / "0", plan)
    gone = make_plan(tmp_path / "gone")
    wrong = variant(make_plan(tmp_path / "0", quantization="gemlitewo-4-32"))
    found = answer(measured(tmp_path, [wrong, variant(gone), variant(plan)], outputs=""))
    first, second, third = found["models"]
    assert first["error"].startswith("UsageError: gemlitewo-4-32: GemLite's kernels are written for CUDA")
    assert set(first) == {"name", "error"}
    assert second["error"].startswith(f"GauntletError: {tmp_path}/gone/build.json: the built model cannot be read")
    assert third["outputs"] == []
    assert len(third["call_ms"]) == 4


@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
def test_compiled(tmp_path: Path) -> None:
    wanted: list[dict[str, Any]] = [{}, {"quantization": "int8dq"}, {"quantization": "int4wo-16"}]
    plans = [make_plan(tmp_path / str(index), **asked) for index, asked in enumerate(wanted)]
    builds = [build_variant_in_process(tmp_path / str(index), plan) for index, plan in enumerate(plans)]
    found = answer(measured(tmp_path, [variant(plan, "compile", 2) for plan in plans]))
    for item, build in zip(found["models"], builds, strict=True):
        assert item["compile_s"] == pytest.approx(item["first_call_ms"] / 1e3)
        actual = [read_array(tmp_path / "outputs", output) for output in item["outputs"]]
        assert compute_distance(actual, build.outputs()) < 1e-3


def test_a_plan_is_expected() -> None:
    done = subprocess.run(WORDS, capture_output=True, text=True, check=False, timeout=LIMIT_SECONDS)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "error: expected two arguments, MODULE PLAN.json"
