"""Setting up what performs the steps of operator suites, for the length of a run."""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.cases import Stage
from iree_gauntlet.dialects.op_tests import DIALECT
from iree_gauntlet.engine.modules.batches import Batched, with_batches
from iree_gauntlet.errors import UsageError
from iree_gauntlet.measuring.machine.machine_memory import total_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from iree_gauntlet.cases import Case
    from iree_gauntlet.engine.processes.run_client import RunServers
    from iree_gauntlet.engine.session import Session
    from iree_gauntlet.engine.workbench import Workbench
    from iree_gauntlet.results import Result
    from iree_gauntlet.steps import Step
    from iree_gauntlet.toolchains.toolchain import Toolchain

__all__ = ["OperatorRun", "batched", "operator_performers", "started_runs"]

_LEAST_MEMORY = 4 << 30
_MEMORY_SHARE = 0.8


@dataclass(frozen=True, slots=True)
class OperatorRun:
    """How operator suites are run.

    Attributes:
        jobs: steps at once.
        made_again: as for `ModuleMaker`.
        runs: the processes that run modules; None where each run is one of its own.
    """

    jobs: int
    made_again: Path | None
    runs: RunServers | None

    @property
    def memory_bytes(self) -> int:
        """What one compile or run may take, so that all at once fit into the machine; 0 for no limit."""
        return _share_of_memory(self.jobs)


def _share_of_memory(jobs: int) -> int:
    total = total_memory()
    return 0 if total is None else max(_LEAST_MEMORY, int(total * _MEMORY_SHARE / jobs))


def batched(steps: Sequence[Step], size: int, machine: Workbench, run_dir: Path, finished: Collection[str]) -> Batched:
    """The steps of a plan, with batches of so many cases; each by itself where that is below 2.

    Raises:
        UsageError: there is nothing that could compile a batch.
    """
    if size < 2 or not any(step.dialect == DIALECT for step in steps):
        return Batched(tuple(steps), {})
    from iree_gauntlet.engine.operator_suites import is_small  # noqa: PLC0415 - other runs do without

    if machine.toolchain is None or not _has_compiler(machine.toolchain):
        raise UsageError(
            "--batch: this IREE has no Python bindings, through which programs are put together, or this is not Linux",
            "Leave --batch out, or choose another IREE with --iree.",
        )
    return with_batches(steps, size, run_dir, is_small, finished)


@contextmanager
def started_runs(
    cases: Iterable[Case], stages: Collection[Stage], machine: Workbench, jobs: int
) -> Iterator[RunServers | None]:
    """The processes that run modules, where some are to be run: they start while the run is planned."""
    toolchain = machine.toolchain
    count = sum(case.dialect == DIALECT for case in cases) if Stage.THRESHOLD in stages else 0
    if not count or toolchain is None or not _has_runtime(toolchain):
        yield None
        return
    from iree_gauntlet.engine.processes.run_client import RunServers  # noqa: PLC0415 - other runs do without

    environment = _environment(toolchain)
    memory = _share_of_memory(jobs)
    with RunServers(toolchain.compiler.python, min(jobs, count), environment, memory_bytes=memory) as runs:
        runs.start()
        yield runs


@contextmanager
def operator_performers(
    session: Session[Any], plan: Batched, machine: Workbench, run: OperatorRun
) -> Iterator[Mapping[Stage, Callable[[Step], Result | None]]]:
    """Performers for the engine; none where there are no such steps or no Python bindings."""
    toolchain = machine.toolchain
    mine = [step for step in plan.steps if step.dialect == DIALECT]
    if not mine or toolchain is None or not _has_compiler(toolchain):
        yield {}
        return
    from iree_gauntlet.engine.modules.batch_compile import BatchCompiler  # noqa: PLC0415 - other runs do without
    from iree_gauntlet.engine.modules.modules import ModuleMaker  # noqa: PLC0415
    from iree_gauntlet.engine.operator_suites import OperatorSteps, ServedCompiles  # noqa: PLC0415
    from iree_gauntlet.engine.processes.compile_client import CompileServer  # noqa: PLC0415
    from iree_gauntlet.engine.processes.processes import is_plain_path  # noqa: PLC0415

    folder = session.folder
    with (
        _scratch(folder if is_plain_path(str(folder)) else None) as scratch,
        CompileServer(toolchain.compiler.python, scratch, _environment(toolchain)) as compiles,
    ):
        processes = ServedCompiles(session.supervisor, folder, compiles, run.memory_bytes)
        maker = ModuleMaker(session, machine, made_again=run.made_again, processes=processes, keeps_failures=True)
        batches = None
        if plan.wanted:
            batches = BatchCompiler(
                compiles,
                machine.modules,
                plan.members,
                memory_bytes=run.memory_bytes,
                clock=lambda: datetime.now(UTC),
                forced=run.made_again is not None,
            )
        by_id = {step.id: step for step in mine if step.stage is Stage.COMPILE}
        session.on_cancel(compiles.cancel)
        if run.runs is not None:
            session.on_cancel(run.runs.cancel)
        yield OperatorSteps(maker, run.runs, processes, by_id, batches).performers


def _has_compiler(toolchain: Toolchain) -> bool:
    """Whether compiles can be served: Linux, as they are forked, and a Python that has the compiler."""
    return bool(toolchain.compiler.python) and sys.platform == "linux"


def _has_runtime(toolchain: Toolchain) -> bool:
    """Whether the compiler's Python has the very runtime that is under test: both are wheels of one environment."""
    return _has_compiler(toolchain) and _site_packages(toolchain) is not None


def _site_packages(toolchain: Toolchain) -> Path | None:
    """The folder that compiler and runtime are installed in; None where they are not wheels of one environment."""
    compiler, runtime = Path(toolchain.compiler.compile).parent, Path(toolchain.runtime.run_module).parent
    if compiler.parts[-3:] != ("iree", "compiler", "_mlir_libs") or runtime.parts[-2:] != ("iree", "_runtime_libs"):
        return None
    site = compiler.parents[2]
    return site if site == runtime.parents[1] else None


def _environment(toolchain: Toolchain) -> dict[str, str]:
    """What the servers inherit: what a user's PYTHONPATH names must not stand in for the IREE that was chosen."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    compiler = Path(toolchain.compiler.compile).parent
    if compiler.parts[-3:] == ("iree", "compiler", "_mlir_libs"):
        environment["PYTHONPATH"] = str(compiler.parents[2])
    return environment


@contextmanager
def _scratch(parent: Path | None) -> Iterator[Path]:
    """A folder for the compiler's temporary files, in the system's where no other is given."""
    with tempfile.TemporaryDirectory(prefix="scratch-", dir=parent, ignore_cleanup_errors=True) as name:
        yield Path(name)
