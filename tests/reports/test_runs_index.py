"""The page of all runs: newest first, known runs are not read again, and unreadable runs hide nothing else."""

from __future__ import annotations

import io
import json
import os
import shutil
from typing import TYPE_CHECKING

import pytest
from lxml import html

from iree_gauntlet.errors import ExitCode, UsageError
from iree_gauntlet.journal_format import JOURNAL
from iree_gauntlet.reports.experiment_reports import ConsolePresenter, make_reports, write_reports
from iree_gauntlet.reports.run_reports import read_run_reports
from iree_gauntlet.reports.runs_index import write_index
from tests.support.command_line import run_in_process
from tests.support.journal_builder import JournalBuilder, make_every_verdict
from tests.support.matrix_builder import write_four_releases
from tests.support.places import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from iree_gauntlet.reports.report_files import Reports


def _run(folder: Path, name: str, hour: int) -> Path:
    builder = JournalBuilder(run=name)
    step = builder.step("m", "a", "compile")
    builder.begin()
    builder.result(step)
    builder.end(seconds=2.0)
    path = builder.write(folder / name)
    os.utime(path / JOURNAL, (hour * 3600, hour * 3600))
    return path


def _rows(page: Path) -> list[list[str]]:
    found = html.fromstring(page.read_text(encoding="utf-8"))
    return [[cell.text_content() for cell in row.findall("td")] for row in found.findall(".//tbody/tr")]


def _counted(read: list[str]) -> Callable[[Path], Reports]:
    """What makes the reports, and notes of which folder."""

    def made(folder: Path) -> Reports:
        read.append(folder.name)
        return make_reports(folder)

    return made


def test_the_newest_comes_first_and_leads_to_its_page(tmp_path: Path) -> None:
    write_reports(_run(tmp_path, "old one", 1))
    write_four_releases(tmp_path / "releases")
    (tmp_path / "notes").mkdir()
    path, count = write_index(tmp_path, make_reports, all_of_them=True)
    assert count == 2
    rows = _rows(path)
    failure = "m/rec@cpu: 3.5.0: failed: compile: error: large vector sizes | in a `softmax`"
    assert [row[:3] for row in rows] == [
        ["✗ something failed", "releases", f"2 of 4 IREEs as expected; {failure}"],
        ["✓ all as expected", "old one", "1 case: 1 passed"],
    ]
    assert rows[1][2:] == [
        "1 case: 1 passed",
        "2026-11-21 05:18",
        "2.00 s",
        "3.13.0rc20261016",
        "inv run --suite suites/cpu.toml",
    ]
    links = html.fromstring(path.read_text()).xpath("//td/a/@href")
    assert links == ["old%20one/summary.html"], "a matrix without reports has no page"


def test_it_says_what_the_pages_say(tmp_path: Path) -> None:
    for kind, code in (("compare", 1), ("bisect", 0)):
        shutil.copytree(ROOT / "tests" / "data" / "recorded" / kind, tmp_path / kind)
        journal = tmp_path / kind / JOURNAL
        *lines, end = journal.read_text().splitlines()
        journal.write_text("\n".join([*lines, json.dumps({**json.loads(end), "exit_code": code})]) + "\n")
        write_reports(tmp_path / kind)
    path, _ = write_index(tmp_path, make_reports)
    said = {row[1]: row[0] for row in _rows(path)}
    assert said == {"compare": "✗ B is slower", "bisect": "✓ the change was found"}
    for name, page in (("compare", "comparison.html"), ("bisect", "bisect.html")):
        assert said[name] in html.fromstring((tmp_path / name / page).read_text()).xpath("string(//header)")


def test_only_what_is_new_or_was_written_to_is_read(tmp_path: Path) -> None:
    for number in range(3):
        _run(tmp_path, f"r{number}", number + 1)
    read: list[str] = []
    records = _counted(read)
    write_index(tmp_path, records)
    assert read == ["r2", "r1", "r0"]
    path, _ = write_index(tmp_path, records)
    before = path.read_bytes()
    assert len(read) == 3
    os.utime(tmp_path / "r1" / JOURNAL, (9999, 9999))
    write_index(tmp_path, records)
    assert read[3:] == ["r1"]
    assert len(path.read_bytes()) == len(before)
    os.utime(tmp_path / "r1" / JOURNAL, (9998, 9998))
    write_index(tmp_path, records, existing={"r1": read_run_reports(tmp_path / "r1")})
    assert len(read) == 4, "what is made already is not read again"


def test_of_many_new_ones_the_newest_are_read_and_the_rest_is_named(tmp_path: Path) -> None:
    for number in range(23):
        _run(tmp_path, f"r{number:02}", number + 1)
    path, count = write_index(tmp_path, make_reports)
    assert count == 20
    assert "3 older folders not read yet: gauntlet report --index reads all." in path.read_text()
    path, count = write_index(tmp_path, make_reports, all_of_them=True)
    assert count == 23
    assert "not read yet" not in path.read_text()


_MEMORY = '<meta name="memory" content="{}">'
_OF_ANOTHER = (
    "{&quot;r0&quot;: {&quot;stamp&quot;: &quot;&quot;, &quot;kind&quot;: &quot;&quot;, &quot;code&quot;: 99, "
    "&quot;result&quot;: &quot;&quot;, "
    "&quot;started&quot;: &quot;&quot;, &quot;seconds&quot;: null, &quot;iree&quot;: &quot;&quot;, "
    "&quot;command&quot;: &quot;&quot;}}"
)


@pytest.mark.parametrize(
    "found",
    [
        "",
        "<html>",
        '<meta name="memory" content="{&quot;r0&quot;: 1}">',
        _MEMORY.format("[1]"),
        _MEMORY.format(_OF_ANOTHER),
        "\udcff",
    ],
)
def test_a_page_that_remembers_nothing_of_use_is_made_anew(tmp_path: Path, found: str) -> None:
    _run(tmp_path, "r0", 1)
    page = found and f"{found}<footer>IREE Gauntlet</footer>"
    (tmp_path / "index.html").write_bytes(page.encode("utf-8", "surrogateescape"))
    path, _ = write_index(tmp_path, make_reports)
    assert _rows(path)[0][1] == "r0"


def test_a_page_of_others_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _run(tmp_path, "r0", 1)
    page = tmp_path / "index.html"
    page.write_text("<h1>My site</h1>")
    with pytest.raises(UsageError, match=r"index\.html exists but is not a page of runs"):
        write_index(tmp_path, make_reports, all_of_them=True)
    assert page.read_text() == "<h1>My site</h1>"
    # Made by the way, it is no more than a note.
    monkeypatch.setattr("iree_gauntlet.reports.experiment_reports.find_runs_folder", lambda: tmp_path)
    said: list[str] = []
    monkeypatch.setattr("iree_gauntlet.messages.note", said.append)
    assert ConsolePresenter(io.StringIO()).report_run(tmp_path / "r0", brief=False) == ExitCode.OK
    assert [line.partition(" exists")[0] for line in said] == [str(page)]
    assert page.read_text() == "<h1>My site</h1>"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["report", "--index", "empty"], "no run in empty"),
        (["report", "empty"], "empty is not a run: it has no journal.jsonl"),
        (["report", "runs"], "--index makes the page of a folder of runs"),
    ],
)
def test_a_folder_without_what_is_asked_for(tmp_path: Path, words: list[str], said: str) -> None:
    (tmp_path / "empty").mkdir()
    _run(tmp_path / "runs", "r0", 1)
    done = run_in_process(words, tmp_path, os.environ)
    assert done.code == 2
    assert said in done.err
    assert not (tmp_path / "empty" / "index.html").exists()


def test_a_record_that_cannot_be_read_is_listed_with_the_reason(tmp_path: Path) -> None:
    make_every_verdict().write(tmp_path / "whole")
    path = _run(tmp_path, "broken", 1) / JOURNAL
    path.write_text(path.read_text().replace('"origin"', '"somewhere"'))
    page, _ = write_index(tmp_path, make_reports, all_of_them=True)
    rows = {row[1]: row for row in _rows(page)}
    assert rows["broken"][0] == "unfinished"
    assert "journal" in rows["broken"][2]
    assert rows["whole"][0] == "! an error prevented a verdict"
    assert rows["whole"][2].endswith("skipped; ocr/detector@cpu threshold: output 0 differs: 12 of 384 elements")
