"""The tasks that run something: fetch, compile, threshold, benchmark, run."""

from __future__ import annotations

import glob
import shutil
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from iree_gauntlet import messages
from iree_gauntlet.engine.engine import Engine, RunOptions
from iree_gauntlet.engine.operator_suites import Batched, make_batches, operator_performers, started_runs
from iree_gauntlet.engine.plan import Plan, make_plan
from iree_gauntlet.engine.rounds.taken_rounds import confirm_rules
from iree_gauntlet.engine.run_start import (
    describe_missing,
    find_missing_files,
    find_unplanned,
    held_against,
    imports_possible,
    on_devices_here,
    redo_changed,
    run_event,
    with_compile_statistics,
)
from iree_gauntlet.engine.session import Session, open_session
from iree_gauntlet.engine.workbench import Workbench, open_workbench, plan_context
from iree_gauntlet.engine.workspace import select
from iree_gauntlet.errors import ExitCode, GauntletError, NothingSelectedError, SpecError, UsageError
from iree_gauntlet.experiments.shards import choose_chains, choose_shard
from iree_gauntlet.formatting import counted
from iree_gauntlet.journal_events import ExperimentKind, KeptOptions, ToolchainFacts
from iree_gauntlet.journal_format import JOURNAL, JournalRecord, read_journal
from iree_gauntlet.measuring.machine.machine_state import read_machine_facts
from iree_gauntlet.progress import Progress
from iree_gauntlet.records.event_log import Journal
from iree_gauntlet.records.run_folder import (
    find_asked_folder,
    find_failed_chains,
    find_finished_verdicts,
    find_newest_run,
    keep_if_begun,
    make_folder,
    read_kept_options,
    run_named,
)
from iree_gauntlet.requests import (
    KEPT_UNLESS_GIVEN,
    ConductRequest,
    Defaults,
    ExplainRequest,
    FolderRequest,
    RunRequest,
    given,
    require_as_begun,
)
from iree_gauntlet.settings import find_runs_folder, format_typed_command, resolve_links, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from iree_gauntlet.cases import Verdict
    from iree_gauntlet.engine.engine import Elsewhere
    from iree_gauntlet.engine.processes.run_client import RunServers
    from iree_gauntlet.engine.workspace import Selection
    from iree_gauntlet.journal_events import RunShard
    from iree_gauntlet.progress import Presenter
    from iree_gauntlet.results import Result
    from iree_gauntlet.stages import Stage
    from iree_gauntlet.steps import Step


# Of models without figures in a baseline.
_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class EndedRun:
    """A run that is over; steps that are `held` were planned with it and are left to the caller."""

    exit_code: ExitCode
    steps: tuple[Step, ...]
    held: tuple[Step, ...]
    folder: Path


def choose(request: RunRequest, machines: Machines | None = None) -> Chosen:
    """Reads the specs that a run is about.

    Raises:
        UsageError, SpecError, NothingSelectedError: what is asked for, or a spec, is wrong, or nothing matches.
    """
    if request.conduct.baseline:
        # Under its own name: what is the latest now will not be when this run is resumed.
        baseline = str(resolve_links(run_named(request.conduct.baseline, "--baseline")))
        request = replace(request, conduct=replace(request.conduct, baseline=baseline))
    selection = select(request.selection, request.defaults)
    selection.require_sound()
    return Chosen(request, selection, request.stages_after(selection.stages), machines)


def execute(request: RunRequest, presenter: Presenter, machines: Machines | None = None) -> ExitCode:
    """Selects, plans, runs and reports; explains what failed, where that is asked for."""
    ran = run(choose(_as_before(request), machines), presenter)
    code = ran.exit_code
    failed: list[str] = []
    if request.explain and code is not ExitCode.INTERRUPTED:
        failed = sorted(find_failed_chains(ran.folder))
    if failed:
        # Of the imports of a run it would take a quarter, and few ask for it.
        from iree_gauntlet.experiments.explain import explain  # noqa: PLC0415

        try:
            explain(ExplainRequest((str(ran.folder), *map(glob.escape, failed))), request.toolchain, presenter)
        except NothingSelectedError:
            # A download, an import or a benchmark: nothing that `explain` is about.
            return code
        except GauntletError as error:
            messages.warn(f"what failed was not explained: {error}")
        presenter.line(f"the run itself: exit code {int(code)}: {code.meaning}")
    return code


def run(
    chosen: Chosen,
    presenter: Presenter,
    *,
    machine: Workbench | None = None,
    hold: Stage | None = None,
    brief: bool = False,
) -> EndedRun:
    """Plans, runs and reports; steps of a stage that is on `hold`, and what comes after it, are planned, and not run.

    `brief`: it is a part of something larger, which reports on it.
    """
    request = chosen.request
    for warning in chosen.selection.warnings():
        messages.warn(warning)
    for note in chosen.selection.notes:
        messages.note(note)
    named, _ = find_asked_folder(ExperimentKind.RUN, request.folder)
    there = named is not None and named.exists()
    with presenter.progress() as progress, ExitStack() as held:
        machine = machine or chosen.opened_workbench(progress)
        machine.store.progress = progress
        runs = held.enter_context(_start_run_servers(chosen, machine))
        run_dir = make_folder(named, chosen.selection.name)
        with _remove_where_nothing_begins(run_dir, made=not there):
            elsewhere = None
            if chosen.machines is not None:
                elsewhere = held.enter_context(chosen.machines.taking_part(chosen, machine, run_dir, progress))
            path = run_dir / JOURNAL
            earlier = read_journal(path) if request.folder.resume else JournalRecord(path)
            plan, shard = _plan(chosen, machine, earlier, elsewhere)
            later = tuple(step for step in plan.steps if step.stage is hold)
            others = (step for step in plan.steps if hold not in (step.stage, *step.stage.row.upstream))
            plan = replace(plan, steps=tuple(others))
            parts = RunParts(machine, run_dir, progress, runs, elsewhere, earlier, measured=hold is not None)
            engine, steps, finished = held.enter_context(_open_engine(plan, shard, chosen, parts))
        with engine.recorded() as performed:
            performed.verdicts = engine.perform(steps, finished)
    presenter.ran(run_dir, brief=brief)
    if hold is None:
        # One that leaves steps to its caller is a part of a measurement, which is no run.
        from iree_gauntlet.history.index import add_itself  # noqa: PLC0415 - a worker's part of a run has no need of it

        add_itself(run_dir, machine.store.configuration, machine.cache_dir)
    return EndedRun(performed.code, plan.steps, later, run_dir)


@contextmanager
def _remove_where_nothing_begins(run_dir: Path, *, made: bool) -> Iterator[None]:
    """A slip of the keyboard, which planning finds, leaves no run behind, nor does a journal that cannot begin."""
    try:
        yield
    except BaseException:
        if made and not (run_dir / JOURNAL).exists():
            shutil.rmtree(run_dir, ignore_errors=True)
            with suppress(OSError):
                run_dir.parent.rmdir()
        raise


def _plan(
    chosen: Chosen, machine: Workbench, record: JournalRecord, elsewhere: Elsewhere | None
) -> tuple[Plan, RunShard | None]:
    """What is to be done, where a run has done what a record says, and what share of everything that is."""
    request, selection, stages = chosen.request, chosen.selection, chosen.stages
    baseline = request.conduct.baseline
    plan = imports_possible(_plan_all(chosen, machine, record.path.parent), machine)
    if baseline:
        named = shown(Path(baseline))
        release = machine.toolchain.compiler.version if machine.toolchain else ""
        plan, missing = held_against(plan, read_journal(Path(baseline) / JOURNAL), str(named), release)
        if missing:
            some = ", ".join(missing[:_MOST_NAMED]) + (", …" if len(missing) > _MOST_NAMED else "")
            messages.warn(f"not held against {named}, which has no figures of it: {some}")
    if request.chains is not None:
        plan, shard = choose_chains(plan, request.chains), None
    else:
        plan, shard = choose_shard(plan, request.shard)
    if request.folder.last_failed:
        earlier = find_newest_run(find_runs_folder())
        failed = find_failed_chains(earlier)
        if not failed:
            hint = "Run without --last-failed to run everything."
            raise NothingSelectedError(f"nothing failed in {shown(earlier)}", hint)
        plan = choose_chains(plan, failed)
    if record.run.last_failed:
        restricted = {step.id for step in record.planned}
        plan = replace(plan, steps=tuple(step for step in plan.steps if step.id in restricted))
    if elsewhere is not None:
        plan = elsewhere.on_devices_there(plan, optional=selection.device_optional)
    else:
        plan = on_devices_here(plan, machine, optional=selection.device_optional)
    # An empty shard is part of a whole.
    if not plan.steps and shard is None:
        raise NothingSelectedError(
            f"nothing to do: the selected specs have no {' or '.join(stages)} stage",
            "`plan` shows what each task would do with a selection.",
        )
    return plan, shard


@contextmanager
def _open_engine(
    plan: Plan, shard: RunShard | None, chosen: Chosen, parts: RunParts
) -> Iterator[tuple[Engine, tuple[Step, ...], dict[str, Verdict]]]:
    """What runs a plan, its steps with those of batches, and the verdicts of those that were run before."""
    machine, run_dir, progress = parts.machine, parts.run_dir, parts.progress
    toolchain = machine.toolchain
    selection, request = chosen.selection, chosen.request
    conduct, folder = request.conduct, request.folder
    finished: dict[str, Verdict] = {}
    record = parts.earlier
    restricted = folder.last_failed or record.run.last_failed
    if folder.resume:
        finished = find_finished_verdicts(record, plan.steps, toolchain.facts if toolchain else ToolchainFacts())
        if not parts.measured:
            steps, finished = redo_changed(plan.steps, finished, record, machine.store.verified.sha256)
            plan = replace(plan, steps=steps)
    batches = make_batches(plan.steps, conduct.batch, machine, run_dir, finished)
    plan = replace(plan, steps=batches.steps)
    orphans = () if parts.measured else find_unplanned(plan.steps, record)
    plan = replace(plan, steps=(*plan.steps, *orphans))
    finished |= {step.id: record.results[step.id].verdict for step in orphans}
    event = replace(
        run_event(plan, run_dir, machine, selection.name, selection.targets, format_typed_command()),
        markers=request.selection.markers,
        resumed=folder.resume,
        last_failed=restricted,
        again=tuple(step.id for step in plan.steps if step.id in record.results and step.id not in finished),
        kept=KeptOptions(request.kept, asdict(request.defaults), request.stages or None),
        shard=shard,
        batch=conduct.batch,
    )
    with (
        Journal(run_dir / JOURNAL, lambda: datetime.now(UTC)) as journal,
        _open_session(journal, batches, request, parts) as (session, engine),
    ):
        journal.run(event, plan.steps)
        # Of a resumed run only what is left to do counts.
        left = [step.id for step in plan.steps if step.id not in finished]
        progress.run_started(event, len(left), left)
        if orphans:
            count = counted(len(orphans), "step")
            engine.remark(f"results of {count} that are no longer selected or there count: {orphans[0].id}…")
        if request.network.offline:
            cases = (*selection.cases.cases, *selection.cases.required)
            missing = find_missing_files(plan.steps, cases, machine.store, finished)
            if missing:
                progress.message(describe_missing(missing))
        with session.interruptible():
            yield engine, plan.steps, finished


def _as_before(request: RunRequest) -> RunRequest:
    """For `--resume`, and for `--last-failed` without a selection: what the earlier run was asked for."""
    folder = request.folder
    if folder.resume and folder.last_failed:
        raise UsageError("--resume and --last-failed exclude each other", "Resume first, then run --last-failed.")
    if not (folder.resume or folder.last_failed):
        return request
    named = resolve_links(Path(folder.run_dir)) if folder.resume and folder.run_dir else None
    earlier = named or find_newest_run(find_runs_folder())
    kept = read_kept_options(earlier)
    now = given((request.selection, request.toolchain, request.shard, request.conduct))
    if folder.last_failed and given([request.selection]):
        return request
    begun = kept.stages or ()
    if folder.resume and request.stages and {*request.stages} != {*begun}:
        how = f"for {', '.join(begun)}" if begun else "without --stages"
        what = f"{', '.join(request.stages)} alone: {shown(earlier)} was begun {how}"
        raise UsageError(what, "`gauntlet run --resume` does all that is left of it; start a new run for some stages.")
    as_asked = replace(request, defaults=Defaults.of(kept.defaults), stages=request.stages or begun)
    if folder.last_failed:
        # Another IREE may be tried on what failed; how the earlier run was carried out is its own matter.
        selected = {name: value for name, value in kept.options.items() if name not in KEPT_UNLESS_GIVEN}
        return as_asked.with_kept(selected | now)
    require_as_begun("run", shown(earlier), now, kept.options)
    return replace(as_asked.with_kept(kept.options), folder=replace(folder, run_dir=str(earlier)))


class Machines(Protocol):
    """Other machines, which perform the steps of runs."""

    def taking_part(
        self, chosen: Chosen, machine: Workbench, run_dir: Path, progress: Progress
    ) -> AbstractContextManager[Elsewhere]:
        """Has them take part in a run, until it is left; GauntletError where none of them can."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A run that is asked for, with what it selects; several runs of one selection share it."""

    request: RunRequest
    selection: Selection
    stages: tuple[Stage, ...]
    machines: Machines | None = None

    def within(self, folder: Path, iree: str = "", stages: tuple[Stage, ...] = ()) -> Chosen:
        """The same in a folder of its own, which is resumed where it was begun; with another IREE, or other stages."""
        toolchain = replace(self.request.toolchain, iree=iree or self.request.toolchain.iree)
        resumed = FolderRequest(run_dir=str(folder), resume=keep_if_begun(folder))
        return replace(
            self, request=replace(self.request, toolchain=toolchain, folder=resumed), stages=stages or self.stages
        )

    def workbench(self, iree: str) -> Workbench:
        """What an IREE means here, installed where it has to be; ToolchainError where it is not available."""
        request = replace(self.request, toolchain=replace(self.request.toolchain, iree=iree))
        return replace(self, request=request).opened_workbench(Progress())

    def opened_workbench(self, progress: Progress) -> Workbench:
        """What it runs with, as `workbench`; what is only to be fetched needs no IREE."""
        imports = any(module.program.onnx for case in self.selection.cases.cases for module in case.modules)
        request = self.request
        needed = not self.stages or any(not stage.row.fetches for stage in self.stages)
        return open_workbench(request.toolchain, progress, request.network, need_toolchain=needed, importer=imports)


@dataclass(frozen=True, slots=True)
class RunParts:
    """What a run works with.

    Attributes:
        earlier: what an earlier part of it has recorded.
        measured: its modules are measured by somebody else, who may have begun: they stay what they are.
    """

    machine: Workbench
    run_dir: Path
    progress: Progress
    runs: RunServers | None
    elsewhere: Elsewhere | None
    earlier: JournalRecord
    measured: bool = False


def _start_run_servers(chosen: Chosen, machine: Workbench) -> AbstractContextManager[RunServers | None]:
    """The processes that run modules of operator suites; none where other machines do."""
    if chosen.machines is not None:
        return nullcontext()
    return started_runs(chosen.selection.cases.cases, chosen.stages, machine, _compute_jobs(chosen.request.conduct))


def _plan_all(chosen: Chosen, machine: Workbench, run_dir: Path) -> Plan:
    """Everything that is selected, as it is done in a folder."""
    conduct, selection = chosen.request.conduct, chosen.selection
    cases = with_compile_statistics(selection.cases) if conduct.baseline else selection.cases
    plan = make_plan(cases, chosen.stages, plan_context(machine, run_dir, conduct))
    if plan.problems:
        raise SpecError(list(plan.problems))
    return plan


@contextmanager
def _open_session(
    journal: Journal, batches: Batched, request: RunRequest, parts: RunParts
) -> Iterator[tuple[Session[Journal], Engine]]:
    """A session in a run's folder, and what performs steps in it."""
    conduct, run_dir = request.conduct, parts.run_dir
    made_again = run_dir / "made-again" if conduct.force_recompile else None
    with open_session(run_dir, journal, parts.progress) as session, ExitStack() as held:
        session.on_cancel(parts.progress.cancel)
        settings = RunOptions(
            jobs=_compute_jobs(conduct),
            fail_fast=conduct.stops_early,
            made_again=made_again,
            lenient=conduct.lenient,
            all_goldens=conduct.unapplied_goldens == "fail",
            confirm=confirm_rules(
                conduct.verdict, conduct.confirm_seconds, replace_disturbed=conduct.replaces_disturbed
            ),
        )
        performers: Mapping[Stage, Callable[[Step], Result]] = {}
        if parts.elsewhere is None:
            performers = held.enter_context(operator_performers(session, batches, parts.machine, settings, parts.runs))
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
    """Opens a run that another machine conducts: it says which steps are performed, when, and on which device."""
    request = chosen.request
    machine = chosen.opened_workbench(progress)
    machine.store.progress = progress
    run_dir = make_folder(Path(request.folder.run_dir), chosen.selection.name)
    with ExitStack() as held:
        runs = held.enter_context(_start_run_servers(chosen, machine))
        plan = _plan_all(chosen, machine, run_dir)
        journal = held.enter_context(Journal(run_dir / JOURNAL, lambda: datetime.now(UTC)))
        parts = RunParts(machine, run_dir, progress, runs, None, JournalRecord(run_dir / JOURNAL))
        session, engine = held.enter_context(_open_session(journal, Batched(plan.steps, {}), request, parts))
        with session.interruptible():
            yield Opened(machine, session, engine, plan.steps)


def _compute_jobs(conduct: ConductRequest) -> int:
    """How many steps run at once before the benchmarks."""
    return conduct.jobs or read_machine_facts().cores
