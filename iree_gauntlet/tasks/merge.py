"""`report RUN1 RUN2 … --merge DIR`: one run's folder of several runs' folders."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.atomic import write_atomic
from iree_gauntlet.errors import GauntletError, UsageError
from iree_gauntlet.journal_format import JournalRecord, read_journal
from iree_gauntlet.reporting.merged_runs import merged
from iree_gauntlet.settings import shown

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["merge_runs"]

_JOURNAL = "journal.jsonl"


def merge_runs(folders: Sequence[Path], into: Path, *, lenient: bool) -> None:
    """Makes a run's folder of the journals of some runs, with the logs that they name.

    Args:
        folders: of the runs.
        into: the new folder.
        lenient: runs of different IREEs may be merged.

    Raises:
        UsageError: they are no parts of one run, or the folder holds a run already.
        GauntletError: a journal cannot be read, or the folder cannot be written.
    """
    twice = [
        folder for index, folder in enumerate(folders) if folder.resolve() in [f.resolve() for f in folders[:index]]
    ]
    if twice:
        raise UsageError(f"{twice[0]} is named twice", "Name each run once.")
    if (into / _JOURNAL).exists():
        raise UsageError(f"--merge {into} already holds a run", "Give another folder.")
    records = [read_journal(folder / _JOURNAL) for folder in folders]
    command = [Path(sys.argv[0]).name, *sys.argv[1:]]
    whole = merged(records, into.resolve().name, " ".join(command), str(Path.cwd()), lenient=lenient)
    try:
        into.mkdir(parents=True, exist_ok=True)
        for record in records:
            _take_logs(record, into)
        lines = (json.dumps(event, separators=(",", ":")) + "\n" for event in whole.events)
        # Last, so that what is there as a run is a whole one.
        write_atomic(into / _JOURNAL, "".join(lines))
    except OSError as error:
        raise GauntletError(
            f"--merge {into}: cannot be written: {error.strerror}", "Make room there, or give another folder."
        ) from error
    sys.stderr.writelines(f"note: {remark}\n" for remark in whole.remarks)
    sys.stderr.write(f"merged into {shown(into.resolve())}\n")


def _take_logs(record: JournalRecord, into: Path) -> None:
    """The logs that a journal names, under the same names in the new folder."""
    source = record.path.parent.resolve()
    for log in dict.fromkeys(str(result.get("log") or "") for result in record.results.values()):
        path = (source / log).resolve()
        if not log or not path.is_relative_to(source) or not path.is_file():
            continue
        target = into / path.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(path, target)
        except FileExistsError:
            continue
        except OSError:  # another file system, or one without links
            shutil.copyfile(path, target)
