"""A model's instructions, counted by valgrind with the real compiler and runtime."""

from __future__ import annotations

import json
import os
import platform
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from iree_gauntlet.experiments.explain_slower import find_suspects
from iree_gauntlet.formatting import format_dispatch_change
from iree_gauntlet.records.compare_record import read_comparison
from iree_gauntlet.toolchains.installed import find_installed
from tests.support.faulty_iree import write_build_tree
from tests.support.hanging import HANG
from tests.support.processes import list_started_steps, wait_until
from tests.support.session_folder import make_once
from tests.support.toy_project import Project

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.iree,
    pytest.mark.skipif(shutil.which("valgrind") is None, reason="needs valgrind: apt install valgrind"),
    # What is expected of counts is that of its vectors.
    pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="needs x86-64"),
]

_PRODUCT = """func.func @product(%a: tensor<32x32xf32>, %b: tensor<32x32xf32>) -> tensor<32x32xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<32x32xf32>
  %filled = linalg.fill ins(%zero : f32) outs(%empty : tensor<32x32xf32>) -> tensor<32x32xf32>
  %0 = linalg.matmul ins(%a, %b : tensor<32x32xf32>, tensor<32x32xf32>)
    outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  return %0 : tensor<32x32xf32>
}
"""


_SELECTED = ("--model", "toy", "--submodel", "product")
# Without threads a count takes three quarters of the time; those of test_costless_work.py have them.
_BENCHMARK: dict[str, Any] = {"inputs": ["32x32xf32", "32x32xf32"], "device": "local-sync"}
# Packed into tiles, which costs more than it saves of matrices as small as these.
_TILED = "--iree-opt-data-tiling=true"


def _add_product(folder: Path) -> Project:
    """A project with one benchmark: a product of two matrices."""
    project = Project(folder, cache="flags")
    (project.regressions / "product.mlir").write_text(_PRODUCT)
    np.save(project.regressions / "product.npy", np.zeros((32, 32), np.float32))
    inputs = [{"value": text} for text in _BENCHMARK["inputs"]]
    project.regression("product", inputs=inputs, device=_BENCHMARK["device"])
    project.benchmark("product", **_BENCHMARK)
    return project


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    project = _add_product(tmp_path / "project")
    yield project
    project.close()


def _builds() -> tuple[str, str]:
    """A build, and one that packs into tiles: the same ones for all, as where the linker lies is part of flags."""
    folder = make_once("counted-builds", _make_builds)
    return f"build:{folder / 'plain'}", f"build:{folder / 'tiled'}"


def _make_builds(folder: Path) -> None:
    _changed(folder / "plain")
    _changed(folder / "tiled", _TILED)


@pytest.fixture
def compared() -> Path:
    """Where the two were compared; it is only read."""
    return make_once("counted-products", _compare)


def _compare(folder: Path) -> None:
    project, words = _add_product(folder / "project"), ("--metric", "instructions", *_SELECTED)
    done = project.gauntlet("compare", *_builds(), *words, "--run-dir", "more")
    (folder / "done.json").write_text(json.dumps([done.code, done.out]))


@pytest.fixture
def counted(project: Project, compared: Path) -> Project:
    """The project, with what that comparison has compiled and counted in its cache."""
    modules = Path("cache", "modules")
    shutil.copytree(compared / "project" / modules, project.folder / modules, symlinks=True, dirs_exist_ok=True)
    return project


def _changed(root: Path, *flags: str, script: str = "") -> str:
    """A build whose compiler gets more flags than it is given; its runtime is the real one, not a script."""
    iree = write_build_tree(root, iree_compile=script or f'set -- "$@" {" ".join(flags)}')
    tool = root / "tools" / "iree-benchmark-module"
    tool.unlink()
    tool.symlink_to(find_installed().runtime.benchmark_module)
    return iree


def _comparison(folder: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / name / "comparison.json").read_text())
    return found


def test_a_run_counts_checks_and_keeps(project: Project) -> None:
    done = project.gauntlet("run", *_SELECTED, "--instructions", "--stages", "compile")
    assert done.code == 0, done.text
    counted = project.result("toy/product@cpu:count")
    instructions = counted["statistics"]["instructions"]
    # 32³ multiply-adds in vectors of eight, without fused ones, and what calling costs.
    assert 2 * 32**3 / 8 < instructions < 10 * 32**3
    assert counted["statistics"]["counter"].startswith("valgrind ")
    assert counted["statistics"]["cpu"].endswith(",-fma")
    assert counted["cache"]["hit"] is False
    summary = json.loads((project.newest / "summary.json").read_text())
    chain = next(item for item in summary["chains"] if item["id"] == "toy/product@cpu")
    assert chain["instructions"]["measured"] == instructions
    # Compiled for the counter is another module than the one that is run.
    assert chain["compile"]["cached"] is False
    assert f"{instructions:,}" in done.out

    # A golden is held against those in dispatches, with a margin of 0.1 %; a batch is counted as the call that it is.
    outside = counted["statistics"]["instructions_outside"]
    assert (chain["instructions_outside"]["measured"], chain["instructions"]["limit"]) == (outside, None)
    work = instructions - outside
    assert chain["instructions_in_dispatches"]["measured"] == work
    proposed = project.gauntlet("golden.set", *_SELECTED)
    assert f'"golden_instructions": {{"cpu": {work}}}' in proposed.out
    assert f'"golden_instructions_outside": {{"cpu": {outside}}}' in proposed.out
    flags = ["--benchmark_repetitions=2", "--batch_size=4"]
    _golden(project, golden_instructions={"cpu": work}, benchmark_flags=flags)
    done = project.gauntlet("run", *_SELECTED, "--instructions", "--stages", "compile")
    assert done.code == 0, done.text
    again = project.result("toy/product@cpu:count")
    assert again["cache"] == {**again["cache"], "hit": True, "reason": "in the cache"}
    assert again["checks"][0]["passed"] is True
    assert again["statistics"]["instructions"] == instructions
    # What lies outside of dispatches has a golden of its own, with a margin of 2,000 instructions at least.
    less = int(work / 1.002)
    _golden(project, golden_instructions={"cpu": less}, golden_instructions_outside={"cpu": outside - 2_001})
    done = project.gauntlet("run", *_SELECTED, "--stages", "count")
    assert done.code == 1, done.text
    assert f"instructions {work:,} exceeds the limit" in done.text
    assert f"instructions outside of dispatches {outside:,} exceeds the limit" in done.text
    shown = project.gauntlet("golden.show", *_SELECTED)
    assert "instructions" in shown.out
    assert "broken" in shown.out
    proposed = project.gauntlet("golden.update", *_SELECTED)
    assert f'"cpu": {work}' in proposed.out
    assert f'"cpu": {outside}' in proposed.out
    _golden(project, golden_instructions={"cpu": work}, golden_instructions_outside={"cpu": outside - 1_999})
    done = project.gauntlet("run", *_SELECTED, "--stages", "count")
    assert done.code == 0, done.text
    # Of modules for another CPU a golden says nothing, and they nothing of a golden.
    _golden(project, golden_instructions={"cpu": less})
    done = project.gauntlet("run", *_SELECTED, "--stages", "count", "--count-cpu", "x86-64-v2")
    assert done.code == 0, done.text
    assert "counted by valgrind " in done.out
    (check,) = project.result("toy/product@cpu:count")["checks"]
    assert check["passed"] is None
    assert check["note"].endswith("for x86-64-v2: measured only")
    assert "1 golden not applied" in done.out
    shown = project.gauntlet("golden.show", *_SELECTED, "--last", "1")
    assert "not measured" in shown.out
    assert "no golden was measured" in project.gauntlet("golden.update", *_SELECTED).err


def _golden(project: Project, **changes: Any) -> None:
    """Gives the benchmark goldens, and what else it has."""
    project.benchmark("product", **_BENCHMARK, **changes)


def test_more_work_is_told_and_says_where(compared: Path) -> None:
    code, said = json.loads((compared / "done.json").read_text())
    assert code == 1, said
    document = _comparison(compared / "project", "more")
    model = document["models"]["toy/product@cpu"]
    assert model["verdict"] == "more work"
    a, b = (model["instructions"][side] for side in "AB")
    assert f"{b - a:+,} instructions a call" in said
    # Counted again, of modules that have fused multiply-adds.
    assert 0 < model["with_fma"]["A"] < model["with_fma"]["B"]
    where = document["where"]["toy/product@cpu"]["dispatches"]
    assert where["unit"] == "instructions"
    assert (where["a_ns"], where["b_ns"]) == (a, b)
    named = {row["name"]: row for row in where["rows"]}
    product = next(row for name, row in named.items() if "matmul_32x32x32_f32" in name)
    assert product["b_ns"] > 10 * product["a_ns"] > 0
    assert "Where toy/product@cpu does more work" in said
    folder = compared / "project" / "more"
    junit = ET.parse(folder / "junit.xml").getroot()
    (failure,) = junit.iter("failure")
    assert (failure.get("message") or "").startswith("more work: ×")
    assert "**more work**" in (folder / "comparison.md").read_text()


def test_where_there_is_no_profile_counts_name_the_dispatch(compared: Path) -> None:
    record = read_comparison(compared / "project" / "more")
    (suspect, *_) = find_suspects(record.where["toy/product@cpu"].dispatches)
    assert (suspect.name, suspect.unit) == ("product_dispatch_0_matmul_32x32x32_f32", "instructions")
    shown = format_dispatch_change(suspect.a_ns, suspect.b_ns, suspect.unit)
    assert shown == f"{suspect.a_ns:,} → {suspect.b_ns:,} instructions"


def test_less_work(counted: Project) -> None:
    plain, tiled = _builds()
    words = ("--metric", "instructions", *_SELECTED, "--run-dir", "less", "--count-cpu", "x86-64-v3,-fma")
    done = counted.gauntlet("compare", tiled, plain, *words)
    assert done.code == 0, done.text
    model = _comparison(counted.folder, "less")["models"]["toy/product@cpu"]
    assert model["verdict"] == "less work"
    assert "with_fma" not in model, "a CPU that is named is enough"


@pytest.mark.stress
def test_one_per_cent_more_in_one_of_many_dispatches_is_found(project: Project, tmp_path: Path) -> None:
    """Of a product whose inner dimension is 808 in place of 800, among larger ones."""
    lines = ["func.func @product(%a: tensor<64x1024xf32>, %b: tensor<1024x64xf32>) -> tensor<64x64xf32> {"]
    lines += ["  %z = arith.constant 0.0 : f32", "  %e = tensor.empty() : tensor<64x64xf32>"]
    lines += ["  %f = linalg.fill ins(%z : f32) outs(%e : tensor<64x64xf32>) -> tensor<64x64xf32>"]
    for number in range(4):
        inner = 1024 - 32 * number if number else 800
        left, right, whole = f"tensor<64x{inner}xf32>", f"tensor<{inner}x64xf32>", "tensor<64x64xf32>"
        lines += [
            f"  %a{number} = tensor.extract_slice %a[0, 0] [64, {inner}] [1, 1] : tensor<64x1024xf32> to {left}",
            f"  %b{number} = tensor.extract_slice %b[0, 0] [{inner}, 64] [1, 1] : tensor<1024x64xf32> to {right}",
            f"  %p{number} = linalg.matmul ins(%a{number}, %b{number} : {left}, {right})",
            f"    outs({'%f' if not number else f'%p{number - 1}'} : {whole}) -> {whole}",
        ]
    program = "\n".join([*lines, "  return %p3 : tensor<64x64xf32>", "}", ""])
    (project.regressions / "product.mlir").write_text(program)
    project.benchmark("product", **_BENCHMARK | {"inputs": ["64x1024xf32", "1024x64xf32"]})
    edit = 'program=$1; shift; sed s/800/808/g "$program" > edited.mlir; set -- edited.mlir "$@"'
    b = _changed(tmp_path / "b", script=edit)
    words = ("--metric", "instructions", *_SELECTED, "--run-dir", "more", "--count-cpu", "x86-64-v3,-fma")
    done = project.gauntlet("compare", _changed(tmp_path / "a"), b, *words)
    assert done.code == 1, done.text
    (row, *_) = _comparison(project.folder, "more")["where"]["toy/product@cpu"]["dispatches"]["rows"]
    ((before,), (after,)) = row["a_names"], row["b_names"]
    assert before.endswith("_matmul_64x64x800_f32")
    assert after.endswith("_matmul_64x64x808_f32")
    assert row["b_ns"] / row["a_ns"] == pytest.approx(1.01, abs=0.005)
    assert _comparison(project.folder, "more")["models"]["toy/product@cpu"]["ratio"] < 1.005


def test_beside_times_the_work_is_told_and_says_where(counted: Project) -> None:
    plain, tiled = _builds()
    words = (*_SELECTED, "--repetitions", "2", "--min-time", "0.002", "--disturbed", "count", "--cpus", "all")
    # No machine takes the forty rounds of a verdict within a twentieth of a second.
    done = counted.gauntlet("compare", plain, tiled, *words, "--budget", "0.001", "--run-dir", "both")
    assert done.code == 4, done.text
    model = _comparison(counted.folder, "both")["models"]["toy/product@cpu"]
    assert model["work"]["verdict"] == "more work"
    change = f"×{model['work']['ratio']:.3g}"
    assert f"more work ({change}: in dispatches +" in model["reason"]
    table = (counted.folder / "both" / "comparison.md").read_text()
    assert "| work |" in table
    assert f"| {change} |" in table
    done = counted.gauntlet("compare", plain, tiled, *words, "--budget", "0.001", "--run-dir", "times", "--no-work")
    assert "work" not in _comparison(counted.folder, "times")["models"]["toy/product@cpu"]
    assert "| work |" not in (counted.folder / "times" / "comparison.md").read_text()


def test_bisect_and_matrix_by_instructions(counted: Project, tmp_path: Path) -> None:
    plain, tiled = _builds()
    words = ("--good", plain, "--bad", tiled, "--among", _changed(tmp_path / "two", " "))
    done = counted.gauntlet("bisect", *words, "--metric", "instructions", *_SELECTED)
    assert done.code == 0, done.text
    assert "first bad: tiled; last good: two · exact" in done.out, done.text
    done = counted.gauntlet("matrix", "--iree", plain, "--iree", tiled, *_SELECTED, "--stages", "count")
    assert done.code == 0, done.text
    (path,) = (counted.folder / "runs").glob("*-matrix/matrix.json")
    cells = json.loads(path.read_text())["chains"][0]["irees"]
    counts = [cell["instructions"] for cell in cells.values()]
    assert 0 < counts[0] < counts[1]
    assert f"{counts[1]:,.0f} ×" in done.out
    assert "Instructions in dispatches, or of one call where these are not known (0.1 % and more)" in done.out


def test_what_valgrind_does_not_know_is_said(project: Project) -> None:
    done = project.gauntlet("run", *_SELECTED, "--stages", "count", "--count-cpu", "x86-64-v4")
    assert done.code == 3, done.text
    assert "valgrind does not support an instruction of the module" in done.text
    assert "--count-cpu" in done.text
    assert not list((project.newest / "steps").rglob("counts.json"))


def test_without_valgrind(project: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    done = project.gauntlet("run", *_SELECTED, "--instructions")
    assert done.code == 3, done.text
    assert "valgrind is not installed" in done.text
    assert "apt install valgrind" in done.text
    done = project.gauntlet("compare", "installed", "installed", "--metric", "instructions", *_SELECTED)
    assert done.code == 3, done.text
    assert "valgrind is not installed" in done.text
    assert not (project.folder / "runs").exists()


def test_one_that_hangs_is_ended_and_goes_on(project: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real, path = shutil.which("valgrind"), os.environ["PATH"]
    fake = tmp_path / "bin" / "valgrind"
    fake.parent.mkdir()
    fake.write_text(f'#!/bin/sh\n[ "$1" = --version ] && exec "{real}" --version\n{HANG}\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:{path}")
    words = ("run", *_SELECTED, "--stages", "count", "--run-dir", "hangs")
    done = project.gauntlet(*words, "--timeout-count", "0.5")
    assert done.code == 3, done.text
    assert "longer than" in done.text
    process = project.start("run", *_SELECTED, "--stages", "count", "--run-dir", "killed")
    wait_until(lambda: "toy/product@cpu:count" in list_started_steps(project.folder / "killed" / "journal.jsonl"))
    process.kill()
    process.wait()
    assert not list((project.folder / "killed").rglob("counts.json"))
    monkeypatch.setenv("PATH", path)
    done = project.gauntlet("run", "--resume", "--run-dir", "killed")
    assert done.code == 0, done.text
    assert len(list((project.folder / "killed").rglob("counts.json"))) == 1


def test_the_same_work_and_counts_of_two_counters_that_are_not_compared(counted: Project, tmp_path: Path) -> None:
    plain, _ = _builds()
    words = (
        "compare",
        plain,
        _changed(tmp_path / "b", " "),
        "--metric",
        "instructions",
        *_SELECTED,
        "--run-dir",
        "cmp",
    )
    done = counted.gauntlet(*words)
    assert done.code == 0, done.text
    model = _comparison(counted.folder, "cmp")["models"]["toy/product@cpu"]
    assert model["verdict"] == "same work"
    # What lies outside of dispatches also depends on how memory was laid out.
    counts = next((part["a"], part["b"]) for part in model["parts"] if part["part"] == "dispatches")
    assert counts[0] == counts[1] > 0
    assert "1 same work" in done.out
    # As where valgrind was replaced before a comparison was resumed.
    journal = counted.folder / "cmp" / "a" / "journal.jsonl"
    text = journal.read_text()
    assert '"counter":"valgrind ' in text
    journal.write_text(text.replace('"counter":"valgrind ', '"counter":"valgrind 2.'))
    done = counted.gauntlet("compare", "--resume", "--run-dir", "cmp")
    assert done.code == 3, done.text
    assert "its sides were counted by different counters: start a new comparison" in done.text
    assert _comparison(counted.folder, "cmp")["models"] == {}
