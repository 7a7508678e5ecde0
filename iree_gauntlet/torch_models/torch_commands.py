"""`bench` and `micro`: models that torch makes, compiled by IREE, compared with torch, and measured."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from iree_gauntlet import messages
from iree_gauntlet.cache_folders import find_cache_folder
from iree_gauntlet.cases import MAIN
from iree_gauntlet.device_kinds import CPU
from iree_gauntlet.document import Cell, Document, Table
from iree_gauntlet.engine.plan import Plan
from iree_gauntlet.engine.run_start import make_model_engine, make_run_event, open_model_session, require_importer
from iree_gauntlet.engine.workbench import Workbench, make_plan_context, open_workbench
from iree_gauntlet.errors import ExitCode, Problem, ToolchainError, UsageError
from iree_gauntlet.formatting import Column, ColumnKind, pluralize
from iree_gauntlet.history.index import add_run
from iree_gauntlet.journal_events import ExperimentKind
from iree_gauntlet.journal_format import JOURNAL, read_journal
from iree_gauntlet.records.run_folder import make_folder
from iree_gauntlet.reports.experiment_reports import publish_reports, write_reports
from iree_gauntlet.reports.output import Output, open_progress
from iree_gauntlet.reports.render_console import print_document
from iree_gauntlet.requests import MicroRequest, ToolchainRequest
from iree_gauntlet.settings import expand_home, find_project_folder, format_path, format_typed_command
from iree_gauntlet.targets import target_flags
from iree_gauntlet.toolchains.toolchain import COMPILE
from iree_gauntlet.torch_models.bench_result import append_result, check_output, make_perf_entry, make_result_lines
from iree_gauntlet.torch_models.bench_session import DIALECT, BenchChain, BenchSession
from iree_gauntlet.torch_models.build_files import BuildPlan, BuildRecord
from iree_gauntlet.torch_models.configuration import override, read_micro_config
from iree_gauntlet.torch_models.model_registry import BenchmarkModel, ModelError, check_options, discover, find_model
from iree_gauntlet.torch_models.model_session import perform_by_chain
from iree_gauntlet.torch_models.plugins import (
    CUSTOM,
    UNSUPPORTED_RECIPES,
    PluginRegistry,
    find_entry_point_files,
    load_registry,
)
from iree_gauntlet.torch_models.reports.sweep_reports import check_writable, copy_micro_reports, write_micro_reports
from iree_gauntlet.torch_models.reports.sweep_rows import read_targets
from iree_gauntlet.torch_models.sweep import MicroRun, find_previous_sweep
from iree_gauntlet.torch_models.torch_chain import (
    choose_devices,
    choose_target,
    find_fidelity_flags,
    find_opt_level_flags,
    find_torch_python,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from iree_gauntlet.progress import Progress
    from iree_gauntlet.reports.report_files import Reports
    from iree_gauntlet.torch_models.bench_options import BenchOptions


_MODELS_FOLDER = "specs/models"
_COLUMNS = (
    *(Column(title, ColumnKind.NAME) for title in ("model", "config")),
    Column("parameters", ColumnKind.NUMBER),
    *(Column(title, ColumnKind.NAME) for title in ("takes", "declared")),
)
_UNKNOWN = "not declared"
_OPTION_NAMES = {"force_num_layers": "layers", "microbatch": "microbatch"}


def bench(options: BenchOptions) -> ExitCode:
    """Benchmark a model, or list the available models."""
    folders = _find_folders(options)
    skipped_problems: list[Problem] = []
    models = discover(folders, skipped_problems)
    if options.list:
        print_document(_make_model_list(models, folders), sys.stdout, environ=os.environ)
    problems = [problem for problem in skipped_problems if problem.field == options.model or options.list or not models]
    if problems:
        raise ModelError(problems)
    if options.list:
        return ExitCode.OK
    for problem in skipped_problems:
        messages.warn(str(problem))
    model = find_model(models, options.model)
    build_plan = BuildPlan(
        models_dirs=tuple(map(str, folders)),
        model=options.model,
        config=options.config or None,
        training=options.training,
        layers=options.layers,
        microbatch=options.microbatch,
        dataformat=options.dataformat.value,
        accumulate=options.training and options.microbatch_count > 1,
        sensitivity=options.sensitivity,
    )
    plan = check_options(model, build_plan)
    options = replace(options, config=plan.config or "")
    # Report errors of the command line before any process starts.
    device = options.device or CPU.device
    target = choose_target(device, options.target)
    locks = find_cache_folder(options.cache_dir) / "locks"
    if options.output:
        check_output(options.output, locks)
    torch = find_torch_python(options.torch_python)
    toolchain_request = ToolchainRequest(options.cache_dir, options.iree, options.iree_compiler, options.iree_runtime)
    output = Output(sys.stdout)
    with open_progress(output.stream) as progress:
        workbench = open_workbench(toolchain_request, progress, need_toolchain=True)
        toolchain, flags = workbench.iree, workbench.get_flags(COMPILE)
        require_importer(toolchain)
        level = find_opt_level_flags(options.backend_opt_level, flags)
        fidelity = find_fidelity_flags(options.math_fidelity, options.dataformat, options.backend_opt_level, flags)
        devices = choose_devices(device, options.chips, toolchain)
        _require_work(options, len(devices))
        run_dir = make_folder(None, f"bench-{model.name}")
        chain = BenchChain(
            model=model,
            plan=plan,
            options=options,
            target=target,
            device=device,
            flags=(*target_flags(target), *level.flags, *fidelity.flags),
            context=replace(make_plan_context(workbench, run_dir), env=options.env),
            toolchain=toolchain,
            torch=torch,
        )
        for unknown_flag in chain.context.translate(chain.flags, COMPILE).unknown:
            raise ToolchainError(unknown_flag.message, unknown_flag.hint)
        build, code = _run(chain, devices, fidelity.contraction_type, workbench, run_dir, progress)
    reports = _write_reports(run_dir, workbench, output)
    record, notes = read_journal(run_dir / JOURNAL), (*level.notes, *fidelity.notes)
    if (dataformat := options.dataformat).emulated:
        emulation = f"weights are rounded to the format; memory and speed are those of {dataformat.element_type}."
        notes = (f"{dataformat.label}: {emulation}", *notes)
    lines = make_result_lines(record, chain, build)
    if options.output and code is not ExitCode.INTERRUPTED:
        entry = make_perf_entry(record, chain, build, notes)
        appended_result = append_result(options.output, entry, locks)
        kind = "failure" if "error" in entry else "result"
        lines.append(appended_result.note or f"{kind} {appended_result.entries} of {appended_result.path}")
    for line in (*notes, *lines):
        output.write(f"{line}\n")
    publish_reports(run_dir, reports)
    return reports.exit_code


def _run(
    chain: BenchChain,
    devices: tuple[str, ...],
    contraction_type: str,
    workbench: Workbench,
    run_dir: Path,
    progress: Progress,
) -> tuple[BuildRecord | None, ExitCode]:
    """Export, import, compile, check and measure the model, and write the journal."""
    plan = Plan((chain.export(),), devices=chain.gpus)
    event = make_run_event(plan, run_dir, workbench, DIALECT, [chain.target], format_typed_command())
    event = replace(event, kind=ExperimentKind.BENCH)
    with open_model_session(run_dir, progress, event, plan.steps) as context:
        session = BenchSession(
            chain=chain, session=context, workbench=workbench, devices=devices, contraction_type=contraction_type
        )
        engine = make_model_engine(context, workbench, perform_by_chain({chain.id: session}))
        with engine.record_end() as execution:
            execution.verdicts = engine.perform(plan.steps, {})
            execution.verdicts = session.run(engine, execution.verdicts)
        return session.builds.get(MAIN), execution.code


def _write_reports(run_dir: Path, workbench: Workbench, output: Output) -> Reports:
    """Add the run to the history, and write and print its reports."""
    if workbench.store.configuration.history.add:
        add_run(run_dir, workbench.store.configuration, workbench.cache_dir)
    reports = write_reports(run_dir)
    reports.print(format_path(run_dir), output.stream, environ=os.environ)
    return reports


def _find_folders(options: BenchOptions) -> tuple[Path, ...]:
    named_folders = tuple(expand_home(folder).absolute() for folder in options.models_dir)
    project_models = find_project_folder() / _MODELS_FOLDER
    if not named_folders and not project_models.is_dir():
        raise UsageError(
            f"no models folder: {Path.cwd()} is not inside a project with {_MODELS_FOLDER}",
            "Name a folder with --models_dir.",
        )
    return named_folders or (project_models,)


def _require_work(options: BenchOptions, chips: int) -> None:
    """Raise an error if a chip would have nothing to do."""
    min_loops = chips * options.microbatch_count
    if options.loops(chips) < min_loops:
        raise UsageError(
            f"--loop_count {options.loop_count}: {chips} chips with --microbatch_count {options.microbatch_count} each "
            f"need at least {min_loops}",
            "Raise it, or use fewer chips.",
        )


def _make_model_list(models: Mapping[str, BenchmarkModel], folders: Sequence[Path]) -> Document:
    """List the models and their configurations: one row for each configuration."""
    rows: list[tuple[Cell, ...]] = []
    for model in models.values():
        accepts = ", ".join(option for name, option in _OPTION_NAMES.items() if name in model.accepts) or None
        for config in model.configs or ("",):
            count = model.parameter_count(config)
            rows.append((model.name, config or None, _UNKNOWN if count is None else count, accepts, model.location))
    folder_names = ", ".join(str(folder) for folder in folders)
    summary = f"{pluralize(len(models), 'model')}, {pluralize(len(rows), 'configuration')} in {folder_names}"
    return Document("", summary, (), (Table(_COLUMNS, tuple(rows)),))


def micro(request: MicroRequest, toolchain: ToolchainRequest) -> ExitCode:
    """Measure the points of a configuration, or list the names that a configuration can use."""
    if request.run_dir and not request.resume:
        raise UsageError(
            "--run-dir names a run to continue", "Add --resume, or omit --run-dir: a new run creates its own folder."
        )
    previous = find_previous_sweep(request.run_dir) if request.resume else None
    if previous is not None:
        request, toolchain = previous.merge(request, toolchain)
    plugins = tuple(expand_home(name).absolute() for name in request.plugin)
    registry = load_registry((*find_entry_point_files(), *plugins))
    if request.list:
        _print_registry(registry, sys.stdout)
        return ExitCode.OK
    read_targets(request.targets)
    check_writable(request.output)
    if not request.config:
        raise UsageError(
            "which configuration?", "Name a YAML file with --config, such as specs/recipes/quick.yml; or see --list."
        )
    config = override(read_micro_config(expand_home(request.config), registry), request.device, request.dtype)
    if previous is not None:
        previous.require_same_config(config)
    torch = find_torch_python(request.torch_python)
    output = Output(sys.stdout)
    with open_progress(output.stream) as progress:
        workbench = open_workbench(toolchain, progress, need_toolchain=True)
        run_dir = MicroRun(request, toolchain, config, registry, torch, workbench, progress, previous).measure()
    reports = _write_reports(run_dir, workbench, output)
    record = read_journal(run_dir / JOURNAL)
    copy_micro_reports(record, run_dir, write_micro_reports(record, run_dir, output.stream), output.stream)
    publish_reports(run_dir, reports)
    return reports.exit_code


def _print_registry(registry: PluginRegistry, stream: TextIO) -> None:
    """Print a list for each kind of declaration."""
    recipes = sorted(registry.recipes.values(), key=lambda recipe: (recipe.kind, recipe.name))
    for kind in ("quantization", "sparsity", "compiler"):
        rows = [(recipe.usage, recipe.about) for recipe in recipes if recipe.kind == kind]
        _print_table(f"recipes ({kind})", rows, stream)
    _print_table("recipes of torchao that are not supported", list(UNSUPPORTED_RECIPES.items()), stream)
    types = [(name, registry.find_model_type(name).architecture.about) for name in registry.list_model_types()]
    _print_table("model types", types, stream)
    shapes = [(shape_set.name, shape_set.about) for shape_set in registry.shape_sets.values()]
    _print_table("shape sets", [*shapes, (CUSTOM, "the shapes listed in the configuration")], stream)


def _print_table(title: str, rows: Sequence[tuple[str, str]], stream: TextIO) -> None:
    width = max((len(name) for name, _ in rows), default=0)
    lines = [f"  {name:{width}}  {description}".rstrip() for name, description in rows]
    messages.write_text(stream, "\n".join([f"{title}:", *lines, "", ""]))
