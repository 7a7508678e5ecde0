"""The reports of whatever was recorded in a folder: a run, a comparison, a matrix or a bisection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iree_gauntlet.journal_format import JOURNAL
from iree_gauntlet.records.bisect_outcome import BISECT_RECORD
from iree_gauntlet.records.compare_record import COMPARISON_FILE
from iree_gauntlet.records.matrix_outcome import MATRIX_RECORD
from iree_gauntlet.reports.bisect_document import bisect_reports
from iree_gauntlet.reports.compare_report import comparison_reports
from iree_gauntlet.reports.matrix_report import matrix_reports
from iree_gauntlet.reports.run_reports import run_reports

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from iree_gauntlet.reports.report_files import Reports


RECORDS: dict[str, Callable[[Path], Reports]] = {
    COMPARISON_FILE: comparison_reports,
    MATRIX_RECORD: matrix_reports,
    BISECT_RECORD: bisect_reports,
    JOURNAL: run_reports,
}


def write_reports(folder: Path) -> Reports:
    """Write the reports of an experiment next to its record.

    Args:
        folder: of the experiment; it may have been killed, or be under way.

    Raises:
        GauntletError: it has no record, or one that cannot be read, or the reports cannot be written.
    """
    make = next((make for record, make in RECORDS.items() if (folder / record).is_file()), run_reports)
    reports = make(folder)
    reports.write(folder)
    return reports
