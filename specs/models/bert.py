"""BERT (Devlin et al. 2018, https://arxiv.org/abs/1810.04805), with a head that classifies sentences in two classes.

Sizes: tiny is google/bert_uncased_L-2_H-128_A-2 (https://arxiv.org/abs/1908.08962), base and large are the paper's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from iree_gauntlet.bench import benchmark_model

if TYPE_CHECKING:
    from torch import Tensor, nn

# hidden size, layers, heads, tokens in a sentence
_SIZES = {"tiny": (128, 2, 2, 128), "base": (768, 12, 12, 128), "large": (1024, 24, 16, 384)}


@benchmark_model(
    configs=["tiny", "base", "large"], parameters={"tiny": 4_386_178, "base": 109_483_778, "large": 335_143_938}
)
def bert(
    training: bool, config: str, force_num_layers: int | None = None, microbatch: int = 1
) -> tuple[list[nn.Module], list[Tensor]]:
    """The last quarter of every sentence is padding, so that the attention mask is of use."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    from ._weights import SEED, Output, tokens, vary

    hidden, layers, heads, length = _SIZES[config]
    torch.manual_seed(SEED)
    # Without dropout, gradients can be compared.
    settings = BertConfig(
        hidden_size=hidden,
        num_hidden_layers=force_num_layers or layers,
        num_attention_heads=heads,
        intermediate_size=4 * hidden,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=2,
    )
    model = Output(BertForSequenceClassification(settings)).train(training)
    vary(model)
    mask = torch.ones(microbatch, length, dtype=torch.int64)
    mask[:, -length // 4 :] = 0
    return [model], [tokens(microbatch, length, settings.vocab_size), mask]
