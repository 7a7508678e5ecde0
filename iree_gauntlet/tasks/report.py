"""`report`: the reports of what was run, made again from its records alone."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet import messages
from iree_gauntlet.errors import ExitCode, GauntletError, UsageError
from iree_gauntlet.figures import counted
from iree_gauntlet.journal_format import JOURNAL, JournalRecord, read_journal
from iree_gauntlet.records.merged_runs import merge_runs
from iree_gauntlet.reports.experiment_reports import RECORDS, write_reports
from iree_gauntlet.reports.runs_index import write_index
from iree_gauntlet.settings import find_runs_folder, format_typed_command, shown
from iree_gauntlet.system.atomic import write_atomic
from iree_gauntlet.torch_models.reports.sweep_reports import write_micro_reports

if TYPE_CHECKING:
    from collections.abc import Sequence


LATEST = "latest"


def write_page_of_runs(named: str) -> ExitCode:
    """Makes the page of a folder of runs, with all that is recorded in it.

    Args:
        named: the folder; empty for that of the project.

    Raises:
        UsageError: there is no such folder.
        GauntletError: it cannot be written.
    """
    folder = Path(named).absolute() if named else find_runs_folder()
    if not any(path for record in RECORDS for path in folder.glob(f"*/{record}")):
        lacks = "run in" if folder.is_dir() else "folder"
        raise UsageError(f"report --index: there is no {lacks} {shown(folder)}", "Name the folder that has the runs.")
    page, count = write_index(folder, RECORDS, all_of_them=True)
    sys.stdout.write(f"{counted(count, 'run')} in {shown(page)}\n")
    return ExitCode.OK


def report(runs: Sequence[str], merge: str = "", *, lenient: bool = False) -> ExitCode:
    """Makes the reports of a run, a comparison, a matrix or a bisection again; exits as that did.

    Args:
        runs: folders or names; none for the working folder.
        merge: folder of the run that is made of several; empty for none.
        lenient: runs of different IREEs may be merged.

    Raises:
        UsageError: there is no such run, or several that cannot be merged.
        GauntletError: its record cannot be read.
    """
    if merge:
        folder = Path(merge)
        _merge_runs(list(map(_locate_folder, runs)), folder, lenient=lenient)
    elif len(runs) > 1:
        raise UsageError(f"report makes the reports of one run, not of {len(runs)}", "--merge DIR makes one of them.")
    else:
        folder = _locate_folder("".join(runs))
    reports = write_reports(folder)
    reports.print(shown(folder), sys.stdout, environ=os.environ)
    if merge:
        # What each part said is in its own job's.
        reports.append_to_step_summary(os.environ)
    if (folder / JOURNAL).is_file():
        record = read_journal(folder / JOURNAL)
        if record.run.micro is not None:
            write_micro_reports(record, folder, sys.stdout)
    return reports.exit_code


def _locate_folder(named: str) -> Path:
    if named == LATEST:
        records = [path for record in RECORDS for path in find_runs_folder().glob(f"*/{record}")]
        if not records:
            raise UsageError(f"there is no run in {find_runs_folder()}", "Start one with `run`, or name its folder.")
        return max(records, key=lambda path: path.stat().st_mtime_ns).parent
    folder = Path(named)
    if not folder.is_dir() and (find_runs_folder() / named).is_dir():
        folder = find_runs_folder() / named
    if not folder.is_dir():
        runs = [path for path in find_runs_folder().glob("*") if path.is_dir()]
        runs.sort(key=lambda path: path.stat().st_mtime_ns, reverse=True)
        names = ", ".join(path.name for path in runs[:5]) or "none"
        raise UsageError(f"there is no run {folder}", f"Newest runs: {names}.")
    if not any((folder / record).is_file() for record in RECORDS):
        hint = "--index makes the page of a folder of runs." if any(folder.glob(f"*/{JOURNAL}")) else "Name a run."
        raise UsageError(f"{folder} is no run: it has no record such as {JOURNAL}", hint)
    return folder


def _merge_runs(folders: Sequence[Path], into: Path, *, lenient: bool) -> None:
    """Makes a run's folder of the journals of some runs, with the logs that they name."""
    twice = [
        folder for index, folder in enumerate(folders) if folder.resolve() in [f.resolve() for f in folders[:index]]
    ]
    if twice:
        raise UsageError(f"{twice[0]} is named twice", "Name each run once.")
    if (into / JOURNAL).exists():
        raise UsageError(f"--merge {into} already holds a run", "Give another folder.")
    records = [read_journal(folder / JOURNAL) for folder in folders]
    opening, events = merge_runs(
        records, into.resolve().name, shlex.join(format_typed_command()), str(Path.cwd()), lenient=lenient
    )
    try:
        into.mkdir(parents=True, exist_ok=True)
        for record in records:
            _take_logs(record, into)
        lines = (json.dumps(event, separators=(",", ":")) + "\n" for event in events)
        # Last, so that what is there as a run is a whole one.
        write_atomic(into / JOURNAL, "".join(lines))
    except OSError as error:
        raise GauntletError(
            f"--merge {into}: cannot be written: {error.strerror}", "Make room there, or give another folder."
        ) from error
    for remark in opening.remarks:
        messages.note(remark)
    messages.news(f"merged into {shown(into.resolve())}")


def _take_logs(record: JournalRecord, into: Path) -> None:
    """The logs that a journal names, under the same names in the new folder."""
    source = record.path.parent.resolve()
    for log in dict.fromkeys(result.log for result in record.results.values()):
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
