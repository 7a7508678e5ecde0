"""Finds a slowdown that is known to be there: `python benchmarks/planted_slowdown.py [FACTOR]`, in the checkout.

Lays out seven builds of the installed IREE, b0 to b6; from b3 on `iree-benchmark-module` reports times that are longer
by the factor (1.07 without one). Then `gauntlet bisect` looks for the first of them, by time. It takes some five
minutes, and prints what `docs/how-to/bisect.md` shows.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.faulty_iree import slow_benchmarks, tree

_BUILDS = 7
_FIRST_SLOW = 3
_FACTOR = 1.07
_SELECTION = ("--suite", "cpu", "--model", "dtln", "--submodel", "temporal", "--metric", "time")
_ROUNDS = ("--iree-compiler", "installed", "--cpus", "1", "--disturbed", "count", "--budget", "10")


def main() -> None:
    """Lay out, search, and leave nothing behind but the bisect's folder in `runs/`."""
    factor = float(sys.argv[1]) if len(sys.argv) > 1 else _FACTOR
    gauntlet = shutil.which("gauntlet")
    if gauntlet is None:
        sys.exit("there is no gauntlet on PATH: pip install -e '.[iree]'")
    with tempfile.TemporaryDirectory(prefix="planted-") as name:
        folder = Path(name)
        builds = [
            tree(
                folder / f"b{number}",
                iree_benchmark_module=slow_benchmarks(
                    folder / f"b{number}-scripts", factor if number >= _FIRST_SLOW else 1.0
                ),
            )
            for number in range(_BUILDS)
        ]
        among = [word for build in builds[1:-1] for word in ("--among", build)]
        ends = ("--good", builds[0], "--bad", builds[-1])
        sys.exit(subprocess.run([gauntlet, "bisect", *ends, *among, *_SELECTION, *_ROUNDS], check=False).returncode)


if __name__ == "__main__":
    main()
