"""A model of the transformers library from a configuration that lies on this machine."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from iree_gauntlet.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["configured_model"]


class _Tokens(nn.Module):  # type: ignore[misc]
    """What a model says of tokens: the first of its outputs, which is the last hidden state in most."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Any) -> Any:
        """Token ids [1, m] to [1, m, hidden size]."""
        return self.model(input_ids=tokens, return_dict=False)[0]


def configured_model(
    path: Path, *, tokens: int, hidden_size: int, intermediate_size: int, dtype: Any
) -> tuple[Any, tuple[Any, ...]]:
    """Build a model without its head, with random weights, and a sequence of random tokens.

    Args:
        path: a `config.json`, or the folder that it lies in.
        tokens: length of the sequence.
        hidden_size: in place of the configuration's; 0 for that.
        intermediate_size: the same.
        dtype: of the weights.

    Raises:
        UsageError: transformers is missing, or the configuration describes no model that takes tokens alone.
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
