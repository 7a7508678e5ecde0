"""What one step came to: its plan and its result, joined."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from iree_gauntlet.cases import Origin, Verdict
from iree_gauntlet.reporting.cleaning import one_line
from iree_gauntlet.reporting.records import CacheUse, Check, Fetched, OutputComparison, Samples, number

if TYPE_CHECKING:
    from iree_gauntlet.journal_format import JournalRecord

__all__ = ["PlannedGolden", "StepOutcome", "step_name", "step_outcome"]


@dataclass(frozen=True, slots=True)
class PlannedGolden:
    """A figure that a step is held against: metric, value, tolerance factor, and which figure of the repetitions."""

    metric: str
    value: float
    factor: float
    statistic: str


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What one step came to.

    Attributes:
        id, chain, dialect, model, submodel, target, sku: as planned.
        stage: kind of work.
        role: the module that it is about; empty for the main one.
        verdict: judged; error for a step that has no result.
        reason: one line; empty where it passed.
        behind: id of the step whose coming out badly kept this one from running, else empty.
        unfinished: the journal has no result of it.
        never_started: the journal has no start of it either.
        started: ISO 8601, empty where it never was.
        seconds, cpu_seconds, tool_seconds: wall time, CPU time, wall time inside IREE's tools.
        peak_rss_bytes, exit_code, signal, timed_out: how the process ended.
        command: as a person would type it; empty for steps without a process.
        ran: whether it was started, so that it can be run again.
        flags: the flags of the process, without its binary.
        device: what `--device` says.
        timeout: seconds that it may take.
        statistics: the compiler's, such as `dispatch_count`.
        log: path of its full output, relative to the run's folder.
        tail: last lines of its output.
        goldens: figures that it is held against.
        origin: where its case is written.
    """

    id: str
    chain: str
    dialect: str
    model: str
    submodel: str
    target: str
    sku: str
    stage: str
    role: str
    verdict: Verdict
    reason: str
    behind: str
    unfinished: bool
    never_started: bool
    started: str
    seconds: float
    cpu_seconds: float
    tool_seconds: float
    peak_rss_bytes: int
    exit_code: int | None
    signal: str
    timed_out: bool
    timeout: float
    command: str
    ran: bool
    flags: tuple[str, ...]
    device: str
    cache: CacheUse | None
    checks: tuple[Check, ...]
    outputs: tuple[OutputComparison, ...]
    samples: Samples | None
    statistics: dict[str, Any]
    notes: tuple[str, ...]
    log: str
    tail: tuple[str, ...]
    fetched: tuple[Fetched, ...]
    goldens: tuple[PlannedGolden, ...]
    origin: Origin

    @property
    def name(self) -> str:
        """Stage, with the role of a module beside the main one: `compile`, `compile.pipeline`."""
        return f"{self.stage}.{self.role}" if self.role else self.stage

    @property
    def title(self) -> str:
        """What people read: `ocr/classifier@cpu threshold`."""
        return f"{self.chain} {self.name}"


def step_name(step: dict[str, Any]) -> str:
    """The name of a planned step within its chain: `compile`, `compile.pipeline`."""
    return str(step["id"]).removeprefix(f"{step['chain']}:")


def step_outcome(step: dict[str, Any], record: JournalRecord) -> StepOutcome:
    """Join a planned step with what the journal says of it.

    Raises:
        KeyError, TypeError, ValueError: the journal's objects are not what this version writes.
    """
    step_id = str(step["id"])
    stage = str(step["stage"])
    started = record.starts.get(step_id, "")
    result = record.results.get(step_id)
    if result is not None and _started_again(started, str(result.get("time", "")), record):
        result = None
    verdict, reason = _judged(started, record) if result is None else _journalled(result)
    result = result or {}
    process = step.get("command") or {}
    argv = tuple(str(word) for word in process.get("argv") or ())
    flags = tuple(word for word in argv[1:] if word.startswith("--"))
    return StepOutcome(
        id=step_id,
        chain=str(step["chain"]),
        dialect=str(step["dialect"]),
        model=str(step["model"]),
        submodel=str(step["submodel"]),
        target=str(step["target"]),
        sku=str(step.get("sku") or ""),
        stage=stage,
        role=step_name(step).removeprefix(stage).removeprefix("."),
        verdict=verdict,
        reason=one_line(reason),
        behind="",
        unfinished=not result,
        never_started=not result and not started,
        started=started,
        seconds=number(result.get("seconds")) or 0.0,
        cpu_seconds=number(result.get("cpu_seconds")) or 0.0,
        tool_seconds=number(result.get("tool_seconds")) or 0.0,
        peak_rss_bytes=int(result.get("peak_rss_bytes") or 0),
        exit_code=result.get("exit_code"),
        signal=str(result.get("signal") or ""),
        timed_out=bool(result.get("timed_out")),
        timeout=number(step.get("timeout")) or 0.0,
        command=str(result.get("command") or _typed(process)),
        ran=bool(result.get("command") if result else started and argv),
        flags=flags,
        device=_device(flags, step),
        cache=CacheUse.from_json(result["cache"]) if result.get("cache") else None,
        checks=tuple(Check.from_json(check) for check in result.get("checks") or ()),
        outputs=tuple(OutputComparison.from_json(output) for output in result.get("outputs") or ()),
        samples=Samples.from_json(result["samples"]) if result.get("samples") else None,
        statistics=dict(result.get("statistics") or {}),
        notes=tuple(dict.fromkeys(str(n) for n in (*(step.get("notes") or ()), *(result.get("notes") or ())))),
        log=str(result.get("log") or ""),
        tail=tuple(str(line) for line in result.get("tail") or ()),
        fetched=tuple(Fetched.from_json(file) for file in result.get("fetched") or ()),
        goldens=tuple(
            PlannedGolden(
                str(golden["metric"]),
                float(golden["value"]),
                float(golden["factor"]),
                str(golden["statistic"]),
            )
            for golden in step.get("goldens") or ()
        ),
        origin=Origin(str(step["origin"]["file"]), str(step["origin"].get("field") or "")),
    )


def _started_again(started: str, ended: str, record: JournalRecord) -> bool:
    """Whether a resumed run started a step once more and has no result of that.

    The two times are compared across the beginning of a part only: within one part a result follows its
    start, whatever the wall clock was set to in between.
    """
    return any(ended < str(run.get("time", "")) <= started for run in record.runs[1:])


def _journalled(result: dict[str, Any]) -> tuple[Verdict, str]:
    verdict = Verdict(result["verdict"])
    reason = str(result.get("reason") or "")
    if not reason and verdict is not Verdict.PASSED:
        reason = f"{verdict}, and the journal does not say why"
    return verdict, reason


def _judged(started: str, record: JournalRecord) -> tuple[Verdict, str]:
    """The verdict of a step without a result."""
    interrupted = bool(record.end and record.end.get("interrupted"))
    if started:
        how = "interrupted" if interrupted else "killed"
        return Verdict.ERROR, f"the run was {how} while this step ran"
    if interrupted:
        return Verdict.ERROR, "the run was interrupted before this step started"
    if record.end is None:
        return Verdict.ERROR, "the run ended before this step started"
    return Verdict.SKIPPED, "the run stopped before this step started"


def _typed(process: dict[str, Any]) -> str:
    """A planned command as a person would type it in a POSIX shell."""
    argv = [str(word) for word in process.get("argv") or ()]
    if not argv:
        return ""
    assignments = " ".join(f"{name}={shlex.quote(str(value))}" for name, value in process.get("env") or ())
    words = f"{assignments} {shlex.join(argv)}" if assignments else shlex.join(argv)
    folder = str(process.get("cwd") or "")
    return f"cd {shlex.quote(folder)} && {words}" if folder else words


def _device(flags: tuple[str, ...], step: dict[str, Any]) -> str:
    named = [flag.partition("=")[2] for flag in flags if flag.startswith("--device=")]
    return named[-1] if named else str((step.get("resources") or {}).get("device") or "")
