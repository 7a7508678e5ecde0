"""The measuring programs that run in IREE's Python: in this process, which takes less than a start, or in their own."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from iree_gauntlet.toolchains.installed import find_installed
from iree_gauntlet.workers.iree_side.plan_file import answer_plan
from tests.support.command_line import LIMIT_SECONDS, Done

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
    """Compiles a program's text, which is written beside the module."""
    source = module.with_suffix(".mlir")
    source.write_text(program)
    argv = [find_installed().compiler.compile, source.name, "-o", module.name, *CPU_FLAGS]
    subprocess.run(argv, check=True, timeout=LIMIT_SECONDS, cwd=module.parent)


def run_script(script: Path, plan: Mapping[str, Any], folder: Path) -> subprocess.CompletedProcess[str]:
    """What a program does with a plan in a process of its own."""
    path = folder / "plan.json"
    path.write_text(json.dumps(plan))
    argv = [sys.executable, str(script), str(path)]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=LIMIT_SECONDS)


def answered_here(
    measure: Callable[[dict[str, Any]], dict[str, Any]],
    plan: dict[str, Any],
    folder: Path,
    capture: pytest.CaptureFixture[str],
) -> Done:
    """What a program does with a plan; `capture`, pytest's `capfd`, sees what the runtime itself writes."""
    path = folder / "plan.json"
    path.write_text(json.dumps(plan))
    capture.readouterr()
    code = answer_plan(["measure.py", str(path)], measure)
    out, err = capture.readouterr()
    return Done(code, out, err)
