"""The result of one step: its plan and its result, joined."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from iree_gauntlet.cases import COUNTED, Golden, Origin, Stage, Verdict
from iree_gauntlet.figures import one_line
from iree_gauntlet.results import Result

if TYPE_CHECKING:
    from iree_gauntlet.journal_format import JournalRecord
    from iree_gauntlet.steps import Step


_RESULT = tuple(field.name for field in fields(Result))
_PLANNED = (
    *("id", "chain", "dialect", "model", "submodel", "target", "sku", "stage"),
    *("timeout", "flags", "device", "goldens", "origin"),
)


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
        role: the module that it is about; empty for the main one.
        behind: id of the step whose coming out badly kept this one from running, else empty.
        unfinished: the journal has no result of it.
        never_started: the journal has no start of it either.
        started: ISO 8601, empty where it never was.
        timeout: seconds that it may take.
        ran: whether it was started, so that it can be run again.
        flags: the flags of the process, without its binary.
        device: what `--device` says.
        goldens: figures that it is held against.
        origin: where its case is written.
        explanation: what was found out about its failure; None where that was not asked.
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
    behind: str = ""
    unfinished: bool
    never_started: bool
    started: str
    timeout: float
    ran: bool
    flags: tuple[str, ...]
    device: str
    goldens: tuple[Golden, ...]
    origin: Origin
    explanation: Explanation | None = None

    @property
    def name(self) -> str:
        """Stage, with the role of a module other than the main one: `compile`, `compile.pipeline`."""
        return f"{self.stage}.{self.role}" if self.role else self.stage

    @property
    def of_count(self) -> bool:
        """Whether it counts instructions, or compiles for that: another module than the one that is run."""
        return self.stage == Stage.COUNT or self.role.rpartition(".")[2] == COUNTED

    @property
    def title(self) -> str:
        """What people read: `ocr/classifier@cpu threshold`."""
        return f"{self.chain} {self.name}"


def step_name(step: dict[str, Any]) -> str:
    """The name of a planned step within its chain: `compile`, `compile.pipeline`."""
    return str(step["id"]).removeprefix(f"{step['chain']}:")


def step_outcome(step: Step, record: JournalRecord) -> StepOutcome:
    """Join a planned step with what the journal says of it."""
    started = record.starts.get(step.id, "")
    found = None if record.started_again(step.id) else record.results.get(step.id)
    result = _judge(started, record) if found is None else found
    came_to = {name: getattr(result, name) for name in _RESULT}
    unexplained = "" if result.verdict is Verdict.PASSED else f"{result.verdict}, and the journal does not say why"
    came_to |= {
        "reason": one_line(result.reason or unexplained),
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
    interrupted = bool(record.end and record.end.get("interrupted"))
    if started:
        how = "interrupted" if interrupted else "killed"
        return Result(Verdict.ERROR, f"the run was {how} while this step ran")
    if interrupted:
        return Result(Verdict.ERROR, "the run was interrupted before this step started")
    if record.end is None:
        return Result(Verdict.ERROR, "the run ended before this step started")
    return Result(Verdict.SKIPPED, "the run stopped before this step started")
