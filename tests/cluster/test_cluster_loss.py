"""Clusters that lose workers, the run or themselves, for minutes: what is left comes to the same."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.support.hanging import HANG
from tests.support.local_cluster import local_cluster, results, tools_in
from tests.support.operator_suite import OperatorSuite
from tests.support.places import CORPUS
from tests.support.processes import begun_steps, wait_until
from tests.support.toy_project import Project

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.stress


def test_a_cluster_that_goes_down_as_a_whole_ends_the_run_and_what_is_done_for_it(
    tmp_path: Path, project: Project
) -> None:
    project.suite('[[include]]\nmodel = "*"\n')
    begun = tmp_path / "begun"
    path = tools_in(tmp_path / "bin", f"echo $$ >> {begun}; {HANG}")
    environ = {**os.environ, "PATH": path, "NO_COLOR": "1"}
    project.environment = lambda: environ  # type: ignore[method-assign]
    with local_cluster(tmp_path / "farm", "--device", "cpu", "--iree", "path", count=1, environ=environ) as cluster:
        words = ("run", "--suite", "s", "--stages", "threshold", "--iree", "path", "--run-dir", "again")
        run = project.start(*words, "--cluster", cluster.address)
        wait_until(lambda: begun.exists() and begun.read_text().endswith("\n"))
        hanging = psutil.Process(int(begun.read_text().split()[0]))
        cluster.process.send_signal(signal.SIGKILL)
        wait_until(lambda: not hanging.is_running())
        assert run.wait(300) == 3
    assert "toy/abs@cpu:threshold" in begun_steps(project.folder / "again" / "journal.jsonl")


def test_workers_end_the_steps_of_a_killed_run_and_another_goes_on(tmp_path: Path, project: Project) -> None:
    suite = OperatorSuite(project)
    for number in range(30):
        suite.unary(f"abs{number}", expected="1 2 3 4")
    with local_cluster(tmp_path / "farm", "--device", "cpu") as cluster:
        words = ("--run-dir", "there", "--cluster", cluster.address)
        run = project.start("run", "--spec-dir", "ops", *words)
        journal = project.folder / "there" / "journal.jsonl"
        wait_until(lambda: len(begun_steps(journal)) > 10)
        run.kill()
        run.wait()
        began = time.monotonic()
        wait_until(lambda: not cluster.run_processes)
        assert time.monotonic() - began < 60
        assert project.gauntlet("run", "--resume", *words).code == 0
        assert len(results(project.folder / "there")) == 60


@pytest.mark.corpus
def test_an_operator_suite_comes_to_the_same_while_workers_are_killed(tmp_path: Path) -> None:
    project = Project(tmp_path / "project")
    words = ("run", "--spec-dir", str(CORPUS / "onnx_ops"), "-q")
    assert project.gauntlet_process(*words, "--run-dir", "here").code == 3
    rng = random.Random(1)
    with local_cluster(tmp_path / "farm", "--device", "cpu", count=4) as cluster:
        run = project.start(*words, "--run-dir", "there", "--cluster", cluster.address)
        kills = 0
        while run.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                run.wait(5)
            workers = [item for item in cluster.process.children() if "spawn_main" in " ".join(item.cmdline())]
            if run.poll() is None and workers:
                rng.choice(sorted(workers, key=lambda item: item.pid)).send_signal(signal.SIGKILL)
                kills += 1
        assert run.returncode == 3
        assert kills > 2
        wait_until(lambda: not cluster.run_processes)
    here, there = results(project.folder / "here"), results(project.folder / "there")
    assert len(here) > 500
    assert [(name, result.verdict, result.reason) for name, result in sorted(here.items())] == [
        (name, result.verdict, result.reason) for name, result in sorted(there.items())
    ]
