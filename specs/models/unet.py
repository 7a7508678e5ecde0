"""U-Net: an image of 256x256 to a mask of what is in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iree_gauntlet.bench import benchmark_model

if TYPE_CHECKING:
    from torch import Tensor, nn


@benchmark_model(parameters=7_763_041)
def unet(training: bool, microbatch: int = 1) -> tuple[list[nn.Module], list[Tensor]]:
    """The host scales the image, and makes a mask of the logits; in training, the network is all there is."""
    import torch

    from ._images import Normalize
    from ._unet import Threshold, UNet
    from ._weights import SEED, settle

    torch.manual_seed(SEED)
    before, network = Normalize(), UNet().train(training)
    image = torch.randint(0, 256, (microbatch, 256, 256, 3), dtype=torch.uint8)
    settle(network, before(image))
    return ([network], [before(image)]) if training else ([before, network, Threshold()], [image])
