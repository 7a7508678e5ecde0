"""The result of a matrix, even a killed or running one: the runs, one for each IREE, side by side.

The matrix's journal is next to the runs. Its steps are the IREEs; all measurements are in the runs' own journals.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from iree_gauntlet.errors import ExitCode
from iree_gauntlet.figures import Figure
from iree_gauntlet.formatting import join_lines, pluralize
from iree_gauntlet.journal_events import ExperimentKind, MachineInfo, Opening, StepStart, ToolchainInfo
from iree_gauntlet.journal_format import JOURNAL, ExperimentRecord, JournalSchema, read_journal
from iree_gauntlet.recorded import UNLESS_DEFAULT, Recorded
from iree_gauntlet.records.chain_figures import MatrixCell, make_matrix_cell
from iree_gauntlet.records.outcome import RunOutcome, format_headline, list_record_remarks, read_outcome
from iree_gauntlet.variants import split_side

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


_INTERRUPTED = "interrupted"
_FINAL_EXIT_CODES = (ExitCode.OK, ExitCode.FAILED, ExitCode.INCONCLUSIVE)


@dataclass(frozen=True, slots=True)
class IreeRequest(Recorded):
    """One IREE of a matrix.

    Attributes:
        label: the name in reports: the text; a folder is shortened to the end that distinguishes it from others.
        iree: the value of `--iree`, unchanged.
        folder: the folder of this IREE's run, inside the matrix's folder.
        runtime: the IREE whose runtime runs the modules; empty for the same IREE.
    """

    label: str
    iree: str
    folder: str
    runtime: str = field(default="", metadata=UNLESS_DEFAULT)

    def __post_init__(self) -> None:
        # A path must not lead out of the matrix's folder.
        if PurePath(self.folder).parts != (self.folder,) or self.folder in ("..", "/"):
            raise ValueError(f"{self.folder} is not a folder within a matrix")


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixOpening(Opening):
    """The opening of a matrix."""

    kind: ExperimentKind = ExperimentKind.MATRIX
    suite: str = ""
    irees: tuple[IreeRequest, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class IreeResolution(Recorded):
    """`toolchain`: the facts about an IREE, or the reason why the IREE is not available."""

    toolchain: ToolchainInfo | None = None
    error: str | None = field(default=None, metadata=UNLESS_DEFAULT)
    hint: str | None = field(default=None, metadata=UNLESS_DEFAULT)


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixResult(Recorded):
    """`result`: the end of an IREE's run, after the run's `start`; `error` if the run could not be completed.

    Attributes:
        no_effect: chains whose modules are the same bytes as without the variants.
    """

    exit_code: ExitCode
    error: str = ""
    hint: str = ""
    no_effect: tuple[str, ...] = field(default=(), metadata=UNLESS_DEFAULT)

    @property
    def is_kept_on_resume(self) -> bool:
        """True if a resumed matrix keeps this result; errors and interrupted runs are tried again."""
        return not self.error and self.exit_code in _FINAL_EXIT_CODES


MATRIX = JournalSchema((ExperimentKind.MATRIX,), MatrixOpening, {"toolchain": IreeResolution, "result": MatrixResult})


@dataclass(frozen=True, slots=True)
class MatrixIree:
    """One IREE of a matrix, and the result of its run.

    Attributes:
        toolchain: empty if the IREE was not found.
        problem: the reason for a missing or incomplete run; empty for a complete run.
        exit_code: None if the IREE was left out.
        outcome: the outcome of the run; None without a run.
        no_effect: chains whose modules are the same bytes as without the variants.
    """

    label: str
    text: str
    folder: str
    toolchain: ToolchainInfo
    problem: str
    hint: str
    exit_code: ExitCode | None
    outcome: RunOutcome | None
    no_effect: tuple[str, ...] = ()

    @property
    def result_text(self) -> str:
        """The result in one line: `85 passed, 1 failed`, or the reason for having none."""
        parts = [format_headline(self.outcome)] if self.outcome is not None else []
        if self.outcome is not None and self.outcome.state != "complete":
            parts.append(self.outcome.state)
        if self.problem:
            parts.append(self.problem)
        return "; ".join(parts)


@dataclass(frozen=True, slots=True)
class MatrixRow:
    """One chain; `cells` has, by label, the cell of each IREE that ran the chain."""

    chain: str
    model: str
    submodel: str
    target: str
    cells: dict[str, MatrixCell] = field(default_factory=dict)

    def find_value(self, label: str, figure: Figure) -> float | None:
        """Return the value of a figure with one IREE; None if there is no value."""
        return self.cells[label].figures.values.get(figure) if label in self.cells else None

    @property
    def timed_on_one_machine(self) -> bool:
        """True if the row's times are from one machine, so that they can be compared."""
        return len({cell.timed_on for cell in self.cells.values() if Figure.TIME in cell.figures.values}) < 2


@dataclass(frozen=True, slots=True)
class MatrixOutcome:
    """The result of a matrix.

    Attributes:
        irees: the IREEs in the order of the options; the first is the base of the comparison.
        rows: the chains in plan order.
        state: `complete`, `interrupted`, `stopped` (by --fail-fast) or `unfinished`.
        seconds: the total wall time of the runs.
        remarks: notes about the record itself that a reader needs, one line each.
    """

    name: str
    opening: MatrixOpening
    machine: MachineInfo
    irees: tuple[MatrixIree, ...]
    rows: tuple[MatrixRow, ...]
    exit_code: ExitCode
    state: str
    seconds: float
    remarks: tuple[str, ...]

    @property
    def base(self) -> str:
        """The label of the IREE with which the others are compared."""
        return self.irees[0].label if self.irees else ""

    @property
    def is_over(self) -> bool:
        """True unless the matrix was interrupted or killed, or still runs."""
        return self.state in ("complete", "stopped")

    @property
    def irees_with_runs(self) -> tuple[MatrixIree, ...]:
        """The IREEs that have a run."""
        return tuple(iree for iree in self.irees if iree.outcome is not None)


@dataclass(frozen=True, slots=True)
class _MatrixRecord:
    """The content of a matrix's journal, by label; `results` omits runs that were started again."""

    journal: ExperimentRecord[MatrixOpening]
    toolchains: dict[str, IreeResolution]
    starts: dict[str, StepStart]
    results: dict[str, MatrixResult]


def read_matrix_outcome(folder: Path) -> MatrixOutcome:
    """Read and judge a matrix; GauntletError if the matrix's record, or a run's journal, cannot be read."""
    journal = MATRIX.read(folder)
    opening, first_opening = journal.opening, journal.openings[0]
    record = _MatrixRecord(
        journal, journal.collect(IreeResolution), journal.collect(StepStart), journal.collect_results(MatrixResult)
    )
    irees = tuple(_make_iree(request, folder, record) for request in opening.irees)
    outcomes = {iree.label: iree.outcome for iree in irees if iree.outcome is not None}
    rows_by_chain: dict[str, MatrixRow] = {}
    folders = {iree.label: iree.folder for iree in irees}
    for label, outcome in outcomes.items():
        for chain in outcome.cases:
            row = rows_by_chain.setdefault(chain.id, MatrixRow(chain.id, chain.model, chain.submodel, chain.target))
            row.cells[label] = replace(
                make_matrix_cell(chain, folders[label]), timed_on=outcome.get_timing_machine(chain)
            )
    rows = tuple(rows_by_chain.values())
    codes = [iree.exit_code for iree in irees if iree.exit_code is not None]
    return MatrixOutcome(
        name=opening.name or folder.name,
        opening=replace(opening, time=first_opening.time, command=first_opening.command),
        machine=next((outcome.machine for outcome in outcomes.values()), MachineInfo()),
        irees=irees,
        rows=rows,
        exit_code=ExitCode.INTERRUPTED if journal.state == _INTERRUPTED else ExitCode.worst(codes),
        state=journal.state,
        seconds=sum(outcome.seconds for outcome in outcomes.values()),
        remarks=tuple(_list_remarks(record, irees, rows)),
    )


def _make_iree(request: IreeRequest, folder: Path, record: _MatrixRecord) -> MatrixIree:
    label = request.label
    resolution, result = record.toolchains.get(label), record.results.get(label)
    path = folder / request.folder / JOURNAL
    outcome = read_outcome(read_journal(path)) if label in record.starts and path.is_file() else None
    code: ExitCode | None
    problem, hint = "", ""
    if result is not None and result.error:
        problem, hint = result.error, result.hint
        code = ExitCode.worst([result.exit_code, *([outcome.exit_code] if outcome else [])])
    elif resolution and resolution.error and (result is None or outcome is None):
        problem, hint, code = resolution.error, resolution.hint or "", ExitCode.ERROR
    elif outcome is not None:
        # Take the interruption from the matrix: a run interrupted before its first step does not record it.
        code = ExitCode.INTERRUPTED if result is None and record.journal.state == _INTERRUPTED else outcome.exit_code
    else:
        problem, code = _explain_why_not(label, record)
    toolchain = resolution.toolchain if resolution else None
    return MatrixIree(
        label=join_lines(label),
        text=request.iree,
        folder=request.folder,
        toolchain=toolchain or (outcome.toolchain if outcome else ToolchainInfo()),
        problem=join_lines(problem, 500),
        hint=hint,
        exit_code=code,
        outcome=outcome,
        no_effect=result.no_effect if result else (),
    )


def _explain_why_not(label: str, record: _MatrixRecord) -> tuple[str, ExitCode | None]:
    """Return the reason why an available IREE has no run, and the exit code."""
    journal = record.journal
    interrupted = journal.state == _INTERRUPTED
    state = "interrupted" if interrupted else "killed, or is still running"
    code = ExitCode.INTERRUPTED if interrupted else ExitCode.ERROR
    if label in record.starts:
        return f"the matrix was {state} when its run had just begun", code
    if journal.end is not None and journal.state == "stopped":
        return f"not run: {journal.end.stopped}", None
    return f"not run: the matrix was {state}", code


def list_equal_irees(irees: Iterable[MatrixIree]) -> Iterator[str]:
    """List notes about several names of one IREE."""
    labels_by_identity: dict[tuple[str, ...], list[str]] = {}
    for iree in irees:
        key = iree.toolchain.identity, iree.toolchain.runtime_identity, *split_side(iree.text)[1]
        labels_by_identity.setdefault(key, []).append(iree.label)
    for key, labels in labels_by_identity.items():
        if any(key[:2]) and len(labels) > 1:
            yield f"{' and '.join(labels)} are the same IREE: differences between them are noise"


def _list_remarks(record: _MatrixRecord, irees: tuple[MatrixIree, ...], rows: tuple[MatrixRow, ...]) -> Iterator[str]:
    """List notes about the record, and the obstacles to comparing the IREEs' figures."""
    journal = record.journal
    yield from list_record_remarks(
        "matrix", "record", len(journal.openings), journal.end, torn=journal.has_truncated_line
    )
    yield from list_equal_irees(irees)
    hosts = {iree.outcome.machine.host for iree in irees if iree.outcome is not None} - {""}
    if len(hosts) > 1:
        yield f"measured on several machines ({', '.join(sorted(hosts))}): their times cannot be compared"
    for iree in irees:
        yield from (f"{iree.label}: {remark}" for remark in (iree.outcome.remarks if iree.outcome else ()))
        if iree.problem and iree.exit_code is not None:
            yield f"{iree.label}: {iree.problem}"
    for iree in irees:
        timings = [cell for row in rows if (cell := row.cells.get(iree.label)) and Figure.TIME in cell.figures.values]
        disturbed_count = sum(bool(cell.figures.disturbance) for cell in timings)
        if disturbed_count:
            counts = f"{disturbed_count} of {len(timings)} times were"
            yield f"{iree.label}: {counts} disturbed (~): measure them again"
    chains = [row.chain for row in rows if not row.timed_on_one_machine]
    if chains:
        advice = "their times have no ratio; `gauntlet compare A B --cluster …` measures both IREEs on one machine"
        yield f"{pluralize(len(chains), 'model')} timed on several machines of the cluster ({chains[0]}, …): {advice}"
