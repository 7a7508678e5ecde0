"""The sides of a comparison: each is an ordinary run up to the benchmarks; then rounds alternate between the sides.

If one side is slower or faster, the dispatches of both are profiled, and the compiler's statistics and the module sizes
are compared. Other machines may measure the rounds; then each model has one machine, and both sides one device.
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from iree_gauntlet.cases import COUNTED, MAIN, Verdict
from iree_gauntlet.engine.modules.modules import list_statistics, read_statistics
from iree_gauntlet.engine.profiling import Profiling, compare_profiles, profile_dispatches
from iree_gauntlet.engine.rounds.blocks import Pair, PairSamples, list_cpu_sets
from iree_gauntlet.engine.rounds.taken_rounds import (
    Measurement,
    RoundSettings,
    make_benchmark_rounds,
    make_compile_rounds,
    parse_cpus,
)
from iree_gauntlet.engine.varying import is_same_file
from iree_gauntlet.errors import ExitCode, UsageError
from iree_gauntlet.experiments.run import Machines, run
from iree_gauntlet.experiments.session_verdicts import describe_times
from iree_gauntlet.figures import METRICS, Figure
from iree_gauntlet.journal_events import MachineInfo, Remark, StepStart
from iree_gauntlet.journal_format import JOURNAL, RUN_JOURNAL, EventReader, JournalRecord, read_journal
from iree_gauntlet.measuring.profiles.dispatch_profile import merge_profiles
from iree_gauntlet.measuring.statistics.comparison_verdict import TimeVerdict
from iree_gauntlet.records.compare_record import (
    SIDE_NAMES,
    BlockEvent,
    ChangeLocation,
    ComparisonPreparation,
    CompileChange,
    DispatchComparison,
    RemoteMeasurement,
    SideBenchmark,
)
from iree_gauntlet.results import Result
from iree_gauntlet.stages import Stage
from iree_gauntlet.toolchains.toolchain import BENCHMARK_MODULE
from iree_gauntlet.variants import split_side

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from iree_gauntlet.engine.processes.processes import Processes
    from iree_gauntlet.engine.rounds.blocks import Cpus
    from iree_gauntlet.engine.session import Session
    from iree_gauntlet.engine.workbench import Workbench
    from iree_gauntlet.experiments.run import RunSetup
    from iree_gauntlet.experiments.session_verdicts import ModelVerdict, Rules
    from iree_gauntlet.journal_format import JournalEvent
    from iree_gauntlet.progress import Progress, Reporter
    from iree_gauntlet.requests import BisectRequest, CompareRequest
    from iree_gauntlet.steps import Command, Step


_HEADER_FIELDS = ("event", "time", "step")
# The last event of a worker's log: it has the machine, and the reason if there is no verdict.
WORKER_END_EVENT = "measured here"
# The stage that is measured in rounds, and the stages that have to pass before it.
_TIMED_STAGE = Figure.TIME.row.stage
_REQUIRED_STAGES = tuple(stage for stage in _TIMED_STAGE.row.upstream if not stage.row.fetches)
_MAX_REPETITION_SECONDS = 3600.0
_ALL_CPUS = "all"
# The verdicts that need an explanation.
CHANGE_VERDICTS = (TimeVerdict.SLOWER, TimeVerdict.FASTER)
# The order in which the sides are profiled.
_PROFILE_ORDER = "ABBA"
MODULE_SIZE = "module size"
# The names of the compiler's statistics, the most important first.
_COMPILE_NAMES = {figure.row.compiler_path: figure.word for figure in Figure if figure.row.compiler_path} | {
    "global/constant-count": "constants",
    "global/variable-count": "variables",
    "execution/call-count": "calls",
}


@dataclass(frozen=True, slots=True)
class ComparisonSide:
    """One IREE of a comparison, `A` or `B`, ready to be measured; its `machine` holds leases as long as this object.

    Attributes:
        planned: the steps of the record.
        steps_by_metric: the steps to be measured, by metric and chain.
    """

    name: str
    iree: str
    folder: Path
    workbench: Workbench
    record: JournalRecord
    planned: tuple[Step, ...]
    steps_by_metric: dict[str, dict[str, Step]]
    interrupted: bool

    @property
    def toolchain(self) -> dict[str, str]:
        """The toolchain's versions and commits, for the record."""
        return self.workbench.toolchain.as_dict() if self.workbench.toolchain else {}

    @property
    def tools(self) -> SideTools:
        """The tools and compile steps that profiling needs."""
        return SideTools.of(self.workbench, self.planned)

    @property
    def counts(self) -> dict[str, Step]:
        """Steps that count instructions, by chain."""
        return self.steps_by_metric["instructions"]


def complete_sides(task: str, sides: Sequence[str]) -> tuple[str, ...]:
    """Return both sides; a side that has only variants (`+O3`) gets the IREE of the other one, or the installed one."""
    if len(sides) == 1 and sides[0].startswith("+"):
        sides = ("installed", sides[0])
    if len(sides) != len(SIDE_NAMES):
        raise UsageError(
            f"{task} takes two IREEs, not {len(sides)}",
            f"Such as: {task} 3.12.0 3.13.0 --model dtln, {task} installed build:../iree-build --suite cpu, or "
            f"{task} 3.13.0 3.13.0+data-tiling.",
        )
    irees = [split_side(side)[0] for side in sides]
    return tuple(
        f"{irees[1 - index] or 'installed'}{side}" if side.startswith("+") else side for index, side in enumerate(sides)
    )


def prepare_side(
    name: str, workbench: Workbench, iree: str, setup: RunSetup, folder: Path, presenter: Reporter
) -> ComparisonSide:
    """Run a selection, except its benchmarks, with one IREE; resume the folder if it exists."""
    presenter.line(f"\n{name}: {iree}")
    result = run(setup.within(folder, iree), presenter, workbench=workbench, hold=_TIMED_STAGE, brief=True)
    record = read_journal(folder / JOURNAL)
    steps = [step for step in (*result.steps, *result.deferred_steps) if step.role == MAIN]
    return ComparisonSide(
        name=name,
        iree=iree,
        folder=folder,
        workbench=workbench,
        record=record,
        planned=record.planned,
        steps_by_metric={
            metric: {step.chain: step for step in steps if step.stage is figure.row.stage}
            for metric, figure in METRICS.items()
        },
        interrupted=result.exit_code is ExitCode.INTERRUPTED,
    )


def make_pair(chain: str, steps: tuple[Step, Step], metric: str, rounds: RoundSettings) -> Pair:
    """Pair a step of A with the same step of B, to be measured in rounds by a metric.

    Raises:
        UsageError: CPUs are requested, but taskset is missing.
    """

    def make_measurements(cpus: Cpus) -> tuple[Measurement, Measurement]:
        a, b = (make_measurement(step, replace(rounds, cpus=cpus)) for step in steps)
        return a, b

    make_measurement = make_benchmark_rounds if metric == "time" else make_compile_rounds
    # A timed compile runs on all CPUs, because trying other sets would take minutes.
    pair = Pair(
        chain, list_cpu_sets(steps[0]) if rounds.choose and metric == "time" else (rounds.cpus,), make_measurements
    )
    pair.make_measurements(pair.cpu_sets[0])
    return pair


def find_obstacle(side: ComparisonSide, step: Step) -> str:
    """Return why a step of a side cannot be measured, or an empty string."""
    if step.skip or step.blocked:
        return step.skip or step.blocked
    results = side.record.results
    for chain_step in side.planned:
        if chain_step.chain != step.chain and chain_step.id not in step.needs:
            continue
        if chain_step.role.endswith(COUNTED) and not step.stage.row.accompanies:
            # The step belongs to another module.
            continue
        result = results.get(chain_step.id)
        if chain_step.stage in _REQUIRED_STAGES and (
            result is None or result.settled_verdict not in (Verdict.PASSED, Verdict.FLAKY)
        ):
            return f"{chain_step.stage}: {result.full_reason if result else 'it did not finish'}"
        if (
            chain_step.stage.row.checks_numbers
            and result is not None
            and result.verdict in (Verdict.FAILED, Verdict.QUARANTINED)
        ):
            return f"its numbers are wrong: {result.reason}"
    count_result = results.get(step.id) if step.stage.row.accompanies else None
    return count_result.reason if count_result and "instructions" not in count_result.statistics else ""


def find_changed_models(sides: Sequence[ComparisonSide], events: Iterable[JournalEvent]) -> dict[str, str]:
    """Return the models of which a side changed since the comparison's earlier part, each with the reason."""
    first_block_times: dict[str, str] = {}
    benchmarks: dict[str, dict[str, SideBenchmark]] = {}
    for event in events:
        if isinstance(event.content, BlockEvent | RemoteMeasurement):
            first_block_times.setdefault(event.step, event.time)
        elif isinstance(event.content, ComparisonPreparation):
            benchmarks = event.content.benchmarks | benchmarks
    reasons: dict[str, str] = {}
    for side in reversed(sides):
        for chain in _find_recompiled(side, first_block_times):
            reasons[chain] = f"{side.name}: its module"
        for chain, step in side.steps_by_metric["time"].items():
            benchmark = benchmarks.get(chain, {}).get(side.name) if chain in first_block_times else None
            if benchmark is not None and _strip_folders(benchmark.command) != _strip_folders(step.required_command):
                reasons[chain] = f"{side.name}: its benchmark"
    suffix = "is not the one that was measured so far; start a new comparison"
    return {chain: f"{reason} {suffix}" for chain, reason in reasons.items()}


def find_removed_models(models: Iterable[str], events: Iterable[JournalEvent]) -> dict[str, str]:
    """Return models of an earlier part of the comparison that are not among `models`, each with the reason."""
    parts = [event.content for event in events if isinstance(event.content, ComparisonPreparation)]
    previous_models = {chain for part in parts for chain in (*part.models, *part.left_out)}
    return dict.fromkeys(
        sorted(previous_models.difference(models)), "the comparison was started with it: its spec is gone"
    )


def find_unaffected(sides: Sequence[ComparisonSide], steps: Mapping[str, tuple[Step, Step]]) -> tuple[str, ...]:
    """Return the models whose steps run the same bytes in the same way on both sides, which differ only by variants."""
    (iree_a, variants_a), (iree_b, variants_b) = (split_side(side.iree) for side in sides)
    if variants_a == variants_b or iree_a != iree_b:
        return ()
    return tuple(
        chain
        for chain, (step_a, step_b) in steps.items()
        if _strip_folders(step_a.command) == _strip_folders(step_b.command)
        and [file.role for file in step_a.inputs] == [file.role for file in step_b.inputs]
        and all(is_same_file(a.path, b.path) for a, b in zip(step_a.inputs, step_b.inputs, strict=True))
    )


def _strip_folders(command: Command | None) -> list[str]:
    """Return a command's arguments without the folders of files, because the comparison may have been moved."""
    return [re.sub(r"[^=@,]*/", "", word) for word in command.argv] if command else []


def _find_recompiled(side: ComparisonSide, first_block_times: Mapping[str, str]) -> list[str]:
    """Return the models of which a module's key has changed since the first block (time by model, as given)."""
    steps = [step for step in side.planned if step.chain in first_block_times and not step.role.endswith(COUNTED)]
    chains = {step.id: step.chain for step in steps if step.stage is Stage.COMPILE}
    measured_keys: dict[str, str] = {}
    current_keys: dict[str, str] = {}
    for event in EventReader(side.folder / JOURNAL, RUN_JOURNAL) if chains else ():
        if isinstance(event.content, Result) and event.step in chains:
            step, cache = event.step, event.content.cache
            current_keys[step] = cache.key if cache else ""
            if event.time <= first_block_times[chains[step]]:
                measured_keys[step] = current_keys[step]
    return [chains[step] for step, key in measured_keys.items() if current_keys[step] != key]


def make_round_settings(request: CompareRequest | BisectRequest, *, local: bool = True) -> RoundSettings:
    """Return the settings of rounds, with defaults for options that are not given."""
    defaults = RoundSettings()
    min_time = request.min_time or defaults.min_time
    if min_time >= _MAX_REPETITION_SECONDS:
        raise UsageError(
            f"--min-time {min_time:g}: expected less than an hour", f"Leave it out for {defaults.min_time:g}."
        )
    get_affinity = getattr(os, "sched_getaffinity", None)  # only Linux can report and pin CPUs
    cpu_list = "" if request.cpus == _ALL_CPUS else request.cpus
    available_cpus = frozenset(get_affinity(0)) if get_affinity else frozenset[int]()
    cpus = parse_cpus(cpu_list, available_cpus if local else None)
    return RoundSettings(request.repetitions or defaults.repetitions, min_time, cpus, choose=not request.cpus)


@dataclass(frozen=True, slots=True)
class SideTools:
    """A side's profiling tools; `compiles` has the compile steps with statistics, by the module that each makes."""

    workbench: Workbench
    compiles: Mapping[str, Step]

    @classmethod
    def of(cls, workbench: Workbench, steps: Iterable[Step]) -> SideTools:
        """Make the tools from the steps that a side has run."""
        compiles = (step for step in steps if "statistics" in dict(step.outputs))
        return cls(workbench, {step.find_output("module"): step for step in compiles})


def explain_differences(
    session: Session[Any],
    verdicts: Mapping[str, ModelVerdict],
    pairs: Sequence[Pair],
    sides: tuple[SideTools, SideTools],
    count_dispatches: Callable[[str], DispatchComparison | None],
) -> None:
    """Profile both sides of the models that are slower or faster with B; write an event `where` for each.

    If profiling fails, the comparison does not: the event then has the reason, and the instructions by dispatch that
    `count_dispatches` returns.
    """
    by_chain = {pair.chain: pair for pair in pairs}
    for verdict in verdicts.values():
        if verdict.verdict not in CHANGE_VERDICTS:
            continue
        chain = verdict.chain
        session.progress.status(f"{chain}: looking for where the time went")
        measurements = by_chain[chain].make_measurements(verdict.evidence.cpus or ())
        with session.hold_machine(measurements[0].device):
            dispatches = _collect_dispatches(sides, measurements, session.processes, verdict)
        module_paths = [
            [module.path for module in measurement.step.inputs if module.role.startswith("module")]
            for measurement in measurements
        ]
        work = count_dispatches(chain) if dispatches.reason else None
        change = ChangeLocation(
            dispatches=dispatches,
            work=work if work and work.difference else None,
            compile=find_compile_changes(sides, module_paths, sized=True),
        )
        session.log.write("where", change, step=chain)


def _collect_dispatches(
    sides: tuple[SideTools, SideTools],
    measurements: tuple[Measurement, Measurement],
    processes: Processes,
    verdict: ModelVerdict,
) -> DispatchComparison:
    """Profile each side twice, in the order ABBA: one pair alone is weak evidence on a machine whose speed drifts."""
    a_ms, b_ms = (describe_times(verdict.evidence.blocks, side).median for side in SIDE_NAMES)
    side_by_name = dict(zip(SIDE_NAMES, zip(sides, measurements, (a_ms, b_ms), strict=True), strict=True))
    profilings_by_side: dict[str, list[Profiling]] = {name: [] for name in SIDE_NAMES}
    for name in _PROFILE_ORDER:
        incomplete = any(
            profiling.profile is None for profilings in profilings_by_side.values() for profiling in profilings
        )
        # If one side fails, profile the other side too, to report the reasons of both.
        if not incomplete or not profilings_by_side[name]:
            side, measurement, median = side_by_name[name]
            profiling = profile_dispatches(
                measurement.step,
                side.workbench.iree,
                processes,
                side.workbench.get_flags(BENCHMARK_MODULE),
                command=measurement.command,
                invocation_ms=median,
                name=f"profile.{len(profilings_by_side[name]) + 1}.",
            )
            profilings_by_side[name].append(profiling)
    a, b = map(_join, profilings_by_side.values())
    return compare_profiles(a, b, (a_ms, b_ms))


def _join(profilings: Sequence[Profiling]) -> Profiling:
    """Merge the profiles of a side; if a profiling failed, return the failed one."""
    failures = [profiling for profiling in profilings if profiling.profile is None]
    if failures or len(profilings) == 1:
        return (failures or [*profilings])[0]
    return Profiling(
        merge_profiles([profiling.profile for profiling in profilings if profiling.profile is not None]),
        commands=tuple(command for profiling in profilings for command in profiling.commands),
        seconds=sum(profiling.seconds for profiling in profilings),
        log=profilings[-1].log,
    )


def find_compile_changes(
    sides: Sequence[SideTools], module_paths: Sequence[Sequence[str]], *, sized: bool
) -> tuple[CompileChange, ...]:
    """Compare the compiler's statistics of the two main modules; return nothing if a side did not compile its module.

    `module_paths` has the modules that each side loads, the main module last. `sized`: compare their sizes too.
    """
    main_compiles = [
        [side.compiles[path] for path in paths if path in side.compiles][-1:]
        for side, paths in zip(sides, module_paths, strict=True)
    ]
    if not all(main_compiles):
        return ()
    a, b = (
        read_statistics(Path(step.find_output("statistics")))
        | ({MODULE_SIZE: Path(step.find_output("module")).stat().st_size} if sized else {})
        for (step,) in main_compiles
    )
    return list_compile_changes(a, b)


def list_compile_changes(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[CompileChange, ...]:
    """Return the figures that differ, and those that only one side reports.

    The input is the JSON of `--iree-scheduling-dump-statistics-format=json` (nested objects with numbers as leaves),
    optionally with `MODULE_SIZE`. A figure that only one side has counts as missing, not as zero, because releases
    differ in the names and figures that they report.
    """
    a_values, b_values = (
        {_COMPILE_NAMES.get(path, path): value for path, value in list_statistics(side).items()} for side in (a, b)
    )
    order = {name: index for index, name in enumerate((MODULE_SIZE, *_COMPILE_NAMES.values()))}
    changes = []
    for name in sorted(a_values.keys() | b_values.keys(), key=lambda name: (order.get(name, len(order)), name)):
        if a_values.get(name) != b_values.get(name):
            in_bytes = name == MODULE_SIZE or name.endswith(("memory", "-size", "-bytes"))
            changes.append(CompileChange(name, a_values.get(name), b_values.get(name), "bytes" if in_bytes else ""))
    return tuple(changes)


@dataclass(frozen=True, slots=True)
class WorkerModule:
    """A module that a side has built; `need` is the side and step, such as `A dtln@cpu:compile`."""

    need: str
    key: str
    worker: str


class ComparingMachines(Machines, Protocol):
    """Machines that also measure the rounds of comparisons."""

    def comparing(
        self, setup: RunSetup, request: CompareRequest, sides: tuple[ComparisonSide, ComparisonSide], progress: Progress
    ) -> AbstractContextManager[RoundsElsewhere]:
        """Let the machines that ran the sides measure the comparison while the context is open; like `taking_part`."""


class RoundsElsewhere(Protocol):
    """Other machines that measure the rounds of a comparison."""

    def measure(self, units: Sequence[Step], modules: Sequence[WorkerModule], rounds: RoundsLog) -> None:
        """Have each model measured by a machine; before a signal handler's exception is raised, the machines are ended.

        Args:
            units: A's step of each model to be measured; a unit has a host to itself, and needs `modules`.
            modules: the modules of both sides.
            rounds: receives the results.
        """


def make_units(
    steps: Iterable[tuple[Step, Step]], sides: tuple[ComparisonSide, ComparisonSide]
) -> tuple[list[Step], list[WorkerModule]]:
    """Return `units` and `modules` of `RoundsElsewhere.measure` for the two sides' steps of each model."""
    units: list[Step] = []
    modules: list[WorkerModule] = []
    for step_pair in steps:
        needs = []
        for side, step in zip(sides, step_pair, strict=True):
            for planned_step in side.planned:
                result = side.record.results.get(planned_step.id)
                is_module = planned_step.id in step.needs and planned_step.stage.row.makes_modules
                if is_module and result and result.cache and result.cache.key:
                    needs.append(WorkerModule(f"{side.name} {planned_step.id}", result.cache.key, result.worker))
        resources = replace(step_pair[0].resources, exclusive=True)
        units.append(
            replace(step_pair[0], needs=tuple(planned_step.need for planned_step in needs), resources=resources)
        )
        modules += needs
    return units, modules


class RoundsLog:
    """Writes the results of measured units to the log and the evidence, as the `StepHandler` of a cluster's runner.

    Each model is one event, `measured`, with the measurements, worker and machine, so a truncated log has a model
    completely or not at all. The budget begins with this object; `evidence`, by model, is changed in place.
    """

    def __init__(
        self, session: Session[Any], rules: Rules, evidence: dict[str, PairSamples], events: Iterable[JournalEvent]
    ) -> None:
        self.session = session
        self.evidence = evidence
        measured_models = [
            (event.step, event.content) for event in events if isinstance(event.content, RemoteMeasurement)
        ]
        self.where = {chain: model.where for chain, model in measured_models if model.where and not model.problem}
        self._rules = rules
        self._events: dict[str, Sequence[Mapping[str, Any]]] = {}
        self._ends = time.monotonic() + rules.budget_seconds

    def share(self, hosts: int, units: int) -> float:
        """Return one unit's share of the remaining budget in seconds, if each host runs one unit at a time."""
        seconds = max(0.0, self._ends - time.monotonic())
        return seconds * min(1.0, hosts / max(1, units))

    def begin(self, step: Step, *, worker: str = "", again: bool = False) -> None:
        """Record that a worker gets a unit."""
        self.session.log.write("start", StepStart(worker), step=step.chain)
        self.session.progress.message(f"{step.chain}: measured on {worker}{', from the beginning' if again else ''}")

    def keep(self, step: Step, events: Sequence[Mapping[str, Any]]) -> None:
        """Keep a worker's log events about a unit until `conclude`."""
        self._events[step.id] = events

    def conclude(self, step: Step, result: Result) -> Verdict:
        """Record a unit's results, and return its verdict."""
        events = self._events.pop(step.id, ())
        problem, machine, change = result.reason, MachineInfo(), None
        blocks: list[dict[str, Any]] = []
        for event in events:
            match event:
                case {"event": "block"}:
                    blocks.append({name: value for name, value in event.items() if name not in _HEADER_FIELDS})
                case {"event": "where"}:
                    change = ChangeLocation.from_dict(event)
                case {"event": name, "machine": machine_info, "failure": failure} if name == WORKER_END_EVENT:
                    problem, machine = failure, MachineInfo.from_dict(machine_info)
        measurement = RemoteMeasurement(
            worker=result.worker,
            problem=problem,
            notes=result.notes,
            machine=machine,
            blocks=tuple(blocks),
            where=change,
        )
        self.session.log.write("measured", measurement, step=step.chain)
        if change:
            self.where[step.chain] = change
        evidence = self.evidence[step.chain] = PairSamples(failure=measurement.problem)
        for block in measurement.blocks:
            evidence.add(block)
        no_blocks = evidence.failure or "the time is up, before its first block"
        summary = self._rules.describe(evidence) if evidence.blocks else no_blocks
        self.session.progress.message(f"{step.chain}: {summary}, on {result.worker}")
        return result.verdict

    def remark(self, text: str) -> None:
        """Write a remark that readers must see."""
        self.session.log.write("remark", Remark(text))
        self.session.progress.message(text)

    def abort(self) -> None:
        """Cancel the local session."""
        if not self.session.cancelled.is_set():
            self.session.cancel()
