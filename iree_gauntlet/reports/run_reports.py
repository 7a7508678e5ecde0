"""The reports of a run, from its journal alone: also of a run that was killed."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

from iree_gauntlet.errors import ExitCode
from iree_gauntlet.journal_format import JOURNAL, read_journal
from iree_gauntlet.records.headline import headline
from iree_gauntlet.records.outcome import RunOutcome, outcome_of
from iree_gauntlet.reports.job_summary import (
    JOB_SUMMARY_NAMES,
    Summary,
    job_summary,
    job_summary_json,
    job_summary_markdown,
)
from iree_gauntlet.reports.junit import junit_document
from iree_gauntlet.reports.render_html import html_page
from iree_gauntlet.reports.render_markdown import markdown
from iree_gauntlet.reports.report_files import Reports, write_report
from iree_gauntlet.reports.summary import run_document
from iree_gauntlet.reports.summary_json import summary_json

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from iree_gauntlet.document import Document

__all__ = ["reports_of_run", "run_reports", "write_job_summary"]

_REPORT_NAMES = ("junit.xml", "summary.md", "summary.html", "summary.json")


def run_reports(run_dir: Path) -> Reports:
    """The reports of the run in a folder.

    Raises:
        GauntletError: there is no journal, or it cannot be read.
    """
    with _uncollected():
        return reports_of_run(outcome_of(read_journal(run_dir / JOURNAL)))


def reports_of_run(outcome: RunOutcome) -> Reports:
    """`junit.xml`, `summary.md`, `summary.html`, `summary.json`, and the job summary where torch models were tested."""
    summary = job_summary(outcome)
    names = (*_REPORT_NAMES, *(JOB_SUMMARY_NAMES if summary else ()))

    def contents() -> Iterator[str]:
        with _uncollected():
            yield from _contents(outcome)
        if summary:
            yield from _job_summary(summary, outcome)

    def document(folder: Path | None) -> Document:
        return run_document(outcome, folder)

    return Reports(names, contents, document, ExitCode(int(outcome.exit_code)), headline(outcome))


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


def write_job_summary(run_dir: Path, folder: Path) -> None:
    """Write `job_summary.md` and `job_summary.json` of the tests of torch models, where a run has any.

    Args:
        run_dir: the run's folder.
        folder: where to.

    Raises:
        GauntletError: the journal cannot be read, or they cannot be written.
    """
    outcome = outcome_of(read_journal(run_dir / JOURNAL))
    if summary := job_summary(outcome):
        for name, content in zip(JOB_SUMMARY_NAMES, _job_summary(summary, outcome), strict=True):
            write_report(folder / name, content, run_dir)


def _job_summary(summary: Summary, outcome: RunOutcome) -> tuple[str, str]:
    return job_summary_markdown(summary, outcome.markers), job_summary_json(summary)
