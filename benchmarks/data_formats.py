"""Measures the errors of data formats: `python benchmarks/data_formats.py [ROWS]` prints the table of the docs page.

The weights are ROWS (default 1,024) times 4,096 normal numbers, in blocks of 16 along a row. They come from a seed: the
table is the same on every machine. Seconds are the time to round the weights on this machine, the best of three.
"""

from __future__ import annotations

import sys
import time

import numpy as np

from iree_gauntlet.torch_models.formats import BLOCK, DataFormat, round_weights

_COLUMNS = 4096


def main(rows: int) -> None:
    """Print a row for each format."""
    weights = np.random.default_rng(0).standard_normal((rows, _COLUMNS), dtype=np.float32)
    print("| format | held in | largest error | largest error, share of its block's largest | RMSE | SQNR |")
    print("| --- | --- | --- | --- | --- | --- |")
    timings: list[str] = []
    for form in DataFormat:
        seconds = []
        for _ in range(3):
            start = time.perf_counter()
            rounded_weights = round_weights(weights, form)
            seconds.append(time.perf_counter() - start)
        timings.append(f"{form.value} {min(seconds):.2f} s")
        differences = np.abs(rounded_weights - weights, dtype=np.float64)
        if not differences.any():
            print(f"| {form.value} | {form.element_type} | 0 | 0 | 0 | exact |")
            continue
        errors, maxima = (np.abs(values).reshape(-1, BLOCK).max(axis=1) for values in (differences, weights))
        noise, power = (np.sum(np.square(values, dtype=np.float64)) for values in (differences, weights))
        print(
            f"| {form.value} | {form.element_type} | {errors.max():.2g} | {100 * (errors / maxima).max():.2g} % "
            f"| {np.sqrt(noise / weights.size):.2g} | {10 * np.log10(power / noise):.1f} dB |"
        )
    print(f"\n{weights.size:,} weights: {', '.join(timings)}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1024)
