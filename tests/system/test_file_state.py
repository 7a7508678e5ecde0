"""A file's state: it distinguishes a write from a new hard link."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from iree_gauntlet.system.file_state import FileState
from tests.support.ticks import await_tick

if TYPE_CHECKING:
    from pathlib import Path


def read_state(path: Path) -> FileState:
    return FileState.of(path.stat())


def test_a_write_is_seen_though_size_and_time_are_as_before(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"one")
    before = read_state(path)
    await_tick(path)
    path.write_bytes(b"two")
    os.utime(path, ns=(before.mtime_ns, before.mtime_ns))
    after = read_state(path)
    assert (after.size, after.mtime_ns, after.inode) == (before.size, before.mtime_ns, before.inode)
    assert after != before


def test_a_hard_link_is_told_from_a_write(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"one")
    before = read_state(path)
    os.link(path, tmp_path / "g")
    assert before.is_linked_only(read_state(path))
    path.write_bytes(b"longer")
    assert not before.is_linked_only(read_state(path))
