"""Conversion of tensors to arrays and files with IREE's element types, and of weights to data formats."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from iree_gauntlet.torch_models.build_files import Array
from iree_gauntlet.torch_models.formats import DataFormat, round_weights

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray
    from torch import Tensor
    from torch.nn import Module


# Element types in IREE's spelling; `i8` to `i64` are signless.
TYPES = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "ui8",
    torch.bool: "i1",
}


def find_type_name(tensor: Tensor) -> str:
    """Return a tensor's element type in IREE's spelling; empty for an unsupported one."""
    return TYPES.get(tensor.dtype, "")


def make_array(tensor: Tensor) -> NDArray[Any]:
    """Return a tensor's values, without a copy if it is contiguous."""
    bits = tensor.detach().contiguous()
    array: NDArray[Any] = (
        bits.view(torch.int16).numpy().view(np.uint16) if bits.dtype == torch.bfloat16 else bits.numpy()
    )
    return array


def make_tensor(array: NDArray[Any], name: str) -> Tensor:
    """Return an array as a tensor without a copy; `name` is the element type's."""
    if name == "bf16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def write_arrays(tensors: Sequence[Tensor], folder: Path, stem: str) -> tuple[Array, ...]:
    """Write each tensor to a file of its own: STEM_0.npy, STEM_1.npy and so on."""
    arrays = []
    for index, tensor in enumerate(tensors):
        name = f"{stem}_{index}.npy"
        np.save(folder / name, make_array(tensor), allow_pickle=False)
        arrays.append(Array(name, find_type_name(tensor), tuple(tensor.shape)))
    return tuple(arrays)


def convert(modules: Sequence[Module], form: DataFormat) -> float:
    """Round the weights of modules to a data format, in place, and cast the modules to its element type.

    Weights are all floating parameters, and the floating buffers that a module saves (`state_dict`). Tables that a
    module computes itself are only cast. So are running statistics of normalisations, which are measured, not learnt:
    a small variance that shares its exponent with a large variance would be rounded to zero.

    Returns:
        The rms of the rounding errors divided by the rms of the weights; 0 without weights.
    """
    noise = power = 0.0
    with torch.no_grad():
        for weight in _walk_weights(modules):
            weights = weight.detach().to(torch.float32).numpy()
            rounded_weights = round_weights(weights, form)
            with np.errstate(invalid="ignore"):
                noise += float(np.sum(np.square(rounded_weights - weights), dtype=np.float64))
            power += float(np.sum(np.square(weights), dtype=np.float64))
            weight.copy_(torch.from_numpy(rounded_weights).reshape(weight.shape))
    for module in modules:
        module.to(getattr(torch, form.torch_type))
    return math.sqrt(noise / power) if power else 0.0


def cast(tensors: Sequence[Tensor], form: DataFormat) -> tuple[Tensor, ...]:
    """Cast float tensors to the element type of a data format; other tensors stay as they are."""
    dtype = getattr(torch, form.torch_type)
    return tuple(tensor.to(dtype) if tensor.is_floating_point() else tensor for tensor in tensors)


def have_shared_weights(first: Module, second: Module) -> bool:
    """Return True if two modules share a parameter or buffer."""
    first_ids, second_ids = (
        {id(tensor) for tensor in (*module.parameters(), *module.buffers())} for module in (first, second)
    )
    return bool(first_ids & second_ids)


def _walk_weights(modules: Sequence[Module]) -> Iterator[Tensor]:
    """Yield each weight once, even if several modules share it."""
    seen_ids: set[int] = set()
    for root in modules:
        for module in root.modules():
            saved_names = module._buffers.keys() - module._non_persistent_buffers_set  # noqa: SLF001 - there is no public name
            if isinstance(module, torch.nn.modules.batchnorm._NormBase):  # noqa: SLF001 - base class of all batch and instance norms
                saved_names -= {"running_mean", "running_var"}
            buffers = [module._buffers[name] for name in sorted(saved_names)]  # noqa: SLF001
            for tensor in (*module.parameters(recurse=False), *buffers):
                if tensor is not None and tensor.is_floating_point() and id(tensor) not in seen_ids:
                    seen_ids.add(id(tensor))
                    yield tensor
