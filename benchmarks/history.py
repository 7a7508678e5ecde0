"""What a large history costs: `python benchmarks/history.py` makes one of 100,000 figures and judges it.

500 runs of 50 models with four figures each, two of them with noise: 200 series. Adding, indexing, reading and judging
are timed one by one; the peer is reading the same files with `json.loads` alone.
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
from iree_gauntlet.history.judge import Effects, judge
from iree_gauntlet.history.stores import open_history
from iree_gauntlet.records.history_record import (
    HistoryCase,
    HistoryFigure,
    HistoryMachine,
    HistoryRun,
    IreeVersion,
    history_file,
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
        files = dict(map(history_file, _runs(options.runs, options.models)))
        began = time.perf_counter()
        store.add(files)
        began = _report("add", began, sum(map(len, files.values())))
        for name in store.list_stamps():
            json.loads(store.read(name))
        began = _report("json.loads alone", began)
        index = HistoryIndex(store)
        index.update()
        began = _report("index", began)
        index.update()
        series = index.series()
        began = _report("read", began, sum(len(item.points) for item in series))
        found = judge(series, Effects())
        _report("judge", began, len(found))


def _report(what: str, began: float, count: int = 0) -> float:
    now = time.perf_counter()
    print(f"{what:18}{now - began:8.2f} s{f'  {count:,}' if count else ''}")
    return now


def _runs(count: int, models: int) -> Iterator[HistoryRun]:
    chance = np.random.default_rng(1)
    times = 10 * np.exp(chance.normal(0, 0.01, (models, count)))
    # A fifth of the models gets slower half-way.
    times[::5, count // 2 :] *= 1.04
    compiles = 3 * np.exp(chance.normal(0, 0.05, (models, count)))
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
