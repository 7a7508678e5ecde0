"""`report`: the reports of what was run, made again from its records alone."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.errors import ExitCode, UsageError
from iree_gauntlet.journal_format import read_journal
from iree_gauntlet.reporting.bisection import BISECT_RECORD
from iree_gauntlet.reporting.comparison import COMPARISON_FILE, read_comparison
from iree_gauntlet.reporting.comparison_report import print_comparison, write_comparison_reports
from iree_gauntlet.reporting.final import print_final
from iree_gauntlet.reporting.matrix_record import MATRIX_RECORD
from iree_gauntlet.reporting.report import write_reports
from iree_gauntlet.settings import runs_folder, shown
from iree_gauntlet.tasks.bisect import report_bisection
from iree_gauntlet.tasks.matrix import report_matrix
from iree_gauntlet.tasks.merge import merge_runs
from iree_gauntlet.tasks.micro_reports import write_micro_reports

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["report"]

_LATEST = "latest"
_JOURNAL = "journal.jsonl"


def report(options: Mapping[str, Any]) -> ExitCode:
    """Makes the reports of a run, a comparison, a matrix or a bisection again; exits as that did.

    With `merge`, of one run that is made of several.

    Raises:
        UsageError: there is no such run, or several that cannot be merged.
        GauntletError: its record cannot be read.
    """
    named = _names(str(options["run"]))
    if options.get("merge"):
        into = Path(options["merge"])
        merge_runs([_folder(name) for name in named], into, lenient=bool(options.get("lenient")))
        return _run(into)
    if len(named) > 1:
        raise UsageError(f"report makes the reports of one run, not of {len(named)}", "--merge DIR makes one of them.")
    folder = _folder(named[0])
    make = next((make for record, make in _REPORTS.items() if (folder / record).is_file()), _run)
    return make(folder)


def _names(text: str) -> list[str]:
    """The words of what `several_in_one` made one word of; a folder's name, blanks and all, is one."""
    if Path(text).is_dir() or (runs_folder() / text).is_dir():
        return [text]
    try:
        return shlex.split(text) or [text]
    except ValueError:
        return [text]


def _folder(named: str) -> Path:
    folder = _newest() if named == _LATEST else Path(named)
    if not folder.is_dir() and (runs_folder() / named).is_dir():
        folder = runs_folder() / named
    if not folder.is_dir():
        runs = sorted((path for path in runs_folder().glob("*") if path.is_dir()), key=_age, reverse=True)
        names = ", ".join(path.name for path in runs[:5]) or "none"
        raise UsageError(f"there is no run {folder}", f"Newest runs: {names}.")
    return folder


def _age(path: Path) -> int:
    return path.stat().st_mtime_ns


def _newest() -> Path:
    records = [path for record in _REPORTS for path in runs_folder().glob(f"*/{record}")]
    if not records:
        raise UsageError(f"there is no run in {runs_folder()}", "Start one with `run`, or name its folder.")
    return max(records, key=lambda path: path.stat().st_mtime_ns).parent


def _run(folder: Path) -> ExitCode:
    outcome = write_reports(folder, environ=os.environ)
    print_final(outcome, shown(folder), sys.stdout, environ=os.environ)
    record = read_journal(folder / _JOURNAL)
    if record.runs and "micro" in record.runs[-1]:
        write_micro_reports(record, folder, sys.stdout)
    return ExitCode(int(outcome.exit_code))


def _comparison(folder: Path) -> ExitCode:
    record = read_comparison(folder)
    write_comparison_reports(record, folder, environ=os.environ, step_summary=False)
    print_comparison(record, shown(folder), sys.stdout, environ=os.environ)
    # One that was cut short has judged nothing.
    return ExitCode.ERROR if record.exit_code is None else ExitCode(record.exit_code)


_REPORTS: dict[str, Callable[[Path], ExitCode]] = {
    COMPARISON_FILE: _comparison,
    MATRIX_RECORD: report_matrix,
    BISECT_RECORD: report_bisection,
    _JOURNAL: _run,
}
