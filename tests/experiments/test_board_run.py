"""Commands with a target that runs on a board: a run, its record, `doctor`, and the board's cache."""

from __future__ import annotations

import fcntl
import json
import platform
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from iree_gauntlet.device_kinds import CPU
from iree_gauntlet.dialects.configuration_file import read_configuration
from iree_gauntlet.errors import SpecError
from iree_gauntlet.targets import Target
from iree_gauntlet.tasks import doctor
from tests.support.boards import LoopbackBoard, run_board

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from iree_gauntlet.tasks.doctor import DoctorFinding
    from tests.support.toy_project import Project

TARGET = f"{platform.machine()}-loop".replace("arm64", "aarch64")
CHAIN = f"toy/abs@cpu-{TARGET}"


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopbackBoard]:
    with run_board(tmp_path_factory.mktemp("board")) as board:
        yield board


def define(project: Project, words: tuple[str, ...]) -> None:
    settings = f"[targets.{TARGET}]\nrunner = {json.dumps(words)}\n"
    (project.folder / "gauntlet.toml").write_text(settings)


def test_a_model_is_checked_and_timed_on_a_board(board: LoopbackBoard, project: Project) -> None:
    define(project, board.words)
    done = project.gauntlet("run", "--target", TARGET)
    assert done.code == 0, done.text
    benchmark = project.result(f"{CHAIN}:benchmark")
    assert benchmark["samples"]["real_time_ms"]
    assert benchmark["statistics"]["machine"]["board"] == board.words[-1]
    assert project.result(f"{CHAIN}:threshold")["outputs"][0]["passed"]
    assert {"iree-run-module", "iree-benchmark-module", "module.vmfb"} <= set(board.cached_names)
    assert not board.runs

    words = " ".join(board.words)
    listed = project.gauntlet("cache.list", "--board", words, "--match", "iree-*")
    assert "2 files, " in listed.out
    assert project.gauntlet("cache.gc", "--board", words, "--older-than", "1d", "--delete").code == 0
    assert len(board.cached_names) > 4
    with (board.cache / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        busy = project.gauntlet("cache.gc", "--board", words, "--max-size", "0MB", "--delete")
    assert (busy.code, busy.out) == (3, ""), "nothing looks like a deletion"
    assert "is in use: its cache stays as it is" in busy.err
    emptied = project.gauntlet("cache.gc", "--board", words, "--max-size", "0MB", "--delete")
    assert "deleted: " in emptied.out
    assert not board.cached_names
    assert project.gauntlet("cache.list", "--board", "pi5").code == 2


def test_doctor_checks_boards(board: LoopbackBoard) -> None:
    def check(words: tuple[str, ...], target: str = TARGET) -> DoctorFinding:
        definition = replace(CPU.architectures["x86_64"], runner=words, is_ready_made=False)
        return next(doctor._check_board(Target("cpu", target, definition=definition)))

    finding = check(board.words)
    assert (finding.status, finding.area) == ("ok", f"board {board.words[-1]}")
    assert finding.text.startswith(f"Linux {platform.machine()}")
    other = check(board.words, "riscv64-loop")
    assert (other.status, "compiles for riscv64" in other.hint) == ("broken", True)
    unreachable = check(("ssh", "-F", "/dev/null", "-p", "1", "127.0.0.1"))
    assert (unreachable.status, "cannot be reached" in unreachable.text) == ("broken", True)
    assert not list(doctor._check_board(Target("cpu", "riscv64")))


@pytest.mark.parametrize(
    ("runner", "has_times"),
    [('"ssh pi5"', True), ('["ssh", "pi5"]', True), ('"ssh pi5 qemu-aarch64"', False), ('["qemu-aarch64"]', False)],
)
def test_times_of_a_board_are_real(runner: str, *, has_times: bool, tmp_path: Path) -> None:
    (tmp_path / "gauntlet.toml").write_text(f"[targets.arm64-pi5]\nrunner = {runner}\n")
    assert read_configuration(tmp_path, {}).targets["aarch64-pi5"].has_times is has_times


def test_ssh_without_a_host_is_no_runner(tmp_path: Path) -> None:
    (tmp_path / "gauntlet.toml").write_text('[targets.arm64-pi5]\nrunner = "ssh -p 22"\n')
    with pytest.raises(SpecError, match="ssh has no host"):
        read_configuration(tmp_path, {})
