"""The linear layers of a torch module, for the recipes of a plugin file."""

from __future__ import annotations

from iree_gauntlet.torch_models.torch_side.layers import linear_layers, prune_linear_layers, replace_linear_layers

__all__ = ["linear_layers", "prune_linear_layers", "replace_linear_layers"]
