"""Runs on real workers: scheduler, nannies, workers and the processes of runs, with the real compiler and runtime."""

from __future__ import annotations

import json
import os
import re
import signal
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pytest

from iree_gauntlet.cases import Verdict
from tests.support.artifact_server import make_responder, run_server
from tests.support.certificates import Authority
from tests.support.faulty_iree import write_build_tree
from tests.support.local_cluster import HangingTools, LocalCluster, read_results, start_command
from tests.support.operator_suite import OperatorSuite
from tests.support.processes import wait_until
from tests.support.tuning_specs import write_cpu_spec

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

    from iree_gauntlet.results import Result
    from tests.support.toy_project import Project

pytestmark = pytest.mark.iree


@pytest.fixture
def hanging_cluster(cluster: LocalCluster, tools: HangingTools) -> Iterator[tuple[LocalCluster, HangingTools]]:
    """The cluster, and the tools of `--iree path`, which hang."""
    tools.start_hanging()
    yield cluster, tools
    tools.stop_hanging()


def said_of(result: Result) -> dict[str, Any]:
    """What a result says, but for times, places and what was in which cache."""
    left_out = (
        "seconds",
        "cpu_seconds",
        "tool_seconds",
        "waited_seconds",
        "worker",
        "peak_rss_bytes",
        "cache",
        "samples",
    )
    said = {name: value for name, value in result.as_dict().items() if name not in left_out}
    figures = said.pop("statistics") or {}
    assert isinstance(figures, dict)
    # A module of a local program holds its path, which is longer on a worker.
    said["dispatches"] = figures.get("dispatch_count")
    if result.samples is not None:
        # How busy the machine was.
        del said["notes"]
    for check in said["checks"]:
        if check["metric"] in ("binary_size_bytes", "time_ms"):
            del check["measured"]
    said["fetched"] = [item["url"] for item in said.pop("fetched", ())]
    return said


def test_a_run_says_what_it_says_here(cluster: LocalCluster, project: Project) -> None:
    project.add("neg", "arith.negf %a : tensor<4xf32>")
    project.suite(
        '[[include]]\nmodel = "*"\n[[expect_failure]]\ncase = "toy/neg"\nstage = "threshold"\nreason = "it is no abs"\n'
    )
    here = project.gauntlet("run", "--suite", "s", "--run-dir", "here", "--cache-dir", "other")
    there = project.gauntlet("run", "--suite", "s", "--run-dir", "there", "--cluster", cluster.address)
    assert (here.code, there.code) == (0, 0), there.text
    mine, theirs = read_results(project.folder / "here"), read_results(project.folder / "there")
    assert sorted(mine) == sorted(theirs)
    for name, result in mine.items():
        expected, found = said_of(result), said_of(theirs[name])
        for said in (expected, found):
            # Each run has a folder of its own, and so has each cache.
            text = unquote(json.dumps(said)).replace("/here/", "/RUN/").replace("/there/", "/RUN/")
            said["text"] = text.replace(f"{project.folder}/other", f"{project.folder}/cache")
        assert found["text"] == expected["text"], name
    assert {result.worker.partition("/")[2] for name, result in theirs.items() if "threshold" in name} == {"cpu"}
    assert all(result.worker for result in theirs.values())
    assert not any(result.worker for result in mine.values())
    log = theirs["toy/neg@cpu:threshold"].log
    assert (project.folder / "there" / log).read_bytes() == (project.folder / "here" / log).read_bytes()
    # Nothing is left of it on the workers.
    wait_until(lambda: not cluster.run_processes)
    wait_until(
        lambda: [path for path in cluster.output_path.parent.glob("cache/cluster/*/runs/*/*") if path.is_dir()] == []
    )


def test_tuned_dispatches_are_counted_there(cluster: LocalCluster, project: Project) -> None:
    (project.folder / "tuning.mlir").write_text(write_cpu_spec())
    (project.folder / "gauntlet.toml").write_text('[variants.tuned]\ntuning_spec = "tuning.mlir"\n')
    words = ("run", "--variant", "tuned", "--stages", "compstat", "--run-dir", "there")
    done = project.gauntlet(*words, "--cluster", cluster.address)
    assert done.code == 0, done.text
    result = read_results(project.folder / "there")["toy/abs@cpu:compstat"]
    assert (result.statistics["tuned_dispatches"], bool(result.worker)) == (1, True)


def test_expected_outputs_come_from_where_the_run_was_started_or_are_errors_of_their_comparison(
    cluster: LocalCluster, project: Project
) -> None:
    had, lost = "toy/abs@cpu:threshold", "toy/neg@cpu:threshold"
    with run_server() as server:
        url = server.url("/y.npy", make_responder((project.regressions / "abs.npy").read_bytes()))
        project.regression(outputs=[{"source": url}])
        assert project.gauntlet("fetch").code == 0
        server.responders.clear()
        project.add("neg", "arith.negf %a : tensor<4xf32>")
        project.regression("neg", outputs=[{"source": server.base + "/z.npy"}])
        done = project.gauntlet("run", "--run-dir", "there", "--cluster", cluster.address)
    assert done.code == 3, done.text
    found = read_results(project.folder / "there")
    assert found[had].notes == ("the machine that started the run sent files that the worker could not get",)
    assert [name for name, result in found.items() if result.verdict is not Verdict.PASSED] == [lost]
    assert "z.npy" in found[lost].reason
    reason = "files are missing, and the machine that started the run did not send them: "
    assert found[lost].notes[-1].startswith(reason)


def test_no_other_importer_is_taken_for_a_build_without_one(
    cluster: LocalCluster, project: Project, tmp_path: Path
) -> None:
    build = write_build_tree(tmp_path / "build")
    (project.regressions / "abs.onnx").write_bytes(b"never read")
    project.regression(mlir="abs.onnx")
    words = ("run", "--model", "toy", "--stages", "compile", "--iree", build)
    here = project.gauntlet(*words, "--run-dir", "here")
    there = project.gauntlet(*words, "--run-dir", "there", "--cluster", cluster.address)
    assert (here.code, there.code) == (3, 3), there.text
    mine, theirs = (read_results(project.folder / name)["toy/abs@cpu:import"] for name in ("here", "there"))
    assert f"{build} has no Python bindings".replace("build:", "build: ") in mine.reason
    assert theirs.reason == mine.reason


def test_operators_come_to_the_same_on_workers(cluster: LocalCluster, project: Project) -> None:
    suite = OperatorSuite(project, warm=True)
    suite.add_every_outcome()
    here = suite.run("--run-dir", "here", "--timeout-threshold", "2")
    there = suite.run("--run-dir", "there", "--timeout-threshold", "2", "--cluster", cluster.address)
    assert here.code == there.code, there.text
    mine, theirs = (read_results(project.folder / name) for name in ("here", "there"))
    assert len({result.verdict for result in mine.values()}) > 3
    assert {name: (result.verdict, result.signal, result.timed_out) for name, result in mine.items()} == {
        name: (result.verdict, result.signal, result.timed_out) for name, result in theirs.items()
    }


def test_a_killed_workers_step_is_done_by_another_and_leaves_nothing_behind(
    hanging_cluster: tuple[LocalCluster, HangingTools], project: Project
) -> None:
    cluster, tools = hanging_cluster
    run = _start_hanging(cluster, tools, project)
    hanging = tools.wait_for_hang()
    tools.stop_hanging()
    cluster.find_worker(hanging).send_signal(signal.SIGKILL)
    wait_until(lambda: not hanging.is_running())
    assert run.wait(300) == 0
    result = read_results(project.folder / "there")["toy/abs@cpu:threshold"]
    first = next(note for note in result.notes if "run again" in note)
    assert first.endswith("and run again: it was lost")
    assert result.worker.partition("/")[0] not in first
    # The one that was killed is there again.
    status = project.gauntlet("cluster.status", cluster.address, "--format", "json")
    wait_until(
        lambda: (
            len(json.loads(project.gauntlet("cluster.status", cluster.address, "--format", "json").out)["workers"]) == 2
        )
    )
    assert json.loads(status.out)["runs"] == {}


def test_ctrl_c_ends_the_run_on_its_workers(
    hanging_cluster: tuple[LocalCluster, HangingTools], project: Project
) -> None:
    cluster, tools = hanging_cluster
    run = _start_hanging(cluster, tools, project)
    hanging = tools.wait_for_hang()
    run.send_signal(signal.SIGINT)
    assert run.wait(300) == 130
    wait_until(lambda: not hanging.is_running() and not cluster.run_processes)


def _start_hanging(cluster: LocalCluster, tools: HangingTools, project: Project) -> subprocess.Popen[bytes]:
    """Starts a run, in the folder `there`, whose program hangs on a worker."""
    project.suite('[[include]]\nmodel = "*"\n')
    project.environment = lambda: tools.environ  # type: ignore[method-assign]
    words = ("run", "--suite", "s", "--stages", "threshold", "--iree", "path", "--run-dir", "there")
    return project.start(*words, "--cluster", cluster.address)


@pytest.mark.stress
def test_a_worker_joins_an_encrypted_cluster_by_its_certificate_and_once(tmp_path: Path, project: Project) -> None:
    project.suite('[[include]]\nmodel = "*"\n')
    lab, others = Authority.in_folder(tmp_path / "lab"), Authority.in_folder(tmp_path / "others")
    scheduler = ["scheduler", "--host", "127.0.0.1", "--port", "0", "--protocol", "tls", "--no-dashboard"]
    with start_command(
        [*scheduler, *lab.make_options("farm")], tmp_path / "s", os.environ, program="distributed.cli.dask_scheduler"
    ) as (_, said):
        wait_until(lambda: re.search(r"tls://127\.0\.0\.1:\d+", said.read_text()))
        address = re.search(r"tls://127\.0\.0\.1:\d+", said.read_text())[0]  # type: ignore[index]
        offered = ["--device", "cpu", "--name", "box", "--cache-dir", str(tmp_path / "cache")]
        worker = ["worker", address, *offered, *lab.make_options("box")]
        with start_command(worker, tmp_path / "w", os.environ) as (process, joined):
            wait_until(lambda: "worker box takes part in" in joined.read_text() or process.poll() is not None)
            assert process.poll() is None, joined.read_text()
            words = ("run", "--suite", "s", "--stages", "threshold", "--cluster", address)
            done = project.gauntlet(*words, *lab.make_options("me"), "--run-dir", "there")
            assert done.code == 0, done.text
            assert read_results(project.folder / "there")["toy/abs@cpu:threshold"].worker == "box/cpu"
            stranger = project.gauntlet(*words, *others.make_options("me"))
            assert stranger.code == 2
            assert f"{address}: the certificates do not match" in stranger.err
            with start_command(worker, tmp_path / "second", os.environ) as (second, refused):
                assert second.wait(300) == 2
                assert "a worker box already runs on this machine" in refused.read_text()


def test_what_nobody_offers_is_said_before_anything_runs(cluster: LocalCluster, project: Project) -> None:
    project.regression("abs", device="hip")
    done = project.gauntlet("run", "--cluster", cluster.address, "--stages", "threshold", "--run-dir", "never")
    assert done.code == 2
    assert "no worker of the cluster has device hip, which 2 steps need: toy/abs@cpu:threshold" in done.err
    assert "-0 with cpu (local-task" in done.err
    assert not (project.folder / "never").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--cluster", "tcp://192.0.2.1:8786"), "is not encrypted: whoever can reach it"),
        (("--cluster", "127.0.0.1:8786"), "not a scheduler's address"),
        (("--cluster", "tcp://127.0.0.1:99999"), "not a scheduler's address"),
        (("--cluster", "tcp://127.0.0.1:abc"), "not a scheduler's address"),
        (("--cluster", "tcp://[127.0.0.1:8786"), "not a scheduler's address"),
        (("--cluster", ""), "--cluster is empty: expected a value"),
        (("--cluster", "tcp://127.0.0.1:1", "--tls-cert", "x"), "--tls-cert: tcp://127.0.0.1:1 is not encrypted"),
        (("--cluster", "tcp://127.0.0.1:1"), "no scheduler answers at tcp://127.0.0.1:1"),
        (("--cluster", "tls://127.0.0.1:1"), "needs --tls-ca-file, --tls-cert, --tls-key"),
        (
            ("--cluster", "tls://127.0.0.1:1", "--tls-ca-file", "no.pem", "--tls-cert", "x", "--tls-key", "y"),
            "--tls-ca-file no.pem: no such file",
        ),
        (("--cluster", "tcp://127.0.0.1:1", "--batch", "10"), "--batch and --cluster exclude each other"),
    ],
)
def test_a_cluster_that_cannot_be_used_is_a_mistake_of_usage(
    project: Project, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], message: str
) -> None:
    monkeypatch.setattr("iree_gauntlet.cluster.connection._CONNECT_TIMEOUT_SECONDS", 0.5)
    done = project.gauntlet("run", *words)
    assert done.code == 2
    assert message in done.err
    assert not (project.folder / "runs").exists()


def test_a_worker_of_another_iree_takes_no_part(tmp_path: Path, project: Project, cluster: LocalCluster) -> None:
    tools = HangingTools(tmp_path / "bin")
    project.environment = lambda: tools.environ  # type: ignore[method-assign]
    done = project.gauntlet("run", "--iree", "path", "--cluster", cluster.address)
    assert done.code == 3
    assert "no worker can take part: " in done.err


def test_a_worker_is_probed_and_its_status_shown(cluster: LocalCluster, project: Project) -> None:
    probe = project.gauntlet("worker", "--probe", "--device", "cpu", "--name", "box")
    assert probe.code == 0
    assert "box" in probe.out
    assert "cpu (local-task" in probe.out
    refused = project.gauntlet("worker", "--probe", "--device", "gpu0=hip://9")
    assert refused.code == 2
    assert "--device gpu0: hip://9 is not available" in refused.err
    assert project.gauntlet("worker").code == 2
    status = project.gauntlet("cluster.status", cluster.address)
    assert status.out.count("cpu (local-task") == 2
    assert "dashboard of the scheduler" in status.out
