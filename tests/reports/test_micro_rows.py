from __future__ import annotations

import json
import math
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iree_gauntlet.records.sweep_record import VARIANT_FIGURES, NumberErrors, PeakShare, Ratio, VariantRecord
from iree_gauntlet.torch_models.reports.sweep_rows import find_mean_ratio, group_entries, read_rows
from tests.support.micro_records import grid, point, ratio, record, records, squares, variant


def test_a_row_has_what_the_record_has() -> None:
    (baseline, row) = read_rows(
        [
            record(
                point(128, 256, 512),
                [variant("baseline", 2.0, None), variant("int8wo", 1.0, ratio(2.0), notes=["own note"])],
                notes=["of the point"],
                replaced=1,
            )
        ]
    )
    assert baseline.is_baseline
    assert baseline.speedup is None
    assert baseline.errors.sqnr_db == math.inf
    assert not row.is_baseline
    assert (row.point.m, row.point.k, row.point.n, row.shape_label) == (128, 256, 512, "128-256-512")
    assert row.speedup == Ratio(2.0, 2.0 / 1.05, 2.0 * 1.05, "faster")
    assert row.variant.iree is not None
    assert row.variant.first_call_ms == 3.0
    assert row.variant.torch_eager is not None
    assert row.variant.torch_eager.first_call_ms == 8.0
    assert row.variant.torch_compile is not None
    assert row.variant.torch_compile.beside_iree is not None
    assert row.variant.torch_compile.beside_iree.ratio == 0.9
    assert (row.record.notes, row.variant.notes) == (("of the point",), ("own note",))
    assert row.variant.roofline == PeakShare(0.41, "compute")
    assert (row.record.blocks, row.record.replaced, row.point.flops) == (6, 1, 2.0 * 128 * 256 * 512)


def test_each_number_of_a_variant_is_a_row_of_the_table_of_figures() -> None:
    numbers = {item.name for item in fields(VariantRecord) if item.type == "float | None"}
    assert {figure.field for figure in VARIANT_FIGURES if not figure.part} == numbers
    in_order = list(range(len(VARIANT_FIGURES)))
    assert [figure.place for figure in VARIANT_FIGURES] == in_order
    assert sorted(figure.metric.place for figure in VARIANT_FIGURES) == in_order
    (row,) = read_rows([record(point(8, 8, 8), [variant("int8wo", 1.0, ratio(2.0))])])
    assert all(figure.format(row.variant) for figure in VARIANT_FIGURES)
    (unmeasured,) = read_rows([record(point(8, 8, 8), [variant("int8wo", 1.0, None, iree=None)])])
    assert [f.column for f in VARIANT_FIGURES if not f.format(unmeasured.variant)] == ["first call, ms"]


def test_what_was_not_measured_is_none() -> None:
    nothing = dict.fromkeys(("iree", "torch_eager", "torch_compile", "error", "roofline", "module_bytes"))
    (row,) = read_rows(
        [record(point(1, 1, 1), [variant("int8dq", 1.0, None, **nothing, status="failed", reason="no")])]
    )
    assert (row.variant.iree, row.variant.torch_eager, row.variant.torch_compile, row.speedup) == (None,) * 4
    assert (row.errors, row.variant.roofline, row.variant.module_bytes) == (NumberErrors(), None, None)
    assert (row.variant.status, row.variant.reason) == ("failed", "no")


def test_numbers_that_json_lacks_are_numbers_again() -> None:
    error = {"max": "inf", "relative": "nan", "sqnr_db": "-inf"}
    (row,) = read_rows([record(point(1, 1, 1), [variant("int8wo", 1.0, ratio(1.0), error=error)])])
    assert row.errors.max == math.inf
    assert row.errors.relative is not None
    assert math.isnan(row.errors.relative)
    assert row.errors.sqnr_db == -math.inf


def test_entries_keep_apart_what_the_configuration_keeps_apart() -> None:
    found = group_entries(read_rows([*squares([10, 11]), *squares([10], dtype="bf16"), *grid([4, 5], name="sweep")]))
    assert [entry.title for entry in found] == [
        "small_linear (linear, f32, local-task)",
        "small_linear (linear, bf16, local-task)",
        "sweep (linear, f32, local-task)",
    ]
    first = found[0]
    assert first.shapes == ("1024-1024-1024", "2048-2048-2048")
    assert first.recipes[0] == "int8wo"
    assert "baseline" not in first.recipes
    baseline = first.baseline("2048-2048-2048")
    assert baseline is not None
    assert baseline.point.m == 2048
    assert first.row("int8wo", "1-1-1") is None
    assert [row.shape_label for row in first.get_recipe_rows("int8dq")] == list(first.shapes)


@given(records())
def test_any_record_is_read_from_json(found: list[dict[str, object]]) -> None:
    rows = read_rows(json.loads(json.dumps(found)))
    assert repr(rows) == repr(read_rows(found))
    assert sum(len(entry.rows) for entry in group_entries(rows)) == len(rows)


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=20))
def test_the_geometric_mean_lies_between_and_turns_round(ratios: list[float]) -> None:
    mean = find_mean_ratio(ratios)
    turned = find_mean_ratio([1 / ratio for ratio in ratios])
    assert mean is not None
    assert turned is not None
    assert min(ratios) * (1 - 1e-9) <= mean <= max(ratios) * (1 + 1e-9)
    assert mean * turned == pytest.approx(1.0)


def test_the_geometric_mean_of_nothing_is_none() -> None:
    assert find_mean_ratio([]) is None
    assert find_mean_ratio([0.0, math.nan, math.inf, -1.0]) is None
