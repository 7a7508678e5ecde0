"""Steps of operator suites: thousands of small compiles and runs, done by servers in the toolchain's own Python.

A program of more than `_MOST_PROGRAM_BYTES`, and one whose flags the servers do not know, is compiled by a process of
its own with the compiler's own threads, as the steps of every other dialect are. So is everything where the toolchain
has no Python bindings.

The threshold step's command stays what a person would type, and is taken apart here; what the servers cannot do as
iree-run-module would is left to `threshold.check_threshold`. A case that passes leaves no files. Of one that does not,
the outputs are compared once more, here, for the figures. Where nobody expects that, and a process costs little, the
tool itself is asked: a case that reads memory that nothing has written finds zeros in a new process, and what other
cases have left in one that serves many.
"""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.cases import Case, Verdict
from iree_gauntlet.dialects.op_suites import DIALECT
from iree_gauntlet.engine.judging import judge_process
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
from iree_gauntlet.engine.processes.processes import Processes
from iree_gauntlet.engine.processes.run_client import RunJob, RunServers, RunVerdict
from iree_gauntlet.engine.processes.supervisor import is_plain_path
from iree_gauntlet.errors import GauntletError, UsageError
from iree_gauntlet.measuring.machine.machine_state import total_memory
from iree_gauntlet.measuring.numerics.tolerances import TOLERANCE_FLAGS, parse_tolerances
from iree_gauntlet.results import Result, shorten
from iree_gauntlet.stages import FailureKind, Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from iree_gauntlet.engine.engine import RunOptions
    from iree_gauntlet.engine.processes.supervisor import Outcome
    from iree_gauntlet.engine.session import Session
    from iree_gauntlet.engine.workbench import Workbench
    from iree_gauntlet.steps import Command, Step
    from iree_gauntlet.toolchains.toolchain import Toolchain


# From here on the compiler's own threads win over a core of one's own: see docs/reference/operator-suites.md.
_MOST_PROGRAM_BYTES = 64 << 10
_LEAST_MEMORY = 4 << 30
_MEMORY_SHARE = 0.8
_TOOL = "iree-run-module"
_TOLERANT_TYPES = ("f16", "f32", "f64", "bf16")
_FLAGS = ("--device", "--module", "--function", "--input", "--expected_output")


def _is_small(step: Step) -> bool:
    """Whether a compile is one for the server: a small program, and flags that it can take."""
    if step.dialect != DIALECT or step.command is None:
        return False
    try:
        size = Path(step.input("program").path).stat().st_size
    except OSError:
        return False
    return size <= _MOST_PROGRAM_BYTES and served(step.command.argv[2:-2])


@dataclass
class ServedCompiles(Processes):
    """Processes of which the small compiles are done by a fork server, with a limit to the memory of each."""

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
        compiles: compile steps of the plan, by id.
        batches: None where each case is compiled by itself.
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
        if result is not None:
            return result
        from iree_gauntlet.engine.threshold import check_threshold  # noqa: PLC0415 - it brings NumPy

        return check_threshold(step, self.session.processes)


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
    if not count or toolchain is None or not _has_compiler(toolchain):
        yield None
        return
    # The compiler's Python has to have the very runtime that is under test: both are wheels of one environment.
    site, runtime = toolchain.compiler.site_packages, Path(toolchain.runtime.run_module).parent
    if not site or runtime.parts[-2:] != ("iree", "_runtime_libs") or Path(site) != runtime.parents[1]:
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

    `runs` are the processes that run modules; None where each run is one of its own.
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


def _make_environment(toolchain: Toolchain) -> dict[str, str]:
    """What the servers inherit: what a user's PYTHONPATH names must not stand in for the IREE that was chosen."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    site = toolchain.compiler.site_packages
    return {**environment, "PYTHONPATH": site} if site else environment


def check_served_threshold(step: Step, servers: RunServers, processes: Processes) -> Result | None:
    """Runs a threshold step; None where only iree-run-module itself can.

    Raises:
        ToolchainError: the toolchain's Python has no runtime, or cannot be run.
    """
    job = run_job(step)
    if job is None:
        return None
    answer = servers.run(job)
    if answer.verdict == RunVerdict.UNSUPPORTED:
        return None
    outcome = answer.outcome
    typed = step
    if step.command is not None and step.allclose is not None:
        # As a person would type it: no tool compares, so that it keeps the outputs.
        argv = [flag for flag in step.command.argv if not flag.startswith("--expected_output=")]
        argv += [f"--output=@{path}" for _, path in step.outputs]
        typed = replace(step, command=replace(step.command, argv=tuple(argv)))
    result = Result(
        Verdict.PASSED,
        command=processes.typed(typed),
        cpu_seconds=outcome.cpu_seconds,
        peak_rss_bytes=outcome.peak_rss_bytes,
        tool_seconds=outcome.seconds,
        exit_code=outcome.exit_code,
        notes=(*step.notes, *outcome.notes),
        log=processes.log(step) if answer.logged else "",
    )
    if answer.verdict == RunVerdict.PASSED:
        return result
    if answer.verdict == RunVerdict.MISMATCH:
        # A process of its own opens the CPU in milliseconds.
        if FailureKind.WRONG_NUMBERS in step.expect_kinds or not job.on_cpu:
            from iree_gauntlet.engine.threshold import make_mismatch_result  # noqa: PLC0415 - it brings NumPy

            return make_mismatch_result(step, job, answer, processes, result)
        return _ask_again(step, processes)
    # As `threshold.check_threshold` says the same status: its text, and the first thing that was being done.
    parts = [part.strip() for part in answer.message.split(";")]
    reason = shorten("; ".join(parts[1:3]) if len(parts) > 1 else answer.message)
    ended = judge_process(step, outcome, outcome.tail, tool=_TOOL, reason=reason)
    if answer.message and not answer.logged:
        result = replace(result, log=processes.write_log(step, "stderr.txt", [answer.message]))
    return replace(
        result,
        verdict=ended.verdict,
        reason=ended.reason,
        signal=ended.signal,
        timed_out=ended.timed_out,
        tail=ended.tail,
        failure=ended.failure,
    )


def run_job(step: Step) -> RunJob | None:
    """What a threshold step asks of a run server; None where it asks for more than that."""
    command, allclose = step.command, step.allclose
    # A text that is expected is one of the tool's.
    if command is None or command.env or step.expect_match:
        return None
    found: dict[str, list[str]] = {name: [] for name in _FLAGS}
    tolerances = []
    for word in command.argv[1:]:
        name, equals, value = word.partition("=")
        if equals and name in found:
            found[name].append(value)
        elif equals and name in TOLERANCE_FLAGS:
            tolerances.append(word)
        else:
            return None
    devices, modules, functions, inputs, expected = found.values()
    limits = _find_limits(tuple(tolerances))
    if limits is None or len(modules) != 1 or len(devices) != 1 or len(functions) > 1:
        return None
    return RunJob(
        module=modules[0],
        device=devices[0],
        timeout=step.timeout,
        cwd=command.cwd if command.cwd.startswith("/") else str(Path(command.cwd).absolute()),
        function="".join(functions),
        inputs=tuple(inputs),
        expected=tuple(expected),
        limits=limits,
        allclose=(allclose.rtol, allclose.atol, allclose.equal_nan) if allclose else None,
        kept=tuple(path for _, path in step.outputs),
        log=f"{step.folder}/stderr.txt",
    )


def _ask_again(step: Step, processes: Processes) -> Result:
    """What the tool says of a case whose outputs are not as expected here."""
    from iree_gauntlet.engine.threshold import check_threshold  # noqa: PLC0415 - it brings NumPy

    result = check_threshold(step, processes)
    if result.verdict is not Verdict.PASSED:
        return result
    note = (
        "its outputs were not as expected in a process that runs many cases, and are in one of its own: its results"
        " are not deterministic, or it reads memory that nothing has written"
    )
    return replace(result, notes=(*result.notes, note))


@lru_cache(maxsize=64)
def _find_limits(flags: tuple[str, ...]) -> tuple[tuple[str, float, float], ...] | None:
    """The tolerances of a run's flags, as the tool computes with them; None where they cannot be read."""
    try:
        tolerances = parse_tolerances(flags)
    except GauntletError:
        return None
    return tuple((name, *tolerances.effective(name)) for name in _TOLERANT_TYPES if tolerances.applies_to(name))
