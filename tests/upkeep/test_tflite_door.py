"""`init --program` for TFLite, and the import of .tflite programs of specs as a step."""

from __future__ import annotations

import json
import os
import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from iree_gauntlet.stages import Stage
from iree_gauntlet.workers.iree_side.import_tflite import _make_generic, main
from tests.support.command_line import CommandResult, run_in_process
from tests.support.spec_trees import CPU, find_step, load, plan, write_tree

if TYPE_CHECKING:
    from pathlib import Path

_ADD, _CUSTOM = 0, 32
_ADD_OPTIONS = 11


def make_model(code: int, custom_name: str = "") -> bytes:
    """A model of one operator with two inputs of 2x3 in f32."""
    flatbuffers = pytest.importorskip("flatbuffers", reason="needs flatbuffers, which onnxruntime brings")
    builder = flatbuffers.Builder()

    def table(size: int, *slots: tuple[int, int, str]) -> int:
        builder.StartObject(size)
        for slot, value, kind in slots:
            if kind == "offset":
                builder.PrependUOffsetTRelativeSlot(slot, value, 0)
            else:
                getattr(builder, f"Prepend{kind}Slot")(slot, value, 0)
        return int(builder.EndObject())

    def vector(values: list[int], kind: str = "Int32") -> int:
        builder.StartVector(4, len(values), 4)
        for value in reversed(values):
            getattr(builder, f"Prepend{kind}")(value)
        return int(builder.EndVector())

    custom = [(1, builder.CreateString(custom_name), "offset")] if custom_name else []
    codes = vector([table(4, (0, code, "Int8"), *custom, (3, code, "Int32"))], "UOffsetTRelative")
    names = [builder.CreateString(name) for name in ("a", "b", "sum")]
    shape = vector([2, 3])
    tensors = [table(8, (0, shape, "offset"), (2, 1, "Uint32"), (3, name, "offset")) for name in names]
    all_tensors = vector(tensors, "UOffsetTRelative")
    inputs, outputs = vector([0, 1]), vector([2])
    options = table(2)
    operator = table(
        9, (1, inputs, "offset"), (2, outputs, "offset"), (3, _ADD_OPTIONS, "Uint8"), (4, options, "offset")
    )
    operators = vector([operator], "UOffsetTRelative")
    main = builder.CreateString("main")
    graph = table(
        5,
        *((slot, value, "offset") for slot, value in enumerate((all_tensors, inputs, outputs))),
        (3, operators, "offset"),
        (4, main, "offset"),
    )
    graphs = vector([graph], "UOffsetTRelative")
    buffers = vector([table(1), table(1)], "UOffsetTRelative")
    model = table(8, (0, 3, "Uint32"), (1, codes, "offset"), (2, graphs, "offset"), (4, buffers, "offset"))
    builder.Finish(model, b"TFL3")
    return bytes(builder.Output())


def gauntlet(folder: Path, *words: str) -> CommandResult:
    environment = {**os.environ, "NO_COLOR": "1", "IREE_GAUNTLET_CACHE": str(folder / "cache")}
    return run_in_process(words, folder, environment, {})


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def test_custom_operators_are_named_and_damage_is_refused(tmp_path: Path) -> None:
    model = make_model(_CUSTOM, "Convolution2DTransposeBias")
    (position,) = struct.unpack_from("<I", model)
    files = {
        "custom.bin": (model, "it has custom operators, which only the programs of their makers know: Convolution2DTr"),
        "short": (model[:12], "the file is damaged: it ends after 12 bytes, and at least "),
        # The table's own table lies before the file.
        "wild": (model[:position] + b"\xff\xff\xff\x7f" + model[position + 4 :], "the file is damaged: a negative off"),
    }
    for name, (content, message) in files.items():
        (tmp_path / name).write_bytes(content)
        done = gauntlet(tmp_path, "init", "p", "--program", name)
        assert done.code == 2, done.text
        assert f"--program {name}: {message}" in done.err
    assert not (tmp_path / "p").exists()


def test_a_text_of_a_spec_is_no_tflite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "net.tflite").write_text("module {}")
    assert main(["", str(tmp_path / "net.tflite"), "-o", str(tmp_path / "out.mlir")]) == 2
    message = "import: net.tflite: it is no TFLite model: its identifier TFL3 is missing\n"
    assert capsys.readouterr().err == message


def test_a_spec_of_tflite_is_imported_by_a_step(tmp_path: Path) -> None:
    write_tree(tmp_path, {"net/model_cpu.json": json.dumps(_SPEC), "net/net.tflite": "x"})
    imported = find_step(plan(load(tmp_path, CPU), {Stage.THRESHOLD}), "net/model@cpu:import")
    assert imported.command is not None
    assert imported.command.argv[:2] == ("python", "import_tflite.py")
    assert imported.command.argv[3:] == ("-o", f"{imported.folder}/program.mlir")
    assert dict(imported.cache.ingredients)["importer"] == "tosa-converter-for-tflite 2026.2.0"
    compiled = find_step(plan(load(tmp_path, CPU), {Stage.THRESHOLD}), "net/model@cpu:compile")
    assert dict(compiled.cache.ingredients)["importer"] == "tosa-converter-for-tflite 2026.2.0"
    without = find_step(plan(load(tmp_path, CPU), {Stage.THRESHOLD}, tflite_importer=""), "net/model@cpu:import")
    assert "pip install 'iree-gauntlet[tflite]'" in without.blocked


def test_weights_of_tflite_are_not_tried(tmp_path: Path) -> None:
    spec = {**_SPEC, "mlir": "net.tflite", "outputs": [{"source": "y.npy"}]}
    write_tree(tmp_path / "specs" / "regression_tests", {"net/model_cpu.json": json.dumps(spec), "net/net.tflite": "x"})
    done = gauntlet(tmp_path, "golden.sensitivity", "--model", "net")
    assert done.code == 2, done.text
    assert "its program is TFLite\n  Only weights of ONNX models are tried." in done.err


def test_operations_with_attributes_are_written_in_generic_form() -> None:
    text = (
        '  tosa.variable @"a/b" = dense<0> : tensor<2xi8>\n'
        "  %0 = tosa.reshape %a, %b : (tensor<2xi8>, !tosa.shape<1>) -> tensor<2xi8>\n"
        "  %1 = tosa.rescale %0 {rounding_mode = DOUBLE_ROUND, scale32 = true} : (i32) -> i8\n"
        "  %2 = tosa.resize %1 {mode = BILINEAR} : (tensor<2xi8>) -> tensor<2xi8>\n"
    )
    unchanged, rewritten = "".join(text.splitlines(keepends=True)[:2]), _make_generic(text)
    assert rewritten.startswith(unchanged)
    assert rewritten.removeprefix(unchanged).splitlines() == [
        '  %1 = "tosa.rescale"(%0) <{rounding_mode = #tosa.rounding_mode<DOUBLE_ROUND>, scale32 = true}> : (i32) -> i8',
        '  %2 = "tosa.resize"(%1) <{mode = #tosa.resize_mode<BILINEAR>}> : (tensor<2xi8>) -> tensor<2xi8>',
    ]


_SPEC = {
    "mlir": "net.tflite",
    "inputs": [{"value": "2x3xf32=1"}],
    "outputs": [],
    "device": "local-task",
    "compiler_flags": ["--iree-hal-target-device=local"],
    "run_function": "main",
}


@pytest.mark.iree
@pytest.mark.models
def test_litert_computes_what_is_expected(tmp_path: Path) -> None:
    pytest.importorskip("ai_edge_litert")
    pytest.importorskip("tosa_converter_for_tflite")
    (tmp_path / "add.tflite").write_bytes(make_model(_ADD))
    unknown = gauntlet(tmp_path, "init", "p", "--program", "add.tflite", "--shape", "c=2x3")
    assert "--shape c=…: add.tflite has no such input\n  Its inputs: a, b." in unknown.err
    done = gauntlet(tmp_path, "init", "p", "--program", "add.tflite")
    assert done.code == 0, done.text
    assert "as litert 2." in done.out
    assert 'TOOLKIT: "iree-gauntlet[iree,tflite]' in (tmp_path / "p/.github/workflows/gauntlet.yml").read_text()
    model = tmp_path / "p" / "specs" / "regression_tests" / "add"
    spec, provenance = read_json(model / "model_cpu.json"), read_json(model / "model_cpu" / "provenance.json")
    assert spec["mlir"] == "add.tflite"
    assert provenance["second"] == "LiteRT's optimised kernels"
    assert provenance["imported_by"].startswith("tosa-converter-for-tflite 2")
    assert provenance["model"]["source"] == "../add.tflite"
    ran = gauntlet(tmp_path / "p", "run", "--stages", "threshold", "--run-dir", "run")
    assert ran.code == 0, ran.text
    again = gauntlet(tmp_path / "p", "golden.record", "--model", "add")
    assert again.code == 0, again.text
    np.save(model / "model_cpu" / "output_0.npy", np.load(model / "model_cpu" / "output_0.npy") * np.float32(1.01))
    wrong = gauntlet(tmp_path / "p", "run", "--stages", "threshold", "--run-dir", "wrong")
    assert wrong.code == 1, wrong.text
    assert "Next:\n    gauntlet golden.record --model add\n" in gauntlet(tmp_path / "p", "explain", "wrong").out
    second = gauntlet(tmp_path, "init", "p", "--program", "add.tflite", "--name", "second", "--no-record")
    assert "note: its runs need the extra `tflite`, also in CI: TOOLKIT in .github/workflows/" in second.out
