"""Many models at once: how many of the differences found are false, and the mean over models."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from iree_gauntlet.measuring.statistics.comparison_verdict import Comparison, without_verdict
from iree_gauntlet.measuring.statistics.rounds import EvidenceError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


DEFAULT_DISCOVERY_RATE = 0.05


class Dependence(StrEnum):
    """What may be assumed of p-values of different models.

    With block orders drawn by lot for each model they are independent where nothing differs, however the noise hangs
    together: Benjamini and Hochberg, Journal of the Royal Statistical Society B 57, 1995. `ANY` assumes nothing and
    pays a factor of 1 + 1/2 + … + 1/m: Benjamini and Yekutieli, Annals of Statistics 29, 2001.
    """

    INDEPENDENT = "independent"
    ANY = "any"


@dataclass(frozen=True, slots=True)
class GeometricMean:
    """Mean ratio over models.

    Attributes:
        ratio: geometric mean of time B / time A.
        low, high: its interval, for models like these; 0 and infinity for a single model.
        confidence: of the interval.
        models: how many.
    """

    ratio: float
    low: float
    high: float
    confidence: float
    models: int


def adjusted_p_values(p_values: Sequence[float], dependence: Dependence = Dependence.INDEPENDENT) -> tuple[float, ...]:
    """For each p-value the smallest false-discovery rate at which it counts as a discovery.

    Raises:
        EvidenceError: a p-value that is not between 0 and 1.
    """
    if any(not 0 <= p <= 1 for p in p_values):
        raise EvidenceError(f"p-values {list(p_values)}, expected numbers from 0 to 1")
    if not p_values:
        return ()
    count = len(p_values)
    penalty = 1.0 if dependence == Dependence.INDEPENDENT else sum(1 / rank for rank in range(1, count + 1))
    order = np.argsort(p_values, kind="stable")
    scaled = np.asarray(p_values)[order] * count * penalty / np.arange(1, count + 1)
    adjusted = np.empty(count)
    # Step-up: a larger p-value that passes takes all smaller ones with it.
    adjusted[order] = np.minimum(np.minimum.accumulate(scaled[::-1])[::-1], 1.0)
    return tuple(float(p) for p in adjusted)


def control_discoveries(
    comparisons: Mapping[str, Comparison],
    rate: float = DEFAULT_DISCOVERY_RATE,
    dependence: Dependence = Dependence.INDEPENDENT,
) -> dict[str, Comparison]:
    """Keeps the share of false ones among all `slower` and `faster` at or below a rate.

    A difference that is no discovery among so many models becomes `inconclusive`; other verdicts stay.

    Args:
        comparisons: by model, already held against their controls; all that were made, not only those that look bad.
        rate: the largest expected share of false discoveries.
        dependence: what may be assumed.

    Raises:
        EvidenceError: a rate that is not between 0 and 1.
    """
    if not 0 < rate < 1:
        raise EvidenceError(f"false-discovery rate {rate!r}, expected a number between 0 and 1")
    # A model that is not reported as different, as after a void session, must not lend its small p-value to others.
    p_values = [comparison.p_value if comparison.differs else 1.0 for comparison in comparisons.values()]
    adjusted = adjusted_p_values(p_values, dependence)
    judged = dict(comparisons)
    for (model, comparison), p_value in zip(comparisons.items(), adjusted, strict=True):
        if comparison.differs and p_value > rate:
            reason = (
                f"{comparison.verdict} on its own, but among {len(comparisons)} models such a difference turns up by"
                f" chance (adjusted p {p_value:.3f}, limit {rate:g}); compare this model alone, with more blocks"
            )
            judged[model] = without_verdict(comparison, reason)
    return judged


def geometric_mean(comparisons: Sequence[Comparison], confidence: float = 0.95) -> GeometricMean:
    """Geometric mean of the ratios, models being the outer level of the sample.

    Student's interval over the models' log ratios: each carries the noise of its own blocks, so that both levels are
    in their spread (a two-stage sample: Cochran, Sampling Techniques, 3rd edition, 1977, chapter 10). It speaks of
    models like these, and with few models it is wide.

    Raises:
        EvidenceError: no comparisons, a confidence that is not between 0 and 1.
    """
    if not comparisons or not 0 < confidence < 1:
        raise EvidenceError(f"geometric mean of {len(comparisons)} models with confidence {confidence!r}")
    logs = np.log([comparison.ratio for comparison in comparisons])
    mean, count = float(logs.mean()), len(comparisons)
    if count == 1:
        return GeometricMean(math.exp(mean), 0.0, math.inf, confidence, 1)
    reach = student_quantile((1 + confidence) / 2, count - 1) * float(logs.std(ddof=1)) / math.sqrt(count)
    return GeometricMean(math.exp(mean), math.exp(mean - reach), math.exp(mean + reach), confidence, count)


def student_quantile(probability: float, degrees: int) -> float:
    """The value below which a share of Student's t distribution lies.

    By bisection of the distribution function, whose closed form for whole degrees of freedom is in Abramowitz and
    Stegun, Handbook of Mathematical Functions, 1964, 26.7.3 and 26.7.4.

    Raises:
        EvidenceError: a probability outside 0 to 1, or no degree of freedom.
    """
    if not 0 < probability < 1 or degrees < 1:
        raise EvidenceError(f"quantile {probability!r} of Student's t with {degrees} degrees of freedom")
    if probability < 0.5:
        return -student_quantile(1 - probability, degrees)
    low, high = 0.0, 1.0
    while _within(high, degrees) < 2 * probability - 1:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        if _within(middle, degrees) < 2 * probability - 1:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def student_p(value: float, degrees: int) -> float:
    """The probability that |T| is at least this large; `degrees` of freedom."""
    return max(0.0, 1 - _within(abs(value), degrees))


def _within(value: float, degrees: int) -> float:
    """P(|T| ≤ value)."""
    angle = math.atan(value / math.sqrt(degrees))
    square = math.cos(angle) ** 2
    term, total = 1.0, 0.0
    first = 2 if degrees % 2 else 1
    for number in range(first, degrees, 2):
        total += term
        term *= square * number / (number + 1)
    if degrees % 2 == 0:
        return math.sin(angle) * total
    if degrees == 1:
        return 2 * angle / math.pi
    return 2 / math.pi * (angle + math.sin(angle) * math.cos(angle) * total)
