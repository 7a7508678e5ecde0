"""`micro`: recipes × architectures × shapes of a configuration, each compiled by IREE, checked, and measured."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.bench.torch_python import find_torch_python
from iree_gauntlet.errors import ExitCode, UsageError
from iree_gauntlet.journal_format import read_journal
from iree_gauntlet.micro.configuration import read_micro_config
from iree_gauntlet.micro.overrides import overridden
from iree_gauntlet.micro.plugins import entry_point_files, load_registry
from iree_gauntlet.reporting.console import open_console
from iree_gauntlet.reporting.final import print_final
from iree_gauntlet.reporting.report import write_reports
from iree_gauntlet.running.workbench import open_workbench
from iree_gauntlet.settings import shown
from iree_gauntlet.tasks.console_tellers import Arrivals
from iree_gauntlet.tasks.micro_list import print_registry
from iree_gauntlet.tasks.micro_reports import check_output, read_targets, write_micro_reports
from iree_gauntlet.tasks.micro_resume import earlier_micro
from iree_gauntlet.tasks.micro_run import MicroRun
from iree_gauntlet.tasks.output import Output

if TYPE_CHECKING:
    from iree_gauntlet.requests import MicroRequest, ToolchainRequest

__all__ = ["micro"]


def micro(asked: MicroRequest, toolchain: ToolchainRequest) -> ExitCode:
    """Measures the points of a configuration, or lists what a configuration can name.

    Args:
        asked: which, and how.
        toolchain: with which IREE.

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
        print_registry(registry, sys.stdout)
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
    console = open_console(output.stream, os.environ)
    try:
        workbench = open_workbench(toolchain, Arrivals(console), need_toolchain=True)
        run = MicroRun(asked, toolchain, config, registry, torch, workbench, console, earlier)
        run.measure()
    finally:
        console.close()
    return _report(run, output)


def _report(run: MicroRun, output: Output) -> ExitCode:
    """Reports, tables and files of results."""
    outcome = write_reports(run.run_dir, environ=os.environ)
    print_final(outcome, shown(run.run_dir), output.stream, environ=os.environ)
    write_micro_reports(read_journal(run.run_dir / "journal.jsonl"), run.run_dir, output.stream)
    write_reports(run.run_dir, environ=os.environ, append_step_summary=True)
    return ExitCode(int(outcome.exit_code))
