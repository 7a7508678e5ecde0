"""`explain --slower`: a dispatch that was made slower in synthetic times and profiles is found and bundled.

`test_explain_slower_measured.py` has a dispatch that is really slower.
"""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from iree_gauntlet.experiments.explain_slower import find_suspects
from iree_gauntlet.records.compare_record import DispatchComparison, DispatchDifference, OtherDispatches
from iree_gauntlet.results import DispatchChange
from tests.support.faulty_iree import SyntheticBuild, fill_module_cache

if TYPE_CHECKING:
    from tests.support.toy_project import Project

pytestmark = pytest.mark.iree

MATMUL, SUMS = "sums_dispatch_0_matmul_8x16x16_f32", "sums_dispatch_1_reduction_8x16_f32"
PROGRAM = """\
func.func @sums(%a: tensor<8x16xf32>, %b: tensor<16x16xf32>) -> tensor<8xf32> {
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<8x16xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<8x16xf32>) -> tensor<8x16xf32>
  %0 = linalg.matmul ins(%a, %b : tensor<8x16xf32>, tensor<16x16xf32>)
    outs(%f : tensor<8x16xf32>) -> tensor<8x16xf32>
  %s = tensor.empty() : tensor<8xf32>
  %g = linalg.fill ins(%z : f32) outs(%s : tensor<8xf32>) -> tensor<8xf32>
  %r = linalg.reduce ins(%0 : tensor<8x16xf32>) outs(%g : tensor<8xf32>) dimensions = [1]
    (%x: f32, %y: f32) { %q = arith.addf %x, %y : f32 linalg.yield %q : f32 }
  return %r : tensor<8xf32>
}
"""
# What iree-profile prints: of 700 invocations, which is what made-up benchmarks of 10 ms say that they did.
PROFILE = """#!/bin/sh
exec awk 'BEGIN {{
  row = "{{\\"type\\":\\"host_dispatch_event\\",\\"key\\":\\"%s\\",\\"valid\\":true,\\"duration_ns\\":%d}}\\n"
  for (i = 0; i < 700; i++) {{ printf row, "{0}", {1}; printf row, "{2}", {3} }}
  print "{{\\"type\\":\\"dispatch_summary\\",\\"matched_host_dispatches\\":1400}}"
}}'
"""


def model(project: Project) -> None:
    """Adds `toy/sums`, with a benchmark on inputs that are all the same."""
    (project.benchmarks / "abs_cpu.json").unlink()
    (project.regressions / "sums.mlir").write_text(PROGRAM)
    inputs = [{"source": "random://normal/8x16xf32?seed=1"}, {"source": "random://normal/16x16xf32?seed=2"}]
    project.regression("sums", inputs=inputs, outputs=[])
    project.benchmark("sums", inputs=["8x16xf32=2.0", "16x16xf32=3.0"])


def made_up(root: Path, factor: float = 1.0, *, matmul_ms: int = 6, sums_ms: int = 3) -> SyntheticBuild:
    """An IREE with made-up times of benchmarks and of dispatches, and the installed Python bindings."""
    times = SyntheticBuild(root, factor)
    tool = root / "tools" / "iree-profile"
    tool.write_text(PROFILE.format(MATMUL, matmul_ms * 1_000_000, SUMS, sums_ms * 1_000_000))
    tool.chmod(0o755)
    bindings = root / "compiler" / "bindings"
    bindings.mkdir(parents=True)
    (bindings / "python").symlink_to(sysconfig.get_path("platlib"))
    return times


def compared(project: Project, a: SyntheticBuild, b: SyntheticBuild, submodel: str = "sums") -> None:
    names = ("--model", "toy", "--submodel", submodel, "--run-dir", "runs/cmp")
    options = (*names, "--disturbed", "count", "--no-work")
    done = project.gauntlet("compare", a.iree, b.iree, *options, "--repetitions", "2", "--cpus", "all")
    assert done.code in (0, 1), done.text


def explained(project: Project) -> dict[str, Any]:
    (case,) = json.loads((project.folder / "runs" / "cmp" / "explain" / "explain.json").read_text())["cases"]
    found: dict[str, Any] = case
    return found


@pytest.mark.stress
def test_the_dispatch_with_the_greatest_loss_is_bundled(project: Project, tmp_path: Path) -> None:
    model(project)
    usual, slow = made_up(tmp_path / "usual"), made_up(tmp_path / "slow", 1.5, matmul_ms=11)
    compared(project, usual, slow)
    done = project.gauntlet("explain", "--slower")
    assert done.code == 0, done.text
    case = explained(project)
    assert (case["kind"], case["bundled"]) == ("slower", True)
    found = case["found"]["slower"]
    assert (found["name"], found["inputs"]) == (MATMUL, ["8x16xf32", "16x16xf32"])
    assert found["share"] == pytest.approx(1.0, rel=0.01)
    assert found["times"]["ratio"] == pytest.approx(1.5, rel=0.02)
    assert f"slower dispatch: {MATMUL}, 6.00 ms → 11.00 ms in a profile, 100 % of the loss" in done.out
    # What is done is not done again.
    again = project.gauntlet("explain", "--slower", "latest", "toy/*")
    assert (again.code, "measuring" in again.out) == (0, False), again.text

    bundle = project.folder / "runs" / "cmp" / "explain" / "toy" / "sums.cpu" / "bundle"
    assert bundle.with_name("bundle.tar.gz").stat().st_size < 100_000
    # The inputs are what the dispatch had in the benchmark, not in the check of its numbers.
    assert set((bundle / "input_0.bin").read_bytes()) == {0, 0x40}
    readme = (bundle / "README.md").read_text()
    assert "+50." in readme
    assert "toy/sums@cpu got slower" in readme
    assert repro(bundle, usual, slow) == 1
    assert repro(bundle, usual, usual) == 0
    assert repro(bundle, usual, "") == 125


def repro(bundle: Path, base: SyntheticBuild, new: SyntheticBuild | str) -> int:
    """What `repro.sh` ends with."""
    tools: dict[str, str] = {}
    for prefix, side in (("BASE_", base), ("", new)):
        folder = Path(side.iree.removeprefix("build:")) / "tools" if isinstance(side, SyntheticBuild) else Path("/none")
        tools |= {f"{prefix}IREE_COMPILE": str(folder / "iree-compile")}
        tools |= {f"{prefix}IREE_BENCHMARK_MODULE": str(folder / "iree-benchmark-module")}
    return subprocess.run(["sh", str(bundle / "repro.sh")], env={**os.environ, **tools}, check=False).returncode


@pytest.mark.stress
def test_a_loss_that_no_dispatch_has_by_itself_is_spread(project: Project, tmp_path: Path) -> None:
    model(project)
    # Cut out, they take what they took.
    slow = made_up(tmp_path / "slow", 1.5, matmul_ms=9, sums_ms=5).set_times_for("cut_", 1.0)
    compared(project, made_up(tmp_path / "usual"), slow)
    done = project.gauntlet("explain", "--slower", "cmp")
    assert done.code == 4, done.text
    found = explained(project)["found"]["slower"]
    assert found["why"] == f"the loss is spread over {MATMUL}, {SUMS}; none of them alone is slower"
    assert [(item["name"], "by itself same" in item["said"]) for item in found["tried"]] == [
        (MATMUL, True),
        (SUMS, True),
    ]
    assert found["why"] in done.out


def test_without_a_profile_it_says_why(project: Project, tmp_path: Path) -> None:
    fill_module_cache(project)
    slow = made_up(tmp_path / "slow", 1.5)
    (tmp_path / "slow" / "tools" / "iree-profile").unlink()
    compared(project, made_up(tmp_path / "usual"), slow, "abs")
    done = project.gauntlet("explain", "--slower")
    assert (done.code, "no profile shows where: B:" in done.out) == (4, True), done.text


def test_what_cannot_be_explained_is_a_clear_word(project: Project, tmp_path: Path) -> None:
    none = project.gauntlet("explain", "--slower")
    assert (none.code, "no earlier `compare`" in none.err) == (2, True), none.text
    unknown = project.gauntlet("explain", "--slower", "nope")
    assert (unknown.code, "no such comparison" in unknown.err) == (2, True), unknown.text
    fill_module_cache(project)
    compared(project, made_up(tmp_path / "usual"), made_up(tmp_path / "other"), "abs")
    same = project.gauntlet("explain", "--slower")
    assert (same.code, "nothing is slower in" in same.err) == (5, True), same.text


ROW = DispatchChange(name="", kind="", match="name", a_ns=100, b_ns=150, a_count=1, b_count=1, b_names=("one",))


def suspects(*rows: DispatchChange) -> list[tuple[str, float]]:
    others = OtherDispatches(a_ns=0, b_ns=0, a_count=0, b_count=0, outside=False)
    found = DispatchDifference(a_ns=1000, b_ns=1100, rows=rows, others=others, notes=())
    return [(item.name, item.share) for item in find_suspects(DispatchComparison(difference=found))]


def test_suspects_are_those_that_explain_the_loss() -> None:
    assert suspects(ROW) == [("one", 0.5)]
    greater = replace(ROW, b_ns=190, b_names=("two",))
    assert suspects(ROW, greater) == [("two", 0.9), ("one", 0.5)]
    several = replace(ROW, match="kind", b_names=("two", "three", "four", "five"))
    assert suspects(several) == [("two", 0.5), ("three", 0.5), ("four", 0.5)]
    assert suspects(replace(ROW, match="outside")) == []
    assert suspects(replace(ROW, b_ns=105)) == []
    assert suspects(replace(ROW, match="gone", b_ns=0, b_names=())) == []
    assert find_suspects(DispatchComparison(reason="no profile")) == []
