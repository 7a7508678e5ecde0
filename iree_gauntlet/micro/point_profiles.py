"""Profiles of a variant, beside its measurement: what a call is made of, and what it needs of memory."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet import worker
from iree_gauntlet.bench import tracing
from iree_gauntlet.bench.measuring_worker import FUNCTION, ask, planned_command
from iree_gauntlet.bench.module_steps import PARAMETERS
from iree_gauntlet.cases import Verdict
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.micro.checking import module_plan
from iree_gauntlet.micro.memory_plot import memory_plot
from iree_gauntlet.micro.memory_profile import MEMORY_WORKER, memory_plan, read_memory_profile, write_memory_profile
from iree_gauntlet.micro.point_chain import TRACE
from iree_gauntlet.micro.points import torch_side
from iree_gauntlet.running.results import Result, shorten

if TYPE_CHECKING:
    from iree_gauntlet.bench.build_folder import Build
    from iree_gauntlet.micro.configuration import Variant
    from iree_gauntlet.micro.point_chain import PointChain
    from iree_gauntlet.running.processes import Processes
    from iree_gauntlet.running.steps import Step
    from iree_gauntlet.toolchains.flags import FlagSet

__all__ = ["profile_memory", "trace_variant"]


def trace_variant(
    step: Step,
    chain: PointChain,
    variant: Variant,
    build: Build,
    call_ms: float | None,
    processes: Processes,
    flags: FlagSet,
) -> Result:
    """A table of dispatches and a file for Perfetto, in the step's folder.

    Raises:
        GauntletError: an input cannot be read or written.
    """
    program = build.programs[0]
    command = tracing.benchmark_command(
        chain.toolchain.benchmark_module,
        Path(step.folder),
        module=chain.module(variant),
        parameters=[("model", chain.imported(variant) / PARAMETERS)],
        function=FUNCTION,
        inputs=program.inputs,
        inputs_folder=chain.exported(torch_side(variant).label),
        device=chain.device,
    )
    made = tracing.trace(
        replace(step, command=command),
        tracing.VERBOSE,
        Path(step.folder),
        chain.toolchain,
        processes,
        flags,
        name=variant.label,
        call_ms=call_ms,
    )
    return Result(
        Verdict.PASSED,
        statistics={TRACE.rstrip("."): made.as_dict()},
        notes=tuple(tracing.shown(made)),
        tool_seconds=made.seconds,
    )


def profile_memory(step: Step, chain: PointChain, variant: Variant, build: Build, processes: Processes) -> Result:
    """The high-water of memory by phase, with the series behind it and a plot of that, in the step's folder."""
    plan = memory_plan(module_plan(chain, variant, build, chain.exported(torch_side(variant).label)))
    script = Path(worker.__file__).with_name(MEMORY_WORKER)
    answer = ask(step, processes, planned_command(step, chain.toolchain.python, script, plan))
    step = replace(step, command=answer.command)
    if answer.figures is None:
        return processes.complete(step, answer.outcome, answer.failure)
    try:
        profile = read_memory_profile(answer.figures)
    except GauntletError as error:
        return processes.complete(step, answer.outcome, Result(Verdict.ERROR, shorten(error.what)))
    path = Path(step.folder) / "memory"
    write_memory_profile(profile, path.with_suffix(".json"))
    notes = profile.lines()
    if importlib.util.find_spec("matplotlib") is None:
        notes.append("no plot: matplotlib is not installed (pip install 'iree-gauntlet[plots]')")
    else:
        memory_plot(profile, path, f"{chain.point.name}: {variant.label}")
    statistics = {name: value for name, value in profile.as_dict().items() if name != "series"}
    result = Result(Verdict.PASSED, statistics={"memory": statistics}, notes=tuple(notes))
    return processes.complete(step, answer.outcome, result)
