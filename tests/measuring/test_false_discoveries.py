from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iree_gauntlet.measuring.statistics.comparison_verdict import (
    Comparison,
    TimeVerdict,
    adjust_p_values,
    compare_log_ratios,
    estimate_geometric_mean,
    find_student_quantile,
    limit_discoveries,
    make_inconclusive,
)
from iree_gauntlet.measuring.statistics.rounds import EvidenceError, plan_looks


def _compared(shift: float, seed: int = 0, blocks: int = 40) -> Comparison:
    return compare_log_ratios(np.random.default_rng(seed).normal(shift, 0.02, blocks), plan_looks())


def test_the_example_of_benjamini_and_hochberg() -> None:
    # Their table of 15 p-values (1995, §4): four discoveries at 0.05.
    p_values = [
        *(0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240),
        *(0.4262, 0.5719, 0.6528, 0.7590, 1.0000),
    ]
    assert sum(p <= 0.05 for p in adjust_p_values(p_values)) == 4


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_adjusted_p_values_keep_the_order_and_are_never_smaller(p_values: list[float]) -> None:
    adjusted = adjust_p_values(p_values)
    assert all(p <= q * (1 + 1e-12) <= 1 + 1e-12 for p, q in zip(p_values, adjusted, strict=True))
    pairs = sorted(zip(p_values, adjusted, strict=True))
    assert all(earlier[1] <= later[1] for earlier, later in itertools.pairwise(pairs) if earlier[0] < later[0])


def test_no_p_values_and_bad_ones() -> None:
    assert adjust_p_values([]) == ()
    for bad in (math.nan, -0.1, 1.1):
        with pytest.raises(EvidenceError, match="from 0 to 1"):
            adjust_p_values([0.5, bad])


def test_a_lone_weak_difference_among_many_models_is_no_discovery() -> None:
    weak = compare_log_ratios(np.full(10, 0.05), plan_looks())
    assert weak.verdict == TimeVerdict.SLOWER
    same = {f"m{number}": _compared(0.0, number) for number in range(20)}
    judged = limit_discoveries({"weak": weak, **same})
    assert judged["weak"].verdict == TimeVerdict.INCONCLUSIVE
    assert "among 21 models" in judged["weak"].reason
    assert judged["weak"].ratio == weak.ratio
    assert limit_discoveries({"weak": weak})["weak"] == weak


def test_a_void_model_lends_its_p_value_to_nobody() -> None:
    weak, strong = compare_log_ratios(np.full(10, 0.05), plan_looks()), _compared(0.3)
    void = make_inconclusive(strong, "void")
    same = {f"m{number}": _compared(0.0, number) for number in range(8)}
    helped = limit_discoveries({"weak": weak, **{f"s{number}": strong for number in range(5)}, **same})
    alone = limit_discoveries({"weak": weak, **{f"s{number}": void for number in range(5)}, **same})
    assert helped["weak"].verdict == TimeVerdict.SLOWER
    assert alone["weak"].verdict == TimeVerdict.INCONCLUSIVE
    assert alone["s0"] == void


def test_plain_differences_stay_and_other_verdicts_are_not_touched() -> None:
    comparisons = {"slow": _compared(0.08), "fast": _compared(-0.08, 1), "even": _compared(0.0, 2)}
    assert limit_discoveries(comparisons) == comparisons
    assert comparisons["slow"].verdict == TimeVerdict.SLOWER
    assert comparisons["fast"].verdict == TimeVerdict.FASTER


@pytest.mark.parametrize("rate", [0.0, 1.0, math.nan])
def test_a_rate_that_is_none_is_an_error(rate: float) -> None:
    with pytest.raises(EvidenceError, match="false-discovery rate"):
        limit_discoveries({}, rate)


def test_a_share_of_the_discoveries_at_most_is_false() -> None:
    chance = np.random.default_rng(5)
    plan = plan_looks(alpha=0.2, max_blocks=14)
    shares = []
    for _ in range(150):
        # Twenty models on the band's edge, the worst that is not slower, and five that are.
        shifts = [math.log(1.01)] * 20 + [0.06] * 5
        comparisons = {
            str(number): compare_log_ratios(chance.normal(shift, 0.02, 14), plan) for number, shift in enumerate(shifts)
        }
        found = [int(model) for model, c in limit_discoveries(comparisons, rate=0.2).items() if c.differs]
        shares.append(sum(model < 20 for model in found) / max(1, len(found)))
    assert np.mean(shares) <= 0.2 + 3 * np.std(shares) / math.sqrt(len(shares))


def test_the_geometric_mean_and_its_interval() -> None:
    comparisons = [_compared(shift, number) for number, shift in enumerate((0.04, 0.05, 0.06))]
    mean = estimate_geometric_mean(comparisons)
    assert mean.ratio == pytest.approx(math.prod(c.ratio for c in comparisons) ** (1 / 3))
    assert mean.low < mean.ratio < mean.high
    assert mean.models == 3


def test_the_geometric_mean_of_one_model_claims_nothing() -> None:
    mean = estimate_geometric_mean([_compared(0.05)])
    assert (mean.low, mean.high) == (0.0, math.inf)
    with pytest.raises(EvidenceError):
        estimate_geometric_mean([])


@pytest.mark.parametrize("models", [4, 15])
def test_the_interval_of_the_geometric_mean_holds(models: int) -> None:
    chance = np.random.default_rng(models)
    plan, sessions, held = plan_looks(max_blocks=10), 300, 0
    for _ in range(sessions):
        truths = chance.normal(0.03, 0.03, models)
        comparisons = [compare_log_ratios(chance.normal(truth, 0.02, 10), plan) for truth in truths]
        mean = estimate_geometric_mean(comparisons)
        held += mean.low <= math.exp(0.03) <= mean.high
    assert held / sessions >= 0.95 - 3 * math.sqrt(0.05 * 0.95 / sessions)


@pytest.mark.parametrize(
    ("probability", "degrees", "expected"),
    [(0.975, 1, 12.7062), (0.975, 2, 4.3027), (0.975, 9, 2.2622), (0.995, 10, 3.1693), (0.95, 30, 1.6973)],
)
def test_student_quantiles_are_those_of_the_printed_tables(probability: float, degrees: int, expected: float) -> None:
    assert find_student_quantile(probability, degrees) == pytest.approx(expected, abs=1e-4)
    assert find_student_quantile(1 - probability, degrees) == pytest.approx(-expected, abs=1e-4)


@pytest.mark.parametrize(("probability", "degrees"), [(0.0, 5), (1.0, 5), (0.9, 0), (math.nan, 5)])
def test_student_quantiles_refuse_nonsense(probability: float, degrees: int) -> None:
    with pytest.raises(EvidenceError):
        find_student_quantile(probability, degrees)
