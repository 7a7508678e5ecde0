"""docs/reference/failures.md as data: what users see of each fault, which tests compare with what is printed."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.support.places import ROOT

__all__ = ["FAULTS_PAGE", "Row", "fault_rows"]

FAULTS_PAGE = ROOT / "docs" / "reference" / "failures.md"

_CODE = re.compile(r"`([^`]+)`")
_TEST = re.compile(r"`(test_\w+\.py)::(test_\w+)`")


@dataclass(frozen=True, slots=True)
class Row:
    """One fault."""

    fault: str
    said: tuple[re.Pattern[str], ...]
    tests: tuple[tuple[str, str], ...]


def fault_rows() -> list[Row]:
    """The table's rows; `…` in a text stands for what differs from time to time."""
    rows = []
    for line in FAULTS_PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 5 and _TEST.search(cells[4]):
            said = tuple(_pattern(text) for text in _CODE.findall(cells[1]))
            rows.append(Row(cells[0], said, tuple(_TEST.findall(cells[4]))))
    return rows


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(r"[\s\S]*?".join(re.escape(part) for part in text.split("…")))
