"""The result of a matrix, also of one that was killed or is under way: its runs, one for each IREE, side by side.

Its journal lies next to the runs, and its steps are the IREEs; all that was measured is in the runs' own journals.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from iree_gauntlet.errors import ExitCode
from iree_gauntlet.figures import Figure
from iree_gauntlet.formatting import counted, one_line
from iree_gauntlet.journal_events import ExperimentKind, MachineFacts, Opening, StepStart, ToolchainFacts
from iree_gauntlet.journal_format import JOURNAL, ExperimentRecord, JournalSchema, read_journal
from iree_gauntlet.recorded import UNLESS_DEFAULT, Recorded
from iree_gauntlet.records.chain_figures import MatrixCell, make_matrix_cell
from iree_gauntlet.records.outcome import RunOutcome, format_headline, read_outcome, remarks_of_record

if TYPE_CHECKING:
    from collections.abc import Iterator


_INTERRUPTED = "interrupted"
_JUDGED = (ExitCode.OK, ExitCode.FAILED, ExitCode.INCONCLUSIVE)


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
class MatrixOpening(Opening):
    """How a matrix begins."""

    kind: ExperimentKind = ExperimentKind.MATRIX
    suite: str = ""
    irees: tuple[AskedIree, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundIree(Recorded):
    """`toolchain`: what an IREE turned out to be, or why it is not available."""

    toolchain: ToolchainFacts | None = None
    error: str | None = field(default=None, metadata=UNLESS_DEFAULT)
    hint: str | None = field(default=None, metadata=UNLESS_DEFAULT)


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixResult(Recorded):
    """`result`: how the run of an IREE ended, whose `start` is before; `error` where it could not be run to its end."""

    exit_code: ExitCode
    error: str = ""
    hint: str = ""

    @property
    def stands(self) -> bool:
        """Whether a resumed matrix leaves it as it is; errors and what was cut short are tried again."""
        return not self.error and self.exit_code in _JUDGED


MATRIX = JournalSchema((ExperimentKind.MATRIX,), MatrixOpening, {"toolchain": FoundIree, "result": MatrixResult})


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

    def find_value(self, label: str, figure: Figure) -> float | None:
        """A figure with one IREE; None where it has none."""
        return self.cells[label].figures.values.get(figure) if label in self.cells else None

    @property
    def timed_on_one_machine(self) -> bool:
        """Whether its times can be compared."""
        return len({cell.timed_on for cell in self.cells.values() if Figure.TIME in cell.figures.values}) < 2


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


@dataclass(frozen=True, slots=True)
class _MatrixRecord:
    """What the journal of a matrix says, by label; `results` has none of a run that was begun once more."""

    journal: ExperimentRecord[MatrixOpening]
    found: dict[str, FoundIree]
    started: dict[str, StepStart]
    results: dict[str, MatrixResult]


def read_matrix_outcome(folder: Path) -> MatrixOutcome:
    """Read and judge a matrix; GauntletError where its record, or a journal of it, cannot be read."""
    journal = MATRIX.read(folder)
    last, first = journal.opening, journal.openings[0]
    record = _MatrixRecord(
        journal, journal.collect(FoundIree), journal.collect(StepStart), journal.collect_results(MatrixResult)
    )
    irees = tuple(_make_iree(asked, folder, record) for asked in last.irees)
    outcomes = {iree.label: iree.outcome for iree in irees if iree.outcome is not None}
    named: dict[str, MatrixRow] = {}
    for label, outcome in outcomes.items():
        for chain in outcome.cases:
            row = named.setdefault(chain.id, MatrixRow(chain.id, chain.model, chain.submodel, chain.target))
            row.cells[label] = replace(make_matrix_cell(chain), timed_on=outcome.timed_on(chain))
    rows = tuple(named.values())
    codes = [iree.exit_code for iree in irees if iree.exit_code is not None]
    return MatrixOutcome(
        name=last.name or folder.name,
        opening=replace(last, time=first.time, command=first.command),
        machine=next((outcome.machine for outcome in outcomes.values()), MachineFacts()),
        irees=irees,
        rows=rows,
        exit_code=ExitCode.INTERRUPTED if journal.state == _INTERRUPTED else ExitCode.worst(codes),
        state=journal.state,
        seconds=sum(outcome.seconds for outcome in outcomes.values()),
        remarks=tuple(_list_remarks(record, irees, rows)),
    )


def _make_iree(asked: AskedIree, folder: Path, record: _MatrixRecord) -> MatrixIree:
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
        code = ExitCode.INTERRUPTED if result is None and record.journal.state == _INTERRUPTED else outcome.exit_code
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


def _explain_why_not(label: str, record: _MatrixRecord) -> tuple[str, ExitCode | None]:
    """Why an IREE that was found has no run."""
    journal = record.journal
    interrupted = journal.state == _INTERRUPTED
    how = "interrupted" if interrupted else "killed, or is still under way"
    code = ExitCode.INTERRUPTED if interrupted else ExitCode.ERROR
    if label in record.started:
        return f"the matrix was {how} when its run had just begun", code
    if journal.end is not None and journal.state == "stopped":
        return f"not run: {journal.end.stopped}", None
    return f"not run: the matrix was {how}", code


def _list_remarks(record: _MatrixRecord, irees: tuple[MatrixIree, ...], rows: tuple[MatrixRow, ...]) -> Iterator[str]:
    """What is to be known of the record, and what keeps the figures of its IREEs from being compared as they stand."""
    journal = record.journal
    yield from remarks_of_record("matrix", "record", len(journal.openings), journal.end, torn=journal.torn)
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
        timed = [cell for row in rows if (cell := row.cells.get(iree.label)) and Figure.TIME in cell.figures.values]
        disturbed = sum(bool(cell.figures.disturbed) for cell in timed)
        if disturbed:
            count = f"{disturbed} of {len(timed)} times were"
            yield f"{iree.label}: {count} taken while the machine did other work (~): measure them again"
    apart = [row.chain for row in rows if not row.timed_on_one_machine]
    if apart:
        how = "their times have no ratio; `gauntlet compare A B --cluster …` measures both IREEs on one machine"
        yield f"{counted(len(apart), 'model')} timed on several machines of the cluster ({apart[0]}, …): {how}"
