"""The threshold step of a variant: its outputs against torch eager's, and how far they are from the unchanged model's.

Two questions, kept apart. Does IREE compute what torch computes for the same recipe? That is the verdict. And what
does the recipe cost in accuracy? That is a figure: the difference from the unchanged model in f32.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from iree_gauntlet.cases import Verdict
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.measuring.numerics.element_types import is_float
from iree_gauntlet.results import Result, shorten
from iree_gauntlet.torch_models.agreement import agreement, pieces, recorded
from iree_gauntlet.torch_models.build_folder import Build, read_outputs, tensors
from iree_gauntlet.torch_models.formats import DataFormat, Tolerance, tolerance
from iree_gauntlet.torch_models.measuring_worker import MODULE_WORKER, ask, planned_command, worker_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iree_gauntlet.engine.processes.processes import Processes
    from iree_gauntlet.measuring.numerics.arrays import Tensor
    from iree_gauntlet.steps import Step
    from iree_gauntlet.torch_models.configuration import Variant
    from iree_gauntlet.torch_models.point_chain import PointChain


# After the first one, whose outputs are looked at: they say how many calls a round has.
_CALLS = 3
# The worst value of an output, in units of the tolerance of its rms (see `torch_models/formats.py`).
_PEAK = 4.0
_FORMATS = {"f32": DataFormat.FP32, "f16": DataFormat.FP16, "bf16": DataFormat.FP16_B}


def variant_tolerance(variant: Variant, dtype: str, build: Build) -> Tolerance:
    """How far IREE's outputs may be from torch eager's for the same recipe.

    That of the data type, with what the recipe says of its own rounding (a value at a boundary of a quantisation may
    fall to either side).
    """
    recipe = variant.quantization.recipe
    plain = tolerance(_FORMATS[dtype], max(1, build.contractions), recipe.contraction_type)
    more = max(recipe.tolerance, variant.sparsity.recipe.tolerance if variant.sparsity else 0.0)
    return Tolerance(plain.rms + more, plain.peak + _PEAK * more)


def check_variant(step: Step, chain: PointChain, variant: Variant, build: Build, processes: Processes) -> Result:
    """Runs a variant and compares its outputs.

    The result's statistics have `agreement` (with torch eager), `error` (from the unchanged model in f32: max, relative
    and sqnr_db), `first_call_ms`, `call_ms`, `peak_rss_bytes` and `device_memory`.

    Raises:
        GauntletError: what torch or the module left cannot be read.
    """
    folder = Path(step.folder) / "outputs"
    folder.mkdir(parents=True, exist_ok=True)
    compiled = chain.made(variant, build)
    plan = compiled.plan([chain.device], _CALLS, warm_up_calls=0, outputs=str(folder))
    answer = ask(step, processes, planned_command(step, worker_words(chain.toolchain, MODULE_WORKER), plan))
    step = replace(step, command=answer.command)
    if answer.figures is None:
        return processes.complete(step, answer.outcome, answer.failure)
    allowed = variant_tolerance(variant, chain.point.model.dtype, build)
    actual = read_outputs(answer.figures["outputs"])
    expected = tensors(compiled.exported, build.programs[0].outputs)
    found = agreement(actual, expected, allowed)
    reference = tensors(compiled.exported, build.reference) if build.reference else expected
    statistics_ = {
        "agreement": found.as_dict(),
        "error": distance(actual, reference),
        "first_call_ms": answer.figures["first_call_ms"],
        "call_ms": statistics.median(answer.figures["call_ms"][0]),
        "peak_rss_bytes": answer.figures["peak_rss_bytes"],
        "device_memory": answer.figures["device_memory"],
    }
    notes = ("torch's outputs are all zero, and so agreeing with them proves nothing",) if found.tells_nothing else ()
    result = Result(
        Verdict.FAILED if found.problem else Verdict.PASSED,
        shorten(found.problem),
        outputs=found.comparisons,
        statistics=statistics_,
        notes=(*step.notes, *notes),
    )
    return processes.complete(step, answer.outcome, result)


def distance(actual: Sequence[Tensor], expected: Sequence[Tensor]) -> dict[str, float | str]:
    """How far float outputs are from what they should be, all of them together.

    Returns:
        `max`, the largest difference; `relative`, the rms of differences over that of expected values; `sqnr_db`, the
        signal-to-quantisation-noise ratio, 20·log10 of its inverse; "inf" where nothing differs.

    Raises:
        GauntletError: they differ in number or shape.
    """
    noise = power = peak = 0.0
    if len(actual) != len(expected):
        raise GauntletError(f"{len(actual)} outputs, and the unchanged model has {len(expected)}")
    for mine, wanted in zip(actual, expected, strict=True):
        if not is_float(wanted.element_type):
            continue
        if mine.shape != wanted.shape:
            raise GauntletError(f"an output of shape {mine.shape}, and the unchanged model's is {wanted.shape}")
        for found, right in pieces(mine, wanted):
            difference = found - right
            noise += float(np.dot(difference, difference))
            power += float(np.dot(right, right))
            # Not max(): NaN has to come through.
            peak = float(np.maximum(peak, np.abs(difference).max()))
    relative = math.sqrt(noise / power) if power else (math.inf if noise else 0.0)
    decibel = math.inf if relative == 0 else -20.0 * math.log10(relative)
    return {"max": recorded(peak), "relative": recorded(relative), "sqnr_db": recorded(decibel)}
