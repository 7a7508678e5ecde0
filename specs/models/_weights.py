"""Random weights and inputs on which a network has something to say."""

from __future__ import annotations

import torch
from torch import Tensor, nn

SEED = 42


def images(batch: int, size: int) -> Tensor:
    """Images [batch, 3, size, size] as their networks expect them: mean 0, variance 1 for each channel."""
    return torch.randn(batch, 3, size, size)


def tokens(batch: int, length: int, vocabulary: int) -> Tensor:
    """Token ids [batch, length]."""
    return torch.randint(0, vocabulary, (batch, length))


class Output(nn.Module):
    """A model of transformers that returns a tensor: the first of its outputs, logits in most."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.model(*inputs, return_dict=False)[0]


def vary(model: nn.Module) -> None:
    """Give a network weights at which each of its parts counts, as in a trained one.

    Matrices keep the scale of a signal (LeCun et al. 1998), so that attention tells tokens apart; as they are
    initialised for training, it is all but uniform. What starts as a constant gets noise: biases, norms, class tokens,
    positions. A fault in any of them would not show otherwise: without positions, say, patches may come in any order.
    """
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d):
            nn.init.normal_(module.weight, std=module.weight[0].numel() ** -0.5)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 1 or weight.shape[0] == 1:
                weight.add_((0.1 if weight.ndim == 1 else 0.5) * torch.randn_like(weight))


def settle(network: nn.Module, *inputs: Tensor) -> None:
    """Give a convolutional network weights that keep a signal alive, as trained ones do.

    Weights as of He et al. (https://arxiv.org/abs/1502.01852); then one pass sets the statistics of every batch
    normalisation to those of its input. Left as they are, a deep network's signal vanishes, or doubles with every
    block, and its output tells right from wrong no more.
    """
    vary(network)
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
            nn.init.kaiming_normal_(module.weight)
    norms = [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 1.0
    training = network.training
    network.train()
    with torch.no_grad():
        network(*inputs)
    network.train(training)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
        norm.num_batches_tracked.zero_()
