"""A section of pytest's report with the reasons of skipped tests, for a conftest or `-p`."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["pytest_terminal_summary"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List each reason for skips once, with the number of tests that were skipped for it."""
    lines = _make_lines(terminalreporter.stats.get("skipped", ()))
    if lines:
        terminalreporter.section("skipped for what is not here")
        for line in lines:
            terminalreporter.line(line)


def _make_lines(reports: Iterable[pytest.TestReport | pytest.CollectReport]) -> list[str]:
    counts: Counter[tuple[str, str]] = Counter()
    for report in reports:
        # A tuple of the path, line and reason; a list if another process has run the test.
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple | list) else report.longreprtext
        unit = "whole file" if isinstance(report, pytest.CollectReport) else "test"
        counts[" ".join(reason.split()).removeprefix("Skipped: "), unit] += 1
    sorted_counts = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))
    return [f"{count:5} {unit}{'s' if count > 1 else ''}: {reason}" for (reason, unit), count in sorted_counts]
