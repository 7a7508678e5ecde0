"""Measures the false alarms of golden times from a history: `python benchmarks/golden_rules.py` prints two tables.

Each row of the first is of 1,000 simulated histories of one time: log-normal noise with a standard deviation of 0.3 to
3 %, in which up to 5 % of the runs are slower by 5 to 30 %. Some histories have a step before their last runs, or drift
steadily. A history is judged as `golden.update --from-history` does; if it gives a golden, 2,000 fresh runs of the same
noise are compared with the golden's limit. Seeded: the table is the same each time.

The second table is of the recordings in tests/data/noise: a golden follows from the first 99 rounds of each model, each
taken for a run, and is compared with the mean times of the later rounds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from iree_gauntlet.measuring.goldens.golden_rules import parse_rule
from tests.support.recorded_noise import read_recording
from tests.support.simulated_histories import GOLDEN, simulate

# The title of each kind of history, its number of runs, its step and the runs after it, and its drift.
_KINDS = (
    ("level", 99, 0.0, 0, 0.0),
    ("level", 140, 0.0, 0, 0.0),
    ("level", 250, 0.0, 0, 0.0),
    ("+5 %, 40 runs ago", 140, 0.05, 40, 0.0),
    ("+5 %, 110 runs ago", 160, 0.05, 110, 0.0),
    ("+1 %, 70 runs ago", 140, 0.01, 70, 0.0),
    ("drift to +5 %", 140, 0.0, 0, 0.05),
    ("drift to -5 %", 140, 0.0, 0, -0.05),
)
_NOISE = Path(__file__).parents[1] / "tests" / "data" / "noise"
_CONDITIONS = ("quiet", "neighbour", "shared")
_FIRST_ROUNDS = 99
_RECORDED_RULES = ("mean*1.1", "mean*1.25", "1 in 20", "1 in 100")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rule", default="1 in 100", help="the rule of the goldens")
    parser.add_argument("--series", type=int, default=1000, help="histories of each kind")
    arguments = parser.parse_args()
    sys.stdout.write("| history | runs | no golden | false alarms | of a golden (5 to 95 %) | why no golden |\n")
    sys.stdout.write("| --- | --- | --- | --- | --- | --- |\n")
    for seed, (title, runs, step, runs_after, drift) in enumerate(_KINDS):
        goldens = simulate(
            arguments.rule, arguments.series, runs, seed=seed, step=step, runs_after=runs_after, drift=drift
        )
        alarms = spread = "–"
        if len(goldens.alarm_shares) > 1:
            twentieths = statistics.quantiles(goldens.alarm_shares, n=20, method="inclusive")
            alarms = f"{100 * statistics.fmean(goldens.alarm_shares):.2f} %"
            spread = f"{100 * twentieths[0]:.2f} to {100 * twentieths[-1]:.2f} %"
        reasons = ", ".join(f"{reason}: {count}" for reason, count in goldens.reasons.most_common())
        cells = (title, str(runs), f"{100 * goldens.refused_share:.1f} %", alarms, spread, reasons or "–")
        sys.stdout.write(f"| {' | '.join(cells)} |\n")
        sys.stdout.flush()
    print_recorded()


def print_recorded() -> None:
    """Print the share of later rounds above the limits of goldens from earlier rounds."""
    sys.stdout.write(f"\n| red of later rounds | {' | '.join(_RECORDED_RULES)} |\n")
    sys.stdout.write(f"|{' --- |' * (len(_RECORDED_RULES) + 1)}\n")
    for condition in _CONDITIONS:
        times = [rounds.mean(axis=1) for rounds in read_recording(_NOISE / f"{condition}.json").models.values()]
        cells = [condition]
        for rule in map(parse_rule, _RECORDED_RULES):
            reds = [
                values[_FIRST_ROUNDS:] > GOLDEN.factor * rule.compute_golden(values[:_FIRST_ROUNDS], GOLDEN.factor)
                for values in times
            ]
            cells.append(f"{100 * statistics.fmean(share for red in reds for share in red):.1f} %")
        sys.stdout.write(f"| {' | '.join(cells)} |\n")


if __name__ == "__main__":
    main()
