"""The modules of the built-in architectures, as torchao's `testing/model_architectures.py` describes them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from iree_gauntlet.errors import UsageError

__all__ = ["Linear", "NormLinearActivation", "RootMeanSquareNorm", "TransformerBlock"]


class Linear(nn.Module):  # type: ignore[misc]
    """One linear layer without bias."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear1 = nn.Linear(inputs, outputs, bias=False)

    def forward(self, rows: Any) -> Any:
        """[m, inputs] to [m, outputs]."""
        return self.linear1(rows)


class NormLinearActivation(nn.Module):  # type: ignore[misc]
    """Layer normalisation without weights, a linear layer without bias, an activation."""

    def __init__(self, inputs: int, outputs: int, activation: Any) -> None:
        super().__init__()
        self.ln = nn.LayerNorm(inputs, elementwise_affine=False)
        self.fc = nn.Linear(inputs, outputs, bias=False)
        self.activation = activation

    def forward(self, rows: Any) -> Any:
        """[m, inputs] to [m, outputs]."""
        return self.activation(self.fc(self.ln(rows)))


class RootMeanSquareNorm(nn.Module):  # type: ignore[misc]
    """Each token over its root mean square, in f32, by a weight."""

    def __init__(self, width: int, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, tokens: Any) -> Any:
        """Of the same shape."""
        wide = tokens.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.epsilon)
        return (wide * scale).type_as(tokens) * self.weight


class TransformerBlock(nn.Module):  # type: ignore[misc]
    """Attention and a network of two layers, each behind a norm and beside a residual; no biases, no mask."""

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

    def forward(self, tokens: Any) -> Any:
        """[batch, sequence, width] to the same."""
        tokens = tokens + self.proj(self._attended(self.norm1(tokens)))
        return tokens + self.mlp_fc2(self.activation(self.mlp_fc1(self.norm2(tokens))))

    def _attended(self, tokens: Any) -> Any:
        batch, sequence, width = tokens.shape
        split = self.qkv(tokens).reshape(batch, sequence, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        # Plain products, as torchao has them, and no fused attention.
        queries, keys, values = split.flatten(1, 2)
        scores = torch.softmax(queries @ keys.transpose(1, 2) * (width // self.heads) ** -0.5, -1)
        return (scores @ values).reshape(batch, self.heads, sequence, -1).transpose(1, 2).flatten(2)
