"""Configurations of micro-benchmarks: YAML in torchao's dialect, read whole, with everything that is wrong at once.

Source of the dialect: `benchmarks/microbenchmarks/benchmark_runner.py` of torchao, and the README next to it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from iree_gauntlet.dialects.yaml_file import read_yaml
from iree_gauntlet.errors import UsageError
from iree_gauntlet.torch_models.configuration_schema import Context, File, ModelEntry
from iree_gauntlet.torch_models.plugins import Shape, custom_shapes, shapes_of
from iree_gauntlet.torch_models.recipe_registry import BASELINE, COMPILER, CUSTOM

if TYPE_CHECKING:
    from collections.abc import Sequence

    from iree_gauntlet.torch_models.plugins import AskedArchitecture, AskedRecipe, Registry


_DType: TypeAlias = Literal["f32", "f16", "bf16"]

_TYPES: dict[str, _DType] = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
# Of a model that is asked for without shapes: 128 tokens, and its own sizes.
_OWN_SIZES = Shape("config", 128, 0, 0)


@dataclass(frozen=True, slots=True)
class Variant:
    """A recipe, or two, that a model is measured with.

    Attributes:
        quantization: of the model, or of the compiler; the baseline where only the sparsity changes something.
        sparsity: None for none.
    """

    quantization: AskedRecipe
    sparsity: AskedRecipe | None = None

    @property
    def label(self) -> str:
        """`int8wo`, `baseline+block`."""
        return f"{self.quantization.text}+{self.sparsity.text}" if self.sparsity else self.quantization.text

    @property
    def flags(self) -> tuple[str, ...]:
        """Of the compiler, in addition to the baseline's."""
        return (*self.quantization.recipe.flags, *(self.sparsity.recipe.flags if self.sparsity else ()))

    @property
    def refusal(self) -> str:
        """Why it is not made here; empty where it is."""
        return self.quantization.recipe.refusal

    @property
    def torch_recipes(self) -> tuple[str, str | None]:
        """Its recipes as torch makes them; one of the compiler leaves the model alone, and shares the baseline's."""
        quantization = BASELINE if self.quantization.recipe.kind == COMPILER else self.quantization.text
        return quantization, self.sparsity.text if self.sparsity else None

    @property
    def side(self) -> str:
        """What torch makes for it, as `label` would call it."""
        return "+".join(filter(None, self.torch_recipes))

    @property
    def is_baseline(self) -> bool:
        """Whether it changes nothing."""
        return self.quantization.recipe.name == BASELINE and self.sparsity is None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelParams:
    """An entry of `model_params`.

    Attributes:
        device: as it is written; see `iree_device`.
        config: the configuration of a model that is made from one, absolute.
    """

    name: str
    shapes: tuple[Shape, ...]
    dtype: _DType
    torch_compile: bool
    torch_compile_mode: str
    device: str
    model_type: AskedArchitecture
    config: Path | None
    profiler: bool
    memory_profiler: bool
    line: int


@dataclass(frozen=True, slots=True)
class MicroConfig:
    """A configuration, read.

    Attributes:
        output_dir: for a copy of the results, relative to the working directory; empty for none.
        models: the entries of `model_params`.
    """

    file: Path
    variants: tuple[Variant, ...]
    output_dir: str
    models: tuple[ModelParams, ...]


def read_micro_config(path: Path, registry: Registry) -> MicroConfig:
    """Reads a configuration.

    Raises:
        UsageError: there is no such file.
        SpecError: with everything that is wrong with it.
        PluginError: the function of a shape set fails.
    """
    if not path.is_file():
        others = sorted(str(other) for other in path.parent.glob("*.y*ml")) if path.parent.is_dir() else []
        hint = f"Configurations there: {', '.join(others)}." if others else "Configurations are YAML files."
        raise UsageError(f"configuration {path} does not exist", hint)
    read = read_yaml(path, "micro-benchmark configurations", "docs/how-to/micro.md")
    file = read.as_(File, Context(registry, path.parent))
    entries = file.model_params
    if isinstance(entries, list):
        models = [_model(entry, registry, read.line_of(["model_params", index])) for index, entry in enumerate(entries)]
    else:
        models = [_model(entries, registry, read.line_of(["model_params"]))]
    return MicroConfig(path, _variants(file, registry), file.output_dir or "", _named(models))


def _variants(file: File, registry: Registry) -> tuple[Variant, ...]:
    """The baseline, every quantization alone, and the pairs that a sparsity recipe says it makes."""
    quantizations = _recipes(file.quantization_config_recipe_names, registry)
    found = [Variant(registry.recipe(BASELINE))]
    found += [Variant(asked) for asked in quantizations if asked.recipe.name != BASELINE]
    for sparsity in _recipes(file.sparsity_config_recipe_names, registry):
        beside = sparsity.recipe.beside
        found += [
            Variant(variant.quantization, sparsity)
            for variant in found
            if variant.sparsity is None and variant.quantization.recipe.name in beside
        ]
    return tuple(found)


def _recipes(names: Sequence[str | None] | None, registry: Registry) -> list[AskedRecipe]:
    """The recipes of a list, in its order; one that is there twice counts once, as in torchao."""
    return [registry.recipe(name) for name in dict.fromkeys(names or ()) if name is not None]


def _model(entry: ModelEntry, registry: Registry, line: int) -> ModelParams:
    asked = None if entry.compile in ("true", "false") else entry.compile
    return ModelParams(
        name=entry.name or "",
        shapes=_shapes(entry, registry),
        dtype=_TYPES[(entry.high_precision_dtype or "bfloat16").removeprefix("torch.")],
        torch_compile=entry.use_torch_compile is not False and entry.compile != "false",
        torch_compile_mode=asked or entry.torch_compile_mode or "default",
        device=entry.device or "cpu",
        model_type=registry.model_type(entry.model_type),
        config=Path(entry.config) if entry.config else None,
        profiler=bool(entry.enable_profiler),
        memory_profiler=bool(entry.enable_memory_profiler),
        line=line,
    )


def _shapes(entry: ModelEntry, registry: Registry) -> tuple[Shape, ...]:
    """The shapes of an entry, in its order; those that are listed are numbered through."""
    if entry.matrix_shapes is None:
        return (_OWN_SIZES,)
    listed: list[tuple[int, int, int]] = []
    shapes: list[Shape] = []
    for item in entry.matrix_shapes:
        if item.name == CUSTOM:
            before = len(listed)
            listed += item.shapes or []
            shapes += custom_shapes(listed)[before:]
        else:
            shapes += shapes_of(registry.shapes(item.name), item.min_power, item.max_power)
    return tuple(shapes)


def _named(models: Sequence[ModelParams]) -> tuple[ModelParams, ...]:
    """The entries; those without a name are called by their model type, a second one `linear-2`."""
    taken = {model.name for model in models}
    found = []
    for model in models:
        text = model.model_type.text
        names = (text if number == 1 else f"{text}-{number}" for number in count(1))
        name = model.name or next(name for name in names if name not in taken)
        taken.add(name)
        found.append(replace(model, name=name))
    return tuple(found)


def overridden(config: MicroConfig, device: str, dtype: str) -> MicroConfig:
    """The configuration with a device and an element type for all of its entries.

    `device`: as torch calls it (`cpu`) or as IREE does (`local-task`, `hip://0`); empty for the entries' own; `dtype`:
    such as `float32`, `torch.float32` or `f32`; empty for the entries' own.

    Raises:
        UsageError: there is no such type.
    """
    known = _TYPES | {kind: kind for kind in _TYPES.values()}
    kind = known.get(dtype.removeprefix("torch."))
    if dtype and kind is None:
        raise UsageError(f"--dtype {dtype}: unknown", f"Known: {', '.join(_TYPES)}.")
    models = (replace(model, device=device or model.device, dtype=kind or model.dtype) for model in config.models)
    return replace(config, models=tuple(models))


@dataclass(frozen=True, slots=True)
class Point:
    """An architecture at a shape."""

    model: ModelParams
    shape: Shape
    variants: tuple[Variant, ...]

    @property
    def name(self) -> str:
        """`small_bf16_linear/1024-1024-2048`."""
        return f"{self.model.name}/{self.shape.label}"


def points_of(config: MicroConfig) -> tuple[Point, ...]:
    """All points in the order of the file; a shape that an entry has twice, by two names, is measured once."""
    found: dict[str, Point] = {}
    for model in config.models:
        for shape in model.shapes:
            point = Point(model, shape, config.variants)
            found.setdefault(point.name, point)
    return tuple(found.values())
