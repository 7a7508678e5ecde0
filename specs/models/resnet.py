"""ResNet (He et al. 2015, https://arxiv.org/abs/1512.03385): 18 and 50 layers, images of 224x224, 1000 classes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iree_gauntlet.bench import benchmark_model

if TYPE_CHECKING:
    from torch import Tensor, nn

# kind of block, channels and blocks of the stages
_SIZES = {
    "18": ("basic", [64, 128, 256, 512], [2, 2, 2, 2]),
    "50": ("bottleneck", [256, 512, 1024, 2048], [3, 4, 6, 3]),
}


@benchmark_model(configs=["18", "50"], parameters={"18": 11_689_512, "50": 25_557_032})
def resnet(training: bool, config: str, microbatch: int = 1) -> tuple[list[nn.Module], list[Tensor]]:
    """The variant that most implementations are: a bottleneck's 3x3 convolution has the stride."""
    import torch
    from transformers import ResNetConfig, ResNetForImageClassification

    from ._weights import SEED, Output, images, settle

    block, channels, depths = _SIZES[config]
    torch.manual_seed(SEED)
    settings = ResNetConfig(layer_type=block, hidden_sizes=channels, depths=depths, num_labels=1000)
    model = Output(ResNetForImageClassification(settings)).train(training)
    inputs = images(microbatch, 224)
    settle(model, inputs)
    return [model], [inputs]
