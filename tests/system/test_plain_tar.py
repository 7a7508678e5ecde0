"""Archives of plain files: they may contain files and folders, and nothing else."""

from __future__ import annotations

import io
import tarfile
from typing import TYPE_CHECKING

import pytest

from iree_gauntlet.system.plain_tar import NotPlainError, unpack_plain

if TYPE_CHECKING:
    from pathlib import Path


def archive(*members: tuple[str, bytes, int]) -> tarfile.TarFile:
    """Names, types and modes; each file holds its own name."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name, kind, mode in members:
            info = tarfile.TarInfo(name)
            info.type, info.mode = kind, mode
            info.linkname = "/etc/passwd"
            info.size = len(name) if kind == tarfile.REGTYPE else 0
            tar.addfile(info, io.BytesIO(name.encode()) if kind == tarfile.REGTYPE else None)
    stream.seek(0)
    return tarfile.open(fileobj=stream, mode="r|")


def test_files_and_folders_are_unpacked(tmp_path: Path) -> None:
    with archive(
        ("a", tarfile.DIRTYPE, 0), ("a/b.txt", tarfile.REGTYPE, 0), ("c/run.sh", tarfile.REGTYPE, 0o4777)
    ) as tar:
        unpack_plain(tar, tmp_path / "out")
    assert (tmp_path / "out" / "a" / "b.txt").read_text() == "a/b.txt"
    assert (tmp_path / "out" / "a" / "b.txt").stat().st_mode & 0o7777 == 0o644
    assert (tmp_path / "out" / "c" / "run.sh").stat().st_mode & 0o7777 == 0o755


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("../outside", tarfile.REGTYPE),
        ("a/../../outside", tarfile.REGTYPE),
        ("/outside", tarfile.REGTYPE),
        ("link", tarfile.SYMTYPE),
        ("link", tarfile.LNKTYPE),
        ("pipe", tarfile.FIFOTYPE),
        ("disk", tarfile.BLKTYPE),
    ],
)
def test_nothing_else_is(tmp_path: Path, name: str, kind: bytes) -> None:
    with archive((name, kind, 0o644)) as tar, pytest.raises(NotPlainError):
        unpack_plain(tar, tmp_path / "out")
    assert [path for path in tmp_path.rglob("*") if path.name != "out"] == []
