"""The reports of a run, from its journal alone: also of a run that was killed.

`job_summary.md` and `job_summary.json` have the shape of iree-test-suites' torch models: one table for each type of
test, with the columns and words that its readers know: `PASSED`, `FAILED` (also for what an error kept from being
judged), `N/A` for what did not run; and `XFAILED`, which that suite has not.
"""

from __future__ import annotations

import gc
import json
import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from iree_gauntlet.cases import Metric, Statistic, Verdict
from iree_gauntlet.errors import ExitCode
from iree_gauntlet.journal_format import JOURNAL, read_journal
from iree_gauntlet.records.headline import headline
from iree_gauntlet.records.outcome import RunOutcome, outcome_of
from iree_gauntlet.reports.junit import junit_document
from iree_gauntlet.reports.render_html import html_page
from iree_gauntlet.reports.render_markdown import escape, markdown, table
from iree_gauntlet.reports.report_files import Reports, write_report
from iree_gauntlet.reports.summary import run_document
from iree_gauntlet.reports.summary_json import summary_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from iree_gauntlet.document import Document
    from iree_gauntlet.records.step_outcome import StepOutcome


_REPORT_NAMES = ("junit.xml", "summary.md", "summary.html", "summary.json")
_JOB_SUMMARY_NAMES = ("job_summary.md", "job_summary.json")
_DIALECT = "torch-models"
_NOT_KNOWN = "N/A"
_TYPES = {"threshold": "quality", "benchmark": "benchmark", "compstat": "compstat"}
_HEADERS = {
    "quality": ["Name", "Status"],
    "benchmark": ["Name", "Current Time (ms)", "Golden Time (ms)", "Tolerance Factor", "Threshold (ms)", "Status"],
    "compstat": [
        "Name",
        "Golden Dispatch Count",
        "Current Dispatch Count",
        "Golden Binary Size (bytes)",
        "Current Binary Size (bytes)",
        "Status",
    ],
}
Summary = dict[str, dict[str, Any]]


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
    names = (*_REPORT_NAMES, *(_JOB_SUMMARY_NAMES if summary else ()))

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
        for name, content in zip(_JOB_SUMMARY_NAMES, _job_summary(summary, outcome), strict=True):
            write_report(folder / name, content, run_dir)


def _job_summary(summary: Summary, outcome: RunOutcome) -> tuple[str, str]:
    return job_summary_markdown(summary, outcome.markers), job_summary_json(summary)


def job_summary(outcome: RunOutcome) -> Summary:
    """The tests of torch models by type: `{type: {"headers": […], "rows": [[…]]}}`; empty where there are none."""
    verdicts = {step.id: step.verdict for step in outcome.steps}
    found: Summary = {}
    for stage, kind in _TYPES.items():
        steps = [step for step in outcome.steps if step.dialect == _DIALECT and step.stage == stage]
        rows = [_row(kind, step, _status(step, verdicts)) for step in steps]
        if rows:
            found[kind] = {"headers": _HEADERS[kind], "rows": sorted(rows, key=lambda row: str(row[0]))}
    return found


def job_summary_markdown(summary: Summary, markers: str) -> str:
    """The summary as Markdown."""
    parts = [f"# Job Summary For Markers: {escape(markers)}\n"]
    for kind, content in summary.items():
        rows = [[escape(str(cell)) for cell in row] for row in content["rows"]]
        parts.append(f"## {kind.capitalize()} Test Summary\n\n{table(content['headers'], rows)}\n")
    return "\n".join(parts)


def job_summary_json(summary: Summary) -> str:
    """The summary as JSON."""
    return json.dumps(summary, indent=2, ensure_ascii=False) + "\n"


def _row(kind: str, step: StepOutcome, status: str) -> list[Any]:
    name = f"{step.model}/{step.submodel}.json"
    if kind == "quality":
        return [name, status]
    goldens = {golden.metric: golden for golden in step.goldens}
    if kind == "benchmark":
        golden = goldens.get(Metric.TIME_MS)
        by_mean = golden is not None and golden.statistic == Statistic.MEAN
        measured = None if step.samples is None else step.samples.mean_ms if by_mean else step.samples.min_ms
        limit = [_NOT_KNOWN] * 3
        if golden:
            limit = [_milliseconds(golden.value), str(golden.factor), _milliseconds(golden.value * golden.factor)]
        return [name, _milliseconds(measured), *limit, status]
    values = {metric: golden.value for metric, golden in goldens.items()}
    figures = [
        figure
        for metric in (Metric.DISPATCH_COUNT, Metric.BINARY_SIZE_BYTES)
        for figure in (_whole(values.get(metric)), _whole(step.statistics.get(metric)))
    ]
    return [name, *figures, status]


def _status(step: StepOutcome, verdicts: Mapping[str, Verdict]) -> str:
    if step.verdict is Verdict.PASSED:
        return "PASSED"
    if Verdict.XFAILED in (step.verdict, verdicts.get(step.behind)):
        return "XFAILED"
    judged = step.behind or not (step.never_started or step.verdict in (Verdict.SKIPPED, Verdict.INCONCLUSIVE))
    return "FAILED" if judged else _NOT_KNOWN


def _milliseconds(value: float | None) -> str:
    return _NOT_KNOWN if value is None or math.isnan(value) else f"{value:.3f}"


def _whole(value: float | None) -> float | int | str:
    if value is None:
        return _NOT_KNOWN
    return int(value) if float(value).is_integer() else value
