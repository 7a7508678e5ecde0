"""Reports of an explained run: failures name the suspect and the bundle, which are in the explanation beside it."""

from __future__ import annotations

import io
import json
import re
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from iree_gauntlet.errors import GauntletError
from iree_gauntlet.journal_format import JOURNAL
from iree_gauntlet.records.event_log import EventLog
from iree_gauntlet.records.explain_outcome import list_reproduced_cases
from iree_gauntlet.reports.experiment_reports import format_explain_command, write_reports
from tests.reports.test_reporting_causes import list_broken_links, list_rows, read_page
from tests.support.journal_builder import RUN_NAME, JournalBuilder
from tests.support.whole_records import write_comparison, write_explanation

_WRONG = "output 0: 9 of 9 values differ"
_BUNDLE = "explain/m/a.cpu/bundle.tar.gz"
_DISPATCH = "main$dispatch_1_matmul"
_EXPLAINED = f"explained: {_DISPATCH} is wrong on right inputs; fixed by: data tiling off"


def failed_run(folder: Path, reason: str = _WRONG) -> Path:
    """A run of two torch models, of which one gives wrong numbers."""
    builder = JournalBuilder()
    steps = [builder.step("m", name, "threshold", dialect="torch-models") for name in ("a", "b")]
    builder.begin()
    builder.result(steps[0], verdict="failed", reason=reason)
    builder.result(steps[1])
    builder.end(1)
    return builder.write(folder / RUN_NAME)


def explained(run: Path, case: str = "m/a@cpu", *, done: bool = True, **request: bool) -> Path:
    """The record of its explanation."""
    (run / "explain").mkdir(exist_ok=True)
    with EventLog(run / "explain" / JOURNAL, lambda: datetime.now(UTC)) as log:
        opening = {"kind": "explain", "command": "gauntlet explain", "cwd": "/", "toolchain": {"compiler": "3.6.0"}}
        log.write(
            "opening", {**opening, "cases": [{"case": case, "kind": "wrong numbers", "reason": _WRONG, **request}]}
        )
        log.write("start", {}, step=case)
        around = [[0, "main$dispatch_0_fill", 1e-7], [1, _DISPATCH, 0.5], [2, "main$dispatch_2_add", None]]
        suspect = {
            "dispatch": _DISPATCH,
            "call": 1,
            "of": 3,
            "error": 0.5,
            "inputs": [],
            "outputs": [],
            "around": around,
        }
        probes = [{"name": "data tiling off", "flag": "--x", "verdict": "passes", "reason": ""}]
        bundle = {"problem": "", "folder": "m/a.cpu/bundle", "bytes": 100, "exit_code": 1, "form": "the whole program"}
        for part, fields in (("located", suspect | {"reference": "vmvx"}), ("probes", {"probes": probes})):
            log.write(part, fields, step=case)
        log.write("bundle", bundle, step=case)
        if done:
            log.write("result", {"bundled": True, "seconds": 1.0}, step=case)
        log.write("end", {"exit_code": 0, "problem": "", "seconds": 1.0, "interrupted": False})
    return run


def reports(run: Path) -> dict[str, str]:
    names = ("junit.xml", "summary.md", "summary.html", "summary.json", "job_summary.md", "job_summary.json")
    return {name: (run / name).read_text() for name in names}


def explanations(run: Path) -> list[Any]:
    document = json.loads((run / "summary.json").read_text())
    return [step["explanation"] for chain in document["chains"] for step in chain["steps"]]


def test_every_report_names_the_suspect_and_the_bundle(tmp_path: Path) -> None:
    run = failed_run(tmp_path)
    write_reports(run)
    before = reports(run)
    assert not any(_DISPATCH in text for text in before.values())
    # The reports of the explanation bring those of the run with them, and they stay the same.
    write_reports(explained(run) / "explain")
    found = reports(run)
    shown = write_reports(run)
    assert reports(run) == found
    root = ET.fromstring(found["junit.xml"])
    failure = root.findtext("testsuite[@name='m/a@cpu']/testcase/failure") or ""
    assert f"\n{_EXPLAINED}\nbundle: {_BUNDLE}\n" in failure
    properties = {item.get("name"): item.get("value") for item in root.findall("testsuite/properties/property")}
    assert properties["threshold.explained"] == f"{_DISPATCH} is wrong on right inputs"
    assert properties["threshold.bundle"] == _BUNDLE
    assert f"]({_BUNDLE})" in found["summary.md"]
    assert f'href="{_BUNDLE}"' in found["summary.html"]
    assert _DISPATCH in found["summary.html"]
    answer = {"answer": f"{_DISPATCH} is wrong on right inputs", "mended_by": ["data tiling off"], "bundle": _BUNDLE}
    assert explanations(run) == [answer, None]
    assert f"bundle: `{_BUNDLE}`" in found["job_summary.md"].split("## Explanations")[1]
    assert found["job_summary.json"] == before["job_summary.json"]
    # On a terminal, by the path as the user knows it.
    stream = io.StringIO()
    shown.print(run, stream, environ={})
    assert f"{run}/{_BUNDLE}" in stream.getvalue().replace("\n", "")


def test_what_an_earlier_explanation_found_stays(tmp_path: Path) -> None:
    run = explained(failed_run(tmp_path))
    explained(run, "m/b@cpu")
    write_reports(run)
    # The other one passed, whatever is said of it.
    assert [bool(item) for item in explanations(run)] == [True, False]


def test_what_was_begun_again_is_not_explained_before(tmp_path: Path) -> None:
    folder = explained(failed_run(tmp_path)) / "explain"
    assert list_reproduced_cases(folder, without_weights=False, budget=1.0) == {"m/a@cpu"}
    assert list_reproduced_cases(folder, without_weights=True, budget=1.0) == set()
    # Its bundle was removed then, and the command was killed.
    with EventLog(folder / JOURNAL, lambda: datetime.now(UTC)) as log:
        log.write("start", {}, step="m/a@cpu")
    assert list_reproduced_cases(folder, without_weights=False, budget=1.0) == set()


@pytest.mark.parametrize(("reason", "done"), [("output 0: 3 of 9 values differ", True), (_WRONG, False)])
def test_what_is_no_explanation_of_this_failure_is_left_out(tmp_path: Path, reason: str, *, done: bool) -> None:
    run = explained(failed_run(tmp_path, reason), done=done)
    write_reports(run)
    assert explanations(run) == [None, None]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("nonsense", f"explain/{JOURNAL}:2: the line is not a JSON object"),
        (
            '{"event": "opening", "kind": "explain", "cases": [{"case": "m/a@cpu"}]}',
            "the opening event cannot be read: cases.kind: is missing",
        ),
        ('{"event": "opening", "kind": "explain", "cases": 3}', "cases: expected a list, found 3"),
    ],
)
def test_a_damaged_record_is_a_remark_and_the_reports_are_whole(tmp_path: Path, line: str, says: str) -> None:
    run = explained(failed_run(tmp_path))
    record = run / "explain" / JOURNAL
    lines = record.read_text().splitlines(keepends=True)
    record.write_text("".join((lines[0], f"{line}\n", *lines[1:])))
    reports = write_reports(run)
    document = json.loads((run / "summary.json").read_text())
    assert (int(reports.exit_code), explanations(run)) == (1, [None, None])
    (remark,) = document["remarks"]
    assert remark.startswith("what `explain` found is left out: explain/")
    assert says in remark
    assert str(tmp_path) not in remark
    # Whoever asks for the explanation itself, or for another one, hears of it.
    for read in (write_reports, partial(list_reproduced_cases, without_weights=False, budget=1.0)):
        with pytest.raises(GauntletError, match=re.escape(says)):
            read(record.parent)


def test_any_text_in_the_record_leaves_the_reports_valid(tmp_path: Path) -> None:
    run = explained(failed_run(tmp_path))
    record = run / "explain" / JOURNAL
    record.write_text(record.read_text().replace(_DISPATCH, "a\\u0000|<script>`]]>&"))
    write_reports(run)
    ET.fromstring((run / "junit.xml").read_text())
    for name in ("summary.html", "summary.md", "job_summary.md"):
        assert "|<script>`" not in (run / name).read_text()


@pytest.mark.parametrize(
    ("typed", "again"),
    [
        ("gauntlet explain", "gauntlet explain RUN"),
        ("gauntlet explain --no-weights", "gauntlet explain RUN --no-weights"),
        ("gauntlet explain latest 'toy/*' --budget 9", "gauntlet explain RUN 'toy/*' --budget 9"),
        ("gauntlet explain --slower", "gauntlet explain --slower RUN"),
        ("gauntlet explain runs/x", "gauntlet explain runs/x"),
        ("gauntlet run --model toy --explain", "gauntlet run --model toy --explain"),
    ],
)
def test_the_command_that_does_it_again_names_the_run_which_may_no_longer_be_the_latest(typed: str, again: str) -> None:
    assert format_explain_command(typed, "RUN") == again


def test_every_page_leads_to_the_pages_around_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = failed_run(tmp_path / "runs")
    (tmp_path / "runs" / "index.html").write_text("<p>all of them</p>", encoding="utf-8")
    write_reports(explained(run) / "explain")
    comparison = write_comparison(tmp_path / "runs" / "c").parent
    write_reports(comparison)
    write_reports(comparison / "a")

    def list_links(page: Path) -> list[tuple[str, str]]:
        return [(link.text, link.get("href")) for link in read_page(page).xpath("//nav/a")]

    assert list_links(run / "summary.html") == [
        ("all runs", "../index.html"),
        ("the explanation", "explain/explain.html"),
    ]
    assert list_links(run / "explain" / "explain.html") == [
        ("the run", "../summary.html"),
        ("all runs", "../../index.html"),
    ]
    assert list_links(comparison / "comparison.html") == [("all runs", "../index.html")]
    assert list_links(comparison / "a" / "summary.html") == [
        ("the comparison", "../comparison.html"),
        ("all runs", "../../index.html"),
    ]
    # What explains a failure is beside its cause.
    page = read_page(run / "summary.html")
    (row,) = list_rows(page.xpath("//main//table")[0])
    assert row[-1] == "main$dispatch_1_matmul is wrong on right inputs"
    assert "explain/explain.html#m/a@cpu" in page.xpath("//main//table")[0].xpath(".//a/@href")
    assert list_broken_links(page, run) == []


def test_an_explanation_begins_with_its_conclusion_and_the_next_command(tmp_path: Path) -> None:
    run = explained(failed_run(tmp_path))
    reports = write_reports(run / "explain")
    conclusion = "main$dispatch_1_matmul is wrong on right inputs"
    command = f"gauntlet bundle.check runs/{RUN_NAME}/explain/m/a.cpu/bundle.tar.gz"
    page = read_page(run / "explain" / "explain.html")
    assert page.xpath("string(//p[@class='answer']/strong)") == reports.headline == conclusion
    first, second = page.xpath("//main/*")[:2]
    assert (first.text, second.xpath("string(code)")) == ("Next:", command)
    assert json.loads((run / "explain" / "explain.json").read_text(encoding="utf-8"))["answer"] == conclusion
    stream = io.StringIO()
    reports.print(Path("runs") / RUN_NAME / "explain", stream, environ={})
    lines = stream.getvalue().splitlines()
    assert lines[-6:-2] == ["Next:", f"    {command}", "", f"{conclusion} · IREE 3.6.0"]


def test_outputs_that_are_not_those_recorded_are_to_be_recorded_again(tmp_path: Path) -> None:
    run = explained(failed_run(tmp_path), changed=True)
    write_reports(run / "explain")
    page = read_page(run / "explain" / "explain.html")
    assert page.xpath("//main/*")[1].xpath("string(code)") == "gauntlet golden.record --model m"


def test_an_explanation_of_several_failures_has_them_in_a_table(tmp_path: Path) -> None:
    folder = write_explanation(tmp_path / "explain").parent
    reports = write_reports(folder)
    assert reports.headline.startswith(
        "5 failures: main$dispatch_1 is wrong on right inputs; reduced from 9 operations"
    )
    page = read_page(folder / "explain.html")
    table = page.xpath("//h2[.='Failures']/following-sibling::div[1]/table")[0]
    rows = list_rows(table)
    assert [row[0] for row in rows] == [f"toy/{name}@cpu" for name in ("wrong", "crash", "slow", "same", "none")]
    assert rows[0][2:] == ["main$dispatch_1 is wrong on right inputs", "data tiling off"]
    assert table.xpath(".//a/@href")[0] == "#toy/wrong@cpu"
    assert list_broken_links(page, folder) == []
