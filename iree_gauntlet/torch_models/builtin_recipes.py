"""The recipes that the toolkit brings along; each is tried on IREE 3.13 for CPUs, and says what it is there.

Where torchao's own form survives the way to IREE, it is torchao's; where it does not, it is our own graph with the
same numbers (`layers.py`). Every recipe leaves the linear layers that do not fit it, and says which.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from iree_gauntlet.torch_models.recipe_registry import Proof, compiler_recipe, recipe

if TYPE_CHECKING:
    from torch.nn import Module

# Small narrow weights are made wide once, when a module is loaded, unless that may not take a byte more: then calls
# would work with f32, and the recipe would measure nothing.
_NARROW = ("--iree-opt-const-expr-max-size-increase-threshold=0",)
# IREE 3.13 refuses most products of narrow types for their tiles, which it sizes by the narrow type and checks by the
# wide one. Without the check they compile, and run as they should.
_LARGE = ("--iree-llvmcpu-fail-on-large-vector=false",)
# What is quantised as it comes may fall to either side of a boundary, where torch and IREE differ in the last bit of
# what came before; in a model of several layers one such step makes more of them. Measured in transformer blocks:
# 5e-8 to 8e-6 in f32, 0.001 to 0.003 in f16, 0.003 to 0.006 in bf16. These are a half and a third of what the recipes
# themselves are off at a linear layer, 0.009 and 0.037.
_INT8_BOUNDARY = 0.004
_FLOAT8_BOUNDARY = 0.012


@recipe("baseline", kind="quantization", about="the model as it is")
def baseline(model: Module) -> Module:
    """Every speed-up is against this one."""
    return model


@recipe(
    "int8wo",
    kind="quantization",
    about="weights in int8 with a step for each output, by torchao; activations stay",
    # A quarter of f32, half of f16 and bf16, and the steps.
    proof=Proof(parameter_types=("i8",), parameter_share=0.55),
    requires=("torchao",),
    flags=_NARROW,
)
def int8wo(model: Module) -> Module:
    """By torchao's Int8WeightOnlyConfig; in bf16 our own form, since its own does not link on every CPU."""
    import torch  # noqa: PLC0415 - listed without torch
    from torchao.quantization import Int8WeightOnlyConfig, quantize_  # noqa: PLC0415

    from iree_gauntlet.torch_models import layers  # noqa: PLC0415

    if any(layer.weight.dtype is torch.bfloat16 for layer in layers.linear_layers(model).values()):
        return layers.replace_linear_layers(model, layers.Int8Linear)
    quantize_(model, Int8WeightOnlyConfig())
    return model


@recipe(
    "int8dq",
    kind="quantization",
    about="weights and, as they come, rows of activations in int8; products in integers with sums in int32",
    proof=Proof(parameter_types=("i8",), parameter_share=0.55, dispatch=r"matmul.*i8xi8xi32"),
    tolerance=_INT8_BOUNDARY,
    flags=_LARGE,
)
def int8dq(model: Module) -> Module:
    """The numbers of torchao's Int8DynamicActivationInt8WeightConfig, whose own form ONNX has no words for."""
    from iree_gauntlet.torch_models import layers  # noqa: PLC0415

    return layers.replace_linear_layers(model, layers.Int8DynamicLinear)


@recipe(
    "int4wo",
    kind="quantization",
    about="weights in four bits, two in a byte, with a step for each group of inputs of an output",
    proof=Proof(parameter_types=("i8",), parameter_share=0.4),
    flags=_NARROW,
    check=lambda group: "" if group and not group % 2 else "a group is an even number of inputs",
)
def int4wo(model: Module, group: int = 32) -> Module:
    """Symmetric; torchao's own needs kernels of a GPU library."""
    from iree_gauntlet.torch_models import layers  # noqa: PLC0415

    return layers.replace_linear_layers(
        model,
        lambda layer: layers.Int4Linear(layer, group),
        lambda layer: layers.explain_unfit_for_groups(layer, group),
    )


@recipe(
    "float8wo",
    kind="quantization",
    about="weights in f8E4M3FN with a step for each output, by torchao; activations stay",
    proof=Proof(parameter_types=("f8E4M3FN",), parameter_share=0.55),
    requires=("torchao",),
    flags=_NARROW,
)
def float8wo(model: Module) -> Module:
    """By torchao's Float8WeightOnlyConfig."""
    from torchao.quantization import Float8WeightOnlyConfig, quantize_  # noqa: PLC0415

    quantize_(model, Float8WeightOnlyConfig())
    return model


@recipe(
    "float8dq",
    kind="quantization",
    about="weights and, as they come, activations in f8E4M3FN; products and sums in f32, which CPUs have no f8 for",
    proof=Proof(parameter_types=("f8E4M3FN",), parameter_share=0.55, dispatch=r"matmul.*f8E4M3FN"),
    tolerance=_FLOAT8_BOUNDARY,
    flags=(*_NARROW, *_LARGE),
)
def float8dq(model: Module, granularity: Literal["tensor", "row"] = "tensor") -> Module:
    """The numbers of torchao's Float8DynamicActivationFloat8WeightConfig, whose own form asks for a GPU."""
    from iree_gauntlet.torch_models import layers  # noqa: PLC0415

    return layers.replace_linear_layers(model, lambda layer: layers.Float8DynamicLinear(layer, granularity))


@recipe(
    "semi-sparse",
    kind="sparsity",
    about="two of four neighbouring weights are zero; IREE computes with the zeros: the numbers, and no speed",
    beside=("baseline", "int8dq", "float8dq"),
)
@recipe("2:4", kind="sparsity", about="the same as semi-sparse", beside=("baseline", "int8dq", "float8dq"))
def semi_sparse(model: Module) -> Module:
    """The two of largest magnitude stay."""
    from iree_gauntlet.torch_models import layers  # noqa: PLC0415

    return layers.prune_linear_layers(model, layers.keep_two_of_four, layers.explain_unfit_for_fours)


@recipe(
    "block",
    kind="sparsity",
    about="half of the square blocks of weights are zero; IREE computes with the zeros: the numbers, and no speed",
    check=lambda size: "" if size else "a block has a size of 1 or more",
)
def block(model: Module, size: int = 64) -> Module:
    """The blocks of the largest sum of squares stay."""
    from iree_gauntlet.torch_models import layers  # noqa: PLC0415

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
        # Without the flag IREE 3.13 makes the module of O0, and that is the module of O1.
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
