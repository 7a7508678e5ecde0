"""Where a model became slower or faster between two IREEs: its dispatches on both sides, and what the compiles say."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.engine.modules.modules import read_statistics
from iree_gauntlet.engine.profiling import Profiling, compared, profile_dispatches
from iree_gauntlet.measuring.profiles.dispatch_profile import CompileChange, compile_changes, merged
from iree_gauntlet.measuring.statistics.comparison_verdict import Verdict
from iree_gauntlet.toolchains.toolchain import BENCHMARK_MODULE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from iree_gauntlet.engine.processes.processes import Processes
    from iree_gauntlet.engine.rounds.blocks import Pair
    from iree_gauntlet.engine.rounds.taken_rounds import Measurement
    from iree_gauntlet.engine.session import Session
    from iree_gauntlet.engine.workbench import Workbench
    from iree_gauntlet.experiments.session_verdicts import ModelVerdict


# Verdicts that something has to be said of.
DIFFERENT = (Verdict.SLOWER, Verdict.FASTER)
# In which the sides are profiled.
_PROFILE_ORDER = "ABBA"


@dataclass(frozen=True, slots=True)
class SideTools:
    """What a side is profiled with.

    Attributes:
        machine: its IREE.
        compiles: outputs of its compiles, by the module among them.
    """

    machine: Workbench
    compiles: Mapping[str, Mapping[str, str]]


def explain_differences(
    session: Session[Any],
    verdicts: Mapping[str, ModelVerdict],
    pairs: Sequence[Pair],
    sides: tuple[SideTools, SideTools],
    counted: Callable[[str], dict[str, Any]],
) -> None:
    """Profiles the models that B is slower or faster with, on both sides, and writes an event `where` for each.

    What cannot be profiled is reported with its reason: a comparison does not fail for want of an explanation. The
    instructions of its dispatches stand there then, as `counted` gives them; an empty record of what was not counted.
    """
    by_chain = {pair.chain: pair for pair in pairs}
    for verdict in verdicts.values():
        if verdict.verdict not in DIFFERENT:
            continue
        chain = verdict.chain
        session.progress.status(f"{chain}: looking for where the time went")
        measured = by_chain[chain].measured(verdict.evidence.cpus or ())
        with session.quiet(measured[0].device):
            dispatches = _dispatches(sides, measured, session.processes, verdict)
        compiled = [change.as_dict() for change in _compile_changes(sides, measured)]
        work = counted(chain) if "reason" in dispatches else {}
        more = {"work": work} if "rows" in work else {}
        session.log.write("where", {"chain": chain, "dispatches": dispatches, **more, "compile": compiled})


def _dispatches(
    sides: tuple[SideTools, SideTools],
    measured: tuple[Measurement, Measurement],
    processes: Processes,
    verdict: ModelVerdict,
) -> dict[str, Any]:
    """Two profiles a side, taken in turn like rounds: one pair alone is weak evidence on a machine that wanders."""
    times = verdict.as_dict()["time_ms"]
    medians = (float(times["A"]["median"]), float(times["B"]["median"]))
    named = dict(zip("AB", zip(sides, measured, medians, strict=True), strict=True))
    taken: dict[str, list[Profiling]] = {"A": [], "B": []}
    for name in _PROFILE_ORDER:
        failed = any(profiling.profile is None for profiling in (*taken["A"], *taken["B"]))
        # Where one side fails, the other is asked all the same: both reasons are reported.
        if not failed or not taken[name]:
            side, measurement, median = named[name]
            taken[name].append(_profile(side, measurement, processes, median, len(taken[name]) + 1))
    return compared(_joined(taken["A"]), _joined(taken["B"]), medians)


def _profile(side: SideTools, measurement: Measurement, processes: Processes, median: float, number: int) -> Profiling:
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


def _compile_changes(
    sides: tuple[SideTools, SideTools], measured: tuple[Measurement, Measurement]
) -> tuple[CompileChange, ...]:
    """What the compiler says of the two main modules."""
    ours, theirs = map(_main_module, sides, measured)
    if ours is None or theirs is None:
        return ()
    sizes = [Path(outputs["module"]).stat().st_size for outputs in (ours, theirs)]
    return compile_changes(
        read_statistics(Path(ours["statistics"])),
        read_statistics(Path(theirs["statistics"])),
        a_bytes=sizes[0],
        b_bytes=sizes[1],
    )


def _main_module(side: SideTools, measurement: Measurement) -> Mapping[str, str] | None:
    """Outputs of the compile of the module that is loaded last; None where there is none."""
    loaded = [item.path for item in measurement.step.inputs if item.role.startswith("module")]
    found = [side.compiles[path] for path in loaded if path in side.compiles]
    return found[-1] if found else None
