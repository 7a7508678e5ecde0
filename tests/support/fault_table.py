"""docs/reference/failures.md as data: the messages of each fault, which tests compare with real output."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.support.places import ROOT

__all__ = ["FAULTS_PAGE", "FaultRow", "read_fault_rows"]

FAULTS_PAGE = ROOT / "docs" / "reference" / "failures.md"

_CODE = re.compile(r"`([^`]+)`")
_TEST = re.compile(r"`(test_\w+\.py)::(test_\w+)`")


@dataclass(frozen=True, slots=True)
class FaultRow:
    """One fault: the patterns of its messages, and its tests by file and function."""

    fault: str
    output_patterns: tuple[re.Pattern[str], ...]
    tests: tuple[tuple[str, str], ...]


def read_fault_rows() -> list[FaultRow]:
    """Return the table's rows; `…` in a message stands for text that differs between runs."""
    rows = []
    for line in FAULTS_PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 5 and _TEST.search(cells[4]):
            patterns = tuple(_compile_pattern(message) for message in _CODE.findall(cells[1]))
            rows.append(FaultRow(cells[0], patterns, tuple(_TEST.findall(cells[4]))))
    return rows


def _compile_pattern(message: str) -> re.Pattern[str]:
    return re.compile(r"[\s\S]*?".join(re.escape(part) for part in message.split("…")))
