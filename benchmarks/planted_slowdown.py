"""Searches for a planted slowdown: `python benchmarks/planted_slowdown.py [FACTOR] [--compare]`.

Run it in the checkout. It creates seven builds of the installed IREE, b0 to b6; from b3 on, `iree-benchmark-module`
reports times that are longer by FACTOR (default: 1.07). Then `gauntlet bisect` searches for the first slow build, by
time. The search takes some five minutes, and prints the output shown in `docs/how-to/bisect.md`.

With `--compare`, `gauntlet compare` compares the last build with the first instead, for all models of the suite cpu,
within 12 minutes. At a factor of 1 all models should be the same; at 1.05 or 1.03 all should be slower.
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

from tests.support.faulty_iree import write_build_tree, write_slow_benchmark
from tests.support.session_folder import SESSION_FOLDER_VARIABLE

_BUILDS = 7
_FIRST_SLOW = 3
_DEFAULT_FACTOR = 1.07
_SELECTION = ("--suite", "cpu", "--model", "dtln", "--submodel", "temporal", "--metric", "time")
_ROUNDS = ("--iree-compiler", "installed", "--cpus", "1", "--disturbed", "count", "--budget", "10")
_COMPARE_OPTIONS = ("--suite", "cpu", "--iree-compiler", "installed", "--budget", "12")


def main() -> None:
    """Create the builds and search; only a folder in `runs/` remains."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("factor", nargs="?", type=float, default=_DEFAULT_FACTOR)
    parser.add_argument("--compare", action="store_true")
    options = parser.parse_args()
    gauntlet = shutil.which("gauntlet")
    if gauntlet is None:
        sys.exit("there is no gauntlet on PATH: pip install -e '.[iree]'")
    with tempfile.TemporaryDirectory(prefix="planted-") as directory:
        folder = Path(directory)
        os.environ[SESSION_FOLDER_VARIABLE] = directory
        builds = [
            write_build_tree(
                folder / f"b{number}", iree_benchmark_module=_make_slow_script(folder / f"b{number}-scripts", factor)
            )
            for number, factor in enumerate([1.0] * _FIRST_SLOW + [options.factor] * (_BUILDS - _FIRST_SLOW))
        ]
        candidates = [word for build in builds[1:-1] for word in ("--among", build)]
        search = ["bisect", "--good", builds[0], "--bad", builds[-1], *candidates, *_SELECTION, *_ROUNDS]
        arguments = ["compare", builds[0], builds[-1], *_COMPARE_OPTIONS] if options.compare else search
        sys.exit(subprocess.run([gauntlet, *arguments], check=False).returncode)


def _make_slow_script(folder: Path, factor: float) -> str:
    return f'exec "{write_slow_benchmark(folder, factor)}" "$@"'


if __name__ == "__main__":
    main()
