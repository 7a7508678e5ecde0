"""The model of a plan: what the architecture makes, in its type, with the weights of its recipes.

The same plan gives the same weights and inputs in every process; and so do all plans of one architecture, shape and
type before their recipes.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from iree_gauntlet.errors import UsageError
from iree_gauntlet.torch_models.formats import TORCH_TYPES
from iree_gauntlet.torch_models.layers import Changed, changed_layers, fingerprints, linear_layers

if TYPE_CHECKING:
    from iree_gauntlet.torch_models.build_plan import VariantPlan
    from iree_gauntlet.torch_models.plugins import AskedRecipe, Registry


_SEED = 0


def base_model(plan: VariantPlan, registry: Registry) -> tuple[Any, tuple[Any, ...]]:
    """What the architecture of a plan makes, in the plan's type: a module in evaluation mode, and what it is given.

    Raises:
        UsageError: there is no such architecture, or the sizes or the configuration do not fit it.
        PluginError: its function fails, or returns something else than a module and its inputs.
    """
    asked = registry.model_type(plan.model_type)
    made = asked.architecture
    dtype = getattr(torch, TORCH_TYPES[plan.dtype])
    given: dict[str, Any] = {}
    torch.manual_seed(_SEED)
    if asked.activation is not None:
        with asked.activation.blamed(f"the activation of {plan.model_type}"):
            given["activation"] = asked.activation.function()
    if plan.config is not None:
        given["config"] = Path(plan.config)
    with made.blamed(f"building it for m = {plan.m}, k = {plan.k}, n = {plan.n} failed"):
        returned = made.function(plan.m, plan.k, plan.n, dtype, **given)
    if not isinstance(returned, list | tuple) or len(returned) != 2:
        raise made.problem(f"it returned {type(returned).__name__}: expected a module and a tuple of its inputs")
    module, inputs = returned
    inputs = (inputs,) if isinstance(inputs, torch.Tensor) else inputs
    if not isinstance(module, torch.nn.Module):
        raise made.problem(f"it returned {type(module).__name__} first: expected a torch.nn.Module")
    if not isinstance(inputs, list | tuple) or not inputs or not all(isinstance(i, torch.Tensor) for i in inputs):
        raise made.problem("it returned no tuple of tensors second")
    # An architecture that has heard of the type may keep a part of itself in f32 on purpose.
    if any(weight.is_floating_point() and weight.dtype is not dtype for weight in module.parameters()):
        module.to(dtype)
    inputs = tuple(tensor.to(dtype) if tensor.is_floating_point() else tensor for tensor in inputs)
    return module.eval().requires_grad_(requires_grad=False), inputs


def apply_recipes(plan: VariantPlan, registry: Registry, module: Any) -> tuple[Any, Changed]:
    """What the recipes of a plan make of a model: sparsity first, so that what is quantised has its zeros already.

    Args:
        plan: names the recipes.
        registry: has them.
        module: of `base_model`; it is changed.

    Returns:
        The module, and what was changed of it.

    Raises:
        UsageError: there is no such recipe, it lacks what it requires, or it changes no linear layer.
        PluginError: its function fails, or returns no module.
    """
    if plan.is_baseline:
        return module, Changed(0, 0)
    before = fingerprints(module)
    for text in filter(None, (plan.sparsity, plan.quantization)):
        module = _applied(registry.recipe(text), module)
    changed = changed_layers(before, module)
    if not changed.layers:
        count = len(linear_layers(module))
        have = f"none of its {count} linear layers" if count else "nothing: it has no linear layer"
        raise UsageError(f"{plan.label} changes {have} in {plan.model_type}")
    return module.eval(), changed


def _applied(asked: AskedRecipe, module: Any) -> Any:
    recipe = asked.recipe
    if recipe.refusal:
        raise UsageError(f"{asked.text}: {recipe.refusal}")
    missing = [name for name in recipe.requires if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"{asked.text} needs {', '.join(missing)}, and {sys.executable} lacks it",
            f"pip install {' '.join(missing)}",
        )
    if recipe.function is None:
        # The compiler's recipes leave the model alone.
        return module
    torch.manual_seed(_SEED)
    with recipe.blamed(f"{asked.text} failed"), torch.no_grad():
        returned = recipe.function(module, *asked.arguments)
    if not isinstance(returned, torch.nn.Module):
        raise recipe.problem(f"it returned {type(returned).__name__}: expected the torch module that it made")
    return returned
