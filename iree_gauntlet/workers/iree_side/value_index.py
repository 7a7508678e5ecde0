"""Which tensors a program has, whatever their names and layouts: known by their sorted values.

A transposed, packed or padded tensor has the values of the plain one, but for zeros. Of each, its count of other values
and some order statistics are kept, so that an index is small however large the tensors are.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Array = NDArray[Any]


# Of the sorted values: the smallest, the largest, and those between them at equal distances.
_KEPT = 257


class ValueIndex:
    """Tensors by their values.

    Args:
        tolerances: by element type, what a value may be off, as a share of the largest one; without, nothing.
    """

    def __init__(self, tolerances: Mapping[str, float]) -> None:
        self._tolerances = tolerances
        self._found: dict[tuple[str, int], list[Array]] = defaultdict(list)

    def add(self, element_type: str, numbers: Array) -> None:
        """Adds a tensor's values, which are not held."""
        count, kept = _sorted(numbers)
        self._found[element_type, count].append(kept)

    def has(self, element_type: str, numbers: Array) -> bool:
        """Whether a tensor of such values was added."""
        count, kept = _sorted(numbers)
        finite = np.abs(kept[np.isfinite(kept)])
        allowed = self._tolerances.get(element_type, 0.0) * float(finite.max(initial=0.0))
        return any(
            np.allclose(other, kept, rtol=0.0, atol=allowed, equal_nan=True)
            for other in self._found.get((element_type, count), ())
        )


def _sorted(numbers: Array) -> tuple[int, Array]:
    """How many are not zero, and some of them in their order."""
    values = np.sort(numbers[numbers != 0], axis=None)
    places = np.linspace(0, max(0, values.size - 1), min(values.size, _KEPT)).round().astype(int)
    return values.size, values[places]
