"""A small suite of ONNX models in the format of iree-test-suites: test files, configs, and tiny models."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.support.spec_trees import write_tree

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["COMPILE_FLAGS", "TEST_FILE", "ZOO_URL", "make_test_file", "make_test_name", "write_config", "write_models"]

TEST_FILE = "tests/model_zoo/validated/vision/classification_models_test.py"
# The newest suite downloads from this URL; its models are in `_FOLDER` below the URL.
ZOO_URL = "https://huggingface.co/onnxmodelzoo/legacy_models/resolve/main/"
_FOLDER = "validated/vision/classification"
COMPILE_FLAGS = ["--iree-hal-target-backends=llvm-cpu", "--iree-llvmcpu-target-cpu=host"]


def make_test_file(*parameters: str) -> str:
    """Return the text of a file with one parametrized test; importing the file would exit."""
    parameter_lines = "".join(f"        {parameter},\n" for parameter in parameters)
    return f"""import pytest

from .....utils import *
raise SystemExit("imported")

BASE_PATH = "{_FOLDER}/"


@pytest.mark.parametrize(
    "model",
    [
{parameter_lines}    ],
)
def test_models(compare_between_iree_and_onnxruntime, model):
    compare_between_iree_and_onnxruntime(model_url=BASE_PATH + model, artifacts_subdir=BASE_PATH)
"""


def make_test_name(model: str) -> str:
    """Return the name of the test of a model in configs."""
    return f"{TEST_FILE}::test_models[{model}]"


def write_config(root: Path, name: str = "cpu", file: str = "", **fields: Any) -> Path:
    """Write a config into `configs`, or to another path below the root; return its path."""
    document = {
        "config_name": name,
        "iree_compile_flags": COMPILE_FLAGS,
        "iree_run_module_flags": ["--device=local-sync"],
        "tests_and_expected_outcomes": {"default": "pass"},
        **fields,
    }
    path = root / (file or f"configs/{name}.json")
    write_tree(root, {str(path.relative_to(root)): json.dumps(document, indent=2)})
    return path


def write_models(root: Path) -> None:
    """Write `mnist/model/{dense,erf,two,unknown,riddle,garbage}.onnx` below the root that the suite downloads from.

    `dense` has a dynamic dimension. `erf` is inexact, most of all near zero. `two` has several inputs and outputs of
    several types. `unknown` has an operator of an unknown domain; `riddle` has an operator that ONNX's own domain
    lacks. `garbage` is no model.
    """
    import numpy as np  # noqa: PLC0415
    import onnx  # noqa: PLC0415
    from onnx import TensorProto, helper  # noqa: PLC0415

    folder = root / _FOLDER / "mnist" / "model"
    folder.mkdir(parents=True)

    def write(name: str, nodes: list[Any], inputs: list[Any], outputs: list[Any], opset: int, *weights: Any) -> None:
        input_infos, output_infos = (
            [helper.make_tensor_value_info(*signature) for signature in signatures] for signatures in (inputs, outputs)
        )
        graph = helper.make_graph(nodes, name, input_infos, output_infos, list(weights))
        opsets = [helper.make_opsetid("", opset), helper.make_opsetid("nobody", 1)]
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), folder / f"{name}.onnx")

    f32, i64, i1 = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
    weight = helper.make_tensor("w", f32, [4, 3], np.linspace(-1, 1, 12).astype(np.float32))
    dense = [helper.make_node("MatMul", ["x", "w"], ["y"]), helper.make_node("Softmax", ["y"], ["z"])]
    write("dense", dense, [("x", f32, ["N", 4])], [("z", f32, ["N", 3])], 12, weight)
    erf = [
        helper.make_node("Erf", ["x"], ["y"]),
        helper.make_node("Exp", ["y"], ["e"]),
        helper.make_node("Sub", ["e", "half"], ["z"]),
    ]
    half = helper.make_tensor("half", f32, [], [1.5])
    write("erf", erf, [("x", f32, [20000])], [("z", f32, [20000])], 13, half)
    two = [
        helper.make_node("Add", ["n", "n"], ["m"]),
        helper.make_node("Cast", ["n"], ["f"], to=f32),
        helper.make_node("Less", ["x", "f"], ["b"]),
    ]
    write("two", two, [("x", f32, [2, 5]), ("n", i64, [5])], [("m", i64, [5]), ("b", i1, [2, 5])], 19)
    unknown = [helper.make_node("Riddle", ["x"], ["y"], domain="nobody")]
    write("unknown", unknown, [("x", f32, [4])], [("y", f32, [4])], 17)
    write("riddle", [helper.make_node("Riddle", ["x"], ["y"])], [("x", f32, [4])], [("y", f32, [4])], 12)
    (folder / "garbage.onnx").write_bytes(b"no model")
