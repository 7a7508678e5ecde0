"""Directions among the outputs: what an error of a contraction looks like there, and what a flip does.

A flip is a value so near a kink that rounding decides on which side it is. A ReLU has no jump, but its derivative has:
where a value is zero but for rounding, one correct program lets its gradient through and another does not, and all
gradients before it differ by far more than rounding moves them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray


def write_directions(found: dict[str, Any], path: Path) -> dict[str, Any] | None:
    """Write, as `.npz`, filters whose product with the errors of chosen values is the error of a contraction.

    Returns:
        The file, and what each of them is of, in words; None for a model without contractions.
    """
    if not found["names"]:
        return None
    scales, count = found["scales"], len(found["places"])
    # Outputs of small errors say more: each counts in units of its own.
    slopes = np.array(found["slopes"]) / scales
    power = np.sum(slopes**2, axis=1, keepdims=True)
    filters = np.divide(slopes, power, out=np.zeros_like(slopes), where=power > 0) / scales
    outputs = np.repeat(np.arange(count), [len(places) for places in found["places"]])
    flips = np.reshape(found["flips"], (-1, len(scales)))
    along, rest = [], []
    for runs in found["errors"].values():
        # No errors are errors of zero.
        left = [without_flips(errors, flips, scales)[0] for errors in runs or np.zeros((1, len(scales)))]
        along.append(np.sqrt(np.mean(np.square(left @ filters.T), axis=0)))
        rest.append(np.max([rms_of_outputs(errors, outputs, count) for errors in left], axis=0))
    np.savez(
        path,
        outputs=outputs,
        places=np.concatenate(found["places"]),
        scales=scales,
        filters=filters.astype(np.float32),
        flips=flips.astype(np.float32),
        along=along,
        rest=rest,
    )
    return {"file": path.name, "names": found["names"]}


def without_flips(errors: NDArray[Any], flips: NDArray[Any], scales: NDArray[Any]) -> tuple[NDArray[Any], list[int]]:
    """What is left of errors when the flips that explain most of them are taken away, each whole and once.

    Args:
        errors: of values.
        flips: [flips, values], what each of them does to the values.
        scales: of the values' other errors.

    Returns:
        The errors that are left, and which flips were taken away.
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


def rms_of_outputs(errors: NDArray[Any], outputs: NDArray[Any], count: int) -> NDArray[Any]:
    """Root mean square of the errors of values, by the output that each value is of."""
    values = np.bincount(outputs, minlength=count)
    return np.sqrt(np.bincount(outputs, errors**2, count) / np.maximum(1, values))
