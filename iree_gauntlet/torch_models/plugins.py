"""Loading plugin files: the toolkit's own and a user's, imported alike; what they declare is checked together."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from iree_gauntlet.errors import Problem, UsageError
from iree_gauntlet.settings import shown
from iree_gauntlet.torch_models.declarations import Declaration, by_name
from iree_gauntlet.torch_models.discovery import load_alone
from iree_gauntlet.torch_models.lookup import Registry
from iree_gauntlet.torch_models.recipe_registry import Activation, Architecture, PluginError, Recipe, ShapeSet

if TYPE_CHECKING:
    from collections.abc import Sequence


ENTRY_POINTS = "iree_gauntlet.micro"
BUILTIN_FILES = tuple(
    Path(__file__).absolute().parent / name
    for name in ("builtin_shapes.py", "builtin_recipes.py", "builtin_architectures.py")
)

_PREFIX = "_gauntlet_plugin_"
_NOTHING = "a plugin declares with @recipe, compiler_recipe, @architecture, @activation or @shape_set"


def load_registry(files: Sequence[Path] = (), builtin: Sequence[Path] = BUILTIN_FILES) -> Registry:
    """Everything that the toolkit and some plugin files declare; each file is read again with every call.

    Args:
        files: plugin files; one that is named twice counts once.
        builtin: the toolkit's own.

    Raises:
        UsageError: there is no such file.
        PluginError: with every problem of every file.
    """
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
    registry = Registry(
        recipes=by_name(declared, Recipe, problems),
        architectures=by_name(declared, Architecture, problems),
        activations=by_name(declared, Activation, problems),
        shape_sets=by_name(declared, ShapeSet, problems),
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
