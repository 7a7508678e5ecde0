"""`compare A B`: is one IREE faster or slower than another, for each model, and in which dispatches?"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet import messages
from iree_gauntlet.engine.profiling import describe_difference
from iree_gauntlet.engine.rounds.blocks import PairSamples, collect_samples
from iree_gauntlet.engine.rounds.machine_lock import WaitCancelledError
from iree_gauntlet.engine.session import open_session
from iree_gauntlet.engine.varying import find_uncounted_flags
from iree_gauntlet.errors import ExitCode, NothingSelectedError, ToolchainError, UsageError
from iree_gauntlet.experiments.experiment import Experiment
from iree_gauntlet.experiments.run import make_setup
from iree_gauntlet.experiments.session_verdicts import (
    Comparer,
    CompareSettings,
    ModelVerdict,
    Rules,
    find_next_look,
    judge,
    summarise_verdicts,
)
from iree_gauntlet.experiments.sides import (
    CHANGE_VERDICTS,
    ComparingMachines,
    ComparisonSide,
    RoundsLog,
    complete_sides,
    explain_differences,
    find_changed_models,
    find_compile_changes,
    find_obstacle,
    find_removed_models,
    find_unaffected,
    make_pair,
    make_round_settings,
    make_units,
    prepare_side,
)
from iree_gauntlet.figures import METRICS, OUTSIDE_MARGIN, Figure
from iree_gauntlet.journal_events import ResumeOptions
from iree_gauntlet.measuring.instructions.counters import WITHOUT_FMA, find_counter, read_counts
from iree_gauntlet.measuring.instructions.work import Work, combine_work, judge_parts
from iree_gauntlet.measuring.machine.machine_state import read_machine_facts
from iree_gauntlet.measuring.profiles.dispatch_profile import Match, match_dispatches
from iree_gauntlet.measuring.statistics.comparison_verdict import TimeVerdict, check_against_control
from iree_gauntlet.measuring.statistics.rounds import DEFAULT_ALPHA, plan_looks
from iree_gauntlet.records.compare_record import (
    COMPARISON,
    SIDE_NAMES,
    ChangeLocation,
    ComparisonOpening,
    ComparisonPreparation,
    ComparisonSummary,
    ComparisonVerdict,
    DispatchComparison,
    RoundRules,
    SideBenchmark,
    SideRecord,
    WorkVerdict,
)
from iree_gauntlet.requests import CompareRequest, RunRequest, collect_changed_options, parse_request
from iree_gauntlet.settings import format_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from iree_gauntlet.engine.session import Session
    from iree_gauntlet.experiments.run import RunSetup
    from iree_gauntlet.journal_format import JournalEvent
    from iree_gauntlet.progress import Reporter
    from iree_gauntlet.records.event_log import EventLog
    from iree_gauntlet.requests import ExecutionRequest
    from iree_gauntlet.steps import Step


# Options that may differ in a resumed comparison; changing any other option would mix two sessions.
_REPLACED_OPTIONS = ("budget", "iree", "shard", "shard_costs", "batch")
# Options that keep their value unless a resumed comparison gives another: earlier blocks stay valid.
_MAY_CHANGE = ("disturbed",)
_CODES = {
    "error": ExitCode.ERROR,
    str(TimeVerdict.SLOWER): ExitCode.FAILED,
    str(TimeVerdict.INCONCLUSIVE): ExitCode.INCONCLUSIVE,
}
# The maximum number of listed dispatches that do less, for each model.
_MAX_DECREASES = 10
_OUTSIDE = "outside of dispatches (the runtime, and C library functions that dispatches call)"


def compare(
    options: CompareRequest, request: RunRequest, presenter: Reporter, machines: ComparingMachines | None = None
) -> ExitCode:
    """Compare two IREEs over a selection, on this machine or on others.

    Raises:
        GauntletError: a side cannot be run; it is a UsageError if options contradict each other.
    """
    experiment = Experiment.find(COMPARISON, request.folder)
    if experiment.record:
        opening = experiment.record.opening
        if opening.elsewhere != (machines is not None):
            local_texts = "this machine", "Leave --cluster out"
            location, hint = ("a cluster", "Give --cluster") if opening.elsewhere else local_texts
            raise UsageError(f"{format_path(experiment.folder)} was started on {location}", f"{hint} to continue it.")
        new_options = collect_changed_options((options, request.selection, request.toolchain, request.execution))
        previous = experiment.keep_options(new_options, _MAY_CHANGE)
        budget = {} if "budget" in new_options else {"budget": opening.rules.budget_seconds / 60}
        options, request = (
            parse_request(CompareRequest, asdict(options) | budget | previous),
            request.with_resumed_options(previous),
        )
    names = complete_sides("compare", options.sides)
    settings = make_compare_settings(options, request.execution, local=machines is None)
    # Report typing mistakes and install missing IREEs now, before hours of work.
    setup = _choose(request, options, machines)
    workbenches = [setup.open_workbench_for(name) for name in names]
    flags = {find_uncounted_flags(setup.for_side(name).selection.variants) for name in names}
    counts = settings.metric == "instructions" and len(flags) > 1
    if counts and find_counter(request.execution.counter, request.execution.count_cpu).cpu:
        message = f"--metric instructions cannot compare {', '.join(filter(None, flags))}: a count sets its own CPU"
        raise UsageError(message, "Compare times, or give both sides the CPU with --count-cpu.")
    events = experiment.record.events if experiment.record else []
    kept_fields = {
        name: value
        for name, value in (asdict(options) | request.resume_options).items()
        if name not in _REPLACED_OPTIONS
    }
    kept_fields["disturbed"] = request.execution.disturbed
    opening = ComparisonOpening(
        sides={side: SideRecord(asked=iree, folder=side.lower()) for side, iree in zip(SIDE_NAMES, names, strict=True)},
        kept=ResumeOptions(kept_fields),
        rules=settings.rules,
        rounds=RoundRules(**asdict(settings.rounds)),
        machine=read_machine_facts(),
        elsewhere=machines is not None,
    )
    with experiment.open(presenter, opening) as log:
        sides: list[ComparisonSide] = []
        for name, iree, workbench in zip(SIDE_NAMES, names, workbenches, strict=True):
            sides.append(prepare_side(name, workbench, iree, setup, experiment.folder / name.lower(), presenter))
            if sides[-1].interrupted:
                experiment.code = ExitCode.INTERRUPTED
                break
        else:
            comparison = _Comparison(options, setup, settings, (sides[0], sides[1]), log, presenter)
            if settings.metric == "instructions":
                experiment.code = comparison.count(events)
            else:
                experiment.code = comparison.measure(experiment.folder, events, machines)
    return experiment.code


@dataclass(frozen=True, slots=True)
class _Comparison:
    """A comparison whose sides have run; its results go into the log."""

    options: CompareRequest
    setup: RunSetup
    settings: CompareSettings
    sides: tuple[ComparisonSide, ComparisonSide]
    log: EventLog
    presenter: Reporter

    def count(self, events: Sequence[JournalEvent]) -> ExitCode:
        """Compare the instruction counts of both sides."""
        steps, left_out = _make_ready(*self.sides, self.settings.metric)
        left_out |= find_removed_models((*steps, *left_out), events)
        no_effect = find_unaffected(self.sides, steps)
        steps = {chain: pair for chain, pair in steps.items() if chain not in no_effect}
        verdicts = self._judge_counts(steps)
        for chain in steps.keys() - verdicts.keys():
            left_out[chain] = "its sides were counted by different counters: start a new comparison"
        self._write_prepared(verdicts, left_out, {}, no_effect)
        verdicts = self._count_with_fma(verdicts)
        for chain, work in verdicts.items():
            self.log.write("result", ComparisonVerdict(work=replace(work, reason="")), step=chain)
        counts = {str(verdict): sum(work.verdict == verdict for work in verdicts.values()) for verdict in Work}
        self.log.write("summary", ComparisonSummary(verdicts=counts))
        for chain, work in verdicts.items():
            if work.verdict != Work.SAME:
                module_paths = [[side.counts[chain].find_input("program").path] for side in self.sides]
                # Leave sizes out: a module built for counting is not the module that users get.
                compile_changes = find_compile_changes([side.tools for side in self.sides], module_paths, sized=False)
                dispatches = _count_dispatches(self.sides, chain, work)
                self.log.write("where", ChangeLocation(dispatches=dispatches, compile=compile_changes), step=chain)
        codes = [ExitCode.ERROR for _ in left_out]
        codes += [ExitCode.FAILED for work in verdicts.values() if work.verdict == Work.MORE]
        return ExitCode.worst(codes)

    def measure(self, folder: Path, events: Sequence[JournalEvent], machines: ComparingMachines | None) -> ExitCode:
        """Measure the rounds, on this machine or on others, judge them, and explain where B is slower."""
        metric, rules = self.settings.metric, self.settings.rules
        steps, left_out = _make_ready(*self.sides, metric)
        left_out |= find_changed_models(self.sides, events) | find_removed_models((*steps, *left_out), events)
        no_effect = find_unaffected(self.sides, steps) if metric == "time" else ()
        steps = {chain: pair for chain, pair in steps.items() if chain not in (*left_out, *no_effect)}
        benchmarks = {
            chain: {
                side.name: SideBenchmark(timeout=step.timeout, command=step.required_command, resources=step.resources)
                for side, step in zip(self.sides, pair, strict=True)
            }
            for chain, pair in (steps.items() if metric == "time" else ())
        }
        self._write_prepared(steps, left_out, benchmarks, no_effect)
        evidence = collect_samples(events)
        with self.presenter.progress() as progress, open_session(folder, self.log, progress) as session:
            try:
                with session.interruptible():
                    if machines is None:
                        verdicts = self._measure_here(steps, session, evidence)
                    else:
                        rounds = RoundsLog(session, rules, evidence, events)
                        verdicts = self._measure_elsewhere(steps, rounds, machines)
            except (KeyboardInterrupt, WaitCancelledError):
                # A verdict on the blocks so far is better than none.
                partial = {chain: model for chain, model in evidence.items() if chain in steps and model.blocks}
                self._write_verdicts(judge(partial, rules, "interrupted"))
                option = "" if machines is None else " --cluster …"
                progress.message(f"interrupted; `compare --resume{option}` continues it")
                return ExitCode.INTERRUPTED
        codes = [ExitCode.ERROR for _ in left_out]
        return ExitCode.worst([*codes, *(_CODES.get(verdict.verdict, ExitCode.OK) for verdict in verdicts.values())])

    def _measure_here(
        self, steps: Mapping[str, tuple[Step, Step]], session: Session[Any], evidence: dict[str, PairSamples]
    ) -> dict[str, ModelVerdict]:
        settings, (a, b) = self.settings, self.sides
        pairs = [make_pair(chain, pair, settings.metric, settings.rounds) for chain, pair in steps.items()]
        verdicts = judge(Comparer(session, settings.rules).run(pairs, evidence), settings.rules)
        works = self._write_verdicts(verdicts)
        if settings.metric == "time":
            explain_differences(
                session,
                verdicts,
                pairs,
                (a.tools, b.tools),
                lambda chain: _count_dispatches(self.sides, chain, works[chain]) if chain in works else None,
            )
        return verdicts

    def _measure_elsewhere(
        self, steps: Mapping[str, tuple[Step, Step]], rounds: RoundsLog, machines: ComparingMachines
    ) -> dict[str, ModelVerdict]:
        rules = self.settings.rules
        # Undecided models are measured again from the start: rounds of two machines cannot be combined.
        final_models = {chain for chain, model in rounds.evidence.items() if find_next_look(model, rules) is None}
        units, modules = make_units((pair for chain, pair in steps.items() if chain not in final_models), self.sides)
        if units:
            with machines.comparing(self.setup, self.options, self.sides, rounds.session.progress) as remote:
                remote.measure(units, modules, rounds)
        verdicts = judge({chain: rounds.evidence[chain] for chain in steps}, rules)
        self._write_verdicts(verdicts)
        for chain, verdict in verdicts.items():
            if verdict.verdict in CHANGE_VERDICTS and chain in rounds.where:
                self.log.write("where", rounds.where[chain], step=chain)
        return verdicts

    def _write_prepared(
        self,
        models: Iterable[str],
        left_out: dict[str, str],
        benchmarks: dict[str, dict[str, SideBenchmark]],
        no_effect: tuple[str, ...],
    ) -> None:
        sides = {
            side.name: SideRecord(asked=side.iree, folder=side.folder.name, toolchain=side.toolchain)
            for side in self.sides
        }
        event = ComparisonPreparation(
            sides=sides, models=tuple(models), left_out=left_out, no_effect=no_effect, benchmarks=benchmarks
        )
        self.log.write("prepared", event)

    def _write_verdicts(self, verdicts: dict[str, ModelVerdict]) -> dict[str, WorkVerdict]:
        """Write the verdicts, in which the work of each model whose instructions were counted is weighed in place."""
        works = self._judge_counts(verdicts)
        verdicts |= {chain: add_work(verdicts[chain], work) for chain, work in works.items()}
        for chain, verdict in verdicts.items():
            event = replace(verdict.record(), work=works.get(chain))
            self.log.write("result", ComparisonVerdict(times=event), step=chain)
        self.log.write("summary", summarise_verdicts(verdicts))
        return works

    def _judge_counts(self, chains: Iterable[str], sides: Sequence[ComparisonSide] = ()) -> dict[str, WorkVerdict]:
        """Judge the counts of each model whose instructions were counted on both sides."""
        sides = sides or self.sides
        verdicts = {}
        for chain in chains:
            steps = [side.counts[chain] for side in sides if chain in side.counts]
            if len(steps) < len(sides) or any(map(find_obstacle, sides, steps)):
                continue
            statistics = [side.record.results[step.id].statistics for side, step in zip(sides, steps, strict=True)]
            # Counts by different counters, or of modules for different CPUs, cannot be compared.
            counters = {(str(entry["counter"]), str(entry["cpu"])) for entry in statistics}
            if len(counters) == 1:
                a, b = (read_counts(Path(step.find_output("counts"))) for step in steps)
                runtimes = {dict(step.cache.ingredients).get("tool") for step in steps}
                min_change = self.settings.rules.least_work
                parts = judge_parts(a, b, min_change, same_runtime=len(runtimes) == 1)
                counter, cpu = counters.pop()
                verdicts[chain] = WorkVerdict(
                    verdict=combine_work(parts),
                    instructions=dict(zip(SIDE_NAMES, (a.instructions, b.instructions), strict=True)),
                    ratio=b.instructions / a.instructions,
                    counter=counter,
                    cpu=cpu,
                    # If the dispatches are known, the work outside of them is known too.
                    outside=b.outside - a.outside if a.dispatches or b.dispatches else None,
                    parts=parts,
                )
        return verdicts

    def _count_with_fma(self, verdicts: dict[str, WorkVerdict]) -> dict[str, WorkVerdict]:
        """Count again, with fused multiply-adds, the models whose work changed; return the verdicts with both counts.

        The first count is without them: with them the modules differ, and valgrind is up to twenty times slower.
        """
        chains = {chain for chain, verdict in verdicts.items() if verdict.verdict != Work.SAME}
        cpus = {verdicts[chain].cpu for chain in chains}
        request = self.setup.request
        if not chains or request.execution.count_cpu or not all(cpu.endswith(WITHOUT_FMA) for cpu in cpus):
            return verdicts
        self.presenter.line(
            "\nthe work has changed: counting again with fused multiply-adds, which is slow in valgrind"
        )
        execution = replace(request.execution, count_cpu=cpus.pop().removesuffix(WITHOUT_FMA))
        setup = replace(self.setup, request=replace(request, execution=execution, chains=frozenset(chains)))
        fma_sides: list[ComparisonSide] = []
        for side in self.sides:
            name, folder = f"{side.name} with FMA", side.folder.with_name(f"{side.folder.name}-fma")
            fma_sides.append(prepare_side(name, side.workbench, side.iree, setup, folder, self.presenter))
            if fma_sides[-1].interrupted:
                raise KeyboardInterrupt
        counts = self._judge_counts(chains, fma_sides)
        fma_verdicts = {
            chain: replace(verdicts[chain], with_fma=verdict.instructions) for chain, verdict in counts.items()
        }
        return verdicts | fma_verdicts


def _make_ready(
    a: ComparisonSide, b: ComparisonSide, metric: str
) -> tuple[dict[str, tuple[Step, Step]], dict[str, str]]:
    """Return, by chain, the step pairs that can be measured, and for each other chain the reason."""
    sides = tuple((side, side.steps_by_metric[metric]) for side in (a, b))
    steps_by_chain: dict[str, tuple[Step, Step]] = {}
    left_out: dict[str, str] = {}
    for chain in sorted({chain for _, steps in sides for chain in steps}):
        reasons = [f"{side.name} has no such step" for side, steps in sides if chain not in steps][:1]
        if not reasons:
            reasons = [
                f"{side.name}: {reason}" for side, steps in sides if (reason := find_obstacle(side, steps[chain]))
            ]
        if reasons:
            left_out[chain] = "; ".join(reasons)
        else:
            steps_by_chain[chain] = (sides[0][1][chain], sides[1][1][chain])
    return steps_by_chain, left_out


def _choose(request: RunRequest, options: CompareRequest, machines: ComparingMachines | None) -> RunSetup:
    """Set up the run of each side; raise if there is nothing to compare."""
    setup = make_setup(request, machines)
    stage = METRICS[options.metric].row.stage
    if Figure.COMPILE_TIME.row.stage not in setup.stages:
        raise UsageError("a comparison compiles, but this suite does not", "Use another suite, or name models.")
    if not any(case.kind in stage.row.kinds for case in setup.selection.cases.cases):
        raise NothingSelectedError(
            "the selection has no benchmark to compare", "`list` shows which models have one; or --metric compile-time."
        )
    if options.metric == "instructions":
        if machines is not None:
            raise UsageError("--metric instructions counts on this machine", "Leave --cluster out.")
        find_counter(request.execution.counter, request.execution.count_cpu)
        return replace(setup, stages=(stage, *request.choose_stages(())))
    stages = setup.stages
    if options.metric == "time":
        if not options.no_work and machines is None:
            try:
                find_counter(request.execution.counter, request.execution.count_cpu)
                stages = (*stages, Figure.CALL_INSTRUCTIONS.row.stage)
            except ToolchainError as why_not:
                messages.note(f"the work is not counted along with the times: {why_not.message}")
        stages = (*stages, stage)
    return replace(setup, stages=tuple(dict.fromkeys(stages)))


def make_compare_settings(request: CompareRequest, execution: ExecutionRequest, *, local: bool) -> CompareSettings:
    """Make the settings of rounds and verdicts; `local`: this machine, whose CPUs are known, measures the rounds."""
    min_change, band = request.least / 100, request.band / 100
    if not 0 < min_change <= band < 1:
        raise UsageError(
            f"--least {request.least:g} and --band {request.band:g} (per cent): expected 0 < least ≤ band < 100",
            "The defaults are 1 and 3.",
        )
    if request.allow < 0:
        raise UsageError(f"--allow {request.allow:g}: expected a percentage, 0 or more", "Leave it out to use --band.")
    if not 0 <= request.least_work < 100:
        raise UsageError(
            f"--least-work {request.least_work:g}: expected a percentage from 0 to 100", "Leave it out for 0.001."
        )
    if request.seed < 0:
        raise UsageError(f"--seed {request.seed}: expected 0 or more", "Any number will do.")
    rules = Rules(
        alpha=DEFAULT_ALPHA,
        looks=plan_looks(DEFAULT_ALPHA).looks,
        least=min_change,
        band=band,
        allow=(request.allow or request.band) / 100,
        budget_seconds=60 * request.budget,
        seed=request.seed,
        least_work=request.least_work / 100,
        outside=(max(OUTSIDE_MARGIN.share, request.least_work / 100), int(OUTSIDE_MARGIN.amount)),
        replace_disturbed=execution.replaces_disturbed,
    )
    return CompareSettings(request.metric, rules, make_round_settings(request, local=local))


def add_work(verdict: ModelVerdict, work: WorkVerdict) -> ModelVerdict:
    """Add to the reason what the work says; a difference that it does not explain must exceed that of A with A."""
    comparison = verdict.comparison
    change = f"({work.change_by_part}){f' as compiled for {work.cpu}' if work.cpu else ''}"
    word, expected = ("more", Work.MORE) if verdict.verdict == TimeVerdict.SLOWER else ("fewer", Work.LESS)
    if comparison and comparison.differs and work.verdict != expected:
        note = f"B executes no {word} instructions {change}: layout, caches, frequency"
        if verdict.control:
            comparison = check_against_control(comparison, verdict.control, by_interval=True)
    elif verdict.verdict != TimeVerdict.INCONCLUSIVE:
        return verdict
    elif work.verdict == Work.SAME:
        note = f"the {work.verdict} {change}: the counted code does no more"
    else:
        note = f"{work.verdict} {change}"
    if comparison is None:
        return replace(verdict, failure=f"{verdict.failure}; {note}")
    comparison = replace(comparison, reason=f"{comparison.reason}; {note}")
    return replace(verdict, comparison=comparison, is_contradicted=verdict.is_contradicted and comparison.differs)


def _count_dispatches(
    sides: tuple[ComparisonSide, ComparisonSide], chain: str, work: WorkVerdict
) -> DispatchComparison:
    """Compare the dispatches of a model that was counted on both sides, in a profile that has instructions, not ns.

    All dispatches that do more are listed, the work outside of dispatches, the largest decreases, and the largest
    changes of dispatches that only one side has.
    """
    if work.outside is None:
        return DispatchComparison(reason="the CPU's own counter cannot tell dispatches apart; --counter valgrind can")
    a, b = (read_counts(Path(side.counts[chain].find_output("counts"))) for side in sides)
    rises = {name for part in work.parts for name in part.more}
    drops = [name for part in work.parts for name in part.less][:_MAX_DECREASES]
    changes = match_dispatches(a.profile, b.profile)
    names = {*rises, *drops, *(row.name for row in changes.select_main_changes())}
    relevant = [row for row in changes.changes if row.match == Match.OUTSIDE or row.name in names]
    difference = describe_difference(changes, sorted(relevant, key=lambda row: row.match == Match.OUTSIDE))
    sources = [{name: source for name, _, source in counts.dispatches} for counts in (a, b)]
    rows = []
    for row in difference.rows:
        order = ((1, row.b_names), (0, row.a_names))
        hits = ((side, source) for side, names in order for name in names if (source := sources[side].get(name)))
        side, source = next(hits, (0, ""))
        # The module has `file:line` relative to the compile's folder; show a path that readers can open.
        file, colon, line = source.rpartition(":")
        path = Path(sides[side].counts[chain].find_input("program").path).parent / file
        if file and path.is_file():
            source = f"{format_path(path.resolve())}{colon}{line}"
        rows.append(replace(row, name=_OUTSIDE if row.match == Match.OUTSIDE else row.name, place=source))
    return DispatchComparison(unit="instructions", difference=replace(difference, rows=tuple(rows)))
