"""Inputs that are made up, in place of those that a dispatch had: where those are large, or are to stay at home."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from iree_gauntlet.experiments.explaining.make_values import CODES, seeded_values

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


# Its shape and the type of its elements: `2x3xf32`.
_TYPE = re.compile(r"((?:\d+x)*)(.+)")
# In a bundle of 10 MB there is more than inputs.
_LARGE_BYTES = 8_000_000


@dataclass(frozen=True, slots=True)
class Input:
    """A tensor that a dispatch is given.

    Attributes:
        made: the arguments of `make_values.py` behind the file that make it; none where the values are the model's own.
    """

    kind: str
    file: Path
    made: tuple[str, ...] = ()


def too_large(inputs: Sequence[Input]) -> bool:
    """Whether they are too large for a bundle."""
    return sum(item.file.stat().st_size for item in inputs) > _LARGE_BYTES


def made_up(inputs: Sequence[Input], folder: Path) -> tuple[Input, ...]:
    """The same with values of a seed, within the bounds of their own; what has no known type, or none, stays."""
    return tuple(_made_up(item, index, folder) for index, item in enumerate(inputs))


def _made_up(item: Input, index: int, folder: Path) -> Input:
    found = _TYPE.fullmatch(item.kind)
    assert found is not None, "IREE writes types so"
    kind, count = found[2], math.prod(map(int, found[1].split("x")[:-1]))
    if kind not in CODES or not count:
        return item
    low, high = _bounds(item.file, kind)
    seed = index + 1
    file = folder / f"made_up_{index}.bin"
    file.write_bytes(seeded_values(kind, count, seed, low, high))
    return Input(item.kind, file, (kind, str(count), str(seed), repr(low), repr(high)))


def _bounds(file: Path, kind: str) -> tuple[float, float]:
    """The least and the largest of values that are finite."""
    import numpy as np  # noqa: PLC0415 - `run` brings this module, and seldom needs it

    if kind == "bf16":
        values = (np.fromfile(file, "<u2").astype("<u4") << 16).view("<f4")
    else:
        values = np.fromfile(file, f"<{CODES[kind]}")
    finite = values[np.isfinite(values)]
    return (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
