"""What the data formats do to weights: `python benchmarks/data_formats.py [ROWS]` prints the table of the docs page.

Weights are ROWS times 4,096 normal numbers (default 1,024), in blocks of 16 along a row, with a seed: the table is the
same on every machine. Seconds are the time that rounding them takes here, the best of three.
"""

from __future__ import annotations

import sys
import time

import numpy as np

from iree_gauntlet.torch_models.block_float import rounding_error
from iree_gauntlet.torch_models.formats import DataFormat, round_weights

_COLUMNS = 4096


def main(rows: int) -> None:
    """Prints a row for each format."""
    weights = np.random.default_rng(0).standard_normal((rows, _COLUMNS), dtype=np.float32)
    print("| format | held in | largest error | largest error, share of its block's largest | RMSE | SQNR |")
    print("| --- | --- | --- | --- | --- | --- |")
    taken: list[str] = []
    for form in DataFormat:
        seconds = []
        for _ in range(3):
            started = time.perf_counter()
            rounded = round_weights(weights, form)
            seconds.append(time.perf_counter() - started)
        taken.append(f"{form.value} {min(seconds):.2f} s")
        error = rounding_error(weights, rounded)
        if error.rmse == 0:
            print(f"| {form.value} | {form.element_type} | 0 | 0 | 0 | exact |")
            continue
        print(
            f"| {form.value} | {form.element_type} | {error.max_abs:.2g} | {100 * error.max_rel_to_block:.2g} % "
            f"| {error.rmse:.2g} | {error.sqnr_db:.1f} dB |"
        )
    print(f"\n{weights.size:,} weights: {', '.join(taken)}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1024)
