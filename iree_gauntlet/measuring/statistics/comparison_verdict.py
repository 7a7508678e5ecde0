"""Decide whether B is slower than A, from blocks of rounds, with margins for a difference and for equality.

δ is the minimum effect, and ε ≥ δ is the equivalence margin. Both are on the log scale, so that A against B
and B against A agree. The verdicts are:

- `slower`: the whole interval of the ratio B/A is above 1 + δ; `faster`: it is below 1/(1 + δ);
- `same`: the interval is between 1/(1 + ε) and 1 + ε;
- `not slower`, only if this is sufficient: the interval is below 1 + the allowed slowdown;
- `inconclusive`: anything else, with the reason and the number of blocks at which to look again.

There are two margins because their costs differ: excluding δ is cheap if B is much slower, while an interval
within ±δ takes hundreds of rounds on most machines. An interval that is beyond δ and within ε is a difference.

The interval is the intersection of the exact intervals of all looks so far (`rounds`). All these intervals hold
together with probability 1 − α or more, so the measurement may stop after any look.

Intervals and p-values are exact, by flipping signs. Suppose that B is A times a constant. Then a block's log ratio,
minus the log of the constant, is x or −x with equal probability, because a coin chose the block's order. So Wilcoxon's
signed-rank statistic has a known distribution for any noise (Wilcoxon, Biometrics Bulletin 1, 1945), which is counted
exactly here. The interval contains all constants that the test does not reject: its ends are order statistics of the
Walsh averages (dᵢ + dⱼ)/2, i ≤ j. The median of these averages is the estimate (Hodges and Lehmann, Annals of
Mathematical Statistics 34, 1963); up to a quarter of outlying blocks changes it little.

docs/explanation/statistics.md has the coverage of this interval and of simpler intervals.

For many models at once, this module limits the share of false differences, and computes the mean over models.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from iree_gauntlet.formatting import format_ratio, format_span
from iree_gauntlet.measuring.statistics.rounds import Block, EvidenceError, Location

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from iree_gauntlet.measuring.statistics.rounds import SequentialPlan


DEFAULT_MIN_EFFECT = 0.01
DEFAULT_EQUIVALENCE_MARGIN = 0.03
DEFAULT_DISCOVERY_RATE = 0.05
_MAX_BLOCKS = 1000


class TimeVerdict(StrEnum):
    """The verdict on B against A."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"
    NOT_SLOWER = "not slower"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, slots=True)
class Comparison:
    """The comparison of B with A, for one model.

    Attributes:
        ratio: estimate of time B / time A; 1.05 is 5 % slower.
        low, high: the interval of the ratio; 0 and infinity if there are too few blocks. If blocks contradict each
            other, `low` is above `high`.
        confidence: the interval's confidence 1 − α, which holds after any look.
        p_value: the p-value against "the difference is δ at most", valid after any look; 1 before the first look.
        next_look: the number of blocks of the next look; None after a decision or the last look.
    """

    verdict: TimeVerdict
    reason: str
    ratio: float
    low: float
    high: float
    confidence: float
    blocks: int
    p_value: float
    next_look: int | None

    @property
    def differs(self) -> bool:
        """True if B is slower or faster."""
        return self.verdict in (TimeVerdict.SLOWER, TimeVerdict.FASTER)


def compare(
    blocks: Sequence[Block],
    plan: SequentialPlan,
    least: float = DEFAULT_MIN_EFFECT,
    band: float = DEFAULT_EQUIVALENCE_MARGIN,
    location: Location = Location.MIN,
    allow: float | None = None,
) -> Comparison:
    """Judge blocks in the order of their measurement.

    Args:
        blocks: all blocks that count; blocks may be replaced for a disturbance, but never for their times.
        plan: the looks, and the false-alarm rate that they share; blocks after the last look are not used.
        least: δ, the minimum effect, above which a difference matters; 0.01 is 1 %.
        band: ε, the equivalence margin, within which two times count as the same.
        location: the statistic of the repetitions that represents a round.
        allow: the slowdown below which the verdict is `not slower`; None if this verdict is not possible.
    """
    return compare_log_ratios(compute_log_ratios(blocks, location), plan, least, band, allow)


def compare_log_ratios(
    ratios: NDArray[np.float64],
    plan: SequentialPlan,
    least: float = DEFAULT_MIN_EFFECT,
    band: float = DEFAULT_EQUIVALENCE_MARGIN,
    allow: float | None = None,
) -> Comparison:
    """Judge the log ratio log(B/A) of each block, as `compare` does."""
    if allow is not None and not allow >= 0:
        raise EvidenceError(f"allowed slowdown {allow!r}: expected 0 or more", "0.03 is 3 %")
    if not 0 < least <= band < 1:
        raise EvidenceError(
            f"minimum effect {least!r} and equivalence margin {band!r}: expected 0 < least ≤ band < 1", "0.01 is 1 %"
        )
    edge = math.log1p(least)
    looks = plan.list_looks(ratios.size)
    interval, p_slower, p_faster = Interval(-math.inf, math.inf), 1.0, 1.0
    _require_averageable(ratios[: plan.max_blocks])
    for look, level in looks:
        # Every look uses only the blocks that existed when it was made.
        walsh = sort_walsh_averages(ratios[:look])
        interval = interval.intersection(rank_interval(walsh, level))
        share = level / plan.alpha
        p_slower = min(p_slower, rank_p_above(walsh, edge) / share)
        p_faster = min(p_faster, rank_p_above(-walsh[::-1], edge) / share)
    verdict, reason = _judge(interval, least, band, allow)
    next_look = plan.next_look(ratios.size) if verdict == TimeVerdict.INCONCLUSIVE else None
    if not looks:
        reason = f"{ratios.size} blocks, but {plan.looks[0]} are needed for the first verdict"
        walsh = sort_walsh_averages(ratios)
    elif verdict == TimeVerdict.INCONCLUSIVE and next_look is None and interval.low <= interval.high:
        reason += f"; all {plan.max_blocks} blocks are used"
    return Comparison(
        verdict=verdict,
        reason=reason,
        ratio=math.exp(rank_estimate(walsh)),
        low=math.exp(interval.low),
        high=math.exp(interval.high),
        confidence=1 - plan.alpha,
        blocks=int(ratios.size),
        p_value=min(1.0, 2 * min(p_slower, p_faster)),
        next_look=next_look,
    )


def check_against_control(comparison: Comparison, control: Comparison, *, by_interval: bool = False) -> Comparison:
    """Check a difference against the comparison of A with A in the same session.

    A against A (control) is a negative control. It does not widen the margin, which would only cost power: with random
    block orders, noise alone gives no more false alarms than stated. But if A differs from itself, more than the
    difference of the sides is measured, so the session is void (`inconclusive`, whatever B's result is). Also, a
    difference is not reported if it is no larger than the difference of A against A, or, `by_interval`, than the ends
    of its interval: this is for a difference that the work of the sides does not explain.
    """
    control_ratio = format_ratio(control.ratio)
    ends = (control.low, control.high) if by_interval else (control.ratio,)
    widest = max(abs(math.log(end)) if 0 < end < math.inf else math.inf for end in ends)
    if control.differs:
        reason = f"void: A against itself is {control.verdict} ({control_ratio}); find what differs, and repeat"
    elif comparison.differs and abs(math.log(comparison.ratio)) <= widest:
        shown = format_span(*ends) if len(ends) == 2 else control_ratio
        reason = f"{format_ratio(comparison.ratio)} is no more than A against itself shows ({shown})"
    else:
        return comparison
    return make_inconclusive(comparison, reason)


def make_inconclusive(comparison: Comparison, reason: str) -> Comparison:
    """Return the same values with the verdict `inconclusive`."""
    return replace(comparison, verdict=TimeVerdict.INCONCLUSIVE, reason=reason, next_look=None)


def _judge(interval: Interval, min_effect: float, band: float, allow: float | None) -> tuple[TimeVerdict, str]:
    low, high = interval.low, interval.high
    if math.isinf(low) or math.isinf(high):
        return TimeVerdict.INCONCLUSIVE, "too few blocks for an interval at such a false-alarm rate"
    span = format_span(math.exp(low), math.exp(high))
    edge, equivalence_edge = math.log1p(min_effect), math.log1p(band)
    if low > high:
        return (
            TimeVerdict.INCONCLUSIVE,
            "earlier and later blocks contradict each other: the machine or a side has changed",
        )
    if low > edge or high < -edge:
        verdict = TimeVerdict.SLOWER if low > edge else TimeVerdict.FASTER
        return verdict, f"the interval, {span}, is outside ±{100 * min_effect:g} %"
    if -equivalence_edge <= low and high <= equivalence_edge:
        return TimeVerdict.SAME, f"the interval, {span}, is within ±{100 * band:g} %"
    if allow is not None and high <= math.log1p(allow):
        bound = f"not slower by more than {100 * max(0.0, math.exp(high) - 1):.1f} %"
        return TimeVerdict.NOT_SLOWER, f"{bound}: the interval, {span}, is below +{100 * allow:g} %"
    explanation = f"is neither outside ±{100 * min_effect:g} % nor within ±{100 * band:g} %"
    return TimeVerdict.INCONCLUSIVE, f"the interval, {span}, {explanation}"


@dataclass(frozen=True, slots=True)
class Interval:
    """An interval with its bounds, which are infinite if the evidence allows none."""

    low: float
    high: float

    def intersection(self, other: Interval) -> Interval:
        """Return the intersection; `low` is above `high` if it is empty."""
        return Interval(max(self.low, other.low), min(self.high, other.high))


def compute_log_ratios(blocks: Sequence[Block], location: Location = Location.MIN) -> NDArray[np.float64]:
    """Return log(B/A) of each block."""
    if not blocks:
        raise EvidenceError("no blocks to compare", "take at least one round of each side")
    return np.array([block.compute_log_ratio(location) for block in blocks], dtype=np.float64)


def sort_walsh_averages(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the n(n+1)/2 averages (vᵢ + vⱼ)/2, i ≤ j, rising; of 1 to 1,000 finite values."""
    _require_averageable(values)
    rows, columns = _list_pairs(values.size)
    averages = (values[rows] + values[columns]) / 2
    averages.sort()
    return averages


def _require_averageable(values: NDArray[np.float64]) -> None:
    if not 1 <= values.size <= _MAX_BLOCKS or not np.isfinite(values).all():
        raise EvidenceError(f"{values.size} log ratios, expected 1 to {_MAX_BLOCKS} finite numbers")


def rank_estimate(walsh: NDArray[np.float64]) -> float:
    """Return the Hodges–Lehmann estimate: median of the sorted Walsh averages."""
    return float(walsh[(walsh.size - 1) // 2] + walsh[walsh.size // 2]) / 2


def rank_interval(walsh: NDArray[np.float64], level: float) -> Interval:
    """Return the interval that contains the location with probability ≥ 1 − level, from sorted Walsh averages.

    If the (two-sided) level is too small for the number of values, the interval is infinite.
    """
    critical_count = _find_critical_count(_count_values(walsh), level / 2)
    if critical_count > walsh.size:
        return Interval(-math.inf, math.inf)
    return Interval(float(walsh[walsh.size - critical_count]), float(walsh[critical_count - 1]))


def rank_p_above(walsh: NDArray[np.float64], edge: float) -> float:
    """Return the one-sided p-value against "the location is at most `edge`"; averages equal to `edge` support that."""
    count_above = int(walsh.size - walsh.searchsorted(edge, side="right"))
    return float(_compute_upper_tail(_count_values(walsh))[count_above])


def _count_values(walsh: NDArray[np.float64]) -> int:
    return (math.isqrt(8 * walsh.size + 1) - 1) // 2


# The tables depend on n alone and are the same for every model of a run.
@functools.lru_cache(maxsize=8)
def _list_pairs(count: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the indices i ≤ j of all pairs of n values."""
    rows, columns = np.triu_indices(count)
    for indices in (rows, columns):
        indices.flags.writeable = False
    return rows, columns


@functools.lru_cache(maxsize=256)
def _compute_upper_tail(count: int) -> NDArray[np.float64]:
    """Compute P(W ≥ w) for w = 0 … n(n+1)/2, of the signed-rank statistic of n values."""
    size = count * (count + 1) // 2 + 1
    probabilities = np.zeros(size)
    probabilities[0] = 1.0
    for rank in range(1, count + 1):
        with_rank = np.zeros(size)
        with_rank[rank:] = probabilities[:-rank]
        probabilities = (probabilities + with_rank) / 2
    tail = np.cumsum(probabilities[::-1])[::-1].copy()
    tail[0] = 1.0
    tail.flags.writeable = False
    return tail


@functools.lru_cache(maxsize=1024)
def _find_critical_count(count: int, level: float) -> int:
    """Find how many Walsh averages above a value reject it at a one-sided level; too large a number if none can."""
    tail = _compute_upper_tail(count)
    # The tail decreases with w.
    return int(np.searchsorted(-tail, -level, side="left"))


@dataclass(frozen=True, slots=True)
class GeometricMean:
    """The mean ratio over models, with an interval for models like these; 0 and infinity for a single model."""

    ratio: float
    low: float
    high: float
    confidence: float
    models: int


def adjust_p_values(p_values: Sequence[float]) -> tuple[float, ...]:
    """Return for each p-value the smallest false-discovery rate at which it counts as a discovery.

    This follows Benjamini and Hochberg, Journal of the Royal Statistical Society B 57, 1995. It needs p-values that are
    independent if nothing differs; random block orders for each model ensure this even if noise is correlated.
    """
    if any(not 0 <= p <= 1 for p in p_values):
        raise EvidenceError(f"p-values {list(p_values)}, expected numbers from 0 to 1")
    if not p_values:
        return ()
    count = len(p_values)
    order = np.argsort(p_values, kind="stable")
    scaled_p_values = np.asarray(p_values)[order] * count / np.arange(1, count + 1)
    adjusted_p_values = np.empty(count)
    # In this step-up procedure, all p-values smaller than one that passes also pass.
    adjusted_p_values[order] = np.minimum(np.minimum.accumulate(scaled_p_values[::-1])[::-1], 1.0)
    return tuple(float(p) for p in adjusted_p_values)


def limit_discoveries(
    comparisons: Mapping[str, Comparison], rate: float = DEFAULT_DISCOVERY_RATE
) -> dict[str, Comparison]:
    """Limit the share of false differences among all `slower` and `faster` verdicts to a rate.

    A difference that is not significant among so many models becomes `inconclusive`; other verdicts stay. Pass the
    comparisons of all models, not only conspicuous ones, after checking them against their controls.
    """
    if not 0 < rate < 1:
        raise EvidenceError(f"false-discovery rate {rate!r}, expected a number between 0 and 1")
    # A model that is not reported as different (such as after a void session) must not help others to pass.
    p_values = [comparison.p_value if comparison.differs else 1.0 for comparison in comparisons.values()]
    adjusted_p_values = adjust_p_values(p_values)
    limited_comparisons = dict(comparisons)
    for (model, comparison), p_value in zip(comparisons.items(), adjusted_p_values, strict=True):
        if comparison.differs and p_value > rate:
            reason = (
                f"{comparison.verdict} on its own, but among {len(comparisons)} models such a difference turns up by"
                f" chance (adjusted p {p_value:.3f}, limit {rate:g}); compare this model alone, with more blocks"
            )
            limited_comparisons[model] = make_inconclusive(comparison, reason)
    return limited_comparisons


def estimate_geometric_mean(comparisons: Sequence[Comparison], confidence: float = 0.95) -> GeometricMean:
    """Estimate the geometric mean of the ratios, models being the outer level of the sample.

    The interval is Student's, over the models' log ratios. Their spread includes the noise of each model's blocks, so
    it covers both levels (a two-stage sample: Cochran, Sampling Techniques, 3rd edition, 1977, chapter 10). The
    interval holds for models like these, and is wide for few models.
    """
    if not comparisons or not 0 < confidence < 1:
        raise EvidenceError(f"geometric mean of {len(comparisons)} models with confidence {confidence!r}")
    logs = np.log([comparison.ratio for comparison in comparisons])
    mean, count = float(logs.mean()), len(comparisons)
    if count == 1:
        return GeometricMean(math.exp(mean), 0.0, math.inf, confidence, 1)
    half_width = find_student_quantile((1 + confidence) / 2, count - 1) * float(logs.std(ddof=1)) / math.sqrt(count)
    return GeometricMean(math.exp(mean), math.exp(mean - half_width), math.exp(mean + half_width), confidence, count)


def find_student_quantile(probability: float, degrees: int) -> float:
    """Find the value below which a share of Student's t distribution is.

    It bisects the distribution function, whose closed form for whole degrees of freedom is in Abramowitz and
    Stegun, Handbook of Mathematical Functions, 1964, 26.7.3 and 26.7.4.
    """
    if not 0 < probability < 1 or degrees < 1:
        raise EvidenceError(f"quantile {probability!r} of Student's t with {degrees} degrees of freedom")
    if probability < 0.5:
        return -find_student_quantile(1 - probability, degrees)
    low, high = 0.0, 1.0
    while _compute_central_probability(high, degrees) < 2 * probability - 1:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        if _compute_central_probability(middle, degrees) < 2 * probability - 1:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def compute_student_p(value: float, degrees: int) -> float:
    """Compute the probability that |T| is at least this large; `degrees` of freedom."""
    return max(0.0, 1 - _compute_central_probability(abs(value), degrees))


def _compute_central_probability(value: float, degrees: int) -> float:
    """Compute P(|T| ≤ value)."""
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
