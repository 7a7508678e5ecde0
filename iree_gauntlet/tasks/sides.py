"""The sides of a comparison: each an ordinary run up to its benchmarks, which are then taken in turn.

A side is what one IREE makes of a selection: its modules, its figures and its verdicts in a run of its own
(`<folder>/a`), and the benchmark steps that wait to be measured.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from iree_gauntlet.artifacts.progress import Silent
from iree_gauntlet.cases import MAIN, Stage, Verdict
from iree_gauntlet.errors import ExitCode, UsageError
from iree_gauntlet.journal_format import read_journal
from iree_gauntlet.running.plan import make_plan
from iree_gauntlet.tasks.execute import execute
from iree_gauntlet.tasks.options import RUNNING
from iree_gauntlet.tasks.run_event import without_missing_devices
from iree_gauntlet.tasks.session_folder import is_begun
from iree_gauntlet.tasks.surroundings import make_machine, make_surroundings
from iree_gauntlet.tasks.workspace import select

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from iree_gauntlet.journal_format import JournalRecord
    from iree_gauntlet.running.steps import Step
    from iree_gauntlet.tasks.surroundings import Machine
    from iree_gauntlet.tasks.workspace import Defaults

__all__ = ["Side", "prepare_side", "unready"]

_JOURNAL = "journal.jsonl"
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
    machine: Machine
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


def prepare_side(name: str, asked: str, options: Mapping[str, Any], defaults: Defaults, folder: Path) -> Side:
    """Runs everything of a selection but its benchmarks with one IREE.

    Args:
        name: `A` or `B`.
        asked: which IREE, as for `--iree`.
        options: of the command line.
        defaults: what is selected where they do not say.
        folder: of its run; one that is there already is gone on with.

    Raises:
        GauntletError: what keeps the run from starting.
        UsageError: nothing of the selection is compiled.
    """
    options = {**{option.name: option.default for option in RUNNING}, **options}
    options = {**options, "iree": asked, "run_dir": str(folder), "resume": is_begun(folder), "last_failed": False}
    selection = select(options, defaults)
    stages = tuple(stage for stage in selection.stages if stage is not Stage.BENCHMARK)
    if Stage.COMPILE not in stages:
        raise UsageError("a comparison compiles, and this suite does not", "Take another suite, or name models.")
    sys.stdout.write(f"\n{name}: {asked}\n")
    sys.stdout.flush()
    code = execute(options, defaults, stages, brief=True)
    machine = make_machine(options, Silent(), need_toolchain=True)
    plan = make_plan(selection.cases, (Stage.BENCHMARK,), make_surroundings(machine, folder, options))
    plan = without_missing_devices(plan, machine)
    return Side(
        name=name,
        asked=asked,
        folder=folder,
        machine=machine,
        record=read_journal(folder / _JOURNAL),
        benchmarks={step.chain: step for step in plan.steps if step.stage is Stage.BENCHMARK},
        compiles={step.chain: step for step in plan.steps if step.stage is Stage.COMPILE and step.role == MAIN},
        interrupted=code is ExitCode.INTERRUPTED,
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
            return f"{item['stage']}: {result.reason if result else 'it did not come to an end'}"
        if item["stage"] == Stage.THRESHOLD and result is not None and result.verdict is Verdict.FAILED:
            return f"its numbers are wrong: {result.reason}"
    return ""
