"""The shipped specs: they agree with their recorded inputs and outputs."""

from __future__ import annotations

import hashlib
import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from iree_gauntlet.artifacts.seeded import parse_seeded
from tests.support.places import ROOT

if TYPE_CHECKING:
    from pathlib import Path

SPECS = ROOT / "specs"
RECORDED = sorted((SPECS / "regression_tests").glob("*/*/provenance.json"))
TORCH = SPECS / "torch_models"
LARGEST_BYTES = 1_000_000


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def named(folder: Path, entry: Any, key: str) -> dict[str, str]:
    """How a spec names what a record describes: a synthetic input by its URL, a file with its folder."""
    source = entry["source"] if "://" in entry["source"] else f"{folder.name}/{entry['source']}"
    return {key: source} | ({"value": entry["value"]} if "value" in entry else {})


def tensor_type(blob: Any, key: str) -> str:
    """The tensor type of an input in a spec."""
    return str(blob["value"]) if "value" in blob else parse_seeded(blob[key]).value


def checked_bytes(folder: Path, entry: Any) -> int:
    """The size of a file that a record describes, after a look at its content; 0 for what is synthetic."""
    path = folder / str(entry["source"])
    if "://" in entry["source"]:
        return 0
    assert hashlib.sha256(path.read_bytes()).hexdigest() == entry["sha256"]
    if path.suffix == ".bin":
        assert entry["value"] == "x".join([*map(str, entry["shape"]), entry["type"].replace("int", "i")])
        assert path.stat().st_size == math.prod(entry["shape"]) * np.dtype(entry["type"]).itemsize
    else:
        assert list(np.load(path).shape) == entry["shape"]
    return path.stat().st_size


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
    assert [named(folder, entry, "source") for entry in record["inputs"]] == spec["inputs"]
    assert [named(folder, entry, "source") for entry in record["outputs"]] == spec["outputs"]
    assert f"--expected_f32_threshold={record['tolerance']['f32']['atol']:g}" in spec["threshold_args"]
    assert sum(checked_bytes(folder, entry) for entry in (*record["inputs"], *record["outputs"])) <= LARGEST_BYTES


@pytest.mark.parametrize(
    "provenance",
    # Only weights of ONNX models can be tried.
    [path for path in (*RECORDED, *TORCH_RECORDED) if "litert" not in read(path)],
    ids=lambda path: f"{path.parts[-4]}/{path.parts[-3]}/{path.parts[-2]}",
)
def test_recordings_say_how_many_wrong_weights_they_would_see(provenance: Path) -> None:
    found = read(provenance)["sensitivity"]
    assert found["scaled_by"] == 1.01
    # Of what has an effect at all; the rest cancels out, or is as good as zero.
    assert found["seen"] >= 0.8 * (found["weights"] - found["without_effect"])


@pytest.mark.parametrize("provenance", RECORDED, ids=lambda path: f"{path.parents[1].name}/{path.parent.name}")
def test_shapes_that_are_fixed_are_those_of_the_inputs(provenance: Path) -> None:
    spec = read(provenance.parent.with_suffix(".json"))
    recorded = {entry["name"]: entry["shape"] for entry in read(provenance)["inputs"]}
    shapes = spec.get("onnx_import", {}).get("shapes", {})
    assert {name: recorded[name] for name in shapes} == shapes
    benchmark = read(SPECS / "benchmarks" / provenance.parents[1].name / f"{provenance.parent.name}.json")
    assert benchmark["inputs"] == [tensor_type(blob, "source") for blob in spec["inputs"]]
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
    assert [named(folder, entry, "url") for entry in record["inputs"]] == test["inputs"]
    assert [named(folder, entry, "url") for entry in record["outputs"]] == test["expected_outputs"]
    assert f"--expected_f32_threshold={record['tolerance']['f32']['atol']:g}" in test["run_args"]
    assert sum(checked_bytes(folder, entry) for entry in (*record["inputs"], *record["outputs"])) <= LARGEST_BYTES


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
    values = [tensor_type(item, "url") for item in quality["inputs"]]
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
