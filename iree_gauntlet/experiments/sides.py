"""The sides of a comparison: each an ordinary run up to its benchmarks, which are then taken in turn.

A side is what one IREE makes of a selection: its modules, its figures and its verdicts in a run of its own
(`<folder>/a`), and the benchmark steps that wait to be measured. Where it is slower or faster than the other, its
dispatches are profiled on both, and the compiler's statistics and the sizes of their modules are compared.

The statistics are the JSON of `--iree-scheduling-dump-statistics-format=json`: objects within objects, with numbers as
leaves. Releases name and count other things: what one side does not report is shown as such, not counted as zero.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.cases import COUNTED, MAIN, Stage, Verdict
from iree_gauntlet.engine.modules.modules import read_statistics
from iree_gauntlet.engine.profiling import Profiling, compared, profile_dispatches
from iree_gauntlet.engine.rounds.blocks import Pair
from iree_gauntlet.engine.rounds.taken_rounds import Measurement, RoundSettings, compile_round, parse_cpus, timed
from iree_gauntlet.engine.rounds.ways import ways
from iree_gauntlet.errors import ExitCode, UsageError
from iree_gauntlet.experiments.run import run
from iree_gauntlet.experiments.session_verdicts import describe_times
from iree_gauntlet.journal_format import JOURNAL, JournalRecord, read_journal
from iree_gauntlet.measuring.profiles.dispatch_profile import merged
from iree_gauntlet.measuring.statistics.comparison_verdict import TimeVerdict
from iree_gauntlet.records.compare_record import SIDES, ComparedDispatches, CompileChange, RecordedSide, WhereChanged
from iree_gauntlet.toolchains.toolchain import BENCHMARK_MODULE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

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
MODULE_SIZE = "module size"
# What people call the figures, the most important first.
_COMPILE_NAMES = {
    "execution/dispatch-count": "dispatches",
    "executable/executable-count": "executables",
    "execution/transient-memory-size": "transient memory",
    "global/constant-size": "constant memory",
    "global/constant-count": "constants",
    "global/variable-size": "variable memory",
    "global/variable-count": "variables",
    "execution/submission-count": "submissions",
    "execution/copy-count": "copies",
    "execution/fill-count": "fills",
    "execution/call-count": "calls",
    "synchronization/await-count": "awaits",
}


@dataclass(frozen=True, slots=True)
class PreparedSide:
    """One IREE of a comparison, ready to be measured.

    Attributes:
        name: `A` or `B`.
        machine: its toolchain and the caches; what it uses stays for as long as this lives.
        planned: the steps of the record.
        measured: the steps that are measured, by metric and chain.
    """

    name: str
    asked: str
    folder: Path
    machine: Workbench
    record: JournalRecord
    planned: tuple[Step, ...]
    measured: dict[str, dict[str, Step]]
    interrupted: bool

    @property
    def toolchain(self) -> dict[str, str]:
        """What it is, for the record."""
        return self.machine.toolchain.as_dict() if self.machine.toolchain else {}

    @property
    def tools(self) -> SideTools:
        """What it is profiled with."""
        return SideTools.of(self.machine, self.planned)

    @property
    def counts(self) -> dict[str, Step]:
        """Steps that count instructions, by chain."""
        return self.measured["instructions"]

    @property
    def recorded(self) -> RecordedSide:
        """For the log of the comparison."""
        return RecordedSide(asked=self.asked, folder=self.folder.name, toolchain=self.toolchain)


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
    measured = {
        "time": ran.held,
        "compile-time": [step for step in ran.steps if step.stage is Stage.COMPILE and step.role == MAIN],
        "instructions": [step for step in ran.steps if step.stage is Stage.COUNT],
    }
    return PreparedSide(
        name=name,
        asked=asked,
        folder=folder,
        machine=machine,
        record=record,
        planned=record.planned,
        measured={metric: {step.chain: step for step in steps} for metric, steps in measured.items()},
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
    for item in side.planned:
        if item.chain != step.chain and item.id not in step.needs:
            continue
        if item.role.endswith(COUNTED) and step.stage is not Stage.COUNT:
            # Of another module.
            continue
        result = results.get(item.id)
        if item.stage in _BEFORE and (result is None or result.verdict is not Verdict.PASSED):
            return f"{item.stage}: {result.reason if result else 'it did not finish'}"
        if item.stage is Stage.THRESHOLD and result is not None and result.verdict is Verdict.FAILED:
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
        compiles: its compiles that have statistics, by the module that each makes.
    """

    machine: Workbench
    compiles: Mapping[str, Step]

    @classmethod
    def of(cls, machine: Workbench, steps: Iterable[Step]) -> SideTools:
        """Of what a side has run."""
        compiles = (step for step in steps if step.stage is Stage.COMPILE and "statistics" in dict(step.outputs))
        return cls(machine, {step.output("module"): step for step in compiles})


def explain_differences(
    session: Session[Any],
    verdicts: Mapping[str, ModelVerdict],
    pairs: Sequence[Pair],
    sides: tuple[SideTools, SideTools],
    counted: Callable[[str], ComparedDispatches | None],
) -> None:
    """Profiles the models that B is slower or faster with, on both sides, and writes an event `where` for each.

    What cannot be profiled is reported with its reason: a comparison does not fail for want of an explanation. The
    instructions of its dispatches stand there then, as `counted` gives them; None of what was not counted.
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
        loaded = [
            [item.path for item in measurement.step.inputs if item.role.startswith("module")]
            for measurement in measured
        ]
        work = counted(chain) if dispatches.reason else None
        where = WhereChanged(
            chain=chain,
            dispatches=dispatches,
            work=work if work and work.difference else None,
            compile=find_compile_changes(sides, loaded, sized=True),
        )
        session.log.write("where", where.as_dict())


def _collect_dispatches(
    sides: tuple[SideTools, SideTools],
    measured: tuple[Measurement, Measurement],
    processes: Processes,
    verdict: ModelVerdict,
) -> ComparedDispatches:
    """Two profiles a side, taken in turn like rounds: one pair alone is weak evidence on a machine that wanders."""
    a_ms, b_ms = (describe_times(verdict.evidence.blocks, side).median for side in SIDES)
    named = dict(zip(SIDES, zip(sides, measured, (a_ms, b_ms), strict=True), strict=True))
    taken: dict[str, list[Profiling]] = {name: [] for name in SIDES}
    for name in _PROFILE_ORDER:
        failed = any(profiling.profile is None for profilings in taken.values() for profiling in profilings)
        # Where one side fails, the other is asked all the same: both reasons are reported.
        if not failed or not taken[name]:
            side, measurement, median = named[name]
            profiling = profile_dispatches(
                measurement.step,
                side.machine.iree,
                processes,
                side.machine.flags_of(BENCHMARK_MODULE),
                command=measurement.command,
                invocation_ms=median,
                name=f"profile.{len(taken[name]) + 1}.",
            )
            taken[name].append(profiling)
    a, b = map(_join, taken.values())
    return compared(a, b, (a_ms, b_ms))


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


def find_compile_changes(
    sides: Sequence[SideTools], loaded: Sequence[Sequence[str]], *, sized: bool
) -> tuple[CompileChange, ...]:
    """What the compiler says of the two main modules; none where a side has not compiled its own.

    Args:
        sides: that compiled them.
        loaded: paths of the modules that each loads, the main one last.
        sized: whether their sizes are compared too.
    """
    main = [
        [side.compiles[path] for path in paths if path in side.compiles][-1:]
        for side, paths in zip(sides, loaded, strict=True)
    ]
    if not all(main):
        return ()
    a, b = (
        read_statistics(Path(step.output("statistics")))
        | ({MODULE_SIZE: Path(step.output("module")).stat().st_size} if sized else {})
        for (step,) in main
    )
    return compile_changes(a, b)


def compile_changes(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[CompileChange, ...]:
    """The figures that differ, and those that only one side reports; none where the compiles are alike.

    Args:
        a: the compiler's statistics, the content of its JSON file; with `MODULE_SIZE`, where that is compared too.
        b: the other side's.
    """
    ours, theirs = ({_COMPILE_NAMES.get(path, path): value for path, value in _walk_leaves(side)} for side in (a, b))
    order = {name: place for place, name in enumerate((MODULE_SIZE, *_COMPILE_NAMES.values()))}
    changes = []
    for name in sorted(ours.keys() | theirs.keys(), key=lambda name: (order.get(name, len(order)), name)):
        if ours.get(name) != theirs.get(name):
            in_bytes = name == MODULE_SIZE or name.endswith(("memory", "-size", "-bytes"))
            changes.append(CompileChange(name, ours.get(name), theirs.get(name), "bytes" if in_bytes else ""))
    return tuple(changes)


def _walk_leaves(statistics: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, float]]:
    """Numbers by their place, `execution/dispatch-count`."""
    for key, value in statistics.items():
        here = f"{path}/{key}" if path else str(key)
        if isinstance(value, dict):
            yield from _walk_leaves(value, "" if here == "stream-aggregate" else here)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield here, value
