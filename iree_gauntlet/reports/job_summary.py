"""`job_summary.md` and `job_summary.json`, in the shape of iree-test-suites' torch models.

One table for each type of test, with the columns and words that its readers know: `PASSED`, `FAILED` (also for
what an error kept from being judged), `N/A` for what did not run; and `XFAILED`, which that suite has not.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from iree_gauntlet.cases import Metric, Statistic, Verdict
from iree_gauntlet.reports.markdown import escape, table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from iree_gauntlet.records.outcome import RunOutcome
    from iree_gauntlet.records.step_outcome import StepOutcome

__all__ = ["JOB_SUMMARY_NAMES", "Summary", "job_summary", "job_summary_json", "job_summary_markdown"]

JOB_SUMMARY_NAMES = ("job_summary.md", "job_summary.json")
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
