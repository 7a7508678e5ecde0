from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from iree_gauntlet.errors import GauntletError
from iree_gauntlet.torch_models.reports.sweep_rows import (
    SPEEDUP,
    OssRecord,
    SweepHeader,
    is_float32,
    make_oss_json,
    make_oss_records,
    read_rows,
)
from tests.support.budgets import scale_example_count
from tests.support.micro_records import HEADER, SWEEP_HEADER, point, ratio, record, records, squares, variant
from tests.support.places import ROOT

# Columns of `benchmark.oss_ci_benchmark_v3` that a record fills, and the fields of their tuples.
TABLE = {
    "benchmark": {"name", "mode", "dtype", "extra_info"},
    "model": {"name", "type", "backend", "origins", "extra_info"},
    "metric": {"name", "benchmark_values", "target_value", "extra_info"},
}
RUNNER = {
    *("name", "type", "cpu_info", "cpu_count", "mem_info", "avail_mem_in_gb"),
    *("gpu_info", "gpu_count", "gpu_mem_info", "avail_gpu_mem_in_gb", "extra_info"),
}
RECORDS = TypeAdapter(list[OssRecord])
DEPENDENCY = {"repo", "branch", "sha", "version", "extra_info"}


def made(*found: dict[str, Any], header: dict[str, Any] | None = None, **options: Any) -> list[dict[str, Any]]:
    about = SweepHeader.from_dict(HEADER if header is None else header)
    return [record.model_dump() for record in make_oss_records(read_rows(found), about, **options)]


def pair(**changes: Any) -> dict[str, Any]:
    return record(
        point(1024, 512, 256, **changes), [variant("baseline", 2.0, None), variant("int8wo", 1.0, ratio(2.0))]
    )


def values(found: list[dict[str, Any]], dtype: str, backend: str = "iree") -> dict[str, float]:
    return {
        item["metric"]["name"]: item["metric"]["benchmark_values"][0]
        for item in found
        if (item["benchmark"]["dtype"], item["model"]["backend"]) == (dtype, backend)
    }


def test_a_record_says_what_dashboards_read() -> None:
    found = made(pair())
    speedup = next(item for item in found if item["metric"]["name"] == SPEEDUP)
    assert speedup["benchmark"] == {
        "name": "micro-benchmark api",
        "mode": "inference",
        "dtype": "int8wo",
        "extra_info": {
            "device": "cpu",
            "iree_device": "local-task",
            "arch": "AMD EPYC 7763",
            "high_precision_dtype": "f32",
            "quantization": "int8wo",
            "recipe_kind": "quantization",
            "status": "measured",
        },
    }
    assert speedup["model"] == {
        "name": "1024-512-256",
        "type": "micro-benchmark custom layer",
        "backend": "iree",
        "origins": ["iree"],
        "extra_info": {
            "name": "small_linear",
            "model_type": "linear",
            "shape": "pow2_0",
            "m": "1024",
            "k": "512",
            "n": "256",
            "flops": "268435456",
        },
    }
    assert speedup["metric"] == {
        "name": "Fwd Speedup (x)",
        "benchmark_values": [2.0],
        "target_value": 0.0,
        "extra_info": {"unit": "x", "low": str(2.0 / 1.05), "high": "2.1", "verdict": "faster"},
    }
    assert speedup["inputs"] == {}
    (runner,) = speedup["runners"]
    # Dashboards take these two for device and architecture wherever there is a runner.
    assert (runner["name"], runner["type"]) == ("cpu", "AMD EPYC 7763")
    assert (runner["cpu_count"], runner["avail_mem_in_gb"], runner["gpu_count"]) == (2, 23, 0)
    assert runner["extra_info"]["hostname"] == "box"
    assert speedup["dependencies"]["iree-base-compiler"] == {
        "repo": "iree-org/iree",
        "branch": "",
        "sha": "89ece87b89852100c0a4ac3d515e14842d090967",
        "version": "3.13.0rc20261016",
        "extra_info": {},
    }
    assert speedup["dependencies"]["torchao"]["repo"] == "pytorch/ao"
    assert "/home/me" not in json.dumps(found)


def test_one_record_a_metric() -> None:
    found = made(pair())
    assert values(found, "int8wo") == {
        "Fwd Speedup (x)": 2.0,
        "speedup(wrt f32)": 2.0,
        "Float32 Fwd Time (ms)": 2.0,
        "Quantized Fwd Time (ms)": 1.0,
        "Allocated Memory (MB)": 9.0,
        "Peak Resident Memory (MB)": 61.0,
        "Module Size (MB)": 0.014236,
        "Parameter Size (MB)": 1.048576,
        "Compile Time (s)": 1.25,
        "First Call (ms)": 3.0,
        "Max Error": 0.01,
        "Relative Error": 0.005,
        "SQNR (dB)": 46.02,
        "Share of Machine Peak (%)": pytest.approx(41.0),
        "Speedup over torch eager (x)": 1.5,
        "Speedup over torch.compile (x)": 0.9,
    }
    assert values(found, "int8wo", "eager") == {
        "Fwd Speedup (x)": 1.1,
        "speedup(wrt f32)": 1.1,
        "Float32 Fwd Time (ms)": 3.0,
        "Quantized Fwd Time (ms)": 1.5,
    }
    assert values(found, "int8wo", "inductor")["Quantized Fwd Time (ms)"] == 0.9
    baseline = values(found, "baseline")
    assert baseline["Float32 Fwd Time (ms)"] == 2.0
    assert SPEEDUP not in baseline
    # Infinite: nothing differs.
    assert "SQNR (dB)" not in baseline


def test_torch_compile_is_said_to_be_used_where_it_was_measured() -> None:
    for compiled in (True, False):
        found = made(
            pair() if compiled else record(point(8, 8, 8), [variant("baseline", 2.0, None, torch_compile=None)])
        )
        told = {
            item["model"]["backend"]: [
                item["benchmark"]["extra_info"].get(name) for name in ("use_compile", "torch_compile_mode")
            ]
            for item in found
        }
        assert told == {"iree": [None, None], "eager": [None, None]} | (
            {"inductor": ["true", "default"]} if compiled else {}
        )


# The record of torchao's guide to its benchmarks, of a GPU.
GUIDE: dict[str, dict[str, Any]] = {
    "benchmark": {
        "name": "micro-benchmark api",
        "mode": "inference",
        "dtype": "int8wo",
        "extra_info": {"device": "cuda", "arch": "NVIDIA A100-SXM4-80GB"},
    },
    "model": {"name": "1024-1024-1024", "type": "micro-benchmark custom layer", "origins": ["torchao"]},
    "metric": {"name": "speedup(wrt bf16)", "benchmark_values": [1.25], "target_value": 0.0},
    "runners": {},
    "dependencies": {},
}


def test_a_query_by_the_guides_metric_finds_the_speedup() -> None:
    by_name = {item["metric"]["name"]: item for item in made(pair(dtype="bf16")) if item["model"]["backend"] == "iree"}
    guides, own = by_name[GUIDE["metric"]["name"]], by_name[SPEEDUP]
    assert guides["benchmark"]["dtype"] == GUIDE["benchmark"]["dtype"]
    assert guides == own | {"metric": own["metric"] | {"name": guides["metric"]["name"]}}
    # A baseline of another type is called by that.
    assert GUIDE["metric"]["name"] not in values(made(pair(dtype="f16")), "int8wo")


def test_the_page_names_every_field_that_is_not_the_guides() -> None:
    page = (ROOT / "docs" / "reference" / "micro.md").read_text(encoding="utf-8")
    table = page.partition("### What differs from torchao's guide")[2].partition("Refused recipes")[0]
    speedups = [item for item in made(pair()) if item["metric"]["name"] == SPEEDUP]
    own = next(item for item in speedups if item["model"]["backend"] == "inductor")
    assert set(GUIDE) <= set(own)
    for name, part in own.items():
        theirs = GUIDE.get(name, {})
        if name in ("runners", "dependencies", "inputs"):
            assert f"`{name}`" in table
            continue
        assert set(theirs) <= set(part)
        for field, value in part.items():
            assert value == theirs.get(field) or f"`{name}.{field}`" in table, field
    for field in own["benchmark"]["extra_info"]:
        assert f"`{field}`" in table or f"extra_info.{field}`" in table, field


def test_a_sweep_that_was_interrupted_says_so_in_every_record() -> None:
    def states(header: dict[str, Any]) -> set[str | None]:
        return {item["benchmark"]["extra_info"].get("sweep") for item in made(pair(), header=HEADER | header)}

    assert states({"state": "interrupted"}) == {"interrupted"}
    assert states({"state": "complete"}) == states({}) == {None}


def test_the_baselines_time_is_named_by_its_type_as_torchao_does() -> None:
    assert "Bfloat16 Fwd Time (ms)" in values(made(pair(dtype="bf16")), "int8wo")
    assert "Float16 Fwd Time (ms)" in values(made(pair(dtype="f16")), "int8wo")


def test_recipes_of_the_compiler_are_nothing_to_torch() -> None:
    compiled = variant("data-tiling", 1.0, ratio(2.0), kind="compiler")
    found = made(record(point(8, 8, 8), [variant("baseline", 2.0, None), compiled]))
    assert {item["model"]["backend"] for item in found if item["benchmark"]["dtype"] == "data-tiling"} == {"iree"}
    assert values(found, "data-tiling")["Recipe Fwd Time (ms)"] == 1.0


def test_entries_that_share_a_shape_are_reported_apart() -> None:
    found = made(pair(), pair(name="bf16_linear", dtype="bf16"), *squares([10]))
    names = {item["model"]["name"] for item in found}
    assert names == {"small_linear 1024-512-256", "bf16_linear 1024-512-256", "1024-1024-1024"}
    series = [
        (
            item["model"]["name"],
            item["model"]["backend"],
            item["benchmark"]["dtype"],
            item["metric"]["name"],
            item["runners"][0]["name"],
        )
        for item in found
    ]
    assert len(set(series)) == len(series)


def test_targets_are_those_that_were_asked_for() -> None:
    targets = {SPEEDUP: {"int8wo": 1.5, "int8wo@1024-512-256": 1.8}, "SQNR (dB)": {"int8wo": 30}}
    found = made(pair(), squares([10])[0], targets=targets)
    asked = {
        (item["metric"]["name"], item["model"]["name"]): item["metric"]["target_value"]
        for item in found
        if item["benchmark"]["dtype"] == "int8wo" and item["model"]["backend"] == "iree"
    }
    assert asked[SPEEDUP, "1024-512-256"] == 1.8
    assert asked[SPEEDUP, "1024-1024-1024"] == 1.5
    assert asked["SQNR (dB)", "1024-512-256"] == 30.0
    assert asked["Compile Time (s)", "1024-512-256"] == 0.0


def test_a_gpu_is_the_architecture_of_what_ran_on_it() -> None:
    gpus = [{"name": "NVIDIA H200", "memory_bytes": 150 << 30}] * 2
    found = made(pair(device="cuda://0"), pair(name="on_cpu"), header={**HEADER, "gpus": gpus})
    gpu, cpu = found[0]["runners"][0], found[-1]["runners"][0]
    assert (gpu["name"], gpu["type"], gpu["gpu_count"], gpu["avail_gpu_mem_in_gb"]) == ("cuda", "NVIDIA H200", 2, 300)
    assert (cpu["name"], cpu["type"], cpu["gpu_count"]) == ("cpu", "AMD EPYC 7763", 0)


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("local-sync", "cpu"),
        ("hip://1", "rocm"),
        ("amdgpu", "rocm"),
        ("vulkan", "vulkan"),
        ("metal", "mps"),
        ("x", "x"),
    ],
)
def test_a_device_is_called_as_dashboards_call_it(device: str, name: str) -> None:
    assert made(pair(device=device))[0]["runners"][0]["name"] == name


def test_a_header_may_lack_everything() -> None:
    found = made(pair(), header={})
    assert found[0]["runners"][0]["type"] == "unknown"
    assert found[0]["dependencies"] == {}


@settings(max_examples=scale_example_count(0.4))
@given(records())
def test_every_record_fits_the_table_and_has_the_records_numbers(found: list[dict[str, Any]]) -> None:
    rows = read_rows(found)
    documents = json.loads(make_oss_json(rows, SWEEP_HEADER), parse_constant=pytest.fail)
    RECORDS.validate_python(documents)
    for document in documents:
        assert set(document) == {*TABLE, "runners", "dependencies", "inputs"}
        for column, fields in TABLE.items():
            assert set(document[column]) == fields
        assert all(set(runner) == RUNNER for runner in document["runners"])
        assert all(set(dependency) == DEPENDENCY for dependency in document["dependencies"].values())
        assert all(is_float32(value) for value in document["metric"]["benchmark_values"])
        for part in (document["benchmark"], document["model"], document["metric"], *document["runners"]):
            assert all(type(name) is type(value) is str for name, value in part["extra_info"].items())
    reported = [
        document["metric"]["benchmark_values"]
        for document in documents
        if document["metric"]["name"] == SPEEDUP and document["model"]["backend"] == "iree"
    ]
    assert reported == [[row.speedup.ratio] for row in rows if row.speedup and not row.is_baseline]


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"metric": {"name": "x", "benchmark_values": [float("inf")]}}, "0.metric.benchmark_values.0"),
        ({"metric": {"name": "x", "benchmark_values": [1e39]}}, "0.metric.benchmark_values.0"),
        ({"metric": {"name": "x", "benchmark_values": []}}, "0.metric.benchmark_values"),
        ({"metric": {"name": "x", "benchmark_values": [1.0], "extra_info": {"low": 1.0}}}, "0.metric.extra_info.low"),
        ({"runners": [{"cpu_count": -1}]}, "0.runners.0.cpu_count"),
        ({"runners": [{"avail_mem_in_gb": 2**32}]}, "0.runners.0.avail_mem_in_gb"),
        ({"more": 1}, "0.more"),
    ],
)
def test_what_the_table_cannot_hold_is_an_error(change: dict[str, Any], where: str) -> None:
    valid = made(pair())[0]
    RECORDS.validate_python([valid])
    with pytest.raises(ValidationError) as raised:
        RECORDS.validate_python([valid | change])
    assert ".".join(map(str, raised.value.errors()[0]["loc"])) == where


def test_a_header_that_the_table_cannot_hold_is_an_error() -> None:
    header = replace(SWEEP_HEADER, machine=replace(SWEEP_HEADER.machine, cores=-1))
    with pytest.raises(GauntletError, match="record cpu_count of the benchmark database: "):
        make_oss_json(read_rows([pair()]), header)


def test_the_guides_own_record_fits() -> None:
    benchmark = {"name": "micro-benchmark api", "mode": "inference", "dtype": "int8wo"}
    RECORDS.validate_python(
        [
            {
                "benchmark": {**benchmark, "extra_info": {"device": "cuda", "arch": "NVIDIA A100-SXM4-80GB"}},
                "model": {"name": "1024-1024-1024", "type": "micro-benchmark custom layer", "origins": ["torchao"]},
                "metric": {"name": "speedup(wrt bf16)", "benchmark_values": [1.25], "target_value": 0.0},
                "runners": [],
                "dependencies": {},
            }
        ]
    )


def test_the_schema_can_be_had_as_json_schema() -> None:
    schema = RECORDS.json_schema()
    assert schema["type"] == "array"
    assert set(schema["$defs"]["OssRunner"]["properties"]) == RUNNER
    assert set(schema["$defs"]["OssDependency"]["properties"]) == DEPENDENCY


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_every_float32_fits(value: float) -> None:
    assert is_float32(value)
