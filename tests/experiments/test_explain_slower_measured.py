"""`explain --slower` in real rounds, with a compiler that really makes a dispatch slower."""

from __future__ import annotations

import json
import subprocess
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from iree_gauntlet.toolchains.installed import find_installed
from tests.support.faulty_iree import write_build_tree

if TYPE_CHECKING:
    from tests.support.toy_project import Project

pytestmark = [pytest.mark.measure, pytest.mark.iree]

# It knows nothing of this CPU's vectors.
FOR_ANY_CPU = """
for word; do
  shift
  [ "$word" = --iree-llvmcpu-target-cpu=host ] && word=--iree-llvmcpu-target-cpu=generic
  set -- "$@" "$word"
done
"""
PROGRAM = """\
func.func @product(%a: tensor<256x256xf32>, %b: tensor<256x256xf32>) -> tensor<256x256xf32> {
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<256x256xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<256x256xf32>) -> tensor<256x256xf32>
  %0 = linalg.matmul ins(%a, %b : tensor<256x256xf32>, tensor<256x256xf32>)
    outs(%f : tensor<256x256xf32>) -> tensor<256x256xf32>
  return %0 : tensor<256x256xf32>
}
"""


def test_a_dispatch_that_is_compiled_worse_is_found(project: Project, tmp_path: Path) -> None:
    (project.benchmarks / "abs_cpu.json").unlink()
    (project.regressions / "product.mlir").write_text(PROGRAM)
    inputs = [{"source": f"random://normal/256x256xf32?seed={seed}"} for seed in (1, 2)]
    project.regression("product", inputs=inputs, outputs=[])
    project.benchmark("product", inputs=["256x256xf32=2.0", "256x256xf32=3.0"])
    slow = write_build_tree(tmp_path / "slow", iree_compile=FOR_ANY_CPU)
    (tmp_path / "slow/tools/iree-profile").symlink_to(
        Path(find_installed().runtime.benchmark_module).with_name("iree-profile")
    )
    (tmp_path / "slow/compiler/bindings").mkdir(parents=True)
    (tmp_path / "slow/compiler/bindings/python").symlink_to(sysconfig.get_path("platlib"))
    options = ("--model", "toy", "--submodel", "product", "--run-dir", "cmp", "--disturbed", "count", "--cpus", "all")
    done = project.gauntlet(
        "compare", "installed", slow, *options, "--repetitions", "2", "--min-time", "0.01", "--no-work"
    )
    assert done.code == 1, done.text
    done = project.gauntlet("explain", "--slower", "cmp")
    assert done.code == 0, done.text
    (case,) = json.loads((project.folder / "cmp" / "explain" / "explain.json").read_text())["cases"]
    assert case["bundled"] is True
    assert "matmul" in case["found"]["slower"]["name"] or "mmt4d" in case["found"]["slower"]["name"]
    assert case["found"]["slower"]["times"]["ratio"] > 1.2
    script = project.folder / "cmp" / "explain" / "toy" / "product.cpu" / "bundle" / "repro.sh"
    assert subprocess.run(["sh", "-n", str(script)], check=False).returncode == 0
