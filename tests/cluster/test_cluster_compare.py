"""Comparisons on workers, with the real tools, except for benchmarks, whose times are synthetic."""

from __future__ import annotations

import json
import os
import re
import signal
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from iree_gauntlet.history.stores import open_history
from iree_gauntlet.records.history_record import make_history_file
from iree_gauntlet.settings import Configuration
from tests.history.builder import run_of
from tests.support.command_line import LIMIT_SECONDS
from tests.support.faulty_iree import SyntheticBuild, fill_module_cache, write_build_tree
from tests.support.hanging import HANG
from tests.support.local_cluster import LocalCluster, local_cluster, read_results
from tests.support.processes import wait_until
from tests.support.toy_project import Project

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.iree

# What else the machine does has no say.
_QUICK = ("--repetitions", "2", "--disturbed", "count", "--cpus", "all")


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    project = Project(tmp_path / "project")
    fill_module_cache(project)
    yield project
    project.close()


def _words(a: str, b: str, folder: str) -> tuple[str, ...]:
    return ("compare", a, b, "--model", "toy", "--run-dir", folder, *_QUICK)


def _document(project: Project, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((project.folder / name / "comparison.json").read_text())
    return found


def _measured(project: Project, name: str) -> list[dict[str, Any]]:
    """What the log has of models that workers have measured."""
    log = project.folder / name / "journal.jsonl"
    events = map(json.loads, log.read_text().splitlines()) if log.exists() else ()
    return [event for event in events if event["event"] == "measured"]


@pytest.mark.stress
def test_a_comparison_comes_to_what_it_comes_to_here(cluster: LocalCluster, project: Project, tmp_path: Path) -> None:
    project.add("wrong", "arith.negf %a : tensor<4xf32>")
    project.add("square", "arith.mulf %a, %a : tensor<4xf32>")
    project.regression("square", outputs=[])
    words = _words(
        SyntheticBuild(tmp_path / "a").iree,
        SyntheticBuild(tmp_path / "b", 1.5).set_times_for("square", 1.0).iree,
        "here",
    )
    # The other comparisons count instructions too.
    here = project.gauntlet(*words, "--no-work")
    # Times of their own again, from the first one on.
    a, b = SyntheticBuild(tmp_path / "2" / "a"), SyntheticBuild(tmp_path / "2" / "b", 1.5).set_times_for("square", 1.0)
    there = project.gauntlet(*_words(a.iree, b.iree, "there"), "--no-work", "--cluster", cluster.address)
    assert (here.code, there.code) == (3, 3), there.text
    mine, theirs = _document(project, "here"), _document(project, "there")
    assert {name: item["verdict"] for name, item in theirs["models"].items()} == {
        "toy/abs@cpu": "slower",
        "toy/square@cpu": "same",
    }
    for name, model in mine["models"].items():
        other = theirs["models"][name]
        for figure in ("verdict", "blocks", "control_blocks", "cpus", "confidence"):
            assert other[figure] == model[figure], (name, figure)
        assert other["ratio"] == pytest.approx(model["ratio"], rel=0.01)
        assert other["control"]["verdict"] == model["control"]["verdict"]
        assert model["worker"] == ""
        assert other["worker"].endswith("/cpu")
        assert theirs["workers"][other["worker"]]["cores"] == len(os.sched_getaffinity(0))
    assert theirs["not_measured"] == mine["not_measured"]
    assert "its numbers are wrong" in theirs["not_measured"]["toy/wrong@cpu"]
    # The slower one is explained, with the paths of where the comparison was started.
    assert set(theirs["where"]) == {"toy/abs@cpu"}
    assert str(cluster.output_path.parent) not in json.dumps(theirs)
    assert "measured on " in (project.folder / "there" / "junit.xml").read_text()
    assert "worker" in (project.folder / "there" / "comparison.md").read_text()
    # Both sides are ordinary runs.
    assert all(result.worker for side in "ab" for result in read_results(project.folder / "there" / side).values())
    wait_until(lambda: not cluster.run_processes)


@pytest.mark.stress
def test_a_crash_is_no_verdict_and_is_not_tried_again(cluster: LocalCluster, project: Project, tmp_path: Path) -> None:
    broken = write_build_tree(tmp_path / "broken", iree_benchmark_module="kill -SEGV $$")
    words = _words(SyntheticBuild(tmp_path / "a").iree, broken, "cmp")
    done = project.gauntlet(*words, "--cluster", cluster.address)
    assert done.code == 3, done.text
    model = _document(project, "cmp")["models"]["toy/abs@cpu"]
    assert (model["verdict"], model["reason"]) == ("error", "B: iree-benchmark-module crashed with SIGSEGV")
    (measured,) = _measured(project, "cmp")
    assert measured["notes"] == []
    assert len(measured["blocks"]) == 1


@pytest.mark.stress
def test_compile_times_are_taken_by_workers_too(cluster: LocalCluster, project: Project, tmp_path: Path) -> None:
    # A round's module is nobody's; what is in the cache is compiled by the real one.
    made = 'for word; do case $word in *.vmfb.round) echo made > "${word#-o=}" ;; esac; done; exit'
    quick = f'case "$*" in *.round*) {made} ;; esac'
    a, b = (write_build_tree(tmp_path / name, name=name, iree_compile=quick) for name in ("one", "two"))
    words = ("compare", a, b, "--model", "toy", "--metric", "compile-time", *_QUICK)
    done = project.gauntlet(*words, "--run-dir", "cmp", "--cluster", cluster.address)
    # What comes of so little is this machine's matter.
    assert done.code in (0, 1, 4), done.text
    (measured,) = _measured(project, "cmp")
    assert measured["problem"] == ""
    assert {block["kind"] for block in measured["blocks"]} >= {"ab", "aa"}
    assert measured["where"] is None, "dispatches are no matter of a compile's time"
    assert _document(project, "cmp")["models"]["toy/abs@cpu"]["peak_rss_bytes"].keys() == {"A", "B"}


@pytest.mark.stress
def test_a_model_whose_worker_is_killed_is_measured_by_another_from_the_beginning(
    project: Project, tmp_path: Path
) -> None:
    a, b = SyntheticBuild(tmp_path / "a"), SyntheticBuild(tmp_path / "b", 1.5)
    # In the fourth block.
    b.hang_after(7)
    with local_cluster(tmp_path / "farm", "--device", "cpu") as cluster:
        comparison = project.start(*_words(a.iree, b.iree, "cmp"), "--cluster", cluster.address)
        hanging = _hanging(cluster, comparison)
        b.stop_hanging()
        cluster.find_worker(hanging).send_signal(signal.SIGKILL)
        wait_until(lambda: not hanging.is_running())
        assert comparison.wait(LIMIT_SECONDS) == 1
        wait_until(lambda: not cluster.run_processes)
    model = _document(project, "cmp")["models"]["toy/abs@cpu"]
    (measured,) = _measured(project, "cmp")
    assert (model["verdict"], model["blocks"], len(measured["blocks"])) == ("slower", 10, 20)
    (note,) = measured["notes"]
    assert note.endswith("and run again: it was lost")
    assert model["worker"].partition("/")[0] not in note
    assert note in (project.folder / "cmp" / "comparison.md").read_text()


@pytest.mark.stress
def test_ctrl_c_leaves_what_is_measured_and_another_goes_on_with_the_rest(
    cluster: LocalCluster, project: Project, tmp_path: Path
) -> None:
    project.add("square", "arith.mulf %a, %a : tensor<4xf32>")
    project.regression("square", outputs=[])
    a, b = SyntheticBuild(tmp_path / "a"), SyntheticBuild(tmp_path / "b", 1.5)
    # The first of the two takes ten blocks against B.
    b.hang_after(23)
    comparison = project.start(*_words(a.iree, b.iree, "cmp"), "--cluster", cluster.address)
    hanging = _hanging(cluster, comparison)
    comparison.send_signal(signal.SIGINT)
    assert comparison.wait(LIMIT_SECONDS) == 130
    wait_until(lambda: not hanging.is_running())
    document = _document(project, "cmp")
    assert {name: item["verdict"] for name, item in document["models"].items()} == {"toy/abs@cpu": "slower"}
    assert list(document["not_measured"]) == ["toy/square@cpu"]
    b.stop_hanging()
    here = project.gauntlet("compare", "--resume", "--run-dir", "cmp")
    assert here.code == 2
    assert "cmp was started on a cluster" in here.err
    done = project.gauntlet("compare", "--resume", "--run-dir", "cmp", "--cluster", cluster.address)
    assert done.code == 1, done.text
    assert [event["step"] for event in _measured(project, "cmp")] == ["toy/abs@cpu", "toy/square@cpu"]
    document = _document(project, "cmp")
    assert {item["verdict"] for item in document["models"].values()} == {"slower"}
    assert document["where"].keys() == document["models"].keys()


@pytest.mark.stress
def test_a_step_of_a_history_is_confirmed_by_a_worker(cluster: LocalCluster, project: Project, tmp_path: Path) -> None:
    irees = (SyntheticBuild(tmp_path / "a").iree, SyntheticBuild(tmp_path / "b", 1.2).iree)
    runs = [
        run_of(day, {"time_ms": 10.0 + 2 * (day > 20)}, iree=f"3.{8 + (day > 20)}.0", named=irees[day > 20])
        for day in range(1, 31)
    ]
    store = open_history(str(project.folder / "history"), Configuration(), project.folder)
    store.add(dict(map(make_history_file, runs)))
    done = project.gauntlet("history.confirm", "--budget", "0.1", "--cluster", cluster.address)
    # How disturbed the machine is decides how much can be said.
    assert done.code in (0, 1, 4), done.text
    assert re.search(r"^toy/abs@cpu: measured on \S+/cpu$", done.err + done.out, re.MULTILINE), done.text
    (finding,) = json.loads(project.gauntlet("history.check", "--format", "json").out)["findings"]
    assert finding["confirmed"]
    listed = json.loads(project.gauntlet("history.list", "--format", "json").out)["runs"]
    assert listed[-1]["state"] == "confirmation"
    assert f"{len(os.sched_getaffinity(0))} cores" in listed[-1]["machine"]


def _hanging(cluster: LocalCluster, comparison: subprocess.Popen[bytes]) -> psutil.Process:
    """A benchmark of a comparison that hangs; waits for it."""

    def found() -> list[psutil.Process]:
        return [item for item in cluster.process.children(recursive=True) if _command(item) == HANG.split()[1:]]

    wait_until(lambda: found() or comparison.poll() is not None)
    assert comparison.poll() is None, "it ended before"
    return found()[0]


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
