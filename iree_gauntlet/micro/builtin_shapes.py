"""The sets of shapes of torchao's micro-benchmarks, with its names and defaults.

Source: `benchmarks/microbenchmarks/benchmark_runner.py` and the README beside it.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from iree_gauntlet.micro.registry import shape_set

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["llama", "pow2", "pow2_extended", "small_sweep", "sweep"]


@shape_set("llama", about="Llama 2 70B on one node: 4 texts of 4,096 tokens, wqkv and w13 fused")
def llama() -> Iterator[tuple[str, int, int, int]]:
    """The linear layers of one block."""
    rows = 4 * 4096
    yield "attn.wqkv", rows, 8192, 1280
    yield "attn.w0", rows, 1024, 8192
    yield "ffn.w13", rows, 8192, 7168
    yield "ffn.w2", rows, 3584, 8192


@shape_set("pow2", min_power=10, max_power=14, about="cubes: m = k = n")
def pow2(sizes: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
    """Powers of two."""
    for size in sizes:
        yield size, size, size


@shape_set("pow2_extended", min_power=10, max_power=14, about="cubes, with those half-way to the next power")
def pow2_extended(sizes: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
    """Powers of two, and one and a half times each."""
    for power in sizes:
        for size in (power, power + power // 2):
            yield size, size, size


@shape_set("small_sweep", min_power=10, max_power=14, about="m ≤ k ≤ n")
def small_sweep(sizes: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
    """The rising ones of all combinations."""
    for m, k, n in product(sizes, repeat=3):
        if m <= k <= n:
            yield m, k, n


@shape_set("sweep", min_power=8, max_power=15, about="all combinations of m, k and n")
def sweep(sizes: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
    """All combinations."""
    yield from product(sizes, repeat=3)
