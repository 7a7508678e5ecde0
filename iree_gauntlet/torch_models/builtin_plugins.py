"""The built-in shapes, recipes, architectures and activations.

Sizes are (m, k, n) as in torchao: m rows of input, of k values each; the measured layer has n outputs.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Literal

from iree_gauntlet.torch_models.plugins import Proof, activation, architecture, compiler_recipe, recipe, shape_set

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import torch
    from torch import Tensor
    from torch.nn import Module


# The sets of shapes of torchao's micro-benchmarks, with torchao's names and defaults. Source:
# `benchmarks/microbenchmarks/benchmark_runner.py` and the README next to it. Layers with equal names differ in size.

# Linear layers of one block of newer models: the model's title, and (label, k, n) of each layer. Torchao measures all
# layers of a set for 16,384 tokens, then all for 128,000.
_TOKEN_COUNTS = (16384, 128000)
_MODEL_LAYERS = {
    "llama4": ("Llama 4", (("FFN", 8192, 5120), ("QO_proj", 8192, 8192), ("KV_proj", 8192, 1024))),
    "deepseek_v3_236b": ("DeepSeek V3, 236B", (("FFN", 1536, 5120), ("QKVO_proj", 7168, 7168))),
    "deepseek_v3_671b": ("DeepSeek V3, 671B", (("FFN", 2048, 7168), ("QKVO_proj", 7168, 7168))),
    "qwen3_32b": ("Qwen3 32B", (("QO_proj", 5120, 5120), ("KV_proj", 5120, 640))),
    "gemma3_27b": ("Gemma 3 27B", (("QO_proj", 4096, 4096), ("KV_proj", 4096, 1024))),
}


@shape_set("llama", about="Llama 2 70B on one node: 4 texts of 4,096 tokens, wqkv and w13 fused")
def llama() -> Iterator[tuple[str, int, int, int]]:
    """Yield the linear layers of one block."""
    rows = 4 * 4096
    yield "attn.wqkv", rows, 8192, 1280
    yield "attn.w0", rows, 1024, 8192
    yield "ffn.w13", rows, 8192, 7168
    yield "ffn.w2", rows, 3584, 8192


@shape_set("pow2", min_power=10, max_power=14, about="cubes: m = k = n")
def pow2(sizes: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
    """Yield powers of two."""
    for size in sizes:
        yield size, size, size


@shape_set("pow2_extended", min_power=10, max_power=14, about="cubes, including those halfway to the next power")
def pow2_extended(sizes: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
    """Yield powers of two, and one and a half times each."""
    for power in sizes:
        for size in (power, power + power // 2):
            yield size, size, size


@shape_set("small_sweep", min_power=10, max_power=14, about="m ≤ k ≤ n")
def small_sweep(sizes: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
    """Yield the non-decreasing combinations."""
    for m, k, n in product(sizes, repeat=3):
        if m <= k <= n:
            yield m, k, n


@shape_set("sweep", min_power=8, max_power=15, about="all combinations of m, k and n")
def sweep(sizes: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
    """Yield all combinations."""
    yield from product(sizes, repeat=3)


def _declare_shapes(name: str, model: str, layers: tuple[tuple[str, int, int], ...]) -> None:
    @shape_set(name, about=f"{model}: its projections for 16,384 tokens and for 128,000")
    def yield_shapes() -> Iterator[tuple[str, int, int, int]]:
        for tokens in _TOKEN_COUNTS:
            for label, k, n in layers:
                yield label, tokens, k, n


for _name, (_model, _layers) in _MODEL_LAYERS.items():
    _declare_shapes(_name, _model, _layers)


# The recipes were tested with IREE 3.13 on CPUs, and `about` describes that case. A recipe uses torchao's graph if this
# survives the conversion to IREE, otherwise an equivalent graph with the same numbers (`layers.py`). Every recipe skips
# and reports the linear layers that it does not support.

# By default, the compiler may widen small narrow weights once, when a module is loaded; calls would then work with f32,
# and the recipe would have no effect. The threshold of 0 bytes prevents this.
_KEEP_NARROW_FLAGS = ("--iree-opt-const-expr-max-size-increase-threshold=0",)
# IREE 3.13 rejects most products of narrow types, because it chooses tile sizes for the narrow type and checks them for
# the wide one. Without the check, these products compile and run correctly.
_LARGE_VECTOR_FLAGS = ("--iree-llvmcpu-fail-on-large-vector=false",)
# Values quantised at run time may fall on either side of a step if torch and IREE differ in the last bit; in a model of
# several layers, one such difference causes more of them. Errors measured in transformer blocks: 5e-8 to 8e-6 in f32,
# 0.001 to 0.003 in f16, 0.003 to 0.006 in bf16. The tolerances are a half and a third of the recipes' errors at a
# linear layer, 0.009 and 0.037.
_INT8_TOLERANCE = 0.004
_FLOAT8_TOLERANCE = 0.012


@recipe("baseline", kind="quantization", about="the model unchanged")
def baseline(model: Module) -> Module:
    """Return the model unchanged; every speed-up is relative to it."""
    return model


@recipe(
    "int8wo",
    kind="quantization",
    about="weights in int8 with one scale per output, by torchao; activations unchanged",
    # The share is a quarter of f32 or half of f16 and bf16, plus the steps.
    proof=Proof(parameter_types=("i8",), parameter_share=0.55),
    requires=("torchao",),
    flags=_KEEP_NARROW_FLAGS,
)
def int8wo(model: Module) -> Module:
    """Apply torchao's Int8WeightOnlyConfig; bf16 has an equivalent, since torchao's does not link on every CPU."""
    import torch  # noqa: PLC0415 - listed without torch
    from torchao.quantization import Int8WeightOnlyConfig, quantize_  # noqa: PLC0415

    from iree_gauntlet.torch_models.torch_side import layers  # noqa: PLC0415

    if any(layer.weight.dtype is torch.bfloat16 for layer in layers.linear_layers(model).values()):
        return layers.replace_linear_layers(model, layers.Int8Linear)
    quantize_(model, Int8WeightOnlyConfig())
    return model


@recipe(
    "int8dq",
    kind="quantization",
    about="weights in int8, rows of activations in int8 with scales computed at run time; products with int32 sums",
    proof=Proof(parameter_types=("i8",), parameter_share=0.55, dispatch=r"matmul.*i8xi8xi32"),
    tolerance=_INT8_TOLERANCE,
    flags=_LARGE_VECTOR_FLAGS,
)
def int8dq(model: Module) -> Module:
    """Apply an equivalent of torchao's Int8DynamicActivationInt8WeightConfig, which ONNX cannot express."""
    from iree_gauntlet.torch_models.torch_side import layers  # noqa: PLC0415

    return layers.replace_linear_layers(model, layers.Int8DynamicLinear)


@recipe(
    "int4wo",
    kind="quantization",
    about="weights in four bits, two in a byte, with one scale per group of an output's inputs",
    proof=Proof(parameter_types=("i8",), parameter_share=0.4),
    flags=_KEEP_NARROW_FLAGS,
    check=lambda group: "" if group and not group % 2 else "a group must have an even number of inputs",
)
def int4wo(model: Module, group: int = 32) -> Module:
    """Quantise symmetrically; torchao's recipe needs kernels of a GPU library."""
    from iree_gauntlet.torch_models.torch_side import layers  # noqa: PLC0415

    return layers.replace_linear_layers(
        model,
        lambda layer: layers.Int4Linear(layer, group),
        lambda layer: layers.explain_unfit_for_groups(layer, group),
    )


@recipe(
    "float8wo",
    kind="quantization",
    about="weights in f8E4M3FN with one scale per output, by torchao; activations unchanged",
    proof=Proof(parameter_types=("f8E4M3FN",), parameter_share=0.55),
    requires=("torchao",),
    flags=_KEEP_NARROW_FLAGS,
)
def float8wo(model: Module) -> Module:
    """Apply torchao's Float8WeightOnlyConfig."""
    from torchao.quantization import Float8WeightOnlyConfig, quantize_  # noqa: PLC0415

    quantize_(model, Float8WeightOnlyConfig())
    return model


@recipe(
    "float8dq",
    kind="quantization",
    about="weights and, with scales computed at run time, activations in f8E4M3FN; products and sums in f32",
    proof=Proof(parameter_types=("f8E4M3FN",), parameter_share=0.55, dispatch=r"matmul.*f8E4M3FN"),
    tolerance=_FLOAT8_TOLERANCE,
    flags=(*_KEEP_NARROW_FLAGS, *_LARGE_VECTOR_FLAGS),
)
def float8dq(model: Module, granularity: Literal["tensor", "row"] = "tensor") -> Module:
    """Apply an equivalent of torchao's Float8DynamicActivationFloat8WeightConfig, which requires a GPU."""
    from iree_gauntlet.torch_models.torch_side import layers  # noqa: PLC0415

    return layers.replace_linear_layers(model, lambda layer: layers.Float8DynamicLinear(layer, granularity))


@recipe(
    "semi-sparse",
    kind="sparsity",
    about="two of every four weights are zero; IREE multiplies by them: this measures accuracy, not speed",
    beside=("baseline", "int8dq", "float8dq"),
)
@recipe("2:4", kind="sparsity", about="the same as semi-sparse", beside=("baseline", "int8dq", "float8dq"))
def semi_sparse(model: Module) -> Module:
    """Keep the two weights of largest magnitude."""
    from iree_gauntlet.torch_models.torch_side import layers  # noqa: PLC0415

    return layers.prune_linear_layers(model, layers.keep_two_of_four, layers.explain_unfit_for_fours)


@recipe(
    "block",
    kind="sparsity",
    about="half of the square blocks of weights are zero; IREE multiplies by them: this measures accuracy, not speed",
    check=lambda size: "" if size else "a block must have a size of at least 1",
)
def block(model: Module, size: int = 64) -> Module:
    """Keep the blocks of the largest sums of squares."""
    from iree_gauntlet.torch_models.torch_side import layers  # noqa: PLC0415

    return layers.prune_linear_layers(
        model,
        lambda weight: layers.keep_blocks(weight, size),
        lambda layer: layers.explain_unfit_for_blocks(layer, size),
    )


for _level in ("O0", "O1", "O2", "O3"):
    compiler_recipe(
        _level,
        flags=(f"--iree-opt-level={_level}",),
        about=f"the compiler's optimisation level {_level}",
        # IREE 3.13 compiles at O0 by default, and the modules of O0 and O1 are equal.
        proof=Proof(different=_level not in ("O0", "O1")),
    )

compiler_recipe("data-tiling", flags=("--iree-opt-data-tiling",), about="operands of products are packed into tiles")

for _type in ("f16", "bf16"):
    compiler_recipe(
        f"demote-{_type}",
        flags=(
            f"--iree-global-opt-demote-contraction-inputs-type={_type}",
            "--iree-global-opt-demote-contraction-inputs-operations=all",
        ),
        about=f"inputs of f32 products are narrowed to {_type}; sums stay f32",
        contraction_type=_type,
    )


# The first three architectures are those of torchao's list. This table has activations by name: torch's class, and a
# description.
_ACTIVATIONS = {
    "relu": ("ReLU", "max(x, 0)."),
    "sigmoid": ("Sigmoid", "1 / (1 + exp(-x))."),
    "leakyrelu": ("LeakyReLU", "Leaky: x, or x / 100 below zero."),
    "relu6": ("ReLU6", "x clipped to the range from 0 to 6."),
    "gelu": ("GELU", "By erf: x times the cumulative normal distribution at x."),
    "silu": ("SiLU", "The swish: x / (1 + exp(-x))."),
    "hardswish": ("Hardswish", "The piecewise-linear swish: x times (x + 3) / 6, clipped to 0 to 1."),
}


def _declare_activation(name: str, class_name: str, description: str) -> None:
    @activation(name, about=description)
    def make_module() -> Module:
        from torch import nn  # noqa: PLC0415 - the toolkit's Python lists these without torch

        return getattr(nn, class_name)()


for _name, (_class_name, _description) in _ACTIVATIONS.items():
    _declare_activation(_name, _class_name, _description)


@architecture("linear", about="one linear layer without bias: m rows, k inputs, n outputs")
def linear(m: int, k: int, n: int, dtype: torch.dtype) -> tuple[Module, tuple[Tensor, ...]]:
    """Make torchao's ToyLinearModel."""
    from iree_gauntlet.torch_models.torch_side.layers import Linear, add_rows  # noqa: PLC0415

    return add_rows(Linear(k, n), (m, k), dtype)


@architecture(
    "ln_linear", about="layer normalisation, a linear layer without bias (k inputs, n outputs), an activation"
)
def ln_linear(m: int, k: int, n: int, dtype: torch.dtype, activation: Module) -> tuple[Module, tuple[Tensor, ...]]:
    """Make torchao's LNLinearActivationModel."""
    from iree_gauntlet.torch_models.torch_side.layers import NormLinearActivation, add_rows  # noqa: PLC0415

    return add_rows(NormLinearActivation(k, n, activation), (m, k), dtype)


@architecture(
    "transformer_block",
    about="attention of 8 heads and a network of 4k: m sequences of 16 tokens, k values a token; n plays no part",
)
def transformer_block(m: int, k: int, n: int, dtype: torch.dtype) -> tuple[Module, tuple[Tensor, ...]]:  # noqa: ARG001 - see `about`
    """Make torchao's TransformerBlock."""
    from iree_gauntlet.torch_models.torch_side.layers import TransformerBlock, add_rows  # noqa: PLC0415

    return add_rows(TransformerBlock(k), (m, 16, k), dtype)


@architecture(
    "transformers",
    about="a model of the transformers library from a local configuration, random weights: a sequence of m tokens; "
    "k is hidden_size and n intermediate_size, 0 for the configuration's own",
)
def transformers(m: int, k: int, n: int, dtype: torch.dtype, config: Path) -> tuple[Module, tuple[Tensor, ...]]:
    """Make the model of a configuration; nothing is downloaded, and code named by a configuration is not run."""
    from iree_gauntlet.torch_models.torch_side.layers import make_configured_model  # noqa: PLC0415

    return make_configured_model(config, tokens=m, hidden_size=k, intermediate_size=n, dtype=dtype)
