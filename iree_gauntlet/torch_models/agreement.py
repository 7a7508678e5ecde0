"""Whether outputs are those of a model: each by root mean square and worst value, and all along known directions.

A flip is a value so near a kink that rounding decides on which side it is. A ReLU has no jump, but its derivative has:
where a value is zero but for rounding, one correct program lets its gradient through and another does not, and all
gradients before it differ by far more than rounding moves them.
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


_PIECE = 1 << 22
_ERRORS = ("rounding", "sums", "products")
_FILTERS = ("outputs", "places", "scales", "filters", "flips")
# Times the errors that were tried.
_SAFETY = 2.5
# Times the rms of those that were tried, along a direction; and what all values of a result may have alike: constants
# are rounded too, and exp, erf and their like are approximated in f32.
_DIRECTION = 4.0
_CONSTANT = 0.5
_APPROXIMATION = 8 * UNIT_ROUNDOFF["f32"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractionErrors(Recorded):
    """By how much contractions look too large: `error` is a share of the worst one's result.

    Attributes:
        shown: how many of them would show an error of so much.
        of: how many were tried.
        in_model: how many there are.
    """

    worst: str
    error: float
    limit: float
    shown: dict[str, int]
    of: int
    in_model: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputErrors(Recorded):
    """How far outputs are from what was expected, as shares of that, and how far they may be.

    Attributes:
        peak: largest difference of an output, as a share of its largest expected magnitude; the worst output's.
        flips: values whose fall to the other side of a kink was taken away; None where contractions were not looked at.
        rms_without_flips: what is left then, which is what `rms_tolerance` is about.
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
    """How outputs agree with what was expected; zeros throughout tell nothing (`tells_nothing`)."""

    comparisons: tuple[OutputComparison, ...]
    errors: OutputErrors
    problem: str
    tells_nothing: bool


@dataclass(frozen=True, slots=True)
class Gains:
    """By how much contractions look too large, and the errors of all outputs together, without the flips' part.

    `rest` is the root mean square of the errors that are left, as a share of that of the expected values.
    """

    contractions: ContractionErrors
    flips: int
    rest: float
    rest_limit: float
    problem: str

    def complete(self, errors: OutputErrors) -> OutputErrors:
        """What outputs agree by, with these; of all limits, the one here is the one that binds."""
        return replace(
            errors,
            rms_tolerance=self.rest_limit,
            flips=self.flips,
            rms_without_flips=self.rest,
            contractions=self.contractions,
        )


def find_limits(arrays: Sequence[Array], narrowed: float = 1.0) -> list[Tolerance]:
    """How far outputs may be from what was built, by the errors that were tried when they were.

    `narrowed`: how much larger the roundoff of contractions' inputs is than that of the data format.
    """

    def limit(array: Array, which: int) -> float:
        found = {kind: figures[which] for kind, figures in array.errors.items()}
        return _SAFETY * float(_add_errors(found, narrowed)) if found else 0.0

    return [Tolerance(limit(array, 0), limit(array, 1)) for array in arrays]


def _add_errors(errors: Mapping[str, Any], narrowed: float) -> Any:
    """Errors of all kinds, which are independent."""
    products = narrowed * errors["products"] if narrowed > 1 else 0.0
    return np.sqrt(errors["rounding"] ** 2 + errors["sums"] ** 2 + products**2 + errors.get("flips", 0.0) ** 2)


def find_gains(
    actual: Sequence[Tensor],
    expected: Sequence[Tensor],
    folder: Path,
    directions: Directions,
    narrowed: float,
    *,
    gradients: bool = False,
) -> Gains:
    """The error of each contraction that fits the errors of the outputs best, and what all of these amount to.

    All outputs have the shapes of the expected ones; `gradients` as of `agreement`.
    """
    with np.load(folder / directions.file, allow_pickle=False) as file:
        outputs, places, scales, filters, flips = (file[name] for name in _FILTERS)
        along, left = (dict(zip(_ERRORS, file[name], strict=True)) for name in ("along", "rest"))
    allowed = _DIRECTION * _add_errors(along, narrowed) + _APPROXIMATION
    rooms = _SAFETY * _add_errors(left, narrowed)
    allowed += _CONSTANT * narrowed * max(UNIT_ROUNDOFF.get(tensor.element_type, 0.0) for tensor in expected)
    # One that nothing depends on shows nothing.
    allowed = np.where(filters.any(axis=1), allowed, np.inf)
    sizes = list(map(Distance.measure, actual, expected))
    if gradients:
        rooms = np.array([limit.rms for limit in _widen_for_gradients([Tolerance(room, 0.0) for room in rooms], sizes)])
    errors = np.zeros(len(places))
    for index, (mine, wanted) in enumerate(zip(actual, expected, strict=True)):
        at = outputs == index
        one, other = (np.asarray(t.array.reshape(-1)[places[at]], dtype=np.float64) for t in (mine, wanted))
        errors[at] = one - other
    errors, flipped = without_flips(errors, flips, scales)
    gains, rest = filters @ errors, _find_rms_of_outputs(errors, outputs, len(expected))
    worst = int(np.argmax(np.abs(gains) / allowed))
    name, error, limit = directions.names[worst], float(gains[worst]), float(allowed[worst])
    problem = "".join(
        f"output {at}: rms of the differences is {rest[at]:.3g}, {rooms[at]:.3g} may be rounding"
        for at in np.flatnonzero(rest > rooms)[:1]
    )
    if abs(error) > limit:
        problem = f"as if {name} were {100 * error:+.2g} % off: {100 * limit:.2g} % may be rounding"
    shown = {text: int(np.sum(allowed < share)) for text, share in (("1%", 0.01), ("0.1%", 0.001))}
    found = ContractionErrors(
        worst=name, error=error, limit=limit, shown=shown, of=len(gains), in_model=directions.contractions
    )
    return Gains(found, len(flipped), _combine(rest, sizes), _combine(rooms, sizes), problem)


def _combine(errors: NDArray[np.float64], scales: Sequence[Distance]) -> float:
    """The rms of all outputs' errors, as a share of that of their values."""
    counts, sizes = (np.array([getattr(scale, name) for scale in scales]) for name in ("count", "rms"))
    return float(np.sqrt((counts @ errors**2) / ((counts @ sizes**2) or 1.0)))


def compare_tensors(
    actual: Sequence[Tensor],
    expected: Sequence[Tensor],
    allowed: Tolerance | Sequence[Tolerance],
    *,
    gradients: bool = False,
) -> Agreement:
    """Compares outputs.

    Args:
        actual: what the device gave.
        expected: what it should give.
        allowed: a limit for each output, in its own units; or one for all, as shares of each output's own scale.
        gradients: whether all but the first are gradients: each may be off by the share of its scale that the worst one
            may, since the ReLU that a value falls to the other side of may be in any layer.
    """
    # Of an output that is missing or of another type, what is expected says the scale.
    pairs = zip((*actual, *expected[len(actual) :]), expected, strict=False)
    scales = [Distance.measure(tensor if tensor.type == wanted.type else wanted, wanted) for tensor, wanted in pairs]
    if isinstance(allowed, Tolerance):
        allowed = [Tolerance(allowed.rms * scale.rms, allowed.peak * scale.peak) for scale in scales]
    allowed = _widen_for_gradients(allowed, scales) if gradients else allowed
    comparisons: list[OutputComparison] = []
    problem = ""
    total, room, peak, room_peak = Distance(), 0.0, 0.0, 0.0
    for index, (tensor, wanted, scale, limit) in enumerate(zip(actual, expected, scales, allowed, strict=False)):
        (found,) = compare_outputs(
            [tensor], [wanted], Tolerances(limit.peak, limit.peak, limit.peak, limit.peak, rtol=0.0)
        )
        found = replace(found, index=index)
        if found.mismatches and not is_float(wanted.element_type):
            # Where rounding decides, as in a mask of what is above zero, so many may be other ones.
            found = replace(found, passed=found.mismatches <= limit.rms**2 * found.count)
        if found.mismatches is not None and scale.count:
            total, room = total + scale, room + limit.rms**2 * scale.count
            if scale.peak and (found.max_abs_error or 0.0) / scale.peak >= peak:
                peak, room_peak = (found.max_abs_error or 0.0) / scale.peak, limit.peak / scale.peak
            if found.passed and not scale.rms_error <= limit.rms:
                error = f"rms of the differences is {scale.rms_error:.3g}"
                text = f"{error}, at most {limit.rms:.3g} is allowed (values: {scale.rms:.3g})"
                found = replace(found, passed=False, message=text)
        comparisons.append(found)
        if not found.passed and not problem:
            problem = f"output {index}: {found.message}"
    if len(actual) != len(expected):
        problem = f"the module gives {len(actual)} outputs, {len(expected)} are expected"
    tells_nothing = not any(scale.rms for scale in scales) and any(scale.count for scale in scales)
    errors = OutputErrors(
        rms=total.relative, peak=peak, rms_tolerance=replace(total, noise=room).relative, peak_tolerance=room_peak
    )
    return Agreement(tuple(comparisons), errors, problem, tells_nothing)


def _widen_for_gradients(allowed: Sequence[Tolerance], scales: Sequence[Distance]) -> list[Tolerance]:
    """Limits of a loss and its gradients: to each of these, the share of its scale that the worst one has."""
    largest = max((scale.rms for scale in scales[1:]), default=0.0)
    pairs = list(zip(allowed[1:], scales[1:], strict=True))
    # The smallest ones are nothing but rounding.
    share = max((limit.rms / scale.rms for limit, scale in pairs if scale.rms > 1e-3 * largest), default=0.0)
    wider = [
        Tolerance(max(limit.rms, share * scale.rms), max(limit.peak, share * scale.peak)) for limit, scale in pairs
    ]
    return [allowed[0], *wider]


@dataclass(frozen=True, slots=True)
class Distance:
    """How far float values are from the expected ones; NaN where one of them is."""

    count: int = 0
    # Sums of the squares of the differences, and of the expected values; and the largest magnitudes of these.
    noise: float = 0.0
    power: float = 0.0
    peak_error: float = 0.0
    peak: float = 0.0

    @classmethod
    def measure(cls, actual: Tensor, expected: Tensor) -> Distance:
        """Compare two tensors of one shape, some millions of values at a time: all of them at once may not fit."""
        total = cls()
        mine, wanted = actual.array.ravel(), expected.array.ravel()
        for start in range(0, wanted.size if is_float(expected.element_type) else 0, _PIECE):
            one, other = (np.asarray(x[start : start + _PIECE], dtype=np.float64) for x in (mine, wanted))
            errors = one - other
            powers = float(np.dot(errors, errors)), float(np.dot(other, other))
            total += cls(other.size, *powers, float(np.abs(errors).max()), float(np.abs(other).max()))
        return total

    def __add__(self, other: Distance) -> Distance:
        # Not max(): NaN has to come through.
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
    def relative(self) -> float:
        """The latter as a share of the former; 0 where all expected values are zero."""
        return math.sqrt(self.noise / self.power) if self.power else 0.0


def measure_relative_error(actual: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Root mean square of the differences of all float outputs, as a share of that of the expected values."""
    total = Distance()
    for mine, wanted in zip(actual, expected, strict=True):
        if is_float(mine.element_type) and mine.shape == wanted.shape:
            total += Distance.measure(mine, wanted)
    return total.relative


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedErrors:
    """What was tried of a program, in some values of its outputs.

    Attributes:
        places: of the values, by output; `scales`: of their errors.
        slopes: of each contraction in `names`, what changes as its result grows; there are `contractions` in all.
        errors: of each run, by kind; `flips`: what each flip does.
    """

    places: Sequence[NDArray[np.int64]]
    slopes: Sequence[NDArray[np.float64]]
    errors: Mapping[str, Sequence[NDArray[np.float64]]]
    flips: Sequence[NDArray[np.float64]]
    scales: NDArray[np.float64]
    names: Sequence[str]
    contractions: int


def write_directions(found: TriedErrors, path: Path) -> Directions | None:
    """Write, as `.npz`, filters whose product with the errors of chosen values is the error of a contraction.

    Returns:
        The file, and what each of them is of, in words; None for a model without contractions.
    """
    if not found.names:
        return None
    scales, count = found.scales, len(found.places)
    # Outputs of small errors say more: each counts in units of its own.
    slopes = np.array(found.slopes) / scales
    power = np.sum(slopes**2, axis=1, keepdims=True)
    filters = np.divide(slopes, power, out=np.zeros_like(slopes), where=power > 0) / scales
    outputs = np.repeat(np.arange(count), [len(places) for places in found.places])
    flips = np.reshape(found.flips, (-1, len(scales)))
    along, rest = [], []
    for runs in found.errors.values():
        # No errors are errors of zero.
        left = [without_flips(errors, flips, scales)[0] for errors in runs or np.zeros((1, len(scales)))]
        along.append(np.sqrt(np.mean(np.square(left @ filters.T), axis=0)))
        rest.append(np.max([_find_rms_of_outputs(errors, outputs, count) for errors in left], axis=0))
    np.savez(
        path,
        outputs=outputs,
        places=np.concatenate(found.places),
        scales=scales,
        filters=filters.astype(np.float32),
        flips=flips.astype(np.float32),
        along=along,
        rest=rest,
    )
    return Directions(path.name, tuple(found.names), found.contractions)


def without_flips(errors: NDArray[Any], flips: NDArray[Any], scales: NDArray[Any]) -> tuple[NDArray[Any], list[int]]:
    """What is left of values' errors when the flips that explain most of them are taken away, and which these are.

    `flips` is [flips, values], what each of them does to the values; `scales` those of the values' other errors.
    """
    left, effects, found = errors / scales, flips / scales, list[int]()
    power = np.sum(effects**2, axis=1)
    for _ in effects:
        explained = 2 * effects @ left - power
        explained[found] = 0
        best = int(np.argmax(explained))
        if explained[best] <= 0:
            break
        left = left - effects[best]
        found.append(best)
    return left * scales, found


def _find_rms_of_outputs(errors: NDArray[Any], outputs: NDArray[Any], count: int) -> NDArray[Any]:
    """Root mean square of the errors of values, by the output that each value is of."""
    values = np.bincount(outputs, minlength=count)
    return np.sqrt(np.bincount(outputs, errors**2, count) / np.maximum(1, values))
