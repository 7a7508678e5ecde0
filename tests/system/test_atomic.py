from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from iree_gauntlet.system.atomic import write_atomic
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


KILLED = """
import sys
from pathlib import Path
from iree_gauntlet.system.atomic import write_atomic
from tests.support.dying import killed_everywhere
path = Path(sys.argv[1])
seen = set()
def look():
    seen.add(path.read_text())
path.write_text("0" * 200_000)
print(killed_everywhere(lambda: write_atomic(path, "1" * 200_000), look))
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
