"""Blocks of rounds of two programs, kept to the rule: replaced for a disturbance, never for their times.

Everything that is measured goes into a log of events at once: an event `block` holds four rounds, or fewer where one
failed or was disturbed, and `counted` says whether they are evidence. So what was cut short goes on where it was.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from iree_gauntlet.engine.rounds.taken_rounds import Measurement, TakenRound, take_round
from iree_gauntlet.measuring.statistics.rounds import Block, BlockOrder, Round, block_orders

if TYPE_CHECKING:
    from collections.abc import Iterable

    from iree_gauntlet.engine.session import Session

__all__ = [
    "AB",
    "CONTROL",
    "PAUSE_SECONDS",
    "SPARE_BLOCKS",
    "BlockTaker",
    "Evidence",
    "Pair",
    "evidence_of",
    "main_cause",
    "seed_of",
]

# Kinds of blocks: B against A, and A against itself.
AB = "ab"
CONTROL = "aa"
# Blocks that may be replaced for a disturbance, beyond one for each that counts.
SPARE_BLOCKS = 5
PAUSE_SECONDS = 1.0
# More attempts than any plan makes.
_MOST_ATTEMPTS = 4096


@dataclass(frozen=True, slots=True)
class Pair:
    """A model, as both sides run it."""

    chain: str
    a: Measurement
    b: Measurement


@dataclass(slots=True)
class Evidence:
    """What was measured of a model so far.

    Attributes:
        blocks: of B against A, those that count.
        control: of A against itself.
        attempts: blocks that were begun, by kind.
        disturbances: why blocks were replaced, and how many for that.
        marked: blocks that count although they were disturbed.
        failure: why there can be no verdict; empty where nothing failed.
        peak_bytes: largest resident set of a process, by side.
    """

    blocks: list[Block] = field(default_factory=list)
    control: list[Block] = field(default_factory=list)
    attempts: Counter[str] = field(default_factory=Counter)
    disturbances: Counter[str] = field(default_factory=Counter)
    marked: int = 0
    failure: str = ""
    peak_bytes: dict[str, int] = field(default_factory=dict)

    def of(self, kind: str) -> list[Block]:
        """The blocks of a kind."""
        return self.blocks if kind == AB else self.control

    @property
    def replaced(self) -> int:
        """Blocks that were taken and do not count."""
        return sum(self.attempts.values()) - len(self.blocks) - len(self.control)

    @property
    def too_disturbed(self) -> bool:
        """Whether the machine is too busy for this to finish."""
        return self.replaced > SPARE_BLOCKS + len(self.blocks) + len(self.control)

    @property
    def main_disturbance(self) -> str:
        """What spoiled most blocks, with the figures of one of them; empty for none."""
        return main_cause(self.disturbances)


def main_cause(causes: Counter[str]) -> str:
    """The most frequent of some causes, whatever their figures, with those of one of them; empty for none."""
    kinds = Counter(_kind(cause) for cause in causes.elements())
    most = next((kind for kind, _ in kinds.most_common(1)), "")
    return next((cause for cause in causes if _kind(cause) == most), "")


def _kind(cause: str) -> str:
    """A cause without its figures."""
    return re.split(r"\d", cause, maxsplit=1)[0]


def evidence_of(events: Iterable[dict[str, Any]]) -> dict[str, Evidence]:
    """What the blocks of a log say, by model: to go on with a comparison that was cut short."""
    found: dict[str, Evidence] = {}
    for event in events:
        if event.get("event") != "block":
            continue
        evidence = found.setdefault(str(event["chain"]), Evidence())
        rounds = [Round(tuple(item["times_ms"])) for item in event["rounds"] if item["times_ms"]]
        causes = {cause for item in event["rounds"] for cause in item["disturbed"]}
        evidence.attempts[event["kind"]] += 1
        if event["counted"]:
            evidence.of(event["kind"]).append(Block.of_rounds(BlockOrder(event["order"]), rounds))
            evidence.marked += bool(causes)
        else:
            evidence.disturbances.update(causes)
        for item in event["rounds"]:
            side = str(item["side"]) if event["kind"] == AB else "A"
            evidence.peak_bytes[side] = max(evidence.peak_bytes.get(side, 0), int(item["peak_rss_bytes"]))
    return found


class BlockTaker:
    """Takes blocks.

    Attributes:
        waited: seconds that went by until the machine was ours: they are no measuring time.

    Args:
        session: what it runs in; its log takes every block.
        seed: of the coins that choose the order of each block.
        replace_disturbed: whether a block with a disturbed round is taken again.
    """

    def __init__(self, session: Session[Any], seed: int, *, replace_disturbed: bool) -> None:
        self._session = session
        self._seed = seed
        self._cancelled = session.cancelled
        self._replace = replace_disturbed
        self.waited = 0.0

    def gives_up(self, evidence: Evidence) -> bool:
        """Whether no more blocks are of use: a process failed, or the machine is too disturbed."""
        return bool(evidence.failure) or (self._replace and evidence.too_disturbed)

    def take(self, pair: Pair, evidence: Evidence, kind: str) -> None:
        """One more block, into the evidence and the log; nothing where it is cut short or cannot be of use.

        Raises:
            GauntletError: a process cannot be started at all, or the log cannot be written.
        """
        if self._cancelled.is_set() or self.gives_up(evidence):
            return
        attempt = evidence.attempts[kind]
        order = block_orders(_MOST_ATTEMPTS, seed_of(self._seed, pair.chain, kind))[attempt]
        sides = {"A": pair.a, "B": pair.b if kind == AB else pair.a}
        rounds: list[tuple[str, TakenRound]] = []
        began = time.monotonic()
        with self._session.quiet(pair.a.device):
            self.waited += time.monotonic() - began
            for side in order:
                # Both sides of a control are A; the second is called so that its rounds can be told apart.
                taken = take_round(sides[side], self._session.processes, f"rounds.{side if kind == AB else 'A'}.")
                if self._cancelled.is_set():
                    # What was cut short has no result.
                    return
                rounds.append((side, taken))
                if taken.failure or (taken.disturbed and self._replace):
                    break
        failed = next(((side, taken.failure) for side, taken in rounds if taken.failure), None)
        causes = {cause for _, taken in rounds for cause in taken.disturbed}
        counted = failed is None and not (causes and self._replace)
        evidence.attempts[kind] += 1
        records = [{"side": side, **taken.as_dict()} for side, taken in rounds]
        self._session.log.write(
            "block",
            {"chain": pair.chain, "kind": kind, "order": str(order), "counted": counted, "rounds": records},
        )
        for side, taken in rounds:
            name = side if kind == AB else "A"
            evidence.peak_bytes[name] = max(evidence.peak_bytes.get(name, 0), taken.peak_rss_bytes)
        if failed is not None:
            evidence.failure = f"{failed[0] if kind == AB else 'A'}: {failed[1]}"
        elif counted:
            evidence.of(kind).append(Block.of_rounds(order, [taken.evidence for _, taken in rounds]))
            evidence.marked += bool(causes)
        else:
            evidence.disturbances.update(causes)
            self._cancelled.wait(PAUSE_SECONDS)


def seed_of(seed: int, chain: str, kind: str) -> int:
    """The same for the same session, model and kind; unrelated for others, so that their coins are independent."""
    digest = hashlib.sha256(f"{seed}\0{chain}\0{kind}".encode()).digest()
    return int.from_bytes(digest[:8], "big")
