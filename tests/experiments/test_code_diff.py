"""`code.diff`: the dispatches whose code differs between two sides, and how."""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING, Any

import pytest

from iree_gauntlet.journal_events import ExperimentKind
from iree_gauntlet.records.run_folder import list_folders
from tests.support.spilling_product import SPILLING_PRODUCT
from tests.support.toy_project import Project

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.iree

_FUSE = "--iree-codegen-llvmgpu-use-tile-and-fuse-matmul=false"
_INPUTS = ["256x1024xf16", "1024x512xf16"]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    project = Project(tmp_path_factory.mktemp("code"), cache="flags")
    (project.regressions / "product.mlir").write_text(SPILLING_PRODUCT)
    flags = {"targets": {"rocm": {}}, "outputs": []}
    project.regression("product", inputs=[{"value": value} for value in _INPUTS], **flags)
    project.benchmark("product", inputs=_INPUTS)
    variants = {"unfused": _FUSE, "bad": "--iree-rocm-target=gfx1"}
    _define_variants(project, **variants)
    yield project
    project.close()


def _define_variants(project: Project, **flags: str) -> None:
    text = "".join(f'[variants.{name}]\ncompiler_flags = ["{flag}"]\n' for name, flag in flags.items())
    (project.folder / "gauntlet.toml").write_text(text)


def _newest(project: Project) -> Path:
    """Return the folder of the newest comparison of code."""
    return next(list_folders(project.folder / "runs", ExperimentKind.CODE_DIFF))


def _diff(project: Project, *words: str, code: int = 0, target: str = "gfx1100") -> tuple[dict[str, Any], str]:
    """Compare the code of the product; return `code.json` without what precedes its modules, and the output."""
    done = project.gauntlet("code.diff", *words, "--submodel", "product", "--target", target)
    assert done.code == code, done.text
    document = json.loads((_newest(project) / "code.json").read_text())
    return document["modules"], done.text


def test_the_assembly_of_a_changed_dispatch_is_shown(project: Project) -> None:
    modules, out = _diff(project, "+unfused")
    (module,) = modules.values()
    (change,) = module["changes"]
    assert module["same_count"] == 0
    a, b = (change[side]["figures"]["vgpr_spills"] for side in "ab")
    assert a > b
    assert f"VGPR spills {a} → {b}" in out
    assert "1 of 1 dispatch in 1 module has other code · shown: asm" in out
    # The rows hold every line that only one side has, and the files the whole text.
    texts = [(_newest(project) / file).read_text().splitlines() for file in change["files"]]
    for side, lines in zip("ab", texts, strict=True):
        shown = [row[side] for row in change["rows"] if side in row]
        assert set(shown) <= set(lines)
        left_out = sum(row.get("left_out", 0) for row in change["rows"])
        assert len(shown) + left_out == len(lines)
        assert any("v_" in line for line in shown)
    assert not any(re.search(r"\.LBB\d+_|\.loc\b|_dispatch_\d", line) for lines in texts for line in lines)
    page = (_newest(project) / "code.html").read_text()
    assert '<table class="difference"' in page
    assert page.count('class="differs"') > 10
    assert "```diff" in (_newest(project) / "code.md").read_text()
    # The report is made from the record, and nothing of the dump is left.
    assert project.gauntlet("report", str(_newest(project))).code == 0
    assert not [path for path in _newest(project).iterdir() if path.name.startswith("dump")]


@pytest.mark.parametrize(
    ("level", "has"),
    [pytest.param("llvm", "define amdgpu_kernel", marks=pytest.mark.stress), ("config", "translation_info")],
)
def test_other_levels(project: Project, level: str, has: str) -> None:
    modules, _ = _diff(project, "installed", "installed+unfused", "--level", level, "--dispatch", "*matmul*")
    ((change,),) = (module["changes"] for module in modules.values())
    assert change["rows"]
    text = (_newest(project) / change["files"][0]).read_text()
    assert has in text
    assert "!dbg" not in text


def test_equal_code_is_said_to_be_equal(project: Project) -> None:
    modules, out = _diff(project, "installed", "installed")
    assert [(module["same_count"], module["changes"]) for module in modules.values()] == [(1, [])]
    assert "the code is the same in 1 module" in out
    assert "All dispatches have the same code: toy/product@rocm-gfx1100." in out
    # On another target the flag of the variant has no effect.
    modules, _ = _diff(project, "+unfused", target="cpu")
    assert [len(module["changes"]) for module in modules.values()] == [0]


def test_a_side_that_does_not_compile_is_an_error(project: Project) -> None:
    modules, out = _diff(project, "+bad", code=3)
    (module,) = modules.values()
    assert "B (installed+bad): " in module["problem"]
    assert module["problem"] in out
    assert "no code could be compared" in out
    assert "b/summary.md has its output" in out


def test_mistakes_are_named(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    done = project.gauntlet("code.diff", "3.12.0")
    assert done.code == 2
    assert "code.diff takes two IREEs, not 1" in done.text
    _, out = _diff(project, "+unfused", "--dispatch", "*conv*", code=5)
    assert "no dispatch matches '*conv*'" in out
    # A dispatch with the same code is one that matches.
    _diff(project, "installed", "installed", "--dispatch", "*matmul*")
    monkeypatch.setitem(sys.modules, "capstone", None)
    done = project.gauntlet("code.diff", "+unfused")
    assert done.code == 2
    assert "code.diff reads code with capstone, which this Python does not have" in done.text


@pytest.mark.stress
def test_a_planted_spill_is_found_and_its_flag_named(project: Project) -> None:
    flags = f"planted=--iree-opt-level=O2 {_FUSE} --iree-llvmgpu-shared-memory-limit=65536"
    words = ("--submodel", "product", "--target", "gfx1100", "--metric", "spills")
    done = project.gauntlet("bisect", "--flags", flags, *words)
    assert done.code == 0, done.text
    assert f"{_FUSE} alone makes" in done.out


@pytest.mark.stress
def test_an_initialiser_with_dispatches_is_found(tmp_path: Path) -> None:
    values = "0000803F" * 2048
    program = (
        """
func.func @main(%x: tensor<64xf32>) -> tensor<64xf32> {
  %c = arith.constant dense_resource<w> : tensor<64x32xf32>
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<64xf32>
  %fill = linalg.fill ins(%zero : f32) outs(%empty : tensor<64xf32>) -> tensor<64xf32>
  %sum = linalg.reduce ins(%c : tensor<64x32xf32>) outs(%fill : tensor<64xf32>) dimensions = [1]
    (%p: f32, %q: f32) { %r = arith.addf %p, %q : f32  linalg.yield %r : f32 }
  %y = arith.addf %x, %sum : tensor<64xf32>
  return %y : tensor<64xf32>
}
"""
        f'{{-# dialect_resources: {{ builtin: {{ w: "0x04000000{values}" }} }} #-}}\n'
    )
    flag = "--iree-opt-const-eval=false"
    project = Project(tmp_path, cache="flags")
    _define_variants(project, eager=flag)
    (project.regressions / "sum.mlir").write_text(program)
    project.regression("sum", inputs=[{"value": "64xf32=1"}], outputs=[])
    goldens = {"golden_dispatch": {"cpu": 1}}
    project.benchmark("sum", inputs=["64xf32=1"], **goldens, variants={"eager": goldens})
    words = ("--submodel", "sum")
    assert project.gauntlet("run", *words, "--stages", "compstat").code == 0
    done = project.gauntlet("run", *words, "--stages", "compstat", "--variant", "eager")
    assert done.code == 1, done.text
    assert "dispatch count 2 exceeds" in done.out
    done = project.gauntlet("code.diff", "+eager", *words)
    assert done.code == 0, done.text
    assert "only in B: " in done.out
    done = project.gauntlet("bisect", "--flags", f"v=--iree-opt-level=O2 {flag}", *words, "--metric", "dispatches")
    assert f"{flag} alone makes" in done.out, done.text
