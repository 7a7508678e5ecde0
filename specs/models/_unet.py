"""U-Net (Ronneberger et al. 2015, https://arxiv.org/abs/1505.04597), in the form that is common today.

Its convolutions keep the size of the image (the paper's lose a border) and are followed by batch normalisation, and
it starts with 32 channels, as in Buda et al. 2019, https://arxiv.org/abs/1906.03720.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

_CHANNELS = (32, 64, 128, 256)
_DEEPEST = 512


def _convolutions(inputs: int, outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for channels in (inputs, outputs):
        layers += [nn.Conv2d(channels, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """Takes images [batch, 3, height, width], multiples of 16; returns logits of a mask [batch, 1, height, width]."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(
            _convolutions(inputs, outputs) for inputs, outputs in zip((3, *_CHANNELS), _CHANNELS, strict=False)
        )
        self.pool = nn.MaxPool2d(2)
        self.bottom = _convolutions(_CHANNELS[-1], _DEEPEST)
        self.rise = nn.ModuleList(nn.ConvTranspose2d(2 * size, size, 2, stride=2) for size in reversed(_CHANNELS))
        self.up = nn.ModuleList(_convolutions(2 * size, size) for size in reversed(_CHANNELS))
        self.mask = nn.Conv2d(_CHANNELS[0], 1, 1)

    def forward(self, image: Tensor) -> Tensor:
        kept: list[Tensor] = []
        for convolutions in self.down:
            image = convolutions(image)
            kept.append(image)
            image = self.pool(image)
        image = self.bottom(image)
        for rise, convolutions in zip(self.rise, self.up, strict=True):
            image = convolutions(torch.cat((rise(image), kept.pop()), dim=1))
        return self.mask(image)


class Threshold(nn.Module):
    """The mask itself: where its logit is positive."""

    def forward(self, logits: Tensor) -> Tensor:
        return logits > 0
