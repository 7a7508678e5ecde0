"""The reports of whatever was recorded in a folder, by the name of its record, and how they are shown."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TextIO

from iree_gauntlet import messages
from iree_gauntlet.errors import UsageError
from iree_gauntlet.journal_format import JOURNAL
from iree_gauntlet.records.bisect_outcome import BISECT_RECORD
from iree_gauntlet.records.compare_record import COMPARISON_FILE
from iree_gauntlet.records.explain_outcome import EXPLAIN_FOLDER, EXPLAIN_RECORD
from iree_gauntlet.records.matrix_outcome import MATRIX_RECORD
from iree_gauntlet.reports.bisect_document import bisect_reports
from iree_gauntlet.reports.compare_report import make_comparison_reports
from iree_gauntlet.reports.explain_document import explain_reports
from iree_gauntlet.reports.matrix_report import make_matrix_reports
from iree_gauntlet.reports.output import Output, open_progress
from iree_gauntlet.reports.run_reports import run_reports
from iree_gauntlet.reports.runs_index import write_index
from iree_gauntlet.settings import find_runs_folder, shown

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from iree_gauntlet.errors import ExitCode
    from iree_gauntlet.reports.live.painter import Painter
    from iree_gauntlet.reports.report_files import Reports


RECORDS: dict[str, Callable[[Path], Reports]] = {
    COMPARISON_FILE: make_comparison_reports,
    MATRIX_RECORD: make_matrix_reports,
    BISECT_RECORD: bisect_reports,
    EXPLAIN_RECORD: explain_reports,
    JOURNAL: run_reports,
}


def write_reports(folder: Path) -> Reports:
    """Write the reports of an experiment next to its record; those of a run that it explains name what it found.

    Args:
        folder: of the experiment; it may have been killed, or be under way.

    Raises:
        GauntletError: it has no record, or one that cannot be read, or the reports cannot be written.
    """
    make = next((make for record, make in RECORDS.items() if (folder / record).is_file()), run_reports)
    reports = make(folder)
    reports.write(folder)
    if make is explain_reports and folder.name == EXPLAIN_FOLDER and (folder.parent / JOURNAL).is_file():
        run_reports(folder.parent).write(folder.parent)
    return reports


class ConsolePresenter:
    """Shows runs on a stream; see `progress.Presenter`."""

    def __init__(self, stream: TextIO) -> None:
        self._output = Output(stream)

    def progress(self) -> Painter:
        """Live on a terminal, lines elsewhere."""
        return open_progress(self._output.stream)

    def line(self, text: str) -> None:
        """A line between runs."""
        self._output.write(f"{text}\n")

    def ran(self, folder: Path, *, brief: bool) -> ExitCode:
        """Writes the reports of what was recorded there, shows its result, and gives its exit code."""
        reports = write_reports(folder)
        if brief:
            self.line(f"{reports.headline}; reports in {shown(folder)}")
        else:
            reports.print(shown(folder), self._output.stream, environ=os.environ)
            for command in reports.commands(os.environ):
                self.line(command)
        if self._output.lost:
            lost = f"standard output: {self._output.lost}; the run continued, see {shown(folder)}"
            messages.warn(lost)
        # Last, so that a file that cannot be written hides no verdict.
        if not brief:
            reports.append_to_step_summary(os.environ)
            if folder.absolute().parent == find_runs_folder():
                try:
                    write_index(find_runs_folder(), RECORDS, made={folder.name: reports})
                except UsageError as problem:
                    messages.note(problem.on_one_line)
        return reports.exit_code

    def to(self, stream: TextIO) -> ConsolePresenter:
        """The same on another stream."""
        return ConsolePresenter(stream)
