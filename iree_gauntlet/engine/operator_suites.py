"""Steps of operator suites: thousands of small compiles and runs, done by servers in the toolchain's own Python.

A program larger than `_MAX_PROGRAM_BYTES`, or with flags that the servers do not support, is compiled by a separate
process with the compiler's own threads, as the steps of other dialects are. The same holds for every program if the
toolchain has no Python bindings.

The threshold step shows the command that a person would type, and this module parses that command. A run that the
servers cannot do exactly like iree-run-module is left to `threshold.check_threshold`. A case that passes leaves no
files. An unexpected failure on a CPU is run again by the tool itself, since a case that reads uninitialised memory
finds zeros in a new process, but data of other cases in a server. On GPUs a new process is slow, so this is left out.
For other failures, the toolkit compares the outputs once more to get error metrics.

Batches (`--batch N`) are many small programs that are compiled as one module, and run one by one. A batch is a step,
which the compiles of its cases need. A batch that does not compile is split until the faulty programs are isolated.
These are compiled alone in their own steps, and so are cases that are expected to fail. So every case gets the verdict
that it would have without batches.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iree_gauntlet.cases import Case, Verdict
from iree_gauntlet.dialects.spec import OP_TESTS
from iree_gauntlet.engine.commands import makes_dumps
from iree_gauntlet.engine.judging import judge_process
from iree_gauntlet.engine.modules.module_cache import EntryGoneError, Lookup, ModuleCache, ModuleEntry, link_or_copy
from iree_gauntlet.engine.modules.module_key import join_flags, make_key
from iree_gauntlet.engine.modules.modules import ModuleMaker, is_program_changed
from iree_gauntlet.engine.processes.compile_client import (
    EXIT_DEFECT,
    EXIT_UNWRITABLE,
    CompileJob,
    CompileServer,
    is_servable,
)
from iree_gauntlet.engine.processes.processes import Processes
from iree_gauntlet.engine.processes.run_client import RunJob, RunServers, RunVerdict
from iree_gauntlet.engine.processes.supervisor import is_plain_path
from iree_gauntlet.errors import GauntletError, UsageError
from iree_gauntlet.measuring.machine.machine_state import read_total_memory
from iree_gauntlet.measuring.numerics.tolerances import TOLERANCE_FLAGS, parse_tolerances
from iree_gauntlet.recorded import UNLESS_DEFAULT, Recorded
from iree_gauntlet.results import CacheUse, Result, shorten
from iree_gauntlet.stages import FailureKind, Stage
from iree_gauntlet.steps import BATCH_MODEL, CacheLookup, Step
from iree_gauntlet.system.atomic import write_atomic

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from iree_gauntlet.engine.engine import RunOptions
    from iree_gauntlet.engine.processes.supervisor import Outcome
    from iree_gauntlet.engine.session import Session
    from iree_gauntlet.engine.workbench import Workbench
    from iree_gauntlet.progress import Progress
    from iree_gauntlet.steps import Command
    from iree_gauntlet.toolchains.toolchain import Toolchain


# Larger programs compile faster with the compiler's own threads than on one core: docs/reference/operator-suites.md.
_MAX_PROGRAM_BYTES = 64 << 10
_MIN_MEMORY_BYTES = 4 << 30
_MEMORY_FRACTION = 0.8
_TOOL = "iree-run-module"
_TOLERANT_TYPES = ("f16", "f32", "f64", "bf16")
_RUN_FLAGS = ("--device", "--module", "--function", "--input", "--expected_output")
# Flags with this prefix name a file in the step's folder; they are left out of a batch.
_STATISTICS_FLAG = "--iree-scheduling-dump-statistics-"
# This file is in the folder of a batch's modules, and next to each case's module that came from a batch.
_BATCH_RECORD = "batch.json"
# An entry of the cache holds at most this many modules.
_MAX_MODULES = 16


def _is_small(step: Step) -> bool:
    """Return True if the server can do a compile, which needs a small program and supported flags."""
    if step.dialect != OP_TESTS or step.command is None:
        return False
    try:
        size = Path(step.find_input("program").path).stat().st_size
    except OSError:
        return False
    return size <= _MAX_PROGRAM_BYTES and is_servable(step.command.argv[2:-2])


@dataclass
class CompileServerProcesses(Processes):
    """Processes, except that a fork server does small compiles, each with a memory limit."""

    server: CompileServer
    memory_bytes: int

    def run(self, step: Step, command: Command | None = None, name: str = "") -> Outcome:
        """Run a step's command as a process, or have the server do it if the server can."""
        actual_command = command or step.command
        if actual_command is None or step.stage is not Stage.COMPILE or not _is_small(step):
            return super().run(step, command, name)
        folder = Path(step.folder)
        folder.mkdir(parents=True, exist_ok=True)
        _, program, *flags = actual_command.argv
        outcome = self.server.compile(
            CompileJob(
                programs=(program,),
                flags=tuple(flags[:-2]),
                output=Path(flags[-1]),
                stdout=folder / f"{name}stdout.txt",
                stderr=folder / f"{name}stderr.txt",
                cwd=actual_command.cwd,
                timeout=step.timeout,
                memory_bytes=self.memory_bytes,
            )
        )
        if outcome.exit_code in (EXIT_DEFECT, EXIT_UNWRITABLE):
            # The failure is not the compiler's.
            cause = outcome.tail[-1] if outcome.tail else "it gave no reason"
            raise GauntletError(f"a compile did not finish: {cause}", f"See {folder}, and `doctor` for the disk.")
        return outcome


@dataclass(frozen=True, slots=True)
class OperatorSteps:
    """Performers of compile and threshold steps of operator suites; other dialects' steps run as usual.

    Attributes:
        compiles: the compile steps of the plan, by id.
        batches: the batches; None if each case is compiled alone.
    """

    session: Session[Any]
    maker: ModuleMaker
    compiles: Mapping[str, Step]
    batches: BatchCompiler | None

    def compile(self, batches: BatchCompiler, step: Step) -> Result:
        """Compile a batch, or a case that may be in one."""
        if batches.owns(step):
            return batches.make(step)
        return batches.take_from_batch(step) or self.maker.make(step)

    def check_threshold(self, run_servers: RunServers, step: Step) -> Result:
        """Perform a threshold step, by the run servers if possible."""
        if step.dialect != OP_TESTS:
            from iree_gauntlet.engine.threshold import check_threshold, compare_error_with_baseline  # noqa: PLC0415 - it imports NumPy

            return compare_error_with_baseline(step, check_threshold(step, self.session.processes))
        module = Path(step.find_input("module").path)
        location = _locate_in_batch(module) if self.batches is not None else None
        if location is None:
            return self._check(run_servers, step)
        batch, function = location
        result = self._check(run_servers, _set_function(step, function))
        if result.verdict is Verdict.PASSED:
            return result
        # Compile the case alone and run it again, since the verdict must be about the case's own module.
        compile_step = next((self.compiles[need] for need in step.needs if need in self.compiles), None)
        if compile_step is not None:
            compile_result = self.maker.make(compile_step)
            if compile_result.verdict is not Verdict.PASSED:
                summary = f"its batch gave no valid result ({result.reason}), and by itself it does not compile"
                return replace(compile_result, reason=f"{summary}: {compile_result.reason}")
            module.with_name(_BATCH_RECORD).unlink(missing_ok=True)
        own_result = self._check(run_servers, step)
        note = f"it ran from {batch} first: {result.reason}; this is the result of its own module"
        return replace(own_result, notes=(*own_result.notes, note))

    def _check(self, run_servers: RunServers, step: Step) -> Result:
        result = check_served_threshold(step, run_servers, self.session.processes)
        if result is not None:
            return result
        from iree_gauntlet.engine.threshold import check_threshold  # noqa: PLC0415 - it imports NumPy

        return check_threshold(step, self.session.processes)


def _compute_memory_limit(jobs: int) -> int:
    """Return a memory limit per compile or run with which all jobs fit into the machine; 0 for no limit."""
    total = read_total_memory()
    return 0 if total is None else max(_MIN_MEMORY_BYTES, int(total * _MEMORY_FRACTION / jobs))


def make_batches(
    steps: Sequence[Step], size: int, workbench: Workbench, run_dir: Path, finished_ids: Collection[str]
) -> BatchPlan:
    """Return the steps of a plan with batches of `size` cases; with a size below 2, each case is compiled alone.

    Raises:
        UsageError: the toolchain cannot compile batches.
    """
    if size < 2 or not any(step.dialect == OP_TESTS for step in steps):
        return BatchPlan(tuple(steps), {})
    if workbench.toolchain is None or not _has_compiler(workbench.toolchain):
        raise UsageError(
            "--batch: this IREE has no Python bindings, which combine the programs, or this is not Linux",
            "Leave --batch out, or choose another IREE with --iree.",
        )
    return with_batches(steps, size, run_dir, _is_small, finished_ids)


@contextmanager
def start_run_servers(
    cases: Iterable[Case], stages: Collection[Stage], workbench: Workbench, jobs: int
) -> Iterator[RunServers | None]:
    """Start the run servers, if any case will need them, so that they start while the run is planned."""
    toolchain = workbench.toolchain
    served_cases = [case for case in cases if case.dialect == OP_TESTS and not case.target.architecture]
    count = len(served_cases) if Stage.THRESHOLD in stages else 0
    if not count or toolchain is None or not _has_compiler(toolchain):
        yield None
        return
    # The compiler's Python must have exactly the runtime under test, so both must be wheels of one environment.
    site, runtime = toolchain.compiler.site_packages, Path(toolchain.runtime.run_module).parent
    if not site or runtime.parts[-2:] != ("iree", "_runtime_libs") or Path(site) != runtime.parents[1]:
        yield None
        return
    environment = _make_environment(toolchain)
    memory = _compute_memory_limit(jobs)
    with RunServers(toolchain.compiler.python, min(jobs, count), environment, memory_bytes=memory) as run_servers:
        run_servers.start()
        yield run_servers


@contextmanager
def make_operator_performers(
    session: Session[Any], plan: BatchPlan, workbench: Workbench, options: RunOptions, run_servers: RunServers | None
) -> Iterator[Mapping[Stage, Callable[[Step], Result]]]:
    """Yield performers for operator suites; empty if there are no such steps, or no Python bindings.

    `run_servers` is None if each run has its own process.
    """
    toolchain = workbench.toolchain
    operator_steps = [step for step in plan.steps if step.dialect == OP_TESTS]
    if not operator_steps or toolchain is None or not _has_compiler(toolchain):
        yield {}
        return
    folder = session.folder
    with (
        # This folder is for the compiler's temporary files. If its path would need quotes in a shell, it is in the
        # system's temporary folder.
        tempfile.TemporaryDirectory(
            prefix="scratch-", dir=folder if is_plain_path(str(folder)) else None, ignore_cleanup_errors=True
        ) as scratch_dir,
        CompileServer(toolchain.compiler.python, Path(scratch_dir), _make_environment(toolchain)) as server,
    ):
        memory = _compute_memory_limit(options.jobs)
        session.processes = CompileServerProcesses(session.supervisor, folder, server, memory)
        session.on_cancel(server.cancel)
        maker = ModuleMaker(session, workbench, rebuilt_marks_dir=options.rebuilt_marks_dir)
        batches = None
        if plan.has_batches:
            force = options.rebuilt_marks_dir is not None
            batches = BatchCompiler(
                server, workbench.modules, plan.members, memory_bytes=memory, force=force, progress=session.progress
            )
        steps = OperatorSteps(
            session, maker, {step.id: step for step in operator_steps if step.stage is Stage.COMPILE}, batches
        )
        performers: dict[Stage, Callable[[Step], Result]] = {}
        if batches is not None:
            performers[Stage.COMPILE] = partial(steps.compile, batches)
        if run_servers is not None:
            session.on_cancel(run_servers.cancel)
            performers[Stage.THRESHOLD] = partial(steps.check_threshold, run_servers)
        yield performers


def _has_compiler(toolchain: Toolchain) -> bool:
    """Return True if a server can compile; it needs Linux, where it can fork, and a Python that has the compiler."""
    return bool(toolchain.compiler.python) and sys.platform == "linux"


def _make_environment(toolchain: Toolchain) -> dict[str, str]:
    """Return the servers' environment, in which the user's PYTHONPATH cannot replace the chosen IREE."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    site = toolchain.compiler.site_packages
    return {**environment, "PYTHONPATH": site} if site else environment


def check_served_threshold(step: Step, run_servers: RunServers, processes: Processes) -> Result | None:
    """Run a threshold step by a server; return None if only iree-run-module itself can run it.

    Raises:
        ToolchainError: the toolchain's Python has no runtime, or cannot be run.
    """
    job = make_run_job(step)
    if job is None:
        return None
    response = run_servers.run(job)
    if response.verdict == RunVerdict.UNSUPPORTED:
        return None
    outcome = response.outcome
    shown_step = step
    if step.command is not None and step.allclose is not None:
        # The shown command writes the outputs to files, since no tool compares by this rule.
        argv = [flag for flag in step.command.argv if not flag.startswith("--expected_output=")]
        argv += [f"--output=@{path}" for _, path in step.outputs]
        shown_step = replace(step, command=replace(step.command, argv=tuple(argv)))
    result = Result(
        Verdict.PASSED,
        command=processes.format_command(shown_step),
        cpu_seconds=outcome.cpu_seconds,
        peak_rss_bytes=outcome.peak_rss_bytes,
        tool_seconds=outcome.seconds,
        exit_code=outcome.exit_code,
        notes=(*step.notes, *outcome.notes),
        log=processes.log(step) if response.log_bytes else "",
    )
    if response.verdict == RunVerdict.PASSED:
        return result
    if response.verdict == RunVerdict.MISMATCH:
        # The tool reruns CPU cases only, because a new process opens the CPU device within milliseconds.
        if FailureKind.WRONG_NUMBERS in step.expect_kinds or not job.on_cpu:
            from iree_gauntlet.engine.threshold import judge_mismatch  # noqa: PLC0415 - it imports NumPy

            return judge_mismatch(step, job, response, processes, result)
        return _run_tool_instead(step, processes)
    # As in `threshold.check_threshold`, the reason is the error text and the innermost action that it occurred in.
    parts = [part.strip() for part in response.message.split(";")]
    reason = shorten("; ".join(parts[1:3]) if len(parts) > 1 else response.message)
    judgement = judge_process(step, outcome, outcome.tail, tool=_TOOL, reason=reason)
    if response.message and not response.log_bytes:
        result = replace(result, log=processes.write_log(step, "stderr.txt", [response.message]))
    return replace(
        result,
        verdict=judgement.verdict,
        reason=judgement.reason,
        signal=judgement.signal,
        timed_out=judgement.timed_out,
        tail=judgement.tail,
        failure=judgement.failure,
        is_mistake=judgement.is_mistake,
    )


def make_run_job(step: Step) -> RunJob | None:
    """Return a threshold step's job for a run server; None if the step needs more than a server can do."""
    command, allclose = step.command, step.allclose
    # The server cannot handle an expected text, which is searched in the tool's output, nor modules of another machine.
    if command is None or command.env or command.runner or step.expect_match:
        return None
    values_by_flag: dict[str, list[str]] = {name: [] for name in _RUN_FLAGS}
    tolerances = []
    for argument in command.argv[1:]:
        name, equals, value = argument.partition("=")
        if equals and name in values_by_flag:
            values_by_flag[name].append(value)
        elif equals and name in TOLERANCE_FLAGS:
            tolerances.append(argument)
        else:
            return None
    devices, modules, functions, inputs, expected_outputs = values_by_flag.values()
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
        expected=tuple(expected_outputs),
        limits=limits,
        allclose=(allclose.rtol, allclose.atol, allclose.equal_nan) if allclose else None,
        kept=tuple(path for _, path in step.outputs),
        log=f"{step.folder}/stderr.txt",
    )


def _run_tool_instead(step: Step, processes: Processes) -> Result:
    """Run the tool on a case whose outputs were wrong in a server, and return the tool's result."""
    from iree_gauntlet.engine.threshold import check_threshold  # noqa: PLC0415 - it imports NumPy

    result = check_threshold(step, processes)
    if result.verdict is not Verdict.PASSED:
        return result
    note = (
        "its outputs were wrong in a process that runs many cases, but right in one of its own: its results"
        " are not deterministic, or it reads uninitialised memory"
    )
    return replace(result, notes=(*result.notes, note))


@lru_cache(maxsize=64)
def _find_limits(flags: tuple[str, ...]) -> tuple[tuple[str, float, float], ...] | None:
    """Return the tolerances of a run's flags, as the tool uses them; None if they cannot be read."""
    try:
        tolerances = parse_tolerances(flags)
    except GauntletError:
        return None
    return tuple((name, *tolerances.get_limits(name)) for name in _TOLERANT_TYPES if tolerances.applies_to(name))


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """A plan with batches.

    Attributes:
        members: by the id of a batch's step, the compile steps in the batch, in its order.
        has_batches: True if batches were requested, even if this part has none: an earlier part may have made some.
    """

    steps: tuple[Step, ...]
    members: Mapping[str, tuple[Step, ...]]
    has_batches: bool = False


def flags_of(step: Step) -> tuple[str, ...]:
    """Return the compile flags of a step, without the flags that name a statistics file."""
    return tuple(flag for flag in step.required_command.argv[2:-2] if not flag.startswith(_STATISTICS_FLAG))


def with_batches(
    steps: Sequence[Step], size: int, run_dir: Path, takes: Callable[[Step], bool], finished_ids: Iterable[str] = ()
) -> BatchPlan:
    """Combine compiles that have the same flags and are not finished into batches.

    Args:
        steps: the steps of a plan.
        size: the maximum number of cases in a batch.
        run_dir: the run's folder.
        takes: returns True if a compile may be part of a batch at all.
        finished_ids: ids of steps that an earlier part of the run has finished.
    """

    def names_files(step: Step) -> bool:
        """Return True if a compile makes dumps, or its flags name files in its folder; batches allow neither."""
        if step.command is None or makes_dumps(step.command.argv):
            return True
        values = (flag.partition("=")[2] for flag in flags_of(step))
        return any("/" in value and not value.startswith("/") for value in values)

    done_ids = set(finished_ids)
    groups: dict[tuple[str, tuple[str, ...]], list[Step]] = {}
    for step in steps:
        is_candidate = step.stage is Stage.COMPILE and step.id not in done_ids and takes(step)
        if is_candidate and not (step.expect_failure or step.skip or step.blocked or names_files(step)):
            groups.setdefault((step.target, flags_of(step)), []).append(step)
    members: dict[str, tuple[Step, ...]] = {}
    batches: list[Step] = []
    batch_of: dict[str, Step] = {}
    for (target, flags), group in groups.items():
        for start in range(0, len(group), size):
            # Cached cases stay members: without them, the batch's key would change after a case was compiled alone.
            members_of_batch = tuple(group[start : start + size])
            missing = [step for step in members_of_batch if not step.cache.hit]
            if missing and len(members_of_batch) > 1:
                batch = _make_batch(members_of_batch, target, flags, run_dir)
                members[batch.id] = members_of_batch
                batches.append(batch)
                batch_of.update((step.id, batch) for step in missing)
    other_steps = (
        replace(step, needs=(*step.needs, batch_of[step.id].id)) if step.id in batch_of else step for step in steps
    )
    return BatchPlan((*batches, *other_steps), members, has_batches=True)


def _make_batch(members: Sequence[Step], target: str, flags: Sequence[str], run_dir: Path) -> Step:
    first = members[0]
    # The name is a hash of the cases, because a resumed run may make batches of other cases.
    name = hashlib.sha256("\n".join(step.id for step in members).encode()).hexdigest()[:12]
    chain = f"{BATCH_MODEL}/{name}@{target}"
    # The keys of the members determine the modules of a batch.
    keys = [make_key(dict(step.cache.ingredients)) for step in members]
    ingredients = (("kind", "batch 1"), ("members", join_flags(keys)), ("flags", join_flags(flags)))
    return Step(
        id=f"{chain}:{Stage.COMPILE}",
        chain=chain,
        dialect=first.dialect,
        model=BATCH_MODEL,
        submodel=name,
        target=target,
        sku=first.sku,
        stage=Stage.COMPILE,
        folder=f"{run_dir}/steps/{BATCH_MODEL}/{name}.{target}/compile",
        timeout=first.timeout,
        origin=first.origin,
        inputs=tuple(step.find_input("program") for step in members),
        cache=CacheLookup(ingredients=ingredients),
        notes=(f"{len(members)} cases as one module: {first.id} to {members[-1].id}",),
    )


@dataclass(frozen=True, slots=True)
class _BatchPart(Recorded):
    """A module of a batch: the name of its file, and the functions of each case, by the case's number as text."""

    module: str
    functions: dict[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class _BatchRecord(Recorded):
    """The content of `batch.json`: of a batch, its modules; next to a case's module, the case's batch and function."""

    parts: tuple[_BatchPart, ...] = field(default=(), metadata=UNLESS_DEFAULT)
    batch: str = field(default="", metadata=UNLESS_DEFAULT)
    function: str = field(default="", metadata=UNLESS_DEFAULT)

    @classmethod
    def read(cls, folder: Path) -> _BatchRecord:
        return cls.from_dict(json.loads((folder / _BATCH_RECORD).read_bytes()))

    def write(self, folder: Path) -> None:
        write_atomic(folder / _BATCH_RECORD, json.dumps(self.as_dict()))


def _locate_in_batch(module: Path) -> tuple[str, str] | None:
    """Return a case's batch and the case's function in that batch; None if the case was compiled alone."""
    try:
        record = _BatchRecord.read(module.parent)
    except FileNotFoundError:
        return None
    return record.batch, record.function


@dataclass(slots=True)
class BatchCompiler:
    """A compiler of a plan's batches (`members`), which gives the batches' modules to their cases.

    Each compile may take `memory_bytes`; 0 means no limit.
    """

    server: CompileServer
    cache: ModuleCache
    members: Mapping[str, Sequence[Step]]
    memory_bytes: int
    force: bool
    progress: Progress
    # The modules of each batch that was made.
    _parts: dict[str, Sequence[_BatchPart]] = field(default_factory=dict)
    _mutex: threading.Lock = field(default_factory=threading.Lock)
    # The batch of each case, and the case's number in that batch.
    _batch_numbers: dict[str, tuple[str, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for batch, steps in self.members.items():
            self._batch_numbers |= {step.id: (batch, number) for number, step in enumerate(steps)}

    def owns(self, step: Step) -> bool:
        """Return True if a step is a batch."""
        return step.id in self.members

    def make(self, step: Step) -> Result:
        """Compile a batch, or take it from the cache; the batch's step passes whatever the results of its cases are."""
        folder = Path(step.folder)
        folder.mkdir(parents=True, exist_ok=True)
        key = make_key(dict(step.cache.ingredients))
        lookup = Lookup(None) if self.force else self.cache.lookup(key)
        if lookup.note:
            self.progress.message(f"{step.id}: its cache entry is {lookup.note}: rebuilding it")
        tally = _Tally()
        members = self.members[step.id]
        cached_parts = self._read_cached_parts(lookup.entry, folder)
        if cached_parts is None:
            missing = [number for number, member in enumerate(members) if not member.cache.hit]
            parts = self._compile(step, missing, tally)
            is_complete = len(missing) == len(members) and not tally.is_unreliable and len(parts) <= _MAX_MODULES
            if is_complete and not any(is_program_changed(member) for member in members):
                if self.force:
                    self.cache.remove(key)
                self.cache.publish(
                    {f"module{number}": folder / part.module for number, part in enumerate(parts)},
                    name=step.id,
                    ingredients=dict(step.cache.ingredients),
                    metadata={"functions": [part.functions for part in parts]},
                    created=datetime.now(UTC),
                )
        else:
            parts = cached_parts
        _BatchRecord(parts=tuple(parts)).write(folder)
        with self._mutex:
            self._parts[step.id] = parts
        in_batch = sum(len(part.functions) for part in parts)
        cached_count = sum(member.cache.hit for member in members)
        alone = max(len(members) - cached_count - in_batch, 0)
        note = f"{in_batch} cases in {len(parts)} module{'' if len(parts) == 1 else 's'}"
        note += f"; {alone} are compiled separately" if alone else ""
        note += f"; {cached_count} are in the cache separately" if cached_count else ""
        return Result(
            Verdict.PASSED,
            cache=CacheUse(
                cached_parts is not None, key, "compiled as a batch" if cached_parts is None else "in the cache"
            ),
            statistics={"cases": in_batch, "cases_alone": alone, "modules": len(parts), "attempts": tally.attempts},
            notes=(*step.notes, note, *tally.notes),
            cpu_seconds=tally.cpu_seconds,
            tool_seconds=tally.seconds,
            peak_rss_bytes=tally.peak_rss_bytes,
        )

    def _read_cached_parts(self, entry: ModuleEntry | None, folder: Path) -> list[_BatchPart] | None:
        """Return the modules of a cache entry; None without an entry, or if it was removed in the meantime."""
        if entry is None:
            return None
        parts = []
        try:
            for number, functions in enumerate(entry.metadata["functions"]):
                parts.append(_BatchPart.from_dict({"module": f"module{number}.vmfb", "functions": functions}))
                self.cache.materialise(entry, f"module{number}", folder / parts[-1].module)
        except EntryGoneError:
            return None
        return parts

    def take_from_batch(self, step: Step) -> Result | None:
        """Return the result of a case's compile from its batch; None if the case has to be compiled alone."""
        batch_number = self._batch_numbers.get(step.id)
        if batch_number is None or step.cache.hit or is_program_changed(step):
            return None
        batch, number = batch_number
        case, _, chain_target = batch.rpartition(":")[0].rpartition("@")
        steps = next(path for path in Path(step.folder).parents if path.name == "steps")
        folder = steps / f"{case}.{chain_target}" / "compile"
        with self._mutex:
            if batch not in self._parts:
                # An earlier part of this run has made the batch.
                self._parts[batch] = _BatchRecord.read(folder).parts
        # If a case has several functions, its own compile determines the right one.
        hits = [(part.module, names) for part in self._parts[batch] if (names := part.functions.get(str(number), ()))]
        if not hits or len(hits[0][1]) != 1:
            return None
        module, (function,) = hits[0]
        module_path = Path(step.find_output("module"))
        module_path.parent.mkdir(parents=True, exist_ok=True)
        module_path.unlink(missing_ok=True)
        link_or_copy(folder / module, module_path)
        _BatchRecord(batch=batch, function=function).write(module_path.parent)
        return Result(
            Verdict.PASSED,
            cache=CacheUse(False, reason=f"compiled in {batch}"),
            statistics={"binary_size_bytes": module_path.stat().st_size},
            notes=(*step.notes, f"compiled in {batch} as {function}: the module is the batch's, not the case's own"),
        )

    def _compile(self, step: Step, numbers: list[int], tally: _Tally) -> list[_BatchPart]:
        """Compile some cases of a batch into modules, leaving out cases that keep the others from compiling."""
        members, folder = self.members[step.id], Path(step.folder)
        while len(numbers) > 1:
            module = folder / f"module{tally.attempts}.vmfb"
            log = folder / f"attempt{tally.attempts}"
            first = members[numbers[0]]
            job = CompileJob(
                programs=tuple(members[number].find_input("program").path for number in numbers),
                flags=flags_of(first),
                output=module,
                stdout=log.with_suffix(".stdout.txt"),
                stderr=log.with_suffix(".stderr.txt"),
                cwd=str(folder),
                timeout=step.timeout,
                memory_bytes=self.memory_bytes,
            )
            outcome, functions, faulty_programs = self.server.compile_batch(job)
            tally.add(outcome)
            if outcome.cancelled:
                return []
            if outcome.exit_code == 0:
                return [_BatchPart(module.name, dict(zip(map(str, numbers), functions, strict=True)))]
            if faulty_programs and not (outcome.signal or outcome.timed_out):
                faulty_numbers = {numbers[index] for index in faulty_programs}
                numbers = [number for number in numbers if number not in faulty_numbers]
                continue
            # Try both halves, since the compiler crashed, hung, or gave an error that names no program.
            half = len(numbers) // 2
            head = self._compile(step, numbers[:half], tally)
            return [*head, *self._compile(step, numbers[half:], tally)]
        return []


@dataclass(slots=True)
class _Tally:
    """The sums over the attempts of a batch."""

    attempts: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_rss_bytes: int = 0
    is_unreliable: bool = False
    notes: tuple[str, ...] = ()

    def add(self, outcome: Outcome) -> None:
        self.attempts += 1
        self.seconds += outcome.seconds
        self.cpu_seconds += outcome.cpu_seconds
        self.peak_rss_bytes = max(self.peak_rss_bytes, outcome.peak_rss_bytes)
        # A user, a shortage or a timeout stopped the attempt, so the same programs may end differently next time.
        from_outside = outcome.signal in ("SIGKILL", "SIGTERM") or outcome.exit_code in (EXIT_DEFECT, EXIT_UNWRITABLE)
        self.is_unreliable |= outcome.cancelled or outcome.timed_out or outcome.out_of_memory or from_outside
        self.notes = (*self.notes, *outcome.notes)


def _set_function(step: Step, function: str) -> Step:
    """Return a case's run step that calls the function by its name in the batch."""
    argv = [word for word in step.required_command.argv if not word.startswith("--function=")]
    return replace(step, command=replace(step.required_command, argv=(*argv, f"--function={function}")))
