from __future__ import annotations

import csv
import io
import math
from typing import Any

from hypothesis import given

from iree_gauntlet.torch_models.reports.sweep_rows import CSV_COLUMNS, format_results_csv, read_rows
from tests.support.micro_records import point, ratio, record, records, squares, variant

# The header of torchao's `BenchmarkResult.to_dict`, without what is of its own files and profilers.
TORCHAO = [
    *("name", "quantization", "sparsity", "m", "k", "n", "high_precision_dtype", "torch_compile_mode", "device"),
    "model_type",
    "baseline_model_eager_inference_time_in_ms",
    "quantized_model_eager_inference_time_in_ms",
    "baseline_model_compiled_inference_time_in_ms",
    "quantized_model_compiled_inference_time_in_ms",
    "eager speedup on baseline",
    "compile speedup on baseline",
    "eager vs compile speedup",
]


def read(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


def number(cell: str) -> float | None:
    return float(cell) if cell else None


def same(cell: str, value: float | None) -> bool:
    found = number(cell)
    if found is None or value is None:
        return found is value
    return found == value or (math.isnan(found) and math.isnan(value))


def test_torchaos_columns_come_first_and_mean_the_same() -> None:
    assert list(CSV_COLUMNS)[: len(TORCHAO)] == TORCHAO
    found = [variant("baseline", 2.0, None), variant("baseline+block", 1.0, ratio(2.0))]
    baseline, row = read(format_results_csv(read_rows([record(point(128, 256, 512, dtype="bf16"), found)])))
    assert (row["quantization"], row["sparsity"], row["recipe"]) == ("baseline", "block", "baseline+block")
    assert (row["m"], row["k"], row["n"], row["high_precision_dtype"]) == ("128", "256", "512", "torch.bfloat16")
    assert row["baseline_model_eager_inference_time_in_ms"] == "3"
    assert row["quantized_model_eager_inference_time_in_ms"] == "1.5"
    assert row["baseline_model_compiled_inference_time_in_ms"] == "1.8"
    assert row["eager speedup on baseline"] == row["torch_eager_speedup"] == "1.1"
    assert number(row["eager vs compile speedup"]) == 1.5 / 0.9
    assert (row["iree_baseline_ms"], row["iree_ms"], row["iree_speedup"]) == ("2", "1", "2")
    assert row["iree_speedup_word"] == "faster"
    assert row["torch_compile_first_call_ms"] == "4000.5"
    assert row["module_bytes"] == "14236"
    assert baseline["iree_speedup"] == baseline["sparsity"] == ""
    assert baseline["sqnr_db"] == "inf"


def test_a_baseline_is_that_of_the_same_point_and_entry() -> None:
    rows = read_rows([*squares([10, 11]), *squares([10], name="other")])
    for row in read(format_results_csv(rows)):
        baselines = (found for found in rows if found.is_baseline)
        own = next(found for found in baselines if (found.point.name, str(found.point.m)) == (row["name"], row["m"]))
        assert own.variant.iree is not None
        assert same(row["iree_baseline_ms"], own.variant.iree.ms)


def test_text_of_any_kind_stays_in_its_cell() -> None:
    reason = 'a "quoted", two\nlines; =1+1'
    found = [variant("int8wo", 1.0, None, iree=None, status="error", reason=reason, shows=["a", "b"])]
    (row,) = read(format_results_csv(read_rows([record(point(1, 1, 1), found)])))
    assert (row["reason"], row["shows"], row["iree_ms"]) == (reason, "a; b", "")


@given(records())
def test_reading_back_gives_the_records_numbers(found: list[dict[str, Any]]) -> None:
    rows = read_rows(found)
    lines = read(format_results_csv(rows))
    assert len(lines) == len(rows)
    for row, line in zip(rows, lines, strict=True):
        assert same(line["iree_ms"], row.variant.iree.ms if row.variant.iree else None)
        of, errors = row.variant, row.errors
        assert same(line["max_error"], errors.max)
        assert same(line["relative_error"], errors.relative)
        assert same(line["sqnr_db"], errors.sqnr_db)
        assert same(line["flops"], row.point.flops)
        assert same(line["roofline_share"], row.variant.roofline.share if row.variant.roofline else None)
        assert same(line["module_bytes"], of.module_bytes)
        assert same(line["compile_s"], of.compile_s)
        for name, side in (("iree", of.iree), ("torch_eager", of.torch_eager), ("torch_compile", of.torch_compile)):
            ratio = side.speedup if side else None
            assert same(line[f"{name}_speedup"], ratio.ratio if ratio else None)
            assert same(line[f"{name}_speedup_low"], ratio.low if ratio else None)
            assert same(line[f"{name}_speedup_high"], ratio.high if ratio else None)
            assert line[f"{name}_speedup_word"] == (ratio.word if ratio else "")


def test_every_column_has_a_value() -> None:
    found = read_rows([record(point(1, 1, 1), [variant("baseline", 1.0, None), variant("int8wo", 1.0, ratio(1.0))])])
    _, row = read(format_results_csv(found))
    assert list(row) == list(CSV_COLUMNS)
    assert {name for name, cell in row.items() if not cell} == {"sparsity", "reason", "notes"}
