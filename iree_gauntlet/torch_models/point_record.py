"""The record of a point: what the journal keeps of it, and every report is made of.

In each block two programs give a log ratio, of the mean logs of their rounds. The interval of a speed-up is the exact
one of `paired.py` at 95 %, looked at once, after all blocks; words are those of `compare`: faster or slower from 1 %
on, the same within 3 %. Each interval is one by itself: of a hundred of them, five may miss.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from iree_gauntlet.measuring.statistics.comparison_verdict import compare_log_ratios
from iree_gauntlet.torch_models.peers import ONE_LOOK, ratio_figures
from iree_gauntlet.torch_models.point_rounds import COMPILE, EAGER, torch_name
from iree_gauntlet.torch_models.recipe_registry import BASELINE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from iree_gauntlet.torch_models.configuration import Point, Variant
    from iree_gauntlet.torch_models.point_rounds import PointEvidence


MEASURED = "measured"
# The compiler made the same module as for the baseline: the recipe changes nothing here.
SAME = "same module"


@dataclass(slots=True)
class VariantFigures:
    """What is known of a variant before it is measured, and beside that.

    Attributes:
        status: `measured`, `same module`, `skipped`, `failed` or `error`.
        reason: why it is not measured; empty where it is.
        figures: of its threshold step; empty where it did not get so far.
        module_bytes, parameter_bytes: of its files; None where there are none.
        compile_s: seconds of its compiler, when the module was made.
        shows: what its module shows of the recipe, a line each.
        roofline: share of the machine's peak and what bounds it; None where that is not known.
        notes: what a person should know.
    """

    status: str = MEASURED
    reason: str = ""
    figures: Mapping[str, Any] = field(default_factory=dict)
    module_bytes: int | None = None
    parameter_bytes: int | None = None
    compile_s: float | None = None
    shows: list[str] = field(default_factory=list)
    roofline: dict[str, Any] | None = None
    notes: list[str] = field(default_factory=list)


def point_record(
    point: Point,
    device: str,
    flops: int,
    found: Mapping[str, VariantFigures],
    blocks: PointEvidence,
    first_call_ms: Mapping[str, float],
    seconds: float,
) -> dict[str, Any]:
    """The record, but for its notes.

    Args:
        point: what was measured.
        device: what IREE ran on.
        flops: of one call of the unchanged model.
        found: by label of each variant.
        blocks: programs of IREE by that label, those of torch by `torch_name`.
        first_call_ms: of the programs of torch.
        seconds: that the point took.
    """
    model, shape = point.model, point.shape
    return {
        "point": {
            "name": model.name,
            "model_type": model.model_type.text,
            "shape": shape.name,
            "m": shape.m,
            "k": shape.k,
            "n": shape.n,
            "label": shape.label,
            "dtype": model.dtype,
            "device": device,
            "flops": flops,
            "torch_compile_mode": model.torch_compile_mode,
        },
        "variants": [_variant(variant, found[variant.label], blocks, first_call_ms) for variant in point.variants],
        "blocks": blocks.count,
        # One that failed ends them: no other took its place.
        "replaced": blocks.replaced - bool(blocks.failure),
        "seconds": round(seconds, 3),
    }


def _variant(
    variant: Variant, known: VariantFigures, blocks: PointEvidence, first_call_ms: Mapping[str, float]
) -> dict[str, Any]:
    # One that is the baseline's module has the baseline's times.
    name = BASELINE if known.status == SAME else variant.label
    beside = not variant.is_baseline and known.status == MEASURED
    own = median_ms(blocks, name)
    memory = known.figures.get("device_memory", {})
    return {
        "label": variant.label,
        "quantization": variant.quantization.text,
        "sparsity": variant.sparsity.text if variant.sparsity else None,
        "kind": "sparsity" if variant.sparsity else variant.quantization.recipe.kind,
        "status": known.status,
        "reason": known.reason,
        "iree": None if own is None else {"ms": own, "speedup": speedup(blocks, name, BASELINE) if beside else None},
        "torch_eager": _torch(variant, EAGER, name, blocks, first_call_ms),
        "torch_compile": _torch(variant, COMPILE, name, blocks, first_call_ms),
        "error": known.figures.get("error"),
        "agreement": known.figures.get("agreement"),
        "first_call_ms": known.figures.get("first_call_ms"),
        "module_bytes": known.module_bytes,
        "parameter_bytes": known.parameter_bytes,
        "peak_rss_bytes": blocks.peak_bytes.get(name) or known.figures.get("peak_rss_bytes"),
        "device_peak_bytes": memory.get("device_bytes_peak"),
        "compile_s": known.compile_s,
        "roofline": known.roofline,
        "shows": known.shows,
        "notes": known.notes,
    }


def _torch(
    variant: Variant, mode: str, own: str, blocks: PointEvidence, first_call_ms: Mapping[str, float]
) -> dict[str, Any] | None:
    """Torch's time of what torch makes for a variant, beside torch's baseline and beside IREE's variant."""
    side = variant.side
    name = torch_name(mode, side)
    time = median_ms(blocks, name)
    if time is None:
        return None
    return {
        "ms": time,
        "first_call_ms": first_call_ms.get(name),
        "speedup": None if side == BASELINE else speedup(blocks, name, torch_name(mode, BASELINE)),
        "beside_iree": speedup(blocks, own, name),
    }


def speedup(blocks: PointEvidence, name: str, over: str) -> dict[str, Any] | None:
    """How many times as fast a program is as another one.

    Args:
        blocks: of both.
        name: the program.
        over: the other one.

    Returns:
        As `ratio_figures` has it; None where one of them has no times.
    """
    own, other = blocks.times.get(name), blocks.times.get(over)
    if not own or not other:
        return None
    ratios = [_log(theirs) - _log(mine) for mine, theirs in zip(own, other, strict=True)]
    return ratio_figures(compare_log_ratios(np.array(ratios), ONE_LOOK))


def median_ms(blocks: PointEvidence, name: str) -> float | None:
    """Median over all rounds of a program; None without any."""
    times = [time for block in blocks.times.get(name, ()) for time in block]
    return statistics.median(times) if times else None


def _log(times: tuple[float, ...]) -> float:
    return statistics.fmean(math.log(time) for time in times)
