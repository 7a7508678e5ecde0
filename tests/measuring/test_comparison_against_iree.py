"""Our verdict for each case is the same as that of the reference, iree-run-module itself."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from iree_gauntlet.measuring.numerics.arrays import get_storage_dtype, read_arguments, read_output
from iree_gauntlet.measuring.numerics.comparison import compare_outputs
from iree_gauntlet.measuring.numerics.tolerances import parse_tolerances
from tests.support.native_tools import find_native_tool
from tests.support.places import CORPUS
from tests.support.session_folder import make_once

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.iree

ONNX_OPS = CORPUS / "onnx_ops" / "onnx" / "node" / "generated"
FLOATS = ("f16", "bf16", "f32", "f64")
INTEGERS = ("i8", "si8", "ui8", "i16", "i32", "si32", "ui32", "i64")
OTHERS = ("i1", "f8E5M2", "f8E4M3FN", "cf64")
DEFAULT_ATOL = {"f16": 1e-3, "bf16": 1e-2, "f32": 1e-4, "f64": 1e-4}


def compile_program(source: Path, module: Path) -> bool:
    command = [
        find_native_tool("iree-compile"),
        str(source),
        "--iree-hal-target-device=local",
        "--iree-hal-local-target-device-backends=llvm-cpu",
        "--iree-llvmcpu-target-cpu=host",
        "--iree-input-demote-f64-to-f32=false",
        "--iree-opt-level=O0",
        "--mlir-disable-threading",
        f"-o={module}",
    ]
    # The linker's temporary files stay next to the module.
    environment = {**os.environ, "TMPDIR": str(module.parent)}
    return subprocess.run(command, capture_output=True, check=False, env=environment).returncode == 0


@pytest.fixture(scope="session")
def identity() -> Path:
    """A module with a function for each type that gives back its argument, at any length, unchanged to the bit."""
    return make_once("identity", _compile_identity) / "identity.vmfb"


def _compile_identity(folder: Path) -> None:
    source = folder / "identity.mlir"
    functions = []
    for name in (*FLOATS, *INTEGERS, *OTHERS):
        tensor = f"tensor<?x{'complex<f32>' if name == 'cf64' else name}>"
        functions.append(f"func.func @{name}(%a: {tensor}) -> {tensor} {{ return %a : {tensor} }}\n")
    source.write_text("".join(functions))
    assert compile_program(source, folder / "identity.vmfb")


class Judges:
    """Both verdicts on one question."""

    def __init__(self, module: Path, folder: Path, name: str = "f32") -> None:
        self.module, self.folder, self.name = module, folder, name
        self.passed = self.failed = 0

    def tool(self, given: str, expected: list[str], flags: list[str]) -> bool:
        command = [
            find_native_tool("iree-run-module"),
            f"--module={self.module}",
            "--device=local-sync",
            f"--function={self.name}",
            f"--input={given}",
            *(f"--expected_output={text}" for text in expected),
            *flags,
        ]
        run = subprocess.run(command, capture_output=True, text=True, cwd=self.folder, check=False)
        assert (run.returncode == 0) == ("[SUCCESS]" in run.stdout)
        return run.returncode == 0

    def ours(self, given: str, expected: list[str], flags: list[str]) -> bool:
        actual = [tensor for tensor in read_arguments([given], self.folder) if tensor]
        compared = compare_outputs(actual, read_arguments(expected, self.folder), parse_tolerances(flags))
        return all(entry.passed for entry in compared)

    def agree(self, given: str, expected: str | list[str], *flags: str) -> bool:
        wanted = [expected] if isinstance(expected, str) else expected
        verdict = self.tool(given, wanted, list(flags))
        assert self.ours(given, wanted, list(flags)) == verdict, (given, wanted, flags)
        self.passed += verdict
        self.failed += not verdict
        return verdict

    def agree_on_values(
        self, name: str, actual: np.ndarray[Any, Any], expected: np.ndarray[Any, Any], *flags: str
    ) -> bool:
        (self.folder / "a.bin").write_bytes(actual.tobytes())
        (self.folder / "e.bin").write_bytes(expected.tobytes())
        return self.agree(f"{actual.size}x{name}=@a.bin", f"{expected.size}x{name}=@e.bin", *flags)


def neighbours(value: float, dtype: np.dtype[Any], reach: int) -> np.ndarray[Any, Any]:
    """The representable values around one, by counting bit patterns up and down."""
    with np.errstate(all="ignore"):
        centre = np.array([value], np.float64).astype(dtype)
    pattern = centre.view(f"int{dtype.itemsize * 8}")
    around = pattern + np.arange(-reach, reach + 1).astype(pattern.dtype)
    return np.asarray(around.view(dtype))


@pytest.mark.parametrize("name", FLOATS)
def test_verdict_at_the_edge_of_the_tolerance(name: str, identity: Path, tmp_path: Path) -> None:
    judges = Judges(identity, tmp_path, name)
    rng = np.random.default_rng(20261121)
    dtype = get_storage_dtype(name)
    for _ in range(14):
        atol = float(rng.choice([0.0, DEFAULT_ATOL[name], 0.1, 0.001, 7e-3, 1e-7, 3.0]))
        rtol = float(rng.choice([0.0, 1e-5, 0.01, 0.3]))
        flags = [] if atol == DEFAULT_ATOL[name] else [f"--expected_{name}_threshold={atol}"]
        flags += [] if rtol == 1e-5 else [f"--expected_rtol={rtol}"]
        wanted = np.array([rng.normal() * 10.0 ** rng.integers(-4, 4)]).astype(dtype)
        limit = atol + rtol * abs(float(wanted[0]))
        edge = float(wanted[0]) + limit * float(rng.choice([-1, 1]))
        for actual in neighbours(edge, dtype, 2):
            judges.agree_on_values(name, np.array([actual], dtype), wanted, *flags)
    assert judges.passed > 5
    assert judges.failed > 5


@pytest.mark.parametrize("name", ["f16", "f32", "bf16"])
def test_threshold_is_a_single_precision_number(name: str, identity: Path, tmp_path: Path) -> None:
    # float(0.001) is above 0.001 and float(0.1) too: in f32 the neighbours tell the two readings apart.
    judges = Judges(identity, tmp_path, name)
    dtype = get_storage_dtype(name)
    for threshold in (0.001, 0.1, 0.01, 1e-4):
        for actual in neighbours(threshold, dtype, 1):
            judges.agree_on_values(
                name, np.array([actual], dtype), np.zeros(1, dtype), f"--expected_{name}_threshold={threshold}f"
            )
    assert judges.passed
    assert judges.failed


@pytest.mark.parametrize("mode", ["approximate", "exact"])
@pytest.mark.parametrize("name", FLOATS)
def test_verdict_on_special_values(name: str, mode: str, identity: Path, tmp_path: Path) -> None:
    judges = Judges(identity, tmp_path, name)
    dtype = get_storage_dtype(name)
    tiny = float(neighbours(0.0, dtype, 1)[-1])
    values = [np.nan, np.inf, -np.inf, 0.0, -0.0, tiny, 1.0]
    for actual in values:
        for expected in values:
            judges.agree_on_values(
                name, np.array([1, actual], dtype), np.array([1, expected], dtype), f"--equality_mode={mode}"
            )
    other_nan = np.array([np.nan], dtype)
    other_nan.view(f"uint{dtype.itemsize * 8}")[0] |= 1
    judges.agree_on_values(name, np.array([np.nan], dtype), other_nan, f"--equality_mode={mode}")
    for flags in (["--expected_rtol=inf"], [f"--expected_{name}_threshold=inf"]):
        for actual in values[:4]:
            judges.agree_on_values(name, np.array([actual], dtype), np.array([1], dtype), *flags)
            judges.agree_on_values(name, np.array([actual], dtype), np.array([0], dtype), *flags)


@pytest.mark.parametrize("name", [*INTEGERS, *OTHERS])
def test_other_types_must_be_equal(name: str, identity: Path, tmp_path: Path) -> None:
    judges = Judges(identity, tmp_path, name)
    rng = np.random.default_rng(7)
    width = get_storage_dtype(name).itemsize
    for flip in (None, 0, 3, width * 5 - 1):
        data = rng.integers(0, 256, width * 5, np.uint8)
        if name == "i1":
            data &= 1
        changed = data.copy()
        if flip is not None:
            changed[flip] ^= 1
        (tmp_path / "a.bin").write_bytes(data.tobytes())
        (tmp_path / "e.bin").write_bytes(changed.tobytes())
        judges.agree(f"5x{name}=@a.bin", f"5x{name}=@e.bin", "--expected_rtol=1")
    assert judges.passed == 1
    assert judges.failed == 3


def test_verdict_on_shapes_types_and_counts(identity: Path, tmp_path: Path) -> None:
    judges = Judges(identity, tmp_path)
    for dtype in ("bool", "int8", "uint8", "int32", "uint32", "int64", "float16", "float32", "float64", "complex64"):
        np.save(tmp_path / f"{dtype}.npy", np.array([1, 0, 1, 1], dtype))
    values = ["4xf32=1 0 1 1", "4x1xf32=1 0 1 1", "1x4xf32=1 0 1 1", "2x2xf32=1 0 1 1", "3xf32=1 0 1"]
    values += ["@float32.npy", "@float64.npy", "@int32.npy", "4xi32=1 0 1 1", "4xui32=1 0 1 1"]
    values += ["4xsi32=1 0 1 1", "0xf32", "0x4xf32", "f32=1", "1xf32=1", "4xf16=1 0 1 1", "4xbf16=1 0 1 1"]
    for given in values:
        for expected in values:
            judges.agree(given, expected)
    for given, expected in (
        ("@bool.npy", "4xi1=01 00 01 01"),
        ("4xi8=1 0 1 1", "@int8.npy"),
        ("4xui8=1 0 1 1", "@uint8.npy"),
        ("4xi64=1 0 1 1", "@int64.npy"),
        ("@complex64.npy", "@complex64.npy"),
        ("4xf32=1 0 1 1", "(ignored)"),
    ):
        judges.agree(given, expected)
    judges.agree("4xf32=1", ["4xf32=1", "4xf32=1"])
    judges.agree("4xf32=1", ["(ignored)", "(ignored)"])


def test_verdict_on_inline_values(identity: Path, tmp_path: Path) -> None:
    judges = Judges(identity, tmp_path)
    for given, expected in (
        ("2xi32=8 16", "2xi32=010,0x10"),
        ("4xi32=1 2 3 4", "4xi32=[1 2][3,4]"),
        ("3xi32=7 7 7", "3xi32=7"),
        ("3xi32=0", "3xi32"),
        ("1xi32=-1", "1xi32=4294967295"),
        ("1xi8=-1", "1xi8=255"),
        ("1xf16=inf", "1xf16=65520"),
        ("1xf16=65504", "1xf16=65519"),
        ("1xbf16=1", "1xbf16=1.005859375"),
        ("1xf8E4M3FN=448", "1xf8E4M3FN=464"),
        ("1xf8E5M2=nan", "1xf8E5M2=NAN"),
        ("2xi4=12", "2xi4=12"),
        ("1xi24=010203", "1xi24=010203"),
        ("1x*16=0102", "1x*16=0103"),
        ("1xcf64=0000803F00000000", "1xcf64=0000803f00000000"),
        ('"1xf32=0x1p-1"', "1xf32= .5 "),
    ):
        judges.agree(given, expected)
    assert judges.passed == 15


def test_large_random_outputs(identity: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(11)
    for name in FLOATS:
        judges = Judges(identity, tmp_path, name)
        dtype = get_storage_dtype(name)
        for _ in range(6):
            expected = (rng.normal(size=200_000) * 10.0 ** rng.integers(-3, 3, 200_000)).astype(dtype)
            actual = expected.copy()
            where = rng.integers(0, expected.size, 3)
            near = expected[where].astype(np.float64)
            limit = DEFAULT_ATOL[name] + 1e-5 * np.abs(near)
            actual[where] = (near + limit * rng.uniform(0.9, 1.05, 3)).astype(dtype)
            judges.agree_on_values(name, actual, expected)


def judge_case(case: Path, folder: Path) -> tuple[bool, bool] | None:
    """(tool's, ours) for an operator test; None where it does not compile or run."""
    folder.mkdir()
    module = folder / "m.vmfb"
    if not compile_program(case / "model.mlir", module):
        return None
    flags = (case / "run_module_io_flags.txt").read_text().split("\n")
    inputs = [flag for flag in flags if flag.startswith("--input=")]
    outputs = [flag for flag in flags if flag.startswith("--expected_output=")]
    command = [find_native_tool("iree-run-module"), f"--module={module}", "--device=local-sync", *inputs]
    judged = subprocess.run([*command, *outputs], cwd=case, capture_output=True, text=True, check=False)
    expected = [tensor for tensor in read_arguments((flag.partition("=")[2] for flag in outputs), case) if tensor]
    files = [
        folder / f"{index}.{'bin' if tensor.element_type == 'bf16' else 'npy'}" for index, tensor in enumerate(expected)
    ]
    run = subprocess.run(
        [*command, *(f"--output=@{file}" for file in files)], cwd=case, capture_output=True, check=False
    )
    if run.returncode:
        return None
    actual = [read_output(file, tensor.type) for file, tensor in zip(files, expected, strict=True)]
    compared = compare_outputs(actual, expected, parse_tolerances(flags))
    return judged.returncode == 0, all(entry.passed for entry in compared)


@pytest.mark.corpus
@pytest.mark.parametrize("sample", [8, pytest.param(40, marks=pytest.mark.stress)])
def test_verdict_on_operator_tests(tmp_path: Path, sample: int) -> None:
    if not ONNX_OPS.is_dir():
        pytest.skip("no corpus next to the checkout")
    by_type: dict[str, list[Path]] = {}
    for flags in sorted(ONNX_OPS.glob("*/run_module_io_flags.txt")):
        output = flags.read_text().partition("--expected_output=")[2].partition("=")[0]
        by_type.setdefault(output.rpartition("x")[2], []).append(flags.parent)
    # Every type is in it; the types with many cases share the rest evenly.
    cases: list[Path] = []
    for rank in range(max(map(len, by_type.values()))):
        cases += [group[rank * 7 % len(group)] for group in by_type.values() if rank < len(group)]
    assert sample >= len(by_type)
    chosen = list(dict.fromkeys(cases))[:sample]
    with ThreadPoolExecutor(2) as pool:
        verdicts = list(pool.map(lambda case: judge_case(case, tmp_path / case.name), chosen))
    judged = [verdict for verdict in verdicts if verdict is not None]
    assert len(judged) > sample * 3 // 4
    assert [tool for tool, _ in judged] == [ours for _, ours in judged]
