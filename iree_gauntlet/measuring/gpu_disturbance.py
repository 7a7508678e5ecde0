"""What disturbed a round on a GPU, from the readings before and after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iree_gauntlet.measuring.gpu_state import Slowdown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from iree_gauntlet.measuring.gpu_state import GpuState
    from iree_gauntlet.measuring.limits import Limits

__all__ = ["gpu_causes"]


def gpu_causes(before: Sequence[GpuState], after: Sequence[GpuState], seconds: float, limits: Limits) -> Iterator[str]:
    """A line for each cause.

    Args:
        before: the GPUs before the round.
        after: the same after it; one that is not in both readings is judged by what there is.
        seconds: how long it took.
        limits: what is let pass.
    """
    earlier = {gpu.index: gpu for gpu in before}
    for gpu in after:
        first = earlier.get(gpu.index)
        yield from _slowed(first, gpu, seconds, limits)
        yield from _clock(first, gpu, limits)
        others = sorted({*(gpu.others or ()), *((first.others or ()) if first else ())})
        if len(others) > limits.gpu_others:
            named = ", ".join(map(str, others[:4])) + (" …" if len(others) > 4 else "")
            noun = "process" if len(others) == 1 else "processes"
            yield f"{len(others)} other {noun} on {gpu.label} (pid {named}; {limits.gpu_others} is let pass)"


def _slowed(first: GpuState | None, gpu: GpuState, seconds: float, limits: Limits) -> Iterator[str]:
    shares = _shares(first, gpu, seconds)
    heat = f" at {gpu.temperature_c:.0f} °C" if gpu.temperature_c is not None else ""
    counted = set()
    for cause, share in shares.items():
        limit = limits.power_capped_share if cause is Slowdown.POWER_CAP else limits.heat_share
        if share > limit:
            counted.add(cause)
            yield (
                f"{gpu.label} was slowed down for {100 * share:.0f} % of the round: {cause}{heat}"
                f" ({100 * limit:.0f} % is let pass)"
            )
    # What is so at the moment of a reading, of causes that are not counted.
    seen = (*(first.ill_reasons if first else ()), *gpu.ill_reasons)
    for cause in dict.fromkeys(seen):
        if cause not in counted and (cause not in shares or cause in gpu.ill_reasons):
            yield f"{gpu.label} is slowed down: {cause}{heat}"


def _shares(first: GpuState | None, gpu: GpuState, seconds: float) -> dict[Slowdown, float]:
    """For each cause that is counted, the share of the round in which it has applied, 0 to 1."""
    if first is None:
        return {}
    if first.uptime is not None and gpu.uptime is not None:
        seconds = gpu.uptime - first.uptime
    if seconds <= 0:
        return {}
    earlier = dict(first.throttled)
    return {
        cause: min(1.0, max(0.0, amount - earlier[cause]) / seconds)
        for cause, amount in gpu.throttled
        if cause in earlier
    }


def _clock(first: GpuState | None, gpu: GpuState, limits: Limits) -> Iterator[str]:
    if first is None or first.idle or gpu.idle or not first.clock_mhz or gpu.clock_mhz is None:
        return
    if gpu.clock_mhz < first.clock_mhz * (1 - limits.frequency_drop):
        drop = 100 * (1 - gpu.clock_mhz / first.clock_mhz)
        yield (
            f"the clock of {gpu.label} fell from {first.clock_mhz:.0f} to {gpu.clock_mhz:.0f} MHz, by {drop:.0f} %"
            f" ({100 * limits.frequency_drop:.0f} % is let pass)"
        )
