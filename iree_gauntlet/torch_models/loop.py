"""The benchmark step: the same inputs again and again, and the result."""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from iree_gauntlet.cases import Verdict
from iree_gauntlet.engine.rounds.taken_rounds import gpu_of
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.measuring.machine.disturbance import RoundWatch
from iree_gauntlet.measuring.machine.machine_state import benchmark_warnings
from iree_gauntlet.results import Result, Samples, shorten
from iree_gauntlet.torch_models.agreement import agreement, limits
from iree_gauntlet.torch_models.build_folder import read_outputs, tensors
from iree_gauntlet.torch_models.model_check import narrowing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from iree_gauntlet.engine.processes.processes import Processes
    from iree_gauntlet.steps import Step
    from iree_gauntlet.torch_models.measuring_worker import Workers


_PERCENTILES = (50, 90, 99)
_MS = 1000.0
# How much longer than the first call foretells a loop may take, before it counts as hanging.
_SLACK = 20.0


def run_loop(step: Step, workers: Workers, processes: Processes, contraction_type: str, first_call_ms: float) -> Result:
    """Measures; the result's statistics have `total_s`, `total_samples`, `samples_per_sec`, latencies and the rest.

    Args:
        step: the benchmark step; the machine is its alone.
        workers: the measuring programs.
        processes: starts them.
        contraction_type: as in `check_outputs`.
        first_call_ms: of a call in a new process, by which the time limit grows with the loop.
    """
    options, build = workers.chain.options, workers.build
    calls = options.loops(len(workers.devices))
    script, plan = workers.loop(calls)
    if build.has_host_modules:
        plan = {**plan, "outputs": step.folder}
    step = replace(step, timeout=step.timeout + _SLACK * calls * first_call_ms / _MS)
    gpu = gpu_of(step)
    watch = RoundWatch(gpu=bool(gpu), device=gpu)
    answer = workers.start(step, processes, script, plan)
    state = watch.ended(own_cpu_seconds=answer.outcome.cpu_seconds)
    step = replace(step, command=answer.command)
    if answer.figures is None:
        return processes.complete(
            step, answer.outcome, replace(answer.failure, notes=(*step.notes, *answer.failure.notes))
        )
    generative = build.generation is not None
    try:
        problem = (
            _wrong_tokens(workers, answer.figures)
            if generative
            else _wrong_host_outputs(workers, answer.figures, contraction_type)
        )
        figures = _generated(workers, answer.figures) if generative else _looped(workers, answer.figures)
    except (GauntletError, KeyError, TypeError, ValueError) as error:
        text = error.what if isinstance(error, GauntletError) else f"{type(error).__name__}: {error}"
        failed = Result(Verdict.ERROR, shorten(f"the measuring program's answer cannot be read: {text}"))
        return processes.complete(step, answer.outcome, failed)
    if problem:
        # No speed of what is not right.
        return processes.complete(step, answer.outcome, Result(Verdict.FAILED, shorten(problem), notes=step.notes))
    times, remarks = figures.pop("times"), figures.pop("remarks")
    result = Result(
        Verdict.PASSED,
        samples=Samples("bench", times, (), (1,) * len(times)),
        statistics={**figures, "machine": state.as_dict(), "disturbed": list(state.disturbances())},
        notes=(*step.notes, *remarks, *benchmark_warnings(state.watched)),
        log=processes.log(step, "stdout.txt"),
    )
    return processes.complete(step, answer.outcome, result)


def latencies(times: Sequence[float]) -> dict[str, float]:
    """Percentiles of times in ms (by linear interpolation), with the least and the largest."""
    if len(times) == 1:
        return dict.fromkeys(("min", *(f"p{percent}" for percent in _PERCENTILES), "max"), times[0])
    cuts = statistics.quantiles(times, n=100, method="inclusive")
    return {
        "min": min(times),
        **{f"p{percent}": cuts[percent - 1] for percent in _PERCENTILES},
        "max": max(times),
    }


def _looped(workers: Workers, found: Mapping[str, Any]) -> dict[str, Any]:
    times = tuple(float(value) for context in found["call_ms"] for value in context)
    samples = int(found["calls"]) * workers.build.samples
    remarks = []
    if found.get("pushed") == "one by one" and workers.chain.options.microbatch_count > 1:
        remarks.append("microbatches were pushed one by one: the module has no asynchronous entry")
    return {
        **_common(found, samples, float(found["total_s"])),
        "times": times,
        "latency_ms": latencies(times),
        "remarks": remarks,
        **({"host_ms": found["host_ms"]} if "host_ms" in found else {}),
    }


def _generated(workers: Workers, found: Mapping[str, Any]) -> dict[str, Any]:
    made = workers.build.generation
    assert made is not None, "of a generative model"
    steps = [float(value) for generation in found["decode_ms"] for value in generation]
    times = tuple(
        float(first) + sum(map(float, rest))
        for first, rest in zip(found["prefill_ms"], found["decode_ms"], strict=True)
    )
    total = float(found["total_s"])
    generations = int(found["generations"])
    return {
        **_common(found, generations * workers.build.samples, total),
        "times": times,
        "latency_ms": latencies(times),
        "tokens_per_sec": generations * workers.build.samples * made.tokens / total,
        "prefill_ms": latencies([float(value) for value in found["prefill_ms"]]),
        "decode_ms": latencies(steps) if steps else {},
        "remarks": _other_tokens(workers, found),
    }


def _common(found: Mapping[str, Any], samples: int, total: float) -> dict[str, Any]:
    return {
        "total_s": total,
        "total_samples": samples,
        "samples_per_sec": samples / total,
        "load_ms": found["load_ms"],
        "overhead_us": found["overhead_us"],
        "peak_rss_bytes": found["peak_rss_bytes"],
        "device_memory": found["device_memory"],
    }


def _wrong_tokens(workers: Workers, found: Mapping[str, Any]) -> str:
    """In f32 every token must be torch's; in a narrower type a near tie may fall otherwise."""
    if workers.chain.options.dataformat.element_type != "f32" or workers.chain.options.math_fidelity != "HiFi4":
        return ""
    return next(iter(_other_tokens(workers, found)), "")


def _other_tokens(workers: Workers, found: Mapping[str, Any]) -> list[str]:
    made = workers.build.generation
    assert made is not None, "of a generative model"
    for sample, (mine, wanted) in enumerate(zip(found["chosen"], made.chosen, strict=True)):
        for place, (token, right) in enumerate(zip(mine, wanted, strict=True)):
            if token != right:
                return [f"sample {sample}: token {place} of {len(wanted)} is {token}, torch eager chooses {right}"]
    return []


def _wrong_host_outputs(workers: Workers, found: Mapping[str, Any], contraction_type: str) -> str:
    """What the host's last module made of the device's outputs, against what the build has."""
    if not workers.build.host.get("post"):
        return ""
    actual = read_outputs(found["host_outputs"])
    expected = tensors(workers.exported, workers.build.host_outputs)
    return agreement(actual, expected, limits(workers.build.host_outputs, narrowing(workers, contraction_type))).problem
