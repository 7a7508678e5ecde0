"""How often is which rule right? `python benchmarks/verdicts.py` prints the tables of docs/explanation/statistics.md.

Sessions are simulated from the recordings in tests/data/noise: A and B are the same program, B's times multiplied by
1 (every alarm is false), 1.02, 1.03, 1.05 and 1.10. The rules of other tools get the same machine time: as many
rounds as the sequential rule took in that session. Seeded: the same recordings give the same tables.
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

from tests.support.recorded_noise import (
    Recording,
    blocks_from_rounds,
    log_ratios_from_rounds,
    read_recording,
    simulated_rounds,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from iree_gauntlet.measuring.statistics.rounds import SequentialPlan

_NOISE = Path(__file__).parents[1] / "tests" / "data" / "noise"
_CONDITIONS = ("quiet", "neighbour", "shared")
_FACTORS = (1.0, 1.02, 1.03, 1.05, 1.10)
_GOLDEN_ROUNDS = 10
_TOLERANCE = 1.1
_U_LIMIT = 1.959964  # two-sided 0.05 of the normal distribution
_COVERAGE_BLOCKS = (4, 6, 10, 20, 30)
_LEVEL = 0.05
_OURS = "this rule"
_RULES = (
    _OURS,
    "min <= golden x 1.1",
    "mean <= golden x 1.1",
    "Mann-Whitney 0.05",
    "min, one process",
    "mean, one process",
    "mean, confirmed",
)


@dataclass(frozen=True, slots=True)
class Session:
    """What each rule said of one simulated session."""

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
            figures = [np.min(times, axis=1), np.median(times, axis=1), np.mean(times, axis=1)]
            spreads = [100 * log_ratios_from_rounds(figure, 0).std(ddof=1) for figure in figures]
            cells = " | ".join(f"{spread:.1f} %" for spread in spreads)
            print(f"| {recording.condition} | {model} | {np.median(times):.3g} | {cells} |")


def _print_rules(recording: Recording, plan: SequentialPlan, count: int) -> None:
    sessions = {
        factor: [
            _session(times, plan, factor, np.random.default_rng([number, index]), number)
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
        print(f"| {_OURS}: {verdict} | " + " | ".join(f"{100 * share:.1f} %" for share in shares) + " |")
    taken = [np.mean([session.blocks for session in sessions[factor]]) for factor in _FACTORS]
    print(f"| {_OURS}: blocks | " + " | ".join(f"{blocks:.0f}" for blocks in taken) + " |", flush=True)


def _session(
    times: NDArray[np.float64], plan: SequentialPlan, factor: float, chance: np.random.Generator, seed: int
) -> Session:
    rounds = simulated_rounds(times, _GOLDEN_ROUNDS + 4 * plan.max_blocks, chance)
    earlier, now = rounds[:_GOLDEN_ROUNDS], rounds[_GOLDEN_ROUNDS:]
    comparison = _sequential(log_ratios_from_rounds(now.min(axis=1), seed) + math.log(factor), plan)
    spent = 4 * comparison.blocks
    ours, half = now[:spent] * factor, spent // 2
    first = now[0] * factor
    fastest, mean = earlier.min() * _TOLERANCE, earlier.mean() * _TOLERANCE
    alarms = {
        _OURS: comparison.verdict == TimeVerdict.SLOWER,
        "min <= golden x 1.1": bool(ours.min() > fastest),
        "mean <= golden x 1.1": bool(ours.mean() > mean),
        "Mann-Whitney 0.05": _mann_whitney_slower(now[:half].ravel(), now[half:spent].ravel() * factor),
        "min, one process": bool(first.min() > fastest),
        "mean, one process": bool(first.mean() > mean),
        "mean, confirmed": bool(first.mean() > mean) and _confirmed(now[1:] * factor, float(earlier.mean()), plan),
    }
    return Session(alarms, comparison.verdict, comparison.blocks)


def _sequential(ratios: NDArray[np.float64], plan: SequentialPlan) -> Comparison:
    """Takes blocks until the verdict stands or the budget is spent."""
    comparison = compare_log_ratios(ratios[: plan.looks[0]], plan)
    while comparison.next_look is not None:
        comparison = compare_log_ratios(ratios[: comparison.next_look], plan)
    return comparison


def _confirmed(rounds: NDArray[np.float64], golden: float, plan: SequentialPlan) -> bool:
    taken = [Round(tuple(times.tolist())) for times in rounds[: plan.max_blocks]]
    look: int | None = plan.looks[0]
    while look is not None:
        confirmation = confirm_breach(taken[:look], golden, _TOLERANCE, Statistic.MEAN, plan)
        if confirmation.passed is not None:
            return not confirmation.passed
        look = confirmation.next_look
    return False


def _mann_whitney_slower(a: NDArray[np.float64], b: NDArray[np.float64]) -> bool:
    """B larger at two-sided 0.05 (Mann and Whitney, 1947; normal approximation with midranks, as compare.py has it)."""
    pooled = np.concatenate([a, b])
    _, inverse, counts = np.unique(pooled, return_inverse=True, return_counts=True)
    midranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    size_a, size_b = len(a), len(b)
    statistic = midranks[size_a:].sum() - size_b * (size_b + 1) / 2
    total = size_a + size_b
    ties = (counts**3 - counts).sum() / (total * (total - 1))
    spread = math.sqrt(size_a * size_b / 12 * (total + 1 - ties))
    return bool((statistic - size_a * size_b / 2) / spread > _U_LIMIT)


def _print_coverage(recordings: list[Recording], count: int) -> None:
    """How often 95 % intervals of an A/A comparison hold 0, over all recordings and models."""
    methods: dict[str, Callable[[NDArray[np.float64], int, int], tuple[float, float]]] = {
        "Student's t": lambda rounds, blocks, seed: _student(_ratios(rounds, blocks, seed)),
        "percentile bootstrap of blocks": lambda rounds, blocks, seed: _percentile(_ratios(rounds, blocks, seed), seed),
        "hierarchical bootstrap-t": _hierarchical,
        "signed rank (this rule)": lambda rounds, blocks, seed: _rank(_ratios(rounds, blocks, seed)),
    }
    each = max(1, count // 5)
    print(
        f"\n| 95 % interval holds 0; median width | {' | '.join(f'{blocks} blocks' for blocks in _COVERAGE_BLOCKS)} |"
    )
    print("| --- |" + " --- |" * len(_COVERAGE_BLOCKS))
    for name, method in methods.items():
        cells = []
        for blocks in _COVERAGE_BLOCKS:
            intervals = [
                method(simulated_rounds(times, 4 * blocks, np.random.default_rng([7, number, index])), blocks, number)
                for recording in recordings
                for index, times in enumerate(recording.models.values())
                for number in range(each)
            ]
            share = np.mean([low <= 0 <= high for low, high in intervals])
            width = np.median([high - low for low, high in intervals])
            cells.append(f"{100 * share:.1f} %; " + ("unbounded" if math.isinf(width) else f"{100 * width:.1f} %"))
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


def _ratios(rounds: NDArray[np.float64], blocks: int, seed: int) -> NDArray[np.float64]:
    return log_ratios_from_rounds(rounds[: 4 * blocks].min(axis=1), seed)


def _student(ratios: NDArray[np.float64]) -> tuple[float, float]:
    reach = find_student_quantile(1 - _LEVEL / 2, ratios.size - 1) * float(ratios.std(ddof=1)) / math.sqrt(ratios.size)
    return float(ratios.mean()) - reach, float(ratios.mean()) + reach


def _percentile(ratios: NDArray[np.float64], seed: int) -> tuple[float, float]:
    chosen = np.random.default_rng(seed).integers(ratios.size, size=(1000, ratios.size))
    low, high = np.quantile(ratios[chosen].mean(axis=1), [_LEVEL / 2, 1 - _LEVEL / 2])
    return float(low), float(high)


def _hierarchical(rounds: NDArray[np.float64], count: int, seed: int) -> tuple[float, float]:
    """A studentised bootstrap over blocks, rounds in them, and repetitions in those.

    Efron and Tibshirani, An Introduction to the Bootstrap, 1993, §12.5: each resample gives (mean* − mean)/se*, and
    their quantiles take the place of Student's.
    """
    blocks = blocks_from_rounds(rounds[: 4 * count], seed)
    # Axes: block, side, round, repetition.
    times = np.log([[[round_.times for round_ in side] for side in (block.a, block.b)] for block in blocks])
    chance, draws = np.random.default_rng(seed), 500
    _, _, in_side, repetitions = times.shape
    chosen = chance.integers(count, size=(draws, count))[:, :, None, None, None]
    sides = np.arange(2)[None, None, :, None, None]
    in_block = chance.integers(in_side, size=(draws, count, 2, in_side))[..., None]
    in_round = chance.integers(repetitions, size=(draws, count, 2, in_side, repetitions))
    figures = times[chosen, sides, in_block, in_round].min(axis=-1).mean(axis=-1)
    resampled = figures[..., 1] - figures[..., 0]
    original = compute_log_ratios(blocks, Location.MIN)
    mean, error = original.mean(), original.std(ddof=1) / math.sqrt(count)
    errors = resampled.std(axis=1, ddof=1) / math.sqrt(count)
    usable = errors > 0
    studentised = (resampled[usable].mean(axis=1) - mean) / errors[usable]
    low, high = np.quantile(studentised, [1 - _LEVEL / 2, _LEVEL / 2])
    return float(mean - low * error), float(mean - high * error)


def _rank(ratios: NDArray[np.float64]) -> tuple[float, float]:
    interval = rank_interval(sort_walsh_averages(ratios), _LEVEL)
    return interval.low, interval.high


if __name__ == "__main__":
    main()
