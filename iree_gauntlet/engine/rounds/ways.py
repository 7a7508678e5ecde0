"""On which CPUs rounds are taken: where the program's times are steadiest, by a trial of the program against itself.

On all CPUs, as its spec has it, a program of many threads varies with every wake-up and migration; pinned to one CPU
it varies least on most machines, and does not run as users run it. Which is steadier is a matter of the program and
the machine, so that it is tried: a few blocks of A against A in each way, in turn.
"""

from __future__ import annotations

import math
import os
import shutil
import statistics
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.engine.rounds.blocks import OWN, TRIAL, BlockTaker, Cpus, Pair, PairEvidence
from iree_gauntlet.engine.rounds.taken_rounds import TOPOLOGY
from iree_gauntlet.measuring.machine.machine_state import choose_fastest_cores

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from iree_gauntlet.measuring.statistics.rounds import Block
    from iree_gauntlet.steps import Step


# Of A against itself, in each way.
_TRIAL_BLOCKS = 3
# Where rounds on pinned CPUs spread so many times less, as they mostly do, it takes no more of a trial.
_CLEARLY = 3.0
# The spec's own way stays unless another is steadier by more than a trial of so few blocks shows by chance.
_STEADIER = 0.8
_WORKERS = f"{TOPOLOGY}group_count"
# Blocks in the spec's own way, next to those on other CPUs: as few as give an interval at 95 %.
OWN_BLOCKS = 6
_MOST_WORKERS = 64  # IREE's own bound (--task_topology_max_group_count)


def ways(step: Step, root: Path = Path("/")) -> tuple[Cpus, ...]:
    """The CPUs that rounds of a benchmark can be pinned to: the spec's own way (none) first, one, one for each worker.

    Args:
        step: the benchmark; one on a GPU, or with a topology of its own, has no other way than its own.
        root: where /sys is looked for.
    """
    affinity = getattr(os, "sched_getaffinity", None)  # Linux alone can say and pin
    device = step.resources.device
    if affinity is None or shutil.which("taskset") is None or device not in ("local-task", "local-sync"):
        return ((),)
    available = sorted(affinity(0))
    cores = choose_fastest_cores(root, available)
    topology = dict(word.partition("=")[::2] for word in step.process.argv if word.startswith(TOPOLOGY))
    workers = topology.pop(_WORKERS, "")
    if topology or (workers and not workers.isdecimal()):
        return ((),)
    if device == "local-sync":
        counts = {1}
    else:
        counts = {int(workers)} if workers else {1, min(len(choose_fastest_cores(root, ())), _MOST_WORKERS)}
    # Pinned to all that there are, it would not be pinned.
    most = min(len(cores), len(available) - 1)
    return ((), *(tuple(cores[-count:]) for count in sorted(counts) if 0 < count <= most))


def spread(blocks: Sequence[Block]) -> float:
    """How far the rounds of one block lie apart, as a share: 0.01 is 1 %; infinite without blocks."""
    if not blocks:
        return math.inf
    logs = ([math.log(round_.location()) for round_ in (*block.a, *block.b)] for block in blocks)
    return math.sqrt(statistics.fmean(map(statistics.variance, logs)))


def steadiest(trials: Mapping[Cpus, Sequence[Block]]) -> Cpus:
    """The way whose rounds spread least; a way with fewer undisturbed blocks than another comes after it.

    Args:
        trials: blocks of A against itself by way, the spec's own first.
    """

    def rank(cpus: Cpus) -> tuple[int, float]:
        return -len(trials[cpus]), spread(trials[cpus]) * (1.0 if cpus else _STEADIER)

    return min(trials, key=rank)


def choose_way(pair: Pair, evidence: PairEvidence, taker: BlockTaker, seed: int, goes_on: Callable[[], bool]) -> None:
    """Sets the evidence's way, by a trial where it has none; not where that is cut short.

    Args:
        pair: what is measured; where it has one way, that.
        evidence: what there is so far: a trial that was cut short is continued, and what has blocks keeps its way.
        taker: takes the trial's blocks.
        seed: of the coins that choose the order of each block.
        goes_on: whether there is time for one more.

    Raises:
        GauntletError: a process cannot be started at all.
    """
    if evidence.cpus is not None:
        return
    if len(pair.ways) == 1 or evidence.attempts:
        evidence.cpus = pair.ways[0]
        return
    for number in range(_TRIAL_BLOCKS):
        for cpus in pair.ways:
            if evidence.tried[cpus] > number:
                continue
            if not goes_on():
                return
            taker.take(pair.block(TRIAL, evidence, seed, cpus), evidence)
        trials = {cpus: evidence.trials.get(cpus, []) for cpus in pair.ways}
        pinned = min(spread(blocks) for cpus, blocks in trials.items() if cpus)
        if pinned * _CLEARLY < spread(trials[()]) < math.inf:
            break
    if goes_on():
        evidence.cpus = steadiest(trials)


def take_own(pair: Pair, evidence: PairEvidence, taker: BlockTaker, seed: int, goes_on: Callable[[], bool]) -> None:
    """Takes blocks in the spec's own way, where another was chosen; arguments as for `choose_way`."""
    while evidence.cpus and len(pair.ways) > 1 and evidence.own_tried < OWN_BLOCKS and goes_on():
        taker.take(pair.block(OWN, evidence, seed, ()), evidence)
