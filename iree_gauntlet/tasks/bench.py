"""`bench`: a model written as a Python function, made by torch, compiled by IREE, held against torch, measured."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.bench.chain import DIALECT, Chain
from iree_gauntlet.bench.compiler_options import fidelity_flags, opt_level_flags
from iree_gauntlet.bench.devices import DEFAULT_DEVICE, chosen_devices, chosen_target, target_flags
from iree_gauntlet.bench.discovery import discover, find_model
from iree_gauntlet.bench.instantiate import BuildOptions, check_options
from iree_gauntlet.bench.perf_file import append_result, check_output
from iree_gauntlet.bench.result import perf_entry, result_lines
from iree_gauntlet.bench.session import BenchSession
from iree_gauntlet.bench.torch_python import find_torch_python
from iree_gauntlet.errors import ExitCode, ToolchainError, UsageError
from iree_gauntlet.journal_format import read_journal
from iree_gauntlet.reporting.console import open_console
from iree_gauntlet.reporting.final import print_final
from iree_gauntlet.reporting.report import write_reports
from iree_gauntlet.requests import ToolchainRequest
from iree_gauntlet.running.engine import exit_code_of
from iree_gauntlet.running.journal import Journal
from iree_gauntlet.running.plan import Plan
from iree_gauntlet.running.run_folder import make_folder
from iree_gauntlet.running.session import open_session
from iree_gauntlet.running.workbench import make_surroundings, open_workbench
from iree_gauntlet.settings import cache_folder, project_folder, shown
from iree_gauntlet.tasks.bench_list import print_models
from iree_gauntlet.tasks.console_tellers import Arrivals, RoundTeller
from iree_gauntlet.tasks.model_engine import model_engine, require_importer
from iree_gauntlet.tasks.output import Output
from iree_gauntlet.tasks.run_event import run_event
from iree_gauntlet.toolchains.toolchain import COMPILE

if TYPE_CHECKING:
    from iree_gauntlet.bench.options import BenchOptions
    from iree_gauntlet.reporting.console import Console
    from iree_gauntlet.running.engine import Engine
    from iree_gauntlet.running.workbench import Workbench

__all__ = ["bench"]

_MODELS = "specs/models"


def bench(options: BenchOptions) -> ExitCode:
    """Benchmarks a model, or lists what there is.

    Raises:
        GauntletError: what keeps the benchmark from starting; nothing was measured then.
    """
    folders = _folders(options)
    models = discover(folders)
    if options.list:
        print_models(models, folders, sys.stdout)
        return ExitCode.OK
    model = find_model(models, options.model)
    found = check_options(model, _build_options(options))
    # What is wrong with a command line is said before anything is started.
    device = options.device or DEFAULT_DEVICE
    target = chosen_target(device, options.target)
    if options.output:
        check_output(options.output, _locks(options))
    torch = find_torch_python(options.torch_python)
    output = Output(sys.stdout)
    console = open_console(output.stream, os.environ)
    try:
        machine = open_workbench(_toolchain(options), Arrivals(console), need_toolchain=True)
        toolchain, known = machine.toolchain, machine.known
        assert toolchain is not None, "asked for"
        assert known is not None, "asked for"
        require_importer(toolchain)
        level = opt_level_flags(options.backend_opt_level, known)
        fidelity = fidelity_flags(options.math_fidelity, options.dataformat, options.backend_opt_level, known)
        devices = chosen_devices(device, options.chips, toolchain)
        _require_work(options, len(devices))
        run_dir = make_folder(None, f"bench-{model.name}")
        chain = Chain(
            model=model,
            folders=folders,
            options=_with_config(options, found),
            target=target,
            device=device,
            flags=(*target_flags(target), *level.flags, *fidelity.flags),
            world=make_surroundings(machine, run_dir),
            toolchain=toolchain,
            torch=torch,
        )
        _require_flags(chain)
        session = BenchSession(
            chain, devices, fidelity.contraction_type, (*_emulation(options), *level.notes, *fidelity.notes)
        )
        code = _run(session, machine, run_dir, console)
    finally:
        console.close()
    return _report(session, run_dir, output, code)


def _run(session: BenchSession, machine: Workbench, run_dir: Path, console: Console) -> ExitCode:
    """Exports, then imports, compiles, checks and measures; everything goes into the journal."""
    chain = session.chain
    export = chain.export()
    script = Path(sys.argv[0]).name
    command = [*(["python", "-m", "iree_gauntlet.bench"] if script == "__main__.py" else [script]), *sys.argv[1:]]
    event = run_event(Plan((export,)), run_dir, machine, DIALECT, [chain.target], command)
    event |= {"bench": chain.options.as_args()}
    with (
        Journal(run_dir / "journal.jsonl", lambda: datetime.now(UTC)) as journal,
        open_session(run_dir, journal, RoundTeller(console)) as context,
    ):
        journal.run(event)
        console.run_started(event)
        engine = model_engine(context, machine, console, session.performers(context, machine))
        with context.interruptible():
            return _steps(session, engine, journal, console)


def _steps(session: BenchSession, engine: Engine, journal: Journal, console: Console) -> ExitCode:
    began = datetime.now(UTC)
    interrupted = False
    try:
        verdicts = engine.perform([session.chain.export()], {})
        more = session.steps_after_export()
        if more:
            journal.more_steps([asdict(step) for step in more])
            console.steps_added(len(more))
            verdicts = engine.perform(more, verdicts)
        code = exit_code_of(verdicts.values())
    except KeyboardInterrupt:
        interrupted, code = True, ExitCode.INTERRUPTED
    seconds = (datetime.now(UTC) - began).total_seconds()
    journal.end(exit_code=int(code), seconds=round(seconds, 3), interrupted=interrupted)
    return code


def _report(session: BenchSession, run_dir: Path, output: Output, code: ExitCode) -> ExitCode:
    """Reports, the entry of perf.json, and what was measured."""
    outcome = write_reports(run_dir, environ=os.environ)
    print_final(outcome, shown(run_dir), output.stream, environ=os.environ)
    chain = session.chain
    record = read_journal(run_dir / "journal.jsonl")
    lines = result_lines(record, chain, session.build)
    if chain.options.output and code is not ExitCode.INTERRUPTED:
        entry = perf_entry(record, chain, session.build, outcome.started, session.notes)
        appended = append_result(chain.options.output, entry, _locks(chain.options))
        lines.append(appended.note or f"result {appended.entries} of {appended.path}")
    for line in (*session.notes, *lines):
        output.write(f"{line}\n")
    write_reports(run_dir, environ=os.environ, append_step_summary=True)
    return ExitCode(int(outcome.exit_code))


def _locks(options: BenchOptions) -> Path:
    return cache_folder(options.cache_dir) / "locks"


def _folders(options: BenchOptions) -> tuple[Path, ...]:
    named = tuple(Path(folder).expanduser().absolute() for folder in options.models_dir)
    own = project_folder() / _MODELS
    if not named and not own.is_dir():
        raise UsageError(
            f"there are no models here: {Path.cwd()} is not inside a project with {_MODELS}",
            "Name a folder with --models_dir.",
        )
    return named or (own,)


def _build_options(options: BenchOptions) -> BuildOptions:
    return BuildOptions(
        training=options.training,
        config=options.config or None,
        force_num_layers=options.layers,
        microbatch=options.microbatch,
        dataformat=options.dataformat.value,
    )


def _emulation(options: BenchOptions) -> tuple[str, ...]:
    form = options.dataformat
    if not form.emulated:
        return ()
    return (f"{form.label}: weights lie on the format's grid; memory and speed are those of {form.element_type}.",)


def _with_config(options: BenchOptions, found: BuildOptions) -> BenchOptions:
    """The options with the configuration that a model has alone."""
    return replace(options, config=found.config or "")


def _require_flags(chain: Chain) -> None:
    """Raises where the compiler lacks a flag."""
    for unknown in chain.world.translate(chain.flags, COMPILE).unknown:
        raise ToolchainError(unknown.message, unknown.hint)


def _require_work(options: BenchOptions, chips: int) -> None:
    """Raises where a chip would have nothing to do."""
    least = chips * options.microbatch_count
    if options.loops(chips) < least:
        raise UsageError(
            f"--loop_count {options.loop_count}: {chips} chips with --microbatch_count {options.microbatch_count} each "
            f"take {least} at least",
            "Raise it, or use fewer chips.",
        )


def _toolchain(options: BenchOptions) -> ToolchainRequest:
    return ToolchainRequest(options.cache_dir, options.iree, options.iree_compiler, options.iree_runtime)
