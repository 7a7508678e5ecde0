"""Finds a slowdown that is known to be there: `python benchmarks/planted_slowdown.py [FACTOR] [--compare]`.

In the checkout. Lays out seven builds of the installed IREE, b0 to b6; from b3 on `iree-benchmark-module` reports times
that are longer by the factor (1.07 without one). Then `gauntlet bisect` looks for the first of them, by time. It takes
some five minutes, and prints what `docs/how-to/bisect.md` shows.

With `--compare`, `gauntlet compare` holds the last build against the first for all models of the suite cpu, within 12
minutes: at a factor of 1 all of them should be the same, at 1.05 or 1.03 slower.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.faulty_iree import slow_benchmarks, tree
from tests.support.session_folder import SESSION_FOLDER_VARIABLE

_BUILDS = 7
_FIRST_SLOW = 3
_FACTOR = 1.07
_SELECTION = ("--suite", "cpu", "--model", "dtln", "--submodel", "temporal", "--metric", "time")
_ROUNDS = ("--iree-compiler", "installed", "--cpus", "1", "--disturbed", "count", "--budget", "10")
_COMPARED = ("--suite", "cpu", "--iree-compiler", "installed", "--budget", "12")


def main() -> None:
    """Lay out, search, and leave nothing behind but a folder in `runs/`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("factor", nargs="?", type=float, default=_FACTOR)
    parser.add_argument("--compare", action="store_true")
    asked = parser.parse_args()
    gauntlet = shutil.which("gauntlet")
    if gauntlet is None:
        sys.exit("there is no gauntlet on PATH: pip install -e '.[iree]'")
    with tempfile.TemporaryDirectory(prefix="planted-") as name:
        folder = Path(name)
        os.environ[SESSION_FOLDER_VARIABLE] = name
        builds = [
            tree(folder / f"b{number}", iree_benchmark_module=_reporting(folder / f"b{number}-scripts", factor))
            for number, factor in enumerate([1.0] * _FIRST_SLOW + [asked.factor] * (_BUILDS - _FIRST_SLOW))
        ]
        among = [word for build in builds[1:-1] for word in ("--among", build)]
        search = ["bisect", "--good", builds[0], "--bad", builds[-1], *among, *_SELECTION, *_ROUNDS]
        words = ["compare", builds[0], builds[-1], *_COMPARED] if asked.compare else search
        sys.exit(subprocess.run([gauntlet, *words], check=False).returncode)


def _reporting(folder: Path, factor: float) -> str:
    return f'exec "{slow_benchmarks(folder, factor)}" "$@"'


if __name__ == "__main__":
    main()
