"""Job summaries in the shape of iree-test-suites."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from iree_gauntlet.journal_format import read_journal
from iree_gauntlet.records.outcome import RunOutcome, read_outcome
from iree_gauntlet.reports.experiment_reports import write_reports
from iree_gauntlet.reports.run_reports import make_job_summary, make_run_reports
from tests.support.journal_builder import JournalBuilder, make_samples

if TYPE_CHECKING:
    from pathlib import Path

DIALECT = "torch-models"


def outcome(journal: JournalBuilder, folder: Path) -> RunOutcome:
    return read_outcome(read_journal(journal.write(folder) / "journal.jsonl"))


def golden(metric: str, value: float) -> dict[str, Any]:
    origin = {"file": "specs/m.json", "field": "golden"}
    return {
        "metric": metric,
        "value": value,
        "factor": 1.1,
        "statistic": "min",
        "sku": "",
        "release": "",
        "origin": origin,
    }


def test_tables_have_the_columns_and_words_of_that_suite(tmp_path: Path) -> None:
    journal = JournalBuilder()
    module = journal.step("m", "modules", "compile", dialect=DIALECT)
    quality = journal.step("m", "a_quality", "threshold", dialect=DIALECT)
    goldens = [golden("time_ms", 2)]
    benchmark = journal.step("m", "a_benchmark", "benchmark", dialect=DIALECT, goldens=goldens)
    limits = [golden("dispatch_count", 10), golden("binary_size_bytes", 2000.5)]
    compstat = journal.step("m", "a_compstat", "compstat", dialect=DIALECT, goldens=limits)
    journal.step("other", "x", "threshold")
    journal.begin(markers="cpu and (small or text)")
    journal.result(module)
    journal.result(quality)
    times = make_samples(1500.0, 1250.0, unit="us")
    journal.result(benchmark, samples=times)
    figures = {"dispatch_count": 11, "binary_size_bytes": 1000}
    journal.result(compstat, verdict="failed", reason="too many", statistics=figures)
    journal.end()
    found = outcome(journal, tmp_path)
    files = make_run_reports(found).files
    assert json.loads(files["job_summary.json"]()) == {
        "quality": {"headers": ["Name", "Status"], "rows": [["m/a_quality.json", "PASSED"]]},
        "benchmark": {
            "headers": [
                "Name",
                "Current Time (ms)",
                "Golden Time (ms)",
                "Tolerance Factor",
                "Threshold (ms)",
                "Status",
            ],
            "rows": [["m/a_benchmark.json", "1.250", "2.000", "1.1", "2.200", "PASSED"]],
        },
        "compstat": {
            "headers": [
                "Name",
                "Golden Dispatch Count",
                "Current Dispatch Count",
                "Golden Binary Size (bytes)",
                "Current Binary Size (bytes)",
                "Status",
            ],
            "rows": [["m/a_compstat.json", 10, 11, 2000.5, 1000, "FAILED"]],
        },
    }
    markdown = files["job_summary.md"]()
    assert markdown.splitlines()[:7] == [
        "# Job Summary For Markers: cpu and (small or text)",
        "",
        "## Quality Test Summary",
        "",
        "| Name | Status |",
        "| --- | --- |",
        "| m/a_quality.json | PASSED |",
    ]
    assert "| m/a_compstat.json | 10 | 11 | 2000.5 | 1000 | FAILED |" in markdown


@pytest.mark.parametrize(
    ("verdict", "status"),
    [
        ("passed", "PASSED"),
        ("failed", "FAILED"),
        ("error", "FAILED"),
        ("xpassed", "FAILED"),
        ("xfailed", "XFAILED"),
        ("skipped", "N/A"),
    ],
)
def test_statuses(verdict: str, status: str, tmp_path: Path) -> None:
    journal = JournalBuilder()
    step = journal.step("m", "q", "threshold", dialect=DIALECT)
    journal.begin()
    journal.result(step, verdict=verdict, reason="because")
    journal.end()
    assert make_job_summary(outcome(journal, tmp_path))["quality"]["rows"] == [["m/q.json", status]]


@pytest.mark.parametrize(("module", "status"), [("failed", "FAILED"), ("error", "FAILED"), ("xfailed", "XFAILED")])
def test_a_test_behind_a_module_has_its_fate(module: str, status: str, tmp_path: Path) -> None:
    journal = JournalBuilder()
    made = journal.step("m/modules", "a", "compile", dialect=DIALECT)
    step = journal.step("m", "q", "threshold", dialect=DIALECT, needs=[made])
    journal.begin()
    journal.result(made, verdict=module, reason="because")
    journal.result(step, verdict="skipped", reason=f"{made} {module}")
    journal.end()
    assert make_job_summary(outcome(journal, tmp_path))["quality"]["rows"] == [["m/q.json", status]]


def test_what_did_not_run_is_not_available_and_what_was_killed_has_failed(tmp_path: Path) -> None:
    journal = JournalBuilder()
    begun = journal.step("m", "begun", "benchmark", dialect=DIALECT)
    journal.step("m", "waiting", "benchmark", dialect=DIALECT, goldens=[golden("time_ms", 2)])
    journal.begin()
    journal.start(begun)
    rows = make_job_summary(outcome(journal, tmp_path))["benchmark"]["rows"]
    assert rows == [
        ["m/begun.json", "N/A", "N/A", "N/A", "N/A", "FAILED"],
        ["m/waiting.json", "N/A", "2.000", "1.1", "2.200", "N/A"],
    ]


def test_a_golden_of_the_first_generation_is_shown_with_the_mean(tmp_path: Path) -> None:
    journal = JournalBuilder()
    goldens = [golden("time_ms", 550) | {"factor": 1.0, "statistic": "mean"}]
    step = journal.step("sdxl", "old", "benchmark", dialect=DIALECT, goldens=goldens)
    journal.begin()
    journal.result(step, samples=make_samples(500.0, 400.0))
    journal.end()
    rows = make_job_summary(outcome(journal, tmp_path))["benchmark"]["rows"]
    assert rows == [["sdxl/old.json", "450.000", "550.000", "1.0", "550.000", "PASSED"]]


def test_other_runs_have_none(tmp_path: Path) -> None:
    journal = JournalBuilder()
    step = journal.step("m", "q", "threshold")
    journal.begin()
    journal.result(step)
    journal.end()
    folder = journal.write(tmp_path)
    assert "job_summary.md" not in write_reports(folder).files
    assert not (folder / "job_summary.md").exists()
