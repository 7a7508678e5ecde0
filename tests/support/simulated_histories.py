"""Histories of a time with planted noise, steps and drifts, and the golden times that follow from them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from iree_gauntlet.cases import Golden, Origin
from iree_gauntlet.figures import Figure, Statistic
from iree_gauntlet.history.judge import MinEffects, judge
from iree_gauntlet.measuring.goldens.golden_evidence import Proposal
from iree_gauntlet.measuring.goldens.golden_rules import parse_rule
from iree_gauntlet.records.history_record import Point, Series, SeriesKey
from iree_gauntlet.upkeep.history_goldens import propose_from_series

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Values = NDArray[np.float64]

GOLDEN = Golden(Figure.TIME, 5.0, 1.1, Statistic.MEAN, "desk", "", Origin("specs/toy.json", "golden_time_ms.desk"))


@dataclass(frozen=True, slots=True)
class Noise:
    """Log-normal noise, and a share of runs that are slower by 5 to 30 %."""

    spread: float
    outlier_share: float

    def draw(self, chance: np.random.Generator, count: int) -> Values:
        """Draw the times of runs of a program that takes 10 ms."""
        times = 10 * np.exp(chance.normal(0, self.spread, count))
        is_outlier = chance.random(count) < self.outlier_share
        return np.where(is_outlier, times * chance.uniform(1.05, 1.3, count), times)


def draw_noise(chance: np.random.Generator) -> Noise:
    """Draw the noise of a machine: from quiet and steady to one with many slow runs."""
    return Noise(float(chance.uniform(0.003, 0.03)), float(chance.uniform(0, 0.05)))


def make_series(times: Sequence[float] | Values, name: str = "net", disturbed: Sequence[int] = ()) -> Series:
    """Make the series of a history that has these times, a run each."""
    points = tuple(
        Point(f"{number}.json", f"run{number}", "2026-03-01T10:00:00+00:00", f"3.{number}.0", "", float(time))
        if number not in disturbed
        else Point(f"{number}.json", f"run{number}", "2026-03-01", f"3.{number}.0", "", float(time), disturbed=True)
        for number, time in enumerate(times)
    )
    return Series(SeriesKey("toy", name, "cpu", "time_ms", "desk", "f", "CPU"), points)


@dataclass(frozen=True, slots=True)
class SimulatedGoldens:
    """The proposals of a rule for many histories.

    Attributes:
        alarm_shares: for each proposal, the share of fresh runs of the same noise above its limit.
        reasons: how often each reason to refuse was given, by its first words.
    """

    alarm_shares: tuple[float, ...]
    reasons: Counter[str]

    @property
    def refused_share(self) -> float:
        """The share of the histories that gave no golden."""
        refused = sum(self.reasons.values())
        return refused / (refused + len(self.alarm_shares))


def simulate(
    rule: str,
    count: int,
    runs: int,
    *,
    seed: int,
    step: float = 0.0,
    runs_after: int = 0,
    drift: float = 0.0,
    fresh: int = 2000,
) -> SimulatedGoldens:
    """Judge `count` histories of `runs` runs as `golden.update --from-history` does, each as the only one of a store.

    `step` is a relative change before the last `runs_after` runs, `drift` one from the first to the last run.
    """
    chance = np.random.default_rng(seed)
    alarm_shares: list[float] = []
    reasons: Counter[str] = Counter()
    for _ in range(count):
        noise = draw_noise(chance)
        level = np.linspace(1.0, 1.0 + drift, runs)
        level[runs - runs_after :] *= 1.0 + step
        series = make_series(noise.draw(chance, runs) * level)
        outcome = propose_from_series(GOLDEN, series, judge([series], MinEffects()), parse_rule(rule), 0.02).outcome
        if isinstance(outcome, Proposal):
            limit = outcome.value * GOLDEN.factor
            alarm_shares.append(float((noise.draw(chance, fresh) * level[-1] > limit).mean()))
        else:
            reasons[_name_reason(outcome)] += 1
    return SimulatedGoldens(tuple(alarm_shares), reasons)


def _name_reason(reason: str) -> str:
    """Name the kind of a refusal."""
    if "since its last step" in reason:
        return "too short since its step"
    kinds = {
        " runs, and": "too short",
        "drifts": "drift",
        "has a step": "small step",
        "not level": "not level",
        "ends": "end",
    }
    return next((kind for words, kind in kinds.items() if words in reason), reason)
