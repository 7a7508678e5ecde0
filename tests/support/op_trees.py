"""Trees of operator suites in a temporary directory, which are read but not run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from iree_gauntlet.dialects.load import load_cases, read_specs
from iree_gauntlet.dialects.selection import Include
from tests.support.spec_trees import CPU, write_tree

if TYPE_CHECKING:
    from pathlib import Path

    from iree_gauntlet.dialects.load import CaseSet
    from iree_gauntlet.targets import Target

__all__ = ["COMPILE_FLAGS", "add_onnx", "add_torch", "list_op_problems", "load_ops", "write_config"]

COMPILE_FLAGS = ["--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=llvm-cpu"]
_IO_FLAGS = "--input=2xf32=@input_0.bin\n--expected_output=2xf32=@output_0.bin\n"


def write_config(root: Path, name: str = "cpu", text: str = "", **fields: Any) -> Path:
    """Write a config, or `text` in its place; return its path."""
    document = {
        "config_name": name,
        "iree_compile_flags": COMPILE_FLAGS,
        "iree_run_module_flags": ["--device=local-sync"],
        **fields,
    }
    write_tree(root, {f"configs/{name}.json": text or json.dumps(document, indent=2)})
    return root / "configs" / f"{name}.json"


def add_onnx(root: Path, case: str = "node/test_a", flags: str = _IO_FLAGS, **files: str) -> Path:
    """Add a case with a flagfile; return its directory."""
    default_files = {"model.mlir": "module {}\n", "input_0.bin": "12345678", "output_0.bin": "12345678"}
    return write_tree(root / case, {**default_files, "run_module_io_flags.txt": flags, **files})


def add_torch(root: Path, case: str = "generated/AB/small", **fields: Any) -> Path:
    """Add a case with a `run_module_io.json`; return its directory."""
    formula = {"Formula": {"shape": [4, 2], "dtype": "float16", "coeff": 2, "offset": -1}}
    document = {"flat_args": [formula, formula, 3, True, 1.5], "seed": 7, "expected_output": ["e.npy"], **fields}
    return write_tree(root / case, {"run_module_io.json": document, "test.mlir": "module {}\n", "e.npy": "x"})


def load_ops(folder: Path, *targets: Target, configs: tuple[Path, ...] = (), include: Include | None = None) -> CaseSet:
    """Load the cases of a tree."""
    return load_cases(read_specs([folder], configs=configs), [include or Include()], targets or (CPU,))


def list_op_problems(folder: Path) -> list[str]:
    """Return the problems of a tree without its path: those of the tree, then those of single cases."""
    case_set = load_ops(folder)
    return [
        str(problem).replace(f"{folder}/", "") for problem in (*case_set.problems, *case_set.operator_case_problems)
    ]
