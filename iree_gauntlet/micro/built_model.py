"""The model of a plan: what the architecture makes, in its type, with the weights of its recipes.

The same plan gives the same weights and inputs in every process; and so do all plans of one architecture, shape and
type before their recipes.
"""

from __future__ import annotations

import importlib.util
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from iree_gauntlet.bench.failures import failure_problem
from iree_gauntlet.bench.registry import shown
from iree_gauntlet.errors import GauntletError, Problem, UsageError
from iree_gauntlet.micro.linear_layers import Changed, changed_layers, fingerprints, linear_layers
from iree_gauntlet.micro.registry import PluginError
from iree_gauntlet.micro.variant_plan import DTYPES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from iree_gauntlet.micro.lookup import AskedRecipe, Registry
    from iree_gauntlet.micro.registry import Activation, Architecture, Recipe
    from iree_gauntlet.micro.variant_plan import VariantPlan

__all__ = ["Model", "apply_recipes", "base_model", "blaming"]

_SEED = 0


@dataclass(slots=True)
class Model:
    """A torch module in evaluation mode, and what it is called with."""

    module: Any
    inputs: tuple[Any, ...]


def base_model(plan: VariantPlan, registry: Registry) -> Model:
    """What the architecture of a plan makes, in the plan's type.

    Raises:
        UsageError: there is no such architecture, or the sizes or the configuration do not fit it.
        PluginError: its function fails, or returns something else than a module and its inputs.
    """
    asked = registry.model_type(plan.model_type)
    made = asked.architecture
    dtype = getattr(torch, DTYPES[plan.dtype])
    given: dict[str, Any] = {}
    torch.manual_seed(_SEED)
    if asked.activation is not None:
        with blaming(asked.activation, f"the activation of {plan.model_type}"):
            given["activation"] = asked.activation.function()
    if plan.config is not None:
        given["config"] = Path(plan.config)
    with blaming(made, f"building it for m = {plan.m}, k = {plan.k}, n = {plan.n} failed"):
        returned = made.function(plan.m, plan.k, plan.n, dtype, **given)
    if not isinstance(returned, list | tuple) or len(returned) != 2:
        raise _wrong(made, f"it returned {type(returned).__name__}: expected a module and a tuple of its inputs")
    module, inputs = returned
    inputs = (inputs,) if isinstance(inputs, torch.Tensor) else inputs
    if not isinstance(module, torch.nn.Module):
        raise _wrong(made, f"it returned {type(module).__name__} first: expected a torch.nn.Module")
    if not isinstance(inputs, list | tuple) or not inputs or not all(isinstance(i, torch.Tensor) for i in inputs):
        raise _wrong(made, "it returned no tuple of tensors second")
    # An architecture that has heard of the type may keep a part of itself in f32 on purpose.
    if any(weight.is_floating_point() and weight.dtype is not dtype for weight in module.parameters()):
        module.to(dtype)
    inputs = tuple(tensor.to(dtype) if tensor.is_floating_point() else tensor for tensor in inputs)
    return Model(module.eval().requires_grad_(requires_grad=False), inputs)


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


@contextmanager
def blaming(declared: Activation | Architecture | Recipe, hint: str) -> Iterator[None]:
    """Blame a plugin's file and line for what its function raises.

    Raises:
        PluginError: in place of it.
    """
    try:
        yield
    except GauntletError:
        raise
    except Exception as error:  # a function of a user may raise anything, and is named for it
        problem = failure_problem(error, declared.file.parent, declared.file, declared.line, declared.name, hint)
        raise PluginError([problem]) from error


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
    with blaming(recipe, f"{asked.text} failed"), torch.no_grad():
        returned = recipe.function(module, *asked.arguments)
    if not isinstance(returned, torch.nn.Module):
        raise _wrong(recipe, f"it returned {type(returned).__name__}: expected the torch module that it made")
    return returned


def _wrong(declared: Architecture | Recipe, message: str) -> PluginError:
    return PluginError([Problem(str(shown(declared.file)), declared.line, declared.name, message)])
