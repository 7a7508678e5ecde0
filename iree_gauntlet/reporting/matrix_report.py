"""The reports of a matrix, from its record and the journals of its runs alone: also of one that was killed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iree_gauntlet.reporting.matrix import matrix_outcome
from iree_gauntlet.reporting.matrix_json import matrix_csv, matrix_json
from iree_gauntlet.reporting.matrix_junit import matrix_junit
from iree_gauntlet.reporting.matrix_markdown import matrix_markdown
from iree_gauntlet.reporting.report_files import add_to_step_summary, write_report

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from iree_gauntlet.reporting.matrix import MatrixOutcome

__all__ = ["MATRIX_REPORTS", "write_matrix_reports"]

MATRIX_REPORTS = ("junit.xml", "matrix.md", "matrix.json", "matrix.csv")


def write_matrix_reports(
    folder: Path, *, environ: Mapping[str, str], append_step_summary: bool = False
) -> MatrixOutcome:
    """Write the reports of a matrix beside its record.

    The same record and journals give the same bytes each time.

    Args:
        folder: of the matrix.
        environ: the environment; names GitHub's summary file in `GITHUB_STEP_SUMMARY`.
        append_step_summary: append `matrix.md` to that file, where there is one.

    Raises:
        GauntletError: the record or a journal cannot be read, or the reports cannot be written.
    """
    outcome = matrix_outcome(folder)
    markdown = matrix_markdown(outcome)
    contents = (matrix_junit(outcome), markdown, matrix_json(outcome), matrix_csv(outcome))
    for name, content in zip(MATRIX_REPORTS, contents, strict=True):
        write_report(folder / name, content, folder)
    if append_step_summary:
        add_to_step_summary(environ, markdown)
    return outcome
