"""Every recipe on IREE: torch's outputs, weights of the promised type, and products of the promised kind."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iree_gauntlet.toolchains.installed import find_installed
from iree_gauntlet.torch_models.module_facts import ModuleFacts, find_unproven, read_module_facts
from iree_gauntlet.torch_models.plugins import load_registry
from tests.support.variant_builder import VariantBuild, build_variant_in_process, compute_distance, make_plan

if TYPE_CHECKING:
    from pathlib import Path

    from iree_gauntlet.torch_models.build_files import VariantPlan

with contextlib.suppress(ModuleNotFoundError):
    # Without it these tests are not selected, and have to be collected all the same.
    import torch

pytestmark = [pytest.mark.models, pytest.mark.iree]

REGISTRY = load_registry()
QUANTIZED = ("int8wo", "int8dq", "int4wo-16", "float8wo", "float8dq-tensor", "float8dq-row")
# A layer's weights in bits, with its steps of f32: one for each of 64 inputs, of 16, of none.
BITS = {"int8wo": 8.5, "int8dq": 8.5, "int4wo-16": 6.0, "float8wo": 8.5, "float8dq-tensor": 8.0, "float8dq-row": 8.5}
# Relative rms of the difference that a recipe makes at a linear layer of normal values, and a margin.
ERRORS = {
    "int8wo": 0.006,
    "int8dq": 0.012,
    "int4wo-16": 0.08,
    "float8wo": 0.03,
    "float8dq-tensor": 0.045,
    "float8dq-row": 0.045,
}


def needs(recipe: str) -> None:
    for name in REGISTRY.find_recipe(recipe).recipe.requires:
        pytest.importorskip(name, reason=f"{name} is not installed: pip install {name}")


def made(folder: Path, plan: VariantPlan) -> tuple[VariantBuild, ModuleFacts, list[Any]]:
    needs(plan.quantization)
    flags = REGISTRY.find_recipe(plan.quantization).recipe.flags
    found = build_variant_in_process(folder / plan.label, plan)
    outputs, _ = found.run(flags)
    return found, read_module_facts(find_installed(), found.program, found.module(flags)), outputs


@pytest.mark.parametrize(("m", "k", "n"), [(16, 64, 32), (48, 256, 192)])
@pytest.mark.parametrize("recipe", QUANTIZED)
def test_a_quantisation_at_a_linear_layer(tmp_path: Path, recipe: str, m: int, k: int, n: int) -> None:
    _, plain, _ = made(tmp_path, make_plan(tmp_path, "linear", m, k, n))
    found, facts, outputs = made(tmp_path, make_plan(tmp_path, "linear", m, k, n, quantization=recipe))
    assert compute_distance(outputs, found.outputs()) < 1e-5
    assert 0.0005 < compute_distance(outputs, found.reference()) < ERRORS[recipe]
    assert find_unproven(REGISTRY.find_recipe(recipe).recipe.proof, facts, plain) == []
    assert plain.stored_bytes == 4 * k * n
    assert facts.stored_bytes * 8 <= BITS[recipe] * k * n
    # Nothing of it is made wider, or unpacked, when the module is loaded.
    assert facts.load_dispatches == ()


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("recipe", QUANTIZED)
def test_a_quantisation_of_narrow_types(tmp_path: Path, recipe: str, dtype: str) -> None:
    _, plain, _ = made(tmp_path, make_plan(tmp_path, "ln_linear_relu", 8, 128, 64, dtype=dtype))
    plan = make_plan(tmp_path, "ln_linear_relu", 8, 128, 64, dtype=dtype, quantization=recipe)
    found, facts, outputs = made(tmp_path, plan)
    assert compute_distance(outputs, found.outputs()) < 0.02
    assert compute_distance(outputs, found.reference()) < 1.2 * ERRORS[recipe] + 0.01
    assert find_unproven(REGISTRY.find_recipe(recipe).recipe.proof, facts, plain) == []


@pytest.mark.parametrize("recipe", QUANTIZED)
def test_a_quantisation_of_a_transformer_block(tmp_path: Path, recipe: str) -> None:
    found, facts, outputs = made(tmp_path, make_plan(tmp_path, "transformer_block", 1, 64, quantization=recipe))
    asked = REGISTRY.find_recipe(recipe).recipe
    assert compute_distance(outputs, found.outputs()) < 1e-5 + asked.tolerance
    assert found.record["changed_layers"] == 4
    if asked.proof.dispatch:
        assert sum(re.search(asked.proof.dispatch, name) is not None for name in facts.dispatches) >= 4


@pytest.mark.parametrize(("recipe", "share"), [("2:4", 0.5), ("semi-sparse", 0.5), ("block-16", 0.5)])
@pytest.mark.parametrize("beside", ["baseline", "int8dq"])
def test_sparse_weights_keep_their_zeros(tmp_path: Path, recipe: str, share: float, beside: str) -> None:
    import onnx  # noqa: PLC0415
    from onnx import numpy_helper  # noqa: PLC0415

    plan = make_plan(tmp_path, "linear", 4, 64, 32, quantization=beside, sparsity=recipe)
    found, _, outputs = made(tmp_path, plan)
    assert compute_distance(outputs, found.outputs()) < 1e-5
    graph = onnx.load(found.folder / "main.onnx").graph
    (weight,) = (array for item in graph.initializer if (array := numpy_helper.to_array(item)).ndim == 2)
    zeros = float(np.mean(weight == 0))
    assert share <= zeros < share + 0.02
    if recipe != "block-16":
        rows = weight if weight.shape == (32, 64) else weight.T
        assert int((rows.reshape(-1, 4) != 0).sum(1).max()) == 2


COMPILER = tuple(name for name, item in REGISTRY.recipes.items() if item.kind == "compiler")


@pytest.mark.parametrize("recipe", COMPILER)
def test_a_recipe_of_the_compiler(tmp_path: Path, recipe: str) -> None:
    asked = REGISTRY.find_recipe(recipe).recipe
    found = build_variant_in_process(tmp_path, make_plan(tmp_path, "ln_linear_gelu", 16, 128, 64))
    plain, _ = found.run()
    outputs, _ = found.run(asked.flags)
    tool = find_installed()
    facts, before = (read_module_facts(tool, found.program, found.module(flags)) for flags in (asked.flags, ()))
    assert compute_distance(plain, found.outputs()) < 1e-5
    error = compute_distance(outputs, found.outputs())
    if asked.contraction_type:
        assert 1e-5 < error < 0.01
        assert any(asked.contraction_type in name for name in facts.dispatches)
    else:
        assert error < 1e-5
    assert find_unproven(asked.proof, facts, before) == []


# Their arithmetic


def layer(values: np.ndarray[Any, Any]) -> Any:
    linear = torch.nn.Linear(values.shape[1], values.shape[0])
    linear.weight.data = torch.from_numpy(values.astype(np.float32))
    return linear


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 5), st.integers(1, 4), st.sampled_from([2, 4, 16]), st.integers(0, 1000), st.floats(1e-30, 1e30))
def test_a_weight_in_four_bits_is_within_half_a_step(
    rows: int, groups: int, group: int, seed: int, scale: float
) -> None:
    from iree_gauntlet.torch_models.torch_side.layers import Int4Linear  # noqa: PLC0415

    plain = layer(np.random.default_rng(seed).standard_normal((rows, groups * group)) * scale)
    four = Int4Linear(plain, group)
    assert four.weight.dtype == torch.uint8
    assert four.weight.numel() == plain.weight.numel() // 2
    plain.bias = None
    four.bias = None
    back = four(torch.eye(groups * group)).detach().t()
    step = four.step.abs().expand(-1, -1, group).flatten(1)
    error = (back - plain.weight).abs()
    # Seven steps up, eight down: what lies beyond seven and a half is clipped, by half a step more at the most.
    assert bool((error <= step * 1.0001).all())
    inside = (plain.weight / step).abs() <= 7.5
    assert bool((error[inside] <= step[inside] * 0.5001).all())


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 1000), st.floats(1e-3, 1e3))
def test_zeros_and_outliers_survive_the_dynamic_recipes(seed: int, scale: float) -> None:
    from iree_gauntlet.torch_models.torch_side.layers import Float8DynamicLinear, Int8DynamicLinear  # noqa: PLC0415

    random = np.random.default_rng(seed)
    plain = layer(random.standard_normal((8, 16)))
    rows = torch.from_numpy((random.standard_normal((4, 16)) * scale).astype(np.float32))
    rows[0] = 0
    for made_of in (Int8DynamicLinear(plain), Float8DynamicLinear(plain, "row"), Float8DynamicLinear(plain, "tensor")):
        found = made_of(rows)
        assert torch.equal(found[0], plain.bias.detach())
        exact = plain(rows)
        assert float((found - exact).detach().norm() / exact.detach().norm()) < 0.1
        # One row more changes no other, but where all share a step.
        if getattr(made_of, "by_row", True):
            assert torch.allclose(made_of(rows[:2]), found[:2])


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 1000))
def test_what_stays_of_pruned_weights_is_the_largest(rows: int, fours: int, seed: int) -> None:
    from iree_gauntlet.torch_models.torch_side.layers import keep_blocks, keep_two_of_four  # noqa: PLC0415

    weight = torch.from_numpy(np.random.default_rng(seed).standard_normal((4 * rows, 4 * fours)).astype(np.float32))
    pruned = keep_two_of_four(weight).reshape(-1, 4)
    kept = pruned != 0
    assert bool((kept.sum(1) == 2).all())
    magnitude = weight.reshape(-1, 4).abs()
    smallest = torch.where(kept, magnitude, torch.inf).amin(1)
    largest = torch.where(kept, 0.0, magnitude).amax(1)
    assert bool((smallest >= largest).all())
    blocks = keep_blocks(weight, 4)
    squares = blocks.reshape(rows, 4, fours, 4).square().sum((1, 3)).flatten()
    assert int((squares > 0).sum()) == (rows * fours + 1) // 2
    assert torch.equal(blocks[blocks != 0], weight[blocks != 0])
