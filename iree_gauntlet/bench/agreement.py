"""Whether outputs are those of torch: each held to its own scale, by root mean square and by its worst value."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from iree_gauntlet.measuring.comparison import OutputComparison, compare_outputs
from iree_gauntlet.measuring.element_types import is_float
from iree_gauntlet.measuring.tolerances import Tolerances

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from iree_gauntlet.bench.formats import Tolerance
    from iree_gauntlet.measuring.arrays import Tensor

__all__ = ["Agreement", "agreement", "pieces", "recorded", "relative_error"]

_PIECE = 1 << 22


@dataclass(frozen=True, slots=True)
class Agreement:
    """How outputs agree with what was expected.

    Attributes:
        comparisons: of each output, for the record.
        rms: root mean square of the differences of all float outputs, as a share of that of the expected values.
        peak: largest difference of an output, as a share of its largest expected magnitude; the worst output's.
        problem: what is wrong, in one line; empty where they agree.
        tells_nothing: torch's outputs are zero throughout, so that agreeing with them proves little.
    """

    comparisons: tuple[OutputComparison, ...]
    rms: float
    peak: float
    problem: str
    tells_nothing: bool

    def as_dict(self, tolerance: Tolerance) -> dict[str, Any]:
        """For the record; the tolerance is what it was held to."""
        found = {"rms": self.rms, "peak": self.peak, "rms_tolerance": tolerance.rms, "peak_tolerance": tolerance.peak}
        return {name: recorded(value) for name, value in found.items()}


def recorded(value: float) -> float | str:
    """A number as JSON has it; those that it lacks become "nan", "inf" and "-inf"."""
    return value if math.isfinite(value) else str(value)


def agreement(
    actual: Sequence[Tensor], expected: Sequence[Tensor], tolerance: Tolerance, *, gradients: bool = False
) -> Agreement:
    """Compares outputs.

    Args:
        actual: what the device gave.
        expected: what torch eager gave.
        tolerance: as shares of each output's own scale.
        gradients: whether all but the first are gradients of one loss. None is held to a smaller scale than the rms of
            all of them: one that is nothing but rounding (that of the bias of attention's keys is zero in exact
            arithmetic) has no scale of its own.
    """
    scales = [_Scale.of(tensor) for tensor in expected]
    if gradients:
        common = [scale for scale in scales[1:] if scale.count]
        rms = math.sqrt(sum(s.rms**2 * s.count for s in common) / max(1, sum(s.count for s in common)))
        scales = [scales[0], *(replace(s, rms=max(s.rms, rms), peak=max(s.peak, rms)) for s in scales[1:])]
    comparisons: list[OutputComparison] = []
    problem = ""
    squares = reference = peak = 0.0
    for index, tensor in enumerate(actual):
        if index >= len(expected):
            break
        scale, wanted = scales[index], expected[index]
        limit = tolerance.peak * scale.peak
        (found,) = compare_outputs([tensor], [wanted], Tolerances(limit, limit, limit, limit, rtol=0.0))
        found = replace(found, index=index)
        if found.mismatches is not None and is_float(wanted.element_type):
            difference = _difference_square(tensor, wanted)
            squares += difference
            reference += scale.own_rms**2 * scale.count
            peak = max(peak, (found.max_abs_error or 0.0) / scale.peak if scale.peak else 0.0)
            rms = math.sqrt(difference / scale.count) if scale.count else 0.0
            if found.passed and not rms <= tolerance.rms * scale.rms:
                share = rms / scale.rms if scale.rms else math.inf
                text = f"rms of the differences is {share:.3g} of the values', at most {tolerance.rms:.3g} is allowed"
                found = replace(found, passed=False, message=text)
        comparisons.append(found)
        if not found.passed and not problem:
            problem = f"output {index}: {found.message}"
    if len(actual) != len(expected):
        problem = f"the module gives {len(actual)} outputs, torch gives {len(expected)}"
    total = math.sqrt(squares / reference) if reference else 0.0
    tells_nothing = not any(scale.own_rms for scale in scales) and any(scale.count for scale in scales)
    return Agreement(tuple(comparisons), total, peak, problem, tells_nothing)


def relative_error(actual: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Root mean square of the differences of all float outputs, as a share of that of the expected values."""
    squares = reference = 0.0
    for mine, wanted in zip(actual, expected, strict=True):
        if is_float(wanted.element_type) and is_float(mine.element_type) and mine.shape == wanted.shape:
            scale = _Scale.of(wanted)
            squares += _difference_square(mine, wanted)
            reference += scale.rms**2 * scale.count
    return math.sqrt(squares / reference) if reference else 0.0


@dataclass(frozen=True, slots=True)
class _Scale:
    """Of expected values: their number, their root mean square, their largest magnitude."""

    count: int
    rms: float
    peak: float
    own_rms: float

    @classmethod
    def of(cls, tensor: Tensor) -> _Scale:
        if not is_float(tensor.element_type) or not tensor.array.size:
            return cls(0, 0.0, 0.0, 0.0)
        power = peak = 0.0
        for (values,) in pieces(tensor):
            power += float(np.dot(values, values))
            # Not max(): NaN has to come through.
            peak = float(np.maximum(peak, np.abs(values).max()))
        rms = math.sqrt(power / tensor.array.size)
        return cls(tensor.array.size, rms, peak, rms)


def pieces(*tensors: Tensor) -> Iterator[tuple[NDArray[np.float64], ...]]:
    """The values of tensors of one size, flat and wide, some millions at a time: all at once may not fit."""
    flat = [tensor.array.ravel() for tensor in tensors]
    for start in range(0, flat[0].size, _PIECE):
        yield tuple(np.asarray(values[start : start + _PIECE], dtype=np.float64) for values in flat)


def _difference_square(actual: Tensor, expected: Tensor) -> float:
    total = 0.0
    for mine, wanted in pieces(actual, expected):
        difference = mine - wanted
        total += float(np.dot(difference, difference))
    return total
