"""Parameters in MLIR bytecode, which the real compiler writes."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from io import BytesIO
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from iree_gauntlet.artifacts.program_parameters import (
    MAGIC,
    ParameterError,
    UnknownEncodingError,
    _BytecodeReader,
    _find_references_through_tool,
    collect_parameters,
    find_references_in_bytecode,
)
from tests.support.native_tools import find_native_tool

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.iree

PROGRAM = r"""
util.global private @a = #stream.parameter.named<"model"::"w.1 \C3\A9>x"> : tensor<4x4xf32>
util.global private @b = #flow.parameter.named<"none", {k = "v>", i = 3 : i32}> : tensor<4xbf16>
util.global private @c {doc = "#stream.parameter.named<\22x\22> : tensor<4xf32>"}
  = #stream.parameter.named<"m2"::"c"> : tensor<2x2xi4>
util.global private @d : tensor<?xf32> = #stream.parameter.named<"m2"::"d"> : tensor<7xf32>
util.global private @again = #stream.parameter.named<"m2"::"d"> : tensor<7xf32>
util.global private @f8 = #stream.parameter.named<"m2"::"f8"> : tensor<7xf8E4M3FNUZ>
util.global private @blob = dense_resource<blob> : tensor<4xi32>
util.global private @dense = dense<[1, 2, 3, 4]> : tensor<4xi32>
func.func @f() -> tensor<3xi8> {
  %0 = flow.tensor.constant #flow.parameter.named<"m"::"inline"> : tensor<3xi8>
  return %0 : tensor<3xi8>
}
{-#
  dialect_resources: { builtin: { blob: "0x0400000001000000020000000300000004000000" } }
#-}
"""


def to_bytecode(text: str, folder: Path, *flags: str) -> Path:
    source, target = folder / "program.mlir", folder / "program.mlirbc"
    source.write_text(text, encoding="utf-8")
    argv = [find_native_tool("iree-opt"), str(source), "--emit-bytecode", *flags, "-o", str(target)]
    subprocess.run(argv, check=True, capture_output=True)
    return target


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return to_bytecode(PROGRAM, tmp_path_factory.mktemp("bytecode"))


@pytest.mark.parametrize("version", [0, 1, 3, 5, 6])
def test_text_and_bytecode_have_the_same_parameters(version: int, tmp_path: Path) -> None:
    bytecode = to_bytecode(PROGRAM, tmp_path, f"--emit-bytecode-version={version}")
    assert bytecode.read_bytes()[len(MAGIC)] == version << 1 | 1
    found = collect_parameters(bytecode, "no-tool")
    text = collect_parameters(bytecode.with_suffix(".mlir"), "no-tool")
    assert len(found) == 6
    assert set(found) == set(text)


def test_through_the_tool_they_are_the_same(program: Path) -> None:
    with program.open("rb") as file:
        direct = {(r.scope, r.name, r.type) for r in find_references_in_bytecode(file, "x")}
    printed = {(r.scope, r.name, r.type) for r in _find_references_through_tool(program, find_native_tool("iree-opt"))}
    assert direct == printed


NAMES = st.text(
    st.characters(exclude_categories=("Cs", "Cc"), exclude_characters='"\\'), max_size=12
)  # the compiler prints others so that it cannot read them itself


@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(names=st.sets(st.tuples(NAMES, NAMES), min_size=20, max_size=60))
def test_any_name_comes_back(names: set[tuple[str, str]], tmp_path: Path) -> None:
    lines = [
        f'util.global private @g{number} = #stream.parameter.named<"{scope}"::"{name}"> : tensor<{number}xi8>'
        for number, (scope, name) in enumerate(sorted(names))
    ]
    found = collect_parameters(to_bytecode("\n".join(lines), tmp_path), "no-tool")
    expected = {(scope, name, (number,)) for number, (scope, name) in enumerate(sorted(names))}
    assert {(parameter.scope, parameter.name, parameter.shape) for parameter in found} == expected


def test_weights_in_the_bytecode_are_not_read(tmp_path: Path) -> None:
    weights = "00" * 4_000_000
    text = PROGRAM.replace("0x0400000001000000020000000300000004000000", f"0x04000000{weights}")
    text = text.replace("tensor<4xi32>\nutil.global private @dense", "tensor<1000000xi32>\nutil.global private @dense")
    bytecode = to_bytecode(text, tmp_path)

    class Counting(BytesIO):
        read_bytes = 0

        def read(self, size: int | None = -1, /) -> bytes:
            content = super().read(size)
            self.read_bytes += len(content)
            return content

    file = Counting(bytecode.read_bytes())
    assert bytecode.stat().st_size > 4_000_000
    assert len(list(find_references_in_bytecode(file, "x"))) == 6
    assert file.read_bytes < 8_000


def test_newer_bytecode_goes_through_the_tool(program: Path, tmp_path: Path) -> None:
    content = bytearray(program.read_bytes())
    content[len(MAGIC)] = 99 << 1 | 1
    newer = tmp_path / "newer.mlirbc"
    newer.write_bytes(content)
    with newer.open("rb") as file, pytest.raises(UnknownEncodingError, match="version 99"):
        list(find_references_in_bytecode(file, "x"))
    with pytest.raises(ParameterError, match=r"newer.mlirbc: iree-opt cannot read it \(exit code 1\): .*version 99"):
        collect_parameters(newer, find_native_tool("iree-opt"))
    with pytest.raises(ParameterError, match=r"missing/iree-opt: cannot be started: No such file") as raised:
        collect_parameters(newer, str(tmp_path / "missing" / "iree-opt"))
    assert "newer.mlirbc requires the compiler's iree-opt" in raised.value.hint


@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)
def test_damaged_bytecode_is_an_error_or_read(data: st.DataObject, program: Path, tmp_path: Path) -> None:
    content = bytearray(program.read_bytes())
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(5, len(content) - 1)) :]
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(4, len(content) - 1))] = data.draw(st.integers(0, 255))
    damaged = tmp_path / "damaged.mlirbc"
    damaged.write_bytes(content)
    with suppress(ParameterError):
        collect_parameters(damaged, "missing-tool")


@given(st.integers(0, 2**64 - 1), st.integers(0, 8))
def test_numbers_of_any_length(value: int, padding: int) -> None:
    # MLIR's PrefixVarInt, written by its definition: n-1 zeros, a one, then 7n bits; nine bytes begin with 0.
    size = next((n for n in range(1 + padding, 9) if value < 1 << 7 * n), 9)
    encoded = (
        b"\0" + value.to_bytes(8, "little") if size == 9 else ((value << 1 | 1) << size - 1).to_bytes(size, "little")
    )
    reader = _BytecodeReader(BytesIO(encoded))
    assert reader.varint() == value
    assert reader.position == reader.size
