"""`history.add`, `.list`, `.show`, `.check`, `.export`, `.import`, `.prune`, as a user types them."""

from __future__ import annotations

import csv
import json
import os
import shlex
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from iree_gauntlet.history.index import add_run
from iree_gauntlet.history.stores import find_history, open_history
from iree_gauntlet.records.history_record import make_history_file
from iree_gauntlet.settings import Configuration, HistorySettings
from tests.history.builder import run_of
from tests.support.journal_builder import JournalBuilder, make_samples
from tests.support.matrix_builder import write_four_releases

if TYPE_CHECKING:
    from pathlib import Path

    from iree_gauntlet.records.history_record import HistoryRun
    from tests.support.toy_project import Project


def kept(project: Project, runs: list[HistoryRun]) -> Path:
    """A history of the project with these runs."""
    folder = project.folder / "history"
    open_history(str(folder), Configuration(), project.folder).add(dict(map(make_history_file, runs)))
    return folder


def stepped(project: Project) -> Path:
    """30 runs; from the 21st on there are two dispatches more."""
    return kept(project, [run_of(day, {"time_ms": 10.0, "dispatches": 7.0 + 2 * (day > 20)}) for day in range(1, 31)])


@pytest.mark.iree
def test_a_run_is_added_with_all_that_it_measured_and_every_run_adds_itself(project: Project) -> None:
    assert project.gauntlet("run", "--model", "toy", "--submodel", "abs", "--force-recompile").code == 0
    done = project.gauntlet("history.add")
    assert (done.code, "1 run added to history" in done.out) == (0, True), done.text
    again = project.gauntlet("history.add", project.newest.name, str(project.newest))
    assert (again.code, "0 runs added to history, 2 were already there" in again.out) == (0, True), again.text
    (project.folder / "gauntlet.toml").write_text("[history]\nadd = true\n")
    assert project.gauntlet("fetch", "--model", "toy", "--submodel", "abs").code == 0, "it judges nothing: not added"
    project.write_expected("abs", [9.0] * 4)
    assert project.gauntlet("run", "--model", "toy", "--submodel", "abs").code == 1
    runs = json.loads(project.gauntlet("history.list", "--format", "json").out)["runs"]
    assert [run["exit_code"] for run in runs] == [0, 1], "what failed is kept as well"
    times = project.gauntlet("history.export", "--series", "* time_ms").out.splitlines()
    assert len(times) == 2, "what gives wrong numbers has no time"
    shown = project.gauntlet("history.show", "toy/abs@cpu*")
    for figure in ("time_ms", "compile_s", "size_bytes", "dispatches", "max_error"):
        assert f"toy/abs@cpu {figure}" in shown.out, shown.text


@pytest.mark.iree
def test_a_history_that_cannot_be_written_is_a_warning_and_no_matter_of_the_run(project: Project) -> None:
    (project.folder / "gauntlet.toml").write_text('[history]\nstore = "file"\nadd = true\n')
    (project.folder / "file").write_text("")
    done = project.gauntlet("run", "--model", "toy", "--submodel", "abs")
    assert (done.code, "was not added to the history" in done.err) == (0, True), done.text


def test_what_changed_is_said_with_its_exit_code_until_it_is_accepted(project: Project) -> None:
    stepped(project)
    done = project.gauntlet("history.check")
    assert done.code == 1, done.text
    assert "toy/abs@cpu dispatches" in done.out
    assert "+28.6 %" in done.out
    assert "1 regression, 0 suspected, 0 improvements · 30 runs, 2 series · history" in done.out
    found = json.loads(project.gauntlet("history.check", "--format", "json").out)
    (finding,) = found["findings"]
    assert (finding["before"]["run"], finding["after"]["run"], finding["p_value"]) == ("run20", "run21", None)
    assert project.gauntlet("history.check", "--since", "2026-04-01").code == 0
    assert project.gauntlet("history.check", "--series", "* time_ms").code == 0
    (project.folder / "history_marks.toml").write_text(
        '[[mark]]\nseries = "toy/*"\niree = "2026-03-21"\nmark = "accepted"\nreason = "two fusions less, on purpose"\n'
    )
    accepted = project.gauntlet("history.check")
    assert (accepted.code, "accepted" in accepted.out) == (0, True), accepted.text
    marks = project.folder / "history_marks.toml"
    marks.write_text(marks.read_text().replace("toy/*", "toy/abs@cpu dipsatches"))
    for words in ((), ("--series", "* time_ms")):
        warned = project.gauntlet("history.check", *words)
        assert (
            "abs@cpu dipsatches matches no series of the history; the nearest are toy/abs@cpu dispatches" in warned.err
        )


def test_the_folder_of_the_settings_is_the_projects(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project.folder)
    assert find_history(Configuration()) == "history"
    monkeypatch.chdir(project.folder / "specs")
    assert find_history(Configuration()) == str(project.folder / "history")
    for place in ("git:.#history", "s3://bucket/path", "~/history"):
        assert find_history(Configuration(history=HistorySettings(store=place))) == place


def test_figures_are_exported_as_csv(project: Project) -> None:
    stepped(project)
    done = project.gauntlet("history.export", "--series", "* dispatches", "--output", "out.csv")
    assert done.code == 0, done.text
    rows = list(csv.DictReader((project.folder / "out.csv").read_text().splitlines()))
    assert [float(row["value"]) for row in rows] == [7.0] * 20 + [9.0] * 10
    assert rows[0]["machine"] == "CPU, 2 cores, Linux 6"


def test_old_runs_are_removed_when_that_is_said(project: Project) -> None:
    folder = stepped(project)
    shown = project.gauntlet("history.prune", "--before", "2026-03-11")
    assert (shown.code, "10 runs before 2026-03-11 would be removed" in shown.out) == (0, True), shown.text
    assert len(list(folder.rglob("*.json"))) == 30
    assert project.gauntlet("history.prune", "--before", "2026-03-11", "--delete").code == 0
    assert len(list(folder.rglob("*.json"))) == 20


def test_what_others_have_kept_is_imported(project: Project) -> None:
    content = {"context": {"date": "2026-03-02T10:00:00+00:00"}, "benchmarks": [{"name": "BM_a", "real_time": 5e6}]}
    (project.folder / "a file.json").write_text(json.dumps(content))
    done = project.gauntlet("history.import", "a file.json")
    assert (done.code, "1 run added to history; 1 figure" in done.out) == (0, True), done.text
    assert "a file/BM_a time_ms" in project.gauntlet("history.show").out


def test_failures_of_imported_tests_are_rated(project: Project) -> None:
    failure = '<testcase classname="m" name="bad"><failure message="a crash"/></testcase>'
    passed = '<testcase classname="m" name="ok" time="1.5"/>'
    for day, cases in ((1, failure), (2, failure + passed)):
        file = project.folder / f"junit{day}.xml"
        file.write_text(f'<testsuite name="s" timestamp="2026-03-0{day}T10:00:00">{cases}</testsuite>')
        assert project.gauntlet("history.import", file.name).code == 0
        # On the first day there is no figure, so no series.
        for command in ("history.check", "history.list", "history.show", "history.page", "history.export"):
            done = project.gauntlet(command)
            rated = command in ("history.check", "history.list")
            assert (done.code, f"{day} of {day}" in done.out) == (0, rated), (command, done.text)
    (rate,) = json.loads(project.gauntlet("history.check", "--format", "json").out)["rates"]
    listed = json.loads(project.gauntlet("history.list", "--format", "json").out)
    assert (listed["rates"], len(listed["runs"])) == ([rate], 2)
    assert (rate["case"], rate["kind"], rate["last"]["reason"]) == ("m/bad", "failed", "a crash")


def test_a_damaged_file_is_reported_and_the_others_are_judged(project: Project) -> None:
    folder = stepped(project)
    damaged = min(folder.rglob("*.json"))
    damaged.write_bytes(damaged.read_bytes()[:-5])
    done = project.gauntlet("history.check")
    assert (done.code, f"{damaged.name}: its content does not match its name" in done.out) == (3, True), done.text
    assert "toy/abs@cpu dispatches" in done.out
    for command in ("history.show", "history.export", "history.page", "history.list"):
        done = project.gauntlet(command)
        assert (done.code, f"{damaged.name}: its content does not" in done.err) == (3, True), (command, done.text)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("history.check",), 2, "has no runs yet"),
        (("history.add", "nope"), 2, "no such run"),
        (("history.import",), 2, "no files were given"),
        (("history.import", "junit.xml", "--commit", "xyz"), 2, "--commit xyz: expected a commit"),
        (("history.prune",), 2, "which runs?"),
        (("history.prune", "--before", "soon"), 2, "expected a day"),
        (("history.list", "--store", "ftp://x"), 2, "unknown kind of place"),
    ],
)
def test_what_cannot_be_asked_is_a_clear_word(project: Project, words: tuple[str, ...], code: int, said: str) -> None:
    done = project.gauntlet(*words)
    assert (done.code, said in done.err) == (code, True), done.text


def test_the_run_that_is_added_is_named_with_what_is_newer_and_left_out(project: Project) -> None:
    builder = JournalBuilder()
    step = builder.step("m", "a", "compile")
    builder.begin()
    builder.result(step)
    journal = builder.write(project.folder / "runs" / builder.run) / "journal.jsonl"
    os.utime(journal, ns=(1, 1))
    write_four_releases(project.folder / "runs" / "20261122-matrix")
    done = project.gauntlet("history.add")
    assert done.code == 0, done.text
    added, left_out = done.out.splitlines()
    assert added == f"1 run added to history; 0 figures of {builder.run}"
    within = ", ".join(f"runs/20261122-matrix/{name}" for name in ("3.12.0", "3.13.0", "3.5.0", "3.9.0"))
    assert left_out == (f"left out: 20261122-matrix is newer, not a run of spec files; its runs can be named: {within}")
    refused = project.gauntlet("history.add", "20261122-matrix")
    assert refused.code == 2, refused.text
    assert "20261122-matrix: it is a matrix, not a run; it has 4 runs\n" in refused.err
    assert "Name one of them: 20261122-matrix/3.12.0, 20261122-matrix/3.13.0, " in refused.err
    named = project.gauntlet("history.add", "20261122-matrix/3.13.0")
    assert (named.code, "1 run added to history" in named.out) == (0, True), named.text
    (project.folder / "runs" / "empty").mkdir()
    nothing = project.gauntlet("history.add", "empty")
    assert (nothing.code, "so it is not a run\n" in nothing.err) == (2, True), nothing.text


def test_of_experiments_only_a_matrix_adds_its_runs(project: Project) -> None:
    matrix = write_four_releases(project.folder / "runs" / "matrix")
    part = write_four_releases(project.folder / "runs" / "qualify" / "exact")
    (part.parent / "journal.jsonl").write_bytes((matrix / "journal.jsonl").read_bytes().replace(b"matrix", b"qualify"))
    settings = Configuration(history=HistorySettings(str(project.folder / "history"), add=True))
    for folder, count in ((part, 0), (matrix, 1)):
        add_run(folder / "3.13.0", settings, project.folder)
        assert len(list(project.folder.glob("history/*/*.json"))) == count


def write_run_of_sku(project: Project, name: str, sku: str, **plan: Any) -> Path:
    builder = JournalBuilder(name)
    step = builder.step("m", "a", "benchmark", sku=sku, **plan)
    builder.begin()
    builder.result(step, samples=make_samples(1.0, 1.1, 1.2))
    builder.end()
    return builder.write(project.folder / "runs" / name)


def test_a_mistyped_sku_makes_no_series_of_its_own(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    origin = {"file": "a.json", "field": "golden_time_ms.mi300"}
    golden = {"metric": "time_ms", "value": 2.0, "factor": 1.1, "statistic": "mean", "release": "", "origin": origin}
    write_run_of_sku(project, "named-by-a-golden", "mi300", goldens=[{**golden, "sku": "mi300"}])
    write_run_of_sku(project, "known-to-the-history", "mi300")
    mistyped = write_run_of_sku(project, "mistyped", "mi30")
    assert project.gauntlet("history.add", "named-by-a-golden").code == 0
    assert project.gauntlet("history.add", "known-to-the-history").code == 0
    refused = project.gauntlet("history.add", "known-to-the-history", "mistyped")
    message = "nothing was added: no golden is for the SKU mi30 of runs/mistyped, and no run in history has it"
    assert refused.code == 2
    assert f"{message}; did you mean 'mi300'? (known SKUs: mi300)" in refused.err
    # The command in the message adds this run, whichever is the latest.
    command = "history.add runs/known-to-the-history runs/mistyped --new-sku"
    assert f"If the SKU is right: `gauntlet {command}`." in refused.err
    settings = Configuration(history=HistorySettings(str(project.folder / "history"), add=True))
    add_run(mistyped, settings, project.folder)
    warning = capsys.readouterr().err
    assert "was not added to the history: no golden is for the SKU mi30" in warning, warning
    assert f"gauntlet history.add {shlex.quote(str(mistyped))} --new-sku`" in warning, warning
    assert len(list(project.folder.glob("history/*/*.json"))) == 2
    assert project.gauntlet(*command.split()).code == 0
    assert project.gauntlet("history.add", "mistyped").code == 0, "the history knows the SKU now"
    listed = json.loads(project.gauntlet("history.list", "--format", "json").out)["runs"]
    assert sorted(run["skus"] for run in listed) == ["mi30", "mi300", "mi300"]
    shown = project.gauntlet("history.list").out
    assert ("SKU" in shown, shown.count(" mi300 "), shown.count(" mi30 ")) == (True, 2, 1), shown
    assert len(list(project.folder.glob("history/*/*.json"))) == 3


@pytest.mark.iree
def test_a_golden_of_a_spec_names_its_sku_whatever_was_run(project: Project) -> None:
    project.benchmark("abs", golden_time_ms={"my-desk": 5.0}, golden_time_tolerance_multiplier={"my-desk": 1.1})
    words = ("run", "--submodel", "abs", "--stages", "compile", "--sku")
    assert project.gauntlet(*words, "my-desk").code == 0
    assert project.gauntlet("history.add").code == 0
    assert project.gauntlet(*words, "MY-DESK").code == 0
    refused = project.gauntlet("history.add")
    assert (refused.code, "did you mean 'my-desk'?" in refused.err) == (2, True), refused.err


def test_files_that_cannot_be_read_may_have_the_sku(project: Project) -> None:
    write_run_of_sku(project, "a", "mi300")
    assert project.gauntlet("history.add", "--new-sku").code == 0
    (file,) = project.folder.glob("history/*/*.json")
    file.write_bytes(b"{")
    refused = project.gauntlet("history.add")
    assert (refused.code, "1 file there cannot be read" in refused.err) == (2, True), refused.err


def test_without_a_run_the_runs_of_a_matrix_are_named(project: Project) -> None:
    write_four_releases(project.folder / "runs" / "m")
    refused = project.gauntlet("history.add")
    assert refused.code == 2
    assert "m has runs, which can be named: runs/m/3.12.0, runs/m/3.13.0, " in refused.err


def test_a_run_that_never_began_is_refused(project: Project) -> None:
    (project.folder / "runs" / "empty").mkdir(parents=True)
    (project.folder / "runs" / "empty" / "journal.jsonl").touch()
    done = project.gauntlet("history.add", "empty")
    assert (done.code, "never started" in done.err) == (3, True), done.text


def test_a_series_that_is_not_there_names_those_that_are(project: Project) -> None:
    stepped(project)
    done = project.gauntlet("history.show", "nope/*")
    assert (done.code, "Cases there: toy/abs@cpu." in done.err) == (5, True), done.text
    assert project.gauntlet("history.export", "--series", "nope/*").code == 5


def test_what_has_no_noise_needs_no_confirmation_and_the_bisect_is_named(project: Project) -> None:
    runs = [
        run_of(day, {"dispatches": 7.0 + 2 * (day > 20)}, iree=f"3.{8 + (day > 20)}.0", named=f"3.{8 + (day > 20)}.0")
        for day in range(1, 31)
    ]
    kept(project, runs)
    done = project.gauntlet("history.confirm")
    assert done.code == 0, done.text
    assert "toy/abs@cpu dispatches: +28.6 % between 3.8.0 and 3.9.0" in done.out
    words = "gauntlet bisect --good 3.8.0 --bad 3.9.0 --metric dispatches --model toy --submodel abs --target cpu"
    assert words in done.out
    nothing = project.gauntlet("history.confirm", "other/*")
    assert nothing.code == 5, nothing.text


@pytest.mark.iree
def test_a_step_is_measured_in_turns_and_what_comes_of_it_is_kept(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [
        run_of(
            day, {"time_ms": 10.0 + 0.01 * (day % 3) + 2 * (day > 20)}, iree=f"3.{8 + (day > 20)}.0", named="installed"
        )
        for day in range(1, 31)
    ]
    # Both names are this IREE: what was 20 % slower in the history is the same here, or it is not known.
    runs[20:] = [replace(run, iree=replace(run.iree, named=f"venv:{sys.prefix}")) for run in runs[20:]]
    kept(project, runs)
    assert project.gauntlet("history.check").code == 1
    # Without valgrind, it measures only times.
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable))  # noqa: PTH120
    done = project.gauntlet("history.confirm", "--budget", "0.0001")
    assert "toy/abs@cpu time_ms: +20.0 % between installed and venv:" in done.out, done.text
    found = json.loads(project.gauntlet("history.check", "--format", "json").out)
    (finding,) = found["findings"]
    assert finding["confirmed"] in ("inconclusive", "same", "not slower", "slower", "faster"), done.text
    assert [run["state"] for run in json.loads(project.gauntlet("history.list", "--format", "json").out)["runs"]][
        -1
    ] == ("confirmation")
    assert found["runs"] == 30, "a confirmation is no run"


def test_places_that_are_not_there_are_not_made_by_being_asked(project: Project) -> None:
    for place in ("s3:/bucket", "gitx:repository", "nowhere"):
        done = project.gauntlet("history.check", "--store", place)
        assert (done.code, (project.folder / place).exists()) == (2, False), done.text
    assert project.gauntlet("history.add", "--store", "s3:/bucket").code == 2
    done = project.gauntlet("history.check", "--marks", "marks.toml")
    assert done.code == 2, done.text
