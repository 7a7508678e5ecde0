"""Agreement of a model's outputs with torch's: by root mean square and worst value, on each output's own scale."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iree_gauntlet.measuring.numerics.arrays import Tensor
from iree_gauntlet.torch_models.agreement import (
    Agreement,
    Gains,
    compare_tensors,
    find_limits,
    fit_gains,
    measure_relative_error,
    subtract_flips,
)
from iree_gauntlet.torch_models.formats import DataFormat, Tolerance
from tests.support.planted import Network, make_tensor

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

_ALLOWED = Tolerance(rms=0.01, peak=0.04)


def tensor(values: NDArray[Any] | list[float], element_type: str = "f32") -> Tensor:
    kinds: dict[str, Any] = {"f32": np.float32, "f16": np.float16, "i64": np.int64}
    array = np.asarray(values, dtype=kinds[element_type])
    return Tensor(element_type, array.shape, array)


def noise(count: int, seed: int = 0) -> NDArray[np.float64]:
    return np.random.default_rng(seed).standard_normal(count)


@given(scale=st.floats(1e-6, 1e6), share=st.floats(0.0, 0.1), count=st.integers(2, 400), seed=st.integers(0, 1000))
def test_the_rms_of_the_differences_is_what_counts(scale: float, share: float, count: int, seed: int) -> None:
    expected = scale * noise(count, seed)
    sign = np.where(np.arange(count) % 2, 1.0, -1.0)
    # Spread evenly, so that the worst value is the rms and no peak.
    error = share * math.sqrt(float(np.mean(expected**2))) * sign
    found = compare_tensors([tensor(expected + error)], [tensor(expected)], _ALLOWED)
    assert found.errors.rms == pytest.approx(share, rel=1e-3, abs=1e-6)
    if share < 0.0099:
        assert not found.problem
    if share > 0.0101:
        assert found.problem.startswith("output 0: ")


@given(factor=st.floats(1e-3, 1e3), seed=st.integers(0, 100))
def test_scale_does_not_matter(factor: float, seed: int) -> None:
    expected, error = noise(50, seed), 0.02 * noise(50, seed + 1)
    plain = compare_tensors([tensor(expected + error)], [tensor(expected)], _ALLOWED)
    scaled = compare_tensors([tensor(factor * (expected + error))], [tensor(factor * expected)], _ALLOWED)
    assert scaled.errors.rms == pytest.approx(plain.errors.rms, rel=1e-4)
    assert bool(scaled.problem) == bool(plain.problem)


def test_one_bad_value_among_many_is_a_mismatch() -> None:
    expected = noise(10_000)
    actual = expected.copy()
    actual[77] += 0.3
    found = compare_tensors([tensor(actual)], [tensor(expected)], _ALLOWED)
    assert "output 0: 1 of 10000" in found.problem.replace(",", "")
    assert found.comparisons[0].worst_index == (77,)
    # By rms alone it would have passed.
    assert found.errors.rms < _ALLOWED.rms


def test_each_output_has_its_own_scale() -> None:
    small, large = 1e-3 * noise(100), 1e3 * noise(100, 1)
    found = compare_tensors([tensor(2 * small), tensor(large)], [tensor(small), tensor(large)], _ALLOWED)
    assert found.problem.startswith("output 0: ")


def test_limits_are_of_each_output() -> None:
    large, rounding = noise(1000), 1e-9 * noise(64, 1)
    expected, actual = [tensor(large), tensor(rounding)], [tensor(large), tensor(-rounding)]
    # A gradient that is zero in exact arithmetic is nothing but rounding.
    assert not compare_tensors(actual, expected, [Tolerance(0, 0), Tolerance(1e-8, 1e-7)]).problem
    assert compare_tensors(actual, expected, [Tolerance(1, 1), Tolerance(1e-10, 1e-7)]).problem.startswith(
        "output 1: rms "
    )
    assert compare_tensors(actual, expected, [Tolerance(1, 1), Tolerance(1e-8, 1e-10)]).problem.startswith("output 1: ")


def judged(network: Network, folder: Path, outputs: list[NDArray[np.float64]]) -> tuple[Agreement, Gains]:
    arrays, directions = network.write_errors(folder)
    actual, expected = (
        [make_tensor(values, network.data_format) for values in made] for made in (outputs, network.run_reference())
    )
    gradients = network.training
    return (
        compare_tensors(actual, expected, find_limits(arrays), gradients=gradients),
        fit_gains(actual, expected, folder, directions, 1.0, gradients=gradients),
    )


@pytest.mark.parametrize("form", DataFormat, ids=lambda form: form.value)
def test_correct_programs_are_within_the_limits_which_are_near(form: DataFormat, tmp_path: Path) -> None:
    network = Network(form)
    found = [judged(network, tmp_path, network.run_compiled(seed)) for seed in range(5)]
    assert not any(agreed.problem or gains.problem for agreed, gains in found)
    largest = max(agreed.errors.rms / agreed.errors.rms_tolerance for agreed, _ in found)
    assert 1 / 4 < largest < 1


@pytest.mark.parametrize("layer", range(3))
@pytest.mark.parametrize("form", DataFormat, ids=lambda form: form.value)
def test_a_layer_that_is_one_percent_off_is_found(form: DataFormat, layer: int, tmp_path: Path) -> None:
    network = Network(form)
    _, gains = judged(network, tmp_path, network.run_compiled(0, layer, 1.01))
    assert gains.problem.startswith("as if contraction ")
    assert gains.contractions.shown["1%"] == gains.contractions.of


@pytest.mark.parametrize("layer", range(3))
@pytest.mark.parametrize("form", DataFormat, ids=lambda form: form.value)
def test_a_layer_that_is_a_thousandth_off_is_found_where_the_format_has_it(
    form: DataFormat, layer: int, tmp_path: Path
) -> None:
    network = Network(form)
    wrong = network.run_compiled(0, layer, 1.001)
    agreed, gains = judged(network, tmp_path, wrong)
    if form.element_type == "bf16":
        # Half a unit of bf16's last place is 0.2 % or more: the weights are the same ones.
        assert (wrong[0] == network.run_compiled(0)[0]).all()
        assert not agreed.problem
        assert not gains.problem
        assert gains.contractions.shown["0.1%"] == 0
    else:
        assert gains.problem
        assert gains.contractions.shown["0.1%"] == gains.contractions.of


def test_narrowed_contractions_may_be_further_off(tmp_path: Path) -> None:
    network = Network(DataFormat.FP32)
    arrays, directions = network.write_errors(tmp_path)
    half = Network(DataFormat.FP16)
    actual, expected = (
        [make_tensor(made[0], network.data_format)] for made in (half.run_compiled(0), network.run_reference())
    )
    for narrowed, wrong in ((1.0, True), (2.0**13, False)):
        assert bool(compare_tensors(actual, expected, find_limits(arrays, narrowed)).problem) == wrong
        assert bool(fit_gains(actual, expected, tmp_path, directions, narrowed).problem) == wrong


def test_what_nothing_depends_on_shows_nothing(tmp_path: Path) -> None:
    network = Network(DataFormat.FP32)
    _, directions = network.write_errors(tmp_path)
    with np.load(tmp_path / directions.file) as found:
        np.savez(tmp_path / directions.file, **{**found, "filters": np.zeros_like(found["filters"])})
    values = [make_tensor(network.run_reference()[0], network.data_format)]
    gains = fit_gains(values, values, tmp_path, directions, 1.0)
    assert not gains.problem
    assert gains.contractions.shown == {"1%": 0, "0.1%": 0}
    assert gains.contractions.as_dict()["limit"] == "inf"


def test_integers_are_equal_or_wrong() -> None:
    assert not compare_tensors([tensor([1, 2], "i64")], [tensor([1, 2], "i64")], _ALLOWED).problem
    assert compare_tensors([tensor([1, 3], "i64")], [tensor([1, 2], "i64")], _ALLOWED).problem


def test_integers_that_rounding_decides_may_be_other_ones() -> None:
    wanted, found = np.zeros(100), np.arange(100) < 4
    for share, passed in ((0.05, True), (0.03, False)):
        allowed = [Tolerance(math.sqrt(share), 1.0)]
        assert bool(compare_tensors([tensor(found, "i64")], [tensor(wanted, "i64")], allowed).problem) != passed


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_no_number_is_a_mismatch(bad: float) -> None:
    assert compare_tensors([tensor([1.0, bad])], [tensor([1.0, 2.0])], _ALLOWED).problem


def test_shapes_types_and_numbers_of_outputs() -> None:
    values = noise(6)
    one = [tensor(values)]
    assert "outputs" in compare_tensors(one * 2, one, _ALLOWED).problem
    assert "outputs" in compare_tensors([], one, _ALLOWED).problem
    assert compare_tensors([tensor(values.reshape(2, 3))], one, _ALLOWED).problem
    assert compare_tensors([tensor(values, "f16")], one, _ALLOWED).problem


def test_errors_between_types() -> None:
    values = noise(100)
    half = tensor(values, "f16")
    assert 0 < measure_relative_error([half], [tensor(values)]) < 2**-11
    assert measure_relative_error([tensor(values)], [tensor(values)]) == 0


def test_a_gradient_may_be_off_by_the_share_that_another_may() -> None:
    loss, small, large = np.ones(1), 1e-2 * noise(100), noise(100, 1)
    # Of the small one a tenth may be wrong, of the large one a thousandth.
    allowed = [Tolerance(0.0, 0.0), Tolerance(1e-3, 4e-3), Tolerance(1e-3, 4e-3)]
    actual = [tensor(loss), tensor(small), tensor(large + 0.05 * np.sign(noise(100, 2)))]
    expected = [tensor(loss), tensor(small), tensor(large)]
    assert compare_tensors(actual, expected, allowed).problem.startswith("output 2: ")
    assert not compare_tensors(actual, expected, allowed, gradients=True).problem


def test_correct_gradients_are_within_the_limits_which_are_near(tmp_path: Path) -> None:
    network = Network(DataFormat.FP32, training=True)
    found = [judged(network, tmp_path, network.run_compiled(seed)) for seed in range(3)]
    assert not any(agreed.problem or gains.problem for agreed, gains in found)
    assert 1 / 8 < max(gains.rest / gains.rest_limit for _, gains in found) < 1


@pytest.mark.parametrize("contraction", range(8))
def test_a_contraction_that_is_a_little_off_is_found_in_training(contraction: int, tmp_path: Path) -> None:
    for form, share in ((DataFormat.FP32, 1.001), (DataFormat.FP16, 1.01)):
        network = Network(form, training=True)
        _, gains = judged(network, tmp_path, network.run_compiled(0, contraction=contraction, factor=share))
        assert gains.problem.startswith("as if contraction "), form
        assert gains.contractions.shown["1%"] == gains.contractions.of == 8


def test_a_value_near_zero_may_fall_to_the_other_side(tmp_path: Path) -> None:
    network = Network(DataFormat.FP32, training=True)
    flipped = network.run_compiled(1, flip=True)
    agreed, gains = judged(network, tmp_path, flipped)
    assert not agreed.problem
    assert not gains.problem
    # Of the errors it is nearly all, and the limit is not wider for it.
    assert (gains.flips, agreed.errors.rms > 50 * gains.rest_limit) == (1, True)
    _, gains = judged(network, tmp_path, network.run_compiled(1, contraction=7, factor=1.001, flip=True))
    assert gains.problem
    # Half a flip is none.
    half = [(one + other) / 2 for one, other in zip(flipped, network.run_reference(), strict=True)]
    assert judged(network, tmp_path, half)[1].problem


def test_a_gradient_that_is_wrong_here_and_there_is_found(tmp_path: Path) -> None:
    network = Network(DataFormat.FP32, training=True)
    loss, *gradients = network.run_compiled(0)
    for index, gradient in enumerate(gradients):
        wrong = gradient * (1 + 1e-3 * noise(gradient.size).reshape(gradient.shape))
        made = [loss, *gradients[:index], wrong, *gradients[index + 1 :]]
        _, gains = judged(network, tmp_path, made)
        assert gains.problem.startswith(("as if contraction ", f"output {index + 1}: "))


@given(seed=st.integers(0, 1000), taken=st.sets(st.integers(0, 9)))
def test_flips_are_told_apart(seed: int, taken: set[int]) -> None:
    random = np.random.default_rng(seed)
    scales = np.exp(random.standard_normal(1000))
    flips, errors = 30 * scales * random.standard_normal((10, 1000)), scales * random.standard_normal(1000)
    left, found = subtract_flips(errors + flips[sorted(taken)].sum(axis=0), flips, scales)
    assert set(found) == taken
    assert np.allclose(left, errors, atol=1e-9)
