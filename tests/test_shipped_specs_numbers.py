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
LARGEST_BYTES = 1_000_000


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


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
