"""What a comparison is asked for: which two IREEs, how their rounds are taken, and what decides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from iree_gauntlet.errors import UsageError
from iree_gauntlet.experiments.session_verdicts import Rules
from iree_gauntlet.experiments.sides import rounds_asked
from iree_gauntlet.measuring.statistics.sequential import DEFAULT_ALPHA, sequential_plan

if TYPE_CHECKING:
    from iree_gauntlet.engine.rounds.taken_rounds import RoundSettings
    from iree_gauntlet.requests import CompareRequest, ConductRequest


@dataclass(frozen=True, slots=True)
class CompareSettings:
    """How rounds are taken and judged.

    Attributes:
        metric: what is compared.
        rules: what decides.
        rounds: how they are taken.
        least_work: the share from which on a difference in instructions counts.
        no_work: no instructions are counted beside the times.
    """

    metric: str
    rules: Rules
    rounds: RoundSettings
    least_work: float
    no_work: bool


def two_sides(text: str) -> tuple[str, str]:
    """The two IREEs of a comparison.

    Raises:
        UsageError: they are not two.
    """
    words = text.split()
    if len(words) != 2:
        raise UsageError(
            f"compare takes two IREEs, not {len(words)}",
            "Such as: compare 3.12.0 3.13.0 --model dtln, or compare installed build:../iree-build --suite cpu.",
        )
    return words[0], words[1]


def compare_settings(asked: CompareRequest, conduct: ConductRequest, *, here: bool) -> CompareSettings:
    """How rounds are taken and judged.

    Args:
        asked: what is asked for.
        conduct: how runs are carried out.
        here: the rounds are taken on this machine, whose CPUs are known.

    Raises:
        UsageError: it makes no sense.
    """
    least, band = asked.least / 100, asked.band / 100
    if not 0 < least <= band < 1:
        raise UsageError(
            f"--least {asked.least:g} and --band {asked.band:g} (per cent): expected 0 < least ≤ band < 100",
            "The defaults are 1 and 3.",
        )
    if asked.allow < 0:
        raise UsageError(f"--allow {asked.allow:g}: expected per cent, 0 or more", "Leave it out for that of --band.")
    if not 0 <= asked.least_work < 100:
        raise UsageError(
            f"--least-work {asked.least_work:g}: expected per cent, from 0 to 100", "Leave it out for 0.01."
        )
    if asked.seed < 0:
        raise UsageError(f"--seed {asked.seed}: expected 0 or more", "Any number will do.")
    rules = Rules(
        plan=sequential_plan(DEFAULT_ALPHA),
        least=least,
        band=band,
        allow=(asked.allow or asked.band) / 100,
        budget=60 * asked.budget,
        seed=asked.seed,
        replace_disturbed=conduct.replaces_disturbed,
    )
    rounds = rounds_asked(asked, here=here)
    return CompareSettings(asked.metric, rules, rounds, asked.least_work / 100, asked.no_work)
