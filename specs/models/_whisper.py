"""Whisper's two programs: the first pass, and the pass for each further token over a cache of fixed size.

Both compute with the weights of the model of transformers, which has the same result without a cache. The state
is, for each layer of the decoder, the keys and values of the tokens so far ([batch, heads, capacity, head size]),
then for each layer those of the encoder's output.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Sequence


def _heads(values: Tensor, attention: Any) -> Tensor:
    """[batch, length, size] to [batch, heads, length, head size]."""
    batch, length, _ = values.shape
    return values.view(batch, length, attention.num_heads, attention.head_dim).transpose(1, 2)


def _attend(states: Tensor, attention: Any, keys: Tensor, values: Tensor, mask: Tensor | None = None) -> Tensor:
    queries = _heads(attention.q_proj(states), attention)
    mixed = nn.functional.scaled_dot_product_attention(queries, keys, values, mask)
    return attention.out_proj(mixed.transpose(1, 2).flatten(2))


class _Decoder(nn.Module):
    def __init__(self, whisper: Any, capacity: int) -> None:
        super().__init__()
        self.whisper = whisper
        self.capacity = capacity

    def _embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        decoder = self.whisper.model.decoder
        return decoder.embed_tokens(tokens) + decoder.embed_positions.weight[positions]

    def _layer(
        self, layer: Any, states: Tensor, own: Sequence[Tensor], encoded: Sequence[Tensor], mask: Tensor
    ) -> Tensor:
        states = states + _attend(layer.self_attn_layer_norm(states), layer.self_attn, own[0], own[1], mask)
        crossed = layer.encoder_attn_layer_norm(states)
        states = states + _attend(crossed, layer.encoder_attn, encoded[0], encoded[1])
        return states + layer.fc2(layer.activation_fn(layer.fc1(layer.final_layer_norm(states))))

    def _logits(self, states: Tensor) -> Tensor:
        """Of the token that follows the last one."""
        return self.whisper.proj_out(self.whisper.model.decoder.layer_norm(states[:, -1]))


class Prefill(_Decoder):
    """Encodes the sound and decodes the prompt: (features, prompt) to (logits, *state)."""

    def forward(self, features: Tensor, prompt: Tensor) -> tuple[Tensor, ...]:
        sound = self.whisper.model.encoder(features, return_dict=False)[0]
        positions = torch.arange(prompt.shape[1], device=prompt.device)
        states = self._embed(prompt, positions)
        mask = positions[:, None] >= positions[None, :]
        room = (0, 0, 0, self.capacity - prompt.shape[1])
        cache: list[Tensor] = []
        encoded: list[Tensor] = []
        for layer in self.whisper.model.decoder.layers:
            attention, cross = layer.self_attn, layer.encoder_attn
            read = layer.self_attn_layer_norm(states)
            own = [_heads(part(read), attention) for part in (attention.k_proj, attention.v_proj)]
            seen = [_heads(part(sound), cross) for part in (cross.k_proj, cross.v_proj)]
            states = self._layer(layer, states, own, seen, mask)
            cache += [nn.functional.pad(values, room) for values in own]
            encoded += seen
        return (self._logits(states), *cache, *encoded)


class Decode(_Decoder):
    """Decodes one token: (token, position, *state) to (logits, *the cache with the token's keys and values)."""

    def forward(self, token: Tensor, position: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        layers = self.whisper.model.decoder.layers
        states = self._embed(token, position)
        places = torch.arange(self.capacity, device=token.device)
        here = (places == position)[:, None]
        mask = (places <= position)[None, :]
        cache: list[Tensor] = []
        for index, layer in enumerate(layers):
            attention = layer.self_attn
            read = layer.self_attn_layer_norm(states)
            new = [_heads(part(read), attention) for part in (attention.k_proj, attention.v_proj)]
            own = [torch.where(here, values, old) for values, old in zip(new, state[2 * index :], strict=False)]
            states = self._layer(layer, states, own, state[2 * (len(layers) + index) :], mask)
            cache += own
        return (self._logits(states), *cache)
