"""`init`, and what comes with the toolkit, as somebody meets them who has no project yet."""

from __future__ import annotations

import io
import json
import os
from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from iree_gauntlet.artifacts.registry_file import Registry
from iree_gauntlet.settings import shipped_folder
from iree_gauntlet.upkeep.format_schemas import FORMATS
from iree_gauntlet.upkeep.onnx_program import read_onnx
from iree_gauntlet.upkeep.project_start import _TEMPLATE
from tests.support.command_line import Done, run_here
from tests.support.places import ROOT

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    folder = tmp_path / "empty"
    folder.mkdir()
    return folder


def gauntlet(folder: Path, *words: str) -> Done:
    return run_here(words, folder, {**os.environ, "NO_COLOR": "1", "IREE_GAUNTLET_CACHE": str(folder / "cache")}, {})


def network(folder: Path, *inputs: onnx.ValueInfoProto, opset: int = 17) -> Path:
    """A file whose outputs are its inputs."""
    outputs = [
        helper.make_tensor_value_info(f"{item.name}_out", item.type.tensor_type.elem_type, None) for item in inputs
    ]
    nodes = [helper.make_node("Identity", [item.name], [f"{item.name}_out"]) for item in inputs]
    model = helper.make_model(
        helper.make_graph(nodes, "main_graph", list(inputs), outputs),
        ir_version=8,
        opset_imports=[helper.make_opsetid("", opset)],
    )
    path = folder / "My Net-2.onnx"
    onnx.save(model, str(path))
    return path


@pytest.mark.iree
def test_a_new_project_is_green(empty: Path) -> None:
    done = gauntlet(empty, "init")
    assert done.code == 0, done.text
    assert "gauntlet run" in done.out
    ran = gauntlet(empty, "run", "--stages", "threshold", "--stages", "compstat")
    assert ran.code == 0, ran.text
    assert "example/dense@cpu" in ran.out
    assert gauntlet(empty, "lint", "--suite", "cpu").code == 0
    again = gauntlet(empty, "init")
    assert again.code == 2
    assert "is a project already" in again.err


@pytest.mark.iree
def test_a_project_of_ones_own_onnx_file_is_green_once_its_outputs_are_recorded(empty: Path) -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])
    program = network(empty, x)
    done = gauntlet(empty, "init", "mine", "--program", str(program))
    assert done.code == 0, done.text
    project = empty / "mine"
    spec = json.loads((project / "specs/regression_tests/my_net_2/model_cpu.json").read_text())
    assert spec["onnx_import"] == {"shapes": {"x": [1, 4]}}
    assert not list(project.rglob("example"))
    record = next(line for line in done.out.splitlines() if "golden.record" in line)
    words = record.partition("#")[0].split()[1:]
    recorded = gauntlet(project, *words)
    assert recorded.code == 0, recorded.text
    assert "write into" not in recorded.out, "the spec names them already"
    ran = gauntlet(project, "run", "--stages", "threshold")
    assert ran.code == 0, ran.text


def test_what_is_there_stays(empty: Path) -> None:
    (empty / ".gitignore").write_text("mine\n")
    done = gauntlet(empty, "init", ".")
    assert done.code == 0
    assert ".gitignore is there already, and stays" in done.out
    assert (empty / ".gitignore").read_text() == "mine\n"


def test_the_expected_output_of_the_example_is_what_numpy_says(empty: Path) -> None:
    gauntlet(empty, "init")
    found = np.load(io.BytesIO((empty / "specs/regression_tests/example/dense_cpu/output_0.npy").read_bytes()))
    assert (found.shape, found.dtype) == ((8, 4), np.float32)
    assert (found == 0).any()
    assert (found > 1).any()


def test_every_file_of_the_template_gets_there(empty: Path) -> None:
    gauntlet(empty, "init")
    wanted = {path.relative_to(_TEMPLATE).as_posix() for path in _TEMPLATE.rglob("*") if path.is_file()}
    there = {path.relative_to(empty).as_posix() for path in empty.rglob("*") if path.is_file()}
    made = {".gitignore", "specs/regression_tests/example/dense_cpu/output_0.npy"}
    assert there == (wanted - {"gitignore"}) | made | {f".schemas/{name}.json" for name in FORMATS}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--program", "none.onnx"), "--program none.onnx: there is no such file"),
        (("--program", "text.onnx"), "--program text.onnx is no ONNX file"),
        (("text.onnx",), "text.onnx is a file"),
    ],
)
def test_what_cannot_be_begun_is_reported_and_makes_nothing(empty: Path, words: tuple[str, ...], message: str) -> None:
    (empty / "text.onnx").write_text("no protobuf at all: \xff")
    done = gauntlet(empty, "init", *words)
    assert done.code == 2, done.text
    assert message in done.err
    assert [path.name for path in empty.iterdir()] == ["text.onnx"]


def test_inputs_of_all_types_are_read(tmp_path: Path) -> None:
    values = [
        helper.make_tensor_value_info("f", TensorProto.FLOAT16, [2, 3]),
        helper.make_tensor_value_info("ids", TensorProto.INT64, ["n", "m"]),
        helper.make_tensor_value_info("mask", TensorProto.BOOL, []),
        helper.make_tensor_value_info("bytes", TensorProto.UINT8, [5]),
    ]
    program = read_onnx(network(tmp_path, *values, opset=11))
    assert (program.name, program.function, program.outputs) == ("my_net_2", "main_graph", 4)
    assert program.random_inputs == (
        "normal/2x3xf16?seed=1",
        "integers/1x1xsi64?seed=2&low=0&high=2",
        "integers/i1?seed=3&low=0&high=2",
        "integers/5xui8?seed=4&low=0&high=2",
    )
    assert program.types == ("2x3xf16", "1x1xi64", "i1", "5xi8")
    assert program.onnx_import == {"shapes": {"ids": [1, 1]}, "opset": 17}


def test_without_a_project_the_two_ways_on_are_named(empty: Path) -> None:
    done = gauntlet(empty, "run")
    assert done.code == 2
    assert "`gauntlet run --suite cpu` runs the pretrained models that come with the toolkit" in done.err
    assert "`gauntlet init` begins a project of your own here" in done.err


def test_suites_that_come_with_the_toolkit_are_found_anywhere(empty: Path) -> None:
    listed = json.loads(gauntlet(empty, "list", "--suite", "cpu", "--format", "json").out)
    assert ("dtln", "spectral") in {(item["model"], item["submodel"]) for item in listed}
    unknown = gauntlet(empty, "list", "--suite", "gpu")
    assert unknown.code == 2
    # A project's own goes first.
    gauntlet(empty, "init")
    own = gauntlet(empty, "list", "--suite", "cpu")
    assert "example" in own.out
    assert "dtln" not in own.out


def test_hashes_that_come_with_the_toolkit_hold_where_a_project_has_none(empty: Path) -> None:
    shipped = Registry.read(ROOT / "cache" / "registry.txt")
    assert shipped.entries
    assert Registry.of_project(empty).entries == shipped.entries
    (empty / "cache").mkdir()
    (empty / "cache" / "registry.txt").write_text("")
    assert Registry.of_project(empty).entries == {}
    assert shipped_folder() == ROOT
