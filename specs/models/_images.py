"""What hosts do with images before a network sees them."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Normalize(nn.Module):
    """Bytes [batch, height, width, 3] to floats [batch, 3, height, width], by ImageNet's mean and deviation."""

    mean: Tensor
    deviation: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1))
        self.register_buffer("deviation", torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1))

    def forward(self, image: Tensor) -> Tensor:
        return (image.permute(0, 3, 1, 2).to(self.mean.dtype) / 255 - self.mean) / self.deviation
