"""Batches (`--batch N`): many small programs that are compiled as one module, and run one by one.

A batch is a step of its own, which the compiles of its cases need. What it could not compile as a whole is split until
the culprits stand alone; they are compiled by themselves, in their own steps, as are the cases that are expected to
fail, so that every case has the verdict that it would have without batches.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from iree_gauntlet.cases import Stage
from iree_gauntlet.engine.commands import makes_dumps
from iree_gauntlet.engine.modules.module_key import join_flags, make_key
from iree_gauntlet.steps import CacheLookup, Step, StepInput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path


# What stands for the model in the name of a batch.
BATCH_MODEL = "batch"
# Its value is a path of the step's own folder; a batch has none of its own.
_STATISTICS = "--iree-scheduling-dump-statistics-"


@dataclass(frozen=True, slots=True)
class Batched:
    """A plan with batches.

    Attributes:
        steps: of the plan, with the batches' own.
        members: compile steps of a batch, by the id of the batch's step, in the order of the batch.
        wanted: whether batches were asked for: an earlier part of a run may have made some, although none is left.
    """

    steps: tuple[Step, ...]
    members: Mapping[str, tuple[Step, ...]]
    wanted: bool = False


def flags_of(step: Step) -> tuple[str, ...]:
    """The compile flags of a step, without those that name files of its own."""
    assert step.command is not None, "a compile has a command"
    return tuple(flag for flag in step.command.argv[2:-2] if not flag.startswith(_STATISTICS))


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
    done = set(finished)
    groups: dict[tuple[str, tuple[str, ...]], list[Step]] = {}
    for step in steps:
        wanted = step.stage is Stage.COMPILE and step.id not in done and takes(step)
        if wanted and not (step.expect_failure or step.skip or step.blocked or _names_files(step)):
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


def _names_files(step: Step) -> bool:
    """Whether a compile is asked for dumps, or its flags name files in its folder: neither is of a batch."""
    if step.command is None or makes_dumps(step.command.argv):
        return True
    values = (flag.partition("=")[2] for flag in flags_of(step))
    return any("/" in value and not value.startswith("/") for value in values)


def _batch_ingredients(members: Sequence[Step], flags: Sequence[str]) -> dict[str, str]:
    """What the modules of a batch depend on."""
    keys = [make_key(dict(step.cache.ingredients)) for step in members]
    return {"kind": "batch 1", "members": join_flags(keys), "flags": join_flags(flags)}


def _batch(members: Sequence[Step], target: str, flags: Sequence[str], run_dir: Path) -> Step:
    first = members[0]
    # By its cases: a resumed run may put others together, and must not take one batch for another.
    name = hashlib.sha256("\n".join(step.id for step in members).encode()).hexdigest()[:12]
    chain = f"{BATCH_MODEL}/{name}@{target}"
    programs = (next(item for item in step.inputs if item.role == "program") for step in members)
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
        inputs=tuple(StepInput("program", item.path, item.url, item.sha256) for item in programs),
        cache=CacheLookup(ingredients=tuple(_batch_ingredients(members, flags).items())),
        notes=(f"{len(members)} cases as one module: {first.id} to {members[-1].id}",),
    )
