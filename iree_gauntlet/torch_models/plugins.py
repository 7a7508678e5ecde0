"""What plugin files declare, the toolkit's own and a user's, and what the texts of a configuration name of it.

Declared are recipes, architectures, activations and shape sets. Shapes are (m, k, n): rows of the input, its features,
features of the output. A plugin file is imported in the toolkit's Python too, which may lack torch: what is imported
here needs no more than the standard library.
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
from iree_gauntlet.settings import shown
from iree_gauntlet.torch_models.declarations import (
    Declaration,
    DeclarationError,
    Function,
    collect,
    find_given_by_name,
    format_starred,
    make_decorator,
    make_unknown_name,
    refuse,
    sort_by_name,
)
from iree_gauntlet.torch_models.model_registry import load_alone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence


_DIMENSIONS = ("m", "k", "n", "dtype")
# No sign, since a dash parts arguments, and one spelling a number; at most 18 digits, which 64 bits hold.
_WHOLE = re.compile(r"0|[1-9][0-9]{0,17}")
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
# The recipe that every other is measured against.
BASELINE = "baseline"
# The kind of recipes that leave the model as it is.
COMPILER = "compiler"
# The shapes that a configuration lists itself.
CUSTOM = "custom"
# Of two: a side of 16,777,216, of which a square matrix has a petabyte.
HIGHEST_POWER = 24

Kind: TypeAlias = Literal["quantization", "sparsity", "compiler"]
Given: TypeAlias = Literal["no", "may", "must"]

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:]*(?:-[A-Za-z0-9_.:]+)*")
_KINDS = ("quantization", "sparsity")


class PluginError(DeclarationError):
    """Plugin files that cannot be used as they are written; holds every problem with its file and line."""

    files = "plugin files"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What a compiled module must show, so that a recipe changes what it says it changes.

    Attributes:
        parameter_types: MLIR element types that must be among the parameters, such as `i8` and `f8E4M3FN`.
        parameter_share: the most that the parameters' bytes may be, as a share of the baseline's at the same point;
            None where they may be anything.
        dispatch: regular expression that the name of one dispatch must match; empty where none has to.
        different: whether the module must differ from the baseline's.
    """

    parameter_types: tuple[str, ...] = ()
    parameter_share: float | None = None
    dispatch: str = ""
    different: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _InPlugin(Declaration):
    """What a plugin file declares; its name may be parted by dashes."""

    documented: ClassVar[str] = "see docs/how-to/recipes.md"
    error: ClassVar[type[DeclarationError]] = PluginError

    @classmethod
    def check_name(cls, name: object, messages: list[str]) -> None:
        """Refuse what a configuration cannot name; a dash may part a name from arguments."""
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            messages.append(f"{name!r} is no name; letters, digits and _ . : make one, with single dashes between them")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRecipe(_InPlugin):
    """A declared recipe.

    Attributes:
        kind: what it changes; a `compiler` recipe leaves the model as it is.
        function: takes the torch module and the arguments, returns a torch module; None for a compiler recipe.
        tolerance: relative root mean square of the difference from torch that rounding alone may make, besides what
            the type allows; 0 where it makes none.
        contraction_type: `f16` or `bf16` where a compiler recipe narrows the inputs of contractions to that.
        check: takes the arguments, says what is wrong with them; None where any will do.
        refusal: why it is not made here; empty where it is.
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

    what: ClassVar[str] = "a recipe"

    @property
    def usage(self) -> str:
        """How it is written: `int4wo[-<group>]`, `float8dq[-tensor|row]`."""
        text, closing = self.name, ""
        for argument in self.arguments:
            word = "|".join(map(str, argument.choices)) if argument.choices else f"<{argument.name}>"
            text += f"-{word}" if argument.default is None else f"[-{word}"
            closing += "" if argument.default is None else "]"
        return text + closing


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture(_InPlugin):
    """A declared architecture; in a configuration its name is followed by `_` and an activation where it takes one.

    Attributes:
        function: takes m, k, n and dtype by position, `activation` (a torch module) and `config` (a path) by name,
            where it has those; returns a torch module and a tuple of its inputs.
        takes_activation, takes_config: whether it has these: they must be given, may be, or are nothing to it (`no`).
    """

    function: Callable[..., Any] = field(repr=False)
    takes_activation: Given
    takes_config: Given

    what: ClassVar[str] = "an architecture"


@dataclass(frozen=True, slots=True, kw_only=True)
class Activation(_InPlugin):
    """A declared activation."""

    function: Callable[..., Any] = field(repr=False)

    what: ClassVar[str] = "an activation"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeSet(_InPlugin):
    """A declared set of shapes.

    Attributes:
        function: takes the sizes, where there are powers; gives (m, k, n) or (name, m, k, n), one after the other.
        powers: what `min_power` and `max_power` are where they are not given; None for a set that has none.
    """

    function: Callable[..., Any] = field(repr=False)
    powers: tuple[int, int] | None = None

    what: ClassVar[str] = "a shape set"


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
    """Declare a function as a recipe: it takes a torch module, and returns it changed, or another.

    Further parameters are arguments, written after dashes in their order and converted as they are annotated: `int`,
    `str` or a `Literal`.

    Args:
        name: what a configuration calls it.
        kind: under which heading a configuration lists it.
        about: one line for lists; the first of the function's docstring where it is empty.
        proof: what the compiled module must show.
        tolerance: relative root mean square of the difference from torch that rounding alone may make.
        requires: Python modules that the function needs besides torch.
        beside: the quantization recipes that a sparsity recipe is combined with; each runs without it too.
        flags: of the compiler, that the recipe is compiled with in addition to the baseline's.
        check: takes the arguments, says what is wrong with them, "" for nothing; called when a configuration is read.

    Raises:
        PluginError: where the function cannot be called so, or something else is not what it should be.
    """

    def fields(function: Callable[..., Any], messages: list[str]) -> dict[str, Any]:
        arguments = _read_recipe_arguments(function, messages)
        if kind not in _KINDS:
            messages.append(f"kind is one of {', '.join(_KINDS)}, not {kind!r}; compiler_recipe declares the third")
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

    return make_decorator(ModelRecipe, fields, name, about)


def compiler_recipe(
    name: str,
    *,
    flags: Sequence[str],
    about: str,
    proof: Proof = Proof(different=True),
    contraction_type: str = "",
    tolerance: float = 0.0,
) -> None:
    """Declare a recipe that only a compiler has: the model stays as it is, and is compiled with further flags.

    Args:
        name: what a configuration calls it.
        flags: of the compiler, as they are typed.
        about: one line for lists.
        proof: what the compiled module must show.
        contraction_type: `f16` or `bf16` where the flags narrow the inputs of contractions to that.
        tolerance: as for `recipe`.

    Raises:
        PluginError: where something is not what it should be.
    """
    # Of `inspect.stack`, which looks for the module of each frame among all that are loaded, the beginning alone.
    caller = sys._getframe(1)  # noqa: SLF001
    file, line = Path(caller.f_code.co_filename).absolute(), caller.f_lineno
    messages: list[str] = []
    ModelRecipe.check_name(name, messages)
    _check_proof(proof, tolerance, messages)
    words = _check_flags(flags, messages)
    if not words:
        messages.append("flags has none: the module would be the baseline's")
    if contraction_type not in ("", "f16", "bf16"):
        messages.append(f"contraction_type is f16 or bf16, not {contraction_type!r}")
    refuse(messages, ModelRecipe, name, ModelRecipe.documented, file=file, line=line)
    made = ModelRecipe(name=name, about=about, kind="compiler", file=file, line=line, proof=proof, tolerance=tolerance)
    collect(replace(made, flags=words, contraction_type=contraction_type))


def architecture(name: str, *, about: str = "") -> Callable[[Function], Function]:
    """Declare a function as a model architecture: `def mine(m, k, n, dtype)` returns a module and its inputs.

    Args:
        name: what a configuration calls it.
        about: one line for lists; the first of the function's docstring where it is empty.

    Raises:
        PluginError: where the function does not take m, k, n and dtype, or takes what nothing gives.
    """
    return make_decorator(Architecture, _read_architecture_parameters, name, about)


def activation(name: str, *, about: str = "") -> Callable[[Function], Function]:
    """Declare a function as an activation: it takes nothing, and returns a torch module.

    Args:
        name: what model types end with.
        about: one line for lists; the first of the function's docstring where it is empty.

    Raises:
        PluginError: where the function takes something.
    """

    def fields(function: Callable[..., Any], messages: list[str]) -> dict[str, Any]:
        _check_bare(function, messages)
        return {}

    return make_decorator(Activation, fields, name, about)


def shape_set(
    name: str, *, min_power: int | None = None, max_power: int | None = None, about: str = ""
) -> Callable[[Function], Function]:
    """Declare a function as a set of shapes: it gives (m, k, n), or (name, m, k, n), one after the other.

    With powers it takes the sizes, the powers of two from `min_power` to `max_power`, both included.

    Args:
        name: what a configuration calls it.
        min_power: where a configuration gives none; None for a set without powers.
        max_power: likewise.
        about: one line for lists; the first of the function's docstring where it is empty.

    Raises:
        PluginError: where the function does not take what it is given, or the powers are none.
    """

    def fields(function: Callable[..., Any], messages: list[str]) -> dict[str, Any]:
        powers = None if min_power is None or max_power is None else (min_power, max_power)
        if (min_power is None) != (max_power is None):
            messages.append("min_power and max_power are given together")
        elif powers and not 0 <= powers[0] <= powers[1] <= HIGHEST_POWER:
            messages.append(f"powers are 0 ≤ min_power ≤ max_power ≤ {HIGHEST_POWER}, not {powers[0]} and {powers[1]}")
        if name == CUSTOM:
            messages.append(f"{CUSTOM} is the name of the shapes that a configuration lists itself")
        _check_sizes(function, powers is not None, messages)
        return {"powers": powers}

    return make_decorator(ShapeSet, fields, name, about)


def _check_flags(flags: object, messages: list[str]) -> tuple[str, ...]:
    words = _check_words("flags", flags, messages)
    messages += [f"flags: {word!r} does not start with --" for word in words if not word.startswith("--")]
    return words


def _check_proof(proof: object, tolerance: object, messages: list[str]) -> None:
    if tolerance != 0:
        _check_positive("tolerance is a relative root mean square, such as 0.01", tolerance, messages)
    if not isinstance(proof, Proof):
        messages.append(f"proof is a Proof(…), not {proof!r}")
        return
    _check_words("proof.parameter_types", proof.parameter_types, messages)
    try:
        re.compile(str(proof.dispatch))
    except re.error as error:
        messages.append(f"proof.dispatch is no regular expression: {error}")
    if proof.parameter_share is not None:
        what = "proof.parameter_share is a share of the baseline's bytes, such as 0.3"
        _check_positive(what, proof.parameter_share, messages)


def _check_words(what: str, words: object, messages: list[str]) -> tuple[str, ...]:
    """A tuple of strings; a string alone would be a tuple of its letters."""
    if isinstance(words, list | tuple) and all(isinstance(word, str) and word for word in words):
        return tuple(words)
    messages.append(f'{what} is a tuple of strings, ("one",), not {words!r}')
    return ()


def _check_positive(what: str, number: object, messages: list[str]) -> None:
    """Checks a number above 0 that is one."""
    fits = isinstance(number, int | float) and not isinstance(number, bool) and number > 0 and math.isfinite(number)
    if not fits:
        messages.append(f"{what}, not {number!r}")


@dataclass(frozen=True, slots=True)
class RecipeArgument:
    """What a recipe takes after a dash."""

    name: str
    choices: tuple[int | str, ...] = ()
    whole: bool = False
    default: int | str | None = None

    @property
    def expected(self) -> str:
        """What may stand there, for messages."""
        if self.choices:
            return " or ".join(str(choice) for choice in self.choices)
        return "a whole number" if self.whole else "a word"

    def read(self, word: str) -> int | str | None:
        """The value that is written so; None where it is none."""
        if self.choices:
            return next((choice for choice in self.choices if str(choice) == word), None)
        if self.whole:
            return int(word) if _WHOLE.fullmatch(word) else None
        return word or None


def _read_recipe_arguments(function: Callable[..., Any], messages: list[str]) -> tuple[RecipeArgument, ...]:
    """The arguments of a recipe: its parameters but for the first, which is the model."""
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters or parameters[0].kind not in _POSITIONAL:
        messages.append("it takes no model: def my_recipe(model), a torch module, which returns one")
        return ()
    found = []
    for parameter in parameters[1:]:
        if parameter.kind not in _POSITIONAL:
            messages.append(f"{format_starred(parameter)}: arguments are given by position, after dashes")
            continue
        argument = _read_argument(function, parameter, messages)
        if argument is not None:
            found.append(argument)
    return tuple(found)


def read_arguments(
    words: Sequence[str], arguments: Sequence[RecipeArgument]
) -> tuple[tuple[int | str, ...], None] | tuple[None, str]:
    """The values of a recipe's arguments, with its defaults for what is left out; or what is wrong with them."""
    if len(words) > len(arguments):
        return (
            None,
            f"it takes {len(arguments) or 'no'} argument{'' if len(arguments) == 1 else 's'}, found {len(words)}",
        )
    values = []
    for number, argument in enumerate(arguments):
        value = argument.read(words[number]) if number < len(words) else argument.default
        if value is None:
            said = f"found {words[number]!r}" if number < len(words) else "found none"
            return None, f"{argument.name}: expected {argument.expected}, {said}"
        values.append(value)
    return tuple(values), None


def _read_architecture_parameters(function: Callable[..., Any], messages: list[str]) -> dict[str, Any]:
    """Whether an architecture takes an activation and a configuration."""
    parameters = inspect.signature(function).parameters
    if tuple(parameters)[: len(_DIMENSIONS)] != _DIMENSIONS:
        messages.append("its first parameters are not m, k, n, dtype")
    given = "there are m, k, n, dtype, activation and config"
    found = find_given_by_name(function, ("activation", "config"), given, messages, _DIMENSIONS)
    words: dict[bool | None, Given] = {None: "no", False: "may", True: "must"}
    return {"takes_activation": words[found.get("activation")], "takes_config": words[found.get("config")]}


def _check_sizes(function: Callable[..., Any], powers: bool, messages: list[str]) -> None:
    """Checks that a shape set takes `sizes` where it has powers, and nothing where it has none."""
    if powers:
        try:
            takes_one = len(_find_needed(function)) == 1 and inspect.signature(function).bind(()) is not None
        except TypeError:
            takes_one = False
        if not takes_one:
            messages.append("it has powers, and takes not one parameter: def my_set(sizes: tuple[int, ...])")
    else:
        _check_bare(function, messages, "it has no min_power and max_power, and takes")


def _check_bare(function: Callable[..., Any], messages: list[str], what: str = "it takes") -> None:
    """Checks that a function can be called with nothing."""
    bare = _find_needed(function)
    if bare:
        messages.append(f"{what} {', '.join(bare)}: nothing gives that")


def _find_needed(function: Callable[..., Any]) -> list[str]:
    """The parameters that have to be given."""
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    return [item.name for item in parameters if item.default is item.empty and item.kind not in variadic]


def _read_argument(
    function: Callable[..., Any], parameter: inspect.Parameter, messages: list[str]
) -> RecipeArgument | None:
    name = parameter.name
    default = None if parameter.default is parameter.empty else parameter.default
    found: RecipeArgument | None = None
    hint = _read_annotation(function, parameter)
    if hint is int:
        found = RecipeArgument(name, whole=True, default=default)
    elif hint is str:
        found = RecipeArgument(name, default=default)
    elif get_origin(hint) is Literal and all(map(_may_be_written, get_args(hint))):
        found = RecipeArgument(name, get_args(hint), default=default)
    if found is None:
        hint = parameter.annotation
        written = hint if isinstance(hint, str) else inspect.formatannotation(hint)
        written = "nothing" if hint is parameter.empty else written
        messages.append(
            f"{name} is annotated with {written}: expected int, str, or a Literal of words without dashes, "
            'such as Literal["tensor", "row"]'
        )
    elif parameter.default is not parameter.empty and not (
        _may_be_written(default) and found.read(str(default)) == default
    ):
        messages.append(f"{name}: its default {default!r} is not {found.expected}")
    return found


def _read_annotation(function: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """What a parameter is annotated with; others may name what is imported for type checkers alone."""
    if not isinstance(parameter.annotation, str):
        return parameter.annotation
    alone = types.SimpleNamespace(__annotations__={"it": parameter.annotation})
    try:
        return get_type_hints(alone, getattr(function, "__globals__", {}))["it"]
    except (NameError, TypeError, SyntaxError, AttributeError):
        return None


def _may_be_written(value: object) -> bool:
    """Whether a value could stand between dashes."""
    return isinstance(value, int | str) and not isinstance(value, bool) and bool(str(value)) and "-" not in str(value)


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
