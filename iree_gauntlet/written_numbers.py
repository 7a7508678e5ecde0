"""Numbers as IREE's tools read them, without NumPy: specs and flags of tolerances have some in every case."""

from __future__ import annotations

import re

_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fF]?")
_HEXADECIMAL = re.compile(r"[+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)(?:[pP][+-]?[0-9]+)?")
_SPECIAL = re.compile(r"[+-]?(?:inf(?:inity)?|nan)", re.IGNORECASE)
_INTEGER = re.compile(r"([+-]?)(?:0[xX]([0-9a-fA-F]+)|0([0-7]*)|([1-9][0-9]*))(?:\.0*)?")
_TOKEN = re.compile(r"[^\s,\[\]]+")


def split_values(text: str) -> list[str]:
    """The values of a tensor, as they are written: spaces, commas and brackets separate them."""
    return _TOKEN.findall(text)


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


def parse_c_integer(text: str, element_type: str) -> int:
    """Reads an integer of a type of whole bytes (`i32`, `si8`, `ui64`): decimal, hexadecimal, octal.

    Stricter than the tools, which read the 1 of `1.5` and `1abc`, and drop the rest.

    Raises:
        ValueError: it is no integer, or out of the type's range.
    """
    match = _INTEGER.fullmatch(text)
    if match is None:
        raise ValueError("not an integer")
    sign, hexadecimal, octal, decimal = match.groups()
    magnitude = int(hexadecimal, 16) if hexadecimal else int(octal or "0", 8) if octal is not None else int(decimal)
    value = -magnitude if sign == "-" else magnitude
    bits = int(element_type.lstrip("sui"))
    signless = element_type.startswith("i") and bits < 64
    lowest = 0 if element_type.startswith("ui") else -(1 << (bits - 1))
    highest = (1 << bits) - 1 if signless or element_type.startswith("ui") else (1 << (bits - 1)) - 1
    if not lowest <= value <= highest:
        raise ValueError(f"out of range ({lowest} to {highest})")
    return value
