"""Batches (`--batch N`): many small programs that are compiled as one module, and run one by one.

A batch is a step of its own, which the compiles of its cases need. What it could not compile as a whole is split until
the culprits stand alone; they are compiled by themselves, in their own steps, as are the cases that are expected to
fail, so that every case has the verdict that it would have without batches.
"""

from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.cases import Verdict
from iree_gauntlet.engine.commands import makes_dumps
from iree_gauntlet.engine.modules.module_cache import EntryGoneError, Lookup, ModuleCache, ModuleEntry, link_or_copy
from iree_gauntlet.engine.modules.module_key import join_flags, make_key
from iree_gauntlet.engine.modules.modules import is_edited
from iree_gauntlet.engine.processes.compile_client import EXIT_DEFECT, EXIT_UNWRITABLE, CompileJob, CompileServer
from iree_gauntlet.recorded import UNLESS_DEFAULT, Recorded
from iree_gauntlet.results import CacheUse, Result
from iree_gauntlet.stages import Stage
from iree_gauntlet.steps import BATCH_MODEL, CacheLookup, Step
from iree_gauntlet.system.atomic import write_atomic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from iree_gauntlet.engine.processes.supervisor import Outcome
    from iree_gauntlet.progress import Progress


# Names a file in the step's own folder; a batch has none of its own.
_STATISTICS = "--iree-scheduling-dump-statistics-"
# Beside a module that a case has from a batch.
BATCH_RECORD = "batch.json"
# What an entry of the cache holds at most.
_MOST_MODULES = 16


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
        return cls.from_dict(json.loads((folder / BATCH_RECORD).read_bytes()))

    def write(self, folder: Path) -> None:
        write_atomic(folder / BATCH_RECORD, json.dumps(self.as_dict()))


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


def with_function(step: Step, function: str) -> Step:
    """A run of a case whose function has another name in a batch."""
    argv = [word for word in step.process.argv if not word.startswith("--function=")]
    return replace(step, command=replace(step.process, argv=(*argv, f"--function={function}")))
