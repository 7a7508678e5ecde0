"""The result of a matrix, also of one that was killed or is under way: its runs, one for each IREE, side by side.

The record, `matrix.jsonl`, lies next to the runs; all that was measured is in their journals.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from iree_gauntlet.errors import ExitCode
from iree_gauntlet.figures import counted, one_line
from iree_gauntlet.journal_events import EndEvent, ExperimentOpening, MachineFacts, ToolchainFacts
from iree_gauntlet.journal_format import JOURNAL, explain_unreadable, read_events, read_journal
from iree_gauntlet.recorded import UNLESS_DEFAULT, Recorded
from iree_gauntlet.records.chain_figures import MatrixCell, make_matrix_cell
from iree_gauntlet.records.outcome import RunOutcome, format_headline, read_outcome, remarks_of_record
from iree_gauntlet.stages import Stage  # noqa: TC001 - a record's field is read by its type

if TYPE_CHECKING:
    from collections.abc import Iterator


MATRIX_RECORD = "matrix.jsonl"
# The texts that an event has to have.
_NEEDED = dict.fromkeys(("toolchain", "start", "result"), ("label",))


@dataclass(frozen=True, slots=True)
class AskedIree(Recorded):
    """One IREE of a matrix.

    Attributes:
        label: its name in reports: the text, of a folder only as much of the end as distinguishes it from
            the others.
        iree: the value of `--iree`, as given.
        folder: of its run, within the matrix's.
    """

    label: str
    iree: str
    folder: str

    def __post_init__(self) -> None:
        # No path to somewhere else.
        if PurePath(self.folder).parts != (self.folder,) or self.folder in ("..", "/"):
            raise ValueError(f"{self.folder} is no folder within a matrix")


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixOpening(ExperimentOpening):
    """`matrix`: what is asked for; a resumed matrix appends another one, and keeps selection, defaults and stages."""

    matrix: str = field(default="", metadata=UNLESS_DEFAULT)
    suite: str = ""
    irees: tuple[AskedIree, ...]
    selection: dict[str, Any] = field(default_factory=dict)
    defaults: dict[str, Any] = field(default_factory=dict)
    stages: tuple[Stage, ...] | None = None
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundIree(Recorded):
    """`toolchain`: what an IREE turned out to be, or why it is not available."""

    label: str
    toolchain: ToolchainFacts | None = None
    error: str | None = field(default=None, metadata=UNLESS_DEFAULT)
    hint: str | None = field(default=None, metadata=UNLESS_DEFAULT)


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixResult(Recorded):
    """`result`: how the run of an IREE ended, whose `start` is before; `error` where it could not be run to its end."""

    label: str
    exit_code: ExitCode
    error: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class MatrixIree:
    """One IREE of a matrix, and the result of its run.

    Attributes:
        toolchain: empty where it was not found.
        problem: why it was not run, or not to its end; empty where it was.
        exit_code: None for one that was left out.
        outcome: of its run; None where it has none.
    """

    label: str
    text: str
    folder: str
    toolchain: ToolchainFacts
    problem: str
    hint: str
    exit_code: ExitCode | None
    outcome: RunOutcome | None

    @property
    def result_text(self) -> str:
        """In a line: `85 passed, 1 failed`, or why there is nothing."""
        parts = [format_headline(self.outcome)] if self.outcome is not None else []
        if self.outcome is not None and self.outcome.state != "complete":
            parts.append(self.outcome.state)
        if self.problem:
            parts.append(self.problem)
        return "; ".join(parts)


@dataclass(frozen=True, slots=True)
class MatrixRow:
    """One chain; `cells` by the label of the IREE, without those that did not run it."""

    chain: str
    model: str
    submodel: str
    target: str
    cells: dict[str, MatrixCell] = field(default_factory=dict)

    @property
    def timed_on_one_machine(self) -> bool:
        """Whether its times can be compared."""
        return len({cell.timed_on for cell in self.cells.values() if cell.time_ms is not None}) < 2


@dataclass(frozen=True, slots=True)
class MatrixOutcome:
    """The result of a matrix.

    Attributes:
        irees: in the order given; the first is the base that the others are held against.
        rows: chains in plan order.
        state: `complete`, `interrupted`, `stopped` (by --fail-fast) or `unfinished`.
        seconds: wall time of its runs, together.
        remarks: what a reader must know about the record itself, one line each.
    """

    name: str
    opening: MatrixOpening
    machine: MachineFacts
    irees: tuple[MatrixIree, ...]
    rows: tuple[MatrixRow, ...]
    exit_code: ExitCode
    state: str
    seconds: float
    remarks: tuple[str, ...]

    @property
    def base(self) -> str:
        """Label of the IREE that the others are held against."""
        return self.irees[0].label if self.irees else ""

    @property
    def ran(self) -> tuple[MatrixIree, ...]:
        """Those that have a run."""
        return tuple(iree for iree in self.irees if iree.outcome is not None)


def read_matrix_outcome(folder: Path) -> MatrixOutcome:
    """Read and judge a matrix; GauntletError where its record, or a journal of it, cannot be read."""
    record = read_matrix(folder)
    parts = record.parts or [MatrixOpening(irees=())]
    first, last = parts[0], parts[-1]
    irees = tuple(_make_iree(asked, folder, record) for asked in last.irees)
    outcomes = {iree.label: iree.outcome for iree in irees if iree.outcome is not None}
    named: dict[str, MatrixRow] = {}
    for label, outcome in outcomes.items():
        for chain in outcome.cases:
            row = named.setdefault(chain.id, MatrixRow(chain.id, chain.model, chain.submodel, chain.target))
            row.cells[label] = replace(make_matrix_cell(chain), timed_on=outcome.timed_on(chain))
    rows = tuple(named.values())
    codes = [iree.exit_code for iree in irees if iree.exit_code is not None]
    if not record.parts:
        codes = [ExitCode.ERROR]
    return MatrixOutcome(
        name=last.matrix or folder.name,
        opening=replace(last, time=first.time, command=first.command),
        machine=next((outcome.machine for outcome in outcomes.values()), MachineFacts()),
        irees=irees,
        rows=rows,
        exit_code=ExitCode.INTERRUPTED if record.interrupted else ExitCode.worst(codes),
        state=record.state,
        seconds=sum(outcome.seconds for outcome in outcomes.values()),
        remarks=tuple(_list_remarks(record, irees, rows)),
    )


def _make_iree(asked: AskedIree, folder: Path, record: MatrixRecord) -> MatrixIree:
    label = asked.label
    found, result = record.found.get(label), record.results.get(label)
    path = folder / asked.folder / JOURNAL
    outcome = read_outcome(read_journal(path)) if label in record.started and path.is_file() else None
    code: ExitCode | None
    problem, hint = "", ""
    if result is not None and result.error:
        problem, hint = result.error, result.hint
        code = ExitCode.worst([result.exit_code, *([outcome.exit_code] if outcome else [])])
    elif found and found.error and (result is None or outcome is None):
        problem, hint, code = found.error, found.hint or "", ExitCode.ERROR
    elif outcome is not None:
        # A run that was cut short before its first step says nothing of it.
        code = ExitCode.INTERRUPTED if result is None and record.interrupted else outcome.exit_code
    else:
        problem, code = _explain_why_not(label, record)
    known = found.toolchain if found else None
    return MatrixIree(
        label=one_line(label),
        text=asked.iree,
        folder=asked.folder,
        toolchain=known or (outcome.toolchain if outcome else ToolchainFacts()),
        problem=one_line(problem, 500),
        hint=hint,
        exit_code=code,
        outcome=outcome,
    )


def _explain_why_not(label: str, record: MatrixRecord) -> tuple[str, ExitCode | None]:
    """Why an IREE that was found has no run."""
    how = "interrupted" if record.interrupted else "killed, or is still under way"
    code = ExitCode.INTERRUPTED if record.interrupted else ExitCode.ERROR
    if label in record.started:
        return f"the matrix was {how} when its run had just begun", code
    if record.state == "stopped":
        return f"not run: {record.stopped}", None
    return f"not run: the matrix was {how}", code


def _list_remarks(record: MatrixRecord, irees: tuple[MatrixIree, ...], rows: tuple[MatrixRow, ...]) -> Iterator[str]:
    """What is to be known of the record, and what keeps the figures of its IREEs from being compared as they stand."""
    yield from remarks_of_record("matrix", "record", len(record.parts), record.end, torn=record.torn)
    same: dict[tuple[str, str], list[str]] = {}
    for iree in irees:
        key = iree.toolchain.identity, iree.toolchain.runtime_identity
        same.setdefault(key, []).append(iree.label)
    for key, labels in same.items():
        if any(key) and len(labels) > 1:
            yield f"{' and '.join(labels)} are the same IREE: what differs between them is noise"
    hosts = {iree.outcome.machine.host for iree in irees if iree.outcome is not None} - {""}
    if len(hosts) > 1:
        yield f"made on several machines ({', '.join(sorted(hosts))}): their times cannot be compared"
    for iree in irees:
        yield from (f"{iree.label}: {remark}" for remark in (iree.outcome.remarks if iree.outcome else ()))
        if iree.problem and iree.exit_code is not None:
            yield f"{iree.label}: {iree.problem}"
    for iree in irees:
        timed = [cell for row in rows if (cell := row.cells.get(iree.label)) and cell.time_ms is not None]
        disturbed = sum(bool(cell.disturbed) for cell in timed)
        if disturbed:
            count = f"{disturbed} of {len(timed)} times were"
            yield f"{iree.label}: {count} taken while the machine did other work (~): measure them again"
    apart = [row.chain for row in rows if not row.timed_on_one_machine]
    if apart:
        how = "their times have no ratio; `gauntlet compare A B --cluster …` measures both IREEs on one machine"
        yield f"{counted(len(apart), 'model')} timed on several machines of the cluster ({apart[0]}, …): {how}"


@dataclass(slots=True)
class MatrixRecord:
    """What the record of a matrix says.

    Attributes:
        parts: what it was asked for; a resumed matrix has more than one.
        results: by label; none while it is run again.
        end: None for a matrix that was killed or is under way.
        torn: whether there is a line that was cut short by a crash (it is left out).
    """

    path: Path
    parts: list[MatrixOpening] = field(default_factory=list)
    found: dict[str, FoundIree] = field(default_factory=dict)
    started: set[str] = field(default_factory=set)
    results: dict[str, MatrixResult] = field(default_factory=dict)
    end: EndEvent | None = None
    torn: bool = False

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended it."""
        return self.end is not None and self.end.interrupted

    @property
    def stopped(self) -> str:
        """Why it ended before its last IREE; empty where it did not."""
        return self.end.stopped if self.end else ""

    @property
    def state(self) -> str:
        """`complete`, `interrupted`, `stopped` (by --fail-fast) or `unfinished`."""
        if self.interrupted:
            return "interrupted"
        return "stopped" if self.stopped else "complete" if self.end else "unfinished"


def read_matrix(folder: Path) -> MatrixRecord:
    """Read a record; GauntletError where there is none, or it is damaged in another way than by a crash."""
    log = read_events(folder / MATRIX_RECORD, "matrix", _NEEDED)
    hint = "It was written by another version of this toolkit, or changed; start a new matrix."
    record = MatrixRecord(log.path, torn=log.torn)
    for number, event in log.events:
        kind, label = event.get("event"), str(event.get("label"))
        with explain_unreadable(f"{log.path}:{number}: the {kind} event", hint):
            match kind:
                case "matrix":
                    record.parts.append(MatrixOpening.from_dict(event))
                    record.end = None
                case "toolchain":
                    found = FoundIree.from_dict(event)
                    record.found[found.label] = found
                case "start":
                    record.started.add(label)
                    record.results.pop(label, None)
                case "result":
                    result = MatrixResult.from_dict(event)
                    record.results[result.label] = result
                case "end":
                    record.end = EndEvent.from_dict(event)
    return record
