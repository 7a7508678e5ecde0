"""Remembered hashes: valid only as long as the file is unchanged since its hashing."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

import pytest

from iree_gauntlet.artifacts import hashing
from iree_gauntlet.artifacts.hashing import HashCache, hash_file
from tests.support.permissions import mount_read_only, with_mount_rights
from tests.support.ticks import await_tick

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def _old(path: Path, content: bytes) -> Path:
    """A file whose time of modification is always the same."""
    path.write_bytes(content)
    os.utime(path, ns=(1_700_000_000_123_456_789,) * 2)
    return path


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Every file that is read in full."""
    seen: list[Path] = []

    def counted(path: Path) -> str:
        seen.append(path)
        return hash_file(path)

    monkeypatch.setattr(hashing, "hash_file", counted)
    return seen


def test_hash_file(tmp_path: Path) -> None:
    content = os.urandom(3_000_000)
    assert hash_file(_old(tmp_path / "f", content)) == hashlib.sha256(content).hexdigest()


@pytest.mark.usefixtures("settled")
def test_a_file_is_read_once(tmp_path: Path, readings: list[Path]) -> None:
    path = _old(tmp_path / "f", b"one")
    assert HashCache(tmp_path / "v").get_cached_hash(path) == ""
    first = HashCache(tmp_path / "v").sha256(path)
    assert first == hashlib.sha256(b"one").hexdigest()
    assert HashCache(tmp_path / "v").sha256(path) == first
    assert HashCache(tmp_path / "v").get_cached_hash(path) == first
    assert readings == [path]


@pytest.mark.usefixtures("settled")
def test_changes_are_noticed(tmp_path: Path) -> None:
    path, hashes = _old(tmp_path / "f", b"one"), HashCache(tmp_path / "v")
    one = hashes.sha256(path)
    path.write_bytes(b"two")  # the same size, another time
    assert hashes.get_cached_hash(path) == ""
    assert hashes.get_last_hash(path) == one
    assert hashes.sha256(path) == hashlib.sha256(b"two").hexdigest()
    other = _old(tmp_path / "g", b"one")
    hashes.sha256(_old(path, b"one"))
    other.replace(path)  # the same size and time, another inode
    assert hashes.get_cached_hash(path) == ""


@pytest.mark.usefixtures("settled")
def test_a_file_that_is_edited_in_place_is_noticed_though_its_time_is_set_back(tmp_path: Path) -> None:
    path, hashes = _old(tmp_path / "f", b"one"), HashCache(tmp_path / "v")
    one, before = hashes.sha256(path), path.stat()
    await_tick(path)
    with path.open("r+b") as file:
        file.write(b"two")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    assert (after.st_size, after.st_mtime_ns, after.st_ino) == (before.st_size, before.st_mtime_ns, before.st_ino)
    assert hashes.get_cached_hash(path) == ""
    assert hashes.sha256(path) == hashlib.sha256(b"two").hexdigest() != one


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.chmod(0o400),
        lambda path: os.link(path, path.with_name("other")),
        lambda path: os.utime(path, (1, 1)),
    ],
    ids=["rights", "hard link", "time"],
)
def test_what_changes_no_content_costs_one_hashing(
    tmp_path: Path, readings: list[Path], change: Callable[[Path], None]
) -> None:
    path, hashes = _old(tmp_path / "f", b"one"), HashCache(tmp_path / "v")
    one = hashes.sha256(path)
    await_tick(path)
    change(path)
    assert hashes.get_cached_hash(path) == ""
    assert [hashes.sha256(path), hashes.sha256(path)] == [one, one]
    assert len(readings) == 2


def test_a_file_just_written_is_not_remembered(tmp_path: Path, readings: list[Path]) -> None:
    path, hashes = tmp_path / "f", HashCache(tmp_path / "v")
    path.write_bytes(b"one")
    hashes.sha256(path)
    hashes.sha256(path)
    assert len(readings) == 2
    hashes.remember(path, hashlib.sha256(b"one").hexdigest())
    hashes.sha256(path)
    assert len(readings) == 2


def test_the_wrong_content_is_not_remembered(tmp_path: Path) -> None:
    path, hashes = _old(tmp_path / "f", b"one"), HashCache(tmp_path / "v")
    assert hashes.sha256(path, expected_sha256="0" * 64) != "0" * 64
    assert hashes.get_cached_hash(path) == ""


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"{}", b'{"path": 1}', b"\xff", b"null"])
def test_a_damaged_stamp_costs_one_hashing(tmp_path: Path, damage: bytes) -> None:
    path, hashes = _old(tmp_path / "f", b"one"), HashCache(tmp_path / "v")
    digest = hashes.sha256(path)
    (stamp,) = (tmp_path / "v").rglob("*.json")
    stamp.write_bytes(damage)
    assert hashes.get_cached_hash(path) == ""
    assert hashes.get_last_hash(path) == ""
    assert hashes.sha256(path) == digest
    assert hashes.get_cached_hash(path) == digest


@pytest.mark.usefixtures("settled")
def test_a_flipped_bit_anywhere_in_a_stamp_makes_it_none(tmp_path: Path) -> None:
    path, hashes = _old(tmp_path / "f", b"one"), HashCache(tmp_path / "v")
    hashes.sha256(path)
    (stamp,) = (tmp_path / "v").rglob("*.json")
    content = stamp.read_bytes()
    for bit in range(8 * len(content)):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        stamp.write_bytes(damaged)
        assert (hashes.get_cached_hash(path), hashes.get_last_hash(path)) == ("", ""), bytes(damaged)


def test_a_missing_file(tmp_path: Path) -> None:
    hashes = HashCache(tmp_path / "v")
    with pytest.raises(FileNotFoundError):
        hashes.sha256(tmp_path / "none")
    path = _old(tmp_path / "f", b"one")
    hashes.sha256(path)
    path.unlink()
    assert hashes.get_cached_hash(path) == ""


@with_mount_rights
@pytest.mark.usefixtures("settled")
def test_a_folder_of_stamps_that_cannot_be_written(tmp_path: Path) -> None:
    path, stamps = _old(tmp_path / "f", b"one"), tmp_path / "v"
    HashCache(stamps).sha256(path)
    path.write_bytes(b"other")
    os.utime(path, ns=(1_700_000_000_000_000_000,) * 2)
    with mount_read_only(stamps):
        assert HashCache(stamps).sha256(path) == hashlib.sha256(b"other").hexdigest()
        assert HashCache(stamps).get_cached_hash(path) == ""
