"""The result of a run: the journal's record, judged and put in order.

Pure: the same record gives the same outcome, and no clock, file or process is looked at. A run that was
killed, or is still under way, has an outcome like any other; what is missing shows as errors.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from typing import TYPE_CHECKING

from iree_gauntlet.cases import COUNTED, VERDICTS, Golden, Origin, Verdict, exit_code_of
from iree_gauntlet.errors import ExitCode
from iree_gauntlet.formatting import counted, listed, one_line
from iree_gauntlet.journal_events import EndEvent, MachineFacts, RunTarget, ToolchainFacts
from iree_gauntlet.recorded import UNRECORDED
from iree_gauntlet.results import Result, find_unapplied
from iree_gauntlet.stages import FailureKind, Stage
from iree_gauntlet.steps import BATCH_MODEL

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from iree_gauntlet.journal_format import JournalRecord
    from iree_gauntlet.steps import Step


_RESULT = tuple(item.name for item in fields(Result))
_PLANNED = (
    *("id", "chain", "dialect", "model", "submodel", "target", "sku", "stage"),
    *("flags", "device", "goldens", "idle_goldens", "origin"),
)
_ENVIRONMENT = re.compile(r"shared cache .* is not|not put into the shared cache|\.tar is not used|the mirror[: ]")
_MOST_ENVIRONMENT = 5
_MOST_WORKERS = 8
_MANY_CHAINS = 200


@dataclass(frozen=True, slots=True)
class Explanation:
    """What `explain` found out about a step that failed.

    Attributes:
        answer: in a line: the first wrong dispatch, or why there is none.
        mended_by: the switches with which it passes.
        bundle: an archive that shows it, by its path in the run's folder; empty where there is none.
    """

    answer: str
    mended_by: tuple[str, ...] = ()
    bundle: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome(Result):
    """The result of one step, with what was planned.

    The verdict of a step without a result is judged by how its run ended; notes are those of the plan and of the
    result; the command is what was planned where the result has none.

    Attributes:
        diagnosis: the reason as the tool says it.
        role: the module that it is about; empty for the main one.
        behind: id of the step whose coming out badly kept this one from running, else empty.
        unfinished: the journal has no result of it.
        never_started: the journal has no start of it either.
        started: ISO 8601, empty where it never was.
        flags: of the process, without its binary.
        explanation: None where that was not asked.
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

    @property
    def name(self) -> str:
        """Stage, with the role of a module other than the main one: `compile`, `compile.pipeline`."""
        return f"{self.stage}.{self.role}" if self.role else self.stage

    @property
    def of_count(self) -> bool:
        """Whether it counts instructions, or compiles for that: another module than the one that is run."""
        return self.stage.row.beside is not None or self.role.rpartition(".")[2] == COUNTED

    @property
    def unapplied_goldens(self) -> tuple[Golden, ...]:
        """Goldens whose figure was measured and held against none."""
        return find_unapplied((*self.goldens, *self.idle_goldens), self.checks, self.sku)

    @property
    def title(self) -> str:
        """What people read: `ocr/classifier@cpu threshold`."""
        return f"{self.chain} {self.name}"


@dataclass(frozen=True, slots=True)
class CacheCount:
    """How often a cache had what was asked of it."""

    hits: int
    misses: int


@dataclass(frozen=True, slots=True)
class ChainOutcome:
    """One model/submodel on one target; steps in plan order."""

    id: str
    dialect: str
    model: str
    submodel: str
    target: str
    sku: str
    steps: tuple[StepOutcome, ...]

    @property
    def is_batch(self) -> bool:
        """Whether it is one compile of the programs of many cases, and no case itself."""
        compiles = all(step.stage is Stage.COMPILE and not step.command for step in self.steps)
        return self.model == BATCH_MODEL and compiles

    @property
    def verdict(self) -> Verdict:
        """The worst of its steps; skipped where nothing of it ran, but that its files were fetched."""
        own = [step for step in self.steps if not (step.stage.row.fetches and step.verdict is Verdict.PASSED)]
        return Verdict.worst(step.verdict for step in own or self.steps)


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """The result of a run.

    Attributes:
        state: `complete`, `interrupted`, or `unfinished` (killed, or still under way).
        torn: whether the journal's last line was cut short (and left out).
        seconds: wall time, over all parts of a resumed run.
        tool_seconds: wall time inside IREE's tools, summed over steps (steps may run at the same time).
        remarks: what a reader must know about the record itself, one line each.
        workers: machines of a cluster that took part, by the worker's name.
        markers: the marker expression that its tests were selected by.
    """

    run: str
    suite: str
    version: str
    command: str
    cwd: str
    started: str
    targets: tuple[RunTarget, ...]
    toolchain: ToolchainFacts
    machine: MachineFacts
    chains: tuple[ChainOutcome, ...]
    exit_code: ExitCode
    state: str
    resumed: int
    torn: bool
    seconds: float
    tool_seconds: float
    compiles: CacheCount
    imports: CacheCount
    downloads: CacheCount
    remarks: tuple[str, ...]
    markers: str
    workers: dict[str, MachineFacts]
    made_inputs: int

    @property
    def cases(self) -> tuple[ChainOutcome, ...]:
        """Its chains, but for batches."""
        return tuple(chain for chain in self.chains if not chain.is_batch)

    @property
    def many(self) -> bool:
        """So many chains that reports keep to what did not come out as expected; `summary.json` has all of it."""
        return len(self.chains) > _MANY_CHAINS

    @property
    def steps(self) -> tuple[StepOutcome, ...]:
        """All steps, in plan order of their chains."""
        return tuple(step for chain in self.chains for step in chain.steps)

    def timed_on(self, chain: ChainOutcome) -> str:
        """The machine of a cluster that a chain was timed on; empty for the one that the run was started on."""
        worker = next((step.worker for step in chain.steps if step.samples is not None), "").partition("/")[0]
        return (self.workers[worker].host if worker in self.workers else "") or worker

    @property
    def counts(self) -> dict[Verdict, int]:
        """Number of steps by verdict, every verdict present, in a fixed order."""
        found = Counter(step.verdict for step in self.steps)
        return {verdict: found[verdict] for verdict in Verdict}

    @property
    def bad_steps(self) -> tuple[StepOutcome, ...]:
        """Steps that somebody has to look at."""
        return tuple(step for step in self.steps if step.verdict.is_bad)


def read_outcome(record: JournalRecord) -> RunOutcome:
    """Judge a record.

    A step that was started and has no result is an error; so is one that was never started, unless what it needs came
    out badly (then it is skipped like any other behind a failure) or the run ended by itself before it (then it is
    skipped).
    """
    planned, run = record.planned, record.run
    first = record.runs[0] if record.runs else run
    steps = _list_behind_failures([read_step_outcome(step, record) for step in planned], planned, record)
    state = state_of(record)
    # Each URL once, and whether its file was there before: several steps may ask for one file.
    present: dict[str, bool] = {}
    for file in (file for step in steps for file in step.fetched):
        present[file.url] = present.get(file.url, True) and file.cached
    made = sum(not there for url, there in present.items() if url.startswith("random://"))
    chains: dict[str, list[StepOutcome]] = {}
    for step in steps:
        chains.setdefault(step.chain, []).append(step)
    return RunOutcome(
        run=run.name or record.path.parent.name,
        suite=run.suite,
        version=run.version,
        command=first.command,
        cwd=run.cwd,
        started=first.time,
        targets=run.target,
        toolchain=run.toolchain,
        machine=run.machine,
        chains=tuple(
            ChainOutcome(chain, own[0].dialect, own[0].model, own[0].submodel, own[0].target, own[0].sku, tuple(own))
            for chain, own in chains.items()
        ),
        exit_code=_exit_code(steps, record, state),
        state=state,
        resumed=max(len(record.runs) - 1, 0),
        torn=record.torn,
        seconds=_compute_wall_seconds(record),
        tool_seconds=sum(step.tool_seconds for step in steps),
        compiles=_make_cache_count(steps, Stage.COMPILE),
        imports=_make_cache_count(steps, Stage.IMPORT),
        downloads=CacheCount(sum(present.values()), len(present) - sum(present.values()) - made),
        made_inputs=made,
        remarks=_list_remarks(record, {step.id for step in planned}),
        markers=run.markers,
        workers=record.workers,
    )


def state_of(record: JournalRecord) -> str:
    """`complete`, `interrupted`, or `unfinished` (killed, or still under way)."""
    if record.end is None:
        return "unfinished"
    return "interrupted" if record.end.interrupted else "complete"


def format_headline(outcome: RunOutcome) -> str:
    """`1 failed, 2 errors, 23 passed, 3 skipped (2 behind a failure)`; what went wrong comes first."""
    texts = format_verdicts(outcome.counts)
    kinds = Counter(step.failure for step in outcome.steps if step.verdict is Verdict.XFAILED)
    if named := ", ".join(f"{kinds[kind]} {kind}" for kind in FailureKind if kinds[kind]):
        texts[Verdict.XFAILED] += f" ({named})"
    behind = sum(bool(step.behind) for step in outcome.steps)
    text = ", ".join(texts.values()) or "nothing ran"
    text += f" ({behind} behind a failure)" if behind else ""
    unapplied = sum(len(step.unapplied_goldens) for step in outcome.steps)
    return f"{text}; {counted(unapplied, 'golden')} not applied" if unapplied else text


def format_verdicts(counts: Mapping[Verdict, int]) -> dict[Verdict, str]:
    """How many there are of each verdict: `2 failed`, `1 unexpected pass`; what went wrong comes first."""
    return {verdict: verdict.format_count(counts[verdict]) for verdict in VERDICTS if counts.get(verdict)}


def format_cache_line(outcome: RunOutcome) -> str:
    """`compiles: 10 from cache, 0 made; files: 12 present, 0 fetched; inputs: 2 made; steps on workers: box 24`."""
    compiles, imports, downloads = outcome.compiles, outcome.imports, outcome.downloads
    parts = [f"compiles: {compiles.hits} from cache, {compiles.misses} made"]
    if imports.hits or imports.misses:
        parts.append(f"imports: {imports.hits} from cache, {imports.misses} made")
    parts.append(f"files: {downloads.hits} present, {downloads.misses} fetched")
    if outcome.made_inputs:
        parts.append(f"inputs: {outcome.made_inputs} made")
    workers = Counter(step.worker.partition("/")[0] for step in outcome.steps if step.worker)
    if workers:
        named = [f"{name} {count}" for name, count in sorted(workers.items())]
        parts.append(f"steps on workers: {listed(named, _MOST_WORKERS)}; to repeat a command, run its model here first")
    return "; ".join(parts)


def read_step_outcome(step: Step, record: JournalRecord) -> StepOutcome:
    """Join a planned step with what the journal says of it."""
    started = record.starts.get(step.id, "")
    found = record.results.get(step.id)
    result = _judge(started, record) if found is None else found
    came_to = {name: getattr(result, name) for name in _RESULT}
    unexplained = "" if result.verdict is Verdict.PASSED else f"{result.verdict}, and the journal does not say why"
    came_to |= {
        "reason": one_line(result.full_reason or unexplained),
        "diagnosis": one_line(result.reason or unexplained),
        "command": result.command or (step.command.typed if step.command else ""),
        "notes": tuple(dict.fromkeys((*step.notes, *result.notes))),
    }
    return StepOutcome(
        **came_to,
        **{name: getattr(step, name) for name in _PLANNED},
        role=step.name.removeprefix(step.stage).removeprefix("."),
        unfinished=found is None,
        never_started=found is None and not started,
        started=started,
        ran=bool(found.command if found else started and step.command),
    )


def _judge(started: str, record: JournalRecord) -> Result:
    """What stands for the result of a step without one."""
    interrupted = record.end is not None and record.end.interrupted
    if started:
        how = "interrupted" if interrupted else "killed"
        return Result(Verdict.ERROR, f"the run was {how} while this step ran")
    if interrupted:
        return Result(Verdict.ERROR, "the run was interrupted before this step started")
    if record.end is None:
        return Result(Verdict.ERROR, "the run ended before this step started")
    return Result(Verdict.SKIPPED, "the run stopped before this step started")


def _list_behind_failures(
    steps: list[StepOutcome], planned: tuple[Step, ...], record: JournalRecord
) -> list[StepOutcome]:
    """Name, for each skipped step, the step whose coming out badly kept it from running."""
    verdicts = {step.id: step.verdict for step in steps}
    needs = {step.id: step.needs for step in planned}
    own_skip = {step.id for step in planned if step.skip}

    def cause_of(step_id: str, seen: frozenset[str]) -> str:
        for need in needs.get(step_id, ()):
            if need in seen:
                continue
            if need in verdicts and verdicts[need].blocks:
                return need
            if verdicts.get(need) is Verdict.SKIPPED and (cause := cause_of(need, seen | {need})):
                return cause
        return ""

    judged = []
    for step in steps:
        cause = "" if step.id in own_skip else cause_of(step.id, frozenset({step.id}))
        if cause and step.never_started and cause in record.results:
            reason = f"{cause} came out {verdicts[cause]}"
            judged.append(replace(step, verdict=Verdict.SKIPPED, reason=reason, behind=cause))
        elif cause and step.verdict is Verdict.SKIPPED:
            judged.append(replace(step, behind=cause))
        else:
            judged.append(step)
    return judged


def _exit_code(steps: list[StepOutcome], record: JournalRecord, state: str) -> ExitCode:
    if state == "interrupted":
        return ExitCode.INTERRUPTED
    # Of a merged run: nobody knows what the shards would have said that were not given.
    if not record.runs or record.run.missing_shards:
        return ExitCode.ERROR
    if not steps:
        # An empty shard is part of a whole, which other shards may be.
        return ExitCode.OK if record.run.shard else ExitCode.NOTHING_SELECTED
    return exit_code_of(step.verdict for step in steps)


def _make_cache_count(steps: Iterable[StepOutcome], stage: Stage) -> CacheCount:
    ran = [step.cache for step in steps if step.stage is stage and step.cache and step.verdict != Verdict.SKIPPED]
    hits = sum(cache.hit for cache in ran)
    return CacheCount(hits, len(ran) - hits)


def _compute_wall_seconds(record: JournalRecord) -> float:
    """Wall time of a run in seconds: from each `run` event to the last event before the next one."""
    # The time between a kill and the resume does not count. The last part's time is what its `end` event measured,
    # where there is one (a monotonic clock, where the other times are of the wall clock).
    begins = _read_times(run.time for run in record.runs)
    end = record.end or EndEvent()
    times = _read_times((*record.starts.values(), *record.result_times.values(), end.time))
    total = 0.0
    for begin, following in zip(begins, [*begins[1:], None], strict=False):
        own = [time for time in times if time >= begin and (following is None or time < following)]
        measured = end.seconds if following is None else None
        total += measured if measured is not None else (max(own, default=begin) - begin).total_seconds()
    return total


def _read_times(texts: Iterable[str]) -> list[datetime]:
    """Those that are known, ISO 8601 with a zone."""
    return [datetime.fromisoformat(text) for text in texts if text]


def lock_remark(folder: str) -> list[str]:
    """What the folder of the machine's locks says of a record; nothing where they are the user's own."""
    if not folder:
        return []
    return [f"the machine's locks are in {folder}: times may overlap with those of runs with other locks"]


def remarks_of_record(kind: str, name: str, parts: int, end: EndEvent | None, *, torn: bool) -> list[str]:
    """What a reader must know of how the record of a `kind` was written; `parts` is how often it was begun."""
    remarks = []
    if not parts:
        remarks.append(f"the {name} does not say what was to run: its first line is missing")
    elif end is None:
        remarks.append(f"the {name} has no end: the {kind} was killed, or is still under way")
    elif end.interrupted:
        remarks.append(f"the {kind} was interrupted")
    elif end.stopped:
        remarks.append(f"the {kind} stopped before its end: {end.stopped}")
    if torn:
        remarks.append(f"a line of the {name} was cut short by a crash; it is left out")
    if parts > 1:
        remarks.append(f"the {kind} was resumed {'once' if parts == 2 else f'{parts - 1} times'}")
    return remarks


def _list_remarks(record: JournalRecord, planned: set[str]) -> tuple[str, ...]:
    remarks = remarks_of_record("run", "journal", len(record.runs), record.end, torn=record.torn)
    if len(record.runs) > 1:
        remarks[-1] += "; the results of all its parts are counted"
    remarks += [*record.run.remarks, *lock_remark(record.run.lock_folder), *dict.fromkeys(record.remarks)]
    lost = sorted(set(record.results) - planned)
    if lost and record.runs:
        noun = "a step" if len(lost) == 1 else f"{len(lost)} steps"
        remarks.append(f"results of {noun} that the last plan no longer has are left out: {lost[0]}…")
    # What was wrong with mirrors and the shared cache: the run continued without them, and it would not be seen.
    notes = dict.fromkeys(
        note for result in record.results.values() for note in result.notes if _ENVIRONMENT.search(note)
    )
    remarks += list(notes)[:_MOST_ENVIRONMENT]
    if len(notes) > _MOST_ENVIRONMENT:
        remarks.append(f"{len(notes) - _MOST_ENVIRONMENT} more of this kind are in the journal")
    return tuple(remarks)
