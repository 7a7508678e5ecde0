from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shlex
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iree_gauntlet.engine.processes.supervisor import Outcome, Supervisor, format_shell_line, is_disk_full
from iree_gauntlet.errors import GauntletError, ToolchainError
from iree_gauntlet.steps import Command
from iree_gauntlet.system.short_process import clean_line, read_tail
from tests.support.command_line import LIMIT_SECONDS
from tests.support.hanging import iterate_timeouts
from tests.support.places import ROOT
from tests.support.processes import find_processes, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

linux = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


_NUMBERS = itertools.count()


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    # Whoever is asked to end gets the time for it, however busy the machine is.
    with Supervisor(grace=LIMIT_SECONDS) as it:
        yield it


def run_in(supervisor: Supervisor, folder: Path, *argv: str, timeout: float = LIMIT_SECONDS) -> Outcome:
    return supervisor.run(
        Command(argv, str(folder)), stdout=folder / "out", stderr=folder / "err", timeout=timeout, tmpdir=folder
    )


@pytest.fixture
def run(supervisor: Supervisor, tmp_path: Path) -> Callable[..., Outcome]:
    def run(*argv: str, env: tuple[tuple[str, str], ...] = (), name: str = "out") -> Outcome:
        return supervisor.run(
            Command(argv, str(tmp_path), env),
            stdout=tmp_path / f"{name}.out",
            stderr=tmp_path / f"{name}.err",
            timeout=LIMIT_SECONDS,
            tmpdir=tmp_path,
        )

    return run


@pytest.fixture
def never(tmp_path: Path) -> Path:
    """A pipe that nobody writes to: who reads it hangs, and has its name, which no other has, in the command line."""
    path = tmp_path / f"never-{os.getpid()}-{next(_NUMBERS)}-"
    os.mkfifo(path)
    return path


@pytest.fixture
def ready(tmp_path: Path) -> Path:
    """A file that a script makes when it has come so far."""
    return tmp_path / "ready"


def python(code: str) -> tuple[str, str, str]:
    return sys.executable, "-c", code


def when(condition: Callable[[], object], action: Callable[[], object]) -> threading.Thread:
    """Does something, on a thread of its own, as soon as something is true."""

    def work() -> None:
        wait_until(condition)
        action()

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_plain_process(run: Callable[..., Outcome], tmp_path: Path) -> None:
    outcome = run("sh", "-c", "echo out; echo err >&2; pwd; cat; exit 3")
    assert outcome.exit_code == 3
    assert outcome.signal == ""
    assert (outcome.timed_out, outcome.cancelled, outcome.stuck, outcome.truncated) == (False,) * 4
    assert outcome.tail == ("out", str(tmp_path), "err")
    assert (tmp_path / "out.out").read_text() == f"out\n{tmp_path}\n"
    assert (tmp_path / "out.err").read_text() == "err\n"
    assert outcome.notes == ()


def test_streams_may_share_a_file(supervisor: Supervisor, tmp_path: Path) -> None:
    log = tmp_path / "deep" / "log"
    command = Command(("sh", "-c", "echo a; echo b >&2; echo c"), "")
    outcome = supervisor.run(command, stdout=log, stderr=log, timeout=30, tmpdir=tmp_path)
    assert log.read_text() == "a\nb\nc\n"
    assert outcome.tail == ("a", "b", "c")


def test_environment_is_changed_not_replaced(run: Callable[..., Outcome]) -> None:
    outcome = run("sh", "-c", 'echo "$GAUNTLET_X"; test -n "$PATH"', env=(("GAUNTLET_X", "é ü"),))
    assert outcome.exit_code == 0
    assert outcome.tail == ("é ü",)


def test_temporary_folder_is_private_and_removed(run: Callable[..., Outcome], tmp_path: Path) -> None:
    outcome = run("sh", "-c", 'echo $TMPDIR; cd "$TMPDIR"; stat -c %a .; mkdir -p a/b; chmod 500 a')
    folder = Path(outcome.tail[0])
    assert folder.parent == tmp_path
    assert outcome.tail[1] == "700"
    assert not folder.exists()
    assert outcome.notes == ()


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGABRT", "SIGKILL", "SIGTERM"])
def test_crash_names_its_signal(run: Callable[..., Outcome], name: str) -> None:
    outcome = run("sh", "-c", f"kill -{name[3:]} $$")
    assert outcome.exit_code is None
    assert outcome.signal == name
    assert not outcome.timed_out


def test_abort_of_a_python(run: Callable[..., Outcome]) -> None:
    outcome = run(*python("import os; print('last words', flush=True); os.abort()"))
    assert outcome.signal == "SIGABRT"
    assert "last words" in outcome.tail


@linux
def test_hang_is_ended_with_its_children(supervisor: Supervisor, tmp_path: Path, never: Path, ready: Path) -> None:
    script = f"sh -c 'cat {never.name} & : > ready; cat {never.name}' & cat {never.name}; true"
    for seconds in iterate_timeouts():
        outcome = run_in(supervisor, tmp_path, "sh", "-c", script, timeout=seconds)
        assert outcome.timed_out
        assert outcome.signal == "SIGTERM"
        assert find_processes(never.name) == []
        if ready.exists():
            break


@linux
def test_who_ignores_sigterm_is_killed_after_the_grace(tmp_path: Path, never: Path, ready: Path) -> None:
    script = f"trap '' TERM; cat {never.name} & : > ready; cat {never.name}; cat {never.name}"
    with Supervisor(grace=0.0) as supervisor:
        for seconds in iterate_timeouts():
            outcome = run_in(supervisor, tmp_path, "sh", "-c", script, timeout=seconds)
            assert outcome.timed_out
            assert find_processes(never.name) == []
            if ready.exists():
                break
    assert outcome.signal == "SIGKILL"


@linux
def test_members_outlive_a_leader_no_longer_than_the_grace(tmp_path: Path, never: Path, ready: Path) -> None:
    script = f"(trap '' TERM; : > ready; cat {never.name}; cat {never.name}) & exec cat {never.name}"
    for seconds in iterate_timeouts():
        # The grace grows too: until the leader has had the time to obey.
        with Supervisor(grace=seconds) as supervisor:
            outcome = run_in(supervisor, tmp_path, "sh", "-c", script, timeout=seconds)
        assert outcome.timed_out
        assert find_processes(never.name) == []
        if ready.exists() and outcome.signal == "SIGTERM":
            break


@linux
def test_what_a_process_leaves_behind_is_killed(run: Callable[..., Outcome], tmp_path: Path, never: Path) -> None:
    os.mkfifo(tmp_path / "begun")
    left = f"setsid sh -c ': > begun; exec cat {never.name}'"
    outcome = run("sh", "-c", f"cat {never.name} & {left} & read line < begun; exit 4")
    assert outcome.exit_code == 4
    assert not outcome.timed_out
    wait_until(lambda: find_processes(never.name) == [])


def test_exit_code_of_who_obeys_sigterm_is_kept(
    supervisor: Supervisor, tmp_path: Path, never: Path, ready: Path
) -> None:
    script = f"trap 'exit 7' TERM; : > ready; cat {never.name} & wait"
    for seconds in iterate_timeouts():
        outcome = run_in(supervisor, tmp_path, "sh", "-c", script, timeout=seconds)
        assert outcome.timed_out
        if ready.exists():
            break
    assert outcome.exit_code == 7


def test_cancel_ends_all_and_starts_no_more(
    supervisor: Supervisor, run: Callable[..., Outcome], tmp_path: Path, never: Path
) -> None:
    outcomes: list[Outcome] = []
    ready = [tmp_path / f"ready{number}" for number in range(3)]
    threads = [
        threading.Thread(
            target=lambda n=number: outcomes.append(run("sh", "-c", f": > ready{n}; cat {never.name}", name=str(n)))
        )
        for number in range(3)
    ]
    for thread in threads:
        thread.start()
    wait_until(lambda: all(path.exists() for path in ready))
    supervisor.cancel_all()
    for thread in threads:
        thread.join()
    assert [(outcome.cancelled, outcome.timed_out, outcome.signal) for outcome in outcomes] == [
        (True, False, "SIGTERM")
    ] * 3
    assert run("true") == Outcome(None, cancelled=True)


def test_second_cancel_does_not_wait(supervisor: Supervisor, tmp_path: Path, never: Path, ready: Path) -> None:
    outcomes: list[Outcome] = []
    # A shell that waits for what is behind it meets a signal at once, also one that comes before it waits.
    script = f"trap ': > asked' TERM; : > ready; while :; do cat {never.name} & wait; done"
    thread = threading.Thread(target=lambda: outcomes.append(run_in(supervisor, tmp_path, "sh", "-c", script)))
    thread.start()
    wait_until(ready.exists)
    supervisor.cancel_all()
    wait_until((tmp_path / "asked").exists)
    assert outcomes == []
    supervisor.cancel_all()
    thread.join()
    assert outcomes[0].signal == "SIGKILL"
    assert outcomes[0].cancelled


def test_cancel_from_a_signal_handler_while_waiting(
    supervisor: Supervisor, run: Callable[..., Outcome], never: Path, ready: Path
) -> None:
    before = signal.signal(signal.SIGUSR1, lambda *_: supervisor.cancel_all())
    try:
        thread = when(ready.exists, lambda: os.kill(os.getpid(), signal.SIGUSR1))
        assert run("sh", "-c", f": > ready; cat {never.name}").cancelled
        thread.join()
    finally:
        signal.signal(signal.SIGUSR1, before)


@linux
def test_exception_while_waiting_ends_the_process(run: Callable[..., Outcome], never: Path, ready: Path) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        thread = when(ready.exists, lambda: os.kill(os.getpid(), signal.SIGUSR1))
        with pytest.raises(KeyboardInterrupt):
            run("sh", "-c", f": > ready; cat {never.name}")
        thread.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    wait_until(lambda: find_processes(never.name) == [])
    assert run("true").exit_code == 0


PARENT = """
import sys, threading
from pathlib import Path
from iree_gauntlet.steps import Command
from iree_gauntlet.engine.processes.supervisor import Supervisor
folder, never = Path(sys.argv[1]), Path(sys.argv[2])
supervisor = Supervisor()
def run(n):
    left = f"setsid sh -c ': > left{n}; exec cat {never.name}'"
    shell = f"trap '' TERM; cat {never.name} & {left} & : > ready{n}; cat {never.name}; true"
    supervisor.run(Command(("sh", "-c", shell), str(folder)), stdout=folder / f"o{n}", stderr=folder / f"e{n}",
                   timeout=1000, tmpdir=folder / "tmp")
for n in range(2):
    threading.Thread(target=run, args=(n,)).start()
"""


@linux
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_death_of_the_toolkit_leaves_no_process(tmp_path: Path, never: Path, number: signal.Signals) -> None:
    (tmp_path / "tmp").mkdir()
    argv = [*python(PARENT), str(tmp_path), str(never)]
    with subprocess.Popen(argv, env={**os.environ, "PYTHONPATH": str(ROOT)}) as parent:
        marks = [tmp_path / f"{name}{n}" for name in ("ready", "left") for n in range(2)]
        wait_until(lambda: all(mark.exists() for mark in marks))
        parent.send_signal(number)
    wait_until(lambda: find_processes(never.name) == [])
    wait_until(lambda: list((tmp_path / "tmp").iterdir()) == [])


@linux
def test_death_of_the_reaper_is_reported_and_leaves_no_process(
    supervisor: Supervisor, run: Callable[..., Outcome], never: Path, ready: Path
) -> None:
    assert run("true").exit_code == 0
    assert supervisor._reaper is not None
    thread = when(ready.exists, supervisor._reaper.kill)
    with pytest.raises(GauntletError, match="killed from outside"):
        run("sh", "-c", f"cat {never.name} & : > ready; cat {never.name}; true")
    thread.join()
    wait_until(lambda: find_processes(never.name) == [])
    with pytest.raises(GauntletError, match="killed from outside"):
        run("true")


@linux
def test_a_reaper_that_dies_before_it_says_whom_it_started_leaves_no_process(tmp_path: Path, never: Path) -> None:
    # Whoever is faster: the process ends its parent as the first thing that it does.
    for _ in range(20):
        with Supervisor() as supervisor, pytest.raises(GauntletError, match="killed from outside"):
            run_in(supervisor, tmp_path, "sh", "-c", f"kill -9 $PPID; cat {never.name}; true")
        wait_until(lambda: find_processes(never.name) == [])


def test_stuck_process_is_given_up(tmp_path: Path, never: Path, ready: Path) -> None:
    # No SIGKILL reaches it in time: none is waited for.
    script = f"trap '' TERM; : > ready; while :; do cat {never.name}; done"
    with Supervisor(grace=0.0, kill_patience=0.0) as supervisor:
        for seconds in iterate_timeouts():
            outcome = run_in(supervisor, tmp_path, "sh", "-c", script, timeout=seconds)
            assert outcome.timed_out
            assert outcome.exit_code is None
            if ready.exists():
                break
    assert outcome.stuck or outcome.signal == "SIGKILL"


def test_flood_is_read_from_its_end(run: Callable[..., Outcome], tmp_path: Path) -> None:
    outcome = run("sh", "-c", "yes spam | head -c 50000000; echo; echo the end; echo error >&2")
    assert (tmp_path / "out.out").stat().st_size > 50_000_000
    assert outcome.truncated
    assert len(outcome.tail) == 20
    assert outcome.tail[-2:] == ("the end", "error")


def test_long_error_leaves_room_for_output(run: Callable[..., Outcome]) -> None:
    outcome = run("sh", "-c", "seq 100; seq 100 >&2")
    assert outcome.tail == (*map(str, range(95, 101)), *map(str, range(87, 101)))
    assert outcome.truncated


def test_resources_are_those_of_the_process(run: Callable[..., Outcome]) -> None:
    ballast = bytearray(200 << 20)
    small = run("true")
    assert 0 < small.peak_rss_bytes < 100 << 20, "the toolkit's own memory was counted"
    # It works until it has seen its own CPU time grow, and says how far.
    used = "sum(resource.getrusage(resource.RUSAGE_SELF)[:2])"
    code = f"import resource\nb = b'x' * (150 << 20)\nbegun = {used}\nwhile {used} < begun + 0.1: pass\nprint({used})"
    large = run(*python(code))
    assert 150 << 20 <= large.peak_rss_bytes < 250 << 20
    assert large.cpu_seconds >= float(large.tail[0])
    del ballast


def test_missing_program(run: Callable[..., Outcome], tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match="no-such-tool: no such program on PATH") as caught:
        run("no-such-tool")
    assert caught.value.hint
    with pytest.raises(ToolchainError, match=r"/none: no such program\n"):
        run(str(tmp_path / "none"))


def test_program_that_cannot_be_run(run: Callable[..., Outcome], tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/no/interpreter\n")
    with pytest.raises(ToolchainError, match=r"Permission denied"):
        run(str(program))
    program.chmod(0o755)
    with pytest.raises(ToolchainError, match="interpreter or loader"):
        run("./program")
    program.write_bytes(b"\x7fELFnonsense")
    with pytest.raises(ToolchainError, match="cannot be run: Exec format error"):
        run(str(program))
    with pytest.raises(ToolchainError, match="null byte"):
        run("a\0b")


def test_folders_that_are_missing(supervisor: Supervisor, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with pytest.raises(GauntletError, match=r"none: cannot run true there: no such folder"):
        supervisor.run(Command(("true",), str(tmp_path / "none")), stdout=log, stderr=log, timeout=9)
    with pytest.raises(GauntletError, match="cannot create a folder for a process"):
        supervisor.run(Command(("true",), ""), stdout=log, stderr=log, timeout=9, tmpdir=tmp_path / "none")
    (tmp_path / "folder").mkdir()
    with pytest.raises(GauntletError, match="folder: cannot write the log"):
        supervisor.run(Command(("true",), ""), stdout=tmp_path / "folder", stderr=log, timeout=9, tmpdir=tmp_path)


def test_long_command_lines_pass(run: Callable[..., Outcome], tmp_path: Path) -> None:
    arguments = [f"{number:05}" + "x" * 95 for number in range(6000)]
    outcome = run(*python("import sys; print(len(sys.argv))"), *arguments)
    assert outcome.tail == ("6001",)
    with pytest.raises(GauntletError, match="Argument list too long"):
        run("true", "x" * (1 << 20))


def test_many_at_once_from_threads(run: Callable[..., Outcome], tmp_path: Path) -> None:
    codes: dict[int, int | None] = {}
    gate = tmp_path / "gate"
    os.mkfifo(gate)

    def work(number: int) -> None:
        codes[number] = run(
            "sh", "-c", f": > begun{number}; read line < gate; exit {number}", name=str(number)
        ).exit_code

    threads = [threading.Thread(target=work, args=(number,)) for number in range(24)]
    opened = os.open(gate, os.O_RDWR)
    try:
        for thread in threads:
            thread.start()
        wait_until(lambda: len(list(tmp_path.glob("begun*"))) == 24)
        assert codes == {}
        os.write(opened, b"\n" * 24)
        for thread in threads:
            thread.join()
    finally:
        os.close(opened)
    assert codes == {number: number for number in range(24)}


@linux
def test_nothing_leaks(supervisor: Supervisor, run: Callable[..., Outcome]) -> None:
    run("true")
    assert supervisor._reaper is not None
    folders = [Path("/proc/self/fd"), Path(f"/proc/{supervisor._reaper.pid}/fd")]

    def idle() -> bool:
        # The reaper reports first, and hangs up then: what stays is the connection that it gets its orders by.
        with contextlib.suppress(FileNotFoundError):
            names = {str(path.readlink()) for path in folders[1].iterdir()}
            return sum(name.startswith("socket:") for name in names) == 1
        return False

    def count() -> list[int]:
        wait_until(idle)
        return [len(list(folder.iterdir())) for folder in folders]

    before = count()
    for _ in range(10):
        run("true")
        with pytest.raises(ToolchainError):
            run("no-such-tool")
    assert count() == before
    assert run("sh", "-c", "ls /proc/self/fd").tail == ("0", "1", "2", "3")


def test_signals_have_their_defaults_in_the_process(run: Callable[..., Outcome]) -> None:
    code = "import signal as s; print(all(s.getsignal(n) is s.SIG_DFL for n in (s.SIGTERM, s.SIGHUP)))"
    assert run(*python(code)).tail == ("True",)


def test_closed_supervisor_refuses(tmp_path: Path) -> None:
    supervisor = Supervisor()
    supervisor.close()
    supervisor.close()
    with pytest.raises(RuntimeError):
        supervisor.run(Command(("true",), ""), stdout=tmp_path / "o", stderr=tmp_path / "e", timeout=9, tmpdir=tmp_path)


WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)


@given(argv=st.lists(WORDS, max_size=4), value=WORDS, name=st.sampled_from(["A", "x_1", "a-b", "1a"]))
def test_shell_line_means_the_command(argv: list[str], value: str, name: str) -> None:
    code = "import os, sys; os.write(1, ascii([sys.argv[1:], os.environ[sys.argv[1]], os.getcwd()]).encode())"
    words = ("-I", "-S", "-c", code, name, *argv)
    line = format_shell_line(Command((sys.executable, *words), "/usr/bin", ((name, value),)))
    # What the shell makes of it, without the cost of a process for each example.
    assert line.startswith("cd /usr/bin && ")
    parts = shlex.split(line)
    assert parts[:3] == ["cd", "/usr/bin", "&&"]
    rest = parts[3:]
    if not name.isidentifier():
        assert rest.pop(0) == "env"
    assert rest == [f"{name}={value}", sys.executable, *words]


@pytest.mark.parametrize("folder", ["a b", "-x", "it's $HOME"])
@pytest.mark.parametrize("name", ["A", "a-b"])
def test_shell_line_in_a_shell(tmp_path: Path, folder: str, name: str) -> None:
    (tmp_path / folder).mkdir()
    value = "$(false) `x` \"' \\ \n*"
    code = f"import os, sys; print(ascii((os.environ[{name!r}], sys.argv[1], os.path.basename(os.getcwd()))))"
    line = format_shell_line(Command((*python(code), value), folder, ((name, value),)))
    done = subprocess.run(["sh", "-c", line], cwd=tmp_path, capture_output=True, check=True, text=True)
    assert done.stdout.strip() == ascii((value, value, folder))


def test_shell_line_without_changes() -> None:
    assert format_shell_line(Command(("a", "--b=c"), "")) == "a --b=c"


def test_full_disk_is_recognised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_disk_full(tmp_path / "not" / "yet", ("fine",))
    assert is_disk_full(tmp_path, ("LLVM ERROR: IO failure on output stream: No space left on device",))
    real = os.statvfs(tmp_path)
    fields = list(real)
    fields[4] = 0  # f_bavail
    full = os.statvfs_result(fields)
    monkeypatch.setattr(os, "statvfs", lambda _: full)
    assert is_disk_full(tmp_path)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_full_disk_in_a_real_message(run: Callable[..., Outcome], tmp_path: Path) -> None:
    outcome = run("sh", "-c", "LC_ALL=C cat /etc/hostname > /dev/full")
    assert outcome.exit_code != 0
    assert is_disk_full(tmp_path, outcome.tail)
    assert os.strerror(errno.ENOSPC).lower() in outcome.tail[-1].lower()


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ("plain", "plain"),
        ("\x1b[1;31merror:\x1b[0m bad", "error: bad"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x07", "link"),
        ("\x1b]0;never ended", ""),
        ("10%\r50%\r100%", "100%"),
        ("dos\r", "dos"),
        ("tab\there", "tab here"),
        ("bell\x07 nul\0 bidi\u202e end\x85", "bell nul bidi end "),
        ("\ufffe\ud800", ""),
        ("x" * 500, "x" * 400 + "… (100 more characters)"),
    ],
)
def test_clean_line(raw: str, clean: str) -> None:
    assert clean_line(raw) == clean


@given(data=st.binary(max_size=2000), lines=st.integers(0, 30))
def test_tail_of_anything_is_printable(tmp_path_factory: pytest.TempPathFactory, data: bytes, lines: int) -> None:
    path = tmp_path_factory.mktemp("tail") / "log"
    path.write_bytes(data)
    tail = read_tail(path, lines)
    assert len(tail.lines) <= lines
    assert all(line.isprintable() for line in tail.lines)
    assert tail.size == len(data)


def test_tail_of_one_endless_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"y" * 1_000_000 + b"\n\n\n")
    tail = read_tail(path)
    assert tail.truncated
    assert tail.lines[0].startswith("… yyy")
    assert len(tail.lines[0]) < 500
    assert read_tail(tmp_path / "none").lines == ()
