"""An iree-benchmark-module with times that a test chooses, so that the expected report is known."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["write_benchmark_tool"]

# A benchmark has the machine for itself, so two starts never change the count at once.
_SCRIPT = """#!/bin/sh
cd {folder} || exit 1
read -r started < started
echo $((started + 1)) > started
[ -e "$started.json" ] || started=last
exec cat "$started.json"
"""


def write_benchmark_tool(folder: Path, *starts: Sequence[float]) -> str:
    """Write the tool; return its path, as a toolchain has it.

    `folder`: the tool's directory, which is created. `starts`: the times of the repetitions of each process start, in
    ms; the last start's times also apply to all further starts.
    """
    folder.mkdir()
    for number, times in enumerate(starts):
        (folder / f"{number}.json").write_text(_make_report(times))
    (folder / "last.json").write_text(_make_report(starts[-1]))
    (folder / "started").write_text("0\n")
    script = folder / "iree-benchmark-module"
    script.write_text(_SCRIPT.format(folder=shlex.quote(str(folder))))
    script.chmod(0o755)
    return str(script)


def _make_report(times: Sequence[float]) -> str:
    """Return the fields of Google Benchmark's `--benchmark_format=json` that the toolkit reads."""
    name = "BM_abs/real_time"
    rows = [
        {
            "name": name,
            "run_name": name,
            "run_type": "iteration",
            "repetitions": len(times),
            "repetition_index": index,
            "iterations": 7,
            "real_time": time,
            "cpu_time": time,
            "time_unit": "ms",
        }
        for index, time in enumerate(times)
    ]
    return json.dumps({"context": {"library_build_type": "release"}, "benchmarks": rows}) + "\n"
