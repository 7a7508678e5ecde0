"""Block floating point, emulated on NumPy arrays: an exponent shared by 16 values, and short mantissas.

The format is that of Tenstorrent's Bfp8 and Bfp4, by these public sources:

- the bit patterns: `FloatBitPatterns.md` of tenstorrent/tt-isa-documentation (WormholeB0): a sign, a magnitude of 7
  (Bfp8) or 3 (Bfp4) bits, and one exponent for 16 values: ±Mag / 2^6 · 2^E or ±Mag / 2^2 · 2^E;
- the conversion: PyBuda's documentation, "Data Formats and Math Fidelity": the shared exponent is the largest of the
  block; the leading 1 becomes explicit (so that it is one of the 7 or 3 bits), the others shift right;
- rounding and its overflow: the host's packer of tt-metal (`tt_metal/impl/data_format/blockfloat_common.cpp`): to
  nearest, ties to even; what rounds up beyond the last magnitude becomes the last magnitude, and the exponent stays.

Where sources disagree, and what is done here:

- Ties: the packer rounds to even (tt-metal pull request 16997), the devices away from zero (issue 15889). Even.
- Bfp4: the devices round to 7 bits and cut off to 3 (issue 57410), the packer rounds to 3 bits at once. At once.
- The packer drops the bits that the shift pushes out before it rounds; here a value is rounded once, exactly.
- Exponents: the devices take every exponent field as a number, so that a Bfp8 without `_b` reaches 130,048. Here
  the range is that of float16 and bfloat16 themselves (2^-14 … 2^15 and 2^-126 … 2^127), so that these types hold
  every value. A larger value becomes the largest one (65,024 for Bfp8); below the range the exponent stays at its
  smallest, and what is less than half a unit there becomes zero. (The packer gives such values a leading 1 that
  they do not have.)
- Values that are no numbers: the devices know none. Here NaN and ±Inf stay what they are and have no part in the
  exponent, so that a fault of a model is not hidden and the neighbours of an attention mask's -Inf stay whole.
- Zero: the packer makes -0 and what rounds to it +0, since the pattern means something else; so it is here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


BLOCK = 16
"""How many values share an exponent."""


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """A block floating point format.

    Attributes:
        magnitude_bits: bits of a magnitude, the leading 1 among them.
    """

    magnitude_bits: int
    least_exponent: int
    greatest_exponent: int


# By their names as the benchmarks' options have them.
BLOCK_FORMATS = {
    "Bfp8": BlockFormat(7, -14, 15),
    "Bfp8_b": BlockFormat(7, -126, 127),
    "Bfp4": BlockFormat(3, -14, 15),
    "Bfp4_b": BlockFormat(3, -126, 127),
}


def round_to_blocks(values: NDArray[Any], form: BlockFormat) -> NDArray[np.float32]:
    """Round to a block floating point format; the result has the shape of the values and no memory of theirs.

    Blocks are 16 values along the last axis, the last one shorter where they do not divide it; an array without
    axes is a block of one.

    Returns:
        float32, each value a multiple of its block's unit. A value that the largest magnitude of its block cuts
        off is less than a unit away, all others at most half a unit.
    """
    blocks, shape = _split_blocks(values)
    finite = np.isfinite(blocks)
    numbers = np.where(finite, blocks, np.float32(0))
    # frexp gives 0.5 ≤ fraction < 1, one more than the exponent of 1.f; 0 for 0, which any exponent fits.
    _, exponents = np.frexp(np.abs(numbers).max(axis=1, initial=0.0))
    exponents = np.clip(exponents - 1, form.least_exponent, form.greatest_exponent)
    scale = np.ldexp(np.float32(1), exponents - (form.magnitude_bits - 1))[:, np.newaxis]
    last = np.float32(2**form.magnitude_bits - 1)
    # A division by a power of two is exact, but for quotients far below a half; `rint` takes ties to even.
    magnitudes = np.clip(np.rint(numbers / scale), -last, last)
    # Adding zero makes -0 to +0.
    rounded = magnitudes * scale + np.float32(0)
    length = shape[-1] if shape else 1
    joined = np.where(finite, rounded, blocks).reshape((-1, -(-length // BLOCK) * BLOCK) if length else (0, 0))
    return joined[:, :length].reshape(shape)


def _split_blocks(values: NDArray[Any]) -> tuple[NDArray[np.float32], tuple[int, ...]]:
    """The values as rows of 16, filled up with zeros, and the shape that they had."""
    with np.errstate(over="ignore"):
        numbers = np.asarray(values, dtype=np.float32)
    length = numbers.shape[-1] if numbers.ndim else 1
    rows = numbers.reshape((-1, length)) if length else np.zeros((0, 0), np.float32)
    padded = np.zeros((len(rows), -(-length // BLOCK) * BLOCK), np.float32)
    padded[:, :length] = rows
    return padded.reshape((-1, BLOCK)), numbers.shape
