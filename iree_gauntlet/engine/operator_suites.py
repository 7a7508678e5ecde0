"""Steps of operator suites: thousands of small compiles and runs, done by servers in the toolchain's own Python.

A program of more than `_MOST_PROGRAM_BYTES`, and one whose flags the servers do not know, is compiled by a process of
its own with the compiler's own threads, as the steps of every other dialect are. So is everything where the toolchain
has no Python bindings.
"""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.cases import Case, Stage, Verdict
from iree_gauntlet.dialects.op_suites import DIALECT
from iree_gauntlet.engine.modules.batches import (
    BATCH_RECORD,
    BatchCompiler,
    Batched,
    place_of,
    with_batches,
    with_function,
)
from iree_gauntlet.engine.modules.modules import ModuleMaker
from iree_gauntlet.engine.processes.compile_client import (
    EXIT_DEFECT,
    EXIT_UNWRITABLE,
    CompileJob,
    CompileServer,
    served,
)
from iree_gauntlet.engine.processes.processes import Processes, is_plain_path
from iree_gauntlet.engine.processes.run_client import RunServers
from iree_gauntlet.engine.served_threshold import check_served_threshold
from iree_gauntlet.errors import GauntletError, UsageError
from iree_gauntlet.measuring.machine.machine_state import total_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from iree_gauntlet.engine.engine import RunOptions
    from iree_gauntlet.engine.processes.supervisor import Outcome
    from iree_gauntlet.engine.session import Session
    from iree_gauntlet.engine.workbench import Workbench
    from iree_gauntlet.results import Result
    from iree_gauntlet.steps import Command, Step
    from iree_gauntlet.toolchains.toolchain import Toolchain


# From here on the compiler's own threads win over a core of one's own: see docs/reference/operator-suites.md.
_MOST_PROGRAM_BYTES = 64 << 10
_LEAST_MEMORY = 4 << 30
_MEMORY_SHARE = 0.8


def _is_small(step: Step) -> bool:
    """Whether a compile is one for the server: a small program, and flags that the server can take."""
    if step.dialect != DIALECT or step.command is None:
        return False
    try:
        size = Path(step.input("program").path).stat().st_size
    except OSError:
        return False
    return size <= _MOST_PROGRAM_BYTES and served(step.command.argv[2:-2])


@dataclass
class ServedCompiles(Processes):
    """Processes of which the small compiles are done by a fork server.

    Attributes:
        supervisor: owns the other processes.
        run_dir: the run's folder.
        server: compiles.
        memory_bytes: that a compile may take.
    """

    server: CompileServer
    memory_bytes: int

    def run(self, step: Step, command: Command | None = None, name: str = "") -> Outcome:
        """Runs a step's command, or does what it would do."""
        chosen = command or step.command
        if chosen is None or step.stage is not Stage.COMPILE or not _is_small(step):
            return super().run(step, command, name)
        folder = Path(step.folder)
        folder.mkdir(parents=True, exist_ok=True)
        _, program, *flags = chosen.argv
        outcome = self.server.compile(
            CompileJob(
                programs=(program,),
                flags=tuple(flags[:-2]),
                output=Path(flags[-1]),
                stdout=folder / f"{name}stdout.txt",
                stderr=folder / f"{name}stderr.txt",
                cwd=chosen.cwd,
                timeout=step.timeout,
                memory_bytes=self.memory_bytes,
            )
        )
        if outcome.exit_code in (EXIT_DEFECT, EXIT_UNWRITABLE):
            # Not by the compiler.
            why = outcome.tail[-1] if outcome.tail else "it does not say why"
            raise GauntletError(f"a compile did not finish: {why}", f"See {folder}, and `doctor` for the disk.")
        return outcome


@dataclass(frozen=True, slots=True)
class OperatorSteps:
    """Performs compile and threshold steps of operator suites; those of other dialects are done as ever.

    Attributes:
        session: its processes do small compiles by a server.
        maker: compiles by itself what is in no batch.
        compiles: compile steps of the plan, by id.
        batches: compiles batches; None where each case is compiled by itself.
    """

    session: Session[Any]
    maker: ModuleMaker
    compiles: Mapping[str, Step]
    batches: BatchCompiler | None

    def compile(self, batches: BatchCompiler, step: Step) -> Result:
        """A batch, or a compile that may be in one."""
        if batches.owns(step):
            return batches.make(step)
        return batches.hand_out(step) or self.maker.make(step)

    def check_threshold(self, runs: RunServers, step: Step) -> Result:
        """A threshold step, by the processes that run modules where they can."""
        if step.dialect != DIALECT:
            from iree_gauntlet.engine.threshold import check_error, check_threshold  # noqa: PLC0415 - it brings NumPy

            return check_error(step, check_threshold(step, self.session.processes))
        module = Path(step.input("module").path)
        place = place_of(module) if self.batches is not None else None
        if place is None:
            return self._check(runs, step)
        batch, function = place
        result = self._check(runs, with_function(step, function))
        if result.verdict is Verdict.PASSED:
            return result
        # The verdict is that of the case's own module.
        compiled = next((self.compiles[need] for need in step.needs if need in self.compiles), None)
        if compiled is not None:
            made = self.maker.make(compiled)
            if made.verdict is not Verdict.PASSED:
                what = f"its batch gave no good result ({result.reason}), and by itself it does not compile"
                return replace(made, reason=f"{what}: {made.reason}")
            module.with_name(BATCH_RECORD).unlink(missing_ok=True)
        checked = self._check(runs, step)
        note = f"it was run from {batch} first: {result.reason}; this is what its own module gives"
        return replace(checked, notes=(*checked.notes, note))

    def _check(self, runs: RunServers, step: Step) -> Result:
        result = check_served_threshold(step, runs, self.session.processes)
        if result is None:
            from iree_gauntlet.engine.threshold import check_threshold  # noqa: PLC0415 - it brings NumPy

            result = check_threshold(step, self.session.processes)
        return result


def _compute_share_of_memory(jobs: int) -> int:
    """What one compile or run may take, so that all at once fit into the machine; 0 for no limit."""
    total = total_memory()
    return 0 if total is None else max(_LEAST_MEMORY, int(total * _MEMORY_SHARE / jobs))


def make_batches(
    steps: Sequence[Step], size: int, machine: Workbench, run_dir: Path, finished: Collection[str]
) -> Batched:
    """The steps of a plan, with batches of so many cases; each by itself where that is below 2.

    Raises:
        UsageError: there is nothing that could compile a batch.
    """
    if size < 2 or not any(step.dialect == DIALECT for step in steps):
        return Batched(tuple(steps), {})
    if machine.toolchain is None or not _has_compiler(machine.toolchain):
        raise UsageError(
            "--batch: this IREE has no Python bindings, through which programs are put together, or this is not Linux",
            "Leave --batch out, or choose another IREE with --iree.",
        )
    return with_batches(steps, size, run_dir, _is_small, finished)


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
    environment = _make_environment(toolchain)
    memory = _compute_share_of_memory(jobs)
    with RunServers(toolchain.compiler.python, min(jobs, count), environment, memory_bytes=memory) as runs:
        runs.start()
        yield runs


@contextmanager
def operator_performers(
    session: Session[Any], plan: Batched, machine: Workbench, options: RunOptions, runs: RunServers | None
) -> Iterator[Mapping[Stage, Callable[[Step], Result]]]:
    """Performers for an engine that is to be; none where there are no such steps or no Python bindings.

    Args:
        session: what it runs in.
        plan: what is to be done.
        machine: what it is done with.
        options: how to run.
        runs: the processes that run modules; None where each run is one of its own.
    """
    toolchain = machine.toolchain
    mine = [step for step in plan.steps if step.dialect == DIALECT]
    if not mine or toolchain is None or not _has_compiler(toolchain):
        yield {}
        return
    folder = session.folder
    with (
        # For the compiler's temporary files; in the system's folder where a shell would not leave its path alone.
        tempfile.TemporaryDirectory(
            prefix="scratch-", dir=folder if is_plain_path(str(folder)) else None, ignore_cleanup_errors=True
        ) as scratch,
        CompileServer(toolchain.compiler.python, Path(scratch), _make_environment(toolchain)) as compiles,
    ):
        memory = _compute_share_of_memory(options.jobs)
        session.processes = ServedCompiles(session.supervisor, folder, compiles, memory)
        session.on_cancel(compiles.cancel)
        maker = ModuleMaker(session, machine, made_again=options.made_again)
        batches = None
        if plan.wanted:
            forced = options.made_again is not None
            batches = BatchCompiler(
                compiles, machine.modules, plan.members, memory_bytes=memory, forced=forced, progress=session.progress
            )
        steps = OperatorSteps(session, maker, {step.id: step for step in mine if step.stage is Stage.COMPILE}, batches)
        performers: dict[Stage, Callable[[Step], Result]] = {}
        if batches is not None:
            performers[Stage.COMPILE] = partial(steps.compile, batches)
        if runs is not None:
            session.on_cancel(runs.cancel)
            performers[Stage.THRESHOLD] = partial(steps.check_threshold, runs)
        yield performers


def _has_compiler(toolchain: Toolchain) -> bool:
    """Whether compiles can be served: Linux, as they are forked, and a Python that has the compiler."""
    return bool(toolchain.compiler.python) and sys.platform == "linux"


def _has_runtime(toolchain: Toolchain) -> bool:
    """Whether the compiler's Python has the very runtime that is under test: both are wheels of one environment."""
    site, runtime = _find_site_packages(toolchain), Path(toolchain.runtime.run_module).parent
    together = site is not None and runtime.parts[-2:] == ("iree", "_runtime_libs") and site == runtime.parents[1]
    return _has_compiler(toolchain) and together


def _find_site_packages(toolchain: Toolchain) -> Path | None:
    """The folder that the compiler is installed in; None where it is no wheel."""
    compiler = Path(toolchain.compiler.compile).parent
    return compiler.parents[2] if compiler.parts[-3:] == ("iree", "compiler", "_mlir_libs") else None


def _make_environment(toolchain: Toolchain) -> dict[str, str]:
    """What the servers inherit: what a user's PYTHONPATH names must not stand in for the IREE that was chosen."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    site = _find_site_packages(toolchain)
    return environment if site is None else {**environment, "PYTHONPATH": str(site)}
