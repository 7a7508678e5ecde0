"""The data formats: their element types, their rounding, and the allowed distance from torch's results."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from iree_gauntlet.torch_models.formats import BLOCK_FORMATS, DataFormat, find_tolerance, round_to_blocks, round_weights
from tests.support.command_line import LIMIT_SECONDS
from tests.support.places import ROOT

if TYPE_CHECKING:
    from numpy.typing import NDArray

HELD: dict[str, Any] = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
BLOCKS = [form for form in DataFormat if form.emulated]
Floats = np.ndarray[Any, np.dtype[np.float32]]
weights = arrays.arrays(np.float32, arrays.array_shapes(max_dims=3, max_side=20), elements=st.floats(width=32))


def test_the_formats_are_the_documents() -> None:
    assert [form.value for form in DataFormat] == ["Fp32", "Fp16", "Fp16_b", "Bfp8", "Bfp8_b", "Bfp4", "Bfp4_b"]
    assert [form.element_type for form in DataFormat] == ["f32", "f16", "bf16", "f16", "bf16", "f16", "bf16"]
    assert [form.torch_type for form in DataFormat][:3] == ["float32", "float16", "bfloat16"]
    assert [form.value for form in BLOCKS] == ["Bfp8", "Bfp8_b", "Bfp4", "Bfp4_b"]
    assert DataFormat.BFP8_B.label == "Bfp8_b (emulated in bf16)"
    assert DataFormat.FP16.label == "Fp16"


@pytest.mark.parametrize("form", BLOCKS, ids=lambda form: form.value)
def test_the_type_that_holds_a_block_format_holds_every_value_of_its_grid(form: DataFormat) -> None:
    block = BLOCK_FORMATS[form.value]
    magnitudes = np.arange(2**block.magnitude_bits)
    for exponent in range(block.least_exponent, block.greatest_exponent + 1):
        grid = magnitudes * 2.0 ** (exponent - block.magnitude_bits + 1)
        held = grid.astype(HELD[form.element_type])
        assert (held.astype(np.float64) == grid).all(), exponent
        # And it is a grid of the format: with the block's exponent set, nothing is rounded.
        block_of_two = np.stack([grid, np.full_like(grid, grid[-1])], axis=-1).astype(np.float32)
        assert (round_to_blocks(block_of_two, block) == block_of_two).all(), exponent


@settings(deadline=None)
@given(weights, st.sampled_from(DataFormat))
def test_rounded_weights_are_exact_in_their_element_type(values: Floats, form: DataFormat) -> None:
    kept = values.copy()
    rounded = round_weights(values, form)
    assert rounded.dtype == np.float32
    assert rounded.shape == values.shape
    assert not np.shares_memory(rounded, values)
    assert values.tobytes() == kept.tobytes()
    held = rounded.astype(HELD[form.element_type]).astype(np.float32)
    assert np.array_equal(held, rounded, equal_nan=True)
    assert np.array_equal(np.isnan(rounded), np.isnan(values))
    assert np.array_equal(round_weights(rounded, form), rounded, equal_nan=True)


@settings(deadline=None)
@given(weights)
def test_sixteen_bits_round_as_everyone_rounds_them(values: Floats) -> None:
    with np.errstate(over="ignore"):
        half = values.astype(np.float16).astype(np.float32)
        brain = values.astype(ml_dtypes.bfloat16).astype(np.float32)
    assert np.array_equal(round_weights(values, DataFormat.FP16), half, equal_nan=True)
    assert np.array_equal(round_weights(values, DataFormat.FP16_B), brain, equal_nan=True)
    assert np.array_equal(round_weights(values, DataFormat.FP32), values, equal_nan=True)


def test_every_tie_of_bfloat16_goes_to_even() -> None:
    upper = np.arange(0, 0x7F80, dtype=np.uint32) << np.uint32(16)
    values = (upper | np.uint32(0x8000)).view(np.float32)
    expected = values.astype(ml_dtypes.bfloat16).astype(np.float32)
    for sign in (1, -1):
        assert (round_weights(sign * values, DataFormat.FP16_B) == sign * expected).all()


def test_weights_of_any_layout_and_type_are_taken() -> None:
    values = np.random.default_rng(1).normal(size=(30, 40))
    views: tuple[NDArray[Any], ...] = (values, values.T[::3], values.astype(np.float16))
    for form, view in itertools.product(DataFormat, views):
        again = np.ascontiguousarray(view).astype(np.float32)
        assert round_weights(view, form).tobytes() == round_weights(again, form).tobytes()
    scalar = round_weights(np.array(1.1), DataFormat.FP16_B)
    assert scalar.shape == ()


def test_tolerances_grow_with_roundoff_and_depth() -> None:
    fp32, fp16, brain = (find_tolerance(kind, 1).rms for kind in ("f32", "f16", "bf16"))
    assert fp32 < fp16 < brain
    for kind in {form.element_type for form in DataFormat}:
        assert find_tolerance(kind, 72).rms == pytest.approx(find_tolerance(kind, 1).rms * math.sqrt(72))
        assert find_tolerance(kind, 72).peak == 4 * find_tolerance(kind, 72).rms
    assert find_tolerance("f32", 72).rms == pytest.approx(1.0e-5, rel=0.05)
    assert find_tolerance("f16", 72).rms == pytest.approx(0.081, rel=0.05)
    assert find_tolerance("bf16", 72).rms == pytest.approx(0.17, rel=0.05)


def test_narrowed_contractions_have_the_tolerance_of_their_inputs() -> None:
    plain, half, brain = (find_tolerance("f32", 10, kind).rms for kind in ("", "f16", "bf16"))
    assert plain == find_tolerance("f32", 10, "f32").rms
    assert half > 100 * plain
    assert brain == pytest.approx(8 * half, rel=0.01)
    # Nothing becomes narrower than it is.
    assert find_tolerance("f16", 10, "f16") == find_tolerance("f16", 10)
    with pytest.raises(ValueError, match="0 contractions"):
        find_tolerance("f32", 0)


def test_formats_need_the_standard_library_and_numpy_only() -> None:
    program = (
        "import sys; import iree_gauntlet.torch_models.formats as f; light = set(sys.modules)\n"
        "import numpy as np; [f.round_weights(np.ones(3), form) for form in f.DataFormat]\n"
        "heavy = {'ml_dtypes', 'pydantic', 'torch'}\n"
        "print('numpy' in light, {n.partition('.')[0] for n in sys.modules} & heavy)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True, timeout=LIMIT_SECONDS
    )
    assert done.stdout.strip() == "False set()"
