"""Loading models folders: every module of them is imported, and what it declares is checked together."""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import sys
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib.machinery import SourceFileLoader
from types import ModuleType
from typing import TYPE_CHECKING

from iree_gauntlet.errors import Problem, UsageError
from iree_gauntlet.settings import shown
from iree_gauntlet.torch_models.declarations import (
    Declaration,
    DeclarationError,
    by_name,
    declarations,
    failure_problem,
    unknown_name,
)
from iree_gauntlet.torch_models.model_registry import BenchmarkModel, ModelError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path


_PREFIX = "_gauntlet_models_"
_EXAMPLE = "a model is a function under @benchmark_model, see docs/how-to/bench-models.md"
_LATE_IMPORT = "; a file that imports it inside its functions can be listed without it"


def discover(folders: Sequence[Path], passed_over: list[Problem] | None = None) -> dict[str, BenchmarkModel]:
    """Import every `*.py` of models folders whose name does not start with `_`, and collect the models by name.

    Each folder is a package of a private name, so that files of one name in two folders do not meet and files
    import their siblings relatively (`from ._layers import Attention`). A folder is read again with every call.

    `passed_over`: takes in every problem of every file; None for an error.

    Raises:
        UsageError: for a folder that does not exist or has no files.
        ModelError: with every problem of every file.
    """
    declared: list[Declaration] = []
    problems: list[Problem] = []
    for folder in dict.fromkeys(folder.resolve() for folder in folders):
        with _reading() as found:
            wrong = _load_folder(folder)
        declared += found
        problems += wrong
        if not found and not wrong:
            problems.append(Problem(str(shown(folder)), 0, "", "none of its files declares a model", _EXAMPLE))
    models = by_name(declared, BenchmarkModel, problems)
    problems = list(dict.fromkeys(problems))
    if passed_over is not None:
        passed_over += problems
    elif problems:
        raise ModelError(problems)
    return models


def find_model(models: dict[str, BenchmarkModel], name: str) -> BenchmarkModel:
    """The model of a name.

    Raises:
        UsageError: where there is none; says which there are.
    """
    if name not in models:
        raise unknown_name(f"there is no benchmark model {name!r}", name, models)
    return models[name]


def load_alone(file: Path, prefix: str) -> tuple[list[Declaration], list[Problem]]:
    """Runs a file by itself, whatever was run before: what it declares, and what is wrong with it.

    `prefix`: of the private name that its module has: dataclasses and torch.compile look their modules up.
    """
    with _reading() as declared:
        return declared, _problems_of(lambda: _run(file, _private(prefix, file)), file, file)


def sources(model: BenchmarkModel) -> tuple[Path, ...]:
    """The files of its folder that a model is made from: its own, and those that it imports, sorted.

    Imports are read from the source, those inside functions too; one that is made with `importlib` is not seen.

    Raises:
        ModelError: where one of them is no Python.
    """
    root = _root(model)
    found: set[Path] = set()
    # A package's __init__.py runs before what lies in it.
    packages = [folder for folder in model.file.parents if folder.is_relative_to(root)]
    waiting = [model.file, *(folder / "__init__.py" for folder in packages)]
    while waiting:
        file = waiting.pop()
        if file in found or not file.is_file():
            continue
        found.add(file)
        try:
            tree = ast.parse(file.read_bytes(), filename=str(file))
        except SyntaxError as error:
            raise ModelError([failure_problem(error, root, file, 0, "")]) from error
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.level:
                waiting += _imported(node, file, root)
    return tuple(sorted(found))


def _root(model: BenchmarkModel) -> Path:
    """The models folder; a model may be declared in a package inside it."""
    depth = model.module.count(".")
    return model.file.parents[depth if model.file.name == "__init__.py" else depth - 1]


def _imported(node: ast.ImportFrom, file: Path, root: Path) -> Iterator[Path]:
    """What a relative import may run: modules, and the `__init__.py` of every package on the way."""
    place = file.parents[node.level - 1]
    if not place.is_relative_to(root):
        return
    for word in node.module.split(".") if node.module else ():
        place /= word
        yield place.with_suffix(".py")
        yield place / "__init__.py"
    for alias in node.names:
        yield place / f"{alias.name}.py"
        yield place / alias.name / "__init__.py"


@contextmanager
def _reading() -> Iterator[list[Declaration]]:
    """Collect what is declared, and write no bytecode."""
    before = sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    try:
        with declarations() as declared:
            yield declared
    finally:
        sys.dont_write_bytecode = before


def _private(prefix: str, path: Path) -> str:
    return prefix + hashlib.sha256(bytes(path)).hexdigest()[:16]


def _load_folder(folder: Path) -> list[Problem]:
    if not folder.is_dir():
        raise UsageError(f"no models folder {shown(folder)}", "name an existing folder with --models-dir")
    files = sorted(path for path in folder.glob("*.py") if not path.name.startswith(("_", ".")) and path.is_file())
    if not files:
        raise UsageError(f"no *.py files in the models folder {shown(folder)}", _EXAMPLE)
    package = _private(_PREFIX, folder)
    for name in [name for name in sys.modules if name == package or name.startswith(f"{package}.")]:
        del sys.modules[name]
    importlib.invalidate_caches()
    init = folder / "__init__.py"
    problems: list[Problem] = []
    if init.is_file():
        problems += _problems_of(lambda: _run(init, package, folder), folder, init)
    else:
        sys.modules[package] = ModuleType(package)
        sys.modules[package].__path__ = [str(folder)]
    for file in files:
        if "." in file.stem:
            hint = f"rename it to {file.stem.partition('.')[0]}.py"
            problems.append(Problem(str(shown(file)), 0, "", "a module's name has no dot", hint))
        else:
            problems += _problems_of(partial(importlib.import_module, f"{package}.{file.stem}"), folder, file)
    return problems


def _run(file: Path, name: str, folder: Path | None = None) -> None:
    """Runs a file as the module of a name; with a folder, as its package."""
    search = None if folder is None else [str(folder)]
    loader = SourceFileLoader(name, str(file))
    spec = importlib.util.spec_from_file_location(name, file, loader=loader, submodule_search_locations=search)
    assert spec is not None
    sys.modules[name] = importlib.util.module_from_spec(spec)
    loader.exec_module(sys.modules[name])


def _problems_of(run: Callable[[], object], folder: Path, file: Path) -> list[Problem]:
    """What is wrong with a file that is run."""
    try:
        run()
    except DeclarationError as error:
        return error.problems
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a file of a user may raise anything, and is named for it
        problem = failure_problem(error, folder, file, 0, "")
        late = _LATE_IMPORT if isinstance(error, ModuleNotFoundError) and "pip install" in problem.hint else ""
        return [replace(problem, hint=problem.hint + late)]
    return []
