"""MobileNetV3-Large, from table 1 of Howard et al. 2019 (https://arxiv.org/abs/1905.02244)."""

from __future__ import annotations

from torch import Tensor, nn

# kernel, expanded channels, output channels, squeeze and excitation, h-swish, stride
_BLOCKS = (
    (3, 16, 16, False, False, 1),
    (3, 64, 24, False, False, 2),
    (3, 72, 24, False, False, 1),
    (5, 72, 40, True, False, 2),
    (5, 120, 40, True, False, 1),
    (5, 120, 40, True, False, 1),
    (3, 240, 80, False, True, 2),
    (3, 200, 80, False, True, 1),
    (3, 184, 80, False, True, 1),
    (3, 184, 80, False, True, 1),
    (3, 480, 112, True, True, 1),
    (3, 672, 112, True, True, 1),
    (5, 672, 160, True, True, 2),
    (5, 960, 160, True, True, 1),
    (5, 960, 160, True, True, 1),
)


def _convolution(
    inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1, activation: nn.Module | None = None
) -> nn.Sequential:
    layers = [
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs, eps=0.001, momentum=0.01),
    ]
    return nn.Sequential(*layers, *([] if activation is None else [activation]))


class _SqueezeExcitation(nn.Module):
    """Scales channels by what their means say (section 5.3: with a quarter of the channels, and h-sigmoid)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        # As in the authors' code: the nearest multiple of eight that is not below 0.9 of it.
        squeezed = (channels // 4 + 4) // 8 * 8
        squeezed += 8 if squeezed < 0.9 * (channels // 4) else 0
        self.scale = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, squeezed, 1),
            nn.ReLU(),
            nn.Conv2d(squeezed, channels, 1),
            nn.Hardsigmoid(),
        )

    def forward(self, image: Tensor) -> Tensor:
        return image * self.scale(image)


class _Block(nn.Module):
    """An inverted residual: 1x1 up, depthwise, squeeze and excitation, 1x1 down."""

    def __init__(
        self, inputs: int, kernel: int, expanded: int, outputs: int, squeeze: bool, swish: bool, stride: int
    ) -> None:
        super().__init__()
        activation = nn.Hardswish if swish else nn.ReLU
        layers: list[nn.Module] = []
        if expanded != inputs:
            layers.append(_convolution(inputs, expanded, activation=activation()))
        layers.append(_convolution(expanded, expanded, kernel, stride, expanded, activation()))
        if squeeze:
            layers.append(_SqueezeExcitation(expanded))
        layers.append(_convolution(expanded, outputs))
        self.layers = nn.Sequential(*layers)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, image: Tensor) -> Tensor:
        return image + self.layers(image) if self.residual else self.layers(image)


class MobileNetV3Large(nn.Module):
    """Takes images [batch, 3, 224, 224]; returns logits [batch, 1000]."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [_convolution(3, 16, 3, 2, activation=nn.Hardswish())]
        channels = 16
        for kernel, expanded, outputs, squeeze, swish, stride in _BLOCKS:
            layers.append(_Block(channels, kernel, expanded, outputs, squeeze, swish, stride))
            channels = outputs
        self.features = nn.Sequential(*layers, _convolution(channels, 960, activation=nn.Hardswish()))
        self.classifier = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(960, 1280), nn.Hardswish(), nn.Linear(1280, 1000)
        )

    def forward(self, image: Tensor) -> Tensor:
        return self.classifier(self.features(image))
