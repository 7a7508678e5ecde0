"""The threshold step of a benchmark: one call of each program, held against torch eager before anything is timed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.bench.agreement import agreement, recorded, relative_error
from iree_gauntlet.bench.build_folder import tensors
from iree_gauntlet.bench.formats import Tolerance, tolerance
from iree_gauntlet.bench.measuring_worker import MODULE_WORKER
from iree_gauntlet.cases import Verdict
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.measuring.arrays import Tensor, read_npy
from iree_gauntlet.running.results import Result, shorten

if TYPE_CHECKING:
    from collections.abc import Mapping

    from iree_gauntlet.bench.measuring_worker import Answer, Workers
    from iree_gauntlet.running.processes import Processes
    from iree_gauntlet.running.steps import Step

__all__ = ["build_tolerance", "check_outputs"]

# Of torch's own error in f32. IREE 3.13 on llvm-cpu adds in order where torch adds in pairs; in the shipped models its
# outputs were up to 1.5 times as far off as torch's (unet), its gradients up to 13 times (resnet 18: 1.5e-4 and 1.2e-5
# against f64).
_EAGER_ERRORS = {"inference": 4.0, "training": 16.0}
# The worst value, in rms of such errors: those of gradients lie together, in the channels that amplify rounding most.
_EAGER_PEAK = {"inference": 4.0, "training": 32.0}


def build_tolerance(workers: Workers, contraction_type: str) -> Tolerance:
    """How far the outputs of a built model may be from torch's; further, the further torch's own are from f64's."""
    found = tolerance(workers.chain.options.dataformat, max(1, workers.build.contractions), contraction_type)
    kind = "training" if workers.build.kind == "training" else "inference"
    more = _EAGER_ERRORS[kind] * workers.build.eager_error
    return Tolerance(found.rms + more, found.peak + _EAGER_PEAK[kind] * more)


def check_outputs(step: Step, workers: Workers, processes: Processes, contraction_type: str) -> Result:
    """Runs each program once, with the builder's inputs, and compares all outputs with torch eager's.

    The result's statistics have, of the main program: `error` (see `Agreement.as_dict`), `to_f32` (the error against
    f32 with weights that are not rounded), `first_call_ms` and `load_ms` of a process that had never run it.

    Args:
        step: the threshold step.
        workers: the measuring programs.
        processes: starts them.
        contraction_type: type that the compiler narrows the inputs of matrix products to; empty for none.
    """
    build = workers.build
    allowed = build_tolerance(workers, contraction_type)
    result = Result(Verdict.PASSED, notes=step.notes)
    statistics: dict[str, Any] = {}
    outputs: list[dict[str, Any]] = []
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
            actual = _read(answer)
            expected = tensors(workers.exported, program.outputs)
            found = agreement(actual, expected, allowed, gradients=build.kind == "training")
            if number == 0:
                against_f32 = tensors(workers.exported, build.reference) if build.reference else expected
                statistics = _statistics(answer.figures) | {"to_f32": recorded(relative_error(actual, against_f32))}
        except GauntletError as error:
            return replace(result, verdict=Verdict.ERROR, reason=shorten(error.what))
        except ValueError as error:
            return replace(result, verdict=Verdict.ERROR, reason=shorten(f"{program.name}: {error}"))
        outputs += [comparison.as_dict() for comparison in found.comparisons]
        if number == 0:
            statistics["error"] = found.as_dict(allowed)
        if found.tells_nothing:
            told = f"{program.name}: torch's outputs are all zero, and so agreeing with them proves nothing"
            result = replace(result, notes=(*result.notes, told))
        if found.problem and result.verdict is Verdict.PASSED:
            which = f"{program.name}: " if len(build.programs) > 1 else ""
            result = replace(result, verdict=Verdict.FAILED, reason=shorten(f"{which}{found.problem}"))
    return replace(result, outputs=tuple(outputs), statistics=statistics)


def _read(answer: Answer) -> list[Tensor]:
    assert answer.figures is not None, "the caller has looked"
    return [read_npy(Path(item["file"])).with_element_type(item["type"]) for item in answer.figures["outputs"]]


def _statistics(figures: Mapping[str, Any]) -> dict[str, Any]:
    return {name: figures[name] for name in ("load_ms", "first_call_ms")}
