"""Comparing outputs by `numpy.allclose`, as the torch operators' own program does, with the figures of a comparison.

NumPy's own function decides, in the arrays' own precision; only the element types need not be the same.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from iree_gauntlet.measuring.numerics.comparison import compare_outputs
from iree_gauntlet.measuring.numerics.element_types import TensorError
from iree_gauntlet.measuring.numerics.tolerances import Tolerances

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from iree_gauntlet.cases import Allclose
    from iree_gauntlet.measuring.numerics.arrays import Tensor
    from iree_gauntlet.results import OutputComparison


def compare_allclose(
    actual: Sequence[Tensor], expected: Sequence[Tensor | None], allclose: Allclose
) -> list[OutputComparison]:
    """Compares all outputs of a call; the call passes where every entry passes.

    Args:
        actual: what the module gave.
        expected: what it should give; None for an output that is of no interest.
        allclose: how far the values may be apart.
    """
    tolerances = Tolerances(f64=allclose.atol, rtol=allclose.rtol)
    found = compare_outputs(
        [_doubles(item) for item in actual], [item and _doubles(item) for item in expected], tolerances
    )
    for index, (comparison, mine, wanted) in enumerate(zip(found, actual, expected, strict=False)):
        named = replace(comparison, type=str(mine.type), atol=allclose.atol, rtol=allclose.rtol)
        same = wanted is not None and mine.shape == wanted.shape and not _without_meaning(mine)
        found[index] = _judged(named, mine, wanted, allclose) if wanted is not None and same else named
    return found


def with_known_type(expected: Tensor) -> Tensor:
    """An expected output with the type that its values have; NumPy saves bf16 as two bytes of no known meaning.

    Raises:
        TensorError: what its values mean cannot be known.
    """
    if expected.element_type == "*16":
        return expected.with_element_type("bf16")
    if _without_meaning(expected):
        raise TensorError(
            f"{expected.source}: nothing says the type of its values of {expected.array.itemsize} bytes each",
            'store raw bytes as a .bin, and name the type: {"url": …, "meta": {"dtype": …, "shape": […]}}',
        )
    return expected


def _judged(comparison: OutputComparison, actual: Tensor, expected: Tensor, allclose: Allclose) -> OutputComparison:
    with np.errstate(all="ignore"):
        close = np.isclose(
            _values(actual), _values(expected), rtol=allclose.rtol, atol=allclose.atol, equal_nan=allclose.equal_nan
        )
    if comparison.worst_index is not None:
        worst = (str(_values(tensor)[comparison.worst_index]) for tensor in (actual, expected))
        comparison = replace(comparison, worst_actual=next(worst), worst_expected=next(worst))
    mismatches = int(close.size - np.count_nonzero(close))
    rule = f"{allclose.atol:g} + {allclose.rtol:g}·|expected|"
    error = f" (largest error {comparison.max_abs_error:.4g})" if comparison.max_abs_error is not None else ""
    if not mismatches:
        message = f"all {comparison.count} values are within {rule}{error}"
        return replace(comparison, passed=True, mismatches=0, message=message)
    share = 100 * mismatches / comparison.count
    message = f"{mismatches} of {comparison.count} values ({share:.3g} %) differ by more than {rule}"
    if comparison.worst_index is not None:
        where = list(comparison.worst_index)
        message += f"; worst at {where}: {comparison.worst_actual}, expected {comparison.worst_expected}{error}"
    nans = comparison.actual_nans, comparison.expected_nans
    if any(nans) and not allclose.equal_nan:
        message += f"; {nans[0]} NaN, expected {nans[1]}, and NaN equals no NaN here"
    return replace(comparison, passed=False, mismatches=mismatches, message=message)


def _doubles(tensor: Tensor) -> Tensor:
    """The values in double precision, for figures; bits without a meaning stay what they are."""
    if _without_meaning(tensor):
        return tensor
    return replace(tensor, element_type="f64", array=_values(tensor).astype(np.float64))


def _values(tensor: Tensor) -> NDArray[Any]:
    """The values as numbers: NumPy holds bf16 as its bits."""
    if tensor.element_type != "bf16":
        return tensor.array
    # Registers its types with NumPy; slow to import.
    import ml_dtypes  # noqa: PLC0415

    return tensor.array.view(ml_dtypes.bfloat16)


def _without_meaning(tensor: Tensor) -> bool:
    """Whether a tensor holds bits that are no numbers to NumPy."""
    return tensor.array.dtype.type is np.void
