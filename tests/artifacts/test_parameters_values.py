"""Values of parameters: the same bytes on every machine, in the type's range, with the right distribution."""

from __future__ import annotations

import hashlib
import math
import statistics
import tracemalloc
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iree_gauntlet.artifacts.parameters import RandomContent, make_random_bytes, make_splat_pattern, quantiles
from iree_gauntlet.artifacts.program_parameters import Parameter, ParameterError, element_type

F8 = ["f8E4M3FN", "f8E4M3FNUZ", "f8E5M2", "f8E5M2FNUZ", "f8E4M3", "f8E3M4", "f8E4M3B11FNUZ"]
FLOATS = ["f16", "bf16", "f32", "f64", *F8]
INTEGERS = [f"{sign}i{bits}" for sign in ("", "s", "u") for bits in (2, 4, 8, 16, 32, 64)]
ELEMENTS = ["i1", *INTEGERS, *FLOATS]

# SHA-256 of the bytes: these never change, or every output recorded with such weights is worth nothing.
GOLDEN = {
    "i1": "fc9c276122a0d9b81c405251c47495f874f39eb7c4558c100d5f1a3303d3bc81",
    "i2": "63947d0e988be375591ade524ce67929243f0e9aa77263c9e2368b8838de2f0b",
    "i4": "a26da9272960a39b6d49eaed33a84994c933d65960f03903888796de5ce55f6e",
    "i8": "ec0b0e680c22863c8dae551ba2f0834f027837a6f1478ff343fbd671bb7444ae",
    "i16": "c837d784ce03b5133132ba08083373701ba824860248d9ccaa9963b3139be980",
    "i32": "352ee295206844607474d2b8dc958e9f09ee4fec8f5455d356af8a193dd95fc7",
    "i64": "70800a3d28ebb790b0705b1941df7119d377c28653539acb544fc572bfb4c23d",
    "si2": "85b060053ce4cbc2ec13d1cbf8bf40112711ffff269e44503c6a84bdbf215c09",
    "si4": "9875c1fd6561e25736d38776b520591ff6da60d485c376e2d611a078bbe50481",
    "si8": "f68cf59f1fb35aad0768388e4c2c250ace1d2b29d70e2c1ab5f13b33f9a75688",
    "si16": "b5f8b98ded895fbfc313334bb144c5f00b16c4e193d9308a4ce0a24985163fc3",
    "si32": "4c90fedf7d89853a324a641a72228f97ddcc4d38ec41c8140ae2301810d83a7d",
    "si64": "3abf92418278fc0f04fd4adab3ff435c316d0f5f25c963ae02491b1fabfcf63c",
    "ui2": "0aa603dee783b5c333242ef9f42fa244278c1bfdb4a5848c8deb629998567395",
    "ui4": "3968fef57cdce100caa6f7331efecbb5c395eda87069afba07e174804aa6d1bd",
    "ui8": "ee190d95550143e83567d2dbd7045ad27ac935605f309097cdda4775eb8755d3",
    "ui16": "a34e9afdbca6b8438321069b0e902113a8ca3875272c68b788c36c78d9342eb3",
    "ui32": "ff3f84d46f156a681c80142d423310897cd64baba8e32b2a485ad78e76eba189",
    "ui64": "b6ee5b74f06c31895c73a03735cad84f52b4c0065590ef9f7f79be4eb9dc2345",
    "f16": "87aed96b2df2379f8894ad77e6cdc7adb490e126ec20cf617e9afb4814cf87c9",
    "bf16": "e607ecd2f8304c1caf85a33f78c8aa9efc91d879191c3b1af3fcdcd433fc5450",
    "f32": "0fbbc33491d2c050f64b82d1bcf2ce03593ad57d60aafce163e8c7dfa41eaed6",
    "f64": "97c72c05be1afb4df7c0f2c16d300341c7eebb20177d7ab272ef267f9bc237c4",
    "f8E4M3FN": "4797f981fb82c87e960cf066e1b79bfdc48e92041cadee978b212e3b2666ea32",
    "f8E4M3FNUZ": "5d546492bb8296584c551c54e73b1d3a730073d982a18206ef641252180c6675",
    "f8E5M2": "08c96ce56a72a3f28a41a5baf136f87e0d5f9c59cfbd9d487b5b1bacb4a9ffa8",
    "f8E5M2FNUZ": "ac6a2f1499a14bf432408f7be9d921d9a68db3d6c1cf335120702e59c237941a",
    "f8E4M3": "410f9fd08a264f721d71197f53a9eb3d834043dd01782f4d69e66dfc106d8891",
    "f8E3M4": "90f5b367254edecd4c8e2293889d096ed0a2baf83d739a3749baaf323b9bf3cf",
    "f8E4M3B11FNUZ": "0f9e86d47007ebeb81c844d713c9882da4bc411454758966f538d9b7fd4a729e",
}


def dtype_of(name: str) -> np.dtype[Any]:
    names = {"f16": "float16", "f32": "float32", "f64": "float64", "bf16": "bfloat16"}
    return np.dtype(getattr(ml_dtypes, names.get(name, name.replace("f8E", "float8_e").lower()), names.get(name)))


def made(parameter: Parameter, seed: int = 0, piece: int = 1 << 15) -> bytes:
    return b"".join(make_random_bytes(parameter, seed, piece=piece))


@pytest.mark.parametrize("element", ELEMENTS)
def test_bytes_are_pinned(element: str) -> None:
    content = made(Parameter("model", "blk.0.w", (3, 333), element), seed=7)
    assert hashlib.sha256(content).hexdigest() == GOLDEN[element]


@given(
    shape=st.lists(st.integers(0, 40), max_size=3).map(tuple),
    element=st.sampled_from(ELEMENTS),
    piece=st.integers(1, 300),
)
def test_the_size_of_pieces_changes_nothing(shape: tuple[int, ...], element: str, piece: int) -> None:
    parameter = Parameter("m", "w", shape, element)
    content = made(parameter, piece=piece)
    assert content == made(parameter)
    assert len(content) == parameter.byte_size


@pytest.mark.parametrize(
    "other",
    [
        {"scope": "modelw"},
        {"name": "odelw"},
        {"scope": "model ", "name": ""},
        {"shape": (4, 2)},
        {"shape": (8,)},
        {"element_type": "si8"},
    ],
)
def test_everything_that_names_a_parameter_changes_its_values(other: dict[str, Any]) -> None:
    parameter = Parameter("model", "w", (2, 4), "i8")
    assert made(parameter) != made(replace(parameter, **other))
    assert made(parameter, seed=0) != made(parameter, seed=1)


def test_a_name_that_is_no_text_has_values() -> None:
    assert len(made(Parameter("s", "\udcff", (4,), "i8"))) == 4


@pytest.mark.parametrize("element", FLOATS)
def test_floats_are_normal(element: str) -> None:
    count = 100_001
    values = np.frombuffer(made(Parameter("m", "w", (count,), element)), dtype=dtype_of(element)).astype("f8")
    coarse = element in F8
    assert abs(values.mean()) < 2e-4
    assert abs(values.std() / 0.01 - 1) < (0.1 if coarse else 0.01)
    assert np.isfinite(values).all()
    if not coarse:
        for deviations in (0.5, 1, 2, 3):
            expected = math.erf(deviations / math.sqrt(2))
            assert abs(np.mean(abs(values) < 0.01 * deviations) - expected) < 0.006
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.015


@pytest.mark.parametrize(("element", "distinct"), [("f32", 99_900), ("f64", 100_000)])
def test_wide_floats_hardly_repeat(element: str, distinct: int) -> None:
    values = np.frombuffer(made(Parameter("m", "w", (100_000,), element)), dtype=dtype_of(element))
    assert len(np.unique(values)) >= distinct


@pytest.mark.parametrize(("element", "codes"), [("i1", 2), ("i2", 4), ("ui4", 16), ("i8", 256), ("si16", 65536)])
def test_integers_reach_their_whole_range_evenly(element: str, codes: int) -> None:
    count = codes * 64
    content = np.frombuffer(made(Parameter("m", "w", (count,), element)), dtype=np.uint8)
    bits = codes.bit_length() - 1
    if element == "i1":
        values = content
    elif bits < 8:
        values = np.concatenate([content >> shift & (codes - 1) for shift in range(0, 8, bits)])
    else:
        values = content.view(f"<u{bits // 8}")
    counts = np.bincount(values, minlength=codes)
    assert len(counts) == codes
    chi_squared = ((counts - 64) ** 2 / 64).sum()
    assert abs(chi_squared - (codes - 1)) < 5 * math.sqrt(2 * codes)


@pytest.mark.parametrize(("element", "count", "unused"), [("i4", 3, 0xF0), ("i2", 5, 0xFC), ("i2", 7, 0xC0)])
def test_bits_that_hold_no_value_are_zero(element: str, count: int, unused: int) -> None:
    assert {made(Parameter("m", "w", (count,), element), seed)[-1] & unused for seed in range(50)} == {0}


def test_the_table_is_the_normal_distribution() -> None:
    table, normal = quantiles(), statistics.NormalDist()
    assert len(table) == 65536
    assert all(abs(table[i] - normal.inv_cdf((i + 0.5) / 65536)) < 1e-12 for i in range(0, 65536, 97))
    assert (table == -table[::-1]).all()
    assert (np.diff(table) > 0).all()


def test_memory_does_not_grow_with_the_parameter() -> None:
    made(Parameter("m", "w", (2,), "f64"))
    tracemalloc.start()
    size = sum(len(piece) for piece in make_random_bytes(Parameter("m", "w", (5_000_000,), "f64"), 0))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert size == 40_000_000
    assert peak < 4 << 20


@pytest.mark.parametrize(
    ("element", "value", "pattern"),
    [
        *((element, 0, b"\0") for element in ELEMENTS),
        ("i1", 1, b"\1"),
        ("i2", 1, b"\x55"),
        ("i2", -1, b"\xff"),
        ("i4", 3, b"\x33"),
        ("si4", -8, b"\x88"),
        ("ui8", 255, b"\xff"),
        ("i8", 255, b"\xff"),
        ("i8", -128, b"\x80"),
        ("i16", 2, b"\2\0"),
        ("i16", 257, b"\1"),
        ("i32", 2.0, b"\2\0\0\0"),
        ("i64", -1, b"\xff"),
        ("i64", 2, b"\2\0\0\0\0\0\0\0"),
        ("ui64", 2**64 - 1, b"\xff"),
        ("i64", 2**32 + 1, b"\1\0\0\0"),
        ("f16", 1, b"\0\x3c"),
        ("bf16", 1.0, b"\x80\x3f"),
        ("f32", 1.0, b"\0\0\x80\x3f"),
        ("f64", 1.0, b"\0\0\0\0\0\0\xf0\x3f"),
        ("f8E4M3FN", 448, b"\x7e"),
        ("f8E5M2", math.inf, b"\x7c"),
        ("f32", -math.inf, b"\0\0\x80\xff"),
    ],
)
def test_one_value_as_the_shortest_pattern(element: str, value: float, pattern: bytes) -> None:
    known = element_type(element)
    assert known is not None
    assert make_splat_pattern(known, value) == pattern


@pytest.mark.parametrize(
    ("element", "value", "message"),
    [
        ("i1", 2, "i1 holds whole numbers from 0 to 1"),
        ("i4", 16, "from -8 to 15"),
        ("si8", 128, "from -128 to 127"),
        ("ui8", -1, "from 0 to 255"),
        ("i64", 2**64, "holds whole numbers"),
        ("i32", 0.5, "holds whole numbers"),
        ("i32", math.nan, "holds whole numbers"),
        ("i32", math.inf, "holds whole numbers"),
        ("f16", 65536, "f16 cannot hold it"),
        ("f8E4M3FN", 1000, "f8E4M3FN cannot hold it"),
        ("f8E4M3FNUZ", math.inf, "f8E4M3FNUZ cannot hold it"),
        ("f32", 1e39, "f32 cannot hold it"),
        ("f64", 10**400, "f64 cannot hold it"),
    ],
)
def test_a_value_that_a_type_cannot_hold(element: str, value: float, message: str) -> None:
    known = element_type(element)
    assert known is not None
    with pytest.raises(ParameterError, match=message) as raised:
        make_splat_pattern(known, value)
    assert raised.value.hint


@pytest.mark.parametrize("name", ["index", "i3", "i0", "i128", "f80", "f4E2M1FN", "none", "", "F32", "i01", "ui1"])
def test_other_element_types_have_no_values(name: str) -> None:
    assert element_type(name) is None


def test_a_negative_seed_is_an_error() -> None:
    with pytest.raises(ParameterError, match="seed -1 of random weights is negative"):
        RandomContent(-1)
