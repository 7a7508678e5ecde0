"""Steps of operator suites: thousands of small compiles and runs, done by servers in the toolchain's own Python.

A program of more than `MOST_PROGRAM_BYTES`, and one whose flags the servers do not know, is compiled by a process of
its own with the compiler's own threads, as the steps of every other dialect are. So is everything where the toolchain
has no Python bindings.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.cases import Stage, Verdict
from iree_gauntlet.dialects.op_tests import DIALECT
from iree_gauntlet.engine.modules.batch_compile import place_of, with_function
from iree_gauntlet.engine.processes.compile_client import CompileJob, served
from iree_gauntlet.engine.processes.compile_outcome import EXIT_DEFECT, EXIT_UNWRITABLE
from iree_gauntlet.engine.processes.processes import Processes
from iree_gauntlet.engine.served_threshold import check_served_threshold
from iree_gauntlet.errors import GauntletError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from iree_gauntlet.engine.modules.batch_compile import BatchCompiler
    from iree_gauntlet.engine.modules.modules import ModuleMaker
    from iree_gauntlet.engine.processes.compile_client import CompileServer
    from iree_gauntlet.engine.processes.run_client import RunServers
    from iree_gauntlet.engine.processes.supervisor import Outcome, Supervisor
    from iree_gauntlet.results import Result
    from iree_gauntlet.steps import Command, Step

__all__ = ["MOST_PROGRAM_BYTES", "OperatorSteps", "ServedCompiles", "is_small"]

# From here on the compiler's own threads win over a core of one's own: see docs/operator-suites.md.
MOST_PROGRAM_BYTES = 64 << 10


def is_small(step: Step) -> bool:
    """Whether a compile is one for the server: a small program, and flags that the server can take."""
    if step.dialect != DIALECT or step.command is None:
        return False
    program = next(item for item in step.inputs if item.role == "program")
    try:
        size = Path(program.path).stat().st_size
    except OSError:
        return False
    return size <= MOST_PROGRAM_BYTES and served(step.command.argv[2:-2])


class ServedCompiles(Processes):
    """Processes of which the small compiles are done by a fork server.

    Args:
        supervisor: owns the other processes.
        run_dir: the run's folder.
        server: compiles.
        memory_bytes: that a compile may take.
    """

    def __init__(self, supervisor: Supervisor, run_dir: Path, server: CompileServer, memory_bytes: int) -> None:
        super().__init__(supervisor, run_dir)
        self._server = server
        self._memory_bytes = memory_bytes

    def run(self, step: Step, command: Command | None = None, name: str = "") -> Outcome:
        """Runs a step's command, or does what it would do."""
        chosen = command or step.command
        if chosen is None or step.stage is not Stage.COMPILE or not is_small(step):
            return super().run(step, command, name)
        folder = Path(step.folder)
        folder.mkdir(parents=True, exist_ok=True)
        _, program, *flags = chosen.argv
        outcome = self._server.compile(
            CompileJob(
                program=program,
                flags=tuple(flags[:-2]),
                output=Path(flags[-1]),
                stdout=folder / f"{name}stdout.txt",
                stderr=folder / f"{name}stderr.txt",
                cwd=chosen.cwd,
                timeout=step.timeout,
                memory_bytes=self._memory_bytes,
            )
        )
        if outcome.exit_code in (EXIT_DEFECT, EXIT_UNWRITABLE):
            # Not by the compiler.
            why = outcome.tail[-1] if outcome.tail else "it does not say why"
            raise GauntletError(
                f"a compile did not come to its end: {why}", f"See {folder}, and `doctor` for the disk."
            )
        return outcome


@dataclass(frozen=True, slots=True)
class OperatorSteps:
    """Performs compile and threshold steps of operator suites.

    Attributes:
        maker: makes modules, by the server.
        runs: runs modules; None where nothing is to be run.
        processes: starts what the servers do not do.
        compiles: compile steps of the plan, by id.
        batches: compiles batches; None where each case is compiled by itself.
    """

    maker: ModuleMaker
    runs: RunServers | None
    processes: Processes
    compiles: Mapping[str, Step]
    batches: BatchCompiler | None = None

    @property
    def performers(self) -> dict[Stage, Callable[[Step], Result | None]]:
        """For the engine."""
        compiles: dict[Stage, Callable[[Step], Result | None]] = {Stage.COMPILE: self._compile}
        return compiles if self.runs is None else compiles | {Stage.THRESHOLD: self._threshold}

    def _compile(self, step: Step) -> Result | None:
        if step.dialect != DIALECT:
            return None
        if self.batches is not None:
            if self.batches.owns(step):
                return self.batches.make(step)
            result = self.batches.hand_out(step)
            if result is not None:
                return result
        return self.maker.make(step)

    def _threshold(self, step: Step) -> Result | None:
        if step.dialect != DIALECT:
            return None
        place = place_of(_module(step)) if self.batches is not None else None
        if place is None:
            return self._check(step)
        result = self._check(with_function(step, place.function))
        if result.verdict is Verdict.PASSED:
            return result
        # The verdict is that of the case's own module.
        made = self._alone(step)
        if made is not None and made.verdict is not Verdict.PASSED:
            what = f"its batch gave no good result ({result.reason}), and by itself it does not compile: {made.reason}"
            return replace(made, reason=what)
        checked = self._check(step)
        note = f"it was run from {place.batch} first: {result.reason}; this is what its own module gives"
        return replace(checked, notes=(*checked.notes, note))

    def _alone(self, step: Step) -> Result | None:
        compiles: Sequence[Step] = [self.compiles[need] for need in step.needs if need in self.compiles]
        if not compiles:
            return None
        made = self.maker.make(compiles[0])
        if made.verdict is Verdict.PASSED:
            _module(step).with_name("batch.json").unlink(missing_ok=True)
        return made

    def _check(self, step: Step) -> Result:
        assert self.runs is not None, "nothing is run without"
        result = check_served_threshold(step, self.runs, self.processes)
        if result is None:
            from iree_gauntlet.engine.threshold import check_threshold  # noqa: PLC0415 - it brings NumPy

            result = check_threshold(step, self.processes)
        return result


def _module(step: Step) -> Path:
    return Path(next(item.path for item in step.inputs if item.role == "module"))
