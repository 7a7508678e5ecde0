"""Numbers as text: written for people, one way for each quantity in every report; read as IREE's tools read them.

Specs and flags of tolerances have some of the latter in every case: they are read without NumPy.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import TYPE_CHECKING

from iree_gauntlet.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_QUANTITY = re.compile(r"\s*([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*([A-Za-z]*)\s*\Z")
_BYTES = {
    **{unit: 1000**power for power, unit in enumerate(("B", "kB", "MB", "GB", "TB"))},
    **{unit: 1024**power for power, unit in enumerate(("KiB", "MiB", "GiB", "TiB"), start=1)},
}
_SECONDS = {"h": 3600, "d": 86400, "w": 7 * 86400}

# Units of figures whose titles name what is counted: it is not said again behind the number.
COUNTED_UNITS = ("dispatches", "instructions")
# Of each word that judges: its tone, and the sign that says it without colours.
LOOKS: Mapping[str, tuple[str, str]] = {
    "passed": ("good", "✓"),
    "failed": ("bad", "✗"),
    "error": ("broken", "!"),
    "xpassed": ("bad", "✗"),
    "xfailed": ("expected", "≈"),
    "skipped": ("faint", "·"),
    "inconclusive": ("doubt", "?"),
    "good": ("good", "✓"),
    "bad": ("bad", "✗"),
    "nearer to good": ("good", "≈"),
    "nearer to bad": ("bad", "≈"),
    "passes": ("good", "✓"),
    "fails": ("bad", "✗"),
    "faster": ("good", "▼"),
    "slower": ("bad", "▲"),
    "not slower": ("good", "✓"),
    "same": ("good", "="),
    "less work": ("good", "▼"),
    "more work": ("bad", "▲"),
    "same work": ("good", "="),
    "kept": ("good", "✓"),
    "loose": ("expected", "≈"),
    "broken": ("bad", "✗"),
    "not measured": ("faint", "·"),
    "ok": ("good", "✓"),
    "warn": ("doubt", "!"),
    "missing": ("bad", "✗"),
    "info": ("faint", "·"),
}
# Colours of tones on a terminal, by rich's names.
_COLOURS = {
    "good": "green",
    "bad": "bold red",
    "broken": "bold magenta",
    "doubt": "yellow",
    "expected": "cyan",
    "faint": "dim",
}
STYLES = {word: _COLOURS[tone] for word, (tone, _) in LOOKS.items()}
# ECMA-48 control sequences (colours, cursor moves) and operating system commands (titles, links).
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
# Everything but the characters of XML 1.0 (fifth edition, production 2, "Char") without those that its
# note discourages: DEL, the C1 controls and the non-characters of the basic plane.
# Each start compiles it: as a list of those it takes a tenth of the time.
_UNFIT = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
_REPLACEMENT = "\ufffd"
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fF]?")
_HEXADECIMAL = re.compile(r"[+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)(?:[pP][+-]?[0-9]+)?")
_SPECIAL = re.compile(r"[+-]?(?:inf(?:inity)?|nan)", re.IGNORECASE)
_INTEGER = re.compile(r"([+-]?)(?:0[xX]([0-9a-fA-F]+)|0([0-7]*)|([1-9][0-9]*))(?:\.0*)?")
_TOKEN = re.compile(r"[^\s,\[\]]+")


def signed(text: str, word: str) -> str:
    """A text behind the sign of a word: `✓ passed`; without one, of a word that does not judge."""
    return f"{LOOKS[word][1]} {text}" if word in LOOKS else text


def duration(seconds: float) -> str:
    """Seconds as `0.41 s`, `61.2 s`, `3 min 05 s`, `2 h 03 min`."""
    if seconds < 9.995 or not math.isfinite(seconds):
        return f"{seconds:.2f} s"
    if seconds < 120:
        return f"{seconds:.1f} s"
    total = round(seconds)
    if total < 3600:
        return f"{total // 60} min {total % 60:02} s"
    return f"{total // 3600} h {total % 3600 // 60:02} min"


def milliseconds(value: float) -> str:
    """A time in ms with two decimals, below 1 ms with four, below 1 µs with six: down to one ns."""
    if not math.isfinite(value):
        return f"{value}"
    size = abs(value)
    if size >= 1:
        return f"{value:.2f}"
    return f"{value:.4f}" if size >= 0.001 or size == 0 else f"{value:.6f}"


def format_mean_and_spread(mean: float, spread: float | None) -> str:
    """A mean in ms and its standard deviation with as many decimals: `9.10 ± 0.12`."""
    text = milliseconds(mean)
    if spread is None or not math.isfinite(spread):
        return text
    decimals = len(text.partition(".")[2]) if "e" not in text else 4
    return f"{text} ± {spread:.{decimals}f}"


def whole(value: float) -> str:
    """A count, with thousands separators: `833,586`."""
    return f"{int(value):,}" if math.isfinite(value) and value == int(value) else f"{value:,.2f}"


def byte_size(value: float) -> str:
    """A number of bytes in decimal units: `512 B`, `69.1 MB`."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= scale:
            return f"{value / scale:.1f} {unit}"
    return f"{value:.0f} B"


def parse_bytes(text: str, option: str) -> int:
    """Bytes of a size with its unit; powers of 1000, or of 1024 with an `i`; units in either case."""
    return int(_parse_quantity(text, _BYTES, option, "50GB"))


def parse_age(text: str, option: str) -> float:
    """Seconds of an age in hours, days or weeks."""
    return float(_parse_quantity(text, _SECONDS, option, "30d"))


def _parse_quantity(text: str, units: dict[str, int], option: str, example: str) -> Decimal:
    match = _QUANTITY.match(text)
    by_lower = {unit.lower(): factor for unit, factor in units.items()}
    factor = by_lower.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise UsageError(
            f"{option} {text}: expected a number and a unit, such as {example}", f"Units: {', '.join(units)}."
        )
    return Decimal(match[1]) * factor


def counted(count: int, noun: str) -> str:
    """A number of things: `1 case`, `2 cases`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def listed(words: Sequence[str], most: int) -> str:
    """The first few, and how many more there are: `a, b and 3 more`."""
    more = len(words) - most
    return ", ".join(words[:most]) + (f" and {more} more" if more > 0 else "")


def format_error(value: float) -> str:
    """A numeric error or tolerance in three digits: `0.0001`, `1.2e-05`, `nan`."""
    return f"{value:.3g}"


def percent(part: float, total: float) -> str:
    """A share: `3.1 %`; `0 %` of nothing."""
    if not total:
        return "0 %"
    share = 100 * part / total
    return f"{share:.1f} %" if share >= 0.1 else f"{share:.2g} %"


def format_ratio(ratio: float) -> str:
    """A ratio of times as a change: `+4.2 %`; `×3.1` from double or half on."""
    if ratio <= 0.5 or ratio >= 2:
        return f"×{ratio:.3g}"
    return f"{100 * (ratio - 1):+.1f} %"


def format_span(low: float | None, high: float | None) -> str:
    """An interval of ratios: `+1.0 to +3.5 %`."""
    if low is None or high is None:
        return "unbounded"
    if low <= 0.5 or high >= 2:
        return f"×{low:.3g} to ×{high:.3g}"
    return f"{100 * (low - 1):+.1f} to {100 * (high - 1):+.1f} %"


def work_change(a: float, b: float) -> str:
    """A difference of two exact counts: `+0.0000 %`; `×3.1` from double or half on."""
    ratio = b / a
    return f"×{ratio:.3g}" if ratio <= 0.5 or ratio >= 2 else f"{100 * (ratio - 1):+.4f} %"


def format_dispatch_cost(value: float, unit: str) -> str:
    """What a dispatch takes, without its unit: `instructions`, or `ms` of a value in ns."""
    return milliseconds(value / 1e6) if unit == "ms" else whole(value)


def format_dispatch_change(a: float, b: float, unit: str) -> str:
    """`6.00 ms → 11.00 ms in a profile`, `6,000 → 11,000 instructions`."""
    before, after = format_dispatch_cost(a, unit), format_dispatch_cost(b, unit)
    return f"{before} ms → {after} ms in a profile" if unit == "ms" else f"{before} → {after} {unit}"


def figure(value: float, unit: str) -> str:
    """A measured or golden figure with its unit: `9.10 ms`, `833,586 bytes`; a count and an error have none."""
    if unit == "":
        return format_error(value)
    text = milliseconds(value) if unit == "ms" else whole(value)
    return text if unit in COUNTED_UNITS else f"{text} {unit}"


def format_cpus(cpus: Sequence[int]) -> str:
    """Rising numbers of CPUs as taskset and `lscpu` write them: `0,4-7`; `all` for none."""
    groups: list[list[int]] = []
    for number in cpus:
        if groups and number == groups[-1][-1] + 1:
            groups[-1].append(number)
        else:
            groups.append([number])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in groups) or "all"


def clean(text: str) -> str:
    """Text that every report can hold: valid in XML 1.0, encodable as UTF-8, lines ended by a newline alone.

    Terminal escape sequences are removed; every other unfit character (controls, lone surrogates,
    non-characters) becomes U+FFFD, so that a reader sees that something stood there.
    """
    # Nearly all of what thousands of cases say is plain.
    if text.isascii() and text.replace("\n", "").replace("\t", "").isprintable():
        return text
    text = _ESCAPES.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    return _UNFIT.sub(_REPLACEMENT, text)


def one_line(text: str, limit: int = 300) -> str:
    """Text on one line of at most `limit` characters; what is cut off is marked with `…`."""
    line = " ".join(clean(text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def take_last_lines(lines: tuple[str, ...], *, count: int = 20, width: int = 400) -> list[str]:
    """The last lines, cleaned, without blank ones around them, each at most `width` characters."""
    text = "\n".join(clean(line) for line in lines).strip("\n")
    kept = text.split("\n")[-count:] if text else []
    return [line if len(line) <= width else line[: width - 1] + "…" for line in kept]


def split_values(text: str) -> list[str]:
    """The values of a tensor, as they are written: spaces, commas and brackets separate them."""
    return _TOKEN.findall(text)


def parse_c_float(text: str) -> float:
    """Reads a number as C's `strtod` does: `1.0f`, `1e-3`, `0x1p-3`, `inf`, `nan`; ValueError where it is none."""
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

    Stricter than the tools, which read the 1 of `1.5` and `1abc`, and drop the rest: a ValueError says what is wrong.
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
