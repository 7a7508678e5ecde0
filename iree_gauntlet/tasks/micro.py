"""`micro`: recipes × architectures × shapes of a configuration, each compiled by IREE, checked, and measured."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from iree_gauntlet.engine.workbench import open_workbench
from iree_gauntlet.errors import ExitCode, UsageError
from iree_gauntlet.experiments.sweep import MicroRun, earlier_micro
from iree_gauntlet.history.index import add_itself
from iree_gauntlet.journal_format import JOURNAL, read_journal
from iree_gauntlet.reports.experiment_reports import write_reports
from iree_gauntlet.reports.output import Output, open_progress, write_text
from iree_gauntlet.reports.sweeps.sweep_reports import check_output, read_targets, write_micro_reports
from iree_gauntlet.settings import shown
from iree_gauntlet.torch_models.configuration import overridden, read_micro_config
from iree_gauntlet.torch_models.plugins import REFUSED, entry_point_files, load_registry
from iree_gauntlet.torch_models.recipe_registry import CUSTOM
from iree_gauntlet.torch_models.torch_chain import find_torch_python

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iree_gauntlet.requests import MicroRequest, ToolchainRequest
    from iree_gauntlet.torch_models.plugins import Registry


def micro(asked: MicroRequest, toolchain: ToolchainRequest) -> ExitCode:
    """Measures the points of a configuration, or lists what a configuration can name.

    Raises:
        GauntletError: what keeps it from starting; nothing was measured then.
    """
    if asked.run_dir and not asked.resume:
        raise UsageError(
            "--run-dir names a run to continue", "Add --resume, or leave it out: a new run makes its folder."
        )
    earlier = earlier_micro(asked.run_dir) if asked.resume else None
    if earlier is not None:
        asked, toolchain = earlier.continued(asked, toolchain)
    plugins = tuple(Path(name).expanduser().absolute() for name in asked.plugin)
    registry = load_registry((*entry_point_files(), *plugins))
    if asked.list:
        _print_registry(registry, sys.stdout)
        return ExitCode.OK
    read_targets(asked.targets)
    check_output(asked.output)
    if not asked.config:
        raise UsageError(
            "which configuration?", "Name a YAML file with --config, such as specs/recipes/quick.yml; or see --list."
        )
    config = overridden(read_micro_config(Path(asked.config).expanduser(), registry), asked.device, asked.dtype)
    if earlier is not None:
        earlier.require_same(config)
    torch = find_torch_python(asked.torch_python)
    output = Output(sys.stdout)
    with open_progress(output.stream) as progress:
        workbench = open_workbench(toolchain, progress, need_toolchain=True)
        run = MicroRun(asked, toolchain, config, registry, torch, workbench, progress, earlier)
        run.measure()
    add_itself(run.run_dir, workbench.store.configuration, workbench.cache_dir)
    return _report(run, output)


def _report(run: MicroRun, output: Output) -> ExitCode:
    """Reports, tables and files of results."""
    reports = write_reports(run.run_dir)
    reports.print(shown(run.run_dir), output.stream, environ=os.environ)
    write_micro_reports(read_journal(run.run_dir / JOURNAL), run.run_dir, output.stream)
    reports.append_to_step_summary(os.environ)
    return reports.exit_code


def _print_registry(registry: Registry, stream: TextIO) -> None:
    """A list for each kind of thing."""
    recipes = sorted(registry.recipes.values(), key=lambda item: (item.kind, item.name))
    for kind in ("quantization", "sparsity", "compiler"):
        rows = [(item.usage, item.about) for item in recipes if item.kind == kind]
        _print(f"recipes ({kind})", rows, stream)
    _print("recipes of torchao that are refused", list(REFUSED.items()), stream)
    types = [(name, registry.model_type(name).architecture.about) for name in registry.model_types()]
    _print("model types", types, stream)
    shapes = [(item.name, item.about) for item in registry.shape_sets.values()]
    _print("shape sets", [*shapes, (CUSTOM, "the shapes that the configuration lists")], stream)


def _print(title: str, rows: Sequence[tuple[str, str]], stream: TextIO) -> None:
    width = max((len(name) for name, _ in rows), default=0)
    lines = [f"  {name:{width}}  {about}".rstrip() for name, about in rows]
    write_text(stream, "\n".join([f"{title}:", *lines, "", ""]))
