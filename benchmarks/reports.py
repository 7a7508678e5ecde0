"""Compares the cost of reports with that of another version: `python benchmarks/reports.py CHECKOUT FOLDER…`.

Run it in the checkout. The reports of each FOLDER (a run, comparison, matrix or bisection) are written again, by this
version and by the one in CHECKOUT (a clone of the toolkit at another commit), in turns, in separate processes; the
first report of a process does not count. The result is the minimum of the CPU times.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

_ROUNDS, _REPETITIONS = 5, 6
_TIMING_PROGRAM = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from iree_gauntlet.reports.experiment_reports import write_reports
folder, times = Path(sys.argv[2]), []
for _ in range({repeated}):
    begun = time.process_time()
    write_reports(folder)
    times.append(time.process_time() - begun)
print(min(times[1:]))
"""


def main() -> None:
    """Print a line for each folder: both times and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("folders", type=Path, nargs="+")
    options = parser.parse_args()
    this_checkout = Path(__file__).resolve().parent.parent
    for folder in options.folders:
        times: dict[Path, float] = {}
        for _ in range(_ROUNDS):
            for checkout in (options.checkout.resolve(), this_checkout):
                times[checkout] = min(_measure_seconds(checkout, folder), times.get(checkout, float("inf")))
        base, current = times.values()
        sys.stdout.write(f"{folder}: {1e3 * base:.1f} ms there, {1e3 * current:.1f} ms here, ×{current / base:.2f}\n")


def _measure_seconds(checkout: Path, folder: Path) -> float:
    argv = [sys.executable, "-c", _TIMING_PROGRAM.format(repeated=_REPETITIONS), str(checkout), str(folder)]
    return float(subprocess.run(argv, check=True, capture_output=True, text=True).stdout)


if __name__ == "__main__":
    main()
