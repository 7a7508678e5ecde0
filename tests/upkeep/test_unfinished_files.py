"""Files that one command writes together: kills of the command damage none of them."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from iree_gauntlet.upkeep.project_start import FileTransaction, open_file_transaction

if TYPE_CHECKING:
    from pathlib import Path

KILLED = """
import os, signal, sys
from pathlib import Path
from iree_gauntlet.upkeep.project_start import open_file_transaction
with open_file_transaction() as writing:
    folder = Path(sys.argv[1])
    writing.begin(folder)
    folder.mkdir()
    (folder / "file").write_text(sys.argv[2])
    os.kill(os.getpid(), signal.SIGKILL)
"""


def _begin_and_fail(writing: FileTransaction, path: Path) -> None:
    writing.begin(path)
    raise ZeroDivisionError


def test_what_was_there_survives_commands_that_are_killed(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "file").write_text("first")
    for text in ("second", "third"):
        killed = subprocess.run([sys.executable, "-c", KILLED, str(folder), text], check=False)
        assert killed.returncode == -signal.SIGKILL
    # One that fails puts back what it found, one that ends well leaves nothing of its own.
    with pytest.raises(ZeroDivisionError), open_file_transaction() as writing:
        _begin_and_fail(writing, folder)
    with open_file_transaction() as writing:
        writing.begin(folder)
        folder.mkdir()
        (folder / "file").write_text("last")
    left = {path.name: (path / "file").read_text() for path in tmp_path.iterdir()}
    assert left == {"model": "last", ".model.before": "first", ".model.before1": "second"}
