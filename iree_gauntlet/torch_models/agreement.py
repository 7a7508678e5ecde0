"""Check outputs against expected ones: each by root mean square and worst value, and all along recorded directions.

A flip is a value so close to a kink that rounding decides on which side it is. A ReLU has no jump, but its derivative
has one. If a value is zero except for rounding, one correct program passes the value's gradient and another does not;
all gradients before it then differ by far more than by rounding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from iree_gauntlet.measuring.numerics.arrays import is_float
from iree_gauntlet.measuring.numerics.comparison import compare_outputs
from iree_gauntlet.measuring.numerics.tolerances import Tolerances
from iree_gauntlet.recorded import UNLESS_DEFAULT, Recorded
from iree_gauntlet.torch_models.build_files import Directions
from iree_gauntlet.torch_models.formats import UNIT_ROUNDOFF, Tolerance

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from iree_gauntlet.measuring.numerics.arrays import Tensor
    from iree_gauntlet.results import OutputComparison
    from iree_gauntlet.torch_models.build_files import Array


_CHUNK_VALUES = 1 << 22
_ERROR_KINDS = ("rounding", "sums", "products")
_ARRAY_NAMES = ("outputs", "places", "scales", "filters", "flips")
# The limits are the measured errors of the trials, times this factor.
_SAFETY_FACTOR = 2.5
# Along a direction, the limit is this factor times the rms of the trials' errors, plus errors that all values of a
# result may share, because constants are rounded, and functions such as exp and erf are approximated in f32.
_DIRECTION_FACTOR = 4.0
_CONSTANT_FACTOR = 0.5
_APPROXIMATION_ERROR = 8 * UNIT_ROUNDOFF["f32"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractionErrors(Recorded):
    """Apparent relative errors of contractions; `error` is the worst contraction's, as a share of its result.

    Attributes:
        shown: number of contractions in which an error of that size would be detected.
        of: number of contractions that were tried.
        in_model: number of contractions in the model.
    """

    worst: str
    error: float
    limit: float
    shown: dict[str, int]
    of: int
    in_model: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputErrors(Recorded):
    """Relative errors of outputs, as shares of the expected values, and their limits.

    Attributes:
        peak: the worst output's largest difference, as a share of the output's largest expected magnitude.
        flips: number of values whose flip was subtracted; None if contractions were not examined.
        rms_without_flips: the rms error after subtracting flips; `rms_tolerance` applies to this error.
    """

    rms: float
    peak: float
    rms_tolerance: float
    peak_tolerance: float
    flips: int | None = field(default=None, metadata=UNLESS_DEFAULT)
    rms_without_flips: float | None = field(default=None, metadata=UNLESS_DEFAULT)
    contractions: ContractionErrors | None = field(default=None, metadata=UNLESS_DEFAULT)


@dataclass(frozen=True, slots=True)
class Agreement:
    """The agreement of outputs with expected ones; meaningless if only zeros are expected (`expects_only_zeros`)."""

    comparisons: tuple[OutputComparison, ...]
    errors: OutputErrors
    problem: str
    expects_only_zeros: bool


@dataclass(frozen=True, slots=True)
class Gains:
    """Apparent relative errors of contractions, and the errors of all outputs together after subtracting flips.

    `rest` is the rms of the remaining errors, as a share of the rms of the expected values.
    """

    contractions: ContractionErrors
    flips: int
    rest: float
    rest_limit: float
    problem: str

    def add_to(self, errors: OutputErrors) -> OutputErrors:
        """Return `errors` with these errors added, and with this object's rms limit."""
        return replace(
            errors,
            rms_tolerance=self.rest_limit,
            flips=self.flips,
            rms_without_flips=self.rest,
            contractions=self.contractions,
        )


def find_limits(arrays: Sequence[Array], narrowing: float = 1.0) -> list[Tolerance]:
    """Return the limits of outputs' errors, from the errors of the trials at build time.

    `narrowing`: ratio of the roundoff of contractions' inputs to the roundoff of the data format.
    """

    def limit(array: Array, index: int) -> float:
        errors = {kind: values[index] for kind, values in array.errors.items()}
        return _SAFETY_FACTOR * float(_add_errors(errors, narrowing)) if errors else 0.0

    return [Tolerance(limit(array, 0), limit(array, 1)) for array in arrays]


def _add_errors(errors: Mapping[str, Any], narrowing: float) -> Any:
    """Return the combined error of all kinds of errors, which are independent."""
    products = narrowing * errors["products"] if narrowing > 1 else 0.0
    return np.sqrt(errors["rounding"] ** 2 + errors["sums"] ** 2 + products**2 + errors.get("flips", 0.0) ** 2)


def fit_gains(
    actual: Sequence[Tensor],
    expected: Sequence[Tensor],
    directory: Path,
    directions: Directions,
    narrowing: float,
    *,
    gradients: bool = False,
) -> Gains:
    """Fit each contraction's error to the errors of the outputs, and judge the worst contraction.

    All outputs must have the expected shapes; `gradients` as in `compare_tensors`.
    """
    with np.load(directory / directions.file, allow_pickle=False) as file:
        outputs, positions, scales, filters, flips = (file[name] for name in _ARRAY_NAMES)
        directional, residual = (dict(zip(_ERROR_KINDS, file[name], strict=True)) for name in ("along", "rest"))
    limits = _DIRECTION_FACTOR * _add_errors(directional, narrowing) + _APPROXIMATION_ERROR
    rms_limits = _SAFETY_FACTOR * _add_errors(residual, narrowing)
    limits += _CONSTANT_FACTOR * narrowing * max(UNIT_ROUNDOFF.get(tensor.element_type, 0.0) for tensor in expected)
    # A contraction on which no output depends has no visible error.
    limits = np.where(filters.any(axis=1), limits, np.inf)
    sizes = list(map(Distance.measure, actual, expected))
    if gradients:
        rms_limits = np.array(
            [limit.rms for limit in _widen_for_gradients([Tolerance(rms, 0.0) for rms in rms_limits], sizes)]
        )
    errors = np.zeros(len(positions))
    for index, (output, target) in enumerate(zip(actual, expected, strict=True)):
        is_in_output = outputs == index
        actual_values, expected_values = (
            np.asarray(t.array.reshape(-1)[positions[is_in_output]], dtype=np.float64) for t in (output, target)
        )
        errors[is_in_output] = actual_values - expected_values
    errors, flip_indices = subtract_flips(errors, flips, scales)
    gains, rest = filters @ errors, _find_rms_of_outputs(errors, outputs, len(expected))
    worst = int(np.argmax(np.abs(gains) / limits))
    name, error, limit = directions.names[worst], float(gains[worst]), float(limits[worst])
    problem = "".join(
        f"output {index}: rms of the differences is {rest[index]:.3g}, {rms_limits[index]:.3g} may be rounding"
        for index in np.flatnonzero(rest > rms_limits)[:1]
    )
    if abs(error) > limit:
        problem = f"as if {name} were {100 * error:+.2g} % off: {100 * limit:.2g} % may be rounding"
    visible_counts = {text: int(np.sum(limits < share)) for text, share in (("1%", 0.01), ("0.1%", 0.001))}
    contractions = ContractionErrors(
        worst=name, error=error, limit=limit, shown=visible_counts, of=len(gains), in_model=directions.contractions
    )
    return Gains(contractions, len(flip_indices), _combine_rms(rest, sizes), _combine_rms(rms_limits, sizes), problem)


def _combine_rms(errors: NDArray[np.float64], scales: Sequence[Distance]) -> float:
    """Return the rms of all outputs' errors, as a share of the rms of the outputs' values."""
    counts, sizes = (np.array([getattr(scale, name) for scale in scales]) for name in ("count", "rms"))
    return float(np.sqrt((counts @ errors**2) / ((counts @ sizes**2) or 1.0)))


def compare_tensors(
    actual: Sequence[Tensor],
    expected: Sequence[Tensor],
    limits: Tolerance | Sequence[Tolerance],
    *,
    gradients: bool = False,
) -> Agreement:
    """Compare outputs.

    Args:
        actual: the device's outputs.
        expected: the expected outputs.
        limits: a limit for each output, in the output's units; or one for all, as shares of each output's scale.
        gradients: True if all outputs but the first are gradients. Then the largest limit, as a share of an output's
            scale, applies to each gradient, because the ReLU at which a value flips may be in any layer.
    """
    # If an output is missing or has another type, the expected tensor gives the scale.
    pairs = zip((*actual, *expected[len(actual) :]), expected, strict=False)
    scales = [Distance.measure(tensor if tensor.type == target.type else target, target) for tensor, target in pairs]
    if isinstance(limits, Tolerance):
        limits = [Tolerance(limits.rms * scale.rms, limits.peak * scale.peak) for scale in scales]
    limits = _widen_for_gradients(limits, scales) if gradients else limits
    comparisons: list[OutputComparison] = []
    problem = ""
    total, max_noise, peak, max_peak = Distance(), 0.0, 0.0, 0.0
    for index, (tensor, target, scale, limit) in enumerate(zip(actual, expected, scales, limits, strict=False)):
        (comparison,) = compare_outputs(
            [tensor], [target], Tolerances(limit.peak, limit.peak, limit.peak, limit.peak, rtol=0.0)
        )
        comparison = replace(comparison, index=index)
        if comparison.mismatches and not is_float(target.element_type):
            # If rounding decides values, as in a mask of values above zero, this share of the values may differ.
            comparison = replace(comparison, passed=comparison.mismatches <= limit.rms**2 * comparison.count)
        if comparison.mismatches is not None and scale.count:
            total, max_noise = total + scale, max_noise + limit.rms**2 * scale.count
            if scale.peak and (comparison.max_abs_error or 0.0) / scale.peak >= peak:
                peak, max_peak = (comparison.max_abs_error or 0.0) / scale.peak, limit.peak / scale.peak
            if comparison.passed and not scale.rms_error <= limit.rms:
                error = f"rms of the differences is {scale.rms_error:.3g}"
                message = f"{error}, at most {limit.rms:.3g} is allowed (values: {scale.rms:.3g})"
                comparison = replace(comparison, passed=False, message=message)
        comparisons.append(comparison)
        if not comparison.passed and not problem:
            problem = f"output {index}: {comparison.message}"
    if len(actual) != len(expected):
        problem = f"the module gives {len(actual)} outputs, {len(expected)} are expected"
    expects_only_zeros = not any(scale.rms for scale in scales) and any(scale.count for scale in scales)
    errors = OutputErrors(
        rms=total.relative_error,
        peak=peak,
        rms_tolerance=replace(total, noise=max_noise).relative_error,
        peak_tolerance=max_peak,
    )
    return Agreement(tuple(comparisons), errors, problem, expects_only_zeros)


def _widen_for_gradients(limits: Sequence[Tolerance], scales: Sequence[Distance]) -> list[Tolerance]:
    """Return the limits of a loss and its gradients; each gradient gets the largest limit relative to a scale."""
    largest = max((scale.rms for scale in scales[1:]), default=0.0)
    pairs = list(zip(limits[1:], scales[1:], strict=True))
    # Leave out the smallest gradients, which consist only of rounding.
    share = max((limit.rms / scale.rms for limit, scale in pairs if scale.rms > 1e-3 * largest), default=0.0)
    wider = [
        Tolerance(max(limit.rms, share * scale.rms), max(limit.peak, share * scale.peak)) for limit, scale in pairs
    ]
    return [limits[0], *wider]


@dataclass(frozen=True, slots=True)
class Distance:
    """The distance of float values from the expected values; NaN if any value is NaN."""

    count: int = 0
    # `noise` and `signal` are sums of squares, of differences and expected values; peaks are the largest magnitudes.
    noise: float = 0.0
    power: float = 0.0
    peak_error: float = 0.0
    peak: float = 0.0

    @classmethod
    def measure(cls, actual: Tensor, expected: Tensor) -> Distance:
        """Compare two tensors of one shape, some millions of values at a time, because all may not fit in memory."""
        total = cls()
        outputs, targets = actual.array.ravel(), expected.array.ravel()
        for start in range(0, targets.size if is_float(expected.element_type) else 0, _CHUNK_VALUES):
            output, target = (
                np.asarray(values[start : start + _CHUNK_VALUES], dtype=np.float64) for values in (outputs, targets)
            )
            errors = output - target
            powers = float(np.dot(errors, errors)), float(np.dot(target, target))
            total += cls(target.size, *powers, float(np.abs(errors).max()), float(np.abs(target).max()))
        return total

    def __add__(self, other: Distance) -> Distance:
        # Use NumPy's maximum, because max() would not propagate NaN.
        peaks = (np.maximum(self.peak_error, other.peak_error), np.maximum(self.peak, other.peak))
        count, noise, power = self.count + other.count, self.noise + other.noise, self.power + other.power
        return Distance(count, noise, power, *map(float, peaks))

    @property
    def rms(self) -> float:
        """Root mean square of the expected values."""
        return math.sqrt(self.power / self.count) if self.count else 0.0

    @property
    def rms_error(self) -> float:
        """Root mean square of the differences."""
        return math.sqrt(self.noise / self.count) if self.count else 0.0

    @property
    def relative_error(self) -> float:
        """`rms_error` as a share of `rms`; 0 if all expected values are zero."""
        return math.sqrt(self.noise / self.power) if self.power else 0.0


def measure_relative_error(actual: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Return the rms of the differences of all float outputs, as a share of the rms of the expected values."""
    total = Distance()
    for output, target in zip(actual, expected, strict=True):
        if is_float(output.element_type) and output.shape == target.shape:
            total += Distance.measure(output, target)
    return total.relative_error


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialErrors:
    """Errors of trial runs of a program, in selected values of its outputs.

    Attributes:
        places: indices of the values, by output; `scales`: scales of their errors.
        slopes: the derivatives by the scale of the result of each contraction in `names`, of `contractions` in all.
        errors: errors of each run, by kind; `flips`: effect of each flip.
    """

    places: Sequence[NDArray[np.int64]]
    slopes: Sequence[NDArray[np.float64]]
    errors: Mapping[str, Sequence[NDArray[np.float64]]]
    flips: Sequence[NDArray[np.float64]]
    scales: NDArray[np.float64]
    names: Sequence[str]
    contractions: int


def write_directions(trials: TrialErrors, path: Path) -> Directions | None:
    """Write, as `.npz`, filters whose product with the errors of selected values is the error of a contraction.

    Returns:
        The file, and the name of each filter's contraction; None for a model without contractions.
    """
    if not trials.names:
        return None
    scales, count = trials.scales, len(trials.places)
    # Divide by the scale of each output's errors, because outputs with small errors are more informative.
    slopes = np.array(trials.slopes) / scales
    power = np.sum(slopes**2, axis=1, keepdims=True)
    filters = np.divide(slopes, power, out=np.zeros_like(slopes), where=power > 0) / scales
    outputs = np.repeat(np.arange(count), [len(places) for places in trials.places])
    flips = np.reshape(trials.flips, (-1, len(scales)))
    along, rest = [], []
    for runs in trials.errors.values():
        # If a kind has no runs, its errors are zero.
        residuals = [subtract_flips(errors, flips, scales)[0] for errors in runs or np.zeros((1, len(scales)))]
        along.append(np.sqrt(np.mean(np.square(residuals @ filters.T), axis=0)))
        rest.append(np.max([_find_rms_of_outputs(errors, outputs, count) for errors in residuals], axis=0))
    np.savez(
        path,
        outputs=outputs,
        places=np.concatenate(trials.places),
        scales=scales,
        filters=filters.astype(np.float32),
        flips=flips.astype(np.float32),
        along=along,
        rest=rest,
    )
    return Directions(path.name, tuple(trials.names), trials.contractions)


def subtract_flips(errors: NDArray[Any], flips: NDArray[Any], scales: NDArray[Any]) -> tuple[NDArray[Any], list[int]]:
    """Subtract the flips that explain most of the values' errors; return the residual errors and these flips' indices.

    `flips` is [flips, values], the effect of each flip on the values; `scales` has the scales of the other errors.
    """
    residual, effects, flip_indices = errors / scales, flips / scales, list[int]()
    power = np.sum(effects**2, axis=1)
    for _ in effects:
        explained_power = 2 * effects @ residual - power
        explained_power[flip_indices] = 0
        best = int(np.argmax(explained_power))
        if explained_power[best] <= 0:
            break
        residual = residual - effects[best]
        flip_indices.append(best)
    return residual * scales, flip_indices


def _find_rms_of_outputs(errors: NDArray[Any], outputs: NDArray[Any], count: int) -> NDArray[Any]:
    """Return the root mean square of the values' errors for each output."""
    values = np.bincount(outputs, minlength=count)
    return np.sqrt(np.bincount(outputs, errors**2, count) / np.maximum(1, values))
