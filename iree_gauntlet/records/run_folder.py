"""The folder of a run or a session: a new one, one that was named, or one that is resumed."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.errors import UsageError
from iree_gauntlet.journal_format import JOURNAL, read_journal
from iree_gauntlet.settings import find_project_folder, find_runs_folder, shown

if TYPE_CHECKING:
    from iree_gauntlet.requests import FolderRequest


def require_plain(folder: Path, option: str) -> None:
    """Refuses a path that IREE's tools misread.

    iree-run-module reads `--module=path@entry`, and iree-compile fills in a '%' of an archive that it writes.

    Raises:
        UsageError: it is one.
    """
    if set(str(folder)) & set("@%"):
        raise UsageError(
            f"{folder}: IREE's tools misread a path with '@' or '%'", f"Name one without them with {option}."
        )


def find_asked_folder(kind: str, request: FolderRequest, log: str) -> tuple[Path | None, bool]:
    """The folder that is asked for, and whether what is in it is resumed; None for a new one, which is not made yet.

    Args:
        kind: `run`, `compare`, `matrix` or `bisect`.
        request: what is asked for.
        log: name of the file that such a session keeps.

    Raises:
        UsageError: there is none to resume, or the folder holds another run.
    """
    named = Path(request.run_dir).resolve() if request.run_dir else None
    require_plain(named or find_runs_folder(), "--run-dir")
    if request.resume:
        folder = named or newest_of(kind, log)
        if not (folder / log).is_file():
            raise UsageError(f"{shown(folder)} holds nothing that `{kind}` could resume", "Name another --run-dir.")
        return folder, True
    if named is not None and named.is_file():
        raise UsageError(f"{named} is a file", "Give a folder as --run-dir.")
    project = find_project_folder()
    if named is not None and (named == project or {project / "specs", project / "suites"} & {named, *named.parents}):
        raise UsageError(f"{named} belongs to the project itself", "Give another --run-dir, such as runs/mine.")
    if named is not None and ((named / log).exists() or (named / JOURNAL).exists()):
        raise UsageError(f"{named} already holds a run", "Give another --run-dir, or --resume to continue it.")
    return named, False


def make_folder(named: Path | None, name: str) -> Path:
    """Makes the folder that was named, else `runs/<time>-<name>`.

    Raises:
        UsageError: it cannot be made.
    """
    if named is None:
        return make_run_folder(find_runs_folder(), name, "--run-dir")
    try:
        named.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _explain_cannot_be_made(named, error, "--run-dir") from error
    return named


def make_run_folder(parent: Path, name: str, option: str) -> Path:
    """Makes `<parent>/<time>-<name>`, with a number behind it where there is one already.

    Args:
        parent: where it goes.
        name: what it is.
        option: the one that names another place, for messages.

    Raises:
        UsageError: it cannot be made.
    """
    folder = wanted = parent / f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{name}"
    number = 2
    while True:
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            folder, number = wanted.with_name(f"{wanted.name}-{number}"), number + 1
        except OSError as error:
            raise _explain_cannot_be_made(folder, error, option) from error
        else:
            return folder


def _explain_cannot_be_made(folder: Path, error: OSError, option: str) -> UsageError:
    return UsageError(f"{folder}: cannot be made: {error.strerror}", f"Give another place with {option}.")


def free_folder(wanted: Path) -> Path:
    """A folder that is not there: that of an attempt that was cut short is kept."""
    folder, count = wanted, 2
    while folder.exists():
        folder, count = wanted.with_name(f"{wanted.name}.{count}"), count + 1
    return folder


def newest_of(kind: str, log: str) -> Path:
    """The session of a kind whose log was written to last.

    Raises:
        UsageError: there is none.
    """
    found = [path.parent for path in find_runs_folder().glob(f"*/{log}")]
    if not found:
        raise UsageError(f"there is no earlier `{kind}` in {find_runs_folder()}", "Start one, or name its --run-dir.")
    return max(found, key=lambda folder: (folder / log).stat().st_mtime_ns)


def keep_if_begun(folder: Path) -> bool:
    """Keeps the journal of a run that was begun; whether there is one, so that it can be resumed.

    One whose writer was killed before it had said what it is about is removed: there is nothing to resume.

    Raises:
        GauntletError: the journal cannot be read.
    """
    journal = folder / JOURNAL
    if not journal.is_file():
        return False
    if read_journal(journal).runs:
        return True
    journal.unlink()
    return False
