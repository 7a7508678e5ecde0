"""`init` and the toolkit's shipped files, for a user without a project."""

from __future__ import annotations

import io
import json
import os
import subprocess
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from iree_gauntlet import __version__, settings
from iree_gauntlet.artifacts.registry_file import Registry
from iree_gauntlet.errors import UsageError
from iree_gauntlet.settings import find_shipped_folder
from iree_gauntlet.system.atomic import write_atomic
from iree_gauntlet.upkeep import project_start
from iree_gauntlet.upkeep.format_schemas import FORMATS
from iree_gauntlet.upkeep.input_choices import generate_input_sets
from iree_gauntlet.upkeep.program_kinds import read_onnx
from iree_gauntlet.upkeep.project_start import _TEMPLATE
from iree_gauntlet.upkeep.spec_goldens import FileChange, emit_changes
from tests.support.checkout import needs_git
from tests.support.command_line import CommandResult, run_in_process
from tests.support.places import ROOT

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    folder = tmp_path / "empty"
    folder.mkdir()
    return folder


def gauntlet(folder: Path, *words: str) -> CommandResult:
    return run_in_process(
        words, folder, {**os.environ, "NO_COLOR": "1", "IREE_GAUNTLET_CACHE": str(folder / "cache")}, {}
    )


def floats(*sizes: int | str, name: str = "x") -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, sizes)


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
    assert "is already a project" in again.err


@pytest.mark.iree
def test_a_model_gets_goldens_of_its_first_run(empty: Path) -> None:
    program = network(empty, floats("batch", 4))
    done = gauntlet(empty, "init", "mine", "--program", str(program), "--goldens")
    assert done.code == 0, done.text
    spec = json.loads((empty / "mine/specs/benchmarks/My_Net-2/model_cpu.json").read_text())
    assert spec["golden_dispatch"] == {"cpu": 0}
    assert spec["golden_compiler"]
    assert "golden_time_ms" not in spec
    assert "changed 1 file" in done.err
    ran = gauntlet(empty / "mine", "run", "--stages", "compstat", "--unapplied-goldens", "fail")
    assert ran.code == 0, ran.text


@pytest.mark.iree
def test_a_project_of_ones_own_onnx_file_is_green_at_once(empty: Path) -> None:
    program = network(empty, floats("batch", 4))
    done = gauntlet(empty, "init", "mine", "--program", str(program))
    assert done.code == 0, done.text
    project = empty / "mine"
    spec = json.loads((project / "specs/regression_tests/My_Net-2/model_cpu.json").read_text())
    assert spec["onnx_import"] == {"shapes": {"x": [2, 4]}}
    assert not list(project.rglob("example"))
    assert "golden.record" not in done.out
    assert "wrote specs/regression_tests/My_Net-2/model_cpu/output_0.npy" in done.out
    ran = gauntlet(project, "run", "--stages", "threshold")
    assert ran.code == 0, ran.text


def test_without_onnxruntime_onnxs_evaluator_records(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (empty / "path").mkdir()
    (empty / "path" / "onnxruntime.py").write_text("raise ModuleNotFoundError")
    monkeypatch.setenv("PYTHONPATH", str(empty / "path"))
    done = gauntlet(empty, "init", "mine", "--program", str(network(empty, floats("batch", 4))))
    assert done.code == 0, done.text
    assert f"  as onnx {onnx.__version__} computes them\n  note: no onnxruntime in " in done.out
    assert (empty / "mine/specs/regression_tests/My_Net-2/model_cpu/output_0.npy").is_file()


@pytest.mark.iree
def test_a_device_that_no_runtime_knows_is_no_failure_of_the_product(empty: Path) -> None:
    gauntlet(empty, "init")
    for path in empty.glob("specs/*/example/dense_cpu.json"):
        path.write_text(path.read_text().replace("local-task", "local-tsk"))
    ran = gauntlet(empty, "run")
    assert ran.code == 3, ran.text
    assert ran.out.count("has no driver local-tsk: see `device` of the spec") >= 2


def test_what_came_with_the_toolkit_is_not_changed(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As in a wheel, where specs lie in the package.
    monkeypatch.setattr(settings, "__file__", str(ROOT / "specs" / "settings.py"))
    inside = ROOT / "specs" / "shipped" / "x.json"
    with pytest.raises(UsageError, match="is part of the toolkit and must not be changed"):
        settings.require_users_own_file(inside)
    with pytest.raises(UsageError, match="is part of the toolkit"):
        emit_changes([FileChange(inside, "a\n", "b\n")], "", write=True)
    settings.require_users_own_file(empty / "x.json")
    emit_changes([FileChange(inside, "a\n", "b\n")], "", write=False)


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
        (("--program", "none.onnx"), "--program none.onnx: no such file"),
        (("--program", "text.onnx"), "--program text.onnx is not an ONNX file, or damaged"),
        (("--program", "text.mlir"), "--program text.mlir: IREE's parser does not take it as MLIR: line 1, column 1: "),
        (("--program", "net.tflite"), "--program net.tflite: the file is damaged"),
        (
            ("--program", "other.tflite"),
            "other.tflite is not a TFLite model: its identifier TFL3 is missing\n  Copy or d",
        ),
        (("--program", "."), "--program .: is a folder"),
        (("text.onnx",), "text.onnx is a file"),
        (("mine", "text.onnx"), "init takes one folder, not mine text.onnx"),
        (("--shape", "x=1"), "--shape, --name, --data, --edges and --goldens require a program"),
        (("--edges",), "--shape, --name, --data, --edges and --goldens require a program"),
    ],
)
def test_what_cannot_be_begun_is_reported_and_makes_nothing(empty: Path, words: tuple[str, ...], message: str) -> None:
    (empty / "text.onnx").write_text("no protobuf at all: \x7f")
    (empty / "text.mlir").write_text("import numpy")
    (empty / "net.tflite").write_bytes(b"\x1c\0\0\0TFL3")
    (empty / "other.tflite").write_bytes(b"\x1c\0\0\0ORTM" + bytes(2000))
    done = gauntlet(empty, "init", *words)
    assert done.code == 2, done.text
    assert message in done.err
    # The cache may know the flags of IREE's tools.
    assert sorted(path.name for path in empty.iterdir() if path.name != "cache") == [
        *("net.tflite", "other.tflite", "text.mlir", "text.onnx")
    ]


def test_a_folder_that_cannot_be_written_is_reported(empty: Path) -> None:
    # Nobody, root included, makes a folder there.
    done = gauntlet(empty, "init", "/proc/mine")
    assert done.code == 2, done.text
    assert "/proc/mine" in done.err
    assert "Name a writable folder." in done.err


def test_sizes_that_a_file_leaves_open_are_said_and_chosen(empty: Path) -> None:
    program = network(empty, floats("batch", 4, "length"))
    done = gauntlet(empty, "init", "mine", "--program", str(program), "--no-record")
    assert "  x: 2x4x8xf32, random://normal/2x4x8xf32; open in the file: batch, length\n" in done.out
    done = gauntlet(empty, "init", "other", "--program", str(program), "--shape", "x=2x4x16", "--no-record")
    assert done.code == 0, done.text
    spec, benchmark = (
        json.loads((empty / f"other/specs/{kind}/My_Net-2/model_cpu.json").read_text())
        for kind in ("regression_tests", "benchmarks")
    )
    assert spec["onnx_import"] == {"shapes": {"x": [2, 4, 16]}}
    assert spec["inputs"] == [{"source": "random://normal/2x4x16xf32?seed=1"}]
    assert benchmark["inputs"] == ["2x4x16xf32"]
    for shape, message in (
        ("x=2x5x16", "--shape x=2x5x16: the file has ?x4x?"),
        ("x=2x4", "--shape x=2x4: the file has ?x4x?"),
        ("y=2", "--shape y=…: My Net-2.onnx has no such input\n  Its inputs: x."),
        ("2x4x16", "--shape 2x4x16: expected an input and its sizes"),
    ):
        wrong = gauntlet(empty, "init", "third", "--program", str(program), "--shape", shape)
        assert (wrong.code, (empty / "third").exists()) == (2, False), wrong.text
        assert message in wrong.err
    twice = gauntlet(empty, "init", "third", "--program", str(program), "--shape", "x=2x4x8", "--shape", "x=3x4x8")
    assert (twice.code, (empty / "third").exists()) == (2, False), twice.text
    assert "--shape x=… is given twice" in twice.err


def test_a_project_gets_another_model(empty: Path) -> None:
    program = network(empty, floats(1, 4))
    assert gauntlet(empty, "init").code == 0
    (empty / "suites/cpu.toml").write_text("mine")
    done = gauntlet(empty, "init", "--program", str(program))
    assert done.code == 0, done.text
    assert "made 3 files" in done.out
    assert (empty / "suites/cpu.toml").read_text() == "mine"
    again = gauntlet(empty, "init", "--program", str(program))
    assert again.code == 2
    assert "there already: specs/regression_tests/My_Net-2 and specs/benchmarks/My_Net-2" in again.err
    # From anywhere in the project.
    (empty / "suites/deeper").mkdir()
    named = gauntlet(empty / "suites/deeper", "init", "--program", str(program), "--name", "Another one", "--no-record")
    assert named.code == 0, named.text
    assert (empty / "specs/regression_tests/Another_one/model_cpu.json").is_file()


def test_in_a_folder_of_a_repository_the_place_of_the_workflow_is_said(empty: Path) -> None:
    (empty / ".git").mkdir()
    assert "GitHub reads workflows at the top of a repository" in gauntlet(empty, "init", "a b").out
    program = network(empty, floats(1, 4))
    # Said once: what it has moved is not moved again for another model.
    assert "GitHub reads" not in gauntlet(empty / "a b", "init", "--program", str(program), "--no-record").out
    assert "GitHub reads" not in gauntlet(empty, "init").out


def heavy(folder: Path, weight: float = 2.0) -> Path:
    """A file whose weights lie beside it."""
    folder.mkdir(exist_ok=True)
    path = folder / "heavy.onnx"
    values = weight * np.arange(16, dtype=np.float32).reshape(4, 4)
    weights = numpy_helper.from_array(values, "w")
    product = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([product], "g", [floats(1, 4)], [floats(1, 4, name="y")], [weights])
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    (folder / "heavy.data").unlink(missing_ok=True)
    onnx.save(model, str(path), save_as_external_data=True, location="heavy.data", size_threshold=0)
    return path


def test_what_has_changed_since_it_was_recorded_is_pointed_out(empty: Path) -> None:
    program = heavy(empty / "given")
    assert gauntlet(empty, "init", "mine", "--program", str(program), "--no-record").code == 0
    project = empty / "mine"
    place = project / "specs/regression_tests/heavy"
    assert gauntlet(project, "golden.record", "--model", "heavy").code == 0
    assert "warning" not in gauntlet(project, "lint").text
    spec = place / "model_cpu.json"
    spec.write_text(spec.read_text().replace("seed=1", "seed=2"))
    heavy(place, 3.0)
    output = place / "model_cpu/output_0.npy"
    np.save(output, np.load(output) + 1)
    done = gauntlet(project, "lint")
    assert done.code == 0, done.text
    line = next(number for number, text in enumerate(spec.read_text().splitlines(), 1) if '"outputs"' in text)
    for what in (
        "output_0.npy is not what was recorded",
        "heavy.data has changed since it was recorded",
        "it was recorded with another input than random://normal/1x4xf32?seed=2",
    ):
        assert f"model_cpu.json:{line}: outputs: {what}" in done.out
    assert "`gauntlet golden.record --model heavy` records its outputs again" in done.out
    spec.write_text(spec.read_text().replace("heavy.onnx", "other.onnx"))
    (place / "heavy.onnx").rename(place / "other.onnx")
    assert "it was recorded with the model ../heavy.onnx" in gauntlet(project, "lint").out
    (place / "model_cpu/provenance.json").write_text('{"made_by": "me"}')
    assert "recorded" not in gauntlet(project, "lint").out


@pytest.mark.iree
def test_weights_that_are_cut_short_are_no_fault_of_the_compiler(empty: Path) -> None:
    assert gauntlet(empty, "init", "mine", "--program", str(heavy(empty / "given"))).code == 0
    project = empty / "mine"
    data = project / "specs/regression_tests/heavy/heavy.data"
    data.write_bytes(data.read_bytes()[:20])
    ran = gauntlet(project, "compile", "--model", "heavy")
    assert ran.code == 3, ran.text
    assert "is not a usable ONNX file: External data length (64) exceeds available data (20 bytes" in ran.out
    data.unlink()
    done = gauntlet(project, "lint")
    assert done.code == 2
    assert "heavy.data is missing" in done.err


def test_a_size_of_minus_one_is_open_too(empty: Path) -> None:
    program = network(empty, floats(-1, 3))
    done = gauntlet(empty, "init", "a", "--program", str(program), "--no-record")
    assert "x: 2x3xf32, random://normal/2x3xf32; open in the file: dimension 0\n" in done.out
    words = ("--program", str(program), "--shape", "x=7x3", "--no-record")
    assert gauntlet(empty, "init", "b", *words).code == 0


def test_devices_and_sizes_that_cannot_be_meant_are_pointed_out(empty: Path) -> None:
    program = network(empty, floats("n", 4))
    assert gauntlet(empty, "init", "--program", str(program), "--shape", "x=2x4", "--no-record").code == 0
    benchmark = empty / "specs/benchmarks/My_Net-2/model_cpu.json"
    spec = empty / "specs/regression_tests/My_Net-2/model_cpu.json"
    assert "warning" not in gauntlet(empty, "lint").text
    benchmark.write_text(benchmark.read_text().replace("2x4xf32", "3x4xf32"))
    spec.write_text(spec.read_text().replace("local-task", "local-tsak"))
    said = gauntlet(empty, "lint").out
    assert "benchmarks/My_Net-2/model_cpu.json:2: inputs: none is 2x4, which onnx_import.shapes says of x" in said
    assert "device: IREE has no driver 'local-tsak'; did you mean 'local-task'?" in said


@pytest.mark.iree
def test_a_program_and_its_weights_may_be_links(empty: Path) -> None:
    """As in a snapshot of the Hugging Face hub."""
    program = heavy(empty / "given")
    for number, link in enumerate((program, program.parent / "heavy.data")):
        blob = empty / "blobs" / f"{number:040}"
        blob.parent.mkdir(exist_ok=True)
        link.rename(blob)
        link.symlink_to(blob)
    begun = gauntlet(empty, "init", "mine", "--program", str(program))
    assert begun.code == 0, begun.text
    assert "output_0.npy" in begun.out
    assert "did not do" not in begun.out
    assert "a reference" not in begun.out.replace("running a reference", "")


@pytest.mark.iree
def test_recording_keeps_the_byte_order_mark_of_a_spec(empty: Path) -> None:
    program = heavy(empty / "given")
    assert gauntlet(empty, "init", "mine", "--program", str(program), "--no-record").code == 0
    spec = empty / "mine/specs/regression_tests/heavy/model_cpu.json"
    before = spec.read_bytes()
    spec.write_bytes(b"\xef\xbb\xbf" + before)
    assert gauntlet(empty / "mine", "golden.record", "--model", "heavy").code == 0
    after = spec.read_bytes()
    assert after.startswith(b"\xef\xbb\xbf{")
    assert b"output_0.npy" in after


@pytest.mark.iree
def test_weights_beside_an_onnx_file_come_along_and_count(empty: Path) -> None:
    program = heavy(empty / "given")
    assert gauntlet(empty, "init", "mine", "--program", str(program)).code == 0
    project = empty / "mine"
    place = project / "specs/regression_tests/heavy"
    provenance = json.loads((place / "model_cpu/provenance.json").read_text())
    assert [item["source"] for item in provenance["model"]["data"]] == ["../heavy.data"]
    words = ("run", "--stages", "threshold")
    assert gauntlet(project, *words).code == 0
    again = gauntlet(project, *words)
    assert again.code == 0
    assert "imports: 1 from cache, 0 made" in again.out
    # The program stays as it was, byte by byte.
    before = (place / "heavy.onnx").read_bytes()
    heavy(empty / "given", 3.0)
    assert (empty / "given" / "heavy.onnx").read_bytes() == before
    (place / "heavy.data").write_bytes((empty / "given" / "heavy.data").read_bytes())
    wrong = gauntlet(project, *words)
    assert wrong.code == 1, wrong.text
    assert "4 of 4 values" in wrong.out
    (place / "heavy.data").unlink()
    gone = gauntlet(project, *words)
    assert gone.code == 3
    assert "heavy.data is missing" in gone.out
    (program.parent / "heavy.data").unlink()
    lost = gauntlet(empty, "init", "other", "--program", str(program))
    assert lost.code == 2
    assert "keeps weights in heavy.data, which does not exist" in lost.err


def test_inputs_of_all_types_are_read(tmp_path: Path) -> None:
    values = [
        helper.make_tensor_value_info("f", TensorProto.FLOAT16, [2, 3]),
        helper.make_tensor_value_info("ids", TensorProto.INT64, ["n", "m"]),
        helper.make_tensor_value_info("mask", TensorProto.BOOL, []),
        helper.make_tensor_value_info("bytes", TensorProto.UINT8, [5]),
    ]
    program = read_onnx(network(tmp_path, *values, opset=11))
    assert (program.name, program.function, len(program.outputs)) == ("My_Net-2", "main_graph", 4)
    choices = next(generate_input_sets(program))
    assert [choice.type for choice in choices] == ["2x3xf16", "2x8xi64", "i1", "5xi8"]
    assert [choice.source for choice in choices] == [
        *("random://normal/2x3xf16?seed=1", "", "random://integers/i1?seed=3", "")
    ]
    assert all(set(choice.values.split()) <= {"0", "1"} for choice in choices)
    benchmarked = [choice.for_benchmark for choice in choices]
    assert [text.partition("=")[0] for text in benchmarked] == ["2x3xf16", "2x8xi64", "i1", "5xi8"]
    assert benchmarked[2] == "i1=01", "bits are hexadecimal"
    assert program.make_import_options(choice.type for choice in choices) == {"shapes": {"ids": [2, 8]}, "opset": 17}


def test_without_a_project_the_two_ways_on_are_named(empty: Path) -> None:
    done = gauntlet(empty, "run")
    assert done.code == 2
    assert "`gauntlet run --suite cpu` runs the pretrained models that come with the toolkit" in done.err
    assert "`gauntlet init` starts a project of your own in this folder" in done.err


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
    assert find_shipped_folder() == ROOT


def read_contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and "cache" not in path.parts)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def write_unknown_operator(folder: Path) -> Path:
    """A model that no reference runs: its operator is nobody's."""
    folder.mkdir()
    node = helper.make_node("Nobodys", ["x"], ["y"], domain="example.org")
    graph = helper.make_graph([node], "g", [floats(1, 4)], [floats(1, 4, name="y")])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("example.org", 1)]
    onnx.save(helper.make_model(graph, ir_version=8, opset_imports=opsets), str(folder / "model.onnx"))
    return folder / "model.onnx"


def test_a_model_is_begun_again_with_other_sizes(empty: Path) -> None:
    program = network(empty, floats("batch", 4))
    assert gauntlet(empty, "init", "mine", "--program", str(program)).code == 0
    project = empty / "mine"
    place = project / "specs/regression_tests/My_Net-2"
    first = read_contents(project)
    (place / "model_rocm.json").write_text("mine")
    benchmark = project / "specs/benchmarks/My_Net-2/model_cpu.json"
    golden = {"golden_time_ms": {"cpu": 3.0}, "golden_dispatch": {"cpu": 4}}
    benchmark.write_text(json.dumps(json.loads(benchmark.read_text()) | golden))
    (project / "gauntlet.toml").write_text("# mine\n")
    done = gauntlet(project, "init", "--program", str(program), "--shape", "x=3x4", "--again")
    assert done.code == 0, done.text
    lost = "specs/benchmarks/My_Net-2/model_cpu.json was written anew, without its golden_dispatch, golden_time_ms;"
    assert f"warning: {lost}" in done.err
    assert done.err.count("was written anew") == 1
    assert np.load(place / "model_cpu/output_0.npy").shape == (3, 4)
    assert json.loads((place / "model_cpu.json").read_text())["onnx_import"] == {"shapes": {"x": [3, 4]}}
    second = read_contents(project)
    assert set(second) == {*first, "specs/regression_tests/My_Net-2/model_rocm.json"}
    assert (place / "model_rocm.json").read_text() == "mine"
    assert (project / "gauntlet.toml").read_text() == "# mine\n"
    # One that fails leaves what was there.
    wrong = gauntlet(
        project, "init", "--program", str(write_unknown_operator(empty / "other")), "--name", "My Net-2", "--again"
    )
    assert wrong.code != 0, wrong.text
    assert read_contents(project) == second


def test_what_fails_to_begin_leaves_nothing(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = write_unknown_operator(empty / "given")
    done = gauntlet(empty, "init", "mine", "--program", str(program))
    assert done.code != 0, done.text
    assert "nothing is kept: there are no outputs to expect" in done.out
    assert {path.name for path in empty.iterdir()} - {"cache"} == {"given"}
    # Nor does one that is cut short, here by a full disk.
    (empty / "there").mkdir()

    def fill(path: Path, content: bytes) -> None:
        if path.name == "gauntlet.toml":
            raise OSError(28, "No space left on device", str(path))
        write_atomic(path, content)

    monkeypatch.setattr(project_start, "write_atomic", fill)
    for folder in ("there", "mine"):
        full = gauntlet(empty, "init", folder)
        assert (full.code, "No space left on device" in full.err) == (2, True), full.text
    assert {path.name for path in empty.iterdir()} - {"cache"} == {"given", "there"}
    assert list((empty / "there").iterdir()) == []


def test_a_project_is_begun_again(empty: Path) -> None:
    assert gauntlet(empty, "init").code == 0
    first = read_contents(empty)
    for path in ("suites/cpu.toml", "specs/benchmarks/example/dense_cpu.json"):
        (empty / path).write_text("broken")
    (empty / "suites" / "mine.toml").write_text("mine")
    done = gauntlet(empty, "init", "--again")
    assert done.code == 0, done.text
    assert read_contents(empty) == {**first, "suites/mine.toml": b"mine"}


@pytest.mark.parametrize(
    ("kept", "source"),
    [
        (None, f"iree-gauntlet[iree]=={__version__}"),
        (
            {"url": "https://me:secret@host/it", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            "iree-gauntlet[iree] @ git+https://host/it@abc",
        ),
        ({"url": "https://host/it.whl", "archive_info": {}}, "iree-gauntlet[iree] @ https://host/it.whl"),
        ({"url": "file:///none", "dir_info": {"editable": True}}, "iree-gauntlet[iree] @ file:///none"),
    ],
)
def test_the_workflow_installs_what_was_installed_here(
    empty: Path, monkeypatch: pytest.MonkeyPatch, kept: dict[str, object] | None, source: str
) -> None:
    written = SimpleNamespace(read_text=lambda _name: kept and json.dumps(kept))
    monkeypatch.setattr(project_start, "distribution", lambda _name: written)
    done = gauntlet(empty, "init")
    assert done.code == 0, done.text
    assert f'TOOLKIT: "{source}"\n' in (empty / ".github/workflows/gauntlet.yml").read_text()
    assert ("GitHub does not have what the workflow installs" in done.out) == ("file:" in source)


@needs_git
def test_the_workflow_installs_from_where_a_checkout_came(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkout = empty / "a b"
    for words in (["init", "-q", str(checkout)], ["-C", str(checkout), "remote", "add", "origin", "https://t@host/it"]):
        subprocess.run(["git", *words], check=True)
    kept = json.dumps({"url": checkout.as_uri(), "dir_info": {}})
    monkeypatch.setattr(project_start, "distribution", lambda _name: SimpleNamespace(read_text=lambda _name: kept))
    assert project_start.find_toolkit_source() == "iree-gauntlet[iree] @ git+https://host/it"
