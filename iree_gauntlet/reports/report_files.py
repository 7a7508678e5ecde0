"""Writing reports where they belong: beside the record that they are made from, and into a CI job's summary."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.errors import GauntletError
from iree_gauntlet.reports.markdown import shortened
from iree_gauntlet.system.atomic import write_atomic

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["STEP_SUMMARY", "STEP_SUMMARY_LIMIT", "add_to_step_summary", "append_step_summary", "write_report"]

STEP_SUMMARY = "GITHUB_STEP_SUMMARY"
# GitHub refuses a step's summary above 1 MiB as a whole:
# docs.github.com, "Workflow commands for GitHub Actions", step isolation and limits.
STEP_SUMMARY_LIMIT = 1 << 20
_SMALLEST_USEFUL = 4096
_CUT = "*Cut here: this page may not be longer. The whole report is in the folder of the run.*"


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


def append_step_summary(path: Path, text: str) -> None:
    """Append a summary to `$GITHUB_STEP_SUMMARY`, shortened to what GitHub takes.

    The limit is one of the whole file, which earlier commands of the same CI step may have written to.
    The file is the runner's, so it is appended to, not replaced; nothing is written where no room is left
    for a useful part.

    Raises:
        OSError: the file cannot be written.
    """
    used = path.stat().st_size if path.exists() else 0
    room = STEP_SUMMARY_LIMIT - used - 1
    if room < _SMALLEST_USEFUL:
        return
    with path.open("ab") as stream:
        stream.write(b"\n" * bool(used) + shortened(text, room, _CUT).encode())
