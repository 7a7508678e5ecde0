from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from iree_gauntlet.system.atomic import (
    add_folder,
    discard_folder,
    remove_reserved,
    replace_file,
    replace_folder,
    reserve_file,
    write_atomic,
)
from tests.support.places import ROOT

if TYPE_CHECKING:
    from pathlib import Path


def test_writes_and_replaces(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomic(path, "täxt\n")
    assert path.read_bytes() == "täxt\n".encode()
    write_atomic(path, b"\0bytes")
    assert path.read_bytes() == b"\0bytes"
    assert list(tmp_path.iterdir()) == [path]


def test_mode_is_as_open_would_give_and_is_kept(tmp_path: Path) -> None:
    plain, written = tmp_path / "plain", tmp_path / "written"
    plain.write_text("")
    write_atomic(written, "")
    assert written.stat().st_mode == plain.stat().st_mode
    written.chmod(0o750)
    write_atomic(written, "again")
    assert written.stat().st_mode & 0o777 == 0o750


def test_link_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to("target")
    write_atomic(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"


def test_failure_leaves_old_content_and_no_rubbish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_atomic(tmp_path / "none" / "file", "")


def test_a_file_of_the_longest_name_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 255)
    path.write_text("old")
    with pytest.raises(FileExistsError), replace_file(path) as temporary:
        shutil.copyfile(path, temporary).touch(exist_ok=False)
    assert path.read_text() == "old"
    with replace_file(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_is_replaced_whole_or_not_at_all_and_leftovers_go(tmp_path: Path) -> None:
    path, left = tmp_path / "folder", tmp_path / ".making-folder-00000000"
    for name in (path, left, tmp_path / ".making-other-00000000"):
        name.mkdir()
        (name / "old").touch()
    with pytest.raises(FileExistsError), replace_folder(path) as new:
        shutil.copytree(path, new).mkdir()
    assert not left.exists()
    assert [file.name for file in path.iterdir()] == ["old"]
    with replace_folder(path) as new:
        new.mkdir()
        (new / "new").touch()
    assert [file.name for file in path.iterdir()] == ["new"]
    assert {file.name for file in tmp_path.iterdir()} == {"folder", ".making-other-00000000"}


def test_of_folders_that_are_added_the_first_stays(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    with add_folder(path) as slow:
        slow.mkdir()
        with add_folder(path) as fast:
            fast.mkdir()
            (fast / "first").touch()
    assert [file.name for file in path.iterdir()] == ["first"]
    with pytest.raises(FileNotFoundError), add_folder(tmp_path / "none"):
        pass
    discard_folder(path)
    discard_folder(path)
    assert list(tmp_path.iterdir()) == []


def test_content_is_durable_before_its_name_and_the_name_in_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs: list[tuple[bool, list[str]]] = []

    def sync(descriptor: int) -> None:
        names = [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")]
        syncs.append((stat.S_ISDIR(os.fstat(descriptor).st_mode), names))

    monkeypatch.setattr(os, "fsync", sync)
    write_atomic(tmp_path / "file", "text")
    assert syncs == [(False, []), (True, ["file"])]
    (tmp_path / "file").unlink()
    syncs.clear()
    with add_folder(tmp_path / "folder") as new:
        new.mkdir()
    assert syncs == [(True, ["folder"])]
    syncs.clear()
    with replace_folder(tmp_path / "folder") as new:
        new.mkdir()
    assert syncs == [(True, ["folder"])]


def test_what_killed_writers_of_a_file_left_goes_and_no_others(tmp_path: Path) -> None:
    with reserve_file(tmp_path / "perf[1].json") as leftover, reserve_file(tmp_path / "perf[1].json.old") as other:
        leftover.touch()
        other.touch()
        remove_reserved(tmp_path / "perf[1].json")
        assert list(tmp_path.iterdir()) == [other]


def test_a_folder_that_is_discarded_is_gone_before_anything_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "folder"
    path.mkdir()
    there: list[bool] = []
    monkeypatch.setattr(shutil, "rmtree", lambda _folder, **_: there.append(path.exists()))
    discard_folder(path)
    assert set(there) == {False}


KILLED = """
import sys
from pathlib import Path
from iree_gauntlet.system.atomic import write_atomic
from tests.support.dying import kill_at_each_moment
path = Path(sys.argv[1])
seen = set()
def look():
    seen.add(path.read_text())
path.write_text("0" * 200_000)
print(kill_at_each_moment(lambda: write_atomic(path, "1" * 200_000), look))
assert seen == {"0" * 200_000, "1" * 200_000}, seen
"""


def test_killed_writer_never_leaves_a_mixture(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path / "file")],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # At least: the temporary file, its content, its mode, the rename, the folder.
    assert int(done.stdout) >= 5
