"""The engine of runs whose models are built by torch: `bench` and `micro`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iree_gauntlet.errors import ToolchainError
from iree_gauntlet.measuring.machine import machine_facts
from iree_gauntlet.measuring.machine_memory import free_memory
from iree_gauntlet.running.engine import Engine, RunOptions

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from iree_gauntlet.cases import Stage
    from iree_gauntlet.results import Result
    from iree_gauntlet.running.engine import Listener
    from iree_gauntlet.running.journal import Journal
    from iree_gauntlet.running.machine_lock import MachineLocks
    from iree_gauntlet.running.steps import Step
    from iree_gauntlet.running.supervisor import Supervisor
    from iree_gauntlet.tasks.surroundings import Machine
    from iree_gauntlet.toolchains.toolchain import Toolchain

__all__ = ["model_engine", "require_importer"]


def model_engine(
    run_dir: Path,
    machine: Machine,
    supervisor: Supervisor,
    locks: MachineLocks,
    cancelled: threading.Event,
    journal: Journal,
    listener: Listener,
    performers: Mapping[Stage, Callable[[Step], Result]],
) -> Engine:
    """An engine with as many jobs as cores, that goes on after failures; arguments as for `Engine`."""
    assert machine.toolchain is not None, "asked for"
    options = RunOptions(
        jobs=machine_facts().cores,
        fail_fast=False,
        made_again=None,
        lenient=False,
        release=machine.toolchain.compiler_release,
        confirm=None,
    )
    return Engine(
        run_dir,
        machine.store,
        machine.modules,
        supervisor,
        locks,
        cancelled,
        journal,
        listener,
        options,
        free_memory,
        machine.shared,
        performers,
    )


def require_importer(toolchain: Toolchain) -> None:
    """Makes sure that a toolchain can import what torch exports.

    Raises:
        ToolchainError: it cannot.
    """
    if not toolchain.python or not toolchain.has_onnx_importer:
        raise ToolchainError(
            f"{toolchain.source} has no Python bindings, or no onnx package beside them",
            "A model is imported and measured through them; choose another IREE with --iree.",
        )
