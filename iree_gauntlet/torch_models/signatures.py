"""What declared functions take: the arguments of a recipe, the inputs of an architecture, the sizes of a shape set."""

from __future__ import annotations

import inspect
import re
import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

from iree_gauntlet.torch_models.declarations import given_by_name, starred

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


_DIMENSIONS = ("m", "k", "n", "dtype")
# No sign, since a dash parts arguments, and one spelling a number; at most 18 digits, which 64 bits hold.
_WHOLE = re.compile(r"0|[1-9][0-9]{0,17}")
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True, slots=True)
class Argument:
    """What a recipe takes after a dash.

    Attributes:
        name: of the function's parameter.
        choices: of a `Literal`; empty where any value will do.
        whole: whether it is a whole number; a choice may be either.
        default: None where it has to be given.
    """

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


@dataclass(frozen=True, slots=True)
class ArchitectureParameters:
    """What an architecture takes besides m, k, n and dtype: `no`, `may` or `must` be given."""

    activation: Literal["no", "may", "must"]
    config: Literal["no", "may", "must"]


def recipe_arguments(function: Callable[..., Any], messages: list[str]) -> tuple[Argument, ...]:
    """The arguments of a recipe: its parameters but for the first, which is the model."""
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters or parameters[0].kind not in _POSITIONAL:
        messages.append("it takes no model: def my_recipe(model), a torch module, which returns one")
        return ()
    found = []
    for parameter in parameters[1:]:
        if parameter.kind not in _POSITIONAL:
            messages.append(f"{starred(parameter)}: arguments are given by position, after dashes")
            continue
        argument = _argument(function, parameter, messages)
        if argument is not None:
            found.append(argument)
    return tuple(found)


def read_arguments(
    words: Sequence[str], arguments: Sequence[Argument]
) -> tuple[tuple[int | str, ...], None] | tuple[None, str]:
    """The values of a recipe's arguments, with its defaults for what is left out; or what is wrong with them."""
    if len(words) > len(arguments):
        return None, f"it takes {len(arguments) or 'no'} argument{'s'[: len(arguments) != 1]}, found {len(words)}"
    values = []
    for number, argument in enumerate(arguments):
        value = argument.read(words[number]) if number < len(words) else argument.default
        if value is None:
            said = f"found {words[number]!r}" if number < len(words) else "found none"
            return None, f"{argument.name}: expected {argument.expected}, {said}"
        values.append(value)
    return tuple(values), None


def architecture_parameters(function: Callable[..., Any], messages: list[str]) -> ArchitectureParameters:
    """Whether an architecture takes an activation and a configuration."""
    parameters = inspect.signature(function).parameters
    if tuple(parameters)[: len(_DIMENSIONS)] != _DIMENSIONS:
        messages.append("its first parameters are not m, k, n, dtype")
    given = "there are m, k, n, dtype, activation and config"
    found = given_by_name(function, ("activation", "config"), given, messages, _DIMENSIONS)
    words: dict[bool | None, Literal["no", "may", "must"]] = {None: "no", False: "may", True: "must"}
    return ArchitectureParameters(words[found.get("activation")], words[found.get("config")])


def takes_sizes(function: Callable[..., Any], powers: bool, messages: list[str]) -> None:
    """Checks that a shape set takes `sizes` where it has powers, and nothing where it has none."""
    if powers:
        if len(_needed(function)) != 1 or not _callable_with(function, ()):
            messages.append("it has powers, and takes not one parameter: def my_set(sizes: tuple[int, ...])")
    else:
        check_bare(function, messages, "it has no min_power and max_power, and takes")


def check_bare(function: Callable[..., Any], messages: list[str], what: str = "it takes") -> None:
    """Checks that a function can be called with nothing."""
    bare = _needed(function)
    if bare:
        messages.append(f"{what} {', '.join(bare)}: nothing gives that")


def _needed(function: Callable[..., Any]) -> list[str]:
    """The parameters that have to be given."""
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    return [item.name for item in parameters if item.default is item.empty and item.kind not in variadic]


def _callable_with(function: Callable[..., Any], *arguments: object) -> bool:
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError:
        return False
    return True


def _argument(function: Callable[..., Any], parameter: inspect.Parameter, messages: list[str]) -> Argument | None:
    name = parameter.name
    default = None if parameter.default is parameter.empty else parameter.default
    found: Argument | None = None
    hint = _annotation(function, parameter)
    if hint is int:
        found = Argument(name, whole=True, default=default)
    elif hint is str:
        found = Argument(name, default=default)
    elif get_origin(hint) is Literal and all(_choice(value) for value in get_args(hint)):
        found = Argument(name, get_args(hint), default=default)
    if found is None:
        hint = parameter.annotation
        written = hint if isinstance(hint, str) else inspect.formatannotation(hint)
        written = "nothing" if hint is parameter.empty else written
        messages.append(
            f"{name} is annotated with {written}: expected int, str, or a Literal of words without dashes, "
            'such as Literal["tensor", "row"]'
        )
    elif parameter.default is not parameter.empty and not _fits(found, default):
        messages.append(f"{name}: its default {default!r} is not {found.expected}")
    return found


def _annotation(function: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """What a parameter is annotated with; others may name what is imported for type checkers alone."""
    if not isinstance(parameter.annotation, str):
        return parameter.annotation
    alone = types.SimpleNamespace(__annotations__={"it": parameter.annotation})
    try:
        return get_type_hints(alone, getattr(function, "__globals__", {}))["it"]
    except (NameError, TypeError, SyntaxError, AttributeError):
        return None


def _choice(value: object) -> bool:
    return isinstance(value, int | str) and not isinstance(value, bool) and bool(str(value)) and "-" not in str(value)


def _fits(argument: Argument, default: object) -> bool:
    """Whether a default is a value that could have been written."""
    if isinstance(default, bool) or not isinstance(default, int | str) or "-" in str(default):
        return False
    return argument.read(str(default)) == default
