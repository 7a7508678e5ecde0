"""Profiling of a benchmark: the time of each dispatch, measured by the runtime's profiler.

`iree-benchmark-module` writes a profile (`--device_profiling_mode`, `--device_profiling_output`), and the tool
`iree-profile` prints the profile's content. Errors of the tools are never raised here: the result then has the reason
instead of a profile. Profiling changes the times, so they explain a difference but do not prove one.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.device_kinds import is_cpu
from iree_gauntlet.engine.commands import split_calls
from iree_gauntlet.engine.judging import judge_process
from iree_gauntlet.engine.processes.supervisor import format_shell_line
from iree_gauntlet.errors import GauntletError
from iree_gauntlet.measuring.profiles.benchmark_rows import parse_benchmark_rows
from iree_gauntlet.measuring.profiles.dispatch_profile import (
    DispatchChanges,
    DispatchProfile,
    Match,
    match_dispatches,
    parse_dispatch_events,
)
from iree_gauntlet.records.compare_record import (
    DispatchComparison,
    DispatchDifference,
    OtherDispatches,
    UnprofiledTimes,
)
from iree_gauntlet.results import shorten
from iree_gauntlet.steps import Command, Step
from iree_gauntlet.toolchains.flags import read_flag_releases
from iree_gauntlet.toolchains.toolchain import BENCHMARK_MODULE, Toolchain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iree_gauntlet.engine.processes.processes import Processes
    from iree_gauntlet.results import DispatchChange
    from iree_gauntlet.toolchains.flags import FlagSet


_PROFILE_TOOL = "iree-profile"
_MODE_FLAG = "device_profiling_mode"
# Support is detected by this flag. Releases before 3.12 have the mode flag too, but write nothing on a CPU.
_OUTPUT = "device_profiling_output"
# These are modes from the tool's help: dispatches on a CPU are host work; those on a GPU are timed by the device.
_CPU_MODE = "queue-events,host-execution"
_GPU_MODE = "dispatch-events"
# These flags cannot be combined with a profile, or would change its times.
_REPLACED_PREFIXES = ("--benchmark_", "--device_profiling_", "--device_capture_", "--device_replay_output")
_REPLACED_FLAGS = ("--dispatch_statistics", "--print_device_statistics")
# Enough invocations for a median, but at most two seconds of them, and at most so many that the rows stay few.
_MIN_INVOCATIONS, _MAX_INVOCATIONS = 5, 100
_TARGET_MS = 2000.0
_NS_PER_MS = 1e6


@dataclass(frozen=True, slots=True)
class Profiling:
    """The result of profiling a benchmark: a profile, or the reason why there is none.

    Attributes:
        commands: the started commands, as a person would type them.
        log: path of the log of the last tool; empty if none was started.
    """

    profile: DispatchProfile | None
    reason: str = ""
    commands: tuple[str, ...] = ()
    seconds: float = 0.0
    log: str = ""


class _NoProfileError(GauntletError):
    """The error that ends profiling; the reason is in `message`."""


def profile_dispatches(
    step: Step,
    toolchain: Toolchain,
    processes: Processes,
    flag_set: FlagSet,
    *,
    command: Command | None = None,
    invocation_ms: float | None = None,
    name: str = "profile.",
) -> Profiling:
    """Run a benchmark under the profiler, and read the profile.

    The caller makes sure that the machine and the device are quiet. Files go into the step's folder: the profile itself
    (`profile.ireeprof`), the rows of its dispatches and the tools' logs.

    Args:
        step: a benchmark; each of the two tools gets the step's time limit.
        toolchain: the toolchain of the runtime.
        processes: starts the tools.
        flag_set: the flags of the toolchain's `iree-benchmark-module`.
        command: replaces the step's own command, for example to pin it to CPUs.
        invocation_ms: the time of one invocation, which determines their number; 5 invocations if it is unknown.
        name: prefix of all files, to keep several profiles of a step apart.
    """
    command = command or step.required_command
    commands: list[str] = []
    seconds, log = 0.0, ""

    def run(command: Command, tool: str, name: str) -> None:
        nonlocal seconds, log
        commands.append(format_shell_line(command))
        outcome = processes.run(step, command, name=name)
        seconds += outcome.seconds
        log = processes.log(step, f"{name}stderr.txt")
        if outcome.cancelled:
            raise _NoProfileError(f"{tool} was interrupted")
        if outcome.exit_code != 0:
            lines = processes.error_lines(step, name)
            # Google Benchmark puts its warnings before the error.
            error_line = next((line for line in lines if line.strip() and not line.startswith("***")), "")
            raise _NoProfileError(judge_process(step, outcome, lines, tool=tool, reason=shorten(error_line)).reason)

    profile, reason = None, ""
    try:
        if split_calls(command.argv):
            raise _NoProfileError("its calls are made by IREE's Python bindings, which write no profile")
        tool = _find_profile_tool(toolchain, flag_set)
        invocations = (
            max(_MIN_INVOCATIONS, min(_MAX_INVOCATIONS, int(_TARGET_MS / invocation_ms)))
            if invocation_ms
            else _MIN_INVOCATIONS
        )
        bundle = Path(step.folder) / f"{name}ireeprof"
        bundle.unlink(missing_ok=True)
        run(_make_profile_command(command, step.resources.device, bundle, invocations), BENCHMARK_MODULE, name)
        benchmarks = parse_benchmark_rows(processes.stdout(step, name))
        if len(benchmarks) != 1:
            raise _NoProfileError("the module has several functions and the benchmark names none: their dispatches mix")
        times = benchmarks[0].real_time_ms
        rows = f"{name}dispatches."
        argv = (str(tool), "dispatch", "--dispatch_events", "--format=jsonl", str(bundle))
        run(Command(argv, command.cwd, command.env), _PROFILE_TOOL, rows)
        profile = parse_dispatch_events(
            processes.stdout(step, rows).splitlines(),
            invocations=sum(benchmarks[0].iterations),
            elapsed_ns=round(statistics.median(times) * _NS_PER_MS),
        )
    except GauntletError as error:
        reason = shorten(error.message)
    except OSError as error:
        reason = shorten(f"{error.filename}: {error.strerror or error}")
    return Profiling(profile, reason, tuple(commands), seconds, log)


def compare_profiles(a: Profiling, b: Profiling, measured_ms: tuple[float, float]) -> DispatchComparison:
    """Return a record of the dispatches that explain the difference of two sides, or the reason why there is none.

    `measured_ms` are the times of A and B without the profiler, which reports show next to the profile.
    """
    commands = {"a": list(a.commands), "b": list(b.commands)}
    seconds = a.seconds + b.seconds
    if a.profile is None or b.profile is None:
        reasons = [f"{side}: {profiling.reason}" for side, profiling in (("A", a), ("B", b)) if profiling.reason]
        return DispatchComparison(commands=commands, seconds=seconds, reason="; ".join(reasons))
    a_ns, b_ns = (round(time * _NS_PER_MS) for time in measured_ms)
    changes = match_dispatches(a.profile, b.profile)
    difference = describe_difference(changes, changes.select_main_changes(), UnprofiledTimes(a_ns=a_ns, b_ns=b_ns))
    return DispatchComparison(commands=commands, seconds=seconds, difference=difference)


def describe_difference(
    changes: DispatchChanges, listed: Sequence[DispatchChange], measured: UnprofiledTimes | None = None
) -> DispatchDifference:
    """Return a record of the rows in `listed`, with the sum of all other rows."""
    other_changes = [change for change in changes.changes if change not in listed]
    return DispatchDifference(
        measured=measured,
        a_ns=changes.a_ns,
        b_ns=changes.b_ns,
        rows=tuple(replace(change, share=changes.share(change)) for change in listed),
        others=OtherDispatches(
            a_count=sum(change.a_count for change in other_changes),
            b_count=sum(change.b_count for change in other_changes),
            a_ns=sum(change.a_ns for change in other_changes),
            b_ns=sum(change.b_ns for change in other_changes),
            outside=any(change.match == Match.OUTSIDE for change in other_changes),
        ),
        notes=changes.notes,
    )


def _find_profile_tool(toolchain: Toolchain, flag_set: FlagSet) -> Path:
    """Return the path of `iree-profile`, which is next to the native `iree-benchmark-module`."""
    release = toolchain.runtime.release or toolchain.runtime.version
    if _OUTPUT not in flag_set.names:
        since = read_flag_releases().with_flag(BENCHMARK_MODULE, _OUTPUT)[0]
        raise _NoProfileError(
            f"{BENCHMARK_MODULE} of {release} writes no profiles (it has no --{_OUTPUT}); releases from {since} on do"
        )
    tool = Path(toolchain.runtime.benchmark_module).with_name(_PROFILE_TOOL)
    if not tool.is_file():
        raise _NoProfileError(f"{tool}: {release} writes profiles, but {_PROFILE_TOOL} is missing to read them")
    return tool


def _make_profile_command(command: Command, device: str, bundle: Path, invocations: int) -> Command:
    """Return the benchmark's command under the profiler.

    Each repetition is one invocation, so that each invocation gets its own time. There is no warm-up, because the
    profile would contain the warm-up calls, but their number would be unknown.
    """
    arguments = [
        argument
        for argument in command.argv
        if not argument.startswith(_REPLACED_PREFIXES) and argument.partition("=")[0] not in _REPLACED_FLAGS
    ]
    devices = [argument.partition("=")[2] for argument in arguments if argument.startswith("--device=")] or [device]
    return replace(
        command,
        argv=(
            *arguments,
            "--benchmark_format=json",
            f"--benchmark_repetitions={invocations}",
            "--benchmark_min_time=1x",
            f"--{_MODE_FLAG}={_CPU_MODE if all(map(is_cpu, devices)) else _GPU_MODE}",
            f"--{_OUTPUT}={bundle}",
        ),
    )
