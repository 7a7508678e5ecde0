"""The data formats of the benchmarks' `--dataformat`, their element types in IREE, and the tolerances of outputs.

NumPy is imported only when weights are rounded, so options can be read without NumPy.

Block floating point is that of Tenstorrent's Bfp8 and Bfp4, an exponent shared by 16 values, by these public sources:

- the bit patterns: `FloatBitPatterns.md` of tenstorrent/tt-isa-documentation (WormholeB0): a sign, a magnitude of 7
  (Bfp8) or 3 (Bfp4) bits, and one exponent for 16 values: ±Mag / 2^6 · 2^E or ±Mag / 2^2 · 2^E;
- the conversion: PyBuda's documentation, "Data Formats and Math Fidelity": the shared exponent is the largest of the
  block; the leading 1 becomes explicit (so that it is one of the 7 or 3 bits), the others shift right;
- rounding and its overflow: the host's packer of tt-metal (`tt_metal/impl/data_format/blockfloat_common.cpp`): to
  nearest, ties to even; what rounds up beyond the last magnitude becomes the last magnitude, and the exponent stays.

The sources disagree on these points, which are decided here:

- Ties: the packer rounds to even (tt-metal pull request 16997), the devices away from zero (issue 15889). Even.
- Bfp4: the devices round to 7 bits and cut off to 3 (issue 57410), the packer rounds to 3 bits at once. At once.
- The packer drops the bits that the shift pushes out before it rounds; here a value is rounded once, exactly.
- Exponents: the devices take every exponent field as a number, so that a Bfp8 without `_b` reaches 130,048. Here
  the range is that of float16 and bfloat16 themselves (2^-14 … 2^15 and 2^-126 … 2^127), so that these types hold
  every value. A larger value becomes the largest one (65,024 for Bfp8); below the range the exponent stays at its
  smallest, and what is less than half a unit there becomes zero. (The packer gives such values a leading 1 that
  they do not have.)
- NaN and ±Inf: the devices have none. Here they are unchanged and do not affect the exponent, so that a model's fault
  is not hidden and the neighbours of an attention mask's -Inf stay exact.
- Zero: the packer turns -0 and values that round to it into +0, since their pattern has another meaning; so it is here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray


# The types that a model may have: torch's name, by IREE's name.
TORCH_TYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}

# Unit roundoff, 2^-p for p significant bits.
UNIT_ROUNDOFF = {"f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}

# Root mean square error of one contraction over 1,024 products, relative to that of the result and in units of
# roundoff: IREE 3.13 on llvm-cpu and torch 2.13 eager on CPU, added as independent errors. Measured for normal
# values: IREE 9.4 and torch 4.2 in f32, 9.8 and 0.4 in f16 (IREE sums in f16, torch in f32), 2.4 and 0.4 in bf16.
_CONTRACTION_ERRORS = {"f32": 10.3, "f16": 9.8, "bf16": 2.5}
# The measured error, in units of the narrow type's roundoff, if inputs are narrowed to f16 or bf16 and summed in f32.
_NARROWING_ERROR = 0.6
# The factor allows for contractions of up to 4,096 products (errors grow with the root), and for operators between.
_SAFETY_FACTOR = 2.0
# The ratio of peak to rms: the worst of 10^6 normal errors is 4.9 rms, relative to a largest value of as many rms.
_PEAK_FACTOR = 4.0
# ONNX's operators that are contractions.
_CONTRACTION_OPERATORS = frozenset({"MatMul", "Gemm", "MatMulInteger", "Conv", "ConvTranspose", "Einsum"})


class DataFormat(Enum):
    """A data format; the value is its spelling on the command line.

    Block formats (Bfp…) are emulated: weights lie on the grid of the format and are held in the
    nearest type of IREE, in which every value of the grid is exact: magnitudes of 7 bits fit the 8 significant bits
    of bf16 and the 11 of f16, and the exponents are bfloat16's and float16's. So arithmetic, memory and speed
    are those of that type.
    """

    FP32 = "Fp32"
    FP16 = "Fp16"
    FP16_B = "Fp16_b"
    BFP8 = "Bfp8"
    BFP8_B = "Bfp8_b"
    BFP4 = "Bfp4"
    BFP4_B = "Bfp4_b"

    @property
    def element_type(self) -> str:
        """The type of weights and activations in IREE's spelling: f32, f16 or bf16."""
        if self is DataFormat.FP32:
            return "f32"
        return "bf16" if self.value.endswith("_b") else "f16"

    @property
    def torch_type(self) -> str:
        """The element type in torch's spelling: float32, float16 or bfloat16."""
        return TORCH_TYPES[self.element_type]

    @property
    def emulated(self) -> bool:
        """True for block formats, for which IREE has no type."""
        return self.value.startswith("Bfp")

    @property
    def label(self) -> str:
        """The name for reports; emulated formats have their element type with it."""
        return f"{self.value} (emulated in {self.element_type})" if self.emulated else self.value


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The limits of a result tensor's differences from torch's.

    Attributes:
        rms: root mean square of the differences, as a share of the root mean square of the expected values.
        peak: largest difference, as a share of the largest expected magnitude.
    """

    rms: float
    peak: float


def find_tolerance(element_type: str, contractions: int, contraction_type: str = "") -> Tolerance:
    """Return the tolerance of a model's outputs against torch eager with the same rounded weights in the same type.

    Errors of successive contractions are independent: they grow with the root of their number. One contraction
    contributes its measured error (see the constants of this module) in units of the type's roundoff, plus the
    rounding of its inputs where the compiler narrows them; the sum is multiplied by a safety factor of 2.
    Examples of `rms`: the limits of 12 layers of 6 contractions are 1.0e-5 in f32, 0.081 in f16 and 0.17 in bf16.

    Args:
        element_type: f32, f16 or bf16; block formats have the tolerance of their element type.
        contractions: number of contractions on the longest path through the model; at least 1.
        contraction_type: f16 or bf16 if math fidelity narrows the inputs of contractions; otherwise empty.
    """
    if contractions < 1:
        raise ValueError(f"{contractions} contractions: expected at least one")
    roundoff = UNIT_ROUNDOFF[element_type]
    error = _CONTRACTION_ERRORS[element_type] * roundoff
    if contraction_type and UNIT_ROUNDOFF[contraction_type] > roundoff:
        error = math.hypot(error, _NARROWING_ERROR * UNIT_ROUNDOFF[contraction_type])
    rms = _SAFETY_FACTOR * error * math.sqrt(contractions)
    return Tolerance(rms, _PEAK_FACTOR * rms)


# The number of values that share an exponent in a block format.
BLOCK = 16


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """A block floating point format; the leading 1 is one of the magnitude's bits."""

    magnitude_bits: int
    least_exponent: int
    greatest_exponent: int


BLOCK_FORMATS = {
    "Bfp8": BlockFormat(7, -14, 15),
    "Bfp8_b": BlockFormat(7, -126, 127),
    "Bfp4": BlockFormat(3, -14, 15),
    "Bfp4_b": BlockFormat(3, -126, 127),
}


def round_weights(array: NDArray[Any], form: DataFormat) -> NDArray[np.float32]:
    """Round weights to a data format: float32 values, each of which the format's element type represents exactly.

    Fp16 and Fp16_b round to nearest, ties to even; values beyond Fp16's range become infinite, as in torch. The block
    formats share exponents along the last axis. The array itself is never changed or returned.
    """
    import numpy as np  # noqa: PLC0415 - options are read without it

    if form.emulated:
        return round_to_blocks(array, BLOCK_FORMATS[form.value])
    with np.errstate(over="ignore"):
        values = np.array(array, dtype=np.float32, order="C")
        if form is DataFormat.FP16:
            return values.astype(np.float16).astype(np.float32)
    if form is not DataFormat.FP16_B:
        return values
    # Round to the upper 16 bits without ml_dtypes, which a torch environment may lack: add half a unit less one, and
    # one more if the last remaining bit is odd, so that ties round to even.
    bits = values.view(np.uint32)
    rounded_bits = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return np.where(np.isfinite(values), rounded_bits, bits).view(np.float32)


def round_to_blocks(values: NDArray[Any], form: BlockFormat) -> NDArray[np.float32]:
    """Round to a block floating point format; the result has the shape of the values and shares no memory with them.

    Blocks are 16 values along the last axis; the last block may be shorter. An array without axes is one block of one
    value.

    Returns:
        float32, each value a multiple of its block's unit. A value that is clipped to the largest magnitude of its
        block is less than a unit away, all others at most half a unit.
    """
    import numpy as np  # noqa: PLC0415 - options are read without it

    with np.errstate(over="ignore"):
        floats = np.asarray(values, dtype=np.float32)
    length = floats.shape[-1] if floats.ndim else 1
    rows = floats.reshape((-1, length)) if length else np.zeros((0, 0), np.float32)
    padded_rows = np.zeros((len(rows), -(-length // BLOCK) * BLOCK), np.float32)
    padded_rows[:, :length] = rows
    blocks = padded_rows.reshape((-1, BLOCK))
    finite = np.isfinite(blocks)
    numbers = np.where(finite, blocks, np.float32(0))
    # frexp returns 0.5 ≤ fraction < 1, and one more than the exponent of 1.f; 0 for 0, which any exponent fits.
    _, exponents = np.frexp(np.abs(numbers).max(axis=1, initial=0.0))
    exponents = np.clip(exponents - 1, form.least_exponent, form.greatest_exponent)
    scale = np.ldexp(np.float32(1), exponents - (form.magnitude_bits - 1))[:, np.newaxis]
    max_magnitude = np.float32(2**form.magnitude_bits - 1)
    # A division by a power of two is exact, except for quotients far below a half; `rint` rounds ties to even.
    magnitudes = np.clip(np.rint(numbers / scale), -max_magnitude, max_magnitude)
    # Adding zero turns -0 into +0.
    results = np.where(finite, magnitudes * scale + np.float32(0), blocks)
    return results.reshape(padded_rows.shape)[:, :length].reshape(floats.shape)


def read_contractions(path: Path) -> int:
    """Count the longest contractions of a file (see `count_longest_contractions`); its weights are not read."""
    import onnx  # noqa: PLC0415 - only files need it, and callers with graphs have it

    return count_longest_contractions(onnx.load(str(path), load_external_data=False).graph)


def count_longest_contractions(graph: Any, outer: dict[str, int] | None = None) -> int:
    """Return the largest number of contractions on a path from an input to an output.

    Matrix products, convolutions, transposed convolutions and Einsum count. A branch or a loop's body counts as if
    it ran once.

    Args:
        graph: an ONNX GraphProto, sorted as ONNX demands: values before their users. Its functions are inlined.
        outer: for a graph inside another one, the longest path to each of the outer graph's values.
    """
    path_lengths = dict(outer or {})
    longest = 0
    for node in graph.node:
        input_length = max((path_lengths.get(name, 0) for name in node.input), default=0)
        # The paths of an inner graph include the paths to the outer values that the graph uses.
        graphs = [
            graph
            for attribute in node.attribute
            for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs)
        ]
        inner_length = max((count_longest_contractions(inner, path_lengths) for inner in graphs), default=0)
        length = max(input_length + (node.op_type in _CONTRACTION_OPERATORS), inner_length)
        path_lengths.update((name, length) for name in node.output if name)
        longest = max(longest, length)
    return longest
