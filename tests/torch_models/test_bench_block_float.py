"""Block floating point: the properties of the format, and a second implementation in exact fractions."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from iree_gauntlet.torch_models.formats import BLOCK, BLOCK_FORMATS, BlockFormat, round_to_blocks

if TYPE_CHECKING:
    from numpy.typing import NDArray

Floats = np.ndarray[Any, np.dtype[np.float32]]
NAMES = ("Bfp8", "Bfp8_b", "Bfp4", "Bfp4_b")
FORMATS = tuple(BLOCK_FORMATS[name] for name in NAMES)

formats = st.sampled_from(FORMATS)
every_float = st.floats(width=32, allow_nan=False, allow_infinity=False)
# Far inside the range of all four formats, also after scaling.
usual_float = st.one_of(
    st.just(0.0), st.floats(2.0**-4, 2.0**4, width=32).flatmap(lambda value: st.sampled_from((value, -value)))
)
sizes = st.one_of(st.sampled_from((0, 1, 15, 16, 17, 31, 32, 33)), st.integers(0, 70))


def vectors(values: st.SearchStrategy[float]) -> st.SearchStrategy[Floats]:
    return arrays.arrays(np.float32, sizes, elements=values)


# Up to three short axes, and one that is several blocks long.
shapes = st.one_of(
    st.just(()), st.builds(lambda before, last: (*before, last), st.lists(st.integers(0, 4), max_size=3), sizes)
)
shaped = arrays.arrays(np.float32, shapes, elements=every_float)


def exact(values: list[float], form: BlockFormat) -> list[float]:
    """The format once more, a block at a time and in fractions: the definition, not the way it is computed."""
    rounded: list[float] = []
    for start in range(0, len(values), BLOCK):
        block = [Fraction(value) for value in values[start : start + BLOCK]]
        largest = max(abs(value) for value in block)
        exponent = form.least_exponent
        while exponent < form.greatest_exponent and Fraction(2) ** (exponent + 1) <= largest:
            exponent += 1
        unit = Fraction(2) ** (exponent - form.magnitude_bits + 1)
        last = 2**form.magnitude_bits - 1
        for value in block:
            magnitude = min(round(abs(value) / unit), last)  # Python rounds ties to even
            rounded.append(math.copysign(float(magnitude * unit), value) if magnitude else 0.0)
    return rounded


def unit(form: BlockFormat, exponent: int) -> float:
    """The last place of a block with this exponent: its values are multiples of it."""
    return float(2.0 ** (exponent - form.magnitude_bits + 1))


def greatest(form: BlockFormat) -> float:
    """The largest value."""
    return float((2**form.magnitude_bits - 1) * unit(form, form.greatest_exponent))


def same_bits(first: NDArray[Any], second: NDArray[Any]) -> bool:
    return first.dtype == second.dtype and first.shape == second.shape and first.tobytes() == second.tobytes()


@settings(deadline=None)
@given(vectors(every_float), formats)
def test_it_is_the_format_as_defined(values: Floats, form: BlockFormat) -> None:
    expected = np.array(exact([float(value) for value in values], form), np.float32)
    assert same_bits(round_to_blocks(values, form), expected)


@settings(deadline=None)
@given(shaped, formats)
def test_rounding_twice_changes_nothing_more(values: Floats, form: BlockFormat) -> None:
    once = round_to_blocks(values, form)
    assert same_bits(round_to_blocks(once, form), once)


@settings(deadline=None)
@given(vectors(every_float), formats)
def test_errors_are_half_a_unit_or_a_unit_where_the_largest_magnitude_cuts_off(
    values: Floats, form: BlockFormat
) -> None:
    assume(not values.size or np.abs(values).max() <= greatest(form))
    units = np.ones(len(values))
    for start in range(0, len(values), BLOCK):
        _, exponent = np.frexp(np.abs(values[start : start + BLOCK]).max())
        exponent = min(max(int(exponent) - 1, form.least_exponent), form.greatest_exponent)
        units[start : start + BLOCK] = unit(form, exponent)
    errors = np.abs(round_to_blocks(values, form).astype(np.float64) - values)
    cut_off = np.abs(values.astype(np.float64)) > (2**form.magnitude_bits - 0.5) * units
    assert (errors[~cut_off] <= units[~cut_off] / 2).all()
    assert (errors[cut_off] < units[cut_off]).all()


@settings(deadline=None)
@given(vectors(usual_float), formats, st.integers(-6, 6))
def test_scaling_by_a_power_of_two_commutes(values: Floats, form: BlockFormat, power: int) -> None:
    scale = np.float32(2.0**power)
    # The least values are 2^-10: they and their blocks stay inside the range of float16's exponents.
    assert same_bits(round_to_blocks(values * scale, form), round_to_blocks(values, form) * scale + np.float32(0))


@settings(deadline=None)
@given(vectors(every_float), formats)
def test_signs_are_symmetric(values: Floats, form: BlockFormat) -> None:
    assert (round_to_blocks(-values, form) == -round_to_blocks(values, form)).all()


@settings(deadline=None)
@given(vectors(every_float), formats)
def test_zeros_stay_zero_and_signs_stay(values: Floats, form: BlockFormat) -> None:
    rounded = round_to_blocks(values, form)
    assert (rounded[values == 0] == 0).all()
    assert not np.signbit(rounded[rounded == 0]).any()
    assert (rounded * np.sign(values) >= 0).all()


@settings(deadline=None)
@given(vectors(every_float), formats, st.randoms(use_true_random=False))
def test_order_inside_a_block_does_not_matter(values: Floats, form: BlockFormat, random: Any) -> None:
    order: list[int] = []
    for start in range(0, len(values), BLOCK):
        block = [*range(start, min(start + BLOCK, len(values)))]
        random.shuffle(block)
        order += block
    assert same_bits(round_to_blocks(values[order], form), round_to_blocks(values, form)[order])


@settings(deadline=None)
@given(vectors(every_float), st.sampled_from(("", "_b")))
def test_fewer_bits_are_a_coarser_grid(values: Floats, kind: str) -> None:
    fine = BLOCK_FORMATS[f"Bfp8{kind}"]
    coarse = round_to_blocks(values, BLOCK_FORMATS[f"Bfp4{kind}"])
    assert same_bits(round_to_blocks(coarse, fine), coarse)


@pytest.mark.parametrize("kind", ["", "_b"])
@pytest.mark.parametrize("scale", [1e-3, 0.02, 1.0, 100.0])
def test_errors_of_bfp4_are_larger_in_the_mean(kind: str, scale: float) -> None:
    values = np.random.default_rng(3).normal(0, scale, (64, 48)).astype(np.float32)
    errors = [np.abs(round_to_blocks(values, BLOCK_FORMATS[f"Bfp{n}{kind}"]) - values).mean() for n in (8, 4)]
    assert errors[1] > 10 * errors[0] > 0


@settings(deadline=None)
@given(shaped, formats)
def test_axes_before_the_last_are_apart(values: Floats, form: BlockFormat) -> None:
    rounded = round_to_blocks(values, form)
    assert rounded.shape == values.shape
    assert rounded.dtype == np.float32
    if values.ndim:
        for place in np.ndindex(values.shape[:-1]):
            assert same_bits(rounded[place], round_to_blocks(values[place], form))


@pytest.mark.parametrize("form", FORMATS, ids=NAMES)
def test_layout_does_not_matter_and_the_input_stays(form: BlockFormat) -> None:
    values = np.random.default_rng(1).normal(size=(40, 50, 60)).astype(np.float32)
    kept = values.copy()
    for view in (values.T, values[::2, ::-1, 3::5], values.transpose(1, 0, 2), np.asfortranarray(values)):
        assert same_bits(round_to_blocks(view, form), round_to_blocks(np.ascontiguousarray(view), form))
    values.flags.writeable = False
    rounded = round_to_blocks(values, form)
    assert rounded.flags.writeable
    assert not np.shares_memory(rounded, values)
    assert same_bits(values, kept)


@pytest.mark.parametrize("form", FORMATS, ids=NAMES)
@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 5), (), (1,), (16,), (17,), (2, 1, 33)])
def test_shapes_stay(form: BlockFormat, shape: tuple[int, ...]) -> None:
    values = np.full(shape, 1.5, np.float32)
    assert same_bits(round_to_blocks(values, form), values)


def test_other_float_types_are_taken() -> None:
    form = BLOCK_FORMATS["Bfp8_b"]
    values = np.random.default_rng(1).normal(size=100)
    assert same_bits(round_to_blocks(values, form), round_to_blocks(values.astype(np.float32), form))
    half = values.astype(np.float16)
    assert same_bits(round_to_blocks(half, form), round_to_blocks(half.astype(np.float32), form))


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        # 1 + k/64 is the grid of Bfp8 from 1 on; ties go to the even magnitude.
        ("Bfp8_b", 1 + 1 / 128, 1.0),
        ("Bfp8_b", 1 + 3 / 128, 1 + 2 / 64),
        ("Bfp8_b", 1 + 1 / 128 + 2**-23, 1 + 1 / 64),
        # What rounds up beyond the last magnitude becomes the last one.
        ("Bfp8_b", 2 - 2**-23, 2 - 1 / 64),
        ("Bfp4_b", 1.99, 1.75),
        ("Bfp4_b", 1.125, 1.0),
        ("Bfp4_b", 1.375, 1.5),
        # The ends of the range.
        ("Bfp8", 1e9, 65024.0),
        ("Bfp4", -1e9, -57344.0),
        ("Bfp8", 2.0**-21, 0.0),
        ("Bfp8", 2.0**-21 * 1.01, 2.0**-20),
        ("Bfp8_b", 3.4028234663852886e38, 127 * 2.0**121),
        ("Bfp8_b", 2.0**-133, 0.0),
        ("Bfp8_b", 2.0**-132, 2.0**-132),
    ],
)
def test_single_values(name: str, value: float, expected: float) -> None:
    form = BLOCK_FORMATS[name]
    assert round_to_blocks(np.array([value]), form).tolist() == [expected]
    assert greatest(form) >= abs(expected)


def test_small_values_of_a_block_with_a_large_one_vanish() -> None:
    values = np.full(17, 1.0, np.float32)
    values[0] = 1000.0
    rounded = round_to_blocks(values, BLOCK_FORMATS["Bfp4"])
    assert rounded[0] == 1024 - 128
    assert (rounded[1:16] == 0).all()
    assert rounded[16] == 1


@pytest.mark.parametrize("form", FORMATS, ids=NAMES)
def test_values_that_are_no_numbers_stay_and_leave_their_neighbours_alone(form: BlockFormat) -> None:
    values = np.random.default_rng(1).normal(size=32).astype(np.float32)
    alone = np.delete(values, [3, 5, 7])[:13]
    values[[3, 5, 7]] = np.nan, np.inf, -np.inf
    rounded = round_to_blocks(values, form)
    assert np.isnan(rounded[3])
    assert rounded[5] == np.inf
    assert rounded[7] == -np.inf
    assert same_bits(np.delete(rounded, [3, 5, 7])[:13], round_to_blocks(alone, form))
    assert np.isinf(round_to_blocks(np.array([1e300]), form)).all()


def test_the_signal_of_normal_weights_is_where_the_format_puts_it() -> None:
    values = np.random.default_rng(0).normal(size=(256, 256)).astype(np.float32)
    power = np.sum(values.astype(np.float64) ** 2)
    noises = [np.sum((round_to_blocks(values, form).astype(np.float64) - values) ** 2) for form in FORMATS]
    found = [10 * np.log10(power / noise) for noise in noises]
    # Six decibels a bit, four bits apart.
    assert found[0] == found[1]
    assert 40 < found[0] < 45
    assert 21 < found[0] - found[2] < 26
