"""What micro-benchmarks are made of: recipes, architectures, activations and shape sets, declared in plugin files.

A plugin file is imported in the toolkit's Python too, which may lack torch: nothing here imports more than the
standard library.
"""

from __future__ import annotations

import inspect
import math
import re
import sys
import types
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

from iree_gauntlet.torch_models.declarations import (
    Declaration,
    DeclarationError,
    collect,
    find_given_by_name,
    format_starred,
    make_decorator,
    refuse,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


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
Function = TypeVar("Function", bound="Callable[..., Any]")

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
