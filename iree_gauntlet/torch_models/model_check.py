"""The threshold step of a benchmark: one call of each program, held against the model in its data format."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.cases import Verdict
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.results import OutputComparison, Result, shorten
from iree_gauntlet.torch_models.agreement import agreement, found_gains, limits, recorded, relative_error
from iree_gauntlet.torch_models.build_folder import read_outputs, tensors
from iree_gauntlet.torch_models.formats import UNIT_ROUNDOFF
from iree_gauntlet.torch_models.measuring_worker import MODULE_WORKER, Workers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from iree_gauntlet.engine.processes.processes import Processes
    from iree_gauntlet.steps import Step


def narrowing(workers: Workers, contraction_type: str) -> float:
    """How much larger the roundoff of contractions' inputs is than that of the data format; at least 1."""
    own = UNIT_ROUNDOFF[workers.chain.options.dataformat.element_type]
    return max(1.0, UNIT_ROUNDOFF.get(contraction_type, own) / own)


def check_outputs(step: Step, workers: Workers, processes: Processes, contraction_type: str) -> Result:
    """Runs each program once, with the builder's inputs, and compares all outputs with those of the build.

    The result's statistics have, of the main program: `error` (see `Agreement` and `Gains`), `to_f32` (the
    error against f32 with weights that are not rounded), `first_call_ms` and `load_ms` of a process that had never
    run it.

    Args:
        step: the threshold step.
        workers: the measuring programs.
        processes: starts them.
        contraction_type: type that the compiler narrows the inputs of matrix products to; empty for none.
    """
    build = workers.build
    narrowed, training = narrowing(workers, contraction_type), build.kind == "training"
    result = Result(Verdict.PASSED, notes=step.notes)
    statistics: dict[str, Any] = {}
    outputs: list[OutputComparison] = []
    for number, program in enumerate(build.programs):
        name = f"{program.name}." if number else ""
        folder = Path(step.folder) / f"{name}outputs"
        folder.mkdir(parents=True, exist_ok=True)
        answer = workers.start(step, processes, MODULE_WORKER, workers.single_call(number, folder), name)
        step = replace(step, command=step.command or answer.command)
        if answer.figures is None:
            failure = replace(answer.failure, notes=(*result.notes, *answer.failure.notes))
            return processes.complete(step, answer.outcome, failure)
        result = processes.complete(step, answer.outcome, result)
        try:
            actual = read_outputs(answer.figures["outputs"])
            expected = tensors(workers.exported, program.outputs)
            found = agreement(actual, expected, limits(program.outputs, narrowed), gradients=training)
            gains = None
            if program.directions is not None and not found.problem:
                where = workers.exported, program.directions
                gains = found_gains(actual, expected, *where, narrowed, gradients=training)
            if number == 0:
                against_f32 = tensors(workers.exported, build.reference) if build.reference else expected
                statistics = _statistics(answer.figures) | {"to_f32": recorded(relative_error(actual, against_f32))}
        except GauntletError as error:
            return replace(result, verdict=Verdict.ERROR, reason=shorten(error.what))
        except ValueError as error:
            return replace(result, verdict=Verdict.ERROR, reason=shorten(f"{program.name}: {error}"))
        outputs += found.comparisons
        if number == 0:
            statistics["error"] = found.as_dict() | (gains.as_dict() if gains else {})
        if found.tells_nothing:
            told = f"{program.name}: the expected outputs are all zero, and so agreeing with them proves nothing"
            result = replace(result, notes=(*result.notes, told))
        problem = found.problem or (gains.problem if gains else "")
        if problem and result.verdict is Verdict.PASSED:
            which = f"{program.name}: " if len(build.programs) > 1 else ""
            result = replace(result, verdict=Verdict.FAILED, reason=shorten(f"{which}{problem}"))
    return replace(result, outputs=tuple(outputs), statistics=statistics)


def _statistics(figures: Mapping[str, Any]) -> dict[str, Any]:
    return {name: figures[name] for name in ("load_ms", "first_call_ms")}
