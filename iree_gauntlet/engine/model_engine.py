"""The engine of runs whose models are built by torch: `bench` and `micro`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iree_gauntlet.engine.engine import Engine, RunOptions
from iree_gauntlet.errors import ToolchainError
from iree_gauntlet.measuring.machine.machine_state import machine_facts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from iree_gauntlet.cases import Stage
    from iree_gauntlet.engine.session import Session
    from iree_gauntlet.engine.workbench import Workbench
    from iree_gauntlet.records.journal import Journal
    from iree_gauntlet.results import Result
    from iree_gauntlet.steps import Step
    from iree_gauntlet.toolchains.toolchain import Toolchain

__all__ = ["model_engine", "require_importer"]


def model_engine(
    session: Session[Journal], workbench: Workbench, performers: Mapping[Stage, Callable[[Step], Result]]
) -> Engine:
    """An engine with as many jobs as cores, that goes on after failures; arguments as for `Engine`."""
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
            f"{toolchain.source} has no Python bindings, or no onnx package beside them",
            "A model is imported and measured through them; choose another IREE with --iree.",
        )
