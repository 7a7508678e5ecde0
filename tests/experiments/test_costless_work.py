"""Modules whose differences cost nothing do the same work; a dispatch with a little more work is still found."""

from __future__ import annotations

import json
import platform
import shlex
import shutil
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from iree_gauntlet.toolchains.installed import find_installed
from tests.support.faulty_iree import write_build_tree
from tests.support.toy_project import Project

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.iree,
    pytest.mark.skipif(shutil.which("valgrind") is None, reason="needs valgrind: apt install valgrind"),
    pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="needs x86-64"),
]

# A product of matrices, and a dispatch that takes four instructions a round.
_ROUNDS = 20_000
_PROGRAM = """// more: MORE
func.func @small(%a: tensor<32x32xf32>, %b: tensor<32x32xf32>) -> (tensor<32x32xf32>, tensor<1xf32>) {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<32x32xf32>
  %filled = linalg.fill ins(%zero : f32) outs(%empty : tensor<32x32xf32>) -> tensor<32x32xf32>
  %0 = linalg.matmul ins(%a, %b : tensor<32x32xf32>, tensor<32x32xf32>)
    outs(%filled : tensor<32x32xf32>) -> tensor<32x32xf32>
  %row = tensor.extract_slice %a[0, 0] [1, 1] [1, 1] : tensor<32x32xf32> to tensor<1xf32>
  %out = tensor.empty() : tensor<1xf32>
  %1 = linalg.generic {
      indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>], iterator_types = ["parallel"]}
    ins(%row : tensor<1xf32>) outs(%out : tensor<1xf32>) {
  ^bb0(%in: f32, %o: f32):
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %n = arith.constant ROUNDS : index
    %half = arith.constant 0.5 : f32
    %sum = scf.for %i = %c0 to %n step %c1 iter_args(%x = %in) -> (f32) {
      %y = arith.mulf %x, %half : f32
      %z = arith.addf %y, %in : f32
      scf.yield %z : f32
    }
    linalg.yield %sum : f32
  } -> tensor<1xf32>
  return %0, %1 : tensor<32x32xf32>, tensor<1xf32>
}
"""
# Rounds more, by submodel: none, and from 0.005 % to 1 % of them.
_MORE = {f"p{place}": more for place, more in enumerate((0, 1, 2, 4, 6, 10, 20, 40, 80, 140, 200))}
_UNUSED = """func.func @{name}(%a: tensor<{size}xf32>) -> tensor<{size}xf32> {{
  %0 = math.absf %a : tensor<{size}xf32>
  return %0 : tensor<{size}xf32>
}}
"""
# In the folder of the compile: the program with as many rounds more as its first line says, and what costs nothing.
_EDIT = """import pathlib, sys
text = pathlib.Path(sys.argv[1]).read_text()
more = int(text.splitlines()[0].removeprefix("// more: "))
text = text.replace("constant {rounds} ", f"constant {{{rounds} + more}} ")
pathlib.Path({name!r}).write_text({before!r} + text + {after!r})
"""


def _unused(*names: str) -> str:
    return "".join(_UNUSED.format(name=name, size=7 + len(name) % 9) for name in names)


# What stands before and behind the program, the name of its file, flags.
_NAMED = {f"module{size}": (f"module @{'n' * size} {{\n", "}\n", "m.mlir", "") for size in (1, 20, 120)}
_PATHS = {f"path{size}": ("", "", "p" * size, "") for size in (5, 20, 50, 100, 200)}
_COSTLESS: dict[str, tuple[str, str, str, str]] = {
    "unused": ("", _unused("never_called"), "m.mlir", ""),
    "unused with a long name": ("", _unused("n" * 40), "m.mlir", ""),
    "many unused": ("", _unused(*(f"never_called_{number}" for number in range(9))), "m.mlir", ""),
    "more unused": ("", _unused("one", "another_one"), "m.mlir", ""),
    "order": (_unused("never_called"), "", "m.mlir", ""),
    "another order": (_unused("another_one"), _unused("one"), "m.mlir", ""),
    "the other order": (_unused("one"), _unused("another_one"), "m.mlir", ""),
    **_NAMED,
    **_PATHS,
    "unused at a long path": ("", _unused("never_called"), "p" * 200, ""),
    "comment": (f"// {'c' * 77}\n", "", "m.mlir", ""),
    "no debug symbols": ("", "", "m.mlir", "--iree-llvmcpu-debug-symbols=false"),
    "no source map": ("", "", "m.mlir", "--iree-vm-bytecode-module-strip-source-map=true"),
    "no archive": ("", "", "m.mlir", "--iree-vm-emit-polyglot-zip=false"),
    "no debug operations": ("", "", "m.mlir", "--iree-vm-bytecode-module-strip-debug-ops=true"),
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """The program eleven times; what the plain compiler makes of it is counted once."""
    project = Project(tmp_path_factory.mktemp("costless") / "project", cache="flags")
    for name, more in _MORE.items():
        program = _PROGRAM.replace("ROUNDS", str(_ROUNDS)).replace("MORE", f"{more:03}")
        (project.regressions / f"{name}.mlir").write_text(program)
        np.save(project.regressions / f"{name}.npy", np.zeros((32, 32), np.float32))
        inputs = ["32x32xf32", "32x32xf32"]
        project.regression(name, inputs=[{"value": text} for text in inputs], run_function="small")
        project.benchmark(name, inputs=inputs, function_run="small")
    _build(project.folder / "plain", "")
    yield project
    project.close()


def _build(root: Path, script: str) -> str:
    """A build whose compiler runs a script first; its runtime is the real one."""
    iree = write_build_tree(root, iree_compile=script)
    tool = root / "tools" / "iree-benchmark-module"
    tool.unlink()
    tool.symlink_to(find_installed().runtime.benchmark_module)
    return iree


def _compare(project: Project, costless: str, submodels: str) -> tuple[dict[str, Any], str]:
    """The comparison of the plain compiler with one that changes what costs nothing, and what it said."""
    place = list(_COSTLESS).index(costless)
    before, after, name, flags = _COSTLESS[costless]
    edit = project.folder / f"edit{place}.py"
    edit.write_text(_EDIT.format(rounds=_ROUNDS, before=before, after=after, name=name))
    script = f'{shlex.quote(sys.executable)} {shlex.quote(str(edit))} "$1"; shift; set -- {name} "$@" {flags}'
    changed = _build(project.folder / f"changed{place}", script)
    run = f"compared{place}"
    done = project.gauntlet(
        *("compare", f"build:{project.folder / 'plain'}", changed, "--metric", "instructions"),
        *("--model", "toy", "--submodel", submodels, "--count-cpu", "x86-64-v3,-fma", "--run-dir", run),
    )
    assert done.code == 1, done.text
    document: dict[str, Any] = json.loads((project.folder / run / "comparison.json").read_text())
    return document, done.out


def _check(document: dict[str, Any], said: str, submodels: list[str]) -> None:
    """The one without more rounds is the same; the loop of each other one is found and named, to the instruction."""
    assert sorted(document["models"]) == sorted(f"toy/{name}@cpu" for name in submodels)
    for name in submodels:
        chain = f"toy/{name}@cpu"
        model, more = document["models"][chain], 4 * _MORE[name]
        parts = {part["part"]: part for part in model["parts"]}
        assert parts["dispatches"]["b"] - parts["dispatches"]["a"] == more
        assert parts["own code"]["a"] == parts["own code"]["b"] > 0
        assert parts["outside"]["verdict"] == "same work"
        if not more:
            assert model["verdict"] == "same work"
            continue
        assert model["verdict"] == "more work"
        (loop,) = parts["dispatches"]["more"]
        assert "elementwise" in loop
        row = next(row for row in document["where"][chain]["dispatches"]["rows"] if row["name"] == loop)
        assert row["b_ns"] - row["a_ns"] == more
        assert f"more in {loop}" in said


@pytest.mark.stress
def test_what_costs_nothing_is_the_same_work_and_hides_nothing(project: Project) -> None:
    """With the smallest of all losses beside it: all else of the module, counted apart, does not change."""
    document, said = _compare(project, "unused at a long path", "p1")
    _check(document, said, ["p1"])


@pytest.mark.stress
@pytest.mark.parametrize("costless", _COSTLESS)
def test_every_loss_is_found_beside_all_that_costs_nothing(project: Project, costless: str) -> None:
    document, said = _compare(project, costless, "p*")
    _check(document, said, [*_MORE])
