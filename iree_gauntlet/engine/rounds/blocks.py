"""Rounds in blocks, kept to the rule: replaced for a disturbance, never for their times.

Programs that are compared are measured in blocks, whose rounds are taken one right after the other, in an order drawn
by lot. Which rounds a block has is its design: A B B A of two programs here, there and back over all programs of a
point in `torch_models/point_session.py`. How they are taken is the same for all.

On all CPUs, as its spec has it, a program of many threads varies with every wake-up and migration; pinned to one CPU
it varies least on most machines, and does not run as users run it. Which is steadier is a matter of the program and
the machine, so that it is tried: a few blocks of A against A in each way, in turn.

Everything that is measured goes into a log of events at once: an event `block` holds the rounds, fewer where one
failed or was disturbed, and `counted` says whether they are evidence. So what was cut short is resumed where it was.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import shutil
import statistics
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from iree_gauntlet.device_kinds import LOCAL_SYNC, LOCAL_TASK
from iree_gauntlet.engine.rounds.taken_rounds import TOPOLOGY, Measurement, TakenRound, take_round
from iree_gauntlet.journal_format import explain_unreadable
from iree_gauntlet.measuring.machine.machine_state import choose_fastest_cores
from iree_gauntlet.measuring.statistics.rounds import Block, BlockOrder, Round, block_orders
from iree_gauntlet.records.compare_record import BlockEvent, MeasuredElsewhere

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from iree_gauntlet.engine.session import Session
    from iree_gauntlet.journal_format import JournalEvent
    from iree_gauntlet.steps import Step


# CPUs that rounds are pinned to; none for the spec's own way, on all of them.
Cpus: TypeAlias = tuple[int, ...]
# Kinds of blocks: B against A, and A against itself.
AB = "ab"
CONTROL = "aa"
# A against itself, to see on which CPUs it is steadiest; and B against A in the spec's own way, where that is another.
_TRIAL = "trial"
OWN = "own"
# Blocks that may be replaced for a disturbance, beyond one for each that counts.
_SPARE_BLOCKS = 5
_PAUSE_SECONDS = 1.0
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


@dataclass(frozen=True, slots=True)
class PlannedBlock:
    """A block that is to be taken.

    Attributes:
        order: of its rounds, as the log has it.
        rounds: whose, and how each is started.
        attempts: how often a round is taken while other work disturbs it, before the block is given up.
    """

    chain: str
    kind: str
    order: str | Sequence[str]
    rounds: Sequence[tuple[str, Measurement]]
    attempts: int = 1
    cpus: Cpus = ()


@dataclass(slots=True)
class RoundsEvidence:
    """What was measured so far.

    Attributes:
        attempts: blocks that were begun, by kind.
        count: blocks that count.
        disturbances: what disturbed rounds, and how many.
        failure: why there can be no verdict; empty where nothing failed.
        peak_bytes: largest resident set of a process, by side.
    """

    attempts: Counter[str] = field(default_factory=Counter)
    count: int = 0
    disturbances: Counter[str] = field(default_factory=Counter)
    failure: str = ""
    peak_bytes: dict[str, int] = field(default_factory=dict)

    @property
    def replaced(self) -> int:
        """Blocks that were taken and do not count."""
        return self.attempts.total() - self.count

    @property
    def too_disturbed(self) -> bool:
        """Whether the machine is too busy for this to finish."""
        return self.replaced > _SPARE_BLOCKS + self.count

    @property
    def main_disturbance(self) -> str:
        """What spoiled most rounds, whatever its figures, with those of one of them; empty for none."""
        kinds = Counter(_without_figures(cause) for cause in self.disturbances.elements())
        most = next((kind for kind, _ in kinds.most_common(1)), "")
        return next((cause for cause in self.disturbances if _without_figures(cause) == most), "")

    def add(self, event: Mapping[str, Any]) -> None:
        """A block, as it stands in the log."""
        block = BlockEvent.from_dict(event)
        self.attempts[block.kind] += 1
        self.count += block.counted
        for item in block.rounds:
            name = _name(block.kind, item.side)
            self.peak_bytes[name] = max(self.peak_bytes.get(name, 0), item.peak_rss_bytes)
            self.disturbances.update(item.disturbed)


@dataclass(slots=True)
class PairEvidence(RoundsEvidence):
    """What was measured of a model so far.

    Attributes:
        blocks: of B against A, those that count.
        marked: blocks that count although they were disturbed.
        cpus: that rounds are pinned to; None until it is decided.
        trials: of A against itself, those that count, by the CPUs that were tried.
        own: of B against A in the spec's own way, where the rounds are taken in another.
        tried: how many blocks of a trial were begun, by CPUs.
        own_tried: how many blocks in the spec's own way were begun.
    """

    blocks: list[Block] = field(default_factory=list)
    control: list[Block] = field(default_factory=list)
    marked: int = 0
    cpus: Cpus | None = None
    trials: dict[Cpus, list[Block]] = field(default_factory=dict)
    own: list[Block] = field(default_factory=list)
    tried: Counter[Cpus] = field(default_factory=Counter)
    own_tried: int = 0

    @property
    def against_itself(self) -> list[Block]:
        """A against A as B is measured: those of the trial count too, as it looks at their spread and at no sign."""
        return [*self.trials.get(self.cpus or (), ()), *self.control]

    def add(self, event: Mapping[str, Any]) -> None:
        """A block, as it stands in the log."""
        block = BlockEvent.from_dict(event)
        kind, cpus = block.kind, block.cpus
        into = {AB: self.blocks, CONTROL: self.control, OWN: self.own}.get(kind)
        # Blocks next to the comparison say nothing of how disturbed it is.
        if kind == OWN:
            self.own_tried += 1
        elif kind == _TRIAL:
            self.tried[cpus] += 1
            into = self.trials.setdefault(cpus, [])
        else:
            RoundsEvidence.add(self, event)
            self.cpus = cpus
        if block.counted and into is not None:
            rounds = [Round(item.times_ms) for item in block.rounds]
            into.append(Block.of_rounds(BlockOrder(block.order), rounds))
            self.marked += kind in (AB, CONTROL) and any(item.disturbed for item in block.rounds)


@dataclass(frozen=True, slots=True)
class Pair:
    """A model, as both sides run it: the CPUs to choose from, and how rounds of A and of B are taken on some."""

    chain: str
    ways: tuple[Cpus, ...]
    measured: Callable[[Cpus], tuple[Measurement, Measurement]]

    def block(self, kind: str, evidence: PairEvidence, seed: int, cpus: Cpus) -> PlannedBlock:
        """The next block of a kind, in an order that coins of the seed choose.

        In a `CONTROL` and a `_TRIAL`, B's rounds are A's too.
        """
        begun = {OWN: evidence.own_tried, _TRIAL: evidence.tried[cpus]}
        number = begun.get(kind, evidence.attempts[kind])
        order = block_orders(number + 1, make_seed(seed, self.chain, kind))[number]
        a, b = self.measured(cpus)
        other = b if kind in (AB, OWN) else a
        rounds = [(side, a if side == "A" else other) for side in order]
        return PlannedBlock(self.chain, kind, str(order), rounds, cpus=cpus)


def evidence_of(events: Iterable[JournalEvent]) -> dict[str, PairEvidence]:
    """What the blocks of a journal say, by model: to resume a comparison that was cut short.

    What another machine has measured of a model holds all of its blocks; with a problem, it says nothing.
    """
    found: dict[str, PairEvidence] = {}
    for event in events:
        match event.content:
            case BlockEvent():
                blocks: Sequence[dict[str, Any]] = (event.fields,)
                evidence = found.setdefault(event.step, PairEvidence())
            case MeasuredElsewhere(problem="", blocks=blocks):
                evidence = found[event.step] = PairEvidence()
            case _:
                continue
        hint = "It was written by another version of this toolkit, or changed; begin anew."
        with explain_unreadable(f"the record of rounds of {event.step}", hint):
            for block in blocks:
                evidence.add(block)
    return found


@dataclass(slots=True)
class BlockTaker:
    """Takes blocks, into the session's log.

    Attributes:
        replace_disturbed: whether what other work disturbed is taken again.
        waited: seconds that went by until the machine was ours: they are no measuring time.
    """

    session: Session[Any]
    replace_disturbed: bool
    waited: float = 0.0

    def gives_up(self, evidence: RoundsEvidence) -> bool:
        """Whether no more blocks are of use: a process failed, or the machine is too disturbed."""
        return bool(evidence.failure) or (self.replace_disturbed and evidence.too_disturbed)

    def goes_on(self, evidence: RoundsEvidence) -> bool:
        """Whether there may be one more block."""
        return not (self.session.cancelled.is_set() or self.gives_up(evidence))

    def take(self, block: PlannedBlock, evidence: RoundsEvidence) -> list[tuple[str, TakenRound]]:
        """Takes a block, into the evidence and the log; not where it is cut short or cannot be of use.

        Returns the rounds with their sides, where the block counts; else nothing.
        """
        if not self.goes_on(evidence):
            return []
        began = time.monotonic()
        with self.session.quiet(next((item.device for _, item in block.rounds if item.device), "")):
            self.waited += time.monotonic() - began
            rounds = list(self._list_rounds(block))
        if self.session.cancelled.is_set():
            # What was cut short has no result.
            return []
        good = [(side, taken) for side, taken in rounds if self._is_good(taken)]
        counted = len(good) == len(block.rounds)
        event = {
            "kind": block.kind,
            "order": block.order,
            "counted": counted,
            "cpus": list(block.cpus),
            "rounds": [{"side": side, **taken.as_dict()} for side, taken in rounds],
        }
        self.session.log.write("block", event, step=block.chain)
        evidence.add(event)
        side, last = rounds[-1]
        if last.failure:
            evidence.failure = f"{_name(block.kind, side)}: {last.failure}"
        elif not counted:
            self.session.cancelled.wait(_PAUSE_SECONDS)
        return good if counted else []

    def _list_rounds(self, block: PlannedBlock) -> Iterator[tuple[str, TakenRound]]:
        """Rounds with their sides, until one fails or stays disturbed, or the block is cut short."""
        for side, measurement in block.rounds:
            for _ in range(block.attempts):
                taken = take_round(measurement, self.session.processes, f"rounds.{_name(block.kind, side)}.")
                yield side, taken
                if self.session.cancelled.is_set() or taken.failure or self._is_good(taken):
                    break
            if self.session.cancelled.is_set() or not self._is_good(taken):
                break

    def _is_good(self, taken: TakenRound) -> bool:
        return not taken.failure and not (taken.disturbed and self.replace_disturbed)


def make_seed(seed: int, chain: str, kind: str) -> int:
    """The same for the same session, model and kind; unrelated for others, so that their coins are independent."""
    return int.from_bytes(hashlib.sha256(f"{seed}\0{chain}\0{kind}".encode()).digest()[:8], "big")


def _name(kind: str, side: str) -> str:
    """Whose a round is. Both sides of a control are A; the log has two names, to tell its rounds apart."""
    return "A" if kind in (CONTROL, _TRIAL) else side.strip()


def _without_figures(cause: str) -> str:
    return re.split(r"\d", cause, maxsplit=1)[0]


def ways(step: Step, root: Path = Path("/")) -> tuple[Cpus, ...]:
    """The CPUs that rounds of a benchmark can be pinned to: the spec's own way (none) first, one, one for each worker.

    One on a GPU, or with a topology of its own, has no other way than its own. /sys is looked for below `root`.
    """
    affinity = getattr(os, "sched_getaffinity", None)  # Linux alone can say and pin
    device = step.resources.device
    if affinity is None or shutil.which("taskset") is None or device not in (LOCAL_TASK.name, LOCAL_SYNC.name):
        return ((),)
    available = sorted(affinity(0))
    cores = choose_fastest_cores(root, available)
    topology = dict(word.partition("=")[::2] for word in step.process.argv if word.startswith(TOPOLOGY))
    workers = topology.pop(_WORKERS, "")
    if topology or (workers and not workers.isdecimal()):
        return ((),)
    if device == LOCAL_SYNC.name:
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
    """The way whose rounds spread least, by A against itself; one with fewer undisturbed blocks comes after others."""

    def rank(cpus: Cpus) -> tuple[int, float]:
        return -len(trials[cpus]), spread(trials[cpus]) * (1.0 if cpus else _STEADIER)

    return min(trials, key=rank)


def choose_way(pair: Pair, evidence: PairEvidence, taker: BlockTaker, seed: int, goes_on: Callable[[], bool]) -> None:
    """Sets the evidence's way, by a trial where the pair has several; not where that is cut short.

    A trial that was cut short is continued, and what has blocks keeps its way. `goes_on` says whether there is time for
    one more block.
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
            taker.take(pair.block(_TRIAL, evidence, seed, cpus), evidence)
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
