"""Inputs that are tried with a user's model: sizes, indices, and values that operators need."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import onnx
import pytest

from iree_gauntlet.upkeep.input_choices import InputChoice, generate_input_sets
from iree_gauntlet.upkeep.program_kinds import read_onnx
from iree_gauntlet.upkeep.programs import UserProgram, make_input
from tests.support.own_models import F32, I64, ValueInfo, make_node, write_model

BOOL = onnx.TensorProto.BOOL


def sets_of(
    folder: Path, nodes: list[onnx.NodeProto], inputs: list[ValueInfo], outputs: list[ValueInfo]
) -> list[dict[str, InputChoice]]:
    program = read_onnx(write_model(folder / "m.onnx", nodes, inputs, outputs))
    return [{choice.name: choice for choice in choices} for choices in generate_input_sets(program)]


def test_sizes_grow_first_alike_then_of_one_input_alone(tmp_path: Path) -> None:
    inputs: list[ValueInfo] = [("signal", F32, [-1, -1]), ("state", F32, [2, -1, 4])]
    nodes = [make_node("Relu", "signal", "a"), make_node("Relu", "state", "b")]
    sets = sets_of(tmp_path, nodes, inputs, [("a", F32, ["p", "q"]), ("b", F32, ["r"] * len(inputs[1][2] or ()))])
    types = list(dict.fromkeys((item["signal"].type, item["state"].type) for item in sets))
    assert types[:3] == [("2x8xf32", "2x8x4xf32"), ("1x8xf32", "2x8x4xf32"), ("1x1xf32", "2x1x4xf32")]
    assert ("1x224xf32", "2x1x4xf32") in types
    assert ("1x1xf32", "2x224x4xf32") in types
    assert ("2x2xf32", "2x2x4xf32") in types
    assert len(sets) <= 60


def test_sizes_of_one_name_are_alike(tmp_path: Path) -> None:
    inputs: list[ValueInfo] = [("ids", F32, ["batch", "length"]), ("mask", F32, ["length"])]
    nodes = [make_node("Relu", "ids", "a"), make_node("Relu", "mask", "b")]
    sets = sets_of(tmp_path, nodes, inputs, [("a", F32, ["p", "q"]), ("b", F32, ["r"] * len(inputs[1][2] or ()))])
    for item in sets:
        assert item["ids"].type.split("x")[1] == item["mask"].type.split("x")[0]


def first(folder: Path, op_type: str, inputs: list[ValueInfo], output: list[int], **attributes: Any) -> list[str]:
    """What the integer inputs of an operator are given at first."""
    nodes = [make_node(op_type, " ".join(name for name, _, _ in inputs), "y", **attributes)]
    (found,) = islice(sets_of(folder, nodes, inputs, [("y", F32, output)]), 1)
    return [found[name].values for name, kind, _ in inputs if kind == I64]


X: ValueInfo = ("x", F32, [3, 4])


@pytest.mark.parametrize(
    ("op_type", "inputs", "output", "attributes", "values"),
    [
        ("Reshape", [X, ("n", I64, [3])], [2, 3, 2], {}, "2 3 2"),
        ("Expand", [("x", F32, [3, 1]), ("n", I64, [2])], [3, 5], {}, "3 5"),
        ("Tile", [X, ("n", I64, [2])], [6, 4], {}, "2 1"),
        ("Pad", [X, ("n", I64, [4])], [5, 4], {}, "0 0 2 0"),
        ("ReduceSum", [X, ("n", I64, [1])], [3, 1], {}, "1"),
        ("ReduceSum", [X, ("n", I64, [1])], [4], {"keepdims": 0}, "0"),
        ("Unsqueeze", [X, ("n", I64, [1])], [3, 1, 4], {}, "1"),
        ("Squeeze", [("x", F32, [3, 1, 4]), ("n", I64, [1])], [3, 4], {}, "1"),
    ],
)
def test_operators_get_the_values_that_they_need(
    tmp_path: Path, op_type: str, inputs: list[ValueInfo], output: list[int], attributes: dict[str, Any], values: str
) -> None:
    assert first(tmp_path, op_type, inputs, output, **attributes) == [values]


def test_indices_lie_within_their_table_and_say_so(tmp_path: Path) -> None:
    inputs: list[ValueInfo] = [("table", F32, [5, 3]), ("ids", I64, [40])]
    found = sets_of(tmp_path, [make_node("Gather", "table ids", "y")], inputs, [("y", F32, [40, 3])])[0]["ids"]
    assert {int(value) for value in found.values.split()} == set(range(5))
    assert found.reason == "below 5, where Gather looks"


def test_many_integers_are_a_file_without_a_sign(tmp_path: Path) -> None:
    inputs: list[ValueInfo] = [("table", F32, [5, 3]), ("ids", I64, [400])]
    found = sets_of(tmp_path, [make_node("Gather", "table ids", "y")], inputs, [("y", F32, [400, 3])])[0]["ids"]
    assert (found.values, found.suffix, len(found.content or b"")) == ("", ".bin", 8 * 400)
    assert found.for_benchmark == "400xi64"


def test_scalars_have_a_value_for_a_benchmark(tmp_path: Path) -> None:
    inputs: list[ValueInfo] = [("s", F32, []), ("b", BOOL, [])]
    nodes = [make_node("Neg", "s", "y"), make_node("Not", "b", "c")]
    found = sets_of(tmp_path, nodes, inputs, [("y", F32, []), ("c", BOOL, [])])[0]
    assert (found["s"].for_benchmark, found["b"].for_benchmark) == ("f32=1", "i1=01")


def test_integers_of_mlir_are_wide_where_all_of_them_are_defined() -> None:
    inputs = (make_input("a", "i8", [64], None, "int8"), make_input("b", "i8", [64], None, "uint8"))
    program = UserProgram(Path("m.mlir"), "m.mlir", "m", "f", inputs, (), has_f64=False)
    signed, unsigned = (
        [int(value) for value in choice.values.split()] for choice in next(generate_input_sets(program))
    )
    assert min(signed) < -64 < 64 < max(signed)
    assert 0 <= min(unsigned) < 64 < max(unsigned)
    # A division, or an index, is not defined for all of them.
    partial = UserProgram(Path("m.mlir"), "m.mlir", "m", "f", inputs, (), has_f64=False, is_partial=True)
    for choice in next(generate_input_sets(partial)):
        assert {int(value) for value in choice.values.split()} == {1, 2, 3}
