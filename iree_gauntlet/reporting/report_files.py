"""Writing reports where they belong: beside the record that they are made from, and into a CI job's summary."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.atomic import write_atomic
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.reporting.summary import append_step_summary

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["STEP_SUMMARY", "add_to_step_summary", "write_report"]

STEP_SUMMARY = "GITHUB_STEP_SUMMARY"


def write_report(path: Path, content: str | bytes, folder: Path) -> None:
    """Write one report.

    Args:
        path: of the report.
        content: the same bytes for the same record.
        folder: what `report` makes it from again.

    Raises:
        GauntletError: it cannot be written.
    """
    try:
        write_atomic(path, content)
    except OSError as error:
        raise GauntletError(
            f"{path}: cannot write the report: {error.strerror}",
            f"make room or give the right to write, then `report {folder}` makes it again",
        ) from error


def add_to_step_summary(environ: Mapping[str, str], markdown: str) -> None:
    """Append to the file that `GITHUB_STEP_SUMMARY` names; nothing where it is not set.

    Raises:
        GauntletError: it cannot be written.
    """
    path = environ.get(STEP_SUMMARY, "")
    if not path:
        return
    try:
        append_step_summary(Path(path), markdown)
    except OSError as error:
        raise GauntletError(
            f"{path}: cannot append the summary: {error.strerror}",
            f"{STEP_SUMMARY} must name a file that can be written, or not be set",
        ) from error
