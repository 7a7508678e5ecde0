"""What a plugin file declares recipes, architectures, activations and shape sets with."""

from __future__ import annotations

from iree_gauntlet.torch_models.plugins import Proof, activation, architecture, compiler_recipe, recipe, shape_set

__all__ = ["Proof", "activation", "architecture", "compiler_recipe", "recipe", "shape_set"]
