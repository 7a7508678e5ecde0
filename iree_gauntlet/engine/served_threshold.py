"""The threshold step of small cases, done by the run servers in place of a process for each.

The step's command stays what a person would type, and is taken apart here; what the servers cannot do as
iree-run-module would is left to `threshold.check_threshold`. A case that passes leaves no files.

Of a case that does not give what it should, the outputs are compared once more, here, for the figures. Where nobody
expects that, and a process costs little, the tool itself is asked: a case that reads memory that nothing has written
finds zeros in a new process, and what other cases have left in one that serves many.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.cases import FailureKind, Verdict
from iree_gauntlet.engine.judging import judge_process
from iree_gauntlet.engine.processes.run_client import RunJob, RunServers, RunVerdict
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.measuring.numerics.tolerances import parse_tolerances
from iree_gauntlet.results import Result, shorten

if TYPE_CHECKING:
    from iree_gauntlet.engine.processes.processes import Processes
    from iree_gauntlet.steps import Step


_TOOL = "iree-run-module"
_TOLERANT_TYPES = ("f16", "f32", "f64", "bf16")
_FLAGS = ("--device", "--module", "--function", "--input", "--expected_output")
_TOLERANCES = (
    "--expected_f16_threshold",
    "--expected_f32_threshold",
    "--expected_f64_threshold",
    "--expected_bf16_threshold",
    "--expected_rtol",
    "--equality_mode",
)


def check_served_threshold(step: Step, servers: RunServers, processes: Processes) -> Result | None:
    """Runs a threshold step; None where only iree-run-module itself can.

    Raises:
        ToolchainError: the toolchain's Python has no runtime, or cannot be run.
        GauntletError: a log cannot be written.
    """
    job = run_job(step)
    if job is None:
        return None
    answer = servers.run(job)
    if answer.verdict == RunVerdict.UNSUPPORTED:
        return None
    outcome = answer.outcome
    typed = step
    if step.command is not None and step.allclose is not None:
        # As a person would type it: no tool compares, so that it keeps the outputs.
        argv = [flag for flag in step.command.argv if not flag.startswith("--expected_output=")]
        argv += [f"--output=@{path}" for _, path in step.outputs]
        typed = replace(step, command=replace(step.command, argv=tuple(argv)))
    result = Result(
        Verdict.PASSED,
        command=processes.typed(typed),
        cpu_seconds=outcome.cpu_seconds,
        peak_rss_bytes=outcome.peak_rss_bytes,
        tool_seconds=outcome.seconds,
        exit_code=outcome.exit_code,
        notes=(*step.notes, *outcome.notes),
        log=processes.log(step) if answer.logged else "",
    )
    if answer.verdict == RunVerdict.PASSED:
        return result
    if answer.verdict == RunVerdict.MISMATCH:
        # A process of its own opens the CPU in milliseconds.
        if FailureKind.WRONG_NUMBERS in step.expect_kinds or not job.on_cpu:
            from iree_gauntlet.engine.threshold import make_mismatch_result  # noqa: PLC0415 - it brings NumPy

            return make_mismatch_result(step, job, answer, processes, result)
        return _ask_again(step, processes)
    # As `threshold.check_threshold` says the same status: its text, and the first thing that was being done.
    parts = [part.strip() for part in answer.message.split(";")]
    reason = shorten("; ".join(parts[1:3]) if len(parts) > 1 else answer.message)
    ended = judge_process(step, outcome, outcome.tail, tool=_TOOL, reason=reason)
    if answer.message and not answer.logged:
        result = replace(result, log=processes.write_log(step, "stderr.txt", [answer.message]))
    return replace(
        result,
        verdict=ended.verdict,
        reason=ended.reason,
        signal=ended.signal,
        timed_out=ended.timed_out,
        tail=ended.tail,
        failure=ended.failure,
    )


def run_job(step: Step) -> RunJob | None:
    """What a threshold step asks of a run server; None where it asks for more than that."""
    command, allclose = step.command, step.allclose
    # A text that is expected is one of the tool's.
    if command is None or command.env or step.expect_match:
        return None
    found: dict[str, list[str]] = {name: [] for name in _FLAGS}
    tolerances = []
    for word in command.argv[1:]:
        name, equals, value = word.partition("=")
        if equals and name in found:
            found[name].append(value)
        elif equals and name in _TOLERANCES:
            tolerances.append(word)
        else:
            return None
    devices, modules, functions, inputs, expected = found.values()
    limits = _find_limits(tuple(tolerances))
    if limits is None or len(modules) != 1 or len(devices) != 1 or len(functions) > 1:
        return None
    return RunJob(
        module=modules[0],
        device=devices[0],
        timeout=step.timeout,
        cwd=command.cwd if command.cwd.startswith("/") else str(Path(command.cwd).absolute()),
        function="".join(functions),
        inputs=tuple(inputs),
        expected=tuple(expected),
        limits=limits,
        allclose=(allclose.rtol, allclose.atol, allclose.equal_nan) if allclose else None,
        kept=tuple(path for _, path in step.outputs),
        log=f"{step.folder}/stderr.txt",
    )


def _ask_again(step: Step, processes: Processes) -> Result:
    """What the tool says of a case whose outputs are not as expected here."""
    from iree_gauntlet.engine.threshold import check_threshold  # noqa: PLC0415 - it brings NumPy

    result = check_threshold(step, processes)
    if result.verdict is not Verdict.PASSED:
        return result
    note = (
        "its outputs were not as expected in a process that runs many cases, and are in one of its own: its results"
        " are not deterministic, or it reads memory that nothing has written"
    )
    return replace(result, notes=(*result.notes, note))


@lru_cache(maxsize=64)
def _find_limits(flags: tuple[str, ...]) -> tuple[tuple[str, float, float], ...] | None:
    """The tolerances of a run's flags, as the tool computes with them; None for flags that cannot be read."""
    try:
        tolerances = parse_tolerances(flags)
    except GauntletError:
        return None
    return tuple((name, *tolerances.effective(name)) for name in _TOLERANT_TYPES if tolerances.applies_to(name))
