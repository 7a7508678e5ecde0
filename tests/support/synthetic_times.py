"""An iree-benchmark-module whose times a test chooses, so that what is reported of them is known."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["synthetic_times"]

# A benchmark has the machine for itself, so that no two starts count at once.
_SCRIPT = """#!/bin/sh
cd {folder} || exit 1
read -r started < started
echo $((started + 1)) > started
[ -e "$started.json" ] || started=last
exec cat "$started.json"
"""


def synthetic_times(folder: Path, *starts: Sequence[float]) -> str:
    """Makes the tool; its path, as a toolchain names it.

    `folder`: where to; made. `starts`: of each process start the time of every repetition, in ms; the last is that of
    all further ones too.
    """
    folder.mkdir()
    for number, times in enumerate(starts):
        (folder / f"{number}.json").write_text(_report(times))
    (folder / "last.json").write_text(_report(starts[-1]))
    (folder / "started").write_text("0\n")
    script = folder / "iree-benchmark-module"
    script.write_text(_SCRIPT.format(folder=shlex.quote(str(folder))))
    script.chmod(0o755)
    return str(script)


def _report(times: Sequence[float]) -> str:
    """What Google Benchmark prints with `--benchmark_format=json`, as far as anything reads it."""
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
