"""Faults while a run is under way: tools that misbehave in every stage, silence on the network, a cleared cache."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import time
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

import pytest

from iree_gauntlet.toolchains.installed import find_installed
from tests.support.artifact_server import Request, serving
from tests.support.permissions import mounting
from tests.support.processes import running, wait_until
from tests.support.toy_project import Project

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.iree

_CHAIN = "toy/abs@cpu"
_OUTPUT = 'for last; do :; done; folder=$(dirname "$last")'


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    made = Project(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_silent_server_does_not_hold_up_an_interrupt(project: Project, number: signal.Signals) -> None:
    with serving() as server:

        def stall(request: Request) -> None:
            request.send_response(200)
            request.send_header("Content-Length", "1000")
            request.end_headers()
            request.wfile.flush()
            server.over.wait(120)

        project.regression(mlir=server.url("/m.mlir", stall))
        run = project.start("run")
        wait_until(lambda: server.hits["/m.mlir"] > 0)
        began = time.monotonic()
        run.send_signal(number)
        assert run.wait(60) == 130
        assert time.monotonic() - began < 10
    assert (project.newest / "junit.xml").is_file()
    assert not list((project.folder / "cache").rglob("m.mlir"))


def test_a_module_of_garbage_fails_where_it_is_loaded(project: Project) -> None:
    script = f'{_OUTPUT}; {find_installed().compile} "$@" && echo garbage > "$last"'
    done = project.gauntlet("run", compile=project.tool(script))
    assert done.code == 1
    assert project.verdict(f"{_CHAIN}:threshold") == "failed"
    assert "module" in project.result(f"{_CHAIN}:threshold")["reason"]
    assert project.verdict(f"{_CHAIN}:benchmark") == "failed"


@pytest.mark.parametrize("statistics", ["", "not JSON", "[]", None])
def test_statistics_of_garbage_are_an_error(project: Project, statistics: str | None) -> None:
    write = "" if statistics is None else f'; printf %s {shlex.quote(statistics)} > "$folder/statistics.json"'
    done = project.gauntlet("run", compile=project.tool(f'{_OUTPUT}; echo garbage > "$last"{write}'))
    assert done.code == 3
    assert "statistics" in project.result(f"{_CHAIN}:compile")["reason"]


@pytest.mark.parametrize(("stage", "tool"), [("threshold", "run_module"), ("benchmark", "benchmark_module")])
def test_a_runtime_that_crashes(project: Project, stage: str, tool: str) -> None:
    done = project.gauntlet("run", **{tool: project.tool("echo before; kill -SEGV $$")})
    assert done.code == 3
    result = project.result(f"{_CHAIN}:{stage}")
    assert (result["verdict"], result["signal"]) == ("error", "SIGSEGV")
    assert "SIGSEGV" in done.out


@pytest.mark.parametrize(("stage", "tool"), [("threshold", "run_module"), ("benchmark", "benchmark_module")])
def test_a_runtime_that_hangs(project: Project, stage: str, tool: str) -> None:
    word = f"41{os.getpid()}.5"
    done = project.gauntlet("run", f"--timeout-{stage}", "1", **{tool: project.tool(f"sleep {word} & sleep {word}")})
    assert done.code == 3
    assert project.result(f"{_CHAIN}:{stage}")["timed_out"]
    assert not running(f"sleep {word}")


def test_a_compiler_that_the_kernel_kills(project: Project) -> None:
    done = project.gauntlet("run", compile=project.tool("kill -KILL $$"))
    assert done.code == 3
    assert "memory" in project.result(f"{_CHAIN}:compile")["reason"]


def test_output_of_any_bytes_ends_in_sound_reports(project: Project) -> None:
    script = r"printf '\033[31mred\033[0m \000\001\377\376 ]]> <&> \r\n error: \033[1mbold\007 \302\205\n' >&2; exit 1"
    done = project.gauntlet("run", compile=project.tool(script))
    assert done.code == 1
    assert "bold" in project.result(f"{_CHAIN}:compile")["reason"]
    assert "\033" not in done.out
    failures = list(ET.parse(project.newest / "junit.xml").getroot().iter("failure"))
    assert len(failures) == 1
    (project.newest / "summary.md").read_text(encoding="utf-8")


def test_a_long_output_is_bounded_in_what_is_shown(project: Project) -> None:
    script = (
        "i=0; while [ $i -lt 20000 ]; do echo line $i ................................ >&2; i=$((i+1)); done; exit 1"
    )
    done = project.gauntlet("run", compile=project.tool(script))
    assert done.code == 1
    assert len(project.result(f"{_CHAIN}:compile")["tail"]) <= 20
    assert len(done.out) < 20_000
    assert (project.newest / "steps" / "toy" / "abs.cpu" / "compile" / "stderr.txt").stat().st_size > 500_000


@mounting
def test_a_full_disk_is_an_error_and_leaves_nothing_behind(project: Project) -> None:
    disk = project.folder / "runs"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", disk], check=True)
    try:
        # A module, its archive of parameters and temporary files do not fit beside this.
        script = f'{_OUTPUT}; dd if=/dev/zero of="$last" bs=65536 count=64'
        done = project.gauntlet("run", compile=project.tool(script))
        assert done.code == 3, done.text
        assert "disk" in done.text
        assert not list((project.folder / "cache" / "modules").glob("??/*"))
    finally:
        subprocess.run(["umount", disk], check=True)
    assert project.gauntlet("run").code == 0


def test_a_cache_that_is_cleared_meanwhile_harms_no_run(project: Project) -> None:
    assert project.gauntlet("run").code == 0
    flag = project.folder / "started"
    real = find_installed().run_module
    tool = project.tool(f'touch {flag}; sleep 1; exec {real} "$@"')
    run = project.start("run", run_module=tool)
    wait_until(flag.exists)
    shutil.rmtree(project.folder / "cache" / "modules")
    assert run.wait(60) == 0
    assert project.gauntlet("run").code == 0
    assert project.result(f"{_CHAIN}:compile")["cache"]["hit"] is False


def test_two_runs_of_one_second_take_two_folders(project: Project) -> None:
    runs = [project.start("run", "--stages", "fetch") for _ in range(4)]
    assert [run.wait(60) for run in runs] == [0] * 4
    assert len(list((project.folder / "runs").glob("*/summary.json"))) == 4


def test_one_journal_has_one_writer(project: Project) -> None:
    word = f"42{os.getpid()}.5"
    first = project.start("run", compile=project.tool(f"sleep {word}"))
    wait_until(lambda: running(f"sleep {word}"))
    second = project.gauntlet("run", "--resume")
    assert second.code == 3
    assert f"process {first.pid}" in second.err
    first.send_signal(signal.SIGTERM)
    assert first.wait(60) == 130
    assert project.gauntlet("run", "--resume").code == 0


def test_a_benchmark_waits_for_another_run_and_says_so(project: Project) -> None:
    began, go, told = (project.folder / name for name in ("began", "go", "told.txt"))
    real = find_installed().benchmark_module
    tool = project.tool(f'touch {began}; while [ ! -e {go} ]; do sleep 0.05; done; exec {real} "$@"')
    first = project.start("run", benchmark_module=tool)
    wait_until(began.exists)
    with told.open("wb") as output:
        second = project.start("run", output=output)
    wait_until(lambda: f"process {first.pid} of another run" in told.read_text())
    go.touch()
    assert first.wait(60) == 0
    assert second.wait(60) == 0
