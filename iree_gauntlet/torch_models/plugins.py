"""Declarations in plugin files (the toolkit's and users'), and the registry that resolves a configuration's texts.

Plugins declare recipes, architectures, activations and shape sets. Shapes are (m, k, n): rows of the input, features
of the input, features of the output. This module imports only the standard library, because plugin files are also
imported in the toolkit's Python, which may lack torch.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import inspect
import math
import re
import sys
import types
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, get_args, get_origin, get_type_hints

from iree_gauntlet.errors import Problem, UsageError
from iree_gauntlet.settings import format_path
from iree_gauntlet.torch_models.declarations import (
    Declaration,
    DeclarationError,
    Function,
    collect,
    find_named_parameters,
    format_starred,
    make_decorator,
    make_unknown_name_error,
    raise_problems,
    sort_by_name,
)
from iree_gauntlet.torch_models.model_registry import load_isolated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence


_DIMENSIONS = ("m", "k", "n", "dtype")
# There is no sign, because dashes separate arguments; each number has one spelling of at most 18 digits (64 bits).
_WHOLE_NUMBER = re.compile(r"0|[1-9][0-9]{0,17}")
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
# The recipe with which all others are compared.
BASELINE = "baseline"
# The kind of recipes that leave the model unchanged.
COMPILER = "compiler"
# The name for shapes that are listed in the configuration.
CUSTOM = "custom"
# The exponent of the largest power of two: with this side, 16,777,216, a square matrix has a petabyte.
MAX_POWER = 24

Kind: TypeAlias = Literal["quantization", "sparsity", "compiler"]
Requirement: TypeAlias = Literal["no", "may", "must"]

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:]*(?:-[A-Za-z0-9_.:]+)*")
_KINDS = ("quantization", "sparsity")


class PluginError(DeclarationError):
    """An error for plugin files that cannot be used as written; it holds every problem with its file and line."""

    files_noun = "plugin files"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """Evidence that a compiled module must show for the recipe to count as effective.

    Attributes:
        parameter_types: MLIR element types that must be among the parameters, such as `i8` and `f8E4M3FN`.
        parameter_share: largest size of the parameters, as a share of the baseline's bytes at the same point; None for
            no limit.
        dispatch: regular expression that the name of one dispatch must match; empty for no such check.
        different: True if the module must differ from the baseline's.
    """

    parameter_types: tuple[str, ...] = ()
    parameter_share: float | None = None
    dispatch: str = ""
    different: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _PluginDeclaration(Declaration):
    """Base class of a plugin file's declarations; their names may contain dashes."""

    docs_reference: ClassVar[str] = "see docs/how-to/recipes.md"
    error: ClassVar[type[DeclarationError]] = PluginError

    @classmethod
    def check_name(cls, name: object, messages: list[str]) -> None:
        """Reject a name that a configuration cannot spell."""
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            messages.append(
                f"{name!r} is not a valid name: use letters, digits and _ . :, with single dashes between them"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRecipe(_PluginDeclaration):
    """A declared recipe.

    Attributes:
        kind: category of the change; a `compiler` recipe leaves the model unchanged.
        function: takes the torch module and the arguments, returns a torch module; None for a compiler recipe.
        tolerance: relative rms of the difference from torch that the recipe's rounding alone may make, in addition to
            the type's tolerance; 0 if it makes none.
        contraction_type: `f16` or `bf16` if a compiler recipe narrows the inputs of contractions to this type.
        check: takes the arguments and returns an error message; None if all arguments are valid.
        refusal: the reason why the recipe is not supported; empty if it is supported.
    """

    kind: Kind
    function: Callable[..., Any] | None = field(default=None, repr=False)
    arguments: tuple[RecipeArgument, ...] = ()
    proof: Proof = Proof()
    tolerance: float = 0.0
    requires: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    contraction_type: str = ""
    check: Callable[..., str] | None = field(default=None, repr=False)
    refusal: str = ""

    noun: ClassVar[str] = "a recipe"

    @property
    def usage(self) -> str:
        """The recipe's syntax: `int4wo[-<group>]`, `float8dq[-tensor|row]`."""
        usage, closing_brackets = self.name, ""
        for argument in self.arguments:
            label = "|".join(map(str, argument.choices)) if argument.choices else f"<{argument.name}>"
            usage += f"-{label}" if argument.default is None else f"[-{label}"
            closing_brackets += "" if argument.default is None else "]"
        return usage + closing_brackets


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture(_PluginDeclaration):
    """A declared architecture; if it takes an activation, configurations append `_` and the activation to its name.

    Attributes:
        function: takes m, k, n and dtype by position, and, if it has these parameters, `activation` (a torch module)
            and `config` (a path) by name; returns a torch module and a tuple of the module's inputs.
        takes_activation, takes_config: required (`must`), optional (`may`) or not accepted (`no`).
    """

    function: Callable[..., Any] = field(repr=False)
    takes_activation: Requirement
    takes_config: Requirement

    noun: ClassVar[str] = "an architecture"


@dataclass(frozen=True, slots=True, kw_only=True)
class Activation(_PluginDeclaration):
    """A declared activation."""

    function: Callable[..., Any] = field(repr=False)

    noun: ClassVar[str] = "an activation"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeSet(_PluginDeclaration):
    """A declared set of shapes.

    Attributes:
        function: takes the sizes if the set has powers; yields (m, k, n) or (name, m, k, n).
        powers: defaults of `min_power` and `max_power`; None for a set without powers.
    """

    function: Callable[..., Any] = field(repr=False)
    powers: tuple[int, int] | None = None

    noun: ClassVar[str] = "a shape set"


def recipe(
    name: str,
    *,
    kind: Literal["quantization", "sparsity"],
    about: str = "",
    proof: Proof = Proof(),
    tolerance: float = 0.0,
    requires: Sequence[str] = (),
    beside: Sequence[str] = (BASELINE,),
    flags: Sequence[str] = (),
    check: Callable[..., str] | None = None,
) -> Callable[[Function], Function]:
    """Declare a function as a recipe: it takes a torch module, and returns the changed module or another module.

    Further parameters are the recipe's arguments. They are written after dashes, in order, and converted to the
    annotated type: `int`, `str` or a `Literal`.

    Args:
        name: the recipe's name in a configuration.
        kind: the heading under which a configuration lists the recipe.
        about: one line for lists; the docstring's first line if empty.
        proof: what the compiled module must show.
        tolerance: relative root mean square of the difference from torch that rounding alone may make.
        requires: Python modules that the function needs besides torch.
        beside: the quantization recipes with which a sparsity recipe is combined; each also runs alone.
        flags: compiler flags of the recipe, in addition to the baseline's.
        check: takes the arguments, returns an error message or ""; called when a configuration is read.

    Raises:
        PluginError: if the function has another signature, or another argument is invalid.
    """

    def read_fields(function: Callable[..., Any], messages: list[str]) -> dict[str, Any]:
        arguments = _read_recipe_arguments(function, messages)
        if kind not in _KINDS:
            messages.append(
                f"kind must be one of {', '.join(_KINDS)}, not {kind!r}; compiler_recipe declares the third"
            )
        _check_proof(proof, tolerance, messages)
        return {
            "kind": kind,
            "arguments": arguments,
            "proof": proof,
            "tolerance": tolerance,
            "requires": _check_words("requires", requires, messages),
            "beside": _check_words("beside", beside, messages) if kind == "sparsity" else (),
            "flags": _check_flags(flags, messages),
            "check": check,
        }

    return make_decorator(ModelRecipe, read_fields, name, about)


def compiler_recipe(
    name: str,
    *,
    flags: Sequence[str],
    about: str,
    proof: Proof = Proof(different=True),
    contraction_type: str = "",
    tolerance: float = 0.0,
) -> None:
    """Declare a recipe of the compiler: the model stays unchanged, and is compiled with further flags.

    Args:
        name: its name in a configuration.
        flags: compiler flags, as they are typed.
        about: one line for lists.
        proof: what the compiled module must show.
        contraction_type: `f16` or `bf16` if the flags narrow the inputs of contractions to this type.
        tolerance: as in `recipe`.

    Raises:
        PluginError: if an argument is invalid.
    """
    # Only the caller's frame is needed; `inspect.stack` would search all loaded modules for each frame's module.
    caller = sys._getframe(1)  # noqa: SLF001
    file, line = Path(caller.f_code.co_filename).absolute(), caller.f_lineno
    messages: list[str] = []
    ModelRecipe.check_name(name, messages)
    _check_proof(proof, tolerance, messages)
    words = _check_flags(flags, messages)
    if not words:
        messages.append("flags is empty: the module would equal the baseline's")
    if contraction_type not in ("", "f16", "bf16"):
        messages.append(f"contraction_type must be f16 or bf16, not {contraction_type!r}")
    raise_problems(messages, ModelRecipe, name, ModelRecipe.docs_reference, file=file, line=line)
    declaration = ModelRecipe(
        name=name, about=about, kind="compiler", file=file, line=line, proof=proof, tolerance=tolerance
    )
    collect(replace(declaration, flags=words, contraction_type=contraction_type))


def architecture(name: str, *, about: str = "") -> Callable[[Function], Function]:
    """Declare a function as a model architecture: `def mine(m, k, n, dtype)` returns a module and its inputs.

    Args:
        name: its name in a configuration.
        about: one line for lists; the docstring's first line if empty.

    Raises:
        PluginError: if the function does not take m, k, n and dtype, or requires an unknown parameter.
    """
    return make_decorator(Architecture, _read_architecture_parameters, name, about)


def activation(name: str, *, about: str = "") -> Callable[[Function], Function]:
    """Declare a function as an activation: it takes nothing, and returns a torch module.

    Args:
        name: ending of the model types that use it.
        about: one line for lists; the docstring's first line if empty.

    Raises:
        PluginError: if the function requires parameters.
    """

    def read_fields(function: Callable[..., Any], messages: list[str]) -> dict[str, Any]:
        _check_no_parameters(function, messages)
        return {}

    return make_decorator(Activation, read_fields, name, about)


def shape_set(
    name: str, *, min_power: int | None = None, max_power: int | None = None, about: str = ""
) -> Callable[[Function], Function]:
    """Declare a function as a set of shapes: it yields (m, k, n), or (name, m, k, n).

    With powers, the function takes the sizes: the powers of two from `min_power` to `max_power`, both included.

    Args:
        name: its name in a configuration.
        min_power: default for configurations without one; None for a set without powers.
        max_power: likewise.
        about: one line for lists; the docstring's first line if empty.

    Raises:
        PluginError: if the function has another signature, or the powers are invalid.
    """

    def read_fields(function: Callable[..., Any], messages: list[str]) -> dict[str, Any]:
        powers = None if min_power is None or max_power is None else (min_power, max_power)
        if (min_power is None) != (max_power is None):
            messages.append("min_power and max_power must be given together")
        elif powers and not 0 <= powers[0] <= powers[1] <= MAX_POWER:
            messages.append(
                f"powers must satisfy 0 ≤ min_power ≤ max_power ≤ {MAX_POWER}, not {powers[0]} and {powers[1]}"
            )
        if name == CUSTOM:
            messages.append(f"{CUSTOM} is reserved for the shapes that a configuration lists")
        _check_sizes(function, powers is not None, messages)
        return {"powers": powers}

    return make_decorator(ShapeSet, read_fields, name, about)


def _check_flags(flags: object, messages: list[str]) -> tuple[str, ...]:
    words = _check_words("flags", flags, messages)
    messages += [f"flags: {word!r} does not start with --" for word in words if not word.startswith("--")]
    return words


def _check_proof(proof: object, tolerance: object, messages: list[str]) -> None:
    if tolerance != 0:
        _check_positive("tolerance must be a relative root mean square, such as 0.01", tolerance, messages)
    if not isinstance(proof, Proof):
        messages.append(f"proof must be a Proof(…), not {proof!r}")
        return
    _check_words("proof.parameter_types", proof.parameter_types, messages)
    try:
        re.compile(str(proof.dispatch))
    except re.error as error:
        messages.append(f"proof.dispatch is not a regular expression: {error}")
    if proof.parameter_share is not None:
        expectation = "proof.parameter_share must be a fraction of the baseline's bytes, such as 0.3"
        _check_positive(expectation, proof.parameter_share, messages)


def _check_words(field_name: str, words: object, messages: list[str]) -> tuple[str, ...]:
    """Return a tuple of strings; a single string, which would become its letters, is an error."""
    if isinstance(words, list | tuple) and all(isinstance(word, str) and word for word in words):
        return tuple(words)
    messages.append(f'{field_name} is a tuple of strings, ("one",), not {words!r}')
    return ()


def _check_positive(expectation: str, number: object, messages: list[str]) -> None:
    """Check that a number is finite and above 0."""
    is_valid = isinstance(number, int | float) and not isinstance(number, bool) and number > 0 and math.isfinite(number)
    if not is_valid:
        messages.append(f"{expectation}, not {number!r}")


@dataclass(frozen=True, slots=True)
class RecipeArgument:
    """An argument of a recipe, written after a dash."""

    name: str
    choices: tuple[int | str, ...] = ()
    is_integer: bool = False
    default: int | str | None = None

    @property
    def expected(self) -> str:
        """The accepted values, for messages."""
        if self.choices:
            return " or ".join(str(choice) for choice in self.choices)
        return "a whole number" if self.is_integer else "a word"

    def read(self, word: str) -> int | str | None:
        """Return the value of a word; None if it is invalid."""
        if self.choices:
            return next((choice for choice in self.choices if str(choice) == word), None)
        if self.is_integer:
            return int(word) if _WHOLE_NUMBER.fullmatch(word) else None
        return word or None


def _read_recipe_arguments(function: Callable[..., Any], messages: list[str]) -> tuple[RecipeArgument, ...]:
    """Return the arguments of a recipe: the function's parameters except the first, which is the model."""
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters or parameters[0].kind not in _POSITIONAL:
        messages.append(
            "it has no model parameter: expected def my_recipe(model), which takes and returns a torch module"
        )
        return ()
    arguments = []
    for parameter in parameters[1:]:
        if parameter.kind not in _POSITIONAL:
            messages.append(f"{format_starred(parameter)}: arguments are passed by position, after dashes")
            continue
        argument = _read_argument(function, parameter, messages)
        if argument is not None:
            arguments.append(argument)
    return tuple(arguments)


def read_arguments(
    words: Sequence[str], arguments: Sequence[RecipeArgument]
) -> tuple[tuple[int | str, ...], None] | tuple[None, str]:
    """Return the values of a recipe's arguments (defaults for omitted ones), or an error message."""
    if len(words) > len(arguments):
        return (
            None,
            f"it takes {len(arguments) or 'no'} argument{'' if len(arguments) == 1 else 's'}, found {len(words)}",
        )
    values = []
    for number, argument in enumerate(arguments):
        value = argument.read(words[number]) if number < len(words) else argument.default
        if value is None:
            actual = f"found {words[number]!r}" if number < len(words) else "found none"
            return None, f"{argument.name}: expected {argument.expected}, {actual}"
        values.append(value)
    return tuple(values), None


def _read_architecture_parameters(function: Callable[..., Any], messages: list[str]) -> dict[str, Any]:
    """Return whether an architecture takes an activation and a configuration."""
    parameters = inspect.signature(function).parameters
    if tuple(parameters)[: len(_DIMENSIONS)] != _DIMENSIONS:
        messages.append("its first parameters are not m, k, n, dtype")
    hint = "available: m, k, n, dtype, activation and config"
    required_by_name = find_named_parameters(function, ("activation", "config"), hint, messages, _DIMENSIONS)
    requirements: dict[bool | None, Requirement] = {None: "no", False: "may", True: "must"}
    return {f"takes_{name}": requirements[required_by_name.get(name)] for name in ("activation", "config")}


def _check_sizes(function: Callable[..., Any], powers: bool, messages: list[str]) -> None:
    """Check that a shape set takes `sizes` if it has powers, and no parameter otherwise."""
    if powers:
        try:
            takes_one = len(_list_required(function)) == 1 and inspect.signature(function).bind(()) is not None
        except TypeError:
            takes_one = False
        if not takes_one:
            messages.append("it has powers, so it must take one parameter: def my_set(sizes: tuple[int, ...])")
    else:
        _check_no_parameters(function, messages, "it has no min_power and max_power, and takes")


def _check_no_parameters(function: Callable[..., Any], messages: list[str], prefix: str = "it takes") -> None:
    """Check that a function can be called without arguments."""
    names = _list_required(function)
    if names:
        messages.append(f"{prefix} {', '.join(names)}: no argument is passed to them")


def _list_required(function: Callable[..., Any]) -> list[str]:
    """Return the names of the required parameters."""
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    return [
        parameter.name
        for parameter in parameters
        if parameter.default is parameter.empty and parameter.kind not in variadic
    ]


def _read_argument(
    function: Callable[..., Any], parameter: inspect.Parameter, messages: list[str]
) -> RecipeArgument | None:
    name = parameter.name
    default = None if parameter.default is parameter.empty else parameter.default
    argument: RecipeArgument | None = None
    hint = _read_annotation(function, parameter)
    if hint is int:
        argument = RecipeArgument(name, is_integer=True, default=default)
    elif hint is str:
        argument = RecipeArgument(name, default=default)
    elif get_origin(hint) is Literal and all(map(_may_be_written, get_args(hint))):
        argument = RecipeArgument(name, get_args(hint), default=default)
    if argument is None:
        hint = parameter.annotation
        annotation = hint if isinstance(hint, str) else inspect.formatannotation(hint)
        annotation = "nothing" if hint is parameter.empty else annotation
        messages.append(
            f"{name} is annotated with {annotation}: expected int, str, or a Literal of words without dashes, "
            'such as Literal["tensor", "row"]'
        )
    elif parameter.default is not parameter.empty and not (
        _may_be_written(default) and argument.read(str(default)) == default
    ):
        messages.append(f"{name}: its default {default!r} is not {argument.expected}")
    return argument


def _read_annotation(function: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """Return the annotation of only this parameter, because others may need imports that only type checkers see."""
    if not isinstance(parameter.annotation, str):
        return parameter.annotation
    holder = types.SimpleNamespace(__annotations__={"it": parameter.annotation})
    try:
        return get_type_hints(holder, getattr(function, "__globals__", {}))["it"]
    except (NameError, TypeError, SyntaxError, AttributeError):
        return None


def _may_be_written(value: object) -> bool:
    """Return True if a value can be written between dashes."""
    return isinstance(value, int | str) and not isinstance(value, bool) and bool(str(value)) and "-" not in str(value)


_CUDA_ONLY = "are written for CUDA, and IREE cannot compile them"
_INT4_HINT = "int4wo-<group> has four-bit weights"
_NEEDS_CALIBRATION = "it needs calibration on texts with a tokenizer, but these models have random weights"
# Torchao's recipes that are not supported, as shell patterns, with the reasons; only these are rejected, others run.
# Source: `string_to_config` and its helpers in torchao's `benchmarks/microbenchmarks/utils.py`, in all versions. Like
# torchao, these patterns look for a word anywhere in the text.
UNSUPPORTED_RECIPES = {
    "gemlitewo*": f"GemLite's kernels {_CUDA_ONLY}: {_INT4_HINT}, int8wo has eight-bit ones",
    "int4wo-*-hqq": f"HQQ, which searches for scales of groups, is not implemented: {_INT4_HINT} and plain scales",
    "int4wo-*-gptq": f"{_NEEDS_CALIBRATION}: {_INT4_HINT} and plain scales",
    "*marlin*": f"Marlin's kernels {_CUDA_ONLY}: {_INT4_HINT}",
    "*fp6*": f"torchao's kernels for floats of six bits {_CUDA_ONLY}: float8wo is the closest",
    "uintx*": "torchao packs one to eight bits in a form that ONNX, which IREE imports, cannot express: "
    f"{_INT4_HINT}, int8wo has eight-bit ones",
    "int8adq-int4w-symm": f"CUTLASS's kernels {_CUDA_ONLY}: int8dq or int4wo-<group> is the closest",
    "int8_dynamic_activation_intx_weight*": "only torchao's own ARM kernels read its opaque format: "
    "int8dq or int4wo-<group> is the closest",
    "int8dq_prefill_wo_decode": "it treats prompts and single tokens differently: int8dq is its recipe for prompts, "
    "int8wo for tokens",
    "float8_a1x128_w128x128": "scales for blocks of 128 × 128 weights are not implemented: float8dq-row is the closest",
    "codebook*": "weight codebooks are not implemented: int4wo-<group> has as many bits",
    "awq*": _NEEDS_CALIBRATION,
    "autoround*": _NEEDS_CALIBRATION,
    "*smoothquant*": _NEEDS_CALIBRATION,
    "*spinquant*": "weight rotations are not implemented",
}
ENTRY_POINTS = "iree_gauntlet.micro"
BUILTIN_FILES = (Path(__file__).absolute().with_name("builtin_plugins.py"),)
_MODULE_PREFIX = "_gauntlet_plugin_"
_EMPTY_FILE_HINT = "a plugin declares it with @recipe, compiler_recipe, @architecture, @activation or @shape_set"


@dataclass(frozen=True, slots=True, order=True)
class Shape:
    """A shape of a set.

    Attributes:
        name: the set's name with the shape's number or name in it: `pow2_0`, `llama_attn.wqkv`, `custom_0`; not unique.
        k: input features; 0 for the size in the model's configuration.
    """

    name: str
    m: int
    k: int
    n: int

    @property
    def label(self) -> str:
        """The shape as results write it: `1024-4096-1024`."""
        return f"{self.m}-{self.k}-{self.n}"


def number_shapes(sizes: Iterable[tuple[int, int, int]]) -> tuple[Shape, ...]:
    """Return the shapes of a configuration's own list."""
    return tuple(Shape(f"{CUSTOM}_{number}", m, k, n) for number, (m, k, n) in enumerate(sizes))


def list_shapes(declaration: ShapeSet, min_power: int | None = None, max_power: int | None = None) -> tuple[Shape, ...]:
    """Return the shapes of a set.

    Args:
        declaration: the set.
        min_power: the lowest power of two; None for the set's default, and for a set without powers.
        max_power: the highest power, included; likewise.
    """
    with declaration.locate_errors():
        if declaration.powers is None:
            rows = list(declaration.function())
        else:
            low = declaration.powers[0] if min_power is None else min_power
            high = declaration.powers[1] if max_power is None else max_power
            rows = list(declaration.function(tuple(2**power for power in range(low, high + 1))))
    shapes, messages = [], []
    for number, row in enumerate(rows):
        name, sizes = str(number), tuple(row) if isinstance(row, list | tuple) else ()
        if len(sizes) == 4 and isinstance(sizes[0], str) and sizes[0]:
            name, sizes = sizes[0], sizes[1:]
        if len(sizes) == 3 and all(type(size) is int and size > 0 for size in sizes):
            shapes.append(Shape(f"{declaration.name}_{name}", *sizes))
        else:
            messages.append(f"it gave {row!r}: expected (m, k, n) or (name, m, k, n), integers above 0")
    if not rows:
        messages.append("it returned no shapes")
    elif len(set(shapes)) < len(shapes):
        messages.append("it returned a shape twice")
    if messages:
        raise declaration.make_combined_error(dict.fromkeys(messages))
    return tuple(shapes)


def _find_unsupported_recipe(text: str) -> ModelRecipe | None:
    """Return the unsupported torchao recipe that a text names, with the reason as its `refusal`."""
    for pattern, reason in UNSUPPORTED_RECIPES.items():
        if fnmatchcase(text, pattern):
            name = pattern.strip("*")
            return ModelRecipe(
                name=name, about=reason, kind="quantization", file=Path(__file__), line=1, refusal=reason
            )
    return None


@dataclass(frozen=True, slots=True)
class RecipeCall:
    """A recipe with its arguments."""

    text: str
    recipe: ModelRecipe
    arguments: tuple[int | str, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelType:
    """An architecture with its activation."""

    text: str
    architecture: Architecture
    activation: Activation | None = None


@dataclass(frozen=True, slots=True)
class PluginRegistry:
    """All declarations by name.

    Attributes:
        shape_sets: all sets except `custom`, whose shapes are listed in the configuration.
        files: absolute paths of the plugin files besides the toolkit's.
    """

    recipes: Mapping[str, ModelRecipe]
    architectures: Mapping[str, Architecture]
    activations: Mapping[str, Activation]
    shape_sets: Mapping[str, ShapeSet]
    files: tuple[Path, ...] = ()

    def find_recipe(self, text: str) -> RecipeCall:
        """Return the recipe with the longest name that equals the text, or the text's beginning before a dash.

        Unsupported recipes of torchao are returned too, with their `refusal`; declared recipes take precedence.
        """
        name = max((name for name in self.recipes if f"{text}-".startswith(f"{name}-")), key=len, default=None)
        if name is not None:
            recipe = self.recipes[name]
            values, problem = read_arguments(text.removeprefix(name).split("-")[1:], recipe.arguments)
            if values is not None and recipe.check:
                with recipe.locate_errors():
                    problem = recipe.check(*values)
            if values is not None and not problem:
                return RecipeCall(text, recipe, values)
        unsupported = _find_unsupported_recipe(text)
        if unsupported is not None and unsupported.name not in self.recipes:
            return RecipeCall(text, unsupported)
        if name is None:
            usages = [self.recipes[name].usage for name in sorted(self.recipes)]
            raise make_unknown_name_error(f"no such recipe: {text!r}", text, self.recipes, usages)
        raise UsageError(f"recipe {text!r}: {problem}", f"Its form is {recipe.usage}.")

    def find_model_type(self, text: str) -> ModelType:
        """Return the architecture that a text names, with the activation at the text's end."""
        architecture = self.architectures.get(text)
        if architecture is not None and architecture.takes_activation != "must":
            return ModelType(text, architecture)
        with_activation = [candidate for candidate in self.architectures.values() if candidate.takes_activation != "no"]
        for candidate in sorted(with_activation, key=lambda candidate: len(candidate.name), reverse=True):
            activation_name = text.removeprefix(f"{candidate.name}_")
            if activation_name != text and activation_name in self.activations:
                return ModelType(text, candidate, self.activations[activation_name])
        raise make_unknown_name_error(f"no such model type: {text!r}", text, self.list_model_types())

    def list_model_types(self) -> tuple[str, ...]:
        """Return all texts that `find_model_type` accepts, sorted."""
        names = []
        for name, architecture in self.architectures.items():
            names += [name] if architecture.takes_activation != "must" else []
            names += (
                [f"{name}_{suffix}" for suffix in self.activations] if architecture.takes_activation != "no" else []
            )
        return tuple(sorted(set(names)))

    def find_shape_set(self, name: str) -> ShapeSet:
        """Return the shape set of a name."""
        if name not in self.shape_sets:
            raise make_unknown_name_error(f"no such shape set: {name!r}", name, sorted([*self.shape_sets, CUSTOM]))
        return self.shape_sets[name]


def load_registry(files: Sequence[Path] = (), builtin: Sequence[Path] = BUILTIN_FILES) -> PluginRegistry:
    """Load all declarations of the toolkit and of plugin files; each call reads the files again."""
    plugin_files = tuple(dict.fromkeys(file.resolve() for file in files))
    declarations: list[Declaration] = []
    problems: list[Problem] = []
    for file in dict.fromkeys((*builtin, *plugin_files)):
        if not file.is_file():
            raise UsageError(f"no plugin file {format_path(file)}", "Name an existing Python file with --plugin.")
        file_declarations, file_problems = load_isolated(file, _MODULE_PREFIX)
        declarations += file_declarations
        problems += file_problems
        if not file_declarations and not file_problems:
            problems.append(Problem(str(format_path(file)), 0, "", "it declares nothing", _EMPTY_FILE_HINT))
    registry = PluginRegistry(
        recipes=sort_by_name(declarations, ModelRecipe, problems),
        architectures=sort_by_name(declarations, Architecture, problems),
        activations=sort_by_name(declarations, Activation, problems),
        shape_sets=sort_by_name(declarations, ShapeSet, problems),
        files=plugin_files,
    )
    if problems:
        raise PluginError(problems)
    return registry


def find_entry_point_files() -> tuple[Path, ...]:
    """Return the plugin files of installed packages: the files of the modules that entry points name.

    These modules are not imported here, but the packages that contain them are.
    """
    files: list[Path] = []
    problems: list[Problem] = []
    for entry in sorted(importlib.metadata.entry_points(group=ENTRY_POINTS)):
        try:
            spec = importlib.util.find_spec(entry.module)
            message = "no such module"
        except Exception as error:  # noqa: BLE001 - a user's package may raise anything, and the error has its name
            spec, message = None, f"{type(error).__name__}: {error}"
        if spec is not None and spec.origin is not None and spec.has_location:
            files.append(Path(spec.origin).resolve())
            continue
        owner = f"entry point of {entry.dist.name}" if entry.dist else "entry point"
        message = message if spec is None else "it has no file"
        problems.append(Problem(owner, 0, f"{ENTRY_POINTS}: {entry.name} = {entry.value}", message, "mend the package"))
    if problems:
        raise PluginError(problems)
    return tuple(dict.fromkeys(files))
