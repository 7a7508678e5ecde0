"""What runs are carried out with: a selection, machines, a session; here, or as another machine conducts them."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from iree_gauntlet.cases import Stage
from iree_gauntlet.engine.engine import Engine, RunOptions
from iree_gauntlet.engine.modules.batches import Batched
from iree_gauntlet.engine.operator_suites import OperatorRun, operator_performers, started_runs
from iree_gauntlet.engine.plan import Plan, make_plan
from iree_gauntlet.engine.rounds.confirming import confirm_rules
from iree_gauntlet.engine.run_start import with_counts
from iree_gauntlet.engine.session import Session, open_session
from iree_gauntlet.engine.workbench import Workbench, open_workbench, plan_context
from iree_gauntlet.errors import SpecError
from iree_gauntlet.journal_format import JOURNAL
from iree_gauntlet.measuring.machine.machine_state import machine_facts
from iree_gauntlet.progress import Progress
from iree_gauntlet.records.event_log import Journal
from iree_gauntlet.records.run_folder import is_begun, make_folder
from iree_gauntlet.requests import ConductRequest, FolderRequest, RunRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from iree_gauntlet.engine.engine import Elsewhere
    from iree_gauntlet.engine.processes.run_client import RunServers
    from iree_gauntlet.engine.workspace import Selection
    from iree_gauntlet.experiments.compare_elsewhere import RoundsElsewhere
    from iree_gauntlet.experiments.sides import Side
    from iree_gauntlet.requests import CompareRequest
    from iree_gauntlet.results import Result
    from iree_gauntlet.steps import Step


class Machines(Protocol):
    """Other machines, which perform the steps of runs."""

    def taking_part(
        self, chosen: Chosen, machine: Workbench, run_dir: Path, progress: Progress
    ) -> AbstractContextManager[Elsewhere]:
        """Has them take part in a run, until it is left.

        Raises:
            GauntletError: none of them can.
        """

    def comparing(
        self, chosen: Chosen, asked: CompareRequest, sides: tuple[Side, Side], progress: Progress
    ) -> AbstractContextManager[RoundsElsewhere]:
        """Has them take the rounds of a comparison whose sides they have run, until it is left.

        Raises:
            GauntletError: none of them can.
        """


@dataclass(frozen=True, slots=True)
class Chosen:
    """A run that is asked for, with what it selects; several runs of one selection share it.

    Attributes:
        machines: perform the steps; None for this machine alone.
    """

    request: RunRequest
    selection: Selection
    stages: tuple[Stage, ...]
    machines: Machines | None = None

    def within(self, folder: Path, iree: str = "", stages: tuple[Stage, ...] = ()) -> Chosen:
        """The same in a folder of its own, which is resumed where it was begun; with another IREE, or other stages."""
        toolchain = replace(self.request.toolchain, iree=iree or self.request.toolchain.iree)
        resumed = FolderRequest(run_dir=str(folder), resume=is_begun(folder))
        return replace(
            self, request=replace(self.request, toolchain=toolchain, folder=resumed), stages=stages or self.stages
        )

    def workbench(self, iree: str) -> Workbench:
        """What an IREE means here, installed where it has to be.

        Raises:
            ToolchainError: it is not available.
        """
        request = replace(self.request, toolchain=replace(self.request.toolchain, iree=iree))
        return replace(self, request=request).opened_workbench(Progress())

    def opened_workbench(self, progress: Progress) -> Workbench:
        """What it runs with; what is only to be fetched needs no IREE.

        Raises:
            ToolchainError: that IREE is not available.
        """
        imports = any(module.program.onnx for case in self.selection.cases.cases for module in case.modules)
        request = self.request
        needed = set(self.stages) != {Stage.FETCH}
        return open_workbench(request.toolchain, progress, request.network, need_toolchain=needed, importer=imports)


@dataclass(frozen=True, slots=True)
class RunParts:
    """What a run works with."""

    machine: Workbench
    run_dir: Path
    progress: Progress
    runs: RunServers | None
    elsewhere: Elsewhere | None = None


def started_run_servers(chosen: Chosen, machine: Workbench) -> AbstractContextManager[RunServers | None]:
    """The processes that run modules of operator suites; none where other machines do."""
    if chosen.machines is not None:
        return nullcontext()
    return started_runs(chosen.selection.cases.cases, chosen.stages, machine, _jobs(chosen.request.conduct))


def all_planned(chosen: Chosen, machine: Workbench, run_dir: Path) -> Plan:
    """Everything that is selected, as it is done in a folder."""
    conduct, selection = chosen.request.conduct, chosen.selection
    cases = with_counts(selection.cases) if conduct.baseline else selection.cases
    plan = make_plan(cases, chosen.stages, plan_context(machine, run_dir, conduct))
    if plan.problems:
        raise SpecError(list(plan.problems))
    return plan


@contextmanager
def performing(
    journal: Journal, batches: Batched, request: RunRequest, parts: RunParts
) -> Iterator[tuple[Session[Journal], Engine]]:
    """A session in a run's folder, and what performs steps in it."""
    conduct, run_dir = request.conduct, parts.run_dir
    made_again = run_dir / "made-again" if conduct.force_recompile else None
    operators = OperatorRun(_jobs(conduct), made_again, parts.runs)
    with open_session(run_dir, journal, parts.progress) as session, ExitStack() as held:
        session.on_cancel(parts.progress.cancel)
        performers: Mapping[Stage, Callable[[Step], Result | None]] = {}
        if parts.elsewhere is None:
            performers = held.enter_context(operator_performers(session, batches, parts.machine, operators))
        settings = RunOptions(
            jobs=_jobs(conduct),
            fail_fast=conduct.stops_early,
            made_again=made_again,
            lenient=conduct.lenient,
            confirm=confirm_rules(
                conduct.verdict, conduct.confirm_seconds, replace_disturbed=conduct.replaces_disturbed
            ),
        )
        yield session, Engine(session, parts.machine, settings, performers, elsewhere=parts.elsewhere)


@dataclass(frozen=True, slots=True)
class Opened:
    """A run that another machine conducts."""

    machine: Workbench
    session: Session[Journal]
    engine: Engine
    steps: tuple[Step, ...]


@contextmanager
def opened(chosen: Chosen, progress: Progress) -> Iterator[Opened]:
    """Opens a run that another machine conducts.

    Which steps are performed, when and on which device is the other one's matter, and so are the reports.

    Raises:
        GauntletError: what keeps the run from starting.
    """
    request = chosen.request
    machine = chosen.opened_workbench(progress)
    machine.store.progress = progress
    run_dir = make_folder(Path(request.folder.run_dir), chosen.selection.name)
    with ExitStack() as held:
        runs = held.enter_context(started_run_servers(chosen, machine))
        plan = all_planned(chosen, machine, run_dir)
        journal = held.enter_context(Journal(run_dir / JOURNAL, lambda: datetime.now(UTC)))
        parts = RunParts(machine, run_dir, progress, runs)
        session, engine = held.enter_context(performing(journal, Batched(plan.steps, {}), request, parts))
        with session.interruptible():
            yield Opened(machine, session, engine, plan.steps)


def _jobs(conduct: ConductRequest) -> int:
    """How many steps run at once before the benchmarks."""
    return conduct.jobs or machine_facts().cores
