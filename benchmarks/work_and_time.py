"""How instructions and times of the pretrained models change with the releases: `python benchmarks/work_and_time.py`.

In the checkout, on a quiet machine. Runs suite cpu with seven releases: instructions counted once, times measured
in three rounds, of which the least repetition is taken. Prints, for each step from a release to the next, the change of
both; then how often a change of time by 5 % and more has a change of work of the same sign (by 0.1 % and more), and
how often the work changes without the time. `--folder` keeps what is measured, and goes on with it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

_RELEASES = ("3.5.0", "3.8.0", "3.9.0", "3.10.0", "3.11.0", "3.12.0", "3.13.0")
_ROUNDS = 3
_TIME, _WORK = 0.05, 0.001

Figures = dict[str, dict[str, float]]


def main() -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="work-and-time-") as name:
        folder = asked.folder or Path(name)
        work = _measured(folder / "work", "count")["instructions"]
        times: Figures = defaultdict(dict)
        for number in range(_ROUNDS):
            for model, found in _measured(folder / f"times{number}", "benchmark")["least_ms"].items():
                times[model] = {label: min(ms, times[model].get(label, ms)) for label, ms in found.items()}
        _print(work, times)


def _measured(folder: Path, stage: str) -> dict[str, Figures]:
    gauntlet = shutil.which("gauntlet")
    if gauntlet is None:
        sys.exit("there is no gauntlet on PATH: pip install -e '.[iree]'")
    record = folder / "matrix.json"
    if not record.exists():
        words = [gauntlet, "matrix", *(word for release in _RELEASES for word in ("--iree", release))]
        words += ["--suite", "cpu", "--stages", stage, "--run-dir", str(folder), "-q"]
        subprocess.run(words + (["--resume"] if folder.exists() else []), check=False)
    found: dict[str, Figures] = {"instructions": defaultdict(dict), "least_ms": defaultdict(dict)}
    for chain in json.loads(record.read_text())["chains"]:
        for label, cell in chain["irees"].items():
            if cell["instructions"] is not None:
                found["instructions"][chain["id"]][label] = cell["instructions"]
    for label in _RELEASES:
        summary = folder / label / "summary.json"
        for chain in json.loads(summary.read_text())["chains"] if summary.exists() else ():
            if chain["time_ms"]:
                found["least_ms"][chain["id"]][label] = chain["time_ms"]["min"]
    return found


def _print(work: Figures, times: Figures) -> None:
    agree = against = alone = silent = steps = 0
    models = sorted(work.keys() & times.keys())
    print(f"| model | {' | '.join(_RELEASES)} |\n| --- |{' ---: |' * len(_RELEASES)}")
    for model in models:
        cells = [
            f"{work[model][label] / 1e6:,.1f} M, {times[model][label]:.3g} ms"
            if label in work[model] and label in times[model]
            else "–"
            for label in _RELEASES
        ]
        print(f"| {model.partition('@')[0]} | {' | '.join(cells)} |")
        both = [label for label in _RELEASES if label in work[model] and label in times[model]]
        for before, after in itertools.pairwise(both):
            steps += 1
            time, less = (found[model][after] / found[model][before] - 1 for found in (times, work))
            if abs(time) >= _TIME:
                differs = abs(less) >= _WORK
                agree += differs and (less > 0) == (time > 0)
                against += differs and (less > 0) != (time > 0)
                silent += not differs
                change = f"time {100 * time:+.1f} %, work {100 * less:+.2f} %"
                print(f"  {model} {before} → {after}: {change}", file=sys.stderr)
            else:
                alone += abs(less) >= _WORK
    changed = agree + against + silent
    print(f"\n{steps} steps from a release to the next, {changed} with another time (5 % and more): in {agree} of them")
    print(f"the work changed the same way, in {against} the other way, in {silent} not at all (by less than 0.1 %).")
    print(f"In {alone} of the other {steps - changed} steps the work changed.")


if __name__ == "__main__":
    main()
