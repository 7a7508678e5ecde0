"""Load a function of a user's Python file, with its arguments, for the workers that export it by a framework."""

from __future__ import annotations

import importlib.util
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar, cast

from iree_gauntlet.workers.iree_side.plan_file import PlanError, run_worker_main

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path


_Result = TypeVar("_Result")
_MAX_REASON = 300
_FRAMEWORKS = ("jax", "torch")
# A .npy file holds these kinds of elements.
NPY_KINDS = "fiub"


@dataclass(frozen=True, slots=True)
class ExportingPlan:
    """The plan of an export; `function` is empty for a file that was exported before."""

    model: str
    function: str
    folder: str


@dataclass(frozen=True, slots=True)
class SourcePlan:
    """The program that an engine runs; `kept` are the numbers of the arguments that it uses."""

    path: str
    function: str
    kept: list[int]


@dataclass(frozen=True, slots=True)
class UserFunction:
    """A function of a user's file, with its arguments as the file gives them.

    Attributes:
        function: an object that can be called.
        arguments: a tuple, or a dict by name.
        sizes: the file's `dynamic_shapes`; None without any.
    """

    function: Callable[..., object]
    arguments: tuple[object, ...] | dict[str, object]
    sizes: object = None

    def call_with(self, function: Callable[..., _Result], arguments: object) -> _Result:
        """Call another function as this one is called, with arguments like those of the file."""
        return function(**arguments) if isinstance(arguments, dict) else function(*cast("Iterable[object]", arguments))

    def find_framework(self) -> str:
        """Return the framework that the function or its arguments are of; empty if neither tells."""
        roots = {
            kind.__module__.partition(".")[0]
            for value in (self.function, *_list_leaves(self.arguments))
            for kind in (*type(value).__mro__, *(value.__mro__ if isinstance(value, type) else ()))
        }
        # JAX's own arrays are of jaxlib.
        roots |= {"jax"} if "jaxlib" in roots else set()
        return next((name for name in _FRAMEWORKS if name in roots), "")


def _list_leaves(value: object) -> Iterator[object]:
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else None
    if items is None:
        yield value
    else:
        for item in items:
            yield from _list_leaves(item)


def describe_error(error: BaseException) -> str:
    """Describe what a user's file, or a framework, has raised, on one line."""
    if isinstance(error, SystemExit):
        return f"it calls sys.exit({'' if error.code is None else repr(error.code)})"
    return " ".join(f"{type(error).__name__}: {error}".split())[:_MAX_REASON]


def load_function(path: Path, name: str, arguments_hint: str) -> UserFunction:
    """Import a user's file, and find a function in it with its arguments; raise a PlanError if that fails."""
    sys.path.insert(0, str(path.parent))
    specification = importlib.util.spec_from_file_location(path.stem, path)
    if specification is None or specification.loader is None:
        raise PlanError("it is not a Python file")
    module = importlib.util.module_from_spec(specification)
    sys.modules[path.stem] = module
    # The file must not see this program's own arguments.
    sys.argv = [str(path)]
    try:
        specification.loader.exec_module(module)
    # A user's file may raise anything.
    except (Exception, SystemExit) as error:
        raise PlanError(f"{path.name} cannot be imported: {describe_error(error)}") from error
    call = getattr(module, name, None)
    if not callable(call):
        names = ", ".join(sorted(key for key, value in vars(module).items() if callable(value) and key[0] != "_"))
        raise PlanError(f"{path.name} has no function {name}; it has {names[:_MAX_REASON] or 'none'}")
    arguments = getattr(module, f"{name}_arguments", getattr(module, "arguments", None))
    if callable(arguments):
        try:
            arguments = arguments()
        # The same holds here.
        except (Exception, SystemExit) as error:
            raise PlanError(f"the arguments of {name} cannot be made: {describe_error(error)}") from error
    if not isinstance(arguments, tuple | list | dict):
        raise PlanError(f"{path.name} needs {name}_arguments, {arguments_hint}, to export {name}")
    sizes = getattr(module, f"{name}_dynamic_shapes", getattr(module, "dynamic_shapes", None))
    return UserFunction(call, dict(arguments) if isinstance(arguments, dict) else tuple(arguments), sizes)


def run_user_main(
    run: Callable[[Mapping[str, object]], Mapping[str, object]],
    export: Callable[[Mapping[str, object]], Mapping[str, object]],
) -> int:
    """Run the main function of a worker that runs a user's file, or exports it; return the exit code.

    What the file prints, also when this program ends, goes to standard error, because standard output has the answer.
    """

    def answer(document: Mapping[str, object]) -> Mapping[str, object]:
        output = os.dup(1)
        os.dup2(2, 1)
        try:
            return run(document) if "engine" in document else export(document)
        finally:
            sys.stdout.flush()
            os.dup2(output, 1)

    exit_code = run_worker_main(sys.argv, answer)
    sys.stdout.flush()
    os.dup2(2, 1)
    return exit_code
