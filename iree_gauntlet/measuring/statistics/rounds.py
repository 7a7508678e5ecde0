"""The evidence of a comparison: rounds of two sides, in blocks of four.

A round is one process start of `iree-benchmark-module` with its own warm-up. Repetitions within a process share its
memory layout and the machine's state of that second, so they are not independent evidence; rounds nearly are. A block
is four rounds in the order A B B A or B A A B. An effect that grows linearly over the block (a processor that heats up)
affects both sides alike and cancels.

Several looks at the evidence give no more false alarms than one. The total rate α is divided among planned looks:
α_k = α·w_k with Σ w_k = 1 (alpha spending: Lan and DeMets, Biometrika 70, 1983, after Pocock, Biometrika 64, 1977).
Look k makes an exact test of level α_k. By Boole's inequality P(any false alarm) ≤ Σ α_k = α, for any correlation of
the looks and any stopping. Lan and DeMets use the correlation through a normal approximation. It is not used here,
because it is inaccurate at 10 to 40 blocks and levels of a thousandth. The same argument gives a p-value that is valid
after any look: min over looks of p_k / w_k.
"""

from __future__ import annotations

import itertools
import math
import statistics
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from iree_gauntlet.errors import GauntletError

if TYPE_CHECKING:
    from collections.abc import Sequence


DEFAULT_ALPHA = 0.01
DEFAULT_MAX_BLOCKS = 40
# The first look's default level is 0.25 %, at which 9 blocks cannot decide (2/2⁹ = 0.4 %), but 10 can (2/2¹⁰ = 0.2 %).
_MIN_FIRST_LOOK = 10
_LOOK_GROWTH_FACTOR = 1.35


class EvidenceError(GauntletError):
    """Times or settings that allow no verdict."""


class BlockOrder(StrEnum):
    """The order of the sides' rounds; a letter for each process start."""

    ABBA = "ABBA"
    BAAB = "BAAB"


class Location(StrEnum):
    """The statistic of the repetitions that represents a round.

    A repetition is already a mean over many iterations, and disturbances only add time. So the default is the fastest
    repetition, which varies least between blocks if rounds are pinned to a CPU (docs/explanation/statistics.md).
    It still shows a slowdown of only some iterations, because every repetition has such iterations.
    """

    MIN = "min"
    MEAN = "mean"


@dataclass(frozen=True, slots=True)
class Round:
    """One process start: a positive finite figure for each repetition, in the same unit on both sides."""

    times: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.times:
            raise EvidenceError("a round without repetitions", "see the log of its benchmark")
        for time in self.times:
            if not math.isfinite(time) or time <= 0:
                raise EvidenceError(
                    f"a round has the time {time!r}, expected a positive finite number", "see the log of its benchmark"
                )

    def compute_location(self, kind: Location = Location.MIN) -> float:
        """Return the value that represents the round."""
        match kind:
            case Location.MIN:
                return min(self.times)
            case Location.MEAN:
                return statistics.fmean(self.times)


@dataclass(frozen=True, slots=True)
class Block:
    """Four consecutive rounds."""

    order: BlockOrder
    a: tuple[Round, Round]
    b: tuple[Round, Round]

    @classmethod
    def of_rounds(cls, order: BlockOrder, rounds: Sequence[Round]) -> Block:
        """Make a block of four rounds in the order of measurement."""
        if len(rounds) != 4:
            raise EvidenceError(f"a block of {len(rounds)} rounds, expected 4 in the order {order}")
        first, second, third, fourth = rounds
        outer, inner = (first, fourth), (second, third)
        return cls(order, outer, inner) if order == BlockOrder.ABBA else cls(order, inner, outer)

    def compute_log_ratio(self, kind: Location = Location.MIN) -> float:
        """Compute log(B/A), the mean log location of B's rounds minus that of A's; above 0 if B is slower."""
        slow = sum(math.log(round_.compute_location(kind)) for round_ in self.b)
        return (slow - sum(math.log(round_.compute_location(kind)) for round_ in self.a)) / 2


def draw_block_orders(count: int, seed: int) -> tuple[BlockOrder, ...]:
    """Draw the order of each block by a fair coin.

    The coin makes the sign-flip test exact: if A and B are the same, the sign of a block's log ratio depends on the
    coin alone, however the machine drifts (R. A. Fisher, The Design of Experiments, 1935, §21). A strictly alternating
    order could be in phase with a periodic disturbance. The same seed gives the same orders; a longer draw begins with
    the shorter one.
    """
    if count < 0 or seed < 0:
        raise EvidenceError(f"cannot draw {count} block orders with seed {seed}: both must be 0 or more")
    import numpy as np  # noqa: PLC0415 - thousands of small cases run without it

    coins = np.random.default_rng(seed).random(count)
    return tuple(BlockOrder.ABBA if coin < 0.5 else BlockOrder.BAAB for coin in coins)


@dataclass(frozen=True, slots=True)
class SequentialPlan:
    """The numbers of blocks at which the evidence is looked at, with each look's share of α.

    Attributes:
        alpha: two-sided false-alarm rate over all looks together.
        looks: numbers of blocks (of rounds for a golden), rising.
        weights: the share of alpha that each look spends; their sum is 1.
    """

    alpha: float
    looks: tuple[int, ...]
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        if not 0 < self.alpha < 1:
            raise EvidenceError(f"false-alarm rate {self.alpha!r}, expected a number between 0 and 1")
        if not self.looks or len(self.looks) != len(self.weights):
            raise EvidenceError(f"a plan with {len(self.looks)} looks and {len(self.weights)} weights")
        if self.looks[0] < 1 or any(later <= earlier for earlier, later in itertools.pairwise(self.looks)):
            raise EvidenceError(f"looks at {self.looks} blocks, expected increasing numbers from 1")
        if not all(weight > 0 for weight in self.weights) or not math.isclose(sum(self.weights), 1):
            raise EvidenceError(f"weights {self.weights}, expected positive shares of 1")

    @property
    def max_blocks(self) -> int:
        """The number of blocks of the last look."""
        return self.looks[-1]

    def next_look(self, blocks: int) -> int | None:
        """Return the number of blocks of the next look; None after the last look."""
        return next((look for look in self.looks if look > blocks), None)

    def list_looks(self, blocks: int) -> tuple[tuple[int, float], ...]:
        """Return the looks that so many blocks allow, each with the two-sided level that it spends."""
        pairs = zip(self.looks, self.weights, strict=True)
        return tuple((look, self.alpha * weight) for look, weight in pairs if look <= blocks)


def plan_looks(alpha: float = DEFAULT_ALPHA, max_blocks: int = DEFAULT_MAX_BLOCKS) -> SequentialPlan:
    """Plan looks from `_MIN_FIRST_LOOK` on, each a third later than the last; α is spent in proportion to the blocks.

    That is the spending function α(t) = α·t of Lan and DeMets, where t is the fraction of the blocks. It lets an early
    look decide a clear case. n blocks give no two-sided p-value below 2/2ⁿ, so with a small rate or a large budget the
    first look is later, because a look that cannot decide would waste its share. If no earlier look can decide, the
    only look is at the end of the budget. α is the two-sided false-alarm rate over all looks together.
    """
    if max_blocks < 1:
        raise EvidenceError(f"a budget of {max_blocks} blocks, expected at least 1")
    deciding = (look for look in range(_MIN_FIRST_LOOK, max_blocks) if 2.0 ** (1 - look) <= alpha * look / max_blocks)
    looks = [next(deciding, max_blocks)]
    while looks[-1] < max_blocks:
        later = math.ceil(looks[-1] * _LOOK_GROWTH_FACTOR)
        # The last look takes all remaining blocks, rather than leaving a further look after one or two blocks.
        looks.append(max_blocks if later * (1 + (_LOOK_GROWTH_FACTOR - 1) / 2) > max_blocks else later)
    shares = [(look - previous) / max_blocks for previous, look in itertools.pairwise([0, *looks])]
    return SequentialPlan(alpha, tuple(looks), tuple(shares))
