"""A red run begins with its causes: each in one line, with a link to its only description."""

from __future__ import annotations

import io
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import lxml.html

from iree_gauntlet.formatting import take_last_lines
from iree_gauntlet.reports.experiment_reports import write_reports
from tests.support.journal_builder import RUN_NAME, JournalBuilder, make_check, make_comparison, make_samples

_LLVM_ERROR = "LLVM ERROR: 64-bit code requested on a subtarget that doesn't support it!"
_PROCESSOR = "'zzz' is not a recognized processor for this target (ignoring processor)"
_WRONG = "12 of 384 values (3.12 %) differ by more than 0.0001; worst at [0, 3]: 4, expected 4.1"


def _make_red_run() -> JournalBuilder:
    builder = JournalBuilder()
    passed, wrong, slow = (builder.step("m", name, "threshold") for name in ("good", "wrong", "near"))
    broken = builder.step("m", "broken", "compile")
    timed = builder.step("m", "slow", "benchmark")
    builder.begin()
    builder.result(passed, outputs=[make_comparison()])
    outputs = [make_comparison(passed=False, message=_WRONG)]
    builder.result(wrong, "failed", f"output 0: {_WRONG}", failure="wrong numbers", outputs=outputs)
    builder.result(slow, outputs=[make_comparison(worst_expected="4.000133")])
    builder.result(
        broken,
        "failed",
        f"iree-compile failed with exit code 1: {_LLVM_ERROR}",
        exit_code=1,
        tail=["Unknown CPU", *[_PROCESSOR] * 9, _LLVM_ERROR],
    )
    checks = [make_check("time_ms", 126.0, 9.0), make_check("dispatch_count", 76, 76)]
    reason = "4 more rounds agree; time 126 ms exceeds the limit 9 ms"
    builder.result(timed, "failed", reason, checks=checks, samples=make_samples(126.0))
    builder.end(1)
    return builder


def read_page(path: Path) -> Any:
    return lxml.html.fromstring(path.read_text(encoding="utf-8"))


def list_rows(table: Any) -> list[list[str]]:
    return [[cell.text_content() for cell in row.findall("td")] for row in table.findall(".//tbody/tr")]


def list_broken_links(page: Any, folder: Path) -> list[str]:
    """Return the links to parts of the page or to files beside it that do not exist."""
    ids_by_file = {"": set(page.xpath("//@id"))}
    broken = []
    for link in page.xpath("//a/@href"):
        file, _, part = link.partition("#")
        if file.endswith(".html") and file not in ids_by_file:
            ids_by_file[file] = set(read_page(folder / file).xpath("//@id"))
        if part and file in ids_by_file and part not in ids_by_file[file]:
            broken.append(link)
    return broken


def test_a_red_run_begins_with_the_cause_of_each_failure(tmp_path: Path) -> None:
    folder = _make_red_run().write(tmp_path / RUN_NAME)
    reports = write_reports(folder)
    page = read_page(folder / "summary.html")
    assert page.xpath("//main/*")[0].text_content() == "What went wrong"
    table, figures = page.xpath("//main//table")[:2]
    causes = [
        "12 of 384 differ (3.1 %), ×709 of limit",
        _LLVM_ERROR,
        "time (mean): 126.00 ms exceeds golden 9.00 ms: ×14",
    ]
    assert [row[1:] for row in list_rows(table)] == [
        ["m/wrong@cpu", "threshold", causes[0]],
        ["m/broken@cpu", "compile", causes[1]],
        ["m/slow@cpu", "benchmark", causes[2]],
    ]
    # Each failure has an id, to which its rows lead.
    ids = ["m/wrong@cpu:threshold", "m/broken@cpu:compile", "m/slow@cpu:benchmark"]
    assert [item.get("id") for item in page.iter("h3")] == ids
    for linking in (table, figures):
        assert linking.xpath(".//a/@href") == [f"#{name}" for name in ids]
    assert list_broken_links(page, folder) == []
    # Nothing is said twice: the reason is left out where the figures or the tool say it.
    main = page.xpath("string(//main)")
    assert _WRONG not in main
    assert main.count(_LLVM_ERROR) == 2
    assert f"{_PROCESSOR} ×9" in main
    # The tool's own lines are open, commands are folded.
    assert _LLVM_ERROR in page.xpath("string(//pre[not(ancestor::details)][contains(., 'Unknown CPU')])")
    assert page.xpath("count(//details[summary='Reproduce']//pre[@class='command'])") == 3
    stream = io.StringIO()
    reports.print(Path("runs/x"), stream, environ={})
    lines = stream.getvalue().splitlines()
    assert lines[3] == "What went wrong"
    assert [line.split("  ")[-1] for line in lines[5:8]] == causes
    chains = json.loads((folder / "summary.json").read_text(encoding="utf-8"))["chains"]
    assert [step["cause"] for chain in chains for step in chain["steps"] if "cause" in step] == causes
    text = (folder / "summary.md").read_text(encoding="utf-8")
    assert f"| [**failed**](#{ids[1]}) | `m/broken@cpu` | compile | {_LLVM_ERROR} |" in text
    assert f'<a id="{ids[1]}"></a>\n\n### failed: m/broken@cpu compile\n' in text


def test_what_an_interrupted_run_never_began_has_no_link(tmp_path: Path) -> None:
    builder = JournalBuilder()
    began, other = (builder.step("m", name, "threshold") for name in ("a", "b"))
    builder.begin()
    builder.start(began)
    folder = builder.write(tmp_path / RUN_NAME)
    write_reports(folder)
    page = read_page(folder / "summary.html")
    assert [row[1] for row in list_rows(page.xpath("//main//table")[0])] == ["m/a@cpu"]
    assert f"#{other}" not in page.xpath("//@href")
    assert list_broken_links(page, folder) == []


def test_only_failures_that_the_page_describes_have_links(tmp_path: Path) -> None:
    builder = JournalBuilder()
    steps = [builder.step("ops", f"test_{number:03}", "compile") for number in range(230)]
    builder.begin()
    words = [f"{first}{second}" for first in "abcdefghijklmnop" for second in "abcdefghijklmnop"]
    for word, step in zip(words, steps, strict=False):
        builder.result(step, "failed", f"error: no operator called {word}")
    builder.end(1)
    folder = builder.write(tmp_path / RUN_NAME)
    write_reports(folder)
    page = read_page(folder / "summary.html")
    assert list_broken_links(page, folder) == []
    figures = page.xpath("//h2[.='Figures']/following-sibling::div[1]/table")[0]
    assert len(figures.xpath(".//tbody/tr")) == 230
    assert len(figures.xpath(".//a")) == len(page.xpath("//h3")) == 200
    assert (folder / "summary.md").read_text(encoding="utf-8").count("](#ops/test_229@cpu:compile)") == 0


def test_what_a_reason_adds_to_the_figures_stays(tmp_path: Path) -> None:
    builder = JournalBuilder()
    step = builder.step("m", "a", "threshold")
    builder.begin()
    outputs = [make_comparison(passed=False, message=_WRONG)]
    builder.result(step, "failed", f"m.npy was written to since the run; output 0: {_WRONG}", outputs=outputs)
    builder.end(1)
    folder = builder.write(tmp_path / RUN_NAME)
    write_reports(folder)
    page = read_page(folder / "summary.html")
    (row,) = list_rows(page.xpath("//main//table")[0])
    assert row[3].startswith("m.npy was written to since the run; output 0: ")
    assert page.xpath("string(//h3/following-sibling::p)").startswith("m.npy was written to since the run")


def test_a_line_that_a_tool_repeats_is_shown_once() -> None:
    assert take_last_lines(("a", "b", "b", "b", "", "", "c")) == ["a", "b ×3", "", "c"]


def test_figures_are_a_line_a_model_with_bars_near_their_limits(tmp_path: Path) -> None:
    folder = _make_red_run().write(tmp_path / RUN_NAME)
    write_reports(folder)
    page = read_page(folder / "summary.html")
    figures = page.xpath("//h2[.='Figures']/following-sibling::div[1]/table")[0]
    assert [row[1:] for row in list_rows(figures)] == [
        ["m/wrong@cpu", "–", "–", "12 of 384 differ (3.1 %), ×709 of limit"],
        ["m/broken@cpu", "–", "–", "–"],
        ["m/slow@cpu", "126.00 / 9.00 · ×14", "76 / 76", "–"],
        ["m/good@cpu", "–", "–", "1.2e-05 · 7 % of limit"],
        ["m/near@cpu", "–", "–", "1.2e-05 · 95 % of limit"],
    ]
    bars = figures.xpath(".//td[svg]")
    assert [(bar.get("data-of"), bar.find("svg/rect").get("class")) for bar in bars] == [
        ("quality", "bar bad"),
        ("time ms", "bar bad"),
        ("quality", "bar good"),
    ]
    assert "Times" not in [item.text for item in page.iter("h2")]


def test_the_headline_counts_cases_and_then_steps(tmp_path: Path) -> None:
    folder = _make_red_run().write(tmp_path / RUN_NAME)
    headline = "5 cases: 3 failed, 2 passed"
    assert write_reports(folder).headline == headline
    page = read_page(folder / "summary.html")
    assert page.xpath("string(//p[@class='answer'])") == f"{headline} · 5 steps: 3 failed, 2 passed"
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    assert {verdict: count for verdict, count in summary["case_counts"].items() if count} == {"failed": 3, "passed": 2}
    rows = list_rows(page.xpath("//h2[.='Figures']/following-sibling::div[1]/table")[0])
    assert len(rows) == 5


def test_failures_of_many_cases_are_grouped_from_two_on_and_every_case_is_on_the_page(tmp_path: Path) -> None:
    builder = JournalBuilder()
    names = [f"test_{number:03}" for number in range(996)]
    steps = [builder.step("ops", name, "threshold") for name in names]
    builder.begin()
    for number, step in enumerate(steps):
        if number in (3, 500, 900):
            count = 34 if number == 900 else 1
            outputs = [make_comparison(passed=False, mismatches=count, message=_WRONG)]
            builder.result(step, "failed", f"output 0: {_WRONG}", failure="wrong numbers", outputs=outputs)
        else:
            builder.result(step, outputs=[make_comparison()])
    builder.end(1)
    folder = builder.write(tmp_path / RUN_NAME)
    write_reports(folder)
    page = read_page(folder / "summary.html")
    cause = ["3", "threshold", "wrong numbers, up to 8.9 % of values"]
    assert list_rows(page.xpath("//main//table")[0]) == [["✗ failed", "ops/test_003@cpu and 2 more", *cause]]
    assert page.xpath("//main//table")[0].xpath(".//a/@href") == ["#ops/test_003@cpu:threshold"]
    assert list_broken_links(page, folder) == []
    text = page.xpath("string(//main)")
    assert all(f"ops/{name}@cpu" in text for name in names)
    (others,) = page.xpath("//details[summary='993 more cases']//code/text()")
    assert len(others.splitlines()) == 994
    assert (folder / "summary.html").stat().st_size <= 200_000
    assert "ops/test_000@cpu" not in (folder / "summary.md").read_text(encoding="utf-8")


def test_a_page_leads_to_the_run_before(tmp_path: Path) -> None:
    for day, name in enumerate(("a", "b c")):
        builder = JournalBuilder()
        builder.now += timedelta(days=day)
        step = builder.step("m", "s", "threshold")
        builder.begin(name=name)
        builder.result(step)
        builder.end()
        write_reports(builder.write(tmp_path / name))
    assert read_page(tmp_path / "a" / "summary.html").xpath("//nav") == []
    (link,) = read_page(tmp_path / "b c" / "summary.html").xpath("//nav/a")
    assert (link.text, link.get("href")) == ("the run before", "../a/summary.html")
