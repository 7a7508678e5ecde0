"""Runs that are killed at any moment and continued; and running again only what failed."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from typing import TYPE_CHECKING

import pytest

from tests.support.processes import running, wait_until
from tests.support.toy_project import Project

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.iree


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def _results(project: Project) -> int:
    """Results in the journal; -1 before it says what the run is about, as nothing can be resumed then."""
    runs = list((project.folder / "runs").glob("*/journal.jsonl"))
    text = runs[0].read_text() if runs else ""
    return text.count('"event":"result"') if "\n" in text else -1


@pytest.mark.parametrize("results", range(5))
def test_killed_after_any_step_and_continued(project: Project, results: int) -> None:
    run = project.start("run")
    wait_until(lambda: _results(project) >= results)
    run.send_signal(signal.SIGKILL)
    run.wait()
    wait_until(lambda: not running(str(project.folder)))
    before = project.journal
    report = project.gauntlet("report", "latest")
    unfinished = len(before.steps) - len(before.results)
    if before.end is None and unfinished:
        assert report.code == 3
        assert (project.newest / "junit.xml").read_text().count("<error") == unfinished
    resumed = project.gauntlet("run", "--resume")
    assert resumed.code == 0, resumed.text
    after = project.journal
    assert set(after.results) == {step["id"] for step in after.steps}
    for step, result in before.results.items():
        assert after.results[step] == result, "what was done is not done again"
    assert len(list((project.folder / "runs").iterdir())) == 1


def test_killed_at_random_moments_nothing_half_written_is_ever_used(project: Project) -> None:
    for name in ("b", "c"):
        project.add(name)
    moments = random.Random(7)
    for _ in range(6):
        run = project.start("run", "--force-recompile")
        time.sleep(moments.uniform(0.4, 2.5))
        run.send_signal(signal.SIGKILL)
        run.wait()
    wait_until(lambda: not running(str(project.folder)))
    done = project.gauntlet("run")
    assert done.code == 0, done.text
    again = project.gauntlet("run")
    assert "compiles: 3 from cache, 0 made" in again.out


def test_a_killed_run_leaves_no_process(project: Project) -> None:
    word = f"33{os.getpid()}.75"
    run = project.start("run", compile=project.tool(f"sleep {word} & sleep {word}"))
    wait_until(lambda: len(running(f"sleep {word}")) >= 2)
    run.send_signal(signal.SIGKILL)
    run.wait()
    wait_until(lambda: not running(f"sleep {word}"), 30)


def test_a_step_whose_plan_changed_is_done_again(project: Project) -> None:
    assert project.gauntlet("run").code == 0
    project.regression(threshold_args=["--expected_f32_threshold=0.5"])
    assert project.gauntlet("run", "--resume").code == 0
    journal = project.journal
    assert "--expected_f32_threshold=0.5" in journal.results["toy/abs@cpu:threshold"]["command"]
    lines = (project.newest / "journal.jsonl").read_text().splitlines()
    compiles = [line for line in lines if '"event":"result"' in line and '"step":"toy/abs@cpu:compile"' in line]
    assert len(compiles) == 1


def test_a_resumed_run_keeps_its_selection(project: Project) -> None:
    project.add("b")
    project.expected("b", [9.0] * 4)
    assert project.gauntlet("run", "--submodel", "b").code == 1
    other = project.gauntlet("run", "--resume", "--submodel", "abs")
    assert other.code == 2
    assert "--submodel" in other.err
    assert project.gauntlet("run", "--resume").code == 1
    assert {step["chain"] for step in project.journal.steps} == {"toy/b@cpu"}


def test_files_that_are_gone_are_fetched_again(project: Project) -> None:
    project.expected("abs", [9.0] * 4)
    assert project.gauntlet("run", "--stages", "threshold").code == 1
    shutil.rmtree(project.folder / "cache" / "artifacts")
    project.regression(threshold_args=["--expected_f32_threshold=20"])
    assert project.gauntlet("run", "--resume").code == 0


def test_there_is_nothing_to_resume(project: Project) -> None:
    done = project.gauntlet("run", "--resume")
    assert done.code == 2
    assert "no run" in done.err


def test_only_what_failed(project: Project) -> None:
    project.add("b")
    project.expected("b", [9.0] * 4)
    assert project.gauntlet("run").code == 1
    project.expected("b", [1.0] * 4)
    again = project.gauntlet("run", "--last-failed")
    assert again.code == 1
    assert {step["chain"] for step in project.journal.steps} == {"toy/b@cpu"}
    assert project.gauntlet("run", "--resume").code == 1
    assert {step["chain"] for step in project.journal.steps} == {"toy/b@cpu"}, "a resumed run keeps to what failed"
    assert project.gauntlet("run", "--resume").code == 1
    assert {step["chain"] for step in project.journal.steps} == {"toy/b@cpu"}, "however often it is resumed"
    project.add("b")
    assert project.gauntlet("run", "--last-failed").code == 0
    assert project.gauntlet("run", "--last-failed").code == 5


def test_fail_fast_stops(project: Project) -> None:
    (project.regressions / "abs.mlir").write_text("no program\n")
    for name in ("b", "c"):
        project.add(name)
    done = project.gauntlet("run", "--fail-fast", "--jobs", "1")
    assert done.code == 1
    reasons = [result["reason"] for result in project.journal.results.values() if result["verdict"] == "skipped"]
    assert any("--fail-fast" in reason for reason in reasons)
    assert project.verdict("toy/c@cpu:benchmark") == "skipped"
