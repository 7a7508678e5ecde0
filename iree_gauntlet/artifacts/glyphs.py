"""Pictures of random words in a bitmap font of digits and capitals.

`glyphs.txt` has the font: a character in each line, then its seven rows of five dots, the top row first, `#` for ink.
"""

from __future__ import annotations

import string
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray


_GLYPH_WIDTH = 5
_GLYPH_HEIGHT = 7
ALPHABET = string.digits + string.ascii_uppercase

_GAP = 1
_SHORTEST_WORD = 3
_LONGEST_WORD = 8


def smallest_picture(scale: int, lines: int) -> tuple[int, int]:
    """Height and width in pixels that `picture_of_words` needs at least; `scale` is pixels a dot."""
    return lines * (_GLYPH_HEIGHT + _GAP) * scale, (_GLYPH_WIDTH + 2 * _GAP) * scale


def words_per_line(width: int, scale: int) -> int:
    """How many random words `picture_of_words` draws at most from its stream for one line."""
    return 2 * max(1, _columns(width, scale))


def picture_of_words(stream: Iterator[int], height: int, width: int, scale: int, lines: int) -> NDArray[np.bool_]:
    """Draw lines of random words, each line in the middle of its share of the height.

    Args:
        stream: random numbers of 64 bits.
        height: of the picture in pixels.
        width: of the picture in pixels.
        scale: pixels a dot of the font.
        lines: lines of text.

    Returns:
        Height x width, True where there is ink.
    """
    picture = np.zeros((height, width), dtype=np.bool_)
    for line in range(lines):
        dots = _dots(_sentence(stream, _columns(width, scale)))
        ink = dots.repeat(scale, axis=0).repeat(scale, axis=1)
        top = (2 * line + 1) * height // (2 * lines) - ink.shape[0] // 2
        left = (width - ink.shape[1]) // 2
        picture[top : top + ink.shape[0], left : left + ink.shape[1]] = ink
    return picture


def _columns(width: int, scale: int) -> int:
    """Characters that fit into a line, with a dot's margin at both ends."""
    return (width // scale - _GAP) // (_GLYPH_WIDTH + _GAP)


def _sentence(stream: Iterator[int], columns: int) -> str:
    """Words of three to eight characters, one blank between them, until the line is full."""
    text = ""
    while columns - len(text) >= _SHORTEST_WORD:
        length = _SHORTEST_WORD + next(stream) % (_LONGEST_WORD - _SHORTEST_WORD + 1)
        length = min(length, columns - len(text))
        text += "".join(ALPHABET[next(stream) % len(ALPHABET)] for _ in range(length)) + " "
    return text.strip() or ALPHABET[next(stream) % len(ALPHABET)]


@cache
def _font() -> dict[str, NDArray[np.bool_]]:
    """The dots of each character, True for ink."""
    lines = Path(__file__).with_name("glyphs.txt").read_text(encoding="ascii").splitlines()
    return {character: np.array([list(row) for row in rows]) == "#" for character, *rows in map(str.split, lines)}


def _dots(text: str) -> NDArray[np.bool_]:
    """The dots of a line of text, True for ink; a blank is a glyph's width of paper."""
    dots = np.zeros((_GLYPH_HEIGHT, len(text) * (_GLYPH_WIDTH + _GAP) - _GAP), dtype=np.bool_)
    for position, character in enumerate(text):
        if character in ALPHABET:
            left = position * (_GLYPH_WIDTH + _GAP)
            dots[:, left : left + _GLYPH_WIDTH] = _font()[character]
    return dots
