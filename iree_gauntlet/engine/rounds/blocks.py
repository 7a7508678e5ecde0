"""Rounds in blocks, kept to the rule: replaced for a disturbance, never for their times.

Programs that are compared are measured in blocks, whose rounds are taken one right after the other, in an order drawn
by lot. Which rounds a block has is its design: A B B A of two programs here, there and back over all programs of a
point in `torch_models/point_session.py`. How they are taken is the same for all.

Everything that is measured goes into a log of events at once: an event `block` holds the rounds, fewer where one
failed or was disturbed, and `counted` says whether they are evidence. So what was cut short is resumed where it was.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from iree_gauntlet.engine.rounds.taken_rounds import Measurement, TakenRound, take_round
from iree_gauntlet.measuring.statistics.rounds import Block, BlockOrder, Round, block_orders

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from iree_gauntlet.engine.session import Session


# CPUs that rounds are pinned to; none for the spec's own way, on all of them.
Cpus: TypeAlias = tuple[int, ...]
# Kinds of blocks: B against A, and A against itself.
AB = "ab"
CONTROL = "aa"
# A against itself, to see on which CPUs it is steadiest; and B against A in the spec's own way, where that is another.
TRIAL = "trial"
OWN = "own"
# Blocks that may be replaced for a disturbance, beyond one for each that counts.
_SPARE_BLOCKS = 5
_PAUSE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class PlannedBlock:
    """A block that is to be taken.

    Attributes:
        order: of its rounds, as the log has it.
        rounds: whose, and how each is started.
        attempts: how often a round is taken while other work disturbs it, before the block is given up.
        cpus: that its rounds are pinned to.
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
        self.attempts[event["kind"]] += 1
        self.count += event["counted"]
        for item in event["rounds"]:
            name = _name(event["kind"], item["side"])
            self.peak_bytes[name] = max(self.peak_bytes.get(name, 0), int(item["peak_rss_bytes"]))
            self.disturbances.update(item["disturbed"])


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
        kind, cpus = event["kind"], tuple(event.get("cpus") or ())
        into = {AB: self.blocks, CONTROL: self.control, OWN: self.own}.get(kind)
        # Blocks next to the comparison say nothing of how disturbed it is.
        if kind == OWN:
            self.own_tried += 1
        elif kind == TRIAL:
            self.tried[cpus] += 1
            into = self.trials.setdefault(cpus, [])
        else:
            RoundsEvidence.add(self, event)
            # A log from before there was a choice does not say.
            self.cpus = cpus if "cpus" in event else self.cpus
        if event["counted"] and into is not None:
            rounds = [Round(tuple(item["times_ms"])) for item in event["rounds"]]
            into.append(Block.of_rounds(BlockOrder(event["order"]), rounds))
            self.marked += kind in (AB, CONTROL) and any(item["disturbed"] for item in event["rounds"])


@dataclass(frozen=True, slots=True)
class Pair:
    """A model, as both sides run it.

    Attributes:
        ways: CPUs that its rounds may be pinned to: one that was asked for, or those to choose from.
        measured: how rounds of A and of B are taken on some CPUs.
    """

    chain: str
    ways: tuple[Cpus, ...]
    measured: Callable[[Cpus], tuple[Measurement, Measurement]]

    def block(self, kind: str, evidence: PairEvidence, seed: int, cpus: Cpus) -> PlannedBlock:
        """The next block of a kind.

        Args:
            kind: `AB` or `OWN`; or `CONTROL` or `TRIAL`, in which B's rounds are A's too.
            evidence: what there is so far.
            seed: of the coins that choose the order of each block.
            cpus: that its rounds are pinned to.
        """
        begun = {OWN: evidence.own_tried, TRIAL: evidence.tried[cpus]}
        number = begun.get(kind, evidence.attempts[kind])
        order = block_orders(number + 1, seed_of(seed, self.chain, kind))[number]
        a, b = self.measured(cpus)
        other = b if kind in (AB, OWN) else a
        rounds = [(side, a if side == "A" else other) for side in order]
        return PlannedBlock(self.chain, kind, str(order), rounds, cpus=cpus)


def evidence_of(events: Iterable[dict[str, Any]]) -> dict[str, PairEvidence]:
    """What the blocks of a log say, by model: to resume a comparison that was cut short.

    An event `measured` holds all blocks of a model, which another machine has taken; one with a `problem` says nothing.
    """
    found: dict[str, PairEvidence] = {}
    for event in events:
        if event.get("event") == "block":
            found.setdefault(str(event["chain"]), PairEvidence()).add(event)
        elif event.get("event") == "measured" and not event["problem"]:
            evidence = found[str(event["chain"])] = PairEvidence()
            for block in event["blocks"]:
                evidence.add(block)
    return found


class BlockTaker:
    """Takes blocks.

    Attributes:
        waited: seconds that went by until the machine was ours: they are no measuring time.

    Args:
        session: what it runs in; its log takes every block.
        replace_disturbed: whether what other work disturbed is taken again.
    """

    def __init__(self, session: Session[Any], *, replace_disturbed: bool) -> None:
        self._session = session
        self._cancelled = session.cancelled
        self._replace = replace_disturbed
        self.waited = 0.0

    def gives_up(self, evidence: RoundsEvidence) -> bool:
        """Whether no more blocks are of use: a process failed, or the machine is too disturbed."""
        return bool(evidence.failure) or (self._replace and evidence.too_disturbed)

    def goes_on(self, evidence: RoundsEvidence) -> bool:
        """Whether there may be one more block."""
        return not (self._cancelled.is_set() or self.gives_up(evidence))

    def take(self, block: PlannedBlock, evidence: RoundsEvidence) -> list[tuple[str, TakenRound]]:
        """Takes a block, into the evidence and the log; not where it is cut short or cannot be of use.

        Returns:
            A round for each of the plan's, with its side, where the block counts; else nothing.

        Raises:
            GauntletError: a process cannot be started at all, or the log cannot be written.
        """
        if not self.goes_on(evidence):
            return []
        began = time.monotonic()
        with self._session.quiet(next((item.device for _, item in block.rounds if item.device), "")):
            self.waited += time.monotonic() - began
            rounds = list(self._list_rounds(block))
        if self._cancelled.is_set():
            # What was cut short has no result.
            return []
        good = [(side, taken) for side, taken in rounds if self._is_good(taken)]
        counted = len(good) == len(block.rounds)
        event = {
            "chain": block.chain,
            "kind": block.kind,
            "order": block.order,
            "counted": counted,
            "cpus": list(block.cpus),
            "rounds": [{"side": side, **taken.as_dict()} for side, taken in rounds],
        }
        self._session.log.write("block", event)
        evidence.add(event)
        side, last = rounds[-1]
        if last.failure:
            evidence.failure = f"{_name(block.kind, side)}: {last.failure}"
        elif not counted:
            self._cancelled.wait(_PAUSE_SECONDS)
        return good if counted else []

    def _list_rounds(self, block: PlannedBlock) -> Iterator[tuple[str, TakenRound]]:
        """Rounds with their sides, until one fails or stays disturbed, or the block is cut short."""
        for side, measurement in block.rounds:
            for _ in range(block.attempts):
                taken = take_round(measurement, self._session.processes, f"rounds.{_name(block.kind, side)}.")
                yield side, taken
                if self._cancelled.is_set() or taken.failure or self._is_good(taken):
                    break
            if self._cancelled.is_set() or not self._is_good(taken):
                break

    def _is_good(self, taken: TakenRound) -> bool:
        return not taken.failure and not (taken.disturbed and self._replace)


def seed_of(seed: int, chain: str, kind: str) -> int:
    """The same for the same session, model and kind; unrelated for others, so that their coins are independent."""
    digest = hashlib.sha256(f"{seed}\0{chain}\0{kind}".encode()).digest()
    return int.from_bytes(digest[:8], "big")


def _name(kind: str, side: str) -> str:
    """Whose a round is. Both sides of a control are A; the log has two names, to tell its rounds apart."""
    return "A" if kind in (CONTROL, TRIAL) else side.strip()


def _without_figures(cause: str) -> str:
    return re.split(r"\d", cause, maxsplit=1)[0]
