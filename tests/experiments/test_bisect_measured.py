"""`bisect` by real times with a planted slowdown, on a machine without other work."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.support.faulty_iree import write_build_tree, write_slow_benchmark

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.toy_project import Project

pytestmark = pytest.mark.measure


@pytest.mark.iree
def test_a_planted_slowdown_is_found_by_rounds(project: Project, tmp_path: Path) -> None:
    def build(name: str, factor: float) -> str:
        script = write_slow_benchmark(tmp_path / f"{name}-scripts", factor)
        return write_build_tree(tmp_path / name, iree_benchmark_module=f'exec "{script}" "$@"')

    row = [build(f"b{index}", 10.0 if index >= 2 else 1.0) for index in range(4)]
    quick = ("--repetitions", "2", "--min-time", "0.002", "--disturbed", "count")
    among = ("--among", row[1], "--among", row[2])
    model = ("--model", "toy", "--submodel", "abs")
    done = project.gauntlet("bisect", "--good", row[0], "--bad", row[3], *among, *model, "--metric", "time", *quick)
    assert done.code == 0, done.text
    assert "first bad: b2; last good: b1 · 99 % confidence · 4 of 4 tried" in done.out
    (report,) = (project.folder / "runs").glob("*/bisect.json")
    found = json.loads(report.read_text())
    values = {item["label"]: item for item in found["candidates"] if item["tried"]}
    assert 1 < values["b3"]["low"] < values["b3"]["value"] < values["b3"]["high"]
    assert values["b3"]["value"] > 3
    assert values["b1"]["high"] < 4
    assert found["confidence"] == 0.99
    assert (values["b1"]["bad"], values["b2"]["bad"]) == (False, True)
    # Again: nothing is measured twice.
    again = project.gauntlet("bisect", "--resume")
    assert (again.code, "bisecting" in again.out) == (0, False), again.text
