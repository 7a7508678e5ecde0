"""The evidence of a comparison: rounds of two sides, in blocks of four.

A round is one process start of `iree-benchmark-module` with its own warm-up. Repetitions within a process share
its memory layout and the machine's mood of that second, so they are no independent evidence; rounds nearly are. A
block is four rounds in the order A B B A or B A A B: whatever grows linearly over the four (a clock that heats up)
falls on both sides alike and cancels.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from iree_gauntlet.errors import GauntletError

if TYPE_CHECKING:
    from collections.abc import Sequence


class EvidenceError(GauntletError):
    """Times or settings from which no verdict can be had."""


class BlockOrder(StrEnum):
    """Which side's rounds come first; a letter a process start."""

    ABBA = "ABBA"
    BAAB = "BAAB"


class Location(StrEnum):
    """Which figure of the repetitions stands for a round.

    A repetition is already a mean over many iterations, and what disturbs it only ever adds time. So the fastest one
    is the default: on rounds pinned to a CPU it spreads least from block to block (figures:
    docs/explanation/statistics.md). A slowdown of only some iterations still moves it: they are in every repetition.
    """

    MIN = "min"
    MEDIAN = "median"
    MEAN = "mean"


@dataclass(frozen=True, slots=True)
class Round:
    """One process start.

    Attributes:
        times: a figure for each repetition, in any unit that is the same for both sides.

    Raises:
        EvidenceError: no times, or one that is not a positive finite number.
    """

    times: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.times:
            raise EvidenceError("a round without repetitions", "see the log of its benchmark")
        for time in self.times:
            if not math.isfinite(time) or time <= 0:
                raise EvidenceError(
                    f"a round has the time {time!r}, expected a positive finite number", "see the log of its benchmark"
                )

    def location(self, kind: Location = Location.MIN) -> float:
        """The one figure that stands for the round."""
        match kind:
            case Location.MIN:
                return min(self.times)
            case Location.MEDIAN:
                return statistics.median(self.times)
            case Location.MEAN:
                return statistics.fmean(self.times)


@dataclass(frozen=True, slots=True)
class Block:
    """Four rounds that were taken one after the other.

    Attributes:
        order: in which order.
        a, b: the two rounds of each side.
    """

    order: BlockOrder
    a: tuple[Round, Round]
    b: tuple[Round, Round]

    @classmethod
    def of_rounds(cls, order: BlockOrder, rounds: Sequence[Round]) -> Block:
        """The block of four rounds as they were taken.

        Raises:
            EvidenceError: not four.
        """
        if len(rounds) != 4:
            raise EvidenceError(f"a block of {len(rounds)} rounds, expected 4 in the order {order}")
        first, second, third, fourth = rounds
        outer, inner = (first, fourth), (second, third)
        return cls(order, outer, inner) if order == BlockOrder.ABBA else cls(order, inner, outer)

    def log_ratio(self, kind: Location = Location.MIN) -> float:
        """log(B/A): mean log location of B's rounds less that of A's; above 0 where B is slower."""
        slow = sum(math.log(round_.location(kind)) for round_ in self.b)
        return (slow - sum(math.log(round_.location(kind)) for round_ in self.a)) / 2


def block_orders(count: int, seed: int) -> tuple[BlockOrder, ...]:
    """Draws the order of each block by a fair coin.

    The coin is what makes the sign-flip test exact: where A and B are the same, the sign of a block's log ratio is the
    coin's and nothing else's, however the machine drifts (R. A. Fisher, The Design of Experiments, 1935, §21). An
    order that strictly alternates could fall in step with a periodic disturbance.

    Args:
        count: how many blocks.
        seed: the same seed gives the same orders; a longer draw begins with the shorter one.

    Raises:
        EvidenceError: a negative count or seed.
    """
    if count < 0 or seed < 0:
        raise EvidenceError(f"cannot draw {count} block orders with seed {seed}: both must be 0 or more")
    import numpy as np  # noqa: PLC0415 - thousands of small cases run without it

    coins = np.random.default_rng(seed).random(count)
    return tuple(BlockOrder.ABBA if coin < 0.5 else BlockOrder.BAAB for coin in coins)
