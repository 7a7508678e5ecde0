"""The plan and the answer of workers that run a program in one engine, such as XLA, to make expected outputs.

The plan:

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

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from iree_gauntlet.workers.iree_side.expected_outputs import NOTHING_TOLD, can_discriminate
from iree_gauntlet.workers.iree_side.onnx_reference import InferenceFailedError, read_input

if TYPE_CHECKING:
    from collections.abc import Callable

    from iree_gauntlet.workers.iree_side.plan_file import Array

    # Runs a set of inputs, given as texts and as arrays.
    Run = Callable[[list[str], list[Array]], list[Array]]


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """The plan."""

    model: str
    function: str
    engine: str
    inputs: list[list[str]]
    dtypes: list[str]
    cwd: str
    folder: str
    options: dict[str, Any] = field(default_factory=dict)


def run_sets(plan: EnginePlan, version: str, run: Run) -> dict[str, Any]:
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
        tells = any(map(can_discriminate, outputs))
        if tells or first is None:
            first = index, arrays, outputs
        if tells:
            break
        refused.append(NOTHING_TOLD)
    if first is None:
        raise InferenceFailedError("; ".join(dict.fromkeys(refused)) or "there are no inputs")
    taken, arrays, outputs = first
    again = run(plan.inputs[taken], arrays)
    entries = []
    for index, (array, second) in enumerate(zip(outputs, again, strict=True)):
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
