"""The tasks that run something: fetch, compile, threshold, benchmark, run."""

from __future__ import annotations

import glob
import shutil
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from iree_gauntlet import messages
from iree_gauntlet.engine.engine import Engine, RunOptions
from iree_gauntlet.engine.operator_suites import BatchPlan, make_batches, make_operator_performers, start_run_servers
from iree_gauntlet.engine.plan import Plan, make_plan
from iree_gauntlet.engine.rounds.taken_rounds import make_confirm_rules
from iree_gauntlet.engine.run_start import (
    add_baseline_goldens,
    add_compile_statistics,
    assign_local_devices,
    block_impossible_imports,
    describe_missing,
    find_missing_files,
    find_unplanned,
    list_quarantine_warnings,
    make_run_event,
    repeat_changed_steps,
)
from iree_gauntlet.engine.session import Session, open_session
from iree_gauntlet.engine.varying import find_uncounted_flags, require_known_flags
from iree_gauntlet.engine.workbench import Workbench, make_plan_context, open_workbench
from iree_gauntlet.engine.workspace import explain_unused_sku, list_golden_skus, select
from iree_gauntlet.errors import ExitCode, GauntletError, NothingSelectedError, SpecError, UsageError
from iree_gauntlet.experiments.shards import choose_chains, choose_shard
from iree_gauntlet.figures import SHARKTANK_GOLDENS
from iree_gauntlet.formatting import pluralize
from iree_gauntlet.journal_events import ExperimentKind, ResumeOptions, ToolchainInfo
from iree_gauntlet.journal_format import JOURNAL, JournalRecord, read_journal
from iree_gauntlet.measuring.machine.machine_state import read_machine_facts
from iree_gauntlet.progress import Progress
from iree_gauntlet.records.event_log import Journal
from iree_gauntlet.records.run_folder import (
    find_failed_chains,
    find_finished_verdicts,
    find_named_run,
    find_newest_run,
    find_requested_folder,
    keep_if_resumable,
    make_folder,
    read_run_options,
)
from iree_gauntlet.requests import (
    OVERRIDABLE_OPTIONS,
    Defaults,
    ExecutionRequest,
    ExplainRequest,
    FolderRequest,
    RunRequest,
    collect_changed_options,
    require_unchanged_options,
)
from iree_gauntlet.settings import find_runs_folder, format_path, format_typed_command, resolve_links
from iree_gauntlet.stages import Stage
from iree_gauntlet.variants import split_side

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from iree_gauntlet.cases import Verdict
    from iree_gauntlet.engine.engine import RemoteExecutor
    from iree_gauntlet.engine.processes.run_client import RunServers
    from iree_gauntlet.engine.workspace import Selection
    from iree_gauntlet.journal_events import RunShard
    from iree_gauntlet.progress import Reporter
    from iree_gauntlet.results import Result
    from iree_gauntlet.steps import Step


_GOLDEN_STAGES = {figure.golden.stage for figure in SHARKTANK_GOLDENS.values()} | {Stage.BENCHMARK}
# The maximum number of models without figures in a baseline that a warning lists.
_MAX_NAMES = 5


@dataclass(frozen=True, slots=True)
class RunResult:
    """A finished run; its `deferred_steps` were planned, but are left to the caller."""

    exit_code: ExitCode
    steps: tuple[Step, ...]
    deferred_steps: tuple[Step, ...]
    folder: Path


def make_setup(request: RunRequest, machines: Machines | None = None) -> RunSetup:
    """Read the specs that a run selects.

    Raises:
        UsageError, SpecError, NothingSelectedError: the request or a spec is wrong, or nothing matches.
    """
    if request.execution.baseline:
        # Record the baseline's real name, because `latest` may mean another run when this run is resumed.
        baseline_folder = str(resolve_links(find_named_run(request.execution.baseline, "--baseline")))
        request = replace(request, execution=replace(request.execution, baseline=baseline_folder))
    selection = select(request.selection, request.defaults, variants=request.variants)
    selection.require_no_problems()
    request = replace(request, variants=selection.variants)
    return RunSetup(request, selection, request.choose_stages(selection.stages), machines)


def execute(request: RunRequest, presenter: Reporter, machines: Machines | None = None) -> ExitCode:
    """Select, plan, run and report; if requested, explain the failures."""
    result = run(make_setup(_apply_previous_options(request), machines), presenter)
    code = result.exit_code
    chains: list[str] = []
    if request.explain and code is not ExitCode.INTERRUPTED:
        chains = sorted(find_failed_chains(result.folder))
    if chains:
        # This import takes a quarter of a run's import time, and few runs need it.
        from iree_gauntlet.experiments.explain import explain  # noqa: PLC0415

        try:
            explain(ExplainRequest((str(result.folder), *map(glob.escape, chains))), request.toolchain, presenter)
        except NothingSelectedError:
            # Only downloads, imports or benchmarks failed, and `explain` does not cover such failures.
            return code
        except GauntletError as error:
            messages.warn(f"what failed was not explained: {error}")
        presenter.line(f"the run itself: exit code {int(code)}: {code.meaning}", is_result=True)
    return code


def run(
    setup: RunSetup,
    presenter: Reporter,
    *,
    workbench: Workbench | None = None,
    hold: Stage | None = None,
    brief: bool = False,
    report: bool = True,
) -> RunResult:
    """Plan, run and report; the steps of the stage `hold` and of later stages are only planned.

    `brief`: the run is part of an experiment, which reports on the run. Without `report`, its folder has no reports.
    """
    request = setup.request
    for warning in setup.selection.warnings():
        messages.warn(warning)
    is_strict = request.execution.unapplied_goldens == "fail" and list_golden_skus(setup.selection.cases.cases)
    if setup.sku_warning and is_strict:
        raise UsageError(setup.sku_warning, "With --unapplied-goldens warn, its times are only measured.")
    if setup.sku_warning and not brief:
        messages.warn(setup.sku_warning)
    for note in setup.selection.notes:
        messages.note(note)
    if Stage.COUNT in setup.stages and (flags := find_uncounted_flags(setup.selection.variants)):
        messages.warn(f"valgrind counts instructions without {flags} of the variant, because a count sets its own CPU")
    folder, _ = find_requested_folder(ExperimentKind.RUN, request.folder)
    exists = folder is not None and folder.exists()
    with presenter.progress() as progress, ExitStack() as stack:
        workbench = workbench or setup.open_workbench(progress)
        workbench.store.progress = progress
        servers = stack.enter_context(_start_run_servers(setup, workbench))
        run_dir = make_folder(folder, setup.selection.name)
        with _remove_empty_run_folder(run_dir, is_new=not exists):
            executor = None
            if setup.machines is not None:
                executor = stack.enter_context(setup.machines.taking_part(setup, workbench, run_dir, progress))
            path = run_dir / JOURNAL
            record = read_journal(path) if request.folder.resume else JournalRecord(path)
            _require_same_variants(record, setup.selection)
            plan, shard = _plan(setup, workbench, record, executor)
            deferred_steps = tuple(step for step in plan.steps if step.stage is hold)
            run_steps = (step for step in plan.steps if hold not in (step.stage, *step.stage.row.upstream))
            plan = replace(plan, steps=tuple(run_steps))
            # The day of the first part decides on quarantines, so that a resumed run judges all steps alike.
            start = datetime.fromisoformat(record.runs[0].time) if record.runs else datetime.now(UTC)
            parts = RunParts(workbench, run_dir, progress, servers, executor, record, hold is not None, start.date())
            for warning in () if brief else list_quarantine_warnings(plan.steps, parts.day):
                messages.warn(warning)
            engine, steps, verdicts = stack.enter_context(_open_engine(plan, shard, setup, parts))
        with engine.record_end() as outcome:
            outcome.verdicts = engine.perform(steps, verdicts)
    if report:
        presenter.report_run(run_dir, brief=brief)
    configuration = workbench.store.configuration
    # The index does not list runs that leave steps to their caller: each is only a part of a measurement.
    if hold is None and configuration.history.add:
        from iree_gauntlet.history.index import add_run  # noqa: PLC0415 - few runs need it

        add_run(run_dir, configuration, workbench.cache_dir)
    return RunResult(outcome.code, plan.steps, deferred_steps, run_dir)


def _require_same_variants(record: JournalRecord, selection: Selection) -> None:
    """Raise UsageError if a variant has other flags than in the earlier part of a run."""
    earlier = {variant.name: variant for variant in (record.run.variants if record.runs else ())}
    for variant in selection.variants:
        if variant.name in earlier and not earlier[variant.name].changes_the_same(variant):
            message = f"variant {variant.name} has changed since {format_path(record.path.parent)} was started"
            raise UsageError(message, "Start a new run, or change the variant back.")


@contextmanager
def _remove_empty_run_folder(run_dir: Path, *, is_new: bool) -> Iterator[None]:
    """Remove a new run's folder if planning fails, for example after a typo, or if the journal cannot be opened."""
    try:
        yield
    except BaseException:
        if is_new and not (run_dir / JOURNAL).exists():
            shutil.rmtree(run_dir, ignore_errors=True)
            with suppress(OSError):
                run_dir.parent.rmdir()
        raise


def _plan(
    setup: RunSetup, workbench: Workbench, record: JournalRecord, executor: RemoteExecutor | None
) -> tuple[Plan, RunShard | None]:
    """Plan what a run has to do, given the record of its earlier part; also return the shard."""
    request, selection, stages = setup.request, setup.selection, setup.stages
    baseline = request.execution.baseline
    plan = block_impossible_imports(_plan_selection(setup, workbench, record.path.parent), workbench)
    if baseline:
        display_path = format_path(Path(baseline))
        release = workbench.toolchain.compiler.version if workbench.toolchain else ""
        plan, chains = add_baseline_goldens(plan, read_journal(Path(baseline) / JOURNAL), str(display_path), release)
        if chains:
            names = ", ".join(chains[:_MAX_NAMES]) + (", …" if len(chains) > _MAX_NAMES else "")
            messages.warn(f"not compared with {display_path}, which has no figures for it: {names}")
    if request.chains is not None:
        plan, shard = choose_chains(plan, request.chains), None
    else:
        plan, shard = choose_shard(plan, request.shard)
    unmeasured = {(Stage.BENCHMARK, chain) for chain in setup.unmeasured_chains}
    plan = replace(plan, steps=tuple(step for step in plan.steps if (step.stage, step.chain) not in unmeasured))
    if request.folder.last_failed:
        newest = find_newest_run(find_runs_folder())
        failed_chains = find_failed_chains(newest)
        if not failed_chains:
            hint = "Run without --last-failed to run everything."
            raise NothingSelectedError(f"nothing failed in {format_path(newest)}", hint)
        plan = choose_chains(plan, failed_chains)
    if record.run.last_failed:
        planned_ids = {step.id for step in record.planned}
        plan = replace(plan, steps=tuple(step for step in plan.steps if step.id in planned_ids))
    if executor is not None:
        plan = executor.on_devices_there(plan, optional=selection.device_optional)
    else:
        plan = assign_local_devices(plan, workbench, optional=selection.device_optional)
    # An empty shard is not an error, because other shards have the steps.
    if not plan.steps and shard is None:
        raise NothingSelectedError(
            f"nothing to do: the selected specs have no {' or '.join(stages)} stage",
            "`plan` shows what each task would do with a selection.",
        )
    return plan, shard


@contextmanager
def _open_engine(
    plan: Plan, shard: RunShard | None, setup: RunSetup, parts: RunParts
) -> Iterator[tuple[Engine, tuple[Step, ...], dict[str, Verdict]]]:
    """Yield the engine, the plan's steps including those of batches, and the verdicts of steps that ran before."""
    workbench, run_dir, progress = parts.workbench, parts.run_dir, parts.progress
    toolchain = workbench.toolchain
    selection, request = setup.selection, setup.request
    execution, folder = request.execution, request.folder
    verdicts: dict[str, Verdict] = {}
    record = parts.record
    only_failed = folder.last_failed or record.run.last_failed
    attempts = record.attempts | {step: result.failed_attempts for step, result in record.results.items()}
    if folder.resume:
        verdicts = find_finished_verdicts(record, plan.steps, toolchain.facts if toolchain else ToolchainInfo())
        if not parts.measured_elsewhere:
            steps, verdicts = repeat_changed_steps(plan.steps, verdicts, record, workbench.store.hash_cache.sha256)
            plan = replace(plan, steps=steps)
    batches = make_batches(plan.steps, execution.batch, workbench, run_dir, verdicts)
    plan = replace(plan, steps=batches.steps)
    orphans = () if parts.measured_elsewhere else find_unplanned(plan.steps, record)
    plan = replace(plan, steps=(*plan.steps, *orphans))
    verdicts |= {step.id: record.results[step.id].verdict for step in orphans}
    event = make_run_event(plan, run_dir, workbench, selection.name, selection.targets, format_typed_command())
    event = replace(
        event,
        markers=request.selection.markers,
        resumed=folder.resume,
        last_failed=only_failed,
        again=tuple(step.id for step in plan.steps if step.id in record.results and step.id not in verdicts),
        kept=ResumeOptions(request.resume_options, asdict(request.defaults), request.stages or None),
        shard=shard,
        variants=selection.variants,
        remarks=(*event.remarks, *(f"variant {variant.name}: {variant.changes}" for variant in selection.variants)),
        batch=execution.batch,
        warnings=(
            *([setup.sku_warning] if setup.sku_warning else []),
            *list_quarantine_warnings(plan.steps, parts.day),
        ),
        flaky_passes=execution.flaky == "pass",
        golden_skus=list_golden_skus(selection.cases.cases),
    )
    with (
        Journal(run_dir / JOURNAL, lambda: datetime.now(UTC)) as journal,
        _open_session(journal, batches, request, parts) as (session, engine),
    ):
        engine.earlier_attempts = attempts
        journal.write_opening(event, plan.steps)
        # A resumed run's progress counts only the remaining steps.
        remaining_ids = [step.id for step in plan.steps if step.id not in verdicts]
        progress.run_started(event, len(remaining_ids), remaining_ids)
        if orphans:
            count = pluralize(len(orphans), "step")
            engine.remark(f"results of {count} that are no longer selected or are gone still count: {orphans[0].id}…")
        if request.network.offline:
            cases = (*selection.cases.cases, *selection.cases.needed_cases)
            missing_files = find_missing_files(plan.steps, cases, workbench.store, verdicts)
            if missing_files:
                progress.message(describe_missing(missing_files))
        with session.interruptible():
            yield engine, plan.steps, verdicts


def _apply_previous_options(request: RunRequest) -> RunRequest:
    """Add the earlier run's options: for `--resume`, and for `--last-failed` without a selection."""
    folder = request.folder
    if folder.resume and folder.last_failed:
        raise UsageError("--resume and --last-failed exclude each other", "Resume first, then run --last-failed.")
    if not (folder.resume or folder.last_failed):
        return request
    run_dir = resolve_links(Path(folder.run_dir)) if folder.resume and folder.run_dir else None
    previous_dir = run_dir or find_newest_run(find_runs_folder())
    previous = read_run_options(previous_dir)
    options = collect_changed_options((request.selection, request.toolchain, request.shard, request.execution))
    if folder.last_failed and collect_changed_options([request.selection]):
        return request
    stages = previous.stages or ()
    if folder.resume and request.stages and {*request.stages} != {*stages}:
        suffix = f"for {', '.join(stages)}" if stages else "without --stages"
        message = f"{', '.join(request.stages)} alone: {format_path(previous_dir)} was started {suffix}"
        raise UsageError(
            message, "`gauntlet run --resume` does everything that is left; start a new run for some stages."
        )
    previous_request = replace(request, defaults=Defaults.of(previous.defaults), stages=request.stages or stages)
    if folder.last_failed:
        # Repeat the selection, but not how the run was executed; the failures may be tried with another IREE.
        selection = {name: value for name, value in previous.options.items() if name not in OVERRIDABLE_OPTIONS}
        return previous_request.with_resumed_options(selection | options)
    require_unchanged_options("run", format_path(previous_dir), options, previous.options)
    return replace(
        previous_request.with_resumed_options(previous.options), folder=replace(folder, run_dir=str(previous_dir))
    )


class Machines(Protocol):
    """Other machines that run steps."""

    def taking_part(
        self, setup: RunSetup, workbench: Workbench, run_dir: Path, progress: Progress
    ) -> AbstractContextManager[RemoteExecutor]:
        """Let the machines work on a run while the context is open; GauntletError if none of them can."""


@dataclass(frozen=True, slots=True)
class RunSetup:
    """A run request with its selection; several runs of one selection share it.

    Attributes:
        unmeasured_chains: chains that are not benchmarked, because another run measures the same modules.
    """

    request: RunRequest
    selection: Selection
    stages: tuple[Stage, ...]
    machines: Machines | None = None
    unmeasured_chains: tuple[str, ...] = ()

    def within(self, run_dir: Path, side: str = "", stages: tuple[Stage, ...] = ()) -> RunSetup:
        """Return a copy for another folder, resumed if it has a journal; optionally for another side or stages."""
        folder = FolderRequest(run_dir=str(run_dir), resume=keep_if_resumable(run_dir))
        setup = self.for_side(side)
        return replace(setup, request=replace(setup.request, folder=folder), stages=stages or self.stages)

    def with_runtime(self, iree: str) -> RunSetup:
        """Return a copy whose modules run with another IREE's runtime; an empty one is that of the compiler."""
        toolchain = replace(self.request.toolchain, iree_runtime=iree or self.request.toolchain.iree_runtime)
        return replace(self, request=replace(self.request, toolchain=toolchain))

    @property
    def sku_warning(self) -> str:
        """A warning if goldens are checked, and none is for the SKU of `--sku`; empty otherwise.

        Goldens of specs are not for variants, and those of a variant need not exist.
        """
        sku = "" if self.selection.variants or _GOLDEN_STAGES.isdisjoint(self.stages) else self.request.selection.sku
        return explain_unused_sku(self.selection.cases.cases, sku)

    def for_side(self, side: str) -> RunSetup:
        """Return a copy for an IREE with variants, `3.13.0+O3`; an empty IREE is this run's.

        Raises:
            UsageError: a variant does not exist, or contradicts another one.
        """
        iree, names = split_side(side)
        toolchain = replace(self.request.toolchain, iree=iree or self.request.toolchain.iree)
        selection = self.selection.with_variants(names)
        variant = (*self.request.selection.variant, *names)
        request = replace(
            self.request,
            toolchain=toolchain,
            selection=replace(self.request.selection, variant=variant),
            variants=selection.variants,
        )
        return replace(self, request=request, selection=selection)

    def open_workbench_for(self, side: str) -> Workbench:
        """Open the workbench for a side, with its IREE installed if needed; ToolchainError if it is not available.

        Raises:
            UsageError: the IREE does not support a flag of a variant.
        """
        return self.for_side(side).open_workbench(Progress(), is_side=True)

    def open_workbench(self, progress: Progress, *, is_side: bool = False) -> Workbench:
        """Open this run's workbench; errors as in `open_workbench_for`.

        A run that only fetches needs no IREE, unless it is one side of several.
        """
        importer = any(module.program.onnx for case in self.selection.cases.cases for module in case.modules)
        request = self.request
        need_iree = is_side or not self.stages or any(not stage.row.fetches for stage in self.stages)
        workbench = open_workbench(
            request.toolchain, progress, request.network, need_toolchain=need_iree, importer=importer
        )
        if workbench.toolchain is not None:
            require_known_flags(self.selection.variants, workbench.get_flags)
        return workbench


@dataclass(frozen=True, slots=True)
class RunParts:
    """The resources of a run.

    Attributes:
        record: the events of an earlier part of the run.
        measured_elsewhere: True if the caller measures the modules; it may have begun, so they must not be rebuilt.
        day: the day on which the run was started.
    """

    workbench: Workbench
    run_dir: Path
    progress: Progress
    run_servers: RunServers | None
    executor: RemoteExecutor | None
    record: JournalRecord
    measured_elsewhere: bool = False
    day: date = date.min


def _start_run_servers(setup: RunSetup, workbench: Workbench) -> AbstractContextManager[RunServers | None]:
    """Start the processes that run modules of operator suites; None if other machines run them."""
    if setup.machines is not None:
        return nullcontext()
    cases, jobs = setup.selection.cases.cases, _compute_jobs(setup.request.execution)
    return start_run_servers(cases, setup.stages, workbench, jobs)


def _plan_selection(setup: RunSetup, workbench: Workbench, run_dir: Path) -> Plan:
    """Plan all selected steps for a folder."""
    execution, selection = setup.request.execution, setup.selection
    cases = add_compile_statistics(selection.cases) if execution.baseline else selection.cases
    plan = make_plan(cases, setup.stages, make_plan_context(workbench, run_dir, execution))
    if plan.problems:
        raise SpecError(list(plan.problems))
    return plan


@contextmanager
def _open_session(
    journal: Journal, batches: BatchPlan, request: RunRequest, parts: RunParts
) -> Iterator[tuple[Session[Journal], Engine]]:
    """Open a session in a run's folder, and the engine for its steps."""
    execution, run_dir = request.execution, parts.run_dir
    rebuilt_marks_dir = run_dir / "made-again" if execution.force_recompile else None
    with open_session(run_dir, journal, parts.progress) as session, ExitStack() as stack:
        session.on_cancel(parts.progress.cancel)
        settings = RunOptions(
            jobs=_compute_jobs(execution),
            fail_fast=execution.stops_early,
            rebuilt_marks_dir=rebuilt_marks_dir,
            allow_xpass=execution.lenient,
            all_goldens=execution.unapplied_goldens == "fail",
            confirm=make_confirm_rules(
                execution.verdict, execution.confirm_seconds, replace_disturbed=execution.replaces_disturbed
            ),
            reruns=execution.rerun_failed,
            flaky_passes=execution.flaky == "pass",
            day=parts.day,
        )
        performers: Mapping[Stage, Callable[[Step], Result]] = {}
        if parts.executor is None:
            performers = stack.enter_context(
                make_operator_performers(session, batches, parts.workbench, settings, parts.run_servers)
            )
        yield session, Engine(session, parts.workbench, settings, performers, remote_executor=parts.executor)


@dataclass(frozen=True, slots=True)
class WorkerRun:
    """A run whose steps a coordinating machine schedules on this one."""

    workbench: Workbench
    session: Session[Journal]
    engine: Engine
    steps: tuple[Step, ...]


@contextmanager
def open_worker_run(setup: RunSetup, progress: Progress) -> Iterator[WorkerRun]:
    """Open a run for a coordinating machine, which decides on the steps, their order and their devices."""
    request = setup.request
    workbench = setup.open_workbench(progress)
    workbench.store.progress = progress
    run_dir = make_folder(Path(request.folder.run_dir), setup.selection.name)
    with ExitStack() as stack:
        servers = stack.enter_context(_start_run_servers(setup, workbench))
        plan = _plan_selection(setup, workbench, run_dir)
        journal = stack.enter_context(Journal(run_dir / JOURNAL, lambda: datetime.now(UTC)))
        parts = RunParts(workbench, run_dir, progress, servers, None, JournalRecord(run_dir / JOURNAL))
        session, engine = stack.enter_context(_open_session(journal, BatchPlan(plan.steps, {}), request, parts))
        with session.interruptible():
            yield WorkerRun(workbench, session, engine, plan.steps)


def _compute_jobs(execution: ExecutionRequest) -> int:
    """Return how many steps run at once before the benchmarks."""
    return execution.jobs or read_machine_facts().cores
