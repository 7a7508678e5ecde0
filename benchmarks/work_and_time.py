"""Measures instructions and times of the pretrained models for several releases: `python benchmarks/work_and_time.py`.

Run it in the checkout, on a quiet machine. It runs the suite cpu with seven releases. Instructions are counted once; a
time is the minimum repetition of three rounds. It prints the changes of both from each release to the next, how often a
change of time by 5 % or more goes with a change of work by 0.1 % or more in the same direction, and how often work
changes without time. With `--folder`, measurements are kept there, and a later run continues with them.
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
_MIN_TIME_CHANGE, _MIN_WORK_CHANGE = 0.05, 0.001

MetricTable = dict[str, dict[str, float]]


def main() -> None:
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="work-and-time-") as directory:
        folder = options.folder or Path(directory)
        work = _measure(folder / "work", "count")["instructions"]
        times: MetricTable = defaultdict(dict)
        for number in range(_ROUNDS):
            for model, times_by_release in _measure(folder / f"times{number}", "benchmark")["least_ms"].items():
                times[model] = {label: min(ms, times[model].get(label, ms)) for label, ms in times_by_release.items()}
        _print_changes(work, times)


def _measure(folder: Path, stage: str) -> dict[str, MetricTable]:
    gauntlet = shutil.which("gauntlet")
    if gauntlet is None:
        sys.exit("there is no gauntlet on PATH: pip install -e '.[iree]'")
    record = folder / "matrix.json"
    if not record.exists():
        arguments = [gauntlet, "matrix", *(word for release in _RELEASES for word in ("--iree", release))]
        arguments += ["--suite", "cpu", "--stages", stage, "--run-dir", str(folder), "-q"]
        subprocess.run(arguments + (["--resume"] if folder.exists() else []), check=False)
    tables: dict[str, MetricTable] = {"instructions": defaultdict(dict), "least_ms": defaultdict(dict)}
    for chain in json.loads(record.read_text())["chains"]:
        for label, cell in chain["irees"].items():
            if cell["instructions"] is not None:
                tables["instructions"][chain["id"]][label] = cell["instructions"]
    for label in _RELEASES:
        summary = folder / label / "summary.json"
        for chain in json.loads(summary.read_text())["chains"] if summary.exists() else ():
            if chain["time_ms"]:
                tables["least_ms"][chain["id"]][label] = chain["time_ms"]["min"]
    return tables


def _print_changes(work: MetricTable, times: MetricTable) -> None:
    agree = disagree = work_only = flat = steps = 0
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
        releases = [label for label in _RELEASES if label in work[model] and label in times[model]]
        for old, new in itertools.pairwise(releases):
            steps += 1
            time_change, work_change = (table[model][new] / table[model][old] - 1 for table in (times, work))
            if abs(time_change) >= _MIN_TIME_CHANGE:
                has_work_change = abs(work_change) >= _MIN_WORK_CHANGE
                agree += has_work_change and (work_change > 0) == (time_change > 0)
                disagree += has_work_change and (work_change > 0) != (time_change > 0)
                flat += not has_work_change
                change = f"time {100 * time_change:+.1f} %, work {100 * work_change:+.2f} %"
                print(f"  {model} {old} → {new}: {change}", file=sys.stderr)
            else:
                work_only += abs(work_change) >= _MIN_WORK_CHANGE
    changes = agree + disagree + flat
    print(f"\n{steps} steps from a release to the next, {changes} with another time (5 % and more): in {agree} of them")
    print(f"the work changed the same way, in {disagree} the other way, in {flat} not at all (by less than 0.1 %).")
    print(f"In {work_only} of the other {steps - changes} steps the work changed.")


if __name__ == "__main__":
    main()
