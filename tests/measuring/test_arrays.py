from __future__ import annotations

import ast
import math
import subprocess
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iree_gauntlet.formatting import parse_c_float
from iree_gauntlet.measuring.numerics import arrays
from iree_gauntlet.measuring.numerics.arrays import (
    Tensor,
    TensorError,
    TensorType,
    UnreadError,
    explain_refusal,
    get_storage_dtype,
    parse_inline_values,
    parse_tensor_type,
    read_arguments,
    read_npy,
    read_output,
    read_raw,
)
from iree_gauntlet.toolchains.installed import find_installed

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NAMES = ["i1", "i4", "i8", "si16", "ui32", "i64", "f16", "bf16", "f32", "f64", "cf64", "f8E4M3FN", "*16", "f128"]


@settings(deadline=None)
@given(st.lists(st.integers(0, 10**6), max_size=6), st.sampled_from(NAMES))
def test_tensor_types_round_trip(shape: list[int], name: str) -> None:
    tensor_type = TensorType(tuple(shape), name)
    assert parse_tensor_type(str(tensor_type)) == tensor_type


@pytest.mark.parametrize(
    "text", ["", "4x", "F32", "4xfoo", "-1xf32", "?xf32", "4xf32x", "4x4", "f0", "i256", "4x²xf32"]
)
def test_bad_tensor_types_are_errors(text: str) -> None:
    with pytest.raises(TensorError):
        parse_tensor_type(text)


def test_byte_counts_follow_the_tool() -> None:
    assert parse_tensor_type("5xi4").byte_count == 3  # packed, rounded up
    assert parse_tensor_type("5xi1").byte_count == 5
    assert parse_tensor_type("2x3xbf16").byte_count == 12
    assert parse_tensor_type("2xi24").byte_count == 6
    assert parse_tensor_type("0x3xf32").byte_count == 0
    assert parse_tensor_type("f64").byte_count == 8


@pytest.mark.parametrize(
    ("dtype", "element_type"),
    [
        ("bool", "i1"),
        ("int8", "si8"),
        ("uint16", "ui16"),
        ("int64", "si64"),
        ("float16", "f16"),
        ("float64", "f64"),
        ("complex64", "cf64"),
        ("complex128", "cf128"),
        (ml_dtypes.bfloat16, "*16"),
        (ml_dtypes.float8_e4m3fn, "*8"),
        (ml_dtypes.float8_e5m2, "f8"),
    ],
)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0, 2)])
def test_npy_types_are_the_tools(dtype: Any, element_type: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    array = np.ones(shape).astype(dtype)
    np.save(tmp_path / "a.npy", array)
    tensor = read_npy(tmp_path / "a.npy")
    assert tensor.type == TensorType(shape, element_type)
    assert tensor.array.tobytes() == array.tobytes()
    assert tensor.source == str(tmp_path / "a.npy")


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_npy_versions(version: tuple[int, int], tmp_path: Path) -> None:
    with (tmp_path / "a.npy").open("wb") as file:
        np.lib.format.write_array(file, np.arange(4.0), version=version)
    assert read_npy(tmp_path / "a.npy").array.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("dtype", ["?", ">i2", "<i8", ">u4", ">f4", ">f8", ">c8", ">c16"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 3, 4), (0, 2)])
def test_npy_of_any_order_is_read_as_numpy_reads_it(dtype: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    """Which iree-run-module refuses, and suites that compare by NumPy's rule have."""
    array = np.asfortranarray(np.arange(math.prod(shape)).reshape(shape).astype(dtype))
    np.save(tmp_path / "a.npy", array)
    tensor = read_npy(tmp_path / "a.npy")
    assert tensor.array.dtype == get_storage_dtype(tensor.element_type)
    assert tensor.array.flags.c_contiguous
    assert np.array_equal(tensor.array, array)
    # What follows in the file is found all the same.
    with (tmp_path / "b.npy").open("wb") as file:
        np.save(file, array)
        np.save(file, np.arange(2.0))
    assert len(read_arguments(["*b.npy"], tmp_path)) == 2


def damaged(tmp_path: Path) -> dict[str, bytes]:
    np.save(tmp_path / "good.npy", np.arange(6, dtype="f4").reshape(2, 3))
    good = (tmp_path / "good.npy").read_bytes()
    np.save(tmp_path / "record.npy", np.ones(2, [("a", "f4")]))
    np.save(tmp_path / "text.npy", np.array(["a"]))
    np.save(tmp_path / "object.npy", np.array([None]), allow_pickle=True)
    cases = {name: (tmp_path / f"{name}.npy").read_bytes() for name in ("record", "text", "object")}
    return cases | {
        "empty": b"",
        "not npy": b"PK\x03\x04 something else",
        "version": good[:6] + b"\x04" + good[7:],
        "torn header": good[:40],
        "torn length": good[:9],
        "torn data": good[:-1],
        "huge header": good[:6] + b"\x02\x00\xff\xff\xff\xff" + good[12:],
        "no dict": good.replace(b"{'descr'", b"('descr',"),
        "code": good.replace(b"'<f4'", b"1/0  "),
        "negative": good.replace(b"(2, 3)", b"(2,-3)"),
        "enormous": good.replace(b"(2, 3), }            ", b"(9999999999, 99999)}"),
    }


def test_damaged_npy_files_are_errors_that_name_the_file(tmp_path: Path) -> None:
    for name, content in damaged(tmp_path).items():
        path = tmp_path / f"{name}.npy"
        path.write_bytes(content)
        with pytest.raises(TensorError, match=name):
            read_npy(path)
    with pytest.raises(TensorError, match="No such file"):
        read_npy(tmp_path / "missing.npy")
    with pytest.raises(TensorError, match="Is a directory"):
        read_npy(tmp_path)


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.npy"
    for data in (content, b"\x93NUMPY\x01\x00" + content):
        path.write_bytes(data)
        with pytest.raises(TensorError):
            read_npy(path)


def test_raw_files(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(np.arange(9, dtype="f4").tobytes())
    assert read_raw(path, parse_tensor_type("2x2xf32")).array.tolist() == [[0, 1], [2, 3]]
    assert read_raw(path, parse_tensor_type("2xf32"), 4).array.tolist() == [1, 2]
    assert read_raw(path, parse_tensor_type("0xf32")).array.size == 0
    assert read_raw(path, parse_tensor_type("3xi4")).array.dtype == np.uint8
    with pytest.raises(TensorError, match="needs 40 bytes, the file has 36"):
        read_raw(path, parse_tensor_type("10xf32"))


def test_arguments_as_the_tool_reads_them(tmp_path: Path) -> None:
    with (tmp_path / "two.npy").open("wb") as file:
        for value in (1.0, 2.0, 3.0):
            np.save(file, np.float32(value))
    (tmp_path / "a.bin").write_bytes(np.arange(4, dtype="i2").tobytes())

    def values(*arguments: str) -> list[Any]:
        return [t.array.tolist() if t else None for t in read_arguments(arguments, tmp_path)]

    assert values("@two.npy", "+two.npy", "+two.npy", "(ignored)", "@two.npy") == [1.0, 2.0, 3.0, None, 1.0]
    assert values("@two.npy", "*two.npy", "*two.npy") == [1.0, 2.0, 3.0]
    assert values("2xi16=@a.bin", "1xi16=+a.bin", "1xi16=+a.bin", "(null)") == [[0, 1], [2], [3], None]
    assert values(" 2xf32=1 2 ", '"1xi8=3"', "2xi32") == [[1, 2], [3], [0, 0]]
    assert values("4xi16=+a.bin") == [[0, 1, 2, 3]]  # nothing was read before: from the start
    for bad in ("", "4", "@a.bin", "@a.txt", "4xf32=@missing.bin"):
        with pytest.raises(TensorError):
            values(bad)
    # The rest of a file that nothing reads.
    with pytest.raises(UnreadError, match=r"a\.bin: 3xi16 needs 6 bytes, the file has 8\n"):
        values("3xi16=@a.bin", "1xi16=@a.bin")
    with pytest.raises(UnreadError, match=r"a\.bin: 1xi16 needs 2 bytes, the file has 4 after byte 4\n"):
        values("2xi16=@a.bin", "1xi16=+a.bin")
    with pytest.raises(UnreadError, match=r"two\.npy: f32 needs 4 bytes, the file has 136 after byte 260\n"):
        values("@two.npy", "+two.npy")


@settings(deadline=None)
@given(st.lists(st.floats(width=32), min_size=2, max_size=8))
def test_inline_floats_round_trip(values: list[float]) -> None:
    text = ", ".join(repr(value) for value in values)
    read = parse_inline_values(f"[{text}]", TensorType((len(values),), "f32"))
    assert np.array_equal(read, np.array(values, "f4"), equal_nan=True)


@settings(deadline=None)
@given(st.integers(-(2**63), 2**63 - 1))
def test_inline_integers_round_trip(value: int) -> None:
    assert parse_inline_values(str(value), TensorType((), "i64")) == value
    assert parse_inline_values(hex(value), TensorType((1,), "si64")).tolist() == [value]


@pytest.mark.parametrize(
    "argument",
    ["2xi32=1 2 3", "3xi32=1 2", "1xi8=256", "1xui8=-1", "1xi32=1.5", "1xi32=abc", "1xf32=1..2", "2xi1=1 0",
     "1xi1=011", "1xi64=9223372036854775808", "1xcf64=1", "1xi32=09", "0xf32=1", "1xf32=1_0"],
)  # fmt: skip
def test_bad_inline_values_are_errors(argument: str, tmp_path: Path) -> None:
    with pytest.raises(TensorError):
        read_arguments([argument], tmp_path)


def test_c_floats() -> None:
    assert [parse_c_float(text) for text in ("1.0f", "1.", ".5", "0x1p-1", "1e3", "-INF", "+2F")] == [
        *(1.0, 1.0, 0.5, 0.5, 1000.0, float("-inf"), 2.0)
    ]
    assert parse_c_float("0x1p9999") == float("inf")
    for text in ("", "f", "1,5", "1_0", "infinite", "0x", "1.0ff", "١"):
        with pytest.raises(ValueError, match="not a number"):
            parse_c_float(text)


def test_outputs_of_the_tool_have_no_signs(tmp_path: Path) -> None:
    np.save(tmp_path / "o.npy", np.arange(3))
    assert str(read_output(tmp_path / "o.npy").type) == "3xi64"
    (tmp_path / "o.bin").write_bytes(bytes(6))
    assert str(read_output(tmp_path / "o.bin", parse_tensor_type("3xbf16")).type) == "3xbf16"
    assert str(read_output(tmp_path / "o.bin", parse_tensor_type("4xbf16")).type) == "6x*8"
    with pytest.raises(TensorError, match="does not describe its contents"):
        read_output(tmp_path / "o.bin")


def test_bits_under_another_type() -> None:
    tensor = Tensor("*16", (2,), np.array([0x3F80, 0], "u2").view("V2"))
    assert tensor.with_element_type("bf16").array.tolist() == [1.0, 0.0]
    with pytest.raises(TensorError, match="widths differ"):
        tensor.with_element_type("f32")


def test_every_type_has_storage() -> None:
    assert {name: get_storage_dtype(name).itemsize for name in NAMES} == dict(
        zip(NAMES, [1, 1, 1, 2, 4, 8, 2, 2, 4, 8, 8, 1, 2, 16], strict=True)
    )


def test_no_two_threads_read_the_syntax_of_a_header_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[bool] = []
    literal_eval = ast.literal_eval

    def watched(text: str) -> object:
        held.append(arrays._PARSER_LOCK.locked())
        return literal_eval(text)

    np.save(tmp_path / "a.npy", np.zeros(3, np.float32))
    monkeypatch.setattr(ast, "literal_eval", watched)
    assert read_npy(tmp_path / "a.npy").shape == (3,)
    assert held == [True]
    assert not arrays._PARSER_LOCK.locked()


def _write_npy(path: Path, header: str, data: bytes, version: tuple[int, int] = (1, 0)) -> None:
    text = header.encode() + b"\n"
    size = len(text).to_bytes(2 if version[0] == 1 else 4, "little")
    path.write_bytes(b"\x93NUMPY" + bytes(version) + size + text + data)


_VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)
_HEADER = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }"


@pytest.fixture(scope="module")
def identity(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A module that gives what it is given."""
    folder = tmp_path_factory.mktemp("identity")
    program = "func.func @f(%a: tensor<2x3xf32>) -> tensor<2x3xf32> { return %a : tensor<2x3xf32> }"
    (folder / "f.mlir").write_text(program)
    target = ("--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=vmvx")
    command = [find_installed().compiler.compile, str(folder / "f.mlir"), *target, "-o", str(folder / "f.vmfb")]
    subprocess.run(command, check=True)
    return folder / "f.vmfb"


@pytest.mark.iree
@pytest.mark.parametrize(
    ("write", "reads"),
    [
        (lambda path: np.save(path, _VALUES), True),
        (lambda path: np.save(path, np.asfortranarray(_VALUES)), False),
        (lambda path: np.save(path, _VALUES.astype(">f4")), False),
        (lambda path: np.save(path, np.zeros((2, 3), ">i2")), False),
        (lambda path: np.save(path, np.zeros((2, 3), [("x", "f4")])), False),
        (lambda path: np.save(path, np.full((2, 3), None, object), allow_pickle=True), False),
        (lambda path: np.save(path, np.full((2, 3), "text")), False),
        (lambda path: np.save(path, np.zeros((2, 3), "M8[s]")), False),
        (lambda path: np.save(path, _VALUES.astype(np.complex64)), True),
        (lambda path: np.save(path, _VALUES.astype(np.longdouble)), True),
        (lambda path: np.save(path, _VALUES.astype(bool)), True),
        (lambda path: np.save(path, _VALUES.view("V4")), True),
        (lambda path: _write_npy(path, _HEADER, _VALUES.tobytes(), (2, 0)), True),
        (lambda path: _write_npy(path, _HEADER, _VALUES.tobytes(), (3, 0)), True),
        (lambda path: _write_npy(path, _HEADER, _VALUES.tobytes(), (4, 0)), False),
        (lambda path: _write_npy(path, _HEADER.replace("2, 3", "2L, 3L"), _VALUES.tobytes()), True),
        (lambda path: _write_npy(path, _HEADER.replace("'", '"'), _VALUES.tobytes()), False),
        (lambda path: _write_npy(path, _HEADER.replace(": ", ":"), _VALUES.tobytes()), True),
        (lambda path: _write_npy(path, _HEADER.replace(", }", "}"), _VALUES.tobytes()), False),
        (lambda path: _write_npy(path, _HEADER.replace("{", "{ "), _VALUES.tobytes()), False),
        (lambda path: _write_npy(path, _HEADER, _VALUES.tobytes()[:-4]), False),
        (lambda path: path.write_bytes(b"\x93NUMPY\x01\0v\0{'descr'"), False),
        (lambda path: path.write_bytes(b""), False),
    ],
)
def test_what_the_tool_reads_of_a_npy_is_known(
    identity: Path, tmp_path: Path, write: Callable[[Path], object], reads: bool
) -> None:
    path = tmp_path / "a.npy"
    write(path)
    tool = find_installed().runtime.run_module
    done = subprocess.run(
        [tool, f"--module={identity}", "--device=local-sync", "--function=f", f"--input=@{path}"],
        capture_output=True,
        check=False,
    )
    assert (done.returncode == 0) == reads, done.stderr.decode()
    try:
        why = explain_refusal(path)
    except TensorError as error:
        why = error.message
    assert bool(why) != reads, why
