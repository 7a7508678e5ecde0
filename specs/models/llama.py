"""A llama-like decoder (Touvron et al. 2023, https://arxiv.org/abs/2302.13971): RoPE, RMSNorm, SwiGLU.

tiny has the size of the 15 M model of https://github.com/karpathy/llama2.c, with grouped-query attention
(https://arxiv.org/abs/2305.13245): two heads of keys and values for six of queries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from iree_gauntlet.bench import benchmark_model

if TYPE_CHECKING:
    from torch import Tensor, nn

_LENGTH = 128


@benchmark_model(configs=["tiny"], parameters={"tiny": 14_528_160})
def llama(
    training: bool, config: str, force_num_layers: int | None = None, microbatch: int = 1
) -> tuple[list[nn.Module], list[Tensor]]:
    """One pass over a text of 128 tokens, which gives the logits of what follows each of them."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from ._weights import SEED, Output, tokens, vary

    torch.manual_seed(SEED)
    settings = LlamaConfig(
        vocab_size=32000,
        hidden_size=288,
        intermediate_size=768,
        num_hidden_layers=force_num_layers or {"tiny": 6}[config],
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        use_cache=False,
    )
    model = Output(LlamaForCausalLM(settings)).train(training)
    vary(model)
    return [model], [tokens(microbatch, _LENGTH, settings.vocab_size)]
