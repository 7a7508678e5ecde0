from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from iree_gauntlet.errors import GauntletError
from iree_gauntlet.running.machine_lock import (
    LockFile,
    LockFolder,
    MachineLocks,
    WaitCancelledError,
    lock_folder,
)
from tests.support.places import ROOT

if TYPE_CHECKING:
    from pathlib import Path

HOLDER = """
import sys, time, threading
from pathlib import Path
from iree_gauntlet.running.machine_lock import LockFolder, MachineLocks
locks = MachineLocks(LockFolder(Path(sys.argv[1])), patience=5, cancelled=threading.Event())
what = sys.argv[2]
lock = (locks.device_lock("hip://0", print) if what == "device"
        else locks.quiet_machine(exclusive=what == "exclusive", on_wait=print))
with lock:
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "locks"


def locks_in(folder: Path, patience: float = 0.15) -> MachineLocks:
    return MachineLocks(LockFolder(folder), patience=patience, cancelled=threading.Event())


def start_holder(folder: Path, what: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    argv = [sys.executable, "-c", HOLDER, str(folder), what]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, env=environment)
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    return process


def silent(_: str) -> None:
    pytest.fail("had to wait")


def test_device_of_another_process_is_waited_for_and_freed_by_sigkill(folder: Path) -> None:
    told: list[str] = []
    with start_holder(folder, "device") as process:
        with (
            pytest.raises(GauntletError, match=f"device hip://0 within 0.15 s: process {process.pid}"),
            locks_in(folder).device_lock("hip://0", told.append),
        ):
            pytest.fail("two hold one device")
        assert told == [f"for device hip://0: process {process.pid} of another run uses it"]
        with locks_in(folder).device_lock("hip://1", silent):
            pass
        process.kill()
    with locks_in(folder).device_lock("hip://0", silent):
        pass


def test_noise_is_shared_and_quiet_excludes_it(folder: Path) -> None:
    locks = locks_in(folder)
    with start_holder(folder, "shared") as process:
        with locks.quiet_machine(exclusive=False, on_wait=silent):
            pass
        with (
            pytest.raises(GauntletError, match=str(process.pid)),
            locks.quiet_machine(exclusive=True, on_wait=lambda _: None),
        ):
            pytest.fail("a benchmark beside a compile")
        process.kill()
    with start_holder(folder, "exclusive") as process:
        for exclusive in (True, False):
            with (
                pytest.raises(GauntletError, match=str(process.pid)),
                locks.quiet_machine(exclusive=exclusive, on_wait=lambda _: None),
            ):
                pytest.fail("something beside a benchmark")
        process.kill()
    with locks.quiet_machine(exclusive=True, on_wait=silent):
        pass


def test_benchmark_is_not_starved_by_new_noise(folder: Path) -> None:
    order: list[str] = []
    waiting = threading.Event()

    def benchmark() -> None:
        with locks_in(folder, 10).quiet_machine(exclusive=True, on_wait=lambda _: waiting.set()):
            order.append("benchmark")

    def noise() -> None:
        with locks_in(folder, 10).quiet_machine(exclusive=False, on_wait=lambda _: None):
            order.append("noise")

    threads = [threading.Thread(target=benchmark), threading.Thread(target=noise)]
    with locks_in(folder).quiet_machine(exclusive=False, on_wait=silent):
        threads[0].start()
        assert waiting.wait(5)
        threads[1].start()
        time.sleep(0.25)
        assert order == []
    for thread in threads:
        thread.join()
    assert order == ["benchmark", "noise"]


def test_wait_is_cancelled(folder: Path) -> None:
    cancelled = threading.Event()
    locks = MachineLocks(LockFolder(folder), patience=60, cancelled=cancelled)
    threading.Timer(0.1, cancelled.set).start()
    begun = time.monotonic()
    with (
        locks.device_lock("x", silent),
        pytest.raises(WaitCancelledError),
        locks.device_lock("x", lambda _: None),
    ):
        pytest.fail("held twice")
    assert time.monotonic() - begun < 5


def test_own_process_is_named_as_such(folder: Path) -> None:
    lines: list[str] = []
    with ExitStack() as stack:
        stack.enter_context(locks_in(folder).device_lock("x", silent))
        with pytest.raises(GauntletError, match="another step of this run"):
            stack.enter_context(locks_in(folder).device_lock("x", lines.append))
    assert len(lines) == 1


def test_folder_of_a_stranger_or_a_link_is_refused(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    link = tmp_path / "link"
    link.symlink_to(elsewhere)
    with pytest.raises(GauntletError, match="not a folder of yours"), locks_in(link).device_lock("x", silent):
        pytest.fail("used it")
    plain = tmp_path / "plain"
    plain.touch()
    with (
        pytest.raises(GauntletError, match="not a folder of yours"),
        locks_in(plain).device_lock("x", silent),
    ):
        pytest.fail("used it")
    with (
        pytest.raises(GauntletError, match="cannot make"),
        locks_in(tmp_path / "a/b").device_lock("x", silent),
    ):
        pytest.fail("used it")
    assert list(elsewhere.iterdir()) == []


def test_foreign_owner_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    owner = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    with (
        pytest.raises(GauntletError, match="not a folder of yours"),
        locks_in(folder).device_lock("x", silent),
    ):
        pytest.fail("used it")


def test_link_in_place_of_a_lock_file_is_not_followed(folder: Path, tmp_path: Path) -> None:
    folder.mkdir(mode=0o777)
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (folder / "device-x.lock").symlink_to(victim)
    with pytest.raises(GauntletError, match="cannot lock"), locks_in(folder).device_lock("x", silent):
        pytest.fail("used it")
    assert victim.read_text() == "precious"
    assert folder.stat().st_mode & 0o777 == 0o700


def test_swept_lock_file_is_made_again(folder: Path) -> None:
    folder.mkdir()
    path = folder / "x.lock"
    with LockFile(path) as first, LockFile(path) as second:
        assert first.acquire_now()
        path.unlink()
        # The file of the first is gone for good; the second meets later ones at the new file.
        assert second.acquire_now()
        assert not LockFile(path).acquire_now()
        with pytest.raises(RuntimeError):
            second.acquire_now()


def test_list_of_holders_stays_small(folder: Path) -> None:
    folder.mkdir()
    path = folder / "x.lock"
    for _ in range(300):
        with LockFile(path) as lock:
            assert lock.acquire_now(exclusive=False)
            assert lock.holders() == (os.getpid(),)
    assert path.stat().st_size < 1000
    assert LockFile(folder / "none").holders() == ()


def test_holders_that_are_dead_or_nonsense_are_left_out(folder: Path) -> None:
    folder.mkdir()
    path = folder / "x.lock"
    path.write_text(f"99999999999999999999 nonsense {2**22 + 5} {os.getpid()}")
    assert LockFile(path).holders() == (os.getpid(),)


def test_devices_have_files_of_their_own(folder: Path) -> None:
    names = ["hip://0", "hip:__0", "hip___0", "../x", "HIP://0", "hip_3a_"]
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(locks_in(folder).device_lock(name, silent))
        assert len(list(folder.iterdir())) == len(names)


def test_default_folder_is_the_users_own() -> None:
    assert lock_folder({}).path.name == f"iree-gauntlet-{os.getuid()}"
