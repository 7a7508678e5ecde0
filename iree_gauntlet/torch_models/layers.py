"""The linear layers of a torch module: which there are, how they are replaced or pruned, which a recipe changed."""

from __future__ import annotations

import hashlib
import sys
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from iree_gauntlet.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True, slots=True)
class Changed:
    """What a recipe changed."""

    layers: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What tells whether a linear layer is still the same."""

    layer: weakref.ref[Any]
    hash: str
    bytes: int


def linear_layers(model: Any) -> dict[str, Any]:
    """The linear layers by name, each once; the name of a model that is one itself is empty.

    The one inside `torch.nn.MultiheadAttention` is none of them: its weight is read by others, and not through it.
    """
    return {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear) and not isinstance(layer, NonDynamicallyQuantizableLinear)
    }


def replace_linear_layers(model: Any, make: Callable[[Any], Any], unfit: Callable[[Any], str] | None = None) -> Any:
    """Put something else in the place of each linear layer; one that is in two places is replaced in both by one.

    `model`: changed in place; `unfit`: says why a layer cannot be replaced, empty where it can; such a layer stays, and
    is named on standard error.

    Returns:
        The model, or what replaces it where it is a linear layer itself.

    Raises:
        UsageError: where no layer can be replaced.
    """
    made = {id(layer): make(layer) for layer in _fitting(model, unfit)}
    if id(model) in made:
        return made[id(model)]
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if id(child) in made:
                setattr(parent, name, made[id(child)])
    return model


def prune_linear_layers(model: Any, prune: Callable[[Any], Any], unfit: Callable[[Any], str]) -> Any:
    """Put other weights in the place of those of each linear layer.

    Args:
        model: changed in place.
        prune: takes the weight of a layer, [outputs, inputs], and gives another of its shape and type.
        unfit: as for `replace_linear_layers`.

    Returns:
        The model.

    Raises:
        UsageError: where no layer can be pruned.
    """
    for layer in _fitting(model, unfit):
        with torch.no_grad():
            layer.weight.copy_(prune(layer.weight))
    return model


def _fitting(model: Any, unfit: Callable[[Any], str] | None) -> list[Any]:
    layers = linear_layers(model)
    reasons = {name: reason for name, layer in layers.items() if unfit and (reason := unfit(layer))}
    for name, reason in reasons.items():
        sys.stderr.write(f"left as it is: {name or 'the model'}: {reason}\n")
    if reasons and len(reasons) == len(layers):
        name, reason = next(iter(reasons.items()))
        raise UsageError(f"none of the {len(layers)} linear layers fits: {name or 'the model'}: {reason}")
    return [layer for name, layer in layers.items() if name not in reasons]


def fingerprints(model: Any) -> dict[str, Fingerprint]:
    """Of the linear layers, by name; they keep no layer alive."""
    return {
        name: Fingerprint(weakref.ref(layer), *_hash_and_size(layer.weight))
        for name, layer in linear_layers(model).items()
    }


def changed_layers(before: Mapping[str, Fingerprint], model: Any) -> Changed:
    """Compare a model with what it was."""
    now = dict(model.named_modules())
    sizes = [was.bytes for name, was in before.items() if name not in now or not _is_same(now[name], was)]
    return Changed(len(sizes), sum(sizes))


def _is_same(layer: Any, was: Fingerprint) -> bool:
    return bool(was.layer() is layer) and _hash_and_size(layer.weight)[0] == was.hash


def _hash_and_size(weight: Any) -> tuple[str, int]:
    tensor = weight.detach()
    # A quantised tensor is a class of its own, which need not have plain bytes.
    if type(tensor) is not torch.Tensor:
        return type(tensor).__qualname__, 0
    flat = tensor.contiguous().view(-1).view(torch.uint8)
    return hashlib.blake2b(memoryview(flat.numpy())).hexdigest(), flat.numel()


def keep_two_of_four(weight: Any) -> Any:
    """The two of largest magnitude of each four neighbours of a row stay; of equal ones the first."""
    fours = weight.reshape(-1, 4)
    order = fours.abs().argsort(dim=1, descending=True, stable=True)
    kept = torch.zeros_like(fours, dtype=torch.bool).scatter_(1, order[:, :2], value=True)
    return torch.where(kept, fours, torch.zeros_like(fours)).reshape(weight.shape)


def keep_blocks(weight: Any, size: int) -> Any:
    """Half of the square blocks stay, rounded up: those of the largest sum of squares; of equal ones the first."""
    rows, columns = weight.shape
    blocks = weight.reshape(rows // size, size, columns // size, size)
    power = blocks.float().square().sum((1, 3)).flatten()
    order = power.argsort(descending=True, stable=True)
    kept = torch.zeros_like(power, dtype=torch.bool)
    kept[order[: (len(order) + 1) // 2]] = True
    mask = kept.reshape(rows // size, 1, columns // size, 1)
    return torch.where(mask, blocks, torch.zeros_like(blocks)).reshape(rows, columns)


def unfit_for_fours(linear: Any) -> str:
    """Why the inputs of a layer cannot be taken in fours; empty where they can."""
    return f"{linear.in_features} inputs are no multiple of 4" if linear.in_features % 4 else ""


def unfit_for_blocks(linear: Any, size: int) -> str:
    """Why a layer has not two square blocks of a size or more; empty where it has."""
    rows, columns = linear.weight.shape
    if rows % size or columns % size:
        return f"a weight of {rows} x {columns} is not made of blocks of {size} x {size}"
    return f"a weight of {rows} x {columns} is one block of {size} x {size}" if rows == columns == size else ""
