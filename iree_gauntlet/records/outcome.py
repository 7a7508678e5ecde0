"""The result of a run: the journal's record, judged and put in order.

The same record always gives the same outcome: no clock, file or process is used. Runs that were killed, or are still
running, have outcomes too; their missing results become errors.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from typing import TYPE_CHECKING

from iree_gauntlet.cases import COUNTED, VERDICTS, Golden, Origin, Quarantine, Verdict, exit_code_of
from iree_gauntlet.errors import ExitCode
from iree_gauntlet.formatting import format_duration, join_lines, list_first, pluralize
from iree_gauntlet.journal_events import EndEvent, MachineInfo, RunTarget, ToolchainInfo
from iree_gauntlet.recorded import UNRECORDED
from iree_gauntlet.results import Result, find_unapplied_goldens
from iree_gauntlet.stages import FailureKind, Stage
from iree_gauntlet.steps import BATCH_MODEL
from iree_gauntlet.variants import name_variants

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from iree_gauntlet.journal_format import JournalRecord
    from iree_gauntlet.steps import Step


_RESULT_FIELDS = tuple(attribute.name for attribute in fields(Result))
_PLANNED_FIELDS = (
    *("id", "chain", "dialect", "model", "submodel", "target", "sku", "stage"),
    *("flags", "device", "goldens", "idle_goldens", "origin", "quarantine"),
)
_ENVIRONMENT_NOTE = re.compile(r"shared cache .* is not|not put into the shared cache|\.tar is not used|the mirror[: ]")
_MAX_ENVIRONMENT_NOTES = 5
_MAX_WORKERS, _MAX_EXCUSED = 8, 3
_MAX_CHAINS_IN_FULL, _MAX_LONG_STAGES = 200, 2


@dataclass(frozen=True, slots=True)
class Explanation:
    """The findings of `explain` about a step that failed.

    Attributes:
        answer: the first wrong dispatch, or the reason why there is none, in one line.
        mended_by: the switches with which the step passes.
        bundle: an archive that reproduces the failure, as a path in the run's folder; empty if there is none.
    """

    answer: str
    mended_by: tuple[str, ...] = ()
    bundle: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome(Result):
    """The result of one step, with its plan.

    A step without a result is judged by the end of the run. The notes are those of the plan and of the result. If the
    result has no command, the command is the planned one.

    Attributes:
        diagnosis: the reason as the tool printed it.
        role: the role of the step's module; empty for the main module.
        behind: the id of the step whose bad result prevented this step; empty if there is none.
        unfinished: True if the journal has no result of this step.
        never_started: True if the journal has neither a start nor a result of this step.
        started: the start, ISO 8601; empty if unknown.
        flags: the process's flags, without its binary.
        explanation: None if no explanation was requested.
        quarantine: the suite's entry for the step, perhaps no longer in force; None without one.
    """

    id: str
    chain: str
    dialect: str
    model: str
    submodel: str
    target: str
    sku: str
    stage: Stage
    role: str
    diagnosis: str = field(default="", metadata=UNRECORDED)
    behind: str = ""
    unfinished: bool
    never_started: bool
    started: str
    ran: bool
    flags: tuple[str, ...]
    device: str
    goldens: tuple[Golden, ...]
    idle_goldens: tuple[Golden, ...]
    origin: Origin
    explanation: Explanation | None = None
    quarantine: Quarantine | None = None

    @property
    def name(self) -> str:
        """The stage, with the module's role unless it is the main module: `compile`, `compile.pipeline`."""
        return f"{self.stage}.{self.role}" if self.role else self.stage

    @property
    def is_for_count(self) -> bool:
        """True if the step counts instructions, or compiles the separate module for counting."""
        return self.stage is Stage.COUNT or self.role.rpartition(".")[2] == COUNTED

    @property
    def unapplied_goldens(self) -> tuple[Golden, ...]:
        """The goldens whose figure was measured but not compared with any golden."""
        return find_unapplied_goldens((*self.goldens, *self.idle_goldens), self.checks, self.sku)

    def select_attempt(self, attempt: Result) -> StepOutcome:
        """Return the outcome as it would be if one of its attempts had been the only one."""
        fields_of_attempt = {name: getattr(attempt, name) for name in _RESULT_FIELDS}
        return replace(self, **fields_of_attempt, diagnosis=attempt.reason)

    @property
    def title(self) -> str:
        """The title for people: `ocr/classifier@cpu threshold`."""
        return f"{self.chain} {self.name}"


@dataclass(frozen=True, slots=True)
class CacheCount:
    """The numbers of hits and misses of a cache."""

    hits: int
    misses: int


@dataclass(frozen=True, slots=True)
class ChainOutcome:
    """One model/submodel on one target, with the steps in plan order."""

    id: str
    dialect: str
    model: str
    submodel: str
    target: str
    sku: str
    steps: tuple[StepOutcome, ...]

    @property
    def is_batch(self) -> bool:
        """True if the chain is one compile of many cases' programs, and not a case itself."""
        compiles = all(step.stage is Stage.COMPILE and not step.command for step in self.steps)
        return self.model == BATCH_MODEL and compiles

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of the chain's steps; skipped if only fetches ran."""
        decisive = [step for step in self.steps if not (step.stage.row.fetches and step.verdict is Verdict.PASSED)]
        return Verdict.worst(step.verdict for step in decisive or self.steps)


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """The result of a run.

    Attributes:
        state: `complete`, `interrupted`, or `unfinished` (killed, or still running).
        has_truncated_line: True if the journal's last line was truncated and so is ignored.
        seconds: the wall time, summed over the parts of a resumed run.
        tool_seconds: the wall time inside IREE's tools, summed over steps (steps may run at the same time).
        remarks: notes about the record itself that a reader needs, one line each.
        workers: the machines of a cluster that took part, by the worker's name.
        markers: the marker expression that selected the tests.
        warnings: the remarks that are warnings.
        variant: the names of the variants that changed the models' flags; empty for the specs' flags.
    """

    run: str
    suite: str
    version: str
    command: str
    cwd: str
    started: str
    targets: tuple[RunTarget, ...]
    toolchain: ToolchainInfo
    machine: MachineInfo
    chains: tuple[ChainOutcome, ...]
    exit_code: ExitCode
    state: str
    resumed: int
    has_truncated_line: bool
    seconds: float
    tool_seconds: float
    compiles: CacheCount
    imports: CacheCount
    downloads: CacheCount
    remarks: tuple[str, ...]
    markers: str
    workers: dict[str, MachineInfo]
    made_inputs: int
    warnings: tuple[str, ...] = ()
    variant: str = ""

    @property
    def cases(self) -> tuple[ChainOutcome, ...]:
        """The chains that are no batches."""
        return tuple(chain for chain in self.chains if not chain.is_batch)

    @property
    def longest_stages(self) -> str:
        """The stages whose steps took longest: `compile 83.3 s, benchmark 3.75 s`."""
        seconds: dict[str, float] = defaultdict(float)
        for step in self.steps:
            seconds[step.stage] += step.seconds
        longest = sorted(seconds.items(), key=lambda entry: -entry[1])[:_MAX_LONG_STAGES]
        return ", ".join(f"{stage} {format_duration(total)}" for stage, total in longest if total)

    @property
    def has_many_chains(self) -> bool:
        """True if so many chains exist that reports show only unexpected results; `summary.json` has all results."""
        return len(self.chains) > _MAX_CHAINS_IN_FULL

    @property
    def steps(self) -> tuple[StepOutcome, ...]:
        """All steps, chain by chain in plan order."""
        return tuple(step for chain in self.chains for step in chain.steps)

    def get_timing_machine(self, chain: ChainOutcome) -> str:
        """Return the cluster machine that timed a chain; empty for the machine that started the run."""
        worker = next((step.worker for step in chain.steps if step.samples is not None), "").partition("/")[0]
        return (self.workers[worker].host if worker in self.workers else "") or worker

    @property
    def counts(self) -> dict[Verdict, int]:
        """The number of steps by verdict; every verdict is present, in a fixed order."""
        counts = Counter(step.verdict for step in self.steps)
        return {verdict: counts[verdict] for verdict in Verdict}

    @property
    def exit_meaning(self) -> str:
        """The meaning of the exit code; for 0, with the steps that failed, or did once, and are excused."""
        excused = [
            f"{step.title} ({step.verdict})"
            for step in self.steps
            if step.verdict in (Verdict.FLAKY, Verdict.QUARANTINED) and self.exit_code is ExitCode.OK
        ]
        names = list_first(excused, _MAX_EXCUSED)
        return f"{self.exit_code.meaning}, except {names}" if excused else self.exit_code.meaning

    @property
    def time(self) -> str:
        """The start, called as in the openings of all experiments."""
        return self.started

    @property
    def case_counts(self) -> Counter[Verdict]:
        """The number of cases by verdict."""
        return Counter(chain.verdict for chain in self.cases)

    @property
    def bad_steps(self) -> tuple[StepOutcome, ...]:
        """The steps that somebody has to examine."""
        return tuple(step for step in self.steps if step.verdict.is_bad)


def read_outcome(record: JournalRecord) -> RunOutcome:
    """Judge a record.

    A started step without a result is an error. A step that was never started is skipped if a step that it needs ended
    badly, or if the run stopped by itself before this step. Otherwise, a step that was never started is an error
    too.
    """
    planned_steps, opening = record.planned, record.run
    first_opening = record.runs[0] if record.runs else opening
    steps = _list_behind_failures([read_step_outcome(step, record) for step in planned_steps], planned_steps, record)
    state = get_state(record)
    # A URL that several steps fetch counts once; it counts as present if the file was there before all of them.
    present: dict[str, bool] = {}
    for file in (file for step in steps for file in step.fetched):
        present[file.url] = present.get(file.url, True) and file.cached
    generated_count = sum(not was_present for url, was_present in present.items() if url.startswith("random://"))
    chains: dict[str, list[StepOutcome]] = {}
    for step in steps:
        chains.setdefault(step.chain, []).append(step)
    return RunOutcome(
        run=opening.name or record.path.parent.name,
        suite=opening.suite,
        version=opening.version,
        command=first_opening.command,
        cwd=opening.cwd,
        started=first_opening.time,
        targets=opening.target,
        toolchain=opening.toolchain,
        machine=opening.machine,
        chains=tuple(
            ChainOutcome(chain, its[0].dialect, its[0].model, its[0].submodel, its[0].target, its[0].sku, tuple(its))
            for chain, its in chains.items()
        ),
        exit_code=_exit_code(steps, record, state),
        state=state,
        resumed=max(len(record.runs) - 1, 0),
        has_truncated_line=record.torn,
        seconds=_compute_wall_seconds(record),
        tool_seconds=sum(step.tool_seconds for step in steps),
        compiles=_make_cache_count(steps, Stage.COMPILE),
        imports=_make_cache_count(steps, Stage.IMPORT),
        downloads=CacheCount(sum(present.values()), len(present) - sum(present.values()) - generated_count),
        made_inputs=generated_count,
        remarks=_list_remarks(record, {step.id for step in planned_steps}),
        warnings=opening.warnings,
        markers=opening.markers,
        workers=record.workers,
        variant=name_variants(opening.variants),
    )


def get_state(record: JournalRecord) -> str:
    """Return `complete`, `interrupted`, or `unfinished` (killed, or still running)."""
    if record.end is None:
        return "unfinished"
    return "interrupted" if record.end.interrupted else "complete"


def format_headline(outcome: RunOutcome) -> str:
    """Return `8 cases: 1 failed, 2 errors, 5 passed; 1 golden not applied`; the worst verdict comes first."""
    verdicts = ", ".join(_format_verdicts(outcome.case_counts).values())
    text = f"{pluralize(len(outcome.cases), 'case')}: {verdicts}" if verdicts else "nothing ran"
    unapplied_count = sum(len(step.unapplied_goldens) for step in outcome.steps)
    return f"{text}; {pluralize(unapplied_count, 'golden')} not applied" if unapplied_count else text


def format_steps(outcome: RunOutcome) -> str:
    """Return `18 steps: 2 failed, 13 passed, 3 skipped (2 after a failure)`, the worst verdict first."""
    texts = _format_verdicts(outcome.counts)
    kinds = Counter(step.failure for step in outcome.steps if step.verdict is Verdict.XFAILED)
    if kind_counts := ", ".join(f"{kinds[kind]} {kind}" for kind in FailureKind if kinds[kind]):
        texts[Verdict.XFAILED] += f" ({kind_counts})"
    skipped_count = sum(bool(step.behind) for step in outcome.steps)
    text = f"{pluralize(len(outcome.steps), 'step')}: {', '.join(texts.values())}"
    return f"{text} ({skipped_count} after a failure)" if skipped_count else text


def _format_verdicts(counts: Mapping[Verdict, int]) -> dict[Verdict, str]:
    """Format the number of each verdict, the worst first: `2 failed`, `1 unexpected pass`."""
    return {verdict: verdict.format_count(counts[verdict]) for verdict in VERDICTS if counts.get(verdict)}


def format_cache_line(outcome: RunOutcome) -> str:
    """Format `compiles: 10 from cache, 0 made; files: 12 present, 0 fetched; inputs: 2 made; steps on workers: b 2`."""
    compiles, imports, downloads = outcome.compiles, outcome.imports, outcome.downloads
    parts = [f"compiles: {compiles.hits} from cache, {compiles.misses} made"]
    if imports.hits or imports.misses:
        parts.append(f"imports: {imports.hits} from cache, {imports.misses} made")
    parts.append(f"files: {downloads.hits} present, {downloads.misses} fetched")
    if outcome.made_inputs:
        parts.append(f"inputs: {outcome.made_inputs} made")
    workers = Counter(step.worker.partition("/")[0] for step in outcome.steps if step.worker)
    if workers:
        counts = [f"{name} {count}" for name, count in sorted(workers.items())]
        parts.append(
            f"steps on workers: {list_first(counts, _MAX_WORKERS)}; to repeat a command, run its model here first"
        )
    return "; ".join(parts)


def read_step_outcome(step: Step, record: JournalRecord) -> StepOutcome:
    """Combine a planned step with its results in the journal."""
    start_time = record.starts.get(step.id, "")
    recorded_result = record.results.get(step.id)
    result = recorded_result
    if result is None:
        result = replace(_judge(start_time, record), attempts=record.attempts.get(step.id, ()))
    result_fields = {name: getattr(result, name) for name in _RESULT_FIELDS}
    missing_reason = "" if result.verdict is Verdict.PASSED else f"{result.verdict}, without a reason in the journal"
    result_fields |= {
        "reason": join_lines(result.full_reason or missing_reason),
        "diagnosis": join_lines(result.reason or missing_reason),
        "command": result.command or (step.command.command_line if step.command else ""),
        "notes": tuple(dict.fromkeys((*step.notes, *result.notes))),
    }
    return StepOutcome(
        **result_fields,
        **{name: getattr(step, name) for name in _PLANNED_FIELDS},
        role=step.name.removeprefix(step.stage).removeprefix("."),
        unfinished=recorded_result is None,
        never_started=recorded_result is None and not start_time,
        started=start_time,
        ran=bool(recorded_result.command if recorded_result else start_time and step.command),
    )


def _judge(start_time: str, record: JournalRecord) -> Result:
    """Return the result of a step that has no result in the journal."""
    has_interrupt = record.end is not None and record.end.interrupted
    if start_time:
        state = "interrupted" if has_interrupt else "killed"
        return Result(Verdict.ERROR, f"the run was {state} while this step ran")
    if has_interrupt:
        return Result(Verdict.ERROR, "the run was interrupted before this step started")
    if record.end is None:
        return Result(Verdict.ERROR, "the run ended before this step started")
    return Result(Verdict.SKIPPED, "the run stopped before this step started")


def _list_behind_failures(
    steps: list[StepOutcome], planned_steps: tuple[Step, ...], record: JournalRecord
) -> list[StepOutcome]:
    """Set, for each skipped step, the step whose bad result prevented it."""
    verdicts = {step.id: step.verdict for step in steps}
    needs = {step.id: step.needs for step in planned_steps}
    planned_skips = {step.id for step in planned_steps if step.skip}

    def find_cause(step_id: str, path: frozenset[str]) -> str:
        for need in needs.get(step_id, ()):
            if need in path:
                continue
            if need in verdicts and verdicts[need].blocks:
                return need
            if verdicts.get(need) is Verdict.SKIPPED and (cause := find_cause(need, path | {need})):
                return cause
        return ""

    judged_steps = []
    for step in steps:
        cause = "" if step.id in planned_skips else find_cause(step.id, frozenset({step.id}))
        if cause and step.never_started and cause in record.results:
            reason = f"{cause} came out {verdicts[cause]}"
            judged_steps.append(replace(step, verdict=Verdict.SKIPPED, reason=reason, behind=cause))
        elif cause and step.verdict is Verdict.SKIPPED:
            judged_steps.append(replace(step, behind=cause))
        else:
            judged_steps.append(step)
    return judged_steps


def _exit_code(steps: list[StepOutcome], record: JournalRecord, state: str) -> ExitCode:
    if state == "interrupted":
        return ExitCode.INTERRUPTED
    # A merged run with missing shards is an error, because their results are unknown.
    if not record.runs or record.run.missing_shards:
        return ExitCode.ERROR
    if not steps:
        # An empty shard is fine, because other shards may have the whole selection.
        return ExitCode.OK if record.run.shard else ExitCode.NOTHING_SELECTED
    return exit_code_of((step.verdict for step in steps), flaky_passes=record.run.flaky_passes)


def _make_cache_count(steps: Iterable[StepOutcome], stage: Stage) -> CacheCount:
    lookups = [step.cache for step in steps if step.stage is stage and step.cache and step.verdict != Verdict.SKIPPED]
    hits = sum(cache.hit for cache in lookups)
    return CacheCount(hits, len(lookups) - hits)


def _compute_wall_seconds(record: JournalRecord) -> float:
    """Compute the wall time of a run in seconds: from each opening to the last event before the next one."""
    # The time between a kill and the resume does not count. The last part's time is in its `end` event, if there is
    # one; that time is from a monotonic clock, and the other times are from the wall clock.
    begins = _read_times(run.time for run in record.runs)
    end = record.end or EndEvent()
    times = _read_times((*record.starts.values(), *record.result_times.values(), end.time))
    total = 0.0
    for begin, following in zip(begins, [*begins[1:], None], strict=False):
        part_times = [time for time in times if time >= begin and (following is None or time < following)]
        measured_seconds = end.seconds if following is None else None
        total += (
            measured_seconds
            if measured_seconds is not None
            else (max(part_times, default=begin) - begin).total_seconds()
        )
    return total


def _read_times(texts: Iterable[str]) -> list[datetime]:
    """Read times (ISO 8601 with a zone); empty texts are left out."""
    return [datetime.fromisoformat(text) for text in texts if text]


def list_lock_remarks(folder: str) -> list[str]:
    """Describe the folder of the machine's locks in a record; return an empty list for the user's own folder."""
    if not folder:
        return []
    return [f"the machine's locks are in {folder}: times may overlap with those of runs with other locks"]


def list_record_remarks(kind: str, name: str, parts: int, end: EndEvent | None, *, torn: bool) -> list[str]:
    """List notes about how a record was written; `parts` is the number of openings in the record."""
    remarks = []
    if not parts:
        remarks.append(f"the {name} has no plan: its first line is missing")
    elif end is None:
        remarks.append(f"the {name} has no end: the {kind} was killed, or is still running")
    elif end.interrupted:
        remarks.append(f"the {kind} was interrupted")
    elif end.stopped:
        remarks.append(f"the {kind} stopped before its end: {end.stopped}")
    if torn:
        remarks.append(f"a line of the {name} was truncated by a crash; it is ignored")
    if parts > 1:
        remarks.append(f"the {kind} was resumed {'once' if parts == 2 else f'{parts - 1} times'}")
    return remarks


def _list_remarks(record: JournalRecord, planned_ids: set[str]) -> tuple[str, ...]:
    remarks = list_record_remarks("run", "journal", len(record.runs), record.end, torn=record.torn)
    if len(record.runs) > 1:
        remarks[-1] += "; the results of all its parts are counted"
    remarks += [*record.run.warnings, *record.run.remarks, *list_lock_remarks(record.run.lock_folder)]
    remarks += dict.fromkeys(record.remarks)
    unplanned_results = sorted(set(record.results) - planned_ids)
    if unplanned_results and record.runs:
        noun = "a step" if len(unplanned_results) == 1 else f"{len(unplanned_results)} steps"
        remarks.append(f"results of {noun} that the last plan no longer has are left out: {unplanned_results[0]}…")
    # Show problems of mirrors and the shared cache here, because a run continues without them if they fail.
    notes = dict.fromkeys(
        note for result in record.results.values() for note in result.notes if _ENVIRONMENT_NOTE.search(note)
    )
    remarks += list(notes)[:_MAX_ENVIRONMENT_NOTES]
    if len(notes) > _MAX_ENVIRONMENT_NOTES:
        remarks.append(f"{len(notes) - _MAX_ENVIRONMENT_NOTES} more of this kind are in the journal")
    return tuple(remarks)
