"""The matrix as a user runs it: several names of the installed IREE, builds of it, and broken builds."""

from __future__ import annotations

import json
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from iree_gauntlet.journal_format import read_journal
from tests.support.command_line import LIMIT_SECONDS, MAIN
from tests.support.faulty_iree import fill_module_cache, write_build_tree
from tests.support.hanging import HANG
from tests.support.matrix_builder import MATRIX_REPORTS
from tests.support.processes import find_processes, list_started_steps, wait_until
from tests.support.toy_project import Project

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.iree

VENV = f"venv:{sys.prefix}"
BOTH = ("--iree", "installed", "--iree", VENV)


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    project = Project(tmp_path)
    fill_module_cache(project)
    yield project
    project.close()


def matrix_of(project: Project) -> Path:
    """The only one."""
    (folder,) = (path.parent for path in (project.folder / "runs").glob("*-matrix/journal.jsonl"))
    return folder


def document(project: Project) -> Any:
    return json.loads((matrix_of(project) / "matrix.json").read_text())


def events(project: Project) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (matrix_of(project) / "journal.jsonl").read_text().splitlines()]


def results(folder: Path) -> list[str]:
    """Steps of a run that have a result, with repetitions."""
    lines = (folder / "journal.jsonl").read_text().splitlines()
    return [event["step"] for event in map(json.loads, lines) if event["event"] == "result"]


def begun(project: Project) -> list[str]:
    """Steps that the run with the build `slow` has begun."""
    journal = next((project.folder / "runs").glob("*-matrix/build-slow/journal.jsonl"), None)
    return list_started_steps(journal) if journal else []


def test_one_report_of_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = Project(tmp_path, cache="flags")
    summary = project.folder / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    broken = f"venv:{project.folder}/nowhere"
    done = project.gauntlet("matrix", "--iree", "installed", "--iree", broken, "--iree", VENV)
    assert done.code == 3, done.text
    folder = matrix_of(project)
    label = f"venv:{Path(sys.prefix).name}"
    headings = ["installed (1 of 3)", "venv:nowhere (2 of 3)", f"{label} (3 of 3)"]
    assert [line for line in done.out.splitlines() if line.endswith(" of 3)")] == headings
    # The broken one is reported before anything runs.
    assert "error: venv:nowhere: " in done.err
    assert "is not a virtual environment" in done.err
    made = document(project)
    assert [iree["exit_code"] for iree in made["irees"]] == [0, 3, 0]
    assert "Create one: python -m venv" in made["irees"][1]["hint"]
    (chain,) = made["chains"]
    assert set(chain["irees"]) == {"installed", label}
    first, second = chain["irees"].values()
    # The module of the second comes from the cache, with the figures that were recorded.
    assert (first["compile_cached"], second["compile_cached"]) == (False, True)
    assert first["compile_seconds"] == second["compile_seconds"] > 0
    assert first["compile_peak_bytes"] == second["compile_peak_bytes"] > 0
    assert second["ratios"]["dispatch_count"] == 1
    assert second["time_ms"] > 0
    assert any("are the same IREE" in remark for remark in made["remarks"])
    # Once for all of them, and nothing of the single runs.
    assert summary.read_text() == (folder / "matrix.md").read_text()
    # Each run is one of its own, with reports.
    assert read_journal(folder / "installed" / "journal.jsonl").end is not None
    assert (folder / "installed" / "junit.xml").is_file()


def test_the_reports_are_made_again_from_what_was_recorded(project: Project) -> None:
    assert project.gauntlet("matrix", *BOTH, "--stages", "compile").code == 0
    folder = matrix_of(project)
    before = {name: (folder / name).read_bytes() for name in MATRIX_REPORTS}
    for name in MATRIX_REPORTS:
        (folder / name).unlink()
    done = project.gauntlet("report", str(folder))
    assert done.code == 0, done.text
    assert {name: (folder / name).read_bytes() for name in MATRIX_REPORTS} == before
    assert "What changed" in done.out
    assert project.gauntlet("report", folder.name).code == 0


def test_a_compiler_that_fails_is_found_and_the_others_go_on(project: Project) -> None:
    broken = write_build_tree(project.folder / "b", iree_compile="echo 'x.mlir:1:1: error: no such op' >&2; exit 1")
    irees = ("--iree", "installed", "--iree", broken, "--iree", VENV)
    done = project.gauntlet("matrix", *irees, "--stages", "compile")
    assert done.code == 1, done.text
    made = document(project)
    kinds = [(change["kind"], change["labels"]) for change in made["changes"] if "newly" in change["kind"]]
    assert [kind for kind, _ in kinds] == ["newly failing", "newly passing"]
    assert kinds[0][1] == ["installed", "build:b"]
    assert made["chains"][0]["irees"]["build:b"]["stages"] == ["compile"]
    assert "no such op" in made["chains"][0]["irees"]["build:b"]["reason"]
    assert "failed: compile" in done.out


def test_fail_fast_stops_after_the_iree_that_fails_and_can_be_gone_on_with(project: Project) -> None:
    broken = write_build_tree(project.folder / "b", iree_compile="exit 1")
    done = project.gauntlet("matrix", "--iree", broken, "--iree", "installed", "--fail-fast", "--stages", "compile")
    assert done.code == 1, done.text
    made = document(project)
    assert (made["state"], made["irees"][1]["exit_code"]) == ("stopped", None)
    assert "not run: --fail-fast, and build:b ended with exit code 1" in made["irees"][1]["problem"]
    again = project.gauntlet("matrix", "--resume")
    assert again.code == 1, again.text
    assert shlex.split(document(project)["command"])[1:4] == ["matrix", "--iree", broken], "what began it"
    assert "finished earlier with exit code 1" in again.out
    assert [iree["exit_code"] for iree in document(project)["irees"]] == [1, 0]


@pytest.mark.parametrize(
    "moment",
    [pytest.param("first", marks=pytest.mark.stress), pytest.param("between", marks=pytest.mark.stress), "second"],
)
def test_killed_and_gone_on_with(project: Project, moment: str) -> None:
    project.add("b")
    gate = project.folder / "closed"
    gate.mkdir()
    # Until the gate opens, it compiles nothing, or one model.
    passes = "false" if moment == "between" else f'mkdir "{gate}/one" 2> /dev/null'
    slow = write_build_tree(project.folder / "slow", iree_compile=f'[ ! -e "{gate}" ] || {passes} || {HANG}')
    irees = ("--iree", slow, "--iree", "installed") if moment == "first" else ("--iree", "installed", "--iree", slow)
    other = "installed"
    run = project.start("matrix", *irees, "-j", "1", "--stages", "threshold")

    def reached() -> bool:
        compiles = sum("compile" in step for step in begun(project))
        return compiles == (1 if moment == "between" else 2)

    wait_until(reached)
    run.send_signal(signal.SIGKILL)
    run.wait()
    wait_until(lambda: not find_processes(str(project.folder)))
    folder = matrix_of(project)
    report = project.gauntlet("report", str(folder))
    assert report.code == 3, report.text
    assert document(project)["state"] == "unfinished"
    before = results(folder / other) if (folder / other).exists() else []

    shutil.rmtree(gate)
    done = project.gauntlet("matrix", "--resume")
    assert done.code == 0, done.text
    assert document(project)["state"] == "complete"
    assert [iree["exit_code"] for iree in document(project)["irees"]] == [0, 0]
    if moment != "first":
        assert "installed (1 of 2)\nfinished earlier with exit code 0: not run again" in done.out
        assert results(folder / other) == before
    for label in ("installed", "build-slow"):
        done_steps = results(folder / label)
        assert len(done_steps) == len(set(done_steps)), "what was done is not done again"
    assert len([event for event in events(project) if event["event"] == "opening"]) == 2


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.stress)])
def test_interrupted_it_reports_what_there_is(project: Project, number: signal.Signals) -> None:
    slow = write_build_tree(project.folder / "slow", iree_compile=HANG)
    run = project.start("matrix", "--iree", "installed", "--iree", slow, "--iree", VENV)

    wait_until(lambda: any("compile" in step for step in begun(project)))
    run.send_signal(number)
    assert run.wait(LIMIT_SECONDS) == 130
    wait_until(lambda: not find_processes(str(project.folder)))
    made = document(project)
    assert (made["state"], made["exit_code"]) == ("interrupted", 130)
    assert [iree["exit_code"] for iree in made["irees"]] == [0, 130, 130]
    assert events(project)[-1]["interrupted"] is True
    assert "not run: the matrix was interrupted" in (matrix_of(project) / "matrix.md").read_text()
    assert "not run: the matrix was interrupted" in (matrix_of(project) / "junit.xml").read_text()


def test_a_run_that_had_not_said_what_it_is_about_begins_anew(project: Project) -> None:
    assert project.gauntlet("matrix", *BOTH, "--stages", "compile").code == 0
    folder = matrix_of(project)
    # As if it had been killed in the first line of its run.
    second = events(project)[0]["irees"][1]["folder"]
    (folder / second / "journal.jsonl").write_text('{"event":"ru')
    lines = (folder / "journal.jsonl").read_text().splitlines(keepends=True)
    (folder / "journal.jsonl").write_text("".join(lines[:-2]))
    done = project.gauntlet("matrix", "--resume")
    assert done.code == 0, done.text
    assert [iree["exit_code"] for iree in document(project)["irees"]] == [0, 0]


def test_the_runtime_may_be_one_for_all(project: Project) -> None:
    irees = ("--iree", write_build_tree(project.folder / "b"), "--iree", "installed")
    done = project.gauntlet("matrix", *irees, "--iree-runtime", VENV, "--stages", "threshold")
    assert done.code == 0, done.text
    sources = [event["toolchain"]["source"] for event in events(project) if event["event"] == "toolchain"]
    assert all("runtime venv: " in source for source in sources)


def test_a_flag_that_one_iree_lacks_is_its_problem_alone(project: Project) -> None:
    lacking = write_build_tree(project.folder / "b")
    path = project.folder / "b" / "tools" / "iree-compile"
    # A compiler that does not know the flag: its help leaves it out.
    hidden = "iree-llvmcpu-target-cpu"
    path.write_text(path.read_text().replace("exec cat", f"exec grep -v {hidden}"))
    done = project.gauntlet("matrix", "--iree", lacking, "--iree", "installed", "--stages", "compile")
    assert done.code == 2, done.text
    made = document(project)
    assert [iree["exit_code"] for iree in made["irees"]] == [2, 0]
    assert f"does not know --{hidden}" in made["irees"][0]["problem"]


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ([], 2, "gauntlet matrix --iree 3.9.0 --iree 3.13.0"),
        (["--iree", "banana"], 2, "--iree banana: not a known IREE"),
        (["--iree", "3.9", "--iree", "3.9.0"], 2, "one IREE is named twice"),
        (["--variant", "x=--iree-opt-level=O1", "--variant", "x=--iree-opt-level=O2"], 2, "variant x: given twice"),
        ([*BOTH, "--model", "zzz"], 5, "No model 'zzz'"),
        ([*BOTH, "--suite", "nowhere"], 2, "nowhere"),
        ([*BOTH, "--stages", "cook"], 2, "--stages cook: unknown\n  Known: fetch, import, "),
        ([*BOTH, "--jobs", "-1"], 2, "--jobs -1: expected a number above 0"),
        ([*BOTH, "--timeout-compile", "-1"], 2, "--timeout-compile -1"),
        ([*BOTH, "--run-dir", "a@b"], 2, "misread a path with '@'"),
        ([*BOTH, "--resume"], 2, "no earlier `matrix`"),
        ([*BOTH, "--iree-compiler", "installed", "--iree-runtime", "path"], 2, "with both"),
        (["--iree", "3.12.0", "--offline"], 3, "gauntlet toolchain.install 3.12.0"),
    ],
)
def test_wrong_input(project: Project, words: list[str], code: int, says: str) -> None:
    done = project.gauntlet("matrix", *words)
    assert (done.code, says in done.text) == (code, True), done.text
    assert done.err.count("error: ") == 1, done.err


def test_one_that_only_fetches_needs_its_irees_too(project: Project) -> None:
    done = project.gauntlet("matrix", "--iree", "installed", "--iree", "build:nowhere", "--stages", "fetch")
    assert done.code == 3, done.text
    assert "error: build:nowhere: " in done.err
    assert "1 of 2 IREEs as expected" in done.out


def test_a_resumed_matrix_keeps_what_it_was_asked_for(project: Project) -> None:
    assert project.gauntlet("matrix", *BOTH, "--model", "toy", "--stages", "compile").code == 0
    for words in (["--model", "abs"], ["--iree", "installed"], ["--stages", "threshold"], ["--iree-runtime", "path"]):
        done = project.gauntlet("matrix", "--resume", *words)
        assert done.code == 2, done.text
        assert f"{words[0]} {words[1]}: runs/" in done.err
        assert "was started with" in done.err
    again = project.gauntlet("matrix", "--resume", *BOTH, "--model", "toy", "--stages", "compile")
    assert again.code == 0, again.text
    assert again.out.count("finished earlier") == 2
    folder = matrix_of(project)
    taken = project.gauntlet("matrix", *BOTH, "--run-dir", str(folder))
    assert (taken.code, "already holds a run" in taken.err) == (2, True)
    taken = project.gauntlet("matrix", *BOTH, "--run-dir", str(folder / "installed"))
    assert (taken.code, "already holds a run" in taken.err) == (2, True)


@pytest.mark.stress
def test_a_reader_that_goes_away_stops_nothing(project: Project) -> None:
    run = subprocess.Popen(
        [sys.executable, "-c", MAIN, "matrix", *BOTH, "--stages", "compile"],
        cwd=project.folder,
        env=project.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with run:
        assert run.stdout is not None
        assert run.stderr is not None
        run.stdout.close()
        errors = run.stderr.read().decode()
    assert "Traceback" not in errors
    assert run.returncode == 0
    assert document(project)["state"] == "complete"
