"""Vision transformers for images of 224x224 in patches of 16x16, 1000 classes.

ViT: Dosovitskiy et al. 2020, https://arxiv.org/abs/2010.11929; its tiny size, and DeiT: Touvron et al. 2020,
https://arxiv.org/abs/2012.12877, which adds a distillation token whose class head is averaged with the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from iree_gauntlet.bench import benchmark_model, on_host

if TYPE_CHECKING:
    from torch import Tensor, nn

    from iree_gauntlet.torch_models.model_registry import OnHost

# hidden size, heads
_SIZES = {"tiny": (192, 3), "base": (768, 12)}
_LAYERS = 12


@benchmark_model(configs=["tiny", "base"], parameters={"tiny": 5_717_416, "base": 86_567_656})
def vit(
    training: bool, config: str, force_num_layers: int | None = None, microbatch: int = 1
) -> tuple[list[nn.Module], list[Tensor]]:
    """ViT/16."""
    import torch
    from transformers import ViTConfig, ViTForImageClassification

    from ._weights import SEED, Output, images, vary

    torch.manual_seed(SEED)
    model = Output(ViTForImageClassification(ViTConfig(**_settings(config, force_num_layers)))).train(training)
    vary(model)
    return [model], [images(microbatch, 224)]


@benchmark_model(configs=["tiny", "base"], parameters={"tiny": 5_910_800, "base": 87_338_192})
def deit(
    training: bool, config: str, force_num_layers: int | None = None, microbatch: int = 1
) -> tuple[list[nn.Module | OnHost], list[Tensor]]:
    """DeiT/16, distilled. Its input is as a camera gives it, [batch, height, width, 3] bytes; the host scales it."""
    import torch
    from transformers import DeiTConfig, DeiTForImageClassificationWithTeacher

    from ._images import Normalize
    from ._weights import SEED, Output, vary

    torch.manual_seed(SEED)
    settings = DeiTConfig(**_settings(config, force_num_layers))
    model = Output(DeiTForImageClassificationWithTeacher(settings)).train(training)
    vary(model)
    return [on_host(Normalize()), model], [torch.randint(0, 256, (microbatch, 224, 224, 3), dtype=torch.uint8)]


def _settings(config: str, layers: int | None) -> dict[str, Any]:
    hidden, heads = _SIZES[config]
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers or _LAYERS,
        "num_attention_heads": heads,
        "intermediate_size": 4 * hidden,
        "num_labels": 1000,
    }
