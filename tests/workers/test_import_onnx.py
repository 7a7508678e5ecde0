"""Preparing and importing ONNX models, and recording their expected outputs."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iree_gauntlet.workers.iree_side import import_onnx
from iree_gauntlet.workers.iree_side.import_onnx import (
    InputError,
    find_functions,
    load_onnx,
    parse_shape,
    prepare,
    read_with_weights,
)

if TYPE_CHECKING:
    from pathlib import Path


onnx = pytest.importorskip("onnx")
helper = onnx.helper
FLOAT = onnx.TensorProto.FLOAT


def model(
    *,
    opset: int = 11,
    shape: tuple[int | str, ...] = ("batch", 3),
    output: tuple[int | str, ...] | None = ("stale", 7),
    name: str = "main graph",
) -> Any:
    """`y = x @ w`, with a wrongly declared output: real files have those."""
    weight = helper.make_tensor("w", FLOAT, [3, 4], np.arange(12, dtype=np.float32).tolist())
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        name,
        [helper.make_tensor_value_info("x", FLOAT, shape), helper.make_tensor_value_info("w", FLOAT, [3, 4])],
        [helper.make_tensor_value_info("y", FLOAT, output)],
        [weight],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    onnx.save(model(), path)
    return path


def shape_of(value: Any) -> list[int]:
    return [dim.dim_value for dim in value.type.tensor_type.shape.dim]


def test_shapes_are_fixed_and_outputs_inferred_anew() -> None:
    prepared = prepare(model(), {"x": (2, 3)}, 17)
    assert shape_of(prepared.graph.input[0]) == [2, 3]
    assert shape_of(prepared.graph.output[0]) == [2, 4]
    assert prepared.opset_import[0].version == 17


def test_a_declared_rank_that_is_wrong_does_no_harm() -> None:
    assert shape_of(prepare(model(output=(1, 2, 3)), {"x": (2, 3)}, 17).graph.output[0]) == [2, 4]


def test_minus_one_is_a_dynamic_dimension() -> None:
    assert shape_of(prepare(model(shape=(-1, 3)), {"x": (5, 3)}, None).graph.input[0]) == [5, 3]


def test_without_options_the_model_is_as_it_was() -> None:
    prepared = prepare(model(output=("batch", 4)), {}, None)
    assert prepared.opset_import[0].version == 11
    assert shape_of(prepared.graph.output[0]) == [0, 4]


@pytest.mark.parametrize(
    ("shapes", "opset", "said"),
    [
        ({"z": (1, 3)}, None, r"no input is named 'z'; the model's inputs: x=\[batch, 3\]$"),
        ({"w": (3, 4)}, None, "no input is named 'w'"),
        ({"x": (1, 2, 3)}, None, r"rank 3, but input x=\[batch, 3\] has rank 2"),
        ({"x": ()}, None, "shape scalar has rank 0"),
        ({"x": (1, 4)}, None, "fixed size of 3 in dimension 1, but 4 was requested"),
        ({}, 9, "opset 9 is lower than the file's 11"),
        ({}, 999, "opset 999 is unknown to onnx"),
    ],
)
def test_mistakes_are_named(shapes: dict[str, tuple[int, ...]], opset: int | None, said: str) -> None:
    with pytest.raises(InputError, match=said):
        prepare(model(), shapes, opset)


@given(st.text(min_size=1), st.lists(st.integers(1, 9999), max_size=5))
def test_shapes_are_read_back(name: str, shape: list[int]) -> None:
    assert parse_shape(f"{name}={'x'.join(map(str, shape))}") == (name, tuple(shape))


@pytest.mark.parametrize("text", ["x", "=1x2", "x=1x", "x=1xx2", "x=0x3", "x=-1x3", "x=1,3", "x=1 x 3", "x=²"])
def test_texts_that_are_no_shape(text: str) -> None:
    with pytest.raises(InputError):
        parse_shape(text)


def test_function_names_are_read_from_the_program() -> None:
    lines = [
        b"module {",
        b"  func.func @main_graph(%arg0: tensor<1xf32>) {",
        b'  func.func @"Model from PaddlePaddle."(%arg0: tensor<1xf32>) {',
        b'  func.func @"a\\22b\\\\c"() {',
        b"  func.func private @helper()",
        b'  // func.func @no("',
    ]
    assert find_functions(lines) == ["main_graph", "Model from PaddlePaddle.", 'a"b\\c']


@pytest.mark.iree
def test_a_model_is_imported_in_one_process(saved: Path, tmp_path: Path) -> None:
    pytest.importorskip("iree.compiler")
    output = tmp_path / "out.mlir"
    done = subprocess.run(
        [sys.executable, import_onnx.__file__, saved, "-o", output, "--opset", "17", "--shape", "x=2x3"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "main graph\n"
    assert "!torch.vtensor<[2,4],f32>" in output.read_text(encoding="utf-8")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.onnx", "out.mlir"]


@pytest.mark.parametrize("blob", ["../blobs/0a1b", "../store/md5/0a/1b", "model.data.real"])
def test_weights_may_be_links(tmp_path: Path, blob: str) -> None:
    """As in the caches of the Hugging Face hub and of DVC: onnx itself reads none."""
    folder = tmp_path / "snapshot"
    folder.mkdir()
    path, weights = folder / "model.onnx", folder / "weights.data"
    changed = model()
    changed.graph.node[0].input[1] = "inner"
    value = helper.make_tensor("inner", FLOAT, [3, 4], np.arange(12, dtype=np.float32).tobytes(), raw=True)
    changed.graph.node.insert(0, helper.make_node("Constant", [], ["inner"], value=value))
    onnx.save_model(
        changed, path, save_as_external_data=True, location=weights.name, size_threshold=0, convert_attribute=True
    )
    for file, target in ((weights, folder / blob), (path, tmp_path / "blobs/model")):
        target.parent.mkdir(parents=True, exist_ok=True)
        file.rename(target)
        file.symlink_to(target)
    read = read_with_weights(path)
    assert onnx.numpy_helper.to_array(read.graph.node[0].attribute[0].t).tolist()[2] == [8, 9, 10, 11]
    assert onnx.numpy_helper.to_array(read.graph.initializer[0]).size == 12


def test_weights_outside_of_the_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / "model.onnx"
    changed = model()
    tensor = changed.graph.initializer[0]
    tensor.ClearField("float_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", "../secret"
    path.write_bytes(changed.SerializeToString())
    (tmp_path / "secret").write_bytes(bytes(48))
    with pytest.raises(InputError, match="not a usable ONNX file"):
        load_onnx(path)


@pytest.mark.iree
def test_what_the_importer_refuses_exits_1_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("iree.compiler")
    broken = model()
    broken.graph.node[0].input[1] = "missing"
    path = tmp_path / "broken.onnx"
    onnx.save(broken, path)
    assert import_onnx.main([str(path), "-o", str(tmp_path / "out.mlir")]) == 1
    error = capsys.readouterr().err
    assert error.startswith("import: broken.onnx: ")
    assert error.count("\n") == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["broken.onnx"]


@pytest.mark.parametrize(
    ("content", "arguments", "said"),
    [
        (None, [], "cannot read"),
        (b"no model at all", [], "not a usable ONNX file"),
        (b"", [], "not a usable ONNX file: it has no nodes"),
        (b"", ["--shape", "x"], "expected NAME=1x3x48x192"),
        (b"", ["--shape", "x=1", "--shape", "x=2"], "two shapes"),
    ],
)
def test_unusable_commands_exit_2(
    content: bytes | None, arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.onnx"
    if content is not None:
        path.write_bytes(content)
    assert import_onnx.main([str(path), "-o", str(tmp_path / "out.mlir"), *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out.mlir").exists()


def test_no_folder_to_write_in(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert import_onnx.main([str(saved), "-o", str(saved.parent / "none" / "out.mlir")]) == 2
    assert "no folder" in capsys.readouterr().err


def test_without_onnx_the_message_says_how_to_get_it(
    saved: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert import_onnx.main([str(saved), "-o", str(saved.parent / "out.mlir")]) == 2
    assert 'pip install "iree-base-compiler[onnx]"' in capsys.readouterr().err
