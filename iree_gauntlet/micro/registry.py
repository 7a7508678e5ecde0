"""Decorators and functions by which a plugin file declares recipes, architectures, activations and shape sets."""

from __future__ import annotations

from iree_gauntlet.torch_models.plugins import Proof, activation, architecture, compiler_recipe, recipe, shape_set

__all__ = ["Proof", "activation", "architecture", "compiler_recipe", "recipe", "shape_set"]
