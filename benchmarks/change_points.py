"""How often is which rule right about a history? `python benchmarks/change_points.py` prints the tables of the docs.

Series of 60 runs are drawn from the recordings in tests/data/noise and from five kinds of synthetic noise. Nothing
changes in them (each report is false), or one step is put in: +4 % or +2 % with 20 runs behind it, +4 % with 5. A step
counts as found where a rule reports one within two runs of it. Seeded: the same recordings give the same tables.

Peers are asked in environments of their own, by their Pythons:

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

from iree_gauntlet.measuring.statistics.change_points import _MAX_P_VALUE, _Series, change_points

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.recorded_noise import read_recording

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Values = NDArray[np.float64]
    Draw = Callable[[np.random.Generator], Values]
    Rule = Callable[[Sequence[Sequence[float]]], list[list[int]]]

_NOISE = Path(__file__).parents[1] / "tests" / "data" / "noise"
_RUNS = 60
_CONDITIONS = ("quiet", "neighbour")
# Name, size and place of the steps that are put in.
_STEPS = (("+4 %, 20 behind", 0.04, 40), ("+2 %, 20 behind", 0.02, 40), ("+4 %, 5 behind", 0.04, 55))
_NEAR = 2
_LEAST = math.log(1.02)
# A run's figure is the least of so many rounds.
_ROUNDS = (1, 5)

_ASV = """
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
_OTAVA = """
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
    rules: dict[str, Rule] = {"this rule": _ours, "golden x 1.1": _golden}
    if options.asv:
        rules["asv, 5 %"] = _peer(options.asv, _ASV.replace("LEAST", "0.05"))
        rules["asv, 2 %"] = _peer(options.asv, _ASV.replace("LEAST", "0.02"))
    if options.otava:
        rules["Otava's defaults"] = _peer(options.otava, _OTAVA)
    _print_spreads()
    kinds = _kinds()
    unchanged = {kind: _drawn(kind, draw, options.series, 1) for kind, draw in kinds.items()}
    print("| reported of unchanged series | " + " | ".join(kinds) + " | ms a series |")
    print("| --- |" + " --- |" * (len(kinds) + 1))
    for name, rule in rules.items():
        began = time.perf_counter()
        shares = [np.mean([bool(found) for found in rule(series)]) for series in unchanged.values()]
        cost = 1000 * (time.perf_counter() - began) / (len(kinds) * options.series)
        print(f"| {name} | " + " | ".join(f"{100 * share:.1f} %" for share in shares) + f" | {cost:.1f} |")
    for title, size, at in _STEPS:
        print(f"\n| found: {title} | " + " | ".join(kinds) + " |\n| --- |" + " --- |" * len(kinds))
        changed = {kind: _drawn(kind, draw, options.series // 2, 2) for kind, draw in kinds.items()}
        stepped = {kind: [_stepped(values, size, at) for values in each] for kind, each in changed.items()}
        for name, rule in rules.items():
            shares = [
                np.mean([any(abs(place - at) <= _NEAR for place in found) for found in rule(series)])
                for series in stepped.values()
            ]
            print(f"| {name} | " + " | ".join(f"{100 * share:.0f} %" for share in shares) + " |")
        shares = [np.mean([_is_step(values, at) for values in series]) for series in stepped.values()]
        print("| its tests, told where | " + " | ".join(f"{100 * share:.0f} %" for share in shares) + " |")


def _is_step(values: Sequence[float], at: int) -> bool:
    """Whether the two tests and the least effect let a split pass whose place is known: nothing finds more."""
    (change,) = _Series(values, ()).measure_changes([at])
    return change.p_value < _MAX_P_VALUE and abs(change.effect) >= _LEAST


def _print_spreads() -> None:
    """How much the least of one round varies: standard deviation of its logarithm."""
    recordings = [read_recording(_NOISE / f"{condition}.json") for condition in _CONDITIONS]
    models = list(recordings[0].models)
    print(f"| spread of one round | {' | '.join(models)} |\n| --- |{' --- |' * len(models)}")
    for recording in recordings:
        spreads = [100 * float(np.log(recording.models[model].min(axis=1)).std()) for model in models]
        print(f"| {recording.condition} | " + " | ".join(f"{spread:.1f} %" for spread in spreads) + " |")
    print()


def _drawn(kind: str, draw: Draw, count: int, seed: int) -> list[list[float]]:
    return [list(map(float, draw(np.random.default_rng([seed, number, len(kind)])))) for number in range(count)]


def _stepped(values: Sequence[float], size: float, at: int) -> list[float]:
    return [value * (1 + size if place >= at else 1) for place, value in enumerate(values)]


def _kinds() -> dict[str, Draw]:
    """Noise by its name; the figures are about 10 ms."""

    def normal(chance: np.random.Generator) -> Values:
        return chance.normal(0, 0.01, _RUNS)

    def outliers(chance: np.random.Generator) -> Values:
        values = chance.normal(0, 0.01, _RUNS)
        out = chance.random(_RUNS) < 0.1
        values[out] += chance.uniform(0.05, 0.3, out.sum())
        return values

    def alike(chance: np.random.Generator) -> Values:
        steps = chance.normal(0, 0.008, _RUNS)
        values = np.empty(_RUNS)
        values[0] = chance.normal(0, 0.01)
        for place in range(1, _RUNS):
            values[place] = 0.6 * values[place - 1] + steps[place]
        return values

    def around_ten(chance: np.random.Generator, draw: Draw) -> Values:
        return 10 * np.exp(draw(chance))

    synthetic: dict[str, Draw] = {
        "iid 1 %": normal,
        "heavy tails": lambda chance: chance.standard_t(3, _RUNS) / math.sqrt(3) * 0.01,
        "10 % outliers": outliers,
        "two modes": lambda chance: chance.normal(0, 0.005, _RUNS) + 0.01 * np.where(chance.random(_RUNS) < 0.5, 1, -1),
        "AR(1) 0.6": alike,
    }
    kinds: dict[str, Draw] = {name: partial(around_ten, draw=draw) for name, draw in synthetic.items()}
    for condition in _CONDITIONS:
        models = list(read_recording(_NOISE / f"{condition}.json").models.values())
        for rounds in _ROUNDS:
            name = f"{condition}, {rounds} round{'s' * (rounds > 1)}"
            kinds[name] = partial(_recorded, models=models, rounds=rounds)
    return kinds


def _recorded(chance: np.random.Generator, models: Sequence[Values], rounds: int) -> Values:
    """Runs at any time, each of a stretch of rounds that followed one another."""
    times = models[int(chance.integers(len(models)))]
    starts = chance.integers(len(times) - rounds + 1, size=_RUNS)
    return np.asarray([times[start : start + rounds].min() for start in starts])


def _ours(series: Sequence[Sequence[float]]) -> list[list[int]]:
    return [[change.at for change in change_points(values, _LEAST)] for values in series]


def _golden(series: Sequence[Sequence[float]]) -> list[list[int]]:
    """The mean of the first 20 runs, times 1.1."""
    return [
        [place for place, value in enumerate(values) if value > 1.1 * float(np.mean(values[:20]))] for values in series
    ]


def _peer(python: str, program: str) -> Rule:
    def ask(series: Sequence[Sequence[float]]) -> list[list[int]]:
        done = subprocess.run(
            [python, "-c", program], input=json.dumps(series), capture_output=True, text=True, check=True
        )
        found: list[list[int]] = json.loads(done.stdout)
        return found

    return ask


if __name__ == "__main__":
    main()
