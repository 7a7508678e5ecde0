"""Parameters in MLIR text: any text, read in pieces of any size."""

from __future__ import annotations

import mmap
from contextlib import suppress
from itertools import repeat
from typing import TYPE_CHECKING
from unittest import mock

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from iree_gauntlet.artifacts import program_parameters
from iree_gauntlet.artifacts.program_parameters import (
    Parameter,
    ParameterError,
    ParameterReference,
    collect_parameters,
    find_references_in_text,
    select_scope,
)

if TYPE_CHECKING:
    from pathlib import Path

NO_TOOL = "no-tool-is-needed"


def written(name: bytes, *, raw: bool = True) -> bytes:
    """A name as a string literal: as it is where MLIR allows, else in hexadecimal digits."""
    plain = raw and not set(name) & set(b'"\\\n')
    return b'"' + (name if plain else b"".join(b"\\%02X" % byte for byte in name)) + b'"'


def collected(text: str | bytes, tmp_path: Path) -> tuple[Parameter, ...]:
    program = tmp_path / "program.mlir"
    program.write_bytes(text.encode() if isinstance(text, str) else text)
    return collect_parameters(program, NO_TOOL)


def test_every_way_to_name_a_parameter(tmp_path: Path) -> None:
    text = r"""
!small = tensor<2x2xi4>
#alias = #stream.parameter.named<"model"::"alias"> : tensor<3xf64>
module @"quoted // name" {
  util.global private @a = #stream.parameter.named<"model"::"a"> : tensor<4x4xf32>
  util.global private @b = #flow.parameter.named<"no scope", {k = "v>", i = 3 : i32}> : tensor<4xbf16>
  util.global private @c {doc = "#stream.parameter.named<\22x\22> : tensor<4xf32>"}
    = #stream.parameter.named<"b"::"c"> : !small // #stream.parameter.named<"comment">
  util.global private @d : tensor<?xf32> = #stream.parameter.named<"b"::"d"> : tensor<7xf32>
  util.global private @e = #alias
  util.global private @f = #stream<parameter.named<"b"::"f">> : tensor<f8E4M3FNUZ>
  util.global private @g = #stream.parameter.named< "b" // why not
     :: "g" > // here too: #stream.parameter.named<"x">
     : tensor< 0 x 3 x ui8 >
  "util.global"() <{initial_value = #flow.parameter.named<"b"::"generic"> : tensor<1xi1>, sym_name = "h"}> : () -> ()
  %0 = flow.tensor.constant #flow.parameter.named<"b"::"inline"> : tensor<2xsi16> -> tensor<?xsi16>
}
"""
    assert collected(text, tmp_path) == (
        Parameter("model", "alias", (3,), "f64"),
        Parameter("model", "a", (4, 4), "f32"),
        Parameter("", "no scope", (4,), "bf16"),
        Parameter("b", "c", (2, 2), "i4"),
        Parameter("b", "d", (7,), "f32"),
        Parameter("b", "f", (), "f8E4M3FNUZ"),
        Parameter("b", "g", (0, 3), "ui8"),
        Parameter("b", "generic", (1,), "i1"),
        Parameter("b", "inline", (2,), "si16"),
    )


@pytest.mark.parametrize(
    ("literal", "name"),
    [
        (r"dot.ted/na me", "dot.ted/na me"),
        (r"a\22b", 'a"b'),
        (r"a\"b\\c", 'a"b\\c'),
        (r"tab\tline\n", "tab\tline\n"),
        (r"\C3\A9 é", "é é"),
        (r"\\22", r"\22"),
        (r"// > : tensor<1xf32>", "// > : tensor<1xf32>"),
        (r"\FF", "\udcff"),
        (r"", ""),
    ],
)
def test_names_are_read_as_the_lexer_does(literal: str, name: str, tmp_path: Path) -> None:
    (parameter,) = collected(f'@a = #stream.parameter.named<"s"::"{literal}"> : tensor<2xf32>', tmp_path)
    assert (parameter.scope, parameter.name) == ("s", name)
    parameter.label.encode()  # can be printed


NOISE = st.sampled_from(
    [
        b'"a string with #stream.parameter.named<\\22x\\22> : tensor<1xf32>"',
        b'// #stream.parameter.named<"comment"> : tensor<1xf32>\n',
        b'// an odd " quote\n',
        b'"\\\\"',
        b'"\\22\\\\\\22 // no comment"',
        b"dense<[1.0, -2.5]> : tensor<2xf32>",
        b'dense<"0x0011223344"> : tensor<5xi8>',
        b"\n!alias = tensor<1xf32>\n",
        b"other.parameter.named<x>",
        b"#",
        b"/",
        b"#stream.parameter.nam ",
        b"\n",
    ]
)


@given(
    names=st.lists(st.tuples(st.binary(max_size=20), st.binary(max_size=20), st.booleans(), NOISE), max_size=6),
    chunk=st.integers(1, 200),
)
def test_chunks_of_any_size_give_the_same(names: list[tuple[bytes, bytes, bool, bytes]], chunk: int) -> None:
    text, expected = b"module {\n", []
    for scope, name, raw, noise in names:
        path = written(scope, raw=raw) + b"::" + written(name, raw=raw)
        text += noise + b"\n@x = #stream.parameter.named<" + path + b"> : tensor<2xf32>"
        decoded = [part.decode(errors="surrogateescape") for part in (scope, name)]
        line = text.count(b"\n") + 1
        expected.append(ParameterReference(decoded[0], decoded[1], "tensor<2xf32>", line))
    with mock.patch.object(program_parameters, "_CHUNK_BYTES", chunk):
        assert list(find_references_in_text(text, "x.mlir")) == expected


def test_weights_in_the_text_are_not_kept(tmp_path: Path) -> None:
    digits, numbers = b"0123456789abcdef" * (1 << 16), b"[1, 2, 3]," * (1 << 17)
    parameter = b'\n@w = #stream.parameter.named<"m"::"w"> : tensor<2xf32>\n'
    program = tmp_path / "program.mlir"
    with program.open("wb") as file:
        file.writelines([b'@x = dense<"0x', *repeat(digits, 60), b'">', parameter, *repeat(numbers, 60), parameter])
    before = psutil.Process().memory_info().rss
    peaks = []
    with program.open("rb") as mapped, mmap.mmap(mapped.fileno(), 0, access=mmap.ACCESS_READ) as text:
        for reference in find_references_in_text(text, "x.mlir"):
            peaks.append(psutil.Process().memory_info().rss - before)
            assert (reference.name, reference.line) == ("w", 2 if len(peaks) == 1 else 4)
    assert len(peaks) == 2
    assert max(peaks) < 32 << 20


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('@a = #stream.parameter.named<"m"::"w">', r'program.mlir:1: parameter "m"::"w" has no type'),
        ('\n@a = #flow.parameter.named<"w"> : tensor<?x4xf32>', r'program.mlir:2: parameter "w" is .* unknown size'),
        ('#stream.parameter.named<"w"> : tensor<*xf32>', "element type"),
        ('#stream.parameter.named<"w"> : f32', "is f32, not a tensor"),
        ('#stream.parameter.named<"w"> : vector<4xf32>', "not a tensor"),
        ('#stream.parameter.named<"w"> : !undefined', "!undefined, not a tensor"),
        ('#stream.parameter.named<"w"> : !torch.vtensor<[4],f32>', "not a tensor"),
        ('#stream.parameter.named<"w"> : tensor<4xindex>', "for whose element type no values can be made"),
        ('#stream.parameter.named<"w"> : tensor<4xi3>', "for whose element type no values can be made"),
        ('#stream.parameter.named<"w"> : tensor<4xcomplex<f32>>', "for whose element type no values can be made"),
        ('#stream.parameter.named<"w"> : tensor<4xi1, #iree_encoding.packed_storage>', "encoding has no known size"),
        ('#stream.parameter.named<"w"> : tensor<4xf32, affine_map<(d0) -> (d0)>>', "encoding has no known size"),
        ('#stream.parameter.named<"w"> : tensor<9999999999x9999999999xf32>', "more than a file can hold"),
        ('#stream.parameter.named<"w"> : tensor<' + "9" * 5000 + "xf32>", "not a tensor|element type"),
        ("#stream.parameter.named<w> : tensor<4xf32>", "a name in double quotes"),
        ('#stream.parameter.named<"w\\q"> : tensor<4xf32>', "a name in double quotes"),
        ('#stream.parameter.named<"w" "x"> : tensor<4xf32>', 'expected ">"'),
        ('#stream.parameter.named<"w", {a = [}> : tensor<4xf32>', "brackets do not match"),
        ('#stream.parameter.named<"w", a> : tensor<4xf32>', "opening bracket"),
        ('#stream.parameter.named<"w"> : tensor<4xf32', "brackets are not closed"),
        ('#stream.parameter.named<"w"> : 4', "expected a type"),
        ('#stream.parameter.named<"w', "a name in double quotes"),
        ('@x = "no end', "program.mlir:1: the text ends within a string"),
    ],
)
def test_what_has_no_values_is_named(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match=message) as raised:
        collected(text, tmp_path)
    assert raised.value.hint


def test_the_same_parameter_twice_is_one(tmp_path: Path) -> None:
    text = '#stream.parameter.named<"m"::"w"> : tensor<4xf32>\n#flow.parameter.named<"m"::"w"> : tensor<4xf32>'
    assert collected(text, tmp_path) == (Parameter("m", "w", (4,), "f32"),)


def test_the_same_parameter_with_two_types_is_an_error(tmp_path: Path) -> None:
    text = '#stream.parameter.named<"m"::"w"> : tensor<4xf32>\n#stream.parameter.named<"m"::"w"> : tensor<2x2xf32>'
    with pytest.raises(ParameterError) as raised:
        collected(text, tmp_path)
    assert raised.value.message.endswith(
        'program.mlir:2: parameter "m"::"w" is tensor<2x2xf32>, but was tensor<4xf32> before'
    )


def test_a_missing_program_is_named(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match=r"gone.mlir: cannot be read: No such file"):
        collect_parameters(tmp_path / "gone.mlir", NO_TOOL)


def test_a_program_without_parameters_has_none(tmp_path: Path) -> None:
    assert collected("module {}", tmp_path) == ()
    assert collected("", tmp_path) == ()


@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_damaged_text_is_an_error_or_read(data: st.DataObject, tmp_path: Path) -> None:
    text = bytearray(
        b'!t = tensor<2xf32>\n@x = #stream.parameter.named<"m"::"w\\22", {a = "b"}> : tensor<4x4xf32> // "\n'
        b'@y = #flow.parameter.named<"v"> : !t\n@z = "str\\"ing"'
    )
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(text) - 1))
        text[position : position + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    program = tmp_path / "program.mlir"
    program.write_bytes(text)
    with suppress(ParameterError):
        assert all(parameter.byte_size >= 0 for parameter in collect_parameters(program, str(tmp_path / "missing")))


def test_parameters_of_a_scope() -> None:
    one, other = Parameter("a", "x", (), "f32"), Parameter("", "y", (), "f32")
    assert select_scope([one, other], "a") == (one,)
    assert select_scope([one, other], "") == (other,)
    with pytest.raises(ParameterError, match="no parameter in scope 'b'") as raised:
        select_scope([one, other], "b")
    assert raised.value.hint == "Scopes with parameters: '', 'a'."
    with pytest.raises(ParameterError) as raised:
        select_scope([], "")
    assert "no named parameters" in raised.value.hint
