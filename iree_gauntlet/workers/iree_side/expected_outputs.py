"""Make expected outputs: judge the outputs of references, and run a program in one engine, such as XLA.

The plan of the workers that run engines:

    {"model": "/…/m.mlir", "function": "main",
     "engine": "xla",                             one of the worker's engines
     "inputs": [["@x.npy", "4xi64=1"], …],        sets of inputs in the syntax of iree-run-module, preferred sets first
     "dtypes": ["float32", "int64"],              the types of the inputs, by NumPy's or ml_dtypes' names
     "cwd": "/…",                                 folder of the inputs' files
     "folder": "/…",                              outputs are written to <folder>/<engine>_0.bin, …, as NumPy has them
     "options": {},                               options of the engine
     "memory_bytes": 8e9}

The first set whose outputs can distinguish right from wrong is selected, or else the first that runs. The program runs
twice on it. The answer:

    {"taken": 0, "tells": true, "refused": ["why", …], "version": "0.10.2",
     "shapes": [[4]],                             those of the inputs
     "outputs": [{"file", "dtype", "shape", "differs"}]}

Exit codes are those of `plan_file`: 1 if the engine runs the program on no set of inputs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from iree_gauntlet.workers.iree_side.onnx_reference import InferenceFailedError, get_float_type, read_input
from iree_gauntlet.workers.iree_side.value_errors import (
    OutputTolerance,
    are_close,
    choose_tolerance,
    measure_difference,
    widen,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from iree_gauntlet.workers.iree_side.plan_file import Array

    # Runs a set of inputs, given as texts and as arrays.
    Run = Callable[[list[str], list[Array]], list[Array]]


NOTHING_TOLD = "its outputs check nothing: all of them are constant, empty or not numbers, or one is nothing but NaN"


def can_any_discriminate(outputs: Collection[object]) -> bool:
    """Return whether some output can tell right from wrong, and none is nothing but NaN."""
    arrays = [
        array for array in outputs if isinstance(array, np.ndarray) and array.size and array.dtype.kind not in "OSU"
    ]
    is_void = any((summary := describe_array(array)).nans == summary.count for array in arrays)
    return not is_void and any(map(_can_discriminate, outputs))


@dataclass(frozen=True, slots=True)
class ArraySummary:
    """The facts of an array; `least` and `most` are of the finite values, and None without any."""

    dtype: str
    shape: tuple[int, ...]
    count: int
    nans: int
    infinities: int
    least: float | None
    most: float | None


def _can_discriminate(array: object) -> bool:
    """Return whether an output's values differ, so that the output can tell right from wrong."""
    if not isinstance(array, np.ndarray) or array.dtype.kind in "OSU":
        return True
    summary = describe_array(array)
    nonfinite_count = summary.nans + summary.infinities
    return nonfinite_count < array.size and (nonfinite_count > 0 or array.size == 1 or summary.least != summary.most)


def describe_array(array: Array) -> ArraySummary:
    """Summarise an array."""
    with np.errstate(all="ignore"):
        values = array.astype(np.float64) if array.dtype.name not in ("int64", "uint64") else array
        is_floating = values.dtype.kind == "f"
        nans = int(np.isnan(values).sum()) if is_floating else 0
        finite = values[np.isfinite(values)] if is_floating else values
    return ArraySummary(
        array.dtype.name,
        array.shape,
        int(array.size),
        nans,
        infinities=int(array.size - nans - finite.size),
        least=finite.min().item() if finite.size else None,
        most=finite.max().item() if finite.size else None,
    )


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


def choose_tolerances(
    limits: Mapping[str, float] | None, trios: Iterable[tuple[Array, Array | None, Array | None]], longest_sum: int
) -> dict[str, OutputTolerance]:
    """Choose the tolerance for each element type: the spec's, or else one derived from the outputs' rounding errors.

    Args:
        limits: the spec's tolerances, by element type, and `rtol`.
        trios: of each output, the values of the reference, in f64, and of another reference.
        longest_sum: the largest number of products in a sum.
    """
    trios_by_type: dict[str, list[tuple[Array, Array | None, Array | None]]] = {}
    for trio in trios:
        trios_by_type.setdefault(get_float_type(trio[0]), []).append(trio)
    trios_by_type.pop("", None)
    if limits is not None:
        return {name: OutputTolerance(limits[name], limits["rtol"], "as the spec says") for name in trios_by_type}
    return {name: choose_tolerance(name, arrays, longest_sum) for name, arrays in trios_by_type.items()}


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """The plan of a worker that runs a program in one engine."""

    model: str
    function: str
    engine: str
    inputs: list[list[str]]
    dtypes: list[str]
    cwd: str
    folder: str
    options: dict[str, object] | None = None


def run_sets(plan: EnginePlan, version: str, run: Run) -> dict[str, object]:
    """Run the first fitting set of inputs, and return the answer.

    Args:
        plan: the sets of inputs.
        version: the version of the engine.
        run: the engine; it raises an InferenceFailedError for inputs that it cannot run.

    Raises:
        InferenceFailedError: no set runs.
        PlanError: an input cannot be read.
    """
    refused: list[str] = []
    first: tuple[int, list[Array], list[Array]] | None = None
    tells = False
    for index, texts in enumerate(plan.inputs):
        arrays = [read_input(text, plan.cwd, dtype) for text, dtype in zip(texts, plan.dtypes, strict=True)]
        try:
            outputs = run(texts, arrays)
        except InferenceFailedError as error:
            refused.append(str(error))
            continue
        tells = can_any_discriminate(outputs)
        if tells or first is None:
            first = index, arrays, outputs
        if tells:
            break
        refused.append(NOTHING_TOLD)
    if first is None:
        raise InferenceFailedError("; ".join(dict.fromkeys(refused)) or "there are no inputs")
    taken, arrays, outputs = first
    second_outputs = run(plan.inputs[taken], arrays)
    entries = []
    for index, (array, second) in enumerate(zip(outputs, second_outputs, strict=True)):
        file = Path(plan.folder) / f"{plan.engine}_{index}.bin"
        content = np.ascontiguousarray(array).tobytes()
        file.write_bytes(content)
        differs = array.shape != second.shape or content != np.ascontiguousarray(second).tobytes()
        entries.append({"file": str(file), "dtype": array.dtype.name, "shape": list(array.shape), "differs": differs})
    return {
        "taken": taken,
        "tells": tells,
        "refused": list(dict.fromkeys(refused)),
        "version": version,
        "shapes": [list(array.shape) for array in arrays],
        "outputs": entries,
    }
