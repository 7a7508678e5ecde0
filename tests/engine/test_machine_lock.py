"""The machine's locks: exclusion between their holders, their place, and the users that they serve."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import threading
import warnings
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from iree_gauntlet.engine.rounds.machine_lock import (
    LOCKS_VARIABLE,
    LockFolder,
    MachineLocks,
    WaitCancelledError,
    find_lock_folder,
    make_lock_facts,
    make_machine_locks,
)
from iree_gauntlet.errors import ExitCode, GauntletError, UsageError
from iree_gauntlet.system.file_lock import LockFile, try_file_lock, wait_for_lock
from tests.support.command_line import LIMIT_SECONDS
from tests.support.hanging import HANG
from tests.support.places import ROOT
from tests.support.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

HOLDER = """
import sys, threading
from pathlib import Path
from iree_gauntlet.engine.rounds.machine_lock import LockFolder, MachineLocks
locks = MachineLocks(LockFolder(Path(sys.argv[1])), patience=5, cancelled=threading.Event())
what = sys.argv[2]
lock = (locks.device_lock("hip://0", print) if what == "device"
        else locks.quiet_machine(exclusive=what == "exclusive", on_wait=print))
with lock:
    print("held", flush=True)
    sys.stdin.read()
"""
NOBODY = 65534
# A group of which nobody is a member.
GROUP = 65533
two_users = pytest.mark.skipif(os.getuid() != 0, reason="needs root, to be two users")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "locks"


def locks_in(folder: Path | LockFolder) -> MachineLocks:
    """Locks that wait for as long as it takes."""
    where = folder if isinstance(folder, LockFolder) else LockFolder(folder)
    return MachineLocks(where, patience=LIMIT_SECONDS, cancelled=threading.Event())


def impatient(folder: Path | LockFolder) -> MachineLocks:
    """Locks that wait for 0.15 s, on a clock on which every look takes 0.1 s: so that the second one is the last."""
    where = folder if isinstance(folder, LockFolder) else LockFolder(folder)
    looks = itertools.count()
    return MachineLocks(where, patience=0.15, cancelled=threading.Event(), clock=lambda: next(looks) / 10)


@contextmanager
def held_elsewhere(folder: Path, what: str) -> Iterator[subprocess.Popen[bytes]]:
    """Another process holds something, until it is killed or the block ends."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    argv = [sys.executable, "-c", HOLDER, str(folder), what]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield process


def require_refusal(lock: AbstractContextManager[None], match: str) -> None:
    with pytest.raises(GauntletError, match=match), lock:
        pytest.fail("had it")


def silent(_: str) -> None:
    pytest.fail("had to wait")


def noted(_: str) -> None:
    """Waiting is what is expected."""


def test_device_of_another_process_is_waited_for_and_freed_by_sigkill(folder: Path) -> None:
    lines: list[str] = []
    with held_elsewhere(folder, "device") as process:
        taken = impatient(folder).device_lock("hip://0", lines.append)
        require_refusal(taken, f"device hip://0 within 0.15 s: process {process.pid}")
        assert lines == [f"for device hip://0: process {process.pid} of another run uses it"]
        with locks_in(folder).device_lock("hip://1", silent):
            pass
        process.kill()
    with locks_in(folder).device_lock("hip://0", silent):
        pass


def test_a_device_that_becomes_free_is_taken(folder: Path) -> None:
    lines: list[str] = []
    with held_elsewhere(folder, "device") as process:

        def ends(line: str) -> None:
            lines.append(line)
            process.kill()

        with locks_in(folder).device_lock("hip://0", ends):
            assert len(lines) == 1


def test_noise_is_shared_and_quiet_excludes_it(folder: Path) -> None:
    with held_elsewhere(folder, "shared") as process:
        with locks_in(folder).quiet_machine(exclusive=False, on_wait=silent):
            pass
        require_refusal(impatient(folder).quiet_machine(exclusive=True, on_wait=noted), str(process.pid))
        process.kill()
    with held_elsewhere(folder, "exclusive") as process:
        for exclusive in (True, False):
            require_refusal(impatient(folder).quiet_machine(exclusive=exclusive, on_wait=noted), str(process.pid))
        process.kill()
    with locks_in(folder).quiet_machine(exclusive=True, on_wait=silent):
        pass


def test_benchmark_is_not_starved_by_new_noise(folder: Path) -> None:
    order: list[str] = []
    lines: list[str] = []
    waiting = {name: threading.Event() for name in ("benchmark", "noise")}

    def work(name: str) -> None:
        def waits(line: str) -> None:
            lines.append(line.rpartition(": ")[2])
            waiting[name].set()

        with locks_in(folder).quiet_machine(exclusive=name == "benchmark", on_wait=waits):
            order.append(name)

    threads = [threading.Thread(target=work, args=(name,)) for name in waiting]
    with locks_in(folder).quiet_machine(exclusive=False, on_wait=silent):
        for thread, is_waiting in zip(threads, waiting.values(), strict=True):
            thread.start()
            assert is_waiting.wait(LIMIT_SECONDS)
        assert order == []
    for thread in threads:
        thread.join()
    assert order == ["benchmark", "noise"]
    assert lines[:2] == ["another step of this run uses it", "another step of this run waits for it"]


def test_wait_is_cancelled(folder: Path) -> None:
    cancelled = threading.Event()
    locks = MachineLocks(LockFolder(folder), patience=LIMIT_SECONDS, cancelled=cancelled)
    with (
        locks.device_lock("x", silent),
        pytest.raises(WaitCancelledError),
        locks.device_lock("x", lambda _: cancelled.set()),
    ):
        pytest.fail("held twice")


def test_own_process_is_named_as_such(folder: Path) -> None:
    lines: list[str] = []
    with ExitStack() as stack:
        stack.enter_context(locks_in(folder).device_lock("x", silent))
        with pytest.raises(GauntletError, match="another step of this run"):
            stack.enter_context(impatient(folder).device_lock("x", lines.append))
    assert len(lines) == 1


def test_folder_of_a_stranger_or_a_link_is_refused(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    link = tmp_path / "link"
    link.symlink_to(elsewhere)
    plain = tmp_path / "plain"
    plain.touch()
    for place in (link, plain):
        require_refusal(locks_in(place).device_lock("x", silent), "does not belong to you")
    require_refusal(locks_in(tmp_path / "a/b").device_lock("x", silent), "cannot create")
    assert list(elsewhere.iterdir()) == []


def test_foreign_owner_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    owner = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    require_refusal(locks_in(folder).device_lock("x", silent), "does not belong to you")


def test_link_in_place_of_a_lock_file_is_not_followed(folder: Path, tmp_path: Path) -> None:
    folder.mkdir(mode=0o777)
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (folder / "device-x.lock").symlink_to(victim)
    require_refusal(locks_in(folder).device_lock("x", silent), "cannot lock")
    assert victim.read_text() == "precious"
    assert folder.stat().st_mode & 0o777 == 0o700


def test_swept_lock_file_is_made_again(folder: Path) -> None:
    folder.mkdir()
    path = folder / "x.lock"
    with LockFile(path) as first, LockFile(path) as second:
        assert first.try_acquire()
        path.unlink()
        # The file of the first is gone for good; the second meets later ones at the new file.
        assert second.try_acquire()
        assert not LockFile(path).try_acquire()
        with pytest.raises(RuntimeError):
            second.try_acquire()


def test_list_of_holders_stays_small(folder: Path) -> None:
    folder.mkdir()
    path = folder / "x.lock"
    for _ in range(300):
        with LockFile(path) as lock:
            assert lock.try_acquire(exclusive=False)
            assert lock.holders() == (os.getpid(),)
    assert path.stat().st_size < 1000
    assert LockFile(folder / "none").holders() == ()


def test_holders_that_are_dead_or_nonsense_are_left_out(folder: Path) -> None:
    folder.mkdir()
    path = folder / "x.lock"
    path.write_text(f"99999999999999999999 nonsense {2**22 + 5} {os.getpid()}")
    assert LockFile(path).holders() == (os.getpid(),)


def test_a_gpu_of_two_drivers_is_one_device(folder: Path) -> None:
    # As IREE's drivers name an H100.
    cuda, vulkan = "cuda://GPU-b08a9e40-5f0c-29dd-4c3d-9692503045f4", "vulkan://GPU-b08a9e405f0c29dd4c3d9692503045f4"
    lines: list[str] = []
    with locks_in(folder).device_lock(cuda, silent):
        require_refusal(impatient(folder).device_lock(vulkan, lines.append), "no access to device vulkan")
        with locks_in(folder).device_lock(vulkan.replace("b08a9e40", "b08a9e41"), silent):
            pass
    assert lines == [f"for device {vulkan}: another step of this run uses it"]


def test_devices_have_files_of_their_own(folder: Path) -> None:
    names = ["hip://0", "hip:__0", "hip___0", "../x", "HIP://0", "hip_3a_"]
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(locks_in(folder).device_lock(name, silent))
        assert len(list(folder.iterdir())) == len(names)


# Where they lie


def test_the_default_folder_is_the_users_own_and_named_nowhere() -> None:
    for environ in ({}, {LOCKS_VARIABLE: ""}):
        assert find_lock_folder(environ).path.name == f"iree-gauntlet-{os.getuid()}"
        assert not find_lock_folder(environ).from_variable
        assert make_lock_facts(environ) == {}


def test_the_default_folder_is_private(folder: Path) -> None:
    with umask(0o000), locks_in(folder).device_lock("x", silent):
        assert mode_of(folder) == 0o700
        assert mode_of(folder / "device-x.lock") == 0o600


def test_a_named_folder_is_made_with_its_parents_and_recorded(tmp_path: Path) -> None:
    named = tmp_path / "deep" / "locks"
    environ = {LOCKS_VARIABLE: str(named)}
    assert make_lock_facts(environ) == {"lock_folder": str(named)}
    assert not named.exists(), "nothing is made before there is something to lock"
    with make_machine_locks(environ, threading.Event()).device_lock("x", silent):
        assert [path.name for path in named.iterdir()] == ["device-x.lock"]


def test_a_relative_folder_is_refused() -> None:
    # Runs in other folders would have other locks.
    for asked in (find_lock_folder, make_lock_facts, lambda environ: make_machine_locks(environ, threading.Event())):
        with pytest.raises(UsageError, match=rf"\${LOCKS_VARIABLE} is locks: not an absolute path") as caught:
            asked({LOCKS_VARIABLE: "locks"})
        assert f"{LOCKS_VARIABLE}={Path.cwd()}/locks" in caught.value.hint
        assert caught.value.exit_code is ExitCode.USAGE


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o7777


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
@pytest.mark.parametrize(
    ("mode", "of_files"),
    [(0o700, 0o600), (0o770, 0o660), (0o2770, 0o660), (0o777, 0o666), (0o1777, 0o666), (0o755, 0o644)],
)
def test_whoever_may_use_a_named_folder_may_use_its_files(folder: Path, mode: int, of_files: int, mask: int) -> None:
    folder.mkdir()
    folder.chmod(mode)
    with umask(mask), ExitStack() as stack:
        locks = locks_in(LockFolder(folder, from_variable=True))
        stack.enter_context(locks.quiet_machine(exclusive=True, on_wait=silent))
        stack.enter_context(locks.device_lock("x", silent))
        assert {path.name: mode_of(path) for path in folder.iterdir()} == dict.fromkeys(
            ("device-x.lock", "quiet-gate.lock", "quiet.lock"), of_files
        )
    assert mode_of(folder) == mode, "it is somebody's, and stays as it is"


def test_a_file_in_place_of_a_named_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path, why in ((tmp_path / "file", "it is not a folder"), (tmp_path / "file" / "locks", "Not a directory")):
        with pytest.raises(GauntletError, match=f"{path}: cannot create the folder for locks: {why}") as caught:
            locks_in(LockFolder(path, from_variable=True)).device_lock("x", silent).__enter__()
        assert f"${LOCKS_VARIABLE}" in caught.value.hint


# Two users


@contextmanager
def nobody_asks(folder: Path, locks: str) -> Iterator[str]:
    """What another user says who asks for a device: that it is held, until the block ends, or why it is not.

    Args:
        folder: their working folder; others than root could not go through the folders of a test to get there.
        locks: the folder of locks, as seen from there.
    """
    heard, says = os.pipe()
    ended, ends = os.pipe()
    with warnings.catch_warnings():
        # Newer Pythons warn of a fork next to threads; this one only takes a lock, and ends.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if not pid:
        code = 1
        try:
            os.close(ends)
            os.chdir(folder)
            os.setgroups([GROUP])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            try:
                with impatient(LockFolder(Path(locks), from_variable=True)).device_lock("x", noted):
                    os.write(says, b"held")
                    os.read(ended, 1)
            except GauntletError as error:
                os.write(says, str(error).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(ended)
    os.close(says)
    try:
        yield os.read(heard, 1 << 16).decode()
    finally:
        os.close(ends)
        os.close(heard)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@two_users
@pytest.mark.parametrize("mode", [0o2770, 0o777, 0o1777])
def test_two_users_exclude_each_other_in_a_folder_for_both(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(0o755)
    folder = tmp_path / "locks"
    folder.mkdir()
    os.chown(folder, 0, GROUP)
    folder.chmod(mode)
    locks = LockFolder(folder, from_variable=True)
    # The file is made by whoever comes first.
    with locks_in(locks).device_lock("x", silent), nobody_asks(tmp_path, "locks") as said:
        assert f"no access to device x within 0.15 s: process {os.getpid()} of another run uses it" in said
    (folder / "device-x.lock").unlink()
    with nobody_asks(tmp_path, "locks") as said:
        assert said == "held"
        assert (folder / "device-x.lock").stat().st_uid == NOBODY
        require_refusal(impatient(locks).device_lock("x", noted), "no access to device x")
    with locks_in(locks).device_lock("x", silent):
        pass


@two_users
def test_a_folder_that_another_user_cannot_use_says_what_to_set(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o755)
    with nobody_asks(tmp_path, "closed") as said:
        assert "closed/device-x.lock: cannot lock: Permission denied" in said
        assert f"the folder must be writable, on a file system that supports locks (flock); ${LOCKS_VARIABLE}" in said
    for mode in (0o755, 0o700):
        closed.chmod(mode)
        with nobody_asks(tmp_path, "closed/locks") as said:
            assert "closed/locks: cannot create the folder for locks: Permission denied" in said
            assert f"${LOCKS_VARIABLE} must name a folder that exists or can be created" in said


@two_users
def test_the_default_folder_of_another_user_is_refused(folder: Path) -> None:
    folder.mkdir()
    os.chown(folder, NOBODY, NOBODY)
    require_refusal(locks_in(folder).device_lock("x", silent), "does not belong to you")


_HOLDER = """
import sys, threading
from pathlib import Path
from iree_gauntlet.engine.processes.supervisor import Supervisor
from iree_gauntlet.engine.rounds.machine_lock import LockFolder, MachineLocks
from iree_gauntlet.steps import Command
folder = Path(sys.argv[1])
locks = MachineLocks(LockFolder(folder / "locks", from_variable=True), patience=1.0, cancelled=threading.Event())
silent = lambda text: None
with Supervisor(locks=locks.held_here) as supervisor:
    def other():
        # A step beside it, which holds nothing.
        command = Command(("sh", "-c", "echo $$ > other; " + sys.argv[2]), str(folder))
        supervisor.run(command, stdout=folder / "o", stderr=folder / "o", timeout=1e6)
    threading.Thread(target=other, daemon=True).start()
    with locks.quiet_machine(exclusive=True, on_wait=silent), locks.device_lock("gpu", silent):
        command = Command(("sh", "-c", "echo $$ $PPID > begun; " + sys.argv[2]), str(folder))
        supervisor.run(command, stdout=folder / "p", stderr=folder / "p", timeout=1e6)
"""


def test_a_lock_is_held_as_long_as_anything_of_the_step_lives(tmp_path: Path) -> None:
    toolkit = subprocess.Popen([sys.executable, "-c", _HOLDER, str(tmp_path), HANG])
    begun, other = tmp_path / "begun", tmp_path / "other"
    wait_until(lambda: all(path.exists() and path.read_text().endswith("\n") for path in (begun, other)))
    step, reaper = map(int, begun.read_text().split())
    beside = int(other.read_text())
    files = [tmp_path / "locks" / name for name in ("quiet.lock", "device-gpu.lock")]
    try:
        # All that could end the step dies; it, and one beside it, live on.
        toolkit.send_signal(signal.SIGSTOP)
        os.kill(reaper, signal.SIGKILL)
        toolkit.kill()
        toolkit.wait()
        assert [try_file_lock(path) for path in files] == [None, None]
        os.kill(beside, 0)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(step, signal.SIGKILL)
    try:
        taken = [wait_for_lock(path) for path in files]
        assert None not in taken
        os.kill(beside, 0)
    finally:
        os.kill(beside, signal.SIGKILL)
