"""Parameter archives and the command that makes them; IREE's tools and a real program read the archives."""

from __future__ import annotations

import re
import resource
import subprocess
import sys
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np
import pytest

from iree_gauntlet.artifacts.parameters import RandomContent, main, make_random_bytes, write_archive
from iree_gauntlet.artifacts.program_parameters import (
    Parameter,
    ParameterError,
    collect_parameters,
    make_archive_name,
    select_scope,
)
from iree_gauntlet.errors import ArtifactError
from tests.support.native_tools import compile_native, find_native_tool
from tests.support.places import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    # Exit code, output, errors.
    _Run = Callable[..., tuple[int, str, str]]

PARAMETERS = [
    Parameter("m", "zeta", (3, 5), "f32"),
    Parameter("m", "alpha", (7,), "i4"),
    Parameter("m", "üml/aut.weight", (3,), "f64"),
    Parameter("m", "empty", (0, 4), "f16"),
    Parameter("m", "scalar", (), "bf16"),
]

SCOPES = """
util.global private @a = #stream.parameter.named<"model"::"a"> : tensor<4x4xf32>
util.global private @b = #stream.parameter.named<"model"::"b"> : tensor<7xi8>
util.global private @c = #flow.parameter.named<"c"> : tensor<3xbf16>
"""

# With six i4 values, IREE 3.13 cannot compile the program for x86-64-v2.
PROGRAM = """
util.global private @w = #stream.parameter.named<"model"::"w"> : tensor<3x4xf32>
util.global private @h = #stream.parameter.named<"model"::"h"> : tensor<7xf16>
util.global private @d = #stream.parameter.named<"model"::"d"> : tensor<3xf64>
util.global private @q = #stream.parameter.named<"model"::"q"> : tensor<8xi4>
util.global private @f8 = #stream.parameter.named<"model"::"f8"> : tensor<9xf8E4M3FN>
util.global private @b = #stream.parameter.named<"other"::"b"> : tensor<5xbf16>
util.global private @flag = #flow.parameter.named<"flag"> : tensor<4xi1>
util.global private @l = #stream.parameter.named<"other"::"l"> : tensor<2xi64>
func.func @main(%x: tensor<2x3xf32>) -> (tensor<2x4xf32>, tensor<7xf16>, tensor<3xf64>, tensor<8xi8>, tensor<9xi8>,
    tensor<5xi16>, tensor<4xi8>, tensor<2xi64>) {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<2x4xf32>
  %init = linalg.fill ins(%zero : f32) outs(%empty : tensor<2x4xf32>) -> tensor<2x4xf32>
  %w = util.global.load @w : tensor<3x4xf32>
  %y = linalg.matmul ins(%x, %w : tensor<2x3xf32>, tensor<3x4xf32>) outs(%init : tensor<2x4xf32>) -> tensor<2x4xf32>
  %h = util.global.load @h : tensor<7xf16>
  %d = util.global.load @d : tensor<3xf64>
  %q = util.global.load @q : tensor<8xi4>
  %q8 = arith.extsi %q : tensor<8xi4> to tensor<8xi8>
  %f8 = util.global.load @f8 : tensor<9xf8E4M3FN>
  %f8b = arith.bitcast %f8 : tensor<9xf8E4M3FN> to tensor<9xi8>
  %b = util.global.load @b : tensor<5xbf16>
  %bb = arith.bitcast %b : tensor<5xbf16> to tensor<5xi16>
  %flag = util.global.load @flag : tensor<4xi1>
  %flag8 = arith.extui %flag : tensor<4xi1> to tensor<4xi8>
  %l = util.global.load @l : tensor<2xi64>
  return %y, %h, %d, %q8, %f8b, %bb, %flag8, %l : tensor<2x4xf32>, tensor<7xf16>, tensor<3xf64>, tensor<8xi8>,
    tensor<9xi8>, tensor<5xi16>, tensor<4xi8>, tensor<2xi64>
}
"""


def flag(scope: str, archive: Path) -> str:
    return f"--parameters={scope}={archive}" if scope else f"--parameters={archive}"


def dumped(archive: Path, scope: str = "m", *extract: str) -> dict[str, tuple[str, str, int]]:
    """Start, end and length of every key, as IREE sees them."""
    argv = [find_native_tool("iree-dump-parameters"), flag(scope, archive)]
    # It extracts from memory alone.
    argv += ["--parameter_mode=preload", *(f"--extract={text}" for text in extract)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert not done.stderr
    rows = re.findall(r"^ *(\S+) \| +(\S+) \| +(\d+) \| `(.*)`$", done.stdout, re.MULTILINE)
    return {key: (start, end, int(length)) for start, end, length, key in rows}


@pytest.mark.iree
def test_iree_reads_random_archives(tmp_path: Path) -> None:
    archive = tmp_path / "m.irpa"
    write_archive(archive, PARAMETERS, RandomContent(7))
    rows = dumped(archive)
    assert list(rows) == sorted(parameter.name for parameter in PARAMETERS)
    for parameter in PARAMETERS:
        start, end, length = rows[parameter.name]
        assert length == parameter.byte_size == int(end) - int(start)
        assert int(start) % 64 == 0
        stored = archive.read_bytes()[int(start) : int(end)]
        assert stored == b"".join(make_random_bytes(parameter, 7))
    assert archive.stat().st_size % 4096 == 0


@pytest.mark.iree
def test_values_lie_one_behind_the_other(tmp_path: Path) -> None:
    archive = tmp_path / "m.irpa"
    sizes = [64, 128, 63, 1, 65, 64, 4096, 7]
    write_archive(archive, [Parameter("m", f"p{at}", (size,), "i8") for at, size in enumerate(sizes)], RandomContent())
    places = [(int(start), int(end)) for start, end, _ in dumped(archive).values()]
    assert [end - start for start, end in places] == sizes
    assert [start for start, _ in places[1:]] == [-(-end // 64) * 64 for _, end in places[:-1]], "no room between them"
    content = archive.read_bytes()
    assert content[places[-1][1] :] == bytes(-places[-1][1] % 4096)


@pytest.mark.iree
def test_iree_extracts_what_was_made(tmp_path: Path) -> None:
    archive, extracted = tmp_path / "m.irpa", tmp_path / "zeta.bin"
    write_archive(archive, PARAMETERS, RandomContent(7))
    dumped(archive, "m", f"m::zeta={extracted}")
    assert extracted.read_bytes() == b"".join(make_random_bytes(PARAMETERS[0], 7))


@pytest.mark.iree
def test_one_value_takes_no_room(tmp_path: Path) -> None:
    archive = tmp_path / "m.irpa"
    huge = Parameter("m", "huge", (1 << 20, 1 << 20), "f32")
    write_archive(archive, [huge, Parameter("m", "wide", (3,), "f64")], 1.5)
    assert archive.stat().st_size == 4096
    rows = dumped(archive)
    assert rows["huge"] == ("-", "-", 1 << 42)
    # IREE cannot fill with 8 bytes: such values are written out.
    start, end, _ = rows["wide"]
    assert np.frombuffer(archive.read_bytes()[int(start) : int(end)], "<f8").tolist() == [1.5, 1.5, 1.5]


@pytest.mark.iree
def test_iree_makes_the_same_archive(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours.irpa", tmp_path / "theirs.irpa"
    write_archive(ours, [Parameter("", "w", (6,), "f32")], 2.5)
    argv = [find_native_tool("iree-create-parameters"), "--quiet", "--splat=w=6xf32=2.5"]
    subprocess.run([*argv, f"--output={theirs}"], check=True, capture_output=True)
    assert ours.read_bytes() == theirs.read_bytes()


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("program")
    (folder / "program.mlir").write_text(PROGRAM)
    argv = [
        find_native_tool("iree-compile"),
        str(folder / "program.mlir"),
        "--iree-hal-target-device=local",
        "--iree-hal-local-target-device-backends=llvm-cpu",
        "--iree-llvmcpu-target-cpu=host",
        "--iree-input-demote-f64-to-f32=false",
        "--mlir-disable-threading",
        f"-o={folder / 'program.vmfb'}",
    ]
    compile_native(argv)
    return folder / "program.vmfb"


def run(module: Path, archives: dict[str, Path], folder: Path) -> list[np.ndarray]:
    x = np.array([[1, 2, 3], [-1, 0.5, 4]], dtype=np.float32)
    np.save(folder / "x.npy", x)
    outputs = [folder / f"{number}.npy" for number in range(8)]
    argv = [find_native_tool("iree-run-module"), "--device=local-task", f"--module={module}"]
    argv += ["--function=main", f"--input=@{folder / 'x.npy'}", *(f"--output=@{path}" for path in outputs)]
    argv += [flag(scope, archive) for scope, archive in archives.items()]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [x, *(np.load(path) for path in outputs)]


def held(parameters: Sequence[Parameter], name: str, dtype: np.typing.DTypeLike) -> np.ndarray:
    parameter = next(parameter for parameter in parameters if parameter.name == name)
    return np.frombuffer(b"".join(make_random_bytes(parameter, 11)), dtype=dtype).reshape(parameter.shape)


def archives_by_scope(folder: Path, parameters: Sequence[Parameter], content: RandomContent | float) -> dict[str, Path]:
    archives = {scope: folder / make_archive_name(scope) for scope in {parameter.scope for parameter in parameters}}
    for scope, path in archives.items():
        write_archive(path, [parameter for parameter in parameters if parameter.scope == scope], content)
    return archives


@pytest.mark.iree
def test_a_program_runs_with_random_weights(module: Path, tmp_path: Path) -> None:
    parameters = collect_parameters(module.with_suffix(".mlir"), "no-tool")
    archives = archives_by_scope(tmp_path / "weights", parameters, RandomContent(11))
    assert set(archives) == {"model", "other", ""}
    x, y, h, d, q, f8, b, flags, wide = run(module, archives, tmp_path)
    np.testing.assert_allclose(y, x @ held(parameters, "w", "<f4"), rtol=1e-5)
    assert h.tobytes() == held(parameters, "h", "<f2").tobytes()
    assert d.tobytes() == held(parameters, "d", "<f8").tobytes()
    packed = next(make_random_bytes(next(p for p in parameters if p.name == "q"), 11))
    nibbles = [code for byte in packed for code in (byte & 15, byte >> 4)]
    assert q.tolist() == [code - 16 if code > 7 else code for code in nibbles]
    assert f8.view(ml_dtypes.float8_e4m3fn).tobytes() == held(parameters, "f8", ml_dtypes.float8_e4m3fn).tobytes()
    assert b.tobytes() == held(parameters, "b", ml_dtypes.bfloat16).tobytes()
    assert flags.tolist() == held(parameters, "flag", np.uint8).tolist()
    assert wide.tolist() == held(parameters, "l", "<i8").tolist()


@pytest.mark.iree
@pytest.mark.parametrize("value", [0, 1])
def test_a_program_runs_with_one_value(value: int, module: Path, tmp_path: Path) -> None:
    parameters = collect_parameters(module.with_suffix(".mlir"), "no-tool")
    archives = archives_by_scope(tmp_path / "weights", parameters, value)
    x, y, h, d, q, f8, b, flags, wide = run(module, archives, tmp_path)
    np.testing.assert_allclose(y, np.repeat(x.sum(axis=1, keepdims=True), 4, axis=1) * value, rtol=1e-6)
    for array in (h, d, q, f8.view(ml_dtypes.float8_e4m3fn), b.view(ml_dtypes.bfloat16), flags, wide):
        assert (array.astype(np.float64) == value).all()


def test_order_does_not_matter(tmp_path: Path) -> None:
    write_archive(tmp_path / "a.irpa", PARAMETERS, RandomContent(1))
    write_archive(tmp_path / "b.irpa", PARAMETERS[::-1], RandomContent(1))
    assert (tmp_path / "a.irpa").read_bytes() == (tmp_path / "b.irpa").read_bytes()


def test_an_archive_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    archive = tmp_path / "m.irpa"
    write_archive(archive, PARAMETERS, RandomContent(1))
    before = archive.read_bytes()
    with pytest.raises(ParameterError, match="i4 holds whole numbers"):
        write_archive(archive, PARAMETERS, 99)
    with pytest.raises(ArtifactError, match="no space for"):
        write_archive(archive, [Parameter("m", "huge", (1 << 50,), "f32")], RandomContent(1))
    assert archive.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["m.irpa"]


def test_a_disk_that_fills_up_leaves_nothing(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        with pytest.raises(ArtifactError, match="disk full"):
            write_archive(tmp_path / "m.irpa", [Parameter("m", "w", (1 << 20,), "f32")], RandomContent(1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []


def test_an_archive_is_of_one_scope_and_of_different_names(tmp_path: Path) -> None:
    for parameters in ([], [*PARAMETERS, Parameter("other", "w", (), "f32")], [PARAMETERS[0], PARAMETERS[0]]):
        with pytest.raises(ValueError, match="archive"):
            write_archive(tmp_path / "m.irpa", parameters, RandomContent(1))
    assert list(tmp_path.iterdir()) == []


def test_archive_names_are_safe_and_different() -> None:
    scopes = ["", "model", "Model", "a/b", "../up", ".", "scope", "x" * 300, "a=b", "ü", "\udcff", "a.b"]
    names = [make_archive_name(scope) for scope in scopes]
    assert names[1] == "model.irpa"
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]{1,80}\.irpa", name) for name in names)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "p.mlir"
    path.write_text(SCOPES)
    return path


@pytest.fixture
def make(program: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> _Run:
    """The program in this process, in the folder of `p.mlir`."""
    monkeypatch.chdir(program.parent)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["parameters", *arguments])
        return main(), *capsys.readouterr()

    return run


def test_the_program_is_run_by_its_name(program: Path) -> None:
    command = [sys.executable, "-m", "iree_gauntlet.artifacts.parameters", "p.mlir", "--random=7", "-o", "out.irpa"]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, cwd=program.parent, capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("out.irpa: 1 parameters")
    assert (program.parent / "out.irpa").is_file()


@pytest.mark.parametrize(
    ("arguments", "scope", "content"),
    [
        (("--scope=model", "--random=42"), "model", RandomContent(42)),
        (("--random=7",), "", RandomContent(7)),
        (("--scope=model", "--splat=-1"), "model", -1),
    ],
)
def test_an_archive_of_one_scope(
    arguments: tuple[str, ...], scope: str, content: RandomContent | float, program: Path, make: _Run
) -> None:
    code, out, err = make("p.mlir", *arguments, "-o", "out.irpa")
    assert (code, err) == (0, "")
    assert "parameters" in out
    write_archive(program.parent / "same.irpa", select_scope(collect_parameters(program, "no-tool"), scope), content)
    assert (program.parent / "out.irpa").read_bytes() == (program.parent / "same.irpa").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("gone.mlir", "--random=1"), "error: gone.mlir: cannot be read"),
        (("p.mlir", "--scope=other", "--random=1"), "error: no parameter in scope 'other'"),
        (("p.mlir", "--scope=model", "--splat=0.5"), 'error: parameter "model"::"b"'),
        (("p.mlir", "--scope=model", "--random=-1"), "error: seed -1 of random weights is negative"),
    ],
)
def test_what_cannot_be_made_is_one_message(
    arguments: tuple[str, ...], message: str, program: Path, make: _Run
) -> None:
    code, _, err = make(*arguments, "-o", "out.irpa")
    assert code == 3
    assert message in err
    assert "Traceback" not in err
    assert not (program.parent / "out.irpa").exists()
