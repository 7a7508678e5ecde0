"""Where B is slower or faster than A: both are profiled and their compiles compared, for the log of a comparison."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.engine.modules.modules import read_statistics
from iree_gauntlet.engine.profiling import Profiling, compared, profile_dispatches
from iree_gauntlet.measuring.profiles.dispatch_profile import merged
from iree_gauntlet.measuring.profiles.side_changes import CompileChange, compile_changes
from iree_gauntlet.toolchains.toolchain import BENCHMARK_MODULE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iree_gauntlet.engine.processes.processes import Processes
    from iree_gauntlet.engine.rounds.blocks import Pair
    from iree_gauntlet.engine.rounds.taken_rounds import Measurement
    from iree_gauntlet.engine.session import Session
    from iree_gauntlet.experiments.session_verdicts import ModelVerdict
    from iree_gauntlet.experiments.sides import Side


_ORDER = "ABBA"


def explain(
    session: Session[Any], different: Sequence[ModelVerdict], pairs: Sequence[Pair], sides: tuple[Side, Side]
) -> None:
    """Profiles the models that B is slower or faster with, on both sides, and writes an event `where` for each.

    What cannot be profiled is reported with its reason: a comparison does not fail for want of an explanation.
    """
    by_chain = {pair.chain: pair for pair in pairs}
    for verdict in different:
        pair = by_chain[verdict.chain]
        session.progress.status(f"{pair.chain}: looking for where the time went")
        a, b = sides
        with session.quiet(pair.a.device):
            dispatches = _dispatches(a, b, pair, session.processes, verdict)
        compiled = [change.as_dict() for change in _compile_changes(a, b, pair)]
        session.log.write("where", {"chain": pair.chain, "dispatches": dispatches, "compile": compiled})


def _dispatches(a: Side, b: Side, pair: Pair, processes: Processes, verdict: ModelVerdict) -> dict[str, Any]:
    """Two profiles a side, taken in turn like rounds: one pair alone is weak evidence on a machine that wanders."""
    times = verdict.as_dict()["time_ms"]
    medians = (float(times["A"]["median"]), float(times["B"]["median"]))
    sides = {"A": (a, pair.a, medians[0]), "B": (b, pair.b, medians[1])}
    taken: dict[str, list[Profiling]] = {"A": [], "B": []}
    for name in _ORDER:
        side, measurement, median = sides[name]
        profiling = _profile(side, measurement, processes, median, len(taken[name]) + 1)
        taken[name].append(profiling)
        if profiling.profile is None:
            # The other side is asked all the same: both reasons are reported.
            other = "B" if name == "A" else "A"
            if not taken[other]:
                side, measurement, median = sides[other]
                taken[other].append(_profile(side, measurement, processes, median, 1))
            break
    return compared(_joined(taken["A"]), _joined(taken["B"]), medians)


def _profile(side: Side, measurement: Measurement, processes: Processes, median: float, number: int) -> Profiling:
    toolchain = side.machine.toolchain
    assert toolchain is not None, "a side has been run"
    return profile_dispatches(
        measurement.step,
        toolchain,
        processes,
        side.machine.flags_of(BENCHMARK_MODULE),
        command=measurement.command,
        invocation_ms=median,
        name=f"profile.{number}.",
    )


def _joined(profilings: Sequence[Profiling]) -> Profiling:
    """The profiles of a side as one; where one of them failed, that one."""
    failed = [item for item in profilings if item.profile is None]
    if failed or len(profilings) == 1:
        return (failed or [*profilings])[0]
    return Profiling(
        merged([item.profile for item in profilings if item.profile is not None]),
        commands=tuple(command for item in profilings for command in item.commands),
        seconds=sum(item.seconds for item in profilings),
        log=profilings[-1].log,
    )


def _compile_changes(a: Side, b: Side, pair: Pair) -> tuple[CompileChange, ...]:
    """What the compiler says of the two main modules."""
    ours, theirs = _main_module(a, pair.a), _main_module(b, pair.b)
    if ours is None or theirs is None:
        return ()
    sizes = [Path(outputs["module"]).stat().st_size for outputs in (ours, theirs)]
    return compile_changes(
        read_statistics(Path(ours["statistics"])),
        read_statistics(Path(theirs["statistics"])),
        a_bytes=sizes[0],
        b_bytes=sizes[1],
    )


def _main_module(side: Side, measurement: Measurement) -> dict[str, str] | None:
    """Outputs of the compile of the module that is loaded last; None where there is none."""
    step = measurement.step
    loaded = [item.path for item in step.inputs if item.role.startswith("module")]
    made: dict[str, dict[str, Any]] = {
        dict(item["outputs"])["module"]: dict(item["outputs"])
        for item in side.record.steps
        if item["stage"] == "compile"
    }
    found = [made[path] for path in loaded if path in made]
    return found[-1] if found else None
