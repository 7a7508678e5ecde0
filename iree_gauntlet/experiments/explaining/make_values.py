"""Values from a seed, in place of a model's own; a bundle has this file, to make them where it is run.

    python3 make_values.py FILE TYPE COUNT SEED LOW HIGH

They lie between LOW and HIGH, whole numbers for integers, and come again after the first 65,521. It needs the standard
library alone.
"""

from __future__ import annotations

import random
import struct
import sys

# Of the module `struct`, by the names of IREE; bf16 is the upper half of f32.
CODES = {
    "f64": "d",
    "f32": "f",
    "f16": "e",
    "bf16": "f",
    "i64": "q",
    "i32": "i",
    "i16": "h",
    "i8": "b",
    "i1": "B",
    "ui64": "Q",
    "ui32": "I",
    "ui16": "H",
    "ui8": "B",
    "si64": "q",
    "si32": "i",
    "si16": "h",
    "si8": "b",
}
# Prime, so that no row of a matrix is like the next.
_PERIOD = 65521


def seeded_values(kind: str, count: int, seed: int, low: float, high: float) -> bytes:
    """Raw values, little-endian.

    Args:
        kind: their type, a key of `CODES`.
        count: how many.
        seed: others for each.
        low: the least that they can be.
        high: the greatest.
    """
    # `random()` of a seed is the same in all versions of Python.
    draw = random.Random(seed).random  # noqa: S311 - not for secrets
    first = [low + (high - low) * draw() for _ in range(min(count, _PERIOD))]
    if "f" not in kind:
        first = [min(int(value + 0.5), int(high)) for value in first]
    data = struct.pack(f"<{len(first)}{CODES[kind]}", *first)
    if kind == "bf16":
        data = b"".join(data[place + 2 : place + 4] for place in range(0, len(data), 4))
    size = len(data) // max(len(first), 1) * count
    return (data * (count // max(len(first), 1) + 1))[:size]


if __name__ == "__main__":
    _, name, *words = sys.argv
    with open(name, "wb") as file:  # noqa: PTH123 - as short as it can be
        file.write(seeded_values(words[0], int(words[1]), int(words[2]), float(words[3]), float(words[4])))
