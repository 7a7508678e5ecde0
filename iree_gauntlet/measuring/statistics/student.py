"""Quantiles of Student's t distribution, without a dependency for one function."""

from __future__ import annotations

import math

from iree_gauntlet.measuring.statistics.rounds import EvidenceError

__all__ = ["student_quantile"]


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
