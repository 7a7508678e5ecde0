"""`random://` sources: the same bytes on every machine, and a message for every mistake."""

from __future__ import annotations

import hashlib
import math
import subprocess
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iree_gauntlet.artifacts import seeded
from iree_gauntlet.artifacts.seeded import ALPHABET, SyntheticContent, draw_words_picture, parse_seeded, write_seeded
from iree_gauntlet.errors import ArtifactError, ExitCode
from tests.support.native_tools import find_native_tool

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

FLOATS = ["f16", "bf16", "f32", "f64", "f8E4M3FN", "f8E4M3FNUZ", "f8E5M2"]
INTEGERS = [*("i1", "i8", "i16", "i32", "i64", "si8", "si16", "si32", "si64"), *("ui8", "ui16", "ui32", "ui64")]
SHAPES = st.lists(st.integers(0, 5), max_size=4).map(tuple)

# SHA-256 of the bytes of the whole file: these never change, or every recorded golden is worth nothing.
GOLDEN = {
    "random://uniform/1x3x48x192xf32?seed=7&low=-1&high=1": (
        "3132c9caef983d9c211044652c6ad222f17a2efe7f80f8ef36617ee5729508a9"
    ),
    "random://uniform/3x5xf16?seed=1": ("46dad94621d665ef0c3025fce9e7359cfe68eb63bfc245776cc8b582aeeb511c"),
    "random://uniform/3x5xbf16?seed=1": ("7176482ba57356bf816f307ae701e6afd206e6f8d647224e69d346ebb82df490"),
    "random://uniform/17xf64?seed=18446744073709551617": (
        "f9f0a55b5f6df5e58f990e320270db826e68d6eccee43fcde562056bcdc39f63"
    ),
    "random://normal/1x64xf32?seed=1&mean=0&stddev=0.01": (
        "d170ad33ea1b2e3ae937057d430223b1a862bdeb459014c04ef0a5b1c7883226"
    ),
    "random://normal/64xf8E4M3FN?seed=1": ("b06471113e7e6be72706f1498b4f6da57c8a4484b474e4ea137627de88b18cdf"),
    "random://normal/64xf8E4M3FNUZ?seed=1": ("91c89f65a77f7e98b9117a02c0b549716aa1ecf3ae1f556ebf95055bab30cdfa"),
    "random://normal/64xf8E5M2?seed=1": ("4ee0c12bab9f359b59556a688becca8ba03abc8d6aa7c3eb6d1fdc53604546e1"),
    "random://integers/1x64xi64?seed=3&low=0&high=30522": (
        "fc3371a7fd3072e79d5fc88c56c6c25a94e99b45c9847c9b8285ada0badde61f"
    ),
    "random://integers/100xui64?seed=3": ("003dd6851cd00784ceb699093399ee415c034f9727182edf266635c3d4845e6d"),
    "random://integers/100xi8?seed=3": ("b1836b2cb676349617909f933e2327b6a305c7b56227c453de0054ca70a61cce"),
    "random://integers/40xi1?seed=3": ("9a1f687d9b94b2c3b1fb877b1dbbf06a48dac2b279d5091de31c1ce42dc46920"),
    "random://text/1x3x320x320xf32?seed=3&scale=4&lines=4": (
        "64178f430be1860e67b4d315d1d81554cbef9310cd379c175151b9769efc2f86"
    ),
    "random://formula/5x7xf16?seed=1&skip=3&coeff=2&offset=-1": (
        "4f5ea104378faba607c96d0aef6492b5e0f40dbc36e66e5b12a17fb9d8bb9de3"
    ),
    "random://formula/9xbf16?seed=4294967295": ("56ad98ed3f55d611a5043361d23279b9163bbb444c17631a3e2384c4e332dcdc"),
    "random://zeros/1x2x128x2xf32": ("c8780c0d3493768237a8c60a8bdf9df829c1b25a0cdea9ee39947cfe9c51a6ca"),
    "random://ones/f32": ("8911cbc3a75f98c55d74490c632594ffd99e0f242b800de2b0597e1b227998f2"),
    "random://uniform/2x0x3xf32": ("4f42cc2c77965c6438670c295b19e564cb47d98acadbf422a1898fd131edc638"),
}


def value_of(shape: tuple[int, ...], element_type: str) -> str:
    return "x".join((*map(str, shape), element_type))


def made(url: str) -> NDArray[Any]:
    return parse_seeded(url).generate()


@pytest.mark.parametrize(("url", "digest"), GOLDEN.items())
def test_bytes_of_files_are_pinned(url: str, digest: str, tmp_path: Path) -> None:
    path = tmp_path / f"made{parse_seeded(url).suffix}"
    write_seeded(url, path)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == digest


def test_the_stream_is_pcg64_seeded_with_the_canonical_url() -> None:
    canonical = "random://uniform/3xf64?high=1.0&low=0.0&seed=7"
    seed = int.from_bytes(hashlib.sha256(canonical.encode()).digest(), "little")
    words = [int(word) for word in np.random.PCG64(seed).random_raw(3)]
    assert made("random://uniform/3xf64?seed=7").tolist() == [(word >> 11) / 2**53 for word in words]


@given(SHAPES, st.sampled_from(FLOATS), st.sampled_from(["uniform", "normal", "zeros", "ones"]))
def test_floating_point_arrays_have_the_shape_and_type(shape: tuple[int, ...], element: str, kind: str) -> None:
    spec = parse_seeded(f"random://{kind}/{value_of(shape, element)}")
    array = spec.generate()
    assert array.shape == shape == spec.shape
    assert spec.value == value_of(shape, element)
    assert spec.suffix == (".npy" if element in {"f16", "f32", "f64"} else ".bin")
    assert array.dtype.itemsize * array.size == len(array.tobytes())


@given(SHAPES, st.sampled_from(INTEGERS), st.data())
def test_integers_stay_in_their_range(shape: tuple[int, ...], element: str, data: st.DataObject) -> None:
    bits = int(element.lstrip("uis"))
    least, most = (
        (0, 2**bits - 1) if element.startswith("ui") or bits == 1 else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    )
    low = data.draw(st.integers(least, most))
    high = data.draw(st.integers(low + 1, most + 1))
    array = made(f"random://integers/{value_of(shape, element)}?seed=5&low={low}&high={high}")
    assert array.shape == shape
    assert all(low <= int(value) < high for value in array.ravel())


@given(st.integers(1, 2**64 - 1), st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=20))
def test_high_half_is_the_128_bit_product(factor: int, words: list[int]) -> None:
    result = seeded._compute_high_half(np.array(words, dtype=np.uint64), factor)
    assert result.tolist() == [word * factor >> 64 for word in words]


@given(st.floats(-1e6, 1e6), st.floats(0, 1e6), st.integers(0, 2**70))
def test_uniform_lies_between_its_bounds(low: float, span: float, seed: int) -> None:
    high = low + span
    array = made(f"random://uniform/200xf64?seed={seed}&low={low!r}&high={high!r}")
    assert array.min() >= low
    assert array.max() <= high


def test_integers_reach_every_value_about_equally() -> None:
    counts = np.bincount(made("random://integers/60000xi32?seed=1&low=0&high=6"))
    assert len(counts) == 6
    assert abs(counts - 10_000).max() < 500


def test_normal_has_its_mean_and_deviation() -> None:
    array = made("random://normal/200000xf64?seed=1&mean=3&stddev=2")
    assert abs(array.mean() - 3) < 0.02
    assert abs(array.std() - 2) < 0.02
    within = np.mean(abs(array - 3) < 2)
    assert abs(within - math.erf(1 / math.sqrt(2))) < 0.01


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("random://uniform/4xf32?seed=1&low=-1", "random://uniform/4xf32?low=-1.0&seed=1"),
        ("random://uniform/4xf32", "random://uniform/4xf32?seed=0&low=0&high=1"),
        ("random://uniform/4xf32?low=-0", "random://uniform/4xf32?low=0"),
        ("random://normal/4xf32?stddev=0.01", "random://normal/4xf32?stddev=1e-2"),
        ("random://integers/4xui8", "random://integers/4xui8?low=0&high=256"),
        ("random://integers/4xi8?low=%2B3", "random://integers/4xi8?low=3"),
    ],
)
def test_two_ways_to_say_the_same_make_the_same(one: str, other: str) -> None:
    assert made(one).tobytes() == made(other).tobytes()


def test_whatever_changes_the_meaning_changes_the_stream() -> None:
    urls = [
        "random://uniform/64xf32?seed=1",
        "random://uniform/64xf32?seed=2",
        "random://uniform/64xf32?seed=1&high=2",
        "random://uniform/8x8xf32?seed=1",
        "random://uniform/64xf64?seed=1",
        "random://normal/64xf32?seed=1",
    ]
    heads = [made(url).ravel()[:4].astype("f4").tolist() for url in urls]
    assert len({tuple(head) for head in heads}) == len(urls)


@pytest.mark.parametrize("element", [*FLOATS, *INTEGERS])
def test_zeros_and_ones(element: str) -> None:
    assert made(f"random://zeros/2x3x{element}").astype("f4").sum() == 0
    assert made(f"random://ones/2x3x{element}").astype("f4").sum() == 6


def test_small_floats_are_rounded_from_binary32() -> None:
    bf16 = made("random://uniform/50xbf16?seed=1")
    assert bf16.dtype == np.dtype(ml_dtypes.bfloat16)
    exact = seeded.SyntheticContent("", "uniform", (50,), "bf16", {"high": 1.0, "low": 0.0, "seed": 1})._make_uniform(
        0.0, 1.0
    )
    assert bf16.tobytes() == exact.astype("f4").astype(ml_dtypes.bfloat16).tobytes()


def test_text_is_dark_on_light_and_the_same_in_all_channels() -> None:
    picture = made("random://text/2x3x48x192xf32?seed=3&scale=4")
    assert set(np.unique(picture).tolist()) == {np.float32(-0.9), np.float32(0.9)}
    assert (picture[:, :1] == picture).all()
    assert (picture[0] != picture[1]).any()
    ink = (picture < 0).mean()
    assert 0.1 < ink < 0.5


def test_text_keeps_to_the_middle_of_its_lines() -> None:
    picture = made("random://text/1x1x96x256xf32?seed=3&scale=3&lines=2")[0, 0]
    rows = np.flatnonzero((picture < 0).any(axis=1)).tolist()
    assert {row // 48 for row in rows} == {0, 1}
    assert all(13 <= row % 48 < 35 for row in rows)


@given(st.integers(1, 4), st.integers(1, 3), st.integers(0, 40), st.integers(0, 60))
def test_every_picture_that_is_accepted_can_be_drawn(scale: int, lines: int, height: int, width: int) -> None:
    url = f"random://text/1x1x{height}x{width}xf32?scale={scale}&lines={lines}"
    try:
        spec = parse_seeded(url)
    except ArtifactError:
        assert height < 8 * scale * lines or width < 7 * scale
    else:
        assert (spec.generate() < 0).any()


def test_a_line_may_hold_one_character_only() -> None:
    stream = iter([ALPHABET.index("I"), 0, 0])
    rows = ["".join("#" if dot else "." for dot in row) for row in draw_words_picture(stream, 8, 7, 1, 1)]
    assert [row[1:6] for row in rows[1:]] == [".###.", "..#..", "..#..", "..#..", "..#..", "..#..", ".###."]


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("https://host/x", "not a random:// source"),
        ("random://uniforn/4xf32", "did you mean uniform?"),
        ("random:///4xf32", "unknown distribution ''"),
        ("random://[uniform/4xf32", "Invalid IPv6 URL"),
        ("random://uniform/4xf33", "did you mean f32?"),
        ("random://uniform/4x", "not a shape with an element type"),
        ("random://uniform/-1xf32", "not a shape with an element type"),
        ("random://uniform/4/f32", "not a shape with an element type"),
        ("random://uniform/4xf32#x", "#x has no meaning in a random:// URL"),
        ("random://uniform/4xi32", "generates floating-point values"),
        ("random://integers/4xf32", "does not generate f32 values"),
        ("random://uniform/4xf32?sead=3", "did you mean seed?"),
        ("random://zeros/4xf32?seed=3", "zeros has no parameter 'seed'"),
        ("random://uniform/4xf32?seed", "bad query field"),
        ("random://uniform/4xf32?seed=", "seed='' is not a whole number"),
        ("random://uniform/4xf32?seed=1.5", "seed='1.5' is not a whole number"),
        ("random://uniform/4xf32?seed=1&seed=2", "given twice"),
        ("random://uniform/4xf32?seed=-1", "seed=-1 is negative"),
        ("random://uniform/4xf32?low=nan", "low='nan' is not a number"),
        ("random://uniform/4xf32?low=1e999", "exceeds binary64"),
        ("random://uniform/4xf32?low=2&high=1", "no values lie between"),
        ("random://normal/4xf32?stddev=-1", "stddev=-1 is negative"),
        ("random://formula/4xf32?skip=-1", "skip=-1 is negative"),
        ("random://formula/4xf32?seed=4294967296", "seed=4294967296 is too large"),
        ("random://formula/4xf32?coeff=x", "coeff='x' is not a number"),
        ("random://integers/4xi8?low=0&high=300", "i8 integers from 0 below 300 do not exist"),
        ("random://integers/4xi8?low=3&high=3", "do not exist"),
        ("random://uniform/99999999x99999999xf32", "exceed the maximum of 4294967296"),
        ("random://text/3x48x192xf32", "4 dimensions, not 3"),
        ("random://text/1x3x20x192xf32", "the picture has 20 and 192"),
        ("random://text/1x3x48x192xf32?scale=0", "scale and lines must be at least 1"),
        ("random://uniform/4xf32?seed=" + "9" * 5000, "is not a whole number"),
    ],
)
def test_mistakes_are_named(url: str, said: str) -> None:
    with pytest.raises(ArtifactError) as caught:
        parse_seeded(url)
    assert said in caught.value.message
    assert url in caught.value.message
    assert caught.value.hint
    assert caught.value.url == url
    assert caught.value.exit_code is ExitCode.ERROR


@given(st.text())
def test_no_text_breaks_the_parser(text: str) -> None:
    try:
        spec = parse_seeded("random://" + text)
    except ArtifactError:
        return
    assert isinstance(spec, SyntheticContent)


@given(SHAPES, st.sampled_from(["f16", "f32", "f64", *INTEGERS]))
def test_npy_files_are_read_back_by_numpy(shape: tuple[int, ...], element: str) -> None:
    array = made(f"random://ones/{value_of(shape, element)}")
    header = seeded._make_npy_header(array)
    assert len(header) % 64 == 0
    assert header[:8] == b"\x93NUMPY\x01\x00"
    read = np.lib.format.read_array(_Bytes(header + array.tobytes()))
    assert read.dtype == array.dtype
    assert read.shape == shape
    assert np.array_equal(read, array)


class _Bytes:
    """A stream that NumPy reads without asking for a file descriptor."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def read(self, size: int = -1) -> bytes:
        size = len(self._content) if size < 0 else size
        head, self._content = self._content[:size], self._content[size:]
        return head


def test_types_that_numpy_lacks_are_raw_bytes(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    write_seeded("random://normal/3x5xbf16?seed=1", path)
    assert path.stat().st_size == 30
    assert path.read_bytes() == made("random://normal/3x5xbf16?seed=1").tobytes()


def test_nothing_is_left_where_the_folder_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="cannot be written"):
        write_seeded("random://zeros/4xf32", tmp_path / "missing" / "x.npy")
    assert not list(tmp_path.iterdir())


@pytest.mark.iree
@pytest.mark.parametrize(
    ("url", "typed", "printed"),
    [
        ("random://integers/2x3xi64?seed=1&low=-5&high=5", "2x3xi64", "2x3xsi64="),
        ("random://uniform/4xf16?seed=1", "4xf16", "4xf16="),
        ("random://ones/f32", "f32", "f32=1"),
        ("random://ones/3xi1", "3xi8", "3xi1=01 01 01"),
        ("random://integers/2xui8?seed=1", "2xi8", "2xui8=35 137"),
    ],
)
def test_iree_reads_the_files(url: str, typed: str, printed: str, tmp_path: Path) -> None:
    compiler = pytest.importorskip("iree.compiler")
    source = f"func.func @f(%x: tensor<{typed}>) -> tensor<{typed}> {{ return %x : tensor<{typed}> }}"
    module = tmp_path / "m.vmfb"
    module.write_bytes(
        compiler.compile_str(
            source, extra_args=["--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=vmvx"]
        )
    )
    path = tmp_path / "x.npy"
    write_seeded(url, path)
    done = subprocess.run(
        [
            find_native_tool("iree-run-module"),
            "--device=local-sync",
            f"--module={module}",
            "--function=f",
            f"--input=@{path}",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert printed in done.stdout
