"""Formatting of numbers for people, one format for each quantity, and parsing of numbers as IREE's tools parse them.

Every case parses values of specs and tolerance flags, so parsing does not need NumPy.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from itertools import groupby
from typing import TYPE_CHECKING

from iree_gauntlet.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_QUANTITY = re.compile(r"\s*([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*([A-Za-z]*)\s*\Z")
_BYTES_PER_UNIT = {
    **{unit: 1000**power for power, unit in enumerate(("B", "kB", "MB", "GB", "TB"))},
    **{unit: 1024**power for power, unit in enumerate(("KiB", "MiB", "GiB", "TiB"), start=1)},
}
_SECONDS_PER_UNIT = {"h": 3600, "d": 86400, "w": 7 * 86400}

# Figures with these units have the unit in their titles, so it does not follow the number.
COUNTED_UNITS = ("dispatches", "instructions", "registers", "spills")
# (tone, sign) of each verdict; the sign replaces colours where there are none.
VERDICT_STYLES: Mapping[str, tuple[str, str]] = {
    "passed": ("good", "✓"),
    "failed": ("bad", "✗"),
    "error": ("broken", "!"),
    "xpassed": ("bad", "✗"),
    "xfailed": ("expected", "≈"),
    "skipped": ("faint", "·"),
    "inconclusive": ("doubt", "?"),
    "flaky": ("doubt", "~"),
    "quarantined": ("expected", "~"),
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
# rich's names of the colours of tones on a terminal.
_TERMINAL_COLOURS = {
    "good": "green",
    "bad": "bold red",
    "broken": "bold magenta",
    "doubt": "yellow",
    "expected": "cyan",
    "faint": "dim",
}
STYLES = {word: _TERMINAL_COLOURS[tone] for word, (tone, _) in VERDICT_STYLES.items()}
# ECMA-48 control sequences (colours, cursor moves) and operating system commands (titles, links).
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
# Matches characters that XML 1.0 does not allow (fifth edition, production 2, "Char"), and those that its
# note discourages: DEL, the C1 controls and the non-characters of the basic plane. Each start compiles the
# expression; listing the unfit characters takes a tenth of the time of excluding all others.
_UNFIT_CHARS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
_REPLACEMENT = "\ufffd"
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fF]?")
_HEXADECIMAL = re.compile(r"[+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)(?:[pP][+-]?[0-9]+)?")
_SPECIAL = re.compile(r"[+-]?(?:inf(?:inity)?|nan)", re.IGNORECASE)
_INTEGER = re.compile(r"([+-]?)(?:0[xX]([0-9a-fA-F]+)|0([0-7]*)|([1-9][0-9]*))(?:\.0*)?")
_TOKEN = re.compile(r"[^\s,\[\]]+")


class ColumnKind(Enum):
    """The kind of a column's cells, which determines their alignment, colours and digits."""

    TEXT = "text"
    NAME = "name"
    VERDICT = "verdict"
    NUMBER = "number"
    DURATION = "duration"
    SHARE = "share"
    DRAWN = "drawn"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Attributes:
        kind: the kind of the cells. `TEXT`, `NAME` and `VERDICT` are text. The other kinds are numbers: seconds for
            `DURATION`, a fraction for `SHARE`. Text instead of a number is shown unchanged. Only pages show `DRAWN`
            columns.
        unit: unit of a `NUMBER`, after the title; empty for a count.
        drop_order: narrow tables drop the columns of the highest number first; columns of 0 stay.
        margins: tolerated differences of a ratio: the largest is drawn as a band, the others as lines.
    """

    title: str
    kind: ColumnKind = ColumnKind.TEXT
    unit: str = ""
    drop_order: int = 0
    margins: tuple[float, ...] = ()

    @property
    def heading(self) -> str:
        """The heading: `time ms`."""
        return f"{self.title} {self.unit}".rstrip()

    @property
    def right(self) -> bool:
        """True if the column's cells are aligned to the right."""
        return self.kind in (ColumnKind.NUMBER, ColumnKind.DURATION, ColumnKind.SHARE)


def add_verdict_sign(text: str, word: str) -> str:
    """Prefix a text with the sign of a verdict, `✓ passed`; other words have no sign."""
    return f"{VERDICT_STYLES[word][1]} {text}" if word in VERDICT_STYLES else text


def format_duration(seconds: float) -> str:
    """Format seconds: `0.41 s`, `61.2 s`, `3 min 05 s`, `2 h 03 min`."""
    if seconds < 9.995 or not math.isfinite(seconds):
        return f"{seconds:.2f} s"
    if seconds < 120:
        return f"{seconds:.1f} s"
    total = round(seconds)
    if total < 3600:
        return f"{total // 60} min {total % 60:02} s"
    return f"{total // 3600} h {total % 3600 // 60:02} min"


def format_milliseconds(value: float) -> str:
    """Format a time in ms with two decimals, below 1 ms with four, below 1 µs with six (one ns)."""
    if not math.isfinite(value):
        return f"{value}"
    size = abs(value)
    if size >= 1:
        return f"{value:.2f}"
    return f"{value:.4f}" if size >= 0.001 or size == 0 else f"{value:.6f}"


def format_mean_and_spread(mean: float, spread: float | None) -> str:
    """Format a mean in ms and its standard deviation with the same number of decimals: `9.10 ± 0.12`."""
    text = format_milliseconds(mean)
    if spread is None or not math.isfinite(spread):
        return text
    decimals = len(text.partition(".")[2]) if "e" not in text else 4
    return f"{text} ± {spread:.{decimals}f}"


def format_count(value: float) -> str:
    """Format a count with thousands separators: `833,586`."""
    return f"{int(value):,}" if math.isfinite(value) and value == int(value) else f"{value:,.2f}"


def format_bytes(value: float) -> str:
    """Format a number of bytes in decimal units: `512 B`, `69.1 MB`."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= scale:
            return f"{value / scale:.1f} {unit}"
    return f"{value:.0f} B"


def parse_bytes(text: str, option: str) -> int:
    """Parse a size into bytes; units are powers of 1000, or of 1024 with an `i`, in either case."""
    return int(_parse_quantity(text, _BYTES_PER_UNIT, option, "50GB"))


def parse_age(text: str, option: str) -> float:
    """Parse an age in hours, days or weeks into seconds."""
    return float(_parse_quantity(text, _SECONDS_PER_UNIT, option, "30d"))


def _parse_quantity(text: str, units: dict[str, int], option: str, example: str) -> Decimal:
    match = _QUANTITY.match(text)
    by_lower = {unit.lower(): factor for unit, factor in units.items()}
    factor = by_lower.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise UsageError(
            f"{option} {text}: expected a number and a unit, such as {example}", f"Units: {', '.join(units)}."
        )
    return Decimal(match[1]) * factor


def pluralize(count: int, noun: str, ending: str = "s") -> str:
    """Format a number of things: `1 case`, `2 cases`."""
    return f"{count} {noun}{'' if count == 1 else ending}"


def list_first(words: Sequence[str], max_words: int) -> str:
    """Join the first words and count the remaining ones: `a, b and 3 more`."""
    remaining = len(words) - max_words
    return ", ".join(words[:max_words]) + (f" and {remaining} more" if remaining > 0 else "")


def format_error(value: float) -> str:
    """Format a numeric error or tolerance with three digits: `0.0001`, `1.2e-05`, `nan`."""
    return f"{value:.3g}"


def format_share(error: float, whose: str = "its") -> str:
    """Format an error as a share, `0.03 of its largest value`, or as `NaN or infinity` if it is not finite."""
    return f"{error:.3g} of {whose} largest value" if math.isfinite(error) else "NaN or infinity"


def format_percent(part: float, total: float) -> str:
    """Format a fraction: `3.1 %`; `0 %` of a total of 0."""
    if not total:
        return "0 %"
    share = 100 * part / total
    return f"{share:.1f} %" if share >= 0.1 else f"{share:.2g} %"


def format_ratio(ratio: float, decimals: int = 1) -> str:
    """Format a ratio as a change: `+4.2 %`; `×3.1` from double or half on."""
    if 0.5 < ratio < 2:
        return f"{100 * (ratio - 1):+.{decimals}f} %"
    return f"×{ratio:,.0f}" if 1000 <= ratio < math.inf else f"×{ratio:.3g}"


def format_factor(value: float) -> str:
    """Format a factor with three digits and at least two decimals: `×1.40`, `×0.98`, `×14.2`, `×16,000`."""
    if not math.isfinite(value):
        return f"×{value}"
    return f"×{value:,.0f}" if value >= 100 else f"×{value:.1f}" if value >= 10 else f"×{value:.2f}"


def format_limit_share(share: float) -> str:
    """Format a figure as a share of its limit: `9 % of limit`, `×14.2 of limit`."""
    text = format_factor(share) if share > 1 else f"{100 * share:.0f} %" if share >= 0.01 else "< 1 %"
    return f"{text} of limit"


def format_span(low: float | None, high: float | None) -> str:
    """Format an interval of ratios: `+1.0 to +3.5 %`."""
    if low is None or high is None:
        return "unbounded"
    if low <= 0.5 or high >= 2:
        return f"×{low:.3g} to ×{high:.3g}"
    return f"{100 * (low - 1):+.1f} to {100 * (high - 1):+.1f} %"


def format_count_change(a: float, b: float) -> str:
    """Format the change from one exact count to another: `+0.0000 %`; `×3.1` from double or half on."""
    return format_ratio(b / a, 4)


def format_dispatch_cost(value: float, unit: str) -> str:
    """Format the cost of a dispatch without its unit: `instructions`, or `ms` for a value in ns."""
    return format_milliseconds(value / 1e6) if unit == "ms" else format_count(value)


def format_dispatch_change(a: float, b: float, unit: str) -> str:
    """Format two costs of a dispatch: `6.00 ms → 11.00 ms in a profile`, `6,000 → 11,000 instructions`."""
    cost_a, cost_b = format_dispatch_cost(a, unit), format_dispatch_cost(b, unit)
    return f"{cost_a} ms → {cost_b} ms in a profile" if unit == "ms" else f"{cost_a} → {cost_b} {unit}"


def format_figure(value: float, unit: str) -> str:
    """Format a measured or golden figure with its unit: `9.10 ms`, `833,586 bytes`; counts and errors have none."""
    if unit == "":
        return format_error(value)
    text = format_milliseconds(value) if unit == "ms" else format_count(value)
    return text if unit in COUNTED_UNITS else f"{text} {unit}"


def format_cpus(cpus: Sequence[int]) -> str:
    """Format ascending CPU numbers like taskset and `lscpu`: `0,4-7`; `all` for an empty list."""
    groups: list[list[int]] = []
    for number in cpus:
        if groups and number == groups[-1][-1] + 1:
            groups[-1].append(number)
        else:
            groups.append([number])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in groups) or "all"


def clean_text(text: str) -> str:
    """Make text valid in XML 1.0 and UTF-8, with newlines only as line ends.

    Terminal escape sequences are removed; every other invalid character (controls, lone surrogates, non-characters)
    becomes U+FFFD, so that a reader notices it.
    """
    # Return early, because there are thousands of texts, nearly all of them plain.
    if text.isascii() and text.replace("\n", "").replace("\t", "").isprintable():
        return text
    text = _ESCAPES.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    return _UNFIT_CHARS.sub(_REPLACEMENT, text)


def join_lines(text: str, limit: int = 300) -> str:
    """Join the lines of a text and truncate it to `limit` characters, with `…` at the end."""
    line = " ".join(clean_text(text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def take_last_lines(lines: tuple[str, ...], *, count: int = 20, width: int = 400) -> list[str]:
    """Take the last `count` lines, cleaned, without surrounding blank lines, each truncated to `width` characters.

    A line that is repeated is there once, as `line ×9`.
    """
    text = "\n".join(clean_text(line) for line in lines).strip("\n")
    last_lines = text.split("\n")[-count:] if text else []
    shortened_lines = [line if len(line) <= width else line[: width - 1] + "…" for line in last_lines]
    repeats = [(line, len(list(group))) for line, group in groupby(shortened_lines)]
    return [f"{line} ×{number}" if line.strip() and number > 1 else line for line, number in repeats]


def split_values(text: str) -> list[str]:
    """Split the written values of a tensor at spaces, commas and brackets."""
    return _TOKEN.findall(text)


def parse_c_float(text: str) -> float:
    """Parse a number like C's `strtod`: `1.0f`, `1e-3`, `0x1p-3`, `inf`, `nan`; ValueError for anything else."""
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
    """Parse a decimal, hexadecimal or octal integer of a type with full bytes (`i32`, `si8`, `ui64`).

    A ValueError names the problem. The tools are less strict: they read the 1 of `1.5` and `1abc` and ignore the rest.
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
