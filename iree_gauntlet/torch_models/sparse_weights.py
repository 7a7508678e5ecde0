"""Weights with zeros in patterns that sparse kernels use; what becomes zero is what matters least by its magnitude."""

from __future__ import annotations

from typing import Any

import torch


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
