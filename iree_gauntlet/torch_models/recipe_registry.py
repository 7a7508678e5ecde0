"""What micro-benchmarks are made of: recipes, architectures, activations and shape sets, declared in plugin files.

A plugin file is imported in the toolkit's Python too, which may lack torch: nothing here imports more than the
standard library. What is declared is checked there and then; a declared function stays as it is.
"""

from __future__ import annotations

import inspect
import math
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, TypeVar

from iree_gauntlet.torch_models.declarations import Declaration, DeclarationError, collect, declaring, refuse
from iree_gauntlet.torch_models.signatures import (
    ArchitectureParameters,
    Argument,
    architecture_parameters,
    check_bare,
    recipe_arguments,
    takes_sizes,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


# The recipe that every other is measured against.
BASELINE = "baseline"
# The kind of recipes that leave the model as it is.
COMPILER = "compiler"
# The shapes that a configuration lists itself.
CUSTOM = "custom"
# Of two: a side of 16,777,216, of which a square matrix has a petabyte.
HIGHEST_POWER = 24

Kind: TypeAlias = Literal["quantization", "sparsity", "compiler"]
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
class Recipe(_InPlugin):
    """A declared recipe.

    Attributes:
        kind: what it changes; a `compiler` recipe leaves the model as it is.
        function: takes the torch module and the arguments, returns a torch module; None for a compiler recipe.
        arguments: what it takes after dashes.
        proof: what its compiled module must show.
        tolerance: relative root mean square of the difference from torch that rounding alone may make, besides what
            the type allows; 0 where it makes none.
        requires: Python modules that the function needs besides torch.
        beside: the quantization recipes that a sparsity recipe is combined with.
        flags: of the compiler, in addition to the baseline's.
        contraction_type: `f16` or `bf16` where a compiler recipe narrows the inputs of contractions to that.
        check: takes the arguments, says what is wrong with them; None where any will do.
        refusal: why it is not made here; empty where it is.
    """

    kind: Kind
    function: Callable[..., Any] | None = field(default=None, repr=False)
    arguments: tuple[Argument, ...] = ()
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
        takes: whether it has `activation` and `config`.
    """

    function: Callable[..., Any] = field(repr=False)
    takes: ArchitectureParameters

    what: ClassVar[str] = "an architecture"


@dataclass(frozen=True, slots=True, kw_only=True)
class Activation(_InPlugin):
    """A declared activation.

    Attributes:
        function: takes nothing, returns a torch module.
    """

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
        arguments = recipe_arguments(function, messages)
        if kind not in _KINDS:
            messages.append(f"kind is one of {', '.join(_KINDS)}, not {kind!r}; compiler_recipe declares the third")
        _check_proof(proof, tolerance, messages)
        return {
            "kind": kind,
            "arguments": arguments,
            "proof": proof,
            "tolerance": tolerance,
            "requires": _words_of("requires", requires, messages),
            "beside": _words_of("beside", beside, messages) if kind == "sparsity" else (),
            "flags": _flags(flags, messages),
            "check": check,
        }

    return declaring(Recipe, fields, name, about)


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
    frame = inspect.currentframe()
    caller = frame.f_back if frame else None
    assert caller is not None, "a call has a caller"
    file, line = Path(caller.f_code.co_filename).absolute(), caller.f_lineno
    messages: list[str] = []
    Recipe.check_name(name, messages)
    _check_proof(proof, tolerance, messages)
    words = _flags(flags, messages)
    if not words:
        messages.append("flags has none: the module would be the baseline's")
    if contraction_type not in ("", "f16", "bf16"):
        messages.append(f"contraction_type is f16 or bf16, not {contraction_type!r}")
    refuse(messages, Recipe, name, Recipe.documented, file=file, line=line)
    made = Recipe(name=name, about=about, kind="compiler", file=file, line=line, proof=proof, tolerance=tolerance)
    collect(replace(made, flags=words, contraction_type=contraction_type))


def architecture(name: str, *, about: str = "") -> Callable[[Function], Function]:
    """Declare a function as a model architecture: `def mine(m, k, n, dtype)` returns a module and its inputs.

    Args:
        name: what a configuration calls it.
        about: one line for lists; the first of the function's docstring where it is empty.

    Raises:
        PluginError: where the function does not take m, k, n and dtype, or takes what nothing gives.
    """

    def fields(function: Callable[..., Any], messages: list[str]) -> dict[str, Any]:
        return {"takes": architecture_parameters(function, messages)}

    return declaring(Architecture, fields, name, about)


def activation(name: str, *, about: str = "") -> Callable[[Function], Function]:
    """Declare a function as an activation: it takes nothing, and returns a torch module.

    Args:
        name: what model types end with.
        about: one line for lists; the first of the function's docstring where it is empty.

    Raises:
        PluginError: where the function takes something.
    """

    def fields(function: Callable[..., Any], messages: list[str]) -> dict[str, Any]:
        check_bare(function, messages)
        return {}

    return declaring(Activation, fields, name, about)


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
        takes_sizes(function, powers is not None, messages)
        return {"powers": powers}

    return declaring(ShapeSet, fields, name, about)


def _flags(flags: object, messages: list[str]) -> tuple[str, ...]:
    words = _words_of("flags", flags, messages)
    messages += [f"flags: {word!r} does not start with --" for word in words if not word.startswith("--")]
    return words


def _check_proof(proof: object, tolerance: object, messages: list[str]) -> None:
    if tolerance != 0:
        _check_positive("tolerance is a relative root mean square, such as 0.01", tolerance, messages)
    if not isinstance(proof, Proof):
        messages.append(f"proof is a Proof(…), not {proof!r}")
        return
    _words_of("proof.parameter_types", proof.parameter_types, messages)
    try:
        re.compile(str(proof.dispatch))
    except re.error as error:
        messages.append(f"proof.dispatch is no regular expression: {error}")
    if proof.parameter_share is not None:
        what = "proof.parameter_share is a share of the baseline's bytes, such as 0.3"
        _check_positive(what, proof.parameter_share, messages)


def _words_of(what: str, words: object, messages: list[str]) -> tuple[str, ...]:
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
