"""What goes wrong around a run: tools that crash or hang, disks, networks, devices; each ends in a clear verdict."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.support.artifact_server import Server, serving, whole
from tests.support.permissions import mounting
from tests.support.processes import running, wait_until
from tests.support.toy_project import Project

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.iree

_COMPILE = "toy/abs@cpu:compile"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as running_server:
        yield running_server


def test_a_compiler_that_crashes_is_an_error_and_says_the_signal(project: Project) -> None:
    done = project.gauntlet("run", compile=project.tool("kill -SEGV $$"))
    assert done.code == 3
    result = project.result(_COMPILE)
    assert (result["verdict"], result["signal"]) == ("error", "SIGSEGV")
    assert "SIGSEGV" in (project.newest / "junit.xml").read_text()


def test_a_crash_is_a_failure_that_may_be_expected(project: Project) -> None:
    reason = 'reason = "it crashes"'
    project.suite(f'[[expect_failure]]\ncase = "toy/*"\nstage = "compile"\n{reason}\n')
    done = project.gauntlet("run", "--suite", "s", compile=project.tool("kill -ABRT $$"))
    assert done.code == 0
    assert project.verdict(_COMPILE) == "xfailed"


def test_a_compiler_that_hangs_is_ended_with_its_children(project: Project) -> None:
    word = f"31{os.getpid()}.25"
    script = f"sleep {word} & trap '' TERM; sleep {word}"
    done = project.gauntlet("run", "--timeout-compile", "1", compile=project.tool(script))
    assert done.code == 3
    result = project.result(_COMPILE)
    assert result["timed_out"]
    assert "1 s" in result["reason"]
    assert not running(f"sleep {word}")


def test_a_compiler_that_writes_nothing_is_an_error(project: Project) -> None:
    done = project.gauntlet("run", compile=project.tool("exit 0"))
    assert done.code == 3
    assert "module.vmfb was not written" in project.result(_COMPILE)["reason"]


def test_a_full_disk_is_named(project: Project) -> None:
    script = "echo 'error: cannot open output file: No space left on device' >&2; exit 1"
    done = project.gauntlet("run", compile=project.tool(script))
    assert done.code == 3
    assert "disk" in project.result(_COMPILE)["reason"]


def test_a_compiler_that_cannot_be_started(project: Project) -> None:
    project.tool("exit 0")
    done = project.gauntlet("run", compile=str(project.folder / "nothing-here"))
    assert done.code == 3
    assert "nothing-here" in project.result(_COMPILE)["reason"]


def test_a_benchmark_without_rows_is_an_error(project: Project) -> None:
    # The real tool does this for some modules, and exits with 0.
    done = project.gauntlet("run", benchmark_module=project.tool("echo 'Failed to match any benchmarks' >&2"))
    assert done.code == 3
    assert project.verdict("toy/abs@cpu:benchmark") == "error"


def test_a_function_that_does_not_exist_is_a_failure(project: Project) -> None:
    project.benchmark(function_run="no_such_function")
    done = project.gauntlet("run")
    assert done.code == 1
    assert "no_such_function" in done.out


def test_a_device_that_is_not_here_fails_at_once(project: Project) -> None:
    project.regression(device="hip")
    done = project.gauntlet("run", "--stages", "threshold")
    assert done.code == 3
    result = project.result("toy/abs@cpu:threshold")
    assert "hip" in result["reason"]
    # It was the first to be said, and nothing waited for it.
    finished = [line for line in done.out.splitlines() if line.startswith("[")]
    assert "threshold" in finished[0]


def test_a_missing_program_names_file_and_next_step(project: Project) -> None:
    (project.regressions / "abs.mlir").unlink()
    done = project.gauntlet("run")
    assert done.code == 3
    assert "abs.mlir" in project.result("toy/abs@cpu:fetch")["reason"]
    assert project.verdict(_COMPILE) == "skipped"


def test_a_404_names_the_url(project: Project, server: Server) -> None:
    url = server.url("/m.mlir", lambda handler: handler.send_error(404))
    project.regression(mlir=url)
    done = project.gauntlet("run", "--timeout-stall", "2")
    assert done.code == 3
    assert "404" in project.result("toy/abs@cpu:fetch")["reason"]
    assert url in done.out


def test_a_hash_that_differs_stops_the_chain_and_replaces_nothing(project: Project, server: Server) -> None:
    url = server.url("/m.mlir", whole((project.regressions / "abs.mlir").read_bytes()))
    project.regression(mlir=url)
    assert project.gauntlet("run", "--stages", "compile").code == 0
    lock = project.folder / "cache" / "registry.lock.txt"
    assert url in lock.read_text()
    shutil.rmtree(project.folder / "cache" / "artifacts")
    words = lock.read_text().split()
    lock.write_text(f"{words[0]} sha256:{'0' * 64} {url}\n")
    done = project.gauntlet("run", "--stages", "compile")
    assert done.code == 3
    assert "wrong content" in project.result("toy/abs@cpu:fetch")["reason"]
    assert not list((project.folder / "cache" / "artifacts").rglob("m*"))


def test_offline_names_what_is_missing(project: Project) -> None:
    project.regression(mlir="https://example.invalid/m.mlir")
    done = project.gauntlet("run", "--offline")
    assert done.code == 3
    assert "https://example.invalid/m.mlir" in project.result("toy/abs@cpu:fetch")["reason"]


def test_two_runs_at_once_share_the_cache(project: Project) -> None:
    for name in ("b", "c", "d"):
        project.add(name)
    runs = [project.start("run", "--run-dir", str(project.folder / "runs" / str(number))) for number in range(2)]
    assert [run.wait(240) for run in runs] == [0, 0]
    modules = [path for path in (project.folder / "cache" / "modules").glob("??/*") if path.is_dir()]
    assert len(modules) == 4
    assert not list((project.folder / "cache" / "modules" / "making").iterdir())


@mounting
def test_a_cache_that_cannot_be_written_is_used_as_it_is(project: Project) -> None:
    assert project.gauntlet("run").code == 0
    for name in ("two",):
        project.add(name)
    cache = project.folder / "cache"
    subprocess.run(["mount", "--bind", str(cache), str(cache)], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", str(cache)], check=True)
        done = project.gauntlet("run", "--model", "toy")
        assert project.result(_COMPILE)["cache"]["hit"], done.text
        assert done.code == 0, done.text
        assert any("not kept in the cache" in note for note in project.result("toy/two@cpu:compile")["notes"])
    finally:
        subprocess.run(["umount", str(cache)], check=True)


def test_without_iree_nothing_runs_and_pip_is_named(project: Project) -> None:
    code = (
        "import iree_gauntlet.tasks.surroundings as s\n"
        "from iree_gauntlet.toolchains.installed import find_installed\n"
        "from iree_gauntlet.tasks.program import main\n"
        "s.find_installed = lambda: find_installed('/usr/bin/python-without-iree')\n"
        "main()\n"
    )
    import sys  # noqa: PLC0415

    for words, expected in ((["run"], 3), (["plan"], 0)):
        done = subprocess.run(
            [sys.executable, "-c", code, *words],
            cwd=project.folder,
            env=project.environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == expected, done.stderr
        assert "Traceback" not in done.stderr
    assert not (project.folder / "runs").exists()


def test_interrupt_ends_everything_and_reports(project: Project) -> None:
    word = f"32{os.getpid()}.5"
    run = project.start("run", compile=project.tool(f"sleep {word}"))
    wait_until(lambda: running(f"sleep {word}"))
    run.send_signal(2)
    assert run.wait(60) == 130
    assert not running(f"sleep {word}")
    assert (project.newest / "junit.xml").is_file()
    journal = project.journal
    assert journal.end is not None
    assert journal.end["interrupted"]
    refused = project.gauntlet("run", "--resume", identity="0" * 64)
    assert refused.code == 2
    assert "another IREE" in refused.err
    assert project.gauntlet("run", "--resume").code == 0
