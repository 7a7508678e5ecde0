"""A small operator suite in a temporary directory: cases of a few lines, and configs."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.support.session_folder import make_once
from tests.support.toy_project import Project

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.command_line import CommandResult

__all__ = ["COMPILE_FLAGS", "OperatorSuite"]

COMPILE_FLAGS = [
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-llvmcpu-target-cpu=host",
    "--iree-opt-level=O0",
]
_UNARY = """func.func @{name}(%a: !torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32>
    attributes {{torch.onnx_meta.opset_version = 17 : si64}} {{
  %0 = torch.operator "onnx.{operation}"({argument}) : (!torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32>
  return %0 : !torch.vtensor<[4],f32>
}}
"""
# The compiler crashes on this program: it divides by the zero extent (seen in 3.13.0).
_DIVIDES_BY_ZERO = """func.func @reshape(%a: !torch.vtensor<[0,3,4],f32>, %s: !torch.vtensor<[3],si64>)
    -> !torch.vtensor<[3,4,0],f32> attributes {torch.onnx_meta.opset_version = 21 : si64} {
  %0 = torch.operator "onnx.Reshape"(%a, %s) {torch.onnx.allowzero = 1 : si64}
      : (!torch.vtensor<[0,3,4],f32>, !torch.vtensor<[3],si64>) -> !torch.vtensor<[3,4,0],f32>
  return %0 : !torch.vtensor<[3,4,0],f32>
}
"""
_ENDLESS = """func.func @endless(%a: tensor<4xf32>) -> tensor<4xf32> {
  %true = arith.constant true
  %r = scf.while (%x = %a) : (tensor<4xf32>) -> tensor<4xf32> {
    %e = util.optimization_barrier %true : i1
    scf.condition(%e) %x : tensor<4xf32>
  } do {
  ^bb0(%y: tensor<4xf32>):
    %z = arith.addf %y, %y : tensor<4xf32>
    scf.yield %z : tensor<4xf32>
  }
  return %r : tensor<4xf32>
}
"""
# The tensor of 30 GB has a dynamic size, which is known only at run time.
_HUGE = """func.func @huge(%n: i64) -> tensor<?xf32> {
  %one = arith.constant 1.0 : f32
  %size = arith.index_cast %n : i64 to index
  %empty = tensor.empty(%size) : tensor<?xf32>
  %0 = linalg.fill ins(%one : f32) outs(%empty : tensor<?xf32>) -> tensor<?xf32>
  return %0 : tensor<?xf32>
}
"""


class OperatorSuite:
    """Cases below `ops/node` of a project, with their configs in `ops/configs`."""

    def __init__(self, project: Project, *, warm: bool = False) -> None:
        """Create the suite.

        `warm`: fill the cache with the results of compiling the cases of `add_every_outcome`, with errors.
        """
        self.project = project
        self.root: Path = project.folder / "ops"
        (self.root / "configs").mkdir(parents=True)
        self.write_config()
        if warm:
            module_cache = make_once("operator-project", _compile_every_outcome) / "project" / "cache" / "modules"
            shutil.copytree(module_cache, project.folder / "cache" / "modules", dirs_exist_ok=True)

    def add_every_outcome(self) -> None:
        """Add a case of each outcome."""
        self.add_unary("abs")
        self.add_unary("neg", "Neg", "1 -2 3 -4")
        self.add_unary("wrong", expected_output="1 2 3 5")
        self.add_misspelt("misspelt")
        self.add_wrong_input("refused")
        self.add_compiler_crash("zero")

    def write_config(self, name: str = "cpu_sync", **fields: Any) -> Path:
        """Write a config; return its path."""
        document = {
            "config_name": name,
            "iree_compile_flags": COMPILE_FLAGS,
            "iree_run_module_flags": ["--device=local-sync"],
            **fields,
        }
        path = self.root / "configs" / f"{name}.json"
        path.write_text(json.dumps(document, indent=2))
        return path

    def add_case(self, name: str, program: str, flags: list[str]) -> Path:
        """Add a case; return its directory."""
        folder = self.root / "node" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "model.mlir").write_text(program)
        (folder / "run_module_io_flags.txt").write_text("".join(f"{flag}\n" for flag in flags))
        return folder

    def add_unary(
        self, name: str, operation: str = "Abs", expected_output: str = "1 2 3 4", argument: str = "%a"
    ) -> Path:
        """Add a case with one input of four numbers, -1, 2, -3, 4 from a file, and one output."""
        program = _UNARY.format(name=name, operation=operation, argument=argument)
        folder = self.add_case(
            name, program, ["--input=4xf32=@input_0.bin", f"--expected_output=4xf32={expected_output}"]
        )
        np.array([-1, 2, -3, 4], np.float32).tofile(folder / "input_0.bin")
        return folder

    def add_misspelt(self, name: str) -> Path:
        """Add a case that does not compile."""
        return self.add_unary(name, argument="%b")

    def add_wrong_input(self, name: str) -> Path:
        """Add a case with an input of a shape that the module rejects."""
        folder = self.add_unary(name)
        (folder / "run_module_io_flags.txt").write_text("--input=3xf32=1 2 3\n--expected_output=4xf32=1 2 3 4\n")
        return folder

    def add_compiler_crash(self, name: str) -> Path:
        """Add a case on which the compiler crashes."""
        return self.add_case(
            name, _DIVIDES_BY_ZERO, ["--input=0x3x4xf32", "--input=3xi64=3 4 0", "--expected_output=3x4x0xf32"]
        )

    def add_endless(self, name: str) -> Path:
        """Add a case that runs for ever."""
        return self.add_case(name, _ENDLESS, ["--input=4xf32=0", "--expected_output=4xf32=0"])

    def add_huge(self, name: str) -> Path:
        """Add a case that allocates 32 GB."""
        return self.add_case(name, _HUGE, ["--input=8000000000", "--expected_output=4xf32=0"])

    def run(self, *arguments: str, **toolchain: str) -> CommandResult:
        """Run `gauntlet run` with the suite."""
        return self.project.gauntlet("run", "--spec-dir", "ops", *arguments, **toolchain)

    @property
    def verdicts(self) -> dict[str, str]:
        """The verdicts of the newest run, such as `passed` of `abs:compile`, without batches."""
        record = self.project.journal
        return {
            f"{step['submodel']}:{step['stage']}": str(record.results[step["id"]].verdict)
            for step in record.steps
            if step["id"] in record.results and step["model"] != "batch"
        }


def _compile_every_outcome(folder: Path) -> None:
    suite = OperatorSuite(Project(folder / "project", cache="flags"))
    suite.add_every_outcome()
    suite.add_endless("endless")
    suite.add_huge("huge")
    # The crashing case is left out, as the cache keeps no crashes.
    result = suite.run("--stages", "compile", "--submodel", "[!z]*")
    assert result.code == 1, result.text
