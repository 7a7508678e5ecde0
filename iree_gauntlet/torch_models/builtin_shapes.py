"""The sets of shapes of torchao's micro-benchmarks, with its names and defaults.

Source: `benchmarks/microbenchmarks/benchmark_runner.py` and the README next to it. Layers of one name differ by
their sizes, there as here.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from iree_gauntlet.torch_models.recipe_registry import shape_set

if TYPE_CHECKING:
    from collections.abc import Iterator


# Linear layers of one block of newer models: what it is, and (label, k, n) of each; torchao measures each for 16,384
# tokens and for 128,000, all of a set's layers first for the one and then for the other.
_TOKENS = (16384, 128000)
_MODELS = {
    "llama4": ("Llama 4", (("FFN", 8192, 5120), ("QO_proj", 8192, 8192), ("KV_proj", 8192, 1024))),
    "deepseek_v3_236b": ("DeepSeek V3, 236B", (("FFN", 1536, 5120), ("QKVO_proj", 7168, 7168))),
    "deepseek_v3_671b": ("DeepSeek V3, 671B", (("FFN", 2048, 7168), ("QKVO_proj", 7168, 7168))),
    "qwen3_32b": ("Qwen3 32B", (("QO_proj", 5120, 5120), ("KV_proj", 5120, 640))),
    "gemma3_27b": ("Gemma 3 27B", (("QO_proj", 4096, 4096), ("KV_proj", 4096, 1024))),
}


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


def _declare(name: str, model: str, layers: tuple[tuple[str, int, int], ...]) -> None:
    @shape_set(name, about=f"{model}: its projections for 16,384 tokens and for 128,000")
    def of_model() -> Iterator[tuple[str, int, int, int]]:
        for tokens in _TOKENS:
            for label, k, n in layers:
                yield label, tokens, k, n


for _name, (_model, _layers) in _MODELS.items():
    _declare(_name, _model, _layers)
