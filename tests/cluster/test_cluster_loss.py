"""Clusters that lose workers, their run or all processes, for minutes: the remaining results are the same."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import random
import re
import signal
from typing import TYPE_CHECKING

import numpy as np
import pytest

from iree_gauntlet.cluster import dask_worker
from tests.support.artifact_server import make_responder, run_server
from tests.support.certificates import Authority
from tests.support.local_cluster import (
    HangingTools,
    LocalCluster,
    find_run_processes,
    local_cluster,
    read_results,
    start_command,
)
from tests.support.operator_suite import OperatorSuite
from tests.support.places import CORPUS, ROOT
from tests.support.processes import find_processes, list_started_steps, wait_until
from tests.support.tcp_proxy import run_tcp_proxy
from tests.support.toy_project import Project
from tests.support.two_hosts import LOCAL_ADDRESS, needs_hosts, other_host

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from iree_gauntlet.results import Result

pytestmark = pytest.mark.stress

OFFERED = ("--device", "cpu", "--iree", "path")
# Of about 1,100, of which each is begun once in the journal.
STEPS_BETWEEN_KILLS = 40
# Of 116.
MODEL_STEPS_BETWEEN_KILLS = 8


def npy(values: list[float]) -> bytes:
    """A file of NumPy's."""
    stream = io.BytesIO()
    np.save(stream, np.array(values, np.float32))
    return stream.getvalue()


@contextlib.contextmanager
def cluster_that_hangs(
    project: Project, folder: Path, count: int = 1
) -> Iterator[tuple[LocalCluster, HangingTools, Callable[[str], subprocess.Popen[bytes]]]]:
    """A cluster whose tools hang, and what starts a run there, in the folder `there`, at an address."""
    project.suite('[[include]]\nmodel = "*"\n')
    tools = HangingTools(folder / "bin")
    project.environment = lambda: tools.environ  # type: ignore[method-assign]
    words = ("run", "--suite", "s", "--stages", "threshold", "--iree", "path", "--run-dir", "there", "--cluster")
    with local_cluster(folder / "farm", *OFFERED, count=count, environ=tools.environ) as cluster:
        yield cluster, tools, lambda address: project.start(*words, address)


def test_a_cluster_that_goes_down_as_a_whole_ends_the_run_and_what_is_done_for_it(
    tmp_path: Path, project: Project
) -> None:
    with cluster_that_hangs(project, tmp_path) as (cluster, tools, start):
        run = start(cluster.address)
        hanging = tools.wait_for_hang()
        cluster.process.send_signal(signal.SIGKILL)
        wait_until(lambda: not hanging.is_running())
        assert run.wait(300) == 3
    assert "toy/abs@cpu:threshold" in list_started_steps(project.folder / "there" / "journal.jsonl")
    # What was done is reported, and why no more was.
    summary = json.loads((project.folder / "there" / "summary.json").read_text())
    assert summary["remarks"][-1].startswith("the scheduler of the cluster is gone")
    assert (project.folder / "there" / "junit.xml").is_file()
    assert [*summary["workers"]] != []


def test_workers_end_the_steps_of_a_killed_run_and_another_goes_on(tmp_path: Path, project: Project) -> None:
    suite = OperatorSuite(project)
    for number in range(30):
        suite.add_unary(f"abs{number}", expected_output="1 2 3 4")
    with local_cluster(tmp_path / "farm", "--device", "cpu") as cluster:
        words = ("--run-dir", "there", "--cluster", cluster.address)
        run = project.start("run", "--spec-dir", "ops", *words)
        journal = project.folder / "there" / "journal.jsonl"
        wait_until(lambda: len(list_started_steps(journal)) > 10)
        run.kill()
        run.wait()
        # Within a minute, by these:
        assert dask_worker._SILENCE_TIMEOUT_SECONDS + dask_worker._WATCH_SECONDS + dask_worker._END_TIMEOUT_SECONDS < 60
        wait_until(lambda: not cluster.run_processes)
        assert project.gauntlet("run", "--resume", *words).code == 0
        assert len(read_results(project.folder / "there")) == 60


def kill_workers_until_it_ends(cluster: LocalCluster, run: subprocess.Popen[bytes], folder: Path, every: int) -> int:
    """Kills a worker whenever so many more steps of a run have begun; how many it were."""
    rng = random.Random(1)
    journal = folder / "journal.jsonl"
    for kills in itertools.count():
        due = (kills + 1) * every
        wait_until(lambda due=due: run.poll() is not None or len(list_started_steps(journal)) >= due)  # type: ignore[misc]
        if run.poll() is not None:
            return kills
        workers = [item for item in cluster.process.children() if "spawn_main" in " ".join(item.cmdline())]
        if workers:
            rng.choice(sorted(workers, key=lambda item: item.pid)).send_signal(signal.SIGKILL)
    raise AssertionError


def numbers_of(result: Result) -> list[tuple[str, int | None, float | None]]:
    """How far the outputs of a step are off."""
    return [(item.type, item.mismatches, item.max_abs_error) for item in result.outputs]


@pytest.mark.models
@pytest.mark.timeout(1200)
def test_pretrained_models_come_to_the_same_while_workers_are_killed(tmp_path: Path) -> None:
    project = Project(tmp_path / "project", cache="empty")
    words = ("run", "--suite", str(ROOT / "suites" / "cpu.toml"), "--spec-dir", str(ROOT / "specs"), "-q")
    assert project.gauntlet_process(*words, "--run-dir", "here").code == 0
    with local_cluster(tmp_path / "farm", "--device", "cpu", count=4) as cluster:
        run = project.start(*words, "--run-dir", "there", "--cluster", cluster.address)
        kills = kill_workers_until_it_ends(cluster, run, project.folder / "there", MODEL_STEPS_BETWEEN_KILLS)
        assert run.returncode == 0
        assert kills > 5
        wait_until(lambda: not cluster.run_processes)
    here, there = read_results(project.folder / "here"), read_results(project.folder / "there")
    assert len(here) > 80
    assert there.keys() == here.keys()
    for name, result in here.items():
        assert (there[name].verdict, numbers_of(there[name])) == (result.verdict, numbers_of(result)), name


@pytest.mark.corpus
def test_an_operator_suite_comes_to_the_same_while_workers_are_killed(tmp_path: Path) -> None:
    project = Project(tmp_path / "project")
    words = ("run", "--spec-dir", str(CORPUS / "onnx_ops"), "-q")
    assert project.gauntlet_process(*words, "--run-dir", "here").code == 3
    with local_cluster(tmp_path / "farm", "--device", "cpu", count=4) as cluster:
        run = project.start(*words, "--run-dir", "there", "--cluster", cluster.address)
        kills = kill_workers_until_it_ends(cluster, run, project.folder / "there", STEPS_BETWEEN_KILLS)
        assert run.returncode == 3
        assert kills > 10
        wait_until(lambda: not cluster.run_processes)
    here, there = read_results(project.folder / "here"), read_results(project.folder / "there")
    assert len(here) > 500
    assert [(name, result.verdict, result.reason) for name, result in sorted(here.items())] == [
        (name, result.verdict, result.reason) for name, result in sorted(there.items())
    ]


def test_a_run_that_loses_its_connection_to_the_scheduler_for_a_moment_goes_on(
    tmp_path: Path, project: Project
) -> None:
    with (
        cluster_that_hangs(project, tmp_path) as (cluster, tools, start),
        run_tcp_proxy(int(cluster.address.rpartition(":")[2])) as way,
    ):
        run = start(f"tcp://127.0.0.1:{way.port}")
        tools.wait_for_hang()
        # What hangs already goes on hanging: it was begun for an order that nobody waits for any more, and is ended.
        tools.stop_hanging()
        assert way.cut_connections() > 0
        assert run.wait(300) == 0
        result = read_results(project.folder / "there")["toy/abs@cpu:threshold"]
        assert result.notes[-1].endswith("and run again: the connection to the scheduler was lost")
        assert not find_processes(str(tools.folder))


def test_a_run_that_sleeps_for_longer_than_workers_wait_goes_on_when_it_wakes(tmp_path: Path, project: Project) -> None:
    with cluster_that_hangs(project, tmp_path) as (cluster, tools, start):
        run = start(cluster.address)
        hanging = tools.wait_for_hang()
        run.send_signal(signal.SIGSTOP)
        # What was cut short is no result.
        wait_until(lambda: not hanging.is_running() and not cluster.run_processes)
        tools.stop_hanging()
        run.send_signal(signal.SIGCONT)
        assert run.wait(300) == 0
        note = read_results(project.folder / "there")["toy/abs@cpu:threshold"].notes[-1]
        assert note.endswith("and run again: no message from the run for 30 s")


def test_a_step_whose_process_is_stopped_is_done_again(tmp_path: Path, project: Project) -> None:
    with cluster_that_hangs(project, tmp_path) as (cluster, tools, start):
        run = start(cluster.address)
        hanging = tools.wait_for_hang()
        (process,) = cluster.run_processes
        process.send_signal(signal.SIGSTOP)
        # Before the step is done again; what hangs already goes on hanging.
        tools.stop_hanging()
        wait_until(lambda: not hanging.is_running() and not process.is_running())
        assert run.wait(300) == 0
        note = read_results(project.folder / "there")["toy/abs@cpu:threshold"].notes[-1]
        assert note.endswith("and run again: its process was stopped by a signal for 30 s")


def test_a_worker_that_is_stopped_has_its_steps_done_by_others(tmp_path: Path, project: Project) -> None:
    OperatorSuite(project).add_unary("abs", expected_output="1 2 3 4")
    with cluster_that_hangs(project, tmp_path, count=2) as (cluster, tools, start):
        run = start(cluster.address)
        stopped = cluster.find_worker(tools.wait_for_hang())
        wait_until(lambda: len(cluster.run_processes) == 2)
        (process,) = find_run_processes(stopped)
        stopped.send_signal(signal.SIGSTOP)
        try:
            tools.stop_hanging()
            assert run.wait(300) == 0
            note = read_results(project.folder / "there")["toy/abs@cpu:threshold"].notes[-1]
            assert note.endswith("and run again: it was lost")
            # One that does not answer keeps no other run from beginning, either.
            words = ("run", "--spec-dir", "ops", "--run-dir", "meanwhile", "--cluster", cluster.address)
            assert project.gauntlet(*words).code == 0
        finally:
            stopped.send_signal(signal.SIGCONT)
        # When it goes on it ends what nobody waits for.
        wait_until(lambda: not process.is_running())


@needs_hosts
def test_two_hosts_of_which_one_is_cut_off(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    theirs.mkdir()
    project = Project(ours / "project", cache="flags")
    lab = Authority.in_folder(tmp_path / "lab")
    tools = HangingTools(tmp_path / "bin")
    environ = {**tools.environ, "IREE_GAUNTLET_LOCKS": str(theirs / "locks")}
    project.environment = lambda: {**environ, "IREE_GAUNTLET_LOCKS": str(ours / "locks")}  # type: ignore[method-assign]
    with contextlib.ExitStack() as held:
        server = held.enter_context(run_server())
        # What only the host that starts the run can get: it is served on its loopback.
        project.regression(inputs=[{"source": server.url("/in.npy", make_responder(npy([1.0, -2.0, 3.0, -4.0])))}])
        project.write_expected("abs", [1.0, 2.0, 3.0, 4.0])
        host = held.enter_context(other_host())
        words = [
            "scheduler",
            "--host",
            LOCAL_ADDRESS,
            "--port",
            "0",
            "--protocol",
            "tls",
            "--no-dashboard",
            *lab.make_options("farm"),
        ]
        _, said = held.enter_context(
            start_command(words, tmp_path / "s", os.environ, program="distributed.cli.dask_scheduler")
        )
        wait_until(lambda: re.search(rf"tls://{LOCAL_ADDRESS}:\d+", said.read_text()))
        address = re.search(rf"tls://{LOCAL_ADDRESS}:\d+", said.read_text())[0]  # type: ignore[index]
        worker = ["worker", address, "--device", "cpu", "--iree", "path"]
        there = [*worker, "--name", "there", "--cache-dir", str(theirs / "cache"), *lab.make_options("there")]
        _, joined = held.enter_context(
            start_command(there, theirs, environ, wrap_argv=lambda argv: host.make_argv(argv, [ours]))
        )
        wait_until(lambda: "worker there takes part" in joined.read_text())
        run = project.start(
            *("run", "--iree", "path", "--stages", "threshold", "--run-dir", "run", "--cluster", address),
            *lab.make_options("me"),
        )
        hanging = tools.wait_for_hang()
        fetched = read_results(project.folder / "run")["toy/abs@cpu:fetch"]
        assert fetched.worker == "there"
        assert fetched.notes == ("the machine that started the run sent files that the worker could not get",)
        assert [path.name for path in (theirs / "cache" / "artifacts").rglob("*.npy")] == ["in.npy"]
        tools.stop_hanging()
        here = [*worker, "--name", "here", "--cache-dir", str(ours / "cache2"), *lab.make_options("here")]
        _, also = held.enter_context(start_command(here, ours, project.environment()))
        wait_until(lambda: "worker here takes part" in also.read_text())
        host.disconnect()
        assert run.wait(500) == 0
        result = read_results(project.folder / "run")["toy/abs@cpu:threshold"]
        assert result.worker == "here/cpu"
        assert result.notes[-1] == "started on worker there, and run again: it was lost"
        # Cut off, it ends what it did; back on the cable, it takes part again.
        wait_until(lambda: not hanging.is_running())
        host.reconnect()
        wait_until(lambda: "there" in project.gauntlet("cluster.status", address, *lab.make_options("me")).out)
