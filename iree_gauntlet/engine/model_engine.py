"""The engine of runs whose models are built by torch: `bench` and `micro`."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from iree_gauntlet.engine.engine import Engine, RunOptions
from iree_gauntlet.engine.session import Session, open_session
from iree_gauntlet.errors import ToolchainError
from iree_gauntlet.journal_format import JOURNAL
from iree_gauntlet.measuring.machine.machine_state import machine_facts
from iree_gauntlet.records.event_log import Journal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from iree_gauntlet.cases import Stage
    from iree_gauntlet.engine.workbench import Workbench
    from iree_gauntlet.progress import Progress
    from iree_gauntlet.results import Result
    from iree_gauntlet.steps import Step
    from iree_gauntlet.toolchains.toolchain import Toolchain


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
