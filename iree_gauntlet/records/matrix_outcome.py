"""The result of a matrix: the journals of its runs, one for each IREE, put side by side.

Pure but for reading files: the same record and journals give the same outcome. A matrix that was killed, or is
still under way, has an outcome like any other.

The record, `matrix.jsonl`, lies next to the runs; `experiments/matrix.py` writes it. Its events:

- `matrix`: `irees` ({label, iree, folder} each, in the order given), what was selected and by which options. A
  resumed matrix appends another one.
- `toolchain`: what a `label` turned out to be (`toolchain`), or why it is not available (`error`, `hint`).
- `start`: the run of a `label` begins, or is resumed.
- `result`: it finished with `exit_code`; `error` and `hint` where it could not be run to its end.
- `end`: nothing more comes: `interrupted`, or `stopped` with the reason why IREEs were left out.

All that was measured is in the journals of the runs, `<folder>/journal.jsonl`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Any

from iree_gauntlet.errors import ExitCode, GauntletError
from iree_gauntlet.figures import counted, one_line
from iree_gauntlet.journal_events import EndEvent, MachineFacts, ToolchainFacts
from iree_gauntlet.journal_format import JOURNAL, read_events, read_journal, refuse
from iree_gauntlet.records.chain_figures import MatrixCell, matrix_cell
from iree_gauntlet.records.outcome import RunOutcome, headline, outcome_of, remarks_of_record

MATRIX_RECORD = "matrix.jsonl"


@dataclass(frozen=True, slots=True)
class MatrixIree:
    """One IREE of a matrix, and the result of its run.

    Attributes:
        folder: of its run, within the matrix's.
        toolchain: versions, commits, identity and source; empty where it was not found.
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
        parts = [headline(self.outcome)] if self.outcome is not None else []
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
        name: of its folder.
        started: when it began, ISO 8601.
        irees: in the order given; the first is the base that the others are held against.
        rows: chains in plan order.
        state: `complete`, `interrupted`, `stopped` (by --fail-fast) or `unfinished`.
        seconds: wall time of its runs, together.
        remarks: what a reader must know about the record itself, one line each.
    """

    name: str
    suite: str
    version: str
    command: str
    cwd: str
    started: str
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


def matrix_outcome(folder: Path) -> MatrixOutcome:
    """Read and judge a matrix.

    Raises:
        GauntletError: its record, or a journal of it, cannot be read.
    """
    record = read_matrix(folder)
    last = record.parts[-1] if record.parts else {}
    irees = tuple(_make_iree(entry, folder, record) for entry in last.get("irees") or ())
    rows = _list_rows(irees)
    outcomes = [iree.outcome for iree in irees if iree.outcome is not None]
    codes = [iree.exit_code for iree in irees if iree.exit_code is not None]
    if not record.parts:
        codes = [ExitCode.ERROR]
    return MatrixOutcome(
        name=str(last.get("matrix") or folder.name),
        suite=str(last.get("suite") or ""),
        version=str(last.get("version") or ""),
        command=str(record.parts[0].get("command") or "") if record.parts else "",
        cwd=str(last.get("cwd") or ""),
        started=str(record.parts[0].get("time") or "") if record.parts else "",
        machine=outcomes[0].machine if outcomes else MachineFacts(),
        irees=irees,
        rows=rows,
        exit_code=ExitCode.INTERRUPTED if record.interrupted else ExitCode.worst(codes),
        state=record.state,
        seconds=sum(outcome.seconds for outcome in outcomes),
        remarks=(*_list_remarks(record, irees), *_list_disturbances(irees, rows), *_list_apart(rows)),
    )


def _make_iree(entry: dict[str, Any], folder: Path, record: MatrixRecord) -> MatrixIree:
    label = entry["label"]
    found = record.toolchains.get(label, {})
    result = record.results.get(label)
    described = found.get("toolchain") or {}
    path = folder / entry["folder"] / JOURNAL
    outcome = outcome_of(read_journal(path)) if label in record.started and path.is_file() else None
    code: ExitCode | None
    problem, hint = "", ""
    if result is not None and result.get("error"):
        problem, hint = str(result["error"]), str(result.get("hint") or "")
        code = ExitCode.worst([_make_code(result, record), *([outcome.exit_code] if outcome else [])])
    elif found.get("error") and (result is None or outcome is None):
        problem, hint, code = str(found["error"]), str(found.get("hint") or ""), ExitCode.ERROR
    elif outcome is not None:
        # A run that was cut short before its first step says nothing of it.
        code = ExitCode.INTERRUPTED if result is None and record.interrupted else outcome.exit_code
    else:
        problem, code = _explain_why_not(label, record)
    return MatrixIree(
        label=one_line(label),
        text=str(entry["iree"]),
        folder=str(entry["folder"]),
        toolchain=outcome.toolchain if outcome and not described else ToolchainFacts.from_dict(described),
        problem=one_line(problem, 500),
        hint=hint,
        exit_code=code,
        outcome=outcome,
    )


def _make_code(result: dict[str, Any], record: MatrixRecord) -> ExitCode:
    try:
        return ExitCode(result["exit_code"])
    except ValueError as error:
        raise GauntletError(
            f"{record.path}: {result['exit_code']} is no exit code", "It was written by another version: use that one."
        ) from error


def _explain_why_not(label: str, record: MatrixRecord) -> tuple[str, ExitCode | None]:
    """Why an IREE that was found has no run."""
    how = "interrupted" if record.interrupted else "killed, or is still under way"
    code = ExitCode.INTERRUPTED if record.interrupted else ExitCode.ERROR
    if label in record.started:
        return f"the matrix was {how} when its run had just begun", code
    if record.state == "stopped":
        return f"not run: {record.stopped}", None
    return f"not run: the matrix was {how}", code


def _list_rows(irees: tuple[MatrixIree, ...]) -> tuple[MatrixRow, ...]:
    rows: dict[str, MatrixRow] = {}
    for iree in irees:
        for chain in iree.outcome.chains if iree.outcome is not None else ():
            row = rows.setdefault(chain.id, MatrixRow(chain.id, chain.model, chain.submodel, chain.target))
            assert iree.outcome is not None, "it has chains"
            row.cells[iree.label] = replace(matrix_cell(chain), timed_on=iree.outcome.timed_on(chain))
    return tuple(rows.values())


def _list_remarks(record: MatrixRecord, irees: tuple[MatrixIree, ...]) -> tuple[str, ...]:
    remarks = remarks_of_record("matrix", "record", len(record.parts), record.end, torn=record.torn)
    remarks += _describe_irees(irees)
    for iree in irees:
        remarks += [f"{iree.label}: {remark}" for remark in (iree.outcome.remarks if iree.outcome else ())]
        if iree.problem and iree.exit_code is not None:
            remarks.append(f"{iree.label}: {iree.problem}")
    return tuple(remarks)


def _describe_irees(irees: tuple[MatrixIree, ...]) -> list[str]:
    """What keeps their figures from being compared as they stand."""
    same: dict[tuple[str, str], list[str]] = {}
    for iree in irees:
        key = iree.toolchain.identity, iree.toolchain.runtime_identity
        if any(key):
            same.setdefault(key, []).append(iree.label)
    remarks = [
        f"{' and '.join(labels)} are the same IREE: what differs between them is noise"
        for labels in same.values()
        if len(labels) > 1
    ]
    hosts = {iree.outcome.machine.host for iree in irees if iree.outcome is not None} - {""}
    if len(hosts) > 1:
        remarks.append(f"made on several machines ({', '.join(sorted(hosts))}): their times cannot be compared")
    return remarks


def _list_disturbances(irees: tuple[MatrixIree, ...], rows: tuple[MatrixRow, ...]) -> list[str]:
    remarks = []
    for iree in irees:
        timed = [cell for row in rows if (cell := row.cells.get(iree.label)) and cell.time_ms is not None]
        disturbed = [cell for cell in timed if cell.disturbed]
        if disturbed:
            count = f"{len(disturbed)} of {len(timed)} times were"
            remarks.append(f"{iree.label}: {count} taken while the machine did other work (~): measure them again")
    return remarks


def _list_apart(rows: tuple[MatrixRow, ...]) -> list[str]:
    apart = [row.chain for row in rows if not row.timed_on_one_machine]
    if not apart:
        return []
    how = "their times have no ratio; `gauntlet compare A B --cluster …` measures both IREEs on one machine"
    return [f"{counted(len(apart), 'model')} timed on several machines of the cluster ({apart[0]}, …): {how}"]


@dataclass(frozen=True, slots=True)
class MatrixRecord:
    """What the record of a matrix says.

    Attributes:
        parts: every `matrix` event; a resumed matrix has more than one.
        toolchains: the last `toolchain` event of each label.
        results: the `result` event of each label; none while it is run again.
        end: the `end` event; None for a matrix that was killed or is under way.
        torn: whether there is a line that was cut short by a crash (it is left out).
    """

    path: Path
    parts: tuple[dict[str, Any], ...] = ()
    toolchains: dict[str, dict[str, Any]] = field(default_factory=dict)
    started: set[str] = field(default_factory=set)
    results: dict[str, dict[str, Any]] = field(default_factory=dict)
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
    """Read the record of a matrix, also of one that was killed or is under way.

    Raises:
        GauntletError: there is none, or it is damaged in another way than by a crash.
    """
    log = read_events(folder / MATRIX_RECORD, "matrix")
    record = MatrixRecord(log.path, torn=log.torn)
    for number, event in log.events:
        kind = event.get("event")
        if kind == "matrix":
            if not _names_irees(event):
                refuse(log.path, number, "is a matrix event without a list of IREEs")
            record = replace(record, parts=(*record.parts, event), end=None)
        elif kind == "end":
            record = replace(record, end=EndEvent.from_dict(event))
        elif kind in ("toolchain", "start", "result"):
            label = event.get("label")
            if not isinstance(label, str):
                refuse(log.path, number, f"is a {kind} event without a label")
            if kind == "toolchain":
                record.toolchains[label] = event
            elif kind == "start":
                record.started.add(label)
                record.results.pop(label, None)
            else:
                if not isinstance(event.get("exit_code"), int):
                    refuse(log.path, number, "is a result event without an exit code")
                record.results[label] = event
    return record


def _names_irees(event: dict[str, Any]) -> bool:
    """Whether it does, each with a folder that is no path to somewhere else."""
    irees = event.get("irees")
    return isinstance(irees, list) and all(
        isinstance(iree, dict)
        and all(isinstance(iree.get(key), str) for key in ("label", "iree", "folder"))
        and PurePath(iree["folder"]).parts == (iree["folder"],)
        and iree["folder"] not in ("..", "/")
        for iree in irees
    )
