"""Measures how often rules are right: `python benchmarks/verdicts.py` prints the tables of the docs' statistics page.

Sessions are simulated from the recordings in tests/data/noise. A and B are the same program, and B's times are
multiplied by 1 (every alarm is false), 1.02, 1.03, 1.05 and 1.10. The rules of other tools get as many rounds as the
sequential rule used in the session. Seeded: the same recordings give the same tables.
"""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from iree_gauntlet.figures import Statistic
from iree_gauntlet.measuring.goldens.goldens import confirm_breach
from iree_gauntlet.measuring.statistics.comparison_verdict import (
    Comparison,
    TimeVerdict,
    compare_log_ratios,
    compute_log_ratios,
    find_student_quantile,
    rank_interval,
    sort_walsh_averages,
)
from iree_gauntlet.measuring.statistics.rounds import Location, Round, plan_looks

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.recorded_noise import Recording, make_blocks, make_log_ratios, read_recording, simulate_rounds

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from iree_gauntlet.measuring.statistics.rounds import SequentialPlan

_NOISE = Path(__file__).parents[1] / "tests" / "data" / "noise"
_CONDITIONS = ("quiet", "neighbour", "shared")
_FACTORS = (1.0, 1.02, 1.03, 1.05, 1.10)
_GOLDEN_ROUNDS = 10
_GOLDEN_TOLERANCE = 1.1
_U_LIMIT = 1.959964  # two-sided 0.05 of the normal distribution
_COVERAGE_BLOCKS = (4, 6, 10, 20, 30)
_LEVEL = 0.05
_THIS_RULE = "this rule"
_RULES = (
    _THIS_RULE,
    "min <= golden x 1.1",
    "mean <= golden x 1.1",
    "Mann-Whitney 0.05",
    "min, one process",
    "mean, one process",
    "mean, confirmed",
)


@dataclass(frozen=True, slots=True)
class Session:
    """The result of each rule for one simulated session."""

    alarms: dict[str, bool]
    verdict: TimeVerdict
    blocks: int


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=500, help="simulated sessions a model and factor")
    parser.add_argument("--noise", type=Path, default=_NOISE, help="folder of the recordings")
    parser.add_argument("--max-blocks", type=int, default=plan_looks().max_blocks)
    options = parser.parse_args()
    recordings = [read_recording(options.noise / f"{condition}.json") for condition in _CONDITIONS]
    plan = plan_looks(max_blocks=options.max_blocks)
    _print_spreads(recordings)
    for recording in recordings:
        _print_rules(recording, plan, options.sessions)
    _print_coverage(recordings, options.sessions)


def _print_spreads(recordings: list[Recording]) -> None:
    print("\n| recording | model | time, ms | min | median | mean |\n| --- | --- | --- | --- | --- | --- |")
    for recording in recordings:
        for model, times in recording.models.items():
            locations = [np.min(times, axis=1), np.median(times, axis=1), np.mean(times, axis=1)]
            spreads = [100 * make_log_ratios(location, 0).std(ddof=1) for location in locations]
            cells = " | ".join(f"{spread:.1f} %" for spread in spreads)
            print(f"| {recording.condition} | {model} | {np.median(times):.3g} | {cells} |")


def _print_rules(recording: Recording, plan: SequentialPlan, count: int) -> None:
    sessions = {
        factor: [
            _simulate_session(times, plan, factor, np.random.default_rng([number, index]), number)
            for index, times in enumerate(recording.models.values())
            for number in range(count)
        ]
        for factor in _FACTORS
    }
    changes = " | ".join(f"+{100 * (factor - 1):.0f} %" for factor in _FACTORS)
    print(f"\n{recording.condition}: {recording.description}\n\n| called slower | {changes} |")
    print("| --- |" + " --- |" * len(_FACTORS))
    for rule in _RULES:
        shares = [np.mean([session.alarms[rule] for session in sessions[factor]]) for factor in _FACTORS]
        print(f"| {rule} | " + " | ".join(f"{100 * share:.1f} %" for share in shares) + " |")
    for verdict in (TimeVerdict.FASTER, TimeVerdict.SAME, TimeVerdict.INCONCLUSIVE):
        shares = [np.mean([session.verdict == verdict for session in sessions[factor]]) for factor in _FACTORS]
        print(f"| {_THIS_RULE}: {verdict} | " + " | ".join(f"{100 * share:.1f} %" for share in shares) + " |")
    mean_blocks = [np.mean([session.blocks for session in sessions[factor]]) for factor in _FACTORS]
    print(f"| {_THIS_RULE}: blocks | " + " | ".join(f"{blocks:.0f}" for blocks in mean_blocks) + " |", flush=True)


def _simulate_session(
    times: NDArray[np.float64], plan: SequentialPlan, factor: float, generator: np.random.Generator, seed: int
) -> Session:
    rounds = simulate_rounds(times, _GOLDEN_ROUNDS + 4 * plan.max_blocks, generator)
    golden, rest = rounds[:_GOLDEN_ROUNDS], rounds[_GOLDEN_ROUNDS:]
    comparison = _compare_sequentially(make_log_ratios(rest.min(axis=1), seed) + math.log(factor), plan)
    count = 4 * comparison.blocks
    slowed_rounds, half = rest[:count] * factor, count // 2
    first = rest[0] * factor
    min_limit, limit = golden.min() * _GOLDEN_TOLERANCE, golden.mean() * _GOLDEN_TOLERANCE
    alarms = {
        _THIS_RULE: comparison.verdict == TimeVerdict.SLOWER,
        "min <= golden x 1.1": bool(slowed_rounds.min() > min_limit),
        "mean <= golden x 1.1": bool(slowed_rounds.mean() > limit),
        "Mann-Whitney 0.05": _test_mann_whitney(rest[:half].ravel(), rest[half:count].ravel() * factor),
        "min, one process": bool(first.min() > min_limit),
        "mean, one process": bool(first.mean() > limit),
        "mean, confirmed": bool(first.mean() > limit) and _is_confirmed(rest[1:] * factor, float(golden.mean()), plan),
    }
    return Session(alarms, comparison.verdict, comparison.blocks)


def _compare_sequentially(ratios: NDArray[np.float64], plan: SequentialPlan) -> Comparison:
    """Add blocks until the verdict is final or the budget is spent."""
    comparison = compare_log_ratios(ratios[: plan.looks[0]], plan)
    while comparison.next_look is not None:
        comparison = compare_log_ratios(ratios[: comparison.next_look], plan)
    return comparison


def _is_confirmed(rounds: NDArray[np.float64], golden: float, plan: SequentialPlan) -> bool:
    measured_rounds = [Round(tuple(times.tolist())) for times in rounds[: plan.max_blocks]]
    block_count: int | None = plan.looks[0]
    while block_count is not None:
        confirmation = confirm_breach(measured_rounds[:block_count], golden, _GOLDEN_TOLERANCE, Statistic.MEAN, plan)
        if confirmation.passed is not None:
            return not confirmation.passed
        block_count = confirmation.next_look
    return False


def _test_mann_whitney(a: NDArray[np.float64], b: NDArray[np.float64]) -> bool:
    """Test whether B is larger at two-sided 0.05 (Mann and Whitney, 1947; normal approximation, as in compare.py)."""
    all_times = np.concatenate([a, b])
    _, inverse, counts = np.unique(all_times, return_inverse=True, return_counts=True)
    midranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    size_a, size_b = len(a), len(b)
    statistic = midranks[size_a:].sum() - size_b * (size_b + 1) / 2
    total = size_a + size_b
    ties = (counts**3 - counts).sum() / (total * (total - 1))
    spread = math.sqrt(size_a * size_b / 12 * (total + 1 - ties))
    return bool((statistic - size_a * size_b / 2) / spread > _U_LIMIT)


def _print_coverage(recordings: list[Recording], count: int) -> None:
    """Print how often 95 % intervals of A against A contain 0, over all recordings and models."""
    methods: dict[str, Callable[[NDArray[np.float64], int, int], tuple[float, float]]] = {
        "Student's t": lambda rounds, blocks, seed: _compute_student_interval(_ratios(rounds, blocks, seed)),
        "percentile bootstrap of blocks": lambda rounds, blocks, seed: _bootstrap(_ratios(rounds, blocks, seed), seed),
        "hierarchical bootstrap-t": _bootstrap_hierarchically,
        "signed rank (this rule)": lambda rounds, blocks, seed: _compute_rank_interval(_ratios(rounds, blocks, seed)),
    }
    session_count = max(1, count // 5)
    print(
        f"\n| 95 % interval holds 0; median width | {' | '.join(f'{blocks} blocks' for blocks in _COVERAGE_BLOCKS)} |"
    )
    print("| --- |" + " --- |" * len(_COVERAGE_BLOCKS))
    for name, method in methods.items():
        cells = []
        for blocks in _COVERAGE_BLOCKS:
            intervals = [
                method(simulate_rounds(times, 4 * blocks, np.random.default_rng([7, number, index])), blocks, number)
                for recording in recordings
                for index, times in enumerate(recording.models.values())
                for number in range(session_count)
            ]
            share = np.mean([low <= 0 <= high for low, high in intervals])
            width = np.median([high - low for low, high in intervals])
            cells.append(f"{100 * share:.1f} %; " + ("unbounded" if math.isinf(width) else f"{100 * width:.1f} %"))
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


def _ratios(rounds: NDArray[np.float64], blocks: int, seed: int) -> NDArray[np.float64]:
    return make_log_ratios(rounds[: 4 * blocks].min(axis=1), seed)


def _compute_student_interval(ratios: NDArray[np.float64]) -> tuple[float, float]:
    reach = find_student_quantile(1 - _LEVEL / 2, ratios.size - 1) * float(ratios.std(ddof=1)) / math.sqrt(ratios.size)
    return float(ratios.mean()) - reach, float(ratios.mean()) + reach


def _bootstrap(ratios: NDArray[np.float64], seed: int) -> tuple[float, float]:
    resamples = np.random.default_rng(seed).integers(ratios.size, size=(1000, ratios.size))
    low, high = np.quantile(ratios[resamples].mean(axis=1), [_LEVEL / 2, 1 - _LEVEL / 2])
    return float(low), float(high)


def _bootstrap_hierarchically(rounds: NDArray[np.float64], count: int, seed: int) -> tuple[float, float]:
    """Compute the interval of a studentised bootstrap over blocks, their rounds, and the rounds' repetitions.

    Efron and Tibshirani, An Introduction to the Bootstrap, 1993, §12.5: each resample gives (mean* − mean)/se*, and
    their quantiles replace those of Student's t.
    """
    blocks = make_blocks(rounds[: 4 * count], seed)
    # The axes are block, side, round and repetition.
    times = np.log([[[round_.times for round_ in side] for side in (block.a, block.b)] for block in blocks])
    rng, resample_count = np.random.default_rng(seed), 500
    _, _, rounds_per_side, repetition_count = times.shape
    block_indices = rng.integers(count, size=(resample_count, count))[:, :, None, None, None]
    side_indices = np.arange(2)[None, None, :, None, None]
    round_indices = rng.integers(rounds_per_side, size=(resample_count, count, 2, rounds_per_side))[..., None]
    repetitions = rng.integers(repetition_count, size=(resample_count, count, 2, rounds_per_side, repetition_count))
    locations = times[block_indices, side_indices, round_indices, repetitions].min(axis=-1).mean(axis=-1)
    log_ratios = locations[..., 1] - locations[..., 0]
    original = compute_log_ratios(blocks, Location.MIN)
    mean, error = original.mean(), original.std(ddof=1) / math.sqrt(count)
    errors = log_ratios.std(axis=1, ddof=1) / math.sqrt(count)
    is_usable = errors > 0
    pivots = (log_ratios[is_usable].mean(axis=1) - mean) / errors[is_usable]
    low, high = np.quantile(pivots, [1 - _LEVEL / 2, _LEVEL / 2])
    return float(mean - low * error), float(mean - high * error)


def _compute_rank_interval(ratios: NDArray[np.float64]) -> tuple[float, float]:
    interval = rank_interval(sort_walsh_averages(ratios), _LEVEL)
    return interval.low, interval.high


if __name__ == "__main__":
    main()
