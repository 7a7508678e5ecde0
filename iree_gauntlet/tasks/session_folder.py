"""The folder of a session that holds several runs: a comparison, a matrix, a bisection."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.errors import UsageError
from iree_gauntlet.journal_format import read_journal
from iree_gauntlet.settings import runs_folder, shown

if TYPE_CHECKING:
    from iree_gauntlet.requests import FolderRequest

__all__ = ["is_begun", "session_folder"]

_JOURNAL = "journal.jsonl"


def session_folder(kind: str, request: FolderRequest, log: str) -> tuple[Path, bool]:
    """Where a session goes, and whether it goes on with one that is there.

    Args:
        kind: `compare`, `matrix` or `bisect`: part of a new folder's name.
        request: what is asked for.
        log: name of the file that such a session keeps.

    Raises:
        UsageError: there is none to resume, or the folder holds another run.
    """
    named = Path(request.run_dir).resolve() if request.run_dir else None
    # iree-run-module reads `--module=path@entry`, and iree-compile fills in a '%' of an archive that it writes.
    if set(str(named or runs_folder())) & set("@%"):
        raise UsageError(
            f"{named or runs_folder()}: IREE's tools misread a path with '@' or '%'", "Give a --run-dir without them."
        )
    if request.resume:
        folder = named or _newest(kind, log)
        if not (folder / log).is_file():
            raise UsageError(f"{shown(folder)} holds nothing that `{kind}` could go on with", "Name another --run-dir.")
        return folder, True
    if named is not None:
        if named.is_file():
            raise UsageError(f"{named} is a file", "Give a folder as --run-dir.")
        if (named / log).exists() or (named / _JOURNAL).exists():
            raise UsageError(f"{named} already holds a run", "Give another --run-dir, or --resume to continue it.")
        return named, False
    stamp = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{kind}"
    folder, number = runs_folder() / stamp, 2
    while folder.exists():
        folder, number = runs_folder() / f"{stamp}-{number}", number + 1
    return folder, False


def _newest(kind: str, log: str) -> Path:
    found = [path.parent for path in runs_folder().glob(f"*/{log}")]
    if not found:
        raise UsageError(f"there is no earlier `{kind}` in {runs_folder()}", "Start one, or name its --run-dir.")
    return max(found, key=lambda folder: (folder / log).stat().st_mtime_ns)


def is_begun(folder: Path) -> bool:
    """Whether a run of a session was begun, so that it can be gone on with.

    A journal whose writer was killed before it had said what it is about is removed: there is nothing to go on with.

    Raises:
        GauntletError: the journal cannot be read.
    """
    journal = folder / _JOURNAL
    if not journal.is_file():
        return False
    if read_journal(journal).runs:
        return True
    journal.unlink()
    return False
