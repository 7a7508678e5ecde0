"""The engine of runs whose models are built by torch: `bench` and `micro`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iree_gauntlet.errors import ToolchainError
from iree_gauntlet.measuring.machine import machine_facts
from iree_gauntlet.running.engine import Engine, RunOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from iree_gauntlet.cases import Stage
    from iree_gauntlet.running.engine import Listener
    from iree_gauntlet.running.journal import Journal
    from iree_gauntlet.running.results import Result
    from iree_gauntlet.running.session import Session
    from iree_gauntlet.running.steps import Step
    from iree_gauntlet.running.workbench import Workbench
    from iree_gauntlet.toolchains.toolchain import Toolchain

__all__ = ["model_engine", "require_importer"]


def model_engine(
    session: Session[Journal],
    workbench: Workbench,
    listener: Listener,
    performers: Mapping[Stage, Callable[[Step], Result]],
) -> Engine:
    """An engine with as many jobs as cores, that goes on after failures; arguments as for `Engine`."""
    jobs = machine_facts().cores
    options = RunOptions(jobs=jobs, fail_fast=False, made_again=None, lenient=False, confirm=None)
    return Engine(session, workbench, listener, options, performers)


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
