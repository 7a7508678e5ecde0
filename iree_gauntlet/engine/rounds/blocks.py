"""Rounds in blocks; by a fixed rule, a block is replaced for a disturbance, never for its times.

Programs that are compared are measured in blocks. The rounds of a block follow each other directly, in a random order
such as A B B A for two programs. `torch_models/point_session.py` goes back and forth over all programs of a point. All
rounds are measured in the same way.

The times of a program with many threads vary with every wake-up and migration if it runs on all CPUs, as its spec says.
Pinned to one CPU they vary least on most machines, but users do not run it so. The best CPU set (its "way") depends on
the program and the machine, so a trial measures a few blocks of A against A (control) on each CPU set, in turn.

Each block is logged at once as an event `block` with its rounds; a failed or disturbed round cuts the block short.
`counted` is true if the block is evidence. The log lets an interrupted measurement resume at the same point.
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
from iree_gauntlet.engine.rounds.taken_rounds import TOPOLOGY_PREFIX, Measurement, RoundResult, run_round
from iree_gauntlet.journal_format import explain_unreadable
from iree_gauntlet.measuring.machine.machine_state import choose_fastest_cores
from iree_gauntlet.measuring.statistics.rounds import Block, BlockOrder, Round, draw_block_orders
from iree_gauntlet.records.compare_record import BlockEvent, RemoteMeasurement

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from iree_gauntlet.engine.session import Session
    from iree_gauntlet.journal_format import JournalEvent
    from iree_gauntlet.steps import Step


# The CPUs that rounds are pinned to; empty for the spec's own way, which is all CPUs.
Cpus: TypeAlias = tuple[int, ...]
# Kinds of blocks: AB is B against A; CONTROL is A against A.
AB = "ab"
CONTROL = "aa"
# _TRIAL is A against A, to find the best CPUs; OWN is B against A in the spec's own way, if the best CPUs differ.
_TRIAL = "trial"
OWN = "own"
# The blocks that are replaced because of disturbances may exceed the blocks that count by this number.
_SPARE_BLOCKS = 5
_PAUSE_SECONDS = 1.0
# A trial measures this many blocks of A against A on each CPU set.
_TRIAL_BLOCKS = 3
# If the spread on pinned CPUs is smaller by this factor, as it mostly is, the trial ends early.
_CLEAR_FACTOR = 3.0
# The spec's own way wins unless another spread is below this fraction: so few blocks vary that much by chance.
_SPEC_SPREAD_FACTOR = 0.8
_WORKERS_FLAG = f"{TOPOLOGY_PREFIX}group_count"
# So many blocks are also measured in the spec's own way if other CPUs were chosen: the minimum for a 95 % interval.
MAX_SPEC_BLOCKS = 6
_MAX_WORKERS = 64  # IREE's own bound (--task_topology_max_group_count)


@dataclass(frozen=True, slots=True)
class BlockPlan:
    """A block to be measured.

    Attributes:
        order: the order of the rounds, as the log writes it.
        rounds: the side and the command of each round.
        attempts: how many times a round is tried while other work disturbs it; then the block is abandoned.
    """

    chain: str
    kind: str
    order: str | Sequence[str]
    rounds: Sequence[tuple[str, Measurement]]
    attempts: int = 1
    cpus: Cpus = ()


@dataclass(slots=True)
class RoundSamples:
    """The measurements so far.

    Attributes:
        attempts: the number of started blocks, by kind.
        count: the number of blocks that count.
        disturbances: how many rounds each disturbance spoiled.
        failure: the reason why no verdict is possible; empty if nothing failed.
        peak_bytes: the largest resident set of a process, by side.
    """

    attempts: Counter[str] = field(default_factory=Counter)
    count: int = 0
    disturbances: Counter[str] = field(default_factory=Counter)
    failure: str = ""
    peak_bytes: dict[str, int] = field(default_factory=dict)

    @property
    def replacement_count(self) -> int:
        """The number of blocks that were measured and do not count."""
        return self.attempts.total() - self.count

    @property
    def is_too_disturbed(self) -> bool:
        """True if the machine is too busy for the measurement to finish."""
        return self.replacement_count > _SPARE_BLOCKS + self.count

    @property
    def main_disturbance(self) -> str:
        """The kind of disturbance that spoiled most rounds, with the numbers of one such round; empty for none."""
        kinds = Counter(_strip_numbers(cause) for cause in self.disturbances.elements())
        main_kind = next((kind for kind, _ in kinds.most_common(1)), "")
        return next((cause for cause in self.disturbances if _strip_numbers(cause) == main_kind), "")

    def add(self, event: Mapping[str, Any]) -> None:
        """Add a block, as it is in the log."""
        block = BlockEvent.from_dict(event)
        self.attempts[block.kind] += 1
        self.count += block.counted
        for round_event in block.rounds:
            name = _name_side(block.kind, round_event.side)
            self.peak_bytes[name] = max(self.peak_bytes.get(name, 0), round_event.peak_rss_bytes)
            self.disturbances.update(round_event.disturbed)


@dataclass(slots=True)
class PairSamples(RoundSamples):
    """The measurements of a model so far.

    Attributes:
        blocks: the counted blocks of B against A.
        disturbed_count: the number of blocks that count although they were disturbed.
        cpus: the CPUs that rounds are pinned to; None until they are chosen.
        trials: the counted blocks of A against A in the trial, by the CPUs that were tried.
        spec_blocks: the blocks of B against A in the spec's own way, if other CPUs were chosen.
        trial_attempts: the number of started trial blocks, by CPUs.
        own_attempts: the number of started blocks in the spec's own way.
    """

    blocks: list[Block] = field(default_factory=list)
    control: list[Block] = field(default_factory=list)
    disturbed_count: int = 0
    cpus: Cpus | None = None
    trials: dict[Cpus, list[Block]] = field(default_factory=dict)
    spec_blocks: list[Block] = field(default_factory=list)
    trial_attempts: Counter[Cpus] = field(default_factory=Counter)
    own_attempts: int = 0

    @property
    def control_blocks(self) -> list[Block]:
        """The control blocks on the chosen CPUs, and the trial's blocks there, which were chosen by spread only."""
        return [*self.trials.get(self.cpus or (), ()), *self.control]

    def add(self, event: Mapping[str, Any]) -> None:
        """Add a block, as it is in the log."""
        block = BlockEvent.from_dict(event)
        kind, cpus = block.kind, block.cpus
        target = {AB: self.blocks, CONTROL: self.control, OWN: self.spec_blocks}.get(kind)
        # Disturbances of the additional kinds of blocks do not count against the comparison.
        if kind == OWN:
            self.own_attempts += 1
        elif kind == _TRIAL:
            self.trial_attempts[cpus] += 1
            target = self.trials.setdefault(cpus, [])
        else:
            RoundSamples.add(self, event)
            self.cpus = cpus
        if block.counted and target is not None:
            rounds = [Round(round_event.times_ms) for round_event in block.rounds]
            target.append(Block.of_rounds(BlockOrder(block.order), rounds))
            self.disturbed_count += kind in (AB, CONTROL) and any(round_event.disturbed for round_event in block.rounds)


@dataclass(frozen=True, slots=True)
class Pair:
    """A model on sides A and B: the CPU sets to choose from, and the measurements of A and B on a CPU set."""

    chain: str
    cpu_sets: tuple[Cpus, ...]
    make_measurements: Callable[[Cpus], tuple[Measurement, Measurement]]

    def block(self, kind: str, evidence: PairSamples, seed: int, cpus: Cpus) -> BlockPlan:
        """Return the next block of a kind, in a random order from the seed.

        In `CONTROL` and `_TRIAL` blocks, side B also runs A.
        """
        started_counts = {OWN: evidence.own_attempts, _TRIAL: evidence.trial_attempts[cpus]}
        number = started_counts.get(kind, evidence.attempts[kind])
        order = draw_block_orders(number + 1, make_seed(seed, self.chain, kind))[number]
        a, b = self.make_measurements(cpus)
        b_side = b if kind in (AB, OWN) else a
        rounds = [(side, a if side == "A" else b_side) for side in order]
        return BlockPlan(self.chain, kind, str(order), rounds, cpus=cpus)


def collect_samples(events: Iterable[JournalEvent]) -> dict[str, PairSamples]:
    """Return the measurements in a journal's blocks, by model, so that an interrupted comparison can resume.

    If another machine measured a model, one event has all its blocks; an event with a problem is ignored.
    """
    evidence_by_model: dict[str, PairSamples] = {}
    for event in events:
        match event.content:
            case BlockEvent():
                blocks: Sequence[dict[str, Any]] = (event.fields,)
                evidence = evidence_by_model.setdefault(event.step, PairSamples())
            case RemoteMeasurement(problem="", blocks=blocks):
                evidence = evidence_by_model[event.step] = PairSamples()
            case _:
                continue
        hint = "It was written by another version of this toolkit, or edited; start again."
        with explain_unreadable(f"the record of rounds of {event.step}", hint):
            for block in blocks:
                evidence.add(block)
    return evidence_by_model


@dataclass(slots=True)
class BlockRunner:
    """A runner of blocks, which writes them into the session's log.

    Attributes:
        replace_disturbed: if true, blocks that other work disturbed are repeated.
        wait_seconds: seconds of waiting for the machine, which do not count as measuring time.
    """

    session: Session[Any]
    replace_disturbed: bool
    wait_seconds: float = 0.0

    def must_stop(self, evidence: RoundSamples) -> bool:
        """Return True if more blocks would be useless, since a process failed, or the machine is too disturbed."""
        return bool(evidence.failure) or (self.replace_disturbed and evidence.is_too_disturbed)

    def may_continue(self, evidence: RoundSamples) -> bool:
        """Return True if there may be one more block."""
        return not (self.session.cancelled.is_set() or self.must_stop(evidence))

    def run(self, block: BlockPlan, evidence: RoundSamples) -> list[tuple[str, RoundResult]]:
        """Measure a block and add it to the evidence and the log, unless it is interrupted or would be useless.

        Return the rounds with their sides if the block counts; otherwise an empty list.
        """
        if not self.may_continue(evidence):
            return []
        start = time.monotonic()
        with self.session.hold_machine(next((entry.device for _, entry in block.rounds if entry.device), "")):
            self.wait_seconds += time.monotonic() - start
            rounds = list(self._list_rounds(block))
        if self.session.cancelled.is_set():
            # An interrupted block has no result.
            return []
        good_rounds = [(side, round_result) for side, round_result in rounds if self._is_good(round_result)]
        counts = len(good_rounds) == len(block.rounds)
        event = {
            "kind": block.kind,
            "order": block.order,
            "counted": counts,
            "cpus": list(block.cpus),
            "rounds": [{"side": side, **round_result.as_dict()} for side, round_result in rounds],
        }
        self.session.log.write("block", event, step=block.chain)
        evidence.add(event)
        side, last_round = rounds[-1]
        if last_round.failure:
            evidence.failure = f"{_name_side(block.kind, side)}: {last_round.failure}"
        elif not counts:
            self.session.cancelled.wait(_PAUSE_SECONDS)
        return good_rounds if counts else []

    def _list_rounds(self, block: BlockPlan) -> Iterator[tuple[str, RoundResult]]:
        """Yield rounds with their sides until a round fails or stays disturbed, or the session is cancelled."""
        for side, measurement in block.rounds:
            for _ in range(block.attempts):
                result = run_round(measurement, self.session.processes, f"rounds.{_name_side(block.kind, side)}.")
                yield side, result
                if self.session.cancelled.is_set() or result.failure or self._is_good(result):
                    break
            if self.session.cancelled.is_set() or not self._is_good(result):
                break

    def _is_good(self, result: RoundResult) -> bool:
        return not result.failure and not (result.disturbed and self.replace_disturbed)


def make_seed(seed: int, chain: str, kind: str) -> int:
    """Return a seed for the blocks of a model and kind; different models and kinds get independent random orders."""
    return int.from_bytes(hashlib.sha256(f"{seed}\0{chain}\0{kind}".encode()).digest()[:8], "big")


def _name_side(kind: str, side: str) -> str:
    """Return the program of a round, which is A on both sides of a control; the log still distinguishes the sides."""
    return "A" if kind in (CONTROL, _TRIAL) else side.strip()


def _strip_numbers(cause: str) -> str:
    return re.split(r"\d", cause, maxsplit=1)[0]


def list_cpu_sets(step: Step, root: Path = Path("/")) -> tuple[Cpus, ...]:
    """Return the CPU sets to try for a benchmark: first empty (the spec's own way), then 1 CPU, then 1 per worker.

    A benchmark on a GPU or a board, or with its own topology flags, gets only the spec's own way. `root` is the folder
    of /sys.
    """
    affinity = getattr(os, "sched_getaffinity", None)  # only Linux can report and pin
    device, command = step.resources.device, step.required_command
    if affinity is None or shutil.which("taskset") is None or device not in (LOCAL_TASK.name, LOCAL_SYNC.name):
        return ((),)
    if command.runner:
        return ((),)
    available = sorted(affinity(0))
    cores = choose_fastest_cores(root, available)
    topology = dict(argument.partition("=")[::2] for argument in command.argv if argument.startswith(TOPOLOGY_PREFIX))
    workers = topology.pop(_WORKERS_FLAG, "")
    if topology or (workers and not workers.isdecimal()):
        return ((),)
    if device == LOCAL_SYNC.name:
        counts = {1}
    else:
        counts = {int(workers)} if workers else {1, min(len(choose_fastest_cores(root, ())), _MAX_WORKERS)}
    # Pinning to all available CPUs would not be pinning.
    max_count = min(len(cores), len(available) - 1)
    return ((), *(tuple(cores[-count:]) for count in sorted(counts) if 0 < count <= max_count))


def compute_spread(blocks: Sequence[Block]) -> float:
    """Return the spread of the rounds within a block as a fraction (0.01 is 1 %); infinite if there are no blocks."""
    if not blocks:
        return math.inf
    logs = ([math.log(round_.compute_location()) for round_ in (*block.a, *block.b)] for block in blocks)
    return math.sqrt(statistics.fmean(map(statistics.variance, logs)))


def choose_steadiest(trials: Mapping[Cpus, Sequence[Block]]) -> Cpus:
    """Return the CPU set with the smallest spread of A against A, among the sets with the most undisturbed blocks."""

    def rank(cpus: Cpus) -> tuple[int, float]:
        return -len(trials[cpus]), compute_spread(trials[cpus]) * (1.0 if cpus else _SPEC_SPREAD_FACTOR)

    return min(trials, key=rank)


def choose_cpus(pair: Pair, evidence: PairSamples, taker: BlockRunner, seed: int, goes_on: Callable[[], bool]) -> None:
    """Set the evidence's CPUs, by a trial if the pair has several CPU sets; an interrupted trial leaves them unset.

    An interrupted trial is continued by the next call. Evidence that already has blocks gets no trial. `goes_on`
    returns True if there is time for one more block.
    """
    if evidence.cpus is not None:
        return
    if len(pair.cpu_sets) == 1 or evidence.attempts:
        evidence.cpus = pair.cpu_sets[0]
        return
    for number in range(_TRIAL_BLOCKS):
        for cpus in pair.cpu_sets:
            if evidence.trial_attempts[cpus] > number:
                continue
            if not goes_on():
                return
            taker.run(pair.block(_TRIAL, evidence, seed, cpus), evidence)
        trials = {cpus: evidence.trials.get(cpus, []) for cpus in pair.cpu_sets}
        pinned_spread = min(compute_spread(blocks) for cpus, blocks in trials.items() if cpus)
        if pinned_spread * _CLEAR_FACTOR < compute_spread(trials[()]) < math.inf:
            break
    if goes_on():
        evidence.cpus = choose_steadiest(trials)


def run_spec_blocks(
    pair: Pair, evidence: PairSamples, taker: BlockRunner, seed: int, goes_on: Callable[[], bool]
) -> None:
    """Measure blocks in the spec's own way if other CPUs were chosen; arguments as for `choose_cpus`."""
    while evidence.cpus and len(pair.cpu_sets) > 1 and evidence.own_attempts < MAX_SPEC_BLOCKS and goes_on():
        taker.run(pair.block(OWN, evidence, seed, ()), evidence)
