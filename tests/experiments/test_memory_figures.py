"""The memory that the compiler plans for a module, and the counts of its schedule, as figures with goldens."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from iree_gauntlet.engine.modules.modules import list_statistics, read_compiler_figures
from iree_gauntlet.figures import Figure
from tests.support.toy_project import Project

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_MATMULS = """
!t = tensor<96x96xf32>
func.func @matmuls(%a: !t, %b: !t) -> !t {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : !t
  %fill = linalg.fill ins(%zero : f32) outs(%empty : !t) -> !t
  %c = linalg.matmul ins(%a, %b : !t, !t) outs(%fill : !t) -> !t
  %d = linalg.matmul ins(%c, %b : !t, !t) outs(%fill : !t) -> !t
  return %d : !t
}
"""
_TILING = "tiled=--iree-opt-data-tiling=true"
_COMPILER_FIGURES = tuple(figure for figure in Figure if figure.row.compiler_path)


def test_statistics_are_read_by_their_paths(tmp_path: Path) -> None:
    path = tmp_path / "statistics.json"
    path.write_text(
        '{"stream-aggregate": {"execution": {"transient-memory-size": 131072, "dispatch-count": 2, "new": true},'
        ' "executable": {"executable-count": 2}}, "other": {"x": 1}}'
    )
    figures = read_compiler_figures(path)
    assert figures == {figure.row.statistic: None for figure in _COMPILER_FIGURES} | {
        "transient_bytes": 131072,
        "dispatch_count": 2,
        "executable_count": 2,
    }
    assert list_statistics(json.loads(path.read_text())) == {
        "execution/transient-memory-size": 131072,
        "execution/dispatch-count": 2,
        "executable/executable-count": 2,
        "other/x": 1,
    }


def test_no_figure_of_the_compiler_is_measured_in_rounds() -> None:
    assert [figure for figure in _COMPILER_FIGURES if figure.is_compared_in_rounds or not figure.is_exact] == []


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    # Each test compiles in its own folder, because a module's bytes depend on the path of its program.
    project = Project(tmp_path, cache="flags")
    (project.regressions / "matmuls.mlir").write_text(_MATMULS)
    project.regression("matmuls", inputs=[{"value": "96x96xf32"}] * 2, outputs=[])
    project.benchmark("matmuls", inputs=["96x96xf32", "96x96xf32"])
    yield project
    project.close()


def _run(project: Project, *words: str, folder: str = "r", code: int = 0) -> tuple[Any, str]:
    """Run the compiles and their checks; return the chain in `summary.json`, and the output."""
    done = project.gauntlet("run", "--submodel", "matmuls", "--stages", "compstat", "--run-dir", folder, *words)
    assert done.code == code, done.text
    (chain,) = json.loads((project.folder / folder / "summary.json").read_text())["chains"]
    return chain, done.out


@pytest.mark.iree
def test_the_figures_are_those_of_the_compiler(project: Project) -> None:
    for folder in ("made", "cached"):
        chain, _ = _run(project, folder=folder)
        (file,) = (project.folder / folder).rglob("statistics.json")
        values = list_statistics(json.loads(file.read_text()))
        measured = {figure: chain[figure.row.key_in_summary]["measured"] for figure in _COMPILER_FIGURES}
        assert measured == {figure: values[figure.row.compiler_path] for figure in _COMPILER_FIGURES}
    # The product in between.
    assert measured[Figure.TRANSIENT_MEMORY] >= 96 * 96 * 4


@pytest.mark.iree
def test_a_golden_of_memory_is_broken_by_a_larger_buffer_and_updated(project: Project) -> None:
    measured = _run(project)[0]["transient_bytes"]["measured"]
    project.benchmark("matmuls", inputs=["96x96xf32", "96x96xf32"], golden_transient_memory={"cpu": measured})
    chain, out = _run(project, folder="kept")
    assert chain["transient_bytes"] == {"measured": measured, "golden": measured, "limit": measured, "passed": True}
    assert "transient memory 1" in out
    project.benchmark("matmuls", inputs=["96x96xf32", "96x96xf32"], golden_transient_memory={"cpu": measured - 1})
    _, out = _run(project, folder="broken", code=1)
    assert f"transient memory {measured:,} bytes" in out
    done = project.gauntlet("golden.update", "--run", "broken", "--write")
    assert done.code == 0, done.text
    spec = json.loads((project.benchmarks / "matmuls_cpu.json").read_text())
    assert spec["golden_transient_memory"] == {"cpu": measured}
    # A baseline is a golden too.
    _run(project, "--baseline", "kept", "--variant", _TILING, folder="larger", code=1)


@pytest.mark.stress
@pytest.mark.iree
def test_memory_is_a_metric_of_bisect_and_a_change_of_a_matrix(project: Project) -> None:
    words = ("--submodel", "matmuls", "--run-dir")
    done = project.gauntlet("bisect", "--flags", f"{_TILING} --iree-opt-strip-assertions=true", "--metric",
                            "transient-memory", *words, "b")  # fmt: skip
    assert done.code == 0, done.text
    assert "--iree-opt-data-tiling=true alone makes the difference" in done.out
    counted = project.gauntlet("bisect", "--flags", f"{_TILING} --iree-opt-strip-assertions=true", "--metric",
                               "executables", *words, "e")  # fmt: skip
    assert counted.code == 0, counted.text
    assert "--iree-opt-data-tiling=true alone makes the difference · exact" in counted.out
    matrix = project.gauntlet("matrix", "--variant", _TILING, "--stages", "compstat", *words, "m")
    assert matrix.code == 0, matrix.text
    assert "Transient memory, bytes" in matrix.out
    (chain,) = json.loads((project.folder / "m" / "matrix.json").read_text())["chains"]
    plain, tiled = (chain["irees"][label]["transient_bytes"] for label in ("installed", "installed+tiled"))
    assert plain < tiled
