"""`compare A B`: is one IREE faster than another, model by model, and where not."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet import messages
from iree_gauntlet.engine.profiling import describe_difference
from iree_gauntlet.engine.rounds.blocks import PairEvidence, evidence_of
from iree_gauntlet.engine.rounds.machine_lock import WaitCancelledError
from iree_gauntlet.engine.session import open_session
from iree_gauntlet.errors import ExitCode, NothingSelectedError, ToolchainError, UsageError
from iree_gauntlet.experiments.experiment import Experiment
from iree_gauntlet.experiments.run import choose
from iree_gauntlet.experiments.session_verdicts import (
    Comparer,
    CompareSettings,
    ModelVerdict,
    Rules,
    judge,
    next_look,
    summarise_verdicts,
)
from iree_gauntlet.experiments.sides import (
    DIFFERENT,
    ComparingMachines,
    PreparedSide,
    RoundsLog,
    explain_differences,
    find_changed,
    find_compile_changes,
    find_gone,
    pair_of,
    prepare_side,
    rounds_asked,
    units_of,
    unready,
)
from iree_gauntlet.figures import METRICS, OUTSIDE_MARGIN, Figure
from iree_gauntlet.journal_events import KeptOptions
from iree_gauntlet.measuring.instructions.counters import find_counter, read_counts
from iree_gauntlet.measuring.instructions.work import Work, combine_work, judge_parts
from iree_gauntlet.measuring.machine.machine_state import read_machine_facts
from iree_gauntlet.measuring.profiles.dispatch_profile import Match, match_dispatches
from iree_gauntlet.measuring.statistics.comparison_verdict import TimeVerdict
from iree_gauntlet.measuring.statistics.rounds import DEFAULT_ALPHA, plan_looks
from iree_gauntlet.records.compare_record import (
    COMPARISON,
    SIDES,
    ComparedDispatches,
    ComparisonOpening,
    ComparisonSummary,
    ComparisonVerdict,
    PreparedComparison,
    RecordedRounds,
    RecordedSide,
    SideBenchmark,
    WhereChanged,
    WorkVerdict,
)
from iree_gauntlet.requests import CompareRequest, RunRequest, given, read
from iree_gauntlet.settings import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from iree_gauntlet.engine.session import Session
    from iree_gauntlet.experiments.run import Chosen
    from iree_gauntlet.journal_format import JournalEvent
    from iree_gauntlet.progress import Presenter
    from iree_gauntlet.records.event_log import EventLog
    from iree_gauntlet.requests import ConductRequest
    from iree_gauntlet.steps import Step


# What may differ in a resumed comparison: the rest stays, as other values would make two sessions of one.
_TAKEN_ANEW = ("budget", "iree", "shard", "shard_costs", "batch")
# What stays as it was unless a resumed comparison asks for something else: blocks that count stay as they are.
_MAY_CHANGE = ("disturbed",)
_CODES = {
    "error": ExitCode.ERROR,
    str(TimeVerdict.SLOWER): ExitCode.FAILED,
    str(TimeVerdict.INCONCLUSIVE): ExitCode.INCONCLUSIVE,
}
_WITHOUT_FMA = ",-fma"
# Dispatches that do less, of a model.
_MOST_LESS = 10
_OUTSIDE = "outside of dispatches (the runtime, and what dispatches call of the C library)"


def compare(
    asked: CompareRequest, request: RunRequest, presenter: Presenter, machines: ComparingMachines | None = None
) -> ExitCode:
    """Compares two IREEs over a selection, on this machine or on others.

    Raises:
        GauntletError: what keeps a side from being run; UsageError for options that make no sense.
    """
    experiment = Experiment.find(COMPARISON, request.folder)
    if experiment.record:
        begun = experiment.record.opening
        if begun.elsewhere != (machines is not None):
            here = "this machine", "Leave --cluster out"
            where, how = ("a cluster", "Give --cluster") if begun.elsewhere else here
            raise UsageError(f"{shown(experiment.folder)} was begun on {where}", f"{how} to go on with it.")
        now = given((asked, request.selection, request.toolchain, request.conduct))
        before = experiment.keep_options(now, _MAY_CHANGE)
        budget = {} if "budget" in now else {"budget": begun.rules.budget_seconds / 60}
        asked, request = read(CompareRequest, asdict(asked) | budget | before), request.with_kept(before)
    names = asked.sides
    if len(names) != len(SIDES):
        raise UsageError(
            f"compare takes two IREEs, not {len(names)}",
            "Such as: compare 3.12.0 3.13.0 --model dtln, or compare installed build:../iree-build --suite cpu.",
        )
    settings = compare_settings(asked, request.conduct, here=machines is None)
    # A typing mistake is reported, and what is missing installed, before hours of work.
    chosen = _choose(request, asked, machines)
    benches = [chosen.workbench(name) for name in names]
    earlier = experiment.record.events if experiment.record else []
    kept = {name: value for name, value in (asdict(asked) | request.kept).items() if name not in _TAKEN_ANEW}
    kept["disturbed"] = request.conduct.disturbed
    opening = ComparisonOpening(
        sides={side: RecordedSide(asked=text, folder=side.lower()) for side, text in zip(SIDES, names, strict=True)},
        kept=KeptOptions(kept),
        rules=settings.rules,
        rounds=RecordedRounds(**asdict(settings.rounds)),
        machine=read_machine_facts(),
        elsewhere=machines is not None,
    )
    with experiment.open(presenter, opening) as log:
        sides: list[PreparedSide] = []
        for name, text, machine in zip(SIDES, names, benches, strict=True):
            sides.append(prepare_side(name, machine, text, chosen, experiment.folder / name.lower(), presenter))
            if sides[-1].interrupted:
                experiment.code = ExitCode.INTERRUPTED
                break
        else:
            comparison = _Comparison(asked, chosen, settings, (sides[0], sides[1]), log, presenter)
            if settings.metric == "instructions":
                experiment.code = comparison.count(earlier)
            else:
                experiment.code = comparison.measure(experiment.folder, earlier, machines)
    return experiment.code


@dataclass(frozen=True, slots=True)
class _Comparison:
    """A comparison whose sides have run; what comes of it goes into the log."""

    asked: CompareRequest
    chosen: Chosen
    settings: CompareSettings
    sides: tuple[PreparedSide, PreparedSide]
    log: EventLog
    presenter: Presenter

    def count(self, earlier: Sequence[JournalEvent]) -> ExitCode:
        """Holds the counts of both sides against each other."""
        steps, left_out = _make_ready(*self.sides, self.settings.metric)
        left_out |= find_gone((*steps, *left_out), earlier)
        verdicts = self._judge_counts(steps)
        for chain in steps.keys() - verdicts.keys():
            left_out[chain] = "its sides were counted by different counters: begin a new comparison"
        self._write_prepared(verdicts, left_out, {})
        verdicts = self._count_with_fma(verdicts)
        for chain, found in verdicts.items():
            self.log.write("result", ComparisonVerdict(work=replace(found, reason="")), step=chain)
        counts = {str(kind): sum(found.verdict == kind for found in verdicts.values()) for kind in Work}
        self.log.write("summary", ComparisonSummary(verdicts=counts))
        for chain, found in verdicts.items():
            if found.verdict != Work.SAME:
                loaded = [[side.counts[chain].input("program").path] for side in self.sides]
                # Without their sizes: that of a module that is made for a count is no one's.
                compiled = find_compile_changes([side.tools for side in self.sides], loaded, sized=False)
                dispatches = _count_dispatches(self.sides, chain, found)
                self.log.write("where", WhereChanged(dispatches=dispatches, compile=compiled), step=chain)
        codes = [ExitCode.ERROR for _ in left_out]
        codes += [ExitCode.FAILED for found in verdicts.values() if found.verdict == Work.MORE]
        return ExitCode.worst(codes)

    def measure(self, folder: Path, earlier: Sequence[JournalEvent], machines: ComparingMachines | None) -> ExitCode:
        """Takes the rounds, here or on other machines, judges them and says where B is slower."""
        metric, rules = self.settings.metric, self.settings.rules
        steps, left_out = _make_ready(*self.sides, metric)
        left_out |= find_changed(self.sides, earlier) | find_gone((*steps, *left_out), earlier)
        steps = {chain: both for chain, both in steps.items() if chain not in left_out}
        benchmarks = {
            chain: {
                side.name: SideBenchmark(timeout=step.timeout, command=step.process, resources=step.resources)
                for side, step in zip(self.sides, both, strict=True)
            }
            for chain, both in (steps.items() if metric == "time" else ())
        }
        self._write_prepared(steps, left_out, benchmarks)
        measured = evidence_of(earlier)
        with self.presenter.progress() as progress, open_session(folder, self.log, progress) as session:
            try:
                with session.interruptible():
                    if machines is None:
                        verdicts = self._measure_here(steps, session, measured)
                    else:
                        rounds = RoundsLog(session, rules, measured, earlier)
                        verdicts = self._measure_elsewhere(steps, rounds, machines)
            except (KeyboardInterrupt, WaitCancelledError):
                # What was measured says something, if not all that it could have said.
                begun = {chain: found for chain, found in measured.items() if chain in steps and found.blocks}
                self._write_verdicts(judge(begun, rules, "interrupted"))
                where = "" if machines is None else " --cluster …"
                progress.message(f"interrupted; `compare --resume{where}` continues it")
                return ExitCode.INTERRUPTED
        codes = [ExitCode.ERROR for _ in left_out]
        return ExitCode.worst([*codes, *(_CODES.get(item.verdict, ExitCode.OK) for item in verdicts.values())])

    def _measure_here(
        self, steps: Mapping[str, tuple[Step, Step]], session: Session[Any], measured: dict[str, PairEvidence]
    ) -> dict[str, ModelVerdict]:
        settings, (a, b) = self.settings, self.sides
        pairs = [pair_of(chain, both, settings.metric, settings.rounds) for chain, both in steps.items()]
        verdicts = judge(Comparer(session, settings.rules).run(pairs, measured), settings.rules)
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
        # What the time did not suffice for is measured again as a whole: rounds of two machines are no one's.
        decided = {chain for chain, found in rounds.evidence.items() if next_look(found, rules) is None}
        waiting, made = units_of((both for chain, both in steps.items() if chain not in decided), self.sides)
        if waiting:
            with machines.comparing(self.chosen, self.asked, self.sides, rounds.session.progress) as elsewhere:
                elsewhere.measure(waiting, made, rounds)
        verdicts = judge({chain: rounds.evidence[chain] for chain in steps}, rules)
        self._write_verdicts(verdicts)
        for chain, verdict in verdicts.items():
            if verdict.verdict in DIFFERENT and chain in rounds.where:
                self.log.write("where", rounds.where[chain], step=chain)
        return verdicts

    def _write_prepared(
        self, models: Iterable[str], left_out: dict[str, str], benchmarks: dict[str, dict[str, SideBenchmark]]
    ) -> None:
        sides = {
            side.name: RecordedSide(asked=side.asked, folder=side.folder.name, toolchain=side.toolchain)
            for side in self.sides
        }
        prepared = PreparedComparison(sides=sides, models=tuple(models), left_out=left_out, benchmarks=benchmarks)
        self.log.write("prepared", prepared)

    def _write_verdicts(self, verdicts: Mapping[str, ModelVerdict]) -> dict[str, WorkVerdict]:
        """With the work beside the times, where it was counted."""
        works = self._judge_counts(verdicts)
        for chain, verdict in verdicts.items():
            event = verdict.record()
            if work := works.get(chain):
                event = replace(event, work=work)
                if verdict.verdict == TimeVerdict.INCONCLUSIVE:
                    made = f" as compiled for {work.cpu}" if work.cpu else ""
                    change = f"{work.verdict} ({work.change_by_part}){made}"
                    same = f"the {change}: the code that was counted does no more"
                    more = same if work.verdict == Work.SAME else change
                    event = replace(event, reason=f"{event.reason}; {more}")
            self.log.write("result", ComparisonVerdict(times=event), step=chain)
        self.log.write("summary", summarise_verdicts(verdicts))
        return works

    def _judge_counts(self, chains: Iterable[str], sides: Sequence[PreparedSide] = ()) -> dict[str, WorkVerdict]:
        """What the counts say of each model whose instructions were counted on both sides."""
        sides = sides or self.sides
        found = {}
        for chain in chains:
            steps = [side.counts[chain] for side in sides if chain in side.counts]
            if len(steps) < len(sides) or any(map(unready, sides, steps)):
                continue
            figures = [side.record.results[step.id].statistics for side, step in zip(sides, steps, strict=True)]
            # Two kinds of counters, or modules for two CPUs, have nothing to do with each other.
            kinds = {(str(item["counter"]), str(item["cpu"])) for item in figures}
            if len(kinds) == 1:
                a, b = (read_counts(Path(step.output("counts"))) for step in steps)
                runtimes = {dict(step.cache.ingredients).get("tool") for step in steps}
                least = self.settings.rules.least_work
                parts = judge_parts(a, b, least, same_runtime=len(runtimes) == 1)
                counter, cpu = kinds.pop()
                found[chain] = WorkVerdict(
                    verdict=combine_work(parts),
                    instructions=dict(zip(SIDES, (a.instructions, b.instructions), strict=True)),
                    ratio=b.instructions / a.instructions,
                    counter=counter,
                    cpu=cpu,
                    # Where dispatches are known, so is what lies outside of them.
                    outside=b.outside - a.outside if a.dispatches or b.dispatches else None,
                    parts=parts,
                )
        return found

    def _count_with_fma(self, verdicts: dict[str, WorkVerdict]) -> dict[str, WorkVerdict]:
        """The same verdicts, with counts of modules that have fused multiply-adds where the work has changed.

        That is other code, which takes valgrind up to twenty times as long.
        """
        changed = {chain for chain, found in verdicts.items() if found.verdict != Work.SAME}
        cpus = {verdicts[chain].cpu for chain in changed}
        request = self.chosen.request
        if not changed or request.conduct.count_cpu or not all(cpu.endswith(_WITHOUT_FMA) for cpu in cpus):
            return verdicts
        self.presenter.line(
            "\nthe work has changed: counting again with fused multiply-adds, which takes valgrind long"
        )
        conduct = replace(request.conduct, count_cpu=cpus.pop().removesuffix(_WITHOUT_FMA))
        chosen = replace(self.chosen, request=replace(request, conduct=conduct, chains=frozenset(changed)))
        again: list[PreparedSide] = []
        for side in self.sides:
            name, folder = f"{side.name} with FMA", side.folder.with_name(f"{side.folder.name}-fma")
            again.append(prepare_side(name, side.machine, side.asked, chosen, folder, self.presenter))
            if again[-1].interrupted:
                raise KeyboardInterrupt
        counts = self._judge_counts(changed, again)
        fused = {chain: replace(verdicts[chain], with_fma=found.instructions) for chain, found in counts.items()}
        return verdicts | fused


def _make_ready(a: PreparedSide, b: PreparedSide, metric: str) -> tuple[dict[str, tuple[Step, Step]], dict[str, str]]:
    """The steps of both sides that can be measured, by chain, and why the rest cannot."""
    sides = tuple((side, side.measured[metric]) for side in (a, b))
    ready: dict[str, tuple[Step, Step]] = {}
    left_out: dict[str, str] = {}
    for chain in sorted({chain for _, steps in sides for chain in steps}):
        reasons = [f"{side.name} has no such step" for side, steps in sides if chain not in steps][:1]
        if not reasons:
            reasons = [f"{side.name}: {reason}" for side, steps in sides if (reason := unready(side, steps[chain]))]
        if reasons:
            left_out[chain] = "; ".join(reasons)
        else:
            ready[chain] = (sides[0][1][chain], sides[1][1][chain])
    return ready, left_out


def _choose(request: RunRequest, asked: CompareRequest, machines: ComparingMachines | None) -> Chosen:
    """What is run with each side; raises where there is nothing to compare."""
    chosen = choose(request, machines)
    measured = METRICS[asked.metric].row.stage
    if Figure.COMPILE_TIME.row.stage not in chosen.stages:
        raise UsageError("a comparison compiles, and this suite does not", "Take another suite, or name models.")
    if not any(case.kind in measured.row.kinds for case in chosen.selection.cases.cases):
        raise NothingSelectedError(
            "the selection has no benchmark to compare", "`list` shows which models have one; or --metric compile-time."
        )
    if asked.metric == "instructions":
        if machines is not None:
            raise UsageError("--metric instructions counts on this machine", "Leave --cluster out.")
        find_counter(request.conduct.counter, request.conduct.count_cpu)
        return replace(chosen, stages=(measured,))
    stages = chosen.stages
    if asked.metric == "time":
        if not asked.no_work and machines is None:
            try:
                find_counter(request.conduct.counter, request.conduct.count_cpu)
                stages = (*stages, Figure.CALL_INSTRUCTIONS.row.stage)
            except ToolchainError as why_not:
                messages.note(f"the work is not counted beside the times: {why_not.what}")
        stages = (*stages, measured)
    return replace(chosen, stages=tuple(dict.fromkeys(stages)))


def compare_settings(asked: CompareRequest, conduct: ConductRequest, *, here: bool) -> CompareSettings:
    """How rounds are taken and judged; `here`: on this machine, whose CPUs are known."""
    least, band = asked.least / 100, asked.band / 100
    if not 0 < least <= band < 1:
        raise UsageError(
            f"--least {asked.least:g} and --band {asked.band:g} (per cent): expected 0 < least ≤ band < 100",
            "The defaults are 1 and 3.",
        )
    if asked.allow < 0:
        raise UsageError(f"--allow {asked.allow:g}: expected per cent, 0 or more", "Leave it out for that of --band.")
    if not 0 <= asked.least_work < 100:
        raise UsageError(
            f"--least-work {asked.least_work:g}: expected per cent, from 0 to 100", "Leave it out for 0.001."
        )
    if asked.seed < 0:
        raise UsageError(f"--seed {asked.seed}: expected 0 or more", "Any number will do.")
    rules = Rules(
        alpha=DEFAULT_ALPHA,
        looks=plan_looks(DEFAULT_ALPHA).looks,
        least=least,
        band=band,
        allow=(asked.allow or asked.band) / 100,
        budget_seconds=60 * asked.budget,
        seed=asked.seed,
        least_work=asked.least_work / 100,
        outside=(max(OUTSIDE_MARGIN.share, asked.least_work / 100), int(OUTSIDE_MARGIN.amount)),
        replace_disturbed=conduct.replaces_disturbed,
    )
    return CompareSettings(asked.metric, rules, rounds_asked(asked, here=here))


def _count_dispatches(sides: tuple[PreparedSide, PreparedSide], chain: str, work: WorkVerdict) -> ComparedDispatches:
    """The dispatches of a model that was counted on both sides: as of a profile, with instructions in place of ns.

    Each that does more is listed, and what lies outside of dispatches; of those that do less the largest changes.
    """
    if work.outside is None:
        return ComparedDispatches(
            reason="the CPU's own counter does not know dispatches; --counter valgrind counts each"
        )
    a, b = (read_counts(Path(side.counts[chain].output("counts"))) for side in sides)
    more = {name for part in work.parts for name in part.more}
    less = [name for part in work.parts for name in part.less][:_MOST_LESS]
    changes = match_dispatches(a.profile, b.profile)
    listed = [row for row in changes.changes if row.match == Match.OUTSIDE or row.name in more or row.name in less]
    difference = describe_difference(changes, sorted(listed, key=lambda row: row.match == Match.OUTSIDE))
    places = [{name: place for name, _, place in counts.dispatches} for counts in (a, b)]
    rows = []
    for row in difference.rows:
        named = ((1, row.b_names), (0, row.a_names))
        found = ((side, place) for side, names in named for name in names if (place := places[side].get(name)))
        side, place = next(found, (0, ""))
        # `file:line` of a program, which stands in the module from the folder of its compile, as one would open it.
        file, colon, line = place.rpartition(":")
        path = Path(sides[side].counts[chain].input("program").path).parent / file
        if file and path.is_file():
            place = f"{shown(path.resolve())}{colon}{line}"
        rows.append(replace(row, name=_OUTSIDE if row.match == Match.OUTSIDE else row.name, place=place))
    return ComparedDispatches(unit="instructions", difference=replace(difference, rows=tuple(rows)))
