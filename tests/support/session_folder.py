"""A folder that all processes of a test session share: what is costly to make is made once in it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.system.file_lock import file_lock

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["SESSION_FOLDER_VARIABLE", "made_once"]

# Set by conftest.py for all its processes.
SESSION_FOLDER_VARIABLE = "GAUNTLET_TESTS_FOLDER"


def made_once(name: str, make: Callable[[Path], None]) -> Path:
    """A folder of the session; the first who asks for it makes it, and the others wait.

    `make`: fills the folder that it is given, which exists and is empty.
    """
    folder = Path(os.environ[SESSION_FOLDER_VARIABLE]) / name
    # Without the lock first: it is asked for by every test.
    if not folder.exists():
        with file_lock(folder.with_suffix(".lock")):
            if not folder.exists():
                unfinished = folder.with_suffix(".part")
                shutil.rmtree(unfinished, ignore_errors=True)
                unfinished.mkdir()
                make(unfinished)
                unfinished.rename(folder)
    return folder
