"""The part of a report that shows where a program got slower."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from markdown_it import MarkdownIt

from iree_gauntlet.records.compare_record import (
    DispatchComparison,
    DispatchDifference,
    OtherDispatches,
    UnprofiledTimes,
)
from iree_gauntlet.reports.compare_report import make_dispatch_blocks
from iree_gauntlet.reports.experiment_reports import make_reports
from iree_gauntlet.reports.render_console import print_document
from iree_gauntlet.results import DispatchChange
from tests.support.documents import render_blocks_markdown, render_lines
from tests.support.whole_records import write_comparison

if TYPE_CHECKING:
    from pathlib import Path


def row(name: str, a_ns: int, b_ns: int, a_count: int = 1, b_count: int = 1, match: str = "name") -> DispatchChange:
    return DispatchChange(name=name, kind="", match=match, a_ns=a_ns, b_ns=b_ns, a_count=a_count, b_count=b_count)


ROWS = (
    row("main$async_dispatch_0_conv_3x3_f32", 1_000_000, 3_000_000, 2, 2),
    row("main$async_dispatch_7_slow_memcpy", 0, 300_000, 0, 1, "new"),
    row("matmul: a, b", 900_000, 1_100_000, 12, 6, "kind"),
)
OTHERS = OtherDispatches(a_ns=100_000, b_ns=120_000, a_count=41, b_count=41, outside=False)
FOUND = DispatchDifference(a_ns=2_000_000, b_ns=4_520_000, rows=ROWS, others=OTHERS, notes=())


def dispatch_lines(**changed: Any) -> list[str]:
    return render_lines(make_dispatch_blocks(DispatchComparison(difference=replace(FOUND, **changed))))


def dispatch_markdown(**changed: Any) -> str:
    return render_blocks_markdown(make_dispatch_blocks(DispatchComparison(difference=replace(FOUND, **changed))))


def test_rows_and_the_sum_of_all_others() -> None:
    assert dispatch_lines() == [
        "profiled: 2.00 ms in A, 4.52 ms in B (+2.52 ms); these 3 rows make up 99 % of the difference",
        "",
        "dispatch                                             A ms    B ms  difference ms  of the whole",
        "main$async_dispatch_0_conv_3x3_f32 (2 dispatches)    1.00    3.00          +2.00          79 %",
        "main$async_dispatch_7_slow_memcpy (new)            0.0000  0.3000        +0.3000          12 %",
        "matmul: a, b (12 → 6 dispatches)                   0.9000    1.10        +0.2000           8 %",
        "the other 41 dispatches                            0.1000  0.1200        +0.0200           1 %",
    ]


def test_the_others_are_named_for_what_they_are() -> None:
    def named(**others: Any) -> str:
        return dispatch_lines(others=replace(OTHERS, **others))[-1].split("  ")[0]

    assert named(b_count=40) == "the other 41 → 40 dispatches"
    assert named(outside=True) == "the other 41 dispatches, and what is outside of them"
    assert named(a_count=1, b_count=1) == "the other dispatch"
    assert named(a_count=0, b_count=0, outside=True) == "outside of dispatches"
    nothing = OtherDispatches(a_ns=0, b_ns=0, a_count=0, b_count=0, outside=False)
    assert len(dispatch_lines(others=nothing)) == 6


def test_one_row_and_none() -> None:
    assert "this row makes up 79 % of the difference" in dispatch_lines(rows=ROWS[:1])[0]
    lines = dispatch_lines(rows=(), b_ns=2_000_000)
    assert lines[0] == "profiled: 2.00 ms in A, 2.00 ms in B (0.0000 ms); no dispatch stands out"
    assert lines[2:] == [
        "dispatch                   A ms    B ms  difference ms",
        "the other 41 dispatches  0.1000  0.1200        +0.0200",
    ]


def test_rows_that_explain_nothing_are_left_out() -> None:
    rows = (ROWS[0], row("main$async_dispatch_1_copy", 500_000, 499_000))
    lines = dispatch_lines(rows=rows, others=replace(OTHERS, b_ns=100_000))
    assert [line.split("  ")[0] for line in lines[2:]] == [
        "dispatch",
        "main$async_dispatch_0_conv_3x3_f32 (2 dispatches)",
    ]
    counted = DispatchComparison(unit="instructions", difference=replace(FOUND, rows=rows, others=OTHERS))
    assert [line.split("  ")[0] for line in render_lines(make_dispatch_blocks(counted))[2:]] == [
        "dispatch",
        "main$async_dispatch_0_conv_3x3_f32 (2 functions of dispatches)",
        "main$async_dispatch_1_copy",
        "the other 41 functions of dispatches",
    ]


def test_what_was_measured_stands_beside_what_was_profiled() -> None:
    note = dispatch_lines(measured=UnprofiledTimes(a_ns=1_900_000, b_ns=4_000_000))[-1]
    assert note == "note: the profiler costs ×1.11: without it 1.90 ms in A, 4.00 ms in B (+2.10 ms)"
    for b_ns in (1_900_000, 4_100_000):
        assert dispatch_lines(measured=UnprofiledTimes(a_ns=4_000_000, b_ns=b_ns))[-1].endswith(
            "the profile shows another difference, and does not explain this one"
        )


def test_notes_of_the_profiles() -> None:
    assert dispatch_lines(notes=("A: odd",))[-1] == "note: A: odd"
    assert dispatch_markdown(notes=("A: odd",)).endswith("\n> A: odd\n")


def test_no_profile_is_a_line() -> None:
    without = make_dispatch_blocks(DispatchComparison(reason="A: iree-benchmark-module of 3.9.0 writes no profiles"))
    assert render_lines(without) == ["no profile: A: iree-benchmark-module of 3.9.0 writes no profiles"]
    assert render_blocks_markdown(without) == "no profile: A: iree-benchmark-module of 3.9.0 writes no profiles\n"


def test_markdown_is_one_table_whatever_the_names_hold() -> None:
    odd = dispatch_markdown(rows=(row("main`|<b>\n_dispatch_0", 1, 2_000_000),))
    html = MarkdownIt("gfm-like", {"linkify": False}).render(odd)
    assert html.count("<table>") == 1
    assert html.count("<tr>") == 3
    assert "<b>" not in html


def test_the_interval_stays_longer_than_the_work_and_one_figure_always(tmp_path: Path) -> None:
    journal = write_comparison(tmp_path)
    lines = journal.read_text(encoding="utf-8").splitlines(keepends=True)
    # Without the model of which only the work was compared.
    journal.write_text("".join(line for line in lines if '"step": "toy/mul@cpu", "work"' not in line), encoding="utf-8")
    document = make_reports(tmp_path).document(None)
    figures = ("B against A", "interval", "work")
    for width, count in ((200, 3), (74, 2), (44, 1)):
        stream = io.StringIO()
        print_document(document, stream, "runs/x: a.md", environ={}, width=width)
        (head,) = (line for line in stream.getvalue().splitlines() if line.startswith("verdict"))
        assert [figure for figure in figures if figure in re.split(r"  +", head)] == list(figures[:count])
