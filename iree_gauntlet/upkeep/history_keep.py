"""`history.add`, `.import`, `.list`, `.export`, `.prune`: what is in a history."""

from __future__ import annotations

import csv
import io
import json
import os
import shlex
import sys
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet import messages
from iree_gauntlet.dialects.configuration_file import read_configuration
from iree_gauntlet.errors import ExitCode, GauntletError, NothingSelectedError, UsageError
from iree_gauntlet.figures import counted
from iree_gauntlet.history.extract import extract
from iree_gauntlet.history.imports import imported
from iree_gauntlet.history.index import HistoryIndex
from iree_gauntlet.history.stores import HistoryStore, history_of, open_history
from iree_gauntlet.journal_format import JOURNAL, read_journal
from iree_gauntlet.records.earlier_runs import LATEST, run_named
from iree_gauntlet.records.history_outcome import selected
from iree_gauntlet.records.history_run import HistoryRun, history_file
from iree_gauntlet.records.outcome import outcome_of
from iree_gauntlet.reports.history_page import export_rows, runs_document
from iree_gauntlet.reports.render_console import print_document
from iree_gauntlet.settings import made_cache_folder, project_folder
from iree_gauntlet.system.atomic import write_atomic

if TYPE_CHECKING:
    from collections.abc import Iterable

    from iree_gauntlet.records.history_outcome import Series
    from iree_gauntlet.settings import Configuration
    from iree_gauntlet.upkeep.upkeep_requests import (
        AddRequest,
        ExportRequest,
        HistoryRequest,
        ImportRequest,
        PruneRequest,
    )


# Names in a hint.
_MOST = 20


def configuration() -> Configuration:
    """The settings that hold here."""
    return read_configuration(project_folder(), os.environ)


def store_of(asked: HistoryRequest) -> HistoryStore:
    """The history that is asked for.

    Raises:
        UsageError: there is no such kind of place.
    """
    settings = configuration()
    return open_history(asked.store or history_of(settings), settings, made_cache_folder(asked.cache_dir))


def index_of(asked: HistoryRequest) -> HistoryIndex:
    """The index of the history that is asked for, brought up to date.

    Raises:
        UsageError: there is no such history.
    """
    store = store_of(asked)
    index = HistoryIndex(store)
    index.update()
    if not index.runs() and not index.problems():
        raise UsageError(f"the history in {store.place} has no run yet", "`gauntlet history.add` adds the latest one.")
    return index


def add(asked: AddRequest) -> ExitCode:
    """Add runs, whatever came of them."""
    folders = [run_named(word, "history.add") for word in shlex.split(asked.runs) or (LATEST,)]
    return _kept(
        store_of(asked), [part for folder in folders for part in extract(outcome_of(read_journal(folder / JOURNAL)))]
    )


def add_imported(asked: ImportRequest) -> ExitCode:
    """Add what other tools have kept."""
    files = shlex.split(asked.files)
    if not files:
        raise UsageError("history.import: no file is named", "Name files: gauntlet history.import data.js.")
    given = {"date": asked.date, "commit": asked.commit, "machine": asked.machine, "sku": asked.sku}
    return _kept(store_of(asked), [run for file in files for run in imported(Path(file), **given)])


def _kept(store: HistoryStore, runs: list[HistoryRun]) -> ExitCode:
    added = store.add(dict(map(history_file, runs)))
    figures = sum(len(case.figures) for run in runs for case in run.cases)
    before = len(runs) - added
    there = f", {before} {'was' if before == 1 else 'were'} there already" if before else ""
    sys.stdout.write(f"{counted(added, 'run')} added to {store.place}{there}; {counted(figures, 'figure')}\n")
    return ExitCode.OK


def list_runs(asked: HistoryRequest, *, as_json: bool) -> ExitCode:
    """Show the runs of a history, the newest last."""
    index = index_of(asked)
    runs = index.runs()
    code = unread(index.problems())
    if as_json:
        sys.stdout.write(json.dumps(runs, indent=2) + "\n")
    else:
        print_document(runs_document(runs), sys.stdout, environ=os.environ)
    return code


def export(asked: ExportRequest) -> ExitCode:
    """Write all figures as CSV."""
    index = index_of(asked)
    series = chosen(index, asked.series)
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(export_rows(series))
    code = unread(index.problems())
    if not asked.output:
        sys.stdout.write(text.getvalue())
        return code
    try:
        write_atomic(Path(asked.output), text.getvalue())
    except OSError as error:
        raise GauntletError(f"{asked.output}: {error.strerror}", "Name another file with --output.") from error
    sys.stdout.write(f"{asked.output}: {len(series)} series\n")
    return code


def chosen(index: HistoryIndex, pattern: str, sku: str = "") -> tuple[Series, ...]:
    """The series of an index that fit a glob, of one device.

    Raises:
        NothingSelectedError: there is none.
    """
    every = index.series()
    found = selected(every, pattern, sku)
    if not found:
        names = sorted({item.key.sku for item in every} if sku else {item.key.case for item in every})
        hint = f"{'SKUs' if sku else 'Cases'} there: {', '.join(names[:_MOST])}{', …' if len(names) > _MOST else ''}."
        raise NothingSelectedError(f"no series fits {' of '.join(filter(None, (pattern, sku)))}", hint)
    return found


def unread(problems: Iterable[str]) -> ExitCode:
    """Warns of files that could not be read: an error, whatever the others say."""
    code = ExitCode.OK
    for problem in problems:
        messages.warn(problem)
        code = ExitCode.ERROR
    return code


def prune(asked: PruneRequest) -> ExitCode:
    """Remove old runs."""
    if not asked.before:
        raise UsageError("history.prune: which runs?", "Say it: --before 2026-01-31.")
    day = day_of(asked.before, "--before")
    store = store_of(asked)
    index = HistoryIndex(store)
    index.update()
    old = [run for run in index.runs() if datetime.fromisoformat(str(run["time"])).astimezone(UTC).date() < day]
    if asked.delete:
        store.remove([str(run["file"]) for run in old])
    else:
        print_document(runs_document(old), sys.stdout, environ=os.environ)
    done = "removed" if asked.delete else "would be removed; --delete does it"
    sys.stdout.write(f"{counted(len(old), 'run')} before {day} {done}\n")
    return ExitCode.OK


def day_of(text: str, where: str) -> date:
    """A day that a user names.

    Raises:
        UsageError: it is none.
    """
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"{where} {text}: expected a day", "Such as 2026-01-31.") from error
