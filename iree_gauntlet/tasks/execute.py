"""The tasks that run something: fetch, compile, threshold, benchmark, run."""

from __future__ import annotations

import math
import os
import sys
import threading
from contextlib import ExitStack
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.cases import Stage, Verdict
from iree_gauntlet.errors import ExitCode, GauntletError, NothingSelectedError, SpecError, UsageError
from iree_gauntlet.journal_format import JOURNAL
from iree_gauntlet.measuring.machine import machine_facts
from iree_gauntlet.measuring.machine_memory import free_memory
from iree_gauntlet.reporting.console import open_console
from iree_gauntlet.reporting.final import print_final
from iree_gauntlet.reporting.headline import headline
from iree_gauntlet.reporting.report import append_to_step_summary, write_reports
from iree_gauntlet.running.confirming import ConfirmRules, confirm_rules
from iree_gauntlet.running.engine import Engine, RunOptions
from iree_gauntlet.running.journal import Journal
from iree_gauntlet.running.machine_lock import machine_locks
from iree_gauntlet.running.plan import make_plan
from iree_gauntlet.running.supervisor import Supervisor
from iree_gauntlet.tasks.earlier_runs import Asked, asked_for, begun_with, failed_chains, finished_verdicts, newest_run
from iree_gauntlet.tasks.interruptible import interruptible
from iree_gauntlet.tasks.offline import missing_files, missing_text
from iree_gauntlet.tasks.operator_servers import OperatorRun, batch_size, batched, operator_performers, started_runs
from iree_gauntlet.tasks.options import BATCH_NAMES, IREE_NAMES, SELECTION_NAMES, replaces_disturbed
from iree_gauntlet.tasks.output import Output
from iree_gauntlet.tasks.run_event import run_event, without_missing_devices
from iree_gauntlet.tasks.shards import SHARD_NAMES, only_shard
from iree_gauntlet.tasks.surroundings import Machine, make_machine, make_surroundings
from iree_gauntlet.tasks.workspace import Defaults, Selection, runs_folder, select, shown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from iree_gauntlet.reporting.console import Console
    from iree_gauntlet.running.plan import Plan
    from iree_gauntlet.running.run_server import RunServers

__all__ = ["execute"]


_VERDICTS = ("confirm", "strict")


class _Downloads:
    """Passes the progress of downloads on to the console, and ends them when the run is cancelled.

    A file is known by its URL alone: several steps may want it, and it is fetched once.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self.cancelled = False

    def update(self, url: str, done: int, total: int | None) -> None:
        self._end_if_cancelled(url)
        self._console.download(url, done, total)

    def checking(self, url: str, done: int, total: int) -> None:
        self._end_if_cancelled(url)
        self._console.checking(url, done, total)

    def finished(self, url: str) -> None:
        self._console.download_finished(url)

    def note(self, url: str, message: str) -> None:
        self._console.message(f"{url}: {message}")

    def _end_if_cancelled(self, url: str) -> None:
        if self.cancelled:
            raise GauntletError(f"{url}: interrupted")


def execute(
    options: Mapping[str, Any], defaults: Defaults, stages: Sequence[Stage] | None, *, brief: bool = False
) -> ExitCode:
    """Selects, plans, runs and reports.

    Args:
        options: of the command line.
        defaults: what the task selects by itself.
        stages: what the task does; None for what the suite says.
        brief: it is a part of something larger, which reports on it: one line at its end will do.

    Raises:
        GauntletError: what keeps the run from starting.
    """
    options, defaults, stages = _as_before(options, defaults, stages)
    # Before anything is made: a slip of the keyboard must not leave a run behind.
    _jobs(options)
    confirm = _confirm(options)
    selection = select(options, defaults)
    selection.require_sound()
    wanted = tuple(stages if stages is not None else selection.stages)
    for warning in selection.warnings():
        sys.stderr.write(f"warning: {warning}\n")
    output = Output(sys.stdout)
    console = open_console(output.stream, os.environ)
    downloads = _Downloads(console)
    held = ExitStack()
    try:
        machine = make_machine(options, downloads, need_toolchain=set(wanted) != {Stage.FETCH})
        runs = held.enter_context(started_runs(selection.cases.cases, wanted, machine, _jobs(options)))
        run_dir, plan, shard = _planned(options, selection, wanted, machine)
        while not _claim(run_dir, options):
            run_dir, plan, shard = _planned(options, selection, wanted, machine)
        kept = {name: options.get(name) for name in (*SELECTION_NAMES, *IREE_NAMES, *SHARD_NAMES, *BATCH_NAMES)}
        asked = Asked(kept, asdict(defaults), tuple(stages or ()) or None)
        _run(plan, shard, run_dir, machine, selection, asked, options, confirm, console, downloads, runs)
    finally:
        held.close()
        console.close()
    outcome = write_reports(run_dir, environ=os.environ)
    if brief:
        output.write(f"{headline(outcome)}; reports in {shown(run_dir)}\n")
    else:
        print_final(outcome, shown(run_dir), output.stream, environ=os.environ)
    if output.lost:
        sys.stderr.write(f"warning: standard output: {output.lost}; the run went on, see {shown(run_dir)}\n")
    # Last, so that a summary file that cannot be written hides no verdict.
    if not brief:
        append_to_step_summary(outcome, os.environ)
    return ExitCode(int(outcome.exit_code))


def _planned(
    options: Mapping[str, Any], selection: Selection, stages: Sequence[Stage], machine: Machine
) -> tuple[Path, Plan, dict[str, Any] | None]:
    """The folder of the run, what is to be done in it, and what share of everything that is."""
    run_dir = _run_folder(options, selection)
    plan = make_plan(selection.cases, stages, make_surroundings(machine, run_dir, options))
    if plan.problems:
        raise SpecError(list(plan.problems))
    plan, shard = only_shard(plan, options)
    if options["last_failed"]:
        plan = _only_last_failed(plan, newest_run(runs_folder()))
    restricted = begun_with(run_dir) if options["resume"] else None
    if restricted is not None:
        plan = replace(plan, steps=tuple(step for step in plan.steps if step.id in restricted))
    plan = without_missing_devices(plan, machine)
    if not plan.steps:
        raise NothingSelectedError(
            f"nothing to do: the selected specs have no {' or '.join(stages)} stage",
            "`plan` shows what each task would do with a selection.",
        )
    return run_dir, plan, shard


def _claim(run_dir: Path, options: Mapping[str, Any]) -> bool:
    """Makes the run's folder; False where a run that began in the same second has taken its name."""
    named = bool(options["run_dir"])
    try:
        run_dir.mkdir(parents=True, exist_ok=named)
    except FileExistsError as error:
        if named:
            raise UsageError(f"{run_dir} is a file", "Give the folder of a run as --run-dir.") from error
        return False
    except OSError as error:
        raise UsageError(
            f"{run_dir}: cannot make the run's folder: {error.strerror}", "Give another place with --run-dir."
        ) from error
    return True


def _run(
    plan: Plan,
    shard: dict[str, Any] | None,
    run_dir: Path,
    machine: Machine,
    selection: Selection,
    asked: Asked,
    options: Mapping[str, Any],
    confirm: ConfirmRules | None,
    console: Console,
    downloads: _Downloads,
    runs: RunServers | None,
) -> None:
    toolchain = machine.toolchain
    finished: dict[str, Verdict] = {}
    if options["resume"]:
        finished = finished_verdicts(run_dir, plan.steps, toolchain.compiler.identity if toolchain else "")
    batches = batched(plan.steps, options, machine, run_dir, finished)
    plan = replace(plan, steps=batches.steps)
    cancelled = threading.Event()
    command = [Path(sys.argv[0]).name, *sys.argv[1:]]
    event = run_event(plan, run_dir, machine, selection.name, selection.targets, command) | {
        "markers": options["markers"],
        "resumed": bool(options["resume"]),
        "last_failed": bool(options["last_failed"]) or (options["resume"] and begun_with(run_dir) is not None),
        "asked": asdict(asked),
        "shard": shard,
        "batch": batch_size(options),
    }
    made_again = run_dir / "made-again" if options["force_recompile"] else None
    operators = OperatorRun(run_dir, _jobs(options), made_again, cancelled)
    with (
        Journal(run_dir / JOURNAL, lambda: datetime.now(UTC)) as journal,
        Supervisor() as supervisor,
        operator_performers(batches, machine, supervisor, operators, runs) as (performers, end_servers),
    ):
        journal.run(event)
        console.run_started(event)
        if options["offline"]:
            cases = (*selection.cases.cases, *selection.cases.required)
            missing = missing_files(plan.steps, cases, machine.store, finished)
            if missing:
                console.message(missing_text(missing))
        engine = Engine(
            run_dir,
            machine.store,
            machine.modules,
            supervisor,
            machine_locks(os.environ, cancelled),
            cancelled,
            journal,
            console,
            RunOptions(
                jobs=_jobs(options),
                fail_fast=bool(options["fail_fast"]) or not options["keep_going"],
                made_again=made_again,
                lenient=bool(options["lenient"]),
                release=toolchain.compiler.release if toolchain else "",
                confirm=confirm,
            ),
            free_memory,
            machine.shared,
            performers,
            end_servers,
        )

        def cancel() -> None:
            downloads.cancelled = True
            engine.cancel()

        with interruptible(cancel):
            engine.run(plan.steps, finished)


def _jobs(options: Mapping[str, Any]) -> int:
    jobs = int(options["jobs"])
    if jobs < 0:
        raise UsageError(f"--jobs {jobs}: expected a number above 0", "Leave it out to use every core.")
    return jobs or machine_facts().cores


def _confirm(options: Mapping[str, Any]) -> ConfirmRules | None:
    """How broken golden times are confirmed; None where the dialects' plain rule is the verdict."""
    if options["verdict"] not in _VERDICTS:
        raise UsageError(f"--verdict {options['verdict']}: unknown", f"Known: {', '.join(_VERDICTS)}.")
    budget = float(options["confirm_seconds"])
    if not 0 < budget < math.inf:
        raise UsageError(f"--confirm-seconds {budget:g}: expected seconds above 0", "Leave it out for 300.")
    replace_disturbed = replaces_disturbed(options)
    return None if options["verdict"] == "strict" else confirm_rules(budget, replace_disturbed=replace_disturbed)


def _as_before(
    options: Mapping[str, Any], defaults: Defaults, stages: Sequence[Stage] | None
) -> tuple[Mapping[str, Any], Defaults, Sequence[Stage] | None]:
    """For `--resume`, and for `--last-failed` without a selection: what the earlier run was asked for.

    Raises:
        UsageError: there is no such run, or a resumed run is asked for something else.
    """
    if options["resume"] and options["last_failed"]:
        raise UsageError("--resume and --last-failed exclude each other", "Resume first, then run --last-failed.")
    if not (options["resume"] or options["last_failed"]):
        return options, defaults, stages
    named = Path(options["run_dir"]).resolve() if options["resume"] and options["run_dir"] else None
    earlier = named or newest_run(runs_folder())
    asked = asked_for(earlier)
    given = {name: options[name] for name in asked.selection if options.get(name)}
    if options["last_failed"]:
        if given.keys() & set(SELECTION_NAMES):
            return options, defaults, stages
        # Another IREE may be tried on what failed.
        return {**options, **asked.selection, **given}, Defaults(**asked.defaults), stages or asked.stages
    other = [name for name, value in given.items() if value != asked.selection[name]]
    if other:
        raise UsageError(
            f"--{other[0].replace('_', '-')}: a resumed run keeps the selection of {shown(earlier)}",
            "Leave the selection out, or start a new run.",
        )
    options = {**options, **asked.selection, "run_dir": str(earlier)}
    return options, Defaults(**asked.defaults), asked.stages if stages is None else stages


def _run_folder(options: Mapping[str, Any], selection: Selection) -> Path:
    """The folder of this run; for `--resume` that of the run to go on with."""
    named = Path(options["run_dir"]).resolve() if options["run_dir"] else None
    # iree-run-module reads `--module=path@entry`, and iree-compile fills in a '%' of an archive that it writes.
    if set(str(named or runs_folder())) & set("@%"):
        raise UsageError(
            f"{named or runs_folder()}: IREE's tools misread a path with '@' or '%'", "Give a --run-dir without them."
        )
    if named is not None:
        if not options["resume"] and (named / JOURNAL).exists():
            raise UsageError(f"{named} already holds a run", "Give another --run-dir, or --resume to continue it.")
        return named
    stamp = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{selection.name}"
    folder = runs_folder() / stamp
    number = 2
    while folder.exists():
        folder = runs_folder() / f"{stamp}-{number}"
        number += 1
    return folder


def _only_last_failed(plan: Plan, earlier: Path) -> Plan:
    chains = failed_chains(earlier)
    if not chains:
        raise NothingSelectedError(
            f"nothing failed in {shown(earlier)}", "Run without --last-failed to run everything."
        )
    by_id = {step.id: step for step in plan.steps}
    keep: set[str] = set()
    waiting = [step.id for step in plan.steps if step.chain in chains]
    while waiting:
        step_id = waiting.pop()
        if step_id not in keep:
            keep.add(step_id)
            waiting.extend(by_id[step_id].needs)
    return replace(plan, steps=tuple(step for step in plan.steps if step.id in keep))
