"""Programs in the `flow` phase: every dispatch that is cut out compiles, and gives what it gave in the program."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from iree_gauntlet.errors import GauntletError
from iree_gauntlet.experiments.explaining.flow_program import (
    CUT_OUT,
    FlowProgram,
    as_function,
    device_of,
    read_flow,
    with_device,
)
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
    assert [as_function(program, dispatch) for dispatch in program.dispatches.values()] == [""] * 3


@pytest.mark.iree
@pytest.mark.parametrize(("rows", "function"), [("8", True), ("8", False), ("?", False)])
def test_dispatches_give_together_what_the_program_gives(tmp_path: Path, rows: str, *, function: bool) -> None:
    program = flow(tmp_path, PROGRAM.replace("ROWS", rows).replace("(SIZE)", "(%d)" if rows == "?" else "()"))
    assert len(program.dispatches) == 3
    given, weights = inputs_in(tmp_path)
    whole = iree_compile(tmp_path / "program.mlir", tmp_path / "whole.vmfb")
    expected = run(whole, "sums", [given, weights], tmp_path / "whole.npy")
    # Each takes what the one before it gave, and those that multiply the weights.
    for number, dispatch in enumerate(program.dispatches.values()):
        shapes = [(8, 16), (16, 16)][: len(dispatch.tensors)]
        text = as_function(program, dispatch) if function else program.cut_out(dispatch, shapes)
        assert bool(re.search(r"flow|iree|hal\.", text)) is not function
        source = tmp_path / f"{number}.mlir"
        source.write_text(text)
        module = iree_compile(source, tmp_path / f"{number}.vmfb", *(() if function else ("--compile-from=flow",)))
        inputs = [given, weights][: len(shapes)]
        given = tmp_path / f"{number}.npy"
        run(module, CUT_OUT, inputs, given)
    np.testing.assert_allclose(np.load(given), expected, rtol=1e-5 if function else 0)


def test_a_device_is_written_without_aliases() -> None:
    text = (
        '#cpu = #hal.executable.target<"llvm-cpu", "elf", {a = "x>", map = affine_map<(d0) -> (d0)>}>\n'
        '#device = #hal.device.target<"local", [#cpu]> : !hal.device\nmodule {\n}\n'
    )
    found = device_of(text)
    assert found.startswith('#hal.device.target<"local", [#hal.executable.target<"llvm-cpu"')
    assert found.endswith(")>}>]>")
    assert "#cpu" not in found
    program = with_device(text, '#hal.device.target<"other">')
    assert '#device = #hal.device.target<"other"> : !hal.device' in program


def test_a_program_without_dispatches_is_refused(tmp_path: Path) -> None:
    (tmp_path / "flow.mlir").write_text("module {\n}\n")
    with pytest.raises(GauntletError, match="dispatches nothing"):
        read_flow(tmp_path / "flow.mlir")
