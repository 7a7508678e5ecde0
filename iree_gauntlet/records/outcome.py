"""The result of a run: the journal's record, judged and put in order.

Pure: the same record gives the same outcome, and no clock, file or process is looked at. A run that was
killed, or is still under way, has an outcome like any other; what is missing shows as errors.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from iree_gauntlet.cases import FailureKind, Verdict, exit_code_of
from iree_gauntlet.errors import ExitCode, GauntletError
from iree_gauntlet.figures import listed
from iree_gauntlet.recorded import number
from iree_gauntlet.records.step_outcome import StepOutcome, step_outcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from iree_gauntlet.journal_format import JournalRecord
    from iree_gauntlet.steps import Step


# Worst first; the same order as the exit codes'.
_WORST_FIRST = (
    Verdict.ERROR,
    Verdict.FAILED,
    Verdict.XPASSED,
    Verdict.INCONCLUSIVE,
    Verdict.XFAILED,
    Verdict.PASSED,
    Verdict.SKIPPED,
)
# What went wrong comes first.
_HEADLINE = (
    Verdict.FAILED,
    Verdict.ERROR,
    Verdict.XPASSED,
    Verdict.INCONCLUSIVE,
    Verdict.PASSED,
    Verdict.XFAILED,
    Verdict.SKIPPED,
)
_HEADLINE_WORDS = {
    Verdict.ERROR: ("error", "errors"),
    Verdict.XPASSED: ("unexpected pass", "unexpected passes"),
    Verdict.XFAILED: ("expected failure", "expected failures"),
}
_ENVIRONMENT = re.compile(r"shared cache .* is not|not put into the shared cache|\.tar is not used|the mirror[: ]")
_MOST_ENVIRONMENT = 5
_MOST_WORKERS = 8
_MANY_CHAINS = 200


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
    def verdict(self) -> Verdict:
        """The worst of its steps; skipped where nothing of it ran, but that its files were fetched."""
        own = [step for step in self.steps if not (step.stage == "fetch" and step.verdict is Verdict.PASSED)]
        return min({step.verdict for step in own or self.steps}, key=_WORST_FIRST.index, default=Verdict.SKIPPED)


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """The result of a run.

    Attributes:
        run: its id, the name of its folder.
        started: when it began, ISO 8601.
        chains: in plan order.
        state: `complete`, `interrupted`, or `unfinished` (killed, or still under way).
        resumed: how often it was resumed.
        torn: whether the journal's last line was cut short (and left out).
        seconds: wall time, over all parts of a resumed run.
        tool_seconds: wall time inside IREE's tools, summed over steps (steps may run at the same time).
        made_inputs: how many inputs were generated from their seeds.
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
    targets: tuple[tuple[str, str], ...]
    toolchain: dict[str, Any]
    machine: dict[str, Any]
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
    markers: str = ""
    workers: dict[str, dict[str, Any]] = field(default_factory=dict)
    made_inputs: int = 0

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
        return str(self.workers.get(worker, {}).get("host") or worker)

    @property
    def counts(self) -> dict[Verdict, int]:
        """Number of steps by verdict, every verdict present, in a fixed order."""
        found = Counter(step.verdict for step in self.steps)
        return {verdict: found[verdict] for verdict in Verdict}

    @property
    def bad_steps(self) -> tuple[StepOutcome, ...]:
        """Steps that came out failed, error, xpassed or inconclusive."""
        return tuple(step for step in self.steps if step.verdict.is_bad)


def outcome_of(record: JournalRecord) -> RunOutcome:
    """Judge a record.

    A step that was started and has no result, or one older than its last start, is an error; so is one
    that was never started, unless what it needs came out badly (then it is skipped like any other behind
    a failure) or the run ended by itself before it (then it is skipped).

    Raises:
        GauntletError: the journal holds what this version cannot read.
    """
    run = record.runs[-1] if record.runs else {}
    try:
        targets = tuple((str(target.get("name", "")), str(target.get("sku", ""))) for target in run.get("target") or ())
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise GauntletError(
            f"{record.path}: the journal cannot be read: {type(error).__name__}: {error}",
            f"it was written by version {run.get('version', 'unknown')}; use that version to report on it",
        ) from error
    planned = record.planned
    steps = _list_behind_failures([step_outcome(step, record) for step in planned], planned, record)
    state = state_of(record)
    fetched = _collect_files(steps)
    made = sum(not present for url, present in fetched.items() if url.startswith("random://"))
    return RunOutcome(
        run=str(run.get("run", record.path.parent.name)),
        suite=str(run.get("suite", "")),
        version=str(run.get("version", "")),
        command=str(record.runs[0].get("command", "")) if record.runs else "",
        cwd=str(run.get("cwd", "")),
        started=str(record.runs[0].get("time", "")) if record.runs else "",
        targets=targets,
        toolchain=dict(run.get("toolchain") or {}),
        machine=dict(run.get("machine") or {}),
        chains=_list_chains(steps),
        exit_code=_exit_code(steps, run, state),
        state=state,
        resumed=max(len(record.runs) - 1, 0),
        torn=record.torn,
        seconds=_compute_wall_seconds(record),
        tool_seconds=sum(step.tool_seconds for step in steps),
        compiles=_make_cache_count(steps, "compile"),
        imports=_make_cache_count(steps, "import"),
        downloads=CacheCount(sum(fetched.values()), len(fetched) - sum(fetched.values()) - made),
        made_inputs=made,
        remarks=_list_remarks(record),
        markers=str(run.get("markers") or ""),
        workers=record.workers,
    )


def state_of(record: JournalRecord) -> str:
    """`complete`, `interrupted`, or `unfinished` (killed, or still under way)."""
    if record.end is None:
        return "unfinished"
    return "interrupted" if record.end.get("interrupted") else "complete"


def headline(outcome: RunOutcome) -> str:
    """`1 failed, 2 errors, 23 passed, 3 skipped (2 behind a failure)`; what went wrong comes first."""
    texts = verdict_texts(outcome.counts)
    if kinds := _format_expected_kinds(outcome.steps):
        texts[Verdict.XFAILED] += f" ({kinds})"
    behind = sum(bool(step.behind) for step in outcome.steps)
    text = ", ".join(texts.values()) or "nothing ran"
    return f"{text} ({behind} behind a failure)" if behind else text


def verdict_texts(counts: Mapping[Verdict, int]) -> dict[Verdict, str]:
    """How many there are of each verdict: `2 failed`, `1 unexpected pass`; what went wrong comes first."""
    texts = {}
    for verdict in _HEADLINE:
        if count := counts.get(verdict, 0):
            one, many = _HEADLINE_WORDS.get(verdict, (verdict, verdict))
            texts[verdict] = f"{count} {one if count == 1 else many}"
    return texts


def _format_expected_kinds(steps: Iterable[StepOutcome]) -> str:
    """`2 does not compile, 1 wrong numbers`; empty where the journal does not say."""
    kinds = Counter(step.failure for step in steps if step.verdict is Verdict.XFAILED)
    return ", ".join(f"{kinds[kind]} {kind}" for kind in FailureKind if kinds[kind])


def cache_line(outcome: RunOutcome) -> str:
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


def version(toolchain: Mapping[str, Any], side: str) -> str | None:
    """`3.12.0 at 1f2e3d4c5b6a`, of its compiler or runtime; None where it is not known."""
    commit = str(toolchain.get(f"{side}_commit") or "")
    name = str(toolchain.get(side) or "")
    return f"{name}{f' at {commit[:12]}' if commit else ''}" if name else None


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


def _list_chains(steps: list[StepOutcome]) -> tuple[ChainOutcome, ...]:
    grouped: dict[str, list[StepOutcome]] = {}
    for step in steps:
        grouped.setdefault(step.chain, []).append(step)
    return tuple(
        ChainOutcome(chain, own[0].dialect, own[0].model, own[0].submodel, own[0].target, own[0].sku, tuple(own))
        for chain, own in grouped.items()
    )


def _exit_code(steps: list[StepOutcome], run: Mapping[str, Any], state: str) -> ExitCode:
    if state == "interrupted":
        return ExitCode.INTERRUPTED
    # Of a merged run: nobody knows what the shards would have said that were not given.
    if not run or run.get("missing_shards"):
        return ExitCode.ERROR
    if not steps:
        # An empty shard is part of a whole, which other shards may be.
        return ExitCode.OK if run.get("shard") else ExitCode.NOTHING_SELECTED
    return exit_code_of(step.verdict for step in steps)


def _make_cache_count(steps: Iterable[StepOutcome], stage: str) -> CacheCount:
    ran = [step.cache for step in steps if step.stage == stage and step.cache and step.verdict != Verdict.SKIPPED]
    hits = sum(cache.hit for cache in ran)
    return CacheCount(hits, len(ran) - hits)


def _collect_files(steps: Iterable[StepOutcome]) -> dict[str, bool]:
    """Each URL once, and whether its file was there before: several steps may ask for one file."""
    present: dict[str, bool] = {}
    for file in (file for step in steps for file in step.fetched):
        present[file.url] = present.get(file.url, True) and file.cached
    return present


def _compute_wall_seconds(record: JournalRecord) -> float:
    """Wall time of a run in seconds: from each `run` event to the last event before the next one."""
    # The time between a kill and the resume does not count. The last part's time is what its `end` event measured,
    # where there is one (a monotonic clock, where the other times are of the wall clock).
    begins = [time for run in record.runs if (time := _time(run.get("time")))]
    if not begins:
        return 0.0
    texts = [*record.starts.values(), *record.result_times.values()]
    if record.end is not None:
        texts.append(str(record.end.get("time", "")))
    times = [time for text in texts if (time := _time(text))]
    total = 0.0
    for begin, following in zip(begins, [*begins[1:], None], strict=True):
        own = [time for time in times if time >= begin and (following is None or time < following)]
        measured = number(record.end.get("seconds")) if record.end is not None and following is None else None
        total += measured if measured is not None else (max(own, default=begin) - begin).total_seconds()
    return total


def _time(text: object) -> datetime | None:
    if not text:
        return None
    time = datetime.fromisoformat(str(text))
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def lock_remark(folder: str) -> list[str]:
    """What the folder of the machine's locks means, which a record names where it is not the user's own."""
    return (
        [f"the machine's locks are in {folder}: times may overlap with those of runs with other locks"]
        if folder
        else []
    )


def remarks_of_record(kind: str, name: str, parts: int, end: dict[str, Any] | None, *, torn: bool) -> list[str]:
    """What a reader must know of how a record was written, one line each.

    Args:
        kind: `run` or `matrix`.
        name: of the record, for people.
        parts: how often it was begun.
        end: its `end` event.
        torn: whether a crash cut a line of it short.
    """
    remarks = []
    if not parts:
        remarks.append(f"the {name} does not say what was to run: its first line is missing")
    elif end is None:
        remarks.append(f"the {name} has no end: the {kind} was killed, or is still under way")
    elif end.get("interrupted"):
        remarks.append(f"the {kind} was interrupted")
    elif end.get("stopped"):
        remarks.append(f"the {kind} stopped before its end: {end['stopped']}")
    if torn:
        remarks.append(f"a line of the {name} was cut short by a crash; it is left out")
    if parts > 1:
        remarks.append(f"the {kind} was resumed {'once' if parts == 2 else f'{parts - 1} times'}")
    return remarks


def _list_remarks(record: JournalRecord) -> tuple[str, ...]:
    remarks = remarks_of_record("run", "journal", len(record.runs), record.end, torn=record.torn)
    if len(record.runs) > 1:
        remarks[-1] += "; the results of all its parts are counted"
    if record.runs:
        remarks += [str(remark) for remark in record.runs[-1].get("remarks") or ()]
        remarks += lock_remark(str(record.runs[-1].get("lock_folder") or ""))
    remarks += dict.fromkeys(record.remarks)
    planned = {str(step.get("id")) for step in record.steps}
    lost = sorted(set(record.results) - planned)
    if lost and record.runs:
        noun = "a step" if len(lost) == 1 else f"{len(lost)} steps"
        remarks.append(f"results of {noun} that the last plan no longer has are left out: {lost[0]}…")
    return (*remarks, *_describe_environment(record))


def _describe_environment(record: JournalRecord) -> list[str]:
    """What was wrong with mirrors and the shared cache: the run continued without them, and it would not be seen."""
    notes = dict.fromkeys(
        note for result in record.results.values() for note in result.notes if _ENVIRONMENT.search(note)
    )
    shown = list(notes)[:_MOST_ENVIRONMENT]
    left = len(notes) - len(shown)
    return [*shown, f"{left} more of this kind are in the journal"] if left else shown
