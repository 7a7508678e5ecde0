"""Annotations of GitHub Actions: their places, their texts and their number."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from iree_gauntlet.records.outcome import read_outcome
from iree_gauntlet.reports.github import format_error_commands
from tests.support.journal_builder import JournalBuilder, make_check, make_every_verdict
from tests.support.spec_trees import write_tree

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_SPEC = """{
  // by hand
  "golden_size": {"cpu": 9000},
  "golden_dispatch": {
    "cpu": 19
  }
}
"""


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout, of which the tests run in a folder."""
    write_tree(tmp_path / "models", {"specs/regression_tests/toy/abs.json": _SPEC})
    monkeypatch.chdir(tmp_path / "models")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    return tmp_path


def _commands(builder: JournalBuilder) -> Sequence[str]:
    return format_error_commands(read_outcome(builder.record).steps, os.environ)


def _failed(reason: str, count: int = 1, verdict: str = "failed") -> JournalBuilder:
    builder = JournalBuilder()
    steps = [builder.step("toy", "abs", "threshold", role=f"r{index}") for index in range(count)]
    builder.begin()
    for step in steps:
        builder.result(step, verdict, reason)
    builder.end(1)
    return builder


def test_a_failure_points_at_its_spec_from_the_checkout(workspace: Path) -> None:
    (command,) = _commands(_failed("output 0: 100 % differ\nin two lines"))
    place = "file=models/specs/regression_tests/toy/abs.json,line=1"
    title = "title=toy/abs@cpu threshold.r0 failed"
    assert command == f"::error {place},{title}::output 0: 100 %25 differ in two lines"


def test_wrong_numbers_point_at_the_expected_ones(workspace: Path) -> None:
    path = workspace / "models/specs/regression_tests/toy/abs.json"
    path.write_text('{\n    "mlir": "abs.mlir",\n    "outputs": [{"source": "y.npy"}]\n}\n')
    (command,) = _commands(_failed("output 0: 100 % differ"))
    assert ",line=3," in command


def test_a_broken_golden_is_pointed_at(workspace: Path) -> None:
    builder = JournalBuilder()
    origin = {"file": "specs/regression_tests/toy/abs.json", "field": "golden_dispatch.cpu"}
    golden = {"metric": "dispatch_count", "value": 19, "factor": 1.0, "statistic": "mean", "sku": "", "release": ""}
    step = builder.step("toy", "abs", "compstat", goldens=[golden | {"origin": origin}])
    builder.begin()
    builder.result(step, "failed", "20 exceeds 19", checks=[make_check("dispatch_count", 20, 19)])
    builder.end(1)
    (command,) = _commands(builder)
    assert command.startswith("::error file=models/specs/regression_tests/toy/abs.json,line=5,title=")


@pytest.mark.parametrize("verdict", ["passed", "inconclusive"])
def test_a_golden_that_was_not_applied_is_pointed_at(workspace: Path, verdict: str) -> None:
    builder = JournalBuilder()
    origin = {"file": "specs/regression_tests/toy/abs.json", "field": "golden_dispatch.cpu"}
    golden = {"metric": "dispatch_count", "value": 19, "factor": 1.0, "statistic": "mean", "sku": ""}
    step = builder.step("toy", "abs", "compstat", goldens=[golden | {"release": "3.12.0", "origin": origin}])
    builder.begin()
    builder.result(step, verdict, checks=[make_check("dispatch_count", 20, None)])
    builder.end()
    (command,) = _commands(builder)
    title = "golden" if verdict == "passed" else verdict
    place = f"::warning file=models/specs/regression_tests/toy/abs.json,line=5,title=toy/abs@cpu compstat {title}::"
    assert command.startswith(place)


def test_what_is_gone_or_no_json_is_pointed_at_without_a_line(workspace: Path) -> None:
    (workspace / "models/specs/regression_tests/toy/abs.json").unlink()
    (command,) = _commands(_failed("x"))
    assert command.startswith("::error file=models/specs/regression_tests/toy/abs.json,title=")


def test_as_many_as_github_shows(workspace: Path) -> None:
    assert len(_commands(_failed("x", count=14))) == 10
    assert {command.split()[0] for command in _commands(_failed("x", verdict="inconclusive"))} == {"::warning"}


def test_nothing_elsewhere_and_nothing_of_what_is_as_expected(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = [command.partition("title=")[2].partition("::")[0] for command in _commands(make_every_verdict())]
    assert "ocr/detector@cpu threshold failed" in bad
    assert not [title for title in bad if title.endswith((" passed", " xfailed", " skipped"))]
    monkeypatch.delenv("GITHUB_ACTIONS")
    assert _commands(make_every_verdict()) == ()
