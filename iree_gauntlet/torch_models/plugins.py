"""What plugin files declare, the toolkit's own and a user's, and what the texts of a configuration name of it.

Shapes are (m, k, n): rows of the input, its features, features of the output.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.errors import Problem, UsageError
from iree_gauntlet.settings import shown
from iree_gauntlet.torch_models.declarations import Declaration, make_unknown_name, sort_by_name
from iree_gauntlet.torch_models.model_registry import load_alone
from iree_gauntlet.torch_models.recipe_registry import (
    CUSTOM,
    Activation,
    Architecture,
    ModelRecipe,
    PluginError,
    ShapeSet,
    read_arguments,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


_KERNELS = "are made for CUDA, and IREE cannot compile them"
_FOUR_BITS = "int4wo-<group> has weights of four bits"
_CALIBRATED = "it is calibrated on texts with a tokenizer, and these models have random weights"
# Recipes of torchao that are not made here, and why, by patterns in the manner of the shell: each is refused by
# itself, and the others run. Source: `string_to_config` and what is next to it in `benchmarks/microbenchmarks/utils.py`
# of torchao, of all versions; it looks for a word anywhere in the text, and so do these patterns.
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
ENTRY_POINTS = "iree_gauntlet.micro"
BUILTIN_FILES = (Path(__file__).absolute().with_name("builtin_plugins.py"),)
_PREFIX = "_gauntlet_plugin_"
_NOTHING = "a plugin declares with @recipe, compiler_recipe, @architecture, @activation or @shape_set"


@dataclass(frozen=True, slots=True, order=True)
class Shape:
    """A shape of a set.

    Attributes:
        name: of the set, with the number or the name of the shape in it: `pow2_0`, `llama_attn.wqkv`, `custom_0`;
            several shapes may have one.
        k: input features; 0 for what the model's own configuration says.
    """

    name: str
    m: int
    k: int
    n: int

    @property
    def label(self) -> str:
        """As results have it: `1024-4096-1024`."""
        return f"{self.m}-{self.k}-{self.n}"


def number_shapes(sizes: Iterable[tuple[int, int, int]]) -> tuple[Shape, ...]:
    """The shapes that a configuration lists itself."""
    return tuple(Shape(f"{CUSTOM}_{number}", m, k, n) for number, (m, k, n) in enumerate(sizes))


def list_shapes(declared: ShapeSet, least: int | None = None, most: int | None = None) -> tuple[Shape, ...]:
    """The shapes of a set.

    Args:
        declared: the set.
        least: the lowest power of two; None for the set's own. A set without powers is asked without.
        most: the highest power, included; likewise.
    """
    with declared.blamed():
        if declared.powers is None:
            given = list(declared.function())
        else:
            low = declared.powers[0] if least is None else least
            high = declared.powers[1] if most is None else most
            given = list(declared.function(tuple(2**power for power in range(low, high + 1))))
    shapes, messages = [], []
    for number, row in enumerate(given):
        name, sizes = str(number), tuple(row) if isinstance(row, list | tuple) else ()
        if len(sizes) == 4 and isinstance(sizes[0], str) and sizes[0]:
            name, sizes = sizes[0], sizes[1:]
        if len(sizes) == 3 and all(type(size) is int and size > 0 for size in sizes):
            shapes.append(Shape(f"{declared.name}_{name}", *sizes))
        else:
            messages.append(f"it gave {row!r}: expected (m, k, n) or (name, m, k, n), whole numbers above 0")
    if not given:
        messages.append("it gave no shapes")
    elif len(set(shapes)) < len(shapes):
        messages.append("it gave a shape twice")
    if messages:
        raise declared.problems(dict.fromkeys(messages))
    return tuple(shapes)


def _find_refused_recipe(text: str) -> ModelRecipe | None:
    """The recipe of torchao that a text asks for and that is not made here, with the reason as its `refusal`."""
    for pattern, reason in REFUSED.items():
        if fnmatchcase(text, pattern):
            name = pattern.strip("*")
            return ModelRecipe(
                name=name, about=reason, kind="quantization", file=Path(__file__), line=1, refusal=reason
            )
    return None


@dataclass(frozen=True, slots=True)
class AskedRecipe:
    """A recipe with its arguments."""

    text: str
    recipe: ModelRecipe
    arguments: tuple[int | str, ...] = ()


@dataclass(frozen=True, slots=True)
class AskedArchitecture:
    """An architecture with its activation."""

    text: str
    architecture: Architecture
    activation: Activation | None = None


@dataclass(frozen=True, slots=True)
class PluginRegistry:
    """Everything that is declared, by name.

    Attributes:
        shape_sets: without `custom`, whose shapes a configuration lists itself.
        files: the plugin files besides the toolkit's own, absolute.
    """

    recipes: Mapping[str, ModelRecipe]
    architectures: Mapping[str, Architecture]
    activations: Mapping[str, Activation]
    shape_sets: Mapping[str, ShapeSet]
    files: tuple[Path, ...] = ()

    def recipe(self, text: str) -> AskedRecipe:
        """The recipe that a text asks for: the longest name that it is, or that it begins with before a dash.

        One of torchao's that is not made here is found too, with its `refusal`; a declared one goes before it.
        """
        found = max((name for name in self.recipes if f"{text}-".startswith(f"{name}-")), key=len, default=None)
        if found is not None:
            asked = self.recipes[found]
            values, wrong = read_arguments(text.removeprefix(found).split("-")[1:], asked.arguments)
            if values is not None and asked.check:
                with asked.blamed():
                    wrong = asked.check(*values)
            if values is not None and not wrong:
                return AskedRecipe(text, asked, values)
        refused = _find_refused_recipe(text)
        if refused is not None and refused.name not in self.recipes:
            return AskedRecipe(text, refused)
        if found is None:
            usages = [self.recipes[name].usage for name in sorted(self.recipes)]
            raise make_unknown_name(f"there is no recipe {text!r}", text, self.recipes, usages)
        raise UsageError(f"recipe {text!r}: {wrong}", f"It is written {asked.usage}.")

    def model_type(self, text: str) -> AskedArchitecture:
        """The architecture that a text asks for, with the activation that it ends with."""
        whole = self.architectures.get(text)
        if whole is not None and whole.takes_activation != "must":
            return AskedArchitecture(text, whole)
        with_activation = [item for item in self.architectures.values() if item.takes_activation != "no"]
        for item in sorted(with_activation, key=lambda item: len(item.name), reverse=True):
            ending = text.removeprefix(f"{item.name}_")
            if ending != text and ending in self.activations:
                return AskedArchitecture(text, item, self.activations[ending])
        raise make_unknown_name(f"there is no model type {text!r}", text, self.model_types())

    def model_types(self) -> tuple[str, ...]:
        """Every text that `model_type` knows, sorted."""
        names = []
        for name, item in self.architectures.items():
            names += [name] if item.takes_activation != "must" else []
            names += [f"{name}_{ending}" for ending in self.activations] if item.takes_activation != "no" else []
        return tuple(sorted(set(names)))

    def shapes(self, name: str) -> ShapeSet:
        """The shape set of a name."""
        if name not in self.shape_sets:
            raise make_unknown_name(f"there is no shape set {name!r}", name, sorted([*self.shape_sets, CUSTOM]))
        return self.shape_sets[name]


def load_registry(files: Sequence[Path] = (), builtin: Sequence[Path] = BUILTIN_FILES) -> PluginRegistry:
    """Everything that the toolkit and some plugin files declare; each file is read again with every call."""
    own = tuple(dict.fromkeys(file.resolve() for file in files))
    declared: list[Declaration] = []
    problems: list[Problem] = []
    for file in dict.fromkeys((*builtin, *own)):
        if not file.is_file():
            raise UsageError(f"no plugin file {shown(file)}", "Name an existing Python file with --plugin.")
        found, wrong = load_alone(file, _PREFIX)
        declared += found
        problems += wrong
        if not found and not wrong:
            problems.append(Problem(str(shown(file)), 0, "", "it declares nothing", _NOTHING))
    registry = PluginRegistry(
        recipes=sort_by_name(declared, ModelRecipe, problems),
        architectures=sort_by_name(declared, Architecture, problems),
        activations=sort_by_name(declared, Activation, problems),
        shape_sets=sort_by_name(declared, ShapeSet, problems),
        files=own,
    )
    if problems:
        raise PluginError(problems)
    return registry


def find_entry_point_files() -> tuple[Path, ...]:
    """The plugin files of installed packages: those of the modules that their entry points name.

    The modules are not imported by these names; of one in a package, the package is.
    """
    files: list[Path] = []
    problems: list[Problem] = []
    for entry in sorted(importlib.metadata.entry_points(group=ENTRY_POINTS)):
        try:
            spec = importlib.util.find_spec(entry.module)
            said = "there is no such module"
        except Exception as error:  # noqa: BLE001 - a package of a user may raise anything, and is named for it
            spec, said = None, f"{type(error).__name__}: {error}"
        if spec is not None and spec.origin is not None and spec.has_location:
            files.append(Path(spec.origin).resolve())
            continue
        owner = f"entry point of {entry.dist.name}" if entry.dist else "entry point"
        said = said if spec is None else "it has no file"
        problems.append(Problem(owner, 0, f"{ENTRY_POINTS}: {entry.name} = {entry.value}", said, "mend the package"))
    if problems:
        raise PluginError(problems)
    return tuple(dict.fromkeys(files))
