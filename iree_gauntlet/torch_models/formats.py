"""The data formats of the benchmarks' `--dataformat`, what each of them is on IREE, and how near outputs have to be.

Nothing heavy is imported until weights are rounded, so that options can be read anywhere; and nothing but the
standard library, NumPy and onnx ever, since the Python that builds models has torch and not much of the toolkit.
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


# IREE's names of the types that a model may have, and torch's.
TORCH_TYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}

# Unit roundoff, 2^-p for p significant bits.
UNIT_ROUNDOFF = {"f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}

# Root mean square error of one contraction over 1,024 products, relative to that of the result and in units of
# roundoff: IREE 3.13 on llvm-cpu and torch 2.13 eager on CPU, added as independent errors. Measured for normal
# values: IREE 9.4 and torch 4.2 in f32, 9.8 and 0.4 in f16 (IREE sums in f16, torch in f32), 2.4 and 0.4 in bf16.
_CONTRACTION = {"f32": 10.3, "f16": 9.8, "bf16": 2.5}
# Inputs narrowed to b bits and summed in f32: measured 0.6 units of their roundoff, for f16 and bf16 alike.
_NARROWED = 0.6
# For contractions of up to 4,096 products (the error of a sum grows with its root), and what lies between them.
_SAFETY = 2.0
# The worst of n values by its rms: 4.9 for n = 10^6 normal errors, relative to a largest value of as many rms.
_PEAK = 4.0
# Operators of ONNX.
_CONTRACTIONS = frozenset({"MatMul", "Gemm", "MatMulInteger", "Conv", "ConvTranspose", "Einsum"})


class DataFormat(Enum):
    """A data format; the value is its spelling on the command line.

    Block formats (Bfp…) are emulated: weights lie on the grid of the format (`block_float.py`) and are held in the
    nearest type of IREE, in which every value of the grid is exact: magnitudes of 7 bits fit the 8 significant bits
    of bf16 and the 11 of f16, and the exponents are bfloat16's and float16's own. So arithmetic, memory and speed
    are those of the type that holds them.
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
        """Type of weights and activations in IREE's spelling: f32, f16 or bf16."""
        if self is DataFormat.FP32:
            return "f32"
        return "bf16" if self.value.endswith("_b") else "f16"

    @property
    def torch_type(self) -> str:
        """The same in torch's spelling: float32, float16 or bfloat16."""
        return TORCH_TYPES[self.element_type]

    @property
    def emulated(self) -> bool:
        """Whether it is a block format, which IREE has no type for."""
        return self.value.startswith("Bfp")

    @property
    def label(self) -> str:
        """For reports: the name, and what stands for it where it is emulated."""
        return f"{self.value} (emulated in {self.element_type})" if self.emulated else self.value


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far a tensor of results may be from torch's.

    Attributes:
        rms: root mean square of the differences, as a share of the root mean square of the expected values.
        peak: largest difference, as a share of the largest expected magnitude.
    """

    rms: float
    peak: float


def find_tolerance(element_type: str, contractions: int, contraction_type: str = "") -> Tolerance:
    """The tolerance of a model's outputs against torch eager with the same rounded weights in the same type.

    Errors of contractions that follow each other are independent: they add up by the root of their number. One
    contraction contributes what was measured (see the constants of this module) in units of the type's roundoff,
    plus the rounding of its inputs where the compiler narrows them; a safety factor of 2 stands on top.
    Examples, as `rms`: 12 layers of 6 contractions are held to 1.0e-5 in f32, 0.081 in f16 and 0.17 in bf16.

    Args:
        element_type: f32, f16 or bf16; block formats have the tolerance of the type that holds them.
        contractions: how many lie behind each other on the longest way through the model; at least 1.
        contraction_type: f16 or bf16 where math fidelity narrows the inputs of contractions.

    Raises:
        ValueError: fewer than one contraction.
        KeyError: another type of contractions.
    """
    if contractions < 1:
        raise ValueError(f"{contractions} contractions: at least one expected")
    own = UNIT_ROUNDOFF[element_type]
    error = _CONTRACTION[element_type] * own
    if contraction_type and UNIT_ROUNDOFF[contraction_type] > own:
        error = math.hypot(error, _NARROWED * UNIT_ROUNDOFF[contraction_type])
    rms = _SAFETY * error * math.sqrt(contractions)
    return Tolerance(rms, _PEAK * rms)


def round_weights(array: NDArray[Any], form: DataFormat) -> NDArray[np.float32]:
    """Weights as the data format has them: float32 values, each of which the format's element type holds exactly.

    Fp16 and Fp16_b round to nearest, ties to even; what Fp16 cannot hold becomes infinite, as in torch. The block
    formats share exponents along the last axis. The array itself is never changed or returned.
    """
    import numpy as np  # noqa: PLC0415 - options are read without it

    from iree_gauntlet.torch_models.block_float import BLOCK_FORMATS, round_to_blocks  # noqa: PLC0415

    if form.emulated:
        return round_to_blocks(array, BLOCK_FORMATS[form.value])
    with np.errstate(over="ignore"):
        values = np.array(array, dtype=np.float32, order="C")
        if form is DataFormat.FP16:
            return values.astype(np.float16).astype(np.float32)
    return _to_bfloat16(values) if form is DataFormat.FP16_B else values


def _to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rounded in place to the upper 16 bits, ties to even: without ml_dtypes, which a torch environment may lack."""
    import numpy as np  # noqa: PLC0415

    bits = values.view(np.uint32)
    finite = np.isfinite(values)
    # Half a unit less one, and one more where the last bit that stays is odd: a tie goes up only from there.
    raised = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return np.where(finite, raised, bits).view(np.float32)


def read_contractions(path: Path) -> int:
    """The same for a file; its weights are not read."""
    import onnx  # noqa: PLC0415 - graphs can be given by those who have it

    return count_longest_contractions(onnx.load(str(path), load_external_data=False).graph)


def count_longest_contractions(graph: Any, outer: dict[str, int] | None = None) -> int:
    """The largest number of contractions on a way from an input to an output.

    Matrix products, convolutions, transposed ones and Einsum count. A branch or the body of a loop counts as if it
    ran once.

    Args:
        graph: an ONNX GraphProto, sorted as ONNX demands: values before those who use them. Its functions are
            inlined.
        outer: the longest way to each value around it, of a graph inside another one.
    """
    ways = dict(outer or {})
    longest = 0
    for node in graph.node:
        before = max((ways.get(name, 0) for name in node.input), default=0)
        # What an inner graph takes from around it is on its ways already.
        graphs = [
            graph for item in node.attribute for graph in (*([item.g] if item.HasField("g") else []), *item.graphs)
        ]
        inside = max((count_longest_contractions(inner, ways) for inner in graphs), default=0)
        way = max(before + (node.op_type in _CONTRACTIONS), inside)
        ways.update((name, way) for name in node.output if name)
        longest = max(longest, way)
    return longest
