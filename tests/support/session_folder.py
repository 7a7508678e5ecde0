"""A directory that all processes of a test session share, for files that are costly to build."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.system.file_lock import file_lock

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["SESSION_FOLDER_VARIABLE", "make_once"]

# conftest.py sets this variable for all processes of the session.
SESSION_FOLDER_VARIABLE = "GAUNTLET_TESTS_FOLDER"


def make_once(name: str, make: Callable[[Path], None]) -> Path:
    """Return a directory of the session; the first caller builds it, and the others wait.

    `make`: fills the directory that it gets, which exists and is empty.
    """
    folder = Path(os.environ[SESSION_FOLDER_VARIABLE]) / name
    # The first check takes no lock, as every test calls this.
    if not folder.exists():
        with file_lock(folder.with_suffix(".lock")):
            if not folder.exists():
                partial_folder = folder.with_suffix(".part")
                shutil.rmtree(partial_folder, ignore_errors=True)
                partial_folder.mkdir()
                make(partial_folder)
                partial_folder.rename(folder)
    return folder
