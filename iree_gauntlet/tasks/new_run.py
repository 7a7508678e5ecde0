"""A folder for a run that begins."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from iree_gauntlet.errors import GauntletError
from iree_gauntlet.settings import runs_folder

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["new_run_folder"]


def new_run_folder(name: str) -> Path:
    """Makes `runs/<time>-<name>`, with a number behind it where there is one already.

    Raises:
        GauntletError: it cannot be made.
    """
    stamp = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{name}"
    number = 1
    while True:
        folder = runs_folder() / (stamp if number == 1 else f"{stamp}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            number += 1
        except OSError as error:
            raise GauntletError(
                f"{folder}: cannot make the run's folder: {error.strerror}", "Run where you may write."
            ) from error
        else:
            return folder
