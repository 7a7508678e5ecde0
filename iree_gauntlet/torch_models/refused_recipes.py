"""Recipes that torchao has and that are not made here, and why: each is refused by itself, and the others run.

Source: `string_to_config` and what is beside it in `benchmarks/microbenchmarks/utils.py` of torchao, of all versions;
it looks for a word anywhere in the text, and so do these patterns, with arguments of any kind.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

from iree_gauntlet.torch_models.recipe_registry import Recipe

_KERNELS = "are made for CUDA, and IREE cannot compile them"
_FOUR_BITS = "int4wo-<group> has weights of four bits"
_CALIBRATED = "it is calibrated on texts with a tokenizer, and these models have random weights"

# By patterns in the manner of the shell.
REFUSED = {
    "gemlitewo*": f"GemLite's kernels {_KERNELS}: {_FOUR_BITS}, int8wo of eight",
    "int4wo-*-hqq": f"HQQ, which searches for the steps of its groups, is not made here: {_FOUR_BITS} and plain steps",
    "int4wo-*-gptq": f"{_CALIBRATED}: {_FOUR_BITS} and plain steps",
    "*marlin*": f"Marlin's kernels {_KERNELS}: {_FOUR_BITS}",
    "*fp6*": f"torchao's kernels for floats of six bits {_KERNELS}: float8wo is the nearest",
    "uintx*": "torchao packs one to eight bits in a form that ONNX, on the way to IREE, has no words for: "
    f"{_FOUR_BITS}, int8wo of eight",
    "int8adq-int4w-symm": f"CUTLASS's kernels {_KERNELS}: int8dq or int4wo-<group> is the nearest",
    "int8_dynamic_activation_intx_weight*": "torchao's opaque format is read by its own kernels for ARM alone: "
    "int8dq or int4wo-<group> is the nearest",
    "int8dq_prefill_wo_decode": "it is one thing for prompts and another for single tokens: int8dq is the one, "
    "int8wo the other",
    "float8_a1x128_w128x128": "steps for blocks of 128 × 128 weights are not made here: float8dq-row is the nearest",
    "codebook*": "codebooks of weights are not made here: int4wo-<group> has as many bits",
    "awq*": _CALIBRATED,
    "autoround*": _CALIBRATED,
    "*smoothquant*": _CALIBRATED,
    "*spinquant*": "rotations of weights are not made here",
}


def refused_recipe(text: str) -> Recipe | None:
    """The recipe of torchao that a text asks for and that is not made here, with the reason as its `refusal`."""
    for pattern, reason in REFUSED.items():
        if fnmatchcase(text, pattern):
            name = pattern.strip("*")
            return Recipe(name=name, about=reason, kind="quantization", file=Path(__file__), line=1, refusal=reason)
    return None
