"""What the builder of variants is asked for: the file that the toolkit writes and the Python with torch reads."""

from __future__ import annotations

from dataclasses import dataclass, field

from iree_gauntlet.torch_models.build_plan import Plan

# IREE's names of the types that a model may have, and torch's.
DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
_BASELINE = "baseline"


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantPlan(Plan):
    """An architecture at a shape, as recipes change it.

    Attributes:
        plugins: files with recipes and architectures beside the built-in ones, absolute.
        model_type: as a configuration spells it: `ln_linear_gelu`.
        config: a configuration of the transformers library, or its folder, absolute; None for none.
        m, k, n: sizes, 0 or more.
        dtype: f32, f16 or bf16.
        quantization: a recipe with its arguments; `baseline` for none.
        sparsity: the same; None for none.
    """

    plugins: tuple[str, ...] = ()
    model_type: str
    config: str | None = None
    m: int
    k: int
    n: int
    dtype: str = field(default="f32", metadata={"choices": tuple(DTYPES)})
    quantization: str = _BASELINE
    sparsity: str | None = None

    @property
    def label(self) -> str:
        """Of the recipes: `int8wo`, `baseline+block`."""
        return "+".join(filter(None, (self.quantization, self.sparsity)))

    @property
    def is_baseline(self) -> bool:
        """Whether the model stays as the architecture makes it."""
        return self.quantization == _BASELINE and self.sparsity is None
