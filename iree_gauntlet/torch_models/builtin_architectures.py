"""The architectures and activations that the toolkit brings along; the first three are those of torchao's own list.

Sizes are (m, k, n) as torchao has them: m rows of input, of k values each; the layer in question has n outputs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from iree_gauntlet.torch_models.recipe_registry import activation, architecture

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from torch import Tensor
    from torch.nn import Module


# By name: the class of torch, and what it computes.
_ACTIVATIONS = {
    "relu": ("ReLU", "max(x, 0)."),
    "sigmoid": ("Sigmoid", "1 / (1 + exp(-x))."),
    "leakyrelu": ("LeakyReLU", "Leaky: x, or x / 100 below zero."),
    "relu6": ("ReLU6", "What lies between 0 and 6 of x."),
    "gelu": ("GELU", "By erf: x times the share of the normal distribution below it."),
    "silu": ("SiLU", "The swish: x / (1 + exp(-x))."),
    "hardswish": ("Hardswish", "The swish of straight lines: x times (x + 3) / 6, which stays between 0 and 1."),
}


def _declare(name: str, kind: str, about: str) -> None:
    @activation(name, about=about)
    def made() -> Module:
        from torch import nn  # noqa: PLC0415 - the toolkit's Python lists these without torch

        return getattr(nn, kind)()


for _name, (_kind, _about) in _ACTIVATIONS.items():
    _declare(_name, _kind, _about)


@architecture("linear", about="one linear layer without bias: m rows, k inputs, n outputs")
def linear(m: int, k: int, n: int, dtype: torch.dtype) -> tuple[Module, tuple[Tensor, ...]]:
    """As torchao's ToyLinearModel."""
    import torch  # noqa: PLC0415

    from iree_gauntlet.torch_models.torch_architectures import Linear  # noqa: PLC0415

    return Linear(k, n).to(dtype), (torch.randn(m, k, dtype=dtype),)


@architecture(
    "ln_linear", about="layer normalisation, a linear layer without bias (k inputs, n outputs), an activation"
)
def ln_linear(m: int, k: int, n: int, dtype: torch.dtype, activation: Module) -> tuple[Module, tuple[Tensor, ...]]:
    """As torchao's LNLinearActivationModel."""
    import torch  # noqa: PLC0415

    from iree_gauntlet.torch_models.torch_architectures import NormLinearActivation  # noqa: PLC0415

    return NormLinearActivation(k, n, activation).to(dtype), (torch.randn(m, k, dtype=dtype),)


@architecture(
    "transformer_block",
    about="attention of 8 heads and a network of 4k: m sequences of 16 tokens, k values a token; n plays no part",
)
def transformer_block(m: int, k: int, n: int, dtype: torch.dtype) -> tuple[Module, tuple[Tensor, ...]]:  # noqa: ARG001 - see `about`
    """As torchao's TransformerBlock."""
    import torch  # noqa: PLC0415

    from iree_gauntlet.torch_models.torch_architectures import TransformerBlock  # noqa: PLC0415

    return TransformerBlock(k).to(dtype), (torch.randn(m, 16, k, dtype=dtype),)


@architecture(
    "transformers",
    about="a model of the transformers library from a local configuration, random weights: a sequence of m tokens; "
    "k is hidden_size and n intermediate_size, 0 for the configuration's own",
)
def transformers(m: int, k: int, n: int, dtype: torch.dtype, config: Path) -> tuple[Module, tuple[Tensor, ...]]:
    """Nothing is downloaded, and no code that a configuration names is run."""
    from iree_gauntlet.torch_models.torch_architectures import make_configured_model  # noqa: PLC0415

    return make_configured_model(config, tokens=m, hidden_size=k, intermediate_size=n, dtype=dtype)
