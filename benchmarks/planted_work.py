"""Finds changes of work that are known to be there: `python benchmarks/planted_work.py [--times N]`.

In the checkout. Of each model of the suite cpu the largest activation is another one in B: its compiler gets the
program with one line changed. `gauntlet compare --metric instructions` has to find the change, with its sign, and the
dispatch whose place in the program is that line, or next to it where it was fused.

With `--times N` every model's instructions are counted N times instead, each time anew: how far the counts of a call,
and of its dispatches, lie apart.
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
# What takes the place of an activation: one that takes more instructions, or fewer.
_INSTEAD = (
    ("Relu", "Sigmoid", "more work"),
    *((name, "Relu", "less work") for name in ("Erf", "Sigmoid", "Tanh", "Exp", "HardSwish")),
)
# The compiler of B: in the program that it is given, the first activation of the table becomes another one.
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
    """Count or plant, and leave nothing behind but folders in `runs/`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=0)
    asked = parser.parse_args()
    gauntlet = shutil.which("gauntlet")
    if gauntlet is None:
        sys.exit("there is no gauntlet on PATH: pip install -e '.[iree]'")
    with tempfile.TemporaryDirectory(prefix="planted-work-") as name:
        folder = Path(name)
        if asked.times:
            _count(gauntlet, folder, asked.times)
        else:
            _plant(gauntlet, folder)


def _count(gauntlet: str, folder: Path, times: int) -> None:
    counts: dict[str, list[tuple[int, int]]] = defaultdict(list)
    names = ("instructions", "instructions_in_dispatches")
    for number in range(times):
        run = folder / f"run{number}"
        words = [gauntlet, "run", *_SUITE, "--stages", "count", "--cache-dir", str(folder / "cache"), "-q"]
        subprocess.run([*words, "--run-dir", str(run)], check=True)
        for chain in json.loads((run / "summary.json").read_text())["chains"]:
            if "instructions_in_dispatches" in chain:
                total, in_dispatches = (int(chain[name]["measured"]) for name in names)
                counts[chain["id"]].append((total, in_dispatches))
        for entry in sorted((folder / "cache" / "modules").rglob(ENTRY_FILE)):
            if '"count ' in entry.read_text():
                shutil.rmtree(entry.parent)
    for model, runs in sorted(counts.items()):
        totals, inside = zip(*runs, strict=True)
        apart = f"{100 * (max(totals) / min(totals) - 1):.5f} %, dispatches {max(inside) - min(inside):,}"
        print(f"{model:<40} {min(totals):>15,} {max(totals):>15,} {apart}")


def _plant(gauntlet: str, folder: Path) -> None:
    cache, release = folder / "cache", find_installed().compiler.release
    subprocess.run([gauntlet, "toolchain.install", release, "--cache-dir", str(cache)], check=True)
    (installed,) = (cache / "toolchains" / "envs").glob(f"{release}-*")
    shutil.copytree(installed, folder / "b", symlinks=True)
    (compiler,) = (folder / "b").rglob("_mlir_libs/iree-compile")
    real = compiler.rename(compiler.with_name("iree-compile-itself"))
    compiler.write_text(_COMPILER.format(python=sys.executable, benchmarks=str(Path(__file__).parent), real=str(real)))
    compiler.chmod(0o755)
    run = folder / "compared"
    words = [gauntlet, "compare", release, f"venv:{folder / 'b'}", "--metric", "instructions", *_SUITE]
    # A CPU that is named is counted as it is: once.
    words += ["--count-cpu", "x86-64-v3,-fma", "--cache-dir", str(cache), "--run-dir", str(run)]
    subprocess.run(words, check=False)
    document = json.loads((run / "comparison.json").read_text())
    right = 0
    for model, verdict in document["models"].items():
        chain, _, target = model.rpartition("@")
        program = run / "a" / "steps" / f"{chain}.{target}" / "import" / "program.mlir"
        _, expected, line = plant(program.read_text())
        rows = document["where"].get(model, {}).get("dispatches", {}).get("rows", [])
        named = [row for row in rows if row["match"] != "outside"]
        places = [int(row["place"].rpartition(":")[2]) for row in named if row.get("place")]
        near = min((abs(place - line) for place in places), default=-1)
        good = verdict["verdict"] == expected and near >= 0
        right += good
        first = named[0]["name"] if named else "nothing"
        print(f"{'right' if good else 'WRONG'}  {model:<36} {verdict['verdict']:<10} line {line}, {near} away: {first}")
    print(f"{right} of {len(document['models'])}")


def plant(program: str) -> tuple[str, str, int]:
    """A program with another activation, what the verdict on it has to be, and the line of the change, from 1.

    It is the one that has most values.
    """
    lines = program.splitlines(keepends=True)
    rules = {f'"onnx.{old}"': (f'"onnx.{new}"', verdict) for old, new, verdict in _INSTEAD}
    found = [(_values(line), -place, name) for place, line in enumerate(lines) for name in rules if name in line]
    if not found:
        return program, "same work", 0
    _, place, name = max(found)
    new, verdict = rules[name]
    lines[-place] = lines[-place].replace(name, new, 1)
    return "".join(lines), verdict, 1 - place


def _values(line: str) -> int:
    """How many values the result of an operation has."""
    sizes = re.search(r"-> !torch.vtensor<\[([\d,]*)\]", line)
    return math.prod(map(int, sizes[1].split(","))) if sizes and sizes[1] else 1


if __name__ == "__main__":
    main()
