"""Configurations of micro-benchmarks: YAML in torchao's dialect, read whole, with everything that is wrong at once.

Source of the dialect: `benchmarks/microbenchmarks/benchmark_runner.py` of torchao, and the README beside it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import count
from pathlib import PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING, Literal, TypeAlias

from iree_gauntlet.errors import SpecError, UsageError
from iree_gauntlet.micro.asked_shapes import read_shapes
from iree_gauntlet.micro.model_fields import read_config, read_torch_compile
from iree_gauntlet.micro.registry import BASELINE
from iree_gauntlet.micro.yaml_fields import Fields, Report, kind_of
from iree_gauntlet.micro.yaml_values import Value, read_yaml
from iree_gauntlet.targets import target_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from iree_gauntlet.micro.lookup import AskedArchitecture, AskedRecipe, Registry
    from iree_gauntlet.micro.shapes import Shape

__all__ = ["DType", "MicroConfig", "ModelParams", "Variant", "iree_device", "read_micro_config"]

DType: TypeAlias = Literal["f32", "f16", "bf16"]

_KIND = "micro-benchmark configurations"
_EXAMPLE = "See docs/micro.md."
_QUANTIZATION = "quantization_config_recipe_names"
_SPARSITY = "sparsity_config_recipe_names"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")
_TYPES: dict[str, DType] = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
_TYPE_NAMES: dict[str, DType] = {f"{prefix}{name}": _TYPES[name] for prefix in ("torch.", "") for name in _TYPES}
# What torch calls devices, and IREE.
_DEVICES = {"cpu": "local-task", "cuda": "cuda", "mps": "metal", "xpu": "vulkan"}


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
        """Of the compiler, beside the baseline's."""
        return (*self.quantization.recipe.flags, *(self.sparsity.recipe.flags if self.sparsity else ()))

    @property
    def refusal(self) -> str:
        """Why it is not made here; empty where it is."""
        return self.quantization.recipe.refusal

    @property
    def is_baseline(self) -> bool:
        """Whether it changes nothing."""
        return self.quantization.recipe.name == BASELINE and self.sparsity is None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelParams:
    """An entry of `model_params`.

    Attributes:
        name: of the entry; where it has none, its model type's.
        shapes: that the model is measured at.
        dtype: of the weights and inputs of the baseline.
        torch_compile: whether torch.compile is measured, where torch is there.
        torch_compile_mode: how.
        device: as it is written; see `iree_device`.
        model_type: what is measured.
        config: the configuration of a model that is made from one, absolute.
        profiler: whether dispatches are profiled.
        memory_profiler: whether memory is.
        line: where the entry begins.
    """

    name: str
    shapes: tuple[Shape, ...]
    dtype: DType
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
        file: where it was read from.
        mode: `inference`.
        variants: what every model is measured with at every shape; the baseline first.
        output_dir: for a copy of the results, relative to the working directory; empty for none.
        models: the entries of `model_params`.
    """

    file: Path
    mode: str
    variants: tuple[Variant, ...]
    output_dir: str
    models: tuple[ModelParams, ...]


def iree_device(text: str) -> str:
    """IREE's name of a device, which may be written as torch calls it."""
    return _DEVICES.get(text, text)


def read_micro_config(path: Path, registry: Registry) -> MicroConfig:
    """Reads a configuration.

    Args:
        path: the YAML file.
        registry: what it may name.

    Raises:
        UsageError: there is no such file.
        SpecError: with everything that is wrong with it.
        PluginError: the function of a shape set fails.
    """
    if not path.is_file():
        others = sorted(str(other) for other in path.parent.glob("*.y*ml")) if path.parent.is_dir() else []
        hint = f"Configurations there: {', '.join(others)}." if others else "Configurations are YAML files."
        raise UsageError(f"configuration {path} does not exist", hint)
    value, problems = read_yaml(path, _KIND)
    report = Report(str(path), problems)
    fields = Fields(value, "", report)
    mode = _mode(fields)
    variants = _variants(fields, registry)
    output_dir = _output_dir(fields)
    models = _models(fields, path, registry)
    fields.finish()
    if report.problems:
        raise SpecError(report.problems, _KIND)
    return MicroConfig(path, mode, variants, output_dir, models)


def _mode(fields: Fields) -> str:
    mode = fields.text("benchmark_mode", "inference")
    if mode == "training":
        fields.add("benchmark_mode", "training is not measured here", "Write inference, or remove the field.")
    elif mode != "inference":
        fields.add("benchmark_mode", f"expected inference, found {mode!r}")
    return mode


def _variants(fields: Fields, registry: Registry) -> tuple[Variant, ...]:
    """The baseline, every quantization alone, and the pairs that a sparsity recipe says it makes."""
    quantizations = _recipes(fields, _QUANTIZATION, registry)
    found = [Variant(registry.recipe(BASELINE))]
    found += [Variant(asked) for asked in quantizations if asked.recipe.name != BASELINE]
    for sparsity in _recipes(fields, _SPARSITY, registry):
        beside = sparsity.recipe.beside
        found += [
            Variant(variant.quantization, sparsity)
            for variant in found
            if variant.sparsity is None and variant.quantization.recipe.name in beside
        ]
    return tuple(found)


def _recipes(fields: Fields, name: str, registry: Registry) -> list[AskedRecipe]:
    """The recipes of a list, in its order; one that is there twice counts once, as in torchao."""
    found: dict[str, AskedRecipe] = {}
    for path, value in fields.items(name, "recipes"):
        if value.content is None:
            continue
        if not isinstance(value.content, str):
            quoted = f'write it in quotes, "{value.written}"' if value.written else ""
            fields.report.add(value.line, path, f"expected the name of a recipe, found {kind_of(value)}", quoted)
            continue
        text = value.content
        asked = fields.report.asked(value.line, path, registry.recipe, text)
        if asked is None or not _belongs(asked, name, path, value, fields.report):
            continue
        same = [other for other in found.values() if (other.recipe, other.arguments) == (asked.recipe, asked.arguments)]
        if same and same[0].text != text:
            fields.report.add(value.line, path, f"{text} is {same[0].text}, which is listed too", "Remove one of them.")
        found.setdefault(text, asked)
    return list(found.values())


def _belongs(asked: AskedRecipe, name: str, path: str, value: Value, report: Report) -> bool:
    """Whether a recipe is listed where its kind is; the baseline may stand among the quantizations."""
    right = _SPARSITY if asked.recipe.kind == "sparsity" else _QUANTIZATION
    if right != name:
        message = f"{asked.text} is a {asked.recipe.kind} recipe"
        report.add(value.line, path, message, f"List it under {right}.")
    return right == name


def _output_dir(fields: Fields) -> str:
    name = fields.text("output_dir", "")
    if not name:
        return ""
    path = PurePosixPath(name)
    if path.is_absolute() or PureWindowsPath(name).drive or ".." in path.parts or "\\" in name or not path.parts:
        message = f"expected a folder below the working directory, found {name!r}"
        fields.add("output_dir", message, "Write a relative path without '..'.")
    return str(path)


def _models(fields: Fields, file: Path, registry: Registry) -> tuple[ModelParams, ...]:
    value = fields.take("model_params")
    if value is not None and isinstance(value.content, Mapping):
        entries = [("model_params", value)]
    else:
        entries = fields.items("model_params", "models", needed="there is nothing to measure", hint=_EXAMPLE)
    models = [_model(Fields(entry, path, fields.report), file, registry) for path, entry in entries]
    _refuse_same_names(models, [path for path, _ in entries], fields.report)
    return _named([model for model in models if model is not None])


def _model(fields: Fields, file: Path, registry: Registry) -> ModelParams | None:
    """An entry, with defaults for what is wrong, which is noted; None without a usable model type."""
    if not fields.usable:
        return None
    text = fields.text("model_type", "linear")
    line, path = fields.line_of("model_type"), fields.path("model_type")
    model_type = fields.report.asked(line, path, registry.model_type, text)
    name = fields.text("name", "")
    if name and not _NAME.fullmatch(name):
        fields.add("name", f"{name!r} is no name; letters, digits and _ . + - make one")
    config = read_config(fields, file, model_type)
    compiles, mode = read_torch_compile(fields)
    device = _device(fields)
    dtype = fields.choice("high_precision_dtype", _TYPE_NAMES, "bf16")
    profiler = fields.flag("enable_profiler", default=False)
    memory_profiler = fields.flag("enable_memory_profiler", default=False)
    needs_config = model_type is not None and model_type.architecture.takes.config == "must"
    shapes = read_shapes(fields, registry, sizes_known=needs_config or config is not None)
    fields.finish()
    if model_type is None:
        return None
    return ModelParams(
        name=name,
        shapes=shapes,
        dtype=dtype,
        torch_compile=compiles,
        torch_compile_mode=mode,
        device=device,
        model_type=model_type,
        config=config,
        profiler=profiler,
        memory_profiler=memory_profiler,
        line=fields.line,
    )


def _device(fields: Fields) -> str:
    text = fields.text("device", "cpu")
    driver = iree_device(text).partition("://")[0]
    if target_of(driver) is None:
        message = f"there is no device {text!r}"
        hint = f"Write {', '.join(_DEVICES)}, or a device of IREE such as local-task, hip://0 and cuda://1."
        fields.add("device", message, hint)
    return text


def _refuse_same_names(models: Sequence[ModelParams | None], paths: Sequence[str], report: Report) -> None:
    """Results are told apart by the names of entries."""
    lines: dict[str, int] = {}
    for model, path in zip(models, paths, strict=True):
        if model is None or not model.name:
            continue
        if model.name in lines:
            message = f"{model.name} is the name of the entry at line {lines[model.name]} already"
            report.add(model.line, f"{path}.name", message, "Give each entry a name of its own.")
        lines.setdefault(model.name, model.line)


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
