"""The rules of a run server: it compares outputs and reads files as the toolkit does."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iree_gauntlet.measuring.numerics.arrays import Tensor, TensorError, get_storage_dtype, read_arguments
from iree_gauntlet.measuring.numerics.comparison import compare_outputs
from iree_gauntlet.measuring.numerics.tolerances import Tolerances
from iree_gauntlet.workers.iree_side.run_arguments import ArgumentValue, UnsupportedError, read_value
from iree_gauntlet.workers.iree_side.value_errors import are_close, find_close, measure_difference

FLOATS = st.sampled_from(["f16", "f32", "f64", "bf16"])
SPECIAL = st.sampled_from([0.0, -0.0, 1.0, -1.5, 1e-4, 3e-5, 1e4, 65504.0, float("inf"), float("-inf"), float("nan")])


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_the_small_rule_is_the_large_one(data: st.DataObject) -> None:
    name = data.draw(FLOATS)
    dtype = get_storage_dtype(name)
    size = data.draw(st.integers(0, 6))
    with np.errstate(all="ignore"):
        wanted = np.array(data.draw(st.lists(SPECIAL, min_size=size, max_size=size)), np.float64)
        shift = np.array(data.draw(st.lists(SPECIAL.map(lambda x: x * 1e-3), min_size=size, max_size=size)))
        mine, wanted = (wanted + shift).astype(dtype), wanted.astype(dtype)
    near, far = data.draw(st.sampled_from([0.0, 1e-4, 0.1])), data.draw(st.sampled_from([0.0, 1e-5, 0.1]))
    tolerances = Tolerances(near, near, near, near, far, exact=data.draw(st.booleans()))
    whole = compare_outputs([Tensor(name, mine.shape, mine)], [Tensor(name, wanted.shape, wanted)], tolerances)[0]
    limits = tolerances.get_limits(name) if tolerances.applies_to(name) else None
    bits = np.uint16 if name == "bf16" else dtype
    assert are_close(mine.view(bits), wanted.view(bits), limits, name) == whole.passed
    apart = measure_difference(mine, wanted)
    if np.isfinite(apart):
        assert apart == (whole.max_abs_error or 0.0)


def test_large_arrays_are_compared_to_their_end() -> None:
    wanted = np.zeros(100_000, np.float32)
    mine = wanted.copy()
    mine[5] = 1e-5
    assert are_close(mine, wanted, (1e-4, 0.0))
    assert measure_difference(mine, wanted) == float(np.float32(1e-5))
    mine[-1] = 1
    assert not are_close(mine, wanted, (1e-4, 0.0))
    assert measure_difference(mine, wanted) == 1.0
    assert find_close(mine, wanted, rtol=0.0, atol=2.0, equal_nan=False).all()
    assert find_close(mine, wanted, rtol=0.0, atol=0.5, equal_nan=False).sum() == 99_999


@pytest.mark.parametrize("place", [0, 32_767, 32_768, 50_000, 99_999])
@pytest.mark.parametrize("wrong", [1.0, -1.0, float("nan")])
def test_one_wrong_value_of_a_large_array_is_enough_wherever_it_is(place: int, wrong: float) -> None:
    wanted = np.ones(100_000, np.float32)
    mine = wanted + np.float32(1e-5)
    assert are_close(mine, wanted, (1e-4, 0.0)), "all of them differ, and little"
    mine[place] += wrong
    assert not are_close(mine, wanted, (1e-4, 0.0))
    assert measure_difference(mine, wanted) == (math.inf if np.isnan(wrong) else pytest.approx(1.0, abs=1e-4))


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(["f16", "f32", "f64", "bf16", "i1", "i4", "i8", "ui8", "si32", "i64", "cf64", "f8E4M3FN", "tf32"]),
    st.lists(st.integers(0, 3), max_size=3),
    st.text("0123456789-+.eE xinfa,[]", max_size=12),
)
def test_values_are_read_as_elsewhere_or_not_at_all(name: str, shape: list[int], values: str) -> None:
    text = "x".join([*map(str, shape), name]) + "=" + values
    try:
        mine = read_value(text, "/nowhere")
    except UnsupportedError:
        return
    try:
        wanted = read_arguments([text], Path("/nowhere"))[0]
    except TensorError as error:
        raise AssertionError(f"{text!r} is refused elsewhere") from error
    assert mine is not None
    assert wanted is not None
    assert (mine.shape, mine.element_type) == (wanted.shape, wanted.element_type)
    assert bytes(mine.contents) == wanted.array.tobytes()


def test_files_are_read_as_elsewhere_or_not_at_all(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(bytes(range(24)))
    np.save(tmp_path / "a.npy", np.arange(6, dtype=np.int32).reshape(2, 3))
    np.save(tmp_path / "f.npy", np.asfortranarray(np.arange(6.0).reshape(2, 3)))
    np.save(tmp_path / "big.npy", np.arange(6, dtype=">i4"))
    np.save(tmp_path / "s.npy", np.array(2.5, np.float16))
    (tmp_path / "two.npy").write_bytes((tmp_path / "a.npy").read_bytes() * 2)
    # Of a size that is mapped, not read.
    (tmp_path / "large.bin").write_bytes(bytes(1 << 21))
    for text in ("3x2xf32=@a.bin", "3xf64=@a.bin", "@a.npy", "@s.npy", "48xi4=@a.bin", "524288xf32=@large.bin"):
        mine, wanted = read_value(text, str(tmp_path)), read_arguments([text], tmp_path)[0]
        assert isinstance(mine, ArgumentValue)
        assert wanted is not None
        assert (mine.shape, mine.element_type) == (wanted.shape, wanted.element_type)
        assert bytes(mine.contents) == wanted.array.tobytes()
    longer = ("5xf32=@a.bin", "f64=@a.bin", "524287xf32=@large.bin", "@two.npy")
    others = ("7xf32=@a.bin", "@f.npy", "@big.npy", "@none.npy", "2xf32=@none.bin", "+a.npy", "@a.bin", "4", "1.5")
    for text in (*longer, *others):
        with pytest.raises(UnsupportedError):
            read_value(text, str(tmp_path))
    assert read_value("(ignored)", "") is None
