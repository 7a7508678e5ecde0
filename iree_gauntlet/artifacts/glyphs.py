"""Pictures of random words in a 5x7 bitmap font of digits and capitals: text without a font file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray


_GLYPH_WIDTH = 5
_GLYPH_HEIGHT = 7

# Seven rows of five dots, top row first; each row is a number whose highest of five bits is the left dot.
_ROWS = {
    "0": (0b01110, 0b10001, 0b10011, 0b10101, 0b11001, 0b10001, 0b01110),
    "1": (0b00100, 0b01100, 0b00100, 0b00100, 0b00100, 0b00100, 0b01110),
    "2": (0b01110, 0b10001, 0b00001, 0b00010, 0b00100, 0b01000, 0b11111),
    "3": (0b11111, 0b00010, 0b00100, 0b00010, 0b00001, 0b10001, 0b01110),
    "4": (0b00010, 0b00110, 0b01010, 0b10010, 0b11111, 0b00010, 0b00010),
    "5": (0b11111, 0b10000, 0b11110, 0b00001, 0b00001, 0b10001, 0b01110),
    "6": (0b00110, 0b01000, 0b10000, 0b11110, 0b10001, 0b10001, 0b01110),
    "7": (0b11111, 0b00001, 0b00010, 0b00100, 0b01000, 0b01000, 0b01000),
    "8": (0b01110, 0b10001, 0b10001, 0b01110, 0b10001, 0b10001, 0b01110),
    "9": (0b01110, 0b10001, 0b10001, 0b01111, 0b00001, 0b00010, 0b01100),
    "A": (0b01110, 0b10001, 0b10001, 0b11111, 0b10001, 0b10001, 0b10001),
    "B": (0b11110, 0b10001, 0b10001, 0b11110, 0b10001, 0b10001, 0b11110),
    "C": (0b01110, 0b10001, 0b10000, 0b10000, 0b10000, 0b10001, 0b01110),
    "D": (0b11100, 0b10010, 0b10001, 0b10001, 0b10001, 0b10010, 0b11100),
    "E": (0b11111, 0b10000, 0b10000, 0b11110, 0b10000, 0b10000, 0b11111),
    "F": (0b11111, 0b10000, 0b10000, 0b11110, 0b10000, 0b10000, 0b10000),
    "G": (0b01110, 0b10001, 0b10000, 0b10111, 0b10001, 0b10001, 0b01111),
    "H": (0b10001, 0b10001, 0b10001, 0b11111, 0b10001, 0b10001, 0b10001),
    "I": (0b01110, 0b00100, 0b00100, 0b00100, 0b00100, 0b00100, 0b01110),
    "J": (0b00111, 0b00010, 0b00010, 0b00010, 0b00010, 0b10010, 0b01100),
    "K": (0b10001, 0b10010, 0b10100, 0b11000, 0b10100, 0b10010, 0b10001),
    "L": (0b10000, 0b10000, 0b10000, 0b10000, 0b10000, 0b10000, 0b11111),
    "M": (0b10001, 0b11011, 0b10101, 0b10101, 0b10001, 0b10001, 0b10001),
    "N": (0b10001, 0b10001, 0b11001, 0b10101, 0b10011, 0b10001, 0b10001),
    "O": (0b01110, 0b10001, 0b10001, 0b10001, 0b10001, 0b10001, 0b01110),
    "P": (0b11110, 0b10001, 0b10001, 0b11110, 0b10000, 0b10000, 0b10000),
    "Q": (0b01110, 0b10001, 0b10001, 0b10001, 0b10101, 0b10010, 0b01101),
    "R": (0b11110, 0b10001, 0b10001, 0b11110, 0b10100, 0b10010, 0b10001),
    "S": (0b01111, 0b10000, 0b10000, 0b01110, 0b00001, 0b00001, 0b11110),
    "T": (0b11111, 0b00100, 0b00100, 0b00100, 0b00100, 0b00100, 0b00100),
    "U": (0b10001, 0b10001, 0b10001, 0b10001, 0b10001, 0b10001, 0b01110),
    "V": (0b10001, 0b10001, 0b10001, 0b10001, 0b10001, 0b01010, 0b00100),
    "W": (0b10001, 0b10001, 0b10001, 0b10101, 0b10101, 0b10101, 0b01010),
    "X": (0b10001, 0b10001, 0b01010, 0b00100, 0b01010, 0b10001, 0b10001),
    "Y": (0b10001, 0b10001, 0b10001, 0b01010, 0b00100, 0b00100, 0b00100),
    "Z": (0b11111, 0b00001, 0b00010, 0b00100, 0b01000, 0b10000, 0b11111),
}

ALPHABET = "".join(_ROWS)


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


def _dots(text: str) -> NDArray[np.bool_]:
    """The dots of a line of text, True for ink; a blank is a glyph's width of paper."""
    dots = np.zeros((_GLYPH_HEIGHT, len(text) * (_GLYPH_WIDTH + _GAP) - _GAP), dtype=np.bool_)
    for position, character in enumerate(text):
        left = position * (_GLYPH_WIDTH + _GAP)
        for row, bits in enumerate(_ROWS.get(character, ())):
            for column in range(_GLYPH_WIDTH):
                dots[row, left + column] = (bits >> (_GLYPH_WIDTH - 1 - column)) & 1
    return dots
