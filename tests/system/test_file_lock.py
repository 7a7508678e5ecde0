from __future__ import annotations

import os
import stat
import subprocess
from typing import TYPE_CHECKING

import pytest

from iree_gauntlet.system import file_lock as locks
from iree_gauntlet.system.file_lock import file_lock, try_file_lock, wait_for_lock
from tests.support.command_line import LIMIT_SECONDS

if TYPE_CHECKING:
    from pathlib import Path


def test_shared_and_alone(tmp_path: Path) -> None:
    path = tmp_path / "x.lock"
    with pytest.raises(FileNotFoundError):
        try_file_lock(path, create=False)
    shared = [try_file_lock(path, exclusive=False), wait_for_lock(path, exclusive=False)]
    assert try_file_lock(path) is None
    for descriptor in shared:
        assert descriptor is not None
        os.close(descriptor)
    with (
        file_lock(path),
        pytest.raises(TimeoutError, match=r"x\.lock is held by another process"),
        file_lock(path, timeout=0),
    ):
        pytest.fail("both had it")


def test_a_mode_holds_whatever_the_umask_says(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        for name, mode in (("private", None), ("common", 0o666)):
            descriptor = try_file_lock(tmp_path / name, mode=mode)
            assert descriptor is not None
            assert stat.S_IMODE(os.fstat(descriptor).st_mode) == (mode or 0o600)
            os.close(descriptor)
    finally:
        os.umask(before)


def test_who_inherits_a_lock_holds_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "_FIRST_REMINDER_SECONDS", 0.0)
    path = tmp_path / "x.lock"
    with file_lock(path) as descriptor:
        heir = subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=(descriptor,))

    def waiting(_: float) -> None:
        heir.communicate(timeout=LIMIT_SECONDS)

    with file_lock(path, waiting):
        assert heir.returncode == 0, "it was free before"
