"""`init --program` for programs that are not ONNX: what a file is, its function, its reference, and how it is named."""

from __future__ import annotations

import json
import os
import sys
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.support.command_line import CommandResult, run_in_process

if TYPE_CHECKING:
    from pathlib import Path

ADD = """
func.func @add(%a: tensor<?x4xf32>, %b: tensor<4xi32>) -> (tensor<?x4xf32>, tensor<4xi32>) {
  %0 = arith.addf %a, %a : tensor<?x4xf32>
  %1 = arith.muli %b, %b : tensor<4xi32>
  return %0, %1 : tensor<?x4xf32>, tensor<4xi32>
}
"""
RELU = """
func.func @net(%x: !torch.vtensor<[2,3],f32>) -> !torch.vtensor<[2,3],f32>
    attributes {torch.onnx_meta.opset_version = 17 : si64} {
  %0 = torch.operator "onnx.Relu"(%x) : (!torch.vtensor<[2,3],f32>) -> !torch.vtensor<[2,3],f32>
  return %0 : !torch.vtensor<[2,3],f32>
}
"""


def gauntlet(folder: Path, *words: str) -> CommandResult:
    return run_in_process(
        words, folder, {**os.environ, "NO_COLOR": "1", "IREE_GAUNTLET_CACHE": str(folder / "cache")}, {}
    )


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.iree
def test_mlir_gets_a_verdict_that_is_named_agreement(tmp_path: Path) -> None:
    (tmp_path / "a.dat").write_text(ADD)
    done = gauntlet(tmp_path, "init", "p", "--program", "a.dat", "--shape", "arg0=3x4")
    assert done.code == 0, done.text
    assert "arg0: 3x4xf32" in done.out
    # Zeros and ones do not tell products from other functions.
    values = done.out.partition("arg1: 4xi32, ")[2].splitlines()[0].split()
    assert not {0, 1}.issuperset(map(int, values))
    assert "as vmvx of IREE 3." in done.out
    assert "note: this is IREE itself: a pass is agreement, not proof" in done.out
    model = tmp_path / "p" / "specs" / "regression_tests" / "a"
    spec, provenance = read_json(model / "model_cpu.json"), read_json(model / "model_cpu" / "provenance.json")
    assert (spec["mlir"], spec["run_function"]) == ("a.dat.mlir", "add")
    assert "a pass means that IREE agrees with itself" in spec["description"]
    assert (provenance["made_by"], provenance["second"]) == ("iree-vmvx", "llvm-cpu at O0")
    agreement = provenance["agrees_with"]
    assert agreement.startswith("vmvx of IREE 3.")
    project = tmp_path / "p"
    ran = gauntlet(project, "run", "--stages", "threshold", "--run-dir", "run")
    assert ran.code == 0, ran.text
    assert f"agrees with {agreement}: equal" in ran.out
    assert "judged: numbers 1 (1 only with IREE itself)" in ran.out
    assert f'name="threshold.agrees_with" value="{agreement}"' in (project / "run" / "junit.xml").read_text()
    assert read_json(project / "run" / "summary.json")["chains"][0]["agrees_with"] == agreement
    # Outputs of a reference are not replaced by weaker ones.
    recorded = model / "model_cpu" / "provenance.json"
    recorded.write_text(json.dumps({**provenance, "made_by": "xla", "agrees_with": ""}), encoding="utf-8")
    weaker = gauntlet(project, "golden.record", "--model", "a")
    assert weaker.code == 2, weaker.text
    assert "its outputs are those of xla, and here is only IREE itself" in weaker.err
    recorded.write_text(json.dumps(provenance), encoding="utf-8")
    # A mistake of one per cent is seen, and may be of either.
    output = model / "model_cpu" / "output_0.npy"
    np.save(output, np.load(output) * np.float32(1.01))
    wrong = gauntlet(project, "run", "--stages", "threshold", "--run-dir", "wrong")
    assert wrong.code == 1, wrong.text
    assert f"differs from {agreement}, one of the two is wrong" in wrong.out
    assert f"against {agreement}: " in wrong.out
    assert "judged: numbers 1 (1 only with IREE itself)" in wrong.out
    assert read_json(project / "wrong" / "summary.json")["chains"][0]["agrees_with"] == agreement
    # A missing output can be recorded again.
    output.unlink()
    assert "creates it, for a model of ONNX, TFLite or MLIR" in gauntlet(project, "lint").text
    unknown = gauntlet(project, "golden.record", "--model", "a", "--reference-iree", "nonsense")
    assert "error: --reference-iree nonsense: not a known IREE" in unknown.err


@pytest.mark.iree
def test_what_a_spec_has_of_its_own_is_noted(tmp_path: Path) -> None:
    kind = "tensor<?x?xf64>"
    (tmp_path / "a.mlir").write_text(
        f"func.func @f(%a: {kind}, %b: {kind}) -> {kind} {{\n"
        f"  %0 = arith.addf %a, %b : {kind}\n"
        f"  return %0 : {kind}\n}}\n"
    )
    done = gauntlet(tmp_path, "init", "p", "--program", "a.mlir", "--no-record", "--shape", "arg0=3x4")
    assert done.code == 0, done.text
    assert "note: it has f64: the spec has --iree-input-demote-f64-to-f32=false" in done.out
    assert "note: the open sizes of arg1 do not follow from --shape: --shape arg1=SIZES sets them too" in done.out


@pytest.mark.iree
def test_inputs_on_which_a_way_crashes_are_not_taken(tmp_path: Path) -> None:
    (tmp_path / "a.mlir").write_text(
        "func.func @f(%a: tensor<4xi32>, %b: tensor<4xi32>) -> tensor<4xi32> {\n"
        "  %c = arith.constant dense<1> : tensor<4xi32>\n"
        "  %0 = arith.subi %b, %c : tensor<4xi32>\n"
        "  %1 = arith.divsi %a, %0 : tensor<4xi32>\n"
        "  return %1 : tensor<4xi32>\n}\n"
    )
    done = gauntlet(tmp_path, "init", "p", "--program", "a.mlir")
    assert done.code == 0, done.text
    assert "others were tried, and did not do:\n    iree-run-module ended with SIG" in done.out
    model = tmp_path / "p" / "specs" / "regression_tests" / "a"
    a, b = (
        np.array(item["value"].partition("=")[2].split(), int) for item in read_json(model / "model_cpu.json")["inputs"]
    )
    assert (b != 1).all()
    expected = np.fromfile(model / "model_cpu" / "output_0.bin", np.int32)
    np.testing.assert_array_equal(expected, np.trunc(a / (b - 1)))
    assert read_json(model / "model_cpu" / "provenance.json")["second"] == "llvm-cpu at O0"


@pytest.mark.iree
def test_integers_keep_the_sign_that_their_types_have(tmp_path: Path) -> None:
    # A module returns what it is given, and what it computes, with the sign of its signature.
    (tmp_path / "a.mlir").write_text(
        "func.func @f(%a: tensor<8xui8>) -> (tensor<8xui8>, tensor<8xui8>, tensor<8xi8>) {\n"
        "  %0 = stablehlo.add %a, %a : tensor<8xui8>\n"
        "  %1 = stablehlo.convert %0 : (tensor<8xui8>) -> tensor<8xi8>\n"
        "  return %a, %0, %1 : tensor<8xui8>, tensor<8xui8>, tensor<8xi8>\n}\n"
    )
    done = gauntlet(tmp_path, "init", "p", "--program", "a.mlir")
    assert done.code == 0, done.text
    spec = read_json(tmp_path / "p" / "specs" / "regression_tests" / "a" / "model_cpu.json")
    assert [item["value"] for item in spec["outputs"]] == ["8xui8", "8xui8", "8xi8"]
    ran = gauntlet(tmp_path / "p", "run", "--stages", "threshold")
    assert ran.code == 0, ran.text


@pytest.mark.iree
def test_operators_of_onnx_in_mlir_have_onnxs_references(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    (tmp_path / "net.mlir").write_text(RELU)
    done = gauntlet(tmp_path, "init", "p", "--program", "net.mlir", "--edges")
    assert done.code == 0, done.text
    assert "as onnxruntime " in done.out
    model = tmp_path / "p" / "specs" / "regression_tests" / "net"
    provenance = read_json(model / "model_cpu" / "provenance.json")
    assert (provenance["made_by"], provenance["restored"]) == ("onnxruntime", "program.onnx")
    assert (model / "model_cpu" / "program.onnx").is_file()
    assert "agrees" not in read_json(model / "model_cpu.json")["description"]
    # Of the inputs at edges, relu keeps the largest.
    edges = np.load(model / "edges_cpu" / "input_0.npy").reshape(-1)
    assert edges[0] == edges[1] == edges.max() > 0 == edges[3]
    np.testing.assert_array_equal(np.load(model / "edges_cpu" / "output_0.npy").reshape(-1), edges.clip(0))
    assert read_json(model / "edges_cpu.json")["threshold_args"]
    # Recorded again, without what `init` knew.
    again = gauntlet(tmp_path / "p", "golden.record", "--model", "net", "--filename", "model_cpu")
    assert again.code == 0, again.text
    provenance["tolerance"]["f32"]["reason"] = "as the spec says"
    assert read_json(model / "model_cpu" / "provenance.json") == provenance


@pytest.mark.iree
def test_a_reproducer_that_does_not_compile_gets_a_spec_without_outputs(tmp_path: Path) -> None:
    (tmp_path / "a.mlir").write_text(
        "func.func @f(%a: tensor<2xf32>) -> tensor<2xf32> {\n"
        "  %0 = stablehlo.custom_call @foo(%a) : (tensor<2xf32>) -> tensor<2xf32>\n"
        "  return %0 : tensor<2xf32>\n}\n"
    )
    done = gauntlet(tmp_path, "init", "p", "--program", "a.mlir")
    assert done.code == 0, done.text
    assert "vmvx: iree-compile ended with exit code 1: failed to legalize operation 'stablehlo.custom_call'" in done.out
    assert "a run checks only that it compiles and runs" in done.out
    assert read_json(tmp_path / "p" / "specs" / "regression_tests" / "a" / "model_cpu.json")["outputs"] == []


@pytest.mark.iree
@pytest.mark.parametrize(
    ("program", "words", "message"),
    [
        (
            ADD.replace("%a: tensor<?x4xf32>", "%a: tensor<?x4xf32>, %t: !stablehlo.token"),
            (),
            "input arg1 of @add is !st",
        ),
        (ADD + ADD.replace("@add", "@other"), (), "2 functions are public: add, other"),
        (ADD, ("--function", "sub"), "--program a.mlir: --function sub: there is no such function"),
        (ADD, ("--shape", "arg0=3x5"), "--shape arg0=3x5: the file has ?x4"),
        (ADD, ("--shape", "z=3x5"), "--shape z=…: a.mlir has no such input"),
        ("func.func @f() { return }", (), "@f returns nothing: there is nothing to check"),
        ("func.func private @f()", (), "it has no public function with a body"),
        (ADD[:90], (), "IREE's parser does not take it as MLIR: line "),
    ],
)
def test_programs_that_cannot_be_checked_are_refused(
    tmp_path: Path, program: str, words: tuple[str, ...], message: str
) -> None:
    (tmp_path / "a.mlir").write_text(program)
    done = gauntlet(tmp_path, "init", "p", "--program", "a.mlir", *words)
    assert done.code == 2, done.text
    assert message in done.err
    assert not (tmp_path / "p").exists()


@pytest.mark.iree
def test_damaged_bytecode_is_an_error_of_that_file(tmp_path: Path) -> None:
    ir = pytest.importorskip("iree.compiler.ir")
    with (tmp_path / "whole").open("wb") as file:
        ir.Module.parse(ADD, ir.Context()).operation.write_bytecode(file)
    content = (tmp_path / "whole").read_bytes()
    flipped = bytearray(content)
    flipped[len(flipped) // 2] ^= 0xFF
    for damaged in (content[:40], content[: len(content) // 2], bytes(flipped)):
        (tmp_path / "a.mlirbc").write_bytes(damaged)
        done = gauntlet(tmp_path, "init", "p", "--program", "a.mlirbc")
        assert done.code == 2, done.text
        assert "--program a.mlirbc: IREE's parser does not take it as MLIR" in done.err


def test_files_that_are_no_programs_are_named(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "plain", "w") as archive:
        archive.writestr("readme", "")
    files = {
        "plain": ("a zip archive", None),
        "weights": ("weights in safetensors", b'\x08\0\0\0\0\0\0\0{"a": 1}'),
        "none": ("an empty file", b""),
        "array": ("an array of NumPy", b"\x93NUMPY\1\0"),
    }
    for name, (title, content) in files.items():
        if content is not None:
            (tmp_path / name).write_bytes(content)
        done = gauntlet(tmp_path, "init", "p", "--program", name)
        assert done.code == 2, done.text
        assert f"--program {name} is {title}" in done.err


def test_a_python_without_jax_is_refused(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("import jax\n")
    done = gauntlet(tmp_path, "init", "p", "--program", "net.py:f", "--reference-python", "/bin/false")
    assert done.code == 2, done.text
    assert "--reference-python /bin/false: exit code 1" in done.err
    # As a file that ends its process does.
    done = gauntlet(tmp_path, "init", "p", "--program", "net.py:f", "--reference-python", "/bin/true")
    assert done.code == 2, done.text
    assert "net.py:f: it ended without an answer" in done.err
    named = gauntlet(tmp_path, "init", "p", "--program", "net.py")
    assert "Name a function in it, of JAX or PyTorch: net.py:FUNCTION." in named.err


@pytest.mark.iree
@pytest.mark.models
def test_jax_computes_what_is_expected_of_its_programs(tmp_path: Path) -> None:
    jax = pytest.importorskip("jax")
    export = pytest.importorskip("jax.export")
    (tmp_path / "net.py").write_text(
        "import argparse, atexit, os\n"
        "import jax, jax.export, jax.numpy as jnp\n"
        "print('hello')\n"
        "os.system('echo hello')\n"
        "atexit.register(print, 'goodbye')\n"
        "argparse.ArgumentParser().parse_args()\n"
        "(n,) = jax.export.symbolic_shape('n')\n"
        "weight = jax.random.normal(jax.random.PRNGKey(0), (8, 4))\n"
        "def dense(x, unused): return jnp.tanh(x @ weight), jnp.argmax(x, -1)\n"
        "dense_arguments = (jax.ShapeDtypeStruct((n, 8), jnp.float32), jax.ShapeDtypeStruct((2,), jnp.float32))\n"
        "def given(x): return (print('given'), jnp.sort(x))[1]\n"
        "given_arguments = (jnp.array([3.0, 1.0, 2.0]),)\n"
        "import numpy\n"
        "noise = numpy.random.rand(4, 4).astype('f4')\n"
        "def random(x): return jnp.tanh(x @ noise)\n"
        "random_arguments = (jnp.ones((2, 4)),)\n"
    )
    exported = export.export(jax.jit(lambda x: x * 2 + 1))(jax.ShapeDtypeStruct((4,), "float32"))
    (tmp_path / "twice.bin").write_bytes(exported.serialize())
    (tmp_path / "artifact").write_bytes(exported.mlir_module_serialized)
    python = ("--reference-python", sys.executable)
    # Each process that imports the file has other weights: its export has what is expected.
    made_by = {
        "net.py:random": "jax",
        "net.py:dense": "jax",
        "net.py:given": "jax",
        "twice.bin": "jax",
        "artifact": "xla",
    }
    for program, name in made_by.items():
        done = gauntlet(tmp_path, "init", "p", "--program", program, *python)
        assert done.code == 0, done.text
        model = program.rpartition(":")[2].partition(".")[0]
        folder = tmp_path / "p" / "specs" / "regression_tests" / model / "model_cpu"
        provenance = read_json(folder / "provenance.json")
        assert (provenance["made_by"], provenance["second"]) == (name, "StableHLO's interpreter")
        if program.startswith("net"):
            assert provenance["exported_from"]["source"] == program
    folder = tmp_path / "p" / "specs" / "regression_tests" / "given" / "model_cpu"
    np.testing.assert_array_equal(np.load(folder / "input_0.npy"), np.array([3, 1, 2], np.float32))
    np.testing.assert_array_equal(np.load(folder / "output_0.npy"), np.array([1, 2, 3], np.float32))
    ran = gauntlet(tmp_path / "p", "run", "--stages", "threshold")
    assert ran.code == 0, ran.text
    assert "5 cases: 5 passed" in ran.out
    # Recorded again by the function's own call, where it is still the same program.
    provenance = read_json(tmp_path / "p" / "specs" / "regression_tests" / "dense" / "model_cpu" / "provenance.json")
    again = gauntlet(tmp_path / "p", "golden.record", "--model", "dense", "--model", "random", *python)
    assert again.code == 0, again.text
    assert "as jax " in again.out
    assert "note: net.py:random gives another program now" in again.out
    assert "as xla " in again.out
    renewed = read_json(tmp_path / "p" / "specs" / "regression_tests" / "dense" / "model_cpu" / "provenance.json")
    provenance["tolerance"] = renewed["tolerance"]
    assert renewed == provenance
    (tmp_path / "ends.py").write_text("import sys; sys.exit(0)\n")
    ended = gauntlet(tmp_path, "init", "p", "--program", "ends.py:f", *python)
    assert ended.code == 2, ended.text
    assert "ends.py cannot be imported: it calls sys.exit(0)" in ended.err
