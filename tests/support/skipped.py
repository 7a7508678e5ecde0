"""What a session of tests has not proven, and why: a part of pytest's report, for a conftest or `-p`."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["pytest_terminal_summary"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List what was not here, once for each thing, with the number of tests that were skipped for it."""
    lines = _lines(terminalreporter.stats.get("skipped", ()))
    if lines:
        terminalreporter.section("skipped for what is not here")
        for line in lines:
            terminalreporter.line(line)


def _lines(reports: Iterable[pytest.TestReport | pytest.CollectReport]) -> list[str]:
    found: Counter[tuple[str, str]] = Counter()
    for report in reports:
        # Where a test was skipped, and why; a list where another process has run it.
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple | list) else report.longreprtext
        kind = "whole file" if isinstance(report, pytest.CollectReport) else "test"
        found[" ".join(reason.split()).removeprefix("Skipped: "), kind] += 1
    counted = sorted(found.items(), key=lambda item: (-item[1], item[0]))
    return [f"{count:5} {kind}{'s' if count > 1 else ''}: {reason}" for (reason, kind), count in counted]
