"""The sides of a comparison: each an ordinary run up to its benchmarks, which are then taken in turn.

A side is what one IREE makes of a selection: its modules, its figures and its verdicts in a run of its own
(`<folder>/a`), and the benchmark steps that wait to be measured. Where it is slower or faster than the other, its
dispatches are profiled on both.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.cases import COUNTED, MAIN, Stage, Verdict
from iree_gauntlet.engine.modules.modules import read_statistics
from iree_gauntlet.engine.profiling import Profiling, compared, profile_dispatches
from iree_gauntlet.engine.rounds.blocks import Pair, ways
from iree_gauntlet.engine.rounds.taken_rounds import Measurement, RoundSettings, compile_round, parse_cpus, timed
from iree_gauntlet.errors import ExitCode, UsageError
from iree_gauntlet.experiments.run import run
from iree_gauntlet.journal_format import JOURNAL, JournalRecord, read_journal
from iree_gauntlet.measuring.profiles.dispatch_profile import CompileChange, compile_changes, merged
from iree_gauntlet.measuring.statistics.comparison_verdict import TimeVerdict
from iree_gauntlet.toolchains.toolchain import BENCHMARK_MODULE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from iree_gauntlet.engine.processes.processes import Processes
    from iree_gauntlet.engine.rounds.blocks import Cpus
    from iree_gauntlet.engine.rounds.taken_rounds import Measurement
    from iree_gauntlet.engine.session import Session
    from iree_gauntlet.engine.workbench import Workbench
    from iree_gauntlet.experiments.run import Chosen
    from iree_gauntlet.experiments.session_verdicts import ModelVerdict
    from iree_gauntlet.progress import Presenter
    from iree_gauntlet.requests import BisectRequest, CompareRequest
    from iree_gauntlet.steps import Step


_BEFORE = (Stage.IMPORT, Stage.PARAMETERS, Stage.COMPILE)
_LONGEST_REPETITION = 3600.0
_ALL_CPUS = "all"
# Verdicts that something has to be said of.
DIFFERENT = (TimeVerdict.SLOWER, TimeVerdict.FASTER)
# In which the sides are profiled.
_PROFILE_ORDER = "ABBA"


@dataclass(frozen=True, slots=True)
class PreparedSide:
    """One IREE of a comparison, ready to be measured.

    Attributes:
        name: `A` or `B`.
        machine: its toolchain and the caches; what it uses stays for as long as this lives.
        compiles: compile steps of main modules, by chain.
        counts: steps that count instructions, by chain.
    """

    name: str
    asked: str
    folder: Path
    machine: Workbench
    record: JournalRecord
    benchmarks: dict[str, Step]
    compiles: dict[str, Step]
    counts: dict[str, Step]
    interrupted: bool

    @property
    def toolchain(self) -> dict[str, str]:
        """What it is, for the record."""
        return self.machine.toolchain.as_dict() if self.machine.toolchain else {}

    @property
    def tools(self) -> SideTools:
        """What it is profiled with."""
        outputs = [dict(step["outputs"]) for step in self.record.steps if step["stage"] == Stage.COMPILE]
        return SideTools(self.machine, {made["module"]: made for made in outputs})

    def steps(self, metric: str) -> dict[str, Step]:
        """Those that are measured for a metric, by chain."""
        return {"time": self.benchmarks, "instructions": self.counts}.get(metric, self.compiles)

    def as_dict(self) -> dict[str, Any]:
        """For the log of the comparison."""
        return {"asked": self.asked, "folder": self.folder.name, "toolchain": self.toolchain}


def prepare_side(
    name: str, machine: Workbench, asked: str, chosen: Chosen, folder: Path, presenter: Presenter
) -> PreparedSide:
    """Runs everything of a selection but its benchmarks with one IREE.

    Args:
        name: `A` or `B`.
        machine: with it.
        asked: which one, as for `--iree`.
        chosen: what is run.
        folder: of its run; one that is there already is resumed.
        presenter: shows it.

    Raises:
        GauntletError: what keeps the run from starting.
    """
    presenter.line(f"\n{name}: {asked}")
    ran = run(chosen.within(folder, asked), presenter, machine=machine, hold=Stage.BENCHMARK, brief=True)
    record = read_journal(folder / JOURNAL)
    compiles = [step for step in ran.steps if step.stage is Stage.COMPILE and step.role == MAIN]
    return PreparedSide(
        name=name,
        asked=asked,
        folder=folder,
        machine=machine,
        record=record,
        benchmarks={step.chain: step for step in ran.held},
        compiles={step.chain: step for step in compiles},
        counts={step.chain: step for step in ran.steps if step.stage is Stage.COUNT},
        interrupted=ran.exit_code is ExitCode.INTERRUPTED,
    )


def pair_of(chain: str, steps: tuple[Step, Step], metric: str, rounds: RoundSettings) -> Pair:
    """How rounds of a step of A and the same of B are taken for a metric.

    Raises:
        UsageError: CPUs are asked for, and there is no taskset.
    """

    def measured(cpus: Cpus) -> tuple[Measurement, Measurement]:
        a, b = (make(step, replace(rounds, cpus=cpus)) for step in steps)
        return a, b

    make = timed if metric == "time" else compile_round
    # A compile that is to be timed on other CPUs than all would be tried for minutes.
    pair = Pair(chain, ways(steps[0]) if rounds.choose and metric == "time" else (rounds.cpus,), measured)
    pair.measured(pair.ways[0])
    return pair


def unready(side: PreparedSide, step: Step) -> str:
    """Why a step of a side cannot be measured; empty where it can."""
    if step.skip or step.blocked:
        return step.skip or step.blocked
    results = side.record.results
    for item in side.record.steps:
        if item["chain"] != step.chain and item["id"] not in step.needs:
            continue
        if item["role"].endswith(COUNTED) and step.stage is not Stage.COUNT:
            # Of another module.
            continue
        result = results.get(item["id"])
        if item["stage"] in _BEFORE and (result is None or result.verdict is not Verdict.PASSED):
            return f"{item['stage']}: {result.reason if result else 'it did not finish'}"
        if item["stage"] == Stage.THRESHOLD and result is not None and result.verdict is Verdict.FAILED:
            return f"its numbers are wrong: {result.reason}"
    counted = results.get(step.id) if step.stage is Stage.COUNT else None
    return counted.reason if counted and "instructions" not in counted.statistics else ""


def rounds_asked(asked: CompareRequest | BisectRequest, *, here: bool = True) -> RoundSettings:
    """How rounds are taken; as usual where it is not said.

    Raises:
        UsageError: it makes no sense.
    """
    usual = RoundSettings()
    min_time = asked.min_time or usual.min_time
    if min_time >= _LONGEST_REPETITION:
        raise UsageError(
            f"--min-time {min_time:g}: expected less than an hour", f"Leave it out for {usual.min_time:g}."
        )
    affinity = getattr(os, "sched_getaffinity", None)  # Linux alone can say and pin
    named = "" if asked.cpus == _ALL_CPUS else asked.cpus
    available = frozenset(affinity(0)) if affinity else frozenset[int]()
    cpus = parse_cpus(named, available if here else None)
    return RoundSettings(asked.repetitions or usual.repetitions, min_time, cpus, choose=not asked.cpus)


@dataclass(frozen=True, slots=True)
class SideTools:
    """What a side is profiled with.

    Attributes:
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
            dispatches = _collect_dispatches(sides, measured, session.processes, verdict)
        compiled = [change.as_dict() for change in _compile_changes(sides, measured)]
        work = counted(chain) if "reason" in dispatches else {}
        more = {"work": work} if "rows" in work else {}
        session.log.write("where", {"chain": chain, "dispatches": dispatches, **more, "compile": compiled})


def _collect_dispatches(
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
            taken[name].append(_take_profile(side, measurement, processes, median, len(taken[name]) + 1))
    return compared(_join(taken["A"]), _join(taken["B"]), medians)


def _take_profile(
    side: SideTools, measurement: Measurement, processes: Processes, median: float, number: int
) -> Profiling:
    return profile_dispatches(
        measurement.step,
        side.machine.iree,
        processes,
        side.machine.flags_of(BENCHMARK_MODULE),
        command=measurement.command,
        invocation_ms=median,
        name=f"profile.{number}.",
    )


def _join(profilings: Sequence[Profiling]) -> Profiling:
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
    ours, theirs = map(_find_main_module, sides, measured)
    if ours is None or theirs is None:
        return ()
    sizes = [Path(outputs["module"]).stat().st_size for outputs in (ours, theirs)]
    return compile_changes(
        read_statistics(Path(ours["statistics"])),
        read_statistics(Path(theirs["statistics"])),
        a_bytes=sizes[0],
        b_bytes=sizes[1],
    )


def _find_main_module(side: SideTools, measurement: Measurement) -> Mapping[str, str] | None:
    """Outputs of the compile of the module that is loaded last; None where there is none."""
    loaded = [item.path for item in measurement.step.inputs if item.role.startswith("module")]
    found = [side.compiles[path] for path in loaded if path in side.compiles]
    return found[-1] if found else None
