"""Numbers as C reads them, without NumPy: flags of tolerances are read for every case."""

from __future__ import annotations

import re

_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fF]?")
_HEXADECIMAL = re.compile(r"[+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)(?:[pP][+-]?[0-9]+)?")
_SPECIAL = re.compile(r"[+-]?(?:inf(?:inity)?|nan)", re.IGNORECASE)


def parse_c_float(text: str) -> float:
    """Reads a number as C's `strtod` does: `1.0f`, `1e-3`, `0x1p-3`, `inf`, `nan`.

    Raises:
        ValueError: it is no number.
    """
    if _DECIMAL.fullmatch(text):
        return float(text.rstrip("fF"))
    if _HEXADECIMAL.fullmatch(text):
        try:
            return float.fromhex(text)
        except OverflowError:
            return float("-inf" if text.startswith("-") else "inf")
    if _SPECIAL.fullmatch(text):
        return float(text)
    raise ValueError(f"not a number: {text!r}")
