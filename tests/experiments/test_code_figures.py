"""Spills, registers and code of a GPU that this machine need not have, as figures with goldens."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

from iree_gauntlet.measuring.code import module_code
from tests.support.spilling_product import SPILLING_PRODUCT
from tests.support.toy_project import Project

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.iree

_TOTALS = ("register_count", "spill_count", "shared_bytes")
_INPUTS = ["256x1024xf16", "1024x512xf16"]


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    project = Project(tmp_path, cache="flags")
    (project.regressions / "product.mlir").write_text(SPILLING_PRODUCT)
    flags = {"compiler_flags": [], "targets": {"rocm": {}}, "outputs": []}
    project.regression("product", inputs=[{"value": value} for value in _INPUTS], **flags)
    project.benchmark("product", inputs=_INPUTS)
    for chip in ("gfx1100", "gfx942"):
        text = f'name = "{chip}"\ntarget = "{chip}"\nspec_dirs = ["../specs"]\ndevice_optional = true\n'
        (project.folder / "suites" / f"{chip}.toml").write_text(text)
    yield project
    project.close()


def _run(project: Project, *words: str, code: int = 0, chip: str = "gfx1100") -> tuple[dict[str, Any], str]:
    """Run the compile and its check; return the chain in `summary.json`, and the output."""
    words = ("run", "--suite", f"suites/{chip}.toml", "--submodel", "product", "--stages", "compstat", *words)
    done = project.gauntlet(*words)
    assert done.code == code, done.text
    (chain,) = json.loads((project.newest / "summary.json").read_text())["chains"]
    return chain, done.out


def test_spills_are_figures_with_goldens_by_chip(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    made, out = _run(project)
    assert made["spill_count"]["measured"] > 0
    assert made["register_count"]["measured"] == 256
    assert made["shared_bytes"]["measured"] > 0
    assert "spill" in out
    # A run that only compiles has no other figures of the code.
    totals = out[out.index("Code of modules") :].splitlines()[1:3]
    assert totals[0].split() == ["model", "code", "size", "registers", "spills", "shared", "memory"]
    assert totals[1].split()[1:] == [f"{made[name]['measured']:,.0f}" for name in ("code_bytes", *_TOTALS)]
    (code,) = next(step for step in made["steps"] if step["stage"] == "compile")["statistics"]["code"]
    assert code["target"] == "gfx1100"
    assert code["figures"]["vgpr_spills"] == made["spill_count"]["measured"]
    # A module out of the cache is not read again.
    monkeypatch.setattr(module_code, "read_module_code", lambda _: pytest.fail("it was read again"))
    cached, _ = _run(project)
    names = ("spill_count", "register_count", "shared_bytes", "code_bytes")
    assert [cached[name] for name in names] == [made[name] for name in names]
    monkeypatch.undo()
    # The chip's golden precedes that of all chips.
    golden = made["spill_count"]["measured"] - 1
    project.benchmark("product", inputs=_INPUTS, golden_spills={"rocm": 0, "gfx1100": golden})
    _, out = _run(project, code=1)
    assert f"spills {golden + 1} exceeds the limit {golden} by 1" in out
    _run(project, chip="gfx942")
    assert "neither a target" not in project.gauntlet("lint", "--suite", "suites/gfx942.toml").text
    # Other names of a target are not looked up.
    project.benchmark("product", inputs=_INPUTS, golden_spills={"hip": 0, "rocm-gfx942": 0, "sm_89": 0, "gfx1201": 0})
    lines = project.gauntlet("lint", "--suite", "suites/gfx942.toml").text.splitlines()
    unused = [line.partition("golden_spills.")[2].partition(":")[0] for line in lines if "neither a target" in line]
    assert unused == ["hip", "rocm-gfx942", "sm_89"]
    done = project.gauntlet("golden.update", "--write")
    assert done.code == 0, done.text
    # First goldens have the chip as key.
    project.benchmark("product", inputs=_INPUTS)
    _run(project)
    done = project.gauntlet("golden.set", "--write")
    assert done.code == 0, done.text
    spec = json.loads((project.benchmarks / "product_cpu.json").read_text())
    assert (spec["golden_spills"], spec["golden_registers"]) == ({"gfx1100": golden + 1}, {"gfx1100": 256})


def test_without_the_packages_a_golden_of_code_is_not_applied(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "capstone", None)
    project.benchmark("product", inputs=_INPUTS, golden_spills={"gfx1100": 1000})
    chain, out = _run(project, "--unapplied-goldens", "fail", code=4)
    assert "spill_count" not in chain
    assert "the module's code reports no spills (its target has none" in out
    assert "--to-release" not in out
    done = project.gauntlet("doctor")
    assert "capstone not installed" in done.text
    assert "iree-gauntlet[code]" in done.text


@pytest.mark.stress
def test_a_comparison_lists_dispatches_whose_code_changed(project: Project) -> None:
    project.regression("product", inputs=[{"value": value} for value in _INPUTS], outputs=[])
    text = '[variants.tiled]\ncompiler_flags = ["--iree-opt-data-tiling=true"]\n'
    (project.folder / "gauntlet.toml").write_text(text)
    words = ("--submodel", "product", "--metric", "compile-time", "--disturbed", "count", "--budget", "0.01")
    done = project.gauntlet("compare", "+tiled", "--run-dir", "c", *words)
    assert "Code of dispatches" in done.out, done.text
    comparison = json.loads((project.folder / "c" / "comparison.json").read_text())
    (changes,) = comparison["code"].values()
    # The product is compiled otherwise, and new dispatches lay out its operands.
    (product,) = (change for change in changes if change["a"])
    assert "matmul" in product["a"]["name"]
    assert [change["b"]["target"] for change in changes] == ["x86_64"] * 3
    a, b = (product[side]["figures"]["code_bytes"] for side in "ab")
    assert f"code bytes {a:,} → {b:,}" in done.out
    # The module's figures are among those that changed.
    assert {"code size", "transient memory"} <= {change["figure"] for change in comparison["changes"]}
