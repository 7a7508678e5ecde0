"""What reports cost against those of another version: `python benchmarks/reports.py CHECKOUT FOLDER…`.

In the checkout. Each folder of a run, comparison, matrix or bisection gets its reports again, by this version and by
the one in CHECKOUT (a clone of the toolkit at another commit), in turns, in processes of their own; the first report of
a process is not counted. The least of all times counts, of the CPU.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

_ROUNDS, _REPEATED = 5, 6
_TIMED = """
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
    """Prints a line for each folder: both times and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("folders", type=Path, nargs="+")
    asked = parser.parse_args()
    own = Path(__file__).resolve().parent.parent
    for folder in asked.folders:
        times: dict[Path, float] = {}
        for _ in range(_ROUNDS):
            for checkout in (asked.checkout.resolve(), own):
                times[checkout] = min(_seconds(checkout, folder), times.get(checkout, float("inf")))
        other, this = times.values()
        sys.stdout.write(f"{folder}: {1e3 * other:.1f} ms there, {1e3 * this:.1f} ms here, ×{this / other:.2f}\n")


def _seconds(checkout: Path, folder: Path) -> float:
    words = [sys.executable, "-c", _TIMED.format(repeated=_REPEATED), str(checkout), str(folder)]
    return float(subprocess.run(words, check=True, capture_output=True, text=True).stdout)


if __name__ == "__main__":
    main()
