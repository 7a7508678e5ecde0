"""What stands at the beginning of a run: what of its plan this machine can do, and the journal's first event."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet import __version__
from iree_gauntlet.cases import Stage
from iree_gauntlet.engine.plan import Plan, blocked
from iree_gauntlet.engine.rounds.machine_lock import lock_facts
from iree_gauntlet.measuring.machine.machine_state import machine_facts
from iree_gauntlet.toolchains.devices import device_available

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iree_gauntlet.engine.workbench import Workbench
    from iree_gauntlet.steps import Step
    from iree_gauntlet.targets import Target


def without_missing_devices(plan: Plan, machine: Workbench) -> Plan:
    """Blocks the steps that no device or importer here can do: a demand that cannot be met fails at once."""

    def checked(step: Step) -> Step:
        if step.stage is Stage.IMPORT and machine.toolchain is not None and not machine.toolchain.compiler.python:
            return blocked(
                step,
                f"{machine.toolchain.source} has no Python bindings, so it cannot import ONNX programs: "
                "build it with -DIREE_BUILD_PYTHON_BINDINGS=ON, or give MLIR programs",
            )
        device = step.resources.device
        if not device or device.startswith("local-") or machine.toolchain is None:
            return step
        available = device_available(machine.toolchain, device)
        return (
            step if available.ok else blocked(step, f"no device {device!r} here: {available.reason}; {available.hint}")
        )

    return replace(plan, steps=tuple(checked(step) for step in plan.steps))


def run_event(
    plan: Plan, run_dir: Path, machine: Workbench, suite: str, targets: Sequence[Target], command: Sequence[str]
) -> dict[str, Any]:
    """The journal's `run` event, but for what was selected and by which options: those who know add that.

    Args:
        plan: what is to be done.
        run_dir: the run's folder.
        machine: what it is done with.
        suite: its name.
        targets: where it is done.
        command: of the process, as typed.
    """
    return {
        "run": run_dir.name,
        "version": __version__,
        "suite": suite,
        "command": " ".join(command),
        "cwd": str(Path.cwd()),
        "target": [{"name": target.name, "sku": target.sku} for target in targets],
        "toolchain": machine.toolchain.as_dict() if machine.toolchain else {},
        "machine": machine_facts().as_dict(),
        **lock_facts(os.environ),
        "resumed": False,
        "steps": list(plan.steps),
    }
