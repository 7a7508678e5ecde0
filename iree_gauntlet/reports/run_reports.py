"""The reports of a run, from its journal alone: also of a run that was killed."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from iree_gauntlet.journal_format import JOURNAL, read_journal
from iree_gauntlet.records.outcome import outcome_of
from iree_gauntlet.reports.job_summary import (
    JOB_SUMMARY_NAMES,
    job_summary,
    job_summary_json,
    job_summary_markdown,
)
from iree_gauntlet.reports.junit import junit_document
from iree_gauntlet.reports.render_console import print_document
from iree_gauntlet.reports.render_html import html_page
from iree_gauntlet.reports.render_markdown import markdown
from iree_gauntlet.reports.report_files import STEP_SUMMARY, add_to_step_summary, write_report
from iree_gauntlet.reports.summary import run_document
from iree_gauntlet.reports.summary_json import summary_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from iree_gauntlet.records.outcome import RunOutcome

__all__ = ["append_to_step_summary", "print_run", "report_names", "write_job_summary", "write_reports"]

_REPORT_NAMES = ("junit.xml", "summary.md", "summary.html", "summary.json")


def write_reports(run_dir: Path, *, environ: Mapping[str, str], append_step_summary: bool = False) -> RunOutcome:
    """Write `junit.xml`, `summary.md`, `summary.html` and `summary.json` beside a run's journal.

    The same journal gives the same bytes each time.

    Args:
        run_dir: the run's folder.
        environ: the environment; names GitHub's summary file in `GITHUB_STEP_SUMMARY`.
        append_step_summary: append the summary to that file, where there is one.

    Raises:
        GauntletError: there is no journal, it cannot be read, or the reports cannot be written.
    """
    with _uncollected():
        outcome = outcome_of(read_journal(run_dir / JOURNAL))
        # One after the other: of ten thousand cases each is large.
        for name, content in zip(_REPORT_NAMES, _contents(outcome), strict=True):
            write_report(run_dir / name, content, run_dir)
        write_job_summary(outcome, run_dir, run_dir)
    if append_step_summary:
        append_to_step_summary(outcome, environ)
    return outcome


def _contents(outcome: RunOutcome) -> Iterator[str]:
    """What stands in the reports, in the order of their names."""
    document = run_document(outcome)
    yield junit_document(outcome)
    yield markdown(document)
    yield html_page(document)
    yield summary_json(outcome)


@contextmanager
def _uncollected() -> Iterator[None]:
    """No search for cycles: reports make none, and among the millions of objects of a large run it takes long."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def append_to_step_summary(outcome: RunOutcome, environ: Mapping[str, str]) -> None:
    """Append the summary of a run to the file that `GITHUB_STEP_SUMMARY` names, where there is one.

    Raises:
        GauntletError: it cannot be written.
    """
    if environ.get(STEP_SUMMARY):
        add_to_step_summary(environ, markdown(run_document(outcome)))


def print_run(
    outcome: RunOutcome, run_dir: Path, stream: TextIO, *, environ: Mapping[str, str], width: int | None = None
) -> None:
    """Print the end of a run; what there is too much of is counted. Commands are never broken over lines.

    Args:
        outcome: what to print.
        run_dir: the run's folder, as the user knows it.
        stream: where to; coloured where it is a terminal and `NO_COLOR` is not set.
        environ: the environment.
        width: columns; None for the terminal's own, or 160 where there is none.
    """
    reports = f"{run_dir}: {', '.join(report_names(outcome))}"
    print_document(run_document(outcome, run_dir), stream, reports, environ=environ, width=width)


def report_names(outcome: RunOutcome) -> tuple[str, ...]:
    """Names of the reports of a run."""
    return (*_REPORT_NAMES, *(JOB_SUMMARY_NAMES if job_summary(outcome) else ()))


def write_job_summary(outcome: RunOutcome, folder: Path, run_dir: Path) -> None:
    """Write `job_summary.md` and `job_summary.json` of the tests of torch models, where a run has any.

    Args:
        outcome: of the run.
        folder: where to.
        run_dir: the run's folder.

    Raises:
        GauntletError: they cannot be written.
    """
    summary = job_summary(outcome)
    if not summary:
        return
    contents = (job_summary_markdown(summary, outcome.markers), job_summary_json(summary))
    for name, content in zip(JOB_SUMMARY_NAMES, contents, strict=True):
        write_report(folder / name, content, run_dir)
