"""What the command line says in place of a configuration: another device, another element type."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

from iree_gauntlet.errors import UsageError

if TYPE_CHECKING:
    from iree_gauntlet.micro.configuration import DType, MicroConfig

__all__ = ["overridden"]

_TYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}


def overridden(config: MicroConfig, device: str, dtype: str) -> MicroConfig:
    """The configuration with a device and an element type for all of its entries.

    Args:
        config: as it is written.
        device: as torch calls it (`cpu`) or as IREE does (`local-task`, `hip://0`); empty for the entries' own.
        dtype: such as `float32`, `torch.float32` or `f32`; empty for the entries' own.

    Raises:
        UsageError: there is no such type.
    """
    plain = dtype.removeprefix("torch.")
    kind = _TYPES.get(plain, plain)
    if kind and kind not in _TYPES.values():
        raise UsageError(f"--dtype {dtype}: unknown", f"Known: {', '.join(_TYPES)}.")
    models = tuple(
        replace(model, device=device or model.device, dtype=cast("DType", kind) if kind else model.dtype)
        for model in config.models
    )
    return replace(config, models=models)
