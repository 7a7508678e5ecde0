"""How a run begins: what of its plan this machine can do, the journal's first event, session and engine."""

from __future__ import annotations

import os
import shlex
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet import __version__
from iree_gauntlet.cases import Stage
from iree_gauntlet.engine.engine import Engine, RunOptions
from iree_gauntlet.engine.plan import Plan, blocked
from iree_gauntlet.engine.rounds.machine_lock import lock_facts
from iree_gauntlet.engine.session import Session, open_session
from iree_gauntlet.errors import ToolchainError
from iree_gauntlet.journal_format import JOURNAL
from iree_gauntlet.measuring.machine.machine_state import machine_facts
from iree_gauntlet.records.event_log import Journal
from iree_gauntlet.steps import Resources, Step
from iree_gauntlet.toolchains.devices import Device, find_device

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from iree_gauntlet.engine.workbench import Workbench
    from iree_gauntlet.progress import Progress
    from iree_gauntlet.results import Result
    from iree_gauntlet.targets import Target
    from iree_gauntlet.toolchains.toolchain import Toolchain


def imports_possible(plan: Plan, machine: Workbench) -> Plan:
    """The plan, with imports blocked where the IREE has no importer: another one's is not taken in its place."""
    toolchain = machine.toolchain
    if toolchain is None or toolchain.compiler.python:
        return plan
    why = (
        f"{toolchain.source} has no Python bindings, so it cannot import ONNX programs: "
        "build it with -DIREE_BUILD_PYTHON_BINDINGS=ON, or give MLIR programs"
    )
    steps = (blocked(step, why) if step.stage is Stage.IMPORT else step for step in plan.steps)
    return replace(plan, steps=tuple(steps))


def on_devices_here(plan: Plan, machine: Workbench, *, optional: bool = False) -> Plan:
    """Every step with the device that it runs on by its own name, so that two names of one device are one.

    What no device here can do is blocked: a demand that cannot be met fails at once.

    Args:
        plan: what is to be done.
        machine: what it is done with.
        optional: what no device here can do is skipped instead.
    """
    found: dict[str, Device | ToolchainError] = {}

    def checked(step: Step) -> Step:
        device = step.resources.device
        if not device or device.startswith("local-") or machine.toolchain is None:
            return step
        if device not in found:
            try:
                found[device] = find_device(machine.toolchain, device)
            except ToolchainError as problem:
                found[device] = problem
        here = found[device]
        if isinstance(here, ToolchainError):
            if optional:
                return replace(step, skip=step.skip or f"compiled only: {here.what}", resources=Resources(cores=0))
            return blocked(step, f"no device {device!r} here: {here.what}; {here.hint}")
        return replace(step, resources=replace(step.resources, device=here.uri, software=here.software))

    steps = tuple(checked(step) for step in plan.steps)
    return replace(plan, steps=steps, devices=tuple(item for item in found.values() if isinstance(item, Device)))


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
        "command": shlex.join(command),
        "cwd": str(Path.cwd()),
        "target": [{"name": target.name, "sku": target.sku} for target in targets],
        "toolchain": machine.toolchain.as_dict() if machine.toolchain else {},
        "machine": machine_facts().as_dict() | ({"devices": list(map(asdict, plan.devices))} if plan.devices else {}),
        **lock_facts(os.environ),
        "resumed": False,
        "steps": list(plan.steps),
    }


@contextmanager
def model_session(run_dir: Path, progress: Progress, event: dict[str, Any]) -> Iterator[Session[Journal]]:
    """A session in a run's folder, whose journal has begun; Ctrl-C and SIGTERM end it.

    Args:
        run_dir: the run's folder.
        progress: shows how it goes.
        event: the journal's first.
    """
    with (
        Journal(run_dir / JOURNAL, lambda: datetime.now(UTC)) as journal,
        open_session(run_dir, journal, progress) as session,
    ):
        journal.run(event)
        # Of a resumed run only what is left to do counts.
        progress.run_started({**event, "steps": []} if event["resumed"] else event)
        with session.interruptible():
            yield session


def model_engine(
    session: Session[Journal], workbench: Workbench, performers: Mapping[Stage, Callable[[Step], Result]]
) -> Engine:
    """An engine with as many jobs as cores, that continues after failures; arguments as for `Engine`."""
    jobs = machine_facts().cores
    options = RunOptions(jobs=jobs, fail_fast=False, made_again=None, lenient=False, confirm=None)
    return Engine(session, workbench, options, performers)


def require_importer(toolchain: Toolchain) -> None:
    """Makes sure that a toolchain can import what torch exports.

    Raises:
        ToolchainError: it cannot.
    """
    if not toolchain.compiler.python or not toolchain.compiler.onnx_version:
        raise ToolchainError(
            f"{toolchain.source} has no Python bindings, or no onnx package with them",
            "A model is imported and measured through them; choose another IREE with --iree.",
        )
