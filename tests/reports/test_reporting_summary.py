from __future__ import annotations

import errno
import json
import os
from datetime import timedelta
from typing import TYPE_CHECKING

import lxml.html
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from iree_gauntlet.document import Code, Details, Document
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.formatting import join_lines
from iree_gauntlet.journal_format import JOURNAL, read_journal
from iree_gauntlet.records.outcome import read_outcome
from iree_gauntlet.reports import render_markdown
from iree_gauntlet.reports.experiment_reports import write_reports
from iree_gauntlet.reports.report_files import STEP_SUMMARY_LIMIT, append_document
from iree_gauntlet.steps import NOTHING_COMPARED
from tests.support.journal_builder import (
    RUN_NAME,
    JournalBuilder,
    make_check,
    make_comparison,
    make_every_verdict,
    make_samples,
)
from tests.support.places import ROOT
from tests.support.reference_reports import FOLDER, make_reference_reports

if TYPE_CHECKING:
    from pathlib import Path

GITHUB_LIKE = MarkdownIt("commonmark").enable("table")
anything = st.text(st.characters(codec=None, exclude_categories=()), max_size=60)
# Whatever means something to Markdown, thickly.
spiky = st.text("`|\\*_[]()<>&#-+=!~ \n1.a$", max_size=30)


def summary_of(builder: JournalBuilder, folder: Path) -> str:
    write_reports(builder.write(folder / RUN_NAME))
    return (folder / RUN_NAME / "summary.md").read_text(encoding="utf-8")


def cells(text: str) -> list[list[str]]:
    """The text of each cell of the only table, as a Markdown reader shows it."""
    rows: list[list[str]] = []
    for token in GITHUB_LIKE.parse(text):
        if token.type == "tr_open":
            rows.append([])
        elif token.type == "inline" and rows:
            rows[-1].append("".join(child.content for child in token.children or ()))
    return rows


def test_reports_are_what_they_were() -> None:
    # Where a change is meant: `python -m tests.support.reference_reports`, and read the difference.
    assert make_reference_reports() == {
        name: (FOLDER / name).read_text(encoding="utf-8") for name in ("junit.xml", "summary.md")
    }


def test_the_end_says_what_was_judged_and_which_goldens_were_not(tmp_path: Path) -> None:
    builder = JournalBuilder()
    golden = {"metric": "dispatch_count", "value": 19, "factor": 1.0, "statistic": "mean", "sku": ""}
    goldens = [golden | {"release": "3.13.0", "origin": {"file": "x.json", "field": "golden_dispatch"}}]
    # A time of another machine is none of this one's.
    elsewhere = golden | {"metric": "time_ms", "sku": "lab", "release": "", "origin": {"file": "x.json", "field": "t"}}
    threshold = builder.step("m", "a", "threshold")
    counted = builder.step("m", "a", "compstat", goldens=goldens)
    timed = builder.step("m", "a", "benchmark", goldens=[elsewhere])
    silent = builder.step("m", "b", "threshold", notes=[NOTHING_COMPARED])
    broken = builder.step("m", "c", "threshold")
    builder.begin()
    builder.result(threshold, outputs=[make_comparison()])
    builder.result(counted, checks=[make_check("dispatch_count", 20, None, release="3.12.0")])
    builder.result(
        timed,
        samples=make_samples(9.0, 9.1),
        checks=[make_check("time_ms", 9.05, None)],
        statistics={"disturbed": ["another process"]},
    )
    builder.result(silent)
    builder.result(broken, "error", "no such file")
    builder.end(3)
    text = summary_of(builder, tmp_path)
    assert ("\n\njudged: numbers 1, dispatches 0, sizes 0, times 0 (no --sku); 1 time disturbed (\\*)\n") in text
    assert text.split("\n\n")[1].startswith("**3 cases: 1 error, 2 passed; 1 golden not applied** · 5 steps: 1 error")
    assert "x.json: golden_dispatch: not applied: dispatches: 20, not checked" in text
    assert text.count("not applied:") == 1
    assert "9.05 ± 0.07 \\*" in text


def test_a_program_that_crashed_has_compared_nothing(tmp_path: Path) -> None:
    builder = JournalBuilder()
    names = ("failed", "crashed", "excused", "expected", "flaky")
    steps = [builder.step("m", name, "threshold") for name in names]
    builder.begin()
    right, crash = [make_comparison(call=0, function="init")], {"signal": "SIGSEGV", "failure": "crashes"}
    builder.result(steps[0], "failed", outputs=[make_comparison(passed=False)], failure="wrong numbers")
    # The call before the crash gave the right numbers.
    for step, verdict in zip(steps[1:4], ("error", "quarantined", "xfailed"), strict=True):
        builder.result(step, verdict, "call 1 crashed", outputs=right, **crash)
    builder.result(steps[4], "flaky", "passed in attempt 2", outputs=right, failure="crashes")
    builder.end(3)
    assert "\n\njudged: numbers 2, " in summary_of(builder, tmp_path)
    summary = json.loads((tmp_path / RUN_NAME / "summary.json").read_text())
    qualities = {chain["submodel"]: chain["quality"] and chain["quality"]["passed"] for chain in summary["chains"]}
    assert qualities == {"failed": False, "crashed": None, "excused": None, "expected": None, "flaky": True}


def test_chains_and_facts_name_each_target(tmp_path: Path) -> None:
    builder = JournalBuilder()
    for target, sku in (("cpu", ""), ("rocm-gfx942", "mi300")):
        builder.step("clip", "text", "compile", target=target, sku=sku)
    builder.begin()
    for step in builder.steps:
        builder.result(step["id"])
    builder.end()
    text = summary_of(builder, tmp_path)
    assert all(f"`clip/text@{target}`" in text for target in ("cpu", "rocm-gfx942"))
    assert "| targets | `cpu, rocm-gfx942 (mi300)` |" in text


def test_the_table_holds_the_figures_against_their_goldens(tmp_path: Path) -> None:
    builder = JournalBuilder()
    compiled = builder.step("clip", "text", "compile")
    threshold = builder.step("clip", "text", "threshold")
    benchmark = builder.step("clip", "text", "benchmark")
    builder.begin()
    # Of the tool alone: a step takes longer.
    builder.result(compiled, seconds=9.9, statistics={"tool_seconds": 8.2})
    outputs = [make_comparison(max_abs_error=1e-6), make_comparison(index=1, max_abs_error=5e-5)]
    builder.result(threshold, outputs=outputs)
    checks = [
        make_check("time_ms", 9.1, 9.0, 1.1),
        make_check("dispatch_count", 55, 55),
        make_check("binary_size_bytes", 1_000_000, 1_100_000),
    ]
    builder.result(benchmark, samples=make_samples(9.0, 9.1, 9.2), checks=checks)
    builder.end()
    text = summary_of(builder, tmp_path)
    assert cells(text.partition("## Figures")[2].partition("judged:")[0])[1] == [
        *("passed", "clip/text@cpu", "8.20 s", "9.10 ± 0.10 / 9.90", "55 / 55", "1,000,000 / 1,100,000"),
        "5e-05 · 7 % of limit",
    ]


def test_remarks_of_a_killed_run_stand_at_the_top(tmp_path: Path) -> None:
    builder = JournalBuilder()
    builder.start(builder.step("m", "s", "compile"))
    builder.lines.clear()
    builder.begin()
    text = summary_of(builder, tmp_path)
    assert "> the journal has no end: the run was killed, or is still running" in text
    assert text.split("\n\n")[1].startswith("**1 case: 1 error** · 1 step: 1 error · exit code 3")
    assert text.split("\n\n")[2].startswith("started 2026-11-21 05:18 UTC · IREE 3.13.0rc20261016 · machine bench-1")
    assert text.split("\n\n")[3].startswith("> the journal has no end")


def test_a_run_without_steps(tmp_path: Path) -> None:
    builder = JournalBuilder()
    builder.begin()
    builder.end(5)
    text = summary_of(builder, tmp_path)
    assert text.split("\n\n")[1] == "**nothing ran** · exit code 5: nothing selected"


@given(st.one_of(spiky, anything))
def test_any_text_in_a_cell_is_shown_as_it_stands(text: str) -> None:
    made = render_markdown.table(("a", "b"), [(render_markdown.escape(text), "end")])
    (_, row) = cells(made)
    assert row[1] == "end"
    assert row[0] == join_lines(text, 500)


@given(st.one_of(spiky, anything))
def test_any_text_in_a_list_is_shown_as_it_stands(text: str) -> None:
    tokens = GITHUB_LIKE.parse(f"- {render_markdown.escape(text)}\n\nend")
    assert [token.type for token in tokens if token.type.endswith("_open")][:2] == [
        "bullet_list_open",
        "list_item_open",
    ]
    shown = [token.content for token in tokens if token.type == "inline"]
    inline = next((token for token in tokens if token.type == "inline" and token.level > 1), None)
    if join_lines(text):
        assert inline is not None
        assert "".join(child.content for child in inline.children or ()) == join_lines(text, 500)
    assert shown[-1] == "end"


@given(st.one_of(spiky, anything))
def test_any_text_in_code_leaves_its_cell_whole(text: str) -> None:
    made = render_markdown.table(("a", "b"), [(render_markdown.code(text), "end")])
    (_, row) = cells(made)
    assert row[1:] == ["end"]


@given(st.one_of(spiky, anything))
def test_a_code_block_holds_all_of_its_text(text: str) -> None:
    tokens = GITHUB_LIKE.parse(f"{render_markdown.format_code_block(text)}\n\nend")
    assert [token.type for token in tokens][:2] == ["fence", "paragraph_open"]


@given(
    st.lists(st.sampled_from(["text", "```", "````", "```sh", "```a```", "", "ä" * 5]), min_size=150, max_size=300),
    st.integers(700, 1500),
)
def test_a_shortened_document_fits_and_leaves_no_code_block_open(lines: list[str], limit: int) -> None:
    text = "\n".join(lines) + "\n"
    short = render_markdown.shorten_markdown(text, limit, "**cut**")
    assert len(short.encode()) <= limit
    if short != text:
        inlines = [token.content for token in GITHUB_LIKE.parse(short) if token.type == "inline"]
        assert inlines[-1] == "**cut**"


def test_what_is_cut_off_within_a_fold_leaves_the_note_outside_of_it() -> None:
    code = Code("a line of a tool\n" * 200)
    document = Document("T", "failed", (), (Details("outer", (Details("the tool's last lines", (code,)), code)),))
    for limit in range(800, 3000, 100):
        short = render_markdown.shorten_markdown(render_markdown.render_markdown(document), limit, "**cut**")
        assert len(short.encode()) <= limit
        assert short.count("<details>") == short.count("</details>") == 2
        assert short.rstrip().endswith("</details>\n\n**cut**")


def test_the_step_summary_is_appended_and_kept_under_the_limit(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    environ = {"GITHUB_STEP_SUMMARY": str(page)}
    page.write_text("before\n", encoding="utf-8")
    append_document(Document("short", "ok", (), ()), environ)
    assert page.read_text(encoding="utf-8") == "before\n\n# short\n\n**ok**\n"
    long = Document("long", "ok", (), (Code("a line of text\n" * 200_000),))
    append_document(long, environ)
    assert page.stat().st_size <= STEP_SUMMARY_LIMIT
    assert "Cut here" in page.read_text(encoding="utf-8")[-200:]
    size = page.stat().st_size
    append_document(long, environ)
    assert page.stat().st_size <= STEP_SUMMARY_LIMIT
    assert page.stat().st_size >= size


def test_the_step_summary_is_written_only_when_asked(tmp_path: Path) -> None:
    folder = make_every_verdict().write(tmp_path / RUN_NAME)
    page = tmp_path / "page.md"
    environ = {"GITHUB_STEP_SUMMARY": str(page)}
    write_reports(folder)
    assert not page.exists()
    write_reports(folder).append_to_step_summary(environ)
    assert page.read_bytes() == (folder / "summary.md").read_bytes()
    write_reports(folder).append_to_step_summary({})


def test_a_step_summary_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    folder = make_every_verdict().write(tmp_path / RUN_NAME)
    environ = {"GITHUB_STEP_SUMMARY": str(tmp_path / "no" / "page.md")}
    with pytest.raises(GauntletError, match="cannot append the summary"):
        write_reports(folder).append_to_step_summary(environ)


def test_the_same_journal_gives_the_same_bytes(tmp_path: Path) -> None:
    folders = [make_every_verdict().write(tmp_path / name / RUN_NAME) for name in ("a", "b")]
    for folder in folders:
        write_reports(folder)
    names = ("junit.xml", "summary.md", "summary.html", "summary.json")
    first, second = ([(folder / name).read_bytes() for name in names] for folder in folders)
    assert first == second
    write_reports(folders[0])
    assert [(folders[0] / name).read_bytes() for name in names] == first


def test_where_a_benchmark_reports_its_mean_alone_no_report_names_a_fastest_repetition(tmp_path: Path) -> None:
    for aggregated in (False, True):
        builder = JournalBuilder()
        step = builder.step("m", "s", "benchmark")
        builder.begin()
        times = (3.0,) if aggregated else (2.5, 3.5)
        builder.result(step, "failed", "slow", samples={**make_samples(*times), "aggregated": aggregated})
        builder.end()
        folder = tmp_path / str(aggregated)
        summary_of(builder, folder)
        (chain,) = json.loads((folder / RUN_NAME / "summary.json").read_text(encoding="utf-8"))["chains"]
        junit = (folder / RUN_NAME / "junit.xml").read_text(encoding="utf-8")
        assert chain["time_ms"]["mean"] == 3
        assert chain["time_ms"]["min"] == (None if aggregated else 2.5)
        assert ('name="benchmark.min_ms"' in junit) is not aggregated
        assert "mean_ms" in junit
        assert (", min " in junit) is not aggregated


def test_summary_json_is_strict_and_says_what_its_description_says(tmp_path: Path) -> None:
    builder = make_every_verdict()
    builder.lines[-2]["outputs"] = [make_comparison(passed=False, max_abs_error="nan", max_rel_error="inf")]
    folder = builder.write(tmp_path / RUN_NAME)
    write_reports(folder)

    def refuse(name: str) -> float:
        raise AssertionError(name)

    document = json.loads((folder / "summary.json").read_text(encoding="utf-8"), parse_constant=refuse)
    assert document["schema"] == 1
    assert document["exit_code"] == 3
    assert document["counts"]["passed"] == 8
    assert document["cache"]["compiles"] == {"hits": 2, "misses": 5}
    detector = document["chains"][1]
    assert detector["verdict"] == "failed"
    assert detector["time_ms"] == {
        "mean": 12.4,
        "stdev": pytest.approx(0.1),
        "min": 12.3,
        "max": 12.5,
        "repetitions": 3,
        "golden": 9,
        "limit": pytest.approx(9.9),
        "passed": False,
    }
    assert detector["dispatch_count"] == {"measured": 130, "golden": 126, "limit": 126, "passed": False}
    assert detector["quality"]["mismatches"] == 12
    assert document["chains"][-1]["quality"]["max_abs_error"] == "nan"
    assert document["chains"][2]["steps"][2]["behind"] == "minilm/l3@cpu:compile"


def test_a_folder_without_a_journal_is_named(tmp_path: Path) -> None:
    with pytest.raises(GauntletError, match="there is no journal"):
        write_reports(tmp_path)


def test_a_journal_cut_anywhere_still_gives_reports(tmp_path: Path) -> None:
    folder = make_every_verdict().write(tmp_path / RUN_NAME)
    journal = folder / "journal.jsonl"
    whole = journal.read_bytes()
    first_end = whole.index(b"\n")
    for cut in (0, first_end // 2, first_end, *range(first_end + 1, len(whole), 997)):
        journal.write_bytes(whole[:cut])
        write_reports(folder)
        outcome = read_outcome(read_journal(folder / JOURNAL))
        assert outcome.exit_code == 3
        assert outcome.remarks
        assert len(outcome.steps) == (18 if cut > first_end else 0)


def test_a_full_disk_keeps_the_old_report_and_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_every_verdict().write(tmp_path / RUN_NAME)
    write_reports(folder)
    before = (folder / "junit.xml").read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(GauntletError, match="No space left on device") as caught:
        write_reports(folder)
    assert "report" in caught.value.hint
    assert (folder / "junit.xml").read_bytes() == before


def test_the_page_has_what_the_markdown_has(tmp_path: Path) -> None:
    summary = summary_of(make_every_verdict(), tmp_path)
    page = lxml.html.fromstring((tmp_path / RUN_NAME / "summary.html").read_text(encoding="utf-8"))
    lines = summary.splitlines()
    parts = [item.text for item in page.iter("h2")]
    parts.remove("How the time was spent")
    assert [f"## {text}" for text in parts] == [line for line in lines if line.startswith("## ")]
    # What went wrong, each with a badge in place of the word before its name.
    wrong = [item.text_content()[2:].replace(" ", ": ", 1) for item in page.iter("h3")]
    assert [f"### {text}" for text in wrong] == [line for line in lines if line.startswith("### ")]
    tables = [len(rows.findall("tr")) for rows in page.iter("tbody")]
    assert tables == [6, 8, 5, 7]
    stages = [item.text_content() for item in page.xpath("//ul[@class='keys']/li")]
    assert stages[1:3] == ["compile: 7 steps, 83.3 s", "threshold: 2 steps, 2.50 s"]
    (longest,) = page.xpath("//p[.='The steps that took longest:']/following::table[1]")
    assert longest.find(".//tbody/tr").text_content() == "! errormagika/v3@cpu compile60.0 s"


def test_the_page_draws_figures_against_their_goldens_and_what_ran_when(tmp_path: Path) -> None:
    summary_of(make_every_verdict(), tmp_path)
    page = lxml.html.fromstring((tmp_path / RUN_NAME / "summary.html").read_text(encoding="utf-8"))
    held = page.xpath("//td[svg[@class='held']]")
    assert {(cell.get("data-of"), cell.find("svg/rect").get("class")) for cell in held} >= {
        ("time ms", "bar bad"),
        ("dispatches", "bar bad"),
    }
    assert {cell.text_content() for cell in held} >= {"12.40 ± 0.10 / 9.90 · +25.3 %", "130 / 126 · +3.2 %"}
    titles = page.xpath("//svg[@class='lanes']//title/text()")
    assert len(titles) == 15
    assert any(title.startswith("ocr/detector@cpu benchmark: ") and ", failed" in title for title in titles)
    logs = page.xpath("//a[code]/@href")
    assert "steps/ocr/detector%40cpu/benchmark/stderr.txt" in logs
    assert page.xpath("string(//footer)").split("beside this page: ")[1] == "junit.xml, summary.md, summary.json"
    assert "Xeon" in page.xpath("string(//header/dl)")


def test_notes_of_a_kind_that_come_often_are_folded(tmp_path: Path) -> None:
    builder = JournalBuilder()
    steps = [builder.step("m", f"s{number}", "fetch") for number in range(5)]
    builder.begin()
    for number, name in enumerate(steps):
        notes = [f"pypi://model-{number}: downloading the wheel of model-{number}==1.0 with pip", "said by all"]
        builder.result(name, notes=notes)
    builder.end()
    text = summary_of(builder, tmp_path)
    kind = "… downloading the wheel of … with pip (5 times)"
    assert f"<details><summary>{kind}</summary>" in text
    assert text.index("- said by all: ") < text.index(kind) < text.index("- pypi://model-0: downloading")


def test_a_run_that_was_resumed_is_drawn_without_its_pause(tmp_path: Path) -> None:
    builder = JournalBuilder()
    first, second = builder.step("m", "a", "compile"), builder.step("m", "b", "compile")
    builder.begin()
    builder.result(first, seconds=2.0)
    builder.now += timedelta(days=1)
    builder.begin(resumed=True)
    builder.result(second, seconds=2.0)
    builder.end(seconds=3.0)
    summary_of(builder, tmp_path)
    page = lxml.html.fromstring((tmp_path / RUN_NAME / "summary.html").read_text(encoding="utf-8"))
    boxes = page.xpath("//svg[@class='lanes']//g/rect/@x")
    widths = page.xpath("//svg[@class='lanes']//g/rect/@width")
    # Two seconds, at most one of the pause, two seconds.
    assert float(boxes[1]) - float(boxes[0]) <= 1.5 * float(widths[0]) + 1


def test_every_key_of_the_json_is_documented(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "reference" / "results.md").read_text(encoding="utf-8")
    shape = page.partition("### summary.json")[2].partition("###")[0]
    summary_of(make_every_verdict(), tmp_path)
    document = json.loads((tmp_path / RUN_NAME / "summary.json").read_text(encoding="utf-8"))
    named = [document, *document["chains"], *(step for chain in document["chains"] for step in chain["steps"])]
    assert {key for item in named for key in item if f'"{key}"' not in shape} == set()
