"""Hunts for flaky tests: runs them N times, each time in another order, next to busy loops and a disk load.

    python tools/flaky.py 5 [pytest options …]

Names every test that did not come out the same each time, with the seeds of the runs: `pytest --randomly-seed=…`
repeats an order. Exits with 1 where there is one, or where a test failed each time.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# They end with the process that started them, however that ends.
_BUSY = "import os; parent = os.getppid()\nwhile os.getppid() == parent: pass"
# 64 MiB again and again, made durable each time.
_DISK = """
import os, sys
parent, block = os.getppid(), os.urandom(1 << 20)
while os.getppid() == parent:
    with open(sys.argv[1], "wb") as file:
        for _ in range(64):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
"""
_BUSY_LOOPS = 2


@dataclass(frozen=True)
class Run:
    """One run of the tests.

    Attributes:
        outcomes: of each test by its name: `passed`, `skipped`, `failed`.
    """

    seed: int
    code: int
    outcomes: dict[str, str]


def main(words: Sequence[str]) -> int:
    """Runs the tests and says what differed; the exit code."""
    if not words or not words[0].isdecimal() or int(words[0]) < 1:
        sys.stderr.write("error: how many times?\n  Such as: python tools/flaky.py 5 tests/engine\n")
        return 2
    count, options = int(words[0]), list(words[1:])
    runs = []
    with tempfile.TemporaryDirectory(prefix="flaky-") as folder:
        for number in range(1, count + 1):
            with _load(Path(folder)):
                runs.append(_run(number, options, Path(folder) / f"{number}.xml"))
            failed = sum(outcome == "failed" for outcome in runs[-1].outcomes.values())
            _say(f"run {number} of {count} (seed {number}): {len(runs[-1].outcomes)} tests, {failed} failed")
    return _report(runs)


def _run(seed: int, options: Sequence[str], report: Path) -> Run:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    words = ["-q", "-n", str(cores), "--dist", "worksteal", f"--randomly-seed={seed}", f"--junit-xml={report}"]
    done = subprocess.run([sys.executable, "-m", "pytest", *words, *options], check=False)
    return Run(seed, done.returncode, _outcomes(report) if report.exists() else {})


def _outcomes(report: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for case in ET.parse(report).getroot().iter("testcase"):  # noqa: S314 - pytest's own, just written
        name = f"{case.get('classname')}::{case.get('name')}"
        tags = {child.tag for child in case}
        outcome = "failed" if tags & {"failure", "error"} else "skipped" if "skipped" in tags else "passed"
        # A test that fails in its teardown has two entries.
        found[name] = "failed" if "failed" in (found.get(name), outcome) else outcome
    return found


@contextlib.contextmanager
def _load(folder: Path) -> Iterator[None]:
    commands = [[sys.executable, "-c", _BUSY]] * _BUSY_LOOPS + [[sys.executable, "-c", _DISK, str(folder / "load")]]
    loads = [subprocess.Popen(command) for command in commands]
    try:
        yield
    finally:
        for load in loads:
            load.kill()
            load.wait()


def _report(runs: Sequence[Run]) -> int:
    seeds: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        for name, outcome in run.outcomes.items():
            seeds[name][outcome].append(run.seed)
    bad = 0
    for name, by_outcome in sorted(seeds.items()):
        absent = [run.seed for run in runs if all(run.seed not in found for found in by_outcome.values())]
        if absent:
            by_outcome["not run"] = absent
        if len(by_outcome) > 1 or "failed" in by_outcome:
            bad += 1
            each = "; ".join(
                f"{outcome} with seed {', '.join(map(str, s))}" for outcome, s in sorted(by_outcome.items())
            )
            _say(f"{'flaky' if len(by_outcome) > 1 else 'fails'}: {name}: {each}")
    codes = sorted({run.code for run in runs})
    green = sum(run.code == 0 for run in runs)
    _say(f"{green} of {len(runs)} runs green; {len(seeds)} tests, {bad} of them flaky or failing")
    return 0 if codes == [0] and not bad and seeds else 1


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
