"""The modules of the built-in architectures: torchao's (`testing/model_architectures.py`), and of transformers."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from iree_gauntlet.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor
    from torch.nn import Module


class Linear(nn.Module):  # type: ignore[misc]
    """One linear layer without bias."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear1 = nn.Linear(inputs, outputs, bias=False)

    def forward(self, rows: Tensor) -> Tensor:
        """[m, inputs] to [m, outputs]."""
        return self.linear1(rows)


class NormLinearActivation(nn.Module):  # type: ignore[misc]
    """Layer normalisation without weights, a linear layer without bias, an activation."""

    def __init__(self, inputs: int, outputs: int, activation: Module) -> None:
        super().__init__()
        self.ln = nn.LayerNorm(inputs, elementwise_affine=False)
        self.fc = nn.Linear(inputs, outputs, bias=False)
        self.activation = activation

    def forward(self, rows: Tensor) -> Tensor:
        """[m, inputs] to [m, outputs]."""
        return self.activation(self.fc(self.ln(rows)))


class RootMeanSquareNorm(nn.Module):  # type: ignore[misc]
    """Each token over its root mean square, in f32, by a weight."""

    def __init__(self, width: int, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, tokens: Tensor) -> Tensor:
        """Of the same shape."""
        wide = tokens.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.epsilon)
        return (wide * scale).type_as(tokens) * self.weight


class TransformerBlock(nn.Module):  # type: ignore[misc]
    """Attention and a network of two layers, each behind a norm and next to a residual; no biases, no mask."""

    def __init__(self, width: int, heads: int = 8, ratio: int = 4) -> None:
        super().__init__()
        if width % heads:
            raise UsageError(f"transformer_block: a width of k = {width} is no multiple of {heads} heads")
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.proj = nn.Linear(width, width, bias=False)
        self.mlp_fc1 = nn.Linear(width, ratio * width, bias=False)
        self.mlp_fc2 = nn.Linear(ratio * width, width, bias=False)
        self.norm1 = RootMeanSquareNorm(width)
        self.norm2 = RootMeanSquareNorm(width)
        self.activation = nn.GELU()

    def forward(self, tokens: Tensor) -> Tensor:
        """[batch, sequence, width] to the same."""
        batch, sequence, width = tokens.shape
        split = self.qkv(self.norm1(tokens)).reshape(batch, sequence, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        # Plain products, as torchao has them, and no fused attention.
        queries, keys, values = split.flatten(1, 2)
        scores = torch.softmax(queries @ keys.transpose(1, 2) * (width // self.heads) ** -0.5, -1)
        attended = (scores @ values).reshape(batch, self.heads, sequence, -1).transpose(1, 2).flatten(2)
        tokens = tokens + self.proj(attended)
        return tokens + self.mlp_fc2(self.activation(self.mlp_fc1(self.norm2(tokens))))


def add_rows(model: Module, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Module, tuple[Tensor, ...]]:
    """A model in a type, and what it is called with: normal numbers."""
    return model.to(dtype), (torch.randn(shape, dtype=dtype),)


class _Tokens(nn.Module):  # type: ignore[misc]
    """What a model says of tokens: the first of its outputs, which is the last hidden state in most."""

    def __init__(self, model: Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        """Token ids [1, m] to [1, m, hidden size]."""
        return self.model(input_ids=tokens, return_dict=False)[0]


def make_configured_model(
    path: Path, *, tokens: int, hidden_size: int, intermediate_size: int, dtype: torch.dtype
) -> tuple[Module, tuple[Tensor, ...]]:
    """A model of a `config.json` (or its folder) without its head, with random weights, and some random tokens.

    A size of 0 is the configuration's own.
    """
    # Before the import, which reads it.
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        from transformers import AutoConfig, AutoModel  # noqa: PLC0415 - no other architecture needs it
    except ModuleNotFoundError as error:
        raise UsageError(
            f"{path}: {error}", 'pip install "iree-gauntlet[models]", or name a Python that has it'
        ) from error
    try:
        config = AutoConfig.from_pretrained(str(path), local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        said = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise UsageError(f"{path}: transformers cannot read this configuration: {said}") from error
    _set_size(config, "hidden_size", hidden_size, path)
    _set_size(config, "intermediate_size", intermediate_size, path)
    longest = getattr(config, "max_position_embeddings", None)
    if isinstance(longest, int) and tokens > longest:
        raise UsageError(f"{path}: m = {tokens} tokens, and max_position_embeddings is {longest}")
    # A cache of keys and values would be another output for each layer.
    config.use_cache = False
    model = AutoModel.from_config(config, dtype=dtype, trust_remote_code=False)
    if model.main_input_name != "input_ids" or getattr(config, "is_encoder_decoder", False):
        raise UsageError(f"{path}: {config.model_type} is no model that takes tokens alone")
    return _Tokens(model), (torch.randint(0, config.vocab_size, (1, tokens)),)


def _set_size(config: Any, name: str, size: int, path: Path) -> None:
    if not size:
        return
    if not hasattr(config, name):
        raise UsageError(f"{path}: {config.model_type} has no {name}: 0 leaves the configuration's own sizes")
    setattr(config, name, size)
