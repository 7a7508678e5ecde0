"""Finds flaky tests: runs all tests N times, each time in another order, next to busy loops and a disk load.

    python tools/flaky.py 5 [pytest options …]

Names every test whose outcome varied, with the seeds of the runs; `pytest --randomly-seed=SEED` repeats a run's order.
Exits with 1 if an outcome varied, or if a test always failed.
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

# Both programs end with their parent process, even if the parent is killed.
_SPIN = "import os; parent = os.getppid()\nwhile os.getppid() == parent: pass"
# The program writes 64 MiB again and again, each time with fsync.
_WRITER = """
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
        outcomes: `passed`, `skipped` or `failed` for each test name.
    """

    seed: int
    code: int
    outcomes: dict[str, str]


def main(arguments: Sequence[str]) -> int:
    """Run the tests, print which outcomes varied and return the exit code."""
    if not arguments or not arguments[0].isdecimal() or int(arguments[0]) < 1:
        sys.stderr.write("error: how many times?\n  Such as: python tools/flaky.py 5 tests/engine\n")
        return 2
    count, options = int(arguments[0]), list(arguments[1:])
    runs = []
    with tempfile.TemporaryDirectory(prefix="flaky-") as directory:
        for number in range(1, count + 1):
            with _generate_load(Path(directory)):
                runs.append(_run_tests(number, options, Path(directory) / f"{number}.xml"))
            failures = sum(outcome == "failed" for outcome in runs[-1].outcomes.values())
            _print_line(f"run {number} of {count} (seed {number}): {len(runs[-1].outcomes)} tests, {failures} failed")
    return _report(runs)


def _run_tests(seed: int, options: Sequence[str], report: Path) -> Run:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    arguments = ["-q", "-n", str(cores), "--dist", "worksteal", f"--randomly-seed={seed}", f"--junit-xml={report}"]
    process = subprocess.run([sys.executable, "-m", "pytest", *arguments, *options], check=False)
    return Run(seed, process.returncode, _read_outcomes(report) if report.exists() else {})


def _read_outcomes(report: Path) -> dict[str, str]:
    outcomes: dict[str, str] = {}
    for case in ET.parse(report).getroot().iter("testcase"):  # noqa: S314 - pytest's own, just written
        name = f"{case.get('classname')}::{case.get('name')}"
        tags = {child.tag for child in case}
        outcome = "failed" if tags & {"failure", "error"} else "skipped" if "skipped" in tags else "passed"
        # A test that failed in its teardown has two entries.
        outcomes[name] = "failed" if "failed" in (outcomes.get(name), outcome) else outcome
    return outcomes


@contextlib.contextmanager
def _generate_load(folder: Path) -> Iterator[None]:
    commands = [[sys.executable, "-c", _SPIN]] * _BUSY_LOOPS + [[sys.executable, "-c", _WRITER, str(folder / "load")]]
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
    failures = 0
    for name, by_outcome in sorted(seeds.items()):
        skips = [run.seed for run in runs if all(run.seed not in numbers for numbers in by_outcome.values())]
        if skips:
            by_outcome["not run"] = skips
        if len(by_outcome) > 1 or "failed" in by_outcome:
            failures += 1
            summary = "; ".join(
                f"{outcome} with seed {', '.join(map(str, numbers))}" for outcome, numbers in sorted(by_outcome.items())
            )
            _print_line(f"{'flaky' if len(by_outcome) > 1 else 'fails'}: {name}: {summary}")
    codes = sorted({run.code for run in runs})
    green = sum(run.code == 0 for run in runs)
    _print_line(f"{green} of {len(runs)} runs green; {len(seeds)} tests, {failures} of them flaky or failing")
    return 0 if codes == [0] and not failures and seeds else 1


def _print_line(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
