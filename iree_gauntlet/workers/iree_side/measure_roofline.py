"""Measure this machine's peak rates of a matrix product and a copy, in the Python of the measured toolchain.

    python measure_roofline.py PLAN.json

The plan:

    {"threads": 2,                  for the copy; the library of the matrix product chooses its own number
     "matrix_sizes": [1024, 2048],  sides of the square f32 matrices
     "copy_bytes": 268435456,       size of the copied array; larger than the caches
     "seconds": 1.0}                minimum time of each of the two measurements

The answer is one JSON object on standard output:

    {"flops_per_s", "matrix_size", "bytes_per_s", "numpy"}

Both rates are the best of all repetitions, because disturbances can only slow down. A product of n × n matrices has
2 n³ operations. A copy of n bytes moves 2 n bytes: n are read and n are written, as STREAM counts (McCalpin, IEEE TCCA
Newsletter, December 1995). Exit codes are those of `plan_file`.
"""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

if __name__ == "__main__":
    # Import `iree_gauntlet` from the folder that contains this script, without installing it.
    sys.modules["iree_gauntlet"] = package = ModuleType("iree_gauntlet")
    package.__path__ = [str(Path(__file__).resolve().parents[2])]

from iree_gauntlet.workers.iree_side.plan_file import PlanError, read_plan, run_worker_main

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


_MIN_CALLS = 3


@dataclass(frozen=True, slots=True)
class _RooflinePlan:
    threads: int
    matrix_sizes: list[int]
    copy_bytes: int
    seconds: float


def measure_best_seconds(
    call: Callable[[], object], seconds: float, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Make a warm-up call, then at least three calls for at least `seconds`; return the shortest call's time."""
    call()
    best, count, loop_start = float("inf"), 0, clock()
    while count < _MIN_CALLS or clock() - loop_start < seconds:
        start = clock()
        call()
        best = min(best, clock() - start)
        count += 1
    return best


def measure_product_rate(
    sizes: Sequence[int], seconds: float, clock: Callable[[], float] = time.perf_counter
) -> tuple[float, int]:
    """Return the operations per second of an f32 matrix product, and the matrix size that was fastest.

    `seconds` is the minimum time for all sizes together.
    """
    rates = []
    for size in sizes:
        generator = np.random.default_rng(size)
        left, right = (generator.random((size, size), dtype=np.float32) for _ in range(2))
        product = np.empty_like(left)
        best = measure_best_seconds(partial(np.matmul, left, right, out=product), seconds / len(sizes), clock)
        rates.append((2 * size**3 / best, size))
    return max(rates)


def copy_rate(size: int, threads: int, seconds: float, clock: Callable[[], float] = time.perf_counter) -> float:
    """Measure the bytes per second that a copy by several threads reads and writes.

    The threads share an array of `size` bytes; NumPy releases Python's lock while it copies.
    """
    source = np.ones(size // 8, np.float64)
    target = np.zeros_like(source)
    parts = list(zip(np.array_split(source, threads), np.array_split(target, threads), strict=True))
    if threads == 1:
        best = measure_best_seconds(lambda: np.copyto(target, source), seconds, clock)
    else:
        with ThreadPoolExecutor(threads) as pool:
            best = measure_best_seconds(
                lambda: list(pool.map(lambda part: np.copyto(part[1], part[0]), parts)), seconds, clock
            )
    return 2 * source.nbytes / best


def measure(document: Mapping[str, object]) -> dict[str, object]:
    """Measure as a plan requests; return the answer for `run_worker_main`."""
    plan = read_plan(_RooflinePlan, document)
    sizes, min_bytes = plan.matrix_sizes, 8 * plan.threads
    if not sizes or min(sizes) < 1 or plan.threads < 1 or plan.copy_bytes < min_bytes or plan.seconds < 0:
        raise PlanError("expected a size or more, a thread or more, and 8 bytes or more to copy for each")
    flops, size = measure_product_rate(sizes, plan.seconds)
    return {
        "flops_per_s": flops,
        "matrix_size": size,
        "bytes_per_s": copy_rate(plan.copy_bytes, plan.threads, plan.seconds),
        "numpy": np.__version__,
    }


if __name__ == "__main__":
    sys.exit(run_worker_main(sys.argv, measure))
