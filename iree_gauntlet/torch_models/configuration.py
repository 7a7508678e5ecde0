"""Configurations of micro-benchmarks, YAML in torchao's dialect (`benchmarks/microbenchmarks/benchmark_runner.py`)."""

from __future__ import annotations

import json
import os
import re
import reprlib
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeAlias

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PlainValidator,
    Tag,
    TypeAdapter,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from iree_gauntlet.device_kinds import DEVICE_KINDS, TORCH_DEVICES, TORCH_NAMES, split_device
from iree_gauntlet.dialects.fields import SchemaValidator, StrictDocument, make_schema_config, require_fields
from iree_gauntlet.dialects.spec_file import BRANCH, FieldError
from iree_gauntlet.dialects.yaml_file import read_yaml
from iree_gauntlet.errors import UsageError
from iree_gauntlet.settings import format_path, read_file, resolve_links
from iree_gauntlet.targets import parse_target
from iree_gauntlet.torch_models.plugins import (
    BASELINE,
    COMPILER,
    CUSTOM,
    MAX_POWER,
    ModelType,
    PluginRegistry,
    RecipeCall,
    Shape,
    list_shapes,
    number_shapes,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


Element = Literal["torch.float32", "torch.float16", "torch.bfloat16", "float32", "float16", "bfloat16"]
_TorchMode = Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]

_MAX_SIZE = 2**31 - 1
_SHAPES_HINT = "Such as - name: pow2, or - name: custom with shapes: [[1024, 1024, 1024]]."
_CONFIG_HINT = "It is the config.json of a model of transformers, relative to the configuration."
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")
_QUANTIZATION = "quantization_config_recipe_names"
_SPARSITY = "sparsity_config_recipe_names"
_SIZES_SCHEMA: dict[str, Any] = {
    "type": "array",
    "items": {"type": "integer", "minimum": 0, "maximum": _MAX_SIZE},
    "minItems": 3,
    "maxItems": 3,
}
# The shape for a model that is requested without shapes: 128 tokens, and the sizes in the model's configuration.
_CONFIG_SHAPE = Shape("config", 128, 0, 0)


@dataclass(frozen=True, slots=True)
class ConfigurationContext:
    """The context of the fields' validation; with `has_model_sizes`, k and n may be 0, meaning the model's sizes."""

    registry: PluginRegistry
    folder: Path
    has_model_sizes: bool = False
    names: set[str] = field(default_factory=set)


def translate_device(text: str) -> str:
    """Return IREE's name of a device; `text` may be torch's name."""
    return TORCH_DEVICES.get(text, text)


def _get_context(info: ValidationInfo) -> ConfigurationContext:
    assert isinstance(info.context, ConfigurationContext)
    return info.context


def _check_exists(look_up: Callable[[PluginRegistry, str], object], text: str, info: ValidationInfo) -> str:
    """Return the text, after checking that the registry has it."""
    try:
        look_up(_get_context(info).registry, text)
    except UsageError as error:
        raise FieldError(None, error.message, error.hint) from error
    return text


def _check_readable(text: str) -> str:
    if not text.strip() or not text.isprintable():
        raise ValueError(f"expected a readable string, found {text!r}")
    return text


def _check_mode(text: str) -> str:
    if text != "inference":
        message = "micro does not measure training" if text == "training" else f"expected inference, found {text!r}"
        raise FieldError(None, message, "Write inference, or remove the field.")
    return text


def _check_recipe(field_name: str, text: str, info: ValidationInfo) -> str:
    """Check that a recipe is listed under its kind's field; the baseline may be among the quantizations."""
    kind = _get_context(info).registry.find_recipe(_check_exists(PluginRegistry.find_recipe, text, info)).recipe.kind
    expected_field = _SPARSITY if kind == "sparsity" else _QUANTIZATION
    if expected_field != field_name:
        raise FieldError(None, f"{text} is a {kind} recipe", f"List it under {expected_field}.")
    return text


def _check_distinct_recipes(texts: list[str | None], info: ValidationInfo) -> list[str | None]:
    """Check that no recipe has two spellings; a repeated recipe counts once, as in torchao."""
    texts_by_recipe: dict[tuple[object, ...], str] = {}
    for index, text in enumerate(texts):
        if text is None:
            continue
        recipe_call = _get_context(info).registry.find_recipe(text)
        first_text = texts_by_recipe.setdefault((recipe_call.recipe.name, recipe_call.arguments), text)
        if first_text != text:
            raise FieldError(index, f"{text} is {first_text}, which is also listed", "Remove one of them.")
    return texts


def _is_outside(text: str) -> bool:
    """Return True if a path is absolute on any system, or could be read as absolute."""
    return "\\" in text or bool(PureWindowsPath(text).anchor)


def _check_output_dir(text: str) -> str:
    path = PurePosixPath(text)
    if _is_outside(text) or ".." in path.parts or not path.parts:
        message = f"expected a folder below the working directory, found {text!r}"
        raise FieldError(None, message, "Write a relative path without '..'.")
    return str(path)


def _check_name(text: str, info: ValidationInfo) -> str:
    if not _NAME.fullmatch(text):
        raise ValueError(f"{text!r} is not a valid name: use letters, digits and _ . + -")
    names = _get_context(info).names
    if text in names:
        raise FieldError(None, f"{text} is already the name of another entry", "Give each entry a name of its own.")
    names.add(text)
    return text


def _check_set(name: str, info: ValidationInfo) -> str:
    return name if name == CUSTOM else _check_exists(PluginRegistry.find_shape_set, name, info)


def _check_device(text: str) -> str:
    if parse_target(split_device(translate_device(text))[0]) is None:
        hint = f"Write {TORCH_NAMES}, or a device of IREE such as local-task, hip://0 and cuda://1."
        raise FieldError(None, f"there is no device {text!r}", hint)
    return text


def _check_model_config(text: str, folder: Path) -> str:
    """Return the absolute path of a `config.json` in or below a folder, after checking that it has a JSON object."""
    path = resolve_links(folder / text)
    if os.path.isdir(path):  # noqa: PTH112 - pathlib's raises where a name is too long
        path /= "config.json"
    if _is_outside(text) or not resolve_links(path).is_relative_to(resolve_links(folder)):
        message = f"{text!r} leaves the folder of the configuration"
        raise FieldError(None, message, "Put the file into that folder, or below it.")
    try:
        document = json.loads(read_file(path))
    except OSError as error:
        raise FieldError(None, f"{format_path(path)} cannot be read: {error.strerror}", _CONFIG_HINT) from error
    except (ValueError, RecursionError) as error:
        raise FieldError(None, f"{format_path(path)} is not JSON: {error}", _CONFIG_HINT) from error
    if not isinstance(document, dict):
        raise FieldError(None, f"{format_path(path)} does not hold a JSON object", _CONFIG_HINT)
    return str(path)


def _get_config_requirement(info: ValidationInfo) -> str:
    """Return whether the model type of an entry takes a configuration; empty for an unknown type."""
    model_type = info.data.get("model_type")
    return _get_context(info).registry.find_model_type(model_type).architecture.takes_config if model_type else ""


def _check_sizes(value: object, info: ValidationInfo) -> tuple[int, int, int]:
    min_side = 0 if _get_context(info).has_model_sizes else 1
    if isinstance(value, list) and len(value) == 3 and all(type(size) is int for size in value):
        m, k, n = value
        if 1 <= m <= _MAX_SIZE and min_side <= min(k, n) and max(k, n) <= _MAX_SIZE:
            return m, k, n
    zero = "" if min_side else "; k and n may be 0 for the model's own sizes"
    expected = f"expected [m, k, n], three integers from 1 to {_MAX_SIZE:,}{zero}"
    raise ValueError(f"{expected}, found {reprlib.repr(value):.60}")


def _normalise_compile(value: object) -> object:
    return str(value).lower() if isinstance(value, bool) else value


def _choose_branch(value: object) -> str:
    return f"{BRANCH}one" if isinstance(value, dict) else f"{BRANCH}list"


Readable = Annotated[str, AfterValidator(_check_readable)]
_ModelType = Annotated[Readable, AfterValidator(partial(_check_exists, PluginRegistry.find_model_type))]
Power = Annotated[int, Field(ge=0, le=MAX_POWER)]
Sizes = Annotated[tuple[int, int, int], PlainValidator(_check_sizes), WithJsonSchema(_SIZES_SCHEMA)]
_Quantization = Annotated[str, AfterValidator(partial(_check_recipe, _QUANTIZATION))]
_Sparsity = Annotated[str, AfterValidator(partial(_check_recipe, _SPARSITY))]


class _ConfigurationFields(StrictDocument):
    """A field without a value is one that is not there."""

    model_config = ConfigDict(protected_namespaces=(), validate_default=True)


class ShapesEntry(_ConfigurationFields):
    """An entry of `matrix_shapes`: a set by its name, with powers where it has some, or shapes that are listed."""

    model_config = make_schema_config(
        **{"if": {"required": ["name"], "properties": {"name": {"const": CUSTOM}}}, "then": require_fields("shapes")}
    )

    name: Annotated[Readable, AfterValidator(_check_set)] = Field(description="Name of the entry.")
    min_power: Power | None = Field(None, description="Smallest power of two of a set.")
    max_power: Power | None = Field(None, description="Largest power of two of a set.")
    shapes: Annotated[list[Sizes], Field(min_length=1)] | None = Field(
        None, description="Shapes of the set custom: [m, k, n]."
    )

    @model_validator(mode="after")
    def _check_fields_of_set(self, info: ValidationInfo) -> Self:
        is_custom = self.name == CUSTOM
        powers = None if is_custom else _get_context(info).registry.find_shape_set(self.name).powers
        if is_custom and self.shapes is None:
            raise FieldError("shapes", f"is missing: {CUSTOM} is the set of listed shapes", _SHAPES_HINT)
        if self.shapes is not None and not is_custom:
            raise FieldError("shapes", f"{self.name} has its own", f"Remove them, or write name: {CUSTOM}.")
        power_fields = [name for name in ("min_power", "max_power") if getattr(self, name) is not None]
        if power_fields and not powers:
            raise FieldError(power_fields[0], f"{self.name} has no powers", "Remove it.")
        if powers:
            low = powers[0] if self.min_power is None else self.min_power
            high = powers[1] if self.max_power is None else self.max_power
            if low > high:
                default = "" if len(power_fields) == 2 else " (its default)"
                raise FieldError(power_fields[0], f"min_power {low} is above max_power {high}{default}", "Give both.")
        return self


class ModelEntry(_ConfigurationFields):
    """An entry of `model_params`. Of the three ways to say how torch compiles, each has been torchao's."""

    model_config = make_schema_config(anyOf=[require_fields("matrix_shapes"), require_fields("config")])

    name: Annotated[Readable, AfterValidator(_check_name)] | None = Field(None, description="Name of the entry.")
    model_type: Annotated[
        _ModelType, BeforeValidator(lambda text: "linear" if text is None else text, json_schema_input_type=str | None)
    ] = Field("linear", description="The architecture: linear, ln_linear_sigmoid, transformers, …")
    config: Readable | None = Field(None, description="A config.json of transformers, relative to this file.")
    device: Annotated[Readable, AfterValidator(_check_device)] | None = Field(
        None,
        description=f"{TORCH_NAMES}, or a device of IREE.",
        examples=[*TORCH_DEVICES, *dict.fromkeys(kind.device for kind in DEVICE_KINDS if kind.backend)],
    )
    high_precision_dtype: Element | None = Field(None, description="Element type of the baseline.")
    torch_compile_mode: _TorchMode | None = Field(None, description="Mode of torch.compile, if torch is compared.")
    use_torch_compile: bool | None = Field(None, description="Older spelling of torchao.")
    compile: Annotated[
        Literal[_TorchMode, "true", "false"] | None,
        BeforeValidator(_normalise_compile, json_schema_input_type=Literal[_TorchMode, "true", "false"] | bool | None),
    ] = Field(None, description="Older spelling of torchao.")
    enable_profiler: bool | None = Field(
        None, description="Add a table of dispatches, and a file for Perfetto, to each recipe."
    )
    enable_memory_profiler: bool | None = Field(None, description="Add the peak memory of each phase.")
    matrix_shapes: list[ShapesEntry] | None = Field(None, description="Named sets of shapes, or custom with shapes.")

    @field_validator("config")
    @classmethod
    def _check_config(cls, text: str | None, info: ValidationInfo) -> str | None:
        takes, folder = _get_config_requirement(info), _get_context(info).folder
        if takes == "must" and text is None:
            raise FieldError(None, f"is missing: the path of a config.json, from {folder}", _CONFIG_HINT)
        if takes == "no" and text is not None:
            message = f"{info.data['model_type']} takes none"
            raise FieldError(None, message, "Remove it, or write model_type: transformers.")
        return _check_model_config(text, folder) if takes and text else None

    @field_validator("compile")
    @classmethod
    def _check_compile_mode(cls, compile_mode: str | None, info: ValidationInfo) -> str | None:
        mode = info.data.get("torch_compile_mode")
        if mode and compile_mode not in (mode, "true", "false", None):
            raise FieldError(None, f"it says {compile_mode}, and torch_compile_mode {mode}", "Remove one of them.")
        return compile_mode

    @field_validator("matrix_shapes", mode="plain", json_schema_input_type=list[ShapesEntry] | None)
    @classmethod
    def _check_matrix_shapes(cls, entries: object, info: ValidationInfo) -> list[ShapesEntry] | None:
        has_sizes = _get_config_requirement(info) == "must" or info.data.get("config") is not None
        if entries is None and not has_sizes:
            raise FieldError(None, "is missing: it lists the shapes to measure", _SHAPES_HINT)
        context = replace(_get_context(info), has_model_sizes=has_sizes)
        return None if entries is None else _SHAPES.validate_python(entries, context=context)


_SHAPES = TypeAdapter(Annotated[list[ShapesEntry], Field(min_length=1)])


class MicroConfigFile(_ConfigurationFields):
    """A configuration."""

    benchmark_mode: Annotated[Readable, SchemaValidator(_check_mode, {"enum": ["inference"]})] | None = Field(
        None, description="Kind of measurement; only inference is supported."
    )
    quantization_config_recipe_names: (
        Annotated[list[_Quantization | None], AfterValidator(_check_distinct_recipes)] | None
    ) = Field(None, description="Recipes that change the model's numbers, or the compiler.")
    sparsity_config_recipe_names: Annotated[list[_Sparsity | None], AfterValidator(_check_distinct_recipes)] | None = (
        Field(None, description="Recipes that set weights to zero.")
    )
    output_dir: Annotated[Readable, AfterValidator(_check_output_dir)] | None = Field(
        None, description="Folder for a copy of the results, below the working directory."
    )
    model_params: Annotated[
        Annotated[ModelEntry, Tag(f"{BRANCH}one")]
        | Annotated[list[ModelEntry], Field(min_length=1), Tag(f"{BRANCH}list")],
        Discriminator(_choose_branch),
    ] = Field(description="One entry, or a list.")


_DType: TypeAlias = Literal["f32", "f16", "bf16"]

_TYPES: dict[str, _DType] = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}


@dataclass(frozen=True, slots=True)
class Variant:
    """One or two recipes of a measured model; the first is the baseline if only the sparsity changes the model."""

    quantization: RecipeCall
    sparsity: RecipeCall | None = None

    @property
    def label(self) -> str:
        """The variant's name: `int8wo`, `baseline+block`."""
        return f"{self.quantization.text}+{self.sparsity.text}" if self.sparsity else self.quantization.text

    @property
    def flags(self) -> tuple[str, ...]:
        """Compiler flags, in addition to the baseline's."""
        return (*self.quantization.recipe.flags, *(self.sparsity.recipe.flags if self.sparsity else ()))

    @property
    def refusal(self) -> str:
        """The reason why the variant is not supported; empty if it is supported."""
        return self.quantization.recipe.refusal

    @property
    def torch_recipes(self) -> tuple[str, str | None]:
        """The variant's recipes in torch; compiler recipes leave the model unchanged, so they count as the baseline."""
        quantization = BASELINE if self.quantization.recipe.kind == COMPILER else self.quantization.text
        return quantization, self.sparsity.text if self.sparsity else None

    @property
    def torch_key(self) -> str:
        """The label of the variant's model in torch."""
        return "+".join(filter(None, self.torch_recipes))

    @property
    def is_baseline(self) -> bool:
        """True if the variant changes nothing."""
        return self.quantization.recipe.name == BASELINE and self.sparsity is None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelParams:
    """An entry of `model_params`; `device` is as in the file (see `translate_device`), `config` an absolute path."""

    name: str
    shapes: tuple[Shape, ...]
    dtype: _DType
    torch_compile: bool
    torch_compile_mode: str
    device: str
    model_type: ModelType
    config: Path | None
    profiler: bool
    memory_profiler: bool
    line: int


@dataclass(frozen=True, slots=True)
class MicroConfig:
    """A parsed configuration; `output_dir` is for a copy of the results, relative to the working directory."""

    file: Path
    variants: tuple[Variant, ...]
    output_dir: str
    models: tuple[ModelParams, ...]


def read_micro_config(path: Path, registry: PluginRegistry) -> MicroConfig:
    """Read a whole configuration; the SpecError lists all problems."""
    if not path.is_file():
        siblings = sorted(str(sibling) for sibling in path.parent.glob("*.y*ml")) if path.parent.is_dir() else []
        hint = (
            f"Configurations in this folder: {', '.join(siblings)}." if siblings else "Configurations are YAML files."
        )
        raise UsageError(f"configuration {path} does not exist", hint)
    document = read_yaml(path, "micro-benchmark configurations", "docs/how-to/micro.md")
    content = document.validate(MicroConfigFile, ConfigurationContext(registry, path.parent))
    entries: list[tuple[ModelEntry, list[str | int]]]
    if isinstance(content.model_params, list):
        entries = [(entry, ["model_params", index]) for index, entry in enumerate(content.model_params)]
    else:
        entries = [(content.model_params, ["model_params"])]
    models: list[ModelParams] = []
    used_names = {entry.name for entry, _ in entries}
    for entry, entry_path in entries:
        # An entry without a name is named after its model type; a second such entry is `linear-2`.
        names = (entry.model_type if number == 1 else f"{entry.model_type}-{number}" for number in count(1))
        name = entry.name or next(name for name in names if name not in used_names)
        used_names.add(name)
        models.append(_make_model(entry, name, registry, document.find_line(entry_path)))
    return MicroConfig(path, _make_variants(content, registry), content.output_dir or "", tuple(models))


def _make_variants(file: MicroConfigFile, registry: PluginRegistry) -> tuple[Variant, ...]:
    """Return the baseline, every quantization alone, and the pairs that a sparsity recipe declares."""
    quantizations = _find_recipes(file.quantization_config_recipe_names, registry)
    variants = [Variant(registry.find_recipe(BASELINE))]
    variants += [Variant(recipe) for recipe in quantizations if recipe.recipe.name != BASELINE]
    for sparsity in _find_recipes(file.sparsity_config_recipe_names, registry):
        partner_names = sparsity.recipe.beside
        variants += [
            Variant(variant.quantization, sparsity)
            for variant in variants
            if variant.sparsity is None and variant.quantization.recipe.name in partner_names
        ]
    return tuple(variants)


def _find_recipes(names: Sequence[str | None] | None, registry: PluginRegistry) -> list[RecipeCall]:
    """Return the recipes of a list, in order; a repeated recipe counts once, as in torchao."""
    return [registry.find_recipe(name) for name in dict.fromkeys(names or ()) if name is not None]


def _make_model(entry: ModelEntry, name: str, registry: PluginRegistry, line: int) -> ModelParams:
    compile_mode = None if entry.compile in ("true", "false") else entry.compile
    # Custom shapes are numbered across all entries of the list.
    custom_sizes: list[tuple[int, int, int]] = []
    shapes = [_CONFIG_SHAPE] if entry.matrix_shapes is None else []
    for spec in entry.matrix_shapes or ():
        if spec.name == CUSTOM:
            start = len(custom_sizes)
            custom_sizes += spec.shapes or []
            shapes += number_shapes(custom_sizes)[start:]
        else:
            shapes += list_shapes(registry.find_shape_set(spec.name), spec.min_power, spec.max_power)
    return ModelParams(
        name=name,
        shapes=tuple(shapes),
        dtype=_TYPES[(entry.high_precision_dtype or "bfloat16").removeprefix("torch.")],
        torch_compile=entry.use_torch_compile is not False and entry.compile != "false",
        torch_compile_mode=compile_mode or entry.torch_compile_mode or "default",
        device=entry.device or "cpu",
        model_type=registry.find_model_type(entry.model_type),
        config=Path(entry.config) if entry.config else None,
        profiler=bool(entry.enable_profiler),
        memory_profiler=bool(entry.enable_memory_profiler),
        line=line,
    )


def override(config: MicroConfig, device: str, dtype: str) -> MicroConfig:
    """Set the device (torch's name or IREE's) and element type of all entries; empty keeps the entries' own."""
    types_by_name = _TYPES | {short_type: short_type for short_type in _TYPES.values()}
    short_type = types_by_name.get(dtype.removeprefix("torch."))
    if dtype and short_type is None:
        raise UsageError(f"--dtype {dtype}: unknown", f"Known: {', '.join(_TYPES)}.")
    models = (replace(model, device=device or model.device, dtype=short_type or model.dtype) for model in config.models)
    return replace(config, models=tuple(models))


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """An architecture at a shape."""

    model: ModelParams
    shape: Shape
    variants: tuple[Variant, ...]

    @property
    def name(self) -> str:
        """The point's name: `small_bf16_linear/1024-1024-2048`."""
        return f"{self.model.name}/{self.shape.label}"


def list_points(config: MicroConfig) -> tuple[SweepPoint, ...]:
    """Return all points in file order; a shape that an entry has under two names is measured once."""
    points: dict[str, SweepPoint] = {}
    for model in config.models:
        for shape in model.shapes:
            point = SweepPoint(model, shape, config.variants)
            points.setdefault(point.name, point)
    return tuple(points.values())
