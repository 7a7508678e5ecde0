"""How large and how old a cache may be, as people write it: `50GB`, `30d`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal

from iree_gauntlet.errors import UsageError

__all__ = ["Limits", "parse_age", "parse_bytes"]

_QUANTITY = re.compile(r"\s*([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*([A-Za-z]*)\s*\Z")
_BYTES = {
    "B": 1,
    "kB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "TB": 1000**4,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
    "TiB": 1 << 40,
}
_SECONDS = {"h": 3600, "d": 86400, "w": 7 * 86400}


@dataclass(frozen=True, slots=True)
class Limits:
    """What may stay in a cache.

    Attributes:
        age: seconds since the last use; None for any.
        bytes: of everything together; None for any.
    """

    age: float | None = None
    bytes: int | None = None


def parse_bytes(text: str, option: str) -> int:
    """Bytes of a size with its unit; powers of 1000, or of 1024 with an `i`; units in either case.

    Raises:
        UsageError: it is none.
    """
    number, factor = _parsed(text, _BYTES, option, "50GB")
    return int(number * factor)


def parse_age(text: str, option: str) -> float:
    """Seconds of an age in hours, days or weeks.

    Raises:
        UsageError: it is none.
    """
    number, factor = _parsed(text, _SECONDS, option, "30d")
    return float(number * factor)


def _parsed(text: str, units: dict[str, int], option: str, example: str) -> tuple[Decimal, int]:
    match = _QUANTITY.match(text)
    by_lower = {unit.lower(): factor for unit, factor in units.items()}
    factor = by_lower.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise UsageError(
            f"{option} {text}: expected a number and a unit, such as {example}", f"Units: {', '.join(units)}."
        )
    return Decimal(match[1]), factor
