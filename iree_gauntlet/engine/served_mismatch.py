"""The figures of a small case whose outputs are not as expected, from what the run servers kept; it brings NumPy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from iree_gauntlet.cases import Verdict
from iree_gauntlet.engine.allclose import compare_allclose
from iree_gauntlet.engine.served_threshold import write_log
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.measuring.numerics.arrays import Tensor, read_arguments, read_npy, read_raw
from iree_gauntlet.measuring.numerics.comparison import compare_outputs
from iree_gauntlet.measuring.numerics.element_types import parse_tensor_type, storage_dtype
from iree_gauntlet.measuring.numerics.tolerances import parse_tolerances
from iree_gauntlet.results import Result, shorten

if TYPE_CHECKING:
    from collections.abc import Mapping

    from iree_gauntlet.engine.processes.processes import Processes
    from iree_gauntlet.engine.processes.run_client import RunAnswer, RunJob
    from iree_gauntlet.steps import Step


def mismatched(step: Step, job: RunJob, answer: RunAnswer, processes: Processes, result: Result) -> Result:
    """The result of a case whose outputs are not as expected, with the figures of each."""
    assert step.command is not None, "it was run"
    result = replace(result, verdict=Verdict.FAILED)
    try:
        expected = read_arguments(job.expected, Path(job.cwd))
        actual = [_kept_output(record) for record in answer.outputs if record["type"]]
        tolerances = parse_tolerances(step.command.argv)
    except (GauntletError, OSError) as error:
        what = error.what if isinstance(error, GauntletError) else str(error)
        first = next(record for record in answer.outputs if not record["passed"])
        reason = f"output {first['index']}: not as expected"
        return replace(result, reason=reason, notes=(*result.notes, f"no figures: {what}"))
    if step.allclose is None:
        comparisons = compare_outputs(actual, expected, tolerances)
    else:
        comparisons = compare_allclose(actual, expected, step.allclose)
    failing = [comparison for comparison in comparisons if not comparison.passed]
    lines = [f"[FAILED] output {comparison.index}: {comparison.message}" for comparison in failing]
    if not failing:
        note = "the two comparisons of these outputs do not agree: report this as a fault of the toolkit"
        result = replace(result, notes=(*result.notes, note))
    return replace(
        result,
        reason=shorten(lines[0].removeprefix("[FAILED] ")) if lines else "an output is not as expected",
        outputs=tuple(comparisons),
        tail=tuple(lines),
        log=result.log or write_log(Path(step.folder) / "stdout.txt", lines, processes, step),
    )


def _kept_output(record: Mapping[str, Any]) -> Tensor:
    """An output that a server has written; one that it had no place for has its type alone."""
    tensor_type = parse_tensor_type(record["type"])
    path = Path(record["file"])
    if not record["file"]:
        empty = np.empty(0, storage_dtype(tensor_type.element_type))
        return Tensor(tensor_type.element_type, tensor_type.shape, empty)
    if path.suffix == ".npy":
        return read_npy(path).with_element_type(tensor_type.element_type)
    return read_raw(path, tensor_type)
