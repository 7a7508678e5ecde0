"""The shipped specs agree with what was recorded for them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from iree_gauntlet.artifacts.seeded import parse_seeded

SPECS = Path(__file__).parents[1] / "specs"
RECORDED = sorted((SPECS / "regression_tests").glob("*/*/provenance.json"))
TORCH = SPECS / "torch_models"
LARGEST_BYTES = 1_000_000


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


# Of golden.record; that of the llama block has tests of its own.
TORCH_RECORDED = sorted(path for path in TORCH.glob("*/*/provenance.json") if "made_by" in read(path))


def test_there_are_enough_models() -> None:
    assert len({path.parents[1].name for path in RECORDED}) >= 8


@pytest.mark.parametrize("provenance", RECORDED, ids=lambda path: f"{path.parents[1].name}/{path.parent.name}")
def test_recordings_belong_to_their_spec(provenance: Path) -> None:
    folder = provenance.parent
    record = read(provenance)
    spec = read(folder.with_suffix(".json"))
    assert record["model"]["source"] == spec["mlir"]
    assert [entry["source"] for entry in record["inputs"]] == [blob["source"] for blob in spec["inputs"]]
    assert spec["outputs"] == [{"source": f"{folder.name}/{entry['source']}"} for entry in record["outputs"]]
    assert f"--expected_f32_threshold={record['tolerance']:g}" in spec["threshold_args"]
    total = 0
    for entry in record["outputs"]:
        path = folder / entry["source"]
        assert hashlib.sha256(path.read_bytes()).hexdigest() == entry["sha256"]
        assert list(np.load(path).shape) == entry["shape"]
        total += path.stat().st_size
    assert total <= LARGEST_BYTES


@pytest.mark.parametrize("provenance", RECORDED, ids=lambda path: f"{path.parents[1].name}/{path.parent.name}")
def test_shapes_that_are_fixed_are_those_of_the_inputs(provenance: Path) -> None:
    spec = read(provenance.parent.with_suffix(".json"))
    recorded = {entry["name"]: entry["shape"] for entry in read(provenance)["inputs"]}
    shapes = spec["onnx_import"].get("shapes", {})
    assert {name: recorded[name] for name in shapes} == shapes
    benchmark = read(SPECS / "benchmarks" / provenance.parents[1].name / f"{provenance.parent.name}.json")
    assert benchmark["inputs"] == [parse_seeded(blob["source"]).value for blob in spec["inputs"]]
    assert benchmark["function_run"] == spec["run_function"]


def names(path: Path) -> str:
    return f"{path.parents[1].name}/{path.parent.name}"


def test_there_are_enough_torch_models() -> None:
    assert len(TORCH_RECORDED) >= 4


@pytest.mark.parametrize("provenance", TORCH_RECORDED, ids=names)
def test_recordings_of_torch_models_belong_to_their_test(provenance: Path) -> None:
    folder = provenance.parent
    record = read(provenance)
    test = read(folder.with_suffix(".json"))
    definition = read(TORCH / f"{test['modules'][-1]}.json")
    assert record["model"]["source"] == definition["mlir"]
    assert [entry["source"] for entry in record["inputs"]] == [item["url"] for item in test["inputs"]]
    assert test["expected_outputs"] == [{"url": f"{folder.name}/{entry['source']}"} for entry in record["outputs"]]
    assert f"--expected_f32_threshold={record['tolerance']:g}" in test["run_args"]
    total = 0
    for entry in record["outputs"]:
        path = folder / entry["source"]
        assert hashlib.sha256(path.read_bytes()).hexdigest() == entry["sha256"]
        assert list(np.load(path).shape) == entry["shape"]
        total += path.stat().st_size
    assert total <= LARGEST_BYTES


@pytest.mark.parametrize("provenance", TORCH_RECORDED, ids=names)
def test_torch_models_are_those_of_the_regression_tests(provenance: Path) -> None:
    submodel = provenance.parent.name.removesuffix("_quality_cpu")
    folder, model = provenance.parents[1], provenance.parents[1].name
    spec = read(SPECS / "regression_tests" / model / f"{submodel}_cpu.json")
    definition = read(folder / "modules" / f"{submodel}_cpu.json")
    assert {key: definition[key] for key in ("mlir", "onnx_import", "compiler_flags")} == {
        key: spec[key] for key in ("mlir", "onnx_import", "compiler_flags")
    }
    quality = read(folder / f"{submodel}_quality_cpu.json")
    function = f"--function={spec['run_function']}"
    assert quality["run_args"] == [f"--device={spec['device']}", function, *spec["threshold_args"]]
    values = [parse_seeded(item["url"]).value for item in quality["inputs"]]
    for path in folder.glob(f"{submodel}_benchmark_*.json"):
        benchmark = read(path)
        assert [item["value"] for item in benchmark["inputs"]] == values
        assert function in benchmark["run_args"]


def test_golden_times_of_torch_models_belong_to_a_machine() -> None:
    timed = [path for path in TORCH.rglob("*.json") if "golden_time_ms" in read(path)]
    assert timed
    for path in timed:
        test = read(path)
        assert test["sku"] in test["markers"], path
        assert path.stem.endswith(f"_benchmark_{test['sku']}"), path
