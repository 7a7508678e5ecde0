"""What micro-benchmarks are made of: recipes, architectures, activations and shape sets, declared in plugin files.

A plugin file is imported in the toolkit's Python too, which may lack torch: nothing here imports more than the
standard library. What is declared is checked there and then; a declared function stays as it is.
"""

from __future__ import annotations

import inspect
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from iree_gauntlet.bench.registry import shown
from iree_gauntlet.errors import Problem, SpecError
from iree_gauntlet.micro.declaration_checks import check_dispatch, check_name, check_positive, words_of
from iree_gauntlet.micro.signatures import (
    ArchitectureParameters,
    Argument,
    architecture_parameters,
    check_bare,
    recipe_arguments,
    takes_sizes,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

__all__ = [
    "BASELINE",
    "CUSTOM",
    "HIGHEST_POWER",
    "Activation",
    "Architecture",
    "Declaration",
    "Declared",
    "PluginError",
    "Proof",
    "Recipe",
    "ShapeSet",
    "activation",
    "architecture",
    "compiler_recipe",
    "declarations",
    "recipe",
    "shape_set",
]

# The recipe that every other is measured against.
BASELINE = "baseline"
# The shapes that a configuration lists itself.
CUSTOM = "custom"
# Of two: a side of 16,777,216, of which a square matrix has a petabyte.
HIGHEST_POWER = 24

Kind: TypeAlias = Literal["quantization", "sparsity", "compiler"]
Function = TypeVar("Function", bound="Callable[..., Any]")

_KINDS = ("quantization", "sparsity")
_RECIPES = "see docs/how-to/recipes.md"
_ARCHITECTURES = "see docs/how-to/recipes.md"


class PluginError(SpecError):
    """Plugin files that cannot be used as they are written; holds every problem with its file and line."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__(problems, kind="plugin files")


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
class Declaration:
    """What every declaration has.

    Attributes:
        name: what a configuration calls it.
        about: one line for lists.
        file: where it is declared, absolute.
        line: of its decorator.
    """

    name: str
    about: str
    file: Path
    line: int

    @property
    def place(self) -> str:
        """Where it is declared: `my_recipes.py:12`."""
        return f"{shown(self.file)}:{self.line}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe(Declaration):
    """A declared recipe.

    Attributes:
        kind: what it changes; a `compiler` recipe leaves the model as it is.
        function: takes the torch module and the arguments, returns a torch module; None for a compiler recipe.
        arguments: what it takes after dashes.
        proof: what its compiled module must show.
        tolerance: relative root mean square of the difference from torch that rounding alone may make, beside what
            the type allows; 0 where it makes none.
        requires: Python modules that the function needs beside torch.
        beside: the quantization recipes that a sparsity recipe is combined with.
        flags: of the compiler, beside the baseline's.
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
class Architecture(Declaration):
    """A declared architecture; in a configuration its name is followed by `_` and an activation where it takes one.

    Attributes:
        function: takes m, k, n and dtype by position, `activation` (a torch module) and `config` (a path) by name,
            where it has those; returns a torch module and a tuple of its inputs.
        takes: whether it has `activation` and `config`.
    """

    function: Callable[..., Any] = field(repr=False)
    takes: ArchitectureParameters


@dataclass(frozen=True, slots=True, kw_only=True)
class Activation(Declaration):
    """A declared activation.

    Attributes:
        function: takes nothing, returns a torch module.
    """

    function: Callable[..., Any] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeSet(Declaration):
    """A declared set of shapes.

    Attributes:
        function: takes the sizes, where there are powers; gives (m, k, n) or (name, m, k, n), one after the other.
        powers: what `min_power` and `max_power` are where they are not given; None for a set that has none.
    """

    function: Callable[..., Any] = field(repr=False)
    powers: tuple[int, int] | None = None


Declared: TypeAlias = Recipe | Architecture | Activation | ShapeSet


_DECLARED: ContextVar[list[Declared] | None] = ContextVar("_DECLARED", default=None)


@contextmanager
def declarations() -> Iterator[list[Declared]]:
    """Collect what is declared while the context lasts, in the order in which it is."""
    declared: list[Declared] = []
    token = _DECLARED.set(declared)
    try:
        yield declared
    finally:
        _DECLARED.reset(token)


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
        requires: Python modules that the function needs beside torch.
        beside: the quantization recipes that a sparsity recipe is combined with; each runs without it too.
        flags: of the compiler, that the recipe is compiled with beside the baseline's.
        check: takes the arguments, says what is wrong with them, "" for nothing; called when a configuration is read.

    Raises:
        PluginError: where the function cannot be called so, or something else is not what it should be.
    """

    def build(function: Callable[..., Any], place: _Place, messages: list[str]) -> Recipe:
        arguments = recipe_arguments(function, messages)
        if kind not in _KINDS:
            messages.append(f"kind is one of {', '.join(_KINDS)}, not {kind!r}; compiler_recipe declares the third")
        _check_proof(proof, tolerance, messages)
        return Recipe(
            name=name,
            about=place.about,
            kind=kind,
            file=place.file,
            line=place.line,
            function=function,
            arguments=arguments,
            proof=proof,
            tolerance=tolerance,
            requires=words_of("requires", requires, messages),
            beside=words_of("beside", beside, messages) if kind == "sparsity" else (),
            flags=_flags(flags, messages),
            check=check,
        )

    return _decorator(name, about, build, _RECIPES)


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
    check_name(name, messages)
    _check_proof(proof, tolerance, messages)
    words = _flags(flags, messages)
    if not words:
        messages.append("flags has none: the module would be the baseline's")
    if contraction_type not in ("", "f16", "bf16"):
        messages.append(f"contraction_type is f16 or bf16, not {contraction_type!r}")
    _refuse(messages, file, line, name, _RECIPES)
    _add(
        Recipe(
            name=name,
            about=about,
            kind="compiler",
            file=file,
            line=line,
            proof=proof,
            tolerance=tolerance,
            flags=words,
            contraction_type=contraction_type,
        )
    )


def architecture(name: str, *, about: str = "") -> Callable[[Function], Function]:
    """Declare a function as a model architecture: `def mine(m, k, n, dtype)` returns a module and its inputs.

    Args:
        name: what a configuration calls it.
        about: one line for lists; the first of the function's docstring where it is empty.

    Raises:
        PluginError: where the function does not take m, k, n and dtype, or takes what nothing gives.
    """

    def build(function: Callable[..., Any], place: _Place, messages: list[str]) -> Architecture:
        takes = architecture_parameters(function, messages)
        return Architecture(
            name=name, about=place.about, file=place.file, line=place.line, function=function, takes=takes
        )

    return _decorator(name, about, build, _ARCHITECTURES)


def activation(name: str, *, about: str = "") -> Callable[[Function], Function]:
    """Declare a function as an activation: it takes nothing, and returns a torch module.

    Args:
        name: what model types end with.
        about: one line for lists; the first of the function's docstring where it is empty.

    Raises:
        PluginError: where the function takes something.
    """

    def build(function: Callable[..., Any], place: _Place, messages: list[str]) -> Activation:
        check_bare(function, messages)
        return Activation(name=name, about=place.about, file=place.file, line=place.line, function=function)

    return _decorator(name, about, build, _ARCHITECTURES)


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

    def build(function: Callable[..., Any], place: _Place, messages: list[str]) -> ShapeSet:
        powers = None if min_power is None or max_power is None else (min_power, max_power)
        if (min_power is None) != (max_power is None):
            messages.append("min_power and max_power are given together")
        elif powers and not 0 <= powers[0] <= powers[1] <= HIGHEST_POWER:
            messages.append(f"powers are 0 ≤ min_power ≤ max_power ≤ {HIGHEST_POWER}, not {powers[0]} and {powers[1]}")
        if name == CUSTOM:
            messages.append(f"{CUSTOM} is the name of the shapes that a configuration lists itself")
        takes_sizes(function, powers is not None, messages)
        return ShapeSet(
            name=name, about=place.about, file=place.file, line=place.line, function=function, powers=powers
        )

    return _decorator(name, about, build, _ARCHITECTURES)


@dataclass(frozen=True, slots=True)
class _Place:
    file: Path
    line: int
    about: str


def _decorator(
    name: str, about: str, build: Callable[[Callable[..., Any], _Place, list[str]], Declared], hint: str
) -> Callable[[Function], Function]:
    def declare(function: Function) -> Function:
        if not inspect.isfunction(function):
            raise TypeError(f"the decorator of {name!r} is for a function, not for {function!r}")
        file = Path(function.__code__.co_filename).absolute()
        line = function.__code__.co_firstlineno
        documented = (inspect.getdoc(function) or "").partition("\n")[0]
        messages: list[str] = []
        check_name(name, messages)
        made = build(function, _Place(file, line, about or documented), messages)
        _refuse(messages, file, line, name, hint)
        _add(made)
        return function

    return declare


def _add(made: Declared) -> None:
    declared = _DECLARED.get()
    if declared is not None:
        declared.append(made)


def _refuse(messages: Iterable[str], file: Path, line: int, name: object, hint: str) -> None:
    problems = [Problem(str(shown(file)), line, str(name), message, hint) for message in messages]
    if problems:
        raise PluginError(problems)


def _flags(flags: object, messages: list[str]) -> tuple[str, ...]:
    words = words_of("flags", flags, messages)
    messages += [f"flags: {word!r} does not start with --" for word in words if not word.startswith("--")]
    return words


def _check_proof(proof: object, tolerance: object, messages: list[str]) -> None:
    if tolerance != 0:
        check_positive("tolerance is a relative root mean square, such as 0.01", tolerance, messages)
    if not isinstance(proof, Proof):
        messages.append(f"proof is a Proof(…), not {proof!r}")
        return
    words_of("proof.parameter_types", proof.parameter_types, messages)
    check_dispatch(proof.dispatch, messages)
    if proof.parameter_share is not None:
        what = "proof.parameter_share is a share of the baseline's bytes, such as 0.3"
        check_positive(what, proof.parameter_share, messages)
