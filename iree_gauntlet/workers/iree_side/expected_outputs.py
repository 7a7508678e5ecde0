"""Judge outputs of references as expected outputs: whether they show errors, their range, and their differences."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from iree_gauntlet.workers.iree_side.onnx_reference import get_float_type
from iree_gauntlet.workers.iree_side.value_errors import are_close, measure_difference, widen

if TYPE_CHECKING:
    from collections.abc import Mapping

    from iree_gauntlet.workers.iree_side.plan_file import Array
    from iree_gauntlet.workers.iree_side.value_errors import OutputTolerance


NOTHING_TOLD = "its outputs check nothing: all of them are constant, empty or not numbers"


def can_discriminate(array: Any) -> bool:
    """Return whether an output's values differ, so that the output can tell right from wrong."""
    if not isinstance(array, np.ndarray) or array.dtype.kind in "OSU":
        return True
    summary = describe_array(array)
    nonfinite_count = summary["nans"] + summary["infinities"]
    return nonfinite_count < array.size and (
        nonfinite_count > 0 or array.size == 1 or summary["least"] != summary["most"]
    )


def describe_array(array: Array) -> dict[str, Any]:
    """Summarise an array; `least` and `most` count finite values only, and are null without any."""
    with np.errstate(all="ignore"):
        values = array.astype(np.float64) if array.dtype.name not in ("int64", "uint64") else array
        is_floating = values.dtype.kind == "f"
        nans = int(np.isnan(values).sum()) if is_floating else 0
        finite = values[np.isfinite(values)] if is_floating else values
    return {
        "dtype": array.dtype.name,
        "shape": list(array.shape),
        "count": int(array.size),
        "nans": nans,
        "infinities": int(array.size - nans - finite.size),
        "least": finite.min().item() if finite.size else None,
        "most": finite.max().item() if finite.size else None,
    }


def measure_excess(array: Array, other_array: Array | None, tolerances: Mapping[str, OutputTolerance]) -> float | None:
    """Return the largest difference (-1 for infinity) if some difference exceeds the tolerance; otherwise None."""
    if other_array is None:
        return None
    max_difference = measure_difference(array, other_array)
    if max_difference == math.inf:
        return -1.0
    element = get_float_type(array)
    limits = (tolerances[element].atol, tolerances[element].rtol) if element else (0.0, 0.0)
    return None if are_close(widen(other_array), widen(array), limits) else max_difference
