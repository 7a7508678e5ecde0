from __future__ import annotations

import io
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from iree_gauntlet.document import ColouredCell, Table, format_cell
from iree_gauntlet.records.sweep_record import Ratio, format_decibels
from iree_gauntlet.reports.render_console import print_document
from iree_gauntlet.reports.render_markdown import render_markdown
from iree_gauntlet.torch_models.reports.sweep_reports import (
    LEGEND,
    collect_heading_facts,
    collect_notes,
    make_speedup_cell,
    make_speedup_table,
    make_sweep_document,
    summarise,
)
from iree_gauntlet.torch_models.reports.sweep_rows import (
    Row,
    SweepHeader,
    format_factor,
    format_ratio,
    group_entries,
    read_rows,
)
from tests.support.micro_records import SWEEP_HEADER, grid, point, ratio, record, records, squares, variant


def printed(rows: tuple[Row, ...], width: int = 120) -> list[str]:
    stream = io.StringIO()
    print_document(
        make_sweep_document(rows, SWEEP_HEADER), stream, "runs/x/results: results.md", environ={}, width=width
    )
    return stream.getvalue().splitlines()


def lines_of(table: Table) -> list[tuple[str, ...]]:
    columns = table.columns
    head = tuple(column.heading for column in columns)
    written = (
        tuple(format_cell(column, cell) for column, cell in zip(columns, row, strict=True)) for row in table.rows
    )
    return [head, *written]


def text_of(row: Row | None) -> str:
    cell = make_speedup_cell(row)
    return cell if isinstance(cell, str) else cell.text


def one(label: str, **changes: Any) -> Row:
    (row,) = read_rows([record(point(64, 64, 64), [variant(label, 1.0, ratio(1.5), **changes)])])
    return row


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.724, "1.72"), (12.46, "12.5"), (9.999, "10.0"), (130.4, "130"), (0.0944, "0.094"), (1.0, "1.00"), (0, "0")],
)
def test_ratios_have_three_digits(value: float, text: str) -> None:
    assert format_factor(value) == text


@given(st.floats(1e-6, 1e6))
def test_a_ratio_as_text_is_near_it(value: float) -> None:
    assert float(format_factor(value)) == pytest.approx(value, rel=0.06)


def test_what_stands_in_the_place_of_a_speedup() -> None:
    assert format_ratio(Ratio(1.72, 1.6, 1.84, "faster")) == "1.72 (1.60–1.84)"
    assert format_ratio(Ratio(1.01, 0.9, 1.1, "inconclusive")) == "1.01 (0.90–1.10) ?"
    assert format_ratio(Ratio(1.0, None, None, "same")) == "1.00 ="
    assert make_speedup_cell(None) == "–"
    assert make_speedup_cell(one("int8dq", iree=None, status="failed")) == "failed"
    assert make_speedup_cell(one("O2", iree={"ms": 1.0, "speedup": None}, status="same module")) == "same module"
    assert make_speedup_cell(one("int8wo")) == ColouredCell("▲ 1.50 (1.43–1.58)", "faster")
    assert (format_decibels(math.inf), format_decibels(46.02)) == ("exact", "46.0 dB")


def test_the_longer_axis_goes_down() -> None:
    (few,) = group_entries(read_rows(squares([10, 11])))
    head, *lines = lines_of(make_speedup_table(few))
    assert head == ("m-k-n", "1024-1024-1024", "2048-2048-2048")
    assert [line[0] for line in lines] == ["baseline, ms", *few.recipes]
    (many,) = group_entries(read_rows(grid([10, 11, 12])))
    head, *lines = lines_of(make_speedup_table(many))
    assert head == ("m-k-n", "baseline, ms", *many.recipes)
    assert [line[0] for line in lines] == list(many.shapes)
    found = many.row("int8dq", many.shapes[3])
    assert lines[3][3] == text_of(found)


def test_what_a_recipe_came_to() -> None:
    rows = read_rows(
        [
            record(point(1, 1, 1), [variant("baseline", 1.0, None), variant("int8wo", 0.5, ratio(2.0))]),
            record(point(2, 2, 2), [variant("baseline", 1.0, None), variant("int8wo", 2.0, ratio(0.5))]),
            record(
                point(3, 3, 3),
                [
                    variant("baseline", 1.0, None),
                    variant("int8wo", 1.0, None, status="same module", error={"max": 1, "relative": 1, "sqnr_db": 9}),
                ],
            ),
            record(point(4, 4, 4), [variant("baseline", 1.0, None), variant("int8wo", 1.0, None, iree=None)]),
        ]
    )
    (entry,) = group_entries(rows)
    assert summarise(entry, "baseline")[:3] == ("baseline", "–", "–")
    assert summarise(entry, "int8wo") == (
        *("int8wo", "1.00", "0.50 … 2.00", "1", "1", "1", "1"),
        *("9.0 dB", "50 %", "1.50", "0.90"),
    )


def test_the_console_keeps_to_its_width_and_says_everything() -> None:
    rows = read_rows(grid([10, 11, 12]))
    for width in (60, 120):
        lines = printed(rows, width)
        # The last lines are sentences, which a terminal wraps.
        tables = lines[: lines.index("How to read it")]
        assert max(len(line) for line in tables if not line.endswith(".svg")) <= width
        assert [line.strip() for line in lines[len(tables) + 1 :]][: len(LEGEND)] == list(LEGEND)
        text = "\n".join(tables)
        for row in rows:
            assert row.shape_label in text
            assert text_of(row) in text


def test_long_tables_end_with_where_the_rest_is() -> None:
    records = [
        record(
            point(size, 1, 1),
            [variant("baseline", 1.0, None), variant("int8wo", 1.0, ratio(1.0), notes=[f"note of {size}"])],
        )
        for size in range(1, 90)
    ]
    lines = printed(read_rows(records))
    assert "  and 29 more, in the reports" in lines
    assert "  and 77 more, in the reports" in lines
    assert lines[-1] == "reports in runs/x/results: results.md"


def test_what_went_wrong_is_told_once_with_its_shapes() -> None:
    failed = {"iree": None, "status": "error", "reason": "iree-compile: SIGSEGV"}
    records = [record(point(m, 8, 8), [variant("int4wo-32", 1.0, None, **failed)]) for m in range(1, 6)]
    assert collect_notes(read_rows(records)) == (
        "int4wo-32: error: iree-compile: SIGSEGV (1-8-8, 2-8-8, 3-8-8 and 2 more)",
    )


def test_the_heading_says_what_it_knows() -> None:
    rows = read_rows(squares([10, 11]))
    assert collect_heading_facts(SWEEP_HEADER, rows) == (
        "run 20261121-220000-micro",
        "configuration specs/recipes/dashboard.yml",
        "IREE 3.13.0rc20261016",
        "torch 2.13.0+cpu, torchao 0.18.0",
        "AMD EPYC 7763, 2 cores",
        "2 points, 14 variants",
    )
    assert collect_heading_facts(SweepHeader(), rows[:1]) == ("1 point, 1 variants",)


def test_markdown_has_a_table_for_each_entry() -> None:
    rows = read_rows([*squares([10, 11]), *grid([10, 11], name="sweep")])
    parsed = (
        MarkdownIt("gfm-like", {"linkify": False})
        .enable("table")
        .parse(render_markdown(make_sweep_document(rows, SWEEP_HEADER)))
    )
    assert sum(token.type == "table_open" for token in parsed) == 4
    titles = [parsed[index + 1].content for index, token in enumerate(parsed) if token.type == "heading_open"]
    assert titles == [
        "IREE Gauntlet: micro-benchmarks",
        "small_linear (linear, f32, local-task)",
        "Speed-ups",
        "sweep (linear, f32, local-task)",
        "Speed-ups",
        "How to read it",
    ]


@given(records())
def test_any_records_make_a_table(found: list[dict[str, Any]]) -> None:
    rows = read_rows(found)
    text = render_markdown(make_sweep_document(rows, SWEEP_HEADER))
    assert text.endswith("\n")
    for entry in group_entries(rows):
        assert len(set(map(len, lines_of(make_speedup_table(entry))))) == 1
    printed(rows)


def test_nothing_measured_is_no_error() -> None:
    document = make_sweep_document((), SWEEP_HEADER)
    assert (document.answer, document.blocks) == ("0 points, 0 variants", ())
    assert "0 points" in render_markdown(document)
    assert len(printed(())) == 5
