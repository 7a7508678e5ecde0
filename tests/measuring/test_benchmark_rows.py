from __future__ import annotations

import json
import statistics
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iree_gauntlet.measuring.profiles.benchmark_rows import BenchmarkError, parse_benchmark_rows
from tests.support.native_tools import find_native_tool

if TYPE_CHECKING:
    from pathlib import Path

NAME = "BM_f/process_time/real_time"


def row(real: float, cpu: float = 1.0, unit: str = "ms", name: str = NAME, **more: Any) -> dict[str, Any]:
    return {
        "name": name, "run_name": name, "run_type": "iteration", "iterations": 10,
        "real_time": real, "cpu_time": cpu, "time_unit": unit, **more,
    }  # fmt: skip


def aggregate(kind: str, value: float) -> dict[str, Any]:
    more = {"name": f"{NAME}_{kind}", "run_type": "aggregate", "aggregate_name": kind, "iterations": 3}
    return row(value) | more


def document(*rows: object) -> str:
    return json.dumps({"context": {"date": "2026-11-21"}, "benchmarks": list(rows)}, indent=2)


@settings(deadline=None)
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=20))
def test_all_repetitions_are_kept(times: list[float]) -> None:
    rows = [row(time, repetition_index=index) for index, time in enumerate(times)]
    (samples,) = parse_benchmark_rows(document(*rows, aggregate("mean", 5), aggregate("cv", 0.1)))
    assert samples.real_time_ms == tuple(times)
    assert samples.iterations == (10,) * len(times)
    assert not samples.aggregated
    assert samples.mean_ms == statistics.fmean(times)
    assert samples.min_ms == min(times)
    assert samples.stdev_ms == (statistics.stdev(times) if len(times) > 1 else None)
    assert samples.as_dict()["real_time_ms"] == times


@pytest.mark.parametrize(("unit", "factor"), [("ns", 1e-6), ("us", 1e-3), ("ms", 1), ("s", 1000)])
def test_units_become_milliseconds(unit: str, factor: float) -> None:
    (samples,) = parse_benchmark_rows(document(row(3, 4, unit)))
    assert samples.real_time_ms == (3 * factor,)
    assert samples.cpu_time_ms == (4 * factor,)


def test_aggregates_stand_in_for_missing_repetitions() -> None:
    rows = [aggregate("mean", 5), aggregate("median", 4), aggregate("stddev", 1), aggregate("cv", 0.2)]
    (samples,) = parse_benchmark_rows(document(*rows))
    assert samples.aggregated
    assert (samples.mean_ms, samples.stdev_ms) == (5, None)
    assert samples.min_ms is None
    with pytest.raises(BenchmarkError, match="neither repetitions nor a mean"):
        parse_benchmark_rows(document(aggregate("median", 4)))


def test_functions_are_kept_apart() -> None:
    found = parse_benchmark_rows(document(row(1, name="BM_a"), row(2, name="BM_b"), row(3, name="BM_a")))
    assert [(samples.name, samples.real_time_ms) for samples in found] == [("BM_a", (1, 3)), ("BM_b", (2,))]


def test_other_text_is_passed_over() -> None:
    noise = "loading {module}\n{not json\n{}\n[{\n"
    (samples,) = parse_benchmark_rows(f"{noise}{document(row(1))}\ndone {{}}\n")
    assert list(samples.real_time_ms) == [1]
    assert parse_benchmark_rows(json.dumps({"benchmarks": [row(2)]}))[0].real_time_ms == (2,)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no results"),
        ("Failed to match any benchmarks against regex: .\n", "no results"),
        (document(), "no rows: .*, or it was to be repeated 0 times"),
        (document(row(1))[:-30], "cut off"),
        (document(row(1, error_occurred=True, error_message="device lost")), "device lost"),
        (document(row(1), row(0, error_occurred=True)), "reported an error"),
        (document(row(1, skipped=True, skip_message="too hot")), "too hot"),
        (document(row(1, unit="h")), "unknown time unit"),
        (document(row(float("nan"))), "expected a time"),
        (document(row(-1)), "expected a time"),
        (document({"name": "BM_f"}), "expected a time"),
        (document({"real_time": 1}), "no name"),
        (document("BM_f"), "no name"),
    ],
)
def test_output_without_figures_is_an_error(text: str, message: str) -> None:
    with pytest.raises(BenchmarkError, match=message):
        parse_benchmark_rows(text)


@settings(deadline=None)
@given(st.text(alphabet='{}[]":, \n\\abenchmarks1', max_size=60))
def test_any_text_is_an_error(text: str) -> None:
    with pytest.raises(BenchmarkError):
        parse_benchmark_rows(text)


@pytest.mark.iree
def test_rows_of_the_tool(tmp_path: Path) -> None:
    source, module = tmp_path / "f.mlir", tmp_path / "f.vmfb"
    source.write_text("func.func @f(%a: tensor<4xf32>) -> tensor<4xf32> { return %a : tensor<4xf32> }")
    flags = ["--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=vmvx"]
    subprocess.run([find_native_tool("iree-compile"), str(source), *flags, f"-o={module}"], check=True)
    benchmark = [find_native_tool("iree-benchmark-module"), f"--module={module}", "--device=local-sync"]
    benchmark += ["--input=4xf32=1", "--benchmark_format=json", "--benchmark_min_time=2x"]

    def run(*more: str) -> str:
        return subprocess.run([*benchmark, *more], capture_output=True, text=True, check=True).stdout

    (samples,) = parse_benchmark_rows(run("--function=f", "--benchmark_repetitions=3"))
    assert (samples.name, len(samples.real_time_ms), samples.iterations) == (NAME, 3, (2, 2, 2))
    few = run("--function=f", "--benchmark_repetitions=3", "--benchmark_report_aggregates_only=true")
    assert parse_benchmark_rows(few)[0].aggregated
    with pytest.raises(BenchmarkError, match="--function"):
        # A filter that fits nothing: the tool is content, we are not.
        parse_benchmark_rows(run("--function=f", "--benchmark_filter=nothing"))
