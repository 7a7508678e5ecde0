"""Programs on a board, which is an sshd on loopback: what comes back, what is copied, what is left, what goes wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from iree_gauntlet.engine.processes import boards
from iree_gauntlet.engine.processes.boards import Board, BoardError
from iree_gauntlet.engine.processes.supervisor import Outcome, Supervisor
from iree_gauntlet.measuring.machine.machine_state import read_machine_state
from iree_gauntlet.steps import Command
from iree_gauntlet.targets import split_board
from tests.support.boards import LoopbackBoard, run_board
from tests.support.command_line import LIMIT_SECONDS
from tests.support.hanging import HANG
from tests.support.places import ROOT
from tests.support.processes import find_processes, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

_MEBIBYTE = 1 << 20


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopbackBoard]:
    with run_board(tmp_path_factory.mktemp("board")) as board:
        yield board


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    with Supervisor(grace=LIMIT_SECONDS) as supervisor:
        yield supervisor


def write_program(folder: Path, script: str, name: str = "tool") -> str:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def run_on(
    board: LoopbackBoard, supervisor: Supervisor, folder: Path, *argv: str, timeout: float = LIMIT_SECONDS
) -> Outcome:
    command = Command(argv, str(folder), runner=board.words)
    return supervisor.run(command, stdout=folder / "out", stderr=folder / "err", timeout=timeout)


@pytest.mark.parametrize(
    ("runner", "words", "rest"),
    [
        (["ssh", "pi"], 2, []),
        (["ssh", "-p", "2222", "-4i", "key", "-oBatchMode=yes", "me@pi"], 7, []),
        (["/usr/bin/ssh", "pi", "qemu-aarch64", "-L", "/x"], 2, ["qemu-aarch64", "-L", "/x"]),
        (["ssh", "-p", "2222"], 0, ["ssh", "-p", "2222"]),
        (["qemu-aarch64", "-L", "/x"], 0, ["qemu-aarch64", "-L", "/x"]),
        ([], 0, []),
    ],
)
def test_a_runner_is_a_board_if_it_begins_with_ssh(runner: list[str], words: int, rest: list[str]) -> None:
    assert split_board(runner) == (tuple(runner[:words]), tuple(rest))


def test_paths_in_flags_become_those_of_the_board(tmp_path: Path) -> None:
    for name in ("tool", "m.vmfb", "a b.npy", "w=1.irpa", "main"):
        (tmp_path / name).write_text(name)
    command = Command(
        (
            f"{tmp_path}/tool",
            "--module=m.vmfb",
            f"--input=@{tmp_path}/a b.npy",
            "--input=2xf32=@a b.npy",
            "--input=4xf32=1 2 3 4",
            f"--parameters=model={tmp_path}/w=1.irpa",
            "--function=main",
            f"--output=@{tmp_path}/actual_0.npy",
            "--output=-",
            "--benchmark_min_time=1x",
        ),
        str(tmp_path),
        runner=("qemu",),
    )
    call = boards._translate(command)
    names = {path.name: f"../../files/{name}" for name, path in call.files.items()}
    assert sorted(names) == ["a b.npy", "m.vmfb", "tool", "w=1.irpa"]
    assert names["a b.npy"].endswith("/a_b.npy")
    assert call.argv == (
        "qemu",
        names["tool"],
        f"--module={names['m.vmfb']}",
        f"--input=@{names['a b.npy']}",
        f"--input=2xf32=@{names['a b.npy']}",
        "--input=4xf32=1 2 3 4",
        f"--parameters=model={names['w=1.irpa']}",
        "--function=main",
        "--output=@output_0_actual_0.npy",
        "--output=-",
        "--benchmark_min_time=1x",
    )
    assert call.outputs == {"output_0_actual_0.npy": tmp_path / "actual_0.npy"}
    assert call.files[call.program] == tmp_path / "tool"


def test_the_state_of_a_board_is_read_as_that_of_this_machine() -> None:
    text = (
        "/proc/loadavg:0.50 0.40 0.30 1/80 900\n/proc/self/status:Name:\tgrep\n/proc/self/status:Cpus_allowed:\t1,0f\n"
        "/proc/meminfo:MemTotal:  4000 kB\n/proc/meminfo:MemAvailable:  2000 kB\n"
        "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor:ondemand\n"
        "/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq:1500000\n"
        "/sys/class/thermal/thermal_zone0/type:cpu-thermal\n/sys/class/thermal/thermal_zone0/temp:61250\n"
        "a line of another program\n/proc/../../etc/x:1\n"
    )
    with boards._unpack_state(text.encode()) as root:
        state = read_machine_state(root=root)
        assert sorted(path.name for path in root.iterdir()) == ["proc", "sys"]
    assert (state.load_1m, state.cores, state.governor, state.frequency_mhz) == (0.5, 5, "ondemand", 1500.0)
    assert (state.cpu_temperature_c, state.free_memory_bytes) == (61.25, 2000 * 1024)


def test_a_program_runs_there_and_its_outputs_come_back(
    board: LoopbackBoard, supervisor: Supervisor, tmp_path: Path
) -> None:
    tool = write_program(tmp_path, 'echo "said $X"; echo worse >&2; for a; do :; done; cp "${1#*@}" "${2#*@}"; exit 3')
    (tmp_path / "in put.npy").write_text("content")
    command = Command(
        (tool, "--input=@in put.npy", f"--output=@{tmp_path}/made.npy"), str(tmp_path), (("X", "a 'b'"),), board.words
    )
    for _ in range(2):
        (tmp_path / "made.npy").unlink(missing_ok=True)
        outcome = supervisor.run(command, stdout=tmp_path / "out", stderr=tmp_path / "err", timeout=LIMIT_SECONDS)
        assert (outcome.exit_code, outcome.signal) == (3, "")
        assert ((tmp_path / "out").read_text(), (tmp_path / "err").read_text()) == ("said a 'b'\n", "worse\n")
        assert (tmp_path / "made.npy").read_text() == "content"
        inodes = {path.stat().st_ino for path in board.cache.glob("files/*/in_put.npy")}
        assert len(inodes) == 1
        assert not board.runs
    # Another content is another file.
    (tmp_path / "in put.npy").write_text("changed")
    supervisor.run(command, stdout=tmp_path / "out", stderr=tmp_path / "err", timeout=LIMIT_SECONDS)
    assert (tmp_path / "made.npy").read_text() == "changed"
    assert board.cached_names.count("in_put.npy") == 2


def test_a_signal_there_is_the_signal_here(board: LoopbackBoard, supervisor: Supervisor, tmp_path: Path) -> None:
    outcome = run_on(board, supervisor, tmp_path, write_program(tmp_path, "kill -ILL $$"))
    assert (outcome.exit_code, outcome.signal) == (None, "SIGILL")


def test_a_benchmark_brings_the_state_of_the_board(
    board: LoopbackBoard, supervisor: Supervisor, tmp_path: Path
) -> None:
    outcome = run_on(board, supervisor, tmp_path, write_program(tmp_path, "exit 0", "iree-benchmark-module"))
    assert outcome.board_state is not None
    record = outcome.board_state.as_dict()
    assert record["board"] == board.words[-1]
    assert record["load_1m"] >= 0
    assert outcome.board_state.after.cores == read_machine_state().cores


def test_a_time_limit_ends_the_program_there_and_its_children(
    board: LoopbackBoard, supervisor: Supervisor, tmp_path: Path
) -> None:
    never = tmp_path / f"never-{os.getpid()}"
    os.mkfifo(never)
    # The limit runs out only after the child has begun.
    tool = write_program(tmp_path, f"cat {never} & cat {never}")
    outcome = run_on(board, supervisor, tmp_path, tool, timeout=0.3)
    assert outcome.timed_out
    assert not find_processes(str(never))
    assert not board.runs


def test_ctrl_c_ends_the_program_there(board: LoopbackBoard, tmp_path: Path) -> None:
    never = tmp_path / f"never-{os.getpid()}"
    os.mkfifo(never)
    outcomes: list[Outcome] = []
    with Supervisor(grace=LIMIT_SECONDS) as supervisor:
        tool = write_program(tmp_path, f"cat {never}")
        thread = threading.Thread(target=lambda: outcomes.append(run_on(board, supervisor, tmp_path, tool)))
        thread.start()
        wait_until(lambda: find_processes(str(never)))
        supervisor.cancel_all()
        thread.join()
        assert outcomes[0].cancelled
    assert not find_processes(str(never))
    assert not board.runs


_RUN = """
import sys
from pathlib import Path
from iree_gauntlet.engine.processes.supervisor import Supervisor
from iree_gauntlet.steps import Command
from iree_gauntlet.targets import split_board
folder, tool, *words = sys.argv[1:]
with Supervisor() as supervisor:
    command = Command((tool,), folder, runner=tuple(words))
    supervisor.run(command, stdout=Path(folder, "out"), stderr=Path(folder, "err"), timeout=1e6)
"""


def test_nothing_is_left_there_if_the_toolkit_is_killed(board: LoopbackBoard, tmp_path: Path) -> None:
    never = tmp_path / f"never-{os.getpid()}"
    os.mkfifo(never)
    argv = [sys.executable, "-c", _RUN, str(tmp_path), write_program(tmp_path, f"cat {never}"), *board.words]
    with subprocess.Popen(argv, env={**os.environ, "PYTHONPATH": str(ROOT)}) as process:
        wait_until(lambda: find_processes(str(never)))
        process.kill()
    wait_until(lambda: not find_processes(str(never)) and not board.runs)


def test_a_broken_connection_is_an_error_and_the_next_program_connects_again(
    board: LoopbackBoard, supervisor: Supervisor, tmp_path: Path
) -> None:
    never = tmp_path / f"never-{os.getpid()}"
    os.mkfifo(never)
    tool = write_program(tmp_path, f"cat {never}")

    def break_connections() -> None:
        wait_until(lambda: find_processes(str(never)))
        for pid in board.list_sessions():
            os.kill(pid, signal.SIGKILL)

    thread = threading.Thread(target=break_connections)
    thread.start()
    with pytest.raises(BoardError, match=r"the connection to .*127\.0\.0\.1 broke") as error:
        run_on(board, supervisor, tmp_path, tool)
    thread.join()
    assert "--resume" in error.value.hint
    wait_until(lambda: not find_processes(str(never)))
    assert run_on(board, supervisor, tmp_path, write_program(tmp_path, "exit 4", "next")).exit_code == 4
    assert not board.runs


def test_two_programs_wait_for_each_other(board: LoopbackBoard, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    messages: list[str] = []
    outcomes: list[Outcome] = []
    folders = [tmp_path / name for name in ("first", "second")]
    for folder in folders:
        folder.mkdir()
    tool = write_program(tmp_path, f"cat {gate}")
    with Supervisor() as first, Supervisor(on_wait=messages.append) as second:
        threads = [
            threading.Thread(target=lambda s=s, f=f: outcomes.append(run_on(board, s, f, tool)))
            for s, f in zip((first, second), folders, strict=True)
        ]
        threads[0].start()
        wait_until(lambda: find_processes(str(gate)))
        threads[1].start()
        wait_until(lambda: messages)
        assert len(find_processes(str(gate))) == 1
        gate.write_text("go")
        threads[0].join()
        wait_until(lambda: find_processes(str(gate)))
        gate.write_text("go")
        threads[1].join()
    assert [outcome.exit_code for outcome in outcomes] == [0, 0]
    assert f"process {os.getpid()} on" in messages[0]
    assert messages[-1] == "", "what is displayed says that the wait is over"


def test_what_hangs_is_ended_by_the_next_if_its_guard_was_killed(
    board: LoopbackBoard, supervisor: Supervisor, tmp_path: Path
) -> None:
    # Whoever kills the guard on the board (the kernel, for lack of memory) leaves the program to the next run.
    marker = tmp_path / f"marker-{os.getpid()}"
    stray = subprocess.Popen(["sh", "-c", f"{HANG}  # {marker}"], start_new_session=True)
    started = Path(f"/proc/{stray.pid}/stat").read_text().rpartition(") ")[2].split()[19]
    folder = board.cache / "runs" / "stray"
    folder.mkdir(parents=True)
    (folder / "group").write_text(f"{stray.pid} {started}\n")
    reaper = threading.Thread(target=stray.wait)
    reaper.start()
    assert run_on(board, supervisor, tmp_path, write_program(tmp_path, "exit 0")).exit_code == 0
    reaper.join()
    assert stray.returncode == -signal.SIGTERM
    assert not board.runs


def test_a_program_that_cannot_start_there_says_why(
    board: LoopbackBoard, supervisor: Supervisor, tmp_path: Path
) -> None:
    tool = tmp_path / "tool"
    tool.write_text("#!/no/such/interpreter\n")
    tool.chmod(0o755)
    with pytest.raises(BoardError, match="tool cannot be run on"):
        run_on(board, supervisor, tmp_path, str(tool))
    tool.write_bytes(b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\x00\xf3\x00")
    with pytest.raises(BoardError, match=r"tool is for riscv64, but .* is Linux"):
        run_on(board, supervisor, tmp_path, str(tool))
    command = Command((str(tool),), str(tmp_path), runner=(*board.words, "no-such-qemu"))
    with pytest.raises(BoardError, match=r"no-such-qemu, the runner on .* is not there") as error:
        supervisor.run(command, stdout=tmp_path / "out", stderr=tmp_path / "err", timeout=LIMIT_SECONDS)
    assert "`runner`" in error.value.hint
    # A runner of the board is its own business.
    command = Command((str(tool),), str(tmp_path), runner=(*board.words, "echo"))
    supervisor.run(command, stdout=tmp_path / "out", stderr=tmp_path / "err", timeout=LIMIT_SECONDS)
    assert (tmp_path / "out").read_text().endswith("/tool\n")


def test_who_is_not_let_in_is_told_what_to_do(board: LoopbackBoard, supervisor: Supervisor, tmp_path: Path) -> None:
    tool = write_program(tmp_path, "exit 0")
    (tmp_path / "empty").touch()
    name, kind, _ = (board.folder / "known").read_text().split(maxsplit=2)
    other_key = (board.folder / "user.pub").read_text().split()[1]
    (tmp_path / "changed").write_text(f"# Boards\n{name} {kind} {other_key}\n")
    changes = [
        ("UserKnownHostsFile", f"UserKnownHostsFile={tmp_path}/empty", "the host key of .* is not known here"),
        ("UserKnownHostsFile", f"UserKnownHostsFile={tmp_path}/changed", f"has changed: .* in {tmp_path}/changed:2"),
        ("user", str(board.folder / "host"), "does not let this user in"),
    ]
    for part, word, message in changes:
        words = tuple(
            word if text.startswith(part) or text == str(board.folder / part) else text for text in board.words
        )
        with pytest.raises(BoardError, match=message) as error:
            supervisor.run(
                Command((tool,), str(tmp_path), runner=words), stdout=tmp_path / "o", stderr=tmp_path / "e", timeout=60
            )
        assert "ssh -F /dev/null" in error.value.hint
        assert (f"ssh-keygen -f '{tmp_path}/changed' -R '{name}'" in error.value.hint) == word.endswith("changed")
    with pytest.raises(BoardError, match="ssh does not take these options: Can't open user config file /nope"):
        Board(("ssh", "-F", "/nope", "host")).connect()
    with pytest.raises(BoardError, match="ssh cannot be started"):
        Board((str(tmp_path / "ssh"), "host")).connect()


def test_a_file_that_does_not_arrive_whole_is_not_kept(
    board: LoopbackBoard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = write_program(tmp_path, "exit 0 # damaged")
    monkeypatch.setattr(boards, "_hash", lambda _: "0" * 64)
    with Supervisor() as supervisor, pytest.raises(BoardError, match=r"was not copied: a file arrived damaged"):
        run_on(board, supervisor, tmp_path, tool)
    assert not list(board.cache.glob(f"files/{'0' * 64}/*"))


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to mount a file system")
def test_a_full_disk_there_is_said_as_such(supervisor: Supervisor, tmp_path: Path) -> None:
    with run_board(tmp_path) as board:
        board.cache.mkdir(parents=True)
        mount = ["mount", "-t", "tmpfs", "-o", f"size={_MEBIBYTE}", "none", str(board.cache)]
        if subprocess.run(mount, check=False, capture_output=True).returncode != 0:
            pytest.skip("may not mount a file system here")
        try:
            tool = write_program(tmp_path, 'cp "${1#*@}" "${2#*@}"')
            (tmp_path / "large").write_bytes(bytes(2 * _MEBIBYTE))
            with pytest.raises(BoardError, match=r"large \(2\.1 MB\) was not copied: no space is left on") as error:
                run_on(board, supervisor, tmp_path, tool, f"--input=@{tmp_path}/large")
            assert "cache.gc --board" in error.value.hint
            # What fits in goes on.
            (tmp_path / "small").write_bytes(b"1")
            output = f"--output=@{tmp_path}/made"
            assert run_on(board, supervisor, tmp_path, tool, f"--input=@{tmp_path}/small", output).exit_code == 0
        finally:
            subprocess.run(["umount", str(board.cache)], check=True)
