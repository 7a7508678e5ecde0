"""The sides of a comparison: each an ordinary run up to its benchmarks, which are then taken in turn.

A side is what one IREE makes of a selection: its modules, its figures and its verdicts in a run of its own
(`<folder>/a`), and the benchmark steps that wait to be measured.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from iree_gauntlet.cases import MAIN, Stage, Verdict
from iree_gauntlet.errors import ExitCode
from iree_gauntlet.experiments.run import Chosen, run
from iree_gauntlet.journal_format import JOURNAL, JournalRecord, read_journal
from iree_gauntlet.records.run_folder import is_begun
from iree_gauntlet.requests import FolderRequest

if TYPE_CHECKING:
    from pathlib import Path

    from iree_gauntlet.engine.workbench import Workbench
    from iree_gauntlet.progress import Presenter
    from iree_gauntlet.steps import Step


_BEFORE = (Stage.IMPORT, Stage.PARAMETERS, Stage.COMPILE)


@dataclass(frozen=True, slots=True)
class Side:
    """One IREE of a comparison, ready to be measured.

    Attributes:
        name: `A` or `B`.
        asked: as the command line names it.
        folder: of its run.
        machine: its toolchain and the caches; what it uses stays for as long as this lives.
        record: its run.
        benchmarks: benchmark steps, by chain.
        compiles: compile steps, by their id without the stage.
        interrupted: whether its run was.
    """

    name: str
    asked: str
    folder: Path
    machine: Workbench
    record: JournalRecord
    benchmarks: dict[str, Step]
    compiles: dict[str, Step]
    interrupted: bool

    def as_dict(self) -> dict[str, Any]:
        """For the log of the comparison."""
        toolchain = self.machine.toolchain
        return {
            "asked": self.asked,
            "folder": self.folder.name,
            "toolchain": toolchain.as_dict() if toolchain else {},
        }


def prepare_side(name: str, machine: Workbench, asked: str, chosen: Chosen, folder: Path, presenter: Presenter) -> Side:
    """Runs everything of a selection but its benchmarks with one IREE.

    Args:
        name: `A` or `B`.
        machine: with it.
        asked: which one, as for `--iree`.
        chosen: what is run.
        folder: of its run; one that is there already is resumed.
        presenter: shows it.

    Raises:
        GauntletError: what keeps the run from starting.
    """
    request = chosen.request
    request = replace(
        request,
        toolchain=replace(request.toolchain, iree=asked),
        folder=FolderRequest(run_dir=str(folder), resume=is_begun(folder)),
    )
    presenter.line(f"\n{name}: {asked}")
    ran = run(replace(chosen, request=request), presenter, machine=machine, hold=Stage.BENCHMARK, brief=True)
    record = read_journal(folder / JOURNAL)
    compiles = [step for step in ran.steps if step.stage is Stage.COMPILE and step.role == MAIN]
    return Side(
        name=name,
        asked=asked,
        folder=folder,
        machine=machine,
        record=record,
        benchmarks={step.chain: step for step in ran.held},
        compiles={step.chain: step for step in compiles},
        interrupted=ran.exit_code is ExitCode.INTERRUPTED,
    )


def unready(side: Side, step: Step) -> str:
    """Why a step of a side cannot be measured; empty where it can."""
    if step.skip or step.blocked:
        return step.skip or step.blocked
    results = side.record.results
    for item in side.record.steps:
        if item["chain"] != step.chain and item["id"] not in step.needs:
            continue
        result = results.get(item["id"])
        if item["stage"] in _BEFORE and (result is None or result.verdict is not Verdict.PASSED):
            return f"{item['stage']}: {result.reason if result else 'it did not finish'}"
        if item["stage"] == Stage.THRESHOLD and result is not None and result.verdict is Verdict.FAILED:
            return f"its numbers are wrong: {result.reason}"
    return ""
