"""Searches for planted changes of work: `python benchmarks/planted_work.py [--times N]`.

Run it in the checkout. In B, the largest activation of each model of the suite cpu is replaced: B's compiler changes
one line of the program that it gets. `gauntlet compare --metric instructions` has to find the change, its sign, and its
dispatch, whose place in the program must be the changed line, or an adjacent line if the activation was fused.

With `--times N`, every model's instructions are counted N times instead, without a cache. The output is the range of
the counts of a call and of its dispatches.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from iree_gauntlet.engine.modules.module_cache import ENTRY_FILE
from iree_gauntlet.toolchains.installed import find_installed

_SUITE = ("--suite", "cpu")
# Each row has an activation, a replacement, and the effect: more instructions or fewer.
_SWAPS = (
    ("Relu", "Sigmoid", "more work"),
    *((name, "Relu", "less work") for name in ("Erf", "Sigmoid", "Tanh", "Exp", "HardSwish")),
)
# B's compiler replaces the largest activation of its input program.
_COMPILER = """#!{python}
import os, pathlib, sys
sys.path.insert(0, {benchmarks!r})
from planted_work import plant
words = sys.argv[1:]
for place, word in enumerate(words):
    if word.endswith(".mlir"):
        words[place] = "planted.mlir"
        pathlib.Path("planted.mlir").write_text(plant(pathlib.Path(word).read_text())[0])
os.execv({real!r}, [{real!r}, *words])
"""


def main() -> None:
    """Count instructions or plant changes; only folders in `runs/` remain."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=0)
    options = parser.parse_args()
    gauntlet = shutil.which("gauntlet")
    if gauntlet is None:
        sys.exit("there is no gauntlet on PATH: pip install -e '.[iree]'")
    with tempfile.TemporaryDirectory(prefix="planted-work-") as directory:
        folder = Path(directory)
        if options.times:
            _count_repeatedly(gauntlet, folder, options.times)
        else:
            _plant_and_compare(gauntlet, folder)


def _count_repeatedly(gauntlet: str, folder: Path, times: int) -> None:
    counts: dict[str, list[tuple[int, int]]] = defaultdict(list)
    names = ("instructions", "instructions_in_dispatches")
    for number in range(times):
        run_dir = folder / f"run{number}"
        arguments = [gauntlet, "run", *_SUITE, "--stages", "count", "--cache-dir", str(folder / "cache"), "-q"]
        subprocess.run([*arguments, "--run-dir", str(run_dir)], check=True)
        for chain in json.loads((run_dir / "summary.json").read_text())["chains"]:
            if "instructions_in_dispatches" in chain:
                total, in_dispatches = (int(chain[name]["measured"]) for name in names)
                counts[chain["id"]].append((total, in_dispatches))
        for entry in sorted((folder / "cache" / "modules").rglob(ENTRY_FILE)):
            if '"count ' in entry.read_text():
                shutil.rmtree(entry.parent)
    for model, pairs in sorted(counts.items()):
        totals, parts = zip(*pairs, strict=True)
        spread = f"{100 * (max(totals) / min(totals) - 1):.5f} %, dispatches {max(parts) - min(parts):,}"
        print(f"{model:<40} {min(totals):>15,} {max(totals):>15,} {spread}")


def _plant_and_compare(gauntlet: str, folder: Path) -> None:
    cache, release = folder / "cache", find_installed().compiler.release
    subprocess.run([gauntlet, "toolchain.install", release, "--cache-dir", str(cache)], check=True)
    (environment,) = (cache / "toolchains" / "envs").glob(f"{release}-*")
    shutil.copytree(environment, folder / "b", symlinks=True)
    (compiler,) = (folder / "b").rglob("_mlir_libs/iree-compile")
    real = compiler.rename(compiler.with_name("iree-compile-itself"))
    compiler.write_text(_COMPILER.format(python=sys.executable, benchmarks=str(Path(__file__).parent), real=str(real)))
    compiler.chmod(0o755)
    run_dir = folder / "compared"
    arguments = [gauntlet, "compare", release, f"venv:{folder / 'b'}", "--metric", "instructions", *_SUITE]
    # With `--count-cpu`, instructions are counted once.
    arguments += ["--count-cpu", "x86-64-v3,-fma", "--cache-dir", str(cache), "--run-dir", str(run_dir)]
    subprocess.run(arguments, check=False)
    document = json.loads((run_dir / "comparison.json").read_text())
    right_count = 0
    for model, verdict in document["models"].items():
        chain, _, target = model.rpartition("@")
        program = run_dir / "a" / "steps" / f"{chain}.{target}" / "import" / "program.mlir"
        _, expected_verdict, line = plant(program.read_text())
        rows = document["where"].get(model, {}).get("dispatches", {}).get("rows", [])
        program_rows = [row for row in rows if row["match"] != "outside"]
        lines = [int(row["place"].rpartition(":")[2]) for row in program_rows if row.get("place")]
        offset = min((abs(row_line - line) for row_line in lines), default=-1)
        good = verdict["verdict"] == expected_verdict and offset >= 0
        right_count += good
        first = program_rows[0]["name"] if program_rows else "nothing"
        print(
            f"{'right' if good else 'WRONG'}  {model:<36} {verdict['verdict']:<10} line {line}, {offset} away: {first}"
        )
    print(f"{right_count} of {len(document['models'])}")


def plant(program: str) -> tuple[str, str, int]:
    """Replace the activation with most values in a program.

    Returns the program, the verdict expected for it, and the line of the change, from 1.
    """
    lines = program.splitlines(keepends=True)
    swaps = {f'"onnx.{old}"': (f'"onnx.{new}"', verdict) for old, new, verdict in _SWAPS}
    matches = [(_count_values(line), -row, name) for row, line in enumerate(lines) for name in swaps if name in line]
    if not matches:
        return program, "same work", 0
    _, row, name = max(matches)
    new, verdict = swaps[name]
    lines[-row] = lines[-row].replace(name, new, 1)
    return "".join(lines), verdict, 1 - row


def _count_values(line: str) -> int:
    """Count the values in the result of an operation."""
    sizes = re.search(r"-> !torch.vtensor<\[([\d,]*)\]", line)
    return math.prod(map(int, sizes[1].split(","))) if sizes and sizes[1] else 1


if __name__ == "__main__":
    main()
