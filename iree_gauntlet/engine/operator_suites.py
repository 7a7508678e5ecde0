"""Steps of operator suites: thousands of small compiles and runs, done by servers in the toolchain's own Python.

A program of more than `_MOST_PROGRAM_BYTES`, and one whose flags the servers do not know, is compiled by a process of
its own with the compiler's own threads, as the steps of every other dialect are. So is everything where the toolchain
has no Python bindings.

The threshold step's command stays what a person would type, and is taken apart here; what the servers cannot do as
iree-run-module would is left to `threshold.check_threshold`. A case that passes leaves no files. Of one that does not,
the outputs are compared once more, here, for the figures. Where nobody expects that, and a process costs little, the
tool itself is asked: a case that reads memory that nothing has written finds zeros in a new process, and what other
cases have left in one that serves many.

Batches (`--batch N`) are many small programs that are compiled as one module, and run one by one. A batch is a step of
its own, which the compiles of its cases need. What it could not compile as a whole is split until the culprits stand
alone; they are compiled by themselves, in their own steps, as are the cases that are expected to fail, so that every
case has the verdict that it would have without batches.
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
from iree_gauntlet.dialects.op_suites import DIALECT
from iree_gauntlet.engine.commands import makes_dumps
from iree_gauntlet.engine.judging import judge_process
from iree_gauntlet.engine.modules.module_cache import EntryGoneError, Lookup, ModuleCache, ModuleEntry, link_or_copy
from iree_gauntlet.engine.modules.module_key import join_flags, make_key
from iree_gauntlet.engine.modules.modules import ModuleMaker, is_edited
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


# From here on the compiler's own threads win over a core of one's own: see docs/reference/operator-suites.md.
_MOST_PROGRAM_BYTES = 64 << 10
_LEAST_MEMORY = 4 << 30
_MEMORY_SHARE = 0.8
_TOOL = "iree-run-module"
_TOLERANT_TYPES = ("f16", "f32", "f64", "bf16")
_FLAGS = ("--device", "--module", "--function", "--input", "--expected_output")
# Names a file in the step's own folder; a batch has none of its own.
_STATISTICS = "--iree-scheduling-dump-statistics-"
# Beside a module that a case has from a batch.
_BATCH_RECORD = "batch.json"
# What an entry of the cache holds at most.
_MOST_MODULES = 16


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
        result = self._check(runs, _with_function(step, function))
        if result.verdict is Verdict.PASSED:
            return result
        # The verdict is that of the case's own module.
        compiled = next((self.compiles[need] for need in step.needs if need in self.compiles), None)
        if compiled is not None:
            made = self.maker.make(compiled)
            if made.verdict is not Verdict.PASSED:
                what = f"its batch gave no good result ({result.reason}), and by itself it does not compile"
                return replace(made, reason=f"{what}: {made.reason}")
            module.with_name(_BATCH_RECORD).unlink(missing_ok=True)
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


@dataclass(frozen=True, slots=True)
class Batched:
    """A plan with batches.

    Attributes:
        members: compile steps of a batch, in its order, by the id of the batch's step.
        wanted: whether batches were asked for: an earlier part of a run may have made some, although none is left.
    """

    steps: tuple[Step, ...]
    members: Mapping[str, tuple[Step, ...]]
    wanted: bool = False


def flags_of(step: Step) -> tuple[str, ...]:
    """The compile flags of a step, without those that name files of its own."""
    return tuple(flag for flag in step.process.argv[2:-2] if not flag.startswith(_STATISTICS))


def with_batches(
    steps: Sequence[Step], size: int, run_dir: Path, takes: Callable[[Step], bool], finished: Iterable[str] = ()
) -> Batched:
    """Puts compiles together that have the same flags and have to be done.

    Args:
        steps: of a plan.
        size: cases in a batch at most.
        run_dir: the run's folder.
        takes: whether a compile may be part of a batch at all.
        finished: ids of steps that an earlier part of the run has done.
    """

    def names_files(step: Step) -> bool:
        """Whether a compile is asked for dumps, or its flags name files in its folder: neither is of a batch."""
        if step.command is None or makes_dumps(step.command.argv):
            return True
        values = (flag.partition("=")[2] for flag in flags_of(step))
        return any("/" in value and not value.startswith("/") for value in values)

    done = set(finished)
    groups: dict[tuple[str, tuple[str, ...]], list[Step]] = {}
    for step in steps:
        wanted = step.stage is Stage.COMPILE and step.id not in done and takes(step)
        if wanted and not (step.expect_failure or step.skip or step.blocked or names_files(step)):
            groups.setdefault((step.target, flags_of(step)), []).append(step)
    members: dict[str, tuple[Step, ...]] = {}
    batches: list[Step] = []
    batch_of: dict[str, Step] = {}
    for (target, flags), group in groups.items():
        for begin in range(0, len(group), size):
            # Also those that the cache has: the batch is the same again when some of its cases were compiled alone.
            chosen = tuple(group[begin : begin + size])
            missing = [step for step in chosen if not step.cache.hit]
            if missing and len(chosen) > 1:
                batch = _batch(chosen, target, flags, run_dir)
                members[batch.id] = chosen
                batches.append(batch)
                batch_of.update((step.id, batch) for step in missing)
    others = (
        replace(step, needs=(*step.needs, batch_of[step.id].id)) if step.id in batch_of else step for step in steps
    )
    return Batched((*batches, *others), members, wanted=True)


def _batch(members: Sequence[Step], target: str, flags: Sequence[str], run_dir: Path) -> Step:
    first = members[0]
    # By its cases: a resumed run may put others together, and must not take one batch for another.
    name = hashlib.sha256("\n".join(step.id for step in members).encode()).hexdigest()[:12]
    chain = f"{BATCH_MODEL}/{name}@{target}"
    # What the modules of a batch depend on.
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
        inputs=tuple(step.input("program") for step in members),
        cache=CacheLookup(ingredients=ingredients),
        notes=(f"{len(members)} cases as one module: {first.id} to {members[-1].id}",),
    )


@dataclass(frozen=True, slots=True)
class _BatchPart(Recorded):
    """A module of a batch: its file's name, and the functions of each case by the case's number there, as text."""

    module: str
    functions: dict[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class _BatchRecord(Recorded):
    """In a batch's folder its modules; beside a module that a case has from a batch, the batch and the function."""

    parts: tuple[_BatchPart, ...] = field(default=(), metadata=UNLESS_DEFAULT)
    batch: str = field(default="", metadata=UNLESS_DEFAULT)
    function: str = field(default="", metadata=UNLESS_DEFAULT)

    @classmethod
    def read(cls, folder: Path) -> _BatchRecord:
        return cls.from_dict(json.loads((folder / _BATCH_RECORD).read_bytes()))

    def write(self, folder: Path) -> None:
        write_atomic(folder / _BATCH_RECORD, json.dumps(self.as_dict()))


def place_of(module: Path) -> tuple[str, str] | None:
    """Of a case's module, the batch's step and the function there; None where it was compiled by itself."""
    try:
        record = _BatchRecord.read(module.parent)
    except FileNotFoundError:
        return None
    return record.batch, record.function


@dataclass(slots=True)
class BatchCompiler:
    """Compiles batches, of which `members` are those of a plan, and hands their modules to the cases.

    A compile may take `memory_bytes`; 0 for no limit.
    """

    server: CompileServer
    cache: ModuleCache
    members: Mapping[str, Sequence[Step]]
    memory_bytes: int
    forced: bool
    progress: Progress
    # The modules of each batch that was made.
    _made: dict[str, Sequence[_BatchPart]] = field(default_factory=dict)
    _mutex: threading.Lock = field(default_factory=threading.Lock)
    # Of each case, the batch and its number there.
    _places: dict[str, tuple[str, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for batch, steps in self.members.items():
            self._places |= {step.id: (batch, number) for number, step in enumerate(steps)}

    def owns(self, step: Step) -> bool:
        """Whether a step is a batch."""
        return step.id in self.members

    def make(self, step: Step) -> Result:
        """Compiles a batch, or takes it from the cache; it passes whatever the results of its cases."""
        folder = Path(step.folder)
        folder.mkdir(parents=True, exist_ok=True)
        key = make_key(dict(step.cache.ingredients))
        found = Lookup(None) if self.forced else self.cache.lookup(key)
        if found.note:
            self.progress.message(f"{step.id}: in the cache it is {found.note}: making it again")
        tally = _Tally()
        members = self.members[step.id]
        kept = self._find_kept(found.entry, folder)
        if kept is None:
            missing = [number for number, member in enumerate(members) if not member.cache.hit]
            parts = self._compile(step, missing, tally)
            whole = len(missing) == len(members) and not tally.disturbed and len(parts) <= _MOST_MODULES
            if whole and not any(is_edited(member) for member in members):
                if self.forced:
                    self.cache.remove(key)
                self.cache.publish(
                    {f"module{number}": folder / part.module for number, part in enumerate(parts)},
                    name=step.id,
                    ingredients=dict(step.cache.ingredients),
                    metadata={"functions": [part.functions for part in parts]},
                    created=datetime.now(UTC),
                )
        else:
            parts = kept
        _BatchRecord(parts=tuple(parts)).write(folder)
        with self._mutex:
            self._made[step.id] = parts
        together = sum(len(part.functions) for part in parts)
        had = sum(member.cache.hit for member in members)
        alone = max(len(members) - had - together, 0)
        note = f"{together} cases in {len(parts)} module{'' if len(parts) == 1 else 's'}"
        note += f"; {alone} are compiled by themselves" if alone else ""
        note += f"; {had} are in the cache by themselves" if had else ""
        return Result(
            Verdict.PASSED,
            cache=CacheUse(kept is not None, key, "compiled as a batch" if kept is None else "in the cache"),
            statistics={"cases": together, "cases_alone": alone, "modules": len(parts), "attempts": tally.attempts},
            notes=(*step.notes, note, *tally.notes),
            cpu_seconds=tally.cpu_seconds,
            tool_seconds=tally.seconds,
            peak_rss_bytes=tally.peak_rss_bytes,
        )

    def _find_kept(self, entry: ModuleEntry | None, folder: Path) -> list[_BatchPart] | None:
        """The modules of an entry; None where there is none, or where somebody clears the cache meanwhile."""
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

    def hand_out(self, step: Step) -> Result | None:
        """A case's compile from its batch; None where it has to be compiled by itself."""
        place = self._places.get(step.id)
        if place is None or step.cache.hit or is_edited(step):
            return None
        batch, number = place
        case, _, chain_target = batch.rpartition(":")[0].rpartition("@")
        steps = next(path for path in Path(step.folder).parents if path.name == "steps")
        folder = steps / f"{case}.{chain_target}" / "compile"
        with self._mutex:
            if batch not in self._made:
                # An earlier part of this run has made it.
                self._made[batch] = _BatchRecord.read(folder).parts
        # Where a case has several functions, its own compile says which.
        found = [(part.module, names) for part in self._made[batch] if (names := part.functions.get(str(number), ()))]
        if not found or len(found[0][1]) != 1:
            return None
        module, (function,) = found[0]
        target = Path(step.output("module"))
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        link_or_copy(folder / module, target)
        _BatchRecord(batch=batch, function=function).write(target.parent)
        return Result(
            Verdict.PASSED,
            cache=CacheUse(False, reason=f"compiled in {batch}"),
            statistics={"binary_size_bytes": target.stat().st_size},
            notes=(*step.notes, f"compiled in {batch} as {function}: the module is the batch's, not the case's own"),
        )

    def _compile(self, step: Step, numbers: list[int], tally: _Tally) -> list[_BatchPart]:
        """Compiles some cases of a batch as one, without those that keep it from compiling."""
        members, folder = self.members[step.id], Path(step.folder)
        while len(numbers) > 1:
            module = folder / f"module{tally.attempts}.vmfb"
            log = folder / f"attempt{tally.attempts}"
            first = members[numbers[0]]
            job = CompileJob(
                programs=tuple(members[number].input("program").path for number in numbers),
                flags=flags_of(first),
                output=module,
                stdout=log.with_suffix(".stdout.txt"),
                stderr=log.with_suffix(".stderr.txt"),
                cwd=str(folder),
                timeout=step.timeout,
                memory_bytes=self.memory_bytes,
            )
            outcome, functions, culprits = self.server.compile_batch(job)
            tally.add(outcome)
            if outcome.cancelled:
                return []
            if outcome.exit_code == 0:
                return [_BatchPart(module.name, dict(zip(map(str, numbers), functions, strict=True)))]
            if culprits and not (outcome.signal or outcome.timed_out):
                guilty = {numbers[index] for index in culprits}
                numbers = [number for number in numbers if number not in guilty]
                continue
            # A crash, a hang, or an error that names nobody.
            half = len(numbers) // 2
            head = self._compile(step, numbers[:half], tally)
            return [*head, *self._compile(step, numbers[half:], tally)]
        return []


@dataclass(slots=True)
class _Tally:
    """What the attempts of a batch have taken."""

    attempts: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_rss_bytes: int = 0
    disturbed: bool = False
    notes: tuple[str, ...] = ()

    def add(self, outcome: Outcome) -> None:
        self.attempts += 1
        self.seconds += outcome.seconds
        self.cpu_seconds += outcome.cpu_seconds
        self.peak_rss_bytes = max(self.peak_rss_bytes, outcome.peak_rss_bytes)
        # By somebody, for lack of something, or by the clock: the same programs may end differently next time.
        sent = outcome.signal in ("SIGKILL", "SIGTERM") or outcome.exit_code in (EXIT_DEFECT, EXIT_UNWRITABLE)
        self.disturbed |= outcome.cancelled or outcome.timed_out or outcome.out_of_memory or sent
        self.notes = (*self.notes, *outcome.notes)


def _with_function(step: Step, function: str) -> Step:
    """A run of a case whose function has another name in a batch."""
    argv = [word for word in step.process.argv if not word.startswith("--function=")]
    return replace(step, command=replace(step.process, argv=(*argv, f"--function={function}")))
