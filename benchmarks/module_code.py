"""Measures what reading the code of modules costs: `python benchmarks/module_code.py RUN…`, folders of runs.

For each module that a run has compiled, the code is read five times, and the fastest is set against the time of the
compile, which the run has recorded. Read the modules on the machine that compiled them.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from iree_gauntlet.journal_format import JOURNAL, read_journal
from iree_gauntlet.measuring.code.module_code import read_module_code
from iree_gauntlet.stages import Stage

_ROUNDS = 5


def main() -> None:
    """Measure and print a row for each module, and the shares of all together."""
    total_seconds = total_compile_seconds = 0.0
    print("| module | MB | dispatches | reading ms | compile s | share |\n| --- | ---: | ---: | ---: | ---: | ---: |")
    for folder in map(Path, sys.argv[1:]):
        record = read_journal(folder / JOURNAL)
        for step in record.planned:
            result = record.results.get(step.id)
            compile_seconds = float((result.statistics.get("tool_seconds") if result else None) or 0)
            if step.stage is not Stage.COMPILE or not compile_seconds:
                continue
            module = folder / "steps" / Path(step.find_output("module")).relative_to(Path(step.folder).parents[2])
            seconds = min(_read(module) for _ in range(_ROUNDS))
            total_seconds, total_compile_seconds = total_seconds + seconds, total_compile_seconds + compile_seconds
            size, count = module.stat().st_size / 1e6, len(read_module_code(module).code)
            share = 100 * seconds / compile_seconds
            print(
                f"| {step.chain} | {size:.1f} | {count} | {1e3 * seconds:.0f} | {compile_seconds:.2f} | {share:.2f} % |"
            )
    print(f"\nreading takes {100 * total_seconds / total_compile_seconds:.2f} % of the time of compiling")


def _read(module: Path) -> float:
    """Return the seconds that reading a module takes."""
    start = time.perf_counter()
    read_module_code(module)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
