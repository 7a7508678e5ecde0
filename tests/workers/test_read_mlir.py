"""The interface of programs in MLIR, read by IREE's parser, and operators of ONNX put together to a file again."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from iree_gauntlet.workers.iree_side import read_mlir
from iree_gauntlet.workers.iree_side.index_operators import EVERYTHING, FLAT, MOVED, NEGATIVE, NOTHING, IndexUse
from iree_gauntlet.workers.iree_side.onnx_reference import OnnxRuntime
from iree_gauntlet.workers.iree_side.plan_file import PlanError

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("iree.compiler")
pytestmark = pytest.mark.iree


def read(folder: Path, program: str) -> dict[str, Any]:
    path = folder / "program.mlir"
    path.write_text(program, encoding="utf-8")
    return read_mlir._read({"model": str(path), "folder": str(folder)})


def test_types_are_read_in_every_notation(tmp_path: Path) -> None:
    answer = read(
        tmp_path,
        """
        util.global private mutable @count = dense<0> : tensor<1xi32>
        func.func private @inner(tensor<f32>) -> tensor<f32>
        func.func @f(%a: tensor<4x?xf64> loc("x"), %b: tensor<i1>, %c: tensor<0x3xui8>, %d: tensor<2xf8E4M3FN>,
                     %e: tensor<2xcomplex<f32>>, %f: f32, %g: !stablehlo.token) -> tensor<i1> {
          return %b : tensor<i1>
        }
        func.func @g(%a: !torch.vtensor<[2,?],si64>, %b: !torch.vtensor<[],bf16>) -> !torch.vtensor<[2,?],si64> {
          return %a : !torch.vtensor<[2,?],si64>
        }
        """,
    )
    first, second = answer["functions"]
    assert [(item["name"], item["dtype"], item["element_type"], item["shape"]) for item in first["inputs"]] == [
        ("x", "float64", "f64", [4, None]),
        ("arg1", "bool", "i1", []),
        ("arg2", "uint8", "i8", [0, 3]),
        ("arg3", "float8_e4m3fn", "f8E4M3FN", [2]),
        *((f"arg{index}", "", "", []) for index in (4, 5, 6)),
    ]
    assert [(item["dtype"], item["shape"]) for item in second["inputs"]] == [("int64", [2, None]), ("bfloat16", [])]
    assert second["outputs"][0]["type"] == "!torch.vtensor<[2,?],si64>"
    assert (answer["has_f64"], answer["state"]) == (True, ["count"])
    assert {"func", "util"} <= set(answer["dialects"])


def test_indices_are_found_through_operators_that_keep_them(tmp_path: Path) -> None:
    dimensions = "inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1"
    answer = read(
        tmp_path,
        f"""
        func.func private @inner(%x: tensor<?x3xf32>, %i: tensor<4x1xi32>) -> tensor<4x3xf32> {{
          %0 = "stablehlo.gather"(%x, %i) <{{dimension_numbers = #stablehlo.gather<offset_dims = [1],
            collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 3>}}>
            : (tensor<?x3xf32>, tensor<4x1xi32>) -> tensor<4x3xf32>
          return %0 : tensor<4x3xf32>
        }}
        func.func @gather(%x: tensor<?x3xf32>, %i: tensor<4xi32>) -> tensor<4x3xf32> {{
          %c = stablehlo.constant dense<5> : tensor<4xi32>
          %0 = stablehlo.add %i, %c : tensor<4xi32>
          %1 = stablehlo.broadcast_in_dim %0, dims = [0] : (tensor<4xi32>) -> tensor<4x1xi32>
          %2 = call @inner(%x, %1) : (tensor<?x3xf32>, tensor<4x1xi32>) -> tensor<4x3xf32>
          return %2 : tensor<4x3xf32>
        }}
        func.func @scatter(%x: tensor<5x3xf32>, %i: tensor<4x1xi32>, %u: tensor<4x3xf32>) -> tensor<5x3xf32> {{
          %0 = "stablehlo.scatter"(%x, %i, %u) <{{scatter_dimension_numbers =
            #stablehlo.scatter<update_window_dims = [1], {dimensions}>}}> ({{
          ^bb0(%a: tensor<f32>, %b: tensor<f32>):
            stablehlo.return %b : tensor<f32>
          }}) : (tensor<5x3xf32>, tensor<4x1xi32>, tensor<4x3xf32>) -> tensor<5x3xf32>
          return %0 : tensor<5x3xf32>
        }}
        func.func @slice(%x: tensor<?x3xf32>, %i: tensor<i64>, %j: tensor<i64>) -> tensor<2x3xf32> {{
          %0 = stablehlo.multiply %j, %j : tensor<i64>
          %1 = stablehlo.dynamic_slice %x, %i, %j, sizes = [2, 3]
            : (tensor<?x3xf32>, tensor<i64>, tensor<i64>) -> tensor<2x3xf32>
          return %1 : tensor<2x3xf32>
        }}
        func.func @torch(%x: !torch.vtensor<[6,3],f32>, %i: !torch.vtensor<[5],si64>, %j: !torch.vtensor<[5],si64>)
            -> !torch.vtensor<[5],f32> {{
          %0 = torch.prim.ListConstruct %i, %j
            : (!torch.vtensor<[5],si64>, !torch.vtensor<[5],si64>) -> !torch.list<vtensor>
          %1 = torch.aten.index.Tensor %x, %0
            : !torch.vtensor<[6,3],f32>, !torch.list<vtensor> -> !torch.vtensor<[5],f32>
          return %1 : !torch.vtensor<[5],f32>
        }}
        func.func @element(%x: tensor<5xf32>, %i: tensor<4xi64>) -> tensor<4xf32> {{
          %0 = tensor.empty() : tensor<4xf32>
          %1 = linalg.generic {{indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>],
              iterator_types = ["parallel"]}} ins(%i : tensor<4xi64>) outs(%0 : tensor<4xf32>) {{
          ^bb0(%a: i64, %b: f32):
            %2 = arith.index_cast %a : i64 to index
            %3 = tensor.extract %x[%2] : tensor<5xf32>
            linalg.yield %3 : f32
          }} -> tensor<4xf32>
          return %1 : tensor<4xf32>
        }}
        """,
    )
    uses = {
        f"{function['name']} {item['name']}": (item["uses_known"], *item["index_uses"])
        for function in answer["functions"]
        for item in function["inputs"]
        if "int" in item["dtype"]
    }
    gather: dict[str, Any] = {"by_column": True, "computed": True, "layout": FLAT, "bits": 32}
    put: dict[str, Any] = {"by_column": True, "distinct": "anywhere"}
    assert uses == {
        "gather arg1": (True, use_index("stablehlo.gather", EVERYTHING, ("arg0", 0), **gather)),
        "scatter arg1": (True, use_index("stablehlo.scatter", EVERYTHING, 5, **put)),
        "slice arg1": (True, use_index("stablehlo.dynamic_slice", EVERYTHING, ("arg0", 0), span=2)),
        # What a product is for is unknown.
        "slice arg2": (False, use_index("stablehlo.dynamic_slice", EVERYTHING, 3, span=3)),
        "torch arg1": (True, use_index("torch.aten.index.Tensor", NEGATIVE, 6)),
        "torch arg2": (True, use_index("torch.aten.index.Tensor", NEGATIVE, 3)),
        "element arg1": (True, use_index("tensor.extract", NOTHING, 5, layout=MOVED)),
    }


def use_index(operator: str, outside: str, size: Any, *, span: int = 1, **others: Any) -> dict[str, Any]:
    return asdict(IndexUse(operator, outside, (size,), (span,), **others))


def test_a_products_sum_is_estimated(tmp_path: Path) -> None:
    program = """
        func.func @f(%a: tensor<8x300xf32>, %b: tensor<300x5xf32>) -> tensor<8x5xf32> {
          %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
            : (tensor<8x300xf32>, tensor<300x5xf32>) -> tensor<8x5xf32>
          return %0 : tensor<8x5xf32>
        }"""
    answer = read(tmp_path, program)
    assert answer["longest_sum"] == 300
    assert answer["dialects"] == ["func", "stablehlo"]


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("func.func @f() { return %x : tensor<f32> }", "line 1, column 25: use of undeclared SSA value name"),
        ('module { sdy.mesh @m = <["x"=2]> }', "line 1, column 10: Dialect `sdy' not found"),
    ],
)
def test_what_the_parser_refuses_has_its_place(tmp_path: Path, program: str, reason: str) -> None:
    with pytest.raises(PlanError, match="line") as caught:
        read(tmp_path, program)
    assert str(caught.value).startswith(reason)


def test_operators_of_onnx_become_a_file_that_computes_the_same(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    importer = pytest.importorskip("iree.compiler.tools.import_onnx.__main__")
    weight = np.random.default_rng(1).normal(size=(16, 8)).astype(np.float32)
    branches = {
        f"{name}_branch": helper.make_graph(
            [helper.make_node(kind, ["h", "h"], [name])],
            name,
            [],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 8])],
        )
        for name, kind in (("then", "Add"), ("else", "Mul"))
    }
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "weight"], ["h"]),
            helper.make_node("If", ["flag"], ["y"], **branches),
            helper.make_node("Clip", ["y", "", "high"], ["z"]),
        ],
        "net",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 16]),
            helper.make_tensor_value_info("flag", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, ["n", 8])],
        [numpy_helper.from_array(weight, "weight"), numpy_helper.from_array(np.array(2, np.float32), "high")],
    )
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    onnx.save(model, tmp_path / "net.onnx")
    importer.main(importer.parse_arguments([str(tmp_path / "net.onnx"), "-o", str(tmp_path / "net.mlir")]))
    answer = read(tmp_path, (tmp_path / "net.mlir").read_text(encoding="utf-8"))
    assert "dense_resource" in (tmp_path / "net.mlir").read_text(encoding="utf-8"), "large weights are resources"
    restored = OnnxRuntime(tmp_path / answer["onnx"]["net"])
    x = np.random.default_rng(2).normal(size=(3, 16)).astype(np.float32)
    for flag in (True, False):
        (expected,) = OnnxRuntime(tmp_path / "net.onnx").run([x, np.array(flag)]).values()
        (actual,) = restored.run([x, np.array(flag)]).values()
        np.testing.assert_array_equal(actual, expected)


def test_other_operations_are_no_onnx(tmp_path: Path) -> None:
    program = """
        func.func @f(%a: !torch.vtensor<[2],f32>) -> !torch.vtensor<[2],f32> {
          %0 = torch.operator "onnx.Relu"(%a) : (!torch.vtensor<[2],f32>) -> !torch.vtensor<[2],f32>
          %1 = torch.aten.tanh %0 : !torch.vtensor<[2],f32> -> !torch.vtensor<[2],f32>
          return %1 : !torch.vtensor<[2],f32>
        }"""
    answer = read(tmp_path, program)
    assert (answer["onnx"], answer["onnx_problem"]) == ({}, "torch.aten.tanh is not an operator of ONNX")
