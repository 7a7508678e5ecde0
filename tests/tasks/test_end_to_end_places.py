"""Projects in folders with characters that shells interpret: everything works, and commands can be pasted."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.support.toy_project import Project

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.iree


@pytest.mark.parametrize("name", ['my project, it\'s $HOME "x"', "a;b&c (1) `true` ünï, =#~"])
def test_any_folder_will_do(tmp_path: Path, name: str) -> None:
    # iree-compile starts its linker by a shell line that does not quote the folder of temporary files.
    project = Project(tmp_path / name, cache="flags")
    done = project.gauntlet("run")
    assert done.code == 0, done.text
    for stage in ("compile", "threshold", "benchmark"):
        command = project.result(f"toy/abs@cpu:{stage}")["command"]
        pasted = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
        assert pasted.returncode == 0, pasted.stderr


def test_a_run_may_lie_elsewhere(tmp_path: Path) -> None:
    project = Project(tmp_path / "job@2")
    refused = project.gauntlet("run")
    assert refused.code == 2
    assert "--run-dir" in refused.err
    elsewhere = tmp_path / "runs" / "first"
    assert project.gauntlet("run", "--run-dir", str(elsewhere)).code == 0
    assert project.gauntlet("report", str(elsewhere)).code == 0
