"""Whole sweeps of `micro` with real measurements; a fake replaces torch."""

from __future__ import annotations

import csv
import json
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

import pytest

from tests.support.micro_project import Micro

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.measure


@pytest.fixture
def micro(tmp_path: Path) -> Iterator[Micro]:
    made = Micro(tmp_path, warm=False, real_times=True)
    yield made
    made.project.close()


@pytest.mark.iree
def test_recipes_are_measured_with_the_baseline(micro: Micro) -> None:
    done = micro.sweep("--output", "oss.json")
    assert done.code == 0, done.text
    assert sorted(micro.builds) == ["baseline", "int8wo"]
    record = micro.record()
    assert (record["point"]["flops"], record["blocks"]) == (2 * 4 * 64 * 128, 6)
    baseline, int8wo, level = record["variants"]
    assert [item["label"] for item in record["variants"]] == ["baseline", "int8wo", "O3"]
    assert baseline["iree"]["speedup"] is None
    assert int8wo["status"] == "measured"
    ratio = int8wo["iree"]["speedup"]
    assert 0 < ratio["low"] <= ratio["ratio"] <= ratio["high"]
    # Four bytes a weight, and one with a step for each output.
    assert baseline["parameter_bytes"] == 4 * 64 * 128
    assert int8wo["parameter_bytes"] == 64 * 128 + 4 * 128
    assert any("parameters i8" in line for line in int8wo["shows"])
    assert 0 < int8wo["error"]["relative"] < 0.02
    assert 30 < int8wo["error"]["sqnr_db"] < 60
    assert level["status"] in ("measured", "same module")
    assert level["parameter_bytes"] == baseline["parameter_bytes"]
    for item in (baseline, int8wo):
        for name in ("module_bytes", "peak_rss_bytes", "compile_s", "first_call_ms"):
            assert item[name] > 0, name
        assert item["roofline"]["share"] > 0
    # No processor is slower, and none as fast.
    (peaks,) = (micro.folder / "cache" / "machine").glob("*.json")
    roofline = json.loads(peaks.read_text())["roofline"]
    assert 1e6 < roofline["flops_per_s"] < 1e17
    assert 1e6 < roofline["bytes_per_s"] < 1e15
    # The same in every report.
    rows = list(csv.DictReader((micro.results / "results.csv").read_text().splitlines()))
    assert len(rows) == 3
    assert {"results.md", "results.html", "results.json"} <= {path.name for path in micro.results.iterdir()}
    records = json.loads((micro.folder / "oss.json").read_text())
    assert {item["benchmark"]["dtype"] for item in records} == {"baseline", "int8wo", "O3"}
    assert (micro.folder / "measured" / micro.run.name / "results.csv").is_file()
    assert "int8wo" in done.out
    cases = [case.get("name") for case in ET.parse(micro.run / "junit.xml").getroot().iter("testcase")]
    assert {"export.int8wo", "compile.O3", "threshold.int8wo", "benchmark"} <= set(cases)
    # Weights and modules do not pile up.
    assert not [path for path in micro.run.rglob("*") if path.suffix in (".irpa", ".vmfb", ".onnx", ".npy")]


@pytest.mark.iree
def test_profiles_are_there_where_they_are_asked_for(micro: Micro) -> None:
    micro.write(profile="true")
    done = micro.sweep()
    assert done.code == 0, done.text
    trace = micro.result("benchmark.trace.int8wo")
    assert trace["statistics"]["trace"]["files"]["perfetto"].endswith("int8wo.perfetto.json")
    memory = micro.result("benchmark.memory.int8wo")["statistics"]["memory"]
    assert memory["peak_bytes"] > 0
    assert next(phase["name"] for phase in memory["phases"]) == "load"
    assert list((micro.run / "steps" / "lin").glob("*/benchmark.memory.int8wo/memory.json"))
