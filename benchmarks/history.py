"""Measures the cost of a large history: `python benchmarks/history.py` creates 100,000 figures and evaluates them.

There are 500 runs of 50 models with four figures each, of which two have noise: 200 series. Adding, indexing, reading
and judging are timed separately; the peer reads the same files with `json.loads` alone.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from iree_gauntlet.history.index import HistoryIndex
from iree_gauntlet.history.judge import MinEffects, judge
from iree_gauntlet.history.stores import open_history
from iree_gauntlet.records.history_record import (
    HistoryCase,
    HistoryFigure,
    HistoryMachine,
    HistoryRun,
    IreeVersion,
    make_history_file,
)
from iree_gauntlet.settings import Configuration

if TYPE_CHECKING:
    from collections.abc import Iterator


def main() -> None:
    """Print a line for each part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--models", type=int, default=50)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = open_history(folder, Configuration(), Path(folder))
        files = dict(map(make_history_file, _make_runs(options.runs, options.models)))
        start = time.perf_counter()
        store.add(files)
        start = _print_seconds("add", start, sum(map(len, files.values())))
        for name in store.list_stamps():
            json.loads(store.read(name))
        start = _print_seconds("json.loads alone", start)
        index = HistoryIndex(store)
        index.update()
        start = _print_seconds("index", start)
        index.update()
        series = index.series()
        start = _print_seconds("read", start, sum(len(one_series.points) for one_series in series))
        changes = judge(series, MinEffects())
        _print_seconds("judge", start, len(changes))


def _print_seconds(part: str, start: float, count: int = 0) -> float:
    end = time.perf_counter()
    print(f"{part:18}{end - start:8.2f} s{f'  {count:,}' if count else ''}")
    return end


def _make_runs(count: int, models: int) -> Iterator[HistoryRun]:
    generator = np.random.default_rng(1)
    times = 10 * np.exp(generator.normal(0, 0.01, (models, count)))
    # A fifth of the models gets slower half-way.
    times[::5, count // 2 :] *= 1.04
    compiles = 3 * np.exp(generator.normal(0, 0.05, (models, count)))
    for run in range(count):
        cases = tuple(
            HistoryCase(
                model=f"model{model}",
                submodel="main",
                target="cpu",
                flags="f",
                verdict="passed",
                figures=(
                    HistoryFigure("time_ms", float(times[model, run]), "min", tuple(times[model, run : run + 1])),
                    HistoryFigure("compile_s", float(compiles[model, run])),
                    HistoryFigure("size_bytes", 1e6 + 1000 * (run > count // 3)),
                    HistoryFigure("dispatches", 97.0),
                ),
            )
            for model in range(models)
        )
        day = np.datetime64("2025-01-01T10:00:00") + np.timedelta64(run, "D")
        machine = HistoryMachine("CPU", 8, 1 << 34, "Linux 6")
        yield HistoryRun(f"run{run}", f"{day}+00:00", cases, IreeVersion("", f"{run:040x}"), machine)


if __name__ == "__main__":
    main()
