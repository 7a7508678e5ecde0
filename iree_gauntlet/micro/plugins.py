"""Loading plugin files: the toolkit's own and a user's, imported alike; what they declare is checked together."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from iree_gauntlet.bench.failures import failure_problem
from iree_gauntlet.bench.registry import shown
from iree_gauntlet.errors import Problem, UsageError
from iree_gauntlet.micro.lookup import Registry
from iree_gauntlet.micro.registry import (
    Activation,
    Architecture,
    Declaration,
    PluginError,
    Recipe,
    ShapeSet,
    declarations,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import CodeType

    from iree_gauntlet.micro.registry import Declared

__all__ = ["BUILTIN_FILES", "ENTRY_POINTS", "entry_point_files", "load_registry"]

ENTRY_POINTS = "iree_gauntlet.micro"
BUILTIN_FILES = tuple(
    Path(__file__).absolute().parent / name
    for name in ("builtin_shapes.py", "builtin_recipes.py", "builtin_architectures.py")
)

_PREFIX = "_gauntlet_plugin_"
_NOTHING = "a plugin declares with @recipe, compiler_recipe, @architecture, @activation or @shape_set"
_LATE_IMPORT = "; a file that imports it inside its functions can be listed without it"
_RELATIVE = "a plugin is one file: it imports other modules by their full names"
_WORDS: Mapping[type, str] = {
    Recipe: "a recipe",
    Architecture: "an architecture",
    Activation: "an activation",
    ShapeSet: "a shape set",
}

Kind = TypeVar("Kind", bound=Declaration)


class _SourceLoader(SourceFileLoader):
    """Compiles the source every time: bytecode is told from newer source by seconds and size, and litters folders."""

    def get_code(self, fullname: str) -> CodeType:
        del fullname
        return self.source_to_code(self.get_data(self.path), self.path)


def load_registry(files: Sequence[Path] = (), builtin: Sequence[Path] = BUILTIN_FILES) -> Registry:
    """Everything that the toolkit and some plugin files declare; each file is read anew with every call.

    Args:
        files: plugin files; one that is named twice counts once.
        builtin: the toolkit's own.

    Raises:
        UsageError: there is no such file.
        PluginError: with every problem of every file.
    """
    own = tuple(dict.fromkeys(file.resolve() for file in files))
    declared: list[Declared] = []
    problems: list[Problem] = []
    for file in dict.fromkeys((*builtin, *own)):
        if not file.is_file():
            raise UsageError(f"no plugin file {shown(file)}", "Name an existing Python file with --plugin.")
        found, wrong = _load(file)
        declared += found
        problems += wrong
        if not found and not wrong:
            problems.append(Problem(str(shown(file)), 0, "", "it declares nothing", _NOTHING))
    registry = Registry(
        recipes=_by_name(declared, Recipe, problems),
        architectures=_by_name(declared, Architecture, problems),
        activations=_by_name(declared, Activation, problems),
        shape_sets=_by_name(declared, ShapeSet, problems),
        files=own,
    )
    if problems:
        raise PluginError(problems)
    return registry


def entry_point_files() -> tuple[Path, ...]:
    """The plugin files of installed packages: those of the modules that their entry points name.

    The modules are not imported by these names; of one in a package, the package is.

    Raises:
        PluginError: an entry point names no module that is a file.
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


def _load(file: Path) -> tuple[list[Declared], list[Problem]]:
    name = _PREFIX + hashlib.sha256(bytes(file)).hexdigest()[:16]
    spec = importlib.util.spec_from_loader(name, _SourceLoader(name, str(file)))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and torch.compile look their modules up.
    sys.modules[name] = module
    with declarations() as declared:
        try:
            spec.loader.exec_module(module)
        except PluginError as error:
            return declared, error.problems
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a file of a user may raise anything, and is named for it
            return declared, [_failure(error, file)]
    return declared, []


def _failure(error: BaseException, file: Path) -> Problem:
    relative = isinstance(error, ImportError) and "relative import" in str(error)
    problem = failure_problem(error, file, file, 0, "", _RELATIVE if relative else "")
    late = _LATE_IMPORT if isinstance(error, ModuleNotFoundError) and problem.hint else ""
    return Problem(problem.file, problem.line, problem.field, problem.message, problem.hint + late)


def _by_name(declared: Sequence[Declared], kind: type[Kind], problems: list[Problem]) -> dict[str, Kind]:
    found: dict[str, Kind] = {}
    for item in declared:
        if isinstance(item, kind):
            first = found.setdefault(item.name, item)
            if first is not item:
                message = f"{_WORDS[kind]} of this name is declared at {first.place} already"
                problems.append(Problem(str(shown(item.file)), item.line, item.name, message, "rename one of them"))
    return dict(sorted(found.items()))
