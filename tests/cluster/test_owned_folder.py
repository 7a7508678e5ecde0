"""Folders of living workers, and of dead workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from iree_gauntlet.cluster.project_copy import ExclusiveFolder, get_worker_folder
from iree_gauntlet.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path


def test_what_the_dead_have_left_is_cleared_and_nothing_of_the_living(tmp_path: Path) -> None:
    dead = tmp_path / "dead"
    (dead / "there").mkdir(parents=True)
    (dead / "owner.lock").write_text("1")
    other = tmp_path / "projects"
    other.mkdir()
    with ExclusiveFolder(tmp_path / "one") as one:
        assert not dead.exists()
        (one.path / "there").mkdir()
        with ExclusiveFolder(tmp_path / "two"):
            assert (one.path / "there").is_dir()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "projects"]
    assert [*tmp_path.iterdir()] == [other]


def test_a_name_is_of_one_worker_at_a_time(tmp_path: Path) -> None:
    folder = get_worker_folder(tmp_path, "box")
    with (
        ExclusiveFolder(folder),
        pytest.raises(UsageError, match="a worker box already runs on this machine"),
        ExclusiveFolder(folder),
    ):
        pytest.fail("two of one name")
    with ExclusiveFolder(folder):
        assert folder.is_dir()
