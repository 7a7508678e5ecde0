"""The result of `compat`: what becomes of each IREE's modules with each IREE's runtime.

The journal is next to the runs, one for each pair of a compiler and a runtime. Its steps are the pairs.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from iree_gauntlet.cases import Verdict
from iree_gauntlet.errors import ExitCode
from iree_gauntlet.formatting import pluralize
from iree_gauntlet.journal_events import ExperimentKind, MachineInfo, StepStart, ToolchainInfo
from iree_gauntlet.journal_format import JOURNAL, JournalSchema, read_journal
from iree_gauntlet.recorded import Recorded
from iree_gauntlet.records.matrix_outcome import IreeRequest, MatrixOpening, MatrixResult
from iree_gauntlet.records.outcome import list_record_remarks, read_outcome
from iree_gauntlet.stages import FailureKind, Stage

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from iree_gauntlet.records.outcome import RunOutcome, StepOutcome


class Compatibility(StrEnum):
    """The result of a module with a runtime, the worst first."""

    CRASHES = "crashes"
    WRONG = "wrong numbers"
    UNKNOWN = "not judged"
    NO_MODULE = "no module"
    REFUSED = "refused"
    RUNS = "runs"


# The decisive failures of a threshold step.
_BY_FAILURE: Mapping[FailureKind | None, Compatibility] = {
    FailureKind.CRASHES: Compatibility.CRASHES,
    FailureKind.WRONG_NUMBERS: Compatibility.WRONG,
    FailureKind.DOES_NOT_RUN: Compatibility.REFUSED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CompatOpening(MatrixOpening):
    """The opening of a compatibility matrix.

    Attributes:
        irees: the IREEs, the oldest first.
        promised: each IREE has to run the modules of this many IREEs before it.
    """

    kind: ExperimentKind = ExperimentKind.COMPAT
    promised: int = 0

    @property
    def pairs(self) -> tuple[IreeRequest, ...]:
        """A run for each compiler and runtime; the first of each compiler is with its own runtime."""
        return tuple(
            self.make_pair(compiler, runtime)
            for compiler in self.irees
            for runtime in sorted(self.irees, key=lambda iree: iree is not compiler)
        )

    @staticmethod
    def make_pair(compiler: IreeRequest, runtime: IreeRequest) -> IreeRequest:
        """Return the run of a compiler's modules with a runtime."""
        label, folder = f"{compiler.label} on {runtime.label}", f"{compiler.folder}-on-{runtime.folder}"
        return IreeRequest(label, compiler.iree, folder, runtime.iree)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleNeeds(Recorded):
    """`module`: what a module needs of a runtime, as the `iree-dump-module` of its release says.

    Attributes:
        iree: the label of the IREE that compiled it.
        chain: the model that runs it.
        name: the module's role in the run; empty for the only one.
        bytecode: version of the bytecode, `17.0`.
        features: features of the virtual machine that must be enabled.
        dependencies: modules of the runtime, with their lowest versions: `hal >= 7`.
        imports: the runtime's functions that it calls, each with its signature: `hal.fence.create 0rI_r`.
        problem: the reason for having no description.
    """

    iree: str
    chain: str
    name: str = ""
    bytecode: str = ""
    features: str = ""
    dependencies: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    problem: str = ""


COMPAT = JournalSchema((ExperimentKind.COMPAT,), CompatOpening, {"result": MatrixResult}, {"module": ModuleNeeds})


@dataclass(frozen=True, slots=True, kw_only=True)
class CompatCell:
    """A model's module of one IREE with the runtime of another.

    Attributes:
        compiler, runtime: labels of the IREEs.
        step: the step that decides; None if the run has no such step.
        problem: the reason for having no step.
        is_promised: True if the runtime has to run the module.
    """

    chain: str
    compiler: str
    runtime: str
    folder: str
    step: StepOutcome | None
    problem: str = ""
    is_promised: bool = False

    @property
    def compatibility(self) -> Compatibility:
        """The result of the module."""
        if self.step is None:
            return Compatibility.UNKNOWN
        if self.step.verdict.counts_as_pass:
            return Compatibility.RUNS
        if self.step.stage is not Stage.THRESHOLD and self.step.failure:
            return Compatibility.NO_MODULE
        return _BY_FAILURE.get(self.step.failure, Compatibility.UNKNOWN)

    @property
    def exit_code(self) -> ExitCode:
        """The exit code: a refusal fails only if a promise forbids it, an expected failure never."""
        if self.step is not None and self.step.verdict is Verdict.XFAILED:
            return ExitCode.OK
        match self.compatibility:
            case Compatibility.RUNS:
                return ExitCode.OK
            case Compatibility.UNKNOWN:
                return ExitCode.ERROR
            case Compatibility.REFUSED | Compatibility.NO_MODULE:
                # Without a module, the run with the compiler's own runtime fails.
                is_own = self.compiler == self.runtime
                fails = is_own or (self.is_promised and self.compatibility is Compatibility.REFUSED)
                return ExitCode.FAILED if fails else ExitCode.OK
        return ExitCode.FAILED

    @property
    def url(self) -> str:
        """The page of the run, at the step if it failed, relative to the matrix; empty if there is no step."""
        anchor = f"#{self.step.id}" if self.step and self.step.verdict.is_bad else ""
        return f"{self.folder}/summary.html{anchor}" if self.step else ""


@dataclass(frozen=True, slots=True)
class CompatOutcome:
    """The result of a compatibility matrix.

    Attributes:
        cells: for each model, a cell for each compiler and runtime, in the order of the pairs.
        needs: of each model that ran, what its modules need.
        exit_code: the command's exit code; ERROR if it did not finish.
        state: as of an `ExperimentRecord`.
    """

    name: str
    opening: CompatOpening
    machine: MachineInfo
    toolchains: Mapping[str, ToolchainInfo]
    cells: tuple[CompatCell, ...]
    needs: tuple[ModuleNeeds, ...]
    exit_code: ExitCode
    state: str
    seconds: float
    remarks: tuple[str, ...]

    @property
    def worst_code(self) -> ExitCode:
        """The exit code of the cells."""
        return ExitCode.worst([cell.exit_code for cell in self.cells]) if self.cells else ExitCode.ERROR

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of the IREEs."""
        return tuple(iree.label for iree in self.opening.irees)

    @property
    def chains(self) -> tuple[str, ...]:
        """The models."""
        return tuple(dict.fromkeys(cell.chain for cell in self.cells))

    @property
    def answer(self) -> str:
        """The answer in one line."""
        if not self.cells:
            return "nothing ran"
        counts = Counter(cell.compatibility for cell in self.cells)
        others = (f"{counts[kind]} {kind}" for kind in Compatibility if counts[kind] and kind is not Compatibility.RUNS)
        total = f"{counts[Compatibility.RUNS]} of {len(self.cells)} run"
        models = f"{pluralize(len(self.chains), 'model')} of {pluralize(len(self.labels), 'IREE')}"
        return f"modules of {models}: {', '.join((total, *others))}"


def read_compat_outcome(folder: Path) -> CompatOutcome:
    """Read a compatibility matrix, even a killed one; GauntletError if its record, or a run's, cannot be read."""
    record = COMPAT.read(folder)
    opening, first_opening = record.opening, record.openings[0]
    results, starts = record.collect_results(MatrixResult), record.collect(StepStart)
    outcomes: dict[str, RunOutcome] = {}
    for pair in opening.pairs:
        path = folder / pair.folder / JOURNAL
        if pair.label in starts and path.is_file():
            outcomes[pair.label] = read_outcome(read_journal(path))
    steps = {label: _find_steps(outcome) for label, outcome in outcomes.items()}
    cells = []
    for chain in dict.fromkeys(itertools.chain.from_iterable(steps.values())):
        for compiler, runtime in itertools.product(enumerate(opening.irees), repeat=2):
            pair = opening.make_pair(compiler[1], runtime[1])
            result = results.get(pair.label)
            cells.append(
                CompatCell(
                    chain=chain,
                    compiler=compiler[1].label,
                    runtime=runtime[1].label,
                    folder=pair.folder,
                    step=steps.get(pair.label, {}).get(chain),
                    problem=(result.error if result else "") or f"the matrix is {record.state}",
                    is_promised=0 < runtime[0] - compiler[0] <= opening.promised,
                )
            )
    owns = {iree.label: outcomes.get(opening.make_pair(iree, iree).label) for iree in opening.irees}
    needs = [event.content for event in record.events if isinstance(event.content, ModuleNeeds)]
    truncated = record.has_truncated_line
    remarks = list_record_remarks("matrix", "record", len(record.openings), record.end, torn=truncated)
    return CompatOutcome(
        name=opening.name or folder.name,
        opening=replace(opening, time=first_opening.time, command=first_opening.command),
        machine=next((outcome.machine for outcome in outcomes.values()), MachineInfo()),
        toolchains={label: outcome.toolchain for label, outcome in owns.items() if outcome},
        cells=tuple(cells),
        needs=tuple({(entry.iree, entry.chain, entry.name): entry for entry in needs}.values()),
        exit_code=record.end.exit_code if record.end else ExitCode.ERROR,
        state=record.state,
        seconds=sum(outcome.seconds for outcome in outcomes.values()),
        remarks=tuple(filter(None, (*remarks, record.end.problem if record.end else ""))),
    )


def _find_steps(outcome: RunOutcome) -> dict[str, StepOutcome]:
    """Return, for each model that is run, its worst threshold step, or the step whose failure prevented it."""
    steps_by_id = {step.id: step for step in outcome.steps}
    steps: dict[str, StepOutcome] = {}
    for step in outcome.steps:
        if step.stage is Stage.THRESHOLD:
            cause = steps_by_id.get(step.behind, step)
            verdicts = [entry.verdict for entry in (cause, steps.get(step.chain)) if entry]
            if Verdict.worst(verdicts) is cause.verdict:
                steps[step.chain] = cause
    return steps
