"""Seeded values in place of a model's own values; bundles contain this script and make the values when they run.

    python3 make_values.py FILE TYPE COUNT SEED LOW HIGH

The values are between LOW and HIGH (whole numbers for integer types) and repeat after the first 65,521. The script
needs only the standard library.
"""

from __future__ import annotations

import random
import struct
import sys

# Format codes of the module `struct`, by IREE's type names; bf16 is the upper half of f32.
CODES = {"f64": "d", "f32": "f", "f16": "e", "bf16": "f", "i1": "B"}
for _bits, _code in ((64, "q"), (32, "i"), (16, "h"), (8, "b")):
    CODES |= {f"i{_bits}": _code, f"ui{_bits}": _code.upper(), f"si{_bits}": _code}
# The period is prime, so a matrix row does not repeat the row before.
_PERIOD = 65521


def make_seeded_values(type_: str, count: int, seed: int, low: float, high: float) -> bytes:
    """Return raw values, little-endian.

    Args:
        type_: their type, a key of `CODES`.
        count: the number of values.
        seed: selects the values.
        low: the smallest possible value.
        high: the largest possible value.
    """
    # With one seed, `random()` gives the same values in all versions of Python.
    draw = random.Random(seed).random  # noqa: S311 - not for secrets
    period = [low + (high - low) * draw() for _ in range(min(count, _PERIOD))]
    if "f" not in type_:
        period = [min(int(value + 0.5), int(high)) for value in period]
    data = struct.pack(f"<{len(period)}{CODES[type_]}", *period)
    if type_ == "bf16":
        data = b"".join(data[offset + 2 : offset + 4] for offset in range(0, len(data), 4))
    size = len(data) // max(len(period), 1) * count
    return (data * (count // max(len(period), 1) + 1))[:size]


if __name__ == "__main__":
    _, name, *args = sys.argv
    with open(name, "wb") as file:  # noqa: PTH123 - as short as it can be
        file.write(make_seeded_values(args[0], int(args[1]), int(args[2]), float(args[3]), float(args[4])))
