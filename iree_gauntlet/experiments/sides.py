"""The sides of a comparison: each an ordinary run up to its benchmarks, which are then taken in turn.

Where one is slower or faster than the other, its dispatches are profiled on both, and the compiler's statistics and the
sizes of their modules are compared. Other machines may take the rounds: of each model one of them, both sides on one
device.
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from iree_gauntlet.cases import COUNTED, MAIN, Verdict
from iree_gauntlet.engine.modules.modules import read_statistics
from iree_gauntlet.engine.profiling import Profiling, compared, profile_dispatches
from iree_gauntlet.engine.rounds.blocks import Pair, PairEvidence, ways
from iree_gauntlet.engine.rounds.taken_rounds import Measurement, RoundSettings, compile_round, parse_cpus, timed
from iree_gauntlet.errors import ExitCode, UsageError
from iree_gauntlet.experiments.run import Machines, run
from iree_gauntlet.experiments.session_verdicts import describe_times
from iree_gauntlet.figures import METRICS, Figure
from iree_gauntlet.journal_events import MachineFacts, Remark, StepStart
from iree_gauntlet.journal_format import JOURNAL, RUN_JOURNAL, EventReader, JournalRecord, read_journal
from iree_gauntlet.measuring.profiles.dispatch_profile import merged
from iree_gauntlet.measuring.statistics.comparison_verdict import TimeVerdict
from iree_gauntlet.records.compare_record import (
    SIDES,
    BlockEvent,
    ComparedDispatches,
    CompileChange,
    MeasuredElsewhere,
    PreparedComparison,
    SideBenchmark,
    WhereChanged,
)
from iree_gauntlet.results import Result
from iree_gauntlet.stages import Stage
from iree_gauntlet.toolchains.toolchain import BENCHMARK_MODULE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from iree_gauntlet.engine.processes.processes import Processes
    from iree_gauntlet.engine.rounds.blocks import Cpus
    from iree_gauntlet.engine.session import Session
    from iree_gauntlet.engine.workbench import Workbench
    from iree_gauntlet.experiments.run import Chosen
    from iree_gauntlet.experiments.session_verdicts import ModelVerdict, Rules
    from iree_gauntlet.journal_format import JournalEvent
    from iree_gauntlet.progress import Presenter, Progress
    from iree_gauntlet.requests import BisectRequest, CompareRequest
    from iree_gauntlet.steps import Command, Step


_OF_EVENT = ("event", "time", "step")
# The last event of a worker's log: its machine, and why there is no verdict.
ENDED = "measured here"
# The stage that is measured in rounds, and those that have to come well out before it.
_TIMED = Figure.TIME.row.stage
_BEFORE = tuple(stage for stage in _TIMED.row.upstream if not stage.row.fetches)
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
    """One IREE of a comparison, `A` or `B`, ready to be measured; what its machine uses stays while this lives.

    Attributes:
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


def prepare_side(
    name: str, machine: Workbench, asked: str, chosen: Chosen, folder: Path, presenter: Presenter
) -> PreparedSide:
    """Runs everything of a selection but its benchmarks with one IREE; a folder that is there already is resumed."""
    presenter.line(f"\n{name}: {asked}")
    ran = run(chosen.within(folder, asked), presenter, machine=machine, hold=_TIMED, brief=True)
    record = read_journal(folder / JOURNAL)
    steps = [step for step in (*ran.steps, *ran.held) if step.role == MAIN]
    return PreparedSide(
        name=name,
        asked=asked,
        folder=folder,
        machine=machine,
        record=record,
        planned=record.planned,
        measured={
            metric: {step.chain: step for step in steps if step.stage is figure.row.stage}
            for metric, figure in METRICS.items()
        },
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
        if item.role.endswith(COUNTED) and not step.stage.row.beside:
            # Of another module.
            continue
        result = results.get(item.id)
        if item.stage in _BEFORE and (result is None or result.verdict is not Verdict.PASSED):
            return f"{item.stage}: {result.full_reason if result else 'it did not finish'}"
        if item.stage.row.checks_numbers and result is not None and result.verdict is Verdict.FAILED:
            return f"its numbers are wrong: {result.reason}"
    counted = results.get(step.id) if step.stage.row.beside else None
    return counted.reason if counted and "instructions" not in counted.statistics else ""


def find_changed(sides: Sequence[PreparedSide], earlier: Iterable[JournalEvent]) -> dict[str, str]:
    """Why a side of a model is not what an earlier part of the comparison has measured; of those where it is not."""
    first: dict[str, str] = {}
    benchmarks: dict[str, dict[str, SideBenchmark]] = {}
    for event in earlier:
        if isinstance(event.content, BlockEvent | MeasuredElsewhere):
            first.setdefault(event.step, event.time)
        elif isinstance(event.content, PreparedComparison):
            benchmarks = event.content.benchmarks | benchmarks
    found: dict[str, str] = {}
    for side in reversed(sides):
        for chain in _find_recompiled(side, first):
            found[chain] = f"{side.name}: its module"
        for chain, step in side.measured["time"].items():
            before = benchmarks.get(chain, {}).get(side.name) if chain in first else None
            if before is not None and _strip_folders(before.command) != _strip_folders(step.process):
                found[chain] = f"{side.name}: its benchmark"
    so_far = "is not the one that was measured so far; begin a new comparison"
    return {chain: f"{what} {so_far}" for chain, what in found.items()}


def find_gone(models: Iterable[str], earlier: Iterable[JournalEvent]) -> dict[str, str]:
    """Models that an earlier part of the comparison was about and that are not among these, with why."""
    parts = [event.content for event in earlier if isinstance(event.content, PreparedComparison)]
    begun = {chain for part in parts for chain in (*part.models, *part.left_out)}
    return dict.fromkeys(sorted(begun.difference(models)), "the comparison was begun with it: its spec is gone")


def _strip_folders(command: Command | None) -> list[str]:
    """A command's words without the folders of files: a comparison may have been moved."""
    return [re.sub(r"[^=@,]*/", "", word) for word in command.argv] if command else []


def _find_recompiled(side: PreparedSide, first: Mapping[str, str]) -> list[str]:
    """Models of which a module has another key than at their first block, whose time is given by model."""
    timed = [step for step in side.planned if step.chain in first and not step.role.endswith(COUNTED)]
    chains = {step.id: step.chain for step in timed if step.stage is Stage.COMPILE}
    then: dict[str, str] = {}
    now: dict[str, str] = {}
    for event in EventReader(side.folder / JOURNAL, RUN_JOURNAL) if chains else ():
        if isinstance(event.content, Result) and event.step in chains:
            step, cache = event.step, event.content.cache
            now[step] = cache.key if cache else ""
            if event.time <= first[chains[step]]:
                then[step] = now[step]
    return [chains[step] for step, key in then.items() if now[step] != key]


def rounds_asked(asked: CompareRequest | BisectRequest, *, here: bool = True) -> RoundSettings:
    """How rounds are taken; as usual where it is not said."""
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
    """What a side is profiled with; `compiles` has those with statistics, by the module that each makes."""

    machine: Workbench
    compiles: Mapping[str, Step]

    @classmethod
    def of(cls, machine: Workbench, steps: Iterable[Step]) -> SideTools:
        """Of what a side has run."""
        compiles = (step for step in steps if "statistics" in dict(step.outputs))
        return cls(machine, {step.output("module"): step for step in compiles})


def explain_differences(
    session: Session[Any],
    verdicts: Mapping[str, ModelVerdict],
    pairs: Sequence[Pair],
    sides: tuple[SideTools, SideTools],
    counted: Callable[[str], ComparedDispatches | None],
) -> None:
    """Profiles the models that B is slower or faster with, on both sides, and writes an event `where` for each.

    What cannot be profiled is reported with its reason, and with the instructions of its dispatches as `counted` gives
    them: a comparison does not fail for want of an explanation.
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
            dispatches=dispatches,
            work=work if work and work.difference else None,
            compile=find_compile_changes(sides, loaded, sized=True),
        )
        session.log.write("where", where, step=chain)


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

    `loaded` has the paths of the modules that each loads, the main one last; `sized`: their sizes are compared too.
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

    They are the JSON of `--iree-scheduling-dump-statistics-format=json`, with `MODULE_SIZE` where that is compared too:
    objects within objects, with numbers as leaves. Releases name and count other things: what one side does not report
    is shown as such, not counted as zero.
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


@dataclass(frozen=True, slots=True)
class MadeByWorker:
    """A module that a side has; `need` is side and step, `A dtln@cpu:compile`."""

    need: str
    key: str
    worker: str


class ComparingMachines(Machines, Protocol):
    """Machines that take the rounds of comparisons as well."""

    def comparing(
        self, chosen: Chosen, asked: CompareRequest, sides: tuple[PreparedSide, PreparedSide], progress: Progress
    ) -> AbstractContextManager[RoundsElsewhere]:
        """Has them take the rounds of a comparison whose sides they have run, until it is left; as `taking_part`."""


class RoundsElsewhere(Protocol):
    """Other machines, which take the rounds of a comparison."""

    def measure(self, units: Sequence[Step], made: Sequence[MadeByWorker], rounds: RoundsLog) -> None:
        """Has each model measured by one of them; what a signal handler raises comes after they were told to end.

        Args:
            units: the step of each model whose rounds are taken, of A; it has its host to itself, and needs `made`.
            made: the modules of both sides.
            rounds: takes what comes of it.
        """


def units_of(
    steps: Iterable[tuple[Step, Step]], sides: tuple[PreparedSide, PreparedSide]
) -> tuple[list[Step], list[MadeByWorker]]:
    """The models that are to be measured, each by its step of both sides; see `RoundsElsewhere.measure`."""
    units: list[Step] = []
    made: list[MadeByWorker] = []
    for both in steps:
        needs = []
        for side, step in zip(sides, both, strict=True):
            for item in side.planned:
                result = side.record.results.get(item.id)
                makes = item.id in step.needs and item.stage.row.makes_modules
                if makes and result and result.cache and result.cache.key:
                    needs.append(MadeByWorker(f"{side.name} {item.id}", result.cache.key, result.worker))
        resources = replace(both[0].resources, exclusive=True)
        units.append(replace(both[0], needs=tuple(item.need for item in needs), resources=resources))
        made += needs
    return units, made


class RoundsLog:
    """Takes what comes back of the units, into the log and the evidence; as `Conductor` of a cluster's runner.

    Each model is one event, `measured`, with all that was measured of it, by whom, on what machine: a log that was cut
    short has a model as a whole, or not at all. The budget begins now; `evidence`, by model, is changed in place.
    """

    def __init__(
        self, session: Session[Any], rules: Rules, evidence: dict[str, PairEvidence], earlier: Iterable[JournalEvent]
    ) -> None:
        self.session = session
        self.evidence = evidence
        before = [(event.step, event.content) for event in earlier if isinstance(event.content, MeasuredElsewhere)]
        self.where = {chain: item.where for chain, item in before if item.where and not item.problem}
        self._rules = rules
        self._events: dict[str, Sequence[Mapping[str, Any]]] = {}
        self._ends = time.monotonic() + rules.budget_seconds

    def share(self, hosts: int, units: int) -> float:
        """Seconds of what is left of the budget for each of some units, of which so many hosts take one each."""
        left = max(0.0, self._ends - time.monotonic())
        return left * min(1.0, hosts / max(1, units))

    def begin(self, step: Step, *, worker: str = "", again: bool = False) -> None:
        """A unit is given to a worker."""
        self.session.log.write("start", StepStart(worker), step=step.chain)
        self.session.progress.message(f"{step.chain}: measured on {worker}{', from the beginning' if again else ''}")

    def keep(self, step: Step, events: Sequence[Mapping[str, Any]]) -> None:
        """What a worker has in its log of a unit; `conclude` follows."""
        self._events[step.id] = events

    def conclude(self, step: Step, result: Result) -> Verdict:
        """A unit is over."""
        events = self._events.pop(step.id, ())
        problem, machine, where = result.reason, MachineFacts(), None
        blocks: list[dict[str, Any]] = []
        for event in events:
            match event:
                case {"event": "block"}:
                    blocks.append({name: value for name, value in event.items() if name not in _OF_EVENT})
                case {"event": "where"}:
                    where = WhereChanged.from_dict(event)
                case {"event": kind, "machine": about, "failure": why} if kind == ENDED:
                    problem, machine = why, MachineFacts.from_dict(about)
        measured = MeasuredElsewhere(
            worker=result.worker,
            problem=problem,
            notes=result.notes,
            machine=machine,
            blocks=tuple(blocks),
            where=where,
        )
        self.session.log.write("measured", measured, step=step.chain)
        if where:
            self.where[step.chain] = where
        found = self.evidence[step.chain] = PairEvidence(failure=measured.problem)
        for block in measured.blocks:
            found.add(block)
        nothing = found.failure or "the time is up, before its first block"
        what = self._rules.describe(found) if found.blocks else nothing
        self.session.progress.message(f"{step.chain}: {what}, on {result.worker}")
        return result.verdict

    def remark(self, text: str) -> None:
        """Something that a reader must know."""
        self.session.log.write("remark", Remark(text))
        self.session.progress.message(text)

    def abort(self) -> None:
        """Ends what runs here."""
        if not self.session.cancelled.is_set():
            self.session.cancel()
