"""A failed compile's message: it names the model's operator first, as read from the real compiler's output."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import onnx
import pytest
from onnx import TensorProto, helper

from iree_gauntlet.cases import Verdict
from iree_gauntlet.engine.modules.modules import find_unsupported
from iree_gauntlet.recorded import read_json
from iree_gauntlet.results import Result, UnsupportedOperator

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.toy_project import Project


def write_model(path: Path, nodes: list[Any], inputs: list[list[int]], output: list[int]) -> None:
    names = [helper.make_tensor_value_info(f"x{i}", TensorProto.FLOAT, shape) for i, shape in enumerate(inputs)]
    graph = helper.make_graph(nodes, "g", names, [helper.make_tensor_value_info("y", TensorProto.FLOAT, output)])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)


@pytest.mark.iree
@pytest.mark.parametrize(
    ("name", "nodes", "inputs", "output", "operator"),
    [
        (
            "contributed",
            [
                helper.make_node("BiasGelu", ["x0", "x1"], ["h"], domain="com.microsoft"),
                helper.make_node("BiasGelu", ["h", "x1"], ["y"], domain="com.microsoft"),
            ],
            [[2, 3], [3]],
            [2, 3],
            UnsupportedOperator("BiasGelu", "com.microsoft", 1, 2),
        ),
        (
            # What fails is what it has become, at its place.
            "transposed",
            [helper.make_node("ConvTranspose", ["x0", "x1"], ["y"], kernel_shape=[2, 2, 2, 2])],
            [[1, 1, 3, 3, 3, 3], [1, 1, 2, 2, 2, 2]],
            [1, 1, 4, 4, 4, 4],
            UnsupportedOperator("ConvTranspose", "ai.onnx", 17, 1),
        ),
    ],
)
def test_a_compile_names_the_operator_of_an_onnx_model_first(
    project: Project,
    name: str,
    nodes: list[Any],
    inputs: list[list[int]],
    output: list[int],
    operator: UnsupportedOperator,
) -> None:
    write_model(project.regressions / f"{name}.onnx", nodes, inputs, output)
    flags = ["--iree-hal-target-backends=llvm-cpu", "--iree-llvmcpu-target-cpu=generic"]
    project.regression(name, mlir=f"{name}.onnx", inputs=[], outputs=[], compile_only=True, compiler_flags=flags)
    for cached in (False, True):
        done = project.gauntlet("run", "--model", "toy", "--submodel", name)
        assert done.code == 1, done.text
        result = project.journal.results[f"toy/{name}@cpu:compile"]
        assert result.unsupported == operator
        assert result.cache is not None
        assert result.cache.hit is cached
        assert result.reason.startswith("iree-compile failed with exit code 1: failed to legalize operation 'torch.")
        first = f"operator {operator.name} of {operator.domain}, version "
        assert f": {first}" in done.out
        assert f"\n{first}" in done.out
        (summary,) = project.newest.glob("summary.json")
        (chain,) = json.loads(summary.read_text())["chains"]
        (step,) = (step for step in chain["steps"] if step["stage"] == "compile")
        assert step["reason"].startswith(f"{first}{operator.version}, has no lowering in this IREE for this use")
        assert "; iree-compile failed with exit code 1: " in step["reason"]
        assert step["unsupported"]["count"] == operator.count
        assert f'message="{first}' in (project.newest / "junit.xml").read_text()


_OPERATION = '%1 = "torch.operator"(%0) <{name = "onnx.Riddle"}> : (!t) -> !t'


@pytest.mark.parametrize(
    ("line", "text", "operator"),
    [
        (
            "p.mlir:2:1: error: failed to legalize operation 'torch.aten.foo' that was explicitly marked illegal: …",
            "module {\n%0 = torch.aten.foo %a\n%1 = torch.aten.foo.out %0\n%2 = torch.aten.foo %1\n",
            UnsupportedOperator("aten.foo", "torch", None, 2),
        ),
        (
            "<unknown>:0:0: error: failed to legalize operation 'tosa.rfft2d' that was explicitly marked illegal",
            "module {\n%0 = tosa.rfft2d %a\n",
            UnsupportedOperator("rfft2d", "tosa", None, 1),
        ),
        (
            "p.mlir:1:1: error: failed to legalize operation 'stablehlo.fft' that was explicitly marked illegal",
            "ML\xefR stablehlo.fft",
            UnsupportedOperator("fft", "stablehlo", None, None),
        ),
        (
            f"p.mlir:1:1: error: failed to legalize operation 'torch.operator': {_OPERATION}",
            '"torch.operator"(%0) <{name = "onnx.Riddle"}> torch.onnx_meta.opset_version = 21 : si64\n',
            UnsupportedOperator("Riddle", "ai.onnx", 21, 1),
        ),
        (
            # Of which of two domains, only the ONNX file would say.
            f"p.mlir:1:1: error: failed to legalize operation 'torch.operator': {_OPERATION}",
            "torch.onnx_meta.opset_version = 21 : si64, torch.onnx_meta.opset_versions = {nobody = 1 : si64}\n",
            UnsupportedOperator("Riddle", "", None, 0),
        ),
        ("p.mlir:1:1: error: failed to legalize operation 'linalg.generic'", "module {}\n", None),
        ("p.mlir:1:1: error: 'torch.aten.foo' op has no such operand", "module {}\n", None),
        ("p.mlir:1:1: error: failed to legalize operation 'torch.operator' that has no name", "module {}\n", None),
    ],
)
def test_the_operator_is_read_from_the_structure_of_a_diagnostic(
    tmp_path: Path, line: str, text: str, operator: UnsupportedOperator | None
) -> None:
    program = tmp_path / "p.mlir"
    program.write_text(text, encoding="latin-1")
    assert find_unsupported(["a warning", line], program, program) == operator
    if operator:
        # A run that has it is read again, for its reports.
        result = Result(Verdict.FAILED, "does not compile", unsupported=operator)
        assert Result.from_dict(read_json(json.dumps(result.as_dict()).encode())) == result
    program.write_bytes(b"")
    assert find_unsupported([line], program, program) is None
