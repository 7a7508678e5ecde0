"""Torch's tensors as arrays and files, under IREE's names of element types; bf16 is held by its bits, as uint16."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray


# Element types in IREE's spelling. IREE's integers have no sign of their own.
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


def type_name(tensor: Any) -> str:
    """A tensor's element type in IREE's spelling; empty for one that IREE does not take."""
    return TYPES.get(tensor.dtype, "")


def array_of(tensor: Any) -> NDArray[Any]:
    """A tensor's values; nothing is copied where it is contiguous."""
    bits = tensor.detach().contiguous()
    array: NDArray[Any] = (
        bits.view(torch.int16).numpy().view(np.uint16) if bits.dtype == torch.bfloat16 else bits.numpy()
    )
    return array


def tensor_of(array: NDArray[Any], name: str) -> Any:
    """An array as a tensor of an element type; nothing is copied."""
    if name == "bf16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def write_arrays(tensors: Sequence[Any], folder: Path, stem: str) -> list[dict[str, Any]]:
    """Write tensors to `STEM_0.npy` and so on.

    Returns:
        The file, the type and the shape of each.
    """
    found = []
    for index, tensor in enumerate(tensors):
        name = f"{stem}_{index}.npy"
        np.save(folder / name, array_of(tensor), allow_pickle=False)
        found.append({"file": name, "type": type_name(tensor), "shape": list(tensor.shape)})
    return found
