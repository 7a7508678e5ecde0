from __future__ import annotations

import csv
import io
import json
import math
import re
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree
from markdown_it import MarkdownIt

from iree_gauntlet.cases import Verdict
from iree_gauntlet.document import HeatCell, Table
from iree_gauntlet.errors import ExitCode, GauntletError
from iree_gauntlet.figures import Figure
from iree_gauntlet.formatting import format_factor
from iree_gauntlet.records.chain_figures import ChainFigures, MatrixCell
from iree_gauntlet.records.matrix_outcome import MatrixOutcome, read_matrix_outcome
from iree_gauntlet.reports.experiment_reports import write_reports
from iree_gauntlet.reports.matrix_report import (
    VerdictChange,
    _show_heat_maps,
    compute_mean_ratios,
    format_matrix_csv,
    format_matrix_json,
    format_matrix_junit,
    list_matrix_changes,
    make_figure_cells,
    make_matrix_document,
)
from iree_gauntlet.reports.render_console import print_document
from iree_gauntlet.reports.render_html import render_html
from iree_gauntlet.reports.render_markdown import render_markdown
from iree_gauntlet.results import OutputComparison
from tests.support.journal_builder import JournalBuilder, make_check, make_comparison, make_every_verdict, make_samples
from tests.support.matrix_builder import (
    MATRIX_REPORTS,
    make_chain,
    make_compile_result,
    make_failed_chain,
    make_release_run,
    write_four_releases,
    write_record,
)
from tests.support.places import DATA

if TYPE_CHECKING:
    from pathlib import Path


def printed(matrix: MatrixOutcome, width: int | None = None) -> str:
    stream = io.StringIO()
    print_document(make_matrix_document(matrix), stream, "runs/m", environ={}, width=width)
    return stream.getvalue()


def texts(matrix: MatrixOutcome, kind: str) -> list[str]:
    return [f"{change.chain}: {change.text}" for change in list_matrix_changes(matrix) if change.kind is kind]


@pytest.fixture
def matrix(tmp_path: Path) -> MatrixOutcome:
    return read_matrix_outcome(write_four_releases(tmp_path / "m"))


def test_what_changed_between_releases(matrix: MatrixOutcome) -> None:
    assert texts(matrix, VerdictChange.FAILING) == [
        "m/l3@cpu: 3.5.0 → 3.9.0: failed: threshold: output 1: the module returns element type i64"
    ]
    assert texts(matrix, VerdictChange.PASSING) == [
        "m/l3@cpu: 3.9.0 → 3.12.0: was failed: threshold: output 1: the module returns element type i64",
        "m/rec@cpu: 3.5.0 → 3.9.0: was failed: compile: error: large vector sizes | in a `softmax`",
        "m/common@cpu: 3.5.0 → 3.9.0: was failed: threshold: output 0: 12 of 384 elements differ",
    ]
    assert [text.split(": ")[:2] for text in texts(matrix, VerdictChange.WRONG)] == [
        ["m/l3@cpu", "3.9.0"],
        ["m/common@cpu", "3.5.0"],
    ]
    assert texts(matrix, "dispatches") == ["m/l3@cpu: 97 (3.5.0) → 55 (3.9.0)"]
    # The last two sizes differ by 88 bytes: no jump.
    assert texts(matrix, "size") == ["m/cls@cpu: 726,002 (3.5.0) → 1,176,754 (3.9.0) → 833,674 (3.12.0)"]
    assert texts(matrix, "time") == []


def test_figures_are_held_against_the_first_iree(matrix: MatrixOutcome) -> None:
    rows = {row.chain: row for row in matrix.rows}
    l3 = rows["m/l3@cpu"].cells
    assert make_figure_cells(l3["3.5.0"], None) == (
        *("5.00", "200", "12.00 ± 0.12", None, "97", None, "68.0 MB", None, "1e-06 #1"),
    )
    assert make_figure_cells(l3["3.13.0"], l3["3.5.0"]) == (
        *("4.00 ×0.80↓", "200 ×1.00", "9.00 ± 0.09 ×0.75↓", None, "55 ×0.57↓", None, "68.0 MB", None, "1e-06 #1"),
    )
    cls = rows["m/cls@cpu"].cells
    assert make_figure_cells(cls["3.12.0"], cls["3.5.0"])[6:] == ("833.7 kB ×1.15↑", None, "0.0001 #1↑")
    # Nothing to hold it against: it does not compile with the base.
    rec = rows["m/rec@cpu"].cells
    assert make_figure_cells(rec["3.5.0"], None) == (None,) * 9
    assert make_figure_cells(rec["3.9.0"], rec["3.5.0"])[2] == "97.00 ± 0.97"


def test_geometric_means_are_over_what_all_have(matrix: MatrixOutcome) -> None:
    means = {(mean.metric, mean.label): mean for mean in compute_mean_ratios(matrix)}
    # l3 and common have wrong numbers somewhere, rec no time with the base: cls is left.
    assert math.isclose(means["time", "3.9.0"].ratio, 2.6 / 3.0)
    assert means["time", "3.9.0"].chains == 1
    assert means["compile", "3.13.0"].chains == 3
    assert math.isclose(means["compile", "3.13.0"].ratio, (4 / 5) ** (1 / 3))


def test_the_worst_exit_code_wins_and_each_iree_has_its_line(matrix: MatrixOutcome) -> None:
    assert matrix.exit_code is ExitCode.FAILED
    text = printed(matrix)
    lines = text.splitlines()
    results = [" ".join(line.split()) for line in lines]
    assert "3.9.0 4 cases: 1 failed, 3 passed 1 61.2 s 3.9.0rc1 3.9.0rc1" in results
    assert "3.12.0 4 cases: 4 passed 0 61.2 s 3.12.0rc1 3.12.0rc1" in results
    assert (
        "Next: gauntlet bisect --good 3.5.0 --bad 3.9.0 --metric runs --model m --submodel l3 --target cpu"
        in " ".join(text.split())
    )
    assert lines[-3].startswith("2 of 4 IREEs as expected")
    assert lines[-1] == "exit code 1: something failed"
    assert text.index("What changed") < text.index("verdict") < text.index("one IREE after another")


def test_how_times_were_taken_is_said_where_there_are_some(matrix: MatrixOutcome, tmp_path: Path) -> None:
    assert "Times were measured one IREE after another" in printed(matrix)
    compiled = {name: make_release_run(name, m=make_failed_chain("compile", "no")) for name in ("3.5.0", "3.9.0")}
    text = printed(read_matrix_outcome(write_record(tmp_path / "untimed", dict(compiled))))
    assert "Times were measured" not in text
    assert "Figures" in text


def test_the_table_fits_into_120_columns(matrix: MatrixOutcome) -> None:
    lines = printed(matrix, 120).splitlines()
    table = lines[lines.index("Figures") + 1 : next(i for i, line in enumerate(lines) if line.startswith("×")) - 1]
    assert max(map(len, table)) <= 120
    assert all(name in table[0] for name in ("verdict", "time ms", "dispatches"))
    # And what there is no room for.
    assert len(table) == 1 + 4 * 4 + 1
    assert re.fullmatch("  no room for the columns '.*': the reports have them", table[-1])


def test_a_table_of_many_models_shows_those_that_do_not_work_first(tmp_path: Path) -> None:
    chains = {f"n{number:03}": make_chain() for number in range(100)}
    runs: dict[str, Any] = {
        "a": make_release_run("a", **chains),
        "b": make_release_run("b", **{**chains, "n099": make_failed_chain("compile", "no")}),
    }
    text = printed(read_matrix_outcome(write_record(tmp_path, runs)))
    assert text.index("m/n099@cpu  a") < text.index("m/n000@cpu  a")
    assert "and 40 more, in the reports" in text
    many = {name: make_chain(dispatches=1) for name in chains}
    runs["b"] = make_release_run("b", **many)
    text = printed(read_matrix_outcome(write_record(tmp_path, runs)))
    assert "  m/n000@cpu, m/n001@cpu, m/n002@cpu and 97 more: 55 (a) → 1 (b)" in text.splitlines()


def test_markdown_is_whole(matrix: MatrixOutcome) -> None:
    text = render_markdown(make_matrix_document(matrix))
    html = MarkdownIt("gfm-like", {"linkify": False}).render(text)
    assert html.count("<table>") == 2
    # Every row of every table has as many cells as its header, whatever a reason holds.
    for table in html.split("<table>")[1:]:
        rows = table.split("</table>")[0].split("<tr>")[1:]
        counts = {row.count("<td") + row.count("<th") for row in rows}
        assert len(counts) == 1
    assert "<strong>failed: compile</strong>" in html
    assert "gauntlet compare A B" in text
    assert "- [`m/rec@cpu`](3.5.0/summary.html#m/rec@cpu:compile): 3.5.0: failed: compile: error: large vector" in text
    assert "| [`3.5.0`](3.5.0/summary.html) | 4 cases: 2 failed, 2 passed | 1 | 61.2 s |" in text
    assert text.endswith("\n")


def test_the_page_has_what_the_markdown_has(tmp_path: Path) -> None:
    write_reports(write_four_releases(tmp_path / "m"))
    page = etree.HTML((tmp_path / "m" / "matrix.html").read_text())
    # Figures are shaded, a table each, before all of them; a model without one says why.
    heats = page.xpath("//h2[.='Figures']/following-sibling::h3/text()")
    assert heats == [
        "Verdicts",
        "Run time, ms",
        "Compile time, s",
        "Compile memory, MB",
        "Dispatches",
        "Module size, kB",
        "Largest error",
    ]
    rows = [len(table.xpath("tbody/tr")) for table in page.iter("table")]
    assert rows == [4, *([4] * len(heats)), 16]
    assert page.xpath("count(//h3[.='Verdicts']/following::table[1]//a/span[@class='badge bad'])") == 3
    (time,) = page.xpath("//h3[.='Run time, ms']/following-sibling::div[1]/table")
    assert time.xpath(".//td[contains(@style, 'var(--good)')]/text()") == ["9.00", "9.80", "9.00", "2.60", "2.75"]
    assert "Newly failing" in page.xpath("//h3/text()")


def test_json_is_what_its_schema_says(matrix: MatrixOutcome) -> None:
    document = json.loads(format_matrix_json(matrix))
    assert (document["schema"], document["base"], document["state"]) == (1, "3.5.0", "complete")
    assert [iree["exit_code"] for iree in document["irees"]] == [1, 1, 0, 0]
    assert document["irees"][1]["counts"]["failed"] == 1
    cell = document["chains"][0]["irees"]["3.13.0"]
    assert cell["time_ms"] == 9
    assert cell["ratios"]["dispatch_count"] == 55 / 97
    assert cell["worst_output"] == 1
    assert document["chains"][1]["irees"]["3.5.0"]["stages"] == ["compile"]
    assert {change["kind"] for change in document["changes"]} == {
        *("newly failing", "newly passing", "wrong numbers", "error", "dispatches", "size")
    }


def test_csv_has_a_row_for_each_model_and_iree(matrix: MatrixOutcome) -> None:
    rows = list(csv.DictReader(io.StringIO(format_matrix_csv(matrix))))
    assert len(rows) == 16
    assert {row["iree"] for row in rows} == {"3.5.0", "3.9.0", "3.12.0", "3.13.0"}
    assert (rows[0]["wrong_numbers"], rows[0]["time_ms_ratio"], rows[0]["stages"]) == ("false", "1", "")
    (broken,) = (row for row in rows if row["chain"] == "m/rec@cpu" and row["iree"] == "3.5.0")
    assert (broken["stages"], broken["time_ms"], broken["works"]) == ("compile", "", "false")


def test_a_spreadsheet_runs_nothing_of_the_csv(tmp_path: Path) -> None:
    run = JournalBuilder(run="a")
    run.result(run.step("=cmd()", "x", "compile"), **make_compile_result())
    run.lines.clear()
    run.begin()
    run.end()
    (row,) = csv.DictReader(io.StringIO(format_matrix_csv(read_matrix_outcome(write_record(tmp_path, {"a": run})))))
    assert row["chain"] == "'=cmd()/x@cpu"


def test_junit_has_all_and_keeps_to_its_schema(tmp_path: Path) -> None:
    runs: dict[str, Any] = {
        "3.5.0": make_every_verdict(),
        "3.99": "there is no IREE 3.99",
        "3.13.0": make_every_verdict(),
    }
    matrix = read_matrix_outcome(write_record(tmp_path, runs, results={"3.5.0": 3, "3.13.0": 3}))
    text = format_matrix_junit(matrix)
    root = etree.fromstring(text.encode())
    etree.XMLSchema(etree.parse(str(DATA / "junit-10.xsd"))).assertValid(root)
    suites = root.findall("testsuite")
    names = [suite.get("name") for suite in suites]
    assert len(names) == len(set(names)) == 17
    assert "3.5.0/ocr/classifier@cpu" in names
    assert [suite.get("id") for suite in suites] == [str(index) for index in range(17)]
    cases = [(case.get("classname"), case.get("name")) for case in root.iter("testcase")]
    assert len(cases) == len(set(cases)) == 37
    assert (root.get("tests"), root.get("failures"), root.get("errors")) == ("37", "6", "7")
    (missing,) = root.xpath("testsuite[@name='3.99/toolchain']/testcase/error")
    assert missing.get("message") == "there is no IREE 3.99"
    assert missing.text == "Nearest: 3.13.0."


def test_one_that_cannot_be_had_is_an_error_and_the_others_count(tmp_path: Path) -> None:
    runs: dict[str, Any] = {"3.99": "there is no IREE 3.99", "3.13.0": make_release_run("3.13.0", a=make_chain())}
    matrix = read_matrix_outcome(write_record(tmp_path, runs))
    assert matrix.exit_code is ExitCode.ERROR
    assert matrix.irees[0].exit_code is ExitCode.ERROR
    assert matrix.irees[1].exit_code is ExitCode.OK
    # The base is the first one, also where it has no figures.
    assert matrix.base == "3.99"
    assert compute_mean_ratios(matrix) == []
    text = printed(matrix)
    assert "note: 3.99: there is no IREE 3.99" in text
    assert "Nearest: 3.13.0." in text
    assert "What changed" not in text


@pytest.mark.parametrize(
    ("end", "state", "code", "says"),
    [
        (None, "unfinished", 3, "not run: the matrix was killed, or is still running"),
        ({"interrupted": True, "stopped": ""}, "interrupted", 130, "not run: the matrix was interrupted"),
        ({"interrupted": False, "stopped": "--fail-fast, and a came out"}, "stopped", 0, "not run: --fail-fast, and a"),
    ],
)
def test_one_that_never_began_says_why(tmp_path: Path, end: Any, state: str, code: int, says: str) -> None:
    runs: dict[str, Any] = {"a": make_release_run("a", x=make_chain()), "b": None}
    matrix = read_matrix_outcome(write_record(tmp_path, runs, end=end))
    assert (matrix.state, int(matrix.exit_code)) == (state, code)
    assert matrix.irees[1].problem.startswith(says)
    assert says in printed(matrix)
    assert ("skipped" in format_matrix_junit(matrix)) == (state == "stopped") or code


def test_one_that_was_killed_shows_what_it_had_done(tmp_path: Path) -> None:
    killed = make_release_run("b", x=make_chain(ms=3.0), y=make_chain())
    # Nothing after the result of the second compile; the last line is torn.
    killed.lines = killed.lines[: 1 + 3 * 2 + 2]
    runs: dict[str, Any] = {"a": make_release_run("a", x=make_chain(), y=make_chain()), "b": killed, "c": None}
    folder = write_record(tmp_path, runs, results={"a": 0}, end=None, truncated_line='{"event":"resu')
    matrix = read_matrix_outcome(folder)
    assert matrix.exit_code is ExitCode.ERROR
    assert any("truncated" in remark for remark in matrix.remarks)
    cells = {row.chain: row.cells["b"] for row in matrix.rows}
    assert cells["m/x@cpu"].figures.values[Figure.TIME] == pytest.approx(3.0)
    assert cells["m/y@cpu"].works is None
    assert cells["m/y@cpu"].figures.values[Figure.DISPATCHES] == 55
    # That it was killed is no failure of the compiler.
    assert texts(matrix, VerdictChange.FAILING) == []
    assert "b: the journal has no end" in render_markdown(make_matrix_document(matrix))


@pytest.mark.parametrize(("interrupted", "code"), [(True, ExitCode.INTERRUPTED), (False, ExitCode.ERROR)])
def test_one_that_was_cut_short_before_its_first_step_ended_as_the_matrix_did(
    tmp_path: Path, interrupted: bool, code: ExitCode
) -> None:
    begun = make_release_run("b", x=make_chain())
    begun.lines = begun.lines[:1]
    runs: dict[str, Any] = {"a": make_release_run("a", x=make_chain()), "b": begun}
    end = {"interrupted": True, "stopped": ""} if interrupted else None
    matrix = read_matrix_outcome(write_record(tmp_path, runs, results={"a": 0}, end=end))
    assert [iree.exit_code for iree in matrix.irees] == [ExitCode.OK, code]
    assert matrix.exit_code is code


def test_what_a_run_is_expected_to_fail_counts_as_not_working(tmp_path: Path) -> None:
    expected = {"compile": {"verdict": "xfailed", "reason": "no scatter"}}
    runs: dict[str, Any] = {"a": make_release_run("a", x=expected), "b": make_release_run("b", x=make_chain())}
    matrix = read_matrix_outcome(write_record(tmp_path, runs))
    assert texts(matrix, VerdictChange.PASSING) == ["m/x@cpu: a → b: was xfailed: compile: no scatter"]
    assert matrix.rows[0].cells["a"].verdict is Verdict.XFAILED
    assert matrix.exit_code is ExitCode.OK


def test_times_are_told_by_the_statistic_of_the_dialect(tmp_path: Path) -> None:
    least = make_chain()
    least["benchmark"] = {
        "samples": make_samples(8.0, 9.0, 10.0),
        "checks": [make_check("time_ms", 8.0, None, statistic="min")],
    }
    (row,) = read_matrix_outcome(write_record(tmp_path, {"a": make_release_run("a", x=least)})).rows
    cell = row.cells["a"]
    assert (cell.figures.values[Figure.TIME], cell.figures.statistic) == (8.0, "min")
    assert make_figure_cells(cell, None)[2] == "min 8.00 ± 1.00"


def test_compiles_of_several_modules_count_together_and_not_where_one_failed(tmp_path: Path) -> None:
    run = JournalBuilder(run="a")
    first, second = run.step("m", "x", "compile"), run.step("m", "x", "compile", "pipeline")
    run.begin()
    run.result(first, **make_compile_result(seconds=2.0, peak_rss_bytes=10))
    run.result(second, **make_compile_result(seconds=3.0, peak_rss_bytes=30, dispatches=1))
    run.end()
    (row,) = read_matrix_outcome(write_record(tmp_path / "whole", {"a": run})).rows
    figures = (Figure.COMPILE_TIME, Figure.COMPILE_MEMORY, Figure.DISPATCHES)
    assert [row.find_value("a", figure) for figure in figures] == [5.0, 30, 55]
    run.lines[4] |= {"verdict": "failed", "reason": "no", "statistics": None}
    (row,) = read_matrix_outcome(write_record(tmp_path / "half", {"a": run})).rows
    assert row.find_value("a", Figure.COMPILE_TIME) is None


def test_nan_is_the_worst_error(tmp_path: Path) -> None:
    odd = make_chain()
    odd["threshold"] = {
        "outputs": [make_comparison(max_abs_error=9.0), make_comparison(index=1, passed=False, max_abs_error="nan")],
        "verdict": "failed",
        "reason": "NaN",
    }
    matrix = read_matrix_outcome(write_record(tmp_path, {"a": make_release_run("a", x=odd)}))
    assert make_figure_cells(matrix.rows[0].cells["a"], None)[8] == "nan #1"
    assert json.loads(format_matrix_json(matrix))["chains"][0]["irees"]["a"]["max_abs_error"] == "nan"
    assert "nan" in format_matrix_csv(matrix)


def test_times_taken_under_a_disturbance_are_marked_and_left_out_of_means(tmp_path: Path) -> None:
    busy = make_chain(ms=90.0)
    causes = ["other work kept the CPUs 55 % busy", "the hypervisor took 10 % of the CPU time"]
    busy["benchmark"]["statistics"] = {"disturbed": causes}
    quiet = make_chain(ms=9.0)
    quiet["benchmark"]["statistics"] = {"machine": {"busy_share": 0.36, "steal_share": None}, "disturbed": []}
    runs: dict[str, Any] = {"a": make_release_run("a", x=quiet, y=quiet), "b": make_release_run("b", x=busy, y=quiet)}
    matrix = read_matrix_outcome(write_record(tmp_path, runs))
    cells = matrix.rows[0].cells
    assert make_figure_cells(cells["b"], cells["a"])[2] == "~90.00 ± 0.90 ×10.0↑"
    assert cells["b"].figures.disturbance.split("; ") == causes
    assert "b: 1 of 2 times were disturbed (~): measure them again" in matrix.remarks
    assert texts(matrix, "time") == []
    (mean,) = (mean for mean in compute_mean_ratios(matrix) if mean.metric == "time")
    assert (mean.chains, mean.ratio) == (1, 1.0)
    # On the page it has its mark, and no shade.
    page = etree.HTML(render_html(make_matrix_document(matrix)))
    (heat,) = page.xpath("//h3[.='Run time, ms']/following-sibling::div[1]/table")
    shades = {cell.text: cell.get("style", "") for cell in heat.xpath(".//td[position() > 1]")}
    assert "~90.00" in shades
    assert not any("var(" in style for style in shades.values())
    assert "marked ~ were disturbed, and are not shaded" in "".join(page.itertext())


def test_a_time_that_a_run_marks_is_marked_in_a_matrix(tmp_path: Path) -> None:
    hot = make_chain(ms=9.0)
    hot["benchmark"]["statistics"] = {"disturbed": ["the CPU throttled 3 times (0 is tolerated)"]}
    matrix = read_matrix_outcome(write_record(tmp_path, {"a": make_release_run("a", x=hot)}))
    cell = matrix.rows[0].cells["a"]
    assert make_figure_cells(cell, None)[2] == "~9.00 ± 0.09"
    assert cell.figures.disturbance == "the CPU throttled 3 times (0 is tolerated)"


@pytest.mark.parametrize(
    ("error", "change"),
    [(4.6e-6, ["m/x@cpu: 1e-06 (a) → 4.6e-06 (b)"]), (1.9e-6, []), (0.0, ["m/x@cpu: 1e-06 (a) → 0 (b)"])],
)
def test_a_largest_error_that_doubled_is_among_the_changes(error: float, change: list[str], tmp_path: Path) -> None:
    runs: dict[str, Any] = {
        "a": make_release_run("a", x=make_chain()),
        "b": make_release_run("b", x=make_chain(error=error)),
    }
    folder = write_record(tmp_path, runs)
    matrix = read_matrix_outcome(folder)
    assert texts(matrix, "error") == change
    write_reports(folder)
    text = (folder / "matrix.md").read_text()
    assert ("### Largest error (doubled or halved)" in text) is bool(change)
    assert ("Nothing: verdicts, errors, counts" in text) is not bool(change)


def test_two_names_of_one_iree_are_told(tmp_path: Path) -> None:
    runs: dict[str, Any] = {name: make_release_run("3.13.0", x=make_chain()) for name in ("installed", "3.13.0")}
    folder = write_record(tmp_path, runs)
    record = folder / "journal.jsonl"
    record.write_text(record.read_text().replace('"identity": "installed"', '"identity": "3.13.0"'))
    assert "installed and 3.13.0 are the same IREE" in " ".join(read_matrix_outcome(folder).remarks)
    # With another runtime it is another IREE.
    other = record.read_text().replace('"identity": "3.13.0"', '"identity": "3.13.0", "runtime_identity": "x"', 1)
    record.write_text(other)
    assert "are the same IREE" not in " ".join(read_matrix_outcome(folder).remarks)


def test_the_reports_are_the_same_each_time_and_go_to_the_step_summary_once(tmp_path: Path) -> None:
    folder = write_four_releases(tmp_path / "m")
    summary = tmp_path / "summary.md"
    environ = {"GITHUB_STEP_SUMMARY": str(summary)}
    write_reports(folder).append_to_step_summary(environ)
    first = {name: (folder / name).read_bytes() for name in MATRIX_REPORTS}
    write_reports(folder)
    assert {name: (folder / name).read_bytes() for name in MATRIX_REPORTS} == first
    assert summary.read_bytes() == first["matrix.md"]
    with pytest.raises(GauntletError, match="cannot append the summary"):
        write_reports(folder).append_to_step_summary({"GITHUB_STEP_SUMMARY": str(tmp_path)})


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("no JSON\n", "is not a JSON object"),
        (
            '{"event":"start","step":"a","time":"2026-11-2!T"}\n',
            "jsonl:7: the line has a time that cannot be read: '2026-11-2!T'",
        ),
        (
            '{"event":"start","step":"a","time":"2026-11-20T10:00:00"}\n',
            "has a time that cannot be read: '2026-11-20T10:00:00'",
        ),
        ('{"event":"start","step":"a","time":7}\n', "has a time that cannot be read: 7"),
        (
            '{"event":"opening","kind":"matrix","irees":[{"label":"a"}]}\n',
            "the opening event cannot be read: irees.iree: is missing",
        ),
        (
            '{"event":"opening","kind":"matrix","irees":[{"label":"a","iree":"a","folder":"../a"}]}\n',
            "irees: ../a is not a folder within",
        ),
        (
            '{"event":"opening","kind":"matrix","irees":[{"label":"a","iree":"a","folder":".."}]}\n',
            "irees: .. is not a folder within",
        ),
        ('{"event":"start"}\n', "the start event cannot be read: step: expected text, found none"),
        ('{"event":"result","step":"3.5.0"}\n', "the result of 3.5.0 cannot be read: exit_code: is missing"),
        (
            '{"event":"result","step":"3.5.0","exit_code":77}\n',
            "exit_code: expected one of 0, 1, 2, 3, 4, 5, 70, 130, found 77",
        ),
    ],
)
def test_a_damaged_record_is_told(tmp_path: Path, line: str, says: str) -> None:
    folder = write_four_releases(tmp_path / "m")
    record = folder / "journal.jsonl"
    lines = record.read_text().splitlines(keepends=True)
    if "77" in line:
        line = line.replace("77", '77,"error":"x"')
    record.write_text("".join([*lines[:6], line, *lines[6:]]) if "77" not in line else "".join([*lines, line]))
    with pytest.raises(GauntletError, match=says):
        read_matrix_outcome(folder)


def test_there_is_no_record(tmp_path: Path) -> None:
    with pytest.raises(GauntletError, match="there is no"):
        read_matrix_outcome(tmp_path)
    (tmp_path / "journal.jsonl").write_text("")
    with pytest.raises(GauntletError, match="its first line, which describes the command, is missing"):
        read_matrix_outcome(tmp_path)


_VALUES = st.floats(0, 1e12) | st.just(math.nan)
_CELLS = st.builds(
    MatrixCell,
    st.sampled_from(Verdict),
    st.builds(
        ChainFigures,
        st.dictionaries(st.sampled_from(Figure), _VALUES),
        outputs=st.integers(0, 9).map(lambda index: (OutputComparison(index, passed=True, max_abs_error=1.0),)),
    ),
)


@given(_CELLS, _CELLS)
def test_any_figures_can_be_written(cell: MatrixCell, base: MatrixCell) -> None:
    written = make_figure_cells(cell, base)
    assert len(written) == 9
    assert "" not in written
    # Held against itself, nothing has changed.
    assert not any("↑" in text or "↓" in text for text in make_figure_cells(cell, cell) if text)


@given(st.floats(1e-6, 1e6))
def test_ratios_have_three_digits(value: float) -> None:
    text = format_factor(value)
    assert text.startswith("×")
    assert abs(float(text[1:].replace(",", "")) - value) <= max(0.0051, value * 0.0051)


def test_times_of_several_machines_of_a_cluster_have_no_ratio(tmp_path: Path) -> None:
    def on(worker: str, ms: float) -> dict[str, Any]:
        whole = make_chain(ms=ms)
        return {**whole, "benchmark": {**whole["benchmark"], "worker": f"{worker}/cpu"}}

    runs: dict[str, JournalBuilder | str | None] = {}
    for label, ms, worker in (("3.12.0", 9.0, "one"), ("3.13.0", 27.0, "two")):
        run = make_release_run(label, apart=on(worker, ms), near=on("one", ms))
        for name in ("one", "two"):
            run.worker(name, host=f"host-{name}")
        runs[label] = run
    matrix = read_matrix_outcome(write_record(tmp_path, runs))
    apart, near = ({row.chain.split("/")[1]: row for row in matrix.rows}[f"{name}@cpu"] for name in ("apart", "near"))
    assert (apart.timed_on_one_machine, near.timed_on_one_machine) == (False, True)
    (mean,) = [item for item in compute_mean_ratios(matrix) if item.metric == "time"]
    assert mean.chains == 1
    assert mean.ratio == pytest.approx(3.0)
    assert [text for text in texts(matrix, "time") if "apart" in text] == []
    cells = [make_figure_cells(row.cells["3.13.0"], row.cells["3.12.0"]) for row in (apart, near)]
    assert [cell[2] for cell in cells] == ["27.00 ± 0.27", "27.00 ± 0.27 ×3.00↑"]
    _, times, *_ = (block for block in _show_heat_maps(matrix, ["3.12.0", "3.13.0"]) if isinstance(block, Table))
    shares = [[shade.share for shade in shades if isinstance(shade, HeatCell)] for _, *shades in times.rows]
    assert shares == [[0, 0], [0, pytest.approx(math.log2(3))]]
    assert cells[0][0] == cells[1][0] == "4.00 ×1.00", "all else is held against the base"
    assert any("1 model timed on several machines of the cluster (m/apart@cpu" in remark for remark in matrix.remarks)
    found = json.loads(format_matrix_json(matrix))
    rows = {item["id"]: item["irees"]["3.13.0"]["ratios"]["time_ms"] for item in found["chains"]}
    assert rows["m/apart@cpu"] is None
    assert rows["m/near@cpu"] == pytest.approx(3.0)
