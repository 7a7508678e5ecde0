"""Values that an ONNX operator needs as an input to give what the model declares: sizes, axes, counts, pads."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    Sizes = tuple[int, ...]


_MOST_VALUES = 64


@dataclass(frozen=True, slots=True)
class _Use:
    """An operator that takes an input whose values are wanted.

    Attributes:
        node: the operator.
        data: shape of its first input; empty where it is not known.
        outputs: shapes of its outputs, likewise.
        count: how many values are wanted.
    """

    node: Any
    data: Sizes
    outputs: Sequence[Sizes]
    count: int

    @property
    def out(self) -> Sizes:
        """Shape of its first output."""
        return self.outputs[0]

    def attribute(self, name: str, default: int) -> int:
        """A whole number."""
        return next((int(item.i) for item in self.node.attribute if item.name == name), default)

    def axes(self) -> list[int]:
        """Of its attribute; those in the order of the data's where it has none."""
        return next((list(item.ints) for item in self.node.attribute if item.name == "axes"), list(range(self.count)))


def needed_values(
    users: Sequence[tuple[Any, int]], shape: Sizes, known: Mapping[str, Sizes]
) -> Iterator[tuple[Sequence[float], str]]:
    """Values for an input, each with the type of the operator that needs them.

    Args:
        users: the operators that take it, and as which of their inputs.
        shape: of the input.
        known: shapes of values by name, as far as they are known.
    """
    count = math.prod(shape)
    for node, place in users:
        rule = _RULES.get((node.op_type, place)) or (_reduced if node.op_type.startswith("Reduce") and place else None)
        if rule is None or not 0 < count <= _MOST_VALUES or not node.output:
            continue
        use = _Use(node, known.get(node.input[0], ()), [known.get(name, ()) for name in node.output], count)
        try:
            values = rule(use)
        except (IndexError, ValueError, ZeroDivisionError):
            # Shapes that are not known, or do not fit each other.
            continue
        if len(values) == count:
            yield values, node.op_type


def _padded(use: _Use, count: int) -> list[int]:
    """So many axes: those along which the output has another size than the data first."""
    sizes = enumerate(zip(use.out, use.data, strict=True))
    return [axis for axis, _ in sorted(sizes, key=lambda item: item[1][0] == item[1][1])][:count]


def _pads(use: _Use) -> Sequence[float]:
    """All at the end; one at each side where the output's shape is open."""
    if not use.out:
        return [1] * use.count
    axes = range(len(use.data)) if 2 * len(use.data) == use.count else _padded(use, use.count // 2)
    return [*([0] * len(axes)), *(use.out[axis] - use.data[axis] for axis in axes)]


def _ratios(use: _Use) -> Sequence[float]:
    """What each size is multiplied by."""
    pairs = list(zip(use.data, use.out, strict=True))[-use.count :]
    return [out // one if out % one == 0 else out / one for one, out in pairs]


def _reduced(use: _Use) -> Sequence[float]:
    """Axes whose sizes are gone, or 1."""
    for axes in itertools.combinations(range(len(use.data)), use.count):
        kept = [1 if axis in axes else size for axis, size in enumerate(use.data)]
        if use.node.op_type == "Squeeze" or not use.attribute("keepdims", 1):
            kept = [size for axis, size in enumerate(use.data) if axis not in axes]
        if tuple(kept) == use.out:
            return axes
    return range(use.count)


def _unsqueezed(use: _Use) -> Sequence[float]:
    """Axes of 1 that the data does not have."""
    for axes in itertools.combinations(range(len(use.out)), use.count):
        if tuple(size for axis, size in enumerate(use.out) if axis not in axes) == use.data:
            return axes
    return range(use.count)


def _block(use: _Use) -> Sequence[float]:
    """The sizes of a block of Col2Im, all in its last dimension."""
    return [*([1] * (use.count - 1)), use.data[1] // use.out[1]]


_RULES: dict[tuple[str, int], Callable[[_Use], Sequence[float]]] = {
    ("AffineGrid", 1): lambda use: [use.out[0], 1, *use.out[1:-1]],
    ("CenterCropPad", 1): lambda use: [use.out[axis] for axis in use.axes()],
    ("Col2Im", 1): lambda use: use.out[2:],
    ("Col2Im", 2): _block,
    ("ConstantOfShape", 0): lambda use: use.out or [2] * use.count,
    ("Expand", 1): lambda use: use.out or [2] * use.count,
    ("GRU", 4): lambda use: [use.data[0]] * use.count,
    ("LSTM", 4): lambda use: [use.data[0]] * use.count,
    ("Loop", 0): lambda use: [use.outputs[-1][0] if use.outputs[-1] else 3],
    ("MelWeightMatrix", 0): lambda use: [use.out[1]],
    ("MelWeightMatrix", 1): lambda use: [2 * (use.out[0] - 1)],
    ("MelWeightMatrix", 2): lambda _: [8192],
    ("MelWeightMatrix", 3): lambda _: [0],
    ("MelWeightMatrix", 4): lambda _: [4096],
    ("OneHot", 1): lambda use: [use.out[use.attribute("axis", -1)]] if use.out else [3] * use.count,
    ("Pad", 1): _pads,
    ("Pad", 3): lambda use: _padded(use, use.count),
    ("RNN", 4): lambda use: [use.data[0]] * use.count,
    ("Range", 0): lambda _: [0],
    ("Range", 1): lambda use: [use.out[0] if use.out else 4],
    ("Range", 2): lambda _: [1],
    ("Reshape", 1): lambda use: use.out or [*([1] * (use.count - 1)), -1],
    ("Resize", 2): _ratios,
    ("Resize", 3): lambda use: use.out[-use.count :],
    ("ReverseSequence", 1): lambda use: [use.data[0]] * use.count,
    ("Slice", 1): lambda use: [0] * use.count,
    ("Slice", 2): lambda use: use.out[: use.count] or [1] * use.count,
    ("Slice", 3): lambda use: range(use.count),
    ("Slice", 4): lambda use: [1] * use.count,
    ("Split", 1): lambda use: [one[use.attribute("axis", 0)] for one in use.outputs],
    ("Squeeze", 1): _reduced,
    ("Tile", 1): _ratios,
    ("TopK", 1): lambda use: [use.out[use.attribute("axis", -1)]] if use.out else [1] * use.count,
    ("Unsqueeze", 1): _unsqueezed,
    ("Upsample", 1): _ratios,
    **{(name, 0): lambda use: [use.out[0]] for name in ("BlackmanWindow", "HammingWindow", "HannWindow")},
}
