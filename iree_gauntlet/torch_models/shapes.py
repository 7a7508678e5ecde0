"""Shapes (m, k, n): rows of the input, its features, features of the output; and those of a declared set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from iree_gauntlet.torch_models.recipe_registry import CUSTOM, ShapeSet

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True, order=True)
class Shape:
    """A shape of a set.

    Attributes:
        name: of the set, with the number or the name of the shape in it: `pow2_0`, `llama_attn.wqkv`, `custom_0`;
            several shapes may have one.
        m: rows; of a model of language, tokens.
        k: input features; 0 for what the model's own configuration says.
        n: output features; likewise.
    """

    name: str
    m: int
    k: int
    n: int

    @property
    def label(self) -> str:
        """As results have it: `1024-4096-1024`."""
        return f"{self.m}-{self.k}-{self.n}"


def custom_shapes(sizes: Iterable[tuple[int, int, int]]) -> tuple[Shape, ...]:
    """The shapes that a configuration lists itself."""
    return tuple(Shape(f"{CUSTOM}_{number}", m, k, n) for number, (m, k, n) in enumerate(sizes))


def shapes_of(declared: ShapeSet, least: int | None = None, most: int | None = None) -> tuple[Shape, ...]:
    """The shapes of a set.

    Args:
        declared: the set.
        least: the lowest power of two; None for the set's own. A set without powers is asked without.
        most: the highest power, included; likewise.

    Raises:
        PluginError: its function fails, or gives what is no shape.
    """
    with declared.blamed():
        if declared.powers is None:
            given = list(declared.function())
        else:
            low = declared.powers[0] if least is None else least
            high = declared.powers[1] if most is None else most
            given = list(declared.function(tuple(2**power for power in range(low, high + 1))))
    shapes, messages = [], []
    for number, row in enumerate(given):
        name, sizes = _parts(row, number)
        if len(sizes) == 3 and all(_is_size(size) for size in sizes):
            shapes.append(Shape(f"{declared.name}_{name}", *sizes))
        else:
            messages.append(f"it gave {row!r}: expected (m, k, n) or (name, m, k, n), whole numbers above 0")
    if not given:
        messages.append("it gave no shapes")
    elif len(set(shapes)) < len(shapes):
        messages.append("it gave a shape twice")
    if messages:
        raise declared.problems(dict.fromkeys(messages))
    return tuple(shapes)


def _parts(row: object, number: int) -> tuple[str, tuple[int, ...]]:
    """The name and the sizes of what a set gave; without a name, its number."""
    if not isinstance(row, list | tuple):
        return "", ()
    if len(row) == 4 and isinstance(row[0], str) and row[0]:
        return row[0], tuple(row[1:])
    return str(number), tuple(row)


def _is_size(size: object) -> bool:
    return isinstance(size, int) and not isinstance(size, bool) and size > 0
