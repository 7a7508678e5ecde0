"""Leases: visible while their process lives, gone after any death of it, and respected by every collection."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from iree_gauntlet.artifacts.leases import Leases, try_lock
from iree_gauntlet.errors import ArtifactError, GauntletError
from tests.support.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

_HOLDER = """
import signal, sys
from pathlib import Path
from iree_gauntlet.artifacts.leases import Leases
leases = Leases(Path(sys.argv[1]))
for word in sys.argv[2:]:
    leases.use(Path(sys.argv[1]) / word)
print("held", flush=True)
signal.pause()
"""


@contextmanager
def holder(root: Path, *used: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that uses files."""
    argv = [sys.executable, "-c", _HOLDER, str(root), *used]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


def test_a_name_is_a_line_whatever_is_in_it(tmp_path: Path) -> None:
    with holder(tmp_path, "wheels/a\rb"):
        assert Leases(tmp_path).list_used_paths() == {"wheels/a\rb"}


def test_what_a_living_process_uses_is_seen_until_it_is_killed(tmp_path: Path) -> None:
    mine = Leases(tmp_path)
    with holder(tmp_path, "artifacts/a", "artifacts/b", "artifacts/a") as process:
        assert mine.list_used_paths() == {"artifacts/a", "artifacts/b"}
        assert not mine.list_dead_leases()
        (file,) = (tmp_path / "leases").iterdir()
        assert file.read_text() == "artifacts/a\nartifacts/b\n"
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert mine.list_dead_leases() == [file]
        assert mine.list_used_paths() == set()
    assert not list((tmp_path / "leases").iterdir())


def test_the_own_process_counts_too(tmp_path: Path) -> None:
    leases = Leases(tmp_path)
    leases.use(tmp_path / "artifacts" / "x")
    assert leases.list_used_paths() == {"artifacts/x"}
    assert Leases(tmp_path).list_used_paths() == {"artifacts/x"}


def test_paths_outside_of_the_cache_are_nobodys_business(tmp_path: Path) -> None:
    leases = Leases(tmp_path / "cache")
    leases.use(tmp_path / "elsewhere")
    leases.use(tmp_path / "cache" / ".." / "elsewhere")
    leases.use(tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_a_cache_may_be_named_by_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    leases = Leases(tmp_path / "link")
    leases.use(tmp_path / "link" / "artifacts" / "a")
    leases.use(tmp_path / "real" / "artifacts" / "b")
    assert Leases(tmp_path / "real").list_used_paths() == {"artifacts/a", "artifacts/b"}


def test_threads_share_one_lease_file(tmp_path: Path) -> None:
    leases = Leases(tmp_path)
    names = [f"artifacts/{number}" for number in range(20)]

    def use_all() -> None:
        for name in names:
            leases.use(tmp_path / name)

    threads = [threading.Thread(target=use_all) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (file,) = (tmp_path / "leases").iterdir()
    assert sorted(file.read_text().split()) == sorted(names)


def _child(leases: Leases, root: Path, may_end: object) -> None:
    leases.use(root / "artifacts" / "child")
    may_end.wait()  # type: ignore[attr-defined]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
def test_a_forked_child_has_a_lease_of_its_own(tmp_path: Path) -> None:
    leases = Leases(tmp_path)
    leases.use(tmp_path / "artifacts" / "parent")
    fork = multiprocessing.get_context("fork")
    may_end = fork.Event()
    child = fork.Process(target=_child, args=(leases, tmp_path, may_end))
    child.start()
    wait_until(lambda: "artifacts/child" in leases.list_used_paths())
    assert len(list((tmp_path / "leases").iterdir())) == 2
    may_end.set()
    child.join()
    assert leases.list_used_paths() == {"artifacts/parent"}


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
def test_a_parent_that_dies_takes_its_own_lease_alone(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys\nfrom pathlib import Path\n"
        "from iree_gauntlet.artifacts.leases import Leases\n"
        "root = Path(sys.argv[1])\nleases = Leases(root)\nleases.use(root / 'parent')\n"
        "if os.fork() == 0:\n    leases.use(root / 'child')\n    signal.pause()\n"
        "signal.pause()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], start_new_session=True) as process:
        try:
            wait_until(lambda: Leases(tmp_path).list_used_paths() == {"parent", "child"})
            process.kill()
            process.wait()
            assert Leases(tmp_path).list_used_paths() == {"child"}
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    wait_until(lambda: not Leases(tmp_path).list_used_paths())


def test_no_lease_begins_while_something_is_collected(tmp_path: Path) -> None:
    mine, other = Leases(tmp_path), Leases(tmp_path)
    with mine.block_new_leases():
        user = threading.Thread(target=other.use, args=(tmp_path / "artifacts" / "a",))
        user.start()
        wait_until(lambda: _somebody_waits_for(tmp_path / "locks" / "use.lock") or not user.is_alive())
        assert user.is_alive()
        assert mine.list_used_paths() == set()
    user.join()
    assert mine.list_used_paths() == {"artifacts/a"}


def _somebody_waits_for(lock: Path) -> bool:
    number = lock.stat().st_ino
    return any("->" in line and f":{number} " in line for line in Path("/proc/locks").read_text().splitlines())


def test_one_collection_at_a_time(tmp_path: Path) -> None:
    with (
        Leases(tmp_path).block_new_leases(),
        pytest.raises(GauntletError, match=r"use\.lock is held by another process"),
        Leases(tmp_path).block_new_leases(timeout=0.1),
    ):
        pass


def test_a_lease_line_without_its_end_names_nothing(tmp_path: Path) -> None:
    leases = Leases(tmp_path)
    leases.use(tmp_path / "whole")
    (file,) = (tmp_path / "leases").iterdir()
    with file.open("a") as stream:
        stream.write("tor")
    assert leases.list_used_paths() == {"whole"}


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.EPERM])
def test_a_read_only_cache_is_used_without_a_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise OSError(number, os.strerror(number))

    leases = Leases(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        leases.use(tmp_path / "a")
    assert leases.list_used_paths() == set()


def test_a_full_disk_protects_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    leases = Leases(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        leases.use(tmp_path / "a")
    with pytest.raises(GauntletError, match=r"use\.lock is held"), Leases(tmp_path).block_new_leases(timeout=0.1):
        pass


def test_a_file_in_the_place_of_a_folder_is_an_error_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "leases").write_text("")
    with pytest.raises(ArtifactError, match=r"cannot record in .*leases what is in use: File exists"):
        Leases(tmp_path).use(tmp_path / "a")


def test_locks_can_be_tried(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    with try_lock(path) as missing:
        assert not missing
    path.touch()
    with try_lock(path, shared=True) as first, try_lock(path, shared=True) as second, try_lock(path) as alone:
        assert (first, second, alone) == (True, True, False)
    with try_lock(path) as alone, try_lock(path, shared=True) as second:
        assert (alone, second) == (True, False)
