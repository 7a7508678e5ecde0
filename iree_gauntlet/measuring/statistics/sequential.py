"""Looking at the evidence more than once without more false alarms: a spending plan.

The total false-alarm rate α is shared out over planned looks, α_k = α·w_k with Σ w_k = 1 (alpha spending: Lan and
DeMets, Biometrika 70, 1983, after Pocock, Biometrika 64, 1977). At look k an exact test of level α_k is made. By
Boole's inequality P(any false alarm) ≤ Σ α_k = α whatever the looks have in common and whenever one stops. Lan and
DeMets win back what the looks have in common by way of a normal approximation; at 10 to 40 blocks and levels of a
thousandth that approximation is what fails first, so it is not used.

From the same argument comes a p-value that stays valid whatever the stopping: min over looks of p_k / w_k.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from iree_gauntlet.measuring.statistics.rounds import EvidenceError

DEFAULT_ALPHA = 0.01
DEFAULT_MAX_BLOCKS = 40
# Fewer cannot decide at a quarter of 1 %, the first look's share by default: 2/2⁹ = 0.4 %, 2/2¹⁰ = 0.2 %.
_FIRST_LOOK = 10
_GROWTH = 1.35


@dataclass(frozen=True, slots=True)
class SequentialPlan:
    """When the evidence is looked at, and what each look may cost.

    Attributes:
        alpha: two-sided false-alarm rate over all looks together.
        looks: at which numbers of blocks (of rounds for a golden), rising.
        weights: share of alpha that each look spends; they add up to 1.

    Raises:
        EvidenceError: what cannot be a plan.
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
            raise EvidenceError(f"looks at {self.looks} blocks, expected rising numbers from 1 on")
        if not all(weight > 0 for weight in self.weights) or not math.isclose(sum(self.weights), 1):
            raise EvidenceError(f"weights {self.weights}, expected positive shares of 1")

    @property
    def max_blocks(self) -> int:
        """After so many the rule has had all its looks."""
        return self.looks[-1]

    def next_look(self, blocks: int) -> int | None:
        """The number of blocks at which the evidence is looked at next; None after the last look."""
        return next((look for look in self.looks if look > blocks), None)

    def reached(self, blocks: int) -> tuple[tuple[int, float], ...]:
        """The looks that so many blocks allow, each with the two-sided level that it spends."""
        pairs = zip(self.looks, self.weights, strict=True)
        return tuple((look, self.alpha * weight) for look, weight in pairs if look <= blocks)


def sequential_plan(alpha: float = DEFAULT_ALPHA, max_blocks: int = DEFAULT_MAX_BLOCKS) -> SequentialPlan:
    """Looks from `_FIRST_LOOK` on, each a third later than the one before; α is spent in proportion to the blocks.

    That is the spending function α(t) = α·t of Lan and DeMets, t the share of the blocks: an early look gets enough
    to stop a plain case. With a small rate or a large budget the first look is later, as one that cannot decide would
    waste its share: n blocks give no two-sided p-value below 2/2ⁿ.

    Args:
        alpha: two-sided false-alarm rate over all looks together.
        max_blocks: the budget; where no earlier look can decide there is one, at the end.

    Raises:
        EvidenceError: a rate outside 0 to 1, no blocks.
    """
    if max_blocks < 1:
        raise EvidenceError(f"a budget of {max_blocks} blocks, expected at least 1")
    deciding = (look for look in range(_FIRST_LOOK, max_blocks) if 2.0 ** (1 - look) <= alpha * look / max_blocks)
    looks = [next(deciding, max_blocks)]
    while looks[-1] < max_blocks:
        later = math.ceil(looks[-1] * _GROWTH)
        # The last step takes what is left rather than adding a look a block or two later.
        looks.append(max_blocks if later * (1 + (_GROWTH - 1) / 2) > max_blocks else later)
    shares = [(look - before) / max_blocks for before, look in itertools.pairwise([0, *looks])]
    return SequentialPlan(alpha, tuple(looks), tuple(shares))
