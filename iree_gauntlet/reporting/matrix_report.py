"""The reports of a matrix, from its record and the journals of its runs alone: also of one that was killed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.atomic import write_atomic
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.reporting.matrix import matrix_outcome
from iree_gauntlet.reporting.matrix_json import matrix_csv, matrix_json
from iree_gauntlet.reporting.matrix_junit import matrix_junit
from iree_gauntlet.reporting.matrix_markdown import matrix_markdown
from iree_gauntlet.reporting.summary import append_step_summary as append_to_step_summary

if TYPE_CHECKING:
    from collections.abc import Mapping

    from iree_gauntlet.reporting.matrix import MatrixOutcome

__all__ = ["MATRIX_REPORTS", "write_matrix_reports"]

MATRIX_REPORTS = ("junit.xml", "matrix.md", "matrix.json", "matrix.csv")
_STEP_SUMMARY = "GITHUB_STEP_SUMMARY"


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
        try:
            write_atomic(folder / name, content)
        except OSError as error:
            raise GauntletError(
                f"{folder / name}: cannot write the report: {error.strerror}",
                f"make room or give the right to write, then `report {folder}` makes it again",
            ) from error
    step_summary = environ.get(_STEP_SUMMARY, "")
    if append_step_summary and step_summary:
        try:
            append_to_step_summary(Path(step_summary), markdown)
        except OSError as error:
            raise GauntletError(
                f"{step_summary}: cannot append the summary: {error.strerror}",
                f"{_STEP_SUMMARY} must name a file that can be written, or not be set",
            ) from error
    return outcome
