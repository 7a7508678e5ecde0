"""What the builder of variants is asked for: the file that the toolkit writes and the Python with torch reads."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from iree_gauntlet.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["DTYPES", "VariantPlan", "read_variant_plan", "variant_plan"]

# IREE's names of the types that a model may have, and torch's.
DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
_BASELINE = "baseline"
_REMEDY = "the file is written by the toolkit; one written by hand has the fields of VariantPlan"


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantPlan:
    """An architecture at a shape, as recipes change it.

    Attributes:
        plugins: files with recipes and architectures beside the built-in ones, absolute.
        model_type: as a configuration spells it: `ln_linear_gelu`.
        config: a configuration of the transformers library, or its folder, absolute; None for none.
        m, k, n: sizes, 0 or more.
        dtype: f32, f16 or bf16.
        quantization: a recipe with its arguments; `baseline` for none.
        sparsity: the same; None for none.
        output: folder that is made and filled; empty where nothing is written.
    """

    plugins: tuple[str, ...] = ()
    model_type: str
    config: str | None = None
    m: int
    k: int
    n: int
    dtype: str = "f32"
    quantization: str = _BASELINE
    sparsity: str | None = None
    output: str = ""

    @property
    def label(self) -> str:
        """Of the recipes: `int8wo`, `baseline+block`."""
        return "+".join(filter(None, (self.quantization, self.sparsity)))

    @property
    def is_baseline(self) -> bool:
        """Whether the model stays as the architecture makes it."""
        return self.quantization == _BASELINE and self.sparsity is None

    def to_json(self) -> str:
        """The file's text."""
        return json.dumps(asdict(self), indent=1) + "\n"


def read_variant_plan(path: Path) -> VariantPlan:
    """Read a plan.

    Raises:
        UsageError: the file cannot be read, or is no plan.
    """
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: the plan cannot be read: {error}", _REMEDY) from error
    return variant_plan(found, str(path))


def variant_plan(found: object, where: str) -> VariantPlan:
    """The plan that a JSON object is.

    Args:
        found: the object.
        where: it stands, for errors.

    Raises:
        UsageError: it lacks a field, or has one that is unknown or of another type.
    """
    known = {field.name for field in fields(VariantPlan)}
    if not isinstance(found, dict) or not found.keys() <= known:
        odd = sorted(found.keys() - known) if isinstance(found, dict) else [type(found).__name__]
        raise UsageError(f"{where}: unknown in a plan: {', '.join(odd)}", _REMEDY)
    wrong = [name for name in sorted(known) if not _fits(name, found)]
    if wrong:
        raise UsageError(f"{where}: missing or of a wrong type: {', '.join(wrong)}", _REMEDY)
    return VariantPlan(**{**found, "plugins": tuple(found.get("plugins", ()))})


def _fits(name: str, found: Mapping[str, Any]) -> bool:
    value = found.get(name)
    if name == "plugins":
        return isinstance(found.get(name, []), list) and all(isinstance(item, str) for item in found.get(name, []))
    if name in {"m", "k", "n"}:
        return isinstance(value, int) and not isinstance(value, bool) and value >= 0
    if name == "dtype":
        return found.get(name, "f32") in DTYPES
    if name == "output":
        return isinstance(found.get(name, ""), str)
    if name in {"config", "sparsity"}:
        return value is None or (isinstance(value, str) and bool(value))
    default = _BASELINE if name == "quantization" else ""
    return isinstance(found.get(name, default), str) and bool(found.get(name, default))
