"""Programs in the `flow` phase: parts that are cut out compile and give the same values; dispatches run in f64."""

from __future__ import annotations

import math
import re
import subprocess
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from iree_gauntlet.errors import GauntletError
from iree_gauntlet.experiments.explaining.flow_program import (
    DISPATCH_FUNCTION,
    FlowProgram,
    find_device_attribute,
    make_function,
    read_flow,
    replace_device_attribute,
)
from iree_gauntlet.experiments.explaining.locate import F64Errors, widen_to_f64
from iree_gauntlet.toolchains.installed import find_installed
from tests.experiments.test_explain import PROGRAM
from tests.support.toy_project import FLAGS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

TRACE = "--iree-flow-trace-dispatch-tensors"


def iree_compile(source: Path, output: Path, *flags: str) -> Path:
    argv = [find_installed().compiler.compile, str(source), *FLAGS, *flags, "-o", str(output)]
    subprocess.run(argv, check=True, capture_output=True)
    return output


def flow(tmp_path: Path, text: str) -> FlowProgram:
    source = tmp_path / "program.mlir"
    source.write_text(text)
    return read_flow(iree_compile(source, tmp_path / "flow.mlir", "--compile-to=flow", TRACE))


def inputs_in(folder: Path) -> tuple[Path, Path]:
    generator = np.random.default_rng(0)
    given, weights = folder / "a.npy", folder / "b.npy"
    np.save(given, generator.standard_normal((8, 16), np.float32))
    np.save(weights, generator.standard_normal((16, 16), np.float32))
    return given, weights


def run(module: Path, function: str, inputs: Sequence[Path], output: Path) -> np.ndarray[Any, Any]:
    argv = [find_installed().runtime.run_module, f"--module={module}", f"--function={function}"]
    argv += [f"--input=@{path}" for path in inputs] + [f"--output=@{output}"]
    subprocess.run(argv, check=True, capture_output=True)
    found: np.ndarray[Any, Any] = np.load(output)
    return found


@pytest.mark.iree
def test_sizes_that_are_not_known_make_no_function(tmp_path: Path) -> None:
    program = flow(tmp_path, PROGRAM.replace("ROWS", "?").replace("(SIZE)", "(%d)"))
    assert [make_function(program, dispatch) for dispatch in program.dispatches.values()] == [""] * 3


@pytest.mark.iree
@pytest.mark.parametrize(("rows", "function"), [("8", True), pytest.param("?", False, marks=pytest.mark.stress)])
def test_dispatches_give_together_what_the_program_gives(tmp_path: Path, rows: str, *, function: bool) -> None:
    program = flow(tmp_path, PROGRAM.replace("ROWS", rows).replace("(SIZE)", "(%d)" if rows == "?" else "()"))
    assert len(program.dispatches) == 3
    whole = iree_compile(tmp_path / "program.mlir", tmp_path / "whole.vmfb")
    expected = run(whole, "sums", inputs_in(tmp_path), tmp_path / "whole.npy")
    found = run_dispatches(program, tmp_path, function=function)
    np.testing.assert_allclose(found, expected, rtol=1e-5 if function else 0)


def run_dispatches(program: FlowProgram, tmp_path: Path, *, function: bool) -> np.ndarray[Any, Any]:
    """What the dispatches give, each compiled by itself, as a function or as what was cut out."""
    given, weights = inputs_in(tmp_path)
    # Each takes what the one before it gave, and those that multiply the weights.
    for number, dispatch in enumerate(program.dispatches.values()):
        shapes = [(8, 16), (16, 16)][: len(dispatch.tensors)]
        text = make_function(program, dispatch) if function else program.cut_out(dispatch, shapes)
        assert bool(re.search(r"flow|iree|hal\.", text)) is not function
        source = tmp_path / f"{number}.mlir"
        source.write_text(text)
        module = iree_compile(source, tmp_path / f"{number}.vmfb", *(() if function else ("--compile-from=flow",)))
        inputs = [given, weights][: len(shapes)]
        given = tmp_path / f"{number}.npy"
        found = run(module, DISPATCH_FUNCTION, inputs, given)
    return found


def test_a_device_is_written_without_aliases() -> None:
    text = (
        '#cpu = #hal.executable.target<"llvm-cpu", "elf", {a = "x>", map = affine_map<(d0) -> (d0)>}>\n'
        '#device = #hal.device.target<"local", [#cpu]> : !hal.device\nmodule {\n}\n'
    )
    found = find_device_attribute(text)
    assert found.startswith('#hal.device.target<"local", [#hal.executable.target<"llvm-cpu"')
    assert found.endswith(")>}>]>")
    assert "#cpu" not in found
    program = replace_device_attribute(text, '#hal.device.target<"other">')
    assert '#device = #hal.device.target<"other"> : !hal.device' in program


def test_a_program_without_dispatches_is_refused(tmp_path: Path) -> None:
    (tmp_path / "flow.mlir").write_text("module {\n}\n")
    with pytest.raises(GauntletError, match="dispatches nothing"):
        read_flow(tmp_path / "flow.mlir")


@pytest.mark.parametrize(
    ("text", "wider"),
    [
        ("%0 = arith.addf %a, %b : f32", "%0 = arith.addf %a, %b : f64"),
        ("tensor<2x3xf32>", "tensor<2x3xf64>"),
        ("tensor<f32>, vector<4xf32>", "tensor<f64>, vector<4xf64>"),
        ("arith.extf %x : f16 to f32", "arith.extf %x : f16 to f64"),
        # Minus infinity, and NaN, which have no digits.
        ("arith.constant 0xFF800000 : f32", "arith.constant 0xFFF0000000000000 : f64"),
        ("arith.constant 0x7FC00000 : f32", "arith.constant 0x7FF8000000000000 : f64"),
        ("dense<[1.0, 2.5]> : tensor<2xf32>", "dense<[1.0, 2.5]> : tensor<2xf64>"),
        # What cannot be written, or has no f32 in it.
        ('dense<"0x0000803F"> : tensor<1xf32>', ""),
        ("dense_resource<weights> : tensor<9xf32>", ""),
        ("arith.addi %a, %b : i32", ""),
        ("tensor<2xbf16>", ""),
    ],
)
def test_every_f32_becomes_f64(text: str, wider: str) -> None:
    assert widen_to_f64(text) == wider


@pytest.mark.parametrize(
    ("target", "reference", "rounding"),
    [
        (1.17, 4e-7, False),
        (1e-6, 0.9, True),  # the reference is at fault
        (3e-4, 2e-4, True),  # both lose digits, as by cancellation
        (3e-4, 1e-7, False),
        (math.inf, 0.0, False),
        (0.0, math.inf, True),
    ],
)
def test_what_is_right_or_as_far_off_as_the_reference_is_no_suspect(
    target: float, reference: float, *, rounding: bool
) -> None:
    assert F64Errors(target, reference).only_rounds is rounding
