"""Faults around a run (tools, disks, networks, devices, other runs): each gives a clear verdict."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
import threading
import xml.etree.ElementTree as ET
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from iree_gauntlet.artifacts.store import ArtifactStore
from iree_gauntlet.engine.rounds.machine_lock import MachineLocks, find_lock_folder
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.records import run_folder
from iree_gauntlet.records.event_log import Journal
from iree_gauntlet.toolchains import find
from iree_gauntlet.toolchains.installed import find_installed
from tests.support.artifact_server import Request, Server, make_responder, send_response
from tests.support.command_line import LIMIT_SECONDS
from tests.support.hanging import make_hang_command
from tests.support.iree_wheels import find_wheels_of
from tests.support.permissions import mount_read_only, mount_small_disk, with_mount_rights
from tests.support.processes import find_processes, wait_until
from tests.support.toy_project import Project

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from iree_gauntlet.results import FetchedFile

pytestmark = pytest.mark.iree

_CHAIN = "toy/abs@cpu"
_COMPILE = f"{_CHAIN}:compile"
_OUTPUT = 'for last; do :; done; folder=$(dirname "$last")'
# No silence is this long.
_NO_STALL = ("--timeout-stall", f"{LIMIT_SECONDS:g}")
_TOOLS = [("compile", "compile"), ("threshold", "run_module"), ("benchmark", "benchmark_module")]


@pytest.mark.parametrize("kind", ["file", "below a file", "dangling link"])
def test_a_folder_of_locks_that_cannot_be_is_found_before_anything_runs(
    project: Project, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    place = project.folder / "locks"
    if kind == "dangling link":
        place.symlink_to(project.folder / "nowhere")
    else:
        place.touch()
    monkeypatch.setenv("IREE_GAUNTLET_LOCKS", str(place / "deep" / "er" if kind == "below a file" else place))
    before = sorted(project.folder.rglob("*"))
    done = project.gauntlet("run")
    assert done.code == 2, done.text
    assert done.err.startswith(f"error: $IREE_GAUNTLET_LOCKS is {place}")
    assert "must name a folder that exists or can be created" in done.err
    assert sorted(project.folder.rglob("*")) == before


@pytest.fixture
def cold(tmp_path: Path) -> Iterator[Project]:
    """A toy project that compiles."""
    made = Project(tmp_path / "project", cache="flags")
    yield made
    made.close()


@pytest.fixture
def started(tmp_path: Path, stage: str) -> Iterator[Project]:
    """A toy project in which the tool of a stage is started."""
    made = Project(tmp_path / "project", cache="flags" if stage == "compile" else "warm")
    yield made
    made.close()


def test_an_unexpected_exception_is_an_error_of_its_step_alone(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.add("bad")
    fetch = ArtifactStore.fetch

    def raising(self: ArtifactStore, url: str) -> FetchedFile:
        if url.endswith("/bad.mlir"):
            raise RecursionError("nobody thought of it")
        return fetch(self, url)

    monkeypatch.setattr(ArtifactStore, "fetch", raising)
    done = project.gauntlet("run", "--stages", "compile")
    assert done.code == 3
    assert "a fault of IREE Gauntlet itself: RecursionError: nobody thought of it" in done.out
    assert (
        "Please report it, with its traceback: steps/toy/bad.cpu/fetch/traceback.txt in the run's folder." in done.out
    )
    assert "2 cases: 1 error, 1 passed" in done.out
    text = (project.newest / "steps/toy/bad.cpu/fetch/traceback.txt").read_text()
    assert text.startswith("Traceback (most recent call last):")
    assert "in raising" in text


# Tools


@pytest.mark.parametrize(("stage", "tool"), _TOOLS)
def test_a_tool_that_crashes_is_an_error_and_says_the_signal(started: Project, stage: str, tool: str) -> None:
    done = started.gauntlet("run", **{tool: started.write_tool("echo before; kill -SEGV $$")})
    assert done.code == 3
    result = started.result(f"{_CHAIN}:{stage}")
    assert (result["verdict"], result["signal"]) == ("error", "SIGSEGV")
    assert "SIGSEGV" in done.out
    assert "SIGSEGV" in (started.newest / "junit.xml").read_text()


def test_a_crash_is_a_failure_that_may_be_expected(cold: Project) -> None:
    reason = 'reason = "it crashes"'
    cold.suite(f'[[expect_failure]]\ncase = "toy/*"\nstage = "compile"\n{reason}\n')
    done = cold.gauntlet("run", "--suite", "s", compile=cold.write_tool("kill -ABRT $$"))
    assert done.code == 0
    assert cold.verdict(_COMPILE) == "xfailed"


@pytest.mark.parametrize(("stage", "tool"), _TOOLS)
def test_a_tool_that_hangs_is_ended_with_its_children(started: Project, stage: str, tool: str) -> None:
    hang = make_hang_command()
    script = f"{hang} & trap '' TERM; {hang}"
    done = started.gauntlet("run", f"--timeout-{stage}", "1", **{tool: started.write_tool(script)})
    assert done.code == 3
    result = started.result(f"{_CHAIN}:{stage}")
    assert result["timed_out"]
    assert "1 s" in result["reason"]
    assert not find_processes(hang)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("kill -KILL $$", "memory"),
        ("exit 0", "module.vmfb was not written"),
        ("echo 'error: cannot open output file: No space left on device' >&2; exit 1", "disk"),
    ],
)
def test_a_compiler_that_is_killed_or_cannot_write_is_an_error(cold: Project, script: str, reason: str) -> None:
    done = cold.gauntlet("run", compile=cold.write_tool(script))
    assert done.code == 3
    assert reason in cold.result(_COMPILE)["reason"]


def test_a_compiler_that_cannot_be_started(cold: Project) -> None:
    done = cold.gauntlet("run", compile=str(cold.folder / "nothing-here"))
    assert done.code == 3
    assert "nothing-here" in cold.result(_COMPILE)["reason"]


def test_a_module_of_garbage_fails_where_it_is_loaded(cold: Project) -> None:
    script = f'{_OUTPUT}; "{find_installed().compiler.compile}" "$@" && echo garbage > "$last"'
    done = cold.gauntlet("run", compile=cold.write_tool(script))
    assert done.code == 1
    assert cold.verdict(f"{_CHAIN}:threshold") == "failed"
    assert "module" in cold.result(f"{_CHAIN}:threshold")["reason"]
    assert cold.verdict(f"{_CHAIN}:benchmark") == "failed"


@pytest.mark.parametrize("statistics", ["", "not JSON", "[]", None])
def test_statistics_of_garbage_are_an_error(cold: Project, statistics: str | None) -> None:
    write = "" if statistics is None else f'; printf %s {shlex.quote(statistics)} > "$folder/statistics.json"'
    done = cold.gauntlet("run", compile=cold.write_tool(f'{_OUTPUT}; echo garbage > "$last"{write}'))
    assert done.code == 3
    assert "statistics" in cold.result(_COMPILE)["reason"]


def test_a_benchmark_without_rows_is_an_error(project: Project) -> None:
    # The real tool does this for some modules, and exits with 0.
    done = project.gauntlet("run", benchmark_module=project.write_tool("echo 'Failed to match any benchmarks' >&2"))
    assert done.code == 3
    assert project.verdict(f"{_CHAIN}:benchmark") == "error"


def test_a_function_that_does_not_exist_is_an_error_of_the_spec(project: Project) -> None:
    project.benchmark(function_run="no_such_function")
    done = project.gauntlet("run")
    assert done.code == 3
    assert "finds no function 'no_such_function' in the module, which has abs (see specs/benchmarks/toy/" in done.out


def test_output_of_any_bytes_ends_in_sound_reports(cold: Project) -> None:
    script = r"printf '\033[31mred\033[0m \000\001\377\376 ]]> <&> \r\n error: \033[1mbold\007 \302\205\n' >&2; exit 1"
    done = cold.gauntlet("run", compile=cold.write_tool(script))
    assert done.code == 1
    assert "bold" in cold.result(_COMPILE)["reason"]
    assert "\033" not in done.out
    failures = list(ET.parse(cold.newest / "junit.xml").getroot().iter("failure"))
    assert len(failures) == 1
    (cold.newest / "summary.md").read_text(encoding="utf-8")


def test_a_long_output_is_bounded_in_what_is_shown(cold: Project) -> None:
    script = "yes 'line ................................' | head -n 20000 >&2; exit 1"
    done = cold.gauntlet("run", compile=cold.write_tool(script))
    assert done.code == 1
    assert len(cold.result(_COMPILE)["tail"]) <= 20
    assert len(done.out) < 20_000
    assert (cold.newest / "steps" / "toy" / "abs.cpu" / "compile" / "stderr.txt").stat().st_size > 500_000


def test_without_iree_nothing_runs_and_pip_is_named(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = project.folder / "environment"
    (environment / "bin").mkdir(parents=True)
    (environment / "pyvenv.cfg").touch()
    (environment / "bin" / "python").symlink_to(sys.executable)
    monkeypatch.setattr(find, "find_installed", lambda: find_wheels_of(environment / "bin" / "python"))
    done = project.gauntlet("run")
    assert done.code == 3
    assert "pip install" in done.err
    assert project.gauntlet("plan").code == 0
    assert not (project.folder / "runs").exists()


# Disks


@with_mount_rights
def test_a_full_disk_is_an_error_and_leaves_nothing_behind(cold: Project) -> None:
    with mount_small_disk(cold.folder / "runs", "1m"):
        # A module, its archive of parameters and temporary files do not fit next to this.
        script = f'{_OUTPUT}; dd if=/dev/zero of="$last" bs=65536 count=64'
        done = cold.gauntlet("run", compile=cold.write_tool(script))
        assert done.code == 3, done.text
        assert "disk" in done.text
        assert not list((cold.folder / "cache" / "modules").glob("??/*"))
    assert cold.gauntlet("run").code == 0


@with_mount_rights
@pytest.mark.parametrize("full", [False, True])
def test_of_a_run_whose_journal_cannot_begin_nothing_is_left_and_nothing_is_to_be_resumed(
    project: Project, full: bool
) -> None:
    with mount_small_disk(project.folder / "runs", "4k"):
        filler = project.folder / "runs" / "other.txt"
        if full:
            filler.write_bytes(bytes(4096))
        done = project.gauntlet("run")
        assert done.code == 3
        assert "journal.jsonl: cannot write journal.jsonl: No space left on device\n" in done.err
        assert "free some space or make it writable, then run it again: nothing of it has started\n" in done.err
        assert list((project.folder / "runs").iterdir()) == [filler] * full
        assert "no run in" in project.gauntlet("run", "--resume").err


@with_mount_rights
def test_init_on_a_full_disk_names_the_file(project: Project) -> None:
    with mount_small_disk(project.folder / "mine", "4k"):
        done = project.gauntlet("init", "mine")
        assert done.err.startswith("error: mine/"), done.text
        assert "No space left on device" in done.err


@with_mount_rights
def test_a_cache_that_cannot_be_written_is_used_as_it_is(project: Project) -> None:
    assert project.gauntlet("run").code == 0
    project.add("two")
    with mount_read_only(project.folder / "cache"):
        done = project.gauntlet("run", "--model", "toy")
        assert project.result(_COMPILE)["cache"]["hit"], done.text
        assert done.code == 0, done.text
        assert any("not kept in the cache" in note for note in project.result("toy/two@cpu:compile")["notes"])


def test_a_cache_that_is_cleared_meanwhile_harms_no_run(project: Project) -> None:
    started, go = project.folder / "started", project.folder / "go"
    os.mkfifo(go)
    wait = f"[ -e '{started}' ] || {{ touch '{started}'; read -r line < '{go}'; }}"
    stages = ("--stages", "threshold")
    tool = project.write_tool(f'{wait}; exec "{find_installed().runtime.run_module}" "$@"')
    run = project.start("run", *stages, run_module=tool)
    wait_until(started.exists)
    shutil.rmtree(project.folder / "cache" / "modules")
    go.write_text("go\n")
    assert run.wait(LIMIT_SECONDS) == 0
    assert project.gauntlet("run", *stages).code == 0
    assert project.result(_COMPILE)["cache"]["hit"] is False


# Devices and files


def test_a_device_that_is_not_here_fails_at_once(project: Project) -> None:
    project.regression(device="hip")
    done = project.gauntlet("run", "--stages", "threshold")
    assert done.code == 3
    result = project.result(f"{_CHAIN}:threshold")
    assert "hip" in result["reason"]
    # It was the first to be said, and nothing waited for it.
    finished = [line for line in done.out.splitlines() if line.startswith("[") and "still running" not in line]
    assert "threshold" in finished[0]


def test_a_missing_program_names_file_and_next_step(project: Project) -> None:
    (project.regressions / "abs.mlir").unlink()
    done = project.gauntlet("run")
    assert done.code == 3
    assert "abs.mlir" in project.result(f"{_CHAIN}:fetch")["reason"]
    assert project.verdict(_COMPILE) == "skipped"


# Networks


def test_a_404_names_the_url(project: Project, server: Server) -> None:
    url = server.url("/m.mlir", lambda handler: handler.send_error(404))
    project.regression(mlir=url)
    done = project.gauntlet("run", *_NO_STALL)
    assert done.code == 3
    assert "404" in project.result(f"{_CHAIN}:fetch")["reason"]
    assert url in done.out


def test_a_hash_that_differs_stops_the_chain_and_replaces_nothing(project: Project, server: Server) -> None:
    url = server.url("/m.mlir", make_responder((project.regressions / "abs.mlir").read_bytes()))
    project.regression(mlir=url)
    assert project.gauntlet("run", "--stages", "compile").code == 0
    lock = project.folder / "cache" / "registry.lock.txt"
    assert url in lock.read_text()
    shutil.rmtree(project.folder / "cache" / "artifacts")
    words = lock.read_text().split()
    lock.write_text(f"{words[0]} sha256:{'0' * 64} {url}\n")
    done = project.gauntlet("run", "--stages", "compile")
    assert done.code == 3
    assert "wrong content" in project.result(f"{_CHAIN}:fetch")["reason"]
    assert not list((project.folder / "cache" / "artifacts").rglob("m*"))


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.stress), signal.SIGTERM])
def test_a_silent_server_does_not_hold_up_an_interrupt(
    project: Project, server: Server, number: signal.Signals
) -> None:
    def stall(request: Request) -> None:
        send_response(request, Content_Length="1000")
        server.stop_event.wait()

    project.regression(mlir=server.url("/m.mlir", stall))
    run = project.start("run", *_NO_STALL)
    wait_until(lambda: server.hits["/m.mlir"] > 0)
    run.send_signal(number)
    # The server says nothing for as long as this test lasts, and the run would wait for it.
    assert run.wait(LIMIT_SECONDS / 2) == 130
    assert (project.newest / "junit.xml").is_file()
    assert not list((project.folder / "cache").rglob("m.mlir"))


# Other runs


def test_two_runs_at_once_share_the_cache(cold: Project) -> None:
    cold.add("b")
    words = ("run", "--stages", "compile", "--run-dir")
    runs = [cold.start(*words, str(cold.folder / "runs" / str(number))) for number in range(2)]
    assert [run.wait(LIMIT_SECONDS) for run in runs] == [0, 0]
    modules = [path for path in (cold.folder / "cache" / "modules").glob("??/*") if path.is_dir()]
    assert len(modules) == 2
    assert not list((cold.folder / "cache" / "modules" / "making").iterdir())


def test_runs_of_one_second_take_folders_of_their_own(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    now = datetime(2026, 11, 21, 7, 18, tzinfo=UTC)

    class Stopped(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
            return now.astimezone(tz)

    monkeypatch.setattr(run_folder, "datetime", Stopped)
    stamp = "20261121-071800-custom"
    # That of another run, which has written nothing yet.
    taken = project.folder / "runs" / f"{stamp}-2"
    taken.mkdir(parents=True)
    for _ in range(2):
        assert project.gauntlet("run", "--stages", "fetch").code == 0
    runs = sorted(path.parent.name for path in (project.folder / "runs").glob("*/summary.json"))
    assert runs == [stamp, f"{stamp}-3"]
    assert not list(taken.iterdir())


def test_one_journal_has_one_writer(project: Project) -> None:
    assert project.gauntlet("run", "--stages", "fetch").code == 0
    before = (project.newest / "journal.jsonl").read_bytes()
    with Journal(project.newest / "journal.jsonl", lambda: datetime.now(UTC)):
        second = project.gauntlet("run", "--resume")
    assert second.code == 3
    assert f"process {os.getpid()}" in second.err
    assert (project.newest / "journal.jsonl").read_bytes() == before
    assert project.gauntlet("run", "--resume").code == 0


def test_a_benchmark_has_the_machine_for_itself_and_says_for_whom_it_waits(project: Project) -> None:
    began, go, printed = (project.folder / name for name in ("began", "go", "printed.txt"))
    os.mkfifo(go)
    wait = f"touch '{began}'; read -r line < '{go}'"
    tool = project.write_tool(f'{wait}; exec "{find_installed().runtime.benchmark_module}" "$@"')
    locks = MachineLocks(find_lock_folder(os.environ), patience=0.0, cancelled=threading.Event())
    with printed.open("wb") as output, locks.quiet_machine(exclusive=True, on_wait=pytest.fail):
        run = project.start("run", output=output, benchmark_module=tool)
        wait_until(lambda: f"process {os.getpid()} of another run" in printed.read_text())
        assert not began.exists()
    wait_until(began.exists)
    with (
        pytest.raises(GauntletError, match=f"process {run.pid} of another run"),
        locks.quiet_machine(exclusive=False, on_wait=lambda _: None),
    ):
        pytest.fail("something runs during a benchmark")
    go.write_text("go\n")
    assert run.wait(LIMIT_SECONDS) == 0


def test_only_what_was_started_can_be_reproduced(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The folder of locks can be used, and what is in it cannot.
    for name in ("quiet.lock", "quiet-gate.lock"):
        (tmp_path / "locks" / name).mkdir(parents=True)
    monkeypatch.setenv("IREE_GAUNTLET_LOCKS", str(tmp_path / "locks"))
    project.write_expected("abs", [9.0] * 4)
    project.benchmark("lonely")
    done = project.gauntlet("run")
    assert done.code == 3
    assert done.out.count("Is a directory") >= 2, done.text
    assert "no regression spec defines toy/lonely" in done.out
    assert "Reproduce:" not in done.out
    texts = [(project.newest / name).read_text().lower() for name in ("summary.md", "junit.xml")]
    assert [text for text in texts if "reproduce:" in text] == []


def test_locks_of_ones_own_are_used_alone_and_named_in_all_reports(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = find_lock_folder(os.environ)
    with MachineLocks(others, patience=0.0, cancelled=threading.Event()).quiet_machine(
        exclusive=True, on_wait=pytest.fail
    ):
        # Whoever holds those is not waited for.
        own = tmp_path / "own locks"
        monkeypatch.setenv("IREE_GAUNTLET_LOCKS", str(own))
        done = project.gauntlet("run")
    assert done.code == 0, done.text
    assert {path.name for path in own.iterdir()} >= {"quiet-gate.lock", "quiet.lock"}
    remark = f"the machine's locks are in {own}: times may overlap with those of runs with other locks"
    assert remark in done.out
    reports = {name: (project.newest / name).read_text() for name in ("summary.md", "summary.json", "junit.xml")}
    # Markdown escapes underscores.
    assert [name for name, text in reports.items() if remark not in text.replace("\\_", "_")] == []
    assert project.journal.run.lock_folder == str(own)
