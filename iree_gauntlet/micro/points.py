"""The points of a configuration: an entry of `model_params` at one shape, with the variants that are measured there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from iree_gauntlet.micro.registry import BASELINE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iree_gauntlet.micro.configuration import MicroConfig, ModelParams, Variant
    from iree_gauntlet.micro.shapes import Shape

__all__ = ["COMPILER", "Point", "TorchSide", "points_of", "torch_side", "torch_sides"]

COMPILER = "compiler"


@dataclass(frozen=True, slots=True)
class Point:
    """An architecture at a shape.

    Attributes:
        model: the entry of the configuration.
        shape: one of its shapes.
        variants: what is measured there; the baseline first.
    """

    model: ModelParams
    shape: Shape
    variants: tuple[Variant, ...]

    @property
    def name(self) -> str:
        """`small_bf16_linear/1024-1024-2048`."""
        return f"{self.model.name}/{self.shape.label}"


@dataclass(frozen=True, slots=True)
class TorchSide:
    """What torch makes of a model for one or more variants.

    Attributes:
        quantization: as the configuration has it.
        sparsity: None for none.
    """

    quantization: str
    sparsity: str | None

    @property
    def label(self) -> str:
        """`int8wo`, `baseline+block`."""
        return "+".join(filter(None, (self.quantization, self.sparsity)))


def points_of(config: MicroConfig) -> tuple[Point, ...]:
    """All points in the order of the file; a shape that an entry has twice, by two names, is measured once."""
    found: dict[str, Point] = {}
    for model in config.models:
        for shape in model.shapes:
            point = Point(model, shape, config.variants)
            found.setdefault(point.name, point)
    return tuple(found.values())


def torch_side(variant: Variant) -> TorchSide:
    """What torch makes for a variant; a recipe of the compiler leaves the model alone, and shares the baseline's."""
    quantization = BASELINE if variant.quantization.recipe.kind == COMPILER else variant.quantization.text
    return TorchSide(quantization, variant.sparsity.text if variant.sparsity else None)


def torch_sides(variants: Sequence[Variant]) -> dict[str, TorchSide]:
    """What torch makes for some variants, each once, by label."""
    return {side.label: side for side in map(torch_side, variants)}
