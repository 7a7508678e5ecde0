"""Inputs at edges: the ends of indices, by what operators define outside of their range, and small open sizes."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from iree_gauntlet.upkeep.edge_inputs import fit_indices, make_edge_choices, make_index_choices
from iree_gauntlet.upkeep.input_choices import generate_input_sets
from iree_gauntlet.upkeep.program_kinds import read_onnx
from iree_gauntlet.upkeep.programs import UserProgram, make_input
from iree_gauntlet.upkeep.project_start import InputSet, _find_objection
from iree_gauntlet.upkeep.references import ReferenceName, ReferenceResult
from iree_gauntlet.workers.iree_side.index_operators import EVERYTHING, MOVED, NEGATIVE, NOTHING, IndexUse
from tests.support.command_line import CommandResult, run_in_process
from tests.support.own_models import F32, I64, ValueInfo, make_node, write_model

if TYPE_CHECKING:
    import onnx

    from iree_gauntlet.upkeep.input_choices import InputChoice

ADD = {"reduction": "add"}
EIGHT = np.arange(8, dtype=np.float32)
X: ValueInfo = ("x", F32, [5, 3])


def gauntlet(folder: Path, *words: str) -> CommandResult:
    return run_in_process(
        words, folder, {**os.environ, "NO_COLOR": "1", "IREE_GAUNTLET_CACHE": str(folder / "cache")}, {}
    )


def list_values(choice: InputChoice) -> list[int]:
    return [int(value) for value in choice.values.split()]


def find_ends(program: UserProgram, name: str = "i") -> list[list[int]]:
    """The values of an input in each set of indices."""
    choices = next(fit_indices(program, generate_input_sets(program)))
    sets = [inputs for _, inputs in make_index_choices(program, choices)]
    return [list_values(choice) for inputs in sets for choice in inputs if choice.name == name]


def read_model(
    folder: Path, nodes: list[onnx.NodeProto], inputs: list[ValueInfo], output: list[Any], **weights: Any
) -> UserProgram:
    return read_onnx(write_model(folder / "m.onnx", nodes, inputs, [("y", F32, output)], weights))


@pytest.mark.parametrize(
    ("op_type", "inputs", "output", "attributes", "values"),
    [
        ("Gather", [X, ("i", I64, [6])], [6, 3], {}, [[4, -5, 0, -1, 4, -5]]),
        ("Gather", [X, ("i", I64, [2])], [5, 2], {"axis": 1}, [[2, -3], [0, -1]]),
        ("Gather", [X, ("i", I64, [])], [3], {}, [[4], [-5], [0], [-1]]),
        ("GatherElements", [X, ("i", I64, [5, 1])], [5, 1], {"axis": -1}, [[2, -3, 0, -1, 2]]),
        # Each column has its own range.
        ("GatherND", [X, ("i", I64, [4, 2])], [4], {}, [[4, 2, -5, -3, 0, 0, -1, -1]]),
        ("GatherND", [X, ("i", I64, [5, 1])], [5], {"batch_dims": 1}, [[2, -3, 0, -1, 2]]),
        # Equal indices of a scatter are undefined, also if one is counted from the end.
        ("ScatterND", [X, ("i", I64, [3, 2]), ("u", F32, [3])], [5, 3], {}, [[4, 2, -5, -3, 0, 1]]),
        ("ScatterElements", [X, ("i", I64, [3, 2]), ("u", F32, [3, 2])], [5, 3], {}, [[4, -1, -5, 0, 1, -4]]),
        (
            "ScatterElements",
            [X, ("i", I64, [2, 1]), ("u", F32, [2, 1])],
            [5, 3],
            {"reduction": "add"},
            [[4, -5], [0, -1]],
        ),
        ("NegativeLogLikelihoodLoss", [X, ("i", I64, [5])], [], {}, [[2, 0, 2, 0, 2]]),
    ],
)
def test_indices_are_the_ends_that_an_operator_of_onnx_defines(
    tmp_path: Path, op_type: str, inputs: list[ValueInfo], output: list[int], attributes: dict[str, Any], values: Any
) -> None:
    node = make_node(op_type, " ".join(name for name, _, _ in inputs), "y", **attributes)
    assert find_ends(read_model(tmp_path, [node], inputs, output)) == values


def test_indices_beyond_the_range_are_taken_where_they_are_defined(tmp_path: Path) -> None:
    node = make_node("OneHot", "i depth values", "y")
    weights = {"depth": np.array(4), "values": np.array([0, 1], np.float32)}
    inside, outside = find_ends(read_model(tmp_path, [node], [("i", I64, [9])], [9, 4], **weights))
    assert inside == [3, 0, 3, 0, 3, 0, 3, 0, 3]
    assert outside == [3, 4, 0, -1, 2**63 - 1, -(2**63), -4, -5, 3]
    # The file leaves the batch open.
    inside, outside = find_ends(read_model(tmp_path, [node], [("i", I64, ["n"])], ["n", 4], **weights))
    assert (inside, outside) == ([3, 0] * 4, [3, 4, 0, -1, 2**63 - 1, -(2**63), -4, -5])


def test_slices_end_where_their_operand_ends(tmp_path: Path) -> None:
    inputs: list[ValueInfo] = [X, ("i", I64, [2]), ("e", I64, [2])]
    for output, starts in ([4, 1], [-4, -1]), (["a", "b"], [-1, -1]):
        program = read_model(tmp_path, [make_node("Slice", "x i e", "y")], inputs, output)
        assert find_ends(program) == [starts]
        assert find_ends(program, "e") == [[2**63 - 1] * 2]


def test_an_index_with_unknown_uses_is_not_negative(tmp_path: Path) -> None:
    nodes = [make_node("Gather", "x i", "g"), make_node("Range", "zero i one", "r"), make_node("Identity", "g", "y")]
    program = read_model(tmp_path, nodes, [X, ("i", I64, [])], [3], zero=np.array(0), one=np.array(1))
    # The first spec has 4.
    assert find_ends(program) == [[0]]
    # What is computed has another range; a comparison is defined for all values.
    nodes = [make_node("Add", "i one", "j"), make_node("Gather", "x j", "y")]
    assert find_ends(read_model(tmp_path, nodes, [X, ("i", I64, [4])], [4, 3], one=np.array(1))) == []
    nodes = [make_node("Gather", "x i", "y"), make_node("Equal", "i one", "q")]
    assert find_ends(read_model(tmp_path, nodes, [X, ("i", I64, [4])], [4, 3], one=np.array(1))) == [[4, -5, 0, -1]]


@pytest.mark.iree
def test_init_adds_specs_of_indices_and_of_sizes(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    node = make_node("Gather", "x i", "y")
    write_model(tmp_path / "m.onnx", [node], [("x", F32, ["n", 3]), ("i", I64, [4])], [("y", F32, [4, 3])])
    done = gauntlet(tmp_path, "init", "p", "--program", "m.onnx", "--edges")
    assert done.code == 0, done.text
    model = tmp_path / "p" / "specs" / "regression_tests" / "m"
    assert {path.name for path in model.glob("*.json")} == {
        f"{name}_cpu.json" for name in ("model", "edges", "indices", "size_1", "size_3")
    }
    spec = json.loads((model / "indices_cpu.json").read_text())
    first_spec = json.loads((model / "model_cpu.json").read_text())
    rows = int(spec["inputs"][0]["source"].partition("normal/")[2].partition("x")[0])
    assert spec["inputs"] == [first_spec["inputs"][0], {"value": f"4xi64={rows - 1} {-rows} 0 -1"}]
    output = np.load(model / "indices_cpu" / "output_0.npy")
    np.testing.assert_array_equal(output[0], output[3])
    np.testing.assert_array_equal(output[1], output[2])
    for size in (1, 3):
        spec = json.loads((model / f"size_{size}_cpu.json").read_text())
        assert spec["onnx_import"]["shapes"] == {"x": [size, 3]}
        assert f"/{size}x3xf32" in spec["inputs"][0]["source"]
        assert np.load(model / f"size_{size}_cpu" / "output_0.npy").shape == (4, 3)
    # The user's sizes stay; sizes that a model does not have are refused by its reference.
    done = gauntlet(tmp_path, "init", "p", "--program", "m.onnx", "--edges", "--name", "n", "--shape", "x=5x3")
    assert "note: there is no spec size_3: the sizes are those of --shape" in done.out
    write_model(
        tmp_path / "m.onnx", [make_node("Add", "x z", "y")], [("x", F32, ["n"])], [("y", F32, [8])], {"z": EIGHT}
    )
    # Of the specs that are there, one is written anew.
    done = gauntlet(tmp_path, "init", "p", "--program", "m.onnx", "--edges", "--name", "n", "--again")
    assert done.code == 0, done.text
    assert "remove them if they are of another program: indices_cpu.json\n" in done.out
    done = gauntlet(tmp_path, "init", "p", "--program", "m.onnx", "--edges", "--name", "o")
    assert done.code == 0, done.text
    assert "note: there is no spec size_3: onnxruntime cannot run m.onnx" in done.out
    assert not (model.parent / "o" / "size_3_cpu.json").exists()


def use_index(outside: str, sizes: tuple[Any, ...] = (5,), **others: Any) -> IndexUse:
    return IndexUse("operator", outside, sizes, others.pop("spans", (1,) * len(sizes)), **others)


def make_program(count: int, *uses: IndexUse, dtype: str = "int32", known: bool = True) -> UserProgram:
    """A program in MLIR with an index."""
    element = f"i{dtype.removeprefix('u').removeprefix('int')}"
    index = replace(make_input("i", element, [count], None, dtype), index_uses=uses, uses_known=known)
    inputs = (make_input("x", "f32", [5, 3], None, "float32"), index)
    return UserProgram(Path("m.mlir"), "m.mlir", "m", "f", inputs, (), has_f64=False, is_partial=True)


def test_indices_of_mlir_keep_to_all_uses() -> None:
    everything = [4, 5, 0, -1, 2**31 - 1, -(2**31), -5, -6]
    assert find_ends(make_program(8, use_index(EVERYTHING))) == [[4, 0] * 4, everything]
    # A single one is outside, or not.
    assert find_ends(make_program(1, use_index(EVERYTHING))) == [[4], [0], [5], [-1], [2**31 - 1], [-(2**31)]]
    # A slice of two begins at 3 at the latest; what is computed must not overflow.
    sliced = use_index(EVERYTHING, spans=(2,), computed=True)
    assert find_ends(make_program(9, sliced)) == [
        [3, 0, 3, 0, 3, 0, 3, 0, 3],
        [3, 5, 0, -1, 4, 2**30 - 1, -(2**30), -5, -6],
    ]
    assert find_ends(make_program(2, use_index(EVERYTHING), use_index(NEGATIVE))) == [[4, 0], [-5, -1], [-1, -5]]
    assert find_ends(make_program(4, use_index(EVERYTHING), use_index(NOTHING, (3,)))) == [[0, 2, 0, 2]]
    assert find_ends(make_program(4, use_index(NOTHING, (None,)))) == [[0, 0, 0, 0]]
    assert find_ends(make_program(4, use_index(EVERYTHING), dtype="uint8")) == [[4, 0, 4, 0], [4, 5, 0, 127]]
    # Only values that a reference has run.
    assert find_ends(make_program(4, use_index(NOTHING), known=False)) == []
    assert find_ends(make_program(4)) == []


def test_indices_that_may_not_be_equal_are_distinct() -> None:
    apart = use_index(EVERYTHING, by_column=True, distinct="anywhere")
    assert find_ends(make_program(4, apart)) == [[4, 5, 0, -6]]
    # Those outside are left out, so they may be equal.
    assert find_ends(make_program(9, apart)) == [[4, 5, 0, -6, 1, 2, 3, 5, 5]]
    # Copied ones are equal.
    assert find_ends(make_program(4, replace(apart, layout=MOVED))) == []
    noise = next(fit_indices(program := make_program(4, apart), generate_input_sets(program)))
    assert list_values(noise[1]) == [4, 0, 1, 2]
    # Values at edges leave them as they are.
    assert make_edge_choices(program, noise)[1] == noise[1]


def test_indices_of_noise_are_within_their_range() -> None:
    program = make_program(6, use_index(EVERYTHING, (("x", 0),)), use_index(NOTHING, (4,), spans=(3,)))
    (_, noise), (_, unknown) = (
        next(fit_indices(item, generate_input_sets(item))) for item in (program, make_program(6, known=False))
    )
    assert set(list_values(noise)) == {0, 1}
    assert set(list_values(unknown)) == {1, 2, 3}


def test_all_open_sizes_are_one_size() -> None:
    inputs = (make_input("x", "f32", ["a", 4], None, "float32"), make_input("y", "f32", ["b", "a"], None, "float32"))
    program = UserProgram(Path("m.mlir"), "m.mlir", "m", "f", inputs, (), has_f64=False)
    for size in (1, 3):
        types = {tuple(choice.type for choice in choices) for choices in generate_input_sets(program, size)}
        assert types == {(f"{size}x4xf32", f"{size}x{size}xf32")}


def test_inputs_on_which_outputs_are_not_as_declared_are_not_taken() -> None:
    name = ReferenceName("onnxruntime", "1")
    first = ReferenceResult(0, True, (), name, (), (), (), {}, ())
    other = replace(first, as_declared=False)
    sets = InputSet((), runs=True, result=other)
    assert _find_objection(sets, first) == "an output has other sizes than the model declares"
    # A model that declares its outputs wrongly does so for all inputs.
    assert _find_objection(sets, other) == ""
