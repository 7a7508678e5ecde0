"""No verdict of a test depends on real time: every use of a clock or a sleep in `tests/` is listed with a reason."""

from __future__ import annotations

import io
import re
import tokenize
from typing import TYPE_CHECKING

import pytest

from tests.support.places import ROOT

if TYPE_CHECKING:
    from pathlib import Path

# Google Benchmark's names hold "/process_time/", which reads nothing.
_CLOCK = re.compile(r"\b(sleep|perf_counter(_ns)?|monotonic(_ns)?|(?<!/)process_time(_ns)?|time\.time(_ns)?)\b")
_LISTED = {
    "engine/test_calls.py": "a clock that a test sets, in place of the program's",
    "experiments/test_qualify.py": "a compile that takes longer; nothing is to follow, however long it takes",
    "support/clocks.py": "a clock that a test sets",
    "support/hanging.py": "what hangs, for tests of what ends it",
    "support/processes.py": "polls for an event; its limit only ends a hang",
    "test_clocks.py": "this file",
}
_FILES = sorted((ROOT / "tests").rglob("*.py"))


def _name(path: Path) -> str:
    return path.relative_to(ROOT / "tests").as_posix()


def _mentions(text: str) -> list[int]:
    """Lines of code, strings included, that mention a clock; comments are left out."""
    if not _CLOCK.search(text):
        return []
    lines = text.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    return [number for number, line in enumerate(lines, start=1) if _CLOCK.search(line)]


@pytest.mark.parametrize("path", _FILES, ids=_name)
def test_a_test_that_reads_a_clock_is_listed(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    # What is measured for real is not among the ordinary tests.
    measured = re.search(r"^pytestmark = pytest\.mark\.(measure|stress)$", text, re.MULTILINE)
    found = [] if measured else _mentions(text)
    if _name(path) in _LISTED:
        assert found, "it no longer mentions a clock: take it off the list"
    else:
        assert not found, f"lines {found}: wait for an event, or give what is tested a clock (tests/support/clocks.py)"


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("import time\ntime.sleep(1)\n", [2]),
        ("from time import perf_counter\n", [1]),
        ('script = "sleep 20"\n', [1]),
        ("script = '/bin/sleep 20'\n", [1]),
        ("x = 1  # no sleep here\ntimely = monotonicity = 1\n", []),
        ('name = "BM_f/process_time/real_time"\n', []),
    ],
)
def test_every_way_to_a_clock_is_found(text: str, lines: list[int]) -> None:
    assert _mentions(text) == lines
