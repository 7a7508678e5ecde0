"""How plots look: ink and paper, colours that the colour-blind can tell apart, the scale of speed-ups."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from iree_gauntlet.document import INK, PAPER

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from matplotlib.figure import Figure


# Of Okabe and Ito, "Color Universal Design" (2008): blue and vermilion stay apart in every kind of colour blindness.
_BLUE = (0x00 / 255, 0x72 / 255, 0xB2 / 255)
_VERMILION = (0xD5 / 255, 0x5E / 255, 0x00 / 255)
_MIDDLE = (0.96, 0.96, 0.95)
WORD_COLOURS = {"faster": "#0072b2", "slower": "#d55e00", "same": "#8c8c8c", "inconclusive": PAPER}

# In the place of a speed-up.
STATUS_MARKS = {"same module": "≡", "failed": "×", "error": "×", "skipped": "·"}
_MEANINGS = {
    "=": "= the same within the margins",
    "?": "? inconclusive",
    "≡": "≡ compiled to the baseline's module",
    "×": "× failed",
    "·": "· skipped",
}

_LABEL_POINTS = 7.5
STYLE: dict[str, Any] = {
    # The same picture has the same bytes.
    "svg.hashsalt": "iree-gauntlet",
    # Text stays text: it can be searched, read aloud, and follows a page's colours.
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 8.0,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.6,
    "axes.facecolor": "none",
    "axes.titlesize": 8.5,
    "figure.facecolor": PAPER,
    "figure.titlesize": 9.0,
    "figure.labelsize": _LABEL_POINTS,
    "savefig.facecolor": PAPER,
    "hatch.linewidth": 0.5,
    "legend.fontsize": 8.0,
    "text.color": INK,
    # Names are names, also those with a dollar sign.
    "text.parse_math": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": _LABEL_POINTS,
    "ytick.labelsize": _LABEL_POINTS,
}

# Octaves: below, differences are shown as small as they are; above, one outlier does not wash out the rest.
_LEAST, _MOST = math.log2(1.25), 3.0
# Ratios that are written at a scale, by the octaves that it spans on each side.
_TICKS = (
    (0.33, (0.8, 0.9, 1.0, 1.1, 1.25)),
    (0.6, (0.67, 0.8, 1.0, 1.25, 1.5)),
    (1.0, (0.5, 0.67, 1.0, 1.5, 2.0)),
    (2.0, (0.25, 0.5, 1.0, 2.0, 4.0)),
)


def scale_limit(ratios: Iterable[float], *, most: float = _MOST) -> float:
    """How many octaves to each side of 1.0 a scale needs: the same to both, so that 1.0 is its middle.

    Args:
        ratios: what is to be shown; those that are not positive and finite do not count.
        most: beyond this, values lie at the end of the scale.
    """
    octaves = (abs(math.log2(ratio)) for ratio in ratios if 0 < ratio < math.inf)
    return min(most, max(_LEAST, *octaves, 0.0))


def scale_ticks(limit: float) -> tuple[float, ...]:
    """Ratios to be written at a scale of so many octaves on each side."""
    for most, ticks in _TICKS:
        if limit <= most:
            return tuple(tick for tick in ticks if abs(math.log2(tick)) <= limit * 1.01)
    whole = int(limit)
    step = max(1, round(whole / 3))
    powers = [*range(-(whole // step) * step, 0, step), *range(0, whole + 1, step)]
    return tuple(2.0**power for power in powers)


def tick_text(ratio: float) -> str:
    """`0.67×`, `2×`."""
    return f"{ratio:.3g}×"


def colour_of(ratio: float, limit: float) -> tuple[float, float, float]:
    """The colour of a speed-up: blue above 1.0, vermilion below, as strong as its logarithm."""
    octaves = math.log2(ratio) if 0 < ratio < math.inf else math.copysign(limit, ratio - 1.0)
    strength = min(1.0, abs(octaves) / limit)
    end = _BLUE if octaves > 0 else _VERMILION
    red, green, blue = (middle + strength * (far - middle) for middle, far in zip(_MIDDLE, end, strict=True))
    return red, green, blue


def ink_on(colour: Sequence[float]) -> str:
    """Black or white, whichever can be read on a colour (relative luminance of WCAG 2.1)."""
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in colour]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#000000" if luminance > 0.179 else "#ffffff"


def text_width(texts: Iterable[str]) -> float:
    """Width of the longest of some labels in inches, about; never too little for DejaVu Sans."""
    return max(map(len, texts), default=0) * _LABEL_POINTS * 0.64 / 72


def figure_of(title: str, width: float, height: float, marks: Iterable[str] = ()) -> Figure:
    """A figure with its title, and below what some signs mean; matplotlib finds room for what is drawn between.

    Args:
        title: may be wider than the figure.
        width: in inches.
        height: likewise.
        marks: those that are drawn.
    """
    from matplotlib.figure import Figure  # noqa: PLC0415 - matplotlib is optional

    figure = Figure(figsize=(width, height), layout="constrained")
    figure.suptitle(title, x=0, ha="left")
    known = set(marks)
    meanings = [text for mark, text in _MEANINGS.items() if mark in known]
    if meanings:
        figure.supxlabel("   ".join(meanings), x=0, ha="left")
    return figure
