"""`micro`: recipes × architectures × shapes of a configuration, each compiled by IREE, checked, and measured."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.bench.torch_python import find_torch_python
from iree_gauntlet.errors import ExitCode, UsageError
from iree_gauntlet.journal_format import read_journal
from iree_gauntlet.micro.configuration import read_micro_config
from iree_gauntlet.micro.overrides import overridden
from iree_gauntlet.micro.plugins import entry_point_files, load_registry
from iree_gauntlet.reporting.console import open_console
from iree_gauntlet.reporting.final import print_final
from iree_gauntlet.reporting.report import write_reports
from iree_gauntlet.requests import ConductRequest, ToolchainRequest, read
from iree_gauntlet.running.workbench import open_workbench
from iree_gauntlet.settings import shown
from iree_gauntlet.tasks.console_tellers import Arrivals
from iree_gauntlet.tasks.micro_list import print_registry
from iree_gauntlet.tasks.micro_reports import check_output, read_targets, write_micro_reports
from iree_gauntlet.tasks.micro_resume import earlier_micro, resumed_options
from iree_gauntlet.tasks.micro_run import MicroRun
from iree_gauntlet.tasks.output import Output

if TYPE_CHECKING:
    from collections.abc import Mapping

    from iree_gauntlet.micro.configuration import MicroConfig
    from iree_gauntlet.micro.lookup import Registry

__all__ = ["micro"]

_AGAINST = ("torch", "torch-eager", "none")


def micro(options: Mapping[str, Any]) -> ExitCode:
    """Measures the points of a configuration, or lists what a configuration can name.

    Raises:
        GauntletError: what keeps it from starting; nothing was measured then.
    """
    if options["run_dir"] and not options["resume"]:
        raise UsageError(
            "--run-dir names a run to continue", "Add --resume, or leave it out: a new run makes its folder."
        )
    earlier = earlier_micro(options) if options["resume"] else None
    if earlier is not None:
        options = resumed_options(options, earlier)
    plugins = tuple(Path(name).expanduser().absolute() for name in options["plugin"])
    registry = load_registry((*entry_point_files(), *plugins))
    if options["list"]:
        print_registry(registry, sys.stdout)
        return ExitCode.OK
    if options["against"] not in _AGAINST:
        raise UsageError(f"--against {options['against']}: unknown", f"Known: {', '.join(_AGAINST)}.")
    replace_disturbed = read(ConductRequest, options).replaces_disturbed
    read_targets(options["targets"])
    check_output(options["output"])
    config = _configured(options, registry)
    if earlier is not None:
        earlier.require_same(config)
    torch = find_torch_python(options["torch_python"])
    output = Output(sys.stdout)
    console = open_console(output.stream, os.environ)
    try:
        machine = open_workbench(read(ToolchainRequest, options), Arrivals(console), need_toolchain=True)
        run = MicroRun(options, config, registry, torch, machine, console, earlier)
        run.measure(replace_disturbed=replace_disturbed)
    finally:
        console.close()
    return _report(run, output)


def _configured(options: Mapping[str, Any], registry: Registry) -> MicroConfig:
    if not options["config"]:
        raise UsageError(
            "which configuration?", "Name a YAML file with --config, such as specs/recipes/quick.yml; or see --list."
        )
    config = read_micro_config(Path(options["config"]).expanduser(), registry)
    return overridden(config, options["device"], options["dtype"])


def _report(run: MicroRun, output: Output) -> ExitCode:
    """Reports, tables and files of results."""
    outcome = write_reports(run.run_dir, environ=os.environ)
    print_final(outcome, shown(run.run_dir), output.stream, environ=os.environ)
    write_micro_reports(read_journal(run.run_dir / "journal.jsonl"), run.run_dir, output.stream)
    write_reports(run.run_dir, environ=os.environ, append_step_summary=True)
    return ExitCode(int(outcome.exit_code))
