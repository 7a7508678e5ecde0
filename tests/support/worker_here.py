"""Runs the measuring programs of IREE's Python in this process, which is faster, or in processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from iree_gauntlet.toolchains.installed import find_installed
from iree_gauntlet.workers.iree_side.plan_file import run_worker_main
from tests.support.command_line import LIMIT_SECONDS, CommandResult

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    import pytest

CPU_FLAGS = (
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-llvmcpu-target-cpu=host",
)


def compile_for_cpu(program: str, module: Path) -> None:
    """Compile a program's text; its file is written next to the module."""
    source = module.with_suffix(".mlir")
    source.write_text(program)
    argv = [find_installed().compiler.compile, source.name, "-o", module.name, *CPU_FLAGS]
    subprocess.run(argv, check=True, timeout=LIMIT_SECONDS, cwd=module.parent)


def run_script(script: Path, plan: Mapping[str, Any], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a script with a plan, in a process of its own."""
    plan_path = folder / "plan.json"
    plan_path.write_text(json.dumps(plan))
    argv = [sys.executable, str(script), str(plan_path)]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=LIMIT_SECONDS)


def run_plan_here(
    measure: Callable[[dict[str, Any]], dict[str, Any]],
    plan: dict[str, Any],
    folder: Path,
    capture: pytest.CaptureFixture[str],
) -> CommandResult:
    """Run `measure` with a plan; `capture`, pytest's `capfd`, gets the output of the runtime itself."""
    plan_path = folder / "plan.json"
    plan_path.write_text(json.dumps(plan))
    capture.readouterr()
    exit_code = run_worker_main(["measure.py", str(plan_path)], measure)
    out, err = capture.readouterr()
    return CommandResult(exit_code, out, err)
