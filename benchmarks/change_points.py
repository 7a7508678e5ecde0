"""Measures how often rules about histories are right: `python benchmarks/change_points.py` prints the docs' tables.

Series of 60 and of 33 runs are drawn from the recordings in tests/data/noise and from five kinds of synthetic noise. A
series has no change (so each report is false) or one added step: of 60 runs +4 % or +2 % with 20 runs after it, or +4 %
with 5; of 33 runs +20 % with 3 or 4. A step counts as found if a rule reports a step within two runs of it.
Seeded: the same recordings give the same tables.

The peers run in environments of their own; options name the Pythons of these environments:

    uv venv /tmp/asv && VIRTUAL_ENV=/tmp/asv uv pip install asv
    uv venv /tmp/otava && VIRTUAL_ENV=/tmp/otava uv pip install apache-otava
    python benchmarks/change_points.py --asv /tmp/asv/bin/python --otava /tmp/otava/bin/python
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from iree_gauntlet.measuring.statistics.change_points import _MAX_P_VALUE, _Series, find_change_points

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.recorded_noise import read_recording

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    Values = NDArray[np.float64]
    Draw = Callable[[np.random.Generator], Values]
    Rule = Callable[[Sequence[Sequence[float]]], list[list[int]]]

_NOISE = Path(__file__).parents[1] / "tests" / "data" / "noise"
_CONDITIONS = ("quiet", "neighbour")
# By the number of runs, the added steps: each has a name, a size and an index.
_STEPS = {
    60: (("+4 %, 20 behind", 0.04, 40), ("+2 %, 20 behind", 0.02, 40), ("+4 %, 5 behind", 0.04, 55)),
    33: (("+20 %, 3 behind", 0.2, 30), ("+20 %, 4 behind", 0.2, 29)),
}
_MAX_DISTANCE_RUNS = 2
_MIN_EFFECT = math.log(1.02)
# A run's time is the minimum of so many rounds.
_ROUNDS = (1, 5)

_ASV_PROGRAM = """
import json, sys
from asv.step_detect import detect_steps
found = []
for series in json.load(sys.stdin):
    steps = detect_steps(series, None)
    cuts = []
    for (_, _, before, *_), (left, _, after, *_) in zip(steps, steps[1:]):
        if abs(after / before - 1) >= LEAST:
            cuts.append(int(left))
    found.append(cuts)
json.dump(found, sys.stdout)
"""
_OTAVA_PROGRAM = """
import json, sys
from otava.series import AnalysisOptions, Figure, Series
found = []
for values in json.load(sys.stdin):
    series = Series("s", None, list(range(len(values))), {"m": Figure(1, 1.0)}, {"m": values}, {})
    analysed = series.analyze(AnalysisOptions())
    found.append([int(point.index) for point in analysed.change_points["m"]])
json.dump(found, sys.stdout)
"""


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--series", type=int, default=1000, help="of each kind of noise")
    parser.add_argument("--asv", default="", help="a Python that has asv")
    parser.add_argument("--otava", default="", help="a Python that has apache-otava")
    options = parser.parse_args()
    rules: dict[str, Rule] = {"this rule": _apply_this_rule, "golden x 1.1": _apply_golden_rule}
    if options.asv:
        rules["asv, 5 %"] = _make_peer_rule(options.asv, _ASV_PROGRAM.replace("LEAST", "0.05"))
        rules["asv, 2 %"] = _make_peer_rule(options.asv, _ASV_PROGRAM.replace("LEAST", "0.02"))
    if options.otava:
        rules["Otava's defaults"] = _make_peer_rule(options.otava, _OTAVA_PROGRAM)
    _print_spreads()
    for runs, steps in _STEPS.items():
        print_tables(rules, runs, steps, options.series)


def print_tables(
    rules: Mapping[str, Rule], runs: int, steps: Sequence[tuple[str, float, int]], series_count: int
) -> None:
    """Print the tables of series with so many runs."""
    kinds = _make_noise_kinds(runs)
    unchanged_series = {kind: _draw_series(kind, draw, series_count, 1) for kind, draw in kinds.items()}
    print(f"\n| reported of unchanged series, {runs} runs | " + " | ".join(kinds) + " | ms a series |")
    print("| --- |" + " --- |" * (len(kinds) + 1))
    for name, rule in rules.items():
        start = time.perf_counter()
        shares = [np.mean([bool(indices) for indices in rule(series)]) for series in unchanged_series.values()]
        cost = 1000 * (time.perf_counter() - start) / (len(kinds) * series_count)
        print(f"| {name} | " + " | ".join(f"{100 * share:.1f} %" for share in shares) + f" | {cost:.1f} |")
    for title, size, step in steps:
        print(f"\n| found: {title} | " + " | ".join(kinds) + " |\n| --- |" + " --- |" * len(kinds))
        plain = {kind: _draw_series(kind, draw, series_count // 2, 2) for kind, draw in kinds.items()}
        step_series = {kind: [_add_step(values, size, step) for values in series] for kind, series in plain.items()}
        for name, rule in rules.items():
            shares = [
                np.mean([any(abs(index - step) <= _MAX_DISTANCE_RUNS for index in indices) for indices in rule(series)])
                for series in step_series.values()
            ]
            print(f"| {name} | " + " | ".join(f"{100 * share:.0f} %" for share in shares) + " |")
        shares = [np.mean([_is_step(values, step) for values in series]) for series in step_series.values()]
        print("| its tests, told where | " + " | ".join(f"{100 * share:.0f} %" for share in shares) + " |")


def _is_step(values: Sequence[float], step: int) -> bool:
    """Return True if a split at the known step passes the tests and the minimum effect: an upper bound of detection."""
    (change,) = _Series(values, ()).measure_changes([step])
    return change.p_value < _MAX_P_VALUE and abs(change.effect) >= _MIN_EFFECT


def _print_spreads() -> None:
    """Print the variation of a round's minimum: the standard deviation of its logarithm."""
    recordings = [read_recording(_NOISE / f"{condition}.json") for condition in _CONDITIONS]
    models = list(recordings[0].models)
    print(f"| spread of one round | {' | '.join(models)} |\n| --- |{' --- |' * len(models)}")
    for recording in recordings:
        spreads = [100 * float(np.log(recording.models[model].min(axis=1)).std()) for model in models]
        print(f"| {recording.condition} | " + " | ".join(f"{spread:.1f} %" for spread in spreads) + " |")


def _draw_series(kind: str, draw: Draw, count: int, seed: int) -> list[list[float]]:
    return [list(map(float, draw(np.random.default_rng([seed, number, len(kind)])))) for number in range(count)]


def _add_step(values: Sequence[float], size: float, step: int) -> list[float]:
    return [value * (1 + size if index >= step else 1) for index, value in enumerate(values)]


def _make_noise_kinds(runs: int) -> dict[str, Draw]:
    """Return the generators of noise by name, for series of so many runs; the times are about 10 ms."""

    def normal(rng: np.random.Generator) -> Values:
        return rng.normal(0, 0.01, runs)

    def outliers(rng: np.random.Generator) -> Values:
        values = rng.normal(0, 0.01, runs)
        is_outlier = rng.random(runs) < 0.1
        values[is_outlier] += rng.uniform(0.05, 0.3, is_outlier.sum())
        return values

    def autoregressive(rng: np.random.Generator) -> Values:
        steps = rng.normal(0, 0.008, runs)
        values = np.empty(runs)
        values[0] = rng.normal(0, 0.01)
        for index in range(1, runs):
            values[index] = 0.6 * values[index - 1] + steps[index]
        return values

    def scale_to_ten(rng: np.random.Generator, draw: Draw) -> Values:
        return 10 * np.exp(draw(rng))

    synthetic: dict[str, Draw] = {
        "iid 1 %": normal,
        "heavy tails": lambda rng: rng.standard_t(3, runs) / math.sqrt(3) * 0.01,
        "10 % outliers": outliers,
        "two modes": lambda rng: rng.normal(0, 0.005, runs) + 0.01 * np.where(rng.random(runs) < 0.5, 1, -1),
        "AR(1) 0.6": autoregressive,
    }
    kinds: dict[str, Draw] = {name: partial(scale_to_ten, draw=draw) for name, draw in synthetic.items()}
    for condition in _CONDITIONS:
        models = list(read_recording(_NOISE / f"{condition}.json").models.values())
        for rounds in _ROUNDS:
            name = f"{condition}, {rounds} round{'s' * (rounds > 1)}"
            kinds[name] = partial(_draw_recorded_runs, runs=runs, models=models, rounds=rounds)
    return kinds


def _draw_recorded_runs(rng: np.random.Generator, runs: int, models: Sequence[Values], rounds: int) -> Values:
    """Draw runs at random times, each from consecutive recorded rounds."""
    times = models[int(rng.integers(len(models)))]
    starts = rng.integers(len(times) - rounds + 1, size=runs)
    return np.asarray([times[start : start + rounds].min() for start in starts])


def _apply_this_rule(series: Sequence[Sequence[float]]) -> list[list[int]]:
    return [[change.index for change in find_change_points(values, _MIN_EFFECT)] for values in series]


def _apply_golden_rule(series: Sequence[Sequence[float]]) -> list[list[int]]:
    """Report each run above 1.1 times the mean of the first 20 runs."""
    return [
        [index for index, value in enumerate(values) if value > 1.1 * float(np.mean(values[:20]))] for values in series
    ]


def _make_peer_rule(python: str, program: str) -> Rule:
    def run_peer(series: Sequence[Sequence[float]]) -> list[list[int]]:
        process = subprocess.run(
            [python, "-c", program], input=json.dumps(series), capture_output=True, text=True, check=True
        )
        indices: list[list[int]] = json.loads(process.stdout)
        return indices

    return run_peer


if __name__ == "__main__":
    main()
